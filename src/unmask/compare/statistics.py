"""How sure a study can be: intervals over seeds, tests paired by seed, and which differences are real.

Seeds are few, so each method is one that stays honest there:

Value       a bootstrap over seeds (Efron 1979), all n^n resamples where they are few. The plain percentiles are too
            narrow for few seeds, so they are taken further out (Hesterberg 2015, "What Teachers Should Know About the
            Bootstrap", expanded percentiles). Of normal values the interval holds the true mean in 92 % of studies
            with 5 seeds (plain: 83 %), 87 % with 4, 74 % with 3: no resample lies outside the seeds themselves.
            Where a measure's details hold its items, the same in every run, items are resampled too, within groups.
Difference  of two entries, paired by seed: a t interval and a t test. Beside it `flip`, the exact sign-flip test, which
            needs no normal values but cannot say less than 2 / 2^n: 2/32 = .0625 for 5 seeds, so five seeds
            alone can never reach .05 with it, and it decides nothing here.
Over items  beside that, where both entries were asked the same items: items (and seeds, if there are several) are drawn
            anew, paired; with one seed also the sign-flip test over items. It tells how far the difference would move
            with other items, never that training makes it again: with one seed it says nothing about another run.
Real        Holm's (1979) correction over all comparisons of the study leaves p at most .05, and there are 3 seeds or
            more: two values on a coarse measure are alike too often by chance.

Where items are right or wrong, a value moves in steps, and seeds of a coarse measure are often alike by chance: with 4
items and 3 seeds, two equal entries differ by the same in all three in 2 of 100 studies, at p = 0, which no correction
mends. So the spread of a difference is taken as no less than that of two values rounded to their step, √(step² / 6).
(Simulated for 4 to 500 items, 3 and 5 seeds: p below .01 in at most 1.1 of 100 studies.) Differences that are all alike
and not 0 under a measure without items leave t without a spread; then p is 0, the limit of small spreads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from unmask import keyed
from unmask.compare.items import Items, unpacked
from unmask.compare.results import Comparison, Entry, Measure, OverItems, Results

ALPHA = 0.05
LEAST_SEEDS = 3
"""With fewer no difference is called real."""
EXACT = 6
"""Up to so many values all n^n resamples are made (46,656), else RESAMPLES are drawn."""
RESAMPLES = 10_000
CROSSED = 4_000
"""Resamples where items are drawn as well."""
FLIPS, DRAWN = 16, 1 << 14
"""Up to so many differences all 2^n signs are tried, else so many drawn ones."""
ONE_SEED = (
    "Over items, one seed: these intervals and p values say how far a difference would move with other items of the "
    "same kind; they say nothing about another training run, so they make no difference real."
)
SEVERAL_SEEDS = (
    "Over items and seeds: these intervals draw both anew, so they also say how far a difference would move with other "
    "items of the same kind; which differences are real is decided over seeds alone."
)


@dataclass(frozen=True)
class Final:
    """An entry's value of a measure at the end of training."""

    values: dict[int, float]
    """Seed → value."""
    mean: float
    interval: tuple[float, float] | None
    """95 %, over what varies; None where nothing does: one seed without items, or all are alike."""
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
    counted, interval = [(len(values), "seeds")], None
    if items is not None and items.spread:
        counted, interval = [*counted, (items.shown, items.of)], items.interval()
    elif (across != across[0]).any():
        interval = bootstrap(across)
    over = " and ".join(f"{n} {what}" for n, what in counted if n > 1)
    return Final(values, float(across.mean()), interval, over if interval else "")


