"""Runs on a stream: killed and resumed bit for bit, the same on two ranks, and what is done with them afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rankwork
from test_torchrun import torchrun

import unmask
from unmask.data.chapters import read_table
from unmask.data.reader import Read, Reader
from unmask.data.stream import FOLDER
from unmask.difference import difference
from unmask.errors import UserError
from unmask.planning import plan
from unmask.recipe import load_recipe
from unmask.run import Run, evaluate, pretrain
from unmask.text.position import Position
from unmask.train import checkpoint, trainer
from unmask.train.prefetch import Prefetch

CUTTING = Path(__file__).with_name("cutting.py")
STEPS = 60


def write(place: Path) -> Path:
    place.mkdir()
    for k in range(3):
        lines = [
            json.dumps({"text": f"ship {i * i} of port {i}" + " sails" * (i % 6)}) for i in range(k * 99, k * 99 + 99)
        ]
        (place / f"{k}.jsonl").write_text("\n".join(lines))
    return place


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stream")
    write(place / "text")
    return place


def values(folder: Path, **more: Any) -> dict[str, Any]:
    """A tiny run whose chapters hold about 17 updates."""
    left = {k: v for k, v in rankwork.TINY.items() if k != "budget.steps"}
    stream = {"corpus.path": str(folder / "text"), "corpus.stream": True, "corpus.chapter": 2500}
    return {
        **left,
        **stream,
        "evaluation.pieces": 4,
        "train.optimizer": "adamw",
        "checkpoint.every": 7,
        "budget.steps": STEPS,
        **more,
    }


def words(folder: Path, **more: Any) -> list[str]:
    return ["encoder-small", *(f"{k}={v}" for k, v in values(folder, **more).items()), f"cache={folder / 'cache'}"]


def trained(folder: Path, out: str, said: list[str] | None = None, **more: Any) -> Run:
    recipe = load_recipe("encoder-small", values(folder, **more))
    return pretrain(recipe, out=folder / out, cache=folder / "cache", say=None if said is None else said.append)


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def uncut(folder: Path, said: list[str], one_thread: None) -> Path:
    trained(folder, "uncut", said)
    return folder / "uncut"


def weights(out: Path) -> list[bytes]:
    place = out / "checkpoints" / f"step-{STEPS}"
    return [(place / name).read_bytes() for name in (checkpoint.MODEL, checkpoint.OPTIMIZER)]


def test_a_run_says_what_it_read(uncut: Path, said: list[str]) -> None:
    _, table = read_table(uncut)
    assert len(table) > 3 and table[-1].first < STEPS
    assert any(s.startswith("chapter 2: ") for s in said)
    (covered,) = [s for s in said if s.startswith("the stream: ")]
    assert f"stopped inside chapter {table[-1].number + 1}, after {STEPS - table[-1].first} of its" in covered
    assert not (uncut / FOLDER).exists()


def test_killed_and_resumed_it_is_bit_for_bit_the_same(folder: Path, uncut: Path, tmp_path: Path) -> None:
    second, _, fourth = (line.first for line in read_table(uncut)[1][1:4])
    lives = [
        {"signal": "SIGKILL", "updates": second + 1, "then": 0},  # just across a border
        {"signal": "SIGKILL", "updates": second + 9, "then": 0},  # amid a chapter
        {"signal": "SIGTERM", "updates": fourth - 1, "then": 0},
    ]
    (tmp_path / "plan.json").write_text(json.dumps({"words": words(folder), "lives": lives}))
    out = folder / "cut"
    done = subprocess.run(
        [sys.executable, str(CUTTING), str(out), str(tmp_path / "plan.json")],
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *cut, end = map(json.loads, done.stdout.splitlines())
    assert [c["exit"] for c in cut] == [-9, -9, 130] and end["exit"] == 0, (out / "said.txt").read_text()
    assert rankwork.losses(folder, "cut") == rankwork.losses(folder, "uncut")
    assert weights(out) == weights(uncut) and read_table(out) == read_table(uncut)


@pytest.mark.slow
def test_two_ranks_are_one(folder: Path, uncut: Path) -> None:
    _, err = torchrun("pretrain", *words(folder), f"out={folder / 'two'}").communicate(timeout=300)
    assert "Traceback" not in err and err.count("chapter 2: ") == 1, err
    one, two = (rankwork.losses(folder, name) for name in ("uncut", "two"))
    assert [x["tokens"] for x in one] == [x["tokens"] for x in two]
    assert [x["loss"] for x in two] == pytest.approx([x["loss"] for x in one], rel=1e-5)
    assert read_table(folder / "two") == read_table(uncut)


def test_what_is_done_with_it_afterwards(folder: Path, uncut: Path, tmp_path: Path) -> None:
    found = evaluate(uncut, "bpb")
    assert found["unigram_floor"] > 0
    lm = unmask.load(uncut)
    lm.export(tmp_path / "hf")
    _, table = read_table(uncut)
    card = (tmp_path / "hf" / "README.md").read_text()
    first = [line for line in table if line.epoch == 0]  # the run reads some of them twice
    documents = sum(line.documents for line in first)
    assert f"- Training text (of a stream, chapters 1 to {len(first)}): {documents} documents" in card
    recipe = load_recipe("encoder-small", values(folder, **{"budget.steps": None, "budget.tokens": 20_000}))
    planned = plan(recipe, cache=folder / "cache")
    assert planned["stream"] and planned["steps_are"] == "by a sample of its batches"
    assert planned["tokens"] == pytest.approx(20_000, rel=0.05)
    other = difference(uncut, uncut)
    assert other["same"] and other["text"] == "same"


def test_budgets_in_tokens_are_kept(folder: Path, uncut: Path) -> None:
    run = trained(folder, "tokens", **{"budget.steps": None, "budget.tokens": 12_000})
    assert run.counters.tokens == pytest.approx(12_000, rel=0.1)
    assert len(read_table(run.out)[1]) > 1


def test_a_text_of_its_own_is_held_out(folder: Path) -> None:
    (folder / "held.txt").write_text("a ship that nobody has seen " * 9)
    run = trained(folder, "valid", valid=str(folder / "held.txt"), **{"budget.steps": 25})
    _, table = read_table(run.out)
    assert len(table) > 1 and {line.held_out for line in table} == {0} and run.held_out.loss > 0


def test_what_is_trained_is_kept_where_the_stream_fails(folder: Path, uncut: Path, tmp_path: Path) -> None:
    text = write(tmp_path / "text")
    whole = (text / "1.jsonl").read_bytes()
    (text / "1.jsonl").write_bytes(whole[:-3] + b"xxx")  # no JSON any more, as large as before
    more = {"corpus.path": str(text), "checkpoint.every": 1000}
    with pytest.raises(UserError, match=r"1.jsonl:99 is no valid JSON"):
        trained(folder, "failed", **more)
    out = folder / "failed"
    failed = read_table(out)[1][-1]
    assert list(checkpoint.find(out / "checkpoints").whole)[-1] == failed.first + failed.updates > 0
    (text / "1.jsonl").write_bytes(whole)
    unmask.resume_run(out, cache=folder / "cache")
    assert rankwork.losses(folder, "failed") == rankwork.losses(folder, "uncut")


def test_a_relative_path_is_the_same_stream(folder: Path, uncut: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "beside").mkdir()
    monkeypatch.chdir(folder / "beside")
    run = trained(folder, "relative", **{"corpus.path": "../text/*.jsonl", "budget.steps": 25})
    assert read_table(run.out)[1] == read_table(uncut)[1][: len(read_table(run.out)[1])]


def test_it_goes_on_only_from_the_same_stream(folder: Path, tmp_path: Path) -> None:
    text = write(tmp_path / "text")
    run = trained(folder, "changed", **{"corpus.path": str(text), "budget.steps": 20})
    _, table = read_table(run.out)
    checkpoint._remove(run.out / "checkpoints" / "step-20")  # as if it had been stopped amid chapter 2
    (run.out / "result.json").unlink()
    for file in text.iterdir():
        file.write_text(file.read_text().replace("port", "land"))
    assert table[1].first < 20
    with pytest.raises(UserError, match=r"chapter 2 of .* holds another text than when this run read it"):
        unmask.resume_run(run.out, cache=folder / "cache")


def test_a_file_that_came_later_is_in_no_chapter(folder: Path, uncut: Path, tmp_path: Path) -> None:
    text = write(tmp_path / "text")
    run = trained(folder, "later", **{"corpus.path": str(text), "budget.steps": 20})
    losses = rankwork.losses(folder, "later")
    checkpoint._remove(run.out / "checkpoints" / "step-20")
    (run.out / "result.json").unlink()
    (text / "-.jsonl").write_text(json.dumps({"text": "new"}))  # sorts before all others
    unmask.resume_run(run.out, cache=tmp_path / "another cache")
    assert losses == rankwork.losses(folder, "later")


@pytest.mark.parametrize("depth", [0, 2])
def test_a_request_ends_a_wait_for_text(folder: Path, uncut: Path, monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    asked: list[float] = []

    result = Reader.result

    def never(self: Reader, chapter: int, begin: Position) -> None:
        self.asked = chapter

    def interrupted(self: Reader, stopped: Callable[[], bool]) -> Read:
        if not asked:
            asked.append(time.monotonic())
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        return result(self, stopped)

    with monkeypatch.context() as patched:
        patched.setattr(Reader, "ask", never)
        patched.setattr(Reader, "result", interrupted)
        patched.setattr(trainer, "Prefetch", lambda batches, depth, ahead=depth: Prefetch(batches, ahead))
        with pytest.raises(KeyboardInterrupt):
            trained(folder, f"waiting{depth}", **{"checkpoint.every": 1000})
    assert time.monotonic() - asked[0] < 30
    out = folder / f"waiting{depth}"
    (step,) = checkpoint.find(out / "checkpoints").whole
    assert 0 < step <= read_table(out)[1][0].updates
    unmask.resume_run(out, cache=folder / "cache")
    assert rankwork.losses(folder, f"waiting{depth}") == rankwork.losses(folder, "uncut")
