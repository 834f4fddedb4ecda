"""What the study found, as tables."""

from __future__ import annotations

from statistics import fmean

from unmask.compare.results import Entry, Table
from unmask.labs.orders import HELD_OUT, Group, mean_and_range

COUNTED = ("parameters", "updates", "tokens read", "targets")


def counted(entry: Entry) -> list[int]:
    """`COUNTED` at the end, means over seeds."""
    points = [run.points[-1] for run in entry.runs]
    return [
        entry.parameters,
        *(round(fmean(getattr(p, k) for p in points)) for k in ("step", "tokens", "target_tokens")),
    ]


def ends(group: Group) -> Table:
    """What each reached."""
    measures = [m for m in group.results.measures if not m.name.startswith(HELD_OUT)]
    rows: list[list[str | float | int | None]] = []
    for name in group.names:
        entry = group.entry(name)
        values = [mean_and_range(entry, m.name) for m in measures]
        rows.append([name, *counted(entry), *values])
    return Table(
        title="What each objective reached",
        columns=["entry", *COUNTED, *(m.label for m in measures)],
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
