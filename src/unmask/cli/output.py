"""What every verb shares: the application, and how results are printed."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="unmask",
    help="Pretrain language models: any objective, any Transformer architecture, any tokenizer, on your own text.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value a line.")]


def emit(value: Any) -> None:
    """One JSON value on a line of stdout; what is no finite number is null, as JSON has no other."""
    print(json.dumps(_plain(value), ensure_ascii=False, allow_nan=False))


def in_bytes(value: float) -> str:
    """In powers of 1024.

    >>> in_bytes(100), in_bytes(3 << 19)
    ('100 B', '1.5 MiB')
    """
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f} B"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (str, bytes, Path)):
        return str(value)
    if isinstance(value, Iterable):
        return [_plain(v) for v in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
