"""The results that stand in docs/labs, and a run of today beside them."""

from __future__ import annotations

import math
from pathlib import Path

from unmask.compare.results import Results, Table

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "labs" / "results"


def committed(name: str) -> Results:
    return Results.read(FOLDER / f"{name}.json")


def assert_like(fresh: Table, held: Table, skip: frozenset[str] = frozenset()) -> None:
    """The same table, numbers to nine digits; `skip`: columns that depend on how many seeds were run."""
    assert (fresh.title, fresh.columns, fresh.note) == (held.title, held.columns, held.note)
    assert len(fresh.rows) == len(held.rows)
    for row, other in zip(fresh.rows, held.rows, strict=True):
        for column, value, wanted in zip(fresh.columns, row, other, strict=True):
            if column in skip:
                continue
            if isinstance(value, float) and isinstance(wanted, (int, float)):
                assert math.isclose(value, wanted, rel_tol=1e-9, abs_tol=1e-12), (fresh.title, column, value, wanted)
            else:
                assert value == wanted, (fresh.title, column)
