"""Supervised tasks among the pretraining objectives (Raffel et al. 2020, sections 2.4 and 3.5.3)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from unmask.batch import Rows, ranges, starts
from unmask.errors import UserError
from unmask.objectives.base import Outline, Vocabulary, frame
from unmask.objectives.denoise import TextToText
from unmask.objectives.layout import Pairs, Ragged


class Supervised(TextToText):
    """A given target text from a given source text: translation, questions and answers, any task in words.

    `Rows.partner` holds the target of each source, which a corpus has in a column of its own (`corpus.target`). Both
    end with [EOS], also a source that was cut to fit; of a target beyond `max_target` tokens only these are asked for,
    without [EOS].

        text, partner      translate : thank you · danke
        source, target     translate : thank you [EOS] · danke [EOS]

    >>> from unmask.objectives.show import toy
    >>> rows = Rows.of([[11, 12, 13]], partner=Rows.of([[21, 22]]))
    >>> e = Supervised()(rows, toy())
    >>> e.source.tokens.tolist(), e.targets["lm"].value.tolist()
    ([11, 12, 13, 3], [21, 22, 3])
    """

    type: Literal["pairs"] = "pairs"
    max_target: int = Field(128, ge=1)
    """Tokens of a target, at most; in one stack so many are left free beside the source."""

    needs: ClassVar[frozenset[str]] = frozenset({"target"})

    def pair_sizes(self, of: Outline) -> tuple[np.ndarray, np.ndarray]:
        if of.partner is None:
            raise UserError("objective pairs needs a target text beside each source text (Rows.partner)")
        return of.lengths + 1, self._asked(of.partner.lengths)

    def _asked(self, n: np.ndarray) -> np.ndarray:
        return np.where(n > self.max_target, self.max_target, n + 1)

    def longest(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return lengths + 1, np.full_like(lengths, self.max_target + 1)

    def pairs(self, rows: Rows, vocabulary: Vocabulary) -> Pairs:
        if rows.partner is None:
            raise UserError("objective pairs needs a target text beside each source text (Rows.partner)")
        eos = vocabulary.need("eos")
        source, target = frame(rows, after=eos), frame(rows.partner, after=eos)
        length = self._asked(rows.partner.lengths)
        return Pairs(
            Ragged(source.tokens, source.start),
            Ragged(target.tokens[ranges(target.start[:-1], length)], starts(length)),
        )
