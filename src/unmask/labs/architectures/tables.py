"""What was found, the mean over seeds, where several were run with the lowest and the highest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unmask.compare.results import Table
from unmask.labs.architectures.measured import ANY_WORD, EXACT, FILLED, LINE, OTHERS, PLACES, RATED
from unmask.labs.architectures.statements import Found, details, end, value
from unmask.labs.architectures.subjects import CAUSAL, LABELS, MASKED, PREFIX, SUBJECTS, T5, T5_ANYWHERE
from unmask.labs.architectures.writing import MASKS
from unmask.labs.reviews.cells import Cell, spread
from unmask.labs.reviews.probes import LABELS as COUNTS
from unmask.labs.reviews.probes import PENALTY, TESTED

NAMES = [subject.name for subject in SUBJECTS]


def tables(found: Sequence[Found], levels: Mapping[str, float]) -> list[Table]:
    return [
        _beside_notes(found, levels),
        _costs(found),
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


def _detail(found: Found, who: str, *keys: str) -> Any:
    at: Any = details(found, who)
    for key in keys:
        at = at.get(key) if at is not None else None
    return at


def _of(found: Sequence[Found], who: str, *keys: str) -> Cell:
    return spread([_detail(one, who, *keys) for one in found])


def _beside_notes(found: Sequence[Found], levels: Mapping[str, float]) -> Table:
    """The figures that the notes give in their sections 5.2 to 5.4 and exercise 8, and ours."""

    def at(who: str, milestone: int, measure: str = RATED) -> Cell:
        return spread(value(one[who].run.points[milestone], measure) for one in found)

    def read(who: str, how: str, labels: int) -> Cell:
        return _of(found, who, "probes", how, str(labels))

    masked = zip(("500", "1,000", "1,500"), ("0.47", "0.73", "1.00"), strict=True)
    rows: list[list[Cell]] = [
        ["always ok", "0.47", levels["always ok"]],
        *([f"rating at 500 updates, {LABELS[who]}", "1.00", at(who, 0)] for who in (CAUSAL, PREFIX)),
        *([f"rating at {step} updates, Masked", notes, at(MASKED, k)] for k, (step, notes) in enumerate(masked)),
        ["rating at the end, T5", "0.47", at(T5, -1)],
        ["rating at the end, T5, written freely", "0.00", at(T5, -1, EXACT)],
        ["own targets, T5: words", "0.66", _of(found, T5, "own", "content")],
        ["own targets, T5: sentinels", "0.99", _of(found, T5, "own", "sentinels")],
        ["own targets, Masked", "0.77", _of(found, MASKED, "own", "content")],
        ["adjective in one pass, Causal", "0.55", at(CAUSAL, -1, FILLED)],
        ["adjective by scoring lines, Causal", "1.00", at(CAUSAL, -1, LINE)],
        ["adjective by scoring, T5", "0.46", at(T5, -1, LINE)],
        ["well formed by appending, Masked", "0.00", _of(found, MASKED, "writing", next(iter(MASKS)), "valid")],
        ["probe of the mean, Causal, 128 labels", "0.838", read(CAUSAL, "mean", 128)],
        ["probe of the last place, Causal, 128 labels", "0.936", read(CAUSAL, "last", 128)],
        ["probe of the mean, Masked, 32 labels", "0.802", read(MASKED, "mean", 32)],
        ["probe of the mean, Masked, 128 labels", "0.943", read(MASKED, "mean", 128)],
    ]
    return Table(
        title="Ours beside the notes",
        columns=["what", "notes, one model", "ours"],
        rows=rows,
        note="At the end unless it says otherwise. The notes ask for ratings of 100 other reviews. How many labels "
        "their probes of the causal model had we cannot tell; ours have 128.",
    )


def _costs(found: Sequence[Found]) -> Table:
    """What equal updates cost each."""
    causal = found[0][CAUSAL].run.points[-1].flops

    def row(who: str) -> list[Cell]:
        last = found[0][who].run.points[-1]
        tokens = [one[who].run.points[-1].tokens for one in found]
        targets = [one[who].run.points[-1].target_tokens for one in found]
        each = sum(tokens) / len(tokens) / last.step
        dense = 1000 * sum(targets) / sum(tokens)
        return [LABELS[who], found[0][who].parameters, each / 32, dense, last.flops / 1e9, last.flops / causal]

    return Table(
        title="What equal updates cost",
        columns=["model", "parameters", "positions a window", "targets a 1,000 positions", "GFLOPs", "of causal's"],
        rows=[row(who) for who in NAMES],
        note="A window is 30 tokens of text; positions are what the networks read of it, marks and T5's target among "
        "them. FLOPs of the whole run, by formula.",
    )


CURVES = "Rating, by updates"


def _curves(found: Sequence[Found], levels: Mapping[str, float]) -> Table:
    steps = [p.step for p in found[0][NAMES[0]].run.points]

    def row(who: str) -> list[Cell]:
        points = zip(*(one[who].run.points for one in found), strict=True)
        return [LABELS[who], *(spread([p.values[RATED] for p in at]) for at in points)]

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
        "other two. Who goes by both adjectives: 1, 0, 1. Who goes by the link and the person's adjective: 0, 1, .49, "
        "the share of reviews with “and”.",
    )


def _asked(found: Sequence[Found]) -> Table:
    """One model, asked in other ways than the protocol's."""

    def row(who: str) -> list[Cell]:
        return [
            LABELS[who],
            spread([end(f, who) for f in found]),
            *(_of(found, who, "beside", str(n)) for n in OTHERS),
            _of(found, who, "alone"),
            *(_of(found, who, "by place", str(at)) for at in PLACES),
            spread([end(f, who, ANY_WORD) for f in found]),
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
            spread([end(f, who, FILLED) for f in found]),
            _of(found, who, "fill, any word"),
            f"{word} ({count})",
            spread([end(f, who, LINE) for f in found]),
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
    "mean, clause": "mean of “review: the soup was tasty” alone",
    "last, clause": "last place of it, the adjective",
    "mean, clause, untrained": "mean of it, untrained network",
    "last, clause, untrained": "last place of it, untrained network",
    "mean, adjective hidden": "mean, one food adjective everywhere",
    "mean, untrained": "mean, untrained network",
    "last, untrained": "last place, untrained network",
    "bag of words": "bag of words",
}


def _probes(found: Sequence[Found]) -> Table:
    """A row for each reading, a column for each model; the bag of words is one for all."""

    def read(who: str, reading: str) -> Cell:
        return _of(found, who, "probes", reading, str(most)) if reading in _detail(found[0], who, "probes") else None

    most = max(COUNTS)
    return Table(
        title="An unlabelled adjective's side, read from the states",
        columns=[f"reading, {most} labels", *(LABELS[who] for who in NAMES)],
        rows=[[label, *(read(who, reading) for who in NAMES)] for reading, label in READINGS.items()],
        note=f"Logistic regression on standardised states (penalty {PENALTY:g}), ten draws of reviews up to “rating:”; "
        f"asked about {TESTED} others, whose food adjectives no labelled one holds. By chance .5. T5: the encoder's "
        "states, but behind the slot.",
    )
