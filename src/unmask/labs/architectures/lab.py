"""The laboratory by name; what trains models is loaded when it runs."""

from __future__ import annotations

from unmask.compare.results import Results
from unmask.labs.architectures.picture import picture
from unmask.labs.base import Asked, Lab


def run(asked: Asked) -> Results:
    """All subjects under every seed (`study`)."""
    from unmask.labs.architectures.study import study

    return study(asked)


LAB = Lab(
    "architectures",
    "Architectures: one text, one budget, four ways to learn from it",
    "causal, prefix LM, masked and T5: who learns a rule of two words, who can fill, write, and be read.",
    run,
    picture,
)
