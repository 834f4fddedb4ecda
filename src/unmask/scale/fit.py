"""Fitting the law, its bootstrap, and variable projection as a second opinion.

    fit         Huber's loss of log L̂ − log L with δ = 10⁻³ (Hoffmann et al. 2022, appendix D.3), summed over points,
                by L-BFGS from a grid of starts. (Their code averaged the loss and stopped early; Besiroglu et al.
                2024, section 3.4, who sum it.)
    bootstrap   the same on resampled points, each started at the full fit
    project     for fixed (α, β) the law is linear in E, A, B: least squares of L̂ / L − 1 gives them, none below 0
                (Golub and Pereyra 1973), and two numbers are left to search

Parameters of the search, Θ (…, 5): e = log E, a = log A − α x̄, b = log B − β z̄, α, β with x̄ and z̄ the means of log N
and log D over the points. Without that centring A and α go together so closely that a search crawls.

Resamples are solved together: each step replaces Huber's loss by the parabola that touches it from above (weights
min(1, δ / |r|): Huber 1981, section 7.8), and solves R systems of 5 × 5 with Levenberg and Marquardt's damping; a
step that would raise its loss is not made. A test compares it with L-BFGS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize, nnls

from unmask import keyed
from unmask.errors import UserError
from unmask.scale.law import NAMES, Law
from unmask.scale.points import Points, check

DELTA = 1e-3
GRID = tuple((alpha, beta) for alpha in (0.1, 0.2, 0.35, 0.5, 0.8, 1.2) for beta in (0.1, 0.2, 0.35, 0.5, 0.8, 1.2))
"""Starts, (α, β) each; E, A and B of a start by `_linear`."""
RESAMPLES = 1000
ITERATIONS, ENOUGH = 300, 1e-8
"""Most steps of a resample, and the share of its loss that two steps in a row must gain for a next one."""
SHARE = 0.01
"""Of the losses: E, A / N^α and B / D^β begin a search with no less, or it would not see that they are missing."""
LEAST = 1e-12
"""Of A, B and E beside the losses themselves: logarithms must be finite."""
RANGE = (0.01, 3.0)
"""Where α and β are looked for: beyond, a law is none of text, and numbers overflow."""
FALL = 1e-4
"""Of the loss: a term that gains less over all points says nothing."""


@dataclass(frozen=True)
class Centred:
    """Logarithms of P points, as the search sees them."""

    x: np.ndarray
    z: np.ndarray
    y: np.ndarray
    x_mean: float
    z_mean: float

    def theta(self, law: np.ndarray) -> np.ndarray:
        """Θ (…, 5) of laws (…, 5)."""
        e, a, b = (np.log(law[..., k]) for k in range(3))
        alpha, beta = law[..., 3], law[..., 4]
        return np.stack([e, a - alpha * self.x_mean, b - beta * self.z_mean, alpha, beta], -1)

    def begun(self, law: np.ndarray) -> np.ndarray:
        """Θ to start from at laws (…, 5)."""
        theta = self.theta(law)
        theta[..., :3] = np.maximum(theta[..., :3], self.y.mean() + np.log(SHARE))
        return theta

    def law(self, theta: np.ndarray) -> np.ndarray:
        """Laws (…, 5) of Θ (…, 5)."""
        alpha, beta = theta[..., 3], theta[..., 4]
        terms = theta[..., 0], theta[..., 1] + alpha * self.x_mean, theta[..., 2] + beta * self.z_mean
        return np.stack([*(np.exp(t) for t in terms), alpha, beta], -1)


def centred(points: Points) -> Centred:
    x, z = np.log(points.n), np.log(points.d)
    return Centred(x - x.mean(), z - z.mean(), np.log(points.loss), float(x.mean()), float(z.mean()))


def fit(points: Points, delta: float = DELTA) -> Law:
    """The law of the points: the best end of L-BFGS from every start."""
    check(points)
    c, weights = centred(points), np.ones(len(points))

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        r, jacobian = _residual(theta, c)
        return _huber(r, weights, delta) / delta, (weights * np.clip(r, -delta, delta)) @ jacobian / delta

    found = None
    for alpha, beta in GRID:
        start = c.begun(_linear(c, alpha, beta, weights)[0])
        end = minimize(
            loss,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=[(None, None)] * 3 + [RANGE] * 2,
            options={"maxiter": 2000, "ftol": 1e-14, "gtol": 1e-9},
        )
        if np.isfinite(end.fun) and (found is None or end.fun < found.fun):
            found = end
    if found is None:
        raise UserError("no law fits these points: check that losses fall with n and d")
    law = Law(*map(float, c.law(found.x)))
    _falls(law, points)
    _above(law, points)
    return law


def bootstrap(points: Points, law: Law, resamples: int = RESAMPLES, seed: int = 0, delta: float = DELTA) -> np.ndarray:
    """Laws (R, 5) of R resamples of the points with replacement, keyed by the seed."""
    c, weights = centred(points), drawn(len(points), resamples, seed)
    return c.law(_refit(c, c.begun(law.row()), weights, delta))


def drawn(points: int, resamples: int, seed: int) -> np.ndarray:
    """How often each resample draws each point, (R, P). One that draws few different points is no design: again."""
    out = np.zeros((resamples, points))
    left, attempt = np.arange(resamples), 0
    while len(left):
        key = keyed.absorb(keyed.row_keys(seed, attempt, left, "scale bootstrap")[:, None], 0)
        at = keyed.below(keyed.bits(key, np.arange(points)[None]), points)
        out[left] = 0
        np.add.at(out, (left[:, None], at), 1)
        left, attempt = left[(out[left] > 0).sum(1) < min(6, points)], attempt + 1
    return out


def interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Percentiles of resamples."""
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def project(points: Points, weights: np.ndarray | None = None, start: tuple[float, float] | None = None) -> Law:
    """The law by variable projection, from `start` (α, β) or the best place of a grid.

    The gradient in (α, β) is that of the sum of squares with E, A and B held at their best (they have none).
    """
    c = centred(points)
    w = np.ones(len(points)) if weights is None else weights

    def left(exponents: np.ndarray) -> tuple[float, np.ndarray]:
        _, r, terms = _linear(c, float(exponents[0]), float(exponents[1]), w)
        return float(w @ r**2), np.array([-2 * (w * r) @ (c.x * terms[1]), -2 * (w * r) @ (c.z * terms[2])])

    axis = np.linspace(0.05, 1.5, 30)
    first: Any = start or min(((a, b) for a in axis for b in axis), key=lambda p: left(np.array(p))[0])
    # The sums are of squares of parts in a thousand: scaled, so that the tolerances of the search mean something.
    scale = 1 / max(left(np.array(first))[0], 1e-12)
    end = minimize(
        lambda p: tuple(scale * v for v in left(p)),
        np.array(first),
        jac=True,
        method="L-BFGS-B",
        bounds=[RANGE, RANGE],
        options={"ftol": 1e-12, "gtol": 1e-9},
    )
    return Law(*map(float, _linear(c, float(end.x[0]), float(end.x[1]), w)[0]))


