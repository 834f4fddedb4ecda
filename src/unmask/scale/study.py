"""A scaling study: the law with its intervals, other estimators beside it, a held-out larger run, best N and D."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from unmask import keyed
from unmask.errors import UserError, nearest
from unmask.scale.fit import RESAMPLES, bootstrap, drawn, fit, interval, named, project, spread
from unmask.scale.isoflop import Minimum, PowerLaw, minima, power_law
from unmask.scale.law import NAMES, Costs, Law, laws
from unmask.scale.points import Counted, Points

HoldOut = Literal["none", "largest"]
PROJECTIONS = 200
"""Resamples of variable projection, which takes a millisecond each."""
LEAST_RESAMPLES = 100
SCATTERED = 0.05
"""Of log loss about the law: runs of one recipe lie within a percent or two."""
NOTHING = 1e-6
"""Nats."""
LEAST = 1.0
"""Parameters and tokens that there are at the least, whatever a resampled law says."""
AHEAD = 10
"""Times the largest budget: where the best N and D are asked for if no budget is given."""


@dataclass(frozen=True)
class Asked:
    """What is asked of points.

    holdout: largest leaves the runs of the largest budget out of every fit and predicts them.
    budgets: FLOPs to find the best N and D for; without one, ten times the largest fitted.
    seed: of the resamples.
    """

    counted: Counted = "all"
    holdout: HoldOut = "none"
    budgets: Sequence[float] = ()
    resamples: int = RESAMPLES
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, known in (("n-counts", self.counted, Counted), ("holdout", self.holdout, HoldOut)):
            if value not in get_args(known):
                raise UserError(
                    f"{name}={value} is none of {', '.join(get_args(known))}{nearest(value, get_args(known))}"
                )
        if wrong := [b for b in self.budgets if not (np.isfinite(b) and b > 0)]:
            raise UserError(f"budget={wrong[0]:g} is no number of FLOPs: give one such as 1e18")
        if self.resamples < LEAST_RESAMPLES:
            raise UserError(
                f"resamples={self.resamples} gives no interval: give at least {LEAST_RESAMPLES}, such as {RESAMPLES}"
            )


@dataclass(frozen=True)
class Estimate:
    name: str
    value: float
    interval: tuple[float, float]
    """95 %."""


@dataclass(frozen=True)
class Method:
    """One estimate of a, where the best N grows as C^a."""

    method: str
    exponent: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Held:
    """A larger run that the law has not seen."""

    name: str
    n: float
    d: float
    flops: float
    loss: float
    predicted: float
    interval: tuple[float, float]
    """95 % for a single run: of the law, and of the points' scatter about it."""
    error: float
    """predicted / loss − 1."""

    @property
    def error_interval(self) -> tuple[float, float]:
        """The same of the interval's ends: it holds 0 where the interval holds the loss."""
        low, high = (end / self.loss - 1 for end in self.interval)
        return low, high


@dataclass(frozen=True)
class Best:
    """Best size and text for a budget, and the loss that they promise."""

    flops: float
    counted: str
    """"6 N D", or "formula": FLOPs a token as the runs counted them."""
    n: float
    n_interval: tuple[float, float]
    d: float
    d_interval: tuple[float, float]
    loss: float
    loss_interval: tuple[float, float]
    beyond: float
    """The budget over the largest that was fitted."""


@dataclass(frozen=True)
class Study:
    counted: Counted
    points: Points
    """Those that were fitted."""
    law: Law
    resamples: np.ndarray
    """(R, 5) laws."""
    estimates: list[Estimate]
    methods: list[Method]
    projected: Law
    minima: list[Minimum]
    power: PowerLaw | None
    spread: float
    between: float | None
    """Of log loss between runs that differ by their seed alone, a standard deviation; None where there are none."""
    costs: Costs
    held: list[Held]
    best: list[Best]
    notes: list[str]

    def best_at(self, law: Law, flops: float) -> tuple[np.ndarray, np.ndarray]:
        """The best N and D of laws (R, 1), by what a token costs; (R, 1) each."""
        n, d = law.best(flops) if self.costs.plain else law.best_at(flops, self.costs)
        n, d = (np.maximum(np.reshape(v, (-1, 1)), LEAST) for v in (n, d))
        return n, d

    def summary(self) -> dict[str, Any]:
        """Everything but the points and the resamples, for JSON."""
        return {
            "n_counts": self.counted,
            "points": len(self.points),
            "law": named(self.law),
            "intervals": {e.name: e.interval for e in self.estimates},
            "projection": named(self.projected),
            "spread": self.spread,
            "between_seeds": self.between,
            **{key: getattr(self, key) for key in ("methods", "minima", "held", "best", "notes")},
        }


