"""Every objective that the suite runs over, texts with all that each needs, and what some of them owe otherwise.

`Contrastive` has no head over the vocabulary and `cases_masked.SPARSE` keeps some promises otherwise: they have tests
of their own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unmask.batch import Rows
from unmask.objectives import GLM, Causal, FullSentences, Mass, MultiToken, Permutation
from unmask.objectives.base import Objective
from unmask.objectives.masked import Masking

from . import (
    cases,
    cases_causal,
    cases_diffuse,
    cases_masked,
    cases_mixture,
    cases_order,
    cases_replaced,
    cases_sentence,
    cases_text,
)
from .cases import Example

GROUPS = (
    cases,
    cases_causal,
    cases_masked,
    cases_mixture,
    cases_replaced,
    cases_diffuse,
    cases_order,
    cases_sentence,
    cases_text,
)
OBJECTIVES: dict[str, Objective] = {name: o for group in GROUPS for name, o in group.OBJECTIVES.items()}
assert len(OBJECTIVES) == sum(len(group.OBJECTIVES) for group in GROUPS), "two entries of one name"

COPIED = cases_text.COPIED | {"unilm-next"}
"""Whose input shows what it asks for, by design, where `kept` does not look: leaks have tests of their own."""
STILL = cases_order.STILL | cases_diffuse.STILL | {"mixture"}
"""Whose noise is the same under two keys for some texts: a choice out of few, or none at all."""
BOUNDED = cases_text.BOUNDED | cases_order.BOUNDED | cases_causal.BOUNDED
"""Whose room is a bound for the worst draw, which few keys reach."""
CUT = cases_diffuse.CUT
"""Of some texts only a beginning is read."""
WEIGHTED = cases_diffuse.WEIGHTED
"""Targets have weights of their own, and every text a norm."""
UNTOLD = {
    *(n for n, o in OBJECTIVES.items() if n.startswith(("dropped", "dials-hyb", "dials-exact"))),
    *(n for n in cases_sentence.OBJECTIVES if not isinstance(OBJECTIVES[n], FullSentences)),
}
"""Whose text does not come back from one example: tokens are gone, or it holds parts of two texts."""


def noiseless(objective: Objective) -> bool:
    """Every key gives the same example."""
    if isinstance(objective, Masking):
        return getattr(objective, "mask_rate", 0) == 1 and not objective.random_share
    return isinstance(objective, Causal | MultiToken) or objective == OBJECTIVES["dials-nxt_uni"]


def placed(objective: Objective) -> bool:
    """Positions are not the places in the row."""
    return isinstance(objective, Permutation | GLM | Mass)


def texts(objective: Objective, lengths: list[int], seed: int = 0, ends: bool | None = None) -> Rows:
    """Random texts with all that the objective needs."""
    return dressed(objective, cases.texts(lengths, seed, ends))


def dressed(objective: Objective, rows: Rows) -> Rows:
    """The texts with what the objective needs, and nothing else, as the loader fills them."""
    words = cases_masked.marked(rows)
    pairs = cases_sentence.dressed(rows)
    made = {"word": words.word, "spans": words.spans, "sentence": pairs.sentence, "partner": pairs.partner}
    if {"word", "sentence"} <= objective.needs:
        made["word"] = pairs.word
    made["target"] = pairs.partner
    return replace(rows, **{"partner" if k == "target" else k: v for k, v in made.items() if k in objective.needs})


def restored(objective: Objective, e: Example, ends: bool) -> tuple[list[int], list[bool]]:
    """The text of an example, and which of its tokens were noise; no entry of `UNTOLD`."""
    for group in GROUPS[1:]:
        found = group.restored(objective, e, ends)
        if found is not None:
            return found
    return cases.restored(objective, e, ends)


def repeated(rows: Rows, times: int) -> Rows:
    """The first text again and again, each time under the key that stood there."""
    return replace(cases.take(rows, np.zeros(times, np.int64)), key=rows.key[:times])
