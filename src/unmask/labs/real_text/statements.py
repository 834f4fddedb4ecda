"""What was expected before the study was run: from the lecture notes, and from the literature that they rest on.

A difference that is expected to show stands as an order, one that is not as "cannot be told apart".
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from unmask.compare.results import Results
from unmask.labs.base import Statement, Verdict, about, claims
from unmask.labs.orders import Group
from unmask.labs.real_text.study import ENTRIES
from unmask.labs.real_text.tables import ends, rates

PAIRS, WORDS = "minimal_pairs", "cloze_candidates"
FREQUENT = 29.7
"""Per cent of the study's gaps in which the most frequent of the four words is right (chance: 25)."""
LEVELS = {PAIRS: 50.0, WORDS: FREQUENT}
FIRST, LAST = 0, -1
Judge = Callable[[Group], Verdict]


def judged(results: Results) -> Results:
    """The record with its claims and table."""
    group = Group.of(results, ENTRIES)
    return results.model_copy(update={"claims": claims(STATEMENTS, [group]), "tables": [ends(group), rates(group)]})


def _absent(group: Group, *names: str) -> str:
    absent = [name for name in names if name not in group.names]
    return f"{', '.join(absent)} was not run" if absent else ""


def _density(group: Group) -> Verdict:
    if why := _absent(group, "causal", "prefix", "masked"):
        return None, why
    each = {name: 1000 * group.entry(name).target_density for name in ("causal", "prefix", "masked")}
    holds = about(each["causal"], 1000) and about(each["prefix"], 533) and about(each["masked"], 137)
    return holds, ", ".join(f"{name} {x:.0f}" for name, x in each.items())


def _sentinels(group: Group) -> Verdict:
    if why := _absent(group, "t5", "masked"):
        return None, why
    t5, masked = (1000 * group.entry(name).target_density for name in ("t5", "masked"))
    return t5 < masked, f"T5 {t5:.0f}, masked {masked:.0f}"


def _better(a: str, b: str, *only: str, at: int = LAST, since: int | None = None) -> Judge:
    return lambda group: group.better(a, b, only, at, since)


def _worse_than_all(name: str, *only: str) -> Judge:
    def judge(group: Group) -> Verdict:
        others = [other for other in ENTRIES if other != name]
        found = {other: group.better(other, name, only, of=len(others)) for other in others}
        held = [holds for holds, _ in found.values()]
        told = "; ".join(f"{other}, {name}: {said}" for other, (_, said) in found.items())
        return (False if False in held else None if None in held else True), told

    return judge


def _above_levels(group: Group) -> Verdict:
    """By the intervals over items of every run."""
    told, holds = [], True
    for name in group.names:
        for measure, level in LEVELS.items():
            points = [run.points[LAST] for run in group.entry(name).runs]
            intervals = [p.details.get(measure, {}).get("interval") for p in points]
            if None in intervals:
                return None, f"{name} has items that all came out alike, which gives no interval"
            holds &= min(low for low, _ in intervals) > level
            told.append(f"{name} {fmean(p.values[measure] or 0.0 for p in points):.1f}")
    return holds, f"{', '.join(told)} (minimal pairs, then words, of each)"


STATEMENTS: tuple[Statement[Group], ...] = (
    Statement(
        "Of 1,000 positions the causal LM is asked about 1,000, the prefix LM about 533 and BERT about 137",
        "notes 4.6",
        _density,
    ),
    Statement("T5 with spans of 3 is asked less than BERT, sentinels counted", "notes 4.6, exercise 7", _sentinels),
    Statement(
        "At a third of the budget the causal LM is ahead of BERT: denser targets learn faster",
        "notes 5.2",
        _better("causal", "masked", PAIRS, WORDS, at=FIRST),
    ),
    Statement(
        "At a third of the budget the prefix LM is ahead of BERT",
        "notes 5.2",
        _better("prefix", "masked", PAIRS, WORDS, at=FIRST),
    ),
    Statement(
        "At the end BERT is ahead of T5, which is asked less and has more to learn",
        "notes 5.2",
        _better("masked", "t5", PAIRS, WORDS),
    ),
    Statement(
        "T5 is behind each of the four other objectives", "notes 5.2 and 5.3", _worse_than_all("t5", PAIRS, WORDS)
    ),
    Statement(
        "Without fine-tuning the causal LM is ahead of the encoder-decoder",
        "notes 7 (44.2 and 39.9; theirs learns a prefix LM, ours spans)",
        _better("causal", "t5", PAIRS, WORDS),
    ),
    Statement(
        "Causal and prefix LM cannot be told apart by minimal pairs and words (at 5B .7 of a point lies between them)",
        "notes 7 (44.2 and 43.5)",
        lambda group: group.unseen("causal", "prefix", only=(PAIRS, WORDS)),
    ),
    Statement(
        "The prefix LM has more bits a byte of whole texts than the causal LM: half the targets for the same FLOPs",
        "ours, after notes 4.5 and 4.6",
        _better("causal", "prefix", "bits_per_byte"),
    ),
    Statement(
        "By scoring candidates the causal LM fills gaps no worse than BERT, which reads both sides at once",
        "notes 5.3",
        lambda group: group.no_better("masked", "causal", (WORDS,)),
    ),
    Statement(
        "From a third of the budget to its end BERT gains more than the causal LM: masked models learn later",
        "2507.00994 (CLM is data-efficient, MLM better in the end)",
        _better("masked", "causal", PAIRS, WORDS, since=FIRST),
    ),
    Statement("UL2's mixture is ahead of T5's spans", "notes 6; Tay et al. 2022", _better("ul2", "t5", PAIRS, WORDS)),
    Statement(
        "Every objective is above chance in minimal pairs and above words' frequencies in words, in every run",
        "ours",
        _above_levels,
    ),
)
