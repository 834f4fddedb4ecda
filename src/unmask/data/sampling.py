"""Which text stands at which place of the training order: arithmetic, nothing stored.

A document is cut into pieces of at most `room` tokens. An epoch is a keyed permutation of the pieces
(`keyed.permuted`), so sample number g of a run is found in O(1), and a run resumes from one integer.

Sources mix in blocks of 1,024 samples. A block holds a fixed number of samples of each source, and a keyed
permutation says which are whose; every source runs through epochs of its own.

    block of 8, shares 5/8 and 3/8     0 0 1 0 1 1 0 0 | 1 0 0 1 0 0 0 1 | …
    sample of source 0                 3 0   4     1 2     7 5   6 9 8
    sample of source 1                     1   0 2       5     3       4
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from unmask import keyed
from unmask.batch import Rows, starts
from unmask.config import CorpusConfig
from unmask.errors import UserError

BLOCK = 1024
"""Samples that hold the sources in their shares, each within 1 / 1,024 of what was asked."""


@dataclass(frozen=True)
class Pieces:
    """P pieces: where each begins in the token array, its length, its document, and whether it ends it."""

    begin: np.ndarray
    length: np.ndarray
    document: np.ndarray
    ends: np.ndarray

    @staticmethod
    def cut(documents: np.ndarray, room: int) -> Pieces:
        """Cut documents, given by their (D + 1,) offsets, into full pieces and a rest.

        >>> p = Pieces.cut(np.array([0, 5, 7]), 3)
        >>> p.begin.tolist(), p.length.tolist(), p.document.tolist(), p.ends.tolist()
        ([0, 3, 5], [3, 2, 2], [0, 0, 1], [False, True, True])
        """
        size = np.diff(documents)
        count = -(-size // room)
        document = np.repeat(np.arange(len(size)), count)
        nth = np.arange(len(document)) - np.repeat(np.cumsum(count) - count, count)
        begin = documents[:-1][document] + nth * room
        return Pieces(begin, np.minimum(room, documents[1:][document] - begin), document, nth == count[document] - 1)

    def __len__(self) -> int:
        return len(self.begin)

    def of_sources(self, first: Sequence[int]) -> np.ndarray:
        """(K,) how many pieces belong to each source, given the first document of each."""
        return np.diff(np.append(np.searchsorted(self.document, first), len(self)))


# ---------------------------------------------------------------- orders


class Sampler(Protocol):
    """The text of every sample number, and the key of its noise."""

    def piece(self, index: np.ndarray) -> np.ndarray: ...

    def keys(self, index: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class Order:
    """The training order over `size` pieces under a seed."""

    size: int
    seed: int
    shuffle: bool = True

    def piece(self, index: np.ndarray) -> np.ndarray:
        """(S,) the piece at each global sample number; numbers run on over epochs."""
        epoch, place = np.divmod(np.asarray(index, np.int64), self.size)
        if not self.shuffle:
            return place
        return keyed.permuted(place, self.size, keyed.row_keys(self.seed, epoch, 0, "order"))

    def keys(self, index: np.ndarray) -> np.ndarray:
        """(S,) uint64 keys of the noise: functions of seed, epoch and piece."""
        return keyed.row_keys(self.seed, np.asarray(index, np.int64) // self.size, self.piece(index), "noise")


@dataclass(frozen=True)
class Mixture:
    """The training order over sources that stand one after the other, `counts` of each in a block of samples."""

    sizes: tuple[int, ...]
    """Pieces of each source."""
    counts: tuple[int, ...]
    seed: int

    def piece(self, index: np.ndarray) -> np.ndarray:
        """(S,) the piece at each global sample number."""
        return self._find(index)[1]

    def keys(self, index: np.ndarray) -> np.ndarray:
        """(S,) uint64 keys of the noise: functions of seed, epoch of the source, and piece."""
        return keyed.row_keys(self.seed, *self._find(index), "noise")

    def _find(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(S,) the epoch of the sample's source, and the piece."""
        block, place = np.divmod(np.asarray(index, np.int64), sum(self.counts))
        place = keyed.permuted(place, sum(self.counts), keyed.row_keys(self.seed, block, 0, "mixture"))
        first = np.cumsum(self.counts)
        source = np.searchsorted(first, place, "right")
        nth = block * np.asarray(self.counts)[source] + place - (first - self.counts)[source]
        epoch, piece = np.divmod(nth, np.asarray(self.sizes)[source])
        begin = np.cumsum(self.sizes) - self.sizes
        for number, size in enumerate(self.sizes):
            mine = source == number
            key = keyed.row_keys(self.seed, epoch[mine], number, "order")
            piece[mine] = begin[number] + keyed.permuted(piece[mine], size, key)
        return epoch, piece


