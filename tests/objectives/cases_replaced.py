"""Replaced-token objectives for the suite."""

from __future__ import annotations

from typing import Any

from unmask.objectives import Replaced
from unmask.objectives.base import Objective

OBJECTIVES: dict[str, Objective] = {
    "replaced": Replaced.electra(),
    "replaced-deberta": Replaced.deberta_v3(),
    "replaced-15": Replaced.electra_15(),
    "replaced-mlm": Replaced.replace_mlm(),
    "replaced-all": Replaced.all_tokens_mlm(),
    "replaced-0.4": Replaced(mask_rate=0.4, mask_share=1.0),
    "replaced-spans": Replaced(span_lengths="geometric"),
}


def restored(objective: Objective, e: Any, ends: bool) -> tuple[list[int], list[bool]] | None:
    """The text, from what the generator reads and must say."""
    if not isinstance(objective, Replaced):
        return None
    tokens = e.stream["tokens"].copy()
    for i, v in zip(e.index, e.value, strict=True):
        tokens[i] = v
    return tokens[1:-1], [i in set(e.index) for i in range(1, len(tokens) - 1)]
