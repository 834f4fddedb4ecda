"""The runs of a ladder: trained once, side by side, over seeds, with tuned rates; failures, kills, and the record."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unmask.compare import jobs
from unmask.compare.jobs import Job
from unmask.compare.lock import alone
from unmask.compare.results import Results
from unmask.errors import UserError
from unmask.model.spec import parameters
from unmask.recipe import dump, validate
from unmask.scale.ladder import Sampled, cells, sampled
from unmask.scale.law import REFIT
from unmask.scale.points import read_points
from unmask.scale.rates import Trials
from unmask.scale.runs import Workers, rows, train
from unmask.scale.study import Asked
from unmask.scale.train import Ladder, run

from .helpers import LADDER_BUDGETS as BUDGETS
from .helpers import LADDER_SIZES as SIZES
from .helpers import small


class Ended:
    """A process that has ended."""

    def __init__(self, code: int) -> None:
        self.returncode = code

    def poll(self) -> int:
        return self.returncode

    def terminate(self) -> None: ...

    def wait(self) -> None: ...


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Sampled:
    folder = tmp_path_factory.mktemp("ladder")
    return sampled(small(folder), folder / "cache", lambda _: None)


def quiet(_: str) -> None:
    pass


def jobs_that(spoil: Callable[[Job], bool] = lambda _: False) -> Callable[[Job, int, int, Any], Ended]:
    """In place of a job: what it leaves behind. `spoil`: which of them diverge."""

    def start(job: Job, slot: int, gpus: int, hold: int | None) -> Ended:
        recipe = validate(job.spec.recipe, "a job")
        place = job.file.parent.parent / job.spec.place
        place.mkdir(parents=True, exist_ok=True)
        job.file.parent.mkdir(parents=True, exist_ok=True)
        n, flops = parameters(recipe.model), float(recipe.budget.flops or 0)
        d = flops / (7 * n)
        off = 1 + 0.001 * recipe.seed * (recipe.seed < 10) + 0.01 * (recipe.train.learning_rate / 1.5e-3 - 1) ** 2
        loss = float(REFIT.loss(2e3 * n, 2e3 * d)) * off
        found = {"parameters": n, "tokens": d, "flops": flops, "held_out_loss": loss, "target_tokens": d, "step": 9}
        told = {"loss": None if spoil(job) else loss, "falling": False, "flops": flops, "seconds": 1.0}
        (place / "result.json").write_text(json.dumps(found | {"seconds": 1.0}))
        job.found.write_text(json.dumps(told))
        return Ended(0)

    return start


def failing(job: Job, slot: int, gpus: int, hold: int | None) -> Ended:
    job.file.parent.mkdir(parents=True, exist_ok=True)
    job.log.write_text("error: the disk is full\n")
    return Ended(1)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(jobs, "_start", jobs_that())
    monkeypatch.setattr(jobs, "POLL", 0.0)
    return monkeypatch


def test_a_ladder_is_run_fitted_and_written_down(given: Sampled, tmp_path: Path, quick: pytest.MonkeyPatch) -> None:
    out, cache = tmp_path / "out", given.text.directory.parent
    ladder = Ladder(SIZES, [2e11, 1e12, 5e12])
    asked = Asked(holdout="largest", resamples=100)
    found = run(given.recipe, ladder, out, asked, command="x", jobs=2, cache=cache)
    assert len(found.points) == 8 and len(found.held) == 4 and found.between is None
    assert all(abs(h.error) < 0.01 for h in found.held)
    record = Results.read(out / "results.json")
    assert len(record.entries) == 12 and record.entries[0].runs[0].points[0].values["held_out_loss"] is not None
    assert {p.name for p in out.iterdir()} >= {"points.jsonl", "report.html", "picture.svg"}
    assert len((out / "points.jsonl").read_text().splitlines()) == 12
    assert any("epochs of the same text" in note for note in record.notes)
    with pytest.raises(UserError, match="already holds a ladder"):
        run(given.recipe, ladder, out, asked, cache=cache)
    said: list[str] = []
    more = Ladder(SIZES, [*ladder.budgets, 2e13])
    run(given.recipe, more, out, asked, resume="auto", jobs=2, cache=cache, say=said.append)
    assert "12 of 16 jobs are done already" in said and any(s.startswith("16 of 16: ") for s in said)


def test_ctrl_c_says_how_to_go_on(given: Sampled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(jobs, "_start", stopped)
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        ladder, cache = Ladder(SIZES, BUDGETS), given.text.directory.parent
        run(given.recipe, ladder, tmp_path, Asked(resamples=100), cache=cache, say=said.append)
    assert said[-1] == f"stopped; resume=auto continues the ladder in {tmp_path}"


def test_seeds_and_tuned_rates(given: Sampled, tmp_path: Path, quick: pytest.MonkeyPatch) -> None:
    """Runs of three seeds are points each; the rate is the one that trials find, and stays when sizes are added."""
    out, cache = tmp_path / "out", given.text.directory.parent
    trials = Trials(4, (1e11, 2e11))
    ladder = Ladder(SIZES, BUDGETS, seeds=3, trials=trials)
    found = run(given.recipe, ladder, out, Asked(resamples=100), jobs=4, cache=cache)
    assert len(found.points) == 24 and found.between == pytest.approx(0.001, rel=0.05)
    points = [json.loads(line) for line in (out / "points.jsonl").read_text().splitlines()]
    assert {p["seed"] for p in points} == {0, 1, 2}
    assert all(p["learning_rate"] == pytest.approx(1.5e-3, rel=0.02) for p in points)
    record = Results.read(out / "results.json")
    assert record.seeds == [0, 1, 2] and len(record.entries) == 8
    assert [r.seed for r in record.entries[0].runs] == [0, 1, 2] and "seed" not in record.entries[0].settings
    (table,) = [t for t in record.tables if t.title == "Learning rates"]
    assert len(table.rows) == 8 and table.columns[2:6] == [f"loss at {v:.3g}" for v in (1.5e-3, 3e-3, 6e-3, 0.012)]
    assert any("at the edge of what was tried: 1.2e+05 at 1e+11" in note for note in record.notes)
    rates = (out / "rates.json").read_text()
    bigger = Ladder([*SIZES, 1.6e6], BUDGETS, seeds=3, trials=trials)
    run(given.recipe, bigger, out, Asked(resamples=100), resume="auto", jobs=4, cache=cache)
    held, before = json.loads((out / "rates.json").read_text()), json.loads(rates)
    assert held["slope"] == before["slope"] and before["levels"].items() < held["levels"].items()
    other = Ladder(SIZES, BUDGETS, trials=Trials(3, (1e11,)))
    with pytest.raises(UserError, match=r"was begun with tune=lr:4:1e\+11,2e\+11: resume it with the same"):
        run(given.recipe, other, out, Asked(), resume="auto", cache=cache)


def test_a_run_that_diverged_is_left_out_and_named(given: Sampled, tmp_path: Path, quick: pytest.MonkeyPatch) -> None:
    quick.setattr(jobs, "_start", jobs_that(lambda job: job.name == "120k-1e12"))
    cache, ladder = given.text.directory.parent, Ladder(SIZES, [*BUDGETS, 5e12])
    found = run(given.recipe, ladder, tmp_path / "out", Asked(resamples=100), jobs=4, cache=cache)
    assert len(found.points) == 11 and any("120k-1e12" in note and "no number" in note for note in found.notes)


def test_a_failing_run_stops_the_ladder_with_its_last_words(
    given: Sampled, tmp_path: Path, quick: pytest.MonkeyPatch
) -> None:
    quick.setattr(jobs, "_start", failing)
    with pytest.raises(UserError, match=r"120k-1e12 ended with code 1 \(.*120k-1e12\.log\): the disk is full"):
        train(cells(given, SIZES, BUDGETS, tmp_path), tmp_path, Workers(1), quiet)
    with pytest.raises(UserError, match="leave init= out"):
        sampled(given.recipe.model_copy(update={"init": "x"}), None, quiet)


PARENT = """
import sys
from pathlib import Path
from unmask.compare.lock import alone
from unmask.scale.runs import Workers, train
from unmask.scale.ladder import cells, sampled
from unmask.recipe import load_recipe
given = sampled(load_recipe(sys.argv[1], {}), sys.argv[3], lambda _: None)
out = Path(sys.argv[2])
with alone(out) as hold:
    train(cells(given, [1.2e5], [4e10], out), out, Workers(1, cache=sys.argv[3], hold=hold), print)
