"""`unmask compare`: every entry with every seed under one budget, measured alike, written down as one record.

DIR/study.yaml       what was asked, frozen before the first run (`settings`, `disk`)
DIR/plan.json        what was decided before it (`planning`)
DIR/jobs, runs, tuning   a process for each entry and seed, and for each trial (`jobs`, `job`)
DIR/results.json     the record (`results`), and report.html, which draws it
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from statistics import fmean
from typing import Any

from unmask.compare import jobs, tuning
from unmask.compare.collecting import added, collected
from unmask.compare.disk import STUDY, grown, keep
from unmask.compare.job import Spec
from unmask.compare.jobs import Job
from unmask.compare.lock import LOCK, alone
from unmask.compare.planning import Plan, planned
from unmask.compare.report import write_report
from unmask.compare.results import Results, Tuning
from unmask.compare.settings import EXAMPLE, Study, frozen, known_settings, sort_out, written_out
from unmask.compare.statistics import compared, items_note
from unmask.config import BudgetConfig
from unmask.errors import UserError, nearest
from unmask.process import cores
from unmask.recipe import Recipe
from unmask.train.devices import choose_device

Say = Callable[[str], None]
TIMED, LEAST_TIMED = 0.05, 0.1
"""Share of a budget in minutes that goes into timing an update, and the least minutes."""


def compare(
    *entries: str | Path,
    out: str | Path,
    resume: str = "never",
    processes: int | None = None,
    cache: str | Path | None = None,
    say: Say | None = None,
    command: str = "",
    **settings: Any,
) -> Results:
    """Compare recipes under one budget and write the study to `out`.

    entries: as on the command line (`settings`): "encoder-small", "bert=encoder-small:objective.preset=bert", a file.
    settings: seeds, tune, milestones, suites, limit, and overrides of every recipe with `__` for the dot:
    ``compare("encoder-small", "decoder-small", out="s", corpus="my.txt", budget__flops=1e13, seeds=5, tune="lr:4")``.
    resume: never refuses a directory that holds a study, auto continues it or starts, must continues it; with more
        seeds than it was started with, the runs of these are added.
    processes: jobs at a time; None = one for each core, or for each GPU.
    """
    say = say or _print
    given = {key.replace("__", "."): value for key, value in settings.items()}
    study = frozen(entries, given, command or _command(entries, given))
    if processes is not None and processes < 1:
        raise UserError(f"processes={processes} runs nothing: give at least 1")
    place = Path(out)
    made, fresh = not place.exists(), not (place / STUDY).exists()
    study = keep(study, place, resume)
    with alone(place) as hold:
        try:
            study = grown(study, place)
            return _run(study, place, processes, cache, say, hold)
        except UserError:
            if fresh and [p.name for p in place.iterdir() if not p.name.startswith(".")] == [STUDY]:
                # refused before anything ran: the same place takes the study once it is mended
                (place / STUDY).unlink()
                (place / LOCK).unlink(missing_ok=True)
                if made and not any(place.iterdir()):
                    place.rmdir()
            raise
        except KeyboardInterrupt:
            say(f"stopped; resume=auto continues the study in {place}")
            raise


def compare_words(words: Sequence[str], say: Say | None = None) -> tuple[Path, Results]:
    """The same from words of a command line; also where the study lies."""
    for word in words:
        if word.startswith("-"):
            key = word.lstrip("-").partition("=")[0]
            raise UserError(
                f"'{word}' is no option of compare: its settings are written key=value, without dashes, as in "
                f"{EXAMPLE}{nearest(key, known_settings())}"
            )
    entries, settings = sort_out(words)
    own = {key: settings.pop(key) for key in ("out", "resume", "processes", "cache") if key in settings}
    if not own.get("out"):
        frozen(entries, settings, "")  # what else it lacks is said first
        raise UserError("no place for the study: give out=DIR")
    number = own.get("processes")
    if number is not None and not str(number).isdigit():
        raise UserError(f"processes={number} is no whole number")
    told = [w for w in words if w.partition("=")[0] not in ("resume", "processes", "cache")]
    found = compare(
        *entries,
        out=own["out"],
        resume=own.get("resume", "never"),
        processes=None if number is None else int(number),
        cache=own.get("cache"),
        say=say,
        command=" ".join(["unmask compare", *told]),
        **settings,
    )
    return Path(own["out"]), found


def _print(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def _command(entries: Sequence[str | Path], settings: Mapping[str, Any]) -> str:
    return " ".join(["unmask compare", *map(str, entries), *(f"{k}={v}" for k, v in settings.items())])


def _run(
    study: Study, out: Path, processes: int | None, cache: str | Path | None, say: Say, hold: int | None
) -> Results:
    recipes = {name: study.recipe(name) for name in study.entries}
    gpus = _gpus(recipes.values())
    at_once = processes or gpus or cores()
    kept = None if cache is None else str(Path(cache).absolute())

    def do(listed: Sequence[Job]) -> list[dict[str, Any]]:
        return jobs.run(listed, at_once, say, gpus, hold)

    plan = planned(study, out, cache, say, lambda: _pace(study, recipes, out, kept, at_once, do))
    tunings = _tuned(study, plan, recipes, out, kept, say, do)
    listed = [
        _job(study, plan, name, seed, recipe, tunings, out, kept)
        for name, recipe in recipes.items()
        for seed in study.seeds
    ]
    found = do(listed)
    for note in added(study):
        say(note)
    results = collected(study, plan, [(j.name, j.spec, r) for j, r in zip(listed, found, strict=True)], tunings)
    comparisons = compared(results)
    notes = [*results.notes, *filter(None, [items_note(comparisons)])]
    results = results.model_copy(update={"comparisons": comparisons, "notes": notes})
    results.write(out)
    write_report(results, out)
    return results


def _gpus(recipes: Iterable[Recipe]) -> int:
    """How many GPUs there are to share out; 0 where any entry runs on the CPU."""
    if any(choose_device(recipe.device).type != "cuda" for recipe in recipes):
        return 0
    import torch

    return torch.cuda.device_count()


# ---------------------------------------------------------------- the jobs


def _file(out: Path, *parts: str | int) -> Path:
    return out / "jobs" / "-".join(map(str, parts))


def _pace(
    study: Study,
    recipes: Mapping[str, Recipe],
    out: Path,
    cache: str | None,
    at_once: int,
    do: Callable[[Sequence[Job]], list[dict[str, Any]]],
) -> dict[str, float]:
    """Seconds of an update of each entry, by training it for a moment, as many side by side as in the study: where
    entries are fewer than processes, each is timed in several at once. The mean of them."""
    copies = -(-min(at_once, len(recipes) * len(study.seeds)) // len(recipes))
    budget = BudgetConfig(minutes=max(TIMED * study.budget["minutes"], LEAST_TIMED))
    listed = []
    for k in range(copies):
        for name, recipe in recipes.items():
            short = recipe.model_copy(update={"budget": budget, "seed": study.seeds[0]})
            spec = Spec("time", written_out(short), f"timing/{name}/{k}", cache)
            listed.append(Job(f"{name}, timing {k + 1} of {copies}", _file(out, name, "time", k), spec))
    found = [result["seconds_per_step"] for result in do(listed)]
    timed = {name: [s for s in found[i :: len(recipes)] if s] for i, name in enumerate(recipes)}
    return {name: fmean(seconds) for name, seconds in timed.items() if seconds}


def _tuned(
    study: Study,
    plan: Plan,
    recipes: Mapping[str, Recipe],
    out: Path,
    cache: str | None,
    say: Say,
    do: Callable[[Sequence[Job]], list[dict[str, Any]]],
) -> dict[str, tuple[float, Tuning]]:
    """Entry → the factor of its learning rates, and its trials; empty where none was asked for."""
    tune = study.tune
    if tune is None:
        return {}
    listed: dict[str, list[Job]] = {}
    for name, recipe in recipes.items():
        p = plan.entries[name]
        listed[name] = [
            Job(
                f"{name}, trial {k + 1} of {tune.count}",
                _file(out, name, "trial", k),
                Spec(
                    "trial",
                    written_out(tuning.trial(recipe, tune, factor)),
                    f"tuning/{name}/{k}",
                    cache,
                    budget=astuple(study.budgeted(p.seconds)),
                    share=tune.share,
                    half="tuning" if plan.halves else "all",
                ),
                tune.share * p.flops,
                max(1, round(tune.share * p.updates)),
            )
            for k, factor in enumerate(tuning.factors(tune.count))
        ]
    found = iter(do([job for own in listed.values() for job in own]))
    chosen = {}
    for name, own in listed.items():
        chosen[name] = tuning.chosen(name, recipes[name], tune, [next(found) for _ in own])
        record = chosen[name][1]
        marks = (" (at the edge of what was tried)" if record.edge else "") + (
            " (still falling at its end)" if record.falling else ""
        )
        say(f"{name}: learning rate {record.chosen:.3g} of {len(record.values)}{marks}")
    return chosen


def _job(
    study: Study,
    plan: Plan,
    name: str,
    seed: int,
    recipe: Recipe,
    tunings: Mapping[str, tuple[float, Tuning]],
    out: Path,
    cache: str | None,
) -> Job:
    """One run of the study."""
    p = plan.entries[name]
    train = tuning.scaled(recipe.train, tunings[name][0]) if name in tunings else recipe.train
    spec = Spec(
        "run",
        written_out(recipe.model_copy(update={"train": train, "seed": seed})),
        f"runs/{name}/{seed}",
        cache,
        budget=astuple(study.budgeted(p.seconds)),
        milestones=study.milestones,
        half="measuring" if plan.halves else "all",
        loss=p.loss,
        suites={suite: (asked.path, asked.limit) for suite, asked in study.suites.items()},
        prompts=plan.prompts if seed == study.seeds[0] else (),
    )
    return Job(f"{name}, seed {seed}", _file(out, name, seed), spec, p.flops, p.updates)
