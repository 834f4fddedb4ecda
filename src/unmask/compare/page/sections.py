"""The sections of a study's page, each from the record alone; a section with nothing to say is empty."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from unmask.compare.page import curves
from unmask.compare.page.curves import AXES
from unmask.compare.page.markup import Html, chance, join, listed, more, number, several, short, span, table, tag
from unmask.compare.results import Comparison, Measure, Results
from unmask.compare.statistics import ends, final, holm, items_note, little, paired

ABILITIES = ("score", "fill", "generate", "embed")
FOLDED = 20
"""Comparisons beyond so many are folded away by measure."""


def learning(results: Results) -> Html:
    figures = curves.figures(results)
    if not figures:
        return Html("")
    shown = dict.fromkeys(m.name for m in results.measures if any(f'data-measure="{m.name}"' in f for f in figures))
    return join([_switches([m for m in results.measures if m.name in shown]), *figures, _points(results)])


def _switches(measures: Sequence[Measure]) -> Html:
    """One switch of the axis, one of the measure; the script shows them and says what they did."""
    axes = [
        tag(
            "label",
            Html(f'<input type="radio" name="axis" value="{axis.name}"{" checked" if axis is AXES[0] else ""}>'),
            tag("span", axis.label),
        )
        for axis in AXES
    ]
    names = [tag("option", m.label, value=m.name) for m in measures]
    return tag(
        "form",
        tag("label", tag("span", "Measure"), tag("select", *names, id="measure")) if len(measures) > 1 else "",
        tag("fieldset", tag("legend", "Against"), tag("div", *axes, class_="segments")),
        tag("p", id="announced", class_="unseen", role="status", aria_live="polite"),
        class_="switches",
        aria_label="What the chart shows",
    )


def _points(results: Results) -> Html:
    """The charts as a table."""
    rows: list[list[object]] = []
    for entry in results.entries:
        for m in curves.milestones(entry):
            cells = [_reach(m.values.get(measure.name, [])) for measure in results.measures]
            rows.append([entry.name, *(short(m.at[a.name]) for a in AXES), *cells])
    columns = ["entry", *(a.label for a in AXES), *(m.label for m in results.measures)]
    note = "Mean over seeds, and in brackets the lowest and the highest seed."
    title = "All points of the learning curves"
    return more("All points as a table", table(title, columns, rows, note=note, class_="n", titled=False))


def _reach(values: Sequence[float]) -> str:
    if len(values) < 2:
        return number(values[0]) if values else "–"
    return f"{number(fmean(values))} ({number(min(values))} to {number(max(values))})"


def finals(results: Results) -> Html:
    """Final values, their intervals, and each seed as a dot."""
    rows: list[list[object]] = [[tag("span", e.name, class_=curves.colour(k))] for k, e in enumerate(results.entries)]
    over: dict[str, None] = {}
    many = len(results.seeds) > 1
    columns: list[Measure] = []
    for measure in results.measures:
        held = [final(entry, measure.name) for entry in results.entries]
        drawn = [v for f in held if f for v in (*f.values.values(), *(f.interval or ()))]
        if not drawn:
            continue
        columns.append(measure)
        scale = curves.spread(measure, drawn)
        for k, (row, entry, f) in enumerate(zip(rows, results.entries, held, strict=True)):
            if f is None:
                row.append(
                    tag("span", "cannot be asked" if measure.name in entry.cannot else "no value", class_="note")
                )
                continue
            over |= {f.over: None} if f.over else {}
            picture = curves.strip(measure, k, list(f.values.values()), f.interval, scale)
            row.append(join([tag("b", number(f.mean)), " ", tag("small", span(f.interval)), picture]))
    if not columns:
        return Html("")
    heads = [join([m.label, tag("small", _arrow(m))]) for m in columns]
    how = "Mean at the last milestone; dots are seeds, dashes trivial levels."
    if over:
        how += f" Below it the 95 % interval: a bootstrap over {listed(list(over), 'or')}, expanded for few of them."
        how += " None where all of them are alike: that is no certainty."
        if not many:
            how += " Over items, one seed: it says nothing about another training run."
    else:
        how += " No interval: nothing varies between seeds or items." if many else " One seed: no interval."
    return join(
        [table("Final values", ["entry", *heads], rows, note=how, class_="finals", titled=False), _events(columns)]
    )


def _arrow(measure: Measure) -> str:
    return f"{measure.unit + ', ' if measure.unit else ''}{measure.better} is better"


def _events(measures: Sequence[Measure]) -> Html:
    """What each number is a number of."""
    terms = [join([tag("dt", m.label), tag("dd", m.protocol, _levels(m))]) for m in measures]
    return more("What each measure asks, the same of every entry", tag("dl", *terms))


def _levels(measure: Measure) -> str:
    return "".join(f"; {level.label}: {number(level.value)}" for level in measure.levels)


def comparisons(results: Results) -> Html:
    if not results.comparisons:
        return Html("")
    labels = {m.name: m.label for m in results.measures}
    by_measure: dict[str, list[list[object]]] = {}
    about_items = items_note(results.comparisons)
    over_seeds = holm([c.p for c in results.comparisons])
    over_items = holm([c.over_items.p if c.over_items else None for c in results.comparisons])
    for c, corrected, items_corrected in zip(results.comparisons, over_seeds, over_items, strict=True):
        more_cells = _over_items(c, items_corrected) if about_items else []
        by_measure.setdefault(c.measure, []).append([*_compared(results, c, corrected), *more_cells])
    columns = ["entries", "verdict", "difference", "95 % interval", "p", "p, corrected", "p, signs"]
    columns += ["over items, 95 %", "p, over items, corrected"] if about_items else []
    fold = len(results.comparisons) > FOLDED
    parts = []
    for name, rows in by_measure.items():
        label = labels.get(name, name)
        made = table(f"Differences in {label}", columns, rows, class_="n")
        real = sum(c.real for c in results.comparisons if c.measure == name)
        parts.append(more(f"{label}: {real} of {len(rows)} real", made) if fold else made)
    least = f"{2 / 2 ** len(results.seeds):.4f}".rstrip("0") if 1 < len(results.seeds) <= 12 else ""
    how = (
        "Differences are means over the seeds that both have, at the last milestone. Interval and p: paired t over "
        "seeds; corrected: Holm's correction over all comparisons of this page, which decides. "
        "Signs: the exact sign-flip test, which assumes less"
    )
    how += f" but with {several(len(results.seeds), 'seed')} cannot go below {least}." if least else "."
    return join([*parts, tag("p", how, class_="note"), tag("p", about_items, class_="note") if about_items else ""])


def _compared(results: Results, c: Comparison, corrected: float | None) -> list[object]:
    of = {entry.name: ends(entry, c.measure) for entry in results.entries}
    a, b = of.get(c.a, {}), of.get(c.b, {})
    flip = paired([a[s] - b[s] for s in seeds]).flip if (seeds := sorted(a.keys() & b.keys())) else None
    said = tag("span", "real", class_="yes") if c.real else tag("span", "not shown", class_="no")
    measure = next((m for m in results.measures if m.name == c.measure), None)
    if c.real and measure is not None and (why := little(measure, (fmean(v.values()) for v in (a, b) if v))):
        said = join([said, " ", tag("small", why)])
    name = f"{c.a} \u2212 {c.b}"
    return [name, said, _signed(c.difference), span(c.interval) or "–", chance(c.p), chance(corrected), chance(flip)]


def _over_items(c: Comparison, corrected: float | None) -> list[object]:
    """What other items would make of the difference."""
    if c.over_items is None:
        return ["–", "–"]
    shown = join([span(c.over_items.interval), " ", tag("small", f"{c.over_items.items:,} {c.over_items.of}")])
    return [shown, chance(corrected)]


def _signed(value: float) -> str:
    return f"+{number(value)}" if value > 0 else number(value)


def abilities(results: Results) -> Html:
    names = list(dict.fromkeys([*ABILITIES, *(name for e in results.entries for name in e.can)]))
    parts: list[Html] = []
    if any(entry.can for entry in results.entries):
        said = {True: tag("span", "yes", class_="yes"), False: tag("span", "no", class_="no"), None: Html("–")}
        rows = [[e.name, *(said[e.can.get(name)] for name in names)] for e in results.entries]
        parts.append(table("What each entry can do", ["entry", *names], rows, titled=False))
    labels = {m.name: m.label for m in results.measures}
    why = [
        tag("li", tag("strong", entry.name), f", {labels.get(measure, measure)}: {reason}")
        for entry in results.entries
        for measure, reason in entry.cannot.items()
    ]
    if why:
        parts += [tag("h3", "Why not"), tag("ul", *why)]
    return join(parts)


def cost(results: Results) -> Html:
    if not results.entries:
        return Html("")
    rows: list[list[object]] = []
    for e in results.entries:
        last = [run.points[-1] for run in e.runs if run.points]
        spent = [short(fmean(getattr(p, a.name) for p in last)) if last else "–" for a in AXES]
        rows.append([e.name, f"{e.parameters:,}", short(e.flops_per_token), number(e.target_density), *spent])
    columns = ["entry", "parameters", "FLOPs a token", "target density", *(f"{a.label} a run" for a in AXES)]
    note = "Target density: targets that count, for each processed token. Of a run: the mean over seeds at its end."
    return table("Cost", columns, rows, note=note, class_="n", titled=False)


def tuning(results: Results) -> Html:
    rows: list[list[object]] = []
    for entry in results.entries:
        t = entry.tuning
        if t is None:
            continue
        tried = [
            tag(
                "li",
                f"{short(v)}: ",
                "diverged" if loss is None else number(loss),
                class_="chosen" if v == t.chosen else None,
            )
            for v, loss in zip(t.values, t.losses, strict=False)
        ]
        marks = [m for m, held in (("best at the edge", t.edge), ("still falling", t.falling)) if held]
        shown = join([tag("span", m, class_="no") for m in marks], " ") if marks else "none"
        spent = f"{short(t.flops)} FLOPs, {short(t.seconds)} s"
        rows.append([entry.name, t.setting, tag("ul", *tried, class_="tried"), short(t.chosen), shown, spent, t.seed])
    if not rows:
        return Html("")
    measures = listed(list(dict.fromkeys(e.tuning.measure for e in results.entries if e.tuning)))
    note = f"The same number of trials for each, by {measures}, on a seed that no run of the study has."
    columns = ["entry", "setting", "tried", "chosen", "marks", "cost", "seed"]
    return table("Tuning", columns, rows, note=note, titled=False)


def claims(results: Results) -> Html:
    classes = {"holds": "yes", "refuted": "bad"}
    items = []
    for claim in results.claims:
        source = tag("p", f"From {claim.source}.", class_="note") if claim.source else ""
        word = tag("span", claim.verdict, class_=classes.get(claim.verdict, "no"))
        said = tag("p", word, " ", tag("strong", claim.statement))
        items.append(tag("li", said, tag("p", claim.evidence), source))
    return tag("ul", *items, class_="claims") if items else Html("")
