"""Several objectives in one run: every text goes to one of them, in shares that may change along the run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from pydantic import ConfigDict, Field, SerializeAsAny, model_serializer, model_validator

from unmask import keyed
from unmask.batch import Examples, Head, Rows
from unmask.config import ModelConfig, Strict, Visibility
from unmask.errors import UserError
from unmask.objectives.base import Cut, Objective, Outline, Plan, Shape, Sizes, Vocabulary
from unmask.objectives.causal import Causal
from unmask.objectives.contrastive import Contrastive
from unmask.objectives.dealing import picked, regrouped, sizes_of, taken, van_der_corput
from unmask.objectives.masked import Masked
from unmask.objectives.mode import told

STRETCH = 16
"""Samples in a row that hold every part in its share, to the next whole number."""

DIGITS = 9
"""Of progress, as loaders round it: what begins after 5/6 of a run of 24 updates begins at the 21st."""

_OWN = ("weight", "final_weight", "from", "until", "mode", "factor")


class Part(Strict):
    """One objective of a mixture: its own settings, and beside them when and how often it is trained.

    >>> Part.model_validate({"type": "masked", "mask_rate": 0.3, "weight": 15}).objective.mask_rate
    0.3
    """

    model_config = ConfigDict(populate_by_name=True)

    objective: SerializeAsAny[Objective]
    """In a recipe its `type` or `preset` and settings stand beside the weight."""
    weight: float = Field(1.0, ge=0)
    """Share of the texts, relative to the other parts'."""
    final_weight: float | None = Field(None, ge=0)
    """The weight moves to this one in a straight line, from `from` to `until`; null = it stays."""
    begin: float = Field(0.0, ge=0, lt=1, alias="from")
    """Share of the run after which it begins."""
    until: float = Field(1.0, gt=0, le=1)
    """Share of the run after which it ends."""
    mode: str | None = None
    """A control token in front of its texts; the tokenizer must hold it (tokenizer.extra). Questions of the part have
    it, too: `mode=` of `fill`, `generate` and `score` takes the part's name, or this spelling."""
    factor: float = Field(1.0, ge=0)
    """Of its loss in the sum. Each part's loss is a mean over its own targets, however few texts it gets."""

    @model_validator(mode="before")
    @classmethod
    def _beside(cls, values: Any) -> Any:
        """The objective's settings, which stand beside the part's own."""
        if not isinstance(values, Mapping) or "objective" in values:
            return values
        own = {k: v for k, v in values.items() if k in _OWN}
        rest = {k: v for k, v in values.items() if k not in _OWN}
        return {**own, "objective": _objective(rest)}

    @model_validator(mode="after")
    def _in_time(self) -> Part:
        if self.begin >= self.until:
            raise ValueError(f"from={self.begin:g} is not before until={self.until:g}")
        return self

    @model_serializer
    def _flat(self) -> dict[str, Any]:
        own = {"weight": self.weight, "final_weight": self.final_weight, "from": self.begin, "until": self.until}
        return {**self.objective.model_dump(mode="json"), **own, "mode": self.mode, "factor": self.factor}

    def share(self, progress: float) -> float:
        """Its weight at a point of the run, 0 outside its time."""
        now, begin, until = (round(x, DIGITS) for x in (progress, self.begin, self.until))
        if now < begin or (now >= until and self.until < 1):
            return 0.0
        if self.final_weight is None:
            return self.weight
        passed = min(max((progress - self.begin) / (self.until - self.begin), 0.0), 1.0)
        return self.weight + (self.final_weight - self.weight) * passed

    # ------------------------------------------------------------ the objective, told its mode

    def heads(self) -> tuple[Head, ...]:
        return tuple(replace(h, coefficient=h.coefficient * self.factor) for h in self.objective.heads())

    def room(self, shape: Shape) -> int:
        if self.mode is None:
            return self.objective.room(shape)
        less = replace(shape, source=shape.source - 1) if shape.source else replace(shape, stream=shape.stream - 1)
        return self.objective.room(less) if min(less.stream, less.source or 1) > 0 else 0

    def sizes(self, of: Outline) -> Sizes:
        sizes = self.objective.sizes(of)
        if self.mode is None:
            return sizes
        if sizes.source is None:
            return Sizes(sizes.stream + (sizes.stream > 0))
        return Sizes(sizes.stream, sizes.source + (sizes.source > 0))

    def __call__(self, rows: Rows, vocabulary: Vocabulary) -> Examples:
        examples = self.objective(rows, vocabulary)
        if self.mode is None:
            return examples
        openings = {vocabulary.need("bos"), vocabulary.need("cls")}
        return told(examples, self.objective.heads(), vocabulary.need(self.mode), openings)

    @property
    def asked(self) -> Objective:
        """The objective that its questions are asked under, which knows the mode token."""
        return self.objective.after(self.mode)


