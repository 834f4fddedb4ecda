"""Which of two entries is better, and when that cannot be told: how far differences go by chance.

Noise is what seeds do. Of the (entries × seeds) ends of a measure the means of entries and of seeds are taken away,
as all entries share the seeds; what is left has one spread for all entries of a group, with (k − 1)(n − 1) degrees of
freedom for k entries and n seeds. So even two seeds tell, where entries are many. A difference of two means is decided
where it is larger than the t interval of this spread (level .05, divided by the number of differences that a statement
asks for: Bonferroni). Items are the same for all: a verdict is about these items, and other ones might say otherwise.

    better      holds: some measure says so, and none the opposite; refuted: the other way round; else undecided
    no_better   refuted: it is better; holds: the other one is, or some measure leaves no room for `NEAR`
    unseen      refuted: some difference is decided; holds: none is, though in some measure one of `NEAR` would be

A measure counts where at least one of the two is beyond its trivial levels (chance, token frequencies): two models that
know nothing yet are alike, too. And noise alone makes no statement hold: where it could hide a difference of `NEAR`,
"cannot be told apart" is undecided.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

import numpy as np

from unmask.compare.results import Entry, Measure, Results
from unmask.compare.statistics import ALPHA, critical
from unmask.labs.base import Verdict

HELD_OUT = "loss_"
"""How measures begin that are no common scale of two objectives."""
NEAR = 0.05
"""The share of a value that two entries may differ by and still count as alike."""


@dataclass(frozen=True)
class Difference:
    """`mean` > 0: the first is better; `half`: of the interval, infinite where they tell no noise."""

    measure: Measure
    values: tuple[float, float]
    mean: float
    half: float

    @property
    def decided(self) -> int:
        """1 = the first is better, −1 = the second is, 0 = it cannot be told."""
        return 0 if abs(self.mean) <= self.half else int(math.copysign(1, self.mean))

    def within(self, share: float) -> bool:
        """Whether the first is better by no more than a share of the second's value, noise and all."""
        return self.mean + self.half <= share * abs(self.values[1])

    @property
    def apart(self) -> float:
        """The largest difference that noise leaves possible, as a share of the smaller value."""
        return (abs(self.mean) + self.half) / (min(map(abs, self.values)) or math.nan)

    @property
    def said(self) -> str:
        """
        >>> m = Measure(name="a", label="Pairs", protocol="", better="higher")
        >>> Difference(m, (60.0, 58.5), 1.5, 2.0).said
        'Pairs 60.00 and 58.50 (±2.00)'
        """
        a, b = (f"{v:.2f}" if abs(v) >= 10 else f"{v:.3f}" for v in self.values)
        half = "?" if math.isinf(self.half) else f"{self.half:.2f}" if abs(self.values[0]) >= 10 else f"{self.half:.3f}"
        return f"{self.measure.label} {a} and {b} (±{half})"


