"""Where a text, or two of them, are cut in two so that nothing but what they say tells which parts belong together.

Legend: N tokens of R texts end to end, M tokens of their R partners.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unmask import keyed
from unmask.batch import places, starts
from unmask.objectives.base import Outline
from unmask.objectives.even import even

_SPAN = np.int64(2**32)
"""More than any text has tokens: row · span + place orders the places of all texts."""


def balanced(index: np.ndarray) -> np.ndarray:
    """(R,) bool: True for exactly one of the sample numbers 2i and 2i + 1, at random which.

    >>> balanced(np.arange(8)).astype(int).tolist()
    [0, 1, 0, 1, 1, 0, 1, 0]
    """
    return even(index, "label") < 0.5


def drawn(eligible: np.ndarray, start: np.ndarray, key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(R,) the place of one eligible token of each text, all equally likely, and whether there is one (else 0).

    >>> start, key = np.array([0, 3, 5]), np.zeros(2, np.uint64)
    >>> [x.tolist() for x in drawn(np.array([0, 0, 1, 0, 0], bool), start, key)]
    [[2, 0], [True, False]]
    """
    at = np.flatnonzero(eligible)
    first = np.searchsorted(at, start)
    count = np.diff(first)
    nth = first[:-1] + keyed.below(keyed.bits(key, np.zeros(len(key), np.int64)), np.maximum(count, 1))
    found = np.append(at, 0)[np.minimum(nth, len(at))] - start[:-1]
    return np.where(count > 0, found, 0), count > 0


def cut_places(of: Outline, n: np.ndarray, sentences: bool) -> tuple[np.ndarray, np.ndarray]:
    """(R,) tokens before a cut inside the first `n` (R,) tokens of each text, and whether no sentence starts there.

    At a sentence start where there is one, else at any token; 1 … n − 1.
    """
    key = keyed.absorb(of.key, keyed.purpose("cut"))
    token = 1 + keyed.below(keyed.bits(key, np.ones(len(n), np.int64)), np.maximum(n - 1, 1))
    if not sentences or of.sentence is None:
        return token, np.full(len(n), sentences)
    start = starts(of.lengths)
    place = places(start)
    at, some = drawn(of.sentence & (place > 0) & (place < np.repeat(n, of.lengths)), start, key)
    return np.where(some, at, token), ~some


# ---------------------------------------------------------------- two texts cut alike


class Cuts(NamedTuple):
    """Of two texts side by side: [0, at) and [at, end) of the first, [other, other_end) of the second."""

    found: np.ndarray  # (R,) bool
    at: np.ndarray  # (R,)
    end: np.ndarray  # (R,)
    other: np.ndarray  # (R,)
    other_end: np.ndarray  # (R,)

    @staticmethod
    def at_tokens(n: np.ndarray, m: np.ndarray, key: np.ndarray) -> Cuts:
        """Both texts, of n and m tokens, give as many tokens from their ends, 1 … min(n, m) − 1, all equally likely.

        >>> c = Cuts.at_tokens(np.array([9, 4, 1]), np.array([5, 7, 3]), np.arange(3).astype(np.uint64))
        >>> c.found.tolist(), (c.end - c.at).tolist(), (c.other_end - c.other).tolist()
        ([True, True, False], [3, 3, 0], [3, 3, 0])
        """
        most = np.minimum(n, m) - 1
        b = 1 + keyed.below(keyed.bits(keyed.absorb(key, keyed.purpose("cut")), 0 * n), np.maximum(most, 1))
        b = np.where(most > 0, b, 0)
        return Cuts(most > 0, n - b, n, m - b, m)


class Sentences:
    """The places of R texts, not their first, at which sentences start."""

    def __init__(self, of: Outline) -> None:
        start = starts(of.lengths)
        place = places(start)
        flags = np.zeros(len(place), bool) if of.sentence is None else of.sentence
        at = np.flatnonzero(flags & (place > 0))
        self.row = np.searchsorted(start, at, "right") - 1
        self.place = at - start[self.row]
        self.ordered = self.row * _SPAN + self.place  # ascending

    def last(self, row: np.ndarray, until: np.ndarray) -> np.ndarray:
        """The last of the text `row` at most `until`, 0 if there is none; both of any one shape."""
        nth = np.searchsorted(self.ordered, row * _SPAN + until, "right") - 1
        return self._of(row, nth)

    def next(self, row: np.ndarray, begin: np.ndarray) -> np.ndarray:
        """The first of the text `row` from `begin` on, 0 if there is none."""
        return self._of(row, np.searchsorted(self.ordered, row * _SPAN + begin))

    def _of(self, row: np.ndarray, nth: np.ndarray) -> np.ndarray:
        inside = (nth >= 0) & (nth < len(self.row))
        nth = np.where(inside, nth, 0)
        if not len(self.row):
            return 0 * row
        return np.where(inside & (self.row[nth] == row), self.place[nth], 0)

    def shortened(self, n: np.ndarray, most: np.ndarray) -> np.ndarray:
        """(R,) the tokens of as many whole sentences as fit in `most` (R,), but of two at least, of n there are."""
        row = np.arange(len(n))
        first = self.next(row, 0 * row + 1)
        second = np.where(first > 0, self.next(row, first + 1), 0)
        two = np.where(second > 0, second, n)
        return np.where(n <= most, n, np.maximum(self.last(row, most), two))