"""


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_a_killed_ladder_leaves_no_run_behind_and_is_continued(given: Sampled, tmp_path: Path) -> None:
    recipe, out, cache = tmp_path / "recipe.yaml", tmp_path / "out", str(given.text.directory.parent)
    recipe.write_text(dump(given.recipe))  # every setting written out, as a run keeps it
    out.mkdir()
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(recipe), str(out), cache])
    checkpoints = out / "runs" / "120k-4e10" / "checkpoints"
    until = time.monotonic() + 60
    while not any(checkpoints.glob("step-*")) and parent.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    children = [int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat") if parent_of(stat) == parent.pid]
    assert parent.poll() is None and children
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    with alone(out):  # its lock is free once they have ended
        assert not any(map(alive, children))
    (cell,) = cells(given, SIZES[:1], [4e10], out)
    assert not (cell.place / "result.json").exists()
    said: list[str] = []
    assert train([cell], out, Workers(1, cache=cache), said.append) == []
    lines = [json.loads(line) for line in (cell.place / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines if "loss" in line]
    assert steps == sorted(set(steps)) and steps[-1] == pytest.approx(cell.updates, abs=1)
    assert "resuming " in (out / "jobs" / "120k-4e10.log").read_text()
    (row,) = rows([cell], len(given.text.train.tokens))
    assert row["n"] == parameters(cell.recipe.model) and row["flops"] == pytest.approx(4e10, rel=0.05)
    assert row["flops"] / row["d"] == pytest.approx(given.cost(cell.recipe.model), rel=0.05)
    assert 0.1 < row["loss"] < 5.5 and said[-1].startswith(f"1 of 1: {cell.name}, ")
    told = len(said)
    train([cell], out, Workers(1, cache=cache), said.append)
    assert len(said) == told, "done is done"
    other = replace(cell, recipe=cell.recipe.model_copy(update={"seed": 5}))
    with pytest.raises(UserError, match=r"was started with seed=0, not 5"):
        train([other], out, Workers(1, cache=cache), quiet)
    (out / "points.jsonl").write_text(json.dumps(row) + "\n")
    for counted, n in (("all", row["n"]), ("body", row["n_body"]), ("flops", row["flops"] / (6 * row["d"]))):
        assert read_points(out / "points.jsonl", counted).n.tolist() == [n]  # type: ignore[arg-type]


def parent_of(stat: Path) -> int | None:
    try:
        return int(stat.read_text().rsplit(")", 1)[1].split()[1])
    except OSError:  # it ended just now
        return None
