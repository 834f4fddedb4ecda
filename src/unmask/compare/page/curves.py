"""Learning curves: a picture for each measure and each axis, drawn here, so that a page's script only has to choose.

The picture is an SVG that stretches with the page (its strokes do not), in a frame of percentages in which words and
numbers stand as text of the page: they keep their size on a phone and are read aloud and found. A line is the mean
over seeds, a band reaches from the lowest to the highest seed, and the name of an entry stands at its line's end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from unmask.chart import Scale
from unmask.compare.page.markup import Html, join, number, short, tag, text
from unmask.compare.results import Entry, Measure, Results

COLOURS = 8
"""Of lines (`.e0` … in the style sheet); the ninth begins again, with dashes."""
LONG = 11
"""Longer names do not fit beside a chart on a phone, which then has a key below."""
LABEL = 6.2
"""Least distance of two names at the right edge, in percent of the picture's height."""


@dataclass(frozen=True)
class Axis:
    name: str
    label: str


AXES = (
    Axis("step", "steps"),
    Axis("tokens", "tokens"),
    Axis("target_tokens", "target tokens"),
    Axis("flops", "FLOPs"),
    Axis("seconds", "seconds"),
)


@dataclass(frozen=True)
class Milestone:
    """The k-th point of an entry's runs."""

    at: dict[str, float]
    """Axis → mean over runs."""
    values: dict[str, list[float]]
    """Measure → one value for each run that has one."""


@dataclass(frozen=True)
class Line:
    """An entry in a chart: (x, mean, lowest, highest) at each milestone."""

    name: str
    colour: str
    points: list[tuple[float, float, float, float]]


def milestones(entry: Entry) -> list[Milestone]:
    """Points of all runs, brought together by their order: an unfinished run has the first of them."""
    found = []
    for k in range(max((len(run.points) for run in entry.runs), default=0)):
        points = [run.points[k] for run in entry.runs if len(run.points) > k]
        at = {axis.name: fmean(getattr(p, axis.name) for p in points) for axis in AXES}
        names = dict.fromkeys(name for p in points for name in p.values)
        values = {name: [v for p in points if (v := p.values.get(name)) is not None] for name in names}
        found.append(Milestone(at, {name: held for name, held in values.items() if held}))
    return found


def colour(k: int) -> str:
    """The class of the k-th entry's colour."""
    return f"e{k % COLOURS}" + (" dashed" if k >= COLOURS else "")


def lines(results: Results, measure: str, axis: str) -> list[Line]:
    """Entries that have values of a measure."""
    found = []
    for k, entry in enumerate(results.entries):
        held = [(m.at[axis], m.values[measure]) for m in milestones(entry) if measure in m.values]
        if held:
            found.append(Line(entry.name, colour(k), [(x, fmean(v), min(v), max(v)) for x, v in held]))
    return found


def figures(results: Results) -> list[Html]:
    """All measures against all axes; only those against the first axis are shown without a script."""
    return [
        figure(measure, axis, drawn, hidden=axis is not AXES[0])
        for measure in results.measures
        for axis in AXES
        if (drawn := lines(results, measure.name, axis.name))
    ]


def figure(measure: Measure, axis: Axis, drawn: Sequence[Line], hidden: bool) -> Html:
    """One picture with its caption, and in `aria-label` what it shows in words."""
    x, y = _scales(measure, drawn)
    scale = ", logarithmic" if x.log else ""
    name = tag("strong", measure.label, f" ({measure.unit})" if measure.unit else "")
    caption = tag("figcaption", name, tag("span", f"{measure.protocol} · {measure.better} is better", class_="note"))
    inside = [
        Html(
            f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" aria-hidden="true">{join(_strokes(drawn, x, y))}'
        ),
        *(Html(f'<path class="level" d="M0 {_n(y(v.value))}H1000"/>') for v in measure.levels),
        Html("</svg>"),
        *(tag("span", short(t), class_="y", style=f"top:{_p(y(t))}%") for t in y.ticks(5)),
        *(tag("span", short(t), class_="x", style=f"left:{_p(x(t))}%") for t in x.ticks(5)),
        *_level_names(measure, y),
        *_names(drawn, y),
    ]
    plot = tag("div", *inside, class_="plot", role="img", aria_label=said(measure, axis, drawn))
    under = tag("p", axis.label + scale, class_="axis", aria_hidden="true")
    key = tag("ul", *(tag("li", line.name, class_=line.colour) for line in drawn), class_="key", aria_hidden="true")
    longest = max(len(line.name) for line in drawn)
    return tag(
        "figure",
        *(caption, plot, under, key),
        class_="chart long" if longest > LONG else "chart",
        style=f"--side:{min(12.0, 4.4 + 0.47 * longest):.1f}rem",
        hidden=hidden,
        data_measure=measure.name,
        data_axis=axis.name,
    )


def said(measure: Measure, axis: Axis, drawn: Sequence[Line]) -> str:
    """The picture in words: where each line begins and ends, best first, and the trivial levels."""
    best = sorted(drawn, key=lambda line: line.points[-1][1], reverse=measure.better == "higher")
    told = "; ".join(
        f"{line.name} from {number(line.points[0][1])} to {number(line.points[-1][1])} at {short(line.points[-1][0])}"
        for line in best
    )
    levels = "".join(f" Trivial level {level.label}: {number(level.value)}." for level in measure.levels)
    return f"{measure.label} against {axis.label}, {measure.better} is better. {told}.{levels}"


