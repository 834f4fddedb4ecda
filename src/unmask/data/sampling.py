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
from unmask.batch import Rows, ranges, starts
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
    joined: np.ndarray | None = None
    """(D + 1,) offsets of the documents, where pieces cross them: `begin` then counts a separator after each."""

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

    @staticmethod
    def whole(documents: np.ndarray, room: int, sentence: np.ndarray, most: int = 0) -> Pieces:
        """Runs of whole sentences, which begin at the tokens `sentence` (n,) of ascending places, inside documents.

        A run takes as many sentences as fit in `room`, at most `most` if that is not 0. A sentence that is longer
        than `room`, or its part of it if there is a `most`, is cut into full pieces and a rest: each a run by itself.

        >>> p = Pieces.whole(np.array([0, 7, 9]), 4, np.array([0, 2, 3, 5, 7]))
        >>> p.begin.tolist(), p.length.tolist(), p.document.tolist(), p.ends.tolist()
        ([0, 3, 7], [3, 4, 2], [0, 0, 1], [False, True, True])
        """
        parts = Pieces.cut(np.union1d(documents, sentence), max(room // max(most, 1), 1))
        first = np.append(parts.begin, documents[-1])
        cut = np.flatnonzero(~parts.ends | (np.diff(parts.document, prepend=-1) == 0))
        heads = np.unique(np.concatenate([np.searchsorted(first, np.unique(documents)), cut, cut + 1]))
        begin = _greedy(first, first, heads, room, most)
        document = np.searchsorted(documents, begin[:-1], "right") - 1
        return Pieces(begin[:-1], np.diff(begin), document, np.isin(begin[1:], documents))

    @staticmethod
    def across(documents: np.ndarray, room: int, sentence: np.ndarray, sources: Sequence[int] = (0,)) -> Pieces:
        """Runs of whole sentences that go on into the next document of their source, with a separator between two.

        The separator counts in `room` and `length`; none stands at the end of a run. A piece belongs to the document
        that it begins in.

        >>> p = Pieces.across(np.array([0, 2, 4, 7]), 5, np.array([0, 2, 4]))
        >>> p.begin.tolist(), p.length.tolist(), p.document.tolist(), p.ends.tolist()
        ([0, 6], [5, 3], [0, 2], [True, True])
        """
        edges = np.asarray(documents, np.int64)
        kept = np.append(np.diff(edges) > 0, True)
        known, edges = np.flatnonzero(kept), edges[kept]
        at = edges + np.arange(len(edges))  # where each document begins, counting separators
        first = _sentences(edges, room, sentence)
        first = first + np.searchsorted(edges, first, "right") - 1
        heads = np.unique(np.append(np.searchsorted(known[:-1], sources), len(edges) - 1))
        begin = _greedy(first, first - np.isin(first, at), np.searchsorted(first, at[heads]), room)
        closes = np.isin(begin[1:], at)
        which = np.searchsorted(at, begin[:-1], "right") - 1
        return Pieces(begin[:-1], np.diff(begin) - closes, known[which], closes, edges)

    def __len__(self) -> int:
        return len(self.begin)

    def same(self, other: Pieces) -> bool:
        """Whether they are the same texts under the same numbers."""
        return np.array_equal(self.begin, other.begin) and np.array_equal(self.length, other.length)

    def of_sources(self, first: Sequence[int]) -> np.ndarray:
        """(K,) how many pieces belong to each source, given the first document of each."""
        return np.diff(np.append(np.searchsorted(self.document, first), len(self)))


def _sentences(documents: np.ndarray, room: int, sentence: np.ndarray) -> np.ndarray:
    """Where sentences begin, those beyond `room` tokens cut; documents begin one; the end of the last at the end."""
    return np.append(Pieces.cut(np.union1d(documents, sentence), room).begin, documents[-1])


def _greedy(first: np.ndarray, end: np.ndarray, heads: np.ndarray, room: int, most: int = 0) -> np.ndarray:
    """Where runs begin that take as many sentences as they can, and where the last ends.

    first: where sentences begin; end: where the one before ends. Runs begin anew at the sentences `heads` (H + 1,),
    and all stretches between two of these are walked side by side.
    """
    at, limit = heads[:-1], heads[1:]
    met = [at]
    while at.size:
        after = np.minimum(np.searchsorted(end, first[at] + room, "right") - 1, limit)
        after = np.minimum(after, at + most) if most else after
        at, limit = after[after < limit], limit[after < limit]
        met.append(at)
    return np.asarray(first[np.append(np.sort(np.concatenate(met)), heads[-1])])


# ---------------------------------------------------------------- partners


class TooFew(UserError):
    """A text that gives no sample, though it may have pieces: how many."""

    def __init__(self, message: str, pieces: int) -> None:
        super().__init__(message)
        self.pieces = pieces


class Partners:
    """For every piece a piece of another document, by key, any of these as likely as any other.

    So pieces are each other's partners equally often, and nothing about a piece tells that it is a partner.
    """

    def __init__(self, pieces: Pieces) -> None:
        opens = np.diff(pieces.document, prepend=-1) > 0
        if opens.sum() < 2:
            raise TooFew(
                "pairs of texts need a second document, but the corpus holds one: part it, or add text", len(pieces)
            )
        self.document = np.cumsum(opens) - 1
        self.first = np.append(np.flatnonzero(opens), len(pieces))

    def __call__(self, which: np.ndarray, key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(S,) the partner of each piece `which` (S,) under its key (S,), and a key of its own."""
        begin, end = self.first[self.document[which]], self.first[self.document[which] + 1]
        key = keyed.absorb(key, keyed.purpose("partner"))
        nth = keyed.below(keyed.bits(key, np.zeros(len(which), np.int64)), len(self.document) - (end - begin))
        return np.where(nth < begin, nth, nth + end - begin), key


# ---------------------------------------------------------------- orders


def noise_epoch(epoch: np.ndarray, recurs: int) -> np.ndarray:
    """The epoch as noise sees it: static masks (Liu et al. 2019, section 4.1) recur after `recurs` epochs."""
    return np.asarray(epoch % recurs) if recurs else epoch


class Sampler(Protocol):
    """The piece at each global sample number (S,), and with it the uint64 key of its noise.

    Numbers run on over epochs. A key is a function of seed, epoch (of the sample's source) and piece.
    """

    def piece(self, index: np.ndarray) -> np.ndarray: ...

    def find(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...


@dataclass(frozen=True)
class Order:
    """The training order over `size` pieces under a seed."""

    size: int
    seed: int
    shuffle: bool = True
    recurs: int = 0
    """Epochs after which the noise is the same again; 0 = never."""
    epoch: int = 0
    """The first one."""
    before: int = 0
    """The number of its first sample."""

    def piece(self, index: np.ndarray) -> np.ndarray:
        return self._placed(index)[1]

    def find(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        epoch, piece = self._placed(index)
        return piece, keyed.row_keys(self.seed, noise_epoch(epoch, self.recurs), piece, "noise")

    def _placed(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(S,) the epoch, and the piece."""
        epoch, place = np.divmod(np.asarray(index, np.int64) - self.before, self.size)
        epoch = epoch + self.epoch
        if not self.shuffle:
            return epoch, place
        return epoch, keyed.permuted(place, self.size, keyed.row_keys(self.seed, epoch, 0, "order"))


@dataclass(frozen=True)
class Mixture:
    """The training order over sources that stand one after the other, `counts` of each in a block of samples."""

    sizes: tuple[int, ...]
    """Pieces of each source."""
    counts: tuple[int, ...]
    seed: int
    recurs: int = 0
    """Epochs after which the noise is the same again; 0 = never."""

    def piece(self, index: np.ndarray) -> np.ndarray:
        return self._placed(index)[1]

    def find(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        epoch, piece = self._placed(index)
        return piece, keyed.row_keys(self.seed, noise_epoch(epoch, self.recurs), piece, "noise")

    def _placed(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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
    recurs: int = 0
    """Epochs after which the noise is the same again; 0 = never."""

    @cached_property
    def _order(self) -> np.ndarray:
        """(P,) source k's i-th piece stands by (i + ½) / sizes[k]."""
        place = np.concatenate([(np.arange(size) + 0.5) / size for size in self.sizes])
        return np.argsort(place, kind="stable")

    def piece(self, index: np.ndarray) -> np.ndarray:
        return self._order[np.asarray(index, np.int64) % sum(self.sizes)]

    def find(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        epoch, piece = np.asarray(index, np.int64) // sum(self.sizes), self.piece(index)
        return piece, keyed.row_keys(self.seed, noise_epoch(epoch, self.recurs), piece, "noise")


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
    """(N,) where the tokens of the pieces `which` (S,) stand, end to end; for a separator, the token after it."""
    at = ranges(pieces.begin[which], pieces.length[which])
    return at if pieces.joined is None else at - _nth_document(pieces.joined, at)


def separators(pieces: Pieces, which: np.ndarray) -> np.ndarray:
    """(N,) bool: where in the pieces `which` (S,) a separator stands instead of a token."""
    if pieces.joined is None:
        return np.zeros(int(pieces.length[which].sum()), bool)
    at = ranges(pieces.begin[which], pieces.length[which])
    document = _nth_document(pieces.joined, at)
    return np.asarray(at - document == pieces.joined[document + 1])


def _nth_document(documents: np.ndarray, at: np.ndarray) -> np.ndarray:
    """(N,) the document of each place, counting a separator after each document."""
    return np.searchsorted(documents + np.arange(len(documents)), at, "right") - 1


def read_rows(
    tokens: np.ndarray,
    pieces: Pieces,
    which: np.ndarray,
    key: np.ndarray,
    index: np.ndarray,
    progress: float,
    separator: int | None = None,
) -> Rows:
    """The texts of the pieces `which` (S,), end to end; `separator` stands between joined documents, fixed."""
    start = starts(pieces.length[which])
    read = np.asarray(tokens[places_of(pieces, which)]).astype(np.int32)
    fixed = separators(pieces, which)
    if pieces.joined is not None:
        assert separator is not None
        read[fixed] = separator
    return Rows(tokens=read, start=start, key=key, index=index, fixed=fixed, ends=pieces.ends[which], progress=progress)
