"""The laboratory as one picture, drawn from its record: who learns the rule when, and what each can do at the end.

Above, a thick line is the median over seeds and a thin one a seed; dashes tell lines apart that lie on each other.
Below, where the record holds it, a bar for each ability. Colours follow the reader's light or dark setting.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from unmask.chart import Scale
from unmask.compare.results import Entry, Point, Results

WIDTH = 640
LEFT, RIGHT = 44, 150
"""Margins of the curves; levels are named in the right one."""
TOP, HEIGHT = 104, 250
"""Of the curves."""
ROW, HEAD = 30, 62
"""Of the bars: a row, and what stands above the first."""
BAR = 70
RATED, FILLED, LINE = "rating", "fill, one pass", "fill, lines scored"
"""Measures, named as `measured` has them; that module loads torch."""
STYLE = """text{font:14px system-ui,sans-serif;fill:#24292f} .title{font-weight:600;font-size:17px}
.small{font-size:12.5px} .end{text-anchor:end} .mid{text-anchor:middle} .page{fill:#fff}
.grid{stroke:#d8dee4} .axis{stroke:#57606a;fill:none}
.level{stroke:#57606a;stroke-dasharray:2 4} .quiet{fill:#57606a} .line{stroke:currentColor;stroke-width:3;fill:none}
.seed{stroke:currentColor;fill:none;opacity:.35} .dot,.bar{fill:currentColor} .track{fill:#eaeef2}
.c0{color:#0969da} .c1{color:#bc4c00} .c2{color:#1a7f37} .c3{color:#8250df}
.d1{stroke-dasharray:7 7} .d4,.d5{stroke-dasharray:2 5;stroke-linecap:round}"""
NIGHT = """text{fill:#e6edf3} .page{fill:#0d1117} .grid{stroke:#21262d} .axis,.level{stroke:#8b949e}
.quiet{fill:#9198a1} .track{fill:#21262d} .c0{color:#58a6ff} .c1{color:#f0883e} .c2{color:#3fb950} .c3{color:#bc8cff}"""
COLOURS = {0: 0, 1: 1, 2: 2, 3: 3, 4: 2, 5: 3}
"""Entry → colour: windows that begin anywhere have their architecture's, with other dashes."""


def picture(results: Results) -> str:
    """The record as SVG."""
    full = all(LINE in entry.runs[0].points[-1].values for entry in results.entries)
    parts = [*_curves(results), *(_bars(results) if full else ())]
    height = TOP + HEIGHT + 58 + ((HEAD + ROW * len(results.entries) + 8) if full else 0)
    style = f"<style>{_inside(STYLE)}@media(prefers-color-scheme:dark){{{_inside(NIGHT)}}}</style>"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="unmask-architectures" viewBox="0 0 {WIDTH} {height}" '
            f'width="100%" style="max-width:{WIDTH * 3 // 2}px" role="img" aria-labelledby="arch-t arch-d">',
            f'<title id="arch-t">{escape(results.title)}</title>',
            f'<desc id="arch-d">{escape(_told(results))}</desc>',
            style,
            '<rect class="page" width="100%" height="100%"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _inside(rules: str) -> str:
    """Rules for this picture alone, whatever page it stands in."""
    named = (rule.strip() for rule in rules.split("}") if rule.strip())
    return "".join(f".unmask-architectures {rule.replace(',.', ',.unmask-architectures .')}}}" for rule in named)


def _values(entry: Entry) -> list[list[float]]:
    """The rating of every seed at every milestone."""
    return [[v for p in run.points if (v := p.values[RATED]) is not None] for run in entry.runs]


def _told(results: Results) -> str:
    """What a screen reader says."""
    ends = (f"{e.name} {statistics.median(v[-1] for v in _values(e)):.2f}" for e in results.entries)
    return f"Line chart of the share of ratings that are right by updates. At the end: {', '.join(ends)}."


# ---------------------------------------------------------------- curves


def _curves(results: Results) -> Iterator[str]:
    steps = [p.step for p in results.entries[0].runs[0].points]
    measure = next(m for m in results.measures if m.name == RATED)
    x = Scale(0, steps[-1], LEFT, WIDTH - RIGHT)
    low = min([0.3, *(v for e in results.entries for run in _values(e) for v in run)])
    y = Scale(min(0.2, low) if low < 0.3 else 0.3, 1, TOP + HEIGHT, TOP)
    seeds = len(results.seeds)
    yield '<text class="title" x="8" y="26">Who learns what decides a rating?</text>'
    many = f"median and each of {seeds} seeds" if seeds > 1 else "one seed"
    yield f'<text class="small quiet" x="8" y="46">share right of 200 new reviews, by updates · {many}</text>'
    yield from _legend(results)
    for tick in (0.4, 0.6, 0.8, 1.0):
        yield f'<path class="grid" d="M{_n(x.start)} {_n(y(tick))}H{_n(x.end)}"/>'
        yield f'<text class="small end" x="{_n(x.start - 6)}" y="{_n(y(tick) + 4)}">{tick:.1f}</text>'
    for step in (0, *steps):
        yield f'<path class="axis" d="M{_n(x(step))} {_n(y.start)}v5"/>'
        yield f'<text class="small mid" x="{_n(x(step))}" y="{_n(y.start + 20)}">{step:,}</text>'
    yield f'<path class="axis" d="M{_n(x.start)} {_n(y.start)}H{_n(x.end)}"/>'
    for level in measure.levels:
        yield f'<path class="level" d="M{_n(x.start)} {_n(y(level.value))}H{_n(x.end + 6)}"/>'
        said = f"{escape(level.label)} {level.value:.2f}"
        yield f'<text class="small quiet" x="{_n(x.end + 10)}" y="{_n(y(level.value) + 4)}">{said}</text>'
    drawn = sorted(range(len(results.entries)), key=lambda k: k if k < 2 else -k)  # dashes above the line beside them
    for k in drawn:
        entry = results.entries[k]
        runs = _values(entry)
        for run in runs if len(runs) > 1 else ():
            yield f'<path class="seed c{COLOURS[k]}" d="{_path(x, y, steps, run)}"/>'
        middle = [statistics.median(at) for at in zip(*runs, strict=True)]
        yield f'<path class="line c{COLOURS[k]} d{k}" d="{_path(x, y, steps, middle)}"/>'
        for step, value in zip(steps, middle, strict=True):
            told = f"<title>{escape(entry.name)}: {step:,} updates → {value:.2f}</title>"
            yield f'<circle class="dot c{COLOURS[k]}" cx="{_n(x(step))}" cy="{_n(y(value))}" r="3.5">{told}</circle>'


def _legend(results: Results) -> Iterator[str]:
    """Three names a line."""
    for k, entry in enumerate(results.entries):
        left, at = 8 + 160 * (k % 4 if k < 4 else k - 2), 68 if k < 4 else 88
        yield f'<path class="line c{COLOURS[k]} d{k}" d="M{left} {at - 4}h26"/>'
        yield f'<text class="small" x="{left + 33}" y="{at}">{escape(entry.name)}</text>'


def _path(x: Scale, y: Scale, steps: Sequence[int], values: Sequence[float]) -> str:
    return "M" + "L".join(f"{_n(x(s))} {_n(y(v))}" for s, v in zip(steps, values, strict=True))


# ---------------------------------------------------------------- bars


def _bars(results: Results) -> Iterator[str]:
    """What each can do at the end: the median over seeds."""
    top, columns = TOP + HEIGHT + 58, list(ABILITIES)
    yield f'<text class="title" x="8" y="{top + 8}">What can it do in the end?</text>'
    yield f'<text class="small quiet" x="8" y="{top + 45}">stroke: chance</text>'
    for c, name in enumerate(columns):
        for line, text in enumerate(name.split("|")):
            yield f'<text class="small quiet" x="{_column(c)}" y="{top + 30 + 15 * line}">{text}</text>'
    for k, entry in enumerate(results.entries):
        at = top + HEAD + ROW * k
        yield f'<text class="small" x="8" y="{at + 13}">{escape(entry.name)}</text>'
        for c, name in enumerate(columns):
            value = statistics.median(ABILITIES[name](run.points[-1]) for run in entry.runs)
            place = f'x="{_column(c)}" y="{at + 2}" height="13" rx="3"'
            yield f'<rect class="track" {place} width="{BAR}"/>'
            yield f'<rect class="bar c{COLOURS[k]}" {place} width="{_n(BAR * value)}"/>'
            if name not in UNGUESSED:
                yield f'<path class="axis" d="M{_n(_column(c) + BAR / 2)} {at}v17"/>'
            yield f'<text class="small" x="{_column(c) + BAR + 5}" y="{at + 13}">{value:.2f}</text>'


def _column(number: int) -> int:
    return 142 + 124 * number


def _value(name: str) -> Any:
    return lambda point: point.values[name] or 0.0


def _written(point: Point) -> float:
    """By its best way."""
    return max(float(way["valid"]) for way in point.details["writing"].values())


def _read(point: Point) -> float:
    """Of "review: the soup was tasty" alone: the other words of a whole review would give its side away."""
    return float(point.details["probes"]["mean, clause"]["128"])


ABILITIES = {
    "fill a gap in|one pass": _value(FILLED),
    "fill it by|scoring 16 lines": _value(LINE),
    "write a line,|well formed": _written,
    "know an unlabelled|word by itself": _read,
}
"""Name → what it reads of the last point; | parts two lines."""
UNGUESSED = ("write a line,|well formed",)
"""What chance does not get half right; a stroke marks the half of all others."""


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
