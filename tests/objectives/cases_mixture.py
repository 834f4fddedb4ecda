"""Entries of the suite: mixtures, whose parts are told apart by what their examples say."""

from __future__ import annotations

from unmask.objectives import Mixture, PrefixLM, SpanCorruption
from unmask.objectives.base import Objective
from unmask.objectives.layout import Layout
from unmask.objectives.mixture import Part

from . import cases_text
from .cases import VOCABULARY, Example

OBJECTIVES: dict[str, Objective] = {
    "mixture": Mixture(
        parts={
            "end": Part(objective=PrefixLM()),
            "spans": Part(objective=SpanCorruption(layout=Layout(kind="prefix")), weight=3),
        }
    ),
    "mixture-two-stacks": Mixture(
        parts={
            "short": Part(objective=SpanCorruption()),
            "long": Part(objective=SpanCorruption(noise_density=0.5, mean_span=8)),
        }
    ),
}


def restored(objective: Objective, e: Example, ends: bool) -> tuple[list[int], list[bool]] | None:
    """The text of an example by the rule of its part: spans begin with a sentinel."""
    if not isinstance(objective, Mixture):
        return None
    first, second = (part.objective for part in objective.parts.values())
    spans = isinstance(first, SpanCorruption) or (e.value and e.value[0] >= VOCABULARY.sentinels[0])
    return cases_text.restored(second if spans else first, e, ends)
