"""The record as tables: rates beside the peer's, and figures that should be small."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from unmask.bench.base import Measured, MeasuredFigure, Numbers, Record, Timed

HEAD = ["work", "peer", "unmask", "peer's best", "ratio", "target", "peer, compiled"]
BESIDE = ("prefill s", "cache bytes", "tokens/s of one prompt")
"""What rows of generation hold of each side beside its rate."""
FIGURES_HEAD = ["work", "peer", "unmask", "the peer", "worst of ours", "target"]


def lines(record: Record) -> list[str]:
    """Markdown, a line a row: tables of rates, of what stands beside them, and of figures, none of them empty."""
    found = (
        _table(HEAD, [_row(r) for r in record.rows]),
        _table(["work", "side", *BESIDE], [cells for r in record.rows for cells in _beside(r)]),
        _table(FIGURES_HEAD, [_figure(f) for f in record.figures]),
    )
    return [line for table in found if table for line in ("", *table)][1:]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)] if rows else []


def _row(row: Measured) -> list[str]:
    compiled = next((s for s in row.sides if s.side in row.apart), None)
    return [
        row.work,
        row.peer,
        _rate(row.ours),
        f"{_rate(row.best)}, {row.best.side}",
        f"**{row.ratio:.2f} ×**",
        f"≥ {row.target:g} ×: {_said(row.met)}",
        "–" if compiled is None else f"{_rate(compiled)}: {row.ours.rate / compiled.rate:.1f} ×",
    ]


def _beside(row: Measured) -> list[list[str]]:
    """The work, the side and `BESIDE` of each side that has them."""
    sides = [side for side in row.sides if set(BESIDE) <= set(side.about)]
    return [[row.work, side.side, *(_number(side.about[k]) for k in BESIDE)] for side in sides]


def _rate(side: Timed) -> str:
    """
    >>> _rate(Timed(side="unmask", rates=[9000.0, 10000.0, 11000.0], about={}))
    '10,000 ± 10 %'
    """
    return f"{side.rate:,.0f} ± {50 * side.spread:.0f} %"


def _figure(row: MeasuredFigure) -> list[str]:
    share = "" if row.share is None else f": {row.share:.2g} of the peer's"
    return [
        row.work,
        row.peer or "–",
        "; ".join(_read(s, row.unit) for s in row.mine),
        "; ".join(_read(s, row.unit) for s in row.theirs) or "–",
        f"**{_number(row.ours)} {row.unit}**{share}",
        (f"≤ {row.target:g} of the peer's" if row.of_peer else f"< {row.target:g} {row.unit}") + f": {_said(row.met)}",
    ]


def _said(met: bool) -> str:
    return "met" if met else "missed"


def _read(side: Numbers, unit: str) -> str:
    """
    >>> _read(Numbers(side="fp32", values=[98.0, 100.0, 102.0], beside={"s": [1.5, 2.5, 4.0]}), "MB")
    'fp32 100 MB ± 2 % (2.5 s)'
    """
    more = ", ".join(f"{_number(median(each))} {what}" for what, each in side.beside.items())
    return f"{side.side} {_number(side.value)} {unit} ± {50 * side.spread:.0f} %" + (f" ({more})" if more else "")


def _number(value: float) -> str:
    """Three digits, and all of a large number's.

    >>> [_number(v) for v in (0.1234, 12.34, 1234567.8)]
    ['0.123', '12.3', '1,234,568']
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
