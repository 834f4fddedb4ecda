"""The verb of speed: bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.output import Json, app, emit
from unmask.errors import UserError


@app.command()
def bench(
    rows: Annotated[list[str] | None, typer.Argument(help="Which rows; --list names them.", show_default="all")] = None,
    turns: Annotated[int, typer.Option(help="How often each side is measured, in turn.")] = 5,
    steps: Annotated[int, typer.Option(help="Steps of a turn.")] = 8,
    out: Annotated[
        Path | None, typer.Option(help="A file for the record, JSON, written after every row.", show_default="none")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Name every row.")] = False,
    as_json: Json = False,
) -> None:
    """Time training steps beside transformers on this machine: unmask bench bert gpt2

    Each side works in a process of its own, in turn with the others; both compute the same loss at step 0, or the row
    is an error. Medians over turns, their spread, and the ratio to the better of the peer's fp32 and bf16. The rows
    data, resume and loss-memory are figures that should be small, read in a fresh process each turn.
    """
    from unmask.bench.base import Record
    from unmask.bench.rows import FIGURES, NAMES, ROWS
    from unmask.bench.run import bench as measure
    from unmask.bench.table import lines
    from unmask.train.checkpoint import write_json

    if listed:
        if rows:
            raise UserError("--list names every row: leave out the rest")
        told = [{k: getattr(r, k) for k in ("name", "work", "peer", "target")} for r in ROWS.values()]
        told += [{k: getattr(f, k) for k in ("name", "work", "peer", "target", "unit")} for f in FIGURES.values()]
        if as_json:
            return emit(told)
        width = max(len(r["name"]) for r in told)
        print("\n".join(f"{r['name']:<{width}}  {'; '.join(filter(None, (r['work'], r['peer'])))}" for r in told))
        return
    command = " ".join(["unmask bench", *(rows or ()), f"--turns {turns} --steps {steps}"])

    def keep(record: Record) -> None:
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_json(out, record.model_dump(mode="json"))

    found = measure(rows or NAMES, turns, steps, command=command, keep=keep)
    if as_json:
        return emit(found.model_dump(mode="json"))
    print("\n".join(lines(found)))
