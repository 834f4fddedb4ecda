"""report.html: everything of the record is on it, drawn from the record alone, self-contained, well formed."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from compare.test_report import Read
from unmask.chart import Scale
from unmask.compare.page.plot import across
from unmask.compare.results import Results
from unmask.scale.page import page, plots, verdict
from unmask.scale.points import Points
from unmask.scale.report import results, write
from unmask.scale.study import Asked, study

from .helpers import BUDGETS, SIZES, ladder


@pytest.fixture(scope="module")
def record() -> Results:
    found = study(ladder(0.003, seed=1), Asked(holdout="largest", budgets=(1e22,), resamples=100))
    return results(found, "unmask scale fit points.jsonl <&>", "Law of <b>x</b>")


def test_it_is_well_formed_and_asks_no_network(record: Results) -> None:
    text = page(record)
    read = Read(text)
    assert read.open == []
    ids = [a["id"] for _, a in read.elements if "id" in a]
    assert len(ids) == len(set(ids)) and {a["href"] for a in read.of("a")} <= {f"#{i}" for i in ids}
    assert len(read.of("figure")) == 4 and len(read.of("main")) == 1
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(|\bsrc=|fetch\(", text) and "default-src 'none'" in text
    assert "<b>x</b>" not in text and "unmask scale fit points.jsonl <&>" in read.text
    pictures = [a["aria-label"] for a in read.of("div") if a.get("role") == "img"]
    assert len(pictures) == 4 and all(p and len(p) > 40 for p in pictures)
    assert page(record) == text


def test_it_is_drawn_from_the_record_that_is_written(record: Results, tmp_path: Path) -> None:
    found = study(ladder(0.003, seed=1), Asked(holdout="largest", budgets=(1e22,), resamples=100))
    write(found, tmp_path, record)
    assert (tmp_path / "report.html").read_text() == page(Results.read(tmp_path / "results.json"))


def test_pictures_show_runs_minima_and_what_was_held_out(record: Results) -> None:
    isoflop, least, sizes, misses = plots(record)
    assert [len(t.dots) for t in isoflop.traces] == [len(SIZES)] * 7
    minima = [t.rings[0] for t in isoflop.traces[:6]]
    assert [n for n, _ in minima] == sorted(n for n, _ in minima) and isoflop.traces[6].name == "held out"
    assert f"{minima[0][1]:.3f}" in isoflop.said
    law, best, held = least.traces
    assert law.line[-1][0] == pytest.approx(1e22) and len(best.dots) == 6
    assert all(low < y < high for (_, y), (_, low, high) in zip(law.line, law.band, strict=True))
    (low, high), (x, y) = held.whiskers[0][1:], held.rings[0]
    assert x == pytest.approx(BUDGETS[-1]) and low < y < high
    assert len(sizes.traces[1].rings) == 6 and sizes.log_y
    assert len(misses.traces[0].dots) == 54 and len(misses.traces[1].rings) == 9
    assert max(abs(off) for _, off in misses.traces[0].dots) < 1.5


def test_the_words_are_those_of_the_numbers(record: Results) -> None:
    told = Read(verdict(record)).text
    assert "1×10²² FLOPs, counted by 6 N D: best with" in told and "by law" in told and "by parabolas" in told
    assert re.search(r"9 runs of 3\.2 times the largest fitted budget.* [89] of 9 lie inside", told)


def test_a_budget_without_a_minimum_is_drawn_all_the_same() -> None:
    falling = ladder(0.001).take(np.concatenate([np.arange(9 * b, 9 * b + 4) for b in range(7)]))
    isoflop, *_ = plots(results(study(falling, Asked(resamples=100)), "x"))
    assert "no minimum among its sizes" in isoflop.said
    edge = [t for t in isoflop.traces if not t.rings]
    assert edge and all(t.line for t in edge)


def test_points_without_common_budgets_have_no_parabolas() -> None:
    points = ladder(0.001)
    flops = np.geomspace(1e18, 1e25, len(points))
    apart = Points(points.n, points.d, points.loss, flops, points.names)
    assert "Loss by size" not in page(results(study(apart, Asked(resamples=100)), "x"))


def test_a_narrow_ladder_has_numbers_below_its_picture() -> None:
    """53k to 378k parameters hold a single power of ten."""
    for low, high in ((5.3e4, 3.8e5), (2e5, 1.6e6), (3e11, 1e13), (1e18, 1e22), (1.2e5, 1.3e5), (1e7, 1e7)):
        scale = Scale(low, high, 0, 1000, log=True)
        found = across(scale)
        assert (3 if high > low else 1) <= len(found) <= 5 and all(low <= v <= high for v in found)
        assert all(scale(b) - scale(a) >= 150 for a, b in itertools.pairwise(found))


def test_words_are_explained(record: Results) -> None:
    for word in ("projection", "parabola", "held out", "α, β"):
        assert f"<dt>{word}</dt>" in page(record)
    assert "Counted by the FLOPs" not in page(record)  # these are 6 N D
