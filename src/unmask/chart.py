"""Line and bar charts as SVG text, without a dependency: what a report shows beside its numbers.

A `Chart` is data; `svg` draws one or several, one below the other, 420 units wide, so that its text can be read on
a phone. Colours follow the reader's light or dark setting; lines also differ by their dashes, a mark tells its value
when pointed at, and every chart has a title and a description for screen readers. Text is escaped.

>>> chart = Chart("Loss", (Series("seed 1", [1, 10, 100], [4.0, 3.0, 2.5]),), "step", "nats", log_x=True)
>>> svg(chart).count('class="line')
1
"""

from __future__ import annotations

import math
import textwrap
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

WIDTH, HEIGHT, BAR, RIGHT = 420, 200, 15, 16
"""Of a picture (some 1.1 to a pixel of a phone held upright), of the area of lines, of a bar, of the right margin."""
LETTER = 6.8
"""Mean width of a character of 12 units in a sans-serif face, rounded up."""
COLOURS = 6
"""The seventh series begins again with the first one's colour and dashes."""
MARKS = 60
"""A line of more points than these is drawn without marks."""
DAY = """text{font:12px system-ui,sans-serif;fill:#24292f} .title{font-weight:600;font-size:13px} .end{text-anchor:end}
.mid{text-anchor:middle} .page{fill:#fff} .grid{stroke:#d8dee4} .axis{stroke:#57606a;fill:none} .bar{fill:currentColor}
.line{stroke:currentColor;stroke-width:2;fill:none} .band{fill:currentColor;opacity:.18} .dot{fill:currentColor}
.s0{color:#0969da} .s1{color:#bc4c00} .s2{color:#1a7f37} .s3{color:#8250df} .s4{color:#bf3989} .s5{color:#57606a}
.line.s1{stroke-dasharray:6 3} .line.s2{stroke-dasharray:2 3} .line.s3{stroke-dasharray:8 3 2 3}
.line.s4{stroke-dasharray:12 4} .line.s5{stroke-dasharray:4 2}"""
NIGHT = """text{fill:#e6edf3} .page{fill:#0d1117} .grid{stroke:#30363d} .axis{stroke:#8b949e} .s0{color:#58a6ff}
.s1{color:#f0883e} .s2{color:#3fb950} .s3{color:#bc8cff} .s4{color:#f778ba} .s5{color:#b1bac4}"""


@dataclass(frozen=True)
class Series:
    """One line, or one bar in each group. None or NaN in `y` leaves a gap."""

    name: str
    x: Sequence[float] | Sequence[str]
    """Numbers along a line; labels of groups of bars, the same in every series of a chart."""
    y: Sequence[float | None]
    low: Sequence[float] | None = None
    """With `high`, a band about a line or a whisker on a bar: a range over seeds, an interval."""
    high: Sequence[float] | None = None

    def __post_init__(self) -> None:
        lengths = {len(v) for v in (self.x, self.y, self.low, self.high) if v is not None}
        if len(lengths) != 1 or (self.low is None) != (self.high is None):
            raise ValueError(
                f"series {self.name!r}: x, y, low and high differ in length, or one of low, high is missing"
            )


@dataclass(frozen=True)
class Chart:
    """What is drawn. Bars lie on their side, start at 0 and carry their value, which `y_label` names."""

    title: str
    series: tuple[Series, ...]
    x_label: str = ""
    y_label: str = ""
    kind: Literal["line", "bar"] = "line"
    log_x: bool = False
    log_y: bool = False
    """Of lines. A logarithmic scale leaves out what is not above 0."""


