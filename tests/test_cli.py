"""The command line on bad input: one clear sentence, exit code 2, and nothing already written is lost."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

TINY = [
    "tokenizer.vocab_size=600",
    "model.hidden_size=32",
    "model.num_layers=2",
    "model.num_heads=2",
    "context=32",
    "train.batch_size=4",
    "evaluation.pieces=8",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from pydoc_data.topics import topics

    folder = tmp_path_factory.mktemp("cli")
    lines = [json.dumps({"text": t}) for _, t in sorted(topics.items())]
    (folder / "good.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "empty.txt").write_text(" \n\n", encoding="utf-8")
    (folder / "binary.txt").write_bytes(bytes(range(256)) * 40)
    (folder / "nothing").mkdir()
    return folder


def unmask(place: Path, *words: str, limit: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "UNMASK_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "unmask", *words]
    return subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, timeout=240, preexec_fn=limit
    )


def pretrain(place: Path, *words: str, **more: Callable[[], None]) -> subprocess.CompletedProcess[str]:
    return unmask(place, "pretrain", "encoder-small", *TINY, *words, **more)


BAD = {
    "missing file": (["corpus=gone.txt", "out=a"], "gone.txt"),
    "empty corpus": (["corpus=empty.txt", "out=a"], "empty.txt"),
    "binary file": (["corpus=binary.txt", "out=a"], "binary"),
    "unknown key": (["corpus=good.jsonl", "out=a", "train.learning_rat=1"], "did you mean 'learning_rate'"),
    "heads": (["corpus=good.jsonl", "out=a", "model.num_heads=3"], "does not divide hidden_size=32"),
    "embedding": (["corpus=good.jsonl", "out=a", "model.vocab_size=500"], "600 entries"),
    "positions": (["corpus=good.jsonl", "out=a", "context=500"], "max_position=128"),
    "no corpus": (["out=a"], "corpus=PATH"),
    "no place": (["corpus=good.jsonl"], "out=DIR"),
    "precision": (["corpus=good.jsonl", "out=a", "precision=fp8"], "precision"),
    "resume": (["corpus=good.jsonl", "out=a", "resume=must"], "no run to resume"),
    "logger": (["corpus=good.jsonl", "out=a", "log=tensorbord"], "did you mean 'tensorboard'"),
    "peak": (["corpus=good.jsonl", "out=a", "peak_flops=fast"], "peak_flops=fast is no peak"),
    "ranks": (["corpus=good.jsonl", "out=a", "--ranks", "2"], "goes with --plan"),
    "device": (["corpus=good.jsonl", "out=a", "device=tpu9"], "device=tpu9"),
    "sentinels": (["corpus=good.jsonl", "out=a", "budget.steps=-3"], "budget.steps"),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_bad_input_is_one_sentence_and_code_2(case: str, place: Path) -> None:
    words, says = BAD[case]
    done = pretrain(place, *words)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 2, done.stderr
    assert last.startswith("error: ") and says in last
    assert "Traceback" not in done.stderr and not (place / "a").exists()


@pytest.mark.parametrize("verb", [["generate"], ["evaluate"], ["score"], ["fill"], ["export"]])
def test_a_directory_that_is_no_model(verb: list[str], place: Path) -> None:
    more = {"score": ["a text"], "fill": ["a [MASK]"], "export": ["elsewhere"]}.get(verb[0], [])
    done = unmask(place, *verb, "nothing", *more)
    assert done.returncode == 2 and done.stderr.startswith("error: nothing is no model"), done.stderr


def test_a_run_is_not_overwritten_and_continues_where_it_stood(place: Path) -> None:
    assert pretrain(place, "corpus=good.jsonl", "out=kept", "budget.steps=3").returncode == 0
    again = pretrain(place, "corpus=good.jsonl", "out=kept", "budget.steps=3")
    assert again.returncode == 2 and "already holds a run" in again.stderr
    other = pretrain(place, "corpus=good.jsonl", "out=kept", "budget.steps=3", "resume=auto", "seed=1")
    assert other.returncode == 2 and "seed=0, not 1" in other.stderr
    assert unmask(place, "resume", "kept").returncode == 0


def test_t10_a_full_disk_while_saving_keeps_the_old_checkpoint(place: Path) -> None:
    """Files may not grow beyond a size that the weights fit in and the optimizer's state does not."""
    settings = ["corpus=good.jsonl", "out=full", "budget.steps=8", "checkpoint.every=4"]

    def small_disk() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (220_000, 220_000))

    done = pretrain(place, *settings, limit=small_disk)
    assert done.returncode == 2, done.stderr
    assert "more than a file may have here (ulimit -f" in done.stderr and "raise the limit" in done.stderr
    assert not list((place / "full" / "checkpoints").glob("step-*"))
    assert pretrain(place, *settings, "resume=auto").returncode == 0


def test_ctrl_c_is_130_with_a_checkpoint(place: Path) -> None:
    environment = {**os.environ, "UNMASK_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "unmask", "pretrain", "encoder-small", *TINY]
    process = subprocess.Popen(
        [*command, "corpus=good.jsonl", "out=cut", "budget.steps=100000"],
        cwd=place,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = place / "cut" / "metrics.jsonl"
    for _ in range(600):
        if metrics.exists() and metrics.stat().st_size > 2000:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130, process.stderr.read() if process.stderr else ""
    step = json.loads(metrics.read_text().splitlines()[-1])["step"]
    assert (place / "cut" / "checkpoints" / f"step-{step}" / "model.safetensors").exists()
