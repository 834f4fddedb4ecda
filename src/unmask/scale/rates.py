"""Learning rates of a ladder: trials at small budgets say how the best one falls with size and budget.

An untuned ladder's minima are false: the rate that suits a short run is too high for a long one, which then looks as
if its size were wrong (Porian et al. 2024, section 3.4; Bjorck et al. 2024 find rate ∝ D^-0.3). So

    log rate of a size at a budget = level of the size + slope · log budget

Every size tries the same rates at the same budgets. The best of a trial is where the parabola through the best rate
and its neighbours is least; a size's level is the mean of its trials, the slope that of all sizes together, 0 where
trials have one budget. Rates are factors on the recipe's own, Muon's and AdamW's alike.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from unmask.errors import UserError

SLOPES = (-0.5, 0.0)
"""Where a slope is believed: in published ladders the best rate falls with a longer run, by no more than its root."""


@dataclass(frozen=True)
class Trials:
    """Of every size: so many learning rates, a factor of 2 apart, at each of these budgets (FLOPs)."""

    count: int
    budgets: tuple[float, ...]


@dataclass(frozen=True)
class Trial:
    """What one size at one budget made of each factor of the recipe's rates."""

    size: float
    flops: float
    factors: Sequence[float]
    losses: Sequence[float | None]
    """None: diverged."""

    @property
    def best(self) -> float:
        """The factor of least loss.

        >>> Trial(1e6, 1e12, [0.5, 1, 2], [3.01, 3.0, 3.01]).best
        1.0
        >>> round(Trial(1e6, 1e12, [0.5, 1, 2], [3.001, 3.0, 3.201]).best, 2)  # between the first two
        0.71
        >>> Trial(1e6, 1e12, [0.5, 1, 2], [3.3, 3.2, None]).best
        1.0
        """
        at, losses = self._least, self.losses
        if not 0 < at < len(losses) - 1:
            return float(self.factors[at])
        before, here, after = losses[at - 1], losses[at], losses[at + 1]
        if before is None or here is None or after is None or before - 2 * here + after <= 0:
            return float(self.factors[at])
        shift = (before - after) / (2 * (before - 2 * here + after))
        return float(self.factors[at] * (self.factors[at + 1] / self.factors[at]) ** shift)

    @property
    def edge(self) -> bool:
        """The best factor is the first or the last that was tried: a better one may lie beyond."""
        return self._least in (0, len(self.losses) - 1)

    @property
    def _least(self) -> int:
        known = [k for k, loss in enumerate(self.losses) if loss is not None]
        if not known:
            raise UserError(
                f"every learning rate tried for {self.size:.3g} parameters diverged: lower train.learning_rate or "
                "lengthen train.warmup_steps"
            )
        return min(known, key=lambda k: self.losses[k] or 0.0)


@dataclass(frozen=True)
class Rates:
    """Factors on the recipe's learning rates: a level for each size, and how they fall with the budget."""

    levels: Mapping[float, float]
    """Size → log factor at a budget of 1 FLOP."""
    slope: float

    def factor(self, size: float, flops: float) -> float:
        """To three digits, so that it is read and compared.

        >>> Rates({1e6: 0.0}, -0.5).factor(1e6, 4.0)
        0.5
        """
        return float(f"{math.exp(self.levels[size] + self.slope * math.log(flops)):.3g}")


def rule(trials: Sequence[Trial], slope: float | None = None) -> Rates:
    """The rates that trials tell; slope: the one of earlier trials.

    >>> short, long = (Trial(1e6, 1e11, [0.5, 1], [2, 1]), Trial(1e6, 1e12, [0.5, 1], [1, 2]))
    >>> found = rule([short, long])  # from 1 to 1/2 over a factor of ten
    >>> round(found.slope, 3), found.factor(1e6, 1e12), found.factor(1e6, 1e13)
    (-0.301, 0.5, 0.25)
    """
    sizes = sorted({t.size for t in trials})
    of = {n: [(math.log(t.flops), math.log(t.best)) for t in trials if t.size == n] for n in sizes}
    means = {n: (fmean(x for x, _ in of[n]), fmean(y for _, y in of[n])) for n in sizes}
    if slope is None:
        off = [(x - means[n][0], y - means[n][1]) for n in sizes for x, y in of[n]]
        spread = sum(x * x for x, _ in off)
        slope = float(np.clip(sum(x * y for x, y in off) / spread, *SLOPES)) if spread else 0.0
    return Rates({n: y - slope * x for n, (x, y) in means.items()}, slope)


def keep(rates: Rates, trials: Trials, file: Path) -> None:
    """Written once: what a ladder has begun with stays, also when sizes and budgets are added."""
    held = {"trials": asdict(trials), "slope": rates.slope, "levels": {repr(n): v for n, v in rates.levels.items()}}
    file.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")


def kept(trials: Trials | None, file: Path) -> Rates | None:
    """The rates that a ladder was begun with."""
    if not file.exists():
        return None
    try:
        held: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        before = Trials(int(held["trials"]["count"]), tuple(held["trials"]["budgets"]))
        rates = Rates({float(n): float(v) for n, v in held["levels"].items()}, float(held["slope"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file} cannot be read ({error}): restore it, or give another out=") from error
    if trials != before:
        asked = f"tune=lr:{before.count}:{','.join(f'{b:g}' for b in before.budgets)}"
        raise UserError(f"{file.parent} was begun with {asked}: resume it with the same, or give another out=")
    return rates
