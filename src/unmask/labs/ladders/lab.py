"""The laboratory by name; what trains models is loaded when it runs."""

from __future__ import annotations

from unmask.compare.results import Results
from unmask.labs.base import Asked, Lab
from unmask.labs.real_text.lab import TRAIN, VALID


def run(asked: Asked) -> Results:
    """All three studies under every seed (`study`)."""
    from unmask.labs.ladders.study import study

    return study(asked)


LAB = Lab(
    "ladders",
    "T5's, RoBERTa's and BART's studies in small",
    "rates, spans, objectives, sharing; masks, inputs, batch, data; noises: do the published orders hold?",
    run,
    reads=(TRAIN, VALID),
)
