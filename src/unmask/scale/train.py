"""`unmask scale run`: train a ladder, fit it, write everything down."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unmask.compare.results import Entry, Measure, Point, Results, Run
from unmask.directory import environment
from unmask.errors import UserError
from unmask.recipe import Recipe
from unmask.scale.ladder import EPOCHS, Cell, Say, cells, costs, rows, sampled, train
from unmask.scale.points import FEWEST, FEWEST_VALUES, collect
from unmask.scale.report import results, write
from unmask.scale.study import Asked, Study, study

LOSS = "held_out_loss"


def run(
    recipe: Recipe,
    sizes: Sequence[float],
    budgets: Sequence[float],
    out: str | Path,
    asked: Asked,
    *,
    command: str = "",
    resume: str = "never",
    jobs: int | None = None,
    cache: str | Path | None = None,
    say: Say = lambda _: None,
) -> Study:
    """Train every size for every budget (FLOPs), then fit the law to what they reached.

    jobs: runs at a time; one for each core, or one where the recipe's device is a GPU.
    """
    out = Path(out)
    if resume not in ("never", "auto"):
        raise UserError(f"resume={resume} is none of never, auto")
    if resume == "never" and (out / "runs").exists():
        raise UserError(f"{out} already holds a ladder: give another out=, or resume=auto to continue it")
    if jobs is not None and jobs < 1:
        raise UserError(f"jobs={jobs} runs nothing: give at least 1")
    _enough(len(sizes), len(budgets), asked)
    given = sampled(recipe, cache, say)
    ladder = cells(given, sizes, budgets, out)
    train(ladder, jobs or _jobs(recipe), cache, say)
    points = list(rows(ladder, len(given.text.train.tokens)))
    (out / "points.jsonl").write_text("".join(json.dumps(row) + "\n" for row in points), encoding="utf-8")
    measured = collect(((str(row["name"]), row) for row in points), asked.counted)
    found = study(measured, asked, costs(given, sizes, asked.counted))
    found.notes.extend(_repeated(points))
    write(found, out, _record(found, ladder, points, command, recipe.seed))
    return found


def _enough(sizes: int, budgets: int, asked: Asked) -> None:
    """Before hours of training: whether a law can be fitted to what they will leave."""
    fitted = budgets - (asked.holdout == "largest")
    if sizes < FEWEST_VALUES or fitted < 2 or sizes * fitted < FEWEST:
        held = f" of which holdout=largest leaves {fitted}" if asked.holdout == "largest" else ""
        raise UserError(
            f"{sizes} sizes × {budgets} budgets{held} are no ladder: fit at least {FEWEST_VALUES} sizes= and 2 "
            f"budgets=, {FEWEST} runs in all"
        )


def _jobs(recipe: Recipe) -> int:
    from unmask.train.devices import choose_device

    return (os.cpu_count() or 1) if choose_device(recipe.device).type == "cpu" else 1


def _repeated(points: Sequence[dict[str, Any]]) -> list[str]:
    most = max(float(row["epochs"]) for row in points)
    if most <= EPOCHS:
        return []
    return [
        f"up to {most:.1f} epochs of the same text: beyond {EPOCHS} a repeated token is worth less than a new one, "
        "which the law takes it for"
    ]


def _record(found: Study, ladder: Sequence[Cell], points: Sequence[dict[str, Any]], command: str, seed: int) -> Results:
    """The study's tables, and an entry for each run."""
    record = results(found, command, f"Ladder of {len(ladder)} runs")
    entries = []
    for cell, row in zip(ladder[::-1], points, strict=True):
        at = {k: row[k] for k in ("target_tokens", "flops", "seconds")}
        point = Point(step=row["steps"], tokens=row["d"], values={LOSS: row["loss"]}, **at)
        entries.append(
            Entry(
                name=cell.name,
                settings=cell.recipe.model_dump(mode="json"),
                parameters=row["n"],
                flops_per_token=row["flops"] / row["d"],
                target_density=row["target_tokens"] / row["d"],
                runs=[Run(seed=seed, directory=str(Path("runs") / cell.place.name), points=[point])],
            )
        )
    measure = Measure(
        name=LOSS,
        label="Held-out loss",
        protocol="the objective's own targets on held-out text, the same noise for every run",
        better="lower",
        unit="nats a target",
    )
    update = {"entries": entries, "measures": [measure], "seeds": [seed], "environment": environment()}
    return Results.model_validate({**record.model_dump(), **update})
