"""`unmask bench`: rows prepared, checked, timed in turn, and written down."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from unmask.bench.base import Figure, Measured, MeasuredFigure, Record, Row
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


def _measured(one: Row, turns: int, steps: int, say: Callable[[str], None]) -> Measured:
    with tempfile.TemporaryDirectory(prefix="unmask-bench-") as place:
        folder = Path(place)
        one.prepare(folder)
        found = Measured(
            name=one.name,
            work=one.work,
            peer=one.peer,
            target=one.target,
            losses=one.check(folder),
            sides=[],
            apart=one.apart,
        )
        if not found.counts:
            raise UserError(f"bench row {one.name}: losses at step 0 differ ({found.losses}): this is no comparison")
        whole = -(-steps // one.round) * one.round
        return found.model_copy(update={"sides": measured(one, folder, turns, whole, say)})


def _read(one: Figure, turns: int, say: Callable[[str], None]) -> MeasuredFigure:
    with tempfile.TemporaryDirectory(prefix="unmask-bench-") as place:
        folder = Path(place)
        one.prepare(folder)
        found = MeasuredFigure(
            name=one.name,
            work=one.work,
            peer=one.peer,
            unit=one.unit,
            target=one.target,
            of_peer=one.of_peer,
            losses=None if one.check is None else one.check(folder),
            sides=[],
            peers=one.peers,
        )
        if not found.counts:
            raise UserError(f"bench row {one.name}: its losses differ ({found.losses}): this is no comparison")
        return found.model_copy(update={"sides": readings(one, folder, turns, say)})
