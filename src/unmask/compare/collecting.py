"""From what the jobs of a study found to its record."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

from unmask.compare.job import Spec
from unmask.compare.measures import HELD_OUT
from unmask.compare.planning import Plan
from unmask.compare.results import Entry, Level, Measure, Point, Results, Run, Sample, Tuning
from unmask.compare.settings import Study
from unmask.errors import UserError

UNITS = {"flops": "FLOPs", "target_tokens": "target tokens"}
"""Of budgets, as they are said; the others as they are called."""
Found = tuple[str, Spec, dict[str, Any]]
"""A job's name, what it did, and what it found."""


def collected(study: Study, plan: Plan, jobs: Sequence[Found], tunings: Mapping[str, tuple[float, Tuning]]) -> Results:
    """The record without its comparisons; jobs stand entry by entry, seed by seed."""
    many = len(study.seeds)
    by_entry = {name: jobs[k * many : (k + 1) * many] for k, name in enumerate(study.entries)}
    measures, suites = _measures(by_entry)
    entries = [
        _entry(name, study.seeds, found, measures, suites, tunings[name][1] if name in tunings else None)
        for name, found in by_entry.items()
    ]
    ((unit, amount),) = study.budget.items()
    return Results(
        title=f"{_listed(list(study.entries))} at {_said(amount)} {UNITS.get(unit, unit)} each",
        command=study.command,
        budget=study.budget,
        seeds=study.seeds,
        measures=measures,
        entries=entries,
        notes=[*added(study), *plan.notes, *_notes(measures, entries)],
        contamination=plan.contamination,
        environment=jobs[0][2]["environment"],
    )


def added(study: Study) -> list[str]:
    """That seeds were added once results were there to look at.

    >>> study = Study(command="", entries={}, budget={"steps": 9}, seeds=[0, 1, 2, 3, 4], seen=[3], suites={})
    >>> added(study)[0][:66]
    'Seeds were added after results of 3 were seen: verdicts on all 5 a'
    """
    if not study.seen:
        return []
    return [
        f"Seeds were added after results of {_listed([str(n) for n in study.seen])} were seen: verdicts on all "
        f'{len(study.seeds)} are not those of a study planned with so many; "real" was easier to reach than p says.'
    ]


def _said(amount: float) -> str:
    """
    >>> _said(60.0), _said(3e8), _said(2.5e11), _said(250_000.0)
    ('60', '3e8', '2.5e11', '250,000')
    """
    return f"{amount:,.10g}" if amount < 1e7 else re.sub(r"e\+0*", "e", f"{amount:g}")


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _measures(by_entry: Mapping[str, Sequence[Found]]) -> tuple[list[Measure], dict[str, str]]:
    """Every measure once, and the suite of each. Levels that differ between entries are called by these."""
    _require_one_protocol(by_entry)
    seen: dict[str, dict[str, dict[str, Any]]] = {}  # measure → entry → as the entry has it
    suites: dict[str, str] = {}
    for name, found in by_entry.items():
        for key, value in found[0][2]["measures"].items():
            seen.setdefault(key, {})[name] = value["measure"]
            suites[key] = value["suite"]
    order = sorted(seen, key=lambda key: (suites[key] == HELD_OUT, -len(seen[key])))  # what most are asked first
    return [_merged(seen[key]) for key in order], suites


def _require_one_protocol(by_entry: Mapping[str, Sequence[Found]]) -> None:
    """Raise where two runs mean two things by one measure: a function of one's own may say so."""
    first: dict[str, tuple[str, dict[str, Any]]] = {}  # measure → the job that had it first, and as it has it
    for job, _, result in (found for jobs in by_entry.values() for found in jobs):
        for name, value in result["measures"].items():
            there, before = first.setdefault(name, (job, value["measure"]))
            for key in ("protocol", "better", "unit", "label"):
                if before[key] != (here := value["measure"][key]):
                    raise UserError(
                        f"measure {name} has two kinds of {key}: '{before[key]}' in {there}, '{here}' in {job}: "
                        "numbers of different protocols share no column, so give them names of their own"
                    )


