"""The record as a table."""

from __future__ import annotations

from unmask.bench.base import Measured, Record, Timed

HEAD = ["work", "peer", "unmask", "peer's best", "ratio", "target", "peer, compiled"]


def lines(record: Record) -> list[str]:
    """Markdown: a line a row."""
    rows = [HEAD, ["---"] * len(HEAD), *(_row(r) for r in record.rows)]
    return [f"| {' | '.join(cells)} |" for cells in rows]


def _row(row: Measured) -> list[str]:
    compiled = next((s for s in row.sides if s.side in row.apart), None)
    return [
        row.work,
        row.peer,
        _rate(row.ours),
        f"{_rate(row.best)}, {row.best.side}",
        f"**{row.ratio:.1f} ×**",
        f"≥ {row.target:g} ×",
        "–" if compiled is None else f"{_rate(compiled)}: {row.ours.rate / compiled.rate:.1f} ×",
    ]


def _rate(side: Timed) -> str:
    """
    >>> _rate(Timed(side="unmask", rates=[9000.0, 10000.0, 11000.0], about={}))
    '10,000 ± 10 %'
    """
    return f"{side.rate:,.0f} ± {50 * side.spread:.0f} %"
