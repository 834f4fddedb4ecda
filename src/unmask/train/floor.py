"""Whether a run sits at its unigram floor: the loss of a model that knows how common words are, and no context.

Masked models stay there for long, and users take it for a fault of the program or for the end of what can be learnt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ABOVE = "not clearly below the unigram floor"
"""How a sentence says so; `demo` knows it by this."""
AT_FLOOR = 0.05
"""Nats below the unigram floor that a model must reach before it is taken to have learnt any context."""


def at_floor(loss: float, floor: float) -> bool:
    """Whether a model of this loss has learnt no context that shows: it is not AT_FLOOR below its floor."""
    return not loss <= floor - AT_FLOOR


@dataclass
class Floor:
    """Says so once a run, at the second of two evaluations in a row, both after the warm-up, of which

    - neither has a loss of content targets more than AT_FLOOR below the floor of the same targets, and
    - the second is at most AT_FLOOR better than the first: it does not come down any more, either.

    >>> watch, at = Floor(warmup=100), lambda loss: {"loss": loss, "unigram_floor": 6.5}
    >>> [watch(step, at(loss)) is not None for step, loss in ((50, 6.51), (100, 6.5), (150, 6.49), (200, 6.49))]
    [False, False, True, False]
    >>> watch = Floor(warmup=100)  # still coming down, and then through it
    >>> [watch(step, at(loss)) is not None for step, loss in ((100, 6.9), (150, 6.6), (200, 6.5), (250, 6.4))]
    [False, False, False, False]
    """

    warmup: int
    before: float | None = None
    """The loss of the evaluation before, where that was not below the floor."""
    said: bool = False

    def __call__(self, step: int, figures: Mapping[str, float]) -> str | None:
        """The warning, where it is due at this evaluation."""
        loss, floor = figures["loss"], figures.get("unigram_floor")
        before, self.before = self.before, None
        if floor is None or step < self.warmup or not at_floor(loss, floor):
            return None
        self.before = loss
        if self.said or before is None or loss < before - AT_FLOOR:
            return None
        self.said = True
        return (
            f"WARNING: the held-out loss {loss:.3f} is {ABOVE} {floor:.3f}, and no longer "
            "falls: the model knows word frequencies and no context; masked models leave it late, so train longer "
            "first, then lower the learning rates or raise the share of targets, and look at the text if nothing helps"
        )
