"""What a terminal shows while a run trains, and how a peak is known."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
import torch
import toy

from unmask.errors import UserError
from unmask.train.hooks import Progress
from unmask.train.live import Mark, rows
from unmask.train.peak import Peak, peak_of
from unmask.train.prefetch import Prefetch

CPU = torch.device("cpu")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def line(step: int, **more: object) -> dict:
    counted = {
        "step": step,
        "seconds": 2.0 * step,
        "tokens": 100 * step,
        "target_tokens": 15 * step,
        "flops": 1e9 * step,
    }
    return {**counted, "lr": 1e-3, "loss": 2.0, "terms": {"a/b": 2.0}, "grad_norm": 0.5, **more}


def test_rates_are_of_the_updates_since_the_last_status() -> None:
    since, now = (
        Mark.of(line(10), 3.0),
        Mark.of(line(14, seconds=24.0), 4.0),
    )  # four updates took 4 s, 1 s of it waiting
    known = {name: (value, note) for name, value, note in rows(line(14), since, now, Peak(4e9, "by peak_flops"))}
    assert known["tokens/s"][0] == "100" and known["target tokens/s"][0] == "15"
    assert known["data wait"][0] == "25 %"
    assert known["MFU"] == ("25 %", "of 4e+09 FLOP/s, by peak_flops")


def test_what_is_not_known_is_left_out() -> None:
    names = [name for name, _, _ in rows(line(1), Mark(), Mark.of(line(1), None), None)]
    assert names == ["loss of all targets", "tokens/s", "target tokens/s", "learning rate", "gradient norm"]


def test_each_term_has_a_row_where_there_are_several() -> None:
    found = {n: v for n, v, _ in rows(line(1, terms={"a/b": 2.5, "a/c": None}), Mark(), Mark.of(line(1), None), None)}
    assert found["  a/b"] == "2.500" and found["  a/c"] == "no targets"


def test_a_run_of_the_toy_fills_the_table(tmp_path: Path) -> None:
    """Every row that is promised, from a real trainer."""
    stream = Terminal()
    trainer = toy.trainer(tmp_path / "run", steps=4)
    trainer.progress = Progress(stream, peak=Peak(1e12, "by peak_flops"))
    trainer.progress.interval = 0.0
    trainer.run()
    shown = stream.getvalue()
    for what in ("step 4/4", "0:00 left", "loss of all targets", "tokens/s", "target tokens/s", "learning rate"):
        assert what in shown, what
    assert all(what in shown for what in ("gradient norm", "data wait", "MFU", "of 1e+12 FLOP/s, by peak_flops"))


def test_without_a_terminal_nothing_is_redrawn(tmp_path: Path) -> None:
    stream = io.StringIO()
    trainer = toy.trainer(tmp_path / "run", steps=4)
    trainer.progress = Progress(stream, interval=1000.0, peak=Peak(1e12, "by peak_flops"))
    trainer.run()
    told = [text for text in stream.getvalue().splitlines() if text.startswith("step")]
    assert "\x1b" not in stream.getvalue() and "MFU" not in stream.getvalue()
    assert [text.split(" · ")[0] for text in told] == ["step 1/4", "step 4/4"]


def test_a_batch_that_is_waited_for_is_counted() -> None:
    def slow(step: int, progress: float) -> list:
        time.sleep(0.05)
        return []

    prefetch = Prefetch(slow, 0)
    prefetch.get(0, [], lambda s: 0.0)
    assert 0.05 <= prefetch.waited < 1
    ahead = Prefetch(slow, 1)
    ahead.get(0, [1], lambda s: 0.0)
    time.sleep(0.2)  # the next one is built meanwhile
    before = ahead.waited
    ahead.get(1, [], lambda s: 0.0)
    assert ahead.waited - before < 0.04
    ahead.close()


def test_a_peak_is_given_or_measured_and_never_guessed() -> None:
    assert peak_of(None, CPU, "fp32") is None
    assert peak_of("2e9", CPU, "fp32", ranks=3) == Peak(6e9, "by peak_flops")
    found = peak_of("measure", CPU, "fp32", ranks=1)
    assert found is not None and found.flops > 1e8 and found.known == "measured by matrix products in fp32"


@pytest.mark.parametrize("wrong", ["fast", "-1", "0", "inf", "nan"])
def test_what_is_no_peak_is_one_sentence(wrong: str) -> None:
    with pytest.raises(UserError, match=f"peak_flops={wrong} is no peak: give the FLOP/s"):
        peak_of(wrong, CPU, "fp32")
