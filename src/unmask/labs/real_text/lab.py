"""The laboratory by name; what trains models is loaded when it runs."""

from __future__ import annotations

from unmask.compare.results import Results
from unmask.labs.base import Asked, Lab

TRAIN, VALID, PAIRS = "enwiki2015/train-00.jsonl.gz", "enwiki2015/dev.jsonl.gz", "blimp"
"""Of the data folder: text to train on, held-out text, minimal pairs."""
READS = (TRAIN, VALID, PAIRS)


def run(asked: Asked) -> Results:
    """All objectives under every seed (`study`)."""
    from unmask.labs.real_text.study import study

    return study(asked)


LAB = Lab(
    "real-text",
    "The objectives on real text, at equal FLOPs and tuned equally",
    "causal, prefix, masked, T5 and UL2 on Wikipedia: minimal pairs and gaps by one protocol, bits per byte.",
    run,
    reads=READS,
)
