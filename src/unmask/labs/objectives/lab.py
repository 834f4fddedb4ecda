"""What the lecture notes claim about objectives, whether it holds here, and the tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from unmask.batch import Rows
from unmask.chart import Chart, Series, svg
from unmask.compare.results import Results, Table
from unmask.data.worlds import World
from unmask.labs.base import ABOUT, Asked, Lab, Statement, Verdict, about, claims
from unmask.labs.objectives import characters as spelling
from unmask.labs.objectives.characters import RATES, Characters, characters
from unmask.labs.objectives.corruptions import Corrupted, Fate, corruptions, exact_fates, fates, papers_example
from unmask.labs.objectives.densities import CONTEXT, Density, densities
from unmask.labs.objectives.grids import SOURCE, SUM, Exchange, Grid, decoder, encoder, exchange, prefixed
from unmask.objectives.denoise import SpanCorruption
from unmask.show.draw import NOT, SEES
from unmask.show.expected import Expected, expected

MOST = 4.0
"""Standard deviations between what is counted and what is expected."""
DENSITY = "Targets per 1,000 positions"
IID, SPANS = "T5, i.i.d.", "T5, spans of 3"
Row = list[str | float | int | None]


@dataclass(frozen=True)
class Found:
    """What one seed shows."""

    pair: Exchange
    line: list[Corrupted]
    fates: list[Fate]
    densities: dict[str, Density]
    characters: Characters


# ---------------------------------------------------------------- statements


def _grids(_: Found) -> Verdict:
    bert, gpt, mixed = encoder(), decoder(), prefixed()
    ends = np.array_equal(prefixed(1).seen, gpt.seen) and np.array_equal(prefixed(len(SUM)).seen, bert.seen)
    return (bert.pairs, gpt.pairs, mixed.pairs) == (36, 21, 27) and ends, (
        f"{bert.pairs}, {gpt.pairs} and {mixed.pairs} of 36 pairs; a prefix of 1 {'is' if ends else 'is not'} GPT's "
        f"grid, and one of {len(SUM)} {'is' if ends else 'is not'} BERT's"
    )


def _pairs(found: Found) -> Verdict:
    pair = found.pair
    two = (pair.source.pairs, pair.target.pairs, pair.across.pairs)
    one = {name: grid.pairs for name, grid in pair.one.items() if name.startswith("prefix")}
    return two == (25, 6, 15) and set(one.values()) == {51}, (
        f"encoder {two[0]}, decoder {two[1]}, across {two[2]}; one stack: "
        + ", ".join(f"{n} ({name})" for name, n in one.items())
    )


def _flow(found: Found) -> Verdict:
    """Positions from the prefix's last on answer: they see the prefix, and of the rest what is not to their right."""
    given = SOURCE + 1
    grids = [grid.seen for name, grid in found.pair.one.items() if name.startswith("prefix")]
    whole = all(seen[given - 1 :, :given].all() for seen in grids)
    left = all(np.array_equal(seen[given:, given:], np.tril(np.ones_like(seen[given:, given:]))) for seen in grids)
    told = ("is" if whole else "is not", "all that is" if left else "not just what is")
    return whole and left, f"wherever [BOS] stands the source {told[0]} seen, and of the target {told[1]} to the left"


def _paper(_: Found) -> Verdict:
    source, target = papers_example()
    told = (source, target) == (
        "Thank you <extra_id_0> me to your party <extra_id_1> week .",
        "<extra_id_0> for inviting <extra_id_1> last <extra_id_2>",
    )
    return told, f"{source} ⇒ {target}; ours add [EOS] to both"


def _shares(found: Found) -> Verdict:
    exact = exact_fates()
    right = list(exact.values()) == [Fraction(12, 100), Fraction(15, 1000), Fraction(15, 1000), Fraction(3, 88)]
    wrong = exact["random"] / (1 - exact["[MASK]"])
    counted = ", ".join(f"{fate.counted:.2%} {fate.name} ({fate.off:+.1f} sd)" for fate in found.fates)
    return right and all(abs(fate.off) < MOST for fate in found.fates), (
        f"exactly {', '.join(f'{float(v):.2%}' for v in exact.values())}; {float(wrong):.1%} of what is not [MASK] is "
        f"a random word; counted on the reviews: {counted}"
    )


