"""Masked sequence to sequence (Song et al. 2019, "MASS: Masked Sequence to Sequence Pre-training")."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from unmask import keyed
from unmask.batch import Examples, Rows, Stream, Targets, causal, full, places, prefix, ranges, starts
from unmask.objectives.base import Outline, Vocabulary, frame
from unmask.objectives.denoise import TextToText
from unmask.objectives.layout import Pairs, Ragged


class Mass(TextToText):
    """One fragment of a text is hidden from the source, and the decoder writes it, left to right.

    k of the T tokens (a text whose document ends has [EOS] among them, so it can be written, too), from a place that is
    uniform over the T − k + 1 there are: one fragment a text (the released code for summaries hides one in every 64
    tokens). Of the fragment's tokens in the source 80 % become [MASK], 10 % a random token, 10 % stay.

    The decoder reads the fragment alone, each token at its true position: what is visible in the source is left out
    of its input, as the paper does it to save time (section 4.1), and its positions do not start at 0.

        text        the   cat   sat    on   the   mat
        source      the   cat [MASK] [MASK] [MASK]  mat
        tokens                [MASK]  sat    on
        positions                2     3     4
        target                  sat    on   the

    k = 1 is masked language modelling by the decoder, k = T (fragment=1) next-token prediction after an empty source
    (section 3.2, table 1).

    Two conventions for the first token that the decoder reads. The paper's figure masks all that is not in the
    fragment, so it is [MASK]; the released code gives the token before the fragment, which the source shows, and
    [BOS] at the text's beginning: opening="token".

    In one stack the source is followed by the decoder's tokens, whose positions come a second time.

        source 7 8 [M] [M], fragment 5 6     tokens     7  8  [M] [M] [M]  5
                                             positions  0  1   2   3   2   3
                                             reveal     0  0   0   0   1   2

    >>> from unmask.objectives.show import toy
    >>> e = Mass(mask_share=1, random_share=0)(Rows.of([[11, 12, 13, 14, 15]], key=[2]), toy())
    >>> e.source.tokens.tolist(), e.stream.tokens.tolist()
    ([11, 12, 4, 4, 4, 3], [4, 13, 14])
    >>> e.stream.positions.tolist(), e.targets["lm"].value.tolist()
    ([2, 3, 4], [13, 14, 15])
    """

    type: Literal["mass"] = "mass"
    fragment: float = Field(0.5, gt=0, le=1)
    """k / T: max(1, round(fragment · T)) tokens are hidden."""
    fragment_tokens: int | None = Field(None, ge=1)
    """k itself, at most T; None = by `fragment`."""
    opening: Literal["mask", "token"] = "mask"
    begin: Literal["uniform", "edges"] = "uniform"
    """edges: at the text's beginning or at its end with probability 0.2 each, else uniform (released code)."""
    mask_share: float = Field(0.8, ge=0, le=1)
    random_share: float = Field(0.1, ge=0, le=1)

    @property
    def copies(self) -> bool:  # type: ignore[override]
        """Some tokens stay in the source, unless all are replaced."""
        return self.mask_share + self.random_share < 1

    @model_validator(mode="after")
    def _shares(self) -> Mass:
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise ValueError(f"mask_share {self.mask_share} + random_share {self.random_share} exceed 1")
        if self.layout.bos != "front" or self.layout.loss != "target":
            raise ValueError("mass has no [BOS] in one stack and asks for the fragment alone: set layout.kind only")
        return self

    @classmethod
    def mass_released(cls) -> Mass:
        """Their code for translation: the decoder starts from the token before, and fragments like the edges."""
        return cls(opening="token", begin="edges")

    # ------------------------------------------------------------ sizes

    def pair_sizes(self, of: Outline) -> tuple[np.ndarray, np.ndarray]:
        n = of.lengths + of.ends
        return n, self._hidden(n)

    def longest(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return lengths + 1, self._hidden(lengths + 1)

    def _hidden(self, n: np.ndarray) -> np.ndarray:
        """(R,) k for texts of n tokens."""
        k = np.rint(self.fragment * n).astype(np.int64) if self.fragment_tokens is None else self.fragment_tokens
        return np.minimum(np.maximum(k, 1), n)

    # ------------------------------------------------------------ the pair and its layout

    def pairs(self, rows: Rows, vocabulary: Vocabulary) -> Pairs:
        """The source, and the fragment."""
        text, at = self._fragment(rows, vocabulary)
        source = self._source(rows, text, at, vocabulary)
        return Pairs(Ragged(source, text.start), Ragged(text.tokens[at], starts(self._hidden(text.lengths))))

    def __call__(self, rows: Rows, vocabulary: Vocabulary) -> Examples:
        text, at = self._fragment(rows, vocabulary)
        source = Ragged(self._source(rows, text, at, vocabulary), text.start)
        start = starts(self._hidden(text.lengths))
        read = text.tokens[at - 1]
        first = start[:-1][np.diff(start) > 0]
        alone = at[first] == text.start[:-1][np.diff(start) > 0]
        if self.opening == "mask":
            read[first] = vocabulary.need("mask")
        else:
            read[first[alone]] = vocabulary.need("bos")
        positions = (at - np.repeat(text.start[:-1], np.diff(start))).astype(np.int32)
        asked = np.flatnonzero(~text.fixed[at])
        value = text.tokens[at[asked]]
        if self.layout.kind == "encdec":
            stream = causal(read, start, positions=positions)
            return Examples(stream, {"lm": Targets.at(asked, value)}, source=full(source.tokens, source.start))
        stream, into = self._one_stack(source, Ragged(read, start), positions)
        return Examples(stream, {"lm": Targets.at(into[asked], value)})

    def _one_stack(self, source: Ragged, read: Ragged, positions: np.ndarray) -> tuple[Stream, np.ndarray]:
        """The stream, and where in it each token stands that the decoder reads."""
        s, k = source.lengths, read.lengths
        start = starts(s + k)
        first, into = ranges(start[:-1], s), ranges(start[:-1] + s, k)
        tokens, at = np.empty((2, start[-1]), np.int32)
        tokens[first], tokens[into] = source.tokens, read.tokens
        at[first], at[into] = places(source.start), positions
        if self.layout.kind == "causal":
            return causal(tokens, start, positions=at), into
        return prefix(tokens, start, s, positions=at), into

    # ------------------------------------------------------------ noise

    def _fragment(self, rows: Rows, vocabulary: Vocabulary) -> tuple[Rows, np.ndarray]:
        """The texts with their ends, which may be hidden like any token, and the fragments' places among them."""
        text = frame(rows, at_end=vocabulary.need("eos"))
        text.fixed[text.start[1:][rows.ends] - 1] = False
        n = text.lengths
        k = self._hidden(n)
        key, zero = keyed.absorb(rows.key, keyed.purpose("fragment")), np.zeros(len(n), np.int64)
        begin = keyed.below(keyed.bits(key, zero), n - k + 1)
        if self.begin == "edges":
            fate = keyed.uniform(key, zero + 1)
            begin = np.where(fate < 0.2, 0, np.where(fate < 0.4, n - k, begin))
        return text, ranges(text.start[:-1] + begin, k)

    def _source(self, rows: Rows, text: Rows, at: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
        """The tokens that the source shows: fixed ones always."""
        at = at[~text.fixed[at]]
        row = np.repeat(np.arange(len(rows.key)), text.lengths)[at]
        key = keyed.absorb(rows.key, keyed.purpose("replace"))
        draw = keyed.bits(key[row], at - text.start[row])
        fate = (draw & np.uint64(0xFFFFFFFF)).astype(np.float64) * 2.0**-32
        random = vocabulary.ordinary[keyed.below(draw, len(vocabulary.ordinary))]
        out = text.tokens.copy()
        drawn = np.where(fate < self.mask_share, vocabulary.need("mask"), random)
        out[at] = np.where(fate < self.mask_share + self.random_share, drawn, out[at])
        return out
