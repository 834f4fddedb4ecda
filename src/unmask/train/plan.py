"""How many updates a run takes, decided once and written down.

A budget in steps is the plan. One in tokens, target tokens or FLOPs is turned into steps by building (not
training) a sample of the run's own batches. One in minutes is timed over the first updates; from then on the
number of updates is fixed. `plan.json` keeps the decision, so a resumed run replays it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from unmask.batch import Batch
from unmask.config import BudgetConfig, TrainConfig
from unmask.errors import UserError
from unmask.train.checkpoint import write_json

FORMAT = 1
SAMPLE = 64
"""Updates whose batches are built to find the mean cost of one."""
CALIBRATION_SHARE, CALIBRATION_SECONDS, CALIBRATION_STEPS = 0.03, 2.0, 5
"""A run in minutes is timed over this share of it, at least so many seconds and so many updates."""

Begins = Callable[[int], Sequence[int]]
"""Updates of a run → the first update of each of its stages (`TrainConfig.begins`)."""


@dataclass(frozen=True)
class Plan:
    """What a resumed run must do again without deciding."""

    total_steps: int
    budget: dict[str, float]
    """The budget that the plan answers, e.g. {"minutes": 5}."""
    precision: str
    precision_reason: str
    calibration_steps: int = 0
    """The first updates, run before `total_steps` was known: progress 0 and warm-up rates only."""
    seconds_per_step: float | None = None
    """As measured by the calibration."""
    micro_batches: int | None = None
    """Of an update: train.grad_accumulation, or the ranks that the run was started on where those are more. A run that
    goes on elsewhere is cut up alike, so dropout stays as well. None = grad_accumulation (plans of older versions)."""
    compile: bool | None = None
    """Whether the run's networks are compiled (`worth`); None = as its recipe has it (plans of older versions)."""
    compile_reason: str = ""

    def write(self, path: Path) -> None:
        write_json(path, {"format": FORMAT, **asdict(self)})


def read_plan(path: Path) -> Plan | None:
    """The plan that was written down, or None."""
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values.pop("format") != FORMAT:
            raise UserError(f"{path} has another format than {FORMAT}: it was written by another version of unmask")
        return Plan(**values)
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is not a plan of a run ({error}): restore it, or start the run anew") from error


def given(budget: BudgetConfig) -> dict[str, float]:
    """The one unit that the budget is given in."""
    return {k: v for k, v in budget.model_dump().items() if v is not None}


def steps_within(
    budget: BudgetConfig,
    batches: Callable[[int, float], list[Batch]],
    flops: Callable[[Batch], float],
    begins: Begins = lambda total: [0],
) -> int | None:
    """The number of updates a budget buys; None for minutes.

    The mean cost of an update comes from `SAMPLE` updates spread evenly over each stage of the run (noise rates and
    text may change along it). Their spread needs the number of updates, so the estimate is made three times.
    """
    steps = _bought(budget, batches, flops, begins)
    if steps is not None:
        _require_stages(begins(steps), steps)
    return steps


def _bought(
    budget: BudgetConfig,
    batches: Callable[[int, float], list[Batch]],
    flops: Callable[[Batch], float],
    begins: Begins,
) -> int | None:
    if budget.steps is not None:
        return budget.steps
    if budget.minutes is not None:
        return None
    ((unit, amount),) = given(budget).items()

    def cost(step: int) -> float:
        return sum(flops(b) if unit == "flops" else b.counts()[unit] for b in batches(step, step / steps))

    steps = SAMPLE
    for _ in range(3):
        mean = mean_cost(begins(steps), steps, SAMPLE, cost)
        if mean <= 0:
            raise UserError(f"budget.{unit}={amount:g}: the batches hold no {unit.replace('_', ' ')} to count")
        steps = max(1, round(amount / mean))
    return steps


def mean_cost(begins: Sequence[int], total: int, count: int, cost: Callable[[int], float]) -> float:
    """Of an update, in a run of `total`: by `count` of each of its stages, spread evenly, each stage by its length.

    >>> mean_cost([0, 6], 10, 4, lambda step: 5.0 if step < 6 else 10.0)
    7.0
    """
    mean = 0.0
    for begin, end in pairwise([*begins, total]):
        some = spread(begin, end, count)
        mean += sum(map(cost, some)) / max(len(some), 1) * ((end - begin) / total)
    return mean


def spread(begin: int, end: int, count: int) -> list[int]:
    """`count` updates spread evenly from `begin` on to `end`, which is none of them; all, where there are fewer.

    >>> spread(0, 10, 4), spread(6, 9, 4)
    ([0, 2, 5, 7], [6, 7, 8])
    """
    return sorted({begin + i * (end - begin) // count for i in range(count)} - {end})


def _require_stages(begins: Sequence[int], total: int) -> None:
    for k, (begin, end) in enumerate(pairwise([*begins, total]), 1):
        if begin == end:
            raise UserError(
                f"train.stages: stage {k} of {len(begins)} would have no update in a run of {total}: give it a larger "
                "share, or the run a larger budget"
            )


class Calibration:
    """Times the first updates of a run in minutes."""

    def __init__(self, minutes: float, train: TrainConfig) -> None:
        self.budget = 60.0 * minutes
        self.times: list[float] = []
        self.enough = max(CALIBRATION_SECONDS, CALIBRATION_SHARE * self.budget)
        self.longest = max(CALIBRATION_STEPS, train.warmup_steps)

    def add(self, seconds: float) -> bool:
        """Note one update's time; True when enough are known or the warm-up is over."""
        self.times.append(seconds)
        n, spent = len(self.times), sum(self.times)
        if spent >= self.budget:
            return True
        return n >= self.longest or (n >= CALIBRATION_STEPS and spent >= self.enough)

    @property
    def seconds_per_step(self) -> float:
        """The mean without the first two updates, which pay for allocations and kernel selection."""
        settled = self.times[2:] or self.times
        return sum(settled) / len(settled)

    @property
    def total_steps(self) -> int:
        """The updates done, and as many more as the rest of the budget holds."""
        rest = (self.budget - sum(self.times)) / self.seconds_per_step
        return len(self.times) + max(0, math.floor(rest))


def same_budget(plan: Plan, budget: BudgetConfig, path: Path) -> None:
    """A run keeps its plan: another budget on resuming is an error, since schedule and noise depend on it."""
    now: dict[str, Any] = given(budget)
    if plan.budget != now:
        was, asked = (" ".join(f"budget.{k}={v:g}" for k, v in b.items()) for b in (plan.budget, now))
        raise UserError(
            f"{path.parent} was planned with {was}, not {asked}: "
            "resume it with the same budget, or start a new run from its weights with init="
        )
