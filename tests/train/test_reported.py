"""Failures that users of other tools reported, as runs of one process: schedules, resumes, compilations, devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toy
from torch import nn

from unmask import recipe as recipes
from unmask.batch import Batch, starts
from unmask.cli import app
from unmask.config import TrainConfig
from unmask.data.loader import Loader
from unmask.data.sampling import Order
from unmask.errors import UserError
from unmask.loading import load
from unmask.networks import networks_of
from unmask.objectives import Causal
from unmask.objectives.show import Toy
from unmask.programs import program_of
from unmask.run import pretrain
from unmask.train import checkpoint, compiled
from unmask.train.base import Counters
from unmask.train.devices import choose_precision
from unmask.train.plan import Plan
from unmask.train.schedule import factor
from unmask.train.trainer import Trainer


def test_t04_nothing_of_an_update_is_lost_between_two_lives(tmp_path: Path) -> None:
    """There is no loss scaler whose state could be lost: no precision needs one, and fp16 is refused. Every number that
    moves a weight, the rates among them, is that of the uncut run, beside an update that is skipped (no targets).
    """
    with pytest.raises(UserError, match="precision"):
        recipes.load_recipe("decoder-small", {"corpus": "x", "precision": "fp16"})
    network = toy.networks()
    assert {choose_precision(p, torch.device("cpu"), network)[0] for p in ("auto", "fp32", "bf16")} <= {"fp32", "bf16"}
    for asked in ("fp32", "bf16"):
        skips = toy.batches(empty=lambda step: step == 3)
        make = lambda name, precision=asked, build=skips: toy.trainer(
            tmp_path / f"{precision}-{name}", steps=8, every=5, precision=precision, batches=build
        )
        uncut = make("uncut")
        uncut.run()
        first = make("cut")
        first.batches = _dying(first.batches, at=6)
        with pytest.raises(RuntimeError, match="the power fails"):
            first.run()
        second = make("cut")
        second.run(resume=True)
        lines = toy.metrics(tmp_path / f"{asked}-cut")
        assert lines == toy.metrics(tmp_path / f"{asked}-uncut")
        peak = uncut.settings.train.learning_rate
        assert [line["lr"] for line in lines] == [factor(s, 8, uncut.settings.train) * peak for s in range(8)]
        a, b = toy.weights(uncut), toy.weights(second)
        assert all(torch.equal(a[name], b[name]) for name in a)


def _dying(build: Any, at: int) -> Any:
    """Batches that fail at one update."""

    def batches(step: int, *rest: Any) -> list[Batch]:
        if step == at:
            raise RuntimeError("the power fails")
        return build(step, *rest)

    return batches


# ---------------------------------------------------------------- T11


def test_t11_export_best_takes_the_best_checkpoint_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rate that is far too large: the loss is best after the first updates, and resuming goes on from the last."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("\n\n".join(f"line {i} of the text" for i in range(60)))
    given = {**SMALL, "corpus": "text.txt", "tokenizer.type": "byte", "evaluation.pieces": 4, "evaluation.every": 1}
    rate = {"train.learning_rate": 3.0, "train.warmup_steps": 0, "train.schedule": "constant", "train.clip_norm": 0}
    settings = {**given, **rate, "budget.steps": 6, "checkpoint.every": 100, "checkpoint.keep": 1}
    run = pretrain(recipes.load_recipe("decoder-small", settings), out="run", cache="cache", say=lambda _: None)
    best, last = load("run", "best", "cpu"), load("run", device="cpu")
    assert best.step is not None and best.step < last.step == 6
    app(["export", "run", "hf", "--best", "--json"], standalone_mode=False)
    report = json.loads(capsys.readouterr().out)
    assert report["step"] == best.step
    exported, ids = load("hf", device="cpu"), [[70, 71, 72]]
    assert torch.equal(exported.logits(ids), best.logits(ids))
    assert not torch.allclose(exported.logits(ids), last.logits(ids))
    lines = [line for line in toy.metrics(Path("run")) if line["step"] == best.step]
    measured = next(line["evaluation"]["loss"] for line in lines if "evaluation" in line)
    card = Path("hf/README.md").read_text()
    assert f"- Updates: {best.step}\n" in card and f"{measured:.4f}" in card
    assert measured < run.held_out.loss and f"{run.held_out.loss:.4f}" not in card
    with pytest.raises(UserError, match="hf is no run: it has no checkpoint 'best' to choose"):
        load("hf", "best")
    unmeasured = {**settings, "evaluation.every": 0, "budget.steps": 1}
    pretrain(recipes.load_recipe("decoder-small", unmeasured), out="other", cache="cache", say=lambda _: None)
    with pytest.raises(UserError, match=r"other was not evaluated while it was trained.*evaluation\.every"):
        load("other", "best")


# ---------------------------------------------------------------- T18


class Long:
    """A text on the disk: each document is its number, in two digits to the base 300, four times."""

    DOCUMENTS = 80_000

    def __init__(self, place: Path) -> None:
        high, low = np.divmod(np.arange(self.DOCUMENTS), 300)
        np.tile(np.stack([high, low], 1) + 60, 4).astype(np.uint16).tofile(place / "tokens.bin")
        self.tokens = np.memmap(place / "tokens.bin", np.uint16, mode="r")
        self.documents = starts([8] * self.DOCUMENTS)


def test_t18_a_resume_at_update_a_million_builds_that_update_alone(tmp_path: Path) -> None:
    """No batch before it is built, and its documents are those that the order of its epoch says."""
    step, objective, place = 1_000_000, Causal(), tmp_path / "run"
    loader = Loader(Long(tmp_path), objective, Toy(size=400), objective.shape(16), rows=4, seed=0)
    before = toy.trainer(place, steps=step + 2)
    plan = Plan(step + 2, {"steps": step + 2}, "fp32", "as asked")
    state = {**asdict(before.counters), "step": step, "plan": asdict(plan)}
    checkpoint.write(place / "checkpoints", step, before.networks, before.optimizer.state_tensors(), state)
    asked: list[int] = []
    held: dict[int, int] = {}

    def batches(number: int, progress: float, *rest: Any) -> list[Batch]:
        asked.append(number)
        held.update(_documents(loader(number, progress)))
        return toy.batches()(number, progress)

    began = time.monotonic()
    toy.trainer(place, steps=step + 2, batches=batches).run(resume=True)
    assert time.monotonic() - began < 10
    assert asked == [step, step + 1]
    samples = np.array(sorted(held))
    assert [held[i] for i in samples] == Order(Long.DOCUMENTS, 0).piece(samples).tolist()
    assert len(samples) > 4 and abs(samples.mean() / loader.per_step - step) < 100  # a window of updates


def _documents(micro: list[Batch]) -> dict[int, int]:
    """The document of every sample of an update, by what it holds."""
    out = {}
    for batch in micro:
        stream, samples = batch.stream, batch.samples
        assert samples is not None
        for row, block, index in zip(samples.row, samples.block, samples.index, strict=True):
            tokens = stream.tokens[row][stream.block[row] == block]
            high, low = (tokens[tokens >= 60][:2] - 60).tolist()
            out[int(index)] = 300 * high + low
    return out


# ---------------------------------------------------------------- T15


def test_t15_lengths_and_packing_compile_a_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty updates whose rows, lengths and packed boundaries all vary: at most three compilations after warm-up."""
    monkeypatch.setattr(compiled, "BACKEND", "eager")
    torch._dynamo.reset()
    rng = np.random.default_rng(0)
    text = _Text(rng.integers(60, 400, 6000).astype(np.uint16), _random_starts(rng, 6000))
    objective, vocabulary = Causal(), Toy(size=400)
    recipe = recipes.load_recipe("decoder-small", SMALL)
    loader = Loader(text, objective, vocabulary, objective.shape(32), rows=6, seed=0)
    networks = networks_of(recipe.objective, recipe.model.model_copy(update={"vocab_size": 400}), 0)
    shapes = {batch.stream.tokens.shape for s in range(50) for batch in loader(s, 0.0)}
    assert len(shapes) > 1
    settings = toy.trainer(tmp_path / "run", steps=50, compile=True).settings
    own = Trainer(networks, program_of(recipe.objective), loader, lambda b: 1.0, settings, tmp_path / "c")
    counters = own.run()
    torch._dynamo.reset()
    assert 0 < counters.compilations == own.compiled.count <= 2, "the network is one graph, which lengths open once"
    assert own.compiled.late <= 3
    assert checkpoint.read_state(tmp_path / "c" / "checkpoints" / "step-50")["compilations"] == counters.compilations


