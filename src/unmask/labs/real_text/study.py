"""One study by `unmask compare`: five objectives, the same layers, the same FLOPs, three learning rates each.

All entries have layers of one make (`decoder-small`'s, half as wide); T5 and UL2 have as many again for the source, so
twice the parameters of layers at the same cost a token (Raffel et al. 2020, table 2). Layers are `unmask`'s own in all
entries, as no family of the common library computes every mask.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from unmask.compare.results import Results
from unmask.compare.study import compare
from unmask.labs.base import Asked
from unmask.labs.real_text.lab import LAB, PAIRS, TRAIN, VALID
from unmask.labs.real_text.record import kept
from unmask.labs.real_text.words import write_gaps

LAYERS = 3
VOCABULARY = 2048
TWO = f"model.num_source_layers={LAYERS}"
ENTRIES = {
    "causal": "objective.type=causal",
    "prefix": "objective.type=prefix_lm,objective.layout=prefix",
    "masked": "objective.type=masked",
    "t5": f"objective.preset=t5,{TWO}",
    "ul2": f"objective.preset=ul2,{TWO}",
}
SETTINGS: dict[str, Any] = {
    "tokenizer.vocab_size": VOCABULARY,
    "tokenizer.extra": ["[NLU]", "[S2S]", "[NLG]"],
    "model.family": "unmask",
    "model.hidden_size": 96,
    "model.num_layers": LAYERS,
    "model.num_heads": 3,
    "train.batch_size": 8,
    "budget.flops": 2.4e12,
    "milestones": 3,
    "tune": "lr:3",
}
LIMITS = {"bpb": 256, "minimal-pairs": 10, "cloze": 1000}
"""Texts, pairs of each set, and gaps."""


def study(
    asked: Asked,
    settings: Mapping[str, Any] | None = None,
    limits: Mapping[str, int] | None = None,
    entries: Collection[str] = ENTRIES.keys(),
) -> Results:
    """The study and its claims; settings, limits, entries: other ones than the laboratory's, for a trial."""
    assert asked.data is not None
    found = compare(
        *(f"{name}=decoder-small:{own}" for name, own in ENTRIES.items() if name in entries),
        out=asked.out / "study",
        resume=asked.resume,
        cache=asked.out / "cache",
        say=asked.say,
        command=f"unmask lab {LAB.name}",
        **texts(asked),
        suites=suites(asked, {**LIMITS, **(limits or {})}),
        seeds=list(asked.seeds),
        **{**SETTINGS, **(settings or {})},
    )
    from unmask.labs.real_text.statements import judged

    return judged(kept(found, asked).model_copy(update={"title": LAB.title}))


def texts(asked: Asked) -> dict[str, Any]:
    """The text to train on and the held-out text."""
    assert asked.data is not None
    return {"corpus": str(asked.data / TRAIN), "valid": str(asked.data / VALID)}


def suites(asked: Asked, limits: Mapping[str, int]) -> dict[str, str | None]:
    """What is asked, of bits per byte, minimal pairs, and the gaps that are made from the held-out text."""
    assert asked.data is not None
    reads: dict[str, str | None] = {"bpb": None, "minimal-pairs": str(asked.data / PAIRS)}
    if "cloze" in limits:
        file = asked.out / f"gaps-{limits['cloze']}.jsonl"
        gaps = write_gaps(asked.data / TRAIN, asked.data / VALID, file, limits["cloze"])
        reads["cloze"] = str(gaps.absolute())
    return {f"{name}@{limit}": reads[name] for name, limit in limits.items()}
