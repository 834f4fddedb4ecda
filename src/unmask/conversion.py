"""A trained model as another kind of model, written as a run: `unmask convert`. The arithmetic is `model.convert`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from unmask.config import Visibility
from unmask.errors import UserError, nearest
from unmask.lm import LM
from unmask.loading import load, words_of, write_run
from unmask.model.convert import Weights, grow_vocabulary, longer_positions, pair, to_visibility
from unmask.objectives import Causal, Masked, PrefixLM, SpanCorruption
from unmask.objectives.base import Objective
from unmask.objectives.layout import Layout
from unmask.tokens.asked import require_controls
from unmask.tokens.grow import rows_of, with_tokens
from unmask.tokens.special import Vocabulary
from unmask.tokens.structure import tokens_of
from unmask.tokens.tokenizer import Tokenizer

To = Literal["causal", "prefix", "masked", "encdec"]
Cross = Literal["new", "self"]
Positions = Literal["interpolate", "repeat", "new"]


@dataclass(frozen=True)
class Converted:
    """Where the converted model lies, and what was copied and what is new, one phrase each."""

    run: Path
    notes: tuple[str, ...]


def convert(
    source: str | Path,
    run: str | Path,
    to: To | None = None,
    *,
    decoder: str | Path | None = None,
    cross: Cross = "new",
    tokenizer: str | Path | None = None,
    add_tokens: Sequence[str] = (),
    max_position: int | None = None,
    positions: Positions = "interpolate",
    rotary_base: float | None = None,
    seed: int = 0,
) -> Converted:
    """Write a run that holds a converted model at step 0: to score, to export, or to train on with `init=`.

    to            causal, prefix, masked: the same weights under that mask. encdec: `source` becomes the encoder, and
                  `decoder` (or a copy of `source`) the decoder
    cross         encdec: cross-attention new, from `seed`, or from the decoder's self-attention
    tokenizer     another vocabulary; or add_tokens: more tokens for the one there is
    max_position  room for longer texts; `positions` says how learned tables grow, `rotary_base` slows rotary ones
    """
    _checked(to, decoder, cross, tokenizer, add_tokens)
    if positions != "interpolate" and max_position is None:
        raise UserError(f"--positions {positions} says how a table grows: add --max-position, or leave it out")
    if seed < 0:
        raise UserError(f"seed={seed} must be 0 or more")
    place = Path(run)
    if place.exists():
        raise UserError(f"{place} already exists: give another directory for the run")
    first = _read(source, tokenizer, add_tokens)
    weights = first.weights
    if to == "encdec":
        second = first if decoder is None else _read(decoder, tokenizer, add_tokens)
        _one_vocabulary(first, second)
        weights = pair(weights, second.weights, cross, seed)
    elif to is not None:
        weights = to_visibility(weights, _MASKS[to])
    if max_position is not None or rotary_base is not None:
        weights = longer_positions(weights, max_position, positions, rotary_base, seed)
    if not weights.notes:
        raise UserError(f"{source} is what is asked for already: say what shall change (--to, --add-token, …)")
    made = first.made(weights, to)
    if made.tokenizer is not None and made.objective is not None:
        require_controls(made.objective, made.vocabulary, made.tokenizer, str(source), str(source))
    more = {} if decoder is None else {"decoder": str(Path(decoder).absolute())}
    return Converted(write_run(place, made, source, converted=list(weights.notes), **more), weights.notes)


_MASKS: dict[str, Visibility] = {"causal": "causal", "prefix": "prefix", "masked": "bidirectional"}
_OBJECTIVES: dict[str, Objective] = {"causal": Causal(), "prefix": PrefixLM(), "masked": Masked()}


def _checked(to: str | None, decoder: object, cross: str, tokenizer: object, add_tokens: Sequence[str]) -> None:
    """Settings that do not go together."""
    for name, value, known in (("to", to, get_args(To)), ("cross", cross, get_args(Cross))):
        if value is not None and value not in known:
            raise UserError(f"{name}={value} is none of {', '.join(known)}{nearest(value, known)}")
    if to != "encdec" and (decoder is not None or cross != "new"):
        name = "with" if decoder is not None else "cross"
        raise UserError(f"--{name} is for two stacks: add --to encdec, or leave it out")
    if tokenizer is not None and add_tokens:
        raise UserError("--tokenizer is another vocabulary, and --add-token more of the one there is: give one of them")


@dataclass(frozen=True)
class _Source:
    """A model that was read, its weights under the vocabulary asked for."""

    title: str
    lm: LM
    weights: Weights
    tokenizer: Tokenizer | None
    words: Vocabulary | None

    def made(self, weights: Weights, to: str | None) -> LM:
        """The converted model, with the objective and context that suit it."""
        lm, objective = self.lm, self.lm.objective
        if objective is None and to != "encdec":
            raise UserError(f"{self.title} has no vocabulary head: it is no language model that a run could continue")
        if to == "encdec":
            sentinels = self.tokenizer is not None and len(self.tokenizer.vocabulary.sentinels) > 0
            objective = SpanCorruption() if sentinels else PrefixLM(layout=Layout(kind="encdec"))
        elif to is not None and weights.config.visibility != lm.config.visibility:
            objective = _OBJECTIVES[to]
        whole = lm.context >= lm.config.max_position  # it read texts as long as it has room for, and so it shall
        context = weights.config.max_position if whole else lm.context
        target = context if lm.target_context is not None and whole else lm.target_context
        return LM(weights.network(), context, self.tokenizer, objective, target, self.words)


def _read(place: str | Path, tokenizer: str | Path | None, add_tokens: Sequence[str]) -> _Source:
    """A model under another tokenizer, or its own with more tokens."""
    lm = load(place, device="cpu")
    weights, own = Weights.of(lm.network), lm.tokenizer
    if tokenizer is None and not add_tokens:
        return _Source(str(place), lm, weights, own, lm.words)
    if own is None:
        raise UserError(f"{place} has no tokenizer, so nothing says which entry of another one is which: add its file")
    if tokenizer is not None:
        other = Tokenizer.load(tokenizer)
        return _Source(str(place), lm, grow_vocabulary(weights, rows_of(own, other), own.vocabulary.size), other, None)
    more = with_tokens(own, add_tokens)
    rows = [[i] for i in range(own.vocabulary.size)] + rows_of(own, more)[own.vocabulary.size :]
    rows += [[i] for i in range(len(rows), lm.config.vocab_size)]  # rows of padding stay
    words = None if lm.words is None else words_of(more, lm.words.bos, lm.words.eos)
    return _Source(str(place), lm, grow_vocabulary(weights, rows, own.vocabulary.size), more, words)


def _one_vocabulary(first: _Source, second: _Source) -> None:
    """Both stacks read the ids of one tokenizer."""
    if first.tokenizer is None or second.tokenizer is None:
        return
    ours, theirs = tokens_of(first.tokenizer.spec), tokens_of(second.tokenizer.spec)
    if ours != theirs:
        odd = min(ours.items() ^ theirs.items(), key=lambda item: item[1])[0]
        raise UserError(
            f"{first.title} and {second.title} have different tokenizers (first at {odd!r}), and a model of two stacks "
            "has one: give both the same with --tokenizer FILE"
        )
