"""What the study found, as tables."""

from __future__ import annotations

from statistics import fmean

from unmask.compare.results import Table
from unmask.labs.orders import Group, mean_and_range


def ends(group: Group) -> Table:
    """What each reached."""
    measures = [m for m in group.results.measures if not m.name.startswith("loss_")]
    rows: list[list[str | float | int | None]] = []
    for name in group.names:
        entry = group.entry(name)
        points = [run.points[-1] for run in entry.runs]
        counts = [round(fmean(p.step for p in points)), round(fmean(p.tokens for p in points))]
        targets = round(fmean(p.target_tokens for p in points))
        values = [mean_and_range(entry, m.name) for m in measures]
        rows.append([name, entry.parameters, *counts, targets, *values])
    return Table(
        title="What each objective reached",
        columns=["entry", "parameters", "updates", "tokens read", "targets", *(m.label for m in measures)],
        rows=rows,
        note="Means over seeds, and the lowest and highest seed. Pseudo bits ask another event than bits.",
    )


def rates(group: Group) -> Table:
    """What the tuning tried."""
    rows: list[list[str | float | int | None]] = []
    for name in group.names:
        tuned = group.entry(name).tuning
        if tuned is not None:
            tried = ", ".join(
                f"{v:.4g}: {'diverged' if x is None else f'{x:.3f}'}"
                for v, x in zip(tuned.values, tuned.losses, strict=True)
            )
            rows.append([name, tried, f"{tuned.chosen:.4g}", "yes" if tuned.edge else "no"])
    return Table(
        title="Learning rates tried, each for a quarter of the budget",
        columns=["entry", "rate: held-out loss of its own objective", "chosen", "at the edge"],
        rows=rows,
        note="AdamW's rate; Muon's is scaled along.",
    )
