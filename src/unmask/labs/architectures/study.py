"""Train, ask, judge, write down; and the same in small, for a demonstration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from unmask.compare.results import Entry, Results
from unmask.compare.statistics import compared
from unmask.data.worlds import World
from unmask.labs.architectures.lab import LAB
from unmask.labs.architectures.measured import BESIDE, EXACT, curve, everything, levels, measures
from unmask.labs.architectures.statements import statements
from unmask.labs.architectures.subjects import ALIGNED, MASKED, MASKED_ANYWHERE, SUBJECTS, T5, T5_ANYWHERE
from unmask.labs.architectures.tables import tables
from unmask.labs.base import Asked, claims
from unmask.labs.reviews.bench import Measured, by_seed, entry, trained
from unmask.labs.reviews.setting import STEPS, Subject

SHORT = 700
"""Updates of a demonstration."""


def study(asked: Asked, steps: int = STEPS, world: World | None = None) -> Results:
    """Everything; steps, world: other ones than the laboratory's, for a trial."""
    world = world or World()
    subjects = [s.scaled(steps) for s in SUBJECTS]
    made = trained(asked, subjects, everything, world)
    found = by_seed(made)
    known = levels(world)
    results = _record(subjects, made, world)
    judged = claims(statements(known["always ok"]), found)
    more = {"comparisons": compared(results), "claims": judged, "tables": tables(found, known)}
    return results.model_copy(update=more)


def small(out: Path, say: Callable[[str], None], steps: int = SHORT) -> Results:
    """The four architectures under one seed, fewer updates and the rating alone: the record without claims."""
    world = World()
    subjects = [s.scaled(steps) for s in SUBJECTS if s.name in ALIGNED]
    return _record(subjects, trained(Asked(out, say=say), subjects, curve, world), world)


def _record(subjects: Sequence[Subject], made: Mapping[str, Sequence[Measured]], world: World) -> Results:
    return Results(
        title=LAB.title,
        command="",
        budget={"steps": subjects[0].steps},
        seeds=[one.run.seed for one in made[subjects[0].name]],
        measures=measures(world),
        entries=[_entry(subject, made[subject.name]) for subject in subjects],
        notes=list(NOTES),
        contamination="no held-out review, and none that a probe reads, stands in the training text",
    )


def _entry(subject: Subject, made: Sequence[Measured]) -> Entry:
    cannot = {}
    if subject.name not in (T5, T5_ANYWHERE):
        cannot[EXACT] = "it writes no span of a length of its own into a gap"
    if subject.name not in (MASKED, MASKED_ANYWHERE, T5, T5_ANYWHERE):
        cannot[BESIDE] = "it reads what stands before the slot, and no gap"
    return entry(subject, made).model_copy(update={"cannot": cannot})


NOTES = (
    "A row of 32 positions is a window of 30 tokens between the marks of its ends. It begins behind a line end; "
    "“anywhere”: at any token of the text.",
    "All have one learning rate, schedule, batch and seed. The rate was chosen on a seed that no claim is judged on.",
)
