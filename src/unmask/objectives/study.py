"""The other unsupervised objectives of T5's study (Raffel et al. 2020, table 3 and section 3.3)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from unmask import keyed
from unmask.batch import Rows
from unmask.objectives.base import Outline, Vocabulary, frame
from unmask.objectives.denoise import SpanNoise, TextToText, interleave
from unmask.objectives.layout import Pairs, Ragged
from unmask.objectives.shuffle import shuffled
from unmask.objectives.spans import choose


class DroppedTokens(SpanNoise):
    """Noise tokens are dropped without a trace, and the target is these tokens alone (table 3, "drop tokens").

    Where they stood is not told: the text cannot be put together again from the pair.

        text     thank you for inviting me to your party last week
        source   thank you me to your party week [EOS]
        target   for inviting last [EOS]

    >>> from unmask.objectives.show import toy
    >>> e = DroppedTokens(noise_density=0.4)(Rows.of([[11, 12, 13, 14, 15]]), toy())
    >>> e.source.tokens.tolist(), e.targets["lm"].value.tolist()
    ([11, 14, 15, 3], [12, 13, 3])
    """

    type: Literal["dropped_tokens"] = "dropped_tokens"
    mean_span: float | None = Field(None, ge=1)
    """Mean tokens of a span; null = tokens are chosen one by one, as in the study."""

    @classmethod
    def t5_study(cls, **settings: Any) -> DroppedTokens:
        """15 % of the tokens, one by one."""
        return cls(**settings)

    def pair_sizes(self, of: Outline) -> tuple[np.ndarray, np.ndarray]:
        return self.longest(of.lengths)

    def longest(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        noise, _ = self.counts(lengths)
        return lengths - noise + 1, noise + 1

    def pairs(self, rows: Rows, vocabulary: Vocabulary) -> Pairs:
        return dropped(rows, self.noise(rows.lengths, rows.key), vocabulary)


def dropped(rows: Rows, noise: np.ndarray, vocabulary: Vocabulary) -> Pairs:
    """What is kept and what is dropped, for a given noise mask (N,)."""
    r = len(rows.lengths)
    end = [np.full(r, vocabulary.need("eos"))]
    return Pairs(*(interleave(rows.tokens, keep, rows.row, r, end) for keep in (~noise, noise)))


class Restoration(TextToText):
    """The whole text from a spoilt copy of the same length (table 3, first part).

    mask      `mask_rate` of the tokens are selected; of these `random_share` become a random token and the rest [MASK]
    shuffle   all tokens in random order

        text                   thank   you   for   inviting   me   to   your   party   last   week
        source, BERT-style     thank   you [MASK]   [MASK]    me   to   your   apple  [MASK]  week
        source, deshuffling    party    me  your      to     last you  inviting week  thank   for
        target                 thank   you   for   inviting   me   to   your   party   last   week

    >>> from unmask.objectives.show import toy
    >>> e = Restoration.mass_style(mask_rate=0.4)(Rows.of([[11, 12, 13, 14, 15]]), toy())
    >>> e.source.tokens.tolist(), e.targets["lm"].value.tolist()
    ([11, 12, 13, 4, 4, 3], [11, 12, 13, 14, 15, 3])
    """

    type: Literal["restoration"] = "restoration"
    noise: Literal["mask", "shuffle"] = "mask"
    mask_rate: float = Field(0.15, gt=0, le=1)
    """Share of a text's tokens that are selected: max(1, round(rate · n)) of n (not read by shuffle)."""
    random_share: float = Field(0.1, ge=0, le=1)
    """Share of the selected that become a random token, never a special one."""

    copies: ClassVar[bool] = True

    @classmethod
    def bert_style(cls, **settings: Any) -> Restoration:
        """15 %: of these 90 % [MASK], 10 % random, as section 3.3.1 describes it (BERT itself keeps 10 %)."""
        return cls(**settings)

    @classmethod
    def mass_style(cls, **settings: Any) -> Restoration:
        """15 %, all [MASK]: the study's "MASS-style", which has no random tokens (Song et al. 2019 ask for the
        masked part alone)."""
        return cls(**{"random_share": 0.0, **settings})

    @classmethod
    def deshuffling(cls, **settings: Any) -> Restoration:
        """All tokens shuffled (section 3.3.1, after Liu et al. 2019a)."""
        return cls(**{"noise": "shuffle", **settings})

    def pair_sizes(self, of: Outline) -> tuple[np.ndarray, np.ndarray]:
        return self.longest(of.lengths)

    def longest(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return lengths + 1, lengths + 1

    def pairs(self, rows: Rows, vocabulary: Vocabulary) -> Pairs:
        text = frame(rows, after=vocabulary.need("eos"))
        tokens = text.tokens.copy()
        if self.noise == "shuffle":
            key = keyed.absorb(rows.key, keyed.purpose("shuffle"))
            tokens[~_last(text)] = rows.tokens[shuffled(rows.start, key)]
        else:
            at = np.flatnonzero(self._selected(text))
            tokens[at] = masks(text.start, text.key, at, self.random_share, vocabulary)
        return Pairs(Ragged(tokens, text.start), Ragged(text.tokens, text.start))

    def _selected(self, text: Rows) -> np.ndarray:
        eligible = np.bincount(text.row, ~text.fixed, len(text.key)).astype(np.int64)
        count = np.minimum(np.maximum(np.rint(self.mask_rate * eligible).astype(np.int64), 1), eligible)
        return choose(text.start, keyed.absorb(text.key, keyed.purpose("mask")), count, ~text.fixed)


def _last(text: Rows) -> np.ndarray:
    out = np.zeros(len(text.tokens), bool)
    out[text.start[1:] - 1] = True
    return out


def masks(
    start: np.ndarray, key: np.ndarray, at: np.ndarray, random_share: float, vocabulary: Vocabulary
) -> np.ndarray:
    """(n,) what stands at the places `at` (n,) of texts: [MASK], or for `random_share` of them any ordinary token."""
    mask = np.int32(vocabulary.need("mask"))
    if not random_share:
        return np.full(len(at), mask)
    row = np.searchsorted(start, at, side="right") - 1
    draw = keyed.bits(keyed.absorb(key, keyed.purpose("replace"))[row], at - start[row])
    fate = (draw & np.uint64(0xFFFFFFFF)).astype(np.float64) * 2.0**-32
    random = vocabulary.ordinary[keyed.below(draw, len(vocabulary.ordinary))]
    return np.where(fate < random_share, random, mask)
