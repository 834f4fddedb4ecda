"""The study: a held-out larger run, best N and D, what it says of itself, tables and picture; the verb."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import unmask.cli.scale  # noqa: F401  (joins the verb to the app)
from unmask.cli.output import app
from unmask.compare.results import Results
from unmask.errors import UserError
from unmask.scale.law import REFIT, Costs
from unmask.scale.points import Points
from unmask.scale.report import picture, results, tables
from unmask.scale.study import Asked, Study, study

from .helpers import BUDGETS, SIZES, ladder


@pytest.fixture(scope="module")
def found() -> Study:
    return study(ladder(0.003, seed=1), Asked(holdout="largest", budgets=(1e22, 1e23), resamples=300))


def written(points: Points, file: Path) -> Path:
    keys = ("n", "d", "loss", "flops")
    rows = [{k: float(getattr(points, k)[i]) for k in keys} | {"name": points.names[i]} for i in range(len(points))]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_the_largest_runs_are_predicted_from_the_others(found: Study) -> None:
    assert len(found.points) == 54 and len(found.held) == len(SIZES)
    assert found.points.flops.max() < BUDGETS[-1] * 0.9 < min(h.flops for h in found.held)
    for held in found.held:
        assert held.error == pytest.approx(held.predicted / held.loss - 1) and abs(held.error) < 0.012
        assert held.predicted == found.law.loss(held.n, held.d)
        inside = held.interval[0] <= held.loss <= held.interval[1]
        assert inside == (held.error_interval[0] <= 0 <= held.error_interval[1])
    assert sum(h.interval[0] <= h.loss <= h.interval[1] for h in found.held) >= 8
    assert study(ladder(0.003, seed=1), Asked(resamples=100)).held == []


def test_a_wrong_largest_run_is_outside_its_interval() -> None:
    points = ladder(0.003, seed=1)
    loss = points.loss.copy()
    loss[-5] *= 1.05
    wrong = Points(points.n, points.d, loss, points.flops, points.names)
    held = study(wrong, Asked(holdout="largest", resamples=100)).held[-5]
    assert not held.interval[0] <= held.loss <= held.interval[1] and held.error == pytest.approx(-0.05, abs=0.01)


def test_best_n_and_d_for_a_budget(found: Study) -> None:
    assert [(b.flops, b.counted) for b in found.best] == [(1e22, "6 N D"), (1e23, "6 N D")]
    for b in found.best:
        n, d = REFIT.best(b.flops)
        assert b.n_interval[0] < n < b.n_interval[1] and b.d_interval[0] < d < b.d_interval[1]
        assert b.loss == pytest.approx(REFIT.loss(n, d), rel=5e-3) and b.loss_interval[0] < b.loss < b.loss_interval[1]
        assert b.beyond == pytest.approx(b.flops / BUDGETS[-2])


def test_counted_flops_move_the_best_size() -> None:
    """A head that makes small models dearer: more is spent on a token, so less text; larger models pay off."""
    costs = Costs([1e7, 1e8, 1e9, 1e10], [9e7, 7e8, 6.3e9, 6.05e10])
    plain, exact = study(ladder(0.001), Asked(budgets=(1e18,), resamples=100), costs).best
    assert (plain.counted, exact.counted) == ("6 N D", "formula") and exact.n > 1.02 * plain.n
    assert costs(exact.n) * exact.d == pytest.approx(1e18)


def test_three_estimates_of_the_exponent_agree_with_the_truth(found: Study) -> None:
    assert [m.method for m in found.methods] == ["law", "projection", "parabolas"]
    for m in found.methods:
        assert m.interval is not None and m.interval[0] < m.exponent < m.interval[1]
        assert m.exponent == pytest.approx(REFIT.exponent, abs=0.01)


def test_what_is_hardly_known_is_said() -> None:
    """Budgets within a factor of three, noise of 2 %: the floor cannot be told."""
    points = ladder(0.02, seed=2).take(np.arange(18))
    notes = " ".join(study(points, Asked(resamples=200)).notes)
    assert "is hardly known" in notes
    assert all(b.n_interval[0] >= 1 and b.d_interval[0] >= 1 for b in study(points, Asked(resamples=200)).best)
    bits = np.where(np.arange(18) % 2, 1, 1 / np.log(2))
    mixed = Points(points.n, points.d, points.loss * bits, points.flops, points.names)
    assert any("% off the law: are all losses of one kind" in n for n in study(mixed, Asked(resamples=100)).notes)
    assert study(ladder(0.001), Asked(resamples=100)).notes == []
    falling = ladder(0.001).take(np.concatenate([np.arange(9 * b, 9 * b + 4) for b in range(7)]))
    assert any("no minimum among the sizes tried" in n for n in study(falling, Asked(resamples=100)).notes)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"counted": "bodies"}, r"n-counts=bodies is none of all, body, flops; did you mean 'body'"),
        ({"holdout": "larges"}, r"did you mean 'largest'"),
        ({"budgets": (float("nan"),)}, r"budget=nan is no number of FLOPs"),
        ({"resamples": 5}, r"resamples=5 gives no interval"),
    ],
)
def test_what_cannot_be_asked(asked: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        Asked(**asked)  # type: ignore[arg-type]


def test_tables_are_the_shared_record_and_the_picture_is_svg(found: Study, tmp_path: Path) -> None:
    again = Results.read(results(found, "unmask scale fit x").write(tmp_path))
    assert [t.title for t in again.tables] == [t.title for t in tables(found)]
    assert all(len(row) == len(t.columns) for t in again.tables for row in t.rows)
    root = ET.fromstring(picture(found))
    images = [g for g in root.iter() if g.get("role") == "img"]
    told = " ".join(e.text or "" for e in root.iter() if e.tag.endswith("desc"))
    assert len(images) == 3 and "held-out run" in told and "parabolas" in told


def test_fit_as_a_command(found: Study, tmp_path: Path) -> None:
    file = written(ladder(0.003, seed=1), tmp_path / "points.jsonl")
    asked = ["--holdout", "largest", "--budget", "1e22", "--budget", "1e23", "--resamples", "300"]
    out = tmp_path / "out"
    ended = CliRunner().invoke(app, ["scale", "fit", str(file), *asked, "--json", "--out", str(out)])
    assert ended.exit_code == 0, ended.output
    value = json.loads(ended.stdout)
    assert value["law"]["alpha"] == pytest.approx(float(found.law.alpha)) and len(value["held"]) == 9
    assert {p.name for p in out.iterdir()} == {"results.json", "report.html", "picture.svg"}
    text = CliRunner().invoke(app, ["scale", "fit", str(file), *asked]).stdout
    assert "L(N, D) = E + A / N^α + B / D^β" in text and "Held-out larger runs" in text
    bad = CliRunner().invoke(app, ["scale", "fit", str(tmp_path / "none.csv")])
    assert isinstance(bad.exception, UserError)