def named(law: Law) -> dict[str, float]:
    return dict(zip(NAMES, map(float, law.row()), strict=True))


def spread(points: Points, law: Law) -> float:
    """Of log L about the law: 1.48 times the median distance, a standard deviation where the noise is normal."""
    return 1.4826 * float(np.median(np.abs(np.log(points.loss / law.loss(points.n, points.d)))))


def _falls(law: Law, points: Points) -> None:
    """Raise where neither more parameters nor more text are worth anything, or one of them."""
    for what, factor, exponent, values in (
        ("n", law.A, law.alpha, points.n),
        ("d", law.B, law.beta, points.d),
    ):
        gained = factor * (values.min() ** -exponent - values.max() ** -exponent)
        if not gained > FALL * points.loss.mean():
            raise UserError(
                f"the losses do not fall with {what}: there is no law to fit; check the columns, and that all losses "
                "are of one kind (tokenizer, text, nats)"
            )


def _above(law: Law, points: Points) -> None:
    """Raise where a loss lies below E by more than the points' own noise explains."""
    lowest = int(points.loss.argmin())
    if points.loss[lowest] < law.E * np.exp(-4 * spread(points, law)):
        raise UserError(
            f"{points.names[lowest]} has loss {points.loss[lowest]:.4g}, below the law's E = {law.E:.4g}, which no run "
            "can pass: the losses are not all of one kind (tokenizer, text, nats), or that point is wrong"
        )


