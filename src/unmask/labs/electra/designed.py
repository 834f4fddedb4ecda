"""Objectives of this laboratory, plug-ins (`unmask.objectives.registry`): replacements that are designed, and a
generator that stands apart."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, ValidationError

from unmask import keyed
from unmask.batch import Examples, Head, Rows, Targets, full, start_of
from unmask.config import ModelConfig, Visibility
from unmask.errors import UserError
from unmask.objectives.base import LM, Objective, Outline, Plan, Shape, Sizes, Vocabulary, frame
from unmask.objectives.replaced import DETECTION, Replaced

Sides = tuple[tuple[int, ...], tuple[int, ...]]
"""Ids of words that are each other's opposites: any of the one side, any of the other."""


class Opposed(Objective):
    """Some of the listed words become a word of the opposite side; every token is asked whether it was replaced.

    Replaced-token detection without a generator (exercise 11 (2) of the CS324 notes): each listed word is replaced with
    chance `rate` by one of the other side, each of them as likely.

        text       [CLS]   the  soup   was  tasty [SEP]
        tokens     [CLS]   the  soup   was  bland [SEP]
        rtd                 0     0     0     1

    >>> from unmask.objectives.show import toy
    >>> e = Opposed(sides=(((11, 12), (21,)),), rate=1.0)(Rows.of([[11, 5, 21]]), toy())
    >>> e.stream.tokens.tolist()[1:3], e.stream.tokens.tolist()[3] in (11, 12), e.targets["rtd"].value.tolist()
    ([21, 5], True, [1, 0, 1])
    """

    type: Literal["opposed"] = "opposed"
    sides: tuple[Sides, ...] = Field(min_length=1)
    """Lists of opposites; a word stands in one of them at most."""
    rate: float = Field(0.15, gt=0, le=1)
    """The chance of each listed word to be replaced."""

    plan: ClassVar[Plan] = "pseudo"
    copies: ClassVar[bool] = True

    @property
    def visibility(self) -> Visibility:
        return "bidirectional"

    def heads(self) -> tuple[Head, ...]:
        return (Head(DETECTION, over="binary"),)

    def room(self, shape: Shape) -> int:
        return shape.stream - 2

    def sizes(self, of: Outline) -> Sizes:
        return Sizes(of.lengths + 2)

    def __call__(self, rows: Rows, vocabulary: Vocabulary) -> Examples:
        text = frame(rows, before=vocabulary.need("cls"), after=vocabulary.need("sep"))
        asked = np.flatnonzero(~text.fixed)
        draws = [
            keyed.bits(keyed.absorb(rows.key, keyed.purpose(name))[text.row[asked]], text.place[asked])
            for name in ("opposed", "opposite")
        ]
        tokens = text.tokens.copy()
        tokens[asked] = self.replaced(text.tokens[asked], *draws)
        changed = (tokens != text.tokens)[asked]
        return Examples(full(tokens, text.start), {DETECTION: Targets.at(asked, changed.astype(np.int32))})

    def replaced(self, tokens: np.ndarray, whether: np.ndarray, which: np.ndarray) -> np.ndarray:
        """(n,) the tokens, some replaced, by two draws (n,) of 64 bits each."""
        out = tokens.copy()
        chosen = (whether >> np.uint64(11)).astype(np.float64) * 2.0**-53 < self.rate
        for pair in self.sides:
            for mine, other in (pair, pair[::-1]):
                at = np.flatnonzero(chosen & np.isin(tokens, mine))
                out[at] = np.asarray(other)[keyed.below(which[at], len(other))]
        return out


class Apart(Replaced):
    """ELECTRA with a generator of tables as wide as itself, that shares nothing, and may stop learning.

    The CS324 notes' generator (1 layer of width 32 beside 2 of 64: 25,376 parameters) has tables of 32 numbers a word;
    `replaced` gives it the discriminator's and a projection. What stops is the generator alone: from `learns` of the
    run on, its loss counts `STOPPED` of what it did.

    >>> model = ModelConfig(hidden_size=64, num_heads=4, num_layers=2)
    >>> g = Apart(generator_width=0.5, generator_depth=0.5).generator(model)
    >>> g.hidden_size, g.num_heads, g.num_layers, g.table_size, g.head_transform
    (32, 2, 1, 32, False)
    """

    type: Literal["apart"] = "apart"  # type: ignore[assignment]
    sharing: Literal["none"] = "none"
    learns: float = Field(1.0, gt=0, le=1)
    """The share of the run in which the generator learns."""

    def generator(self, model: ModelConfig) -> ModelConfig:
        found = super().generator(model).model_dump()
        try:
            return ModelConfig.model_validate({**found, "embedding_size": None, "head_transform": model.head_transform})
        except ValidationError as error:
            raise UserError(
                f"the generator of objective apart cannot be built for this model: {error.errors()[0]['msg']}"
            ) from error

    def __call__(self, rows: Rows, vocabulary: Vocabulary) -> Examples:
        made = super().__call__(rows, vocabulary)
        if rows.progress < self.learns:
            return made
        lm = made.targets[LM.name]
        ends = np.searchsorted(np.asarray(lm.index), start_of(made.stream))
        per_text = np.diff(ends).astype(np.float64)  # what the sum is divided by, as it was
        stopped = Targets.at(lm.index, lm.value, draw=lm.draw, norm=per_text)
        stopped.weight[:] = STOPPED
        return Examples(made.stream, {**made.targets, LM.name: stopped})


STOPPED = 1e-12
"""Adam divides by the root of the mean square plus 1e-8, so a gradient of 1e-12 of what it was moves nothing. Momentum
carries on for some 20 updates, and weight decay shrinks matrices by 1 % in 2,000 updates at a rate of .0005. (A weight
of 0 would say: padding, replace nothing.)"""