@dataclass(frozen=True)
class Scale:
    """Values from low to high on pixels from start to end.

    >>> Scale(1, 1000, 0, 300, log=True)(10)
    100.0
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * ((at - low) / (high - low) if high > low else 0.5)

    def ticks(self, most: int = 6) -> list[float]:
        """About `most` round values inside the scale, at the most."""
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for digits in ((1,), (1, 2, 5)):
                found = [d * 10.0**k for k in decades for d in digits if self.low <= d * 10.0**k <= self.high]
                if len(found) > 2:
                    return found[:: math.ceil(len(found) / (most + 1))]
        step = _step(self.low, self.high, most)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(k * step, 12) for k in range(first, last + 1)]


def svg(*charts: Chart) -> str:
    """The charts as one SVG document."""
    style = f"<style>{_inside(DAY)}@media(prefers-color-scheme:dark){{{_inside(NIGHT)}}}</style>"
    parts: list[str] = []
    top = 0.0
    for chart in charts:
        inside, height = (_bars if chart.kind == "bar" else _lines)(chart)
        parts += [f'<g transform="translate(0 {_n(top)})">', *inside, "</g></g>"]
        top += height
    box = f'viewBox="0 0 {WIDTH} {_n(top)}" width="100%" style="max-width:{2 * WIDTH}px"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="unmask-chart" {box}>'
    return "\n".join([head, style, '<rect class="page" width="100%" height="100%"/>', *parts, "</svg>", ""])


def label(value: float) -> str:
    """A number in few characters.

    >>> [label(v) for v in (0, 0.25, 1.5, 2500, 40_000, 1_000_000, 3.1e9, 2e18)]
    ['0', '0.25', '1.5', '2500', '40k', '1M', '3.1G', '2e18']
    """
    if abs(value) >= 1e13:
        return f"{value:.3g}".replace("e+", "e")
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(unit, 1e4):
            return f"{value / unit:.4g}{name}"
    return f"{value:.4g}"


_Point = tuple[int, Any, tuple[float, float, float]]
"""Place in the series, what stands at x, and (value, low, high)."""


def _points(chart: Chart, series: Series) -> list[_Point]:
    """What can be drawn of a series."""
    found: list[_Point] = []
    x: Any
    for i, (x, value) in enumerate(zip(series.x, series.y, strict=True)):
        if value is None or not math.isfinite(value) or (chart.log_x and x <= 0):
            continue
        band = (value, value) if series.low is None or series.high is None else (series.low[i], series.high[i])
        if not (chart.log_y and min(value, *band) <= 0):
            found.append((i, x, (value, *band)))
    return found


def _lines(chart: Chart) -> tuple[list[str], float]:
    """Elements, and the height they take."""
    out, top = _head(chart)
    points = [_points(chart, s) for s in chart.series]
    xs = [x for line in points for _, x, _ in line] or [1.0, 10.0]
    ys = [v for line in points for *_, y in line for v in y] or [1.0, 10.0]
    y = Scale(*_domain(min(ys), max(ys), chart.log_y), top + HEIGHT, top, chart.log_y)
    margin = 12 + LETTER * max(len(label(t)) for t in y.ticks())
    x = Scale(min(xs), max(xs), margin, WIDTH - RIGHT, chart.log_x)
    left, right, bottom = _n(x.start), _n(x.end), _n(y.start)
    for tick in y.ticks():
        out.append(f'<path class="grid" d="M{left} {_n(y(tick))}H{right}"/>')
        out.append(f'<text class="end" x="{_n(x.start - 5)}" y="{_n(y(tick) + 4)}">{label(tick)}</text>')
    for tick in x.ticks():
        out.append(f'<path class="axis" d="M{_n(x(tick))} {bottom}v4"/>')
        out.append(f'<text class="mid" x="{_n(x(tick))}" y="{_n(y.start + 18)}">{label(tick)}</text>')
    out.append(f'<path class="axis" d="M{left} {_n(top)}V{bottom}H{right}"/>')
    out.append(f'<text class="end" x="{right}" y="{_n(y.start + 36)}">{_text(chart.x_label)}</text>')
    for k, (series, line) in enumerate(zip(chart.series, points, strict=True)):
        out += _line(series, k, line, x, y)
    return out, y.start + 56


def _line(series: Series, k: int, points: list[_Point], x: Scale, y: Scale) -> Iterator[str]:
    """A band, a line that is broken where there is no value, and its points."""
    k %= COLOURS
    at = {i: f"{_n(x(v))} " for i, v, _ in points}
    if series.low is not None and points:
        edge = [at[i] + _n(y(v[1])) for i, _, v in points] + [at[i] + _n(y(v[2])) for i, _, v in reversed(points)]
        yield f'<path class="band s{k}" d="M{"L".join(edge)}Z"/>'
    path = "".join(("L" if i - 1 in at else "M") + at[i] + _n(y(v[0])) for i, _, v in points)
    yield f'<path class="line s{k}" d="{path}"/>'
    for i, stands, v in points if len(points) <= MARKS else ():
        told = _text(f"{series.name}: {label(stands)} → {label(v[0])}")
        place = f'cx="{at[i].strip()}" cy="{_n(y(v[0]))}"'
        yield f'<circle class="dot s{k}" {place} r="2.5"><title>{told}</title></circle>'


def _bars(chart: Chart) -> tuple[list[str], float]:
    out, top = _head(chart)
    points = [_points(chart, s) for s in chart.series]
    groups = [str(g) for g in chart.series[0].x] if chart.series else []
    left = min(0.4 * WIDTH, 12 + LETTER * max(map(len, groups), default=0))
    x = Scale(0, max((v for bars in points for *_, y in bars for v in y), default=0) or 1, left, WIDTH - 56)
    deep = len(points) * BAR + 8
    fits = int((left - 12) / LETTER) + 1
    for g, group in enumerate(groups):
        short = _text(group if len(group) <= fits else group[: fits - 1] + "…")
        out.append(f'<text class="end" x="{_n(left - 6)}" y="{_n(top + g * deep + deep / 2)}">{short}</text>')
    for k, (series, bars) in enumerate(zip(chart.series, points, strict=True)):
        for i, group, (value, low, high) in bars:
            y = top + i * deep + k * BAR
            box = f'x="{_n(left)}" y="{_n(y)}" width="{_n(x(value) - left)}" height="{BAR - 2}"'
            told = _text(f"{group}, {series.name}: {label(value)}")
            out.append(f'<rect class="bar s{k % COLOURS}" {box}><title>{told}</title></rect>')
            out.append(f'<text x="{_n(x(max(value, high)) + 4)}" y="{_n(y + 11)}">{label(value)}</text>')
            if high > low:
                out.append(f'<path class="axis" d="M{_n(x(low))} {_n(y + 6)}H{_n(x(high))}"/>')
    bottom = top + len(groups) * deep
    return [*out, f'<path class="axis" d="M{_n(left)} {_n(top - 2)}V{_n(bottom - 4)}"/>'], bottom + 20


def _head(chart: Chart) -> tuple[list[str], float]:
    """The group with its title, description, legend and value label; and where the drawing starts."""
    name = f"c{zlib.crc32(repr(chart).encode()):08x}"  # the same chart has the same ids, on whatever page
    out = [
        f'<g role="img" aria-labelledby="{name}t {name}d"><title id="{name}t">{_text(chart.title)}</title>',
        f'<desc id="{name}d">{_text(_told(chart))}</desc>',
    ]
    y = 6
    for line in textwrap.wrap(chart.title, 52) or [""]:
        y += 16
        out.append(f'<text class="title" x="4" y="{y}">{_text(line)}</text>')
    x = float(WIDTH)
    for k, series in enumerate(chart.series if len(chart.series) > 1 else ()):
        needs = 34 + LETTER * len(series.name)
        if x + needs > WIDTH:
            x, y = 4.0, y + 18
        mark = f'<path class="line s{k % COLOURS}" d="M{_n(x)} {y - 4}h18"/>'
        if chart.kind == "bar":
            mark = f'<rect class="bar s{k % COLOURS}" x="{_n(x)}" y="{y - 9}" width="18" height="9"/>'
        out.append(f'{mark}<text x="{_n(x + 22)}" y="{y}">{_text(series.name)}</text>')
        x += needs
    return [*out, f'<text x="4" y="{y + 22}">{_text(chart.y_label)}</text>'], y + 32.0


def _told(chart: Chart) -> str:
    """What a screen reader says: axes, and values of each series (of a line its ends and its middle)."""
    told = []
    for series in chart.series:
        points = _points(chart, series)
        if chart.kind == "line" and len(points) > 3:
            points = [points[0], points[len(points) // 2], points[-1]]
        values = ", ".join(f"{x if isinstance(x, str) else label(x)}: {label(y[0])}" for _, x, y in points)
        told.append(f"{series.name}: {values or 'no value'}")
    return f"A {chart.kind} chart of {chart.y_label or 'values'} by {chart.x_label or 'name'}. {'; '.join(told)}."


def _domain(low: float, high: float, log: bool) -> tuple[float, float]:
    """What an axis spans: out to round values, or a little more than the values on a logarithmic scale."""
    if log:
        return low / 1.05, high * 1.05
    step = _step(low, high, 6)
    low, high = math.floor(low / step) * step, math.ceil(high / step) * step
    return (low, high) if high > low else (low - step, high + step)


def _step(low: float, high: float, most: int) -> float:
    """1, 2 or 5 times a power of ten, so that the range holds at most `most` of them."""
    rough = (high - low) / most or abs(high) / most or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next(d * power for d in (1, 2, 5, 10) if d * power >= rough * (1 - 1e-9))


def _text(text: str) -> str:
    """Escaped, and without the control characters that XML forbids."""
    return escape("".join(c if c.isprintable() else "\ufffd" for c in text))


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _inside(rules: str) -> str:
    """Rules for the picture alone, whatever page it stands in."""
    return "".join(f".unmask-chart {rule.strip()}}}" for rule in rules.split("}") if rule.strip())
