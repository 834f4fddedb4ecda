"""The densities of `density` as a table that is read."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

NOTES = (
    "Per 1,000 processed positions (stream and source): content = tokens of the text, marks = sentinels. expected: by "
    "formula from the settings, of all targets and of marks; off: standard deviations of the noise between the two (0 "
    "where nothing is random). stream, source: mean lengths of an example. corruption: share of its text that not "
    "every one of its predictions sees. M/s: million tokens of text a second, here, on one core, with noise, layout, "
    "packing and collation.",
    "The CS324 lecture notes on architectures and objectives counted on a toy corpus of their own, in pieces of 32: "
    "1,000 causal, 533 prefix LM, 137 masked, 187 T5 (of which 103 sentinels; i.i.d. spans of about one token), and at "
    "mean span 3: 135 (61 sentinels). Other texts, lengths and rules of placing spans: quoted, not matched.",
)
_COLUMNS = (
    ("objective", "objective", ""),
    ("layout", "layout", ""),
    ("targets", "targets", ".1f"),
    ("content", "content", ".1f"),
    ("marks", "marks", ".1f"),
    ("expected", "expected", ".1f"),
    ("off", "off", ".2f"),
    ("of marks", "expected marks", ".1f"),
    ("off", "off marks", ".2f"),
    ("stream", "stream", ".1f"),
    ("source", "source", ".1f"),
    ("corruption", "corruption", ".3f"),
    ("M/s", "tokens/s", "M"),
)
"""What each column is called, its key in a row, and how it is written (M: in millions)."""


def lines(rows: Sequence[Mapping[str, Any]], width: int = 119) -> list[str]:
    """The rows that could be counted, aligned; then what lacks an expectation or was refused, and what it all means."""
    counted = [row for row in rows if "refused" not in row]
    cells = [[_cell(row.get(key), form) for _, key, form in _COLUMNS] for row in counted]
    wide = [max(len(name), *(len(c[k]) for c in cells)) for k, (name, _, _) in enumerate(_COLUMNS)] if cells else []
    out = [_line([name for name, _, _ in _COLUMNS], wide), *(_line(c, wide) for c in cells)] if cells else []
    told = [f"{r['objective']} has no formula: the lengths do not tell {r['unknown']}." for r in rows if "unknown" in r]
    told += [f"{r['objective']} ({r['layout']}) is left out: {r['refused']}" for r in rows if "refused" in r]
    told += [f"{r['objective']}: {r['stand-in']}." for r in counted if "stand-in" in r]
    for line in (*dict.fromkeys(told), *NOTES):
        out += ["", *textwrap.wrap(line, width)]
    return out


def _line(cells: Sequence[str], wide: Sequence[int]) -> str:
    put = (c.ljust(w) if k < 2 else c.rjust(w) for k, (c, w) in enumerate(zip(cells, wide, strict=True)))
    return " ".join(put).rstrip()


def _cell(value: Any, form: str) -> str:
    """A number to so many places, without a sign where it rounds to 0."""
    if value is None or isinstance(value, str):
        return "–" if value is None else value
    shown = f"{value / 1e6:.1f}" if form == "M" else f"{value:{form}}"
    return shown.lstrip("-") if float(shown) == 0 else shown
