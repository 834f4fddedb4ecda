"""Keyed permutations of ragged rows."""

from __future__ import annotations

import numpy as np

from unmask import keyed
from unmask.batch import places

_LAST = np.uint64(2**64 - 1)
_PLACE = np.uint64(2**24 - 1)
"""The bits that carry the place: texts of up to 16 million tokens. A fixed number, so no batch changes an order."""


def shuffled(start: np.ndarray, key: np.ndarray) -> np.ndarray:
    """(N,) where the token now at each place came from: each text in an order of its own, all equally likely.

    Sorts random bits that carry their place below them: one sort of a grid instead of an argsort.

    >>> shuffled(np.array([0, 3, 3, 5]), np.arange(3).astype(np.uint64)).tolist()
    [2, 1, 0, 3, 4]
    """
    lengths = np.diff(start)
    if not start[-1]:
        return np.zeros(0, np.int64)
    place, row = places(start), np.repeat(np.arange(len(lengths)), lengths)
    width = int(lengths.max())
    grid = np.full((len(lengths), width), _LAST)
    grid[row, place] = (keyed.bits(key[row], place) & ~_PLACE) | place.astype(np.uint64)
    grid.sort(axis=1)
    return (grid[row, place] & _PLACE).astype(np.int64) + np.repeat(start[:-1], lengths)
