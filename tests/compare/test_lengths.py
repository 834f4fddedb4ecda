"""What a budget buys: within one update of it, for each seed; milestones; the lock and the lines that a study says."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from unmask.compare import jobs, lengths, lock, study
from unmask.compare.job import Spec, falling
from unmask.compare.jobs import Job, _Progress, _Running, surroundings
from unmask.compare.lengths import Budget, milestones
from unmask.compare.settings import Study
from unmask.compare.study import compare
from unmask.data.prepare import prepare
from unmask.data.shards import Prepared
from unmask.errors import UserError
from unmask.recipe import Recipe, load_recipe
from unmask.run import batch_flops, resolve, training_loader

SMALL = {
    "corpus.document": "line",
    "corpus.valid_fraction": 0.2,
    "tokenizer.type": "char",
    "model.hidden_size": 16,
    "model.num_heads": 2,
    "model.num_layers": 1,
    "context": 32,
    "train.batch_size": 4,
    "budget.steps": 12,
}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Prepared]:
    folder = tmp_path_factory.mktemp("lengths")
    corpus = folder / "text.txt"
    corpus.write_text("\n".join(f"line {k} of a text {'x' * (k * 7 % 19)} about {k * k}." for k in range(400)))
    recipe = load_recipe("encoder-small", {"corpus": str(corpus), **SMALL})
    return recipe, prepare(recipe.corpus, None, recipe.tokenizer, folder / "cache", lambda _: None)


def spent(recipe: Recipe, text: Prepared, unit: str, updates: int) -> tuple[float, float]:
    """Of a run of so many updates: the whole, and its dearest update."""
    recipe = resolve(recipe, text.tokenizer)
    loader = training_loader(recipe, text)
    each = [
        sum(
            batch_flops(recipe.model, b, recipe.objective) if unit == "flops" else b.counts()[unit]
            for b in loader(s, s / updates)
        )
        for s in range(updates)
    ]
    return sum(each), max(each)


@pytest.mark.parametrize(("unit", "amount"), [("flops", 3e8), ("tokens", 12_000), ("target_tokens", 4_000)])
def test_a_run_ends_within_one_update_of_its_budget(given: tuple[Recipe, Prepared], unit: str, amount: float) -> None:
    recipe, text = given
    for seed in (0, 1):
        own = recipe.model_copy(update={"seed": seed})
        updates = Budget(unit, amount).updates(own, text)
        whole, dearest = spent(own, text, unit, updates)
        assert updates > 64 and abs(whole - amount) <= dearest


def test_a_long_run_is_planned_from_a_part_of_it(
    given: tuple[Recipe, Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, text = given
    exact = Budget("tokens", 12_000).updates(recipe, text)
    monkeypatch.setattr(lengths, "EXACT", 48)
    assert abs(Budget("tokens", 12_000).updates(recipe, text) - exact) <= 0.05 * exact


def test_steps_and_minutes(given: tuple[Recipe, Prepared]) -> None:
    assert Budget("steps", 70.0).updates(*given) == 70
    assert Budget("minutes", 2.0, seconds=0.5).updates(*given) == 240
    with pytest.raises(UserError, match="no update could be timed"):
        Budget("minutes", 2.0).updates(*given)


def test_milestones_are_equal_parts_and_end_with_the_run() -> None:
    for updates in (16, 17, 100, 101, 999, 2500):
        found = milestones(updates, 8)
        assert len(found) == 8 and found[-1] == updates and found == sorted(set(found))
        assert all(abs(at - updates * k / 8) <= 0.5 for k, at in enumerate(found, 1))  # to the update
    assert milestones(8, 8) == [*range(1, 9)]
    with pytest.raises(UserError, match=r"buys 7 updates, too few for 8 milestones: .* milestones=7"):
        milestones(7, 8)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
def test_every_length_is_parted_to_the_exact_update(count: int) -> None:
    for updates in range(count, 400):
        found = milestones(updates, count)
        assert len(set(found)) == count and found == sorted(found) and found[-1] == updates
        assert all(2 * abs(count * at - updates * k) <= count for k, at in enumerate(found, 1))


def test_checkpoints_lie_at_the_milestones_and_nowhere_else(given: tuple[Recipe, Prepared]) -> None:
    run, at = lengths.shortened(given[0], 1003, 1.0, 4)
    assert at == [251, 502, 752, 1003] == list(run.checkpoint.at) and run.checkpoint.every == 0
    trial, at = lengths.shortened(given[0], 1003, 0.25, 1)
    assert at == [251] == list(trial.checkpoint.at) and trial.budget.steps == 251


def test_a_curve_that_lies_flat_at_its_end_does_not_fall() -> None:
    down = [3 - k / 50 for k in range(100)]
    assert falling(down) and not falling([*down, *([1.0, 1.1] * 20)]) and not falling(down[:9])


def test_one_study_is_run_by_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "WAIT", 0.2)
    (tmp_path / "text.txt").write_text("words " * 100)
    (tmp_path / "out").mkdir()
    with lock.alone(tmp_path / "out"), pytest.raises(UserError, match="is being run by another process"):
        compare("encoder-small", out=tmp_path / "out", corpus=str(tmp_path / "text.txt"), budget__steps=9)


def test_a_study_that_is_refused_leaves_its_place_to_one_that_is_mended(tmp_path: Path) -> None:
    corpus = tmp_path / "text.txt"
    corpus.write_text("\n".join(f"line {k} of a text about {k * k}." for k in range(60)))
    given = {"corpus": str(corpus), "cache": tmp_path / "cache", **{k.replace(".", "__"): v for k, v in SMALL.items()}}
    given |= {"budget__steps": 3, "say": lambda _: None}
    for _ in range(2):
        with pytest.raises(UserError, match="entry encoder-small: the budget buys 3 updates, too few for 8 milestones"):
            compare("encoder-small", out=tmp_path / "out", **given)
        assert not (tmp_path / "out").exists(), "nothing ran, so nothing is left"


def job_of(folder: Path, k: int, cost: float, milestones: int) -> Job:
    spec = Spec("run", {}, f"runs/{k}", milestones=milestones)
    return Job(f"job {k}", folder / "jobs" / str(k), spec, cost, updates=100)


def stands(job: Job, step: int, measured: int, at: float) -> None:
    """A job's files after so many updates, the last of them at a time."""
    for file in (job.metrics, job.log):
        file.parent.mkdir(parents=True, exist_ok=True)
    job.metrics.write_text(json.dumps({"step": step}) + "\n")
    os.utime(job.metrics, (at, at))
    job.log.write_text("".join(f"measured at step {k}\n" for k in range(measured)))


