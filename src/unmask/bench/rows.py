"""All rows by name."""

from __future__ import annotations

from unmask.bench.base import Figure, Row
from unmask.bench.documents import DOCUMENTS
from unmask.bench.generation import GENERATION
from unmask.bench.kinds import KINDS
from unmask.bench.loss_memory import LOSS_MEMORY
from unmask.bench.pair import ELECTRA
from unmask.bench.resuming import RESUME
from unmask.bench.waiting import DATA
from unmask.errors import UserError, nearest

ROWS = {row.name: row for row in (*KINDS, ELECTRA, DOCUMENTS, *GENERATION)}
FIGURES = {figure.name: figure for figure in (DATA, RESUME, LOSS_MEMORY)}
NAMES = (*ROWS, *FIGURES)


def row(name: str) -> Row | Figure:
    """The row of a name."""
    if name not in NAMES:
        raise UserError(f"there is no bench row '{name}': choose {', '.join(NAMES)}{nearest(name, NAMES)}")
    return ROWS[name] if name in ROWS else FIGURES[name]