def _merged(by_entry: Mapping[str, dict[str, Any]]) -> Measure:
    values: dict[str, dict[float, list[str]]] = {}  # label → value → entries
    for name, measure in by_entry.items():
        for level in measure["levels"]:
            values.setdefault(level["label"], {}).setdefault(level["value"], []).append(name)
    levels = [
        Level(label=label if len(by_value) == 1 else f"{label} ({', '.join(names)})", value=value)
        for label, by_value in values.items()
        for value, names in by_value.items()
    ]
    first = Measure.model_validate(next(iter(by_entry.values())))
    return first.model_copy(update={"levels": levels})


def _entry(
    name: str,
    seeds: Sequence[int],
    found: Sequence[Found],
    measures: Sequence[Measure],
    suites: Mapping[str, str],
    tuned: Tuning | None,
) -> Entry:
    ends = [result["points"][-1] for _, _, result in found]
    _, spec, first = found[0]
    runs = [
        Run(
            seed=seed,
            directory=own.place,
            points=[Point.model_validate(p) for p in result["points"]],
            samples=[Sample.model_validate(s) for s in result["samples"]],
        )
        for seed, (_, own, result) in zip(seeds, found, strict=True)
    ]
    settings = {k: v for k, v in spec.recipe.items() if k not in ("seed", "checkpoint")}
    return Entry(
        name=name,
        settings=settings,
        parameters=first["parameters"],
        flops_per_token=fmean(p["flops"] / p["tokens"] for p in ends),
        target_density=fmean(p["target_tokens"] / p["tokens"] for p in ends),
        can=first["can"],
        cannot=_cannot(first, measures, suites),
        tuning=tuned,
        runs=runs,
    )


def _cannot(found: Mapping[str, Any], measures: Sequence[Measure], suites: Mapping[str, str]) -> dict[str, str]:
    """Measure → why this entry has no value of it."""
    own = found["measures"]
    labels = {m.name: m.label for m in measures}
    out: dict[str, str] = {}
    for measure in measures:
        suite = suites[measure.name]
        if measure.name in own:
            if own[measure.name]["why"]:
                out[measure.name] = own[measure.name]["why"]
        elif suite in found["refused"]:
            out[measure.name] = found["refused"][suite]
        else:
            other = [labels[key] for key in own if suites[key] == suite]
            what = "is trained by another objective" if suite == HELD_OUT else "is asked by another event"
            out[measure.name] = f"it {what}, which has a measure of its own: {', '.join(other) or 'none'}"
    return out


def _answered(entry: Entry) -> set[str]:
    """The measures that an entry has a value of."""
    points = [point for run in entry.runs for point in run.points]
    return {name for point in points for name, value in point.values.items() if value is not None}


def _notes(measures: Sequence[Measure], entries: Sequence[Entry]) -> list[str]:
    """What a reader must know of how the numbers came about."""
    notes = []
    values = {e.name: _answered(e) for e in entries if e.can["score"]}
    alone = [f"{a} and {b}" for a, b in combinations(values, 2) if not values[a] & values[b]]
    if alone:
        notes.append(
            f"No measure is common to {'; '.join(alone)}: what they are asked differs. suites=minimal-pairs:PATH, "
            "choice:PATH or cloze with candidates ask all alike."
        )
    for measure in measures:
        if "bits_per_byte" not in measure.name:
            continue
        read: dict[str, list[str]] = {}  # a sample → entries
        for entry in entries:
            details = next((p.details.get(measure.name) for r in entry.runs for p in r.points), None)
            if details and "event" in details:
                notes.append(f"{measure.label}, {entry.name}: {details['event']}.")
                read.setdefault(_sample(details), []).append(entry.name)
        if len(read) > 1:
            groups = "; ".join(f"{', '.join(names)}: {sample or 'all of it'}" for sample, names in read.items())
            notes.append(
                f"{measure.label} was measured on different samples of the held-out text ({groups}): a part of the "
                "differences is the samples', the same for all seeds, so that tests over seeds do not see it. A larger "
                "limit reads all of the text."
            )
    return notes


def _sample(details: Mapping[str, Any]) -> str:
    """Which part of the held-out text was read: of as many tokens or pieces the same ones are drawn; "" is all."""
    found = re.search(r"a sample of \d+ of \d+ \w+", str(details["event"]))
    tokens = details.get("counts", {}).get("tokens", 0)
    return f"{found[0].removeprefix('a ')}, of {tokens:,} tokens" if found else ""
