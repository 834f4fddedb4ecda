"""Train, measure, judge, write down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from unmask.compare.results import Entry, Level, Measure, Point, Results, Run
from unmask.data.worlds import World
from unmask.labs.base import Asked, claims
from unmask.labs.electra.lab import LAB
from unmask.labs.electra.measured import measure
from unmask.labs.electra.names import ALARMS, AUC, BEST, FOUND, LABELS, PLACES, PROBES, REPLACED
from unmask.labs.electra.statements import STATEMENTS
from unmask.labs.electra.subjects import MAIN, RICH, remedies, richer
from unmask.labs.electra.tables import tables
from unmask.labs.reviews.bench import Measured, entry, trained
from unmask.labs.reviews.setting import STEPS, Subject

MILESTONES = 5
KEPT = ("kinds", "detector", "best", "controls", "generator", "positions", "clause", "hidden")
"""Of what was found at the end, what the record holds."""


def study(asked: Asked, steps: int = STEPS, world: World | None = None) -> Results:
    """Everything; steps, world: other ones than the laboratory's, for a trial."""
    world = world or World()
    here = [_shortened(s, steps) for s in (*MAIN, *remedies(world))]
    there = [_shortened(s, steps) for s in RICH]
    made = trained(asked, here, measure, world)
    made |= trained(replace(asked, out=asked.out / "richer"), there, measure, richer(world))
    return record([*here, *there], made, steps)


def _shortened(subject: Subject, steps: int) -> Subject:
    """With its share of so many updates, and as many milestones as ever."""
    own = subject.steps * steps // STEPS
    return replace(subject, steps=own, every=-(-own // MILESTONES))


def record(subjects: Sequence[Subject], made: Mapping[str, Sequence[Measured]], steps: int) -> Results:
    seeds = [one.run.seed for one in made[subjects[0].name]]
    found = [{name: each[k] for name, each in made.items()} for k in range(len(seeds))]
    return Results(
        title=LAB.title,
        command="",
        budget={"steps": steps},
        seeds=seeds,
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
                "points": _brief(run),
                "directory": _place(subject, run),
                "samples": [] if k else run.samples,  # of the first seed
            }
        )
        for k, run in enumerate(found.runs)
    ]
    return found.model_copy(update={"runs": runs, "cannot": cannot(subject)})


def _place(subject: Subject, run: Run) -> str | None:
    return f"richer/{run.directory}" if subject.name in {s.name for s in RICH} else run.directory


def _brief(run: Run) -> list[Point]:
    """Values to five digits; of what else was found, the end's."""
    last = run.points[-1]
    return [
        point.model_copy(
            update={
                "seconds": round(point.seconds, 1),
                "values": {k: None if v is None else round(v, 5) for k, v in point.values.items()},
                "details": {k: _rounded(v) for k, v in point.details.items() if k in KEPT} if point is last else {},
            }
        )
        for point in run.points
    ]


def _rounded(value: object) -> object:
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return round(value, 5) if isinstance(value, float) else value


def cannot(subject: Subject) -> dict[str, str]:
    """Measure → why a subject has none."""
    noise, task = subject.asks["noise"], subject.settings.get("objective.task", "detection")
    out = {}
    if noise != "generator":
        out[REPLACED] = "nothing is selected for it by a generator"
    if noise == "none":
        out |= {name: "nothing is replaced in its text" for name in (LABELS, AUC, BEST, FOUND, ALARMS)}
    elif task in ("recovery", "all_tokens"):
        out |= {name: "it is not asked what was replaced" for name in (AUC, BEST, FOUND, ALARMS)}
    return out


def measures() -> list[Measure]:
    chance = [Level(label="by chance", value=0.5)]
    read = "linear probe on states of held-out reviews up to “rating:”, test adjectives never labelled"
    noise = "two of the 16 words of a held-out review drawn anew"
    return [
        Measure(
            name=names[k],
            label=f"Probe {of}, {k} labels",
            protocol=f"{read}; {how}; {k} labels",
            better="higher",
            levels=chance,
        )
        for names, of, how in (
            (PROBES, "of the mean", "the mean over the words"),
            (PLACES, "at the adjective", "the state at the adjective"),
        )
        for k in names
    ] + [
        Measure(name=REPLACED, label="Replaced", protocol=f"share of other words where {noise}", better="lower"),
        Measure(
            name=LABELS,
            label="Labels that change the meaning",
            protocol="share of all words of held-out reviews whose replacement makes the review untrue",
            better="higher",
        ),
        Measure(
            name=AUC,
            label="AUC of the detector",
            protocol="a replaced word scored above one that is not, over all words of held-out reviews",
            better="higher",
            levels=chance,
        ),
        Measure(
            name=BEST,
            label="AUC of the best detector",
            protocol="the same, scored by the exact chance that each word was replaced",
            better="higher",
            levels=chance,
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
