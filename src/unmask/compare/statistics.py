"""How sure a study can be: intervals over seeds, tests paired by seed, and which differences are real.

Seeds are few, so each method is one that stays honest there:

Value       a bootstrap over seeds (Efron 1979), all n^n resamples where they are few. The plain percentiles are too
            narrow for few seeds, so they are taken further out (Hesterberg 2015, "What Teachers Should Know About the
            Bootstrap", expanded percentiles). Of normal values the interval holds the true mean in 92 % of studies
            with 5 seeds (plain: 83 %), 87 % with 4, 74 % with 3: no resample lies outside the seeds themselves.
            Where a measure's details hold its items, the same in every run, items are resampled too.
Difference  of two entries, paired by seed: a t interval and a t test. Beside it `flip`, the exact sign-flip test, which
            needs no normal values but cannot say less than 2 / 2^n: 2/32 = .0625 for 5 seeds, so five seeds
            alone can never reach .05 with it, and it decides nothing here.
Real        Holm's (1979) correction over all comparisons of the study leaves p at most .05, and there are 3 seeds or
            more: two values on a coarse measure are alike too often by chance.

Differences that are all alike and not 0 leave t without a spread; then p is 0, the limit of small spreads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from unmask import keyed
from unmask.compare.results import Comparison, Entry, Results

ALPHA = 0.05
LEAST_SEEDS = 3
"""With fewer no difference is called real."""
EXACT = 6
"""Up to so many values all n^n resamples are made (46,656), else RESAMPLES are drawn."""
RESAMPLES = 10_000
CROSSED = 4_000
"""Resamples where items are drawn as well."""
FLIPS = 16
"""Up to so many seeds all 2^n signs are tried, else 2^16 drawn ones."""


@dataclass(frozen=True)
class Final:
    """An entry's value of a measure at the end of training."""

    values: dict[int, float]
    """Seed → value."""
    mean: float
    interval: tuple[float, float] | None
    """95 %, over what varies; None for one seed without items."""
    over: str
    """What was resampled: "5 seeds", "200 items", "5 seeds and 200 items", or "" for nothing."""


@dataclass(frozen=True)
class Paired:
    """What differences by seed say of their mean; all but the mean are None for one seed."""

    mean: float
    interval: tuple[float, float] | None
    p: float | None
    flip: float | None


def final(entry: Entry, measure: str) -> Final | None:
    """An entry's value at the last milestone with its interval; None where it has no value."""
    values = ends(entry, measure)
    if not values:
        return None
    items = _items(entry, measure, values)
    across = np.array(list(values.values()))
    parts = [f"{n} {what}" for n, what in ((len(values), "seeds"), (_columns(items), "items")) if n > 1]
    interval = None
    if items is not None:
        interval = crossed(items)
    elif len(values) > 1:
        interval = bootstrap(across)
    return Final(values, float(across.mean()), interval, " and ".join(parts))


def compared(results: Results) -> list[Comparison]:
    """Every two entries under every measure that both have, with the correction for their number.

    One seed: the difference stands without interval and p, and is not called real.
    """
    found: list[tuple[str, str, str, Paired, int]] = []
    for measure in results.measures:
        values = [(entry.name, ends(entry, measure.name)) for entry in results.entries]
        for (a, of_a), (b, of_b) in combinations(values, 2):
            if seeds := sorted(of_a.keys() & of_b.keys()):
                found.append((measure.name, a, b, paired([of_a[s] - of_b[s] for s in seeds]), len(seeds)))
    corrected = holm([p.p for *_, p, _ in found])
    return [
        Comparison(
            measure=measure,
            a=a,
            b=b,
            difference=p.mean,
            interval=p.interval,
            p=p.p,
            real=least is not None and least <= ALPHA and seeds >= LEAST_SEEDS,
        )
        for (measure, a, b, p, seeds), least in zip(found, corrected, strict=True)
    ]


def ends(entry: Entry, measure: str) -> dict[int, float]:
    """Seed → value at the run's last point; runs without a value there are left out."""
    found = {run.seed: run.points[-1].values.get(measure) for run in entry.runs if run.points}
    return {seed: value for seed, value in found.items() if value is not None}


def paired(differences: Sequence[float]) -> Paired:
    """A 95 % t interval, the t test and the sign-flip test of differences by seed, each two-sided.

    >>> found = paired([1.0, 2.0, 3.0, 4.0, 5.0])
    >>> [round(v, 3) for v in found.interval], round(found.p, 4), found.flip
    ([1.037, 4.963], 0.0132, 0.0625)
    """
    d = np.asarray(differences, np.float64)
    n, mean = len(d), float(d.mean())
    if n < 2:
        return Paired(mean, None, None, None)
    error = float(d.std(ddof=1)) / math.sqrt(n)
    half = critical(n - 1) * error
    if error == 0.0:
        p = 1.0 if mean == 0 else 0.0
    else:
        p = two_sided(abs(mean) / error, n - 1)
    return Paired(mean, (mean - half, mean + half), p, flipped(d))


