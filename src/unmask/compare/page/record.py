"""The sections that show what went in and came out: tables of a laboratory, samples, settings, environment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from unmask.compare.page.markup import Html, join, more, number, short, table, tag
from unmask.compare.results import Results

WORDS = (
    ("entry", "One recipe that is compared: an objective, a model and how it is trained."),
    ("seed", "A number that decides the chances of a run: first weights, order of the text, what is masked."),
    ("milestone", "An update after which a run is measured; the last one is its end."),
    ("FLOPs", "Multiplications and additions of training, counted by formula."),
    ("target", "What a loss asks for, such as a masked token. Target density: how many there are for each token read."),
    ("trivial level", "What is reached without the skill in question: by guessing, or by knowing frequencies alone."),
    (
        "95 % interval",
        "A range that is made to hold the true mean in 95 of 100 studies; final values of few seeds manage it less "
        "often: 92 of 100 with 5 seeds, 74 with 3.",
    ),
    (
        "bootstrap",
        "Seeds or items are drawn anew, with replacement, many times: how far the mean moves tells its interval.",
    ),
    (
        "p",
        "How often chance alone would show so large a difference, were there none. Corrected: for the number of tests.",
    ),
    ("real", "Corrected p of at most .05, and at least 3 seeds."),
)


def words(results: Results) -> Html:
    """What a reader without statistics needs for the other sections."""
    return explained(WORDS) if results.measures else Html("")


def explained(words: Sequence[tuple[str, str]]) -> Html:
    """Words and what they mean."""
    return tag("dl", *(join([tag("dt", word), tag("dd", said)]) for word, said in words))


def tables(results: Results) -> Html:
    def cell(value: str | float | int | None) -> str:
        if isinstance(value, bool) or value is None or isinstance(value, str):
            return "–" if value is None else str(value)
        return f"{value:,}" if isinstance(value, int) else number(value) if abs(value) < 1e4 else short(value)

    return join(
        table(t.title, t.columns, [[cell(v) for v in row] for row in t.rows], note=t.note) for t in results.tables
    )


def samples(results: Results) -> Html:
    """Answers to one prompt stand together; the first prompt is open."""
    asked: dict[str, list[Html]] = {}
    for entry in results.entries:
        for run in entry.runs:
            for sample in run.samples:
                who = tag("dt", entry.name, tag("span", f"seed {run.seed}", class_="note"))
                asked.setdefault(sample.asked, []).append(join([who, tag("dd", tag("pre", sample.answer))]))
    return join(
        more(tag("code", prompt) if prompt else "without a prompt", tag("dl", *answers, class_="samples"), open_=k == 0)
        for k, (prompt, answers) in enumerate(asked.items())
    )


ALONG = {"train.learning_rate": "train.muon_learning_rate"}
"""A setting that is tuned → the other that is scaled with it (`compare.tuning.scaled`)."""


def settings(results: Results) -> Html:
    """What differs between entries first, then what was tuned for each, then what all share."""
    flat = [flattened(entry.settings) for entry in results.entries]
    names = list(dict.fromkeys(name for one in flat for name in one))
    chosen = {entry.tuning.setting for entry in results.entries if entry.tuning}
    tuned = chosen | {ALONG[name] for name in chosen if name in ALONG}
    differ: list[list[object]] = []
    found: list[list[object]] = []
    shared: list[tuple[str, list[str]]] = []
    for name in names:
        values = [one.get(name, "–") for one in flat]
        row: list[object] = [tag("code", name), *values]
        if name in tuned:  # the same value is found by each, not given to all
            found.append(row)
        elif len(set(values)) > 1:
            differ.append(row)
        else:
            shared.append((name, values))
    columns = ["setting", *(entry.name for entry in results.entries)]
    titled = (("Settings that differ", differ), ("Tuned for each entry by itself", found))
    parts = [table(title, columns, rows) for title, rows in titled if rows]
    if shared:
        rows = [[tag("code", name), values[0]] for name, values in shared]
        title = "Settings that all entries share" if len(flat) > 1 else "Settings"
        parts.append(more(f"{title} ({len(rows)})", table(title, ["setting", "value"], rows, titled=False)))
    return join(parts)


def flattened(settings: dict[str, Any], before: str = "") -> dict[str, str]:
    """Nested settings under dotted names, as text.

    >>> flattened({"model": {"layers": 2, "heads": [1, 2]}, "seed": None})
    {'model.layers': '2', 'model.heads': '[1, 2]', 'seed': 'null'}
    """
    out: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            out |= flattened(value, f"{before}{name}.")
        else:
            out[f"{before}{name}"] = (
                value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            )
    return out


def environment(results: Results) -> Html:
    held = flattened(results.environment)
    parts = [tag("p", results.contamination, class_="lead")] if results.contamination else []
    if held:
        parts.append(
            table("Environment", ["what", "value"], [[tag("code", n), v] for n, v in held.items()], titled=False)
        )
    return join(parts)


def notes(results: Results) -> Html:
    return tag("ul", *(tag("li", note) for note in results.notes)) if results.notes else Html("")
