"""A ladder of sizes × budgets × seeds: what each run is, and what a token of it costs (`runs` trains them).

Sizes are those of `model.advise` under the recipe's own switches and vocabulary. A run's schedule ends with its budget
(Hoffmann et al. 2022, section 3.1), and its warm-up takes at most a tenth of it (Porian et al. 2024: a fixed warm-up
holds small models back). Learning rates are the recipe's, times a factor that trials tell where they are asked for
(`rates`). All else is the recipe's, so a ladder tells about *this* recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from unmask.batch import Batch
from unmask.building import resolve, training_loader
from unmask.chart import label
from unmask.compare.tuning import scaled
from unmask.config import BudgetConfig, ModelConfig
from unmask.data.cache import cache_folder
from unmask.data.prepare import prepare
from unmask.data.shards import Prepared
from unmask.description import kept_heads
from unmask.errors import UserError
from unmask.model.advise import resized
from unmask.model.spec import parameters, parts
from unmask.networks import batch_flops
from unmask.recipe import Recipe
from unmask.scale.law import FLOPS_A_PARAMETER, Costs
from unmask.scale.points import Counted
from unmask.scale.rates import Rates

Say = Callable[[str], None]
SAMPLE = 4
"""Updates whose batches say what a token costs."""
LEAST_UPDATES = 20
"""Of a run: fewer are no training."""
WARM_UP = 0.1
EPOCHS = 4
"""From here on another token of the same text is worth clearly less than a new one (Muennighoff et al. 2023)."""
OUTSIDE = ("token embeddings", "positions", "token types", "query vector")
"""Parts that `body` leaves out, with all heads."""
LARGER, SHAPES = 1000, 13
"""Costs are known by formula up to so many times the largest size, at so many shapes."""


@dataclass(frozen=True)
class Sampled:
    """The recipe with its tokenizer known, its text, and some of its batches."""

    recipe: Recipe
    text: Prepared
    updates: list[list[Batch]]

    @property
    def tokens(self) -> float:
        """Of an update."""
        return sum(b.counts()["tokens"] for batches in self.updates for b in batches) / len(self.updates)

    def flops(self, config: ModelConfig) -> float:
        """Of an update of this model, by formula."""
        every = (batch_flops(config, b, self.recipe.objective) for batches in self.updates for b in batches)
        return sum(every) / len(self.updates)

    def cost(self, config: ModelConfig) -> float:
        """FLOPs a token."""
        return self.flops(config) / self.tokens


@dataclass(frozen=True)
class Cell:
    """One run of the ladder; runs of one rung differ by their seed alone."""

    name: str
    rung: str
    recipe: Recipe
    body: int
    """Parameters of the layers and their norms."""
    updates: int
    place: Path


def sampled(recipe: Recipe, cache: str | Path | None, say: Say) -> Sampled:
    """Prepare the text once, for every run, and look at what a token costs."""
    if recipe.init is not None:
        raise UserError("a ladder trains every size from nothing: leave init= out")
    if recipe.train.stages:
        raise UserError("a ladder's runs have one context and one batch size: leave train.stages out")
    if recipe.corpus.stream:
        raise UserError(
            "a ladder says how often its runs repeat their text, which of a stream is not known: leave stream"
        )
    text = prepare(recipe.corpus, recipe.valid, recipe.tokenizer, cache_folder(cache), say)
    loader = training_loader(resolve(recipe, text.tokenizer), text)
    return Sampled(recipe, text, [loader(step) for step in range(SAMPLE)])


def shaped(given: Sampled, target: float) -> ModelConfig:
    """The recipe's model at about `target` parameters."""
    model = given.recipe.model
    values = {k: getattr(model, k) for k in ("hidden_size", "num_heads", "num_layers")}
    values |= model.model_dump(exclude_unset=True, exclude_defaults=True)
    values["vocab_size"] = model.vocab_size or given.text.tokenizer.vocabulary.size
    try:
        sized = resized(values, target)
    except UserError as error:
        raise UserError(
            f"the recipe's model cannot have {label(target)} parameters with a vocabulary of {values['vocab_size']}: "
            "give larger sizes=, or a smaller tokenizer.vocab_size="
        ) from error
    except ValidationError as error:  # a setting that no other width can have
        raise UserError(
            f"the recipe's model cannot be made {label(target)} parameters large: set model.hidden_size= and "
            f"model.num_heads= to heads of 32, 64 or 128 ({error.errors()[0]['msg']})"
        ) from error
    return sized.model_copy(update={"visibility": given.recipe.objective.visibility})


