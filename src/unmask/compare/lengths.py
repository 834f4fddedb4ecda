"""How many updates a study's budget buys a run, and where its milestones are.

Decided for each seed by itself: rows are packed by seed, so an update's cost differs between seeds, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from unmask.batch import Batch
from unmask.building import resolve, training_batches
from unmask.config import BudgetConfig, CheckpointConfig
from unmask.data.shards import Prepared
from unmask.errors import UserError
from unmask.networks import batch_flops
from unmask.recipe import Recipe
from unmask.train.plan import mean_cost, steps_within

EXACT = 1024
"""Updates that are all built and added up; of a longer run as many are, spread evenly over it."""


@dataclass(frozen=True)
class Budget:
    """A study's: an amount of a unit, and of minutes how long an update takes (None: not known)."""

    unit: str
    amount: float
    seconds: float | None = None

    def updates(self, recipe: Recipe, text: Prepared) -> int:
        """That it buys a run of this recipe and its seed."""
        if self.unit == "steps":
            return int(self.amount)
        if self.unit == "minutes":
            if self.seconds is None:
                raise UserError("budget.minutes: no update could be timed in so short a time, so give more minutes")
            return max(1, int(60 * self.amount / self.seconds))
        recipe = resolve(recipe, text.tokenizer)
        loader = training_batches(recipe, text)

        def flops(batch: Batch) -> float:
            return batch_flops(recipe.model, batch, recipe.objective)

        def cost(step: int) -> float:
            batches = loader(step, min(step / about, 1 - 1 / about))
            return sum(flops(b) if self.unit == "flops" else b.counts()[self.unit] for b in batches)

        given = BudgetConfig.model_validate({self.unit: self.amount})
        about = steps_within(given, loader, flops, recipe.train.begins) or 1
        if about > EXACT:
            return max(1, round(self.amount / mean_cost(recipe.train.begins(about), about, EXACT, cost)))
        spent, step, last = 0.0, 0, 0.0
        while spent < self.amount:
            last = cost(step)
            spent, step = spent + last, step + 1
        return max(1, step - (spent - self.amount > last / 2))


def shortened(recipe: Recipe, updates: int, share: float, count: int) -> tuple[Recipe, list[int]]:
    """The recipe of a run for a share of so many updates, and its milestones.

    Of a shorter run the warm-up is shortened, too. Checkpoints stay at the milestones, and none else.
    """
    steps = updates if share == 1 else max(1, round(share * updates))
    at = milestones(steps, count) if count > 1 else [steps]
    train = recipe.train
    if share != 1:
        train = train.model_copy(update={"warmup_steps": round(train.warmup_steps * share)})
    checkpoint = CheckpointConfig(at=tuple(at))
    return recipe.model_copy(update={"train": train, "budget": BudgetConfig(steps=steps), "checkpoint": checkpoint}), at


def milestones(updates: int, count: int) -> list[int]:
    """The updates nearest to equal parts of a run (of two as near the later), its end among them.

    >>> milestones(2500, 5), milestones(1003, 4), milestones(11, 4)
    ([500, 1000, 1500, 2000, 2500], [251, 502, 752, 1003], [3, 6, 8, 11])
    """
    if updates < count:
        raise UserError(
            f"the budget buys {updates} updates, too few for {count} milestones: give a larger budget, or "
            f"milestones={updates}"
        )
    return [(2 * updates * k + count) // (2 * count) for k in range(1, count + 1)]
