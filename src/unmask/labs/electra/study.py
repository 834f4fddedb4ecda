"""Train, measure, judge, write down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from unmask.compare.results import Entry, Level, Measure, Point, Results, Run
from unmask.data.worlds import World
from unmask.labs.base import Asked, claims
from unmask.labs.electra.lab import LAB
from unmask.labs.electra.measured import measure
from unmask.labs.electra.names import ALARMS, AUC, BEST, DETECTED, FOUND, LABELS, PLACES, PROBES, REPLACED
from unmask.labs.electra.statements import STATEMENTS
from unmask.labs.electra.subjects import MAIN, RICH, remedies, richer, scope
from unmask.labs.electra.tables import tables
from unmask.labs.reviews.bench import Measured, by_seed, entry, trained
from unmask.labs.reviews.setting import STEPS, Subject

KEPT = ("kinds", "detector", "best", "controls", "generator", "positions", "clause", "hidden")
"""Of what was found at the end, what the record holds."""


def study(asked: Asked, steps: int = STEPS, world: World | None = None) -> Results:
    """Everything; steps, world: other ones than the laboratory's, for a trial."""
    world = world or World()
    here = [s.scaled(steps) for s in (*MAIN, *remedies(world))]
    there = [s.scaled(steps) for s in RICH]
    made = trained(asked, here, measure, world)
    made |= trained(replace(asked, out=asked.out / "richer"), there, measure, richer(world))
    return record([*here, *there], made, steps)


def record(subjects: Sequence[Subject], made: Mapping[str, Sequence[Measured]], steps: int) -> Results:
    made = {s.name: [_answered(s, one) for one in made[s.name]] for s in subjects}
    found = by_seed(made)
    return Results(
        title=LAB.title,
        command="",
        budget={"steps": steps},
        seeds=[one.run.seed for one in made[subjects[0].name]],
        measures=measures(),
        entries=[_entry(subject, made[subject.name]) for subject in subjects],
        claims=claims(STATEMENTS, found),
        tables=tables(subjects, found),
        notes=list(NOTES),
        contamination="no held-out review, and none that a probe reads, stands in the training text",
    )


def _entry(subject: Subject, made: Sequence[Measured]) -> Entry:
    found = entry(subject, made)
    runs = [
        run.model_copy(
            update={
                "points": _kept(run),
                "directory": _place(subject, run),
                "samples": [] if k else run.samples,  # of the first seed
            }
        )
        for k, run in enumerate(found.runs)
    ]
    return found.model_copy(update={"runs": runs, "cannot": cannot(subject)})


def _answered(subject: Subject, made: Measured) -> Measured:
    """A run without what its model gave no answer to: a detector of the selected words is not judged on all words."""
    if scope(subject) == "all":
        return made
    points = [
        point.model_copy(
            update={
                "values": {k: v for k, v in point.values.items() if k not in DETECTED},
                "details": {k: v for k, v in point.details.items() if k not in ("detector", "best")},
            }
        )
        for point in made.run.points
    ]
    return made.model_copy(update={"run": made.run.model_copy(update={"points": points})})


def _place(subject: Subject, run: Run) -> str | None:
    return f"richer/{run.directory}" if subject.name in {s.name for s in RICH} else run.directory


def _kept(run: Run) -> list[Point]:
    """Of what was found beside the values, the end's."""
    *before, last = run.points
    kept = {k: v for k, v in last.details.items() if k in KEPT}
    return [*(p.model_copy(update={"details": {}}) for p in before), last.model_copy(update={"details": kept})]


def cannot(subject: Subject) -> dict[str, str]:
    """Measure → why a subject has none."""
    noise, of = subject.asks["noise"], scope(subject)
    out = {}
    if noise != "generator":
        out[REPLACED] = "nothing is selected for it by a generator"
    if noise == "none":
        out |= {name: "nothing is replaced in its text" for name in (LABELS, *DETECTED)}
    elif of != "all":
        why = "it is not asked what was replaced" if of == "none" else "it is asked about the selected words alone"
        out |= {name: why for name in DETECTED}
    return out


CHANCE = (Level(label="by chance", value=0.5),)


def measures() -> list[Measure]:
    noise = "two of the 16 words of a held-out review drawn anew"
    return [
        *_probes(PROBES, "of the mean", "the mean over the words"),
        *_probes(PLACES, "at the adjective", "the state at the adjective"),
        Measure(name=REPLACED, label="Replaced", protocol=f"share of other words where {noise}", better="lower"),
        Measure(
            name=LABELS,
            label="Labels that change the meaning",
            protocol="share of all words of held-out reviews whose replacement makes the review untrue",
            better="higher",
        ),
        *_detected(),
    ]


def _probes(names: Mapping[int, str], of: str, how: str) -> list[Measure]:
    """names: number of labels → measure; how: what of a review's states is read."""
    read = "linear probe on states of held-out reviews up to “rating:”, test adjectives never labelled"
    return [
        Measure(
            name=name,
            label=f"Probe {of}, {labels} labels",
            protocol=f"{read}; {how}; {labels} labels",
            better="higher",
            levels=list(CHANCE),
        )
        for labels, name in names.items()
    ]


def _detected() -> list[Measure]:
    """Those of `DETECTED`."""
    ranked = "a replaced word scored above one that is not, over all words of held-out reviews"
    return [
        Measure(name=AUC, label="AUC of the detector", protocol=ranked, better="higher", levels=list(CHANCE)),
        Measure(
            name=BEST,
            label="AUC of the best detector",
            protocol=f"{ranked}, by the exact chance that each word was replaced",
            better="higher",
            levels=list(CHANCE),
        ),
        Measure(
            name=FOUND,
            label="Found, of those that change the meaning",
            protocol="share that the detector gives a chance above one half",
            better="higher",
        ),
        Measure(
            name=ALARMS,
            label="False alarms",
            protocol="share of the words that were not replaced with a chance above one half",
            better="lower",
        ),
    ]


NOTES = (
    "Of a held-out window's review two of 16 words are selected (12.5 %), the rest of the window stays; in training "
    "four of its 30 words are.",
    "Generators read [MASK] wherever they answer; their tables are their own, but for “shared”.",
    "All have one learning rate, schedule, batch and text; richer reviews are another world's.",
    "Every seed is measured with the same places and the same uniforms.",
)
