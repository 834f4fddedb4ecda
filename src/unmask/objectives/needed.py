"""How many sentinels an objective can need for texts of a length, known before any text is read.

A text that needs more than the tokenizer has is an error wherever it comes (`denoise.corrupt`, `infilling.sentinels`).
Here the most of any text is told, so that a run hears of it before its text is prepared, not at its first long text.
"""

from __future__ import annotations

import numpy as np

from unmask.errors import UserError
from unmask.objectives.base import Objective, Shape
from unmask.objectives.denoise import SpanCorruption
from unmask.objectives.infilling import CausallyMasked, FillInTheMiddle
from unmask.objectives.mixture import Mixture
from unmask.objectives.ul2 import UL2


def sentinels_needed(objective: Objective, shape: Shape) -> int:
    """The most sentinels that a text of a run of this shape can need; 0 of an objective that has none.

    A third of T5's 15 % of a text; UL2's busiest denoiser (X, mean 3, density .5) takes a third of half of it.

    >>> t5, ul2 = SpanCorruption.t5(), UL2.ul2()
    >>> [sentinels_needed(t5, t5.shape(n)) for n in (128, 512, 1024, 2048)]
    [8, 29, 58, 115]
    >>> [sentinels_needed(ul2, ul2.shape(n)) for n in (128, 512, 1024, 2048)]
    [22, 86, 171, 342]
    """
    lengths = np.arange(1, objective.room(shape) + 1)
    return int(_most(objective, lengths).max(initial=0))


def _most(objective: Objective, lengths: np.ndarray) -> np.ndarray:
    """(R,) the most sentinels of texts of these lengths."""
    match objective:
        case Mixture():
            return np.max([_most(part.objective, lengths) for part in objective.parts.values()], axis=0)  # type: ignore[no-any-return]
        case SpanCorruption():
            return objective.counts(lengths)[1] + int(objective.final_sentinel)
        case UL2():
            return objective.most_spans(lengths) + int(objective.final_sentinel)
        case FillInTheMiddle():
            return np.full(len(lengths), 3 + (objective.end == "sentinel"))
        case CausallyMasked():  # asks for all it may need, whatever the text
            return np.full(len(lengths), objective.max_spans + objective.end_of_span)
    return np.zeros(len(lengths), np.int64)


def require_sentinels(objective: Objective, shape: Shape, has: int, how: str) -> None:
    """Refuse a tokenizer of `has` sentinels where the objective can need more; `how` to get {} of them."""
    if (needed := sentinels_needed(objective, shape)) > has:
        context, fixed = shape.source or shape.stream, isinstance(objective, FillInTheMiddle)
        raise UserError(
            f"objective {objective.type} at context={context} needs up to {needed} sentinels and the tokenizer has "
            f"{has}: {how.format(needed)}{'' if fixed else ', or use fewer or longer spans, or a shorter context'}"
        )