def strip(measure: Measure, k: int, values: Sequence[float], interval: tuple[float, float] | None, of: Scale) -> Html:
    """A final value as a small picture: a dot for each seed, a bar for the interval, dashes for trivial levels."""
    dots = "".join(f"M{_n(of(v))} 500h0" for v in values)
    bar = f'<path class="bar" d="M{_n(of(interval[0]))} 500H{_n(of(interval[1]))}"/>' if interval else ""
    dashes = "".join(f'<path class="level" d="M{_n(of(v.value))} 0V1000"/>' for v in measure.levels)
    inside = f'{dashes}<g class="{colour(k)}">{bar}<path class="dots" d="{dots}"/></g>'
    box = 'viewBox="0 0 1000 1000" preserveAspectRatio="none" aria-hidden="true"'
    return Html(f'<svg class="strip" {box}>{inside}</svg>')


def spread(measure: Measure, values: Sequence[float]) -> Scale:
    """Of strips: from the least to the greatest value or level."""
    held = [*values, *(level.value for level in measure.levels)]
    pad = (max(held) - min(held) or 1.0) * 0.06
    return Scale(min(held) - pad, max(held) + pad, 0, 1000)


def _scales(measure: Measure, drawn: Sequence[Line]) -> tuple[Scale, Scale]:
    """x is logarithmic where milestones span six doublings or more and none is at 0."""
    xs = [p[0] for line in drawn for p in line.points]
    ys = [v for line in drawn for p in line.points for v in p[1:]] + [level.value for level in measure.levels]
    pad = (max(ys) - min(ys) or abs(max(ys)) or 1.0) * 0.05
    log = min(xs) > 0 and max(xs) >= 64 * min(xs)
    left = min(xs) if log or min(xs) == max(xs) else min(0.0, min(xs))
    return Scale(left, max(xs), 0, 1000, log), Scale(min(ys) - pad, max(ys) + pad, 1000, 0)


def _strokes(drawn: Sequence[Line], x: Scale, y: Scale) -> Iterator[Html]:
    """Grid, bands under lines, dots, and from each line's end a thread to its name."""
    grid = "".join(f"M0 {_n(y(t))}H1000" for t in y.ticks(5))
    yield Html(f'<path class="grid" d="{grid}"/>')
    for line in drawn:
        at = [_n(x(p[0])) for p in line.points]
        up = [f"{a} {_n(y(p[3]))}" for a, p in zip(at, line.points, strict=True)]
        down = [f"{a} {_n(y(p[2]))}" for a, p in zip(at, line.points, strict=True)]
        if up != down:
            yield Html(f'<path class="band {line.colour}" d="M{"L".join(up + down[::-1])}Z"/>')
    places = _places(drawn, y)
    for line, place in zip(drawn, places, strict=True):
        at = [f"{_n(x(p[0]))} {_n(y(p[1]))}" for p in line.points]
        yield Html(f'<path class="thread {line.colour}" d="M{at[-1]}L1000 {_n(place * 10)}"/>')
        dots = "".join(f"M{a}h0" for a in at)
        name = text(f"{line.name}: {number(line.points[-1][1])} at the end")
        yield Html(f'<g class="{line.colour}"><title>{name}</title><path class="line" d="M{"L".join(at)}"/>')
        yield Html(f'<path class="dots" d="{dots}"/></g>')


def _level_names(measure: Measure, y: Scale) -> Iterator[Html]:
    levels = sorted(measure.levels, key=lambda level: -level.value)
    places = _apart([y(level.value) / 10 for level in levels])
    for level, place in zip(levels, places, strict=True):
        yield tag("span", f"{level.label} {number(level.value)}", class_="level", style=f"top:{place:.1f}%")


def _names(drawn: Sequence[Line], y: Scale) -> Iterator[Html]:
    for line, place in zip(drawn, _places(drawn, y), strict=True):
        value = tag("b", number(line.points[-1][1]))
        yield tag(
            "span", value, " ", line.name, class_=f"name {line.colour}", style=f"top:{place:.1f}%", title=line.name
        )


def _places(drawn: Sequence[Line], y: Scale) -> list[float]:
    """Where names stand, in percent from the top, in the order of the lines."""
    ends = [y(line.points[-1][1]) / 10 for line in drawn]
    order = sorted(range(len(ends)), key=lambda i: ends[i])
    places = dict(zip(order, _apart([ends[i] for i in order]), strict=True))
    return [places[i] for i in range(len(ends))]


def _apart(wanted: Sequence[float], low: float = 1.0, high: float = 99.0) -> list[float]:
    """Places in ascending order, at least LABEL apart where that fits, each near where it is wanted.

    >>> [round(v, 1) for v in _apart([50, 51, 90])]
    [47.4, 53.6, 90.0]
    """
    gap = min(LABEL, (high - low) / max(1, len(wanted) - 1))

    def kept(centre: float, members: int) -> float:
        half = gap * (members - 1) / 2
        return min(max(centre, low + half), high - half)

    groups: list[tuple[float, int]] = []  # centre, members
    for place in wanted:
        centre, members = kept(place, 1), 1
        while groups and centre - gap * members / 2 < groups[-1][0] + gap * groups[-1][1] / 2 - 1e-9:
            before, count = groups.pop()
            centre = kept((before * count + centre * members) / (count + members), count + members)
            members += count
        groups.append((centre, members))
    return [centre + gap * (i - (members - 1) / 2) for centre, members in groups for i in range(members)]


def _n(value: float) -> str:
    return f"{value:.0f}"


def _p(value: float) -> str:
    return f"{value / 10:.1f}".removesuffix(".0")