def _exact(found: Found) -> Verdict:
    far = max(found.densities.values(), key=lambda d: max(abs(d.off), abs(d.off_marks)))
    off = max(abs(far.off), abs(far.off_marks))
    return (
        off < MOST,
        f"the farthest of {len(found.densities)} objectives is {far.name}, {off:.1f} standard deviations off",
    )


def _every(found: Found) -> Verdict:
    targets = found.densities["GPT"].targets
    return targets == 1000, f"{targets:,.1f} per 1,000"


def _half(found: Found) -> Verdict:
    d = found.densities["prefix LM"]
    return about(d.targets, 533), f"{d.targets:.1f} counted, {d.expected:.1f} expected"


def _seven(found: Found) -> Verdict:
    gpt, bert = found.densities["GPT"], found.densities["BERT"]
    return gpt.targets > 7 * bert.targets and about(bert.targets, 137), (
        f"{bert.targets:.1f} counted, {bert.expected:.1f} expected: GPT has "
        f"{gpt.targets / bert.targets:.2f} times as many"
    )


def _sentinels(found: Found) -> Verdict:
    d = found.densities[IID]
    return d.marks > d.targets / 2, (
        f"{d.marks:.1f} of {d.targets:.1f} are ({d.marks / d.targets:.1%}); beside words alone "
        f"{d.marks / (d.marks + d.words):.1%}, but {d.others:.1f} more are end tokens"
    )


def _hundred(found: Found) -> Verdict:
    d = found.densities[IID]
    return about(d.words, 100) and d.words < d.targets / 2, f"{d.words:.1f} words of {d.targets:.1f} targets"


def _longer(found: Found) -> Verdict:
    one, three = found.densities[IID], found.densities[SPANS]
    fewer = one.marks / 3 < three.marks < one.marks
    return fewer and about(three.words, one.words) and three.targets < one.targets, (
        f"sentinels {one.marks:.1f} → {three.marks:.1f} ({three.marks / one.marks:.2f}), words {one.words:.1f} → "
        f"{three.words:.1f}, targets {one.targets:.1f} → {three.targets:.1f}"
    )


def _spelling(found: Found) -> Verdict:
    share = {name: each[spelling.RATE] for name, each in found.characters.expected.items()}
    own = share[spelling.LETTERS_OF_REVIEWS, spelling.THEIR_OWN]
    wide, marks = (share[of, spelling.WORLD] for of in (spelling.LETTERS_OF_REVIEWS, spelling.ALL_OF_REVIEWS))
    return abs(own - 0.93) <= 0.02, (
        f"{own:.1%} of the letters of reviews among the words of reviews, {wide:.1%} among all words of the world; "
        f"with the marks {marks:.1%}"
    )


def _counted_spelling(found: Found) -> Verdict:
    c = found.characters
    share = c.expected[spelling.ALL_OF_REVIEWS, spelling.WORLD][spelling.RATE]
    return abs(c.decided / c.masked - share) < 0.02, (
        f"{c.decided:,} of {c.masked:,} masked characters ({c.decided / c.masked:.2%}), expected {share:.2%}"
    )


def _crest(found: Found) -> Verdict:
    even, often = found.characters.even, found.characters.counted
    known = found.characters.is_word
    return even.likeliest == "crest" and not any(known.values()), (
        f"{', '.join(even.words)} spell {even.likeliest} (all first letters are as likely; the first of the alphabet "
        f"is taken); weighed as the training reviews do, {often.likeliest}; letters drawn place by place spell one of "
        f"the five with probability {even.right} = {float(even.right):.2%}"
    )


