"""Train, ask, judge, write down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unmask.compare.results import Level, Measure, Results
from unmask.data.worlds import Review, World
from unmask.labs.base import Asked
from unmask.labs.beyond.lab import LAB
from unmask.labs.beyond.measure import (
    ASKED,
    BESIDE,
    FILL,
    OTHERS,
    OWN,
    PROBES,
    SCORED,
    SCORED_REVIEWS,
    TRUE,
    VALID,
    WRITTEN,
    measure,
)
from unmask.labs.beyond.statements import judged
from unmask.labs.beyond.subjects import SUBJECTS
from unmask.labs.beyond.tables import tables
from unmask.labs.reviews.bench import Measured, entry, trained
from unmask.labs.reviews.setting import STEPS, Subject


def study(asked: Asked, steps: int = STEPS, world: World | None = None) -> Results:
    """All subjects under all seeds; steps, world: other ones than the laboratory's, for a trial."""
    subjects = [s.scaled(steps) for s in SUBJECTS]
    where = world or World()
    return record(asked.seeds, subjects, trained(asked, subjects, measure, where), where)


def record(
    seeds: Sequence[int], subjects: Sequence[Subject], made: Mapping[str, Sequence[Measured]], world: World
) -> Results:
    """What was found, judged."""
    found = Results(
        title=LAB.title,
        command="",
        budget={"steps": float(subjects[0].steps)},
        seeds=list(seeds),
        measures=measures(world),
        entries=[entry(subject, made[subject.name]) for subject in subjects],
        notes=list(NOTES),
        contamination=_contamination(world),
    )
    return found.model_copy(update={"claims": judged(found), "tables": tables(found)})


def _contamination(world: World) -> str:
    seen = {review.text for review in world.reviews("train")}
    held = world.reviews("valid")[:ASKED]
    return (
        f"{sum(review.text in seen for review in held)} of the {len(held)} held-out reviews stand in the training text"
    )


SIDES = (Level(label="either side", value=0.5),)


def measures(world: World) -> list[Measure]:
    probe = "a linear probe of mean states, fitted to {} labelled reviews: is the food good? Adjectives never labelled"
    written = f"of {WRITTEN} lines written behind “review” at temperature 1, by the model's own way"
    return [
        *_at_slots(world.reviews("valid")[:ASKED]),
        Measure(
            name=SCORED,
            label="Fill by scoring",
            protocol=f"16 texts of each of {SCORED_REVIEWS} reviews, the likeliest of which counts: is its adjective "
            "of the right side?",
            better="higher",
            levels=list(SIDES),
        ),
        *(
            Measure(
                name=name,
                label=f"Probe with {k} labels",
                protocol=probe.format(k),
                better="higher",
                levels=list(SIDES),
            )
            for k, name in PROBES.items()
        ),
        Measure(name=VALID, label="Well-formed lines", protocol=written, better="higher"),
        Measure(
            name=TRUE, label="True lines", protocol=f"{written}: well formed, with the right rating", better="higher"
        ),
    ]


def _at_slots(reviews: Sequence[Review]) -> list[Measure]:
    """What is asked at open slots of these held-out reviews."""
    slot = f"the likeliest of {{}} at the open slot of {len(reviews)} held-out reviews, "
    ok = Level(label="always ok", value=sum(review.rating == "ok" for review in reviews) / len(reviews))
    return [
        Measure(
            name=OWN,
            label="Rating",
            protocol=slot.format("3 ratings") + "asked as the model is asked by default",
            better="higher",
            levels=[ok],
        ),
        Measure(
            name=BESIDE,
            label="Rating beside other gaps",
            protocol=slot.format("3 ratings")
            + f"with {OTHERS} other tokens open, as in the training of span corruption",
            better="higher",
            levels=[ok],
        ),
        Measure(
            name=FILL,
            label="Fill in one pass",
            protocol=slot.format("16 food adjectives") + "both sides shown where the model can see them: is it of the "
            "right side?",
            better="higher",
            levels=list(SIDES),
        ),
    ]


NOTES = (
    "All read 32 windows of 30 tokens an update; updates are equal, FLOPs are shown. UL2 has 4 control tokens more, "
    "permutation a vector and 5 positions more, one stack 16 positions more.",
    "A model that knows two ways to an open slot is asked by both; “rating” is of the way that is its own by default.",
)
