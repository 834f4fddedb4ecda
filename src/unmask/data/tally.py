"""How often equal texts occur in a stream, in bounded memory: exact while the distinct ones fit, else a sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from unmask.text.document import number_of

LIMIT = 1 << 22
"""Distinct texts that are counted exactly; at 12 bytes each, twice that while they are merged."""
SHOWN = 200
"""Characters kept of a repeated text."""


def numbers_of(texts: Sequence[str]) -> np.ndarray:
    """(n,) uint64: a fixed, even function of each text."""
    return np.fromiter(map(number_of, texts), np.uint64, len(texts))


@dataclass
class Tally:
    """Counts of texts by their numbers.

    Once more than `limit` are distinct, the bound falls by halves: only texts whose number is below it, an even
    sample, are still entered, and those above it stay only if they are among the most repeated so far. Shares are
    then estimated from the sample; the counts of texts that stay are exact, but a text that becomes frequent late
    may be missed.
    """

    limit: int = LIMIT
    top: int = 10
    bound: int = 1 << 64
    total: int = 0
    """Texts so far."""
    sampled: int = 0
    """Those of them below the bound."""
    numbers: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))  # (n,) ascending
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint32))  # (n,)
    leaders: dict[int, tuple[int, str]] = field(default_factory=dict)
    """Number → (count, text) of the `top` most repeated texts."""

    def add(self, texts: Sequence[str]) -> None:
        """Count a batch of texts."""
        if not texts:
            return
        self.total += len(texts)
        numbers, first, times = np.unique(numbers_of(texts), return_index=True, return_counts=True)
        below = self._below(numbers)
        self.sampled += int(times[below].sum())
        place = np.searchsorted(self.numbers, numbers)
        known = np.zeros(len(numbers), bool)
        inside = place < len(self.numbers)
        known[inside] = self.numbers[place[inside]] == numbers[inside]
        self.counts[place[known]] += times[known].astype(np.uint32)
        new = ~known & below
        now = times.copy()
        now[known] = self.counts[place[known]]
        self.numbers = np.insert(self.numbers, place[new], numbers[new])
        self.counts = np.insert(self.counts, place[new], times[new].astype(np.uint32))
        self._lead(numbers, np.where(known | new, now, 0), first, texts)
        while len(self.numbers) > self.limit:
            self._halve()

    def _below(self, numbers: np.ndarray) -> np.ndarray:
        return numbers <= np.uint64(self.bound - 1)

    def _lead(self, numbers: np.ndarray, now: np.ndarray, first: np.ndarray, texts: Sequence[str]) -> None:
        """Keep the texts of the most repeated: a text rises only by its own occurrence, when it is at hand."""
        floor = min((count for count, _ in self.leaders.values()), default=0) if len(self.leaders) == self.top else 0
        rising = np.flatnonzero(now > max(1, floor - 1))
        for k in rising[np.lexsort((numbers[rising], -now[rising]))][: self.top]:
            self.leaders[int(numbers[k])] = int(now[k]), texts[first[k]][:SHOWN]
        self.leaders = dict(sorted(self.leaders.items(), key=lambda item: (-item[1][0], item[0]))[: self.top])

    def _halve(self) -> None:
        """Sample half as many; a tenth of the table at most stays for being repeated."""
        before = self._below(self.numbers)
        self.bound //= 2
        below = self._below(self.numbers)
        self.sampled -= int(self.counts[before & ~below].sum())
        repeated = np.flatnonzero(~below & (self.counts > 1))
        most = repeated[np.argsort(-self.counts[repeated].astype(np.int64), kind="stable")][: self.limit // 10]
        keep = below.copy()
        keep[most] = True
        self.numbers, self.counts = self.numbers[keep], self.counts[keep]

    @property
    def estimated(self) -> bool:
        return self.bound < 1 << 64

    @property
    def share(self) -> float:
        """The share of texts that are equal to an earlier one."""
        distinct = int(self._below(self.numbers).sum())
        return 1 - distinct / self.sampled if self.sampled else 0.0

    def most_repeated(self) -> list[tuple[int, str]]:
        """(count, beginning of the text), the most repeated first."""
        return list(self.leaders.values())
