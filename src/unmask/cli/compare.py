"""The verb of studies: compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.output import Json, app, emit

if TYPE_CHECKING:
    from unmask.compare.results import Results


@app.command()
def compare(
    arguments: Annotated[
        list[str],
        typer.Argument(
            help="Recipes (a name, a file, NAME=RECIPE, NAME=RECIPE:key=value,key=value, or a file that lists "
            "entries), then budget.{steps,tokens,target_tokens,flops,minutes}=N seeds=5 corpus=my.txt out=DIR, and if "
            "wanted tune=lr:4 milestones=8 suites=bpb,cloze,minimal-pairs@50:PATH,my.module:function limit=512 "
            "valid=PATH resume=auto processes=2 cache=DIR, or any setting for all recipes",
            show_default=False,
        ),
    ],
    as_json: Json = False,
) -> None:
    """Compare recipes under one budget: unmask compare encoder-small decoder-small budget.flops=1e13 seeds=5 out=DIR

    Every recipe runs with every seed and is measured at the same milestones. Writes results.json and report.html.
    With resume=auto it goes on where it was stopped.
    """
    from unmask.compare.study import compare_words

    place, found = compare_words(arguments)
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
    for c in found.comparisons:
        if c.p is not None:
            real = "real" if c.real else "not told apart"
            print(f"{c.measure}: {c.a} − {c.b} = {c.difference:.4g} (p {c.p:.2g}, {real})")
    print(f"results.json, report.html: {place}")
