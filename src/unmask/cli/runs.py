"""The verbs about runs as wholes: what differs between two, and how a plan of one is printed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from unmask.cli.output import Json, app, emit, in_bytes

Side = Annotated[str, typer.Argument(help="A run directory, or a recipe's name or file.", show_default=False)]


@app.command()
def diff(a: Side, b: Side, as_json: Json = False) -> None:
    """What differs between two runs, or two recipes: unmask diff runs/a runs/b"""
    from unmask.difference import difference

    found = difference(a, b)
    if as_json:
        return emit(found)
    print("\n".join(_difference(found)))


def _difference(found: Mapping[str, Any]) -> Iterator[str]:
    from unmask.cli.table import lines

    yield f"a  {found['a']}"
    yield f"b  {found['b']}"
    yield "same settings" if not found["settings"] else _settings(len(found["settings"]))
    for what in ("text", "tokenizer"):
        if found[what] != "unknown":
            yield f"{found[what]} {what}"
    tables = {name: [_row(row) for row in found[name]] for name in ("settings", "environment", "results")}
    yield from lines(tables)


def _settings(number: int) -> str:
    return "1 setting differs" if number == 1 else f"{number} settings differ"


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Values as text, so that names and numbers stand in one column."""
    return {k: v if k not in ("a", "b") else "–" if v is None else _value(v) for k, v in row.items()}


def _value(value: Any) -> str:
    """
    >>> _value(0.30000000000000004), _value(1200000), _value(True), _value([1, 2])
    ('0.3', '1,200,000', 'true', '[1, 2]')
    >>> _value([{"share": 0.5, "context": None}])
    '[{share: 0.5}]'
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        given = (f"{k}: {_value(v)}" for k, v in value.items() if v is not None)
        return f"{{{', '.join(given)}}}"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def plan_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """A plan (`planning.plan`) as it is read."""
    from unmask.cli.table import lines

    steps = "not known before it is timed" if found["steps"] is None else f"{found['steps']:,}"
    shown: dict[str, Any] = {
        "budget": ", ".join(f"{k} {v:g}" for k, v in found["budget"].items()),
        "updates": f"{steps} ({found['steps_are']})",
        "tokens": found["tokens"],
        "target tokens": found["target_tokens"],
        "text": _text(found),
        "FLOPs": None if found["flops"] is None else f"{found['flops']:.3g}",
        "hours": f"{'–' if found['hours'] is None else _hours(found['hours'])} ({found['hours_are']})",
        "parameters": found["parameters"],
        **({"stages": [_stage(row) for row in found["stages"]]} if len(found["stages"]) > 1 else {}),
        "disk": f"{in_bytes(found['disk']['bytes'])} ({found['disk']['checkpoints']} checkpoints at most, "
        f"{in_bytes(found['disk']['bytes_of_one'])} each; {in_bytes(found['disk']['bytes_written'])} written in all)",
        "memory": [{k: v if k == "with" else in_bytes(v) for k, v in row.items()} for row in found["memory"]],
        "checkpoints": [
            {
                "with": row["with"],
                "written by": row["written_by"],
                "files": row["files"],
                "copied first": in_bytes(row["copy"]) if row["copy"] else "no",
                "training": "goes on" if row["meanwhile"] else "waits",
            }
            for row in found["saving"]
        ],
    }
    yield from lines(shown)


def _stage(row: Mapping[str, Any]) -> dict[str, Any]:
    """A stage, and what an update of it holds."""
    return {
        "updates": row["updates"],
        "context": row["context"],
        "rows an update": row["batch_size"],
        "tokens": f"{row['tokens']:,.0f}",
        "target tokens": f"{row['target_tokens']:,.0f}",
        "FLOPs": f"{row['flops']:.3g}",
    }


def _text(found: Mapping[str, Any]) -> str:
    """How much there is, and how much of it is processed; what a row adds to the text (a second one, controls) counts
    too."""
    tokens = found["training_text_tokens"]
    what = f"{tokens:,} tokens to train on" + (" in the first chapter of the stream" if found["stream"] else "")
    if found["tokens"] is None or not tokens:
        return what
    return f"{what}; the run processes {found['tokens'] / tokens:.2g} times as many"


def _hours(hours: float) -> str:
    """
    >>> _hours(0.004), _hours(3.456), _hours(123.4)
    ('0.004', '3.46', '123')
    """
    return f"{hours:.3g}" if hours >= 0.01 else f"{hours:.1g}"
