"""Points: what is read, what counts as N, which runs share a budget, and what is refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from unmask.errors import UserError
from unmask.scale.points import Points, check, read_points

from .helpers import ladder

ROWS = [
    {"n": 1e6, "n_body": 4e5, "d": 2e7, "flops": 1.5e14, "loss": 4.0, "name": "a"},
    {"n": 2e6, "n_body": 1e6, "d": 1e7, "flops": 1.4e14, "loss": 4.1, "name": "b"},
]


def jsonl(folder: Path, rows: list[dict[str, object]]) -> Path:
    file = folder / "points.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return file


def test_jsonl_and_csv_are_read_alike(tmp_path: Path) -> None:
    table = tmp_path / "points.csv"
    table.write_text("N,D,Loss,FLOPs,N_body,seed\n1e6,2e7,4.0,1.5e14,4e5,7\n2000000,1e7,4.1,1.4e14,1e6,7\n")
    a, b = read_points(jsonl(tmp_path, ROWS)), read_points(table)
    for name in ("n", "d", "loss", "flops"):
        assert (getattr(a, name) == getattr(b, name)).all()
    assert a.names == ("a", "b") and b.names == ("line 2", "line 3")


def test_what_counts_as_n(tmp_path: Path) -> None:
    file = jsonl(tmp_path, ROWS)
    assert read_points(file).n.tolist() == [1e6, 2e6]
    assert read_points(file, "body").n.tolist() == [4e5, 1e6]
    by_flops = read_points(file, "flops")
    assert by_flops.n.tolist() == [1.5e14 / (6 * 2e7), 1.4e14 / (6 * 1e7)]
    assert read_points(file, "body").flops.tolist() == [1.5e14, 1.4e14]
    assert by_flops.costs().flops == pytest.approx((6 * np.sort(by_flops.n)).tolist())


def test_without_flops_a_token_costs_six_a_parameter_of_all(tmp_path: Path) -> None:
    rows = [{k: v for k, v in row.items() if k != "flops"} for row in ROWS]
    assert read_points(jsonl(tmp_path, rows), "body").flops.tolist() == [6 * 1e6 * 2e7, 6 * 2e6 * 1e7]


def test_budgets_are_runs_of_about_the_same_flops() -> None:
    points = ladder()
    jittered = Points(points.n, points.d, points.loss, points.flops * np.linspace(0.96, 1.04, 63), points.names)
    assert [len(b) for b in jittered.budgets()] == [9] * 7
    assert all((np.diff(points.n[b]) > 0).all() for b in points.budgets())


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"n": 1e6, "d": 2e7, "loss": float("nan")}, r"line 1: loss=nan is no number above 0; leave a run that diverg"),
        ({"n": 1e6, "d": 2e7, "loss": -1}, r"line 1: loss=-1 is no number"),
        ({"n": True, "d": 2e7, "loss": 3}, r"line 1: n=True is no number"),
        ({"n": 1e6, "d": 0, "loss": 3}, r"line 1: d=0 is no number"),
        ({"n": 1e6, "d": 2e7, "los": 3}, r"line 1 has no loss; a point is n, d, loss; did you mean 'los'\?"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, row: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        read_points(jsonl(tmp_path, [row]))


def test_bad_files_are_named(tmp_path: Path) -> None:
    file = tmp_path / "points.jsonl"
    for text, says in (("{", "line 1 is not JSON"), ("[1]", "line 1 is no object"), ("\n", "no points")):
        file.write_text(text)
        with pytest.raises(UserError, match=says):
            read_points(file)
    with pytest.raises(UserError, match="no points in"):
        read_points(tmp_path / "none.csv")
    with pytest.raises(UserError, match=r"has no n_body \(n-counts=body needs it\)"):
        read_points(jsonl(tmp_path, [{"n": 1e6, "d": 2e7, "loss": 3}]), "body")


def test_what_no_law_can_be_fitted_to_is_refused() -> None:
    points = ladder()
    with pytest.raises(UserError, match=r"7 points are too few .* at least 8"):
        check(points.take(np.arange(7)))
    with pytest.raises(UserError, match="all points have one budget"):
        check(points.take(np.arange(9)))
    same = Points(np.full(63, 1e8), points.d, points.loss, 6e8 * points.d, points.names)
    with pytest.raises(UserError, match=r"1 different sizes \(n\)"):
        check(same)
