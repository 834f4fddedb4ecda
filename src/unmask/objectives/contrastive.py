"""Pairs that belong together, told from the other pairs of a batch: the ground for embeddings and retrieval.

Each text becomes a query and a passage, two blocks that do not see each other. The states of each are pooled and
projected; a query must find its own passage among those of its batch (`unmask.programs`: InfoNCE, van den Oord et
al. 2018, equation 4, with the other passages of the batch as negatives).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from unmask import keyed
from unmask.batch import Examples, Head, Rows, Stream, Targets, places, ranges, starts
from unmask.config import Visibility
from unmask.objectives.base import Cut, Objective, Outline, Plan, Shape, Sizes, Vocabulary, outline
from unmask.objectives.pairs import Sentences, drawn

QUERY, PASSAGE = "query", "passage"


class Contrastive(Objective):
    """A query and the passage it belongs to, in one stream: [CLS] query [SEP] and [CLS] passage [SEP].

    inverse_cloze   the query is a sentence drawn from the text, the passage what stands around it; in one text of
                    ten (1 − `removed`) the sentence stays in its passage, too, so that words in common help as well
                    (Lee et al. 2019, "Latent retrieval", sections 4 and 9.2)
    neighbours      the text is cut at the sentence start nearest to its middle: of what stands before, the query is
                    the end, from a sentence start of its first half on; of what follows, the passage is the beginning,
                    up to a sentence end of its second half (neighbouring pieces of text: Neelakantan et al. 2022,
                    section 3); a text of one sentence is cut at its middle token

        text            zebras run . | they have stripes . | lions eat them .
        inverse_cloze   [CLS] they have stripes . [SEP]      [CLS] zebras run . lions eat them . [SEP]
        neighbours      [CLS] zebras run . [SEP]             [CLS] they have stripes . lions eat them . [SEP]

    No length tells which passage is a query's: if each of them had what its query leaves of a text, lengths alone
    would find most pairs of a batch, as their sum is the context. So a text of n tokens gives an inverse_cloze
    passage of n − ⌊n / 3⌋ tokens, whatever its query: a stretch around it, drawn evenly. Sentences of more than
    ⌊n / 3⌋ are no queries; where all are longer, one gives that many tokens, a text of one sentence any stretch of
    them. A text of one token has no pair.

    Negatives are the other pairs of the same micro-batch: `train.grad_accumulation` and ranks do not add to them, and
    two pieces of one document are each other's negatives. The floor, from guessing, is ln(pairs of a micro-batch). As a
    part of a mixture (masked + contrastive: Giorgi et al. 2021, "DeCLUTR") its pairs are told from each other alone.

    >>> from unmask.objectives.show import toy
    >>> rows = Rows.of([[11, 12, 13, 14, 15, 16]], sentence=np.array([1, 0, 1, 0, 1, 0], bool))
    >>> e = Contrastive(removed=1.0)(rows, toy())
    >>> e.stream.tokens.tolist(), e.stream.block.tolist()
    ([2, 13, 14, 3, 2, 11, 12, 15, 16, 3], [1, 1, 1, 1, 2, 2, 2, 2, 2, 2])
    >>> e.targets["query"].index.tolist(), e.targets["passage"].index.tolist()
    ([0], [4])
    >>> Contrastive(pairs="neighbours")(rows, toy()).stream.tokens.tolist()
    [2, 11, 12, 3, 2, 13, 14, 15, 16, 3]
    """

    type: Literal["contrastive"] = "contrastive"
    pairs: Literal["inverse_cloze", "neighbours"] = "inverse_cloze"
    removed: float = Field(0.9, ge=0, le=1)
    """inverse_cloze: share of the texts whose passage lacks the sentence that is asked."""
    dimension: int = Field(128, ge=1)
    """Numbers of an embedding (128: Lee et al. 2019)."""
    shared: bool = True
    """Whether query and passage are projected by one matrix; else each by its own (Lee et al. 2019)."""
    pool: Literal["mean", "at"] = "mean"
    """What of each is projected: the mean of its states, or the state at its [CLS] (Lee et al. 2019)."""
    similarity: Literal["cosine", "dot"] = "cosine"
    temperature: float = Field(0.05, gt=0)
    """What similarities are divided by before the softmax (0.05: Gao et al. 2021, "SimCSE", section 3)."""
    directions: Literal["both", "query"] = "both"
    """query: the passage of each query; both: also the query of each passage, each half of the loss."""

    plan: ClassVar[Plan] = "pseudo"
    needs: ClassVar[frozenset[str]] = frozenset({"sentence"})
    cut: ClassVar[Cut] = "sentences"
    program: ClassVar[str] = "contrastive"

    @classmethod
    def inverse_cloze(cls) -> Contrastive:
        """Lee et al. 2019, section 4: inner products of 128 numbers, projected from [CLS] by each side's own matrix, in
        one direction. Theirs has a network for each side and a title before the passage; here one reads both, the text
        alone."""
        return cls(shared=False, pool="at", similarity="dot", temperature=1.0, directions="query")

    @classmethod
    def neighbours(cls) -> Contrastive:
        """Neelakantan et al. 2022: neighbouring pieces, cosines, both directions (their temperature is learnt)."""
        return cls(pairs="neighbours")

    @property
    def visibility(self) -> Visibility:
        return "bidirectional"

    def heads(self) -> tuple[Head, ...]:
        share = {"both": (0.5, 0.5), "query": (1.0, 0.0)}[self.directions]
        return tuple(
            Head(
                name,
                over="classes",
                size=self.dimension,
                pool=self.pool,
                coefficient=part,
                module="pair" if self.shared else None,
            )
            for name, part in zip((QUERY, PASSAGE), share, strict=True)
        )

    def room(self, shape: Shape) -> int:
        return max(shape.stream - 4, 0)

    def sizes(self, of: Outline) -> Sizes:
        return Sizes(self.stretches(of)[1].sum(1) + 4)

    def stretches(self, of: Outline) -> tuple[np.ndarray, np.ndarray]:
        """(R, 3) begin in their own text, and length, of the query and of the two parts of the passage."""
        n = of.lengths
        if self.pairs == "neighbours":
            first, cut, end = _neighbours(of)
            return np.stack([first, cut, n], 1), np.stack([cut - first, end - cut, 0 * n], 1)
        begin, q, p = _sentence(of)
        kept = keyed.uniform(keyed.absorb(of.key, keyed.purpose("kept")), np.zeros(len(n), np.int64)) >= self.removed
        # The passage is a stretch of the text that holds the query, which is cut out of it unless it is kept.
        span = np.where(kept, p, p + q)
        low, high = np.maximum(begin + q - span, 0), np.minimum(begin, n - span)
        around = keyed.bits(keyed.absorb(of.key, keyed.purpose("around")), 0 * n)
        left = low + keyed.below(around, np.maximum(high - low, 0) + 1)
        before = np.where(kept, p, begin - left)
        return np.stack([begin, left, begin + q], 1), np.stack([q, before, p - before], 1)

    def __call__(self, rows: Rows, vocabulary: Vocabulary) -> Examples:
        begin, length = self.stretches(outline(rows))
        q, p = length[:, 0], length[:, 1] + length[:, 2]
        start = starts(q + p + 4)
        head = start[:-1]
        tokens = np.full(start[-1], vocabulary.need("sep"), np.int32)
        tokens[head] = tokens[head + q + 2] = vocabulary.need("cls")
        into = np.stack([head + 1, head + q + 3, head + q + 3 + length[:, 1]], 1)
        flat = length.reshape(-1)
        tokens[ranges(into.reshape(-1), flat)] = rows.tokens[ranges((begin + rows.start[:-1, None]).reshape(-1), flat)]
        place, before = places(start).astype(np.int32), np.repeat((q + 2).astype(np.int32), q + p + 4)
        second = place >= before
        zero = np.zeros(len(tokens), np.int32)
        stream = Stream(
            tokens=tokens,
            positions=np.where(second, place - before, place),
            block=1 + second.astype(np.int32),
            reveal=zero,
            horizon=zero,
            start=start,
        )
        asked = np.flatnonzero((q > 0) & (p > 0))
        none = np.zeros(len(asked), np.int64)
        return Examples(
            stream,
            {QUERY: Targets.at(head[asked], none), PASSAGE: Targets.at((head + q + 2)[asked], none)},
        )


def _sentence(of: Outline) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(R,) where a sentence of each text begins, drawn evenly among those that are short enough, its length, and the
    length of its passage.

    A text of one sentence gives a stretch from anywhere.
    """
    n, start = of.lengths, starts(of.lengths)
    key = keyed.absorb(of.key, keyed.purpose("query"))
    most = np.where(n > 1, np.maximum(n // 3, 1), 0)
    flags = _opens(of)
    at = np.flatnonzero(flags)
    size = np.zeros(len(flags) + 1, np.int64)
    size[at] = np.diff(np.append(at, start[-1]))
    begin, some = drawn(flags & (size[:-1] <= np.repeat(most, n)), start, key)
    begin = np.where(some, begin, drawn(flags, start, key)[0])
    length = size[start[:-1] + begin]
    anywhere = keyed.below(keyed.bits(key, np.ones(len(n), np.int64)), n - most + 1)
    return np.where((length >= n) & (n > 1), anywhere, begin), np.minimum(length, most), n - most


def _neighbours(of: Outline) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(R,) where the query of each text begins, where it ends and the passage begins, and where that ends."""
    n, start = of.lengths, starts(of.lengths)
    row, found = np.arange(len(n)), Sentences(of)
    before, behind = found.last(row, n // 2), found.next(row, n // 2)
    nearer = (before > 0) & ((behind == 0) | (n // 2 - before <= behind - n // 2))
    cut = np.where(nearer, before, np.where(behind > 0, behind, n // 2))
    cut = np.where(n > 1, cut, n)
    opens, place = _opens(of), places(start)
    key = keyed.absorb(of.key, keyed.purpose("neighbours"))
    first, _ = drawn(opens & (2 * place <= np.repeat(np.where(n > 1, cut, 0), n)), start, key)
    closes = np.append(opens[1:], True)  # its last token, of a sentence
    late = closes & (2 * (place + 1) > np.repeat(cut + n, n))
    last, some = drawn(late[: len(place)], start, keyed.absorb(key, 1))
    return first, cut, np.where(some, last + 1, n)


def _opens(of: Outline) -> np.ndarray:
    """(N,) bool where sentences start; the first token starts one."""
    first = places(starts(of.lengths)) == 0
    return first if of.sentence is None else of.sentence | first
