"""The law L(N, D) = E + A / N^α + B / D^β (Hoffmann et al. 2022, equation 2), and what follows from it.

N parameters, D tokens, L loss in nats a token. E is what no model can know, A / N^α what a model of finite size
lacks, B / D^β what finite text leaves unlearned. With C FLOPs at 6 N a token, L is least at

    N = G (C / 6)^(β / (α + β)),   D = (C / 6)^(α / (α + β)) / G,   G = (α A / (β B))^(1 / (α + β))

Every number may be an array of shape (R, 1), one law in each row: the resamples of a bootstrap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Numbers = Any
"""A float, or an array that broadcasts with the others."""
FINITE = 500.0
"""Largest log N: a resample that knows next to nothing of the sizes asks for more than a number can hold."""
NAMES = ("E", "A", "B", "alpha", "beta")
FLOPS_A_PARAMETER = 6
"""Of training, for each token: 2 forward, 4 backward (Kaplan et al. 2020, section 2.1)."""
SIZES = 1024
"""Sizes that are tried where the FLOPs of a token are no plain formula."""
BEYOND = 1e3
"""How far from the sizes of the costs that are known a best size is looked for."""


@dataclass(frozen=True)
class Law:
    """
    >>> round(float(REFIT.loss(70e9, 1.4e12)), 3)  # of Chinchilla
    1.974
    """

    E: Numbers
    A: Numbers
    B: Numbers
    alpha: Numbers
    beta: Numbers

    def loss(self, n: Numbers, d: Numbers) -> np.ndarray:
        n, d = np.asarray(n, np.float64), np.asarray(d, np.float64)
        return self.E + self.A * n**-self.alpha + self.B * d**-self.beta

    @property
    def exponent(self) -> Numbers:
        """a of the best N ∝ C^a.

        >>> round(REFIT.exponent, 3)
        0.513
        """
        return self.beta / (self.alpha + self.beta)

    def best(self, flops: float) -> tuple[Numbers, Numbers]:
        """The N and D of least loss whose 6 N D is `flops`.

        >>> n, d = REFIT.best(5.76e23)  # Gopher's; Chinchilla took 70e9 and 1.4e12
        >>> f"{n:.3g} {d:.3g} {d / n:.1f}"
        '7.22e+10 1.33e+12 18.4'
        """
        pairs = flops / FLOPS_A_PARAMETER
        log_g = np.log(self.alpha * self.A / (self.beta * self.B)) / (self.alpha + self.beta)
        n = np.exp(np.clip(log_g + self.exponent * np.log(pairs), -FINITE, FINITE))
        return n, pairs / n

    def best_at(self, flops: float, costs: Costs) -> tuple[np.ndarray, np.ndarray]:
        """The same where a token of a model of size N costs `costs(N)` FLOPs.

        Sizes are tried on a logarithmic grid (of BEYOND times what is known on either side); the parabola through
        the least loss and its neighbours says the rest.
        """
        low, high = costs.sizes[0] / BEYOND, costs.sizes[-1] * BEYOND
        x = np.linspace(np.log(low), np.log(high), SIZES)
        losses = np.atleast_2d(self.loss(np.exp(x), flops / costs(np.exp(x))))
        at = np.clip(losses.argmin(1), 1, SIZES - 2)
        rows = np.arange(len(losses))
        before, here, after = (losses[rows, at + k] for k in (-1, 0, 1))
        bend = before - 2 * here + after
        shift = np.divide(before - after, 2 * bend, out=np.zeros_like(bend), where=bend > 0)
        n = np.exp(x[at] + np.clip(shift, -1, 1) * (x[1] - x[0]))
        return n, flops / costs(n)

    def row(self) -> np.ndarray:
        """(…, 5) in the order of NAMES."""
        return np.concatenate(np.broadcast_arrays(*(np.atleast_1d(getattr(self, k)) for k in NAMES)), axis=-1)


@dataclass(frozen=True)
class Costs:
    """FLOPs a token of training, at known sizes in rising order; between them a power law, beyond them as 6 N would.

    >>> costs = Costs([1e6, 4e6], [8e6, 28e6])
    >>> [round(float(costs(n)) / 1e6, 1) for n in (5e5, 1e6, 2e6, 4e6, 8e6)]
    [4.0, 8.0, 15.0, 28.0, 56.0]
    """

    sizes: Sequence[float]
    flops: Sequence[float]

    @property
    def plain(self) -> bool:
        """They are 6 N.

        >>> Costs([1e6, 4e6], [6e6, 24e6]).plain, Costs([1e6, 4e6], [8e6, 28e6]).plain
        (True, False)
        """
        return bool(np.allclose(np.array(self.flops) / self.sizes, FLOPS_A_PARAMETER, rtol=1e-3))

    def __call__(self, n: Numbers) -> np.ndarray:
        n, sizes = np.asarray(n, np.float64), np.asarray(self.sizes, np.float64)
        over = np.asarray(self.flops, np.float64) / sizes  # FLOPs for each parameter: flat beyond the ends
        return n * np.exp(np.interp(np.log(n), np.log(sizes), np.log(over)))


REFIT = Law(1.8172, 482.01, 2085.43, 0.3478, 0.3658)
"""Chinchilla's data fitted again (Besiroglu et al. 2024, "Chinchilla scaling: a replication attempt", table 1)."""


def laws(rows: np.ndarray) -> Law:
    """(R, 5) numbers as one Law whose every number has shape (R, 1)."""
    return Law(*(rows[:, k : k + 1] for k in range(5)))
