"""Bits per byte of targets given their sources, of models that write one text for another (`objectives.supervised`).

Training showed such a model sources and asked it for targets: neither a text without a source nor a source itself has a
probability under it. What is asked here is what training asked: the beginning of each source that fits, the first
`max_target` tokens of its target and, where that is all of it, [EOS].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from unmask.batch import Rows, ranges, starts
from unmask.data.marks import TargetText
from unmask.errors import UserError
from unmask.evaluation.base import Model, objective_of, shape_of, tokenizer_of
from unmask.evaluation.events import event, start_of
from unmask.evaluation.fit import plan_of, room, source_most
from unmask.evaluation.heldout import content_tokens, unigram_losses
from unmask.evaluation.intervals import ratio
from unmask.evaluation.items import Options, outcomes, sample
from unmask.evaluation.plans import Query
from unmask.evaluation.score import log_losses
from unmask.objectives.supervised import Supervised
from unmask.text.corpus import utf8_length

LABEL = "bits per byte of targets given sources"
PART = 256
"""Pairs that are scored together."""


class Sources(Protocol):
    """D documents as ids and, beside them, their targets: `data.shards.Shards` is one."""

    @property
    def tokens(self) -> np.ndarray: ...  # (N,)

    @property
    def documents(self) -> np.ndarray: ...  # (D + 1,)

    @property
    def target(self) -> TargetText | None: ...


@dataclass(frozen=True)
class EncodedPairs:
    """Documents with targets that a user gives."""

    tokens: np.ndarray
    documents: np.ndarray
    target: TargetText
    notes: tuple[str, ...] = ()
    """What reading had to say."""


def asks_pairs(model: Model) -> bool:
    """Whether the model, as it is asked, writes a target for a source."""
    return isinstance(objective_of(model), Supervised)


def encode_pairs(model: Model, pairs: Sequence[tuple[str, str]]) -> EncodedPairs:
    """(source, target) pairs as ids, each side by itself, as in training."""
    if not pairs:
        raise UserError("the text to evaluate on holds no pair of source and target: give at least one")
    tokenizer = tokenizer_of(model)
    first, second = (tokenizer.encode_batch([pair[side] for pair in pairs]) for side in (0, 1))
    ids = np.concatenate(second)
    counts = np.bincount(ids, minlength=tokenizer.vocabulary.size)
    target = TargetText(ids, starts(np.array([len(i) for i in second])), counts)
    return EncodedPairs(np.concatenate(first), starts(np.array([len(i) for i in first])), target)


def training_counts(model: Model, text: Any) -> np.ndarray:
    """(V,) of a run's training text (`data.shards.Shards`), or of its targets where the model writes these."""
    return np.asarray(text.target.counts if asks_pairs(model) and text.target is not None else text.counts)


def bits_of_targets(model: Model, text: Sources, options: Options) -> dict[str, Any]:
    """Σ −log2 p(target | source) / bytes of the targets, over documents that have both.

    Bytes are those of the scored tokens as the tokenizer spells them. `options.limit`: at most so many pairs, drawn by
    key. Loss and floor (`options.counts`: of the training targets) are nats per content token, as in `heldout`.
    """
    objective, tokenizer = objective_of(model), tokenizer_of(model)
    plan = plan_of(objective, options.plan)
    if options.stride is not None:
        raise UserError(f"pairs are read whole, without rolling windows: drop stride={options.stride}")
    assert isinstance(objective, Supervised)
    if text.target is None:
        raise UserError("this text has no targets to measure: name the key or column that holds them (target)")
    chosen, most = _chosen(text, text.target, options), source_most(objective, shape_of(model))
    longest = min(objective.max_target, room(objective, shape_of(model), plan))
    known = content_tokens(model.vocabulary)
    floor = None if options.counts is None else unigram_losses(options.counts, model.vocabulary)
    bits, size, scored = (np.zeros(len(chosen)) for _ in range(3))
    nats = below = content = 0.0
    with options.watch("pairs", len(chosen)) as advance:
        for begin in range(0, len(chosen), PART):
            query = _query(text, text.target, chosen[begin : begin + PART], most, longest)
            nll, _ = log_losses(model, query, plan=plan)
            rows, asked = query.rows, ~np.isnan(nll)
            owner = np.concatenate([rows.row, np.arange(len(rows.lengths))])[asked] + begin
            bits += np.bincount(owner, nll[asked] / np.log(2), len(chosen))
            scored += np.bincount(owner, minlength=len(chosen))
            said = asked[: len(rows.tokens)]
            for k, (a, b) in enumerate(zip(rows.start[:-1] + query.given, rows.start[1:], strict=True), begin):
                size[k] = utf8_length(tokenizer.decode(rows.tokens[a:b].tolist()).rstrip("\ufffd"))  # half a character
            at = np.flatnonzero(said & known[rows.tokens])
            nats, content = nats + float(nll[at].sum()), content + len(at)
            below += 0.0 if floor is None else float(floor[rows.tokens[at]].sum())
            advance(len(rows.lengths))
    measured, start = ratio(bits, size, options.seed), start_of(model, plan)
    return {
        "suite": "bpb",
        "label": LABEL,
        "plan": plan,
        "event": event(model, plan, context=True, end=True, loss=True) + _cuts(most, longest),
        "start": None if start is None else tokenizer.token(start),
        "limit": options.limit,
        "value": measured.value if size.sum() else None,
        "interval": None if measured.interval is None else list(measured.interval),
        "standard_error": measured.error,
        "interval_over": "pairs",
        "counts": {"pairs": len(chosen), "bytes": int(size.sum()), "scored": int(scored.sum())},
        "loss": nats / content if content else None,
        "unigram_floor": below / content if content and floor is not None else None,
        "lossy": tokenizer.losses,
        "seed": options.seed,
        **(outcomes("pairs", bits.tolist(), (), size.tolist(), 1.0) if options.items else {}),
    }


def _cuts(most: int, longest: int) -> str:
    return f"; of a source the first {most} tokens, of a target the first {longest} (with its end if that is all of it)"


def _chosen(text: Sources, target: TargetText, options: Options) -> np.ndarray:
    """The documents that are asked: those with a source and a target, or a sample of them."""
    both = (np.diff(np.asarray(text.documents)) > 0) & (np.diff(np.asarray(target.documents)) > 0)
    which = np.flatnonzero(both)
    if not len(which):
        raise UserError("no document of this text has a target that gives a token: nothing can be measured")
    return which[np.asarray(sample(len(which), options.limit, options.seed, "pairs"), np.int64)]


def _query(text: Sources, target: TargetText, which: np.ndarray, most: int, longest: int) -> Query:
    """Source and target of some documents side by side, the source being given."""
    first, second = np.asarray(text.documents), np.asarray(target.documents)
    given, whole = (np.diff(a)[which] for a in (first, second))
    given, own = np.minimum(given, most), np.minimum(whole, longest)
    start = starts(given + own)
    tokens = np.zeros(start[-1], np.int32)
    tokens[ranges(start[:-1], given)] = text.tokens[ranges(first[:-1][which], given)]
    tokens[ranges(start[:-1] + given, own)] = target.tokens[ranges(second[:-1][which], own)]
    n = len(which)
    rows = Rows(tokens, start, which.astype(np.uint64), np.arange(n), np.zeros(len(tokens), bool), own == whole)
    return Query.of(rows, given)
