"""The laboratory by name; what trains models is loaded when it runs."""

from __future__ import annotations

from unmask.compare.results import Results
from unmask.labs.base import Asked, Lab
from unmask.labs.electra.picture import picture


def run(asked: Asked) -> Results:
    """All subjects under every seed (`study`)."""
    from unmask.labs.electra.study import study

    return study(asked)


LAB = Lab(
    "electra",
    "ELECTRA: what a detector of replaced words learns",
    "replaced-token detection on reviews: what is replaced, what is detected, what could be, and what would help.",
    run,
    picture,
)
