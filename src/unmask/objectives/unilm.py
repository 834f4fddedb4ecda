"""One set of weights under four masks (Dong et al. 2019, "UniLM", section 2.3)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from unmask import keyed
from unmask.batch import Examples, Rows, Stream, Targets, starts
from unmask.config import ModelConfig, Visibility
from unmask.errors import UserError
from unmask.objectives import units
from unmask.objectives.base import Objective, Outline, Plan, Shape, Sizes, Vocabulary, frame
from unmask.objectives.even import even
from unmask.objectives.masked import Masked
from unmask.objectives.units import Selected

KINDS = ("bidirectional", "left_to_right", "right_to_left", "sequence_to_sequence")


class UniLM(Objective):
    """Cloze under the mask of a bidirectional, left-to-right, right-to-left or sequence-to-sequence model.

    Each text is of one kind, by its sample number: any 2^k in a row (numbers 2^k b … 2^k b + 2^k − 1, up to 128) hold
    each kind in its share but for less than two samples, and chance says which. Masked as BERT, by the token that
    stands there, whatever the kind: `mask_rate` of the tokens exactly, 80 % [MASK], 10 % a random token, 10 % kept;
    singles four times out of five, else two or three neighbours. A sequence-to-sequence text is split at random in two:
    the first part sees itself, the second what is before it; tokens of both are masked. Token types say the kind
    (0; 2; 3; 4 and 5), where the model has `token_types`, 6 of them. The paper's bidirectional rows are pairs with
    types 0 and 1 and a next-sentence loss: that is an objective of its own here.

        bidirectional          tokens  [CLS]  the  [MASK]  sat  [SEP]
        left to right          target                cat
        right to left          reveal    0     0     0      0     0      both ways
                                         0     1     2      3     4      left to right
                                         5     4     3      2     1      right to left

        sequence to sequence   tokens  [CLS]  the  [SEP]  [MASK]  sat  [SEP]
                               types     4     4     4      5      5     5
                               reveal    0     0     0      1      2     3

    With `next_token` the one-way kinds predict, as language models do, each token from its neighbour's place: all of
    them left to right and right to left, the second part of a pair; [SEP] after the last only where the
    document ends. Special tokens are never masked.

    >>> from unmask.objectives.show import toy
    >>> e = UniLM(mask_rate=0.4)(Rows.of([[11, 12, 13, 14]], index=np.array([0])), toy())
    >>> e.stream.tokens.tolist(), e.stream.token_type.tolist(), e.stream.reveal.tolist()
    ([2, 11, 4, 13, 3, 42, 3], [4, 4, 4, 4, 4, 5, 5], [0, 0, 0, 0, 0, 1, 2])
    >>> e.targets["lm"].index.tolist(), e.targets["lm"].value.tolist()
    ([2, 5], [12, 14])
    """

    type: Literal["unilm"] = "unilm"
    shares: tuple[float, float, float, float] = (1 / 3, 1 / 6, 1 / 6, 1 / 3)
    """Of bidirectional, left-to-right, right-to-left and sequence-to-sequence texts."""
    mask_rate: float = Field(0.15, gt=0, le=1)
    """Share of a text's tokens that are selected; at least one."""
    mask_share: float = Field(0.8, ge=0, le=1)
    """Share of the selected that become [MASK]."""
    random_share: float = Field(0.1, ge=0, le=1)
    """Share of the selected that become a random token; the rest stay as they are."""
    span_shares: tuple[float, ...] = (0.8, 0.1, 0.1)
    """Of single tokens, bigrams and trigrams among what is selected."""
    next_token: bool = False
    """One-way texts predict the next token instead of masked ones."""

    plan: ClassVar[Plan] = "pseudo"
    copies: ClassVar[bool] = True

    @property
    def visibility(self) -> Visibility:
        return "bidirectional"

    @model_validator(mode="after")
    def _sums(self) -> UniLM:
        for name in ("shares", "span_shares"):
            values = getattr(self, name)
            if min(values) < 0 or abs(sum(values) - 1) > 1e-6:
                raise ValueError(f"{name} {values} must be shares that add up to 1")
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise ValueError(f"mask_share {self.mask_share} + random_share {self.random_share} exceed 1")
        return self

    def networks(self, model: ModelConfig) -> dict[str, ModelConfig]:
        if 0 < model.token_types < 6:
            raise UserError(f"unilm has 6 token types, not {model.token_types}: set model.token_types=6, or 0 for none")
        return {"model": model}

    # ------------------------------------------------------------ lengths

    def kinds(self, index: np.ndarray) -> np.ndarray:
        """(R,) the kind (a place in `KINDS`) of samples by their number, in their shares (`even`)."""
        return np.searchsorted(np.cumsum(self.shares)[:-1], even(index, "unilm"), "right")

    def room(self, shape: Shape) -> int:
        return max(shape.stream - (3 if self.shares[3] else 2), 0)

    def sizes(self, of: Outline) -> Sizes:
        return Sizes(of.lengths + 2 + (self.kinds(of.index) == 3))

    # ------------------------------------------------------------ examples

    def __call__(self, rows: Rows, vocabulary: Vocabulary) -> Examples:
        kind = self.kinds(rows.index)
        framed, second = self._framed(rows, kind, vocabulary)
        row, place = framed.row, framed.place
        of, behind = kind[row], place - second[row]  # behind: 0, 1, … in the second part
        order = np.select([of == 1, of == 2, of == 3], [place, framed.lengths[row] - place, np.maximum(behind + 1, 0)])
        types = np.select([of == 0, of < 3], [0, of + 1], 4 + (behind >= 0))
        hidden = self._selected(framed, np.isin(kind, (0,) if self.next_token else (0, 1, 2, 3)))
        tokens, at = framed.tokens.copy(), hidden.at
        noise = Masked(mask_share=self.mask_share, random_share=self.random_share)
        tokens[at] = noise.replacement(framed, hidden, vocabulary)
        index = at
        if self.next_token:
            at, index = self._neighbours(framed, of, behind, at)
        order = order.astype(np.int32)
        stream = Stream(
            tokens, place.astype(np.int32), np.ones_like(order), order, order,
            token_type=types.astype(np.int32), start=framed.start, pattern="order",
        )  # fmt: skip
        return Examples(stream, {"lm": Targets.at(index, framed.tokens[at])})

    def _framed(self, rows: Rows, kind: np.ndarray, vocabulary: Vocabulary) -> tuple[Rows, np.ndarray]:
        """[CLS] text [SEP], or [CLS] first [SEP] second [SEP]; and (R,) where the second part starts (0 = has none)."""
        sep = vocabulary.need("sep")
        framed = frame(rows, before=vocabulary.need("cls"), after=sep)
        draw = keyed.bits(keyed.absorb(rows.key, keyed.purpose("split")), np.zeros(len(kind), np.int64))
        split = keyed.below(draw, np.maximum(rows.lengths, 1)) + 1
        pairs = kind == 3
        cut = (framed.start[:-1] + split)[pairs]
        tokens, fixed = np.insert(framed.tokens, cut, sep), np.insert(framed.fixed, cut, True)
        whole = Rows(tokens, starts(framed.lengths + pairs), rows.key, rows.index, fixed, rows.ends)
        return whole, np.where(pairs, split + 1, 0)

    def _selected(self, framed: Rows, which: np.ndarray) -> Selected:
        """What is masked, in the texts `which` (R,)."""
        found = units.tokens(framed)
        n = found.counts
        budget = np.minimum(np.maximum(np.rint(self.mask_rate * n).astype(np.int64), 1), n) * which
        key = keyed.absorb(framed.key, keyed.purpose("mask"))
        return units.runs(found, key, budget, np.array(self.span_shares))

    def _neighbours(
        self, framed: Rows, of: np.ndarray, behind: np.ndarray, masked: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """(n,) the tokens to predict, those `masked` too, and where each is predicted."""
        asked = ~framed.fixed & ((of == 1) | (of == 2) | ((of == 3) & (behind >= 0)))
        last = (framed.start[1:] - 1)[framed.ends]
        asked[last] = (of[last] == 1) | (of[last] == 3)
        asked[masked] = True
        at = np.flatnonzero(asked)
        return at, at + np.array([0, -1, 1, -1])[of[at]]
