"""A real run, killed at ten random moments and resumed, equals the uncut run bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

SETTINGS = [
    "objective.type=masked",
    "model.hidden_size=64",
    "model.dropout=0.1",
    "model.num_layers=2",
    "tokenizer.vocab_size=600",
    "train.batch_size=8",
    "train.grad_accumulation=2",
    "budget.steps=240",
    "checkpoint.every=7",
    "evaluation.every=50",
    "evaluation.pieces=8",
    "seed=3",
]


def start(out: Path, corpus: Path, mode: str) -> subprocess.Popen[str]:
    words = ["pretrain", "encoder-small", f"corpus={corpus}", f"out={out}", f"resume={mode}", *SETTINGS]
    environment = {**os.environ, "UNMASK_CACHE": str(corpus.parent / "cache"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "unmask", *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def metrics(out: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


@pytest.mark.slow
def test_t01_ten_kills_change_nothing(tmp_path: Path) -> None:
    from pydoc_data.topics import topics

    corpus = tmp_path / "text.jsonl"
    corpus.write_text("".join(json.dumps({"text": t}) + "\n" for _, t in sorted(topics.items())), encoding="utf-8")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    begun = time.monotonic()
    done = start(whole, corpus, "never")
    assert done.wait() == 0, done.stderr.read() if done.stderr else ""
    length = time.monotonic() - begun
    kills = 0
    for moment in np.random.default_rng(11).uniform(0.3, 1.0, 10) * length * 0.6:
        run = start(cut, corpus, "auto")
        try:
            run.wait(timeout=float(moment))
            break
        except subprocess.TimeoutExpired:
            run.kill()
            run.wait()
            kills += 1
    last = start(cut, corpus, "auto")
    assert last.wait() == 0, last.stderr.read() if last.stderr else ""
    assert kills >= 3
    name = "checkpoints/step-240/model.safetensors"
    assert (whole / name).read_bytes() == (cut / name).read_bytes()
    optimizer = "checkpoints/step-240/optimizer.safetensors"
    assert (whole / optimizer).read_bytes() == (cut / optimizer).read_bytes()
    assert metrics(whole) == metrics(cut)
