"""What was found, the mean over seeds, where several were run with the lowest and the highest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unmask.compare.results import Table
from unmask.labs.architectures.measured import ANY_WORD, FILLED, LINE, OTHERS, PLACES, RATED
from unmask.labs.architectures.statements import Found, details, end
from unmask.labs.architectures.subjects import (
    LABELS,
    SUBJECTS,
    T5,
    T5_ANYWHERE,
)
from unmask.labs.reviews.probes import LABELS as COUNTS
from unmask.labs.reviews.probes import PENALTY, TESTED

NAMES = [subject.name for subject in SUBJECTS]
Cell = str | float | int | None


def tables(found: Sequence[Found], levels: Mapping[str, float]) -> list[Table]:
    return [
        _curves(found, levels),
        _turned(found),
        _asked(found),
        _own(found),
        _gaps(found),
        _spans(found),
        _filled(found),
        _events(found),
        _written(found),
        _probes(found),
    ]


def spread(values: Sequence[float]) -> Cell:
    """
    >>> spread([0.5]), spread([0.5, 0.75])
    (0.5, '0.62 (0.50–0.75)')
    """
    if len(values) == 1:
        return values[0]
    return f"{sum(values) / len(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def _cell(values: Sequence[float | None]) -> Cell:
    """A number of each seed; none where a model has none."""
    there = [v for v in values if v is not None]
    return spread(there) if there else None


def _detail(found: Found, who: str, *keys: str) -> Any:
    at: Any = details(found, who)
    for key in keys:
        at = at.get(key) if at is not None else None
    return at


def _of(found: Sequence[Found], who: str, *keys: str) -> Cell:
    return _cell([_detail(one, who, *keys) for one in found])


CURVES = "Rating, by updates"


def _curves(found: Sequence[Found], levels: Mapping[str, float]) -> Table:
    steps = [p.step for p in found[0][NAMES[0]].run.points]

    def row(who: str) -> list[Cell]:
        points = zip(*(one[who].run.points for one in found), strict=True)
        return [LABELS[who], *(_cell([p.values[RATED] for p in at]) for at in points)]

    said = ", ".join(f"{label} {value:.2f}" for label, value in levels.items())
    return Table(
        title=CURVES,
        columns=["model", *map(str, steps)],
        rows=[row(who) for who in NAMES],
        note=f"Three candidates at the open slot of 200 held-out reviews. Without the rule: {said}.",
    )


def _turned(found: Sequence[Found]) -> Table:
    words = ("food adjective", "link", "person's adjective")
    return Table(
        title="What the answer hangs on",
        columns=["model", *(f"{word} turned" for word in words)],
        rows=[[LABELS[who], *(_of(found, who, "turned", word) for word in words)] for who in NAMES],
        note="Share of ratings that change where one word is turned into its opposite, so that it contradicts the "
        "other two. Who goes by both adjectives: 1, 0, 1. Who goes by the link and the person's adjective: 0, 1, .5.",
    )


def _asked(found: Sequence[Found]) -> Table:
    """One model, asked in other ways than the protocol's."""

    def row(who: str) -> list[Cell]:
        return [
            LABELS[who],
            _cell([end(f, who) for f in found]),
            *(_of(found, who, "beside", str(n)) for n in OTHERS),
            _of(found, who, "alone"),
            *(_of(found, who, "by place", str(at)) for at in PLACES),
            _cell([end(f, who, ANY_WORD) for f in found]),
        ]

    others = [f"{n} other place{'s' * (n > 1)} open" for n in OTHERS]
    return Table(
        title="The rating, asked in other ways",
        columns=["model", "by the protocol", *others, "review alone", *(f"begins at {p}" for p in PLACES), "any word"],
        rows=[row(who) for who in NAMES],
        note="Each column is an event of its own, at the end. In training four places are open. Review alone: nothing "
        "follows it in its row. Begins at: the review's place in the window, for models trained on any.",
    )


def _own(found: Sequence[Found]) -> Table:
    return Table(
        title="Right on its own objective",
        columns=["model", "words", "sentinels"],
        rows=[[LABELS[who], *(_of(found, who, "own", k) for k in ("content", "sentinels"))] for who in NAMES],
        note="Share of its own targets, on held-out windows under its own noise, that are the likeliest token: each "
        "model answers other questions.",
    )


