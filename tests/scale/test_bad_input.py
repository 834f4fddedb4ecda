"""Bad input as a user gives it: one sentence that says how to mend it, exit code 2, no traceback."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unmask.cli import main

from .helpers import ladder

Row = dict[str, Any]


def rows() -> list[Row]:
    p = ladder(0.003)
    keys = ("n", "d", "loss", "flops")
    return [{k: float(getattr(p, k)[i]) for k in keys} for i in range(len(p))]


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["unmask", "scale", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.startswith("error: ") and error.count("\n") == 1, error
    return error


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda r: {**r, "loss": 3.0}, "the losses do not fall with n: there is no law to fit"),
        (lambda r: {**r, "loss": float(1 + np.log(r["n"] * r["d"]) / 10)}, "the losses do not fall with n"),
        (lambda r: {**r, "loss": 2 + 400 * r["n"] ** -0.35}, "the losses do not fall with d"),
        (lambda r: {**r, "n": r["n"] / 1e6}, "line 1: n=10.06"),
        (lambda r: {**r, "d": r["d"] / 1e9}, "is too small to be meant: write all of it, not millions"),
        (lambda r: {**r, "flops": r["flops"] / 1e15}, "is far from 6 n d"),
        (lambda r: {**r, "n": "125M"}, "line 1: n=125M is no number above 0"),
        (lambda r: {**r, "loss": float("inf")}, "line 1: loss=inf is no number above 0; leave a run that diverged out"),
        (lambda r: {k: v for k, v in r.items() if k != "d"}, "line 1 has no d; a point is n, d, loss"),
        (lambda r: {**r, "d": 2e9, "flops": 12e9 * r["n"]}, "the points have 1 different amounts of text (d)"),
        (lambda r: [r], "line 1 is no object"),
    ],
)
def test_points_that_are_none(
    change: Callable[[Row], Any],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "points.jsonl"
    file.write_text("".join(json.dumps(change(row)) + "\n" for row in rows()))
    assert says in said(monkeypatch, capsys, "fit", str(file))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1e7,2e9,3.1\n2e7,1e9,3.2\n", "the first line names none of n, d, loss"),
        ("n,d,loss\n1,000,000,2e9,3.1\n", "line 2 has more cells than the first line: write 1000000, not 1,000,000"),
        ("n;d;los\n1e7;2e9;3.1\n", "line 2 has no loss; a point is n, d, loss; did you mean 'los'?"),
        ("", "no points; write one a line"),
        ("n,d,loss\n1e7,2e9,3.1\n", "1 points are too few for a law of five numbers: give at least 8"),
    ],
)
def test_tables_that_are_none(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "points.csv"
    file.write_text(text)
    assert says in said(monkeypatch, capsys, "fit", str(file))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--budget", "0"], "budget=0 is no number of FLOPs"),
        (["--n-counts", "boddy"], "n-counts=boddy is none of all, body, flops; did you mean 'body'?"),
        (["--holdout", "biggest"], "holdout=biggest is none of none, largest"),
        (["--resamples", "3"], "resamples=3 gives no interval"),
        (["--n-counts", "body"], "has no n_body (n-counts=body needs it)"),
    ],
)
def test_options_that_are_none(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "points.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    assert says in said(monkeypatch, capsys, "fit", str(file), *arguments)


def test_too_few_budgets_to_hold_one_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "points.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows()[:18]))
    assert "holdout=largest leaves 1 of 2 budgets" in said(
        monkeypatch, capsys, "fit", str(file), "--holdout", "largest"
    )
    assert "good.jsonl" in said(monkeypatch, capsys, "fit", str(tmp_path / "good.jsonl"))


def test_semicolons_part_cells_too(tmp_path: Path) -> None:
    from unmask.scale.points import read_points

    file = tmp_path / "points.csv"
    file.write_text("N;D;Loss\n1e7;2e9;3.1\n2e7;1e9;3.2\n")
    assert read_points(file).n.tolist() == [1e7, 2e7]
