"""Checkpoints that are written while training goes on: the same run, the same checkpoints, nothing lost."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rankwork
import torch
import toy
from safetensors.torch import load_file

from unmask.errors import Diverged, UserError
from unmask.recipe import load_recipe
from unmask.run import pretrain
from unmask.train import checkpoint, sharded
from unmask.train.hooks import Evaluation
from unmask.train.saver import Saver

OPTIONS: dict[str, Any] = {"steps": 40, "dropout": 0.2, "every": 3, "keep": 2, "evaluate_every": 7}


def content(out: Path) -> dict[str, Any]:
    """Every checkpoint: names, tensors and counters."""
    found: dict[str, Any] = {}
    for step, place in checkpoint.find(out / "checkpoints").whole.items():
        state = {k: v for k, v in checkpoint.read_state(place).items() if k != "seconds"}
        found[f"{step}"] = sorted(p.name for p in place.iterdir()), state
        for file in place.glob("*.safetensors"):
            found |= {f"{step}/{name}": tensor.tolist() for name, tensor in load_file(file).items()}
    return found


@pytest.mark.parametrize(
    "more",
    [{}, {"keep": 1, "every": 1}, {"every": 0}, {"every": 0, "only_best": True}, {"every": 0, "at": (5, 11, 40)}],
)
def test_the_same_checkpoints_are_left(tmp_path: Path, more: dict[str, Any]) -> None:
    losses = [3.0, 1.0, 2.0, 0.5, 4.0, 0.7, 9.0, 9.0]

    def run(out: str, background: bool) -> Any:
        t = toy.trainer(tmp_path / out, **{**OPTIONS, **more}, background=background)
        left = iter(losses)
        t.evaluation = Evaluation(7, lambda networks: {"loss": next(left)})
        return t.run()

    assert run("a", False).checkpoint_bytes == run("b", True).checkpoint_bytes
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert toy.metrics(tmp_path / "a") == toy.metrics(tmp_path / "b")


def test_t09_killed_often_while_saving_all_the_time(tmp_path: Path) -> None:
    options = {**OPTIONS, "steps": 60, "every": 1, "evaluate_every": 1000}
    toy.trainer(tmp_path / "uncut", **options).run()
    draw = random.Random(1)
    lives = [draw.uniform(0.01, 0.05) for _ in range(25)]
    words = {**options, "background": True, "lives": lives}
    program = [sys.executable, str(Path(toy.__file__)), str(tmp_path / "cut"), json.dumps(words)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and int(done.stdout) >= 10, done.stderr
    assert toy.metrics(tmp_path / "cut") == toy.metrics(tmp_path / "uncut")
    for name in (checkpoint.MODEL, checkpoint.OPTIMIZER):
        a, b = (load_file(tmp_path / out / "checkpoints" / "step-60" / name) for out in ("uncut", "cut"))
        assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# ---------------------------------------------------------------- a slow disk


class Slow:
    """A disk on which the checkpoint of one step waits for `go`; it then fails, if it is to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: int, fails: bool = False) -> None:
        self.go, self.waits = threading.Event(), threading.Event()
        save = sharded.save_tensors

        def slowly(tensors: Any, file: Path, **more: str) -> None:
            if file.parent.name == f".writing-step-{step}":
                self.waits.set()
                assert self.go.wait(20)
                if fails:
                    raise OSError(errno.ENOSPC, "No space left on device")
            save(tensors, file, **more)

        monkeypatch.setattr(sharded, "save_tensors", slowly)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    disk = Slow(monkeypatch, 3)
    yield disk
    disk.go.set()


def at(t: Any, step: int, then: Any) -> None:
    """Do something when the batches of the update after `step` are asked for."""
    build = t.batches

    def batches(number: int, progress: float) -> Any:
        if number == step:
            then()
        return build(number, progress)

    t.batches = batches


def names(out: Path) -> list[str]:
    return sorted(p.name for p in (out / "checkpoints").iterdir())


def test_training_goes_on_and_a_kill_meanwhile_leaves_the_one_before(tmp_path: Path, slow: Slow) -> None:
    t = toy.trainer(tmp_path / "run", steps=8, every=0, keep=9, at=(2, 3, 7), dropout=0.2, background=True)

    def look() -> None:  # after update 6; what lies there is what a SIGKILL now would leave
        assert slow.waits.wait(20)
        assert names(tmp_path / "run") == [".writing-step-3", "step-2"]
        shutil.copytree(tmp_path / "run", tmp_path / "killed")
        slow.go.set()

    at(t, 6, look)
    t.run()
    assert names(tmp_path / "run") == ["step-2", "step-3", "step-7", "step-8"]
    plain = toy.trainer(tmp_path / "plain", steps=8, every=0, keep=9, at=(2, 3, 7), dropout=0.2)
    plain.run()
    assert content(tmp_path / "plain") == content(tmp_path / "run")  # 3 is as it was after update 3
    toy.trainer(tmp_path / "killed", steps=8, every=0, keep=9, at=(2, 3, 7), dropout=0.2, background=True).run(True)
    killed, whole = content(tmp_path / "killed"), content(tmp_path / "run")
    assert killed == whole and toy.metrics(tmp_path / "killed") == toy.metrics(tmp_path / "run")


