"""Pairs that belong together, told from the other pairs of a batch: the ground for embeddings and retrieval.

Each text becomes a query and a passage, two blocks that do not see each other. The states of each are averaged and
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
from unmask.objectives.base import Objective, Outline, Plan, Shape, Sizes, Vocabulary, outline
from unmask.objectives.sentence import cut_places, drawn

QUERY, PASSAGE = "query", "passage"


class Contrastive(Objective):
    """A query and the passage it belongs to, in one stream: [CLS] query [SEP] and [CLS] passage [SEP].

    inverse_cloze   the query is a sentence drawn from the text, the passage what stands around it; in one text of
                    ten (1 − `removed`) the sentence stays in its passage, too, so that words in common help as well
                    (Lee et al. 2019, "Latent retrieval", section 3 and 9.2)
    neighbours      the text is cut at a sentence start: what stands before is the query, what follows the passage
                    (neighbouring pieces of text: Neelakantan et al. 2022, section 3)

        text            zebras run . | they have stripes . | lions eat them .
        inverse_cloze   [CLS] they have stripes . [SEP]      [CLS] zebras run . lions eat them . [SEP]
        neighbours      [CLS] zebras run . [SEP]             [CLS] they have stripes . lions eat them . [SEP]

    A sentence that is more than half of its text is cut to as many tokens as half of it, and a text of one sentence
    (for inverse_cloze) gives any stretch of half its tokens, so neither side is ever empty. Where a sentence of q
    tokens stays, its passage is a stretch of n − q tokens around it, as if it had been removed: a text of n tokens
    always takes n + 4, and no length tells which it was. A text of one token has no pair.

    Negatives are the other pairs of the same micro-batch: `train.grad_accumulation` and ranks do not add to them, and
    two pieces of one document are each other's negatives. The floor, from guessing, is ln(pairs of a micro-batch).

    >>> from unmask.objectives.show import toy
    >>> rows = Rows.of([[11, 12, 13, 14, 15, 16]], sentence=np.array([1, 0, 1, 0, 1, 0], bool))
    >>> e = Contrastive(removed=1.0)(rows, toy())
    >>> e.stream.tokens.tolist(), e.stream.block.tolist()
    ([2, 13, 14, 3, 2, 11, 12, 15, 16, 3], [1, 1, 1, 1, 2, 2, 2, 2, 2, 2])
    >>> e.targets["query"].index.tolist(), e.targets["passage"].index.tolist()
    ([0], [4])
    >>> Contrastive(pairs="neighbours")(rows, toy()).stream.tokens.tolist()
    [2, 11, 12, 13, 14, 3, 2, 15, 16, 3]
    """

    type: Literal["contrastive"] = "contrastive"
    pairs: Literal["inverse_cloze", "neighbours"] = "inverse_cloze"
    removed: float = Field(0.9, ge=0, le=1)
    """inverse_cloze: share of the texts whose passage lacks the sentence that is asked."""
    dimension: int = Field(128, ge=1)
    """Numbers of an embedding (128: Lee et al. 2019)."""
    shared: bool = True
    """Whether query and passage are projected by one matrix; else each by its own (Lee et al. 2019)."""
    similarity: Literal["cosine", "dot"] = "cosine"
    temperature: float = Field(0.05, gt=0)
    """What similarities are divided by before the softmax (0.05: Gao et al. 2021, "SimCSE", section 3)."""
    directions: Literal["both", "query"] = "both"
    """query: the passage of each query; both: also the query of each passage, each half of the loss."""

    plan: ClassVar[Plan] = "pseudo"
    needs: ClassVar[frozenset[str]] = frozenset({"sentence"})
    program: ClassVar[str] = "contrastive"

    @classmethod
    def inverse_cloze(cls) -> Contrastive:
        """Lee et al. 2019: inner products of 128 numbers, a projection for each side, one direction."""
        return cls(shared=False, similarity="dot", temperature=1.0, directions="query")

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
                pool="mean",
                coefficient=part,
                module="pair" if self.shared else None,
            )
            for name, part in zip((QUERY, PASSAGE), share, strict=True)
        )

    def room(self, shape: Shape) -> int:
        return max(shape.stream - 4, 0)

    def sizes(self, of: Outline) -> Sizes:
        return Sizes(of.lengths + 4)

    def stretches(self, of: Outline) -> tuple[np.ndarray, np.ndarray]:
        """(R, 3) begin in their own text, and length, of the query and of the two parts of the passage."""
        n = of.lengths
        first, _ = cut_places(of, n, sentences=True)
        if self.pairs == "neighbours":
            first = np.minimum(first, n)
            return np.stack([0 * n, first, n], 1), np.stack([first, n - first, 0 * n], 1)
        begin, q = _sentence(of)
        kept = keyed.uniform(keyed.absorb(of.key, keyed.purpose("kept")), np.zeros(len(n), np.int64)) >= self.removed
        left = np.clip(begin + q - n // 2, 0, q)  # of the n − q tokens around the query, it in their middle if it can
        behind = np.where(kept, n, begin + q)
        return (
            np.stack([begin, np.where(kept, left, 0), behind], 1),
            np.stack([q, np.where(kept, n - q, begin), n - behind], 1),
        )

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


def _sentence(of: Outline) -> tuple[np.ndarray, np.ndarray]:
    """(R,) where a sentence of each text begins, drawn evenly, and its length, at most half of the text.

    A text of one sentence gives a stretch of half its tokens from anywhere.
    """
    n, start = of.lengths, starts(of.lengths)
    key = keyed.absorb(of.key, keyed.purpose("query"))
    most = n // 2
    if of.sentence is None:
        flags = places(start) == 0
    else:
        flags = of.sentence | (places(start) == 0)
    at = np.flatnonzero(flags)
    begin, _ = drawn(flags, start, key)
    ends = np.append(at, start[-1])[np.searchsorted(at, start[:-1] + begin, "right")]
    length = np.minimum(ends, start[1:]) - start[:-1] - begin
    lone = length >= n
    anywhere = keyed.below(keyed.bits(key, np.ones(len(n), np.int64)), n - most + 1)
    return np.where(lone, anywhere, begin), np.minimum(length, most)
