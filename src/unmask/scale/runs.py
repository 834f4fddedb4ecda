"""The runs of a ladder: trials of learning rates first, then every cell, each in a process of its own.

    out/runs/NAME/     a run, as `unmask pretrain` writes it
    out/tuning/NAME/   a trial; rates.json what they told (`rates`)
    out/jobs/NAME.*    what each process was told, what it said, and what it found (`compare.jobs`)

A process ends with the one that started it, however that ends, and is continued by the next (`compare.job`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.compare import jobs, tuning
from unmask.compare.job import Spec
from unmask.compare.jobs import Job
from unmask.compare.settings import HELD_OUT_SEED, written_out
from unmask.directory import same, stored_recipe
from unmask.errors import UserError
from unmask.process import cores
from unmask.recipe import Recipe
from unmask.scale.ladder import Cell, Sampled, Say, cell, shaped
from unmask.scale.rates import Rates, Trial, Trials, keep, kept, rule
from unmask.train.devices import choose_device

RATES = "rates.json"


@dataclass(frozen=True)
class Workers:
    """How runs are made: so many at a time, and where tokenized text is kept."""

    at_once: int
    gpus: int = 0
    cache: str | None = None
    hold: int | None = None
    """The ladder's lock (`compare.lock`)."""

    def do(self, listed: Sequence[Job], say: Say) -> list[dict[str, Any]]:
        return jobs.run(listed, self.at_once, say, self.gpus, self.hold)


def workers(recipe: Recipe, at_once: int | None, cache: str | Path | None, hold: int | None = None) -> Workers:
    """at_once: None is one run for each core that this process may use, or for each GPU."""
    kind, gpus = choose_device(recipe.device).type, 0
    if kind == "cuda":
        import torch

        gpus = torch.cuda.device_count()
    kept = None if cache is None else str(Path(cache).absolute())
    return Workers(at_once or gpus or (cores() if kind == "cpu" else 1), gpus, kept, hold)


def tuned(
    given: Sampled, sizes: Sequence[float], trials: Trials | None, seeds: int, out: Path, by: Workers, say: Say
) -> tuple[Rates | None, list[Trial]]:
    """Factors of the recipe's learning rates, and the trials that tell them; None where none are asked for."""
    before = kept(trials, out / RATES)
    if trials is None:
        return None, []
    seed, factors = held_out_seed(given.recipe.seed, seeds), tuning.factors(trials.count)
    asked = [(size, flops) for size in sorted(sizes) for flops in sorted(trials.budgets)]
    listed: list[Job] = []
    for size, flops in asked:
        for factor in factors:
            at = cell(given, size, shaped(given, size), flops, out / "tuning", factor=factor)
            recipe = at.recipe.model_copy(update={"seed": seed})
            listed.append(_job(f"{at.name}-x{factor:g}", recipe, at.updates, out, "tuning", by))
    found = iter(by.do(listed, say))
    done = [Trial(size, flops, factors, [next(found)["loss"] for _ in factors]) for size, flops in asked]
    rates = rule(done, None if before is None else before.slope)
    rates = rates if before is None else Rates({**rates.levels, **before.levels}, before.slope)
    keep(rates, trials, out / RATES)
    return rates, done


def held_out_seed(first: int, seeds: int) -> int:
    """Of trials: one that no run has.

    >>> held_out_seed(0, 3), held_out_seed(999, 3)
    (1000, 1002)
    """
    taken = range(first, first + seeds)
    return taken.stop if HELD_OUT_SEED in taken else HELD_OUT_SEED


def train(ladder: Sequence[Cell], out: Path, by: Workers, say: Say) -> list[Cell]:
    """Run what is not done yet; each continues where it was stopped. Those that diverged."""
    for one in ladder:
        if (one.place / "recipe.yaml").exists():
            same(one.recipe, stored_recipe(one.place), one.place)
    found = by.do([_job(one.name, one.recipe, one.updates, out, "runs", by) for one in ladder], say)
    return [one for one, result in zip(ladder, found, strict=True) if result["loss"] is None]


def _job(name: str, recipe: Recipe, updates: int, out: Path, folder: str, by: Workers) -> Job:
    """A trial is what `compare` calls a run whose end alone is looked at."""
    spec = Spec("trial", written_out(recipe), f"{folder}/{name}", by.cache)
    prefix = "trial-" if folder == "tuning" else ""
    return Job(name, out / "jobs" / f"{prefix}{name}", spec, float(recipe.budget.flops or 0), updates)


def rows(ladder: Sequence[Cell], training_tokens: int) -> Iterator[dict[str, Any]]:
    """A line of points.jsonl for each run, smallest budget first."""
    for one in ladder[::-1]:
        found = _result(one)
        yield {
            "name": one.name,
            "n": found["parameters"],
            "n_body": one.body,
            "d": found["tokens"],
            "flops": found["flops"],
            "loss": found["held_out_loss"],
            "seed": one.recipe.seed,
            "learning_rate": one.recipe.train.learning_rate,
            "target_tokens": found["target_tokens"],
            "steps": found["step"],
            "seconds": found["seconds"],
            "epochs": found["tokens"] / max(training_tokens, 1),
        }


def _result(one: Cell) -> Mapping[str, Any]:
    file = one.place / "result.json"
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{file} cannot be read ({error}): remove {one.place}, and resume=auto trains that run again"
        ) from error
