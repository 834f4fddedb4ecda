"""Figures that should be small: time spent on data, seconds to resume, memory of the loss."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from unmask.bench import loss_memory, resuming, turns, waiting
from unmask.bench.base import Figure, MeasuredFigure, Numbers, Reading, Record
from unmask.bench.rows import FIGURES
from unmask.bench.run import bench
from unmask.bench.table import lines
from unmask.errors import UserError

SMALL = {"tokens": 512, "width": 16, "vocabulary": 32768}
WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A corpus of sentences that count in all kinds of ways."""
    path = tmp_path / "text.txt"
    said = (" ".join(WORDS[(k * j) % 10] for j in range(1, 12 + k % 40)) for k in range(400))
    path.write_text("\n".join(said), encoding="utf-8")
    return path


# ---------------------------------------------------------------- the protocol


def toy(**more: Any) -> Figure:
    sides = {name: lambda folder: Reading(0.0) for name in ("a", "b", "peer")}
    return Figure("toy", "work", "peer", "s", 5.0, sides, lambda folder: None, peers=("peer",), **more)


def test_every_reading_is_a_process_of_its_own_and_sides_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[str] = []

    class Process:
        def __init__(self, row: str, side: str, folder: Path) -> None:
            began.append(side)
            self.made = {"value": float(len(began)), "beside": {"MB": 2.0}, "about": {"side": side}}

        def close(self) -> None:
            began.append("end")

    monkeypatch.setattr(turns, "Side", Process)
    found = turns.readings(toy(), tmp_path, 2, lambda text: None)
    assert began == ["a", "end", "b", "end", "peer", "end", "b", "end", "peer", "end", "a", "end"]
    assert found[0] == Numbers(side="a", values=[1, 11], beside={"MB": [2, 2]}, about={"side": "a"})


def test_a_figure_whose_losses_differ_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FIGURES, "resume", toy(check=lambda folder: (1.0, 1.01)))
    with pytest.raises(UserError, match="losses differ"):
        bench(["resume"], turns=1, steps=1)


def figure(**values: float) -> MeasuredFigure:
    sides = [Numbers(side=name, values=[v - 1, v, v + 1], beside={"s": [2.0]}) for name, v in values.items()]
    told = {"name": "toy", "work": "work", "unit": "MB", "peers": tuple(name for name in values if name[0] == "p")}
    peer, target = ("them", 0.25) if "p" in values else ("", 2)
    return MeasuredFigure(**told, peer=peer, target=target, sides=sides)


def test_the_worst_of_ours_stands_beside_the_best_of_the_peers() -> None:
    found = figure(a=20, b=50, p=200, pp=400).model_copy(update={"of_peer": True})
    assert (found.ours, found.best, found.share, found.met) == (50, 200, 0.25, True)
    alone = figure(a=1, b=3)
    assert (alone.best, alone.share, alone.met) == (None, None, False)
    record = Record(command="", turns=3, steps=1, environment={}, rows=[], figures=[found, alone])
    assert lines(record)[2:] == [
        "| work | them | a 20 MB ± 5 % (2 s); b 50 MB ± 2 % (2 s) | p 200 MB ± 0 % (2 s); pp 400 MB ± 0 % (2 s) | "
        "**50 MB**: 0.25 of the peer's | ≤ 0.25 of the peer's: met |",
        "| work | – | a 1 MB ± 100 % (2 s); b 3 MB ± 33 % (2 s) | – | **3 MB** | < 2 MB: missed |",
    ]
    assert Record.model_validate_json(record.model_dump_json()) == record


# ---------------------------------------------------------------- memory of the loss


def test_both_losses_and_their_gradients_are_the_same(tmp_path: Path) -> None:
    (tmp_path / loss_memory.SIZE).write_text(json.dumps(SMALL | {"tokens": 300, "vocabulary": 1000}))
    found = []
    for loss in (loss_memory.ours, loss_memory.theirs):
        x, weight, value = loss_memory.inputs(tmp_path)
        total = loss(x, weight, value)
        total.backward()
        found.append((total.detach(), x.grad, weight.grad))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_loss_takes_less_memory_than_a_quarter_of_whole_logits(tmp_path: Path) -> None:
    """In processes of their own, as `unmask bench` reads it: whole logits take three times 537 MB."""
    (tmp_path / loss_memory.SIZE).write_text(json.dumps(SMALL | {"tokens": 4096}))
    one = loss_memory.LOSS_MEMORY
    two = replace(one, sides={name: one.sides[name] for name in ("fp32", "fp32 logits")})
    ours, theirs = turns.readings(two, tmp_path, 1, lambda text: None)
    assert theirs.value > 2 * 537 and ours.value < 1.5 * theirs.value / 4
    assert ours.about["loss"] == pytest.approx(theirs.about["loss"], rel=1e-5)


# ---------------------------------------------------------------- resuming


def test_a_million_updates_later_a_run_goes_on_as_if_uncut(tmp_path: Path, text: Path) -> None:
    one = waiting.recipe(waiting.OBJECTIVES["masked words"], text, resuming.STEP + 1, width=64)
    resuming.resumable(one, tmp_path, lines=1000)
    out = tmp_path / resuming.RUN
    held = (out / resuming.METRICS).read_text().splitlines()
    assert [json.loads(held[k])["step"] for k in (0, -1)] == [resuming.STEP - 999, resuming.STEP + 1]
    assert [p.name for p in (out / "checkpoints").iterdir()] == [f"step-{resuming.STEP}"]
    seconds, loss = resuming.resumed(tmp_path)
    assert loss == json.loads((tmp_path / resuming.UNCUT).read_text())["loss"] and 0 < seconds < 60
    skipped = resuming.skipping(tmp_path, indices=False, count=4)
    assert skipped.value == pytest.approx(skipped.beside["s for 4"] * resuming.STEP / 4)


# ---------------------------------------------------------------- waiting for data


@pytest.mark.parametrize("name", ["masked words", "UL2"])
def test_the_wait_is_a_share_of_the_step(name: str, tmp_path: Path, text: Path) -> None:
    found = waiting.waits(waiting.recipe(waiting.OBJECTIVES[name], text, 1, width=64), tmp_path / "cache", windows=1)
    assert 0 < found.value < 50 and found.beside["tokens/s of data"] > found.beside["tokens/s of training"] > 0
    assert found.about["updates"] > 0


def test_models_of_the_data_row_have_about_ten_million_parameters(text: Path) -> None:
    from unmask.model.spec import parameters

    for objective in waiting.OBJECTIVES.values():
        model = waiting.recipe(objective, text, 1).model.model_copy(update={"vocab_size": 8192})
        assert 9.5e6 < parameters(model) < 10.5e6
