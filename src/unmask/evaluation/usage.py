"""How an exported model is asked in code what it was trained for: the example of its card, chosen by `abilities`.

The library's own call is shown where it puts the question of training (a [MASK] in its frame, a prompt, a sentinel with
the decoder started behind it, a query). Where no class of the library can put it, `unmask.load` reads the same files.
Only a plain `generate` or [MASK] gets a task name, by which hubs choose what they call.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from unmask.evaluation.abilities import Abilities, abilities, spoken, token_head_of
from unmask.evaluation.base import Model, says_tokens, tokenizer_of
from unmask.evaluation.inputs import read_as
from unmask.model.card import Usage
from unmask.objectives.bart import Bart
from unmask.objectives.base import Objective, Plan
from unmask.objectives.denoise import SpanCorruption, TextToText
from unmask.objectives.dials import Dials
from unmask.objectives.glm import GLM
from unmask.objectives.infilling import FillInTheMiddle, sentinels
from unmask.objectives.mass import Mass
from unmask.objectives.mixture import Mixture
from unmask.objectives.mode import notice
from unmask.objectives.permutation import Permutation
from unmask.objectives.shifted import ShiftedMasked
from unmask.objectives.study import DroppedTokens, Restoration
from unmask.objectives.supervised import Supervised
from unmask.objectives.ul2 import UL2

GAP, PROMPT, TEXT = "The [MASK] was here.", "Once upon a time", "A short text."
GENERATE, FILL = "text-generation", "fill-mask"
SAYING = ("AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoModelForSeq2SeqLM")
"""The library's classes that say tokens."""


def usage(model: Model, classes: Sequence[str]) -> Usage:
    """The example of a model whose export the library loads by these Auto classes, the fullest last."""
    objective = model.objective
    said = "" if objective is None else notice(objective.model_dump(mode="json")).strip()
    if model.tokenizer is None:
        ids = f"ids{', decoder_input_ids=ids' if model.config.num_source_layers else ''}"
        return Usage(("ids = torch.tensor([[1, 2, 3]])", *_run(f"    print(model({ids}))")), said=said)
    if objective is None or token_head_of(objective) is None or not says_tokens(model) or classes[-1] not in SAYING:
        ids = "**inputs" + (", decoder_input_ids=inputs.input_ids" if model.config.num_source_layers else "")
        call = "**inputs" if classes[-1] == "AutoModel" else ids  # the bare encoder answers without a decoder
        return Usage((_read(TEXT), *_run(f"    print(model({call}))")), said=said)
    asked = objective.first if isinstance(objective, Mixture) else objective
    found = _Asking(model, asked).question() or Usage(_through_unmask(abilities(asked)), own=True)
    return Usage(found.code, found.task, found.own, said, *_other_half(objective, asked))


def _read(text: str) -> str:
    return f'inputs = tokenizer("{text}", return_tensors="pt", return_token_type_ids=False)'


def _run(*lines: str) -> tuple[str, ...]:
    return ("with torch.no_grad():", *lines)


def _through_unmask(can: Abilities, mode: str = "") -> tuple[str, ...]:
    """What `unmask.load` is asked: the first of filling, writing and scoring that the model can."""
    told = f', mode="{mode}"' if mode else ""
    if not can.fill:
        return (f'print(lm.fill("{GAP}"{told}).text)',)
    if not can.generate:
        return (f'print(lm.generate("{PROMPT}", max_tokens=20{told})[0])',)
    if not can.score and can.plans:
        return (f'print(lm.score("{TEXT}"{told})[0])',)
    return (f'print(lm.embed("{TEXT}"))',)


def _other_half(objective: Objective, asked: Objective) -> tuple[str, tuple[str, ...]]:
    """Of models trained in several ways: what the library's class does not show, and how it is asked."""
    if isinstance(objective, Mixture):
        return _other_parts(objective)
    can = abilities(asked)
    if not isinstance(asked, ShiftedMasked | Dials) or can.unmasks != "too":
        return "", ()
    other = "The other, filling a [MASK] from what stands on both sides,"
    return _HALF.format(f"it is exported with the {asked.visibility} mask under which it writes", other, ""), (
        _through_unmask(can)
    )