GAPS = "Gaps in what T5 is trained on"


def _gaps(found: Sequence[Found]) -> Table:
    shares = [_detail(found[0], who, "own", "gaps") or {} for who in (T5, T5_ANYWHERE)]
    counts = sorted({int(k) for share in shares for k in share})
    return Table(
        title=GAPS,
        columns=["windows", *(f"{k} gap{'s' * (k > 1)}" for k in counts)],
        rows=[
            [LABELS[who], *(share.get(str(k), 0.0) for k in counts)]
            for who, share in zip((T5, T5_ANYWHERE), shares, strict=True)
        ],
        note="Share of held-out windows under the objective's noise.",
    )


def _spans(found: Sequence[Found]) -> Table:
    """What T5 writes where the rating stood."""
    rows: list[list[Cell]] = [
        [LABELS[who], seed, str(text), int(count)]
        for who in (T5, T5_ANYWHERE)
        for seed, one in enumerate(found)
        for text, count in _detail(one, who, "spans")[:3]
    ]
    return Table(
        title="What T5 writes for the rating's gap",
        columns=["model", "seed", "span", "of 200"],
        rows=rows,
        note="The likeliest token each time, up to the next sentinel: the three commonest spans.",
    )


def _filled(found: Sequence[Found]) -> Table:
    def row(who: str) -> list[Cell]:
        word, count = _detail(found[0], who, "words")[0]
        return [
            LABELS[who],
            _cell([end(f, who, FILLED) for f in found]),
            _of(found, who, "fill, any word"),
            f"{word} ({count})",
            _cell([end(f, who, LINE) for f in found]),
        ]

    return Table(
        title="The food adjective, filled in",
        columns=["model", "one pass, 16 candidates", "one pass, any word", "commonest word of 200", "16 lines scored"],
        rows=[row(who) for who in NAMES],
        note="Right if as good or bad as the adjective that stood there; by chance about .5. The commonest word: of "
        "the first seed. Lines: 100 reviews.",
    )


def _events(found: Sequence[Found]) -> Table:
    return Table(
        title="What scoring a line means",
        columns=["model", "event"],
        rows=[[LABELS[who], str(_detail(found[0], who, "event"))] for who in NAMES],
    )


def _written(found: Sequence[Found]) -> Table:
    def row(who: str, way: str) -> list[Cell]:
        shares = ("valid", "true", "different", "seen")
        return [
            LABELS[who],
            way,
            *(_of(found, who, "writing", way, s) for s in shares),
        ]

    return Table(
        title="200 lines from nothing",
        columns=["model", "way", "well formed", "true", "different", "of the training text"],
        rows=[row(who, way) for who in NAMES for way in _detail(found[0], who, "writing")],
        note="Sampled at temperature 1. A line ends at its line end, with [EOS], or after 30 tokens.",
    )


READINGS = {
    "mean": "mean",
    "last": "last place",
    "place": "at the adjective",
    "behind": "decoder behind the slot",
    "mean, opinion": "mean, without “rating:”",
    "last, opinion": "last place, without “rating:”",
    "mean, untrained": "mean, untrained network",
    "last, untrained": "last place, untrained network",
    "bag of words": "bag of words",
}


def _probes(found: Sequence[Found]) -> Table:
    """A row for each model and reading; the bag of words is one for all."""
    rows: list[list[Cell]] = []
    for who in NAMES:
        for reading, label in READINGS.items():
            if reading not in _detail(found[0], who, "probes") or (reading == "bag of words" and who != NAMES[0]):
                continue
            name = "any" if reading == "bag of words" else LABELS[who]
            numbers = [_of(found, who, "probes", reading, str(k)) for k in COUNTS]
            rows.append([name, label, *numbers])
    return Table(
        title="An unlabelled adjective's side, read from the states",
        columns=["model", "reading", *(f"{k} labels" for k in COUNTS)],
        rows=rows,
        note=f"Logistic regression on standardised states (penalty {PENALTY:g}), ten draws of reviews up to “rating:”; "
        f"asked about {TESTED} others, whose food adjectives no labelled one holds. By chance .5. T5: the encoder's "
        "states, but behind the slot.",
    )
