"""A study as tables (`compare.results`), as a picture, and as a page (`page`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from unmask.chart import Chart, Series, svg
from unmask.compare.results import Results, Table
from unmask.scale.law import laws
from unmask.scale.page import BEST, HELD, LAW, METHODS, PATH, POINTS, Columns, page
from unmask.scale.study import Best, Study

SMOOTH = 17
"""Budgets at which the least loss is written down."""
Rows = list[list[str | float | int | None]]


def results(found: Study, command: str, title: str = "Scaling law") -> Results:
    """The record that the page draws."""
    return Results(title=title, command=command, tables=tables(found), notes=found.notes)


def tables(found: Study) -> list[Table]:
    """Law, exponents, minima, held-out runs, best N and D, least loss, points: in the order in which they are read."""
    between = "" if found.between is None else f", of runs that differ by their seed alone {100 * found.between:.2f} %"
    out = [
        Table(
            title=LAW,
            columns=["number", "value", "low", "high", "projection"],
            rows=[[e.name, e.value, *e.interval, float(getattr(found.projected, e.name))] for e in found.estimates],
            note=f"{len(found.points)} runs, N counts {found.counted}; Huber on log loss, 95 % by bootstrap; scatter "
            f"of the runs about it {100 * found.spread:.2f} %{between}; projection: least squares of relative errors",
        ),
        Table(
            title=METHODS,
            columns=["method", "a", "low", "high"],
            rows=[[m.method, m.exponent, *(m.interval or (None, None))] for m in found.methods],
        ),
    ]
    if found.minima:
        rows: Rows = [[m.flops, m.points, m.n, m.d, m.loss, "" if m.inside else "at the edge"] for m in found.minima]
        out.append(Table(title="IsoFLOP minima", columns=["flops", "runs", "n", "d", "loss", "place"], rows=rows))
    if found.held:
        errors = ("error %", "error low", "error high")
        out.append(
            Table(
                title=HELD,
                columns=["run", "n", "d", "flops", "loss", "predicted", "low", "high", *errors],
                rows=[
                    [h.name, h.n, h.d, h.flops, h.loss, h.predicted, *h.interval]
                    + [100 * e for e in (h.error, *h.error_interval)]
                    for h in found.held
                ],
                note="left out of every fit; intervals: 95 % for a single run; error: predicted / loss − 1",
            )
        )
    out.append(
        Table(
            title=BEST,
            columns=["flops", "counted", "n", "n low", "n high", "d", "d low", "d high", "loss", "low", "high"],
            rows=[_best(b) for b in found.best],
            note="counted by 6 N D, or by the FLOPs that a token of each size costs; "
            + "; ".join(f"{c:.3g} FLOPs are {b:.3g} times the largest fitted" for c, b in _beyond(found)),
        )
    )
    p = found.points
    columns = zip(p.names, p.n.tolist(), p.d.tolist(), p.flops.tolist(), p.loss.tolist(), strict=True)
    lists: Rows = [list(row) for row in columns]
    return [*out, path(found), Table(title=POINTS, columns=["name", "n", "d", "flops", "loss"], rows=lists)]


def path(found: Study) -> Table:
    """The best N and the least loss from the smallest budget to the largest that is asked for."""
    p = found.points
    top = max([float(p.flops.max()), *(b.flops for b in found.best), *(h.flops for h in found.held)])
    rows: Rows = []
    many = laws(found.resamples)
    for c in np.geomspace(float(p.flops.min()), top, SMOOTH).tolist():
        n, d = found.best_at(found.law, c)
        ns, ds = found.best_at(many, c)
        each = many.loss(ns, ds)
        rows.append([c, float(n[0, 0]), *_band(ns), float(d[0, 0]), float(found.law.loss(n, d)[0, 0]), *_band(each)])
    note = "counted as in the last rows of the best N and D"
    columns = ["flops", "n", "n low", "n high", "d", "loss", "low", "high"]
    return Table(title=PATH, columns=columns, rows=rows, note=note)


def write(found: Study, out: Path, record: Results) -> None:
    """results.json, report.html and picture.svg in a folder."""
    out.mkdir(parents=True, exist_ok=True)
    record.write(out)
    (out / "report.html").write_text(page(record), encoding="utf-8")
    (out / "picture.svg").write_text(picture(found), encoding="utf-8")


def picture(found: Study) -> str:
    """Loss against size by budget, best size against budget, least loss against budget, as SVG."""
    p = found.points
    groups = [p.take(at) for at in p.budgets()]
    lines = tuple(Series(f"{g.flops.mean():.2g} FLOPs", g.n.tolist(), g.loss.tolist()) for g in groups if len(g) > 1)
    charts = [Chart("Loss against size, a line for each budget", lines, "N", "nats", log_x=True)] if lines else []
    along = Columns(path(found))
    at = _log(along["flops"])
    inside = [m for m in found.minima if m.inside]
    size = Series("law", at, along["n"], along["n low"], along["n high"])
    points = Series("parabolas", _log([m.flops for m in inside]), [m.n for m in inside])
    both = (size, points) if inside else (size,)
    charts.append(Chart("Best size against budget", both, "log10 FLOPs", "N", log_y=True))
    least = Series("law", at, along["loss"], along["low"], along["high"])
    best = [(float(g.flops[g.loss.argmin()]), float(g.loss.min())) for g in groups]
    drawn = [least, Series("best run", _log([c for c, _ in best]), [loss for _, loss in best])]
    if found.held:
        held = min(found.held, key=lambda h: h.loss)
        drawn.append(Series("held-out run", _log([held.flops]), [held.loss]))
    charts.append(Chart("Least loss against budget", tuple(drawn), "log10 FLOPs", "nats"))
    return svg(*charts)


def _log(flops: Sequence[float]) -> list[float]:
    """Powers of ten: FLOPs reach numbers that no axis label holds."""
    return np.log10(np.asarray(flops)).tolist()


def _band(values: np.ndarray) -> list[float]:
    """95 % of resamples."""
    return np.quantile(values, [0.025, 0.975]).tolist()


def _best(b: Best) -> list[str | float | int | None]:
    return [b.flops, b.counted, b.n, *b.n_interval, b.d, *b.d_interval, b.loss, *b.loss_interval]


def _beyond(found: Study) -> list[tuple[float, float]]:
    return list(dict.fromkeys((b.flops, b.beyond) for b in found.best))