def test_t15_inputs_that_keep_changing_stop_being_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each input has another number of dimensions: after three late compilations the rest runs uncompiled."""
    monkeypatch.setattr(compiled, "BACKEND", "eager")
    torch._dynamo.reset()
    counted, counters, said = compiled.Compilations(), Counters(), []
    module = _Twice()
    counted.compile(module)
    for update in range(12):
        x = torch.ones([1] * (update + 1))
        assert counted.counted(lambda x=x: module(x), counters, said.append).shape == x.shape
    assert counters.compilations == counted.count == compiled.WARM + compiled.MOST
    assert len(said) == 1 and "compiled 6 times, 3 of them after the first 3 updates" in said[0]
    counted.close()
    module(torch.ones([1] * 14))  # nothing holds others of this process back
    assert counted.count == compiled.WARM + compiled.MOST + 1
    torch._dynamo.reset()


class _Twice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


class _Text:
    def __init__(self, tokens: np.ndarray, documents: np.ndarray) -> None:
        self.tokens, self.documents = tokens, documents


def _random_starts(rng: np.random.Generator, size: int) -> np.ndarray:
    return np.unique(np.concatenate([[0], rng.integers(1, size, 400), [size]])).astype(np.int64)


SMALL = {
    "corpus": "x",
    "model.hidden_size": 16,
    "model.num_layers": 1,
    "model.num_heads": 2,
    "context": 32,
}


# ---------------------------------------------------------------- T05, T21


@pytest.mark.parametrize("micro", [1, 2, 8])
def test_t05_the_rate_of_every_update_is_the_same_whatever_the_accumulation(tmp_path: Path, micro: int) -> None:
    """An update without targets leaves the weights alone, and its number passes: the rule for skipped ones."""
    empty = toy.batches(micro, empty=lambda step: step == 2)
    toy.trainer(tmp_path / "run", steps=6, micro=micro, batches=empty, schedule="cosine", final_lr=0.1).run()
    config = TrainConfig(warmup_steps=4, learning_rate=0.02, schedule="cosine", final_lr=0.1)
    assert [line["lr"] for line in toy.metrics(tmp_path / "run")] == [0.02 * factor(s, 6, config) for s in range(6)]
    assert toy.metrics(tmp_path / "run")[-1]["lr"] == pytest.approx(0.002)


def test_t21_a_build_without_a_gpu_trains_and_says_where(tmp_path: Path) -> None:
    """device=auto in a process that sees no GPU: it trains on the CPU and says so."""
    (tmp_path / "text.txt").write_text("\n\n".join(f"line {i} of the text" for i in range(60)))
    words = ["corpus=text.txt", "out=run", "budget.steps=1", "tokenizer.type=byte", "evaluation.pieces=4"]
    small = [f"{k}={v}" for k, v in SMALL.items() if k != "corpus"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "UNMASK_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "unmask", "pretrain", "decoder-small", *words, *small]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "on cpu" in done.stderr and "CUDA" not in done.stderr
