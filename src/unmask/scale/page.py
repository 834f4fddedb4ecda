"""report.html of a scaling study: what it says in words, its pictures, its tables; drawn from results.json alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from unmask.compare.page import record, sections
from unmask.compare.page.assembly import assembled
from unmask.compare.page.markup import Html, join, listed, more, number, several, short, span, tag
from unmask.compare.page.plot import Plot, Trace, plotted
from unmask.compare.results import Results, Table
from unmask.scale.isoflop import parabola
from unmask.scale.points import Points

LAW = "L(N, D) = E + A / N^α + B / D^β"
METHODS = "Best N grows as C^a"
HELD = "Held-out larger runs"
BEST = "Best N and D"
PATH = "Least loss for a budget"
POINTS = "Runs"
"""Titles of tables, by which the page finds them."""
WORDS = (
    ("law", "L(N, D) = E + A / N^α + B / D^β: the loss L of a model of N parameters trained on D tokens."),
    ("E", "What is left of the loss for the largest model and endless text, as far as these runs tell."),
    ("α, β", "How fast the loss falls with size and with text; A and B are how much there is to gain of each."),
    ("FLOPs, budget", "Multiplications and additions of a training run; about 6 N D, or by formula for each shape."),
    (
        "95 % interval",
        "A range that is made to hold the truth in 95 of 100 ladders, by drawing the runs anew (bootstrap).",
    ),
    (
        "projection",
        "The same law, fitted by least squares of relative errors: far from the first = hardly known.",
    ),
    (
        "parabola",
        "A curve through the losses of one budget; its lowest place is the best size, without a law.",
    ),
    ("held out", "Runs that no fit has seen, by which the law is checked."),
)
CURVE = 41
"""Points of a parabola that is drawn."""
ALL = 8
"""Budgets that are drawn; of more, so many spread over them."""


class Columns:
    """A table by its columns' names; `names` is its first column."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __getitem__(self, name: str) -> list[float]:
        at = self._table.columns.index(name)
        return [float(row[at] or 0.0) for row in self._table.rows]

    @property
    def names(self) -> list[str]:
        return [str(row[0]) for row in self._table.rows]

    def __len__(self) -> int:
        return len(self._table.rows)


def page(results: Results) -> str:
    """The whole page."""
    made = [
        ("verdict", "What it says", verdict(results)),
        ("pictures", "Pictures", join(plotted(plot) for plot in plots(results))),
        ("tables", "Tables", tables(results)),
        ("cost", "Cost", sections.cost(results)),
        ("settings", "Settings", record.settings(results)),
        ("environment", "Environment", record.environment(results)),
        ("words", "What the words mean", record.explained(WORDS)),
    ]
    runs = len(_table(results, POINTS)) + len(_table(results, HELD))
    facts = [several(runs, "run"), *([several(len(results.seeds), "seed")] if results.seeds else [])]
    return assembled(results, tag("p", " · ".join(facts), class_="facts"), made)


def tables(results: Results) -> Html:
    """The long ones are folded away."""
    long = (PATH, POINTS)
    shown = results.model_copy(update={"tables": [t for t in results.tables if t.title not in long]})
    folded = [t for t in results.tables if t.title in long]
    each = (more(t.title, record.tables(results.model_copy(update={"tables": [t]}))) for t in folded)
    return join([record.tables(shown), *each])


def _table(results: Results, title: str) -> Columns:
    """Empty where there is none."""
    found = next((t for t in results.tables if t.title == title), None)
    return Columns(found or Table(title=title, columns=["", *_HELD_COLUMNS], rows=[]))


_HELD_COLUMNS = ("n", "d", "flops", "loss", "predicted", "low", "high", "error %", "error low", "error high")


# ---------------------------------------------------------------- in words


def verdict(results: Results) -> Html:
    parts = [tag("p", s, class_="lead") for s in _overview(results)]
    if results.notes:
        parts += [tag("h3", "With care"), tag("ul", *(tag("li", note) for note in results.notes))]
    return join(parts)