def test_time_left_counts_training_by_flops_and_measuring_by_milestones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    first, second, third = (job_of(tmp_path, k, 10.0 * (1 + k), 4) for k in range(3))
    progress = _Progress([first, second, third], 1, said.append)
    begun, now = progress.shown, [progress.shown]
    monkeypatch.setattr(time, "time", lambda: now[0])
    running = [_Running(first, None, 0, begun)]  # type: ignore[arg-type]
    now[0] = begun + 50  # half of its training: 5 FLOPs of 60 in 50 s
    stands(first, 50, 0, now[0])
    progress.show(running, [second, third])
    assert said == ["job 0 50%; about 9 min left and the measuring"]
    now[0] = begun + 160  # trained at 100 s, half measured in 60 s: 2 · 30 s, and 500 + 2 · 120 s
    stands(first, 100, 2, begun + 100)
    progress.show(running, [second, third])
    assert said[1:] == ["job 0 measuring; about 13 min left"]  # 60 + 200 + 120 + 300 + 120 s
    now[0] = begun + 220
    progress.ended(running[0], 1, 3, [], [second, third])
    assert said[2:] == ["1 of 3: job 0, 220 s; about 12 min left"]
    now[0] = begun + 300
    progress.ended(_Running(second, None, 0, begun + 220), 2, 3, [], [])  # type: ignore[arg-type]
    assert said[3:] == ["2 of 3: job 1, 80 s"]


def test_the_last_seconds_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    job = job_of(tmp_path, 0, 10.0, 0)
    progress = _Progress([job], 1, said.append)
    begun = progress.shown
    stands(job, 100, 0, begun + 40)
    monkeypatch.setattr(time, "time", lambda: begun + 40)
    progress.show([_Running(job, None, 0, begun)], [])  # type: ignore[arg-type]
    assert said == ["job 0 measuring; a few seconds left"]


def test_what_was_done_before_does_not_make_a_session_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    job = job_of(tmp_path, 0, 10.0, 0)
    stands(job, 80, 0, time.time())
    progress = _Progress([job], 1, said.append)
    begun = progress.shown
    monkeypatch.setattr(time, "time", lambda: begun + 40)
    stands(job, 90, 0, begun + 40)
    progress.show([_Running(job, None, 0, begun)], [])  # type: ignore[arg-type]
    assert said == ["job 0 90%; about 40 s left"]


def test_each_slot_has_a_gpu_of_those_that_are_visible(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.setattr(study, "choose_device", lambda name: SimpleNamespace(type=name))
    on = [SimpleNamespace(device=name) for name in ("cuda", "cuda", "cpu")]
    assert study._gpus(on[:2]) == 3 and study._gpus(on) == 0  # type: ignore[arg-type]
    told = [surroundings(slot, 3)["CUDA_VISIBLE_DEVICES"] for slot in range(5)]
    assert told == ["0", "1", "2", "0", "1"]
    given = [surroundings(slot, 2, "GPU-b, GPU-d")["CUDA_VISIBLE_DEVICES"] for slot in range(3)]
    assert given == ["GPU-b", "GPU-d", "GPU-b"]
    assert "CUDA_VISIBLE_DEVICES" not in surroundings(1, 0, "5")
    begun: list[dict[str, str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *_, env, **__: begun.append(env))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    jobs._start(job_of(tmp_path, 0, 1.0, 1), 1, 2, None)
    assert begun[0]["CUDA_VISIBLE_DEVICES"] == "6" and begun[0]["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(("at_once", "copies"), [(1, 1), (2, 1), (4, 2), (64, 3)])
def test_an_update_is_timed_in_as_many_processes_as_the_study_has(
    given: tuple[Recipe, Prepared], at_once: int, copies: int
) -> None:
    """Two entries of three seeds on four cores: four side by side, not two."""
    asked = Study(command="", entries={}, budget={"minutes": 2}, seeds=[0, 1, 2], suites={})
    listed: list[Job] = []

    def do(jobs: Any) -> list[dict[str, Any]]:
        listed.extend(jobs)
        return [{"seconds_per_step": 1.0 + k} for k in range(len(jobs))]

    found = study._pace(asked, {"a": given[0], "b": given[0]}, Path("out"), None, at_once, do)
    assert len(listed) == 2 * copies and len({job.file for job in listed}) == len(
        {j.spec.place for j in listed}
    ) == len(listed)
    assert found == {"a": float(copies), "b": 1.0 + copies}  # the mean of 1, 3, 5 and of 2, 4, 6
