"""Loggers get the lines of metrics.jsonl, each step once however often a run is cut, and never decide about a run."""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import toy

from unmask.errors import UserError
from unmask.train import loggers
from unmask.train.loggers import Loggers, chosen, kept, scalars

Logged = list[tuple[int, dict[str, float]]]


class Service:
    """What wandb and trackio offer, as much as is called: runs by id, and every call that starts one."""

    def __init__(self) -> None:
        self.runs: dict[str, Logged] = {}
        self.started: list[dict[str, Any]] = []

    def init(self, **how: Any) -> Any:
        self.started.append(how)
        logged = self.runs.setdefault(how.get("id") or how["name"], [])
        log = lambda values, step: logged.append((step, values))
        self.log, self.finish = log, lambda: None
        return types.SimpleNamespace(log=log, finish=self.finish)


@pytest.fixture(params=["wandb", "trackio"])
def service(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Service]:
    found, module = Service(), types.ModuleType(request.param)
    module.__spec__ = importlib.util.spec_from_loader(request.param, None)
    module.init = found.init  # type: ignore[attr-defined]
    module.log = lambda values, step: found.log(values, step)  # type: ignore[attr-defined]
    module.finish = lambda: found.finish()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, request.param, module)
    return request.param, found


def run(out: Path, names: tuple[str, ...], die_at: int | None = None, say: Callable[[str], None] = print) -> None:
    """A life of the toy's run of eight updates, with checkpoints every third; it may die before update `die_at`."""
    trainer = toy.trainer(out, steps=8, every=3, evaluate_every=4)
    build = trainer.batches

    def batches(step: int, *rest: Any) -> Any:
        if step == die_at:
            raise RuntimeError("the power fails")
        return build(step, *rest)

    trainer.batches = batches
    trainer.loggers = Loggers(out, names, {"seed": 0}, say)
    if die_at is None:
        trainer.run(resume=True)
        return
    with pytest.raises(RuntimeError, match="power"):
        trainer.run(resume=True)


def test_every_step_once_however_often_the_run_is_cut(tmp_path: Path, service: tuple[str, Service]) -> None:
    name, told = service
    out = tmp_path / "run"
    for die_at in (5, 7, None):  # resumed after updates 3 and 6
        run(out, (name,), die_at)
    assert len(told.runs) == 1 and len(told.started) == 3
    assert all(how["resume"] == "allow" and how["config"] == {"seed": 0} for how in told.started)
    (logged,) = told.runs.values()
    trained = [step for step, values in logged if "train/loss" in values]
    assert trained == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [step for step, values in logged if "held_out/loss" in values] == [4, 8]
    lines = [json.loads(text) for text in (out / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["loss"] for line in lines if "loss" in line}
    assert {step: values["train/loss"] for step, values in logged if "train/loss" in values} == losses


def test_loggers_change_nothing_of_the_run(tmp_path: Path, service: tuple[str, Service]) -> None:
    run(tmp_path / "with", (service[0],))
    run(tmp_path / "without", ())
    a, b = ((tmp_path / n / "checkpoints/step-8/model.safetensors").read_bytes() for n in ("with", "without"))
    assert a == b and toy.metrics(tmp_path / "with") == toy.metrics(tmp_path / "without")
    assert not (tmp_path / "without" / "logs.json").exists()
    assert kept(tmp_path / "with") == (service[0],) and kept(tmp_path / "without") == ()


def test_none_is_remembered_like_any_choice(tmp_path: Path, service: tuple[str, Service]) -> None:
    out = tmp_path / "run"
    run(out, (service[0],), die_at=5)
    assert kept(out) == (service[0],)
    identity = json.loads((out / "logs.json").read_text())["id"]
    run(out, ())
    assert kept(out) == () and json.loads((out / "logs.json").read_text())["id"] == identity


def test_a_logger_that_fails_ends_no_run(
    tmp_path: Path, service: tuple[str, Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, told = service
    start = told.init

    def init(**how: Any) -> Any:
        found = start(**how)

        def log(values: Any, step: int) -> None:
            if step == 3:
                raise ConnectionError("the network\nis gone")

        told.log = found.log = log
        return found

    monkeypatch.setattr(sys.modules[name], "init", init)
    said: list[str] = []
    run(tmp_path / "run", (name,), say=said.append)
    (warning,) = said
    assert warning.startswith(f"WARNING: log={name} failed (the network is gone): the run goes on without it")
    assert toy.metrics(tmp_path / "run")[-1]["step"] == 8


def test_one_that_cannot_start_is_one_sentence(
    tmp_path: Path, service: tuple[str, Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**how: Any) -> Any:
        raise PermissionError("no key")

    monkeypatch.setattr(sys.modules[service[0]], "init", init)
    with pytest.raises(UserError, match=rf"log={service[0]} cannot start \(no key\): mend this, or leave"):
        run(tmp_path / "run", (service[0],))


def test_which_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert chosen("tensorboard,wandb") == chosen("[tensorboard, wandb]") == ("tensorboard", "wandb")
    assert chosen(["trackio", "trackio"]) == ("trackio",) and chosen("none") == chosen("") == ()
    with pytest.raises(UserError, match=r"log=tensorbord is no logger: .*did you mean 'tensorboard'\?"):
        chosen("tensorbord")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"log=wandb needs the package wandb: pip install wandb, or give log=none"):
        chosen("wandb")


def test_nothing_is_imported_unasked() -> None:
    assert not {"tensorboard", "wandb", "trackio"} & set(vars(loggers))
    assert all(name not in sys.modules for name in ("wandb", "trackio"))


def test_null_is_no_number_and_gradients_have_names() -> None:
    line = {"step": 2, "loss": None, "gradients": {"cosine": {"clm mlm": 0.5, "a b": None}}, "terms": {}}
    assert scalars(line) == {"train/gradients/cosine/clm mlm": 0.5}


def test_tensorboard_shows_every_step_once(tmp_path: Path) -> None:
    """As the reader of TensorBoard itself sees it, after two cuts."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"
    for die_at in (5, 7, None):
        run(out, ("tensorboard",), die_at)
    found = EventAccumulator(str(out / "tensorboard"), size_guidance={"scalars": 0})
    found.Reload()
    assert [event.step for event in found.Scalars("train/loss")] == [1, 2, 3, 4, 5, 6, 7, 8]
    losses = [line["loss"] for line in toy.metrics(out) if "loss" in line]
    assert [event.value for event in found.Scalars("train/loss")] == pytest.approx(losses)
    assert [event.step for event in found.Scalars("held_out/loss")] == [4, 8]
