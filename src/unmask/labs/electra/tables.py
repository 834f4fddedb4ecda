"""What was found, the mean over seeds, where several were run with the lowest and the highest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unmask.compare.results import Table
from unmask.labs.electra.kinds import KINDS
from unmask.labs.electra.names import ALARMS, AUC, BEST, LABELS, PLACES, PROBES, REPLACED
from unmask.labs.electra.statements import Found, caught, details, replaced_share, shares, value
from unmask.labs.electra.subjects import ELECTRA, MAIN
from unmask.labs.reviews.setting import Subject

Cell = str | float | int | None


def tables(subjects: Sequence[Subject], found: Sequence[Found]) -> list[Table]:
    return [
        _cost(subjects, found),
        _over_time(found),
        _replaced(subjects, found),
        _detected(subjects, found),
        _probes(subjects, found),
    ]


def spread(values: Sequence[float]) -> Cell:
    """Without those that are nan: shares of nothing.

    >>> spread([0.5]), spread([0.5, 0.75]), spread([float("nan")])
    (0.5, '0.62 (0.50–0.75)', None)
    """
    there = [v for v in values if v == v]
    if len(there) < 2:
        return there[0] if there else None
    return f"{sum(there) / len(there):.2f} ({min(there):.2f}–{max(there):.2f})"


def _noisy(subjects: Sequence[Subject]) -> list[Subject]:
    return [s for s in subjects if s.asks["noise"] != "none"]


def _cost(subjects: Sequence[Subject], found: Sequence[Found]) -> Table:
    bert = found[0][MAIN[0].name].run.points[-1]
    rows: list[list[Cell]] = []
    for s in subjects:
        last = found[0][s.name].run.points[-1]
        dearer = last.flops / last.tokens / (bert.flops / bert.tokens)
        generator = details(found[0], s.name).get("generator")
        rows.append(
            [s.label, found[0][s.name].parameters, generator, last.step, dearer, last.target_tokens / last.tokens]
        )
    return Table(
        title="Sizes and costs",
        columns=["subject", "parameters", "its generator's", "updates", "FLOPs a token, BERT 1", "targets a token"],
        rows=rows,
        note="Targets of all heads: where a generator is trained, its own are among them.",
    )


def _over_time(found: Sequence[Found]) -> Table:
    rows: list[list[Cell]] = []
    for k, point in enumerate(found[0][ELECTRA.name].run.points):
        kinds = [one[ELECTRA.name].run.points[k].details["kinds"] for one in found]
        each = [[c[name] / max(1, sum(c.values())) for c in kinds] for name in KINDS]
        share, labels = ([value(one, ELECTRA.name, m, k) for one in found] for m in (REPLACED, LABELS))
        rows.append([point.step, spread(share), *(spread(e) for e in each), spread(labels)])
    return Table(
        title="What ELECTRA's generator does, over time",
        columns=[
            "updates",
            "replaced, of the selected",
            *(f"{name}, of the replaced" for name in KINDS),
            "meaning, of all words",
        ],
        rows=rows,
    )


def _replaced(subjects: Sequence[Subject], found: Sequence[Found]) -> Table:
    def row(s: Subject) -> list[Cell]:
        each = [shares(one, s.name) for one in found]
        return [
            s.label,
            spread([value(one, s.name, REPLACED) for one in found]),
            spread([replaced_share(one, s.name) for one in found]),
            *(spread([e[name] for e in each]) for name in KINDS),
            spread([value(one, s.name, LABELS) for one in found]),
        ]

    return Table(
        title="Replacements at the end",
        columns=[
            "subject",
            "of the selected",
            "of all words",
            *(f"{name}, of the replaced" for name in KINDS),
            "meaning, of all words",
        ],
        rows=[row(s) for s in _noisy(subjects)],
        note="alike: the review is as true with it. meaning: well formed, and no longer true. obvious: no review has "
        "such a word there.",
    )


def _detected(subjects: Sequence[Subject], found: Sequence[Found]) -> Table:
    def row(s: Subject) -> list[Cell]:
        def over(read: Callable[[Found], float]) -> Cell:
            return spread([read(one) for one in found])

        def pair(name: str) -> list[Cell]:
            return [over(lambda f: caught(f, s.name)[name]), over(lambda f: caught(f, s.name, "best")[name])]

        bits = [over(lambda f, by=by: details(f, s.name)[by]["bits"]) for by in ("detector", "best")]  # type: ignore[misc]
        aucs = [over(lambda f, m=m: value(f, s.name, m)) for m in (AUC, BEST)]  # type: ignore[misc]
        return [
            s.label,
            *aucs,
            *bits,
            *(cell for name in KINDS for cell in pair(name)),
            over(lambda f: value(f, s.name, ALARMS)),
        ]

    asked = [s for s in _noisy(subjects) if details(found[0], s.name).get("best")]
    return Table(
        title="Detected at the end, and what could be",
        columns=[
            *("subject", "AUC", "best", "bits a word", "best"),
            *(title for name in KINDS for title in (f"{name} found", "best")),
            "false alarms",
        ],
        rows=[row(s) for s in asked],
        note="Best: the exact chance of each word to have been replaced, for one who knows world and generator. Found: "
        "taken to be replaced with a chance above one half. False alarms: the same, of words that were not.",
    )


def _probes(subjects: Sequence[Subject], found: Sequence[Found]) -> Table:
    def row(s: Subject) -> list[Cell]:
        each = [(PROBES[32], k) for k in range(milestones)]
        each += [(name, -1) for name in (PROBES[128], PLACES[32], PLACES[128])]
        return [s.label, *(spread([value(one, s.name, name, at) for one in found]) for name, at in each)]

    def control(label: str, mean: str, place: str | None) -> list[Cell]:
        cells = [
            None if name is None else spread([details(one, MAIN[0].name)["controls"][name][str(k)] for one in found])
            for name in (mean, place)
            for k in PROBES
        ]
        return [label, *[None] * (milestones - 1), *cells]

    milestones = len(found[0][MAIN[0].name].run.points)
    rows = [row(s) for s in subjects]
    rows.append(control("untrained network", "untrained", "untrained, at the adjective"))
    rows.append(control("bag of words", "words", None))
    return Table(
        title="An unlabelled adjective's side, read from the states",
        columns=[
            "subject",
            *(f"milestone {k + 1}" for k in range(milestones)),
            "128 labels",
            *(f"{k} labels, at the adjective" for k in PLACES),
        ],
        rows=rows,
        note="Milestones are fifths of a run, with 32 labels; the other columns are of the end. By the mean of the "
        "states unless it says otherwise. Ten draws of labels, 200 reviews asked about, whose food adjectives no "
        "labelled one holds.",
    )