def _overview(results: Results) -> Iterator[str]:
    best = _table(results, BEST)
    for k in range(len(best)):
        n, d, loss = (
            f"{show(best[c][k])} ({show(best[low][k])} to {show(best[high][k])})"
            for c, low, high, show in (
                ("n", "n low", "n high", _count),
                ("d", "d low", "d high", _count),
                ("loss", "low", "high", number),
            )
        )
        how = next(t for t in results.tables if t.title == BEST).rows[k][1]
        budget = f"{short(best['flops'][k])} FLOPs, counted by {how}"
        yield f"{budget}: best with {n} parameters and {d} tokens; loss {loss}."
    methods = next(t for t in results.tables if t.title == METHODS).rows
    said = []
    for name, a, low, high in methods:
        interval = f" ({span((float(low), float(high)))})" if low is not None and high is not None else ""
        said.append(f"{number(float(a or 0))}{interval} by {name}")
    yield f"The best size grows with the budget to the power {listed(said)}."
    held = _table(results, HELD)
    if len(held):
        inside = sum(
            low <= loss <= high for loss, low, high in zip(held["loss"], held["low"], held["high"], strict=True)
        )
        top = max(held["flops"]) / max(_table(results, POINTS)["flops"])
        worst = max(held["error %"], key=abs)
        yield (
            f"{several(len(held), 'run')} of {top:.2g} times the largest fitted budget, left out of every fit: the law "
            f"is off by {np.mean(np.abs(held['error %'])):.2g} % on average and {worst:+.2g} % at worst; {inside} of "
            f"{len(held)} lie inside their 95 % intervals."
        )


def _count(value: float) -> str:
    return short(float(f"{value:.3g}"))


# ---------------------------------------------------------------- pictures


def plots(results: Results) -> list[Plot]:
    table = _table(results, POINTS)
    n, d, loss, flops = (np.array(table[c]) for c in ("n", "d", "loss", "flops"))
    points = Points(n, d, loss, flops, tuple(table.names))
    return [*isoflops(results, points), least(results, points), sizes(results), *misses(results, points)]


def isoflops(results: Results, points: Points) -> list[Plot]:
    """Runs of each budget, its parabola, and the parabola's minimum; held-out runs with what the law says of them."""
    groups = [points.take(at) for at in points.budgets()]
    groups = [g for g in groups if len(g) > 1]
    keep = np.unique(np.linspace(0, len(groups) - 1, min(ALL, len(groups))).round().astype(int))
    traces, said = [], []
    for k, group in enumerate(groups[i] for i in keep.tolist()):
        name = f"{group.flops.mean():.2g}".replace("+", "")
        found = parabola(group.n, group.loss)
        along = np.geomspace(group.n.min(), group.n.max(), CURVE)
        line = _pairs(along, found.loss(along)) if found is not None else _pairs(group.n, group.loss)
        inside = found is not None and group.n.min() <= np.exp(found.top) <= group.n.max()
        rings = [(float(np.exp(found.top)), found.height)] if found is not None and inside else []
        traces.append(Trace(name, k, line, dots=_pairs(group.n, group.loss), rings=rings))
        said.append(
            f"{name} FLOPs: least at {short(float(f'{rings[0][0]:.3g}'))} parameters, loss {number(rings[0][1])}"
            if rings
            else f"{name} FLOPs: no minimum among its sizes"
        )
    held = _table(results, HELD)
    if len(held):
        order = np.argsort(held["n"])
        predicted = [(held["n"][i], held["predicted"][i]) for i in order]
        traces.append(Trace("held out", len(traces), predicted, dots=_pairs(held["n"], held["loss"]), dashed=True))
        said.append("held-out runs stand beside the law's line for them")
    if not traces:
        return []
    note = "Dots are runs, lines are parabolas, rings their minima inside the sizes tried."
    note += " Dashed: what the law says of the runs it has not seen." if len(held) else ""
    return [
        Plot("Loss by size for each budget", note, "; ".join(said) + ".", "parameters (N)", "nats a target", traces)
    ]


