"""One objective from causal to masked (Artetxe et al. 2022, "On the Role of Bidirectionality in Language Model
Pre-Training", section 2)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from unmask import keyed
from unmask.batch import Examples, Pattern, Rows, Stream, Targets, starts
from unmask.config import Visibility
from unmask.objectives.base import Objective, Outline, Plan, Shape, Sizes, Vocabulary, frame, outline
from unmask.objectives.masked import Masked


class Dials(Objective):
    """Three dials: how many tokens are masked, how many are seen both ways, how many are predicted.

    A token that is not masked predicts the next one, a [MASK] what it hides. In the order of attention masked
    tokens are moved to the end, with their positions; the first n_prefix in that order see each other, the rest sees
    what stands before it. (Moving is an order of attention here: no token changes its place in the row.)

        n_mask 1, n_prefix 0     tokens     [BOS] the [MASK] sat
                                 positions    0    1    2     3
                                 reveal       0    1    3     2
                                 target      the  cat  cat  [EOS]

                  n_mask    n_prefix   n_predict       equals
        nxt_uni     0          0         all           Causal
        nxt_pre     0       U(1, n)      the rest      PrefixLM in the prefix layout
        msk_uni  B(n, .15)     0         the masked
        msk_bi   B(n, .15)     n         the masked    Masked with [MASK] alone
        hyb_uni  B(n, .15)     0         all           (CM3's idea)
        hyb_pre  B(n, .15)  U(1, n)      the rest

    The prefix counts [BOS]; as in PrefixLM its last token predicts too. A masked token is always predicted, also in
    the few texts whose prefix reaches it. With everything in the prefix the frame is [CLS] text [SEP], else
    [BOS] text, and [EOS] is predicted where the document ends.

    >>> from unmask.objectives.show import toy
    >>> e = Dials(mask_rate=0.5, selection="exact")(Rows.of([[11, 12, 13, 14]]), toy())
    >>> e.stream.tokens.tolist(), e.stream.reveal.tolist()
    ([2, 11, 12, 4, 4], [0, 1, 2, 3, 4])
    >>> e.targets["lm"].index.tolist(), e.targets["lm"].value.tolist()
    ([0, 1, 2, 3, 4], [11, 12, 13, 13, 14])
    """

    type: Literal["dials"] = "dials"
    mask_rate: float = Field(0.0, ge=0, lt=1)
    """n_mask / n: share of the tokens that are replaced by [MASK]."""
    selection: Literal["exact", "independent"] = "independent"
    """independent: n_mask is binomial (the paper); exact: round(rate · n), at least 1."""
    prefix: Literal["none", "uniform", "all"] = "none"
    """n_prefix: nothing, 1 … n tokens with [BOS] alike often, or the whole text."""
    predict: Literal["all", "rest", "masked"] = "all"
    """n_predict: all tokens, those behind the prefix and the masked ones, or the masked ones alone."""

    @classmethod
    def nxt_uni(cls) -> Dials:
        """Next tokens, from left to right: n_mask 0, n_prefix 0 (NxtUni; Artetxe et al. 2022, section 2)."""
        return cls()

    @classmethod
    def nxt_pre(cls) -> Dials:
        """Next tokens behind a prefix that is seen both ways: n_mask 0, n_prefix U(1, n) (NxtPre)."""
        return cls(prefix="uniform", predict="rest")

    @classmethod
    def msk_uni(cls, mask_rate: float = 0.15) -> Dials:
        """Masked tokens alone, 15 %, each from the text and the masked ones before it (MskUni)."""
        return cls(mask_rate=mask_rate, predict="masked")

    @classmethod
    def msk_bi(cls, mask_rate: float = 0.15) -> Dials:
        """Masked tokens alone, 15 %, seen from both sides as BERT's, always [MASK] (MskBi)."""
        return cls(mask_rate=mask_rate, prefix="all", predict="masked")

    @classmethod
    def hyb_uni(cls, mask_rate: float = 0.15) -> Dials:
        """Next tokens and, behind them, the 15 % that are masked, all from left to right (HybUni; CM3's idea)."""
        return cls(mask_rate=mask_rate)

    @classmethod
    def hyb_pre(cls, mask_rate: float = 0.15) -> Dials:
        """Next tokens and the 15 % that are masked, behind a prefix that is seen both ways (HybPre)."""
        return cls(mask_rate=mask_rate, prefix="uniform", predict="rest")

    @model_validator(mode="after")
    def _no_leak(self) -> Dials:
        if self.predict == "all" and self.prefix != "none":
            raise ValueError(f"predict=all with prefix={self.prefix} asks for tokens that the prefix shows: use rest")
        if self.prefix == "all" and self.predict != "masked":
            raise ValueError("prefix=all leaves nothing but masked tokens to predict: use predict=masked")
        if self.predict == "masked" and not self.mask_rate:
            raise ValueError("predict=masked asks for nothing while mask_rate is 0")
        return self

    @property
    def plan(self) -> Plan:  # type: ignore[override]
        return "pseudo" if self.predict == "masked" else "left_to_right"

    @property
    def visibility(self) -> Visibility:
        kinds: dict[str, Visibility] = {"none": "causal", "uniform": "prefix", "all": "bidirectional"}
        return kinds[self.prefix]

    @property
    def _masked(self) -> Masked:
        return Masked(mask_rate=self.mask_rate, mask_share=1.0, random_share=0.0, selection=self.selection)

    def room(self, shape: Shape) -> int:
        return shape.stream - (2 if self.prefix == "all" else 1)

    def sizes(self, of: Outline) -> Sizes:
        if self.prefix == "all":
            return Sizes(of.lengths + 2)
        # without masks nothing reads the last token but [EOS]
        return Sizes(of.lengths + (1 if self.mask_rate else of.ends))

    def __call__(self, rows: Rows, vocabulary: Vocabulary) -> Examples:
        if self.prefix == "all":
            return self._masked(rows, vocabulary)
        text = frame(rows, before=vocabulary.need("bos"))
        hidden = np.zeros(len(text.tokens), bool)
        if self.mask_rate:
            hidden[self._masked.select(text).at] = True
        seen = self._seen(rows)[text.row]
        moved, last = _moved(text, hidden), text.start[1:] - 1
        following = np.empty_like(text.tokens)
        following[:-1] = text.tokens[1:]
        following[last] = vocabulary.need("eos")
        asked = hidden.copy()
        if self.predict != "masked":
            asked |= moved >= seen
            asked[last] &= rows.ends | hidden[last]
        keep = np.ones(len(asked), bool)
        if not self.mask_rate:
            keep[last[~rows.ends]] = False
        tokens = np.where(hidden, vocabulary.need("mask"), text.tokens) if self.mask_rate else text.tokens
        order = np.maximum(moved - seen, 0)[keep].astype(np.int32)
        place, start = text.place[keep].astype(np.int32), starts(self.sizes(outline(rows)).stream)
        stream = Stream(
            tokens[keep].astype(np.int32), place, np.ones_like(order), order, order, start=start, pattern=self._pattern
        )
        at = np.flatnonzero(asked)
        value = np.where(hidden[at], text.tokens[at], following[at])
        return Examples(stream, {"lm": Targets.at((np.cumsum(keep) - 1)[at], value)})

    @property
    def _pattern(self) -> Pattern:
        return "order" if self.mask_rate else "prefix" if self.prefix == "uniform" else "causal"

    def _seen(self, rows: Rows) -> np.ndarray:
        """(R,) tokens behind [BOS] that are seen both ways: 0 … n - 1, as PrefixLM splits."""
        if self.prefix == "none":
            return np.zeros(len(rows.key), np.int64)
        draw = keyed.bits(keyed.absorb(rows.key, keyed.purpose("split")), np.zeros(len(rows.key), np.int64))
        return keyed.below(draw, np.maximum(rows.lengths, 1))


def _moved(text: Rows, hidden: np.ndarray) -> np.ndarray:
    """(N,) the place of each token once the hidden ones stand behind the others."""
    if not hidden.any():
        return text.place
    passed = np.cumsum(hidden) - hidden  # hidden tokens before each
    ahead = passed - passed[text.start[:-1]][text.row]
    kept = text.lengths - np.bincount(text.row, hidden, len(text.key)).astype(np.int64)
    return np.where(hidden, kept[text.row] + ahead, text.place - ahead)
