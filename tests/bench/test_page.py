"""docs/performance.md says what the committed records say, and nothing where there is none."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from unmask.bench.base import OURS, Measured, MeasuredFigure, Numbers, Record, Timed

DRAW = Path(__file__).resolve().parents[2] / "docs" / "draw_performance.py"


@pytest.fixture(scope="module")
def draw() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw_performance", DRAW)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def record(*names: str, processor: str = "A", figures: tuple[str, ...] = ()) -> Record:
    sides = [Timed(side=side, rates=[rate], about={}) for side, rate in ((OURS, 20.0), ("fp32", 10.0))]
    return Record(
        command=f"unmask bench {' '.join((*names, *figures))}",
        turns=1,
        steps=1,
        environment={"processor": processor, "cores": 2, "threads": 1, "packages": {"torch": "2"}},
        rows=[Measured(name=name, work=name, peer="peer", target=2, sides=sides) for name in names],
        figures=[
            MeasuredFigure(name=f, work=f, peer="", unit="s", target=5, sides=[Numbers(side=OURS, values=[1.0])])
            for f in figures
        ],
    )


def test_the_page_says_what_the_records_say(draw: ModuleType) -> None:
    page = draw.PAGE.read_text(encoding="utf-8")
    assert len(draw.MARKED.findall(page)) == 1
    assert draw.rewritten(page, draw.read(draw.committed())) == page, "run python docs/draw_performance.py"


def test_records_of_one_environment_share_their_tables(draw: ModuleType) -> None:
    page = "a\n<!-- table -->\nold\n<!-- end -->\nb\n"
    assert draw.rewritten(page, []) == "a\n<!-- table -->\n<!-- end -->\nb\n"
    drawn = draw.drawn([record("one"), record("two", processor="B"), record("three", figures=("four",))])
    assert drawn.count("| work |") == 3 and drawn.index("| three |") < drawn.index("| four |") < drawn.index("| two |")
    commands = "    unmask bench one\n    unmask bench three four\n"
    assert drawn.startswith(f"On A, 2 cores, 1 of them used; torch 2:\n\n{commands}")
    with pytest.raises(SystemExit, match="two records of one machine hold one"):
        draw.drawn([record("one"), record("two", "one")])
    assert draw.drawn([record("one"), record("one", processor="B")]).count("| one |") == 2
