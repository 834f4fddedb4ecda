"""Autoregressive blank infilling (Du et al. 2022, "GLM", sections 2.1 and 2.2)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from unmask import keyed
from unmask.batch import Examples, Rows, Stream, Targets, places, ranges, starts
from unmask.config import ModelConfig, Visibility
from unmask.errors import UserError
from unmask.objectives.base import Objective, Outline, Plan, Shape, Sizes, Vocabulary, outline
from unmask.objectives.chunks import before, shuffled
from unmask.objectives.spans import choose


class GLM(Objective):
    """Spans are left out, and written behind the text one after the other, in random order.

    Part A is the text with one [MASK] a span; it sees all of itself. Part B spells out the spans: each starts with
    [BOS] (the paper's [START]) and answers end with [EOS] ([END]); a token of B sees A and what stands before it in
    B. Positions have two axes: the first is the place in A, for B that of the span's [MASK]; the second is 0 in A
    and counts from 1 in a span. So a blank does not tell how long its answer is, and answers know their blanks.

        tokens       [CLS] the [MASK] sat [SEP]  [BOS]  cat  has
        positions      0    1     2    3    4      2     2    2
        positions2     0    0     0    0    0      1     2    3
        reveal         0    0     0    0    0      1     2    3
        target                                    cat   has [EOS]

    short     round(`noise_density` · n) tokens, exactly, in spans of Poisson(`mean_span`) tokens given that there is
              one: the tokens are thrown into round(noise / mean) boxes, whose fillings are such lengths for a fixed
              sum. Spans do not touch, and every place of a text is noise equally often: the text is a ring, cut at
              a random place, which may cut a span
    document  one span of 50–100 % of the text (section 2.1.2, document-level)
    sentence  whole sentences, in random order, until `noise_density` is covered (sentence-level); neighbours are one
              blank; at most one sentence for 8 noise tokens, which bounds what an example can measure

    A model needs `positions2`: without it the places inside a span are lost. The paper trains short and one of the
    long regimes together: that is a mixture of two of these.

    >>> from unmask.objectives.show import toy
    >>> e = GLM(noise_density=0.5)(Rows.of([[11, 12, 13, 14]]), toy())
    >>> e.stream.tokens.tolist(), e.stream.positions.tolist()
    ([2, 4, 12, 13, 4, 3, 2, 11, 2, 14], [0, 1, 2, 3, 4, 5, 1, 1, 4, 4])
    >>> e.stream.positions2.tolist(), e.stream.reveal.tolist()
    ([0, 0, 0, 0, 0, 0, 1, 2, 1, 2], [0, 0, 0, 0, 0, 0, 1, 2, 3, 4])
    >>> e.targets["lm"].index.tolist(), e.targets["lm"].value.tolist()
    ([6, 7, 8, 9], [11, 3, 14, 3])
    """

    type: Literal["glm"] = "glm"
    spans: Literal["short", "document", "sentence"] = "short"
    noise_density: float = Field(0.15, gt=0, lt=1)
    """short and sentence: share of the text that is left out."""
    mean_span: float = Field(3.0, ge=1)
    """short: λ of the Poisson lengths before empty spans are dropped; the mean is λ / (1 − e^−λ), 3.16 for 3."""
    place: Literal["anywhere", "end"] = "anywhere"
    """document: where the one span stands (the paper does not say); end = continuing a text, nothing else."""
    shuffle: bool = True
    """Spans come in random order; without, from left to right (their ablation)."""

    plan: ClassVar[Plan] = "infill"

    @classmethod
    def glm_document(cls) -> GLM:
        """Du et al. 2022, section 2.1.2: one span of 50 to 100 % of the text, for writing at length."""
        return cls(spans="document")

    @classmethod
    def glm_sentence(cls) -> GLM:
        """Du et al. 2022, section 2.1.2: whole sentences, 15 % of the text, for sequence to sequence."""
        return cls(spans="sentence")

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"sentence"} if self.spans == "sentence" else ())

    @property
    def visibility(self) -> Visibility:
        return "prefix"

    def networks(self, model: ModelConfig) -> dict[str, ModelConfig]:
        if not model.positions2:
            raise UserError(
                "glm counts places inside a span on a second axis: set model.positions2 to the longest span + 2 "
                "(the context is always enough)"
            )
        return {"model": model}

    # ------------------------------------------------------------ lengths

    def counts(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(R,) noise tokens of texts of these lengths, and the most blanks they can be in."""
        n = np.asarray(lengths)
        noise = np.minimum(np.clip(np.rint(n * self.noise_density).astype(np.int64), 1, np.maximum(n - 1, 1)), n)
        if self.spans == "document":
            return n, np.minimum(n, 1)
        if self.spans == "sentence":
            return noise, np.minimum(np.maximum(np.rint(noise / 8).astype(np.int64), 1), n)
        boxes = self._boxes(n, noise)
        return noise, boxes + (noise > boxes) * (n > noise)

    def _boxes(self, lengths: np.ndarray, noise: np.ndarray) -> np.ndarray:
        boxes = np.clip(np.rint(noise / self.mean_span).astype(np.int64), 1, np.maximum(lengths - noise, 1))
        return np.minimum(boxes, noise)

    def room(self, shape: Shape) -> int:
        n = np.arange(1, max(shape.stream, 1))
        return int(n[n + 2 + 2 * self.counts(n)[1] <= shape.stream].max(initial=0))

    def sizes(self, of: Outline) -> Sizes:
        start = starts(of.lengths)
        first = _first(self._noise(of), start)
        spans = np.bincount(np.repeat(np.arange(len(of.key)), of.lengths)[first], minlength=len(of.key))
        return Sizes(of.lengths + 2 + 2 * spans)

    # ------------------------------------------------------------ noise

    def noise(self, rows: Rows) -> np.ndarray:
        """(N,) bool: the tokens that are left out."""
        return self._noise(outline(rows))

    def _noise(self, of: Outline) -> np.ndarray:
        if self.spans == "sentence":
            return self._sentences(of)
        return self._short(of.lengths, of.key) if self.spans == "short" else self._document(of.lengths, of.key)

    def _short(self, lengths: np.ndarray, key: np.ndarray) -> np.ndarray:
        noise, _ = self.counts(lengths)
        boxes, kept = self._boxes(lengths, noise), lengths - noise
        thrown, r = starts(noise), len(key)
        of = np.repeat(np.arange(r), noise)
        draws = keyed.bits(keyed.absorb(key, keyed.purpose("boxes"))[of], places(thrown))
        box = starts(boxes)
        filled = np.bincount(box[of] + keyed.below(draws, boxes[of]), minlength=int(box[-1]))
        of = np.repeat(np.arange(r), boxes)[filled > 0]
        filled = filled[filled > 0]
        filled, of = filled[kept[of] > 0], of[kept[of] > 0]  # a text without kept tokens is noise altogether
        after = choose(starts(kept), keyed.absorb(key, keyed.purpose("gaps")), np.bincount(of, minlength=r))
        runs = np.ones(2 * len(after), np.int64)  # one kept token, then the span behind it
        runs[1::2] = 0
        runs[1::2][after] = filled
        ring = np.ones(int(lengths.sum()), bool)
        ring[np.repeat(kept > 0, lengths)] = np.repeat(np.tile([False, True], len(after)), runs)
        turn = keyed.below(keyed.bits(keyed.absorb(key, keyed.purpose("turn")), np.zeros(r, np.int64)), lengths)
        begin = starts(lengths)[:-1]
        head = ranges(begin, lengths) + np.repeat(turn, lengths)
        return ring[head - np.repeat(lengths, lengths) * (head >= np.repeat(begin + lengths, lengths))]

    def _document(self, lengths: np.ndarray, key: np.ndarray) -> np.ndarray:
        least, zero = (lengths + 1) // 2, np.zeros(len(key), np.int64)
        key = keyed.absorb(key, keyed.purpose("document"))
        size = least + keyed.below(keyed.bits(key, zero), lengths - least + 1)
        begin = lengths - size
        if self.place == "anywhere":
            begin = keyed.below(keyed.bits(key, zero + 1), begin + 1)
        place = places(starts(lengths))
        begin = np.repeat(begin, lengths)
        return (place >= begin) & (place < begin + np.repeat(size, lengths))

    def _sentences(self, of: Outline) -> np.ndarray:
        """Sentences in random order while they are needed; without sentence starts a text is one sentence."""
        start = starts(of.lengths)
        opens = np.zeros(int(start[-1]), bool) if of.sentence is None else of.sentence.copy()
        opens[start[:-1][of.lengths > 0]] = True
        owner = np.repeat(np.arange(len(of.key)), of.lengths)[opens]
        size = np.diff(np.append(np.flatnonzero(opens), len(opens)))
        noise, most = self.counts(of.lengths)
        order = shuffled(owner, keyed.absorb(of.key, keyed.purpose("sentences")))
        wanted = before(size[order], owner, len(of.key)) < noise[owner]
        wanted &= before(np.ones_like(owner), owner, len(of.key)) < most[owner]
        chosen = np.zeros(len(owner), bool)
        chosen[order] = wanted
        return np.repeat(chosen, size)

    # ------------------------------------------------------------ layout

    def __call__(self, rows: Rows, vocabulary: Vocabulary) -> Examples:
        key = keyed.absorb(rows.key, keyed.purpose("order")) if self.shuffle else None
        return blanks(rows, self.noise(rows), key, vocabulary)


def _first(noise: np.ndarray, start: np.ndarray) -> np.ndarray:
    """(N,) bool: a run of noise starts here."""
    first = noise.copy()
    first[1:] &= ~noise[:-1]
    opening = start[:-1][np.diff(start) > 0]
    first[opening] = noise[opening]
    return first


def blanks(rows: Rows, noise: np.ndarray, key: np.ndarray | None, vocabulary: Vocabulary) -> Examples:
    """Parts A and B for the tokens left out, `noise` (N,): each run of them is a blank.

    key: (R,) of the order of answers; None = as in the text.
    """
    r, row = len(rows.key), rows.row
    first = _first(noise, rows.start)
    keep = ~noise | first
    owner, length = row[first], np.bincount(np.cumsum(first)[noise] - 1).astype(np.int64)
    spans = np.bincount(owner, minlength=r)
    order = np.arange(len(owner)) if key is None else shuffled(owner, key)
    offset = np.empty_like(length)
    offset[order] = before(length[order] + 1, owner, r)  # in B
    shown, spoken = np.bincount(row[keep], minlength=r) + 2, np.bincount(row[noise], minlength=r) + spans
    start = starts(shown + spoken)
    tokens, positions, positions2, reveal, value = (np.zeros(int(start[-1]), np.int32) for _ in range(5))
    tokens[start[:-1]], tokens[start[:-1] + shown - 1] = vocabulary.need("cls"), vocabulary.need("sep")
    place = before(keep.astype(np.int64), row, r) + keep  # in A, behind [CLS]; of all noise that of its [MASK]
    positions[ranges(start[:-1], shown)] = places(starts(shown))
    tokens[start[:-1][row[keep]] + place[keep]] = np.where(first, vocabulary.need("mask"), rows.tokens)[keep]

    begin = (start[:-1] + shown)[owner] + offset
    inside = np.repeat(begin + 1, length) + places(starts(length))  # noise tokens in B
    tokens[begin], tokens[inside] = vocabulary.need("bos"), rows.tokens[noise]
    positions[begin], positions[inside] = place[first], place[noise]
    positions2[begin], positions2[inside] = 1, inside - np.repeat(begin, length) + 1
    value[inside - 1], value[begin + length] = rows.tokens[noise], vocabulary.need("eos")
    b = ranges(start[:-1] + shown, spoken)
    reveal[b] = places(starts(spoken)) + 1
    stream = Stream(
        tokens, positions, np.ones_like(tokens), reveal, reveal, positions2=positions2, start=start, pattern="order"
    )
    return Examples(stream, {"lm": Targets.at(b, value[b])})
