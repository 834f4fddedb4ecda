"""What was expected before the five seeds were run: from the notes' exercises and from the papers behind them.

Learnt is a rating of .98, and a subject has learnt where it has in four of five seeds. Milestones lie 500 updates
apart: "sooner" is a smaller median of first milestones, and where two are alike it cannot be told; nor can "no later"
where both medians are the first milestone of all, or neither is any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median

from unmask.compare.results import Claim, Entry, Measure, Results, Run
from unmask.compare.statistics import ALPHA
from unmask.labs.base import Statement, Verdict, about, claims
from unmask.labs.beyond.gradients import OBJECTIVES, PAIRS, unattenuated
from unmask.labs.beyond.measure import FILL, OWN, PROBES, STAGES, VALID, WAYS, Stage, Way
from unmask.labs.beyond.subjects import (
    ANTLM,
    BUDGET,
    CAUSAL,
    DIFFUSION,
    FIRST,
    GPT_BERT,
    GRADIENTS,
    HALF,
    HYB_PRE,
    LONG,
    MASKED,
    MSK_UNI,
    ONE,
    PERMUTATION,
    PREFIX,
    REMEDIES,
    SECOND,
    SPANS,
    T5,
    UL2,
)
from unmask.labs.orders import Group

LEARNT, MOST = 0.98, 0.8
"""The rating, and the share of the seeds."""
PRIOR, STUCK = 0.47, 0.6
"""The notes' "always ok", and what is still called so here."""
READ = tuple(PROBES.values())


@dataclass(frozen=True)
class Read:
    """A record, asked by its entries' names."""

    results: Results

    def group(self, name: str) -> Group:
        """Those whose noise is like a subject's: T5 and its remedies, which depend on the seed, or the rest."""
        kin = (T5, *REMEDIES)
        return Group(self.results, tuple(e.name for e in self.results.entries if (e.name in kin) == (name in kin)))

    def entry(self, name: str) -> Entry:
        return next(e for e in self.results.entries if e.name == name)

    def along(self, name: str, what: str = OWN) -> list[list[tuple[int, float]]]:
        """Of each seed, the updates and what was measured then."""
        return [[(p.step, at(run, k, what)) for k, p in enumerate(run.points)] for run in self.entry(name).runs]

    def ends(self, name: str, what: str = OWN, way: Way | None = None) -> list[float]:
        """Of each seed, what was measured after the last update; way: of models of two ways, asked so."""
        return [at(run, -1, what, way) for run in self.entry(name).runs]

    def first(self, name: str, what: str = OWN) -> list[float]:
        """Of each seed, the first milestone at which it is learnt; infinite = at none."""
        return [next((step for step, v in points if v >= LEARNT), math.inf) for points in self.along(name, what)]

    def learnt(self, name: str, what: str = OWN, way: Way | None = None, by: float = math.inf) -> bool:
        """In most seeds, at the last milestone, or at some milestone up to `by`."""
        held = [v >= LEARNT for v in self.ends(name, what, way)]
        if by < math.inf:
            held = [step <= by for step in self.first(name, what)]
        return fmean(held) >= MOST

    def flops(self, name: str) -> float:
        return self.entry(name).runs[0].points[-1].flops


def at(run: Run, k: int, what: str, way: Way | None = None) -> float:
    """What a run's point holds."""
    point = run.points[k]
    value = point.details["ways"][way][what] if way is not None else point.values[what]
    assert value is not None
    return float(value)


def judged(results: Results) -> list[Claim]:
    return claims(STATEMENTS, [Read(results)])


# ---------------------------------------------------------------- words


def steps(first: list[float]) -> str:
    """
    >>> steps([500, math.inf])
    '500, never'
    """
    return ", ".join("never" if math.isinf(s) else f"{s:,.0f}" for s in first)


def figures(values: list[float]) -> str:
    return ", ".join(f"{v:.2f}" for v in values)


# ---------------------------------------------------------------- judges

Judge = Callable[[Read], Verdict]


def _sooner(a: str, b: str, what: str = OWN) -> Judge:
    def judge(read: Read) -> Verdict:
        first = read.first(a, what), read.first(b, what)
        x, y = median(first[0]), median(first[1])
        return (None if x == y else x < y), f"{a}: {steps(first[0])}; {b}: {steps(first[1])}"

    return judge


