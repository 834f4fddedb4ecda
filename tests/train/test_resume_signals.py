"""One run equals the same run that was stopped by SIGTERM, SIGINT and SIGKILL at random moments, and resumed.

Real processes and the command line (`cutting`): data order, noise, rates, weights, optimizer and metrics, bit for bit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import cutting
import numpy as np
import pytest

SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")
SETTINGS = {
    "model.hidden_size": 32,
    "model.num_layers": 2,
    "model.num_heads": 2,
    "model.dropout": 0.1,
    "tokenizer.type": "byte",
    "context": 32,
    "train.batch_size": 8,
    "train.grad_accumulation": 2,
    "evaluation.every": 10,
    "evaluation.pieces": 8,
    "seed": 3,
}
RUNS = {
    "masked": {"objective.type": "masked"},
    "two networks": {"objective.type": "replaced"},  # ELECTRA: a generator and a discriminator
    "stages": {
        "objective.type": "masked",
        "train.stages": "[{share: 0.4, context: 16, batch_size: 12}, {share: 0.3}, {share: 0.3, batch_size: 4}]",
    },
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from pydoc_data.topics import topics

    path = tmp_path_factory.mktemp("text") / "text.jsonl"
    lines = [json.dumps({"text": text}) for _, text in sorted(topics.items())[:40]]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def trained(place: Path, corpus: Path, settings: dict[str, Any], lives: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A run in `place` with these lives before its last one; what each of them came to."""
    words = ["encoder-small", f"corpus={corpus}", *(f"{k}={v}" for k, v in {**SETTINGS, **settings}.items())]
    plan = place.with_suffix(".json")
    plan.write_text(json.dumps({"words": words, "lives": lives}))
    environment = {**os.environ, "UNMASK_CACHE": str(corpus.parent / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(cutting.__file__)), str(place), str(plan)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20000)
    said = place / "said.txt"
    assert done.returncode == 0, done.stderr + (said.read_text()[-3000:] if said.exists() else "")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert found[-1] == {"exit": 0}, said.read_text()[-3000:]
    return found[:-1]


def moments(count: int, total: int, saving: int, seed: int) -> list[dict[str, Any]]:
    """`count` random moments of a run, the signals in turn; the first `saving` of them inside a save."""
    draw = np.random.default_rng(seed)
    at = np.sort(draw.choice(np.arange(1, total - total // 10), count, replace=False))
    inside = set(draw.choice(count, saving, replace=False).tolist())
    return [
        {
            "signal": SIGNALS[i % 3],
            "updates": int(step),
            "then": "save" if i in inside else float(draw.uniform(0, 0.03)),
            "late": float(draw.uniform(0, 0.003)),
        }
        for i, step in enumerate(at)
    ]


def content(out: Path, total: int) -> dict[str, bytes]:
    """What must be equal: the last checkpoint's tensors and all metrics but the seconds."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
    place = out / "checkpoints" / f"step-{total}"
    files = {name: (place / f"{name}.safetensors").read_bytes() for name in ("model", "optimizer")}
    return {**files, "metrics": json.dumps(kept).encode(), "plan": (out / "plan.json").read_bytes()}


def compared(tmp_path: Path, corpus: Path, name: str, total: int, every: int, lives: list[dict[str, Any]]) -> Counter:
    """How many lives ended by which signal, and how many inside a save; all else is asserted."""
    settings = {**RUNS[name], "budget.steps": total, "checkpoint.every": every}
    trained(tmp_path / "whole", corpus, settings, [])
    found = trained(tmp_path / "cut", corpus, settings, lives)
    whole, cut = content(tmp_path / "whole", total), content(tmp_path / "cut", total)
    assert [name for name in whole if whole[name] != cut[name]] == []
    said = (tmp_path / "cut" / "said.txt").read_text()
    assert "Traceback" not in said
    for life in found:
        if life["signal"] == "SIGKILL":
            assert life["exit"] == -9
        else:  # a checkpoint was written, and the command says so; before the first and after the last update, none is
            assert life["exit"] in ((130, -15) if life["signal"] == "SIGTERM" else (130,))
    orderly = sum(life["exit"] == 130 for life in found)
    assert orderly / 2 < said.count("resume=auto continues") <= orderly  # Ctrl-C amid imports has nothing to continue
    killed = sum(life["signal"] == "SIGKILL" and life["writing"] for life in found)
    assert said.count("ignoring the incomplete checkpoint .writing-") <= killed + orderly
    return Counter({**Counter(life["signal"] for life in found), "saving": sum(life["writing"] for life in found)})


@pytest.mark.parametrize("name", RUNS)
def test_t01_a_signal_of_each_kind_changes_nothing(tmp_path: Path, corpus: Path, name: str) -> None:
    found = compared(tmp_path, corpus, name, 30, 4, moments(3, 30, 1, seed=len(name)))
    assert all(found[s] == 1 for s in SIGNALS)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_t01_t09_fifty_signals_of_three_kinds_change_nothing(tmp_path: Path, corpus: Path, name: str) -> None:
    """In the middle of saving in about a third of them: checkpoints that are half there are ignored, and named."""
    found = compared(tmp_path, corpus, name, 300, 3, moments(50, 300, 18, seed=50 + len(name)))
    print(dict(found))
    assert all(found[s] >= 16 for s in SIGNALS) and found["saving"] >= 8
    said = (tmp_path / "cut" / "said.txt").read_text()
    assert "ignoring the incomplete checkpoint .writing-step-" in said
