"""What is hidden as a whole: tokens, words or annotated spans, alone or in runs of several.

Legend: N tokens of R texts; E units, of which no one holds a fixed token; G spans of n selected tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from unmask import keyed
from unmask.batch import Rows, places, ranges, starts
from unmask.errors import UserError
from unmask.objectives.spans import choose

Law = Literal["one", "uniform", "harmonic", "geometric"]


@dataclass(frozen=True)
class Units:
    """E stretches of tokens [begin, begin + length), in order; `start` says which belong to which text."""

    begin: np.ndarray  # (E,)
    length: np.ndarray  # (E,)
    start: np.ndarray  # (R + 1,)

    @property
    def counts(self) -> np.ndarray:
        return np.diff(self.start)


@dataclass(frozen=True)
class Selected:
    """The tokens to predict, and the span that each belongs to: what was drawn, and is hidden, together."""

    at: np.ndarray  # (n,) ascending positions
    span: np.ndarray  # (n,) number of its span, ascending
    first: np.ndarray  # (G,) the first position of each span

    @staticmethod
    def alone(at: np.ndarray) -> Selected:
        """Each token a span by itself."""
        return Selected(at, np.arange(len(at)), at)

    def only(self, keep: np.ndarray) -> Selected:
        """The tokens that `keep` (n,) says; it keeps or drops a span as a whole."""
        spans = keep[np.flatnonzero(np.diff(self.span, prepend=-1))]
        return Selected(self.at[keep], (np.cumsum(spans) - 1)[self.span[keep]], self.first[spans])


def tokens(rows: Rows) -> Units:
    """Each token that is not fixed."""
    begin = np.flatnonzero(~rows.fixed)
    return Units(begin, np.ones(len(begin), np.int64), _start(rows, begin))


def words(rows: Rows) -> Units:
    """Each word by `rows.word`; a fixed token is none, and parts the word that it stands in.

    >>> word = np.array([True, False, True, False, False, True])
    >>> u = words(Rows.of([[7, 8, 9, 10, 11, 12]], word=word))
    >>> u.begin.tolist(), u.length.tolist()
    ([0, 2, 5], [2, 3, 1])
    """
    return _parted(rows, _word(rows).copy())


def phrases(rows: Rows) -> Units:
    """Each annotated span, and the words between the spans."""
    first, spans = _word(rows).copy(), _spans(rows)
    first[ranges(spans[:, 0], spans[:, 1] - spans[:, 0])] = False
    first[spans[:, 0]] = True
    after = spans[:, 1]
    first[after[after < len(first)]] = True
    return _parted(rows, first)


def annotated(rows: Rows) -> Units:
    """Each annotated span that holds no fixed token."""
    spans = _spans(rows)
    fixed = np.append(0, np.cumsum(rows.fixed))
    spans = spans[fixed[spans[:, 1]] == fixed[spans[:, 0]]]
    return Units(spans[:, 0], spans[:, 1] - spans[:, 0], _start(rows, spans[:, 0]))


def _parted(rows: Rows, first: np.ndarray) -> Units:
    """The units that begin at `first` (N,), fixed tokens apart from them."""
    first |= rows.fixed
    first[1:] |= rows.fixed[:-1]
    first[rows.start[:-1][rows.lengths > 0]] = True
    begin = np.flatnonzero(first)
    length = np.diff(begin, append=len(first))
    free = ~rows.fixed[begin]
    return Units(begin[free], length[free], _start(rows, begin[free]))


def _start(rows: Rows, begin: np.ndarray) -> np.ndarray:
    return np.searchsorted(begin, rows.start)


def _word(rows: Rows) -> np.ndarray:
    if rows.word is None:
        raise UserError("words are to be hidden whole, but nothing says where words start (Rows.word)")
    return rows.word


def _spans(rows: Rows) -> np.ndarray:
    if rows.spans is None:
        raise UserError("annotated spans are to be hidden, but the text has none (Rows.spans)")
    return np.asarray(rows.spans, np.int64).reshape(-1, 2)


# ---------------------------------------------------------------- choosing


def single(units: Units, key: np.ndarray, count: np.ndarray) -> Selected:
    """`count` (R,) units of each text, every subset equally likely; each is a span by itself."""
    picked = np.flatnonzero(choose(units.start, key, count))
    return gathered(units, picked, picked)


def law(name: Law, most: int, p: float) -> np.ndarray:
    """(most,) the probability of each length 1 … most.

    >>> law("harmonic", 3, 0.2).round(3).tolist(), round(float(law("geometric", 10, 0.2) @ np.arange(1, 11)), 2)
    ([0.545, 0.273, 0.182], 3.8)
    """
    n = np.arange(1, most + 1)
    weight = {"one": (n == 1) * 1.0, "uniform": n**0.0, "harmonic": 1 / n, "geometric": (1 - p) ** (n - 1.0)}[name]
    return np.asarray(weight / weight.sum())


def runs(units: Units, key: np.ndarray, budget: np.ndarray, probability: np.ndarray) -> Selected:
    """Exactly `budget` (R,) units of each text in spans of neighbours, whose lengths follow `probability` (most,).

    Lengths are drawn until they reach the budget, and the last is cut to it. The text is taken as a ring with the
    spans in a random order and at least one unit between two of them, as long as there are enough, and the ring is
    turned by a random angle. So each unit is hidden equally often, at the ends like in the middle, and no two spans
    make a longer one; a span over the ring's seam becomes two.
    """
    count = units.counts
    length, spans = _lengths(key, budget, probability)
    row, free = np.repeat(np.arange(len(spans)), spans), count - budget
    gap = (free >= spans).astype(np.int64)  # of one unit behind each span, part of its slot
    slot = starts(free + spans - gap * spans)
    at = np.flatnonzero(choose(slot, keyed.absorb(key, keyed.purpose("span places")), spans))
    longer = starts(length + gap[row] - 1)
    begin = at - slot[row] + longer[:-1] - longer[starts(spans)[:-1]][row]
    turn = keyed.below(keyed.bits(keyed.absorb(key, keyed.purpose("turn")), np.zeros(len(key), np.int64)), count)
    begin = (begin - turn[row]) % count[row]
    over = np.maximum(begin + length - count[row], 0)
    torn = np.flatnonzero(over)  # in two by the seam: their rest stands at the beginning
    begin = np.append(begin + units.start[row], units.start[row[torn]])
    length = np.append(length - over, over[torn])
    order = np.argsort(begin)
    return gathered(units, ranges(begin[order], length[order]), np.repeat(order, length[order]))


def _lengths(key: np.ndarray, budget: np.ndarray, probability: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Span lengths of all texts that add up to `budget` (R,), and how many each text has (R,)."""
    draw = starts(budget)  # as many draws as units are always enough
    row = np.repeat(np.arange(len(budget)), budget)
    u = keyed.uniform(keyed.absorb(key, keyed.purpose("span lengths"))[row], places(draw))
    length = np.searchsorted(np.cumsum(probability)[:-1], u, "right") + 1
    total = starts(length)
    left = budget[row] - (total[:-1] - total[draw[:-1]][row])
    needed = left > 0
    return np.minimum(length, left)[needed], np.bincount(row[needed], minlength=len(budget))


def gathered(units: Units, picked: np.ndarray, label: np.ndarray) -> Selected:
    """The tokens of the units `picked` (m,), ascending; neighbours of the same `label` (m,) are one span."""
    begin, length = units.begin[picked], units.length[picked]
    new = np.ones(len(picked), bool)
    new[1:] = (label[1:] != label[:-1]) | (begin[1:] != begin[:-1] + length[:-1])
    return Selected(ranges(begin, length), np.repeat(np.cumsum(new) - 1, length), begin[new])