def _no_later(a: str, b: str) -> Judge:
    def judge(read: Read) -> Verdict:
        first = read.first(a), read.first(b)
        x, y = median(first[0]), median(first[1])
        soonest = read.along(a)[0][0][0]  # what both know there may have come in any order
        holds = None if x == y and x in (soonest, math.inf) else x <= y
        return holds, f"{a}: {steps(first[0])}; {b}: {steps(first[1])}"

    return judge


def _learnt(name: str, what: str = OWN, way: Way | None = None, by: float = math.inf) -> Judge:
    def judge(read: Read) -> Verdict:
        told = f"at the end {figures(read.ends(name, what, way))}"
        if by < math.inf:
            told = f"learnt at {steps(read.first(name, what))}"
        return read.learnt(name, what, way, by), told

    return judge


def _stuck(name: str) -> Judge:
    def judge(read: Read) -> Verdict:
        best = [max(v for _, v in points) for points in read.along(name)]
        return all(v < STUCK for v in best), f"best rating of each seed {figures(best)}"

    return judge


def _both_ways(name: str) -> Judge:
    def judge(read: Read) -> Verdict:
        told = "; ".join(f"{way} {figures(read.ends(name, OWN, way))}" for way in WAYS)
        return all(read.learnt(name, OWN, way) for way in WAYS), told

    return judge


def _better(a: str, b: str, *only: str) -> Judge:
    return lambda read: read.group(a).better(a, b, only)


def _early(read: Read) -> Verdict:
    few, many = (fmean(points[0][1] for points in read.along(MASKED[k])) for k in (15, 40))
    return about(many, 0.75) and about(few, PRIOR), f"40 %: {many:.2f}, 15 %: {few:.2f}"


def _remedied(remedies: Sequence[str]) -> Judge:
    """Whether any of them is learnt, told in how many seeds and for how many of T5's FLOPs."""

    def of(read: Read) -> Verdict:
        own = read.flops(T5)
        cost = {name: read.flops(name) / own for name in remedies}
        able = [name for name in remedies if cost[name] <= BUDGET + 1e-9 and read.learnt(name)]
        count = {name: sum(v >= LEARNT for v in read.ends(name)) for name in remedies}
        return bool(able), "; ".join(
            f"{name} {count[name]} of {len(read.ends(name))} ({cost[name]:.2f})" for name in remedies
        )

    return of


def _spans(read: Read) -> Verdict:
    cost = read.flops(SPANS) / read.flops(T5)
    no_worse, said = read.group(T5).no_better(T5, SPANS, (OWN,))
    return (no_worse if cost < 1 else False), f"{cost:.2f} of T5's FLOPs; {said}"


def _measure(read: Read, name: str) -> Measure:
    return next(m for m in read.results.measures if m.name == name)


def _denoiser(read: Read) -> Verdict:
    """Where neither is told from T5, there is no change to compare."""
    group, measure = read.group(T5), _measure(read, OWN)
    found = [group.difference(name, T5, measure, ALPHA / 2) for name in (UL2, ONE)]
    t5, ul2, one = (fmean(read.ends(name)) for name in (T5, UL2, ONE))
    seen = any(d is not None and d.decided for d in found)
    return (abs(ul2 - t5) > abs(one - t5) if seen else None), f"T5 {t5:.2f}, UL2 {ul2:.2f}, one stack {one:.2f}"


def _fills(read: Read) -> Verdict:
    hybrid, causal = read.ends(GPT_BERT, FILL), read.ends(CAUSAL, FILL)
    holds = read.learnt(GPT_BERT, FILL) and max(causal) < STUCK
    return holds, f"GPT-BERT {figures(hybrid)}; causal {figures(causal)}"


def _hybrid(read: Read) -> Verdict:
    found = [read.group(GPT_BERT).better(GPT_BERT, other, READ, of=2) for other in (MASKED[15], CAUSAL)]
    held = [holds for holds, _ in found]
    return (False if False in held else None if None in held else True), "; ".join(said for _, said in found)