@dataclass(frozen=True)
class Group:
    """Entries that share one spread, and the measures of them that may be compared."""

    results: Results
    names: tuple[str, ...]

    @staticmethod
    def of(results: Results, names: Iterable[str]) -> Group:
        """Those of these entries that were run."""
        ran = {entry.name for entry in results.entries}
        return Group(results, tuple(name for name in names if name in ran))

    def difference(
        self, a: str, b: str, measure: Measure, level: float = ALPHA, at: int = -1, since: int | None = None
    ) -> Difference | None:
        """Of a and b at a milestone, or of how much it grew since another one; None where one has no value."""
        ends = {name: self._values(self.entry(name), measure.name, at, since) for name in self.names}
        known = {name: np.array(v) for name, v in ends.items() if v is not None}
        if a not in known or b not in known:
            return None
        sign = 1.0 if measure.better == "higher" else -1.0
        deviation, freedom = residual(np.array(list(known.values())))
        n = len(known[a])
        known_noise = freedom and deviation > 0  # values that are all alike tell none
        half = critical(freedom, level) * deviation * math.sqrt(2 / n) if known_noise else math.inf
        means = float(known[a].mean()), float(known[b].mean())
        return Difference(measure, means, sign * (means[0] - means[1]), half)

    def entry(self, name: str) -> Entry:
        return next(e for e in self.results.entries if e.name == name)

    def untold(self, *names: str) -> str:
        """Why nothing can be said of these entries, or ""."""
        if absent := [n for n in names if n not in {e.name for e in self.results.entries}]:
            return f"{', '.join(absent)} was not run"
        return "" if len(self.results.seeds) > 1 and len(self.names) > 1 else "one seed alone tells no noise"

    def measures(self, *names: str, at: int = -1) -> list[Measure]:
        """Those that all of these entries answer, and some of them beyond what is trivial."""
        out = []
        for m in self.results.measures:
            ends = [self._values(self.entry(n), m.name, at, None) for n in names]
            known = [fmean(v) for v in ends if v is not None]
            beyond = any(not m.unbeaten(v) for v in known)
            if not m.name.startswith(HELD_OUT) and len(known) == len(names) and beyond:
                out.append(m)
        return out

    def better(
        self, a: str, b: str, only: Sequence[str] = (), at: int = -1, since: int | None = None, of: int = 1
    ) -> Verdict:
        """Whether a is better than b by the measures that both answer (`only`: by these).

        of: how many such questions a statement asks.
        """
        found, why = self._differences(a, b, only, at, since, of)
        signs = {d.decided for d in found} - {0}
        return (signs == {1} if len(signs) == 1 else None), why or "; ".join(d.said for d in found)

    def no_better(self, a: str, b: str, only: Sequence[str] = ()) -> Verdict:
        """Whether a is not better than b."""
        found, why = self._differences(a, b, only)
        signs = {d.decided for d in found} - {0}
        if signs == {1}:
            holds: bool | None = False
        else:
            near = 1 not in signs and any(d.within(NEAR) for d in found)
            holds = True if signs == {-1} or near else None
        return holds, why or "; ".join(d.said for d in found)

    def unseen(self, *names: str, only: Sequence[str] = ()) -> Verdict:
        """Whether no two of these entries can be told apart."""
        if why := self.untold(*names):
            return None, why
        asked = [
            (a, b, m) for a, b in combinations(names, 2) for m in self.measures(a, b) if not only or m.name in only
        ]
        found = [(a, b, self.difference(a, b, m, ALPHA / len(asked))) for a, b, m in asked]
        known = [(a, b, d) for a, b, d in found if d is not None]
        if not known:
            return None, f"{', '.join(names)} share no measure in which one of them is beyond its trivial levels"
        a, b, far = max(known, key=lambda one: abs(one[2].mean) / one[2].half if one[2].half else math.inf)
        widest: dict[str, float] = {}
        for *_, d in known:
            widest[d.measure.label] = max(widest.get(d.measure.label, 0.0), d.apart)
        finest = min(widest, key=lambda label: widest[label])
        told = f"most of all {a} and {b}: {far.said}; at most {widest[finest]:.1%} apart in {finest}"
        if any(d.decided for *_, d in known):
            return False, told
        return (True if widest[finest] <= NEAR else None), told

    def _differences(
        self, a: str, b: str, only: Sequence[str], at: int = -1, since: int | None = None, of: int = 1
    ) -> tuple[list[Difference], str]:
        """In each measure that both answer; or none, and why."""
        if why := self.untold(a, b):
            return [], why
        measures = [m for m in self.measures(a, b, at=at) if not only or m.name in only]
        if not measures:
            return [], f"{a} and {b} share no measure in which one of them is beyond its trivial levels"
        found = [self.difference(a, b, m, ALPHA / len(measures) / of, at, since) for m in measures]
        return [d for d in found if d is not None], ""

    @staticmethod
    def _values(entry: Entry, measure: str, at: int, since: int | None) -> list[float] | None:
        """Seed by seed; None unless every run has a value."""
        out = []
        for run in entry.runs:
            here = run.points[at].values.get(measure)
            before = 0.0 if since is None else run.points[since].values.get(measure)
            if here is None or before is None:
                return None
            out.append(here - before)
        return out


def mean_and_range(entry: Entry, measure: str) -> str | None:
    """ "53.2 (52.9–53.5)" over seeds at the end; None unless every run has a value."""
    values = [run.points[-1].values.get(measure) for run in entry.runs]
    known = [v for v in values if v is not None]
    if not known or len(known) < len(values):
        return None
    digits = 1 if fmean(known) >= 10 else 3
    return f"{fmean(known):.{digits}f} ({min(known):.{digits}f}–{max(known):.{digits}f})"


def residual(values: np.ndarray) -> tuple[float, int]:
    """The spread of (entries, seeds) beside the means of both, and its degrees of freedom.

    >>> deviation, freedom = residual(np.array([[1.0, 2.0], [3.0, 5.0]]))
    >>> round(deviation, 6), freedom
    (0.5, 1)
    """
    k, n = values.shape
    freedom = (k - 1) * (n - 1)
    left = values - values.mean(1, keepdims=True) - values.mean(0, keepdims=True) + values.mean()
    return (float(np.sqrt((left**2).sum() / freedom)) if freedom else math.nan), freedom
