"""What the lecture notes claim about tokens, whether it holds here, and the tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from unmask.chart import Chart, Series, svg
from unmask.compare.results import Results, Table
from unmask.data.worlds import World
from unmask.labs.base import ABOUT, Asked, Lab, Statement, Verdict, about, claims
from unmask.labs.tokens.examples import Examples, Merged, Segmented, examples
from unmask.labs.tokens.measured import CONTEXT, MERGES, Measured, bpe_name, measured
from unmask.tokens.report import embedding_share

COSTS = "What a cut costs"
GPT3 = (50_257, 12_288, 96)
"""Entries, width and layers of GPT-3."""


@dataclass(frozen=True)
class Found:
    """The examples, and what one world shows."""

    examples: Examples
    world: Measured


# ---------------------------------------------------------------- statements


def _rat(found: Found) -> Verdict:
    rat = found.examples.rat
    made, cut = [m for m, _ in rat.steps], list(rat.cut)
    right = made == ["th", "the", "ca"] and cut == ["the", "␣", "o", "x"] and len(rat.vocabulary) == 9
    return (
        right,
        f"{_steps(rat)}; the ox is {_bars(rat.cut)}; {len(rat.vocabulary)} entries: {' '.join(rat.vocabulary)}",
    )


def _lowest(found: Found) -> Verdict:
    low = found.examples.lowest
    return [m for m, _ in low.steps] == ["lo", "low", "ne"] and list(low.cut) == ["low", "e", "s", "t"], (
        f"{_steps(low)}; lowest is {_bars(low.cut)}"
    )


def _likelihood(found: Found) -> Verdict:
    (pieces, chance), *others = found.examples.taught.ways
    return chance == Fraction(4, 27) and not others, f"{_bars(pieces)} has {chance}, and there is no other segmentation"


def _four_ways(found: Found) -> Verdict:
    chances = [chance for _, chance in found.examples.listed.ways]
    right = chances[:3] == [Fraction(1, 16), Fraction(1, 512), Fraction(1, 512)] and len(chances) == 4
    return right, f"{_ways(found.examples.listed)}; the string itself has {found.examples.listed.likelihood}"


def _fewer(found: Found) -> Verdict:
    shorter = found.examples.shorter
    right = shorter.ways == ((("ab", "c"), Fraction(1, 8)), (("a", "b", "c"), Fraction(1, 256)))
    return right, _ways(shorter)


def _sums(found: Found) -> Verdict:
    split, known = found.world.cost("white space"), found.world.cost("words and marks").unknown
    others = ", ".join(found.world.unknown_words)
    return split.unknown_kinds > 0 and not others and not known, (
        f"{split.unknown_kinds} different tokens of the held-out text are unknown under white space "
        f"({split.unknown} in all), {f'among them {others}' if others else 'all of them sums'}; "
        f"{known} under words and marks"
    )


def _curve(found: Found) -> Verdict:
    curve = [c for c in found.world.costs if c.merges]
    falls = all(a.tokens > b.tokens and a.vocabulary < b.vocabulary for a, b in pairwise(curve))
    first, last = curve[0], curve[-1]
    return (
        falls,
        f"from {first.vocabulary} entries and {first.tokens:,} tokens to {last.vocabulary} and {last.tokens:,}",
    )


def _whole(found: Found) -> Verdict:
    chunks, merges = found.world.chunks, len(found.world.merges)
    return merges > chunks, f"{chunks} different chunks, {merges} merges"


def _three_times(found: Found) -> Verdict:
    times = found.world.characters / found.world.cost(bpe_name(MERGES)).tokens
    return about(times, 3.1), f"{times:.2f} characters a token at {MERGES} merges"


def _ten_times(found: Found) -> Verdict:
    times = 1 / found.world.cost(bpe_name(MERGES)).attention
    return about(times, 9.9), f"{times:.1f} times as many pairs of positions as BPE at {MERGES} merges"


def _context(found: Found) -> Verdict:
    long, short = (CONTEXT / found.world.cost(name).per_line for name in ("characters", bpe_name(MERGES)))
    return about(long, 2.6) and about(short, 8), f"{long:.1f} lines as characters, {short:.1f} under {MERGES} merges"


def _inconsistent(found: Found) -> Verdict:
    n = found.world.pieces_of_numbers(MERGES)
    return all(n.values()), f"{n[1]} are one token, {n[2]} two, {n[3]} three (the notes: 29, 150, 10)"


def _unseen(found: Found) -> Verdict:
    return found.world.halved == (195, 196, 198), f"cut in two: {', '.join(map(str, found.world.halved))}"


def _livs(found: Found) -> Verdict:
    right, wrong = found.world.cuts[" lives"][0], found.world.cuts[" livs"][0]
    return not set(right) & set(wrong), f"{_bars(right)} against {_bars(wrong)}"


def _alike(found: Found) -> Verdict:
    same, of = found.world.alike
    by_bpe, by_unigram = found.world.cuts[" livs"]
    return same > of / 2 and by_bpe != by_unigram, (
        f"{same} of {of} chunks are cut alike; livs is {_bars(by_bpe)} by BPE and {_bars(by_unigram)} by unigram"
    )


def _two_ways(found: Found) -> Verdict:
    best, second = found.world.two[" zukun"]
    return second[1] > 0.1, f"{_bars(best[0])} has {best[1]:.4f} of its probability, {_bars(second[0])} {second[1]:.4f}"


def _table(_: Found) -> Verdict:
    share = embedding_share(*GPT3)
    return round(share, 4) == 0.0035, f"50,257 × 12,288 beside 96 layers of 12 × 12,288²: {share:.2%}"


STATEMENTS: tuple[Statement[Found], ...] = (
    Statement("On the car, the cat, the rat BPE makes th, the, ca; the ox is cut the|␣|o|x", "notes 1.2", _rat),
    Statement("On low ×3, lower, newest ×2 BPE makes lo, low, ne; lowest is low|e|s|t", "notes, exercise 1", _lowest),
    Statement(
        "ababc as ab|ab|c, with the frequencies of that cut, has a likelihood of 4/27 (the notes' source says 4/9)",
        "notes 1.3, exercise 2",
        _likelihood,
    ),
    Statement(
        "With a, b, c, ab at 1/8, 1/8, 1/4, 1/2, ababc has four segmentations: 1/16, then twice 1/512",
        "notes 1.3",
        _four_ways,
    ),
    Statement("Unigram prefers fewer, longer tokens: abc as ab|c has 1/8, as a|b|c 1/256", "notes, exercise 2", _fewer),
    Statement("All that is unknown under white space is whole sums; words and marks know all", "notes 1.1", _sums),
    Statement("The more merges, the larger the vocabulary and the shorter the text", "notes 1.2", _curve),
    Statement("More merges than there are chunks are made until each chunk is one token", "notes 1.2", _whole),
    Statement("Characters are about 3.1 times as many tokens as BPE's", "notes 1.4", _three_times),
    Statement("Characters make attention about 9.9 times as costly as BPE does", "notes 1.4", _ten_times),
    Statement("96 positions hold about 2.6 lines as characters, and about 8 under BPE", "notes 1.4", _context),
    Statement(
        "At 300 merges some of the numbers 10–198 are one token, some two, some three", "notes 1.2", _inconsistent
    ),
    Statement("With all merges made, just 195, 196 and 198, which no text holds, are cut in two", "notes 1.2", _unseen),
    Statement("A letter left out changes every token: lives and livs share none", "notes 1.2", _livs),
    Statement("BPE and unigram cut most chunks alike, and livs differently", "notes 1.3", _alike),
    Statement(
        "The second best segmentation of ␣zukun has a share worth sampling, above a tenth (the notes: .66 and .33)",
        "notes 1.3",
        _two_ways,
    ),
    Statement("GPT-3's table of 50,257 tokens is about 0.35 % of its parameters", "notes 1.4", _table),
)


# ---------------------------------------------------------------- tables


def found(seed: int) -> Found:
    return Found(examples(), measured(World(seed=seed)))


def run(asked: Asked) -> Results:
    return results([found(seed) for seed in asked.seeds])


def results(each: Sequence[Found]) -> Results:
    worked, first = each[0].examples, each[0].world
    return Results(
        title=LAB.title,
        command="",
        claims=claims(STATEMENTS, each),
        tables=[
            _beside([one.world for one in each]),
            _costs(first),
            _numbers(first),
            _lines(first),
            _segmentations(first),
            _spellings(first),
            _merges([worked.rat, worked.lowest]),
            _probabilities([worked.taught, worked.listed, worked.shorter]),
        ],
        notes=[
            "Each seed is a world of its own: other names, facts, sums and reviews. Tables are of the first.",
            "Chunks are cut as GPT-2 does, the line end is a token; of equally common pairs BPE merges the one that "
            "stands first, as in the notes.",
            f"About: within {ABOUT:.0%} of the notes' figure, in every claim.",
        ],
    )


def _beside(worlds: Sequence[Measured]) -> Table:
    """Figures that the notes give of their own text."""

    def row(what: str, notes: str, values: Sequence[float], form: str = ",.0f") -> list[str | float | int | None]:
        low, high = min(values), max(values)
        spread = f"{low:{form}} to {high:{form}}" if len(values) > 1 else None
        return [what, notes, f"{values[0]:{form}}", spread]

    at = bpe_name(MERGES)
    return Table(
        title="Beside the notes' figures",
        columns=["figure", "notes", "here", "over seeds"],
        rows=[
            row("different chunks", "410", [w.chunks for w in worlds]),
            row("merges until each is one token", "649", [len(w.merges) for w in worlds]),
            row("unknown tokens under white space", "78", [w.cost("white space").unknown_kinds for w in worlds]),
            row("characters a token, 300 merges", "3.1", [w.characters / w.cost(at).tokens for w in worlds], ".2f"),
            row("attention of characters, times BPE's", "9.9", [1 / w.cost(at).attention for w in worlds], ".1f"),
            row("lines in 96 characters", "2.6", [CONTEXT / w.cost("characters").per_line for w in worlds], ".1f"),
            row("lines in 96 BPE tokens", "8", [CONTEXT / w.cost(at).per_line for w in worlds], ".1f"),
            *(
                row(f"numbers of {word}", notes, [w.pieces_of_numbers(MERGES)[k] for w in worlds])
                for k, word, notes in ((1, "one token", "29"), (2, "two", "150"), (3, "three", "10"))
            ),
            row("best segmentation of ␣zukun", ".66", [w.two[" zukun"][0][1] for w in worlds], ".4f"),
        ],
        note="The notes' text is another: the same kinds of lines, other words and names.",
    )


def _costs(w: Measured) -> Table:
    rows: list[list[str | float | int | None]] = [
        [c.name, c.vocabulary, c.tokens, c.per_line, w.characters / c.tokens, c.attention, c.unknown_kinds]
        for c in w.costs
    ]
    columns = ["cut", "entries", "tokens", "tokens a line", "characters a token", "attention", "unknown"]
    return Table(
        title=COSTS,
        columns=columns,
        rows=rows,
        note=f"{w.lines:,} lines, {w.characters:,} characters. attention: pairs of positions, Σ n² over lines, "
        "relative to characters. unknown: different tokens of the held-out text that have no entry.",
    )


def _numbers(w: Measured) -> Table:
    return Table(
        title="Numbers from 10 to 198, by tokens",
        columns=["cut", "one", "two", "three"],
        rows=[[name, *n.values()] for name, _, n in w.numbers],
    )


def _lines(w: Measured) -> Table:
    return Table(
        title=f"Lines under {MERGES} merges",
        columns=["line", "tokens", "number"],
        rows=[[line, _bars(tokens), len(tokens)] for line, tokens in w.shown.items()],
    )


def _segmentations(w: Measured) -> Table:
    rows: list[list[str | float | int | None]] = []
    for chunk, two in w.two.items():
        (best, p), *more = two
        second = more[0] if more else ((), None)
        rows.append([_seen(chunk), _bars(w.cuts[chunk][0]), _bars(best), p, _bars(second[0]), second[1]])
    return Table(
        title="The two best segmentations",
        columns=["chunk", "BPE", "best", "its share", "second", "its share of the chunk"],
        rows=rows,
        note=f"Unigram with the frequencies of BPE's tokens ({MERGES} merges). Over the text the best segmentation has "
        f"{w.best_share:.4f} of a chunk's probability on average.",
    )


def _spellings(w: Measured) -> Table:
    return Table(
        title="Two inner letters swapped",
        columns=["cut", "tokens a word", "misspelt", "tokens that are left"],
        rows=[[s.name, s.before, s.after, s.shared] for s in w.spellings],
        note="The most frequent words of five letters and more; the last column: share of the right spelling's tokens.",
    )


def _merges(each: Sequence[Merged]) -> Table:
    return Table(
        title="BPE by hand",
        columns=["corpus", "merge", "makes", "pair occurs"],
        rows=[[m.corpus, k + 1, made, count] for m in each for k, (made, count) in enumerate(m.steps)],
    )


def _probabilities(each: Sequence[Segmented]) -> Table:
    return Table(
        title="Unigram by hand",
        columns=["string", "pieces", "segmentation", "probability"],
        rows=[[s.text, _chances(s), _bars(pieces), str(chance)] for s in each for pieces, chance in s.ways],
    )


# ---------------------------------------------------------------- words


def _seen(text: str) -> str:
    return text.replace(" ", "␣").replace("\n", "⏎")


def _bars(pieces: Sequence[str]) -> str:
    return "|".join(map(_seen, pieces))


def _steps(merged: Merged) -> str:
    return "merges " + ", ".join(f"{made} ({count})" for made, count in merged.steps)


def _ways(found: Segmented) -> str:
    return ", ".join(f"{_bars(pieces)} {chance}" for pieces, chance in found.ways)


def _chances(found: Segmented) -> str:
    return ", ".join(f"{piece} {chance}" for piece, chance in found.chances.items())


def picture(results: Results) -> str:
    """Length and attention against entries, a mark for each number of merges."""
    table = next(t for t in results.tables if t.title == COSTS)
    cuts = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    curve = [c for c in cuts if str(c["cut"]).startswith(("characters", "BPE"))]
    other = [c for c in cuts if str(c["cut"]).startswith("unigram")]
    drawn = (("Length against vocabulary", "tokens a line"), ("Attention against vocabulary", "attention"))
    charts = []
    for title, column in drawn:
        series = tuple(
            Series(name, [float(str(c["entries"])) for c in of], [float(str(c[column])) for c in of])
            for name, of in (("BPE, from characters on", curve), ("unigram", other))
        )
        charts.append(Chart(title, series, "entries of the vocabulary", column, log_x=True))
    return svg(*charts)


LAB = Lab(
    "tokens",
    "Tokens: how a text is cut, and what the cuts cost",
    "the small world under white space, characters, BPE and unigram, and the worked examples in exact fractions.",
    run,
    picture,
)
