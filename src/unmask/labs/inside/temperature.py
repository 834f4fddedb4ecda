"""Why attention divides scores by √D: random queries and keys, with and without.

Components are independent with mean 0 and variance 1, so a product of D of them has variance D. Gradients pass a
softmax by its Jacobian diag(p) − p pᵀ, whose Frobenius norm has a closed form:

    ‖J‖² = Σ p² − 2 Σ p³ + (Σ p²)²

It is 0 for a p with all weight in one place, and largest where two places share it (½, ½): so a sharper softmax first
passes more, and then, when it is sharp enough, in most rows nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unmask import keyed
from unmask.labs.inside.forward import softmax

SIZES = (16, 32, 64, 128)
KEYS, ROWS = 96, 500
SATURATED, STUCK = 0.9, 0.01
"""Largest weight from which a row counts as saturated; norm of the Jacobian below which hardly anything passes."""


class Measured(NamedTuple):
    """Of random rows at one head size."""

    size: int
    scaled: bool
    spread: float
    """Standard deviation of the scores."""
    largest: float
    """Mean of each row's largest weight."""
    saturated: float
    """Share of rows whose largest weight is above `SATURATED`."""
    gradient: float
    """Mean norm of the Jacobian."""
    median: float
    stuck: float
    """Share of rows whose norm is below `STUCK`."""


def measured(seed: int) -> list[Measured]:
    """Both ways for each head size: smaller ones read the first components of the same vectors."""
    query = normal(seed, "queries", (ROWS, max(SIZES)))
    keys = normal(seed, "keys", (ROWS, KEYS, max(SIZES)))
    raw = {size: np.einsum("rd,rkd->rk", query[:, :size], keys[..., :size]) for size in SIZES}
    return [_measured(size, scaled, raw[size]) for size in SIZES for scaled in (False, True)]


def _measured(size: int, scaled: bool, raw: np.ndarray) -> Measured:
    scores = raw / np.sqrt(size) if scaled else raw
    p = softmax(scores)
    norm = jacobian_norm(p)
    largest = p.max(-1)
    return Measured(
        size,
        scaled,
        float(scores.std()),
        float(largest.mean()),
        float((largest > SATURATED).mean()),
        float(norm.mean()),
        float(np.median(norm)),
        float((norm < STUCK).mean()),
    )


def jacobian_norm(p: np.ndarray) -> np.ndarray:
    """Frobenius norm of diag(p) − p pᵀ for each distribution over the last axis.

    >>> jacobian_norm(np.array([[0.5, 0.5], [1.0, 0.0]])).tolist()
    [0.5, 0.0]
    """
    two, three = (p**2).sum(-1), (p**3).sum(-1)
    return np.asarray(np.sqrt(np.maximum(two - 2 * three + two**2, 0)))


def normal(seed: int, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal numbers, a pure function of (seed, name, place) (Box and Muller 1958)."""
    count = int(np.prod(shape))
    u, v = keyed.uniform(keyed.row_keys(seed, 0, 0, f"inside {name}"), np.arange(count + count % 2)).reshape(2, -1)
    radius, angle = np.sqrt(-2 * np.log1p(-u)), 2 * np.pi * v
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count].reshape(shape)