def _writes(read: Read) -> Verdict:
    ours, masked = read.ends(DIFFUSION, VALID), read.ends(MASKED[15], VALID)
    holds = fmean(v >= 0.9 for v in ours) >= MOST and fmean(v >= 0.9 for v in masked) < MOST
    return holds, f"diffusion {figures(ours)}; masked 15 % {figures(masked)}"


# ---------------------------------------------------------------- gradients


def compared(read: Read, name: str, stage: Stage) -> list[dict[str, dict[str, float]]]:
    """Of each seed, what was found about gradients at a stage of a network's training."""
    found = [p.details.get("gradients", {}) for run in read.entry(name).runs for p in run.points]
    names = {"halves": tuple(OBJECTIVES), "cosine": PAIRS, "across": PAIRS}
    return [
        {what: dict(zip(names[what], each, strict=True)) for what, each in one[stage].items()}
        for one in found
        if stage in one
    ]


def without_noise(read: Read, name: str, stage: Stage, pair: str) -> float:
    """The mean over seeds; NaN where a half tells nothing of the other."""
    return fmean(unattenuated(one, pair) for one in compared(read, name, stage))


def _everywhere(
    judge: Callable[[Callable[[str], float]], tuple[float, str]], stages: Sequence[Stage] = STAGES
) -> Judge:
    """Whether in each network at each stage some number is above 0, told the cosines there."""

    def of(read: Read) -> Verdict:
        numbers, told = [], []
        for name in GRADIENTS:
            for stage in stages:
                number, said = judge(partial(without_noise, read, name, stage))
                numbers.append(number)
                told.append(f"{name}, {stage}: {said}")
        known = [number for number in numbers if not math.isnan(number)]
        refuted = any(number <= 0 for number in known)
        return False if refuted else None if len(known) < len(numbers) else True, "; ".join(told)

    return of


def _told(cosine: float) -> str:
    """
    >>> _told(-0.348), _told(math.nan)
    ('-0.35', 'too noisy to tell')
    """
    return "too noisy to tell" if math.isnan(cosine) else f"{cosine:.2f}"


def _kin(cosine: Callable[[str], float]) -> tuple[float, str]:
    near, far = cosine("masked diffusion"), cosine("causal masked")
    return near - far, f"{_told(near)} and {_told(far)}"


def _least(cosine: Callable[[str], float]) -> tuple[float, str]:
    """NaN where it could be one that is too noisy to tell: none of the others is below 0."""
    each = {pair: cosine(pair) for pair in PAIRS}
    known = {pair: v for pair, v in each.items() if not math.isnan(v)}
    if not known:
        return math.nan, _told(math.nan)
    pair = min(known, key=lambda p: known[p])
    told = f"{_told(known[pair])} ({pair.replace(' ', ' and ')})"
    if len(known) == len(each):
        return known[pair], told
    noisy = f"{told} and {len(each) - len(known)} too noisy to tell"
    return (known[pair] if known[pair] <= 0 else math.nan), noisy


def _drift(read: Read) -> Verdict:
    told, gaps = [], []
    for name in GRADIENTS:
        start, end = (fmean(without_noise(read, name, stage, pair) for pair in PAIRS) for stage in ("start", "end"))
        gaps.append(start - end)
        told.append(f"{name} {_told(start)} and {_told(end)}")
    return (None if any(map(math.isnan, gaps)) else min(gaps) > 0), "; ".join(told)


def _noisier(read: Read) -> Verdict:
    told, gaps = [], []
    for name in GRADIENTS:
        first, end = (
            fmean(fmean(one["halves"].values()) for one in compared(read, name, stage)) for stage in ("first", "end")
        )
        gaps.append(first - end)
        told.append(f"{name} {first:.2f} and {end:.2f}")
    return min(gaps) > 0, "; ".join(told)