STATEMENTS: tuple[Statement[Found], ...] = (
    Statement(
        "Of six tokens BERT sees 36 pairs, GPT 21, a prefix LM of four 27; a prefix of one is GPT, a whole one BERT",
        "notes 4.1",
        _grids,
    ),
    Statement(
        "A source of 5 and a target of 3 have 25 + 6 + 15 visible pairs in two stacks, and 51 as a prefix LM",
        "notes, exercise 4",
        _pairs,
    ),
    Statement(
        "A prefix LM's answers see all of the source and what is left of them, as two stacks do", "notes 4.1", _flow
    ),
    Statement(
        "In T5's paper <X> for inviting <Y> last <Z> is asked of Thank you <X> me to your party <Y> week .",
        "notes 4.4",
        _paper,
    ),
    Statement(
        "BERT's input is 12 % [MASK], 1.5 % random, 1.5 % kept; 3.4 % of what is not [MASK] is asked for",
        "notes, exercise 6",
        _shares,
    ),
    Statement("Targets and sentinels are as many as the settings say by formula, to 4 standard deviations", "", _exact),
    Statement("Under GPT every position is a question: 1,000 of 1,000", "notes 4.2, 4.6", _every),
    Statement("A prefix LM asks at about 533 of 1,000 positions", "notes 4.6", _half),
    Statement("BERT asks at about 137 of 1,000 positions, and GPT at more than 7 times as many", "notes 4.6", _seven),
    Statement("More than half of T5's i.i.d. targets are sentinels", "notes 4.6", _sentinels),
    Statement(
        "T5's i.i.d. targets hold about a hundred real words per 1,000 positions, fewer than half of the targets",
        "notes 4.6",
        _hundred,
    ),
    Statement(
        "Spans of 3 leave T5 about as many words as i.i.d. noise, fewer sentinels (over a third), and shorter targets",
        "notes, exercise 7",
        _longer,
    ),
    Statement(
        "Of masked characters, each hidden by itself at 15 %, 93 % (± 2) are decided by the rest of their own word",
        "notes 1.5",
        _spelling,
    ),
    Statement(
        "Of characters that masks are drawn for, as many are decided by their own word as is expected, to 2 points",
        "",
        _counted_spelling,
    ),
    Statement(
        "The likeliest letters of a hidden adjective, each right at its place, spell crest, which is no word",
        "notes 1.5, 4.3",
        _crest,
    ),
)


# ---------------------------------------------------------------- tables


def found(seed: int) -> Found:
    world = World(seed=seed)
    line = world.lines("reviews", "train")[0]
    return Found(
        exchange(), corruptions(world, line, seed), fates(world, seed), densities(world, seed), characters(world, seed)
    )


def run(asked: Asked) -> Results:
    return results([found(seed) for seed in asked.seeds])


def results(each: Sequence[Found]) -> Results:
    first = each[0]
    return Results(
        title=LAB.title,
        command="",
        claims=claims(STATEMENTS, each),
        tables=[
            _densities(list(first.densities.values())),
            _lengths(),
            *map(_grid, (encoder(), decoder(), prefixed())),
            _exchange(first.pair),
            _corrupted(first.line),
            _fates(first.fates),
            _decided(first.characters),
            _places(first.characters),
        ],
        notes=[
            "Each seed is a world and noise of its own. Tables are of the first.",
            f"About: within {ABOUT:.0%} of the notes' figure, in every claim.",
            f"Reviews end to end, in pieces that fill {CONTEXT} positions; framing tokens ([CLS], [SEP], [BOS], [EOS]) "
            "are positions, padding is none. The notes' counts are of their own code and text.",
        ],
    )


def _densities(each: Sequence[Density]) -> Table:
    rows: list[Row] = []
    for d in each:
        targets, marks = d.notes or (None, None)
        rows.append(
            [d.name, d.expected, d.targets, d.off, targets, d.words, d.expected_marks, d.marks, marks, d.others]
        )
    return Table(
        title=DENSITY,
        columns=[
            "objective",
            "expected",
            "counted",
            "off",
            "notes",
            "words",
            "sentinels expected",
            "sentinels",
            "notes' sentinels",
            "others",
        ],
        rows=rows,
        note="expected: by formula, exact for these texts; off: standard deviations of the noise between the two (0 "
        "where nothing is random); words: targets of the text; others: end tokens, and ELECTRA's labels.",
    )


