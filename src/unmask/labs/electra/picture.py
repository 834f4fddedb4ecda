"""What the record says, drawn: what can be read, what is replaced, what is found."""

from __future__ import annotations

from collections.abc import Sequence

from unmask.chart import Chart, Series, svg
from unmask.compare.results import Entry, Results
from unmask.labs.electra.names import FOUND, PLACES, PROBES, REPLACED

READ = ("BERT", "ELECTRA", "ELECTRA 15 %", "Replace MLM", "All-Tokens MLM", "Opposites, 50 % of the adjectives")
GENERATORS = ("ELECTRA, generator of width 16", "ELECTRA", "ELECTRA, generator as large as the model")
FINDERS = (*GENERATORS, "Opposites, 50 % of the adjectives")


def picture(results: Results) -> str:
    """Each line is the mean over seeds, its band from the lowest to the highest."""
    entries = {entry.name: entry for entry in results.entries}
    asked = (
        ("An unlabelled adjective's side, by the mean of the states", PROBES[32], READ, "share right"),
        ("The same, by the state at the adjective", PLACES[32], READ, "share right"),
        ("Replaced, of the selected words", REPLACED, GENERATORS, "share"),
        ("Found, of the replacements that change the meaning", FOUND, FINDERS, "share"),
    )
    return svg(
        *(
            Chart(title, tuple(_series(entries[name], measure) for name in names), "updates", label)
            for title, measure, names, label in asked
        )
    )


def _series(entry: Entry, measure: str) -> Series:
    steps = [point.step for point in entry.runs[0].points]
    columns = [[run.points[k].values.get(measure) for run in entry.runs] for k in range(len(steps))]
    there = [[v for v in column if v is not None] for column in columns]
    if len(entry.runs) == 1:
        return Series(entry.name, steps, [_mean(column) for column in there])
    low, high = ([float(f(column, default=0.0)) for column in there] for f in (min, max))
    return Series(entry.name, steps, [_mean(column) for column in there], low, high)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
