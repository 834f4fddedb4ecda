"""`unmask scale run`: train a ladder, fit it, write everything down."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from unmask.compare.lock import alone
from unmask.compare.results import Entry, Measure, Point, Results, Run, Table
from unmask.compare.settings import require_rates
from unmask.directory import environment
from unmask.errors import UserError
from unmask.recipe import Recipe
from unmask.scale.ladder import EPOCHS, Cell, Say, cells, costs, sampled
from unmask.scale.points import FEWEST, FEWEST_VALUES, collect
from unmask.scale.rates import Rates, Trial, Trials
from unmask.scale.report import results, write
from unmask.scale.runs import rows, train, tuned, workers
from unmask.scale.study import Asked, Study, study

LOSS = "held_out_loss"


@dataclass(frozen=True)
class Ladder:
    """What is trained: every size for every budget (FLOPs) with every seed, and the trials before it."""

    sizes: Sequence[float]
    budgets: Sequence[float]
    seeds: int = 1
    """The recipe's seed and those that follow it."""
    trials: Trials | None = None


def run(
    recipe: Recipe,
    ladder: Ladder,
    out: str | Path,
    asked: Asked,
    *,
    command: str = "",
    resume: str = "never",
    jobs: int | None = None,
    cache: str | Path | None = None,
    say: Say = lambda _: None,
) -> Study:
    """Train a ladder, then fit the law to what its runs reached.

    jobs: runs at a time; one for each core that this process may use, or for each GPU.
    """
    out = Path(out)
    if resume not in ("never", "auto"):
        raise UserError(f"resume={resume} is none of never, auto")
    if resume == "never" and (out / "jobs").exists():
        raise UserError(f"{out} already holds a ladder: give another out=, or resume=auto to continue it")
    if jobs is not None and jobs < 1:
        raise UserError(f"jobs={jobs} runs nothing: give at least 1")
    _enough(ladder, asked)
    try:
        return _run(recipe, ladder, out, asked, command, jobs, cache, say)
    except KeyboardInterrupt:
        say(f"stopped; resume=auto continues the ladder in {out}")
        raise


def _run(
    recipe: Recipe,
    ladder: Ladder,
    out: Path,
    asked: Asked,
    command: str,
    jobs: int | None,
    cache: str | Path | None,
    say: Say,
) -> Study:
    given = sampled(recipe, cache, say)
    cells(given, ladder.sizes, ladder.budgets, out)  # what is wrong with them is said before hours of trials
    out.mkdir(parents=True, exist_ok=True)
    with alone(out) as hold:
        by = workers(recipe, jobs, cache, hold)
        rates, trials = tuned(given, ladder.sizes, ladder.trials, ladder.seeds, out, by, say)
        made = cells(given, ladder.sizes, ladder.budgets, out, ladder.seeds, rates)
        diverged = train(made, out, by, say)
    done = [cell for cell in made if cell not in diverged]
    points = list(rows(done, len(given.text.train.tokens)))
    (out / "points.jsonl").write_text("".join(json.dumps(row) + "\n" for row in points), encoding="utf-8")
    measured = collect(((str(row["name"]), row) for row in points), asked.counted)
    found = study(measured, asked, costs(given, ladder.sizes, asked.counted))
    found.notes.extend([*_left_out(diverged), *_repeated(points), *_edges(trials)])
    write(found, out, _record(found, done, points, command, _rates(rates, trials, recipe)))
    return found


def _enough(ladder: Ladder, asked: Asked) -> None:
    """Before hours of training: whether a law can be fitted to what they will leave."""
    sizes, budgets = len(ladder.sizes), len(ladder.budgets)
    fitted = budgets - (asked.holdout == "largest")
    if ladder.seeds < 1:
        raise UserError(f"seeds={ladder.seeds} trains nothing: give at least 1")
    if ladder.trials is not None:
        require_rates(f"tune=lr:{ladder.trials.count}", str(ladder.trials.count))
    if sizes < FEWEST_VALUES or fitted < 2 or sizes * fitted < FEWEST:
        held = f" of which holdout=largest leaves {fitted}" if asked.holdout == "largest" else ""
        raise UserError(
            f"{sizes} sizes × {budgets} budgets{held} are no ladder: fit at least {FEWEST_VALUES} sizes= and 2 "
            f"budgets=, {FEWEST} runs in all"
        )


