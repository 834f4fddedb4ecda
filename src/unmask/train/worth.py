"""Whether torch.compile pays within a run: timed once, on a copy of the networks, before the first update.

The answer goes into the plan and is never asked again, so a resumed run computes as it did before. Compiled sums are
rounded in another order: a run with `compile=auto` is the same again only with the same answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

LEAST = 1800.0
"""Seconds of passes in a run below which nothing is tried: a trial takes up to a minute or two itself."""
WARM, TIMED = 3, 5
"""Updates whose passes are made before any is timed (compilers, allocators), and those that are."""

Asked = Literal["auto", True, False]
"""The setting `compile`."""
Answer = tuple[bool, str]
"""(whether to compile, why)."""


def decide(
    passes: Callable[[int], object],
    compile_them: Callable[[], object],
    updates: int | None,
    minutes: float | None,
    clock: Callable[[], float] = time.perf_counter,
) -> Answer:
    """Time passes as they are and compiled, and weigh what compiling saves in this run against its own seconds.

    passes: makes the forward and backward passes of an update, given by number. compile_them: from then on they are
    compiled. updates, or minutes: of the run, one of them known.
    """
    plain, _ = _timed(passes, clock)
    seconds = 60 * minutes if minutes is not None else plain * (updates or 0)
    if seconds < LEAST:
        return False, f"auto: the run takes about {seconds / 60:.0f} minutes, too few to pay for compiling"
    try:
        compile_them()
        compiled, cost = _timed(passes, clock)
    except Exception as error:  # whatever a compiler that is missing or fails raises
        return False, f"auto: torch.compile does not work here ({' '.join(str(error).split())[:200]})"
    saved = seconds * (1 - compiled / plain)
    said = f"an update takes {plain:.3g} s, and {compiled:.3g} s compiled, which takes {cost:.0f} s"
    return saved > cost, f"auto: {said}"


def _timed(passes: Callable[[int], object], clock: Callable[[], float]) -> tuple[float, float]:
    """Seconds of an update's passes, the best of `TIMED`, and those that the ones before took beyond it."""
    begin = clock()
    for step in range(WARM):
        passes(step)
    times = [clock()]
    for step in range(WARM, WARM + TIMED):
        passes(step)
        times.append(clock())
    each = min(b - a for a, b in pairwise(times))
    return each, max(0.0, times[0] - begin - WARM * each)