def _objective(values: Mapping[str, Any]) -> Objective:
    """The objective of a type or preset with its settings."""
    from unmask.objectives import REGISTRY  # this module is one of its own

    settings = {k: v for k, v in values.items() if k not in ("type", "preset")}
    try:
        if "preset" in values and "type" in values:
            found = REGISTRY.preset(values["preset"])
            if found.type != values["type"]:
                raise UserError(
                    f"preset {values['preset']} is of type {found.type}, not {values['type']}: drop one of them"
                )
        name = values.get("preset", values.get("type"))
        if not isinstance(name, str):
            raise UserError("each part of a mixture needs the type or the preset of its objective")
        return REGISTRY.make(name, settings)
    except UserError as error:
        also = f"; a part itself has {', '.join(_OWN)}" if "has no setting" in str(error) else ""
        raise ValueError(f"{error}{also}") from error


class Mixture(Objective):
    """Each text is trained under one of several objectives, which share the model and the heads of one name.

        parts         weight            samples 0 … 15 (a stretch; chance orders it)
        clm           1                 . . . . . . . . . . . . . c . .
        mlm           15                m m m m m m m m m m m m m . m m

    Which part a text gets is told by its global sample number and the progress of the run. Any 16 in a row (numbers
    16 b … 16 b + 15) hold each part in its share, rounded down or up, and so do any 32, 64, … in a row: over 2^k of
    these stretches the rounding is that of one stretch of 16 · 2^k (systematic sampling, its offsets a van der Corput
    sequence). Where the share is a whole number of sixteenths it is exact.

    A weight may change along the run: in a straight line (`final_weight`), or by `from` and `until`, which say when a
    part begins and ends: causal first and masked later.

    Every part's loss is the mean over its own targets, so sparse and dense objectives weigh the same, times its
    `factor`; its texts have the noise that they would have without the others. A contrastive part tells its own pairs
    apart, those that its texts of a micro-batch hold: the fewer its texts, the fewer the negatives.

    A model is asked as its first part is, or as the one that `mode=` names.

    >>> m = Mixture.model_validate({"parts": {"clm": {"type": "causal"}, "mlm": {"type": "masked", "weight": 15}}})
    >>> m.deal(np.arange(16)).tolist(), [int((m.deal(np.arange(16 * b, 16 * b + 16)) == 0).sum()) for b in range(5)]
    ([1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1])
    >>> from unmask.objectives.show import toy
    >>> e = m(Rows.of([[11, 12, 13]], index=np.array([13])), toy())
    >>> e.stream.tokens.tolist(), e.stream.reveal.tolist(), e.targets["lm"].value.tolist()
    ([2, 11, 12, 13], [0, 1, 2, 3], [11, 12, 13, 3])
    """

    type: Literal["mixture"] = "mixture"
    parts: dict[str, Part] = Field(
        {"causal": Part(objective=Causal()), "masked": Part(objective=Masked())}, min_length=1
    )
    """The objectives by name, each with its weight, its time and its mode token. The first says how the model is scored
    and exported."""
    sees: Visibility | None = None
    """The mask that the model is exported with: bidirectional, causal or prefix; null = the first part's."""

    @model_validator(mode="after")
    def _go_together(self) -> Mixture:
        for name, part in self.parts.items():
            if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
                raise ValueError(f"'{name}' cannot name a part: use letters, digits, _ and -")
            own = part.objective
            if isinstance(own, Mixture):
                raise ValueError(f"part {name} is itself a mixture: list its parts here")
            if own.program not in ("heads", "contrastive") or own.kept != "model":
                raise ValueError(
                    f"part {name} ({own.type}) has a step of its own ({own.program}), in which several networks read "
                    "or a text is read twice, where the parts of a mixture share one pass of one model: train it "
                    "alone, or go on from its run with init="
                )
            if isinstance(own, Contrastive) and part.mode is not None:
                raise ValueError(
                    f"part {name} (contrastive) makes two texts of each, and a mode token stands in front of one: "
                    "leave its mode out"
                )
        self._same_stacks()
        self._same_heads()
        if {c for c in self._cuts() if c != "tokens"} and len(self._cuts()) > 1:
            self._one_cut()
        for progress in self.turns():
            if not self._weights(progress).sum() > 0:
                raise ValueError(f"no part has a weight at {progress:.3g} of the run: let their times meet")
        return self

    def _same_stacks(self) -> None:
        two = {name: part.objective.shape(64).source > 0 for name, part in self.parts.items()}
        if len(set(two.values())) > 1:
            with_source = ", ".join(n for n, t in two.items() if t)
            without = ", ".join(n for n, t in two.items() if not t)
            raise ValueError(
                f"{with_source} needs two stacks and {without} one: a mixture has one model, so set the layout of "
                "text-to-text parts to prefix or causal, or leave the others out"
            )

    def _same_heads(self) -> None:
        seen: dict[str, tuple[str, Head]] = {}
        for name, part in self.parts.items():
            for head in part.objective.heads():
                bare = replace(head, coefficient=1.0)
                other, known = seen.setdefault(head.name, (name, bare))
                if known != bare:
                    raise ValueError(f"parts {other} and {name} declare different heads of the name '{head.name}'")

    def _one_cut(self) -> None:
        cuts = self._cuts()
        if len({c for c in cuts if c != "tokens"}) > 1:
            each = ", ".join(f"{n} wants {p.objective.cut}" for n, p in self.parts.items())
            raise ValueError(f"the parts read differently cut texts ({each}): train them in runs of their own")

    def _cuts(self) -> list[Cut]:
        return list(dict.fromkeys(p.objective.cut for p in self.parts.values()))

    # ------------------------------------------------------------ what all parts have in common

    @property
    def first(self) -> Objective:
        """The part that is asked, with its mode token."""
        return next(iter(self.parts.values())).asked

    @property
    def plan(self) -> Plan:  # type: ignore[override]
        return self.first.plan

    @property
    def copies(self) -> bool:  # type: ignore[override]
        return any(p.objective.copies for p in self.parts.values())

    @property
    def program(self) -> str:  # type: ignore[override]
        """One pass for all parts, and their heads; contrastive parts compare their pairs besides."""
        return next((p.objective.program for p in self.parts.values() if p.objective.program != "heads"), "heads")

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset().union(*(p.objective.needs for p in self.parts.values()))

    @property
    def cut(self) -> Cut:  # type: ignore[override]
        """Of whole sentences where one part asks for that: the others read those as they read any text."""
        cuts = self._cuts()
        return next((c for c in cuts if c != "tokens"), cuts[0])

    @property
    def visibility(self) -> Visibility:
        return self.sees or self.first.visibility

    def heads(self) -> tuple[Head, ...]:
        return tuple({h.name: h for p in reversed(self.parts.values()) for h in reversed(p.heads())}.values())[::-1]

    def networks(self, model: ModelConfig) -> dict[str, ModelConfig]:
        """One network with what every part asks of it."""
        for part in self.parts.values():
            model = part.objective.networks(model)["model"]
        return {"model": model}

    def shape(self, context: int, target_context: int | None = None) -> Shape:
        shapes = [p.objective.shape(context, target_context) for p in self.parts.values()]
        return Shape(max(s.stream for s in shapes), max(s.source for s in shapes))

    def room(self, shape: Shape) -> int:
        return min(part.room(shape) for part in self.parts.values())

    def led_by(self, name: str, asked: Objective | None = None) -> Mixture:
        """The mixture with another part first, which is then asked; `asked` stands for its objective."""
        part = self.parts[name]
        lead = part if asked is None else part.model_copy(update={"objective": asked})
        return Mixture(parts={name: lead, **{k: p for k, p in self.parts.items() if k != name}}, sees=self.visibility)

    # ------------------------------------------------------------ which part a text gets

    def turns(self) -> list[float]:
        """Points of the run at which the shares may turn, and one between any two of them."""
        ends = sorted({0.0, 1.0, *(p.begin for p in self.parts.values()), *(p.until for p in self.parts.values())})
        return [*ends[:-1], *((a + b) / 2 for a, b in pairwise(ends))]

    def _weights(self, progress: float) -> np.ndarray:
        return np.array([p.share(progress) for p in self.parts.values()])

    @property
    def moves(self) -> bool:  # type: ignore[override]
        """Whether the shares change along the run, and with them which text is how long."""
        if any(p.objective.moves for p in self.parts.values()):
            return True
        still = all((p.begin, p.until, p.final_weight) == (0.0, 1.0, None) for p in self.parts.values())
        return len(self.parts) > 1 and not still

    def shares(self, progress: float | None = None) -> np.ndarray:
        """(P,) of the texts at a point of the run; None = the mean over the run."""
        if progress is not None:
            weights = self._weights(min(max(progress, 0.0), 1.0 - 2**-30))
            return np.asarray(weights / weights.sum())
        return self._mean_shares

    @cached_property
    def _mean_shares(self) -> np.ndarray:
        points = (np.arange(4096) + 0.5) / 4096 if self.moves else np.zeros(1)
        return np.asarray(np.mean([self.shares(p) for p in points.tolist()], axis=0))

    def deal(self, index: np.ndarray, progress: float | None = 0.0, paired: np.ndarray | None = None) -> np.ndarray:
        """(R,) the number of the part that each text gets, by its global sample number (R,).

        progress None: at the mean shares of the run, for held-out text, which no part should miss.
        paired: (R,) bool, the texts that have a target. They go to the parts that read targets, the others to the
        others, by the shares of these alone; a stretch then holds them about in proportion, not to the next number.
        """
        shares, dealt = self.shares(progress), np.zeros(len(index), np.int64)
        if paired is None:
            return self._dealt(index, shares)
        reads = np.array(["target" in part.objective.needs for part in self.parts.values()])
        for kind in (True, False):
            if len(mine := np.flatnonzero(paired == kind)) and shares[reads == kind].any():
                dealt[mine] = self._dealt(index[mine], shares * (reads == kind) / shares[reads == kind].sum())
        return dealt

    def _dealt(self, index: np.ndarray, shares: np.ndarray) -> np.ndarray:
        if len(self.parts) == 1:
            return np.zeros(len(index), np.int64)
        stretch, place = np.divmod(np.asarray(index, np.int64), STRETCH)
        place = keyed.permuted(place, STRETCH, keyed.absorb(keyed.purpose("parts"), stretch))
        edges = np.cumsum(shares) * STRETCH
        # Edges that are whole numbers but for rounding are made whole: their counts are exact then.
        edges = np.where(np.abs(edges - np.rint(edges)) < 1e-9, np.rint(edges), edges)[:-1]
        return np.searchsorted(edges, place + van_der_corput(stretch), side="right")

    # ------------------------------------------------------------ all parts at once

    def sizes(self, of: Outline) -> Sizes:
        return sizes_of(list(self.parts.values()), self.deal(of.index, of.progress), lambda _, mine: taken(of, mine))

    def __call__(self, rows: Rows, vocabulary: Vocabulary) -> Examples:
        """All parts' examples as one, to look at; a run keeps them apart, each with its own norm (`data.loader`)."""
        for part in self.parts.values():
            if part.mode is not None:
                vocabulary.need(part.mode)
        dealt = self.deal(rows.index, rows.progress)
        parts = list(self.parts.values())
        which = [np.flatnonzero(dealt == k) for k in range(len(parts))]
        some = [k for k in range(len(parts)) if len(which[k])] or [0]
        found = [parts[k](picked(rows, which[k]), vocabulary) for k in some]
        return regrouped(found, [parts[k].heads() for k in some], [which[k] for k in some])

    # ------------------------------------------------------------ as published

    @classmethod
    def antlm(cls) -> Mixture:
        """Yu et al. 2024 (AntLM), on BabyLlama: of 24 epochs 4 causal, 16 masked at 15 %, 4 causal."""
        causal, masked = Causal(), Masked.bert()
        return cls(
            parts={
                "clm": Part(objective=causal, until=4 / 24),
                "mlm": Part(objective=masked, begin=4 / 24, until=20 / 24),
                "clm_again": Part(objective=causal, begin=20 / 24),
            }
        )


def parts_of(objective: Objective) -> dict[str, Part]:
    """The parts of a mixture; of any other objective itself, under the name of its type."""
    if isinstance(objective, Mixture):
        return dict(objective.parts)
    return {objective.type: Part(objective=objective)}
