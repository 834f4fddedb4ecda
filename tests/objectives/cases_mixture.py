"""Entries of the suite: mixtures, whose parts are told apart by what their examples look like."""

from __future__ import annotations

from unmask.objectives import Causal, Masked, Mixture, SpanCorruption
from unmask.objectives.base import Objective
from unmask.objectives.mixture import Part

from . import cases
from .cases import Example

OBJECTIVES: dict[str, Objective] = {
    "mixture": Mixture(parts={"clm": Part(objective=Causal()), "mlm": Part(objective=Masked(), weight=3)}),
    "mixture-two-stacks": Mixture(
        parts={
            "short": Part(objective=SpanCorruption(final_sentinel=True)),
            "long": Part(objective=SpanCorruption(noise_density=0.5, mean_span=8, final_sentinel=True)),
        }
    ),
}


def restored(objective: Objective, e: Example, ends: bool) -> tuple[list[int], list[bool]] | None:
    """The text of an example by the rule of its part: a causal one is what is revealed token by token."""
    if not isinstance(objective, Mixture):
        return None
    parts = [part.objective for part in objective.parts.values()]
    if isinstance(parts[0], Causal):
        causal = len(e.index) == len(e.stream["tokens"])
        return cases.restored(parts[not causal], e, ends)
    return cases.restored(parts[0], e, ends)