def cells(
    given: Sampled,
    sizes: Sequence[float],
    budgets: Sequence[float],
    out: Path,
    seeds: int = 1,
    rates: Rates | None = None,
) -> list[Cell]:
    """Every size with every budget and seed, largest budget first; rates: None = the recipe's for all."""
    for name, values in (("sizes", sizes), ("budgets", budgets)):
        if len(set(values)) != len(values) or not values or min(values) <= 0:
            raise UserError(f"{name}= wants different numbers above 0, such as {name}=1e6,2e6,4e6")
    shapes = {size: shaped(given, size) for size in sorted(sizes)}
    if len({c.model_dump_json() for c in shapes.values()}) < len(shapes):
        raise UserError(f"two of sizes={', '.join(map(label, sizes))} give the same model: set them further apart")
    return [
        cell(given, size, config, budget, out / "runs", k, 1.0 if rates is None else rates.factor(size, budget))
        for budget in sorted(budgets)[::-1]
        for size, config in shapes.items()
        for k in range(seeds)
    ]


def cell(
    given: Sampled, size: float, config: ModelConfig, budget: float, folder: Path, seed: int = 0, factor: float = 1.0
) -> Cell:
    """A model with a budget; `seed` is added to the recipe's."""
    updates = budget / given.flops(config)
    if updates < LEAST_UPDATES:
        raise UserError(
            f"a budget of {budget:.3g} FLOPs buys {updates:.1f} updates of the model of {label(size)} parameters: give "
            f"at least {LEAST_UPDATES * given.flops(config):.2g}, or a smaller train.batch_size="
        )
    warm = min(given.recipe.train.warmup_steps, int(WARM_UP * updates))
    recipe = given.recipe.model_copy(
        update={
            "model": config.model_copy(update={"vocab_size": given.recipe.model.vocab_size}),
            "budget": BudgetConfig(flops=budget),
            "train": scaled(given.recipe.train, factor).model_copy(update={"warmup_steps": warm}),
            "seed": given.recipe.seed + seed,
        }
    )
    rung = f"{label(size)}-{budget:.3g}".replace("+", "")
    name = f"{rung}-seed{recipe.seed}" if seed else rung
    resolved = resolve(recipe, given.text.tokenizer)
    return Cell(name, rung, resolved, body(given, config), max(1, int(updates)), folder / name)


def body(given: Sampled, config: ModelConfig) -> int:
    """Parameters of the layers and their norms."""
    held = parts(config, kept_heads(given.recipe.objective))
    return sum(p.total for p in held if p.part not in OUTSIDE and not p.part.startswith("head "))


def costs(given: Sampled, sizes: Sequence[float], counted: Counted) -> Costs:
    """FLOPs a token by formula, over the recipe's shapes from the smallest size to far beyond the largest."""
    found: dict[float, float] = {}
    for target in np.geomspace(min(sizes), LARGER * max(sizes), SHAPES):
        config = shaped(given, float(target))
        cost = given.cost(config)
        if counted == "flops":
            n = cost / FLOPS_A_PARAMETER
        else:
            n = body(given, config) if counted == "body" else parameters(config, kept_heads(given.recipe.objective))
        found[n] = cost
    return Costs(sorted(found), [found[n] for n in sorted(found)])
