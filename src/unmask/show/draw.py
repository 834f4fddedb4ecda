"""Examples for the eye: columns that line up, targets under their positions, and the grid of who sees whom."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from unmask.batch import Head, visible
from unmask.objectives.base import Objective
from unmask.show.reading import Reading

WIDEST_GRID = 120
"""Positions; a larger grid would not be read."""
SEES, NOT = "■", "·"


def drawn(objective: Objective, reading: Reading, records: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """Lines of text, at most `width` columns wide where a single token allows it."""
    rows = reading.rows
    text = [reading.spell(int(i)) for i in rows.tokens[: rows.start[1]]]
    settings = ", ".join(f"{k} {_setting(v)}" for k, v in objective.model_dump().items() if k != "type")
    out = [f"{objective.type}{': ' if settings else ''}{settings}"]
    out += [f"({note})" for note in reading.notes]
    out += ["", *columns({"text": text}, width)]
    for number, record in enumerate(records):
        head = f"example {number + 1} of {len(records)}"
        out += ["", *([f"── {head} " + "─" * max(3, 40 - len(head))] if len(records) > 1 else [])]
        out += list(_example(objective, reading, record, width))
    return out


def _setting(value: Any) -> str:
    if isinstance(value, Mapping):
        return "(" + ", ".join(f"{k} {_setting(v)}" for k, v in value.items()) + ")"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _example(objective: Objective, reading: Reading, record: Mapping[str, Any], width: int) -> Iterator[str]:
    heads = objective.heads()
    if record["source"] is not None:
        yield from _stack("source", record["source"], record["source_pieces"], record, heads, reading, width)
        yield ""
    yield from _stack("stream", record["stream"], record["pieces"], record, heads, reading, width)
    for name, stack in (("source", record["source"]), ("stream", record["stream"])):
        if stack is not None:
            asked = {i for h in heads if h.stack == name for i in _indices(record["targets"].get(h.name), stack)}
            yield from ["", *grid(stack, asked, name if record["source"] is not None else "", width)]
    if record["source"] is not None:
        yield "every position of the stream sees the whole source of its block (cross-attention)"


def _stack(
    name: str,
    stack: Mapping[str, Any],
    pieces: Sequence[str],
    record: Mapping[str, Any],
    heads: Sequence[Head],
    reading: Reading,
    width: int,
) -> Iterator[str]:
    """One stack: its channels where they say something, its pieces, and the targets that are read off it."""
    n = len(pieces)
    rows: dict[str, Sequence[str]] = {"": [str(i) for i in range(n)]}
    if stack["positions"] != list(range(n)):
        rows["position"] = [str(i) for i in stack["positions"]]
    for label, key in (("2nd position", "positions2"), ("token type", "token_type")):
        if any(stack.get(key, ())):
            rows[label] = [str(i) for i in stack[key]]
    if len(set(stack["block"])) > 1:
        rows["block"] = [str(i) for i in stack["block"]]
    rows[name if record["source"] is not None else "input"] = pieces
    below: list[str] = []
    for head in heads:
        if head.stack == name and head.name in record["targets"]:
            more, lines = _targets(head, record["targets"][head.name], n, reading)
            rows |= more
            below += lines
    yield from columns(rows, width)
    yield from below


def _targets(head: Head, t: Mapping[str, Any], n: int, reading: Reading) -> tuple[dict[str, list[str]], list[str]]:
    """Rows of targets under their positions; those that read two positions, or share one, as lines of their own."""
    index = list(range(n)) if t["index"] is None else t["index"]
    if not index:
        return {}, [f"{head.name}: no target here"]
    values = [_value(head, v, reading) for v in t["value"]]
    weights = [f"{w:.3g}" for w in t["weight"]]
    told = any(w != 1 for w in t["weight"])
    if head.arity > 1 or len(set(index)) < len(index):
        lines = []
        for k, at in enumerate(index):
            place = " and ".join(map(str, at)) if isinstance(at, list) else str(at)
            extra = "".join(f", {key} {t[key][k]}" for key in ("extra", "group") if key in t)
            lines.append(f"{head.name}: at {place}{extra}: {values[k]}{f' (weight {weights[k]})' if told else ''}")
        return {}, lines
    row, weight = [""] * n, [""] * n
    for at, value, w in zip(index, values, weights, strict=True):
        row[at], weight[at] = value, w
    return {head.name: row, **({f"{head.name} weight": weight} if told else {})}, []


def _value(head: Head, value: Any, reading: Reading) -> str:
    if isinstance(value, list):
        return "[…]"
    if head.over == "vocabulary":
        return reading.spell(int(value))
    if head.names:
        return head.names[int(value)]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _indices(t: Mapping[str, Any] | None, stack: Mapping[str, Any]) -> list[int]:
    """The positions at which targets are read."""
    if t is None:
        return []
    if t["index"] is None:
        return list(range(len(stack["tokens"])))
    return [i for at in t["index"] for i in (at if isinstance(at, list) else [at])]


# ---------------------------------------------------------------- columns


def columns(rows: Mapping[str, Sequence[str]], width: int) -> list[str]:
    """Rows of cells under each other, cut into stretches that fit; names on the left.

    >>> print("\\n".join(columns({"input": ["the", "[MASK]", "sat"], "lm": ["", "cat", ""]}, 20)))
     input  the [MASK]
        lm       cat
    <BLANKLINE>
     input  sat
        lm
    """
    shown = {name: [_plain(c) for c in cells] for name, cells in rows.items()}
    gutter = max(6, *(cells_wide(name) for name in rows))
    n = len(next(iter(rows.values()), ()))
    wide = [max(1, *(cells_wide(cells[i]) for cells in shown.values())) for i in range(n)]
    out: list[str] = []
    begin = 0
    while begin < n:
        end, used = begin, gutter + 1
        while end < n and (end == begin or used + 1 + wide[end] <= width):
            used += 1 + wide[end]
            end += 1
        out += [""] * bool(out)
        for name, cells in shown.items():
            line = " ".join(_centred(c, w) for c, w in zip(cells[begin:end], wide[begin:end], strict=True))
            out.append(f"{' ' * (gutter - cells_wide(name))}{name}  {line}".rstrip())
        begin = end
    return out


def _plain(cell: str) -> str:
    """A blank is drawn, so that " cat" is not read as "cat"."""
    return cell.replace(" ", "▁")


def _centred(cell: str, width: int) -> str:
    left = (width - cells_wide(cell)) // 2
    return " " * left + cell + " " * (width - left - cells_wide(cell))


def cells_wide(text: str) -> int:
    """Cells of a terminal: two for a wide character, none for a mark that combines.

    >>> cells_wide("cat"), cells_wide("北京"), cells_wide("e\u0301")
    (3, 4, 1)
    """
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


# ---------------------------------------------------------------- the grid


def grid(stack: Mapping[str, Any], asked: set[int], name: str = "", width: int = 100) -> list[str]:
    """Who sees whom by the rule of `batch.visible`: a row for each query, a column for each key, close together
    where they would not fit otherwise.

    >>> stack = {"block": [1, 1, 1], "reveal": [0, 0, 1], "horizon": [0, 0, 1], "tokens": [2, 7, 8]}
    >>> print("\\n".join(grid(stack, {1, 2})))
    who sees whom: row = query, column = key; ■ sees, · does not; * a target is read there; 7 of 9 pairs
          0 1 2
      0   ■ ■ ·
      1*  ■ ■ ·
      2*  ■ ■ ■
    """
    block, reveal, horizon = (np.array(stack[k]) for k in ("block", "reveal", "horizon"))
    seen = visible(block, horizon, block, reveal)
    n = len(block)
    of = f" in the {name}" if name else ""
    title = f"who sees whom{of}: row = query, column = key; {SEES} sees, {NOT} does not"
    title += f"; * a target is read there; {int(seen.sum()):,} of {n * n:,} pairs"
    if n > 1 and seen.all():
        return [f"who sees whom{of}: every position sees every other ({n * n:,} pairs)"]
    if n > min(WIDEST_GRID, width - 6):
        return [f"who sees whom{of}: {int(seen.sum()):,} of {n * n:,} pairs (too many positions to draw them here)"]
    gap = " " if 2 * n + 5 <= width else ""
    lines = [title, "      " + gap.join(str(i % 10) for i in range(n))]
    for q in range(n):
        mark = f"{q}*" if q in asked else f"{q} "
        lines.append(f"{mark:>4}  " + gap.join(SEES if seen[q, k] else NOT for k in range(n)))
    return [line.rstrip() for line in lines]
