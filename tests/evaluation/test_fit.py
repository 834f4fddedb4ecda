"""How much text an example of scoring holds: every answer where training had answers, too."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from unmask import keyed
from unmask.batch import Examples, Rows
from unmask.errors import UserError
from unmask.evaluation.fit import plans_of, room
from unmask.evaluation.plans import Query, expand
from unmask.objectives import (
    OWN,
    REGISTRY,
    UL2,
    Bart,
    DroppedTokens,
    Mass,
    Mixture,
    Permutation,
    Restoration,
    SpanCorruption,
    UniLM,
)
from unmask.objectives.base import Objective, Plan, Shape
from unmask.objectives.denoise import TextToText
from unmask.objectives.layout import Layout
from unmask.objectives.registry import name_of
from unmask.objectives.show import Toy


@dataclass(frozen=True)
class Roles(Toy):
    """The toy vocabulary as scoring reads it, with sentinels enough."""

    bos: int = 2
    cls: int = 2


CONTEXT = 64
V = Roles(size=600, sentinels=np.arange(90, 600, dtype=np.int32))


def laid_out(name: str, objective: Objective) -> dict[str, Objective]:
    if not isinstance(objective, TextToText):
        return {name: objective}
    kinds = ("encdec", "prefix", "causal")
    return {f"{name}-{kind}": objective.model_copy(update={"layout": Layout(kind=kind)}) for kind in kinds}


def cases() -> dict[str, Objective]:
    """Every type and preset in every layout, but those whose texts come in pairs or with spans, and mixtures."""
    found = {name_of(c): c() for c in OWN if c is not Mixture} | {k: m() for k, m in REGISTRY.own_presets.items()}
    plain = {k: o for k, o in found.items() if not o.needs & {"partner", "target", "spans"}}
    every = {k: o for name, objective in plain.items() for k, o in laid_out(name, objective).items()}
    return {k: o for k, o in every.items() if not isinstance(o, Mixture) and plans_of(o)}


CASES = cases()


def texts(n: int, count: int, seed: int) -> Rows:
    rng = np.random.default_rng(seed)
    number = np.arange(count)
    flags = {"word": np.ones(n * count, bool), "sentence": rng.random(n * count) < 0.2, "ends": number % 2 == 0}
    return Rows.of(rng.integers(5, 90, (count, n)), keyed.row_keys(seed, 0, number), index=number, **flags)


def answered(e: Examples) -> set[int]:
    """The positions (as the model counts them) at which words are predicted, not ends or sentinels."""
    t = e.targets["lm"]
    assert t.index is not None
    at = t.index[(t.value >= 5) & (t.value < 90)]
    return set(np.asarray(e.stream.positions)[at].tolist())


def asked(objective: Objective, n: int, plan: Plan) -> set[int]:
    rows = replace(texts(n, 1, 1), ends=np.zeros(1, bool))
    return set().union(*(answered(part.examples) for part in expand(objective, Query.of(rows), V, 1 << 14, plan)))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CASES)
def test_every_answer_stands_where_training_had_answers(name: str) -> None:
    """dropped_tokens in one stack lost 2 nats from 62 to 63 tokens of 64: only ends had stood there."""
    objective = CASES[name]
    shape, plan = objective.shape(CONTEXT), plans_of(objective)[0]
    trained: set[int] = set()
    for seed in range(8):
        trained |= answered(objective(texts(objective.room(shape), 500, seed), V))
    full = room(objective, shape, plan)
    assert asked(objective, full, plan) <= trained
    assert full >= 0.4 * CONTEXT  # and no less than need be: copies in one stack stand there twice


@pytest.mark.parametrize(
    ("objective", "most"),
    [
        (DroppedTokens(layout="prefix"), 62),  # 63 [EOS], which was all that ever stood at 63
        (UL2(layout="prefix"), 45),  # 16 tokens of 45 can be 7 spans
        (SpanCorruption(layout="causal"), 55),
        (Mass(layout="prefix"), 41),  # text and fragment: 42 + 21, and positions are places in the text
        (Mass(), 63),  # place 63 was [EOS]'s
        (Restoration(layout="prefix"), 31),
        (Bart(layout="prefix"), 28),  # its source is shorter in training: 31 tokens less 30 %, 3 [MASK]
        (Permutation(), 53),  # 53 + 2 and 9 queries
        (UniLM(), 61),
    ],
    ids=str,
)
def test_rooms_by_hand(objective: Objective, most: int) -> None:
    shape = objective.shape(CONTEXT)
    assert room(objective, shape) == most and room(objective, shape) <= objective.room(shape)


def test_a_mode_token_takes_room() -> None:
    objective = DroppedTokens(layout="prefix")
    assert room(objective.after("[NLU]"), Shape(64)) == room(objective, Shape(63))


def test_too_short_a_context_is_one_sentence() -> None:
    with pytest.raises(UserError, match="a model trained on 4 tokens has no room for text under ul2"):
        room(UL2(layout="prefix"), Shape(4))