# ---------------------------------------------------------------- the searches


def _terms(theta: np.ndarray, c: Centred) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """E, A / N^α and B / D^β of Θ (…, 5) at the points, (…, P)."""
    e, a, b, alpha, beta = (theta[..., k : k + 1] for k in range(5))
    with np.errstate(over="ignore"):
        return np.exp(e) + 0 * c.x, np.exp(a - alpha * c.x), np.exp(b - beta * c.z)


def _residual(theta: np.ndarray, c: Centred, y: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """log L̂ − log L (…, P), and its derivatives in Θ (…, P, 5)."""
    terms = _terms(theta, c)
    total = terms[0] + terms[1] + terms[2]
    with np.errstate(invalid="ignore"):  # a step too far overflows; its loss is no number, so it is not made
        e, a, b = (t / total for t in terms)
    return np.log(total) - (c.y if y is None else y), np.stack([e, a, b, -c.x * a, -c.z * b], -1)


def _huber(r: np.ndarray, weights: np.ndarray, delta: float) -> Any:
    """Σ weight · (r² / 2, or δ (|r| − δ / 2) beyond δ) over the points."""
    size = np.abs(r)
    return (weights * np.where(size <= delta, 0.5 * r * r, delta * (size - 0.5 * delta))).sum(-1)


def _linear(
    c: Centred, alpha: float, beta: float, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(the law (5,), L̂ / L − 1 (P,), its three terms over L (P,)) of least squares at fixed exponents."""
    over = np.exp(-c.y)
    columns = np.stack([over, np.exp(-alpha * c.x) * over, np.exp(-beta * c.z) * over], 1)
    root = np.sqrt(weights)
    found = np.maximum(nnls(columns * root[:, None], root)[0], LEAST)
    terms = columns * found
    theta = np.array([*np.log(found), alpha, beta])
    return c.law(theta), terms.sum(1) - 1, (terms[:, 0], terms[:, 1], terms[:, 2])


def _refit(c: Centred, start: np.ndarray, weights: np.ndarray, delta: float) -> np.ndarray:
    """Θ (R, 5) of least Huber loss under each row of weights (R, P), from one start (1, 5) or (5,)."""
    theta = np.broadcast_to(start, (len(weights), 5)).copy()
    losses = _huber(_residual(theta, c)[0], weights, delta)
    damping, idle, live = np.full(len(weights), 1e-3), np.zeros(len(weights), int), np.arange(len(weights))
    for _ in range(ITERATIONS):
        here, w = theta[live], weights[live]
        r, jacobian = _residual(here, c)
        weighted = jacobian * (w * np.minimum(1, delta / np.maximum(np.abs(r), 1e-300)))[..., None]
        normal = weighted.transpose(0, 2, 1) @ jacobian
        diagonal = np.einsum("rii->ri", normal)
        diagonal += diagonal * damping[live, None] + 1e-15
        step = np.linalg.solve(normal, weighted.transpose(0, 2, 1) @ r[..., None])[..., 0]
        there = here - np.clip(step, -2, 2)
        there[:, :3] = np.maximum(there[:, :3], c.y.mean() + np.log(LEAST))
        there[:, 3:] = np.clip(there[:, 3:], *RANGE)
        new = _huber(_residual(there, c)[0], w, delta)
        better = new <= losses[live]
        small = losses[live] - new < ENOUGH * losses[live]
        theta[live[better]], losses[live[better]] = there[better], new[better]
        damping[live] *= np.where(better, 0.3, 4.0)
        idle[live] = np.where(better & small, idle[live] + 1, np.where(better, 0, idle[live]))
        live = live[(idle[live] < 2) & (damping[live] < 1e8)]
        if not len(live):
            break
    return theta
