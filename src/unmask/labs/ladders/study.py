"""Four studies by `unmask compare`, with one tokenizer and one size of layers; each has its budget (`OWN`).

t5        Raffel et al. 2020: two stacks, most of which write spans alone and learn late: nearly four times the
          budget of the others, and rows of half the length, twice as many
bart      noises of Lewis et al. 2020: two stacks that write the whole text
encoder   one stack, masked: RoBERTa's inputs and batch size (Liu et al. 2019)
little    the same on six tenths of a megabyte, which is read several times: static masks, and what less data costs

What stands in one table of a paper has one budget here (tested).

Nothing is tuned, as in the papers' tables: all entries have one learning rate, but for the larger batch, whose rate
grows by the root of its size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from unmask.compare.results import Entry, Measure, Results
from unmask.compare.study import compare
from unmask.config import SourceConfig, TokenizerConfig
from unmask.labs.base import Asked
from unmask.labs.ladders.lab import LAB
from unmask.labs.orders import HELD_OUT
from unmask.labs.real_text.lab import TRAIN
from unmask.labs.real_text.record import kept
from unmask.labs.real_text.study import VOCABULARY, suites, texts
from unmask.labs.real_text.words import write_lines
from unmask.text.corpus import Counts, read
from unmask.tokens.tokenizer import Tokenizer

LAYERS = 2
TWO = f"model.num_source_layers={LAYERS}"
SPANS = "objective.type=span_corruption"
T5 = {
    "iid-15": f"objective.preset=iid,{TWO}",
    "iid-25": f"objective.preset=iid,objective.noise_density=0.25,{TWO}",
    "iid-50": f"objective.preset=iid,objective.noise_density=0.50,{TWO}",
    "span-3": f"{SPANS},objective.mean_span=3,{TWO}",
    "span-10": f"{SPANS},objective.mean_span=10,{TWO}",
    "prefix-lm": f"objective.type=prefix_lm,objective.layout=encdec,{TWO}",
    "bert-style": f"objective.preset=bert_style,{TWO}",
    "shared": f"objective.preset=iid,{TWO},model.share_stacks=true",
    "one-stack": "objective.preset=iid,objective.layout=prefix",
}
BART = {
    "masking": f"objective.preset=token_masking,{TWO}",
    "infilling": f"objective.preset=text_infilling,{TWO}",
    "masking+permutation": f"objective.preset=token_masking,objective.permute_sentences=true,{TWO}",
    "masking+rotation": f"objective.preset=token_masking,objective.rotate=true,{TWO}",
}
TYPES = "model.token_types=2"
ENCODER = {
    "full-sentences": f"objective.type=full_sentences,{TYPES}",
    "segment-pair+nsp": f"objective.preset=segment_pair,{TYPES}",
    "sentence-pair+nsp": f"objective.preset=sentence_pair,{TYPES}",
    "batch-x4": f"objective.type=full_sentences,{TYPES},train.batch_size=32,train.learning_rate=6e-3,"
    "train.muon_learning_rate=0.04,train.warmup_steps=13",
}
LITTLE = {
    "little-dynamic": f"objective.type=full_sentences,{TYPES}",
    "little-static": f"objective.type=full_sentences,{TYPES},objective.masking.duplicates=1",
}
STUDIES = {"t5": T5, "bart": BART, "encoder": ENCODER, "little": LITTLE}
EVERY = tuple(entry for study in STUDIES.values() for entry in study)
OWN: dict[str, dict[str, Any]] = {
    "t5": {"context": 64, "train.batch_size": 16, "budget.flops": 4.5e12},
    "bart": {"budget.flops": 1.2e12},
    "encoder": {"budget.flops": 1.2e12},
    "little": {"budget.flops": 1.2e12},
}
"""What each study has of its own."""
SETTINGS: dict[str, Any] = {
    "corpus.sentences": True,
    "valid.sentences": True,
    "model.family": "unmask",
    "model.hidden_size": 96,
    "model.num_layers": LAYERS,
    "model.num_heads": 3,
    "train.batch_size": 8,
    "evaluation.pieces": 128,
    "milestones": 1,
}
LIMITS = {"bpb": 1024, "cloze": 1000}
LITTLE_BYTES = 600_000
"""Of text in `little`: about 200,000 tokens."""


def study(
    asked: Asked,
    settings: Mapping[str, Any] | None = None,
    limits: Mapping[str, int] | None = None,
    only: Collection[str] = EVERY,
) -> Results:
    """All studies as one record, and its claims; settings, limits, only: other ones, for a trial."""
    where = {**LIMITS, **(limits or {})}
    given = {**SETTINGS, "tokenizer.file": str(tokenizer(asked).absolute())}
    found = {}
    for name, every in STUDIES.items():
        entries = {entry: own for entry, own in every.items() if entry in only}
        if not entries:
            continue
        asked.say(f"study {name}")
        text = texts(asked) if name != "little" else {**texts(asked), "corpus": str(little(asked).absolute())}
        found[name] = compare(
            *(f"{entry}=decoder-small:{own}" for entry, own in entries.items()),
            out=asked.out / name,
            resume=asked.resume,
            cache=asked.out / "cache",
            say=asked.say,
            command=f"unmask lab {LAB.name}",
            **text,
            suites=suites(asked, where),
            seeds=list(asked.seeds),
            **{**given, **OWN[name], **(settings or {})},
        )
    from unmask.labs.ladders.statements import judged

    return judged(joined([kept(one, asked) for one in found.values()]))


def tokenizer(asked: Asked) -> Path:
    """One for all studies, trained on the large text."""
    assert asked.data is not None
    file = asked.out / "tokenizer.json"
    if not file.exists():
        source = SourceConfig(path=str(asked.data / TRAIN))
        config = TokenizerConfig(type="bbpe", vocab_size=VOCABULARY)
        Tokenizer.train(config, (d.text for d in read(source, Counts())), asked.say).save(file)
    return file


def little(asked: Asked) -> Path:
    """The first documents of the text, up to so many bytes."""
    assert asked.data is not None
    file = asked.out / "little.jsonl"
    if not file.exists():
        kept: list[dict[str, str]] = []
        size = 0
        for document in read(SourceConfig(path=str(asked.data / TRAIN)), Counts()):
            kept.append({"text": document.text})
            size += len(document.text.encode())
            if size >= LITTLE_BYTES:
                break
        write_lines(file, kept)
    return file


def joined(studies: list[Results]) -> Results:
    """One record of several studies of the same seeds: the measures that two entries or more share.

    Differences are judged by the claims alone, so there are no comparisons. Where budgets differ, the record has none
    as a whole: each entry's settings say its own, and so do the tables.
    """
    entries = [entry for one in studies for entry in one.entries]
    measures: dict[str, Measure] = {}
    for one in studies:
        for measure in one.measures:
            known = measures.get(measure.name)
            measures[measure.name] = measure if known is None else _both(known, measure)
    shared = {name for name in measures if sum(_has(entry, name) for entry in entries) > 1}
    shared = {name for name in shared if not name.startswith(HELD_OUT)}
    first = studies[0]
    return first.model_copy(
        update={
            "title": LAB.title,
            "budget": first.budget if all(one.budget == first.budget for one in studies) else {},
            "measures": [m for name, m in measures.items() if name in shared],
            "entries": [_only(entry, shared) for entry in entries],
            "comparisons": [],
            "notes": list(dict.fromkeys(note for one in studies for note in one.notes)),
        }
    )


def _both(one: Measure, other: Measure) -> Measure:
    """A measure of two studies, with the levels of the first, which has all of the text."""
    levels = [
        level if level in other.levels else level.model_copy(update={"label": f"{level.label} (all of it)"})
        for level in one.levels
    ]
    return one.model_copy(update={"levels": levels})


def _has(entry: Entry, measure: str) -> bool:
    return any(point.values.get(measure) is not None for run in entry.runs for point in run.points)


def _only(entry: Entry, measures: set[str]) -> Entry:
    runs = [
        run.model_copy(
            update={
                "points": [
                    p.model_copy(
                        update={
                            "values": {k: v for k, v in p.values.items() if k in measures},
                            "details": {k: v for k, v in p.details.items() if k in measures},
                        }
                    )
                    for p in run.points
                ]
            }
        )
        for run in entry.runs
    ]
    return entry.model_copy(update={"runs": runs, "cannot": {k: v for k, v in entry.cannot.items() if k in measures}})
