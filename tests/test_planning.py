"""`unmask pretrain --plan` says beforehand what the run then takes, and trains nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from unmask.cli import app
from unmask.errors import UserError
from unmask.planning import plan
from unmask.recipe import Recipe, load_recipe
from unmask.run import pretrain

TINY: dict[str, Any] = {
    "tokenizer.vocab_size": 600,
    "model.hidden_size": 32,
    "model.num_layers": 2,
    "model.num_heads": 2,
    "context": 32,
    "train.batch_size": 8,
    "evaluation.pieces": 4,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    (folder / "text.txt").write_text("\n\n".join(f"the {i} ships of {i * i} ports sail at night." for i in range(300)))
    return folder


def recipe(place: Path, name: str = "encoder-small", **more: Any) -> Recipe:
    own = {k.replace("__", "."): v for k, v in more.items()}
    return load_recipe(name, {"corpus": str(place / "text.txt"), **TINY, **own})


@pytest.mark.parametrize("more", [
    {"budget__steps": 6},
    {"budget__tokens": 3000},
    {"budget__steps": 4, "objective__type": "replaced"},
    {"budget__steps": 4, "train__optimizer": "adamw", "checkpoint__every": 2, "train__grad_accumulation": 2},
])  # fmt: skip
def test_a_run_takes_what_its_plan_said(more: dict[str, Any], place: Path, tmp_path: Path) -> None:
    asked = recipe(place, **more)
    found = plan(asked, cache=place / "cache")
    run = pretrain(asked, out=tmp_path / "run", cache=place / "cache", say=lambda _: None)
    assert found["steps"] == run.counters.step
    for name in ("tokens", "target_tokens", "flops"):
        assert found[name] == pytest.approx(getattr(run.counters, name), rel=0.05), name
    sizes = [p for p in (tmp_path / "run" / "checkpoints").glob("step-*")]
    largest = max(sum(file.stat().st_size for file in p.iterdir()) for p in sizes)
    assert len(sizes) <= found["disk"]["checkpoints"]
    assert largest <= found["disk"]["bytes_of_one"] <= largest + 200_000
    (row,) = found["memory"]
    state = next(p for p in sizes if p.name == f"step-{run.counters.step}")
    assert row["optimizer"] == pytest.approx((state / "optimizer.safetensors").stat().st_size, rel=0.1)
    assert row["weights"] == row["gradients"] == 4 * found["parameters"]
    assert row["weights"] == pytest.approx((state / "model.safetensors").stat().st_size, rel=0.1)
    assert row["total"] == sum(v for k, v in row.items() if k not in ("with", "total"))


def test_nothing_is_trained_or_written(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan(recipe(place, budget__steps=6), cache=place / "cache")
    assert list(tmp_path.iterdir()) == []


def test_ranks_copy_or_share(place: Path) -> None:
    asked = recipe(place, budget__steps=6)
    (alone,), (copy, part) = (plan(asked, ranks=n, cache=place / "cache")["memory"] for n in (1, 4))
    assert copy["with"] == "DDP (this run), each of 4" and part["with"] == "FSDP, each of 4"
    for name in ("weights", "gradients", "optimizer"):
        assert copy[name] == alone[name] and part[name] == alone[name] // 4
    assert copy["logits"] == part["logits"] == alone["logits"]
    assert copy["activations"] == part["activations"] == alone["activations"] // 4  # two of the eight rows


def test_who_writes_checkpoints_and_what_is_copied_for_it(place: Path) -> None:
    def saving(ranks: int, **more: Any) -> list[tuple[Any, ...]]:
        found = plan(recipe(place, budget__steps=6, **more), ranks=ranks, cache=place / "cache")
        state = sum(found["memory"][0][name] for name in ("weights", "optimizer"))
        assert all(row["copy"] in (0, state, state // ranks) for row in found["saving"])
        return [(row["written_by"], row["files"], row["copy"] * ranks // state) for row in found["saving"]]

    assert saving(1) == [("itself", 2, 0)] and saving(1, checkpoint__background=True) == [("itself", 2, 1)]
    assert saving(4) == [("rank 0", 2, 0), ("each rank, 1/4 of it", 8, 0)]
    assert saving(4, checkpoint__sharded=False) == [("rank 0", 2, 0), ("rank 0", 2, 4)]
    assert [row[2] for row in saving(4, checkpoint__background=True)] in ([4, 1], [4, 0])  # rounded down


def test_memory_is_that_of_the_stage_that_keeps_most(place: Path) -> None:
    stages = [{"share": 0.5, "context": 16}, {"share": 0.3, "batch_size": 32}, {"share": 0.2}]
    found = plan(recipe(place, budget__steps=10, train__stages=stages), cache=place / "cache")
    large = plan(recipe(place, budget__steps=10, train__batch_size=32), cache=place / "cache")
    assert found["memory"] == large["memory"]
    assert [row["updates"] for row in found["stages"]] == [5, 3, 2] and len(large["stages"]) == 1
    assert found["tokens"] == pytest.approx(sum(r["updates"] * r["tokens"] for r in found["stages"]), abs=1)


def test_hours_are_an_estimate_and_say_by_what(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = recipe(place, budget__steps=1000)
    timed = plan(asked, cache=place / "cache")
    assert timed["hours"] > 0 and timed["hours_are"].startswith("an estimate: 2 updates timed on cpu")
    given = plan(asked, ranks=2, peak_flops="1e9", cache=place / "cache")
    assert given["hours"] == pytest.approx(given["flops"] / (0.4 * 2e9) / 3600, rel=1e-6)
    assert given["hours_are"] == "an estimate: at 40% of 2e+09 FLOP/s, by peak_flops"
    monkeypatch.setattr("unmask.planning.PATIENCE", 0.0)
    left = plan(asked, cache=place / "cache")
    assert left["hours"] is None and "give peak_flops=" in left["hours_are"]


def test_minutes_become_updates_by_the_same_estimate(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = recipe(place, budget__minutes=2)
    found = plan(asked, peak_flops="1e9", cache=place / "cache")
    assert found["hours"] == pytest.approx(2 / 60, rel=0.05) and "estimate" in found["steps_are"]
    monkeypatch.setattr("unmask.planning.PATIENCE", 0.0)
    left = plan(asked, cache=place / "cache")
    assert left["steps"] is left["tokens"] is left["hours"] is None


def test_bad_numbers_are_one_sentence(place: Path) -> None:
    with pytest.raises(UserError, match="ranks=0 must be at least 1"):
        plan(recipe(place, budget__steps=1), ranks=0)
    with pytest.raises(UserError, match="peak_flops=quick is no peak"):
        plan(recipe(place, budget__steps=1), peak_flops="quick")


def test_under_torchrun_a_plan_is_of_its_processes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    settings = [f"{k}={v}" for k, v in TINY.items()]
    words = ["pretrain", "encoder-small", f"corpus={place / 'text.txt'}", *settings, f"cache={place / 'cache'}"]
    told = CliRunner().invoke(app, [*words, "budget.steps=6", "parallel=fsdp", "--plan"])
    assert "FSDP (this run), each of 2" in told.stdout and "DDP, each of 2" in told.stdout, told.output
    more = CliRunner().invoke(app, [*words, "budget.steps=6", "--plan", "--ranks", "8", "--json"])
    assert json.loads(more.stdout.splitlines()[-1])["ranks"] == 8


def test_the_command_needs_no_place(place: Path) -> None:
    settings = [f"{k}={v}" for k, v in TINY.items()]
    words = ["pretrain", "encoder-small", f"corpus={place / 'text.txt'}", *settings, f"cache={place / 'cache'}"]
    told = CliRunner().invoke(app, [*words, "budget.steps=6", "--plan", "--ranks", "2"])
    assert told.exit_code == 0, told.output
    assert "6 (given)" in told.stdout and "FSDP, each of 2" in told.stdout and "an estimate" in told.stdout
    assert "each rank, 1/2 of it" in told.stdout and "waits" in told.stdout
    plain = CliRunner().invoke(app, [*words, "budget.steps=6", "--plan", "--json"])
    assert plain.exit_code == 0 and json.loads(plain.stdout.splitlines()[-1])["steps"] == 6
    alone = CliRunner().invoke(app, [*words, "budget.steps=6", "out=x", "--ranks", "2"])
    assert isinstance(alone.exception, UserError) and "goes with --plan" in str(alone.exception)
