"""`unmask bench`: both sides of every row compute the same, and processes are timed in turn."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from unmask.bench import run, turns
from unmask.bench.base import OURS, TOLERANCE, Measured, Record, Timed
from unmask.bench.generation import KINDS as GENERATION
from unmask.bench.rows import FIGURES, ROWS, row
from unmask.bench.run import bench
from unmask.bench.table import lines
from unmask.bench.turns import measured
from unmask.cli import app
from unmask.errors import UserError


def losses(name: str, folder: Path) -> tuple[float, float]:
    one = row(name)
    one.prepare(folder)
    return one.check(folder)


@pytest.mark.parametrize("name", [name for name in ROWS if name != "documents" and name not in GENERATION])
def test_both_sides_have_the_same_loss_at_step_0(name: str, tmp_path: Path) -> None:
    ours, theirs = losses(name, tmp_path)
    assert abs(ours - theirs) <= TOLERANCE * theirs and theirs > 0.5


@pytest.mark.shared
def test_packed_and_padded_documents_have_the_same_loss_at_step_0(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNMASK_DATA", os.fspath(shared_data))
    ours, theirs = losses("documents", tmp_path)
    assert abs(ours - theirs) <= TOLERANCE * theirs and theirs > 0.5


def test_sides_are_timed_in_turn(tmp_path: Path) -> None:
    one = row("t5")
    one.prepare(tmp_path)
    said: list[str] = []
    two = replace(one, sides={name: one.sides[name] for name in (OURS, "bf16")})
    found = {t.side: t for t in measured(two, tmp_path, turns=2, steps=1, say=said.append)}
    assert set(found) == {OURS, "bf16"} and all(len(t.rates) == 2 and min(t.rates) > 0 for t in found.values())
    assert found[OURS].about["parameters"] == found["bf16"].about["parameters"]
    assert [line.split(":")[0] for line in said] == ["t5, turn 1 of 2", "t5, turn 2 of 2"]


def test_a_step_after_every_wait_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for its turn loses caches and memory to others: that is the bench's doing, and no side's rate."""

    class Clock:
        def __init__(self, row: str, side: str, folder: Path) -> None:
            self.made, self.steps = {"tokens": 600, "about": {}}, [0]

        def go(self, steps: int) -> float:
            slow = 100.0 if len(self.steps) > 1 and self.steps[-1] != turns.REST else 0.0
            self.steps.append(steps)
            return slow + steps

        def close(self) -> None:
            assert self.steps == [0, turns.WARM, turns.REST, 6, turns.REST, 6]

    monkeypatch.setattr(turns, "Side", Clock)
    found = measured(replace(ROWS["t5"], sides=dict.fromkeys("ab", Clock)), tmp_path, 2, 6, lambda text: None)  # type: ignore[arg-type]
    assert [(t.side, t.rates) for t in found] == [("a", [600.0, 600.0]), ("b", [600.0, 600.0])]


def test_a_row_whose_sides_differ_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(ROWS["bert"], prepare=lambda folder: None, check=lambda folder: (10.0, 10.01))
    monkeypatch.setitem(ROWS, "bert", wrong)
    with pytest.raises(UserError, match="losses at step 0 differ"):
        bench(["bert"], turns=1, steps=1)


def test_a_record_is_kept_after_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows take minutes: what was measured before one fails, or is interrupted, is not lost."""

    def stub(one: object, turns: int, steps: int, say: object) -> Measured:
        if one is ROWS["t5"]:
            raise UserError("no")
        return _row("bert", 1.0, fp32=1.0)

    monkeypatch.setattr(run, "_measured", stub)
    kept: list[int] = []
    with pytest.raises(UserError, match="no"):
        bench(["bert", "bert", "t5"], turns=1, steps=1, keep=lambda record: kept.append(len(record.rows)))
    assert kept == [1, 2]


def test_a_side_that_dies_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="its side 'fp32' ended with code 1"):
        measured(replace(ROWS["t5"], sides={"fp32": ROWS["t5"].sides["fp32"]}), tmp_path, 1, 1, print)


def _row(name: str, ours: float, **peers: float) -> Measured:
    sides = [Timed(side=OURS, rates=[ours], about={}), *(Timed(side=s, rates=[r], about={}) for s, r in peers.items())]
    return Measured(name=name, work=name, peer="peer", target=2, sides=sides, apart=("compiled",))


def test_the_ratio_is_to_the_peers_best_without_the_second_column() -> None:
    found = _row("a", 300.0, fp32=80.0, bf16=100.0, compiled=150.0)
    assert (found.best.side, found.ratio) == ("bf16", 3.0)
    record = Record(command="unmask bench a", turns=1, steps=1, environment={}, rows=[found])
    assert lines(record)[2] == "| a | peer | 300 ± 0 % | 100 ± 0 %, bf16 | **3.00 ×** | ≥ 2 ×: met | 150 ± 0 %: 2.0 × |"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["berd"], "there is no bench row 'berd': choose .*did you mean 'bert'"),
        (["--list", "bert"], "--list names every row: leave out the rest"),
        (["bert", "--turns", "0"], "turns=0 and steps=8 time nothing"),
    ],
)
def test_what_cannot_be_timed_is_refused(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["bench", *arguments])
    assert isinstance(done.exception, UserError)
    with pytest.raises(UserError, match=said):
        raise done.exception


def test_rows_are_listed() -> None:
    listed = CliRunner().invoke(app, ["bench", "--list"]).stdout.splitlines()
    assert [line.split()[0] for line in listed] == [*ROWS, *FIGURES]


def test_documents_say_what_they_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNMASK_DATA", os.fspath(tmp_path))
    with pytest.raises(UserError, match="bench row documents reads enwiki2015"):
        row("documents").prepare(tmp_path)


def test_generation_has_a_table_of_what_stands_beside_its_rate() -> None:
    about = {"prefill s": 0.25, "cache bytes": 37822464, "tokens/s of one prompt": 129.4, "precision": "fp32"}
    row = _row("g", 300.0, fp32=100.0)
    row.sides[0] = Timed(side=OURS, rates=[300.0], about=about)
    found = lines(Record(command="unmask bench g", turns=1, steps=1, environment={}, rows=[row]))
    assert found[-2:] == ["| --- | --- | --- | --- | --- |", "| g | unmask | 0.25 | 37,822,464 | 129 |"]
    assert found[3] == ""
