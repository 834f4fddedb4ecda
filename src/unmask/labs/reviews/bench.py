"""Subjects × seeds side by side, one process each: trained, then measured at every milestone.

OUT/text              the world's reviews and tokenizers
OUT/runs/NAME-SEED    runs, as of `pretrain`
OUT/measured/NAME-SEED.json    what was measured of a finished run: with resume=auto it is not measured again
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from unmask.compare.measures import able
from unmask.compare.results import Entry, Point, Run, Sample, counted
from unmask.config import Strict
from unmask.data.worlds import World
from unmask.labs.base import Asked
from unmask.labs.processes import side_by_side
from unmask.labs.reviews.setting import Subject, recipe, settings
from unmask.lm import LM
from unmask.loading import load
from unmask.run import pretrain
from unmask.train import checkpoint
from unmask.train.checkpoint import write_json


@dataclass(frozen=True)
class Moment:
    """A run at a milestone, as a measure sees it."""

    subject: Subject
    seed: int
    world: World
    run: Path
    """The run's directory, for what is not the model that it keeps (ELECTRA's generator)."""
    step: int
    last: bool


@dataclass(frozen=True)
class Found:
    """What is measured at a milestone: a value a measure, what else was found (all of it ready for JSON), samples."""

    values: Mapping[str, float | None]
    details: Mapping[str, Any]
    samples: tuple[tuple[str, str], ...] = ()


DIGITS = 5
"""Behind the point, of what a record holds."""
MeasureModel = Callable[[LM, Moment], Found]
"""A function of a module, as processes are started afresh."""


class Measured(Strict):
    """A finished run as it is kept."""

    subject: str
    """Its settings when it was measured: others are other runs."""
    settings: dict[str, Any]
    parameters: int
    can: dict[str, bool]
    run: Run


@dataclass(frozen=True)
class Work:
    """One subject under one seed, in a process of its own."""

    out: Path
    subject: Subject
    seed: int
    measure: MeasureModel
    world: World
    resume: str

    @property
    def name(self) -> str:
        return f"{self.subject.name}-{self.seed}"

    def __call__(self) -> Measured:
        kept = self.out / "measured" / f"{self.name}.json"
        if self.resume == "auto" and (before := self._kept(kept)) is not None:
            return before
        place = self.out / "runs" / self.name
        own = recipe(self.world, self.subject, self.seed, self.out / "text")
        told = lambda line: print(f"{self.name}: {line}", file=sys.stderr, flush=True)
        run = pretrain(own, out=place, resume=self.resume, cache=self.out / "cache", say=told)
        steps = [*range(self.subject.every, run.counters.step, self.subject.every), run.counters.step]
        points, samples, can = [], [], {}
        for step in steps:
            lm = load(place, step)
            last = step == steps[-1]
            found = self.measure(lm, Moment(self.subject, self.seed, self.world, place, step, last))
            points.append(_point(place, step, found))
            samples += [Sample(asked=a, answer=b) for a, b in found.samples]
            can = able(lm)
        record = Measured(
            subject=repr(self.subject),
            settings=settings(own),
            parameters=run.parameters,
            can=can,
            run=Run(seed=self.seed, directory=f"runs/{self.name}", points=points, samples=samples),
        )
        kept.parent.mkdir(exist_ok=True)
        write_json(kept, record.model_dump(mode="json"))
        return record

    def _kept(self, file: Path) -> Measured | None:
        try:
            found = Measured.model_validate_json(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, ValidationError):
            return None
        return found if found.subject == repr(self.subject) else None


def _point(place: Path, step: int, found: Found) -> Point:
    state = checkpoint.read_state(place / "checkpoints" / f"step-{step}")
    return Point(**counted(state), values=dict(found.values), details=dict(found.details))


def trained(
    asked: Asked, subjects: Sequence[Subject], measure: MeasureModel, world: World
) -> dict[str, list[Measured]]:
    """Every subject under every seed; by subject, in the order of the seeds.

    Seconds are to a tenth, other numbers to `DIGITS`: claims are judged by what the record says.
    """
    todo = [Work(asked.out, s, seed, measure, world, asked.resume) for seed in asked.seeds for s in subjects]
    for work in todo:
        recipe(world, work.subject, work.seed, asked.out / "text")  # writes the texts once, and refuses before hours

    def told(k: int, found: Measured) -> str:
        values = found.run.points[-1].values
        return f"{todo[k].name}: " + ", ".join(f"{name} {v:.3f}" for name, v in values.items() if v is not None)

    found = side_by_side(todo, asked.say, told)
    done = {(work.subject.name, work.seed): _brief(one) for work, one in zip(todo, found, strict=True)}
    return {s.name: [done[s.name, seed] for seed in asked.seeds] for s in subjects}


def by_seed(made: Mapping[str, Sequence[Measured]]) -> list[dict[str, Measured]]:
    """What was found under each seed, by subject."""
    return [dict(zip(made, each, strict=True)) for each in zip(*made.values(), strict=True)]


def entry(subject: Subject, made: Sequence[Measured]) -> Entry:
    """A subject for the record."""
    last = made[0].run.points[-1]
    return Entry(
        name=subject.label,
        settings=made[0].settings,
        parameters=made[0].parameters,
        flops_per_token=last.flops / last.tokens,
        target_density=last.target_tokens / last.tokens,
        can=made[0].can,
        runs=[one.run for one in made],
    )


def _brief(made: Measured) -> Measured:
    points = []
    for point in made.run.points:
        found = {"values": _rounded(point.values), "details": _rounded(point.details)}
        points.append(point.model_copy(update={"seconds": round(point.seconds, 1), **found}))
    return made.model_copy(update={"run": made.run.model_copy(update={"points": points})})


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(v) for v in value]
    return round(value, DIGITS) if isinstance(value, float) else value