def alike(mine: Sentences, theirs: Sentences, n: np.ndarray, m: np.ndarray, key: np.ndarray) -> Cuts:
    """Two texts cut at sentence starts, so that the second part of one can stand for the other's: by a rule that is
    the same if the two change places, so no length tells whose it is.

    Let n and m be their tokens, a and c those before the cuts. Of the cuts that let either second part stand behind
    either first one in no more tokens than the longer text has, those are taken that bring c nearest to a, or m − c
    to n − a, so that the two together are about as long as one of the texts; of equals, chance takes one. Where there
    are none, both texts do without their last sentences, and so on; one may run out of them, and there is no pair.
    Texts of some six sentences do not always have cuts of equal lengths, so the length of both tells a little there
    (.52 of the labels in contexts of 64 tokens, chance in contexts of 160: `tests/objectives/test_sentence.py`).

    >>> sentence = np.array([1, 0, 1, 0, 0, 1, 0, 0], bool)
    >>> def one(n): return Outline(*(np.array([x]) for x in (n, 0, 0, 1)), sentence=sentence[:n])
    >>> c = alike(Sentences(one(8)), Sentences(one(7)), np.array([8]), np.array([7]), np.zeros(1, np.uint64))
    >>> c.found.tolist(), c.at.tolist(), c.end.tolist(), c.other.tolist(), c.other_end.tolist()
    ([True], [2], [8], [2], [7])
    """
    out = Cuts(np.zeros(len(n), bool), n.copy(), n.copy(), m.copy(), m.copy())
    rows, most, key = np.arange(len(n)), np.maximum(n, m), keyed.absorb(key, keyed.purpose("cut"))
    while len(rows):
        row, at, other = _nearest(mine, theirs, rows, (out.end, out.other_end, most), key)
        out.found[row], out.at[row], out.other[row] = True, at, other
        rows = rows[~out.found[rows]]
        for side, end in ((mine, out.end), (theirs, out.other_end)):
            end[rows] = side.last(rows, end[rows] - 1)
        rows = rows[(out.end[rows] > 0) & (out.other_end[rows] > 0)]
    return out


def _nearest(
    mine: Sentences, theirs: Sentences, rows: np.ndarray, sizes: tuple[np.ndarray, ...], key: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Those of the texts `rows` of which there are cuts as `alike` wants them, and both cuts.

    sizes: (R,) the tokens of either text, and of both parts at most.
    """
    n, m, most = sizes
    asked = np.zeros(len(n), bool)
    asked[rows] = True
    own = asked[mine.row] & (mine.place < n[mine.row])
    row, at = mine.row[own], mine.place[own]
    wanted = (at, at + (m - n)[row])  # equal first parts, equal second parts
    low, high = np.maximum(at + (m - most)[row], 1), np.minimum(at + (most - n)[row], m[row] - 1)
    other = np.concatenate([side for w in wanted for side in (theirs.last(row, w), theirs.next(row, w))])
    row, at, low, high = (np.tile(x, 4) for x in (row, at, low, high))
    far = np.minimum(*(np.abs(other - np.tile(w, 4)) for w in wanted))
    fits = np.flatnonzero((low <= other) & (other <= high))
    row, at, other = row[fits], at[fits], other[fits]
    best = np.lexsort((keyed.bits(key[row], at * _SPAN + other), far[fits], row))
    best = best[np.diff(row[best], prepend=-1) > 0]
    return row[best], at[best], other[best]


# ---------------------------------------------------------------- one text cut in halves that may change places


def mirrored(mine: Sentences, n: np.ndarray, key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(R,) tokens before a sentence start at which each text is cut, and whether there is such a cut (else 0).

    Which half comes first must not be told by their lengths, and would be: the first sentence of a run that takes
    as many as fit is the one that did not fit before, so it is long. So a cut at a counts where there is also one at
    about n − a: up to n / 32 tokens beside it, or if there is none, the nearest up to n / 8 (rounded up). Of these,
    chance takes one.

    >>> of = Outline(*(np.array([x]) for x in (9, 0, 0, 1)), sentence=np.array([1, 0, 0, 0, 0, 0, 1, 0, 0], bool))
    >>> [x.tolist() for x in mirrored(Sentences(of), np.array([9]), np.zeros(1, np.uint64))]
    [[0], [False]]
    """
    row, at = mine.row, mine.place
    beside = np.stack([mine.last(row, n[row] - at), mine.next(row, n[row] - at)])
    far = np.where(beside > 0, np.abs(beside + at - n[row]), n[row]).min(0)
    least = n.copy()
    np.minimum.at(least, row, far)
    counts = (far <= np.maximum(n // 32, least)[row]) & (far <= -(-n[row] // 8))
    order = np.lexsort((keyed.bits(keyed.absorb(key, keyed.purpose("cut"))[row], at), row))
    order = order[counts[order]]
    order = order[np.diff(row[order], prepend=-1) > 0]
    found = np.zeros(len(n), np.int64)
    found[row[order]] = at[order]
    return found, found > 0
