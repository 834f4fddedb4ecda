"""Why rows of a shape hold no text of an objective, and what would give it room."""

from __future__ import annotations

from collections.abc import Callable

from unmask.objectives.base import Objective, Shape
from unmask.objectives.mixture import Part, parts_of
from unmask.objectives.supervised import Supervised

LONGEST = 1 << 15
"""Tokens of the longest row that is tried."""


def no_room(objective: Objective, shape: Shape) -> str:
    """The sentence for a shape whose `room` is 0: in which part of a mixture, what takes the room, and what to set.

    >>> pairs = Supervised()
    >>> no_room(pairs, pairs.shape(64)).partition(": ")[2]
    'raise context to at least 129, or set target_context to at least 129, or lower objective.max_target'
    """
    parts = parts_of(objective)
    full = {name: part for name, part in parts.items() if part.room(shape) < 1}
    mixed = objective.type == "mixture"
    each = ", ".join(f"part {name} ({part.objective.type})" for name, part in full.items()) if mixed else objective.type
    said = f"context={shape.source or shape.stream} leaves no room for text under {each}{_beside(full)}"
    path = "objective.parts.{}." if mixed else "objective."
    lower = [f"{path.format(n)}max_target" for n, part in full.items() if isinstance(part.objective, Supervised)]
    ways = [*_raised(objective, shape), *([f"lower {' and '.join(lower)}"] if lower else [])]
    return f"{said}: {', or '.join(ways)}"


def _beside(full: dict[str, Part]) -> str:
    """What stands in a row beside the text, where settings say it."""
    told = []
    for part in full.values():
        own = part.objective
        if isinstance(own, Supervised):
            told.append(f"the target of up to max_target={own.max_target} tokens")
        if part.mode is not None:
            told.append(f"the mode token {part.mode}")
    return f", beside {' and '.join([*dict.fromkeys(told), 'its control tokens'])}" if told else ""


def _raised(objective: Objective, shape: Shape) -> list[str]:
    """How the context of either stack would have to be raised."""
    context = shape.source or shape.stream
    ways = []
    if least := _least(lambda n: objective.room(objective.shape(n)), context):
        ways.append(f"raise context to at least {least}")
    if shape.source and (least := _least(lambda n: objective.room(objective.shape(context, n)), shape.stream)):
        ways.append(f"set target_context to at least {least}")
    return ways or ["raise it"]


def _least(room: Callable[[int], int], size: int) -> int:
    """The least size above this one that has room; 0 = none that was tried."""
    low, high = size, 2 * size
    while room(high) < 1:
        low, high = high, 2 * high
        if high > LONGEST:
            return 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if room(middle) >= 1 else (middle, high)
    return high
