"""`unmask bench`: rows prepared, checked, timed in turn, and written down."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from unmask.bench.base import Figure, Measured, MeasuredFigure, Record, Row, alike
from unmask.bench.rows import row
from unmask.bench.turns import measured, readings
from unmask.errors import UserError

TURNS, STEPS = 5, 8


def bench(
    names: Sequence[str],
    turns: int = TURNS,
    steps: int = STEPS,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
    command: str = "",
    keep: Callable[[Record], None] = lambda record: None,
) -> Record:
    """Measure rows by name: every side `turns` times in turn, `steps` training steps each time, or one reading.

    `keep` receives the record after every row. A row whose sides do not compute the same loss is an error: its ratio
    would mean nothing.
    """
    if turns < 1 or steps < 1:
        raise UserError(f"turns={turns} and steps={steps} time nothing: give at least 1 of each")
    from unmask.directory import environment  # which loads torch

    record = Record(command=command, turns=turns, steps=steps, environment=environment(), rows=[])
    for one in map(row, names):
        if isinstance(one, Figure):
            record.figures.append(_read(one, turns, say))
        else:
            record.rows.append(_measured(one, turns, steps, say))
        keep(record)
    return record


def _prepared(one: Row | Figure, folder: Path) -> tuple[float, float] | None:
    """Write what the sides read; the losses of both, which must be alike."""
    one.prepare(folder)
    losses = None if one.check is None else one.check(folder)
    if not alike(losses):
        said = "losses at step 0" if isinstance(one, Row) else "its losses"
        raise UserError(f"bench row {one.name}: {said} differ ({losses}): this is no comparison")
    return losses


def _measured(one: Row, turns: int, steps: int, say: Callable[[str], None]) -> Measured:
    with tempfile.TemporaryDirectory(prefix="unmask-bench-") as place:
        folder = Path(place)
        losses = _prepared(one, folder)
        sides = measured(one, folder, turns, -(-steps // one.round) * one.round, say)
    return Measured(**_said(one), losses=losses, sides=sides, apart=one.apart)


def _read(one: Figure, turns: int, say: Callable[[str], None]) -> MeasuredFigure:
    with tempfile.TemporaryDirectory(prefix="unmask-bench-") as place:
        folder = Path(place)
        losses = _prepared(one, folder)
        sides = readings(one, folder, turns, say)
    more: dict[str, Any] = {"unit": one.unit, "of_peer": one.of_peer, "peers": one.peers}
    return MeasuredFigure(**_said(one), **more, losses=losses, sides=sides)


def _said(one: Row | Figure) -> dict[str, Any]:
    return {"name": one.name, "work": one.work, "peer": one.peer, "target": one.target}
