"""A run that is cut at any moment and resumed is the uncut run, bit for bit."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import toy
from safetensors.torch import load_file
from torch._dynamo.exc import BackendCompilerFailed

from unmask.train import checkpoint, hooks, sharded
from unmask.train.hooks import Evaluation, Metrics
from unmask.train.plan import read_plan
from unmask.train.schedule import factor

OPTIONS = {"steps": 60, "dropout": 0.2, "micro": 2, "every": 3, "keep": 2, "evaluate_every": 7}


def state(out: Path, step: int) -> dict[str, torch.Tensor]:
    place = out / "checkpoints" / f"step-{step}"
    return {f: load_file(place / f) for f in (checkpoint.MODEL, checkpoint.OPTIMIZER)}  # type: ignore[misc]


def assert_same_run(a: Path, b: Path, step: int) -> None:
    one, two = state(a, step), state(b, step)
    for file in one:
        assert one[file].keys() == two[file].keys()
        assert all(torch.equal(one[file][k], two[file][k]) for k in one[file])
    assert toy.metrics(a) == toy.metrics(b)


@pytest.fixture(scope="module")
def uncut(tmp_path_factory, one_thread) -> Path:
    out = tmp_path_factory.mktemp("uncut")
    toy.trainer(out, **OPTIONS).run()
    return out


def run_with_deaths(out: Path, options: dict) -> int:
    """The toy in processes of its own, killed after each of `lives` seconds; how many were killed at work."""
    program = [sys.executable, str(Path(toy.__file__)), str(out), json.dumps(options)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_t01_killed_ten_times_equals_uncut(tmp_path, uncut) -> None:
    draw = random.Random(0)
    lives = [draw.uniform(0.03, 0.13) for _ in range(10)]
    assert run_with_deaths(tmp_path, {**OPTIONS, "pause": 0.02, "lives": lives}) == 10
    assert_same_run(tmp_path, uncut, 60)


def test_t09_killed_fifty_times_while_saving_all_the_time(tmp_path) -> None:
    options = {**OPTIONS, "every": 1, "evaluate_every": 1000}
    toy.trainer(tmp_path / "uncut", **options).run()
    draw = random.Random(1)
    lives = [draw.uniform(0.01, 0.05) for _ in range(50)]
    assert run_with_deaths(tmp_path / "cut", {**options, "lives": lives}) >= 25
    assert_same_run(tmp_path / "cut", tmp_path / "uncut", 60)


def test_killed_often_with_checkpoints_at_given_steps(tmp_path, uncut) -> None:
    options = {k: v for k, v in OPTIONS.items() if k != "every"} | {"at": [11, 23, 35, 47, 60], "keep": 1}
    draw = random.Random(2)
    lives = [draw.uniform(0.2, 0.35) for _ in range(6)]
    assert run_with_deaths(tmp_path, {**options, "pause": 0.01, "lives": lives}) >= 2
    assert_same_run(tmp_path, uncut, 60)
    found = checkpoint.find(tmp_path / "checkpoints").whole
    assert set(options["at"]) <= found.keys() and not checkpoint.is_light(found[60])
    assert all(checkpoint.is_light(found[step]) for step in options["at"][:-1])


STAGES = ["save_tensors", "_fingerprint", "sync", "rename", "rmtree"]


@pytest.mark.parametrize("stage", STAGES)
def test_t09_killed_inside_save(tmp_path, uncut, stage: str, monkeypatch) -> None:
    """Death at every call of each stage of a save (an exception that nothing catches stands for the kill)."""

    class Killed(BaseException):
        pass

    owners = {"rename": checkpoint.os, "rmtree": checkpoint.shutil, "save_tensors": sharded}
    owner = owners.get(stage, checkpoint)
    original = getattr(owner, stage)

    def dying(count: int, after: bool):
        calls = []

        def call(*args, **more):
            calls.append(1)
            if len(calls) == count and not after:
                raise Killed
            result = original(*args, **more)
            if len(calls) == count:
                raise Killed
            return result

        return call

    for after in (False, True):
        for count in (1, 3, 6):
            monkeypatch.setattr(owner, stage, dying(count, after))
            with pytest.raises(Killed):
                toy.trainer(tmp_path, **OPTIONS).run(resume=True)
            monkeypatch.setattr(owner, stage, original)
    toy.trainer(tmp_path, **OPTIONS).run(resume=True)
    assert_same_run(tmp_path, uncut, 60)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_writes_a_checkpoint_and_resumes(tmp_path, uncut, number) -> None:
    t = toy.trainer(tmp_path, **{**OPTIONS, "every": 1000})
    build = t.batches

    def interrupted(step, progress):
        if step == 10:  # in the middle of update 11, which is finished
            signal.raise_signal(number)
        return build(step, progress)

    t.batches = interrupted
    with pytest.raises(KeyboardInterrupt, match=number.name):
        t.run()
    assert list(checkpoint.find(tmp_path / "checkpoints").whole) == [7, 11]
    assert toy.metrics(tmp_path)[-1]["step"] == 11
    toy.trainer(tmp_path, **{**OPTIONS, "every": 1000}).run(resume=True)
    assert_same_run(tmp_path, uncut, 60)


def test_a_second_interrupt_does_not_wait(tmp_path) -> None:
    t = toy.trainer(tmp_path, steps=5)

    def twice(step, progress):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("unreached")

    t.batches = twice
    with pytest.raises(KeyboardInterrupt):
        t.run()
    assert not (tmp_path / "checkpoints").exists()


def test_interrupt_during_evaluation_is_answered_at_once_and_it_is_made_after_resuming(tmp_path) -> None:
    def evaluation(interrupt: bool) -> Evaluation:
        def evaluate(networks):
            if interrupt:
                signal.raise_signal(signal.SIGINT)
            return toy.evaluate(networks)

        return Evaluation(5, evaluate)

    handler = signal.getsignal(signal.SIGINT)  # ignored where the tests run in the background
    for out, interrupt in (("cut", True), ("straight", False)):
        t = toy.trainer(tmp_path / out, steps=5, every=100)
        t.evaluation = evaluation(interrupt)
        if interrupt:
            with pytest.raises(KeyboardInterrupt):
                t.run()
            assert checkpoint.read_state(tmp_path / "cut" / "checkpoints" / "step-5")["evaluated"] == 0
            t = toy.trainer(tmp_path / out, steps=5, every=100)
            t.evaluation = evaluation(False)
        t.run(resume=True)
    assert_same_run(tmp_path / "cut", tmp_path / "straight", 5)
    assert checkpoint.best_checkpoint(tmp_path / "cut" / "checkpoints").name == "step-5"
    assert signal.getsignal(signal.SIGINT) is handler


def test_t06_resuming_twice_shifts_nothing(tmp_path) -> None:
    straight = toy.trainer(tmp_path / "a", steps=20, every=13)
    straight.run()

    class Enough(Exception):
        pass

    t = toy.trainer(tmp_path / "b", steps=20, every=13)
    build = t.batches

    def until_thirteen(step, progress):
        if step == 13:
            raise Enough
        return build(step, progress)

    t.batches = until_thirteen
    for _ in range(3):
        with pytest.raises(Enough):
            t.run(resume=True)
        t = toy.trainer(tmp_path / "b", steps=20, every=13)
        t.batches = until_thirteen
    t.batches = build
    assert t.run(resume=True).step == 20
    assert_same_run(tmp_path / "a", tmp_path / "b", 20)


def test_a_finished_run_resumes_to_nothing(tmp_path) -> None:
    toy.trainer(tmp_path, steps=3, evaluate_every=2).run()
    before = (tmp_path / "metrics.jsonl").read_bytes()
    assert toy.trainer(tmp_path, steps=3, evaluate_every=2).run(resume=True).step == 3
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_metrics_are_cut_to_the_checkpoint(tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 2, "evaluation": {}}\n{"step": 3}\n{"step": 4, "lo')
    log = Metrics(path, keep_to=2)
    log.write({"step": 3, "loss": 1.0})
    log.close()
    assert [json.loads(x) for x in path.read_text().splitlines()] == (
        [{"step": 1}, {"step": 2}, {"step": 2, "evaluation": {}}, {"step": 3, "loss": 1.0}]
    )
    path.write_text('{"step": 1}\n{"st')
    Metrics(path, keep_to=5).close()
    assert path.read_text() == '{"step": 1}\n'


@pytest.mark.parametrize("block", [1, 7, 1 << 16])
def test_metrics_are_cut_from_their_end_however_much_is_read_at_once(tmp_path, monkeypatch, block: int) -> None:
    monkeypatch.setattr(hooks, "_BLOCK", block)
    lines = [f'{{"step": {k // 2}}}\n' for k in range(2, 60)]
    for keep in (0, 1, 13, 29, 99):
        for torn in ("", "{", '{"step": 30', "\n"):
            path = tmp_path / "metrics.jsonl"
            path.write_text("".join(lines) + torn)
            Metrics(path, keep_to=keep).close()
            assert path.read_text() == "".join(line for line in lines if json.loads(line)["step"] <= keep)


# ---------------------------------------------------------------- minutes


def test_minutes_fix_the_step_count_and_a_resumed_run_replays_it(tmp_path) -> None:
    def make(out: str):
        t = toy.trainer(tmp_path / out, budget={"minutes": 0.01}, every=2, dropout=0.2)  # 0.6 s
        build = t.batches

        def slow(step, progress):
            time.sleep(0.01)
            seen[out].append((step, progress))
            return build(step, progress)

        t.batches = slow
        return t

    seen: dict[str, list] = {"a": [], "b": []}
    t = make("a")
    counters = t.run()
    plan = read_plan(tmp_path / "a" / "plan.json")
    assert plan.calibration_steps == 5 and plan.total_steps == counters.step  # 2 s are not reached: the warm-up + 1
    assert 20 < counters.step < 80 and counters.seconds == pytest.approx(0.6, rel=0.5)
    assert seen["a"][:6] == [(s, 0.0) for s in range(5)] + [(5, 5 / plan.total_steps)]
    # Back to a checkpoint inside the calibration: the plan that was written later is replayed.
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "plan.json").write_text((tmp_path / "a" / "plan.json").read_text())
    shutil.copytree(tmp_path / "a" / "checkpoints" / "step-2", tmp_path / "b" / "checkpoints" / "step-2")
    (tmp_path / "b" / "metrics.jsonl").write_text((tmp_path / "a" / "metrics.jsonl").read_text())
    make("b").run(resume=True)
    assert seen["b"] == seen["a"][2:]
    assert_same_run(tmp_path / "a", tmp_path / "b", plan.total_steps)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd"])
def test_minutes_end_on_time_with_a_finished_schedule(tmp_path, monkeypatch, schedule: str) -> None:
    """By a clock that the batches turn on: the first two updates are slow, the others take 0.4, 0.5 or 0.6 s."""
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    t = toy.trainer(tmp_path, budget={"minutes": 2}, warmup_steps=10, schedule=schedule, final_lr=0.1)
    build = t.batches

    def costly(step, progress):
        clock[0] += 3.0 if step < 2 else (0.4, 0.5, 0.6)[step % 3]
        return build(step, progress)

    t.batches = costly
    counters = t.run()
    plan, config = read_plan(tmp_path / "plan.json"), t.settings.train
    assert plan.calibration_steps == 5 and plan.seconds_per_step == pytest.approx(0.5)
    assert plan.total_steps == counters.step and abs(counters.seconds - 120) <= 0.6
    rates = [line["lr"] / config.learning_rate for line in toy.metrics(tmp_path)]
    assert rates == pytest.approx([factor(s, counters.step, config) for s in range(counters.step)])
    assert rates[-1] == pytest.approx(0.1) and max(rates) == 1


def test_minutes_killed_before_the_calibration_start_again(tmp_path) -> None:
    t = toy.trainer(tmp_path, budget={"minutes": 0.002}, every=2)
    build = t.batches

    def dying(step, progress):
        if step == 3:
            raise RuntimeError
        return build(step, progress)

    t.batches = dying
    with pytest.raises(RuntimeError):
        t.run()
    assert not (tmp_path / "plan.json").exists()
    assert list(checkpoint.find(tmp_path / "checkpoints").whole) == [2]
    shutil.move(tmp_path / "checkpoints" / "step-2", tmp_path / "checkpoints" / "step-999")
    t = toy.trainer(tmp_path, budget={"minutes": 0.002}, every=2)
    counters = t.run(resume=True)
    assert [x["step"] for x in toy.metrics(tmp_path)] == list(range(1, counters.step + 1))
    assert list(checkpoint.find(tmp_path / "checkpoints").whole)[-1] == counters.step  # nothing of the first life


@pytest.mark.parametrize("stopped", [True, False])
def test_a_signal_that_ends_the_compiler_too_stops_the_run_as_any_signal(tmp_path, uncut, stopped: bool) -> None:
    """Ctrl-C reaches all processes of a terminal: the compiler's child fails, and torch says that compiling failed."""
    t = toy.trainer(tmp_path, **OPTIONS)
    terms = t.terms

    def compiling(networks, batch, generator):
        if t.counters.step == 5:
            if stopped:
                os.kill(os.getpid(), signal.SIGTERM)
            raise BackendCompilerFailed(lambda: None, RuntimeError("C++ compile error"), None)
        return terms(networks, batch, generator)

    t.terms = compiling
    with pytest.raises(KeyboardInterrupt if stopped else BackendCompilerFailed):
        t.run()
    if stopped:
        assert (tmp_path / "checkpoints" / "step-5").is_dir()
        toy.trainer(tmp_path, **OPTIONS).run(resume=True)
        assert_same_run(tmp_path, uncut, 60)
