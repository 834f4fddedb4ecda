"""How sure a mean is: standard errors and bootstrap intervals of ratios of sums over units (documents, pieces)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unmask import keyed

RESAMPLES = 1000


@dataclass(frozen=True)
class Ratio:
    """Σ numerator / Σ denominator over U units, its standard error and 95 % interval; None where U < 2."""

    value: float
    error: float | None
    interval: tuple[float, float] | None
    units: int


def ratio(numerator: np.ndarray, denominator: np.ndarray, seed: int = 0) -> Ratio:
    """The ratio of two sums over units (U,), which are what varies from sample to sample.

    Error: linearised, sqrt(U / (U − 1) · Σ (n_i − r d_i)²) / Σ d (Cochran 1977, section 6.4).
    Interval: the 2.5th and 97.5th percentile of keyed bootstrap resamples of the units (Efron 1979).
    """
    n, d = np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)
    units = len(n)
    if d.sum() == 0:
        return Ratio(float("nan"), None, None, units)
    value = float(n.sum() / d.sum())
    if units < 2:
        return Ratio(value, None, None, units)
    error = float(np.sqrt(units / (units - 1) * ((n - value * d) ** 2).sum()) / d.sum())
    key = keyed.row_keys(seed, 0, np.arange(RESAMPLES), "bootstrap")[:, None]
    seen = []
    block = max(1, (1 << 20) // units)  # resamples that are held at once
    for begin in range(0, RESAMPLES, block):
        drawn = keyed.below(keyed.bits(key[begin : begin + block], np.arange(units)[None]), units)
        total = d[drawn].sum(1)
        seen.append(np.divide(n[drawn].sum(1), total, out=np.full(len(total), value), where=total > 0))
    low, high = np.quantile(np.concatenate(seen), [0.025, 0.975])
    return Ratio(value, error, (float(low), float(high)), units)


def macro(groups: Sequence[np.ndarray], seed: int = 0) -> tuple[Ratio, tuple[Ratio, ...]]:
    """The mean over groups of the mean within each, and the means themselves; groups are fixed, their items vary.

    Error: sqrt(Σ_g s_g² / n_g) / G with s_g² the variance within group g. Intervals: keyed bootstrap resamples of the
    items within each group. A group whose items are all alike (one item, all right, all wrong) shows no spread, and
    has neither error nor interval; the mean has none where no group shows any.
    """
    spreads = [len(g) > 1 and bool((g != g[0]).any()) for g in groups]
    position = keyed.row_keys(seed, 0, np.arange(RESAMPLES), "bootstrap")[:, None]
    means = np.array([float(g.mean()) for g in groups])
    error = np.array([g.std(ddof=1) / np.sqrt(len(g)) if len(g) > 1 else 0.0 for g in groups])
    resampled = np.empty((len(groups), RESAMPLES))
    for k, values in enumerate(groups):
        n = len(values)
        block = max(1, (1 << 20) // n)  # resamples that are held at once
        for begin in range(0, RESAMPLES, block):
            key = keyed.absorb(position[begin : begin + block], k)
            drawn = keyed.below(keyed.bits(key, np.arange(n)[None]), n)
            resampled[k, begin : begin + block] = values[drawn].mean(1)

    def measured(value: float, error: float, seen: np.ndarray, units: int, known: bool) -> Ratio:
        low, high = np.quantile(seen, [0.025, 0.975])
        return Ratio(value, error, (float(low), float(high)), units) if known else Ratio(value, None, None, units)

    each = tuple(
        measured(float(m), float(e), r, len(g), spread)
        for m, e, r, g, spread in zip(means, error, resampled, groups, spreads, strict=True)
    )
    units = sum(len(g) for g in groups)
    whole = float(np.sqrt((error**2).sum()) / len(groups))
    return measured(float(means.mean()), whole, resampled.mean(0), units, any(spreads)), each
