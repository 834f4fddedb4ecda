"""Masks over annotated spans: ERNIE's stages (Sun et al. 2019) and salient spans (Guu et al. 2020)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from unmask import keyed
from unmask.batch import Rows
from unmask.objectives import units
from unmask.objectives.masked import Masking, Rated
from unmask.objectives.units import Selected, Units


class Ernie(Rated):
    """Knowledge masking in three stages (Sun et al. 2019, "ERNIE: Enhanced Representation through Knowledge
    Integration", section 3.2): the run begins with single tokens and ends with entities.

    basic    tokens
    phrase   whole words (of Chinese, those of a segmentation), as in their released code, whose data mark words
    entity   annotated spans whole, and words elsewhere

    In each stage `mask_rate` of its units are selected, each as likely as any other.

        text       [CLS]    11     12     13     14     15   [SEP]
        word                 1      0      1      0      1
        entity                             1      1      1
        basic      [CLS]    11  [MASK]    13     14     15   [SEP]
        phrase     [CLS]    11     12  [MASK] [MASK]    15   [SEP]
        entity     [CLS]    11     12  [MASK] [MASK] [MASK]  [SEP]

    >>> from dataclasses import replace
    >>> from unmask.objectives.show import toy
    >>> word, spans = np.array([1, 0, 1, 0, 1], bool), np.array([[2, 5]])
    >>> rows = Rows.of([[11, 12, 13, 14, 15]], [12], word=word, spans=spans)
    >>> e = Ernie(mask_share=1.0, random_share=0.0)
    >>> [e(replace(rows, progress=p), toy()).stream.tokens.tolist() for p in (0.0, 0.5, 1.0)]
    [[2, 11, 4, 13, 14, 15, 3], [2, 11, 12, 4, 4, 15, 3], [2, 11, 12, 4, 4, 4, 3]]
    """

    type: Literal["ernie"] = "ernie"
    phrases_from: float = Field(1 / 3, ge=0, le=1)
    """Progress of the run at which the phrase stage begins (the paper does not say when)."""
    entities_from: float = Field(2 / 3, ge=0, le=1)
    """Progress of the run at which the entity stage begins."""

    needs: ClassVar[frozenset[str]] = frozenset({"word", "spans"})

    @model_validator(mode="after")
    def _order(self) -> Ernie:
        if self.phrases_from > self.entities_from:
            raise ValueError(f"phrases_from {self.phrases_from} comes after entities_from {self.entities_from}")
        return self

    def stage(self, progress: float) -> Literal["basic", "phrase", "entity"]:
        """The stage at `progress` (0 to 1) of the run."""
        if progress >= self.entities_from:
            return "entity"
        return "phrase" if progress >= self.phrases_from else "basic"

    def units(self, rows: Rows) -> Units:
        return {"basic": units.tokens, "phrase": units.words, "entity": units.phrases}[self.stage(rows.progress)](rows)

    def select(self, rows: Rows) -> Selected:
        found, key = self.units(rows), keyed.absorb(rows.key, keyed.purpose("mask"))
        return units.single(found, key, self.budget(found.counts, rows.progress))

    @classmethod
    def ernie1(cls) -> Ernie:
        """Sun et al. 2019: 15 %, 80 / 10 / 10."""
        return cls()


class SalientSpans(Masking):
    """Only annotated spans are hidden: names, dates, what takes knowledge of the world (Guu et al. 2020, "REALM",
    section 3.4). A text without one has no target.

        text       [CLS]    11     12     13     14     15   [SEP]
        entity                      1      1            2
        tokens     [CLS]    11  [MASK] [MASK]    14     15   [SEP]
        target                     12     13

    >>> from unmask.objectives.show import toy
    >>> rows = Rows.of([[11, 12, 13, 14, 15], [16, 17]], spans=np.array([[1, 3], [4, 5]]))
    >>> e = SalientSpans()(rows, toy())
    >>> e.stream.tokens.tolist(), e.targets["lm"].index.tolist()
    ([2, 11, 4, 4, 14, 15, 3, 2, 16, 17, 3], [2, 3])
    """

    type: Literal["salient_spans"] = "salient_spans"
    mask_share: float = Field(1.0, ge=0, le=1)
    """Share of the selected that become [MASK]: all of them, so that nothing of the answer is told."""
    random_share: float = Field(0.0, ge=0, le=1)
    """Share of the selected that become a random token."""
    max_spans: int = Field(1, ge=1)
    """How many spans of a text are hidden, if it has so many."""

    needs: ClassVar[frozenset[str]] = frozenset({"spans"})

    def select(self, rows: Rows) -> Selected:
        found = units.annotated(rows)
        key = keyed.absorb(rows.key, keyed.purpose("mask"))
        return units.single(found, key, np.minimum(self.max_spans, found.counts))

    @classmethod
    def realm(cls) -> SalientSpans:
        """Guu et al. 2020: one salient span of each text."""
        return cls()
