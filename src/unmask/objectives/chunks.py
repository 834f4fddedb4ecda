"""Groups of neighbouring tokens, chosen in random order for a budget of tokens; keyed, over ragged rows.

Legend: R texts of N tokens; U units (tokens, words, sentences); G groups of neighbouring units.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unmask import keyed
from unmask.batch import places, ranges, starts

_HIGH = np.uint64(0xFFFFFFFF00000000)
_LAST = np.uint64(0xFFFFFFFFFFFFFFFF)


def shuffled(row: np.ndarray, key: np.ndarray) -> np.ndarray:
    """(G,) indices that keep rows in order and put the items of each row (G,) in a random order of its key (R,).

    >>> shuffled(np.array([0, 0, 0, 1, 1]), np.array([5, 6], np.uint64)).tolist()
    [2, 0, 1, 4, 3]
    """
    count = np.bincount(row, minlength=len(key))
    start, widest = starts(count), int(count.max(initial=0))
    place = places(start)
    grid = np.full((len(key), widest), _LAST)  # 32 random bits and the place: one sort of plain numbers, not of indices
    grid.reshape(-1)[row * widest + place] = (keyed.bits(key[row], place) & _HIGH) | place.astype(np.uint64)
    grid.sort(axis=1)
    kept = grid[np.arange(widest) < count[:, None]]
    return (kept & ~_HIGH).astype(np.int64) + start[row]


def before(size: np.ndarray, row: np.ndarray, rows: int) -> np.ndarray:
    """(G,) Σ of the sizes (G,) of the items that stand before each in its row; rows ascend.

    >>> before(np.array([2, 3, 4, 1]), np.array([0, 0, 0, 1]), 2).tolist()
    [0, 2, 5, 0]
    """
    total = np.cumsum(size) - size
    first = starts(np.bincount(row, minlength=rows))[:-1]
    return total - total[np.minimum(first, max(len(total) - 1, 0))][row] if len(total) else total


def choose_groups(
    start: np.ndarray,
    key: np.ndarray,
    count: np.ndarray,
    shares: Sequence[float],
    unit: np.ndarray | None = None,
    eligible: np.ndarray | None = None,
) -> np.ndarray:
    """(N,) bool: `count` (R,) eligible tokens of each text, in groups of neighbouring units.

    The text is a ring that is cut, from a random unit on, into groups of 1, 2, … units with probabilities `shares`.
    The groups, in random order, are a second ring, of which `count` tokens in a row are taken, from a random token on:
    so each token is chosen equally often, at the ends of a text or in its middle, first in its unit or not. The first
    group taken may have lost its beginning, the last its end; two groups may touch. `unit` (N,): a unit starts here, as
    every text does; None = every token.
    """
    r, lengths = len(key), np.diff(start)
    row = np.repeat(np.arange(r), lengths)
    if not len(row):
        return np.zeros(0, bool)
    if unit is not None:
        unit = unit.copy()
        unit[start[:-1][lengths > 0]] = True
    ring = _turned(start, key, unit)
    first = _cut(start, row, key, np.cumsum(shares), None if unit is None else unit[ring])
    number = np.cumsum(first) - 1
    owner = row[first]
    size = np.diff(np.append(np.flatnonzero(first), len(first)))
    rank = places(starts(size))
    if eligible is not None:
        allowed = eligible[ring]
        passed = np.cumsum(allowed) - allowed
        rank = passed - passed[first][number]
        size = np.bincount(number, allowed, len(owner)).astype(np.int64)
    order = shuffled(owner, keyed.absorb(key, keyed.purpose("groups")))
    place = np.empty_like(size)
    place[order] = before(size[order], owner, r)  # rows keep their places: owner[order] == owner
    whole = np.maximum(np.bincount(owner, size, r).astype(np.int64), 1)
    draw = keyed.bits(keyed.absorb(key, keyed.purpose("taken from")), np.zeros(r, np.int64))
    place -= keyed.below(draw, whole)[owner]
    chosen = np.empty(len(row), bool)
    chosen[ring] = (place[number] + rank) % whole[row] < count[row]
    return chosen if eligible is None else chosen & eligible


def _turned(start: np.ndarray, key: np.ndarray, unit: np.ndarray | None) -> np.ndarray:
    """(N,) the tokens of each text from a random unit on, around to the one before it."""
    lengths = np.diff(start)
    draw = keyed.bits(keyed.absorb(key, keyed.purpose("turn")), np.zeros(len(key), np.int64))
    if unit is None:
        turn = start[:-1] + keyed.below(draw, lengths)
    else:
        at = np.append(np.flatnonzero(unit), start[-1])
        opening = np.searchsorted(at, start)
        turn = at[opening[:-1] + keyed.below(draw, np.diff(opening))]
    ring = ranges(turn, lengths)
    ring -= np.repeat(lengths, lengths) * (ring >= np.repeat(start[1:], lengths))
    return ring


def _cut(
    start: np.ndarray, row: np.ndarray, key: np.ndarray, shares: np.ndarray, unit: np.ndarray | None
) -> np.ndarray:
    """(N,) bool: a group starts here."""
    units, at = start, None
    if unit is not None:
        at = np.flatnonzero(unit)
        units, row = starts(np.bincount(row[at], minlength=len(key))), row[at]
    draw = keyed.uniform(keyed.absorb(key, keyed.purpose("group lengths"))[row], places(units))
    length = np.searchsorted(shares[:-1], draw, "right") + 1
    begin = before(length, row, len(key))
    inside = begin < np.diff(units)[row]
    found = units[row[inside]] + begin[inside]
    first = np.zeros(int(start[-1]), bool)
    first[found if at is None else at[found]] = True
    return first
