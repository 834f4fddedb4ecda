"""How sure a mean is: standard errors and bootstrap intervals of ratios of sums over units (documents, pieces)."""

from __future__ import annotations

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
