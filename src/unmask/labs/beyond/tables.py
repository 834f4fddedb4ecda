"""What is no curve, from the record alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import fmean, median

from unmask.compare.results import Entry, Results, Table
from unmask.labs.beyond.gradients import OBJECTIVES, PAIRS
from unmask.labs.beyond.measure import BESIDE, FILL, OTHERS, OWN, PROBES, SCORED, STAGES, TRUE, VALID, WAYS, Stage
from unmask.labs.beyond.statements import LEARNT, Read, compared, without_noise
from unmask.labs.beyond.subjects import BUDGET, GRADIENTS, REMEDIES, T5
from unmask.labs.reviews.cells import Cell

LEARNING, REMEDY, ABLE, TWO_WAYS = "Who learns the rating", "Remedies for T5", "What each can do", "Asked by two ways"
COSINES, NOISELESS, NOISE = "Cosines of gradients", "Cosines of gradients without noise", "Two halves of the texts"


def tables(results: Results) -> list[Table]:
    read = Read(results)
    return [learning(read), remedies(read), able(read), two_ways(read), *gradients(read)]


def learning(read: Read) -> Table:
    marks = [p.step for p in read.results.entries[0].runs[0].points]
    longer = sorted({e.runs[0].points[-1].step for e in read.results.entries} - {marks[-1]})
    rows: list[list[Cell]] = []
    for entry in read.results.entries:
        along = read.along(entry.name)
        means: list[Cell] = [_mean(v for points in along for s, v in points if s == step) for step in marks]
        rows.append(
            [entry.name, entry.parameters, _gflops(entry), 1000 * entry.target_density, *means, *_first(read, entry)]
        )
    return Table(
        title=LEARNING,
        columns=[
            "",
            "parameters",
            "GFLOPs",
            "targets",
            *(f"{s:,}" for s in marks),
            "seeds at the end",
            "first, median",
        ],
        rows=rows,
        note="GFLOPs of the whole run, by formula; targets per 1,000 positions. Ratings of three at the open slot, "
        f"means over seeds; how many of them end at {LEARNT} or above, and the median of the first milestones there."
        + "".join(f" Runs of {s:,} updates end behind the last of these columns." for s in longer),
    )


def _first(read: Read, entry: Entry) -> list[Cell]:
    ends, step = read.ends(entry.name), median(read.first(entry.name))
    return [f"{sum(v >= LEARNT for v in ends)} of {len(ends)}", "never" if math.isinf(step) else f"{step:,.0f}"]


def _gflops(entry: Entry) -> float:
    return entry.runs[0].points[-1].flops / 1e9


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return fmean(known) if known else None


def remedies(read: Read) -> Table:
    own = read.flops(T5)
    rows: list[list[Cell]] = []
    for name in (T5, *REMEDIES):
        entry, ends = read.entry(name), read.ends(name)
        rows.append(
            [
                name,
                entry.runs[0].points[-1].step,
                read.flops(name) / own,
                *_first(read, entry),
                min(ends),
                max(ends),
                _mean(v for run in entry.runs if (v := run.points[-1].values.get(BESIDE)) is not None),
            ]
        )
    return Table(
        title=REMEDY,
        columns=[
            "",
            "updates",
            "of T5's FLOPs",
            "seeds at the end",
            "first, median",
            "worst seed",
            "best seed",
            "beside other gaps",
        ],
        rows=rows,
        note=f"Asked as T5 is, by <0> in the slot, and beside {OTHERS} other gaps. The budget is {BUDGET:g} times T5's "
        "FLOPs, fixed beforehand.",
    )


def able(read: Read) -> Table:
    measures = (OWN, FILL, SCORED, *PROBES.values(), VALID, TRUE)
    rows: list[list[Cell]] = []
    for entry in read.results.entries:
        found = [[run.points[-1].values.get(m) for run in entry.runs] for m in measures]
        most = str(max(PROBES))
        more = [_mean(run.points[-1].details[what][most] for run in entry.runs) for what in ("clause", "hidden")]
        rows.append([entry.name, *(_mean(v for v in each if v is not None) for each in found), *more])
    return Table(
        title=ABLE,
        columns=[
            "",
            "rating",
            "fill, one pass",
            "fill, scored",
            "probe, 32",
            "probe, 128",
            "valid",
            "true",
            "probe, 128, clause",
            "probe, 128, hidden",
        ],
        rows=rows,
        note="At the end, means over seeds. Valid and true: of what is written behind “review”. Fill and probes "
        "without knowledge are at .5. Clause: the states of “review: the soup was tasty” alone. Hidden: all reviews "
        "have one food adjective, so that its side can be read from the link and the person's adjective alone.",
    )


def two_ways(read: Read) -> Table:
    rows: list[list[Cell]] = []
    for entry in read.results.entries:
        if "ways" not in entry.runs[0].points[-1].details:
            continue
        rows.append([entry.name, *(fmean(read.ends(entry.name, what, way)) for what in (OWN, FILL) for way in WAYS)])
    return Table(
        title=TWO_WAYS,
        columns=["", *(f"{what}, {way}" for what in ("rating", "fill") for way in ("both sides", "left side"))],
        rows=rows,
        note="At the end, means over seeds: the slot open between both sides, and at the end of what stands before it.",
    )


def gradients(read: Read) -> list[Table]:
    heads = [f"{name}: {said}" for name in GRADIENTS for said in _said(read, name)]

    def table(title: str, rows: Sequence[str], value: Callable[[str, Stage, str], float], note: str) -> Table:
        made: list[list[Cell]] = []
        for row in rows:
            each = [value(name, stage, row) for name in GRADIENTS for stage in STAGES]
            made.append([row.replace(" ", " · "), *(None if math.isnan(v) else v for v in each)])
        return Table(title=title, columns=["", *heads], rows=made, note=note)

    def over(kind: str) -> Callable[[str, Stage, str], float]:
        return lambda name, stage, row: fmean(one[kind][row] for one in compared(read, name, stage))

    same = "Mean gradients over the same 1,024 training texts; means over seeds."
    noiseless = (
        "Of one half of the texts with the other, over the root of the product of both objectives' halves; means over "
        "seeds. Blank where under some seed an objective's halves have a cosine of 0 or less."
    )
    noise = "The cosine of an objective's mean gradients over 512 texts and 512 others."
    return [
        table(COSINES, PAIRS, over("cosine"), same),
        table(NOISELESS, PAIRS, partial(without_noise, read), noiseless),
        table(NOISE, list(OBJECTIVES), over("halves"), noise),
    ]


def _said(read: Read, name: str) -> list[str]:
    points = read.entry(name).runs[0].points
    return ["0", f"{points[0].step:,}", f"{points[-1].step:,}"]
