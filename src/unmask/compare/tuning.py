"""The same tuning for every entry: so many learning rates, each for the same share of the budget, on its own seed.

Rates stand a factor of 2 apart around the recipe's, which is one of them; Muon's rate is scaled with AdamW's. A trial
is a run in small: its schedule ends with its share of the budget, and its warm-up is shortened by that share. Chosen is
the rate with the least held-out loss of the entry's own objective, on the half of the held-out documents that measures
no run (`halves`), or on all of them where they are few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unmask.compare.results import Tuning
from unmask.compare.settings import Tune
from unmask.config import TrainConfig
from unmask.errors import UserError
from unmask.recipe import Recipe

APART = 2.0
MEASURE = "held-out loss of its own objective"


def factors(count: int) -> list[float]:
    """What the recipe's rate is multiplied by, ascending.

    >>> factors(4), factors(3)
    ([0.5, 1.0, 2.0, 4.0], [0.5, 1.0, 2.0])
    """
    return [APART ** (k - (count - 1) // 2) for k in range(count)]


def scaled(train: TrainConfig, factor: float) -> TrainConfig:
    """Both optimizers' peak rates times a factor."""
    rates = {k: getattr(train, k) * factor for k in ("learning_rate", "muon_learning_rate")}
    return train.model_copy(update=rates)


def trial(recipe: Recipe, tune: Tune, factor: float) -> Recipe:
    """The recipe of a trial, whose length is not decided yet (`lengths.shortened`)."""
    return recipe.model_copy(update={"train": scaled(recipe.train, factor), "seed": tune.seed})


def chosen(name: str, recipe: Recipe, tune: Tune, found: Sequence[Mapping[str, Any]]) -> tuple[float, Tuning]:
    """The best factor of an entry, and the record of its trials."""
    all_factors = factors(tune.count)
    losses = [t["loss"] for t in found]
    known = [k for k, loss in enumerate(losses) if loss is not None]
    if not known:
        raise UserError(
            f"every learning rate tried for {name} diverged: lower train.learning_rate, lengthen train.warmup_steps or "
            "look at the data"
        )
    best = min(known, key=lambda k: losses[k])
    values = [scaled(recipe.train, f).learning_rate for f in all_factors]
    record = Tuning(
        setting=tune.setting,
        values=values,
        losses=losses,
        measure=MEASURE,
        chosen=values[best],
        edge=best in (0, len(values) - 1),
        falling=bool(found[best]["falling"]),
        flops=sum(t["flops"] for t in found),
        seconds=sum(t["seconds"] for t in found),
        seed=tune.seed,
    )
    return all_factors[best], record
