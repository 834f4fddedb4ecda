"""The verb of studies: compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.output import Json, app, emit

if TYPE_CHECKING:
    from unmask.compare.results import Results


@app.command(context_settings={"ignore_unknown_options": True})  # compare_words says what to write instead
def compare(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="Recipes (a name, a file, NAME=RECIPE, NAME=RECIPE:key=value,key=value, or a file that lists "
            "entries), then budget.{steps,tokens,target_tokens,flops,minutes}=N seeds=5 corpus=my.txt out=DIR, and if "
            "wanted tune=lr:4 milestones=8 suites=bpb,cloze,minimal-pairs@50:PATH,my.module:function limit=512 "
            "valid=PATH resume=auto processes=2 cache=DIR, or any setting for all recipes",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare recipes under one budget: unmask compare encoder-small decoder-small budget.flops=1e13 seeds=5 out=DIR

    Every recipe runs with every seed and is measured at the same milestones. Writes results.json and report.html.
    With resume=auto it goes on where it was stopped.
    """
    from unmask.compare.study import compare_words

    place, found = compare_words(arguments or [])
    if as_json:
        return emit(found.model_dump(mode="json"))
    _print(found, place)


def _print(found: Results, place: Path) -> None:
    """The final values, one line an entry and measure, and which differences are real."""
    from unmask.cli.table import table
    from unmask.compare.statistics import final

    rows = []
    for measure in found.measures:
        for entry in found.entries:
            end = final(entry, measure.name)
            if end is None:
                continue
            interval = "" if end.interval is None else f"{end.interval[0]:.4g} to {end.interval[1]:.4g}"
            rows.append({"measure": measure.label, "entry": entry.name, "mean": f"{end.mean:.4g}", "95 %": interval})
    print("\n".join(table(rows)))
    print("\n".join([*_differences(found), f"results.json, report.html: {place}"]))


def _differences(found: Results) -> list[str]:
    """A line for each difference that was tested, then which p it is, and the rule where seeds are too few for it."""
    from statistics import fmean

    from unmask.compare.statistics import LEAST_SEEDS, ends, holm, little

    of = {entry.name: entry for entry in found.entries}
    measures = {measure.name: measure for measure in found.measures}
    lines, few = [], False
    for c, p in zip(found.comparisons, holm([c.p for c in found.comparisons]), strict=True):
        a, b = (ends(of[name], c.measure) for name in (c.a, c.b))
        enough = len(a.keys() & b.keys()) >= LEAST_SEEDS
        few = few or not enough
        if p is not None:
            verdict = "real" if c.real else "not told apart" if enough else "too few seeds to tell"
            why = little(measures[c.measure], (fmean(a.values()), fmean(b.values()))) if c.real else ""
            verdict += f", but {why}" if why else ""
            lines.append(f"{c.measure}: {c.a} − {c.b} = {c.difference:.4g} (p {p:.2g}, {verdict})")
    if lines:
        lines.append("p: t test paired by seed, after Holm's correction for all comparisons of the study")
    if few:
        seeds = len(found.seeds)
        why = f": this study has {seeds}; add some with seeds= and resume=auto" if seeds < LEAST_SEEDS else " of both"
        lines.append(f"which differences are real is not decided with fewer than {LEAST_SEEDS} seeds{why}")
    return lines