@dataclass(frozen=True)
class InTurn:
    """Each piece once and unshuffled, but the sources take turns: any beginning holds each by its size."""

    sizes: tuple[int, ...]
    seed: int

    @cached_property
    def _order(self) -> np.ndarray:
        """(P,) source k's i-th piece stands by (i + ½) / sizes[k]."""
        place = np.concatenate([(np.arange(size) + 0.5) / size for size in self.sizes])
        return np.argsort(place, kind="stable")

    def piece(self, index: np.ndarray) -> np.ndarray:
        return self._order[np.asarray(index, np.int64) % sum(self.sizes)]

    def keys(self, index: np.ndarray) -> np.ndarray:
        epoch = np.asarray(index, np.int64) // sum(self.sizes)
        return keyed.row_keys(self.seed, epoch, self.piece(index), "noise")


def shares(corpus: CorpusConfig, sizes: Sequence[int]) -> np.ndarray:
    """(K,) the share of the samples that each source is to have, given its number of pieces n: by n, by its
    weight, or by n ** (1 / temperature) (Xue et al. 2021, section 3.1: p(L) ∝ |L| ** alpha).

    >>> shares(CorpusConfig(sources={"a": "a.txt", "b": "b.txt"}, mix="temperature", temperature=2), [16, 1]).tolist()
    [0.8, 0.2]
    """
    if corpus.mix == "weight":
        weight = np.array([source.weight for source in corpus.parts.values()])
    else:
        weight = np.asarray(sizes, np.float64) ** (1 / corpus.temperature if corpus.mix == "temperature" else 1)
    return np.asarray(weight / weight.sum())


def counts_in_block(share: np.ndarray, block: int = BLOCK) -> tuple[int, ...]:
    """How many samples of a block each source gets: largest remainders, and no source without a sample.

    >>> counts_in_block(np.array([0.7, 0.2, 0.1])), counts_in_block(np.array([0.9999, 0.0001]))
    ((717, 205, 102), (1023, 1))
    """
    if len(share) > block:
        raise UserError(f"a mixture of {len(share):,} sources cannot be sampled: at most {block:,} fit in a block")
    exact = share * block
    counts = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: block - counts.sum()]] += 1
    for tiny in np.flatnonzero(counts == 0):
        counts[np.argmax(counts)] -= 1
        counts[tiny] = 1
    return tuple(counts.tolist())


# ---------------------------------------------------------------- reading


def places_of(pieces: Pieces, which: np.ndarray) -> np.ndarray:
    """(N,) where the tokens of the pieces `which` (S,) stand, end to end."""
    length = pieces.length[which]
    start = starts(length)
    return np.repeat(pieces.begin[which] - start[:-1], length) + np.arange(start[-1])


def read_rows(
    tokens: np.ndarray, pieces: Pieces, which: np.ndarray, key: np.ndarray, index: np.ndarray, progress: float
) -> Rows:
    """The texts of the pieces `which` (S,), end to end."""
    start = starts(pieces.length[which])
    return Rows(
        tokens=np.asarray(tokens[places_of(pieces, which)]).astype(np.int32),
        start=start,
        key=key,
        index=index,
        fixed=np.zeros(start[-1], bool),
        ends=pieces.ends[which],
        progress=progress,
    )
