"""A ladder of sizes × budgets: every model is trained for every budget of FLOPs, each run in a process of its own.

    out/points.jsonl   a line for each run: n, n_body, d, flops, loss, … (`points`)
    out/runs/NAME/     the run, as `unmask pretrain` writes it; NAME.yaml its recipe, NAME.log what it said

Sizes are those of `model.advise` under the recipe's own switches and vocabulary. A run's schedule ends with its budget
(Hoffmann et al. 2022, section 3.1), and its warm-up takes at most a tenth of it (Porian et al. 2024: a fixed warm-up
holds small models back). All else is the recipe's, the learning rates too, so a ladder tells about *this* recipe.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.batch import Batch
from unmask.chart import label
from unmask.config import BudgetConfig, ModelConfig
from unmask.data.cache import cache_folder
from unmask.data.prepare import prepare
from unmask.data.shards import Prepared
from unmask.description import kept_heads
from unmask.directory import same, stored_recipe
from unmask.errors import UserError
from unmask.model.advise import resized
from unmask.model.spec import parameters, parts
from unmask.recipe import Recipe, dump
from unmask.run import batch_flops, resolve, training_loader
from unmask.scale.law import FLOPS_A_PARAMETER, Costs
from unmask.scale.points import Counted

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
POLL = 0.2


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
    """One run of the ladder."""

    name: str
    recipe: Recipe
    body: int
    place: Path

    @property
    def done(self) -> bool:
        return (self.place / "result.json").is_file()


def sampled(recipe: Recipe, cache: str | Path | None, say: Say) -> Sampled:
    """Prepare the text once, for every run, and look at what a token costs."""
    if recipe.init is not None:
        raise UserError("a ladder trains every size from nothing: leave init= out")
    text = prepare(recipe.corpus, recipe.valid, recipe.tokenizer, cache_folder(cache), say)
    loader = training_loader(resolve(recipe, text.tokenizer), text)
    return Sampled(recipe, text, [loader(step) for step in range(SAMPLE)])


def shaped(given: Sampled, target: float) -> ModelConfig:
    """The recipe's model at about `target` parameters."""
    model = given.recipe.model
    values = {k: getattr(model, k) for k in ("hidden_size", "num_heads", "num_layers")}
    values |= model.model_dump(exclude_unset=True)
    values["vocab_size"] = model.vocab_size or given.text.tokenizer.vocabulary.size
    try:
        sized = resized(values, target)
    except UserError as error:
        raise UserError(
            f"the recipe's model cannot have {label(target)} parameters with a vocabulary of {values['vocab_size']}: "
            "give larger sizes=, or a smaller tokenizer.vocab_size="
        ) from error
    return sized.model_copy(update={"visibility": given.recipe.objective.visibility})


def cells(given: Sampled, sizes: Sequence[float], budgets: Sequence[float], out: Path) -> list[Cell]:
    """Every size with every budget, largest budget first: the longest runs start before the short ones."""
    for name, values in (("sizes", sizes), ("budgets", budgets)):
        if len(set(values)) != len(values) or not values or min(values) <= 0:
            raise UserError(f"{name}= wants different numbers above 0, such as {name}=1e6,2e6,4e6")
    shapes = {size: shaped(given, size) for size in sorted(sizes)}
    if len({c.model_dump_json() for c in shapes.values()}) < len(shapes):
        raise UserError(f"two of sizes={', '.join(map(label, sizes))} give the same model: set them further apart")
    return [_cell(given, size, shapes[size], budget, out) for budget in sorted(budgets)[::-1] for size in shapes]


