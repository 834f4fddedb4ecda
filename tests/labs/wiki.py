"""A data folder as the laboratories of real text read it, in small: CPython's own prose and made-up pairs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from pydoc_data.topics import topics


def write_data(folder: Path) -> Path:
    """enwiki2015/ with a training and a held-out file, blimp/ with two sets of pairs."""
    texts = [text for _, text in sorted(topics.items()) if len(text) > 1000]
    (folder / "enwiki2015").mkdir(parents=True)
    (folder / "blimp").mkdir()
    for name, part in (("train-00", texts[8:]), ("dev", texts[:8])):
        with gzip.open(folder / "enwiki2015" / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps({"id": str(k), "text": text}) + "\n" for k, text in enumerate(part))
    for name, good, bad in (
        ("number", "The {} is empty.", "The {} are empty."),
        ("order", "It is a {}.", "It a is {}."),
    ):
        pairs = [{"sentence_good": good.format(w), "sentence_bad": bad.format(w)} for w in ("list", "name", "class")]
        (folder / "blimp" / f"{name}.jsonl").write_text("".join(json.dumps(p) + "\n" for p in pairs), encoding="utf-8")
    return folder


TINY = {
    "tokenizer.vocab_size": 600,
    "model.hidden_size": 16,
    "model.num_heads": 2,
    "model.num_layers": 1,
    "train.batch_size": 2,
    "train.warmup_steps": 2,
    "budget.flops": 2e8,
    "milestones": 2,
    "tune": None,
}
"""Settings of a study that takes seconds."""
FEW = {"bpb": 4, "minimal-pairs": 3, "cloze": 12}
"""Items of each suite."""
