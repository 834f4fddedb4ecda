"""The laboratory by name; what trains and opens models is loaded when it runs."""

from __future__ import annotations

from unmask.compare.results import Results
from unmask.labs.base import Asked, Lab


def run(asked: Asked) -> Results:
    """Both readings under every seed (`study`)."""
    from unmask.labs.inside.study import study

    return study(asked)


LAB = Lab(
    "inside",
    "Inside a small GPT: 109,056 parameters, opened",
    "a character model of the small world by hand, step by step, head by head, and with each part switched off.",
    run,
)
