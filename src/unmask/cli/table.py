"""Results as text that is read: one value a line, lists of rows as tables with aligned columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def lines(result: Mapping[str, Any]) -> list[str]:
    """A result's values, then its tables, each under its name; empty ones are left out, but for a missing `value`.

    >>> print("\\n".join(lines({"value": 62.5, "sets": [{"set": "a", "value": 75.0}, {"set": "bc", "value": 50.0}]})))
               value  62.50
    <BLANKLINE>
    sets
      set  value
      a    75.00
      bc   50.00
    """
    out: list[str] = []
    tables = {k: v for k, v in result.items() if _is_table(v)}
    for key, value in result.items():
        empty = (value is None and key != "value") or (isinstance(value, (str, Sequence, Mapping)) and not value)
        if key in tables or empty:
            continue
        out.append(f"{key:>16}  {_shown(value)}")
    for key, rows in tables.items():
        nested = [row for row in rows if any(_is_table(v) for v in row.values())]
        if nested:
            for row in rows:
                out += ["", *lines(row)]
        else:
            out += ["", key, *table(rows)]
    return out


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows with the same keys, under a line of their names; numbers stand on the right."""
    names = [k for k in dict.fromkeys(k for row in rows for k in row) if any(row.get(k) is not None for row in rows)]
    cells = [[_shown(row.get(n)) for n in names] for row in rows]
    width = [max(len(n), *(len(c[i]) for c in cells)) for i, n in enumerate(names)]
    left = [all(isinstance(row.get(n), str) for row in rows) for n in names]

    def line(values: Sequence[str]) -> str:
        put = (v.ljust(w) if a else v.rjust(w) for v, w, a in zip(values, width, left, strict=True))
        return "  " + "  ".join(put).rstrip()

    return [line(names), *(line(c) for c in cells)]


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) for row in value)


def _shown(value: Any) -> str:
    """Numbers to four digits or two places, whichever says more; intervals as a … b."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_shown(v)}" for k, v in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        numbers = len(value) == 2 and all(isinstance(v, float) for v in value)
        return (" … " if numbers else ", ").join(_shown(v) for v in value)
    return str(value)