def _left_out(diverged: Sequence[Cell]) -> list[str]:
    names = ", ".join(cell.name for cell in diverged)
    return [f"left out, as the loss became no number: {names}; tune=lr:4:FLOPs finds lower rates"] if names else []


def _repeated(points: Sequence[dict[str, Any]]) -> list[str]:
    most = max((float(row["epochs"]) for row in points), default=0.0)
    if most <= EPOCHS:
        return []
    return [
        f"up to {most:.1f} epochs of the same text: beyond {EPOCHS} a repeated token is worth less than a new one, "
        "which the law takes it for"
    ]


def _edges(trials: Sequence[Trial]) -> list[str]:
    at = [f"{t.size:.3g} at {t.flops:.2g}" for t in trials if t.edge]
    return [f"the best learning rate lies at the edge of what was tried: {', '.join(at)}"] if at else []


def _rates(rates: Rates | None, trials: Sequence[Trial], recipe: Recipe) -> list[Table]:
    """The trials, and what was made of them."""
    if rates is None:
        return []
    base = recipe.train.learning_rate
    columns = ["size", "flops", *(f"loss at {f * base:.3g}" for f in trials[0].factors), "best", "place"]
    lines: list[list[str | float | int | None]] = [
        [t.size, t.flops, *t.losses, t.best * base, "at the edge" if t.edge else ""] for t in trials
    ]
    note = (
        f"a rate for each size, times budget^{rates.slope:.3g}: the slope that all sizes share"
        + ("" if len({t.flops for t in trials}) > 1 else ", 0 with trials of one budget")
        + "; trials have a seed of their own"
    )
    return [Table(title="Learning rates", columns=columns, rows=lines, note=note)]


def _record(
    found: Study, done: Sequence[Cell], points: Sequence[dict[str, Any]], command: str, more: list[Table]
) -> Results:
    """The study's tables, and an entry for each rung with a run for each seed."""
    record = results(found, command, f"Ladder of {len(done)} runs")
    rungs: dict[str, list[tuple[Cell, dict[str, Any]]]] = {}
    for cell, row in zip(done[::-1], points, strict=True):
        rungs.setdefault(cell.rung, []).append((cell, row))
    measure = Measure(
        name=LOSS,
        label="Held-out loss",
        protocol="the objective's own targets on held-out text, the same noise for every run",
        better="lower",
        unit="nats a target",
    )
    update = {
        "entries": [_entry(name, pairs) for name, pairs in rungs.items()],
        "measures": [measure],
        "seeds": sorted({cell.recipe.seed for cell in done}),
        "tables": [*record.tables, *more],
        "environment": environment(),
    }
    return Results.model_validate({**record.model_dump(), **update})


def _entry(name: str, pairs: Sequence[tuple[Cell, dict[str, Any]]]) -> Entry:
    runs = []
    for cell, row in sorted(pairs, key=lambda pair: pair[0].recipe.seed):
        at = {k: row[k] for k in ("target_tokens", "flops", "seconds")}
        point = Point(step=row["steps"], tokens=row["d"], values={LOSS: row["loss"]}, **at)
        runs.append(Run(seed=cell.recipe.seed, directory=str(Path("runs") / cell.place.name), points=[point]))
    return Entry(
        name=name,
        settings=pairs[0][0].recipe.model_dump(mode="json", exclude={"seed"}),
        parameters=pairs[0][1]["n"],
        flops_per_token=fmean(row["flops"] / row["d"] for _, row in pairs),
        target_density=fmean(row["target_tokens"] / row["d"] for _, row in pairs),
        runs=runs,
    )
