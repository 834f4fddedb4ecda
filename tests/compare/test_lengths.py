"""What a budget buys: within one update of it, for each seed; milestones; the lock and the lines that a study says."""

from __future__ import annotations

from pathlib import Path

import pytest

from unmask.compare import lengths, study
from unmask.compare.job import Spec, falling
from unmask.compare.jobs import Job, _Progress, _Running
from unmask.compare.lengths import Budget, milestones
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
        assert all(abs(at - updates * k / 8) <= 4 for k, at in enumerate(found, 1))
        assert len({b - a for a, b in zip([0, *found], found[:-1], strict=False)}) == 1  # one number of updates apart
    with pytest.raises(UserError, match=r"buys 15 updates, too few for 8 milestones: .* milestones=7"):
        milestones(15, 8)


def test_a_curve_that_lies_flat_at_its_end_does_not_fall() -> None:
    down = [3 - k / 50 for k in range(100)]
    assert falling(down) and not falling([*down, *([1.0, 1.1] * 20)]) and not falling(down[:9])


def test_one_study_is_run_by_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "WAIT", 0.2)
    (tmp_path / "text.txt").write_text("words " * 100)
    (tmp_path / "out").mkdir()
    with study._alone(tmp_path / "out"), pytest.raises(UserError, match="is being run by another process"):
        compare("encoder-small", out=tmp_path / "out", corpus=str(tmp_path / "text.txt"), budget__steps=9)


def test_time_left_goes_by_flops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    said: list[str] = []
    jobs = [Job(f"job {k}", tmp_path / "jobs" / str(k), Spec("run", {}, f"runs/{k}"), 10.0 * (1 + k)) for k in range(2)]
    progress = _Progress(jobs, said.append)
    now = progress.begun + 60
    monkeypatch.setattr(time, "monotonic", lambda: now)
    one = _Running(jobs[0], None, 0, progress.begun)  # type: ignore[arg-type]
    progress.ended(one, 1, 2)
    progress.ended(_Running(jobs[1], None, 0, progress.begun), 2, 2)  # type: ignore[arg-type]
    assert said == ["1 of 2: job 0, 60 s; about 2 min left", "2 of 2: job 1, 60 s"]
