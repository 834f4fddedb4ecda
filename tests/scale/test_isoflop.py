"""Parabolas: the minimum of a parabola is found, an edge is no minimum, and the exponent is the law's."""

from __future__ import annotations

import numpy as np
import pytest

from unmask.scale.isoflop import minima, power_law
from unmask.scale.law import REFIT
from unmask.scale.points import Points

from .helpers import BUDGETS, ladder


def parabolas(a: float, lifted: float = 0.0) -> Points:
    """Losses that are parabolas in log N, least at 0.1 C^a."""
    c = np.repeat(BUDGETS, 5)
    n = 0.1 * c**a * np.tile([0.3, 0.5, 1.2, 2, 5], len(BUDGETS))
    loss = 3 + 0.1 * np.log(n / (0.1 * c**a)) ** 2 + lifted * np.tile([1, -1, 1, -1, 1], len(BUDGETS))
    return Points(n, c / (6 * n), loss, c, tuple(f"run {i}" for i in range(len(n))))


def test_the_minimum_of_a_parabola_is_found() -> None:
    points = parabolas(0.46)
    for c, found in zip(BUDGETS, minima(points), strict=True):
        assert found.inside and found.points == 5
        assert (found.n, found.d) == pytest.approx((0.1 * c**0.46, c / (6 * 0.1 * c**0.46)))
        assert found.loss == pytest.approx(3)
    power = power_law(points, 200)
    assert power is not None and power.a == pytest.approx(0.46) and power.best(1e22) == pytest.approx(0.1 * 1e22**0.46)


def test_a_minimum_at_the_edge_is_no_minimum() -> None:
    points = parabolas(0.46)
    largest = points.budgets()[-1]
    kept = np.setdiff1d(np.arange(len(points)), largest[2:])  # two sizes: no parabola
    assert len(minima(points.take(kept))) == len(BUDGETS) - 1
    falling = Points(points.n, points.d, 10 - 0.1 * np.log(points.n), points.flops, points.names)
    assert not any(m.inside for m in minima(falling)) and power_law(falling, 200) is None
    assert minima(falling)[0].n == points.n[points.budgets()[0]].max()


def test_the_exponent_is_the_laws_and_noise_widens_its_interval() -> None:
    quiet, loud = (power_law(ladder(noise), 400) for noise in (0.001, 0.01))
    assert quiet is not None and loud is not None and quiet.interval is not None and loud.interval is not None
    assert quiet.a == pytest.approx(REFIT.exponent, abs=0.005)
    assert quiet.interval[0] < quiet.a < quiet.interval[1]
    assert loud.interval[1] - loud.interval[0] > 4 * (quiet.interval[1] - quiet.interval[0])
    three = np.concatenate([at[[0, 4, 8]] for at in ladder().budgets()])
    exact = power_law(ladder(0.001).take(three), 400)
    assert exact is not None and exact.interval is None  # three numbers through three points leave no residual