def flipped(differences: np.ndarray) -> float:
    """Exact sign-flip permutation test (Fisher 1935): how often random signs give a mean as far from 0, (n,) → p.

    >>> flipped(np.ones(5)) == 2 / 32
    True
    """
    d = np.asarray(differences, np.float64)
    n = len(d)
    bits = np.arange(1 << min(n, FLIPS))
    if n <= FLIPS:
        signs = (bits[:, None] >> np.arange(n) & 1) * 2.0 - 1.0
    else:
        drawn = keyed.bits(keyed.row_keys(0, 0, bits, "flips")[:, None], np.arange(n)[None])
        signs = keyed.below(drawn, 2) * 2.0 - 1.0
    far = np.abs(signs @ d) >= abs(d.sum()) - 1e-12 * np.abs(d).sum()
    return float(far.mean()) if n <= FLIPS else float((far.sum() + 1) / (len(far) + 1))


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Holm's adjusted p: the k-th least of m times m − k + 1, never below one before it; None is no comparison.

    >>> holm([0.01, 0.04, None, 0.03])
    [0.03, 0.06, None, 0.06]
    """
    order = sorted((p, i) for i, p in enumerate(ps) if p is not None)
    out: list[float | None] = [None] * len(ps)
    least = 0.0
    for k, (p, i) in enumerate(order):
        least = max(least, min(1.0, p * (len(order) - k)))
        out[i] = least
    return out


def bootstrap(values: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """95 % interval of the mean of (n,) values, n ≥ 2: expanded percentiles over resamples of the values."""
    n = len(values)
    if n <= EXACT:
        drawn = np.indices((n,) * n).reshape(n, -1).T
    else:
        key = keyed.row_keys(seed, 0, np.arange(RESAMPLES), "bootstrap")[:, None]
        drawn = keyed.below(keyed.bits(key, np.arange(n)[None]), n)
    return _between(values[drawn].mean(1), n)


def crossed(items: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """95 % interval of the mean of (seeds, items): both are drawn anew, items the same ones for all seeds.

    Owen 2007, "The pigeonhole bootstrap". With one seed only items vary.
    """
    seeds, count = items.shape
    means = []
    block = max(1, (1 << 20) // count)  # resamples that are held at once
    for begin in range(0, CROSSED, block):
        rows = np.arange(begin, min(begin + block, CROSSED))
        key = keyed.row_keys(seed, 0, rows, "crossed seeds")[:, None]
        lines = items[keyed.below(keyed.bits(key, np.arange(seeds)[None]), seeds)].mean(1)
        key = keyed.row_keys(seed, 0, rows, "crossed items")[:, None]
        columns = keyed.below(keyed.bits(key, np.arange(count)[None]), count)
        means.append(np.take_along_axis(lines, columns, 1).mean(1))
    return _between(np.concatenate(means), seeds if seeds > 1 else count)


def two_sided(t: float, df: int) -> float:
    """P(|T| ≥ t) of Student's t with `df` whole degrees of freedom: the finite sums of Abramowitz and Stegun 26.7.3-4.

    >>> round(two_sided(2.776, 4), 4)
    0.05
    """
    angle = math.atan2(t, math.sqrt(df))
    cosine = math.cos(angle)
    odd = df % 2
    term = cosine if odd else 1.0
    total = term if df > 1 else 0.0
    for k in range(3 if odd else 2, df - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    inside = math.sin(angle) * total
    return min(1.0, max(0.0, 1.0 - (2 / math.pi * (angle + inside) if odd else inside)))


def critical(df: int, alpha: float = ALPHA) -> float:
    """The t with P(|T| ≥ t) = alpha, by bisection.

    >>> [round(critical(df), 3) for df in (1, 4, 9)]
    [12.706, 2.776, 2.262]
    """
    low, high = 0.0, 1.0
    while two_sided(high, df) > alpha:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, df) > alpha else (low, middle)
    return high


def _between(means: np.ndarray, n: int) -> tuple[float, float]:
    """The percentiles of resampled means that lie as far out as a t interval of n values would: Φ(−√(n/(n−1))·t)."""
    tail = 0.5 * math.erfc(math.sqrt(n / (n - 1)) * critical(n - 1) / math.sqrt(2))
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def _items(entry: Entry, measure: str, values: dict[int, float]) -> np.ndarray | None:
    """(seeds, items) of `details[measure]["items"]`, one number an item; None unless each value is its items' mean."""
    lines = []
    for run in entry.runs:
        if run.seed in values:
            details = run.points[-1].details.get(measure)
            line = details.get("items") if isinstance(details, dict) else None
            if not isinstance(line, list) or not all(isinstance(v, (int, float)) for v in line):
                return None
            if len(line) < 2 or not math.isclose(sum(line) / len(line), values[run.seed], rel_tol=1e-6, abs_tol=1e-9):
                return None
            lines.append(line)
    return np.array(lines, np.float64) if len({len(line) for line in lines}) == 1 else None


def _columns(items: np.ndarray | None) -> int:
    return 0 if items is None else items.shape[1]