def least(results: Results, points: Points) -> Plot:
    """The law's least loss with its band, the best run of each budget, and held-out runs with their intervals."""
    path, held = _table(results, PATH), _table(results, HELD)
    band = list(zip(path["flops"], path["low"], path["high"], strict=True))
    traces = [Trace("law", 0, _pairs(path["flops"], path["loss"]), band)]
    groups = [points.take(at) for at in points.budgets()]
    best = [(float(g.flops[g.loss.argmin()]), float(g.loss.min())) for g in groups]
    traces.append(Trace("best runs", 1, dots=best))
    said = f"The law falls from {number(path['loss'][0])} to {number(path['loss'][-1])} nats"
    if len(held):
        at = int(np.argmin(held["loss"]))
        whisker = [(held["flops"][at], held["low"][at], held["high"][at])]
        traces.append(Trace("held out", 2, rings=[(held["flops"][at], held["loss"][at])], whiskers=whisker))
        said += f"; the best held-out run has {number(held['loss'][at])}, predicted {number(held['predicted'][at])}"
    note = "The band is the law's 95 %; to the right of the dots it is extrapolation."
    note += " Ring: the best held-out run; bar: its 95 % interval before it was looked at." if len(held) else ""
    return Plot("Least loss for a budget", note, f"{said}.", "FLOPs", "nats a target", traces)


def sizes(results: Results) -> Plot:
    """Best N by the law with its band, and the parabolas' minima."""
    path = _table(results, PATH)
    band = list(zip(path["flops"], path["n low"], path["n high"], strict=True))
    traces = [Trace("law", 0, _pairs(path["flops"], path["n"]), band)]
    found = next((t for t in results.tables if t.title == "IsoFLOP minima"), None)
    inside = [(float(r[0] or 0), float(r[2] or 0)) for r in found.rows if r[5] == ""] if found else []
    if inside:
        traces.append(Trace("parabolas", 1, rings=inside))
    said = f"From {_count(path['n'][0])} to {_count(path['n'][-1])} parameters by the law."
    note = "The band is the law's 95 %; rings are minima of parabolas."
    best = next((t for t in results.tables if t.title == BEST), None)
    if best is not None and any(row[1] == "formula" for row in best.rows):
        note += " Counted by the FLOPs that a token of each size costs: where shapes change, the line may bend."
    return Plot("Best size for a budget", note, said, "FLOPs", "parameters (N)", traces, log_y=True)


def misses(results: Results, points: Points) -> list[Plot]:
    """How far each run lies from the law: fitted ones, and those left out with their intervals."""
    rows = next(t for t in results.tables if t.title == LAW).rows
    e, a, b, alpha, beta = (float(row[1] or 0) for row in rows)
    off = 100 * ((e + a * points.n**-alpha + b * points.d**-beta) / points.loss - 1)
    traces = [Trace("fitted", 0, dots=_pairs(points.n, off))]
    said = f"Fitted runs: from {off.min():.2f} to {off.max():.2f} percent"
    held = _table(results, HELD)
    if len(held):
        whiskers = list(zip(held["n"], held["error low"], held["error high"], strict=True))
        traces.append(Trace("held out", 2, rings=_pairs(held["n"], held["error %"]), whiskers=whiskers))
        said += f"; held out: from {min(held['error %']):.2f} to {max(held['error %']):.2f}"
    note = "Predicted over measured loss, less 1. Bars: 95 % for a single run; they hold 0 where it was foreseen."
    return [Plot("Error of the law for each run", note, f"{said}.", "parameters (N)", "%", traces)]


def _pairs(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> list[tuple[float, float]]:
    return [(float(a), float(b)) for a, b in zip(x, y, strict=True)]
