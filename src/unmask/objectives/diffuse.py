"""Masked diffusion: any share of a text is hidden, from none to all, and the loss bounds its log-probability.

Sahoo et al. 2024, "Simple and Effective Masked Diffusion Language Models" (MDLM), section 3; Nie et al. 2025, "Large
Language Diffusion Models" (LLaDA), section 2 and algorithm 1. In both the network is told no time.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from unmask import keyed
from unmask.batch import Examples, Rows, Targets, full, ranges, starts
from unmask.config import Visibility
from unmask.objectives.base import LM, Objective, Outline, Plan, Shape, Sizes, Vocabulary, frame


class Diffusion(Objective):
    """Each token of a text is hidden with one probability p, always behind [MASK]; p = (1 − ε) t + ε, t even in [0, 1).

    Loss of one text: Σ over hidden tokens of −log p(token | what is not hidden) / p, divided by all tokens of the text,
    hidden or not. Its mean over t and masks is at least −log p(text) a token (`evaluation.bound`). Divided by the
    number of hidden tokens instead, it would weigh all rates alike and bound nothing. Special tokens are never hidden,
    and count nowhere.

    Here t = 0.5 and ε = 0.001, so p = 0.5005 and each weight is 1 / p = 1.998; the sum is divided by 5.

        text       [CLS]    11     12     13     14     15   [SEP]
        tokens     [CLS]    11     12  [MASK]    14  [MASK]  [SEP]
        target                             13            15
        weight                            2.0           2.0

    >>> from unmask.objectives.show import toy
    >>> e = Diffusion()(Rows.of([[11, 12, 13, 14, 15]], [7]), toy())
    >>> e.stream.tokens.tolist(), e.targets["lm"].index.tolist(), e.targets["lm"].value.tolist()
    ([2, 11, 12, 4, 14, 4, 3], [3, 5], [13, 15])
    >>> e.targets["lm"].weight.round(3).tolist(), e.targets["lm"].norm.tolist()
    ([1.9980000257492065, 1.9980000257492065], [5.0])
    """

    type: Literal["diffusion"] = "diffusion"
    eps: float = Field(1e-3, gt=0, lt=1)
    """ε, the least probability with which a token is hidden; no weight exceeds 1 / ε."""
    times: Literal["stratified", "antithetic", "independent"] = "stratified"
    """How t is drawn. stratified: from the global sample number, by multiples of the golden ratio, which any run of
    samples, such as an update's, spreads evenly (every n-th sample only slowly where n is 13, 21, 34, … or a multiple:
    Fibonacci's numbers); antithetic: the same over pairs of samples, the second of which has 1 − t; independent: from
    each text's key. Samples are the run's: those of one part of a mixture are not spread among themselves."""
    random_length_share: float = Field(0.0, ge=0, le=1)
    """Share of the texts of which only the first k tokens are read, k even in 1 … n: models that only saw full rows
    are poor at short texts (Nie et al. 2025, section 2.2)."""

    plan: ClassVar[Plan] = "bound"
    masks: ClassVar[bool] = True

    @property
    def visibility(self) -> Visibility:
        return "bidirectional"

    def room(self, shape: Shape) -> int:
        return shape.stream - 2

    def sizes(self, of: Outline) -> Sizes:
        return Sizes(self._lengths(of.lengths, of.key) + 2)

    def rates(self, rows: Rows) -> np.ndarray:
        """(R,) the probability p with which each token of a text is hidden.

        >>> index = np.arange(100_004, 100_012)  # samples in a row: about one in each eighth
        >>> rows = Rows.of([[7]] * 8, index=index)
        >>> sorted((Diffusion().rates(rows) * 8).astype(int).tolist())
        [0, 1, 2, 3, 4, 5, 6, 7]
        >>> p = Diffusion(times="antithetic").rates(rows)
        >>> (p[::2] + p[1::2]).round(3).tolist()
        [1.001, 1.001, 1.001, 1.001]
        """
        if self.times == "independent":
            t = keyed.uniform(keyed.absorb(rows.key, keyed.purpose("time")), np.zeros(len(rows.key), np.int64))
        elif self.times == "stratified":
            t = _even(rows.index)
        else:
            pair, second = np.divmod(rows.index, 2)
            t = _even(pair)
            t = np.where(second == 1, 1 - t, t)
        return np.asarray((1 - self.eps) * t + self.eps)

    def __call__(self, rows: Rows, vocabulary: Vocabulary) -> Examples:
        rows = self._shortened(rows)
        text = frame(rows, before=vocabulary.need("cls"), after=vocabulary.need("sep"))
        key, p, row = keyed.absorb(text.key, keyed.purpose("mask")), self.rates(text), text.row
        hidden = (keyed.uniform(key[row], text.place) < p[row]) & ~text.fixed
        at = np.flatnonzero(hidden)
        tokens = np.where(hidden, np.int32(vocabulary.need("mask")), text.tokens)
        weight = (1 / p)[row[at]].astype(np.float32)
        norm = np.bincount(row, ~text.fixed, len(p))
        return Examples(full(tokens, text.start), {LM.name: Targets(at, text.tokens[at], weight, norm=norm)})

    def _lengths(self, lengths: np.ndarray, key: np.ndarray) -> np.ndarray:
        """(R,) how many tokens of each text are read."""
        if not self.random_length_share:
            return lengths
        key, zero = keyed.absorb(key, keyed.purpose("length")), np.zeros(len(key), np.int64)
        short = keyed.uniform(key, zero) < self.random_length_share
        drawn = 1 + keyed.below(keyed.bits(key, zero + 1), np.maximum(lengths, 1))
        return np.where(short, np.minimum(drawn, lengths), lengths)

    def _shortened(self, rows: Rows) -> Rows:
        lengths = self._lengths(rows.lengths, rows.key)
        if (lengths == rows.lengths).all():
            return rows
        at = ranges(rows.start[:-1], lengths)
        return Rows(rows.tokens[at], starts(lengths), rows.key, rows.index, rows.fixed[at], rows.ends)

    # ---------------------------------------------------------------- as published

    @classmethod
    def mdlm(cls) -> Diffusion:
        """Sahoo et al. 2024: log-linear noise, where p = (1 − ε) t and the weight is 1 / t; their low-discrepancy t."""
        return cls()

    @classmethod
    def llada(cls) -> Diffusion:
        """Nie et al. 2025, section 2.2 and algorithm 1: t by itself for each text, 1 % of them of random length."""
        return cls(times="independent", random_length_share=0.01)


def _even(number: np.ndarray) -> np.ndarray:
    """(R,) in [0, 1): the fractional parts of number times the golden ratio (a Kronecker sequence).

    Half a turn on: sample 0 would otherwise hide nothing.
    """
    turned = np.asarray(number).astype(np.int64).view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return np.asarray(((turned >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 0.5) % 1.0)
