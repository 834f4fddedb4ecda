"""IsoFLOP minima: for each budget a parabola of loss in log N, and a power law through its minima
(Hoffmann et al. 2022, section 3.2, "approach 2").

It assumes no law, but a parabola is not the law's curve (that is steeper on the side of small models), so its minima
are a little off where sizes do not lie evenly about them: it stands beside the fit, not in its place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unmask import keyed
from unmask.scale.points import Points

FEWEST = 3
"""Sizes that a parabola needs."""


@dataclass(frozen=True)
class Minimum:
    """Where a budget's parabola is least."""

    flops: float
    points: int
    n: float
    d: float
    loss: float
    inside: bool
    """It opens upward and its minimum lies among the sizes that were tried; else n is the best size tried."""


@dataclass(frozen=True)
class PowerLaw:
    """N = k C^a through the minima that lie inside."""

    k: float
    a: float
    interval: tuple[float, float] | None
    """95 % of a; None where no budget has more points than a parabola has numbers."""

    def best(self, flops: float) -> float:
        return self.k * flops**self.a


def minima(points: Points) -> list[Minimum]:
    """One for each budget of three sizes or more."""
    return [_minimum(points.take(at)) for at in points.budgets() if _enough(points, at)]


def power_law(points: Points, resamples: int, seed: int = 0) -> PowerLaw | None:
    """Through the minima inside, by least squares of logarithms; None where they are fewer than two.

    Interval: resamples of the parabolas' residuals, widened by √(P / (P − 3)) for the three numbers each has taken,
    over all budgets together.
    """
    groups = [at for at in points.budgets() if _enough(points, at) and _minimum(points.take(at)).inside]
    if len(groups) < 2:
        return None
    log_c = np.array([np.log(points.flops[at]).mean() for at in groups])
    found = [_minimum(points.take(at)) for at in groups]
    a, shift = np.polyfit(log_c, np.log([m.n for m in found]), 1)
    return PowerLaw(float(np.exp(shift)), float(a), _interval(points, groups, log_c, resamples, seed))


def _interval(
    points: Points, groups: list[np.ndarray], log_c: np.ndarray, resamples: int, seed: int
) -> tuple[float, float] | None:
    fits, residuals = [], []
    for at in groups:
        x = np.log(points.n[at])
        design = np.vander(x - x.mean(), 3)
        fitted = design @ np.linalg.lstsq(design, points.loss[at], rcond=None)[0]
        fits.append((x.mean(), np.linalg.pinv(design), fitted))
        if len(at) > FEWEST:
            residuals.append((points.loss[at] - fitted) * np.sqrt(len(at) / (len(at) - FEWEST)))
    if not residuals:
        return None
    pool = np.concatenate(residuals)
    key = keyed.row_keys(seed, 0, np.arange(resamples), "scale parabolas")[:, None]
    log_n = np.empty((resamples, len(groups)))
    for g, (middle, inverse, fitted) in enumerate(fits):
        drawn = keyed.below(keyed.bits(keyed.absorb(key, g), np.arange(len(fitted))[None]), len(pool))
        bend, slope, _ = ((fitted + pool[drawn]) @ inverse.T).T
        log_n[:, g] = np.where(bend > 0, middle - slope / (2 * np.where(bend > 0, bend, 1)), np.nan)
    whole = log_n[np.isfinite(log_n).all(1)]
    if len(whole) < 0.9 * resamples:  # parabolas that often open downward have no minimum to speak of
        return None
    off = log_c - log_c.mean()
    low, high = np.quantile(whole @ off / (off @ off), [0.025, 0.975])
    return float(low), float(high)


def _enough(points: Points, at: np.ndarray) -> bool:
    return len(np.unique(points.n[at])) >= FEWEST


@dataclass(frozen=True)
class Parabola:
    """loss = height + bend (log N − top)² of one budget; without a minimum where it does not open upward."""

    top: float
    bend: float
    height: float

    def loss(self, n: np.ndarray) -> np.ndarray:
        return self.height + self.bend * (np.log(n) - self.top) ** 2


def parabola(n: np.ndarray, loss: np.ndarray) -> Parabola | None:
    """By least squares; None where it opens downward or is a line, or there are too few sizes.

    >>> found = parabola(np.exp([1.0, 2.0, 4.0]), np.array([3.5, 3.0, 5.0]))  # 3 + (log N - 2)² / 2
    >>> round(found.top, 6), round(found.bend, 6), round(found.height, 6)
    (2.0, 0.5, 3.0)
    """
    x = np.log(n)
    if len(np.unique(x)) < FEWEST:
        return None
    middle = float(x.mean())
    bend, slope, height = map(float, np.polyfit(x - middle, loss, 2))
    if bend <= 0:
        return None
    return Parabola(middle - slope / (2 * bend), bend, height - slope**2 / (4 * bend))


def _minimum(group: Points) -> Minimum:
    """Of one budget, points by rising N."""
    x, found = np.log(group.n), parabola(group.n, group.loss)
    flops = float(np.exp(np.log(group.flops).mean()))
    if found is None or not x[0] <= found.top <= x[-1]:
        best = int(group.loss.argmin())
        n, d, loss = (float(v[best]) for v in (group.n, group.d, group.loss))
        return Minimum(flops, len(group), n, d, loss, False)
    d = float(np.exp(np.interp(found.top, x, np.log(group.d))))
    return Minimum(flops, len(group), float(np.exp(found.top)), d, found.height, True)
