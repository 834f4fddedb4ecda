"""Points drawn from a law that is known, with noise."""

from __future__ import annotations

import math

import numpy as np

from unmask import keyed
from unmask.scale.law import REFIT, Law
from unmask.scale.points import Points

BUDGETS = np.geomspace(1e18, 1e21, 7)
SIZES = np.geomspace(1 / 8, 8, 9)
"""N of the grid: so many times the best one for its budget. N spans 9.9M … 22G, D 2.5e8 … 4.8e11 tokens."""


def normal(seed: int, count: int) -> np.ndarray:
    """Standard normal numbers, keyed (Box and Muller 1958)."""
    key = keyed.row_keys(seed, 0, 0, "scale noise")
    u, v = keyed.uniform(key, np.arange(2 * count)).reshape(2, count)
    return np.sqrt(-2 * np.log(1 - u)) * np.cos(2 * math.pi * v)


def ladder(noise: float = 0.0, seed: int = 0, law: Law = REFIT) -> Points:
    """63 points; log L is off by `noise` times a standard normal."""
    n = np.concatenate([law.best(c)[0] * SIZES for c in BUDGETS])
    c = np.repeat(BUDGETS, len(SIZES))
    d = c / (6 * n)
    loss = law.loss(n, d) * np.exp(noise * normal(seed, len(n)))
    return Points(n, d, loss, c, tuple(f"run {i}" for i in range(len(n))))
