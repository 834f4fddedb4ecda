"""Draws that samples share evenly: by their global numbers, not by their keys."""

from __future__ import annotations

import numpy as np

from unmask import keyed

LEVELS = 7
"""2^7 samples in a row, from a multiple of that on, are one equidistant grid: 64 coins a hash."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 / golden ratio."""


def even(index: np.ndarray, name: str) -> np.ndarray:
    """(R,) in [0, 1), for sample numbers (R,): of any 2^k in a row from a multiple of 2^k on, one in each 2^-k.

    The numbers' last bits come first, as in van der Corput's sequence, but each turned by the toss of a coin that two
    neighbours share: samples 2 i and 2 i + 1 fall into different halves, the four from 4 i on into different quarters,
    and so on, up to 2^`LEVELS`; their grid moves by a little from one such stretch to the next. Which of them falls
    where is chance, and no other draw's chance (`name`). So every n-th sample, as the micro-batches of an update or the
    ranks of a run take them, gets a fair draw whatever n. (Multiples of the golden ratio are even over any run, but
    hardly move from one sample to the 233rd after it.) In a mixture the numbers are the run's, not the part's: among
    themselves a part's samples get fair draws, not even ones.

    >>> (even(np.arange(16), "example") * 8).astype(int).reshape(2, 8).tolist()
    [[6, 1, 5, 3, 7, 2, 4, 0], [3, 7, 4, 1, 0, 6, 5, 2]]
    """
    number = np.asarray(index, np.int64)
    key = np.asarray(keyed.absorb(keyed.purpose("even"), keyed.purpose(name)))
    level = np.arange(LEVELS).reshape(-1, *[1] * number.ndim)
    coins = keyed.bits(keyed.absorb(key, level), number >> (level + 1))  # of each block, one for each place in [0, 1)
    bit = (number >> level & 1).astype(np.uint64)
    found = np.zeros(number.shape, np.uint64)
    for k in range(LEVELS):
        found = found << np.uint64(1) | bit[k] ^ coins[k] >> found & np.uint64(1)
    turned = (number >> LEVELS).view(np.uint64) * _GOLDEN  # between two of 2^7 places, evenly from stretch to stretch
    return np.asarray((found + (turned >> np.uint64(11)) * 2.0**-53) * 2.0**-LEVELS)
