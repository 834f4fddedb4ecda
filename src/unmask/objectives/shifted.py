"""Masked language modelling one position to the left, which shares the head and the model with a causal one."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from unmask import keyed
from unmask.batch import Examples, Rows, Stream, Targets, full
from unmask.config import Visibility
from unmask.objectives.base import LM, Plan, Vocabulary
from unmask.objectives.masked import Spanned

_STRETCH = 16
"""Samples in a row that hold causal texts in their share."""


class ShiftedMasked(Spanned):
    """A hidden token is predicted from the position before it, as a causal model predicts it (Charpentier and Samuel
    2024, "GPT or BERT: why not both?"; masked next-token prediction in BehnamGhader et al. 2024, "LLM2Vec").

        text       [CLS]    11     12     13   [SEP]
        tokens     [CLS]    11  [MASK]    13   [SEP]
        target              12

    >>> from unmask.objectives.show import toy
    >>> m = ShiftedMasked(mask_share=1.0, random_share=0.0)
    >>> e = m(Rows.of([[11, 12, 13]], [4]), toy())
    >>> e.stream.tokens.tolist(), e.targets["lm"].index.tolist(), e.targets["lm"].value.tolist()
    ([2, 11, 4, 13, 3], [1], [12])

    `causal_share` of the texts are plain next-token prediction under a causal mask, by the same head: the hybrid at
    any ratio. Which texts is told by their global sample number: any 16 in a row hold their share of causal ones, the
    fraction of one in turn, and chance says which. Such a text has its end token as a target only where its document
    ends.

        tokens     [BOS]    11     12     13   [EOS]
        target        11    12     13  [EOS]
        reveal         0     1      2      3      4

    >>> hybrid = m.model_copy(update={"causal_share": 0.5})
    >>> hybrid.is_causal(np.arange(64)).reshape(4, 16).sum(1).tolist()
    [8, 8, 8, 8]
    >>> e = hybrid(Rows.of([[11, 12, 13]], index=[2]), toy())
    >>> e.stream.tokens.tolist(), e.targets["lm"].index.tolist(), e.targets["lm"].value.tolist()
    ([2, 11, 12, 13, 3], [0, 1, 2, 3], [11, 12, 13, 3])

    The hybrid is scored as what the head says of the next token, from left to right; without causal texts as a masked
    model.
    """

    type: Literal["shifted_masked"] = "shifted_masked"
    causal_share: float = Field(0.0, ge=0, le=1)
    """Share of the texts that are causal."""

    @property
    def plan(self) -> Plan:  # type: ignore[override]
        return "left_to_right" if self.causal_share else "pseudo"

    @property
    def visibility(self) -> Visibility:
        return "causal" if self.causal_share else "bidirectional"

    def is_causal(self, index: np.ndarray) -> np.ndarray:
        """(R,) bool for global sample numbers (R,): exactly the share of any stretch of `_STRETCH`, shuffled in it.

        Shuffled, because batches may take every n-th sample: an even spread would hand them nothing but one kind.
        """
        stretch, place = np.divmod(np.asarray(index, np.int64), _STRETCH)
        place = keyed.permuted(place, _STRETCH, keyed.absorb(keyed.purpose("causal"), stretch))
        number = (stretch * _STRETCH + place).astype(np.float64)
        return np.asarray(np.floor((number + 1) * self.causal_share) > np.floor(number * self.causal_share))

    def __call__(self, rows: Rows, vocabulary: Vocabulary) -> Examples:
        framed, causal = self.framed(rows, vocabulary), self.is_causal(rows.index)
        selected, in_causal = self.select(framed), np.repeat(causal, framed.lengths)
        if causal.any():
            framed.tokens[framed.start[:-1][causal]] = vocabulary.need("bos")
            framed.tokens[framed.start[1:][causal] - 1] = vocabulary.need("eos")
            selected = selected.only(~in_causal[selected.at])
        tokens = framed.tokens.copy()
        tokens[selected.at] = self.replacement(framed, selected, vocabulary)
        at = selected.at
        if causal.any():
            wanted = in_causal & (framed.place > 0)
            wanted[framed.start[1:][causal & ~framed.ends] - 1] = False
            wanted[at] = True
            at = np.flatnonzero(wanted)
        stream = _half_causal(full(tokens, framed.start), framed.place, in_causal)
        return Examples(stream, {LM.name: Targets.at(at - 1, framed.tokens[at])})

    # ---------------------------------------------------------------- as published

    @classmethod
    def gpt_bert(cls) -> ShiftedMasked:
        """Charpentier and Samuel 2024 and their code: one causal text in 16, 30 % falling to 15 % linearly, spans of 1
        to 3 tokens with one fate each."""
        return cls(causal_share=1 / 16, mask_rate=0.3, final_rate=0.15, span_lengths="uniform", max_span=3, fate="span")

    @classmethod
    def mntp(cls) -> ShiftedMasked:
        """BehnamGhader et al. 2024, section 2.1: 20 % of single tokens, nothing causal."""
        return cls(mask_rate=0.2)


def _half_causal(stream: Stream, place: np.ndarray, causal: np.ndarray) -> Stream:
    """A bidirectional stream whose tokens under `causal` (N,) see only what stands before them."""
    if not causal.any():
        return stream
    reveal = np.where(causal, place, 0).astype(np.int32)
    pattern: Literal["causal", "order"] = "causal" if causal.all() else "order"
    return Stream(**{**vars(stream), "reveal": reveal, "horizon": reveal, "pattern": pattern})
