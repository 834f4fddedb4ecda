"""Plots of numbers against numbers, in the same frame as the learning curves (`curves`): lines, bands, dots, rings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from unmask.chart import Scale
from unmask.compare.page.curves import LONG, _apart, _n, _p, colour
from unmask.compare.page.markup import Html, join, short, tag, text

PAD = 0.05
"""Of the values' range, above and below."""
ACROSS = 3
"""Numbers below a picture, about: as many as stand apart on a phone."""
ROUND = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7))
"""First digits of numbers along a logarithmic scale: the first that give enough of them."""
DOT, RING, HOLE = 6, 13, 8
"""Diameters in pixels."""


@dataclass(frozen=True)
class Trace:
    """What is drawn under one name, in one colour; pairs are (x, y)."""

    name: str
    k: int
    """Of its colour."""
    line: Sequence[tuple[float, float]] = ()
    band: Sequence[tuple[float, float, float]] = ()
    """(x, low, high) about the line."""
    dots: Sequence[tuple[float, float]] = ()
    rings: Sequence[tuple[float, float]] = ()
    """Places that stand out."""
    whiskers: Sequence[tuple[float, float, float]] = ()
    """(x, low, high): an interval each."""
    dashed: bool = False

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """All that must fit into the picture."""
        wide = [(x, v) for x, *both in (*self.band, *self.whiskers) for v in both]
        return [*self.line, *self.dots, *self.rings, *wide]

    @property
    def end(self) -> tuple[float, float]:
        """Where its name is tied to."""
        return max((*self.line, *self.dots, *self.rings), key=lambda pair: pair[0])


@dataclass(frozen=True)
class Plot:
    title: str
    note: str
    """What is seen, for those who see it."""
    said: str
    """And for those who do not."""
    x_label: str
    y_label: str
    traces: Sequence[Trace]
    log_x: bool = True
    log_y: bool = False


def plotted(plot: Plot) -> Html:
    """A figure: the picture, its words, and a key where names do not fit beside it."""
    x, y = _scales(plot)
    ends = [y(t.end[1]) / 10 for t in plot.traces]
    order = sorted(range(len(ends)), key=lambda k: ends[k])
    places = dict(zip(order, _apart([ends[k] for k in order]), strict=True))
    strokes = join(s for k, t in enumerate(plot.traces) for s in _strokes(t, x, y, places[k]))
    grid = "".join(f"M0 {_n(y(v))}H1000" for v in y.ticks(5))
    box = 'viewBox="0 0 1000 1000" preserveAspectRatio="none" aria-hidden="true"'
    inside = [
        Html(f'<svg {box}><path class="grid" d="{grid}"/>{strokes}</svg>'),
        *(tag("span", short(v), class_="y", style=f"top:{_p(y(v))}%") for v in y.ticks(5)),
        *(tag("span", _power(v), class_="x", style=f"left:{_p(x(v))}%") for v in across(x)),
        *(
            tag("span", t.name, class_=f"name {colour(t.k)}", style=f"top:{places[k]:.1f}%", title=t.name)
            for k, t in enumerate(plot.traces)
        ),
    ]
    scale = f"{plot.x_label}{', logarithmic' if plot.log_x else ''}"
    longest = max(len(t.name) for t in plot.traces)
    caption = tag("strong", plot.title, f" ({plot.y_label})" if plot.y_label else "")
    key = tag("ul", *(tag("li", t.name, class_=colour(t.k)) for t in plot.traces), class_="key", aria_hidden="true")
    return tag(
        "figure",
        tag("figcaption", caption, tag("span", plot.note, class_="note")),
        tag("div", *inside, class_="plot", role="img", aria_label=f"{plot.title}. {plot.said}"),
        tag("p", scale, class_="axis", aria_hidden="true"),
        key,
        class_="chart long" if longest > LONG else "chart",
        style=f"--side:{min(12.0, 2.2 + 0.47 * longest):.1f}rem",
    )


def across(scale: Scale) -> list[float]:
    """Numbers below a picture, far enough apart; also on a logarithmic scale of less than a decade.

    >>> across(Scale(5.3e4, 3.8e5, 0, 1000, log=True)), across(Scale(2e18, 1e20, 0, 1000, log=True))
    ([70000.0, 150000.0, 300000.0], [3e+18, 1e+19, 3e+19, 1e+20])
    """
    if not scale.log:
        return scale.ticks(ACROSS)
    decades = range(math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high)) + 1)
    gap = (scale.end - scale.start) / (ACROSS + 1)
    for digits in ROUND:
        found = [round(d * 10.0**k, 12) for k in decades for d in digits]
        kept: list[float] = []
        for value in (v for v in found if scale.low <= v <= scale.high):
            if not kept or scale(value) - scale(kept[-1]) >= gap:
                kept.append(value)
        if len(kept) >= ACROSS:
            return kept
    return scale.ticks(ACROSS)


def _power(value: float) -> str:
    """
    >>> _power(1e22), _power(5e22), _power(2e5)
    ('10²²', '5×10²²', '200k')
    """
    return short(value).removeprefix("1×")


def _scales(plot: Plot) -> tuple[Scale, Scale]:
    pairs = [pair for trace in plot.traces for pair in trace.pairs]
    xs, ys = [x for x, _ in pairs], [y for _, y in pairs]
    low, high = min(ys), max(ys)
    if plot.log_y:
        low, high = low / (high / low) ** PAD, high * (high / low) ** PAD
    else:
        pad = (high - low or abs(high) or 1.0) * PAD
        low, high = low - pad, high + pad
    return Scale(min(xs), max(xs), 0, 1000, plot.log_x), Scale(low, high, 1000, 0, plot.log_y)


def _strokes(trace: Trace, x: Scale, y: Scale, place: float) -> Iterator[Html]:
    """Band, thread to the name, line, intervals, dots, rings: each over the one before."""

    def at(pair: tuple[float, float]) -> str:
        return f"{_n(x(pair[0]))} {_n(y(pair[1]))}"

    def dotted(pairs: Sequence[tuple[float, float]], style: str) -> Html:
        return Html(f'<path class="dots" style="{style}" d="{"".join(f"M{at(p)}h0" for p in pairs)}"/>')

    of = colour(trace.k)
    if trace.band:
        edge = [at((a, high)) for a, _, high in trace.band] + [at((a, low)) for a, low, _ in trace.band[::-1]]
        yield Html(f'<path class="band {of}" d="M{"L".join(edge)}Z"/>')
    yield Html(f'<path class="thread {of}" d="M{at(trace.end)}L1000 {_n(10 * place)}"/>')
    yield Html(f'<g class="{of}"><title>{text(trace.name)}</title>')
    if trace.line:
        dashes = ' style="stroke-dasharray:6 4"' if trace.dashed else ""
        yield Html(f'<path class="line"{dashes} d="M{"L".join(map(at, trace.line))}"/>')
    if trace.whiskers:
        bars = "".join(f"M{at((a, low))}L{at((a, high))}" for a, low, high in trace.whiskers)
        yield Html(f'<path class="line" d="{bars}"/>')
    if trace.dots:
        yield dotted(trace.dots, f"stroke-width:{DOT}")
    if trace.rings:
        yield dotted(trace.rings, f"stroke-width:{RING}")
        yield dotted(trace.rings, f"stroke-width:{HOLE};stroke:var(--card)")
    yield Html("</g>")