def _cell(given: Sampled, size: float, config: ModelConfig, budget: float, out: Path) -> Cell:
    updates = budget / given.flops(config)
    if updates < LEAST_UPDATES:
        raise UserError(
            f"a budget of {budget:.3g} FLOPs buys {updates:.1f} updates of the model of {label(size)} parameters: give "
            f"at least {LEAST_UPDATES * given.flops(config):.2g}, or a smaller train.batch_size="
        )
    train = given.recipe.train
    warm = min(train.warmup_steps, int(WARM_UP * updates))
    recipe = given.recipe.model_copy(
        update={
            "model": config.model_copy(update={"vocab_size": given.recipe.model.vocab_size}),
            "budget": BudgetConfig(flops=budget),
            "train": train.model_copy(update={"warmup_steps": warm}),
        }
    )
    name = f"{label(size)}-{budget:.3g}".replace("+", "")
    return Cell(name, resolve(recipe, given.text.tokenizer), body(given, config), out / "runs" / name)


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


# ---------------------------------------------------------------- the runs


def train(ladder: Sequence[Cell], jobs: int, cache: str | Path | None, say: Say) -> None:
    """Run what is not done yet, `jobs` at a time; each continues where it was stopped."""
    for cell in ladder:
        if (cell.place / "recipe.yaml").exists():
            same(cell.recipe, stored_recipe(cell.place), cell.place)
    todo = [cell for cell in ladder if not cell.done]
    if len(todo) < len(ladder):
        say(f"{len(ladder) - len(todo)} of {len(ladder)} runs are done")
    running: list[tuple[Cell, subprocess.Popen[bytes], float]] = []
    count = len(ladder) - len(todo)
    try:
        while todo or running:
            while todo and len(running) < jobs:
                cell = todo.pop(0)
                running.append((cell, _start(cell, jobs, cache), time.perf_counter()))
            time.sleep(POLL)
            for one in [r for r in running if r[1].poll() is not None]:
                running.remove(one)
                count += 1
                _ended(one[0], one[1].returncode)
                loss = _result(one[0])["held_out_loss"]
                say(f"{count} of {len(ladder)}: {one[0].name}, loss {loss:.4f}, {time.perf_counter() - one[2]:.0f} s")
    finally:  # an error or Ctrl-C: each writes a checkpoint and ends
        for _, process, _ in running:
            process.terminate()
        for _, process, _ in running:
            process.wait()


def _start(cell: Cell, jobs: int, cache: str | Path | None) -> subprocess.Popen[bytes]:
    cell.place.parent.mkdir(parents=True, exist_ok=True)
    recipe = cell.place.with_name(f"{cell.place.name}.yaml")
    recipe.write_text(dump(cell.recipe), encoding="utf-8")
    command = [sys.executable, "-m", "unmask", "pretrain", str(recipe), f"out={cell.place}", "resume=auto"]
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    with _log(cell).open("ab") as log:
        return subprocess.Popen(
            [*command, *([f"cache={cache}"] if cache else [])],
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)},
            start_new_session=True,  # Ctrl-C reaches this process alone: a run takes a second signal for haste
        )


def _log(cell: Cell) -> Path:
    return cell.place.with_name(f"{cell.place.name}.log")


def _ended(cell: Cell, code: int) -> None:
    if code == 0 and cell.done:
        return
    said = [line for line in _log(cell).read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    told = said[-1].removeprefix("error: ") if said else "it said nothing"
    raise UserError(f"the run {cell.name} ended with code {code} ({_log(cell)}): {told}")


def _result(cell: Cell) -> dict[str, Any]:
    file = cell.place / "result.json"
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{file} cannot be read ({error}): remove it, and resume=auto measures the run again"
        ) from error


def rows(ladder: Sequence[Cell], training_tokens: int) -> Iterator[dict[str, Any]]:
    """A line of points.jsonl for each run, smallest budget first."""
    for cell in ladder[::-1]:
        found = _result(cell)
        yield {
            "name": cell.name,
            "n": found["parameters"],
            "n_body": cell.body,
            "d": found["tokens"],
            "flops": found["flops"],
            "loss": found["held_out_loss"],
            "target_tokens": found["target_tokens"],
            "steps": found["step"],
            "seconds": found["seconds"],
            "epochs": found["tokens"] / max(training_tokens, 1),
        }