def _lengths() -> Table:
    """Sentinels for each word, which the length of the texts decides."""
    rows: list[Row] = []
    for n in (16, 20, 32, 64, 128, 512):
        ratios: Row = []
        for objective in (SpanCorruption.iid(), SpanCorruption.t5()):
            one = expected(objective, Rows.of([range(n)]))
            assert isinstance(one, Expected)
            ratios.append(one.marks / (one.targets - one.marks - 1))
        rows.append([n, *ratios])
    return Table(
        title="Sentinels for each word of T5's targets",
        columns=["tokens of a text", "i.i.d.", "spans of 3"],
        rows=rows,
        note="By formula. The last sentinel is one a text, so short texts have more. The notes count 103 sentinels "
        "for 84 words (1.23), and 61 for 74 (0.82).",
    )


def _grid(grid: Grid) -> Table:
    return Table(
        title=f"Who sees whom: {grid.name}",
        columns=["", *SUM],
        rows=[[token, *(SEES if s else NOT for s in row)] for token, row in zip(SUM, grid.seen.tolist(), strict=True)],
        note=f"Row: who looks. {grid.pairs} of {grid.seen.size} pairs.",
    )


def _exchange(pair: Exchange) -> Table:
    two = [(f"two stacks: {g.name}", g) for g in (pair.source, pair.target, pair.across)]
    rows: list[Row] = [
        [name, "×".join(map(str, g.seen.shape)), g.pairs]
        for name, g in (*two, *((f"one stack: {name}", g) for name, g in pair.one.items()))
    ]
    return Table(title="A source of 5, a target of 3", columns=["mask", "shape", "visible pairs"], rows=rows)


def _corrupted(line: Sequence[Corrupted]) -> Table:
    return Table(
        title="One review under each objective",
        columns=["objective", "reads", "is asked"],
        rows=[[c.name, c.reads, c.asked] for c in line],
        note="ELECTRA: what the generator reads ⇒ what the discriminator reads; a stub that says each of the line's "
        "own tokens as often as it occurs stands for the generator. [BOS] and [EOS] also play [CLS] and [SEP].",
    )


def _fates(each: Sequence[Fate]) -> Table:
    return Table(
        title="The fates of BERT's tokens",
        columns=["share of all tokens", "fraction", "exact", "counted", "off"],
        rows=[[f.name, str(f.exact), float(f.exact), f.counted, f.off] for f in each],
        note="One random word in as many as there are is the text's own, which the input cannot tell from a kept one.",
    )


def _decided(found: Characters) -> Table:
    return Table(
        title="Masked characters that their own word decides",
        columns=["characters", "looked up among", *(f"{rate:.0%}" for rate in RATES)],
        rows=[[of, among, *each.values()] for (of, among), each in found.expected.items()],
        note="By mask rate, each character hidden by itself; exact, over all ways to hide. Decided: all words of this "
        "length with these visible letters agree.",
    )


def _places(found: Characters) -> Table:
    def said(letters: dict[str, Fraction]) -> str:
        return ", ".join(f"{c} {p}" for c, p in sorted(letters.items(), key=lambda item: (-item[1], item[0])))

    return Table(
        title="A hidden adjective, place by place",
        columns=["place", "letters, as likely as the five words are alike", "as the training reviews have them"],
        rows=[
            [k + 1, said(even), said(often)]
            for k, (even, often) in enumerate(zip(found.even.marginals, found.counted.marginals, strict=True))
        ],
        note=f"{', '.join(found.even.words)}. The likeliest letters spell {found.even.likeliest} and "
        f"{found.counted.likeliest}.",
    )


def picture(results: Results) -> str:
    """Targets per 1,000 positions, expected and in the notes."""
    table = next(t for t in results.tables if t.title == DENSITY)
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    names = [str(row["objective"]) for row in rows]

    def values(column: str) -> list[float | None]:
        return [None if row[column] is None else float(str(row[column])) for row in rows]

    series = (Series("expected", names, values("expected")), Series("notes", names, values("notes")))
    return svg(Chart(DENSITY, series, "objective", "targets", kind="bar"))


LAB = Lab(
    "objectives",
    "Objectives: who sees whom, what is corrupted, how much is asked",
    "mask grids, a review line under each objective, exact target densities, and what masked characters teach.",
    run,
    picture,
)
