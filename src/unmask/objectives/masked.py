"""Masked language modelling (Devlin et al. 2019, section 3.1 and appendix A.1)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from unmask import keyed
from unmask.batch import Examples, Rows, Targets, full
from unmask.config import Visibility
from unmask.objectives.base import Objective, Outline, Plan, Shape, Sizes, Vocabulary, frame
from unmask.objectives.spans import choose


class Masked(Objective):
    """Some tokens are hidden; each is predicted from both sides.

    `mask_rate` of each text's tokens are selected, at least one, never a special token. Of the selected,
    80 % become [MASK], 10 % a random token (never a special one; it may be the original), 10 % stay.
    Noise is dynamic (Liu et al. 2019): it depends on the epoch.

        text       [CLS]   the   cat   sat  [SEP]
        tokens     [CLS]   the [MASK]  sat  [SEP]
        target                   cat

    >>> from unmask.objectives.show import toy
    >>> e = Masked(mask_rate=0.4)(Rows.of([[11, 12, 13, 14, 15]]), toy())
    >>> e.stream.tokens.tolist(), e.targets["lm"].index.tolist(), e.targets["lm"].value.tolist()
    ([2, 11, 12, 80, 4, 15, 3], [3, 4], [13, 14])
    """

    type: Literal["masked"] = "masked"
    mask_rate: float = Field(0.15, gt=0, le=1)
    """Share of a text's tokens that are selected."""
    mask_share: float = Field(0.8, ge=0, le=1)
    """Share of the selected that become [MASK]."""
    random_share: float = Field(0.1, ge=0, le=1)
    """Share of the selected that become a random token; the rest stay as they are."""
    selection: Literal["exact", "independent"] = "exact"
    """exact: max(1, round(rate · n)) tokens of each text (BERT's code); independent: each by its own draw."""

    plan: ClassVar[Plan] = "pseudo"
    copies: ClassVar[bool] = True

    @property
    def visibility(self) -> Visibility:
        return "bidirectional"

    @model_validator(mode="after")
    def _shares(self) -> Masked:
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise ValueError(f"mask_share {self.mask_share} + random_share {self.random_share} exceed 1")
        return self

    def room(self, shape: Shape) -> int:
        return shape.stream - 2

    def sizes(self, of: Outline) -> Sizes:
        return Sizes(of.lengths + 2)

    def __call__(self, rows: Rows, vocabulary: Vocabulary) -> Examples:
        framed = frame(rows, before=vocabulary.need("cls"), after=vocabulary.need("sep"))
        at = np.flatnonzero(self.selected(framed))
        tokens = framed.tokens.copy()
        tokens[at] = self.replacement(framed, at, vocabulary)
        return Examples(full(tokens, framed.start), {"lm": Targets.at(at, framed.tokens[at])})

    def selected(self, rows: Rows) -> np.ndarray:
        """(N,) bool: the positions to predict."""
        key = keyed.absorb(rows.key, keyed.purpose("mask"))
        if self.selection == "independent":
            return (keyed.uniform(key[rows.row], rows.place) < self.mask_rate) & ~rows.fixed
        eligible = np.bincount(rows.row, ~rows.fixed, len(rows.key)).astype(np.int64)
        count = np.minimum(np.maximum(np.rint(self.mask_rate * eligible).astype(np.int64), 1), eligible)
        return choose(rows.start, key, count, ~rows.fixed)

    def replacement(self, rows: Rows, at: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
        """(n,) what stands at the selected positions: [MASK], a random token, or the token itself."""
        draw = keyed.bits(keyed.absorb(rows.key, keyed.purpose("replace"))[rows.row[at]], rows.place[at])
        fate = (draw & np.uint64(0xFFFFFFFF)).astype(np.float64) * 2.0**-32
        random = vocabulary.ordinary[keyed.below(draw, len(vocabulary.ordinary))]
        out = np.where(fate < self.mask_share, vocabulary.need("mask"), rows.tokens[at])
        return np.where((fate >= self.mask_share) & (fate < self.mask_share + self.random_share), random, out)
