"""Updates that cannot be used: what is said of them, what is written down, and when the run stops.

An update whose loss or gradient norm is not finite, or whose norm passes `train.skip_above`, is at fault. With
train.at_fault=stop the run ends before using it; with skip the weights and the optimizer's state stay as they are, its
number passes, and the run stops after `MOST` in a row. Nothing else is looked back at, so a resumed run decides alike.

    faults.jsonl    {"step": 7, "loss": …, "grad_norm": …, "documents": [{"document": 12, "begins": "The …"}, …]}

A text is a piece of a document: one that is read in several pieces is named with the first words of each.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.disk import cannot_write

FILE = "faults.jsonl"
MOST = 10
"""Skipped updates in a row after which a run stops: what goes on like this learns nothing."""
NAMED = 5
"""Texts that a sentence names."""
Documents = Callable[[int, float], Sequence[Mapping[str, Any]]]
"""(step, progress) → the texts that an update reads: {"document": its number, "begins": the text's first words}."""


def fault(loss: float | None, norm: float, most: float) -> str | None:
    """Why an update cannot be used; None = it can.

    >>> fault(2.5, 0.7, 0.0), fault(2.5, 40.0, 10.0), fault(math.nan, math.nan, 0.0)
    (None, 'its gradient norm is 40, above train.skip_above=10', 'its loss is nan, its gradient norm nan')
    """
    if not math.isfinite(norm) or (loss is not None and not math.isfinite(loss)):
        return f"its loss is {loss}, its gradient norm {norm:g}"
    if most and norm > most:
        return f"its gradient norm is {norm:g}, above train.skip_above={most:g}"
    return None


def told(step: int, why: str, documents: Sequence[Mapping[str, Any]]) -> str:
    """What is said of an update.

    >>> told(7, "its loss is nan", [{"document": 3, "begins": "The cat"}, {"document": 9, "begins": "A dog"}])
    "update 7 is at fault: its loss is nan; it reads 2 texts, of documents 3 ('The cat'), 9 ('A dog')"
    """
    some = ", ".join(f"{d['document']} ({d['begins']!r})" for d in documents[:NAMED])
    more = f" and {len(documents) - NAMED} more in {FILE}" if len(documents) > NAMED else ""
    number = "1 text, of document" if len(documents) == 1 else f"{len(documents)} texts, of documents"
    return f"update {step} is at fault: {why}" + (f"; it reads {number} {some}{more}" if documents else "")


def ending(said: str, whole: Sequence[Path], skips: bool) -> str:
    """The sentence that a run ends with; whole: its checkpoints."""
    newest = f"its newest checkpoint is {whole[-1]}" if whole else "no checkpoint was written yet"
    row, mend = (f", the {MOST}th in a row", "") if skips else ("", ", or with train.at_fault=skip to pass over it")
    return (
        f"{said}: the run stops before using it{row}, {newest}; resumed it would meet it again, so start anew (another "
        f"out=) with a lower train.learning_rate, a longer train.warmup_steps or other data{mend}"
    )


def write(out: Path, step: int, loss: float | None, norm: float, documents: Sequence[Mapping[str, Any]]) -> None:
    """Append a line to RUN/faults.jsonl; numbers that are not finite as words, which JSON has none for."""
    line = {"step": step, "loss": _number(loss), "grad_norm": _number(norm), "documents": list(documents)}
    try:
        with open(out / FILE, "a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    except OSError as error:
        raise cannot_write(out / FILE, 4096, error) from error


def _number(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)