def compared(results: Results) -> list[Comparison]:
    """Every two entries under every measure that both have, with the correction for their number.

    One seed: the difference stands without interval and p, and is not called real.
    """
    found: list[tuple[str, Entry, Entry, Paired, list[int]]] = []
    for measure in results.measures:
        values = [(entry, ends(entry, measure.name)) for entry in results.entries]
        steps = {entry.name: _step(_items(entry, measure.name, own)) for entry, own in values}
        for (a, of_a), (b, of_b) in combinations(values, 2):
            if seeds := sorted(of_a.keys() & of_b.keys()):
                differences, step = [of_a[s] - of_b[s] for s in seeds], max(steps[a.name], steps[b.name])
                found.append((measure.name, a, b, paired(differences, step), seeds))
    corrected = holm([p.p for *_, p, _ in found])
    return [
        Comparison(
            measure=measure,
            a=a.name,
            b=b.name,
            difference=p.mean,
            interval=p.interval,
            p=p.p,
            real=least is not None and least <= ALPHA and len(seeds) >= LEAST_SEEDS,
            over_items=over_items(a, b, measure, seeds),
        )
        for (measure, a, b, p, seeds), least in zip(found, corrected, strict=True)
    ]


def over_items(a: Entry, b: Entry, measure: str, seeds: Sequence[int]) -> OverItems | None:
    """What the items say of a − b; None where none are kept or the two were asked others."""
    of_a, of_b = (_items(e, measure, {s: v for s, v in ends(e, measure).items() if s in seeds}) for e in (a, b))
    if of_a is None or of_b is None or not of_a.first.fits(of_b.first):
        return None
    both = _Crossed(of_a.first, of_a.outcomes - of_b.outcomes)
    if both.shown < 2:
        return None
    by_item = both.shares * np.nan_to_num(both.outcomes).mean(0)
    return OverItems(
        of=both.of,
        items=both.shown,
        seeds=len(seeds),
        difference=float(by_item.sum()),
        interval=both.interval(),
        p=flipped(by_item) if len(seeds) == 1 else None,
    )


def items_note(comparisons: Sequence[Comparison]) -> str:
    """What a reader must know of differences over items; "" where there are none."""
    held = [c.over_items for c in comparisons if c.over_items is not None]
    one, several = (any((found.seeds == 1) is alone for found in held) for alone in (True, False))
    return " ".join(s for s, told in ((ONE_SEED, one), (SEVERAL_SEEDS, several)) if told)


def little(measure: Measure, values: Iterable[float]) -> str:
    """Why differences between these values decide nothing: none is beyond what is trivial; "" where one is.

    >>> from unmask.compare.results import Level
    >>> bits = Measure(name="b", label="B", protocol="", better="lower", levels=[Level(label="frequencies", value=2)])
    >>> little(bits, [2.5, 2.1]), little(bits, [2.5, 1.9])
    ('none of them is better than frequencies: this says little', '')
    """
    best = max(values) if measure.better == "higher" else min(values)
    labels = [level.label for level in measure.unbeaten(best)]
    return f"none of them is better than {', '.join(labels)}: this says little" if labels else ""


def ends(entry: Entry, measure: str) -> dict[int, float]:
    """Seed → value at the run's last point; runs without a value there are left out."""
    found = {run.seed: run.points[-1].values.get(measure) for run in entry.runs if run.points}
    return {seed: value for seed, value in found.items() if value is not None}


