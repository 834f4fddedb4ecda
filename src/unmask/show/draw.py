"""Examples for the eye: columns that line up, targets under their positions, and the grid of who sees whom."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unmask.batch import Head, visible
from unmask.objectives.base import Objective
from unmask.objectives.replaced import GENERATOR
from unmask.show.reading import Reading

WIDEST_GRID = 120
"""Positions; a larger grid would not be read."""
SEES, NOT = "■", "·"
_BESIDE = {"extra": "offset", "group": "group"}


def drawn(objective: Objective, reading: Reading, records: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """Lines of text, at most `width` columns wide where a single token allows it."""
    rows = reading.rows
    text = [reading.spell(int(i)) for i in rows.tokens[: rows.start[1]]]
    settings = ", ".join(f"{k} {_setting(v)}" for k, v in objective.model_dump().items() if k != "type")
    out = folded(f"{objective.type}{': ' if settings else ''}{settings}", width)
    out += [line for note in reading.notes for line in folded(f"({note})", width)]
    out += ["", *columns({"text": text}, width)]
    if rows.partner is not None:
        of = rows.partner
        out += columns({reading.second: [reading.spell(int(i)) for i in of.tokens[: of.start[1]]]}, width)
    for number, record in enumerate(records):
        head = f"example {number + 1} of {len(records)}"
        out += ["", *([f"── {head} " + "─" * max(3, 40 - len(head))] if len(records) > 1 else [])]
        out += list(_example(objective, reading, record, width))
    return out


def _setting(value: Any) -> str:
    if isinstance(value, Mapping):
        return "(" + ", ".join(f"{k} {_setting(v)}" for k, v in value.items()) + ")"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(map(_setting, value)) + ")"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class View:
    """What one network reads of one stack, and the heads that answer there."""

    label: str
    stack: Mapping[str, Any]
    pieces: Sequence[str]
    heads: Sequence[Head]


def _views(objective: Objective, record: Mapping[str, Any]) -> Iterator[View]:
    stream, source = record["stream"], record["source"]
    at = {name: [h for h in objective.heads() if h.stack == name] for name in ("stream", "source")}
    if source is not None:
        yield View("source", source, source["pieces"], at["source"])
    if "corrupt" in stream:
        yield View(GENERATOR, stream, record["pieces"], [h for h in at["stream"] if h.network == GENERATOR])
        rest = [h for h in at["stream"] if h.network != GENERATOR]
        yield View("discriminator", stream, stream["corrupt_pieces"], rest)
    else:
        yield View("input" if source is None else "stream", stream, record["pieces"], at["stream"])


def _example(objective: Objective, reading: Reading, record: Mapping[str, Any], width: int) -> Iterator[str]:
    targets, heads = record["targets"], objective.heads()
    for number, view in enumerate(_views(objective, record)):
        yield from [""] * (number > 0)
        yield from _stack(view, targets, reading, width)
    for name in ("source", "stream"):
        stack = record[name]
        if stack is not None:
            asked = {i for h in heads if h.stack == name for i in _indices(targets.get(h.name), stack)}
            yield from ["", *grid(stack, asked, name if record["source"] is not None else "", width)]
    if record["source"] is not None:
        yield from folded("every position of the stream sees the whole source of its block (cross-attention)", width)


def _stack(view: View, targets: Mapping[str, Any], reading: Reading, width: int) -> Iterator[str]:
    """One stack: its channels where they say something, its pieces, and the targets that are read off it."""
    stack, n = view.stack, len(view.pieces)
    rows: dict[str, Sequence[str]] = {"": [str(i) for i in range(n)]}
    if stack["positions"] != list(range(n)):
        rows["position"] = [str(i) for i in stack["positions"]]
    for label, key in (("2nd position", "positions2"), ("token type", "token_type")):
        if any(stack.get(key, ())):
            rows[label] = [str(i) for i in stack[key]]
    if len(set(stack["block"])) > 1:
        rows["block"] = [str(i) for i in stack["block"]]
    rows[view.label] = view.pieces
    below: list[str] = []
    for head in view.heads:
        if head.name in targets:
            more, lines = _targets(head, targets[head.name], n, reading)
            rows |= more
            below += lines
    if not n:
        yield f"{view.label}: empty"
    yield from columns(rows, width)
    for line in below:
        yield from folded(line, width)


def _targets(head: Head, t: Mapping[str, Any], n: int, reading: Reading) -> tuple[dict[str, list[str]], list[str]]:
    """Rows of targets under their positions; those that read two positions, or share one, as lines of their own."""
    index = list(range(n)) if t["index"] is None else t["index"]
    if not index:
        return {}, [f"{head.name}: no target here"]
    values = [_value(head, v, t.get("names", ()), reading) for v in t["value"]]
    weights = [f"{w:.3g}" for w in t["weight"]]
    told = any(w != 1 for w in t["weight"])
    if head.arity > 1 or len(set(index)) < len(index):
        lines = []
        for k, at in enumerate(index):
            place = " and ".join(map(str, at)) if isinstance(at, list) else str(at)
            extra = "".join(f", {name} {t[key][k]}" for key, name in _BESIDE.items() if key in t)
            lines.append(f"{head.name}: at {place}{extra}: {values[k]}{f' (weight {weights[k]})' if told else ''}")
        return {}, lines
    row, weight = [""] * n, [""] * n
    for at, value, w in zip(index, values, weights, strict=True):
        row[at], weight[at] = value, w
    return {head.name: row, **({f"{head.name} weight": weight} if told else {})}, []


def _value(head: Head, value: Any, names: Sequence[str], reading: Reading) -> str:
    if head.pool != "at":
        return head.pool  # of the states of its block, which a program compares
    if isinstance(value, list):
        return "[…]"
    if head.over == "vocabulary":
        return reading.spell(int(value))
    if names:
        return names[int(value)]
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
    """A blank is drawn, so that " cat" is not read as "cat", and so is what a terminal would obey.

    >>> _plain(" cat\\n\\x1b")
    '▁cat⏎\\\\x1b'
    """
    cell = cell.replace(" ", "▁").replace("\n", "⏎").replace("\t", "⇥")
    return "".join(c if unicodedata.category(c)[0] != "C" else f"\\x{ord(c):02x}" for c in cell)


def folded(line: str, width: int) -> list[str]:
    """A line of words as several that fit, the later ones indented."""
    return textwrap.wrap(line, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


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
    who sees whom: row = query, column = key; ■ sees, · does not; * a target is read; 7 of 9 pairs
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
    title += f"; * a target is read; {int(seen.sum()):,} of {n * n:,} pairs"
    if n > 1 and seen.all():
        return folded(f"who sees whom{of}: every position sees every other ({n * n:,} pairs)", width)
    if n > min(WIDEST_GRID, width - 6):
        line = f"who sees whom{of}: {int(seen.sum()):,} of {n * n:,} pairs (too many positions to draw them here)"
        return folded(line, width)
    gap = " " if 2 * n + 5 <= width else ""
    lines = [*folded(title, width), "      " + gap.join(str(i % 10) for i in range(n))]
    for q in range(n):
        mark = f"{q}*" if q in asked else f"{q} "
        lines.append(f"{mark:>4}  " + gap.join(SEES if seen[q, k] else NOT for k in range(n)))
    return [line.rstrip() for line in lines]
