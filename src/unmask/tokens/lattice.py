"""All segmentations of many words at once, for training a unigram model.

A word of n characters is a graph of n + 1 nodes, the places between its characters; a piece that spans characters
[i, j) is an edge from node i to node j. Words are sorted by length and handled in blocks. Within a block, node p of
all words lie side by side, so one step of dynamic programming is a few numpy calls over contiguous slices:

    words (longest first)   abc ab a      nodes   p=0: 0 1 2   p=1: 3 4 5   p=2: 6 7   p=3: 8
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

LONGEST_PIECE = 16
"""Characters (sentencepiece's default)."""
BLOCK = 1 << 17
"""Nodes handled at once: their tables stay in the processor's cache."""


@dataclass(frozen=True)
class Block:
    """Words of similar length.

    words (W,): which words, longest first; lengths (W,): theirs. first (L + 2,): node (p, w) is first[p] + w.
    columns: where the block's nodes are among those of all blocks.
    """

    words: np.ndarray
    lengths: np.ndarray
    first: np.ndarray
    columns: slice

    def at(self, p: int) -> slice:
        """The nodes p of all words that have one."""
        return slice(self.first[p], self.first[p + 1])

    def width(self, p: int) -> int:
        return int(self.first[p + 1] - self.first[p])

    @property
    def longest(self) -> int:
        return len(self.first) - 2

    @property
    def last(self) -> np.ndarray:
        """(W,) the node that ends each word."""
        return self.first[self.lengths] + np.arange(len(self.words))


def blocks_of(lengths: np.ndarray) -> list[Block]:
    """lengths (W,), characters of each word, all at least 1."""
    order = np.argsort(-lengths, kind="stable")
    nodes = np.cumsum(lengths[order] + 1)
    out = []
    start = base = 0
    while start < len(order):
        stop = max(start + 1, int(np.searchsorted(nodes, base + BLOCK, side="right")))
        words = order[start:stop]
        own = lengths[words]
        # As many nodes p as there are words of at least p characters.
        widths = len(own) - np.searchsorted(own[::-1], np.arange(int(own[0]) + 1))
        first = np.concatenate([[0], np.cumsum(widths)])
        out.append(Block(words, own, first, slice(base, base + int(first[-1]))))
        base += int(first[-1])
        start = stop
    return out


def characters_of_nodes(block: Block, starts: np.ndarray) -> np.ndarray:
    """(nodes,) the character in front of each node, in the flat text where word w starts at starts[w].

    For nodes 0, which have none, the character before the word: the tables are empty there.
    """
    out = np.empty(int(block.first[-1]), np.int64)
    begin = starts[block.words]
    for p in range(block.longest + 1):
        out[block.at(p)] = begin[: block.width(p)] + (p - 1)
    return out


@dataclass(frozen=True)
class Best:
    """score (W,): log-probability of the best segmentation. length (nodes,): of the piece that ends there in it."""

    score: np.ndarray
    length: np.ndarray


def viterbi(block: Block, pieces: np.ndarray, scores: np.ndarray, whole: bool = True) -> Best:
    """pieces (LONGEST_PIECE, nodes): row l - 1 holds the piece of l characters that ends at a node, 0 = none.

    scores (V + 1,): log-probabilities, scores[0] = -inf. whole=False leaves out the piece that is the word.
    """
    best = np.zeros(int(block.first[-1]))
    length = np.zeros(len(best), np.int8)
    for p in range(1, block.longest + 1):
        reach = min(p, len(pieces))
        edges = _edges(block, pieces, scores, best, p, reach)
        if not whole and p == reach:
            edges[p - 1, block.width(p + 1) if p < block.longest else 0 :] = -np.inf
        chosen = edges.argmax(0)
        length[block.at(p)] = chosen + 1
        best[block.at(p)] = np.take_along_axis(edges, chosen[None], 0)[0]
    return Best(best[block.last], length)


def _edges(block: Block, pieces: np.ndarray, scores: np.ndarray, best: np.ndarray, p: int, reach: int) -> np.ndarray:
    """(reach, width): score of the best way to each node p whose last piece has l characters, at row l - 1."""
    edges = scores[pieces[:reach, block.at(p)]]
    width = block.width(p)
    for length in range(1, reach + 1):
        begin = block.first[p - length]
        edges[length - 1] += best[begin : begin + width]
    return edges


def paths(block: Block, best: Best, pieces: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The best segmentations, from their last pieces to their first: (words (k,), their pieces (k,)) each time."""
    place = block.lengths.copy()
    alive = np.arange(len(place))
    while len(alive):
        node = block.first[place[alive]] + alive
        length = best.length[node]
        yield alive, pieces[length - 1, node]
        place[alive] -= length
        alive = alive[place[alive] > 0]


def expected_counts(block: Block, pieces: np.ndarray, scores: np.ndarray, weight: np.ndarray, out: np.ndarray) -> float:
    """Add to `out` (V + 1,) how often each piece is expected over all segmentations; return the log-likelihood.

    weight (W,): how often each word of the block occurs. Forward and backward sums are kept relative to the best way
    to each node, so they lie between 1 and the number of ways (below 2 ** 256 here): nothing under- or overflows.
    """
    nodes = int(block.first[-1])
    best, forward = np.zeros(nodes), np.ones(nodes)
    share = np.zeros((len(pieces), nodes))  # of each edge, relative to the best way to its end
    for p in range(1, block.longest + 1):
        reach, at, width = min(p, len(pieces)), block.at(p), block.width(p)
        edges = _edges(block, pieces, scores, best, p, reach)
        best[at] = top = edges.max(0)
        edges -= np.where(top == -np.inf, 0, top)  # no way leads there
        np.exp(edges, out=edges)
        share[:reach, at] = edges
        total = np.zeros(width)
        for length in range(1, reach + 1):
            begin = block.first[p - length]
            total += edges[length - 1] * forward[begin : begin + width]
        forward[at] = total
    backward = np.zeros(nodes)
    last = block.last
    backward[last] = weight / forward[last]
    for p in range(block.longest, 0, -1):
        reach, at, width = min(p, len(pieces)), block.at(p), block.width(p)
        edges = share[:reach, at]
        edges *= backward[at]
        for length in range(1, reach + 1):
            begin = block.first[p - length]
            backward[begin : begin + width] += edges[length - 1]
            edges[length - 1] *= forward[begin : begin + width]
    out += np.bincount(pieces.ravel(), weights=share.ravel(), minlength=len(out))
    return float((weight * (np.log(forward[last]) + best[last])).sum())