def paired(differences: Sequence[float], step: float = 0.0) -> Paired:
    """A 95 % t interval, the t test and the sign-flip test of differences by seed, each two-sided.

    step: what the values move in, 0 = any number; their spread counts as no less than rounding to it makes.

    >>> found = paired([1.0, 2.0, 3.0, 4.0, 5.0])
    >>> [round(v, 3) for v in found.interval], round(found.p, 4), found.flip
    ([1.037, 4.963], 0.0132, 0.0625)
    """
    d = np.asarray(differences, np.float64)
    n, mean = len(d), float(d.mean())
    if n < 2:
        return Paired(mean, None, None, None)
    error = max(float(d.std(ddof=1)), step / math.sqrt(6)) / math.sqrt(n)
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
    d = d[d != 0]  # whose sign changes nothing
    n = len(d)
    least = abs(d.sum()) - 1e-12 * np.abs(d).sum()
    if n <= FLIPS:
        signs = (np.arange(1 << n)[:, None] >> np.arange(n) & 1) * 2.0 - 1.0
        return float((np.abs(signs @ d) >= least).mean())
    far, block = 0, max(1, (1 << 20) // n)  # draws that are held at once
    for begin in range(0, DRAWN, block):
        key = keyed.row_keys(0, 0, np.arange(begin, min(begin + block, DRAWN)), "flips")[:, None]
        signs = keyed.below(keyed.bits(key, np.arange(n)[None]), 2) * 2.0 - 1.0
        far += int((np.abs(signs @ d) >= least).sum())
    return (far + 1) / (DRAWN + 1)


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


def crossed(
    items: np.ndarray, seed: int = 0, weights: np.ndarray | None = None, group: np.ndarray | None = None
) -> tuple[float, float]:
    """95 % interval of the mean of (seeds, items): both are drawn anew, items the same ones for all seeds.

    Owen 2007, "The pigeonhole bootstrap". With one seed only items vary.
    weights  (items,) the mean is Σ items / Σ weights; None = 1 each
    group    (items,) ascending: items are drawn within groups, and the mean is one over the groups' means
    """
    seeds, count = items.shape
    weights = np.ones(count) if weights is None else weights
    first = np.flatnonzero(np.diff(np.zeros(count, np.int64) if group is None else group, prepend=-1))
    size = np.diff(np.append(first, count))
    of_group, own = np.repeat(first, size)[None], np.repeat(size, size)[None]
    means = []
    block = max(1, (1 << 20) // count)  # resamples that are held at once
    for begin in range(0, CROSSED, block):
        rows = np.arange(begin, min(begin + block, CROSSED))
        key = keyed.row_keys(seed, 0, rows, "crossed seeds")[:, None]
        lines = items[keyed.below(keyed.bits(key, np.arange(seeds)[None]), seeds)].mean(1)
        key = keyed.row_keys(seed, 0, rows, "crossed items")[:, None]
        columns = of_group + keyed.below(keyed.bits(key, np.arange(count)[None]), own)
        sums = np.add.reduceat(np.take_along_axis(lines, columns, 1), first, 1)
        means.append((sums / np.add.reduceat(weights[columns], first, 1)).mean(1))
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


@dataclass(frozen=True)
class _Crossed:
    """Outcomes of the same items in every seed, (seeds, items); `first` tells how they make a value."""

    first: Items
    outcomes: np.ndarray

    @property
    def scored(self) -> np.ndarray:
        """(items,) in every seed."""
        return np.asarray(~np.isnan(self.outcomes).any(0))

    @property
    def shown(self) -> int:
        return int(self.scored.sum())

    @property
    def of(self) -> str:
        return self.first.of

    @property
    def spread(self) -> bool:
        """All right and all wrong show none: an interval that is a point would tell too much."""
        seen = self.outcomes[:, self.scored]
        return bool((seen != seen[:1, :1]).any())

    @property
    def shares(self) -> np.ndarray:
        return self.first.shares(self.scored)

    def interval(self) -> tuple[float, float]:
        here = self.scored
        low, high = crossed(self.outcomes[:, here], 0, self.first.weights[here], self.first.group[here])
        return self.first.scale * low, self.first.scale * high


def _step(items: _Crossed | None) -> float:
    """The least that an item which is right or wrong moves the value by; 0 where outcomes are other numbers."""
    if items is None or items.shown == 0:
        return 0.0
    kinds = np.unique(items.outcomes[:, items.scored])
    if not np.isin(kinds, (0.0, 0.5, 1.0)).all():
        return 0.0
    return float(items.shares[items.scored].min()) * (0.5 if 0.5 in kinds else 1.0)


def _items(entry: Entry, measure: str, values: dict[int, float]) -> _Crossed | None:
    """What each run's last point holds of a measure's items; None unless all hold outcomes of the same ones."""
    found: list[Items] = []
    for run in entry.runs:
        if run.seed in values:
            details = run.points[-1].details.get(measure)
            held = details.get("items") if isinstance(details, dict) else None
            items = unpacked(held, values[run.seed])
            if items is None or (found and not found[0].fits(items)):
                return None
            found.append(items)
    return _Crossed(found[0], np.array([items.outcomes for items in found])) if found else None