def study(points: Points, asked: Asked, costs: Costs | None = None) -> Study:
    """Fit the law and everything beside it. costs: FLOPs a token by size; without it, those of the points."""
    kept, left = points, None
    if asked.holdout == "largest":
        *smaller, largest = points.budgets()
        if len(smaller) < 2:
            raise UserError(
                f"holdout=largest leaves {len(smaller)} of {len(smaller) + 1} budgets: fit at least 2, or hold none out"
            )
        kept, left = points.take(np.setdiff1d(np.arange(len(points)), largest)), points.take(largest)
    law = fit(kept)
    rows = bootstrap(kept, law, asked.resamples, asked.seed)
    costs, top = costs or points.costs(), float(kept.flops.max())
    projected, method = _projected(kept, min(asked.resamples, PROJECTIONS), asked.seed)
    power, found = power_law(kept, asked.resamples, asked.seed), minima(kept)
    methods = [Method("law", float(law.exponent), interval(laws(rows).exponent)), method]
    if power is not None:
        methods.append(Method("parabolas", power.a, power.interval))
    return Study(
        asked.counted,
        kept,
        law,
        rows,
        [_estimate(k, v, rows[:, i]) for i, (k, v) in enumerate(named(law).items())],
        methods,
        projected,
        found,
        power,
        spread(kept, law),
        kept.between(),
        costs,
        [] if left is None else _held(kept, left, law, rows, asked.seed),
        [b for c in asked.budgets or (AHEAD * top,) for b in best(law, rows, c, costs, top)],
        _notes(rows, found, spread(kept, law)),
    )


def _estimate(name: str, value: float, resamples: np.ndarray) -> Estimate:
    """E is searched by its logarithm, which has no 0: what is next to nothing is shown as 0."""
    value, low, high = (0.0 if name == "E" and v < NOTHING else v for v in (value, *interval(resamples)))
    return Estimate(name, value, (low, high))


def best(law: Law, rows: np.ndarray, flops: float, costs: Costs, top: float) -> list[Best]:
    """Best N and D of a budget, by 6 N D and, where that differs, by the FLOPs that a token costs."""
    many, out = laws(rows), []
    for counted in ("6 N D",) if costs.plain else ("6 N D", "formula"):
        exact = counted == "formula"
        n, d = law.best_at(flops, costs) if exact else law.best(flops)
        ns, ds = many.best_at(flops, costs) if exact else many.best(flops)
        ns, ds = (np.maximum(np.ravel(v), LEAST) for v in (ns, ds))
        each = many.loss(ns[:, None], ds[:, None])
        at = float(np.ravel(n)[0]), float(np.ravel(d)[0])
        loss = float(law.loss(*at))
        out.append(Best(flops, counted, at[0], interval(ns), at[1], interval(ds), loss, interval(each), flops / top))
    return out


def _projected(points: Points, resamples: int, seed: int) -> tuple[Law, Method]:
    """Variable projection of the points and of their resamples, each begun at the first's exponents."""
    law = project(points)
    start = float(law.alpha), float(law.beta)
    each = [project(points, w, start).exponent for w in drawn(len(points), resamples, seed)]
    return law, Method("projection", float(law.exponent), interval(np.array(each)))


def _held(kept: Points, left: Points, law: Law, rows: np.ndarray, seed: int) -> list[Held]:
    """What the law says of runs it has not seen; the scatter is that of its own points, widened for five numbers."""
    r = np.log(kept.loss / law.loss(kept.n, kept.d)) * np.sqrt(len(kept) / max(len(kept) - len(NAMES), 1))
    key = keyed.row_keys(seed, 0, np.arange(len(rows)), "scale held out")
    out = []
    for i in range(len(left)):
        drawn_at = keyed.below(keyed.bits(key, np.full(len(rows), i)), len(r))
        single = laws(rows).loss(left.n[i], left.d[i])[:, 0] * np.exp(r[drawn_at])
        predicted, loss = float(law.loss(left.n[i], left.d[i])), float(left.loss[i])
        at = float(left.n[i]), float(left.d[i]), float(left.flops[i])
        out.append(Held(left.names[i], *at, loss, predicted, interval(single), predicted / loss - 1))
    return out


def _notes(rows: np.ndarray, found: Sequence[Minimum], off: float) -> list[str]:
    """What a reader must know before believing the numbers."""
    notes = []
    if off > SCATTERED:
        notes.append(f"the runs lie {100 * off:.2g} % off the law: are all losses of one kind (tokenizer, text, nats)?")
    low, high = _estimate("E", 0.0, rows[:, 0]).interval
    if low <= 0.5 * high:
        notes.append(
            f"E is hardly known ({low:.3g} to {high:.3g}): the losses are far above it, and the law is safe within the "
            "ladder only"
        )
    for k, name, what in ((3, "alpha", "sizes"), (4, "beta", "amounts of text")):
        low, high = interval(rows[:, k])
        if low < 0.5 * high:
            notes.append(f"{name} is hardly known ({low:.3g} to {high:.3g}): a wider range of {what} would tell it")
    edge = [m for m in found if not m.inside]
    if edge:
        where = ", ".join(f"{m.flops:.2g}" for m in edge)
        notes.append(f"no minimum among the sizes tried at {where} FLOPs: the parabolas leave these budgets out")
    if not found:
        notes.append("no budget has three sizes: there are no parabolas")
    return notes