WETTIG = "notes, exercise 8; Wettig et al. 2022"
ARTETXE = "Artetxe et al. 2022"
STATEMENTS: tuple[Statement[Read], ...] = (
    Statement(
        "After 500 updates the rating is at about .75 with masks of 40 %, and at “always ok”, .47, with 15 %",
        "notes, exercise 8",
        _early,
    ),
    Statement(
        "With masks of 40 % the rating is learnt by 1,000 updates", "notes, exercise 8", _learnt(MASKED[40], by=1000)
    ),
    Statement("With masks of 40 % the rating is learnt sooner than with 15 %", WETTIG, _sooner(MASKED[40], MASKED[15])),
    Statement(
        "With masks of 30 % the rating is learnt no later than with 15 %", WETTIG, _no_later(MASKED[30], MASKED[15])
    ),
    Statement(
        "With masks of 40 % a probe reads more from the states than with 15 %, with 32 labels and with 128",
        "notes, exercise 8 (.802 → .914, .943 → .960)",
        _better(MASKED[40], MASKED[15], *READ),
    ),
    Statement("T5 stays at “always ok” (below .6)", "notes 5.2", _stuck(T5)),
    Statement(
        "T5 stays at “always ok” (below .6) even with twice the updates",
        "notes, exercise 9 (6,000 updates)",
        _stuck(LONG),
    ),
    Statement(
        f"Some remedy of the first six teaches T5 the rating within {BUDGET:g} times its FLOPs",
        "ours, remedies and budget fixed beforehand",
        _remedied(FIRST),
    ),
    Statement(
        f"Some remedy found on another seed teaches T5 the rating within {BUDGET:g} times its FLOPs",
        "ours, budget fixed beforehand",
        _remedied(SECOND),
    ),
    Statement("Half of its texts continued from a prefix teach T5 to fill the gap", "ours", _learnt(HALF, way="gap")),
    Statement(
        "Spans of 3 cost T5 less than single tokens, and its rating is no worse",
        "notes, exercise 7; Raffel et al. 2020, table 7",
        _spans,
    ),
    Statement(
        "Two stacks learn the rating from spans better than one", "Raffel et al. 2020, table 2", _better(T5, ONE, OWN)
    ),
    Statement(
        "UL2's mixture learns the rating better than T5's spans", "notes 6; Tay et al. 2022", _better(UL2, T5, OWN)
    ),
    Statement(
        "UL2's denoisers change T5's rating more than one stack instead of two does",
        "notes 6; Tay et al. 2022",
        _denoiser,
    ),
    Statement(
        "GPT-BERT rates right from both sides and from the left alone",
        "Charpentier and Samuel 2024",
        _both_ways(GPT_BERT),
    ),
    Statement(
        "In one pass GPT-BERT fills gaps (.98), which a causal model does not (below .6)",
        "Charpentier and Samuel 2024",
        _fills,
    ),
    Statement(
        "GPT-BERT's states tell a probe more than those of a masked and of a causal model",
        "Charpentier and Samuel 2024",
        _hybrid,
    ),
    Statement("AntLM, last trained as a causal model, rates right by both ways", "Yu et al. 2024", _both_ways(ANTLM)),
    Statement(
        "Attention to both sides helps filling: a masked model learns it sooner than one that looks one way",
        ARTETXE,
        _sooner(MASKED[15], MSK_UNI, FILL),
    ),
    Statement(
        "Attention to both sides does not help continuing: a prefix LM learns the rating no sooner than a causal LM",
        ARTETXE,
        _no_later(CAUSAL, PREFIX),
    ),
    Statement("Masked and next tokens behind a prefix teach the rating by both ways", ARTETXE, _both_ways(HYB_PRE)),
    Statement(
        "Permutation, asked about one token in 6, learns the rating no later than masks of 15 %",
        "Yang et al. 2019",
        _no_later(PERMUTATION, MASKED[15]),
    ),
    Statement(
        "Diffusion, which hides half on average, learns the rating no later than masks of 15 %",
        "ours, after Wettig et al. 2022",
        _no_later(DIFFUSION, MASKED[15]),
    ),
    Statement(
        "Diffusion writes well-formed reviews (9 of 10), masks of 15 % do not", "notes 9; Nie et al. 2025", _writes
    ),
    Statement(
        "Masked and diffusion have more alike gradients than masked and causal, in each network at each stage",
        "ours",
        _everywhere(_kin),
    ),
    Statement("No two objectives' gradients oppose each other", "ours", _everywhere(_least)),
    Statement("Gradients of two objectives are less alike after the last update than before the first", "ours", _drift),
    Statement("At the end a mean gradient over 1,024 texts is noisier than after 500 updates", "ours", _noisier),
)
