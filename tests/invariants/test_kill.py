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
    "model.num_heads=4",
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
    command = [sys.executable, "-m", "unmask", *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def metrics(out: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def steps(out: Path) -> int:
    """Updates that a run has logged so far."""
    path = out / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
def test_t01_ten_kills_change_nothing(tmp_path: Path) -> None:
    from pydoc_data.topics import topics

    corpus = tmp_path / "text.jsonl"
    corpus.write_text("".join(json.dumps({"text": t}) + "\n" for _, t in sorted(topics.items())), encoding="utf-8")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    done = start(whole, corpus, "never")
    assert done.wait() == 0, done.stderr.read() if done.stderr else ""
    random = np.random.default_rng(11)
    for target in np.sort(random.integers(1, 230, 10)):  # ten moments spread over the run, anywhere in an update
        run = start(cut, corpus, "auto")
        while steps(cut) < target and run.poll() is None:
            time.sleep(0.01)
        time.sleep(float(random.uniform(0, 0.1)))
        assert run.poll() is None, "the run ended before it was killed"
        run.kill()
        run.wait()
    last = start(cut, corpus, "auto")
    assert last.wait() == 0, last.stderr.read() if last.stderr else ""
    name = "checkpoints/step-240/model.safetensors"
    assert (whole / name).read_bytes() == (cut / name).read_bytes()
    optimizer = "checkpoints/step-240/optimizer.safetensors"
    assert (whole / optimizer).read_bytes() == (cut / optimizer).read_bytes()
    assert metrics(whole) == metrics(cut)