def test_the_next_one_waits_for_the_one_before(tmp_path: Path, slow: Slow) -> None:
    t = toy.trainer(tmp_path, steps=6, every=3, background=True)
    threading.Timer(0.5, slow.go.set).start()
    t.run()
    assert names(tmp_path) == ["step-3", "step-6"]


def test_t10_a_full_disk_is_told_at_the_next_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    t, disk = toy.trainer(tmp_path, steps=40, every=0, at=(2, 3), background=True), Slow(monkeypatch, 3, fails=True)

    def fail() -> None:  # in update 6
        disk.go.set()
        t.saver._pending.task._thread.join()

    at(t, 5, fail)
    with pytest.raises(UserError, match=r"no room to write .*step-3: it needs [\d,]+ bytes and [\d,]+ bytes are free"):
        t.run()
    assert t.counters.step == 6 and names(tmp_path) == ["step-2"]
    monkeypatch.undo()
    resumed = toy.trainer(tmp_path, steps=40, every=0, at=(2, 3))
    assert resumed.run(resume=True).step == 40


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_stops_a_run_gets_its_checkpoint(tmp_path: Path, slow: Slow, number: int) -> None:
    t = toy.trainer(tmp_path, steps=40, every=0, at=(2, 3), background=True)
    at(t, 4, lambda: (signal.raise_signal(number), threading.Timer(0.3, slow.go.set).start()))
    with pytest.raises(KeyboardInterrupt):
        t.run()
    assert names(tmp_path) == ["step-2", "step-3", "step-5"]


def test_who_asks_twice_does_not_wait(tmp_path: Path, slow: Slow) -> None:
    t = toy.trainer(tmp_path, steps=40, every=0, at=(2, 3), background=True)
    at(t, 4, lambda: (signal.raise_signal(signal.SIGINT), signal.raise_signal(signal.SIGINT)))
    with pytest.raises(KeyboardInterrupt):
        t.run()
    assert names(tmp_path) == [".writing-step-3", "step-2"] and not slow.go.is_set()


def test_an_error_waits_for_the_checkpoint(tmp_path: Path, slow: Slow) -> None:
    t = toy.trainer(tmp_path, steps=40, every=0, at=(2, 3), background=True)

    def fail() -> None:
        threading.Timer(0.3, slow.go.set).start()
        raise RuntimeError("no batch")

    at(t, 4, fail)
    with pytest.raises(RuntimeError, match="no batch"):
        t.run()
    assert names(tmp_path) == ["step-2", "step-3"]
    assert checkpoint.newest(tmp_path / "checkpoints")[0] == tmp_path / "checkpoints" / "step-3"


def test_a_run_that_diverges_names_the_checkpoint_that_was_being_written(tmp_path: Path, slow: Slow) -> None:
    t = toy.trainer(tmp_path, steps=40, every=0, at=(2, 3), background=True)

    def spoil() -> None:
        threading.Timer(0.3, slow.go.set).start()
        with torch.no_grad():
            t.networks["model"].table.weight.fill_(float("nan"))

    at(t, 4, spoil)
    with pytest.raises(Diverged, match="step-3"):
        t.run()
    assert names(tmp_path) == ["step-2", "step-3"]


def test_a_better_one_is_no_reason_to_drop_the_best_before_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """6 is put in its place when 9 is known to be the best and not written yet: 3 stays until then."""
    slow, spared, retain = Slow(monkeypatch, 6), [], checkpoint.retain

    def watched(place: Path, keep: int, best: int | None, *rest: Any) -> None:
        spared.append(best)
        retain(place, keep, best, *rest)

    monkeypatch.setattr(checkpoint, "retain", watched)
    t = toy.trainer(tmp_path, steps=9, every=3, keep=1, background=True)
    left = iter([2.0, 5.0, 1.0])
    t.evaluation = Evaluation(3, lambda networks: {"loss": next(left)})
    at(t, 8, lambda: threading.Timer(0.3, slow.go.set).start())
    t.run()
    assert spared == [3, 3, 9] and names(tmp_path) == ["step-9"]


def test_a_run_may_be_saved_otherwise_when_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How checkpoints are written is no part of the run: its recipe stays what it was."""
    (tmp_path / "text.txt").write_text("\n\n".join(f"ship {i} sails at {i * i} o'clock" for i in range(200)))
    given = {**rankwork.TINY, "corpus": str(tmp_path / "text.txt"), "budget.steps": 4, "checkpoint.every": 2}
    more = {"out": tmp_path / "run", "cache": tmp_path / "cache", "say": lambda _: None}
    pretrain(load_recipe("decoder-small", given), **more)
    before = (tmp_path / "run" / "recipe.yaml").read_bytes()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-4")
    ways, save = [], Saver.save
    monkeypatch.setattr(Saver, "save", lambda self, *rest: (ways.append(self.config.background), save(self, *rest)))
    changed = {**given, "checkpoint.background": True, "checkpoint.sharded": False}
    assert pretrain(load_recipe("decoder-small", changed), resume="auto", **more).counters.step == 4
    assert ways == [True] and (tmp_path / "run" / "recipe.yaml").read_bytes() == before
