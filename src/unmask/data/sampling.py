"""Which text stands at which place of the training order: arithmetic, nothing stored.

A document is cut into pieces of at most `room` tokens. An epoch is a keyed permutation of the pieces
(`keyed.permuted`), so sample number g of a run is found in O(1), and a run resumes from one integer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unmask import keyed
from unmask.batch import Rows, starts


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


def read_rows(
    tokens: np.ndarray, pieces: Pieces, which: np.ndarray, key: np.ndarray, index: np.ndarray, progress: float
) -> Rows:
    """The texts of the pieces `which` (S,), end to end."""
    length = pieces.length[which]
    start = starts(length)
    at = np.repeat(pieces.begin[which] - start[:-1], length) + np.arange(start[-1])
    return Rows(
        tokens=np.asarray(tokens[at]).astype(np.int32),
        start=start,
        key=key,
        index=index,
        fixed=np.zeros(start[-1], bool),
        ends=pieces.ends[which],
        progress=progress,
    )
