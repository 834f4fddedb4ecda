"""The papers' tables, with what was published beside what was measured here."""

from __future__ import annotations

from collections.abc import Iterable

from unmask.compare.results import Entry, Results, Table
from unmask.labs.orders import mean_and_range
from unmask.labs.real_text.tables import COUNTED, counted

PUBLISHED: dict[str, dict[str, str]] = {
    "T5, objectives (tables 4 and 5; GLUE)": {
        "iid-15": "83.28",
        "bert-style": "82.96",
        "prefix-lm": "80.69",
    },
    "T5, share of noise (table 6; GLUE)": {"iid-15": "83.28", "iid-25": "83.00", "iid-50": "81.27"},
    "T5, length of spans (table 7; GLUE)": {"iid-15": "83.28", "span-3": "83.49", "span-10": "82.85"},
    "T5, stacks (table 2; GLUE)": {
        "iid-15": "83.28",
        "shared": "82.81",
        "one-stack": "81.82",
    },
    "BART, noises (table 1; perplexity on ELI5)": {
        "masking": "25.05",
        "infilling": "24.26",
        "masking+permutation": "41.87 (permutation alone)",
        "masking+rotation": "53.69 (rotation alone)",
    },
    "RoBERTa, masks (table 1; MNLI)": {"little-static": "84.3", "little-dynamic": "84.0"},
    "RoBERTa, inputs (table 2; MNLI)": {
        "segment-pair+nsp": "84.0",
        "sentence-pair+nsp": "82.9",
        "full-sentences": "84.7",
    },
    "RoBERTa, batch (table 3; perplexity)": {"full-sentences": "3.99 (256 texts)", "batch-x4": "3.68 (2,000 texts)"},
    "RoBERTa, amount of text (table 4; MNLI of the large model)": {
        "little-dynamic": "89.0 (16 GB)",
        "full-sentences": "89.3 (160 GB)",
    },
}
"""Title → entry → the published figure."""
QUOTED = {
    "T5, objectives (tables 4 and 5; GLUE)": "The CS324 notes quote 82.96 and 80.69. ",
    "T5, stacks (table 2; GLUE)": "The CS324 notes quote 81.82. ",
}
"""Of a table's published figures, those that the notes have, too."""
OURS = "Ours: means over seeds, and the lowest and highest."


def tables(results: Results) -> list[Table]:
    """One for each table of the papers: published, then ours as means over seeds with their range, and the budget."""
    entries = {entry.name: entry for entry in results.entries}
    return [
        _table(title, {name: entries[name] for name in rows if name in entries}, rows, results)
        for title, rows in PUBLISHED.items()
    ]


def _table(title: str, entries: dict[str, Entry], published: dict[str, str], results: Results) -> Table:
    measures = [m for m in results.measures if any(mean_and_range(e, m.name) for e in entries.values())]
    rows: list[list[str | float | int | None]] = []
    for name, entry in entries.items():
        values = [mean_and_range(entry, m.name) for m in measures]
        rows.append([name, published[name], *counted(entry), *values])
    return Table(
        title=title,
        columns=["entry", "published", *COUNTED, *(m.label for m in measures)],
        rows=rows,
        note=f"{_had(entries.values())}{QUOTED.get(title, '')}{OURS}",
    )


def _had(entries: Iterable[Entry]) -> str:
    """The budget and the context of all runs of a table, as their settings say; "" where none was run."""
    both = {(float(entry.settings["budget"]["flops"]), entry.settings["context"]) for entry in entries}
    return "".join(f"Each run: {flops / 1e12:g}·10¹² FLOPs, contexts of {context}. " for flops, context in both)
