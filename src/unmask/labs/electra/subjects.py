"""Who is compared, and on which reviews; fixed before anything was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from unmask.data.worlds import World
from unmask.labs.reviews.setting import STEPS, Subject

Noise = Literal["none", "generator", "opposites"]
"""What replaces words while a subject is trained, and when it is measured."""

ALWAYS: Mapping[str, Any] = {"objective.mask_share": 1.0}
"""The generator reads [MASK] wherever it answers, as in the paper's equations: what it draws is then a function of what
is seen, and the floor can be computed."""
NOTES: Mapping[str, Any] = {
    **ALWAYS,
    "objective.type": "apart",
    "objective.generator_width": 0.5,
    "objective.generator_depth": 0.5,
}
"""The notes' generator: 1 layer of width 32 with tables of its own."""
RATES = (0.15, 0.5)
"""Of the words that are replaced by opposites: the notes' 15 %, and every other one."""


def _electra(name: str, label: str, settings: Mapping[str, Any] | None = None, **more: Any) -> Subject:
    given = {**NOTES, **(settings or {})}
    return Subject(name, label, given, asks={"noise": "generator"}, **more)


BERT = Subject("bert", "BERT", {"objective.type": "masked"}, asks={"noise": "none"})
ELECTRA = _electra("electra", "ELECTRA")
ELECTRA_15 = _electra("electra-15", "ELECTRA 15 %", {"objective.task": "masked_detection"})
REPLACE = _electra("replace-mlm", "Replace MLM", {"objective.task": "recovery", "objective.coefficient": 1.0})
ALL = _electra("all-tokens", "All-Tokens MLM", {"objective.task": "all_tokens", "objective.coefficient": 1.0})
WEAK = _electra("weak", "ELECTRA, generator of width 16", {"objective.generator_width": 0.25})
LARGE = _electra(
    "large",
    "ELECTRA, generator as large as the model",
    {"objective.generator_width": 1.0, "objective.generator_depth": 1.0},
)
MAIN = (BERT, ELECTRA, ELECTRA_15, REPLACE, ALL, WEAK, LARGE)

FROZEN = _electra("frozen", "ELECTRA, generator frozen after 500 updates", {"objective.learns": 0.2})
LONGER = _electra("longer", "ELECTRA, twice the updates", steps=2 * STEPS, every=2 * STEPS // 5)
SHARED = _electra(
    "shared",
    "ELECTRA, tables shared, as published",
    {"objective.type": "replaced", "objective.sharing": "embeddings"},
)
RICHER = _electra("richer", "ELECTRA on richer reviews")
RICHER_BERT = Subject("richer-bert", "BERT on richer reviews", BERT.settings, asks={"noise": "none"})


OPPOSED = tuple(f"opposed-{100 * rate:.0f}" for rate in RATES)


def scope(subject: Subject) -> Literal["none", "selected", "all"]:
    """About which words a subject is trained to say whether they were replaced."""
    task = subject.settings.get("objective.task", "detection")
    if subject.asks["noise"] == "none" or task in ("recovery", "all_tokens"):
        return "none"
    return "selected" if task == "masked_detection" else "all"


def opposites(world: World) -> tuple[Subject, ...]:
    """The designed replacements: adjectives become their opposites, food and people apart."""
    ids = world.tokenizer("word").encode
    sides = [
        [ids(" ".join(side)).tolist() for side in np.array_split(np.array(adjectives), 2)]
        for adjectives in (world.food_adjectives, world.person_adjectives)
    ]
    return tuple(
        Subject(
            name,
            f"Opposites, {100 * rate:.0f} % of the adjectives",
            {"objective.type": "opposed", "objective.sides": sides, "objective.rate": rate},
            asks={"noise": "opposites", "rate": rate},
        )
        for name, rate in zip(OPPOSED, RATES, strict=True)
    )


def remedies(world: World) -> tuple[Subject, ...]:
    """On the same reviews as `MAIN`."""
    return (*opposites(world), FROZEN, LONGER, SHARED)


RICH = (RICHER_BERT, RICHER)


def richer(world: World) -> World:
    """More that can stand in each place: twice the adjectives, four times the reviews."""
    return World(seed=world.seed, adjective_count=2 * world.adjective_count, review_count=4 * world.review_count)
