"""Points drawn from a law that is known, with noise; a small ladder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from unmask import keyed
from unmask.recipe import Recipe, load_recipe
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


TEXT = "the cat sat on the mat and the dog lay by the door; then it rained.\n"
LADDER_SIZES, LADDER_BUDGETS = [1.2e5, 2.2e5, 4e5, 8e5], [2e11, 1e12]


def small(folder: Path, **more: Any) -> Recipe:
    """A recipe of small models on a small text."""
    corpus = folder / "text.txt"
    corpus.write_text("\n".join(f"{i} {TEXT}" for i in range(400)))
    settings = {"corpus": str(corpus), "tokenizer.type": "byte", "context": 32, "train.batch_size": 4}
    return load_recipe("decoder-small", {**settings, "model.hidden_size": 64, "model.num_heads": 1, **more})
