"""Masked diffusion for the suite, and how a text comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unmask.objectives.base import Objective
from unmask.objectives.diffuse import Diffusion

if TYPE_CHECKING:
    from .cases import Example

BOS, EOS, MASK = 2, 3, 4

OBJECTIVES: dict[str, Objective] = {
    "diffusion": Diffusion.mdlm(),
    "diffusion-antithetic": Diffusion(times="antithetic"),
    "diffusion-independent": Diffusion(times="independent"),
    "diffusion-eps": Diffusion(eps=0.2),
    "diffusion-llada": Diffusion.llada(),
    "diffusion-lengths": Diffusion(random_length_share=0.5),
}

STILL = frozenset(OBJECTIVES)
"""At a low rate two keys may both hide nothing of a text."""
CUT = frozenset({"diffusion-llada", "diffusion-lengths"})
"""Of some texts only a beginning is read."""
WEIGHTED = frozenset(OBJECTIVES)
"""Targets have weights of their own, and a norm: all tokens of the text."""


def restored(objective: Objective, e: Example, ends: bool) -> tuple[list[int], list[bool]] | None:
    """The text of an example, from what the model sees and must say, and which of its tokens were noise."""
    if not isinstance(objective, Diffusion):
        return None
    tokens = e.stream["tokens"].copy()
    assert (tokens[0], tokens[-1]) == (BOS, EOS)
    for i, v in zip(e.index, e.value, strict=True):
        assert tokens[i] == MASK and 0 < i < len(tokens) - 1
        tokens[i] = v
    return tokens[1:-1], [i in set(e.index) for i in range(1, len(tokens) - 1)]
