"""The laboratory's tables. Of several seeds the ablation tells means, the others the first seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from unmask.compare.results import Table
from unmask.labs.inside import count
from unmask.labs.inside.model import READINGS
from unmask.labs.inside.opened import FACT, QUESTION, Opened
from unmask.labs.inside.statements import UNIFORM, Both
from unmask.labs.inside.temperature import KEYS, ROWS

NAMES = {"stream": "lines run on", "lines": "line by line"}
PARTS = "The model without a part"
NOTES_BITS = {"nothing": 0.409, "positions": 5.022, "attention 1": 1.348, "causal mask": 7.528}
NOTES_FACTS = {"nothing": 0.93, "positions": 0.0, "attention 1": 0.05}
NOTES_STROKES = (1.3, 1.5, 1.4, 1.5, 4.8)
NOTES_ENTROPIES = (2.42, 1.92, 3.58)


def tables(found: Sequence[Both]) -> list[Table]:
    """Everything that is no curve, in the notes' order."""
    first = found[0]
    return [
        _shapes(first.stream),
        _parameters(),
        _sizes(),
        _temperature(first),
        _entropies(first),
        *(_portraits(first.stream, prompt) for prompt in first.stream.portraits),
        _strokes(first),
        _gone(found),
        _bits(found, "Bits a character by kind of line", "kind", lambda o: o.kinds),
        _bits(found, "Bits a character by its place in the window", "place", lambda o: o.places),
    ]


def _shapes(opened: Opened) -> Table:
    rows: list[list[str | float | int | None]] = [
        [s.step, s.letters, " × ".join(map(str, s.shape)), s.what] for s in opened.shapes
    ]
    return Table(
        title="Shapes, step by step",
        columns=["step", "shape", f"of the {opened.shapes[0].shape[0]} tokens of “⏎{FACT}”", "what"],
        rows=rows,
        note="T tokens, d hidden size, H heads, D head size, V vocabulary. The second layer repeats the first.",
    )


def _parameters() -> Table:
    rows: list[list[str | float | int | None]] = [
        [r.part, r.formula, r.each, r.copies, r.numbers] for r in count.rows(count.INSIDE)
    ]
    rows.append(["all", "", None, None, count.total(count.INSIDE)])
    return Table(
        title="Parameters by formula", columns=["part", "formula", "one holds", "how many", "parameters"], rows=rows
    )


def _sizes() -> Table:
    models = {"this model": count.INSIDE, "GPT-2 small": count.GPT2_SMALL, "GPT-3": count.GPT3}
    rows: list[list[str | float | int | None]] = [
        [
            name,
            *size,
            count.matrices(size),
            count.tables(size),
            count.total(size),
            round(count.tables(size) / count.total(size), 4),
        ]
        for name, size in models.items()
    ]
    columns = ["model", "V", "T", "d", "L", "12 L d²", "tables", "all parameters", "tables' share"]
    return Table(title="The same formula for larger models", columns=columns, rows=rows)


def _temperature(found: Both) -> Table:
    rows: list[list[str | float | int | None]] = [
        [m.size, "divided by √D" if m.scaled else "as they are", *(round(x, 4) for x in m[2:])]
        for m in found.temperature
    ]
    columns = ["D", "scores", "spread", "largest weight", "saturated", "gradient", "gradient, median", "no gradient"]
    return Table(
        title="Random queries and keys, with and without 1/√D",
        columns=columns,
        rows=rows,
        note=f"{ROWS} queries with {KEYS} keys each. Saturated: share of rows with a weight above .9. Gradient: "
        "Frobenius norm of the softmax's Jacobian, and the share of rows in which it is below .01.",
    )


def _entropies(found: Both) -> Table:
    rows: list[list[str | float | int | None]] = []
    for opened in found.models:
        for i, heads in enumerate(opened.entropies):
            mean = round(float(np.mean(heads)), 2)
            rows.append([NAMES[opened.reading], i, *(round(x, 2) for x in heads), mean, round(opened.uniform, 2)])
    rows += [["notes", i, None, None, None, None, NOTES_ENTROPIES[i], NOTES_ENTROPIES[2]] for i in range(2)]
    return Table(
        title="How evenly heads look",
        columns=["model", "layer", "head 0", "head 1", "head 2", "head 3", "mean", "even attention"],
        rows=rows,
        note="Nats, the mean over all positions of the held-out text. Line by line a position sees its line alone.",
    )


def _portraits(opened: Opened, prompt: str) -> Table:
    rows: list[list[str | float | int | None]] = [
        [
            f"{p.layer}.{p.head}",
            round(p.entropy, 2),
            f"“{p.top}” at {p.top_at}",
            *(round(x, 2) for x in (p.top_weight, p.name, p.itself, p.start)),
        ]
        for p in opened.portraits[prompt]
    ]
    told = "the blank comes next" if prompt == QUESTION else "behind the blank: the city comes next"
    return Table(
        title=f"Where heads look from the end of “{prompt}”",
        columns=["head", "nats", "most at", "weight there", "on the name", "on itself", "on the line end in front"],
        rows=rows,
        note=f"{told}. Even attention has {np.log(len(prompt) + 1):.2f} nats.",
    )


def _strokes(found: Both) -> Table:
    rows: list[list[str | float | int | None]] = [
        [name, *(round(x, 2) for opened in found.models for x in opened.strokes[name]), notes]
        for name, notes in zip(found.stream.strokes, NOTES_STROKES, strict=True)
    ]
    columns = [f"{NAMES[r]}: {where}" for r in READINGS for where in ("at the prompt's end", "held-out text")]
    return Table(
        title="What each part writes into the residual stream",
        columns=["part", *columns, "notes"],
        rows=rows,
        note=f"Euclidean length of what is added, at the last position of “{FACT}” and on average over held-out text.",
    )


def _gone(found: Sequence[Both]) -> Table:
    rows: list[list[str | float | int | None]] = []
    for part in (g.part for g in found[0].stream.gone):
        row: list[str | float | int | None] = [part]
        for k in range(len(READINGS)):
            each = [both.models[k].without(part) for both in found]
            bits = float(np.mean([g.bits for g in each]))
            facts, questions = (float(np.mean(x)) for x in ([g.facts for g in each], [g.questions for g in each]))
            row += [round(bits, 3), round(facts, 3), round(questions, 3)]
        rows.append([*row, NOTES_BITS.get(part), NOTES_FACTS.get(part)])
    columns = [f"{NAMES[r]}: {what}" for r in READINGS for what in ("bits", "facts", "new questions")]
    return Table(
        title=PARTS,
        columns=["without", *columns, "notes: bits", "notes: facts"],
        rows=rows,
        note=f"Bits a character of held-out text; {UNIFORM:.3f} is knowing nothing. Facts: share completed "
        "to the letter; new questions: about people whom no training question names.",
    )


def _bits(found: Sequence[Both], title: str, by: str, read: Callable[[Opened], dict[str, float]]) -> Table:
    rows: list[list[str | float | int | None]] = [
        [
            name,
            *(round(float(np.mean([read(both.models[k])[name] for both in found])), 3) for k in range(len(READINGS))),
        ]
        for name in read(found[0].stream)
    ]
    return Table(title=title, columns=[by, *(NAMES[r] for r in READINGS)], rows=rows)
