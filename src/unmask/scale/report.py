"""A study as tables (`compare.results`) and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from unmask.chart import Chart, Series, svg
from unmask.compare.results import Results, Table
from unmask.scale.law import laws
from unmask.scale.study import Best, Study

SMOOTH = 61
"""Points of a curve: one more than a chart puts marks on."""


def results(found: Study, command: str, title: str = "Scaling law") -> Results:
    """The record that `compare` reports draw."""
    return Results(title=title, command=command, tables=tables(found), notes=found.notes)


def tables(found: Study) -> list[Table]:
    """Law, exponents, minima, held-out runs, best N and D, points: in the order in which they are read."""
    out = [
        Table(
            title="L(N, D) = E + A / N^α + B / D^β",
            columns=["number", "value", "low", "high", "projection"],
            rows=[[e.name, e.value, *e.interval, float(getattr(found.projected, e.name))] for e in found.estimates],
            note=f"{len(found.points)} points, N counts {found.counted}; Huber on log loss, 95 % by bootstrap; scatter "
            f"of the points about it {100 * found.spread:.2f} %; projection: least squares of relative errors",
        ),
        Table(
            title="Best N grows as C^a",
            columns=["method", "a", "low", "high"],
            rows=[[m.method, m.exponent, *(m.interval or (None, None))] for m in found.methods],
        ),
    ]
    if found.minima:
        rows: list[list[str | float | int | None]] = [
            [m.flops, m.points, m.n, m.d, m.loss, "" if m.inside else "at the edge"] for m in found.minima
        ]
        out.append(Table(title="IsoFLOP minima", columns=["flops", "points", "n", "d", "loss", "place"], rows=rows))
    if found.held:
        out.append(
            Table(
                title="Held-out larger runs",
                columns=["run", "n", "d", "loss", "predicted", "low", "high", "error %"],
                rows=[[h.name, h.n, h.d, h.loss, h.predicted, *h.interval, 100 * h.error] for h in found.held],
                note="left out of every fit; interval: 95 % for a single run",
            )
        )
    out.append(
        Table(
            title="Best N and D",
            columns=["flops", "counted", "n", "n low", "n high", "d", "d low", "d high", "loss", "low", "high"],
            rows=[_best(b) for b in found.best],
            note="counted by 6 N D, or by the FLOPs that a token of each size costs; "
            + "; ".join(f"{c:.3g} FLOPs are {b:.3g} times the largest fitted" for c, b in _beyond(found)),
        )
    )
    p = found.points
    columns = zip(p.names, p.n.tolist(), p.d.tolist(), p.flops.tolist(), p.loss.tolist(), strict=True)
    lists: list[list[str | float | int | None]] = [list(row) for row in columns]
    return [*out, Table(title="Points", columns=["name", "n", "d", "flops", "loss"], rows=lists)]


def write(found: Study, out: Path, record: Results) -> None:
    """results.json and picture.svg in a folder."""
    out.mkdir(parents=True, exist_ok=True)
    record.write(out)
    (out / "picture.svg").write_text(picture(found), encoding="utf-8")


def picture(found: Study) -> str:
    """Loss against size by budget, best size against budget, least loss against budget, as SVG."""
    p = found.points
    groups = [p.take(at) for at in p.budgets()]
    lines = tuple(Series(f"{g.flops.mean():.2g} FLOPs", g.n.tolist(), g.loss.tolist()) for g in groups if len(g) > 1)
    charts = [Chart("Loss against size, a line for each budget", lines, "N", "nats", log_x=True)] if lines else []
    top = max([float(p.flops.max()), *(b.flops for b in found.best), *(h.flops for h in found.held)])
    budgets = np.geomspace(float(p.flops.min()), top, SMOOTH)
    many, at = laws(found.resamples), _log(budgets)
    n = [found.law.best(c) for c in budgets]
    spread = [many.best(c) for c in budgets]
    size = Series("law", at, [float(a) for a, _ in n], *_band([a for a, _ in spread]))
    inside = [m for m in found.minima if m.inside]
    points = Series("parabolas", _log([m.flops for m in inside]), [m.n for m in inside])
    both = (size, points) if inside else (size,)
    charts.append(Chart("Best size against budget (6 N D)", both, "log10 FLOPs", "N", log_y=True))
    losses = [float(found.law.loss(a, d)) for a, d in n]
    least = Series("law", at, losses, *_band([many.loss(a, d) for a, d in spread]))
    best = [(float(g.flops[g.loss.argmin()]), float(g.loss.min())) for g in groups]
    drawn = [least, Series("best run", _log([c for c, _ in best]), [loss for _, loss in best])]
    if found.held:
        held = min(found.held, key=lambda h: h.loss)
        drawn.append(Series("held-out run", _log([held.flops]), [held.loss]))
    charts.append(Chart("Least loss against budget", tuple(drawn), "log10 FLOPs", "nats"))
    return svg(*charts)


def _log(flops: Sequence[float] | np.ndarray) -> list[float]:
    """Powers of ten: FLOPs reach numbers that no axis label holds."""
    return np.log10(np.asarray(flops)).tolist()


def _band(values: list[np.ndarray]) -> tuple[list[float], list[float]]:
    """95 % of resamples, at each place."""
    both = np.quantile(np.stack([np.ravel(v) for v in values]), [0.025, 0.975], axis=1)
    return both[0].tolist(), both[1].tolist()


def _best(b: Best) -> list[str | float | int | None]:
    return [b.flops, b.counted, b.n, *b.n_interval, b.d, *b.d_interval, b.loss, *b.loss_interval]


def _beyond(found: Study) -> list[tuple[float, float]]:
    return list(dict.fromkeys((b.flops, b.beyond) for b in found.best))
