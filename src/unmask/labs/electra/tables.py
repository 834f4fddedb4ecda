"""What was found, the mean over seeds, where several were run with the lowest and the highest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unmask.compare.results import Table
from unmask.labs.electra.kinds import KINDS
from unmask.labs.electra.names import ALARMS, AUC, BEST, LABELS, PLACES, PROBES, REPLACED
from unmask.labs.electra.statements import Found, caught, details, replaced_share, shares, value
from unmask.labs.electra.subjects import ELECTRA, MAIN, scope
from unmask.labs.reviews.cells import Cell, spread
from unmask.labs.reviews.setting import Subject


def tables(subjects: Sequence[Subject], found: Sequence[Found]) -> list[Table]:
    return [
        _beside_notes(found),
        _cost(subjects, found),
        _over_time(found),
        _replaced(subjects, found),
        _detected(subjects, found),
        _probes(subjects, found),
    ]


def _beside_notes(found: Sequence[Found]) -> Table:
    """The figures of the notes' section 5.6, and ours."""

    def over(read: Callable[[Found], float]) -> Cell:
        return spread(read(one) for one in found)

    def at(measure: str, milestone: int = -1, who: str = ELECTRA.name) -> Cell:
        return over(lambda f: value(f, who, measure, milestone))

    kinds = zip(KINDS, ("0.47", "0.48", "0.06"), strict=True)
    dearer = [one[ELECTRA.name].run.points[-1].flops / one[MAIN[0].name].run.points[-1].flops - 1 for one in found]
    rows: list[list[Cell]] = [
        ["more FLOPs than BERT", "about 0.20", spread(dearer)],
        ["replaced of the selected, 500 updates", "0.92", at(REPLACED, 0)],
        ["replaced of the selected, 1,500 updates", "0.45", at(REPLACED, 2)],
        ["replaced of the selected, 2,500 updates", "0.29", at(REPLACED)],
        ["replaced of all words", "0.041", over(lambda f: replaced_share(f, ELECTRA.name))],
        *(
            [f"of the replaced: {name}", notes, spread(shares(one, ELECTRA.name)[name] for one in found)]
            for name, notes in kinds
        ),
        ["labels that change the meaning, of all words", "about 0.02", at(LABELS)],
        ["found: obvious", "0.79", over(lambda f: caught(f, ELECTRA.name)["obvious"])],
        ["found: meaning", "0.03", over(lambda f: caught(f, ELECTRA.name)["meaning"])],
        ["false alarms", "0", at(ALARMS)],
        ["probe of BERT, 2,000 updates", "about 0.9", at(PROBES[32], 3, MAIN[0].name)],
        ["probe of BERT, 2,500 updates", "0.802", at(PROBES[32], -1, MAIN[0].name)],
        ["probe of ELECTRA, 2,500 updates", "by chance", at(PROBES[32])],
    ]
    return Table(
        title="Ours beside the notes",
        columns=["what", "notes, one model", "ours"],
        rows=rows,
        note="At the end unless it says otherwise; probes with 32 labels. Ours is of held-out reviews, in "
        "which two of 16 words are selected.",
    )


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
        if scope(s) == "selected":
            return [s.label, *[None] * (len(columns) - 1)]

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

    columns = [
        *("subject", "AUC", "best", "bits a word", "best"),
        *(title for name in KINDS for title in (f"{name} found", "best")),
        "false alarms",
    ]
    known = [s for s in subjects if scope(s) == "selected" or details(found[0], s.name).get("best")]
    return Table(
        title="Detected at the end, and what could be",
        columns=columns,
        rows=[row(s) for s in known],
        note="Best: the exact chance of each word to have been replaced, for one who knows world and generator. Found: "
        "taken to be replaced with a chance above one half. False alarms: the same, of words that were not. A detector "
        "that is trained on the selected words alone has no answer about all words.",
    )


def _probes(subjects: Sequence[Subject], found: Sequence[Found]) -> Table:
    def row(s: Subject) -> list[Cell]:
        each = [(PROBES[32], k) for k in range(milestones)]
        each += [(name, -1) for name in (PROBES[128], PLACES[32], PLACES[128])]
        cells = [spread([value(one, s.name, name, at) for one in found]) for name, at in each]
        kept = [details(one, s.name) for one in found]
        clause = spread([one["clause"]["mean"]["128"] for one in kept])
        return [s.label, *cells, clause, spread([one["hidden"]["128"] for one in kept])]

    def control(label: str, mean: str, place: str | None) -> list[Cell]:
        cells = [
            None if name is None else spread([details(one, MAIN[0].name)["controls"][name][str(k)] for one in found])
            for name in (mean, place)
            for k in PROBES
        ]
        return [label, *[None] * (milestones - 1), *cells, None, None]

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
            "128 labels, clause alone",
            "128 labels, one adjective everywhere",
        ],
        rows=rows,
        note="Milestones are fifths of a run, with 32 labels; the other columns are of the end. By the mean of the "
        "states unless it says otherwise. Ten draws of labels, 200 reviews asked about, whose food adjectives no "
        "labelled one holds.",
    )
