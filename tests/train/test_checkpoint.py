"""A checkpoint is whole or not there; what is kept; a full disk; damage."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch
import toy
from safetensors import safe_open

from unmask.errors import UserError
from unmask.train import checkpoint, room, sharded
from unmask.train.hooks import Evaluation, Progress


def steps(out: Path) -> list[int]:
    return list(checkpoint.find(out / "checkpoints").whole)


def test_content(tmp_path) -> None:
    t = toy.trainer(tmp_path, steps=4)
    t.run()
    place = tmp_path / "checkpoints" / "step-4"
    assert sorted(p.name for p in place.iterdir()) == [
        "manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"
    ]  # fmt: skip
    state = checkpoint.read_state(place)
    assert state["format"] == 1 and state["step"] == 4 and state["tokens"] == 192
    assert state["plan"]["total_steps"] == 4 and state["plan"]["precision"] == "fp32"


def test_every_file_is_flushed_before_the_rename_that_shows_it(tmp_path, monkeypatch) -> None:
    events = []
    sync, rename = checkpoint.sync, os.rename
    monkeypatch.setattr(checkpoint, "sync", lambda p: (events.append(p.name), sync(p)))
    monkeypatch.setattr(os, "rename", lambda a, b: (events.append("rename"), rename(a, b)))
    checkpoint.write(tmp_path / "checkpoints", 1, toy.networks(), {}, {})
    files = ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]
    assert events == [*files, ".writing-step-1", "rename", "checkpoints"]


def test_t13_shared_tensor_is_stored_once_and_its_names_are_told(tmp_path) -> None:
    t = toy.trainer(tmp_path, steps=1)
    t.run()
    place = tmp_path / "checkpoints" / "step-1"
    with safe_open(place / "model.safetensors", "pt") as file:
        names = list(file.keys())
        assert "model.table.weight" in names and "model.head.weight" not in names
        assert json.loads(file.metadata()["aliases"]) == {"model.head.weight": "model.table.weight"}
    other = toy.networks(seed=5)
    checkpoint.load_model(other, place)
    assert other["model"].head.weight is other["model"].table.weight
    assert all(torch.equal(v, other.state_dict()[k]) for k, v in toy.weights(t).items())


def test_weights_of_another_shape_are_refused(tmp_path) -> None:
    toy.trainer(tmp_path, steps=1).run()
    other = toy.networks()
    other["model"].layers.append(torch.nn.Linear(8, 8))
    with pytest.raises(UserError, match=r"does not fit this model.*layers.2.bias"):
        checkpoint.load_model(other, tmp_path / "checkpoints" / "step-1")


def test_due_at_powers_of_two_then_every_thousand() -> None:
    config = toy.CheckpointConfig()
    assert [s for s in range(3100) if room.due(s, config)] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000, 3000]
    assert [s for s in range(1, 10) if room.due(s, toy.CheckpointConfig(every=3))] == [3, 6, 9]


def test_retention_keeps_powers_of_two_the_last_and_the_best(tmp_path) -> None:
    toy.trainer(tmp_path, steps=14, every=1, keep=2).run()
    assert steps(tmp_path) == [1, 2, 4, 8, 13, 14]
    checkpoint.retain(tmp_path / "checkpoints", keep=1, best=13)
    assert steps(tmp_path) == [1, 2, 4, 8, 13, 14]
    checkpoint.retain(tmp_path / "checkpoints", keep=1, best=None)
    assert steps(tmp_path) == [1, 2, 4, 8, 14]


def peak_at(best: int):
    """An evaluation whose loss is lowest at the given evaluation."""
    calls = []

    def evaluate(networks):
        calls.append(1)
        return {"loss": abs(len(calls) - best) + 1.0}

    return evaluate


def test_t11_rotation_spares_the_best_and_resume_takes_the_latest(tmp_path) -> None:
    t = toy.trainer(tmp_path, steps=15, every=3, keep=1)
    t.evaluation = Evaluation(3, peak_at(2))
    t.run()
    assert steps(tmp_path) == [6, 15]
    assert checkpoint.best_checkpoint(tmp_path / "checkpoints").name == "step-6"
    again = toy.trainer(tmp_path, steps=15, every=3, keep=1)
    assert again.run(resume=True).step == 15


def test_t12_checkpoint_only_on_improvement(tmp_path) -> None:
    t = toy.trainer(tmp_path, steps=15, every=1000, keep=1)
    t.evaluation = Evaluation(3, peak_at(2))
    t.run()
    assert steps(tmp_path) == [6, 15]  # 3 was the best for a while, the last one is always written


def test_t12_only_on_improvement_is_an_option_and_bytes_are_counted(tmp_path, capsys) -> None:
    """Nothing is due but what is better than all before, and the end. A resumed run counts on."""
    options = {"steps": 15, "only_best": True, "keep": 1}
    powers = toy.trainer(tmp_path / "powers", **options)
    powers.evaluation = Evaluation(1, peak_at(5))
    powers.run()
    assert steps(tmp_path / "powers") == [5, 15]  # 1, 2, 3 and 4 were the best for a while
    t = toy.trainer(tmp_path / "a", **options)
    t.evaluation, t.progress = Evaluation(3, peak_at(2)), Progress(interval=1e9)
    written = t.run().checkpoint_bytes
    assert steps(tmp_path / "a") == [6, 15]
    sizes = {step: checkpoint.size(tmp_path / "a" / "checkpoints" / f"step-{step}") for step in (6, 15)}
    assert sum(sizes.values()) < written < 3 * max(sizes.values()) + 200  # 3 was the best for a while
    told = capsys.readouterr().err
    assert re.search(
        r"a checkpoint takes about [\d,]+ bytes \([\d,]+ weights, [\d,]+ optimizer\); at least 1 to write", told
    )
    assert re.search(r"one at every better held-out loss; at most 3 lie there together, [\d,]+ bytes; [\d,]+ are", told)
    shutil.rmtree(tmp_path / "a" / "checkpoints" / "step-15")
    again = toy.trainer(tmp_path / "a", **options)
    assert again.run(resume=True).checkpoint_bytes == written
    with pytest.raises(ValueError, match=r"checkpoint.only_best stands in the place of"):
        toy.CheckpointConfig(only_best=True, every=3)


@pytest.mark.parametrize(
    "given", [{}, {"every": 3}, {"every": 4}, {"at": [2, 9]}, {"at": [2, 20]}, {"only_best": True}]
)
@pytest.mark.parametrize("total", [1, 20, 999, 1000, 2500])
def test_t12_what_will_be_written_is_known_before(total: int, given: dict) -> None:
    config = toy.CheckpointConfig(**given)
    assert room.written(total, config) == sum(room.due(s, config) or s == total for s in range(1, total + 1))


# ---------------------------------------------------------------- a full disk


def test_t10_need_is_checked_before_anything_is_written(tmp_path, monkeypatch) -> None:
    toy.trainer(tmp_path, steps=4).run()
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 10**6 - 1000, 1000))
    with pytest.raises(UserError, match=r"no room .* need about [\d,]+ bytes \(8 at a time\) and 1,000 bytes are free"):
        toy.trainer(tmp_path / "new", steps=8).run()
    with pytest.raises(UserError, match=r"no room to write .*: it needs [\d,]+ bytes and 1,000 bytes are free"):
        checkpoint.write(tmp_path / "checkpoints", 5, toy.networks(), {}, {})
    assert steps(tmp_path) == [1, 2, 4]


@pytest.mark.parametrize("file", ["model", "optimizer"])
def test_t10_disk_that_fills_while_saving(tmp_path, monkeypatch, file: str) -> None:
    save_tensors = sharded.save_tensors

    def full(tensors, path, **rest):
        save_tensors(tensors, path, **rest)
        if path.parent.name.endswith("step-8") and path.name.startswith(file):
            os.truncate(path, 100)
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sharded, "save_tensors", full)
    with pytest.raises(UserError, match=r"step-8: it needs [\d,]+ bytes and [\d,]+ bytes are free"):
        toy.trainer(tmp_path, steps=10).run()
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step-1", "step-2", "step-4"]
    monkeypatch.undo()
    resumed = toy.trainer(tmp_path, steps=10)
    resumed.run(resume=True)
    straight = toy.trainer(tmp_path / "straight", steps=10)
    straight.run()
    assert all(torch.equal(v, toy.weights(resumed)[k]) for k, v in toy.weights(straight).items())


def test_t10_quota_of_the_operating_system(tmp_path) -> None:
    """A limit on the file size stands for the full disk: the kernel refuses in the middle of a real write."""
    toy.trainer(tmp_path, steps=4).run()
    size = (tmp_path / "checkpoints" / "step-4" / "optimizer.safetensors").stat().st_size
    t = toy.trainer(tmp_path, steps=4)
    t.run(resume=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, hard))
    try:
        with pytest.raises(UserError, match="more than a file may have here"):
            checkpoint.write(t.checkpoints, 5, t.networks, t.optimizer.state_tensors(), {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step-1", "step-2", "step-4"]


# ---------------------------------------------------------------- damage


def test_t09_partial_and_damaged_checkpoints_are_passed_over_and_reported(tmp_path, capsys) -> None:
    toy.trainer(tmp_path, steps=20, every=5, keep=9).run()
    place = tmp_path / "checkpoints"
    (place / "step-20" / "manifest.json").unlink()
    data = bytearray((place / "step-15" / "model.safetensors").read_bytes())
    data[-3] ^= 1
    (place / "step-15" / "model.safetensors").write_bytes(data)
    (place / ".writing-step-17").mkdir()
    found, passed = checkpoint.newest(place)
    assert found == place / "step-10"
    assert passed == [".writing-step-17", "step-20 (no manifest)", "step-15 (model.safetensors is damaged)"]
    t = toy.trainer(tmp_path, steps=20, every=5, keep=9)
    t.run(resume=True)
    assert steps(tmp_path) == [5, 10, 15, 20] and checkpoint.newest(place)[1] == []
    assert [x["step"] for x in toy.metrics(tmp_path)] == list(range(1, 21))


def test_a_kill_between_the_two_renames_of_a_replacement(tmp_path) -> None:
    toy.trainer(tmp_path, steps=2).run()
    place = tmp_path / "checkpoints"
    os.rename(place / "step-2", place / ".replaced-step-2")
    assert list(checkpoint.find(place).whole) == [1]
    checkpoint.clean(place)
    assert list(checkpoint.find(place).whole) == [1, 2]


def test_format_of_another_version_is_refused(tmp_path) -> None:
    toy.trainer(tmp_path, steps=1).run()
    state = tmp_path / "checkpoints" / "step-1" / "state.json"
    state.write_text(state.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(UserError, match="format 9"):
        checkpoint.read_state(state.parent)


def light(out: Path) -> list[int]:
    return [step for step, path in checkpoint.find(out / "checkpoints").whole.items() if checkpoint.is_light(path)]


def test_checkpoints_at_given_steps_stay_and_the_older_ones_are_weights_alone(tmp_path) -> None:
    t = toy.trainer(tmp_path, steps=23, at=(3, 7, 11, 16, 23), keep=2)
    t.run()
    assert steps(tmp_path) == [3, 7, 11, 16, 23] and light(tmp_path) == [3, 7, 11]
    for step in light(tmp_path):
        place = tmp_path / "checkpoints" / f"step-{step}"
        assert not (place / checkpoint.OPTIMIZER).exists() and checkpoint.read_state(place)["step"] == step
        checkpoint.load_model(toy.networks(), place)
    assert [s for s in range(25) if room.due(s, toy.CheckpointConfig(at=(3, 7)))] == [3, 7]
    assert room.most_at_once(23, toy.CheckpointConfig(at=(3, 7, 11, 16, 23))) == (4, 3)
    assert room.most_at_once(9, toy.CheckpointConfig(at=(3, 7, 11, 16, 23))) == (4, 0)


def test_weights_alone_are_measured_and_never_resumed_from(tmp_path) -> None:
    """The last whole ones are damaged: the run begins again, and is the same."""
    options = {"steps": 12, "at": (2, 5, 8, 12), "keep": 1, "dropout": 0.2}
    toy.trainer(tmp_path / "a", **options).run()
    toy.trainer(tmp_path / "b", **options).run()
    (tmp_path / "b" / "checkpoints" / "step-12" / checkpoint.MODEL).write_bytes(b"x")
    folder = tmp_path / "b" / "checkpoints"
    assert checkpoint.newest(folder)[0] == folder / "step-8" and checkpoint.newest(folder, resumable=True)[0] is None
    again = toy.trainer(tmp_path / "b", **options)
    again.run(resume=True)
    assert steps(tmp_path / "b") == [2, 5, 8, 12] and light(tmp_path / "b") == [2, 5, 8]
    assert toy.metrics(tmp_path / "a") == toy.metrics(tmp_path / "b")


def test_a_kill_between_manifest_and_file_leaves_nothing_behind(tmp_path, monkeypatch) -> None:
    toy.trainer(tmp_path, steps=6, at=(2, 4, 6), keep=3).run()
    place = tmp_path / "checkpoints" / "step-2"
    before = (place / checkpoint.OPTIMIZER).stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            checkpoint.lighten(place)
    assert before and (place / checkpoint.OPTIMIZER).exists() and steps(tmp_path) == [2, 4, 6]
    checkpoint.retain(tmp_path / "checkpoints", 1, None, (2, 4, 6))
    assert not (place / checkpoint.OPTIMIZER).exists() and light(tmp_path) == [2, 4]


@pytest.mark.parametrize(("at", "says"), [((3, 3), "that ascend"), ((0, 4), "from 1 on"), ((5, 2), "that ascend")])
def test_steps_that_do_not_ascend_are_refused(at, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        toy.CheckpointConfig(at=at)
    with pytest.raises(ValueError, match=r"stands in the place of checkpoint.every=5"):
        toy.CheckpointConfig(at=(1, 2), every=5)


def test_t12_a_run_that_goes_on_says_what_is_still_to_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for steps, told in ((6, "at least 3 to write"), (6, "at least 0 still to write")):
        own = toy.trainer(tmp_path, steps=steps, every=2)
        own.progress = Progress()
        own.run(resume=told.endswith("still to write"))
        assert told in capsys.readouterr().err
