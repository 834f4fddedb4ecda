"""All rows by name."""

from __future__ import annotations

from unmask.bench.base import Row
from unmask.bench.documents import DOCUMENTS
from unmask.bench.kinds import KINDS
from unmask.bench.pair import ELECTRA
from unmask.errors import UserError, nearest

ROWS = {row.name: row for row in (*KINDS, ELECTRA, DOCUMENTS)}


def row(name: str) -> Row:
    """The row of a name."""
    if name not in ROWS:
        raise UserError(f"there is no bench row '{name}': choose {', '.join(ROWS)}{nearest(name, ROWS)}")
    return ROWS[name]
