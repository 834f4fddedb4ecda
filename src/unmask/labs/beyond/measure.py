"""What a model is asked at its milestones.

Two ways lead to an open slot, and a model is asked by each that its training knew: `gap` shows both sides of it, and
`forward` only what stands before. A model of one way is asked by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from torch import nn

from unmask.data.worlds import Review, World
from unmask.evaluation.abilities import modes_of
from unmask.evaluation.base import objective_of
from unmask.evaluation.plans import FORWARD, plans_of
from unmask.labs.beyond.gradients import compared
from unmask.labs.reviews.asked import FOOD, RATING, RATINGS, chosen, encode, in_windows, likeliest, right
from unmask.labs.reviews.bench import Found, Moment
from unmask.labs.reviews.gaps import beside_others
from unmask.labs.reviews.probes import LABELS, Labelled, hidden, readings
from unmask.labs.reviews.setting import windows
from unmask.lm import LM
from unmask.networks import networks_of
from unmask.objectives.base import Plan
from unmask.objectives.denoise import SpanCorruption
from unmask.objectives.permutation import Permutation

Way = Literal["gap", "forward"]
WAYS: tuple[Way, ...] = ("gap", "forward")
OWN, BESIDE, FILL, SCORED, VALID, TRUE = "rating", "beside", "fill", "scored", "valid", "true"
PROBES = {k: f"probe_{k}" for k in LABELS}
OTHERS = 3
"""Gaps beside the rating's, as a window of training has 4 tokens of noise."""
ASKED = 200
"""Held-out reviews with an open slot."""
SCORED_REVIEWS = 50
"""Of them, those in which 16 candidates are scored each."""
WRITTEN = 100
"""Lines a model writes."""
COMPARED = 1024
"""Training texts over which gradients are means."""
Stage = Literal["start", "first", "end"]
STAGES: tuple[Stage, ...] = ("start", "first", "end")
"""Before the first update, at the first milestone, and at the last."""


def measure(lm: LM, moment: Moment) -> Found:
    """The rating and one word by every way; at the end what costs more, too."""
    world = moment.world
    reviews = world.reviews("valid")[:ASKED]
    by_way = {way: _asked(told, plan, world, reviews) for way, (told, plan) in ways(lm).items()}
    own = by_way[_own(lm)]
    best = by_way[next(way for way in WAYS if way in by_way)]
    values: dict[str, float | None] = {OWN: own[OWN], FILL: best[FILL]}
    if isinstance(objective_of(lm), SpanCorruption):
        ids = [encode(lm, text) for text in in_windows(reviews)]
        values[BESIDE] = right(likeliest(lm, beside_others(lm, ids, OTHERS), RATINGS), reviews)
    details: dict[str, Any] = {}
    if moment.subject.asks.get("gradients"):
        details["gradients"] = _gradients(lm, moment)
    if not moment.last:
        return Found(values, details)
    if len(by_way) > 1:
        details["ways"] = by_way
    opinions = Labelled.of(world)
    probes = readings(lm, opinions, ("mean",))["mean"]
    details["hidden"] = hidden(lm, opinions)
    details["clause"] = readings(lm, opinions, ("mean",), "clause")["mean"]
    values |= {PROBES[k]: probes[str(k)] for k in LABELS}
    values |= {SCORED: scored(lm, world, reviews[:SCORED_REVIEWS])}
    lines = written(lm, moment.seed)
    if lines is not None:
        found = [world.check(line) for line in lines]
        values |= {VALID: float(np.mean([f.well_formed for f in found]))}
        values |= {TRUE: float(np.mean([bool(f.true) for f in found]))}
    return Found(values, details, tuple(("a review", line) for line in (lines or ())[:1]))


def ways(lm: LM) -> dict[Way, tuple[LM, Plan]]:
    """How a model can be asked for an open slot: as which part of its mixture, and by which plan."""
    found: dict[Way, tuple[LM, Plan]] = {}
    for mode in (None, *modes_of(lm.objective or objective_of(lm))):
        told = lm.told(mode)
        for plan in (p for p in plans_of(objective_of(told)) if p != "bound"):  # of one gap it is `pseudo`
            way: Way = "forward" if plan in FORWARD else "gap"
            better = plan == "left_to_right" and found.get(way, (told, plan))[1] == "decoder"
            if way not in found or better:
                found[way] = told, plan
    return found


def _own(lm: LM) -> Way:
    return "forward" if plans_of(objective_of(lm))[0] in FORWARD else "gap"


def _asked(lm: LM, plan: Plan, world: World, reviews: Sequence[Review]) -> dict[str, float]:
    """The rating of three, and whether the likeliest of 16 food adjectives is of the right side."""
    texts = in_windows(reviews)
    rated = chosen(lm, texts, RATING, RATINGS, plan)
    filled = chosen(lm, texts, FOOD, world.food_adjectives, plan)
    return {OWN: right(rated, reviews), FILL: _right_side(filled, world, reviews)}


def scored(lm: LM, world: World, reviews: Sequence[Review]) -> float:
    """Whether the review with the likeliest of the 16 candidates is of the right side: one text a candidate."""
    words = world.food_adjectives
    texts, spans = [], []
    for review, window in zip(reviews, in_windows(reviews), strict=True):
        for word in words:
            text = window.replace(f" {review.food_adjective} ", f" {word} ", 1)
            texts.append(text)
            spans.append((0, text.index("\n")))
    plan = next(p for p in plans_of(objective_of(lm)) if p != "bound")
    found = lm.score(texts, plan=plan, only=None if plan == "decoder" else spans)
    each = np.array([one.logprob for one in found]).reshape(len(reviews), len(words))
    return _right_side([words[k] for k in each.argmax(1)], world, reviews)


def _right_side(adjectives: Sequence[str], world: World, reviews: Sequence[Review]) -> float:
    """The share that is as good, or as bad, as what stood there."""
    sides = zip(adjectives, (review.food_adjective for review in reviews), strict=True)
    return float(np.mean([world.positive(a) == world.positive(b) for a, b in sides]))


def written(lm: LM, seed: int) -> list[str] | None:
    """Lines that the model writes behind "review", at temperature 1; None where it cannot write."""
    if not lm.can("generate"):
        return None
    texts = lm.generate(["review"] * WRITTEN, max_tokens=15, temperature=1.0, stop="\n", seed=seed)
    return ["review" + text for text in texts]


def _gradients(lm: LM, moment: Moment) -> dict[Stage, dict[str, list[float]]]:
    """What `compared` says of the network at a stage of its training, and at the first milestone also of its start.

    Without names, which would be most of a record: in the order of `OBJECTIVES` and `PAIRS`.
    """
    stages: list[Stage] = ["start", "first"] if moment.step == moment.subject.every else []
    stages += ["end"] if moment.last else []
    texts = [encode(lm, text) for text in windows(moment.world, "train", "aligned")[:COMPARED]]
    found = {stage: compared(_asking(lm, moment.seed, stage == "start"), texts, lm.vocabulary) for stage in stages}
    return {stage: {what: list(each.values()) for what, each in one.items()} for stage, one in found.items()}


def _asking(lm: LM, seed: int, fresh: bool) -> nn.Module:
    """The network, or what it was before its first update, with the vector that permutation's queries start from."""
    config = lm.config.model_copy(update={"query_vector": True})
    network = networks_of(Permutation(), config, seed)["model"]
    if not fresh:
        network.load_state_dict(lm.network.state_dict(), strict=False)
    return network.eval()
