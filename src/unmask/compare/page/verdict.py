"""The verdict in words: which differences are real, what the claims came to, and what to be careful about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from unmask.compare.page.markup import Html, join, listed, number, several, span, tag
from unmask.compare.results import Comparison, Measure, Results
from unmask.compare.statistics import LEAST_SEEDS, Final, final, little

WORDS = {"holds": "held", "refuted": "refuted", "undecided": "undecided"}
"""Of claims whose verdict does not hang on the seed."""


def verdict(results: Results) -> Html:
    """Sentences: an overview, one paragraph for each measure, then cautions."""
    parts: list[Html] = [tag("p", s, class_="lead") for s in _overview(results)]
    found = [
        tag("li", tag("strong", m.label, ": "), join(said, " ")) for m in results.measures if (said := _of(results, m))
    ]
    if found:
        parts.append(tag("ul", *found, class_="verdict"))
    if cautions := list(_cautions(results)):
        parts += [tag("h3", "With care"), tag("ul", *(tag("li", c) for c in cautions))]
    return join(parts)


def _overview(results: Results) -> Iterator[str]:
    tested = [c for c in results.comparisons if c.p is not None]
    real = sum(c.real for c in tested)
    if tested:
        verb = "is" if real == 1 else "are"
        yield f"{real} of {several(len(tested), 'difference')} {verb} real, after correction for their number."
    elif results.comparisons:
        yield "There is one seed: which differences are real cannot be said. What follows is what this one run showed."
    elif len(results.entries) > 1 and results.measures:
        yield "No comparison was made: which differences are real is not known."
    if results.claims:
        found = [claim.verdict for claim in results.claims]
        counts = {told: found.count(word) for word, told in WORDS.items()}
        counts["true under some seeds only"] = len(found) - sum(counts.values())
        yield f"Claims: {', '.join(f'{n} {told}' for told, n in counts.items() if n)}."


def _of(results: Results, measure: Measure) -> list[str]:
    """What a measure's final values and comparisons say."""
    values = {e.name: f for e in results.entries if (f := final(e, measure.name))}
    if not values:
        return []
    order = sorted(values, key=lambda name: values[name].mean, reverse=measure.better == "higher")
    tests = [c for c in results.comparisons if c.measure == measure.name]
    said = list(_ranked(measure, order, values, tests, len(results.entries)))
    return [*said, *_not_above(measure, order, values)]


def _ranked(
    measure: Measure, order: list[str], values: dict[str, Final], comparisons: list[Comparison], entries: int
) -> Iterator[str]:
    """Who leads, who is not told apart from the leader, and the real differences among the others."""

    def trivial(name: str, found: Iterable[str]) -> str:
        said = little(measure, (values[n].mean for n in (name, *found)))
        return f" ({said})" if said else ""

    tests = {frozenset((c.a, c.b)): c for c in comparisons}
    first, shown = order[0], f"{order[0]} ({number(values[order[0]].mean)})"
    if len(order) == 1 < entries:
        yield f"{shown} alone has it."
        return
    with_first = {name: tests.get(frozenset((first, name))) for name in order[1:]}
    known = {name: c for name, c in with_first.items() if c is not None and c.p is not None}
    if not known:
        rest = ", ".join(f"{name} {number(values[name].mean)}" for name in order[1:])
        yield f"best at the end is {shown}{'; then ' + rest if rest else ''}."
        return
    alike = [name for name, c in known.items() if not c.real]
    if alike:
        level = listed([f"{name} ({number(values[name].mean)})" for name in alike])
        yield f"{shown} has the best mean, but is not told apart from {level}."
    elif len(known) > 2:
        yield f"{shown} is really ahead of all {len(known)} others{trivial(first, known)}."
    else:
        yield f"{shown} is really ahead of {listed(list(known))}{trivial(first, known)}."
    worse: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for k, name in enumerate(order):
        if k or alike:
            found = tuple(n for n in order[k + 1 :] if (c := tests.get(frozenset((name, n)))) and c.real)
            worse.setdefault((found, trivial(name, found)), []).append(name)
    for (found, said), names in worse.items():
        if found:
            yield f"{listed(names)} {'is' if len(names) == 1 else 'are'} really ahead of {listed(list(found))}{said}."


def _not_above(measure: Measure, order: list[str], values: dict[str, Final]) -> Iterator[str]:
    """Entries whose interval does not lie beyond a trivial level."""
    for level in measure.levels:
        reach = []
        for name in order:
            low, high = values[name].interval or (values[name].mean,) * 2
            if low <= level.value if measure.better == "higher" else high >= level.value:
                reach.append(name)
        if reach:
            yield f"Not shown to be beyond {level.label} ({number(level.value)}): {listed(reach)}."


def _cautions(results: Results) -> Iterator[str]:
    seeds = len(results.seeds)
    if any(c.p is not None for c in results.comparisons) and seeds < LEAST_SEEDS:
        yield f"{several(seeds, 'seed')}: at least {LEAST_SEEDS} are needed before a difference is called real."
    for entry in results.entries:
        if entry.tuning and entry.tuning.edge:
            yield (
                f"{entry.name}: the best {entry.tuning.setting} that was tried lies at the edge of what was tried, "
                "so a better one may lie beyond."
            )
        if entry.tuning and entry.tuning.falling:
            yield f"{entry.name}: the best tuning run's curve still fell at its end: more training may help it."
        lacking = sorted({run.seed for run in entry.runs if not run.points})
        if lacking:
            yield f"{entry.name}: no points of seed {listed([str(s) for s in lacking])}."
    for comparison in results.comparisons:
        if comparison.real and comparison.interval is not None and comparison.interval[0] == comparison.interval[1]:
            yield (
                f"{comparison.a} and {comparison.b} differ by the same {span(comparison.interval).split(' to ')[0]} in "
                f"every seed ({comparison.measure}): no spread, so the interval is a point."
            )