def _other_parts(objective: Mixture) -> tuple[str, tuple[str, ...]]:
    """The same of a mixture: every part but the first."""
    others = {name: part.asked for name, part in list(objective.parts.items())[1:]}
    able = {name: abilities(p) for name, p in others.items() if token_head_of(p) is not None}
    code = [line for name, can in able.items() for line in _through_unmask(can, name)]
    if not code:
        return "", ()
    seen = objective.visibility
    alike = [f"`{name}`" for name, part in objective.parts.items() if part.objective.visibility == seen]
    mask = f"it is exported with the {seen} mask{f' of {alike[0]}' if alike else ''}"
    plain = {p.type for p in others.values() if p.type in ("causal", "masked") and p.control is None}
    ways = " or ".join(f"--to {to}" for to in sorted(plain - {objective.first.type}))
    also = (
        f" For the library, `unmask convert RUN OUT {ways}` makes such a model, which is exported as any."
        if ways
        else ""
    )
    return _HALF.format(mask, "What it learnt as its other parts", also), tuple(code)


_HALF = (
    "That is one side of its training only: {}. {} is in the same weights, but that class cannot be asked for it; "
    "`unmask.load` can, from the same files.{}"
)


class _Asking:
    """One model under one objective, and the library's code that puts its question; `mask`, `eos`, … as spelled."""

    def __init__(self, model: Model, objective: Objective) -> None:
        self.model, self.objective, self.words = model, objective, model.vocabulary
        self.two, self.visible = model.config.num_source_layers > 0, model.config.visibility

    def question(self) -> Usage | None:
        """None = no class of the library can be asked."""
        o, can = self.objective, abilities(self.objective)
        if not self._framed():
            return None
        match o:
            case Permutation():
                return self._queried(o)
            case ShiftedMasked() if not o.causal_share:
                return self._masked(earlier=1)
            case Dials() if o.prefix != "all" and "left_to_right" not in can.plans:
                return None
            case GLM():
                return self._blank()
            case SpanCorruption() | UL2():
                return self._sentinel()
            case FillInTheMiddle() if o.rate == 1:
                return self._middle(o)
            case Restoration() | Bart() if can.fill and can.generate and can.score:
                return self._written(TEXT, closed=True)
            case Restoration() | Bart() | Mass() | DroppedTokens():
                return None
            case Supervised():
                return self._written(PROMPT, closed=True)
        if can.unmasks == "only" or (can.unmasks == "too" and self.visible == "bidirectional"):
            return self._masked()
        return self._written(PROMPT) if not can.generate else None

    def _framed(self) -> bool:
        """Whether the exported class attends as under this objective, and the exported tokenizer frames its texts."""
        if isinstance(self.objective, TextToText) and self.objective.layout.bos == "boundary":
            return False
        if self.two:
            return True
        reads = read_as(self.model.objective, self.model.config)
        return reads == self.objective and self.objective.visibility == self.visible

    def _spell(self, token: str | int) -> str:
        return tokenizer_of(self.model).token(self.words.need(token) if isinstance(token, str) else token)

    def _mode(self, plan: Plan) -> str:
        return "".join(spoken(self.objective, plan))

    def _sentinels(self, count: int) -> list[str]:
        return [self._spell(int(s)) for s in sentinels(self.words, count, self.objective.type)]

    def _gap(self, spelled: str, plan: Plan = "infill") -> str:
        return self._mode(plan) + GAP.replace("[MASK]", spelled)

    # ------------------------------------------------------------ one token

    def _at_mask(self) -> tuple[str, str]:
        place = "at = int((inputs.input_ids[0] == tokenizer.mask_token_id).nonzero()[0])"
        return _read(self._gap(self._spell("mask"), "pseudo")), place

    def _masked(self, earlier: int = 0) -> Usage | None:
        if self.words.mask is None:
            return None
        read = "logits[0, at - 1]  # a token is predicted one place before its own" if earlier else "logits[0, at]"
        code = (*self._at_mask(), *_run(f"    logits = model(**inputs).{read}"), _FIVE)
        return Usage(code, None if earlier or self._mode("pseudo") else FILL)

    def _queried(self, objective: Permutation) -> Usage | None:
        """XLNet's two inputs: nobody reads what stands in the gap, and a query in its place says what does."""
        if self.words.mask is None or (objective.context == "ordered" and self._mode("pseudo")):
            return None
        hidden: tuple[str, ...] = (
            "blind = torch.zeros(1, n, n)",
            "blind[0, :, at] = 1  # nobody reads what stands there: it only holds the place",
        )
        if objective.context == "ordered":
            first, frame = ("1, n + 1", "-2:") if objective.cls == "last" else ("n", "[0, -1]")
            hidden = (
                f"rank = torch.arange({first})",
                f"rank[{frame}] = 0  # the control tokens, seen by all; the text is read from left to right",
                "rank[at] = n  # the gap comes last, and nobody reads what stands there: it only holds the place",
                "blind = ((rank[None, :] >= rank[:, None]) & (rank[None, :] > 0)).float()[None]",
            )
        asked = ("asked = torch.zeros(1, 1, n)", "asked[0, 0, at] = 1  # a query stands there")
        call = "    logits = model(**inputs, perm_mask=blind, target_mapping=asked).logits[0, 0]"
        return Usage((*self._at_mask(), "n = inputs.input_ids.shape[1]", *hidden, *asked, *_run(call), _FIVE))

    # ------------------------------------------------------------ written

    def _written(self, text: str, closed: bool = False) -> Usage:
        """`generate` on a text, which an end token closes if sources had one (in two stacks the tokenizer adds it)."""
        mode = self._mode("left_to_right" if self.objective.plan == "left_to_right" else "infill")
        end = self._spell("eos") if closed and not self.two else ""
        text = f"{mode}{text}{end}"
        show = "print(tokenizer.decode(written[0], skip_special_tokens=True))"
        task = GENERATE if not (self.two or closed or mode) else None
        return Usage((_read(text), "written = model.generate(**inputs, max_new_tokens=20)", show), task)

    def _sentinel(self) -> Usage:
        """The span of a sentinel; the decoder, or what stands behind the source, begins with it."""
        eos = self._spell("eos")
        zero, *one = self._sentinels(min(2, len(self.words.sentinels)))
        ends = f"tokenizer.convert_tokens_to_ids({json.dumps([eos, *one])})"
        call = "eos_token_id=ends, max_new_tokens=16)"
        if self.two:
            start = f'"{self._spell("bos")}{zero}", add_special_tokens=False, return_tensors="pt"'
            lines = [_read(self._gap(zero)), f"start = tokenizer({start}).input_ids  # the gap's sentinel"]
            lines += [f"ends = {ends}", f"written = model.generate(**inputs, decoder_input_ids=start, {call}"]
            return Usage((*lines, _show("start.shape[1]")))
        lines = [_read(f"{self._gap(zero)}{eos}{zero}"), "n = inputs.input_ids.shape[1]", f"ends = {ends}"]
        prefix = "prefix_length=n - 1, " if self.visible == "prefix" else ""
        return Usage((*lines, f"written = model.generate(**inputs, {prefix}{call}", _show("n")))

    def _middle(self, objective: FillInTheMiddle) -> Usage:
        """What stands before, what stands behind, and then the middle."""
        before, behind = GAP.split("[MASK]")
        zero, one, two, *end = self._sentinels(4 if objective.end == "sentinel" else 3)
        ends = f', eos_token_id=tokenizer.convert_tokens_to_ids("{end[0]}")' if end else ""
        read = _read(f"{self._mode('infill')}{zero}{before}{one}{behind}{two}")
        call = f"written = model.generate(**inputs{ends}, max_new_tokens=16)"
        return Usage((read, call, _show("inputs.input_ids.shape[1]")))

    def _blank(self) -> Usage:
        """GLM: [BOS] behind the text, at the [MASK]'s position, and a second count inside the span."""
        return Usage(
            (
                _read(self._gap(self._spell("mask"))),
                "n = inputs.input_ids.shape[1]",
                "at = int((inputs.input_ids[0] == tokenizer.mask_token_id).nonzero()[0])",
                "ids = torch.cat([inputs.input_ids, torch.tensor([[tokenizer.bos_token_id]])], 1)",
                "places, inside = torch.arange(n + 1)[None], torch.zeros(1, n + 1, dtype=torch.long)",
                "places[0, n], inside[0, n] = at, 1  # the answer stands where the [MASK] does, and counts by itself",
                "written = model.generate(",
                "    ids, prefix_length=n, position_ids=places, positions2=inside, min_new_tokens=1, max_new_tokens=16",
                ")",
                _show("n + 1"),
            )
        )


_FIVE = "print([tokenizer.decode([int(i)]) for i in logits.topk(5).indices])"


def _show(begin: str) -> str:
    return f"print(tokenizer.decode(written[0, {begin}:], skip_special_tokens=True))"
