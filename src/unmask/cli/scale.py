"""The verbs of scaling laws: fit, run."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.output import Json, app, emit
from unmask.errors import UserError

if TYPE_CHECKING:
    from unmask.scale.rates import Trials
    from unmask.scale.study import Asked, Study

scale_app = typer.Typer(help="Fit scaling laws to runs, or train a ladder of sizes and budgets.", no_args_is_help=True)
app.add_typer(scale_app, name="scale")

NCounts = Annotated[
    str,
    typer.Option(
        help="What counts as N: all parameters; body: without embeddings and heads; flops: FLOPs a token / 6."
    ),
]
HoldOutName = Annotated[str, typer.Option(help="largest: leave the runs of the largest budget out, and predict them.")]
Budgets = Annotated[
    list[float] | None,
    typer.Option(
        "--budget",
        help="FLOPs to find the best N and D for (may be repeated).",
        show_default="ten times the largest fitted",
    ),
]
Resamples = Annotated[int, typer.Option(help="Of the bootstrap.")]
Seed = Annotated[int, typer.Option(help="Of the bootstrap.", min=0)]
LEAST_SIZE = 1e3
OWN = ("sizes", "budgets", "seeds", "tune", "out", "resume", "cache", "jobs")


@scale_app.command("fit")
def scale_fit(
    file: Annotated[
        str, typer.Argument(help="Points: a .jsonl or .csv file of n, d, loss [flops, n_body].", show_default=False)
    ],
    n_counts: NCounts = "all",
    holdout: HoldOutName = "none",
    budget: Budgets = None,
    resamples: Resamples = 1000,
    seed: Seed = 0,
    out: Annotated[
        str | None, typer.Option(help="Also write results.json, report.html and picture.svg there.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit L(N, D) = E + A / N^α + B / D^β to points: unmask scale fit points.csv --holdout largest --out DIR"""
    from unmask.scale.points import read_points
    from unmask.scale.report import results, write
    from unmask.scale.study import study

    asked = _asked(n_counts, holdout, budget, resamples, seed)
    points = read_points(file, asked.counted)
    found = study(points, asked)
    if out is not None:
        write(found, Path(out), results(found, f"unmask scale fit {file} {_spoken(asked)}", f"Scaling law of {file}"))
    _print(found, out, as_json)


@scale_app.command("run")
def scale_run(
    recipe: Annotated[
        str, typer.Argument(help="A shipped recipe's name, or the path of a YAML file.", show_default=False)
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            help="sizes=1M,2M,4M budgets=1e13,1e14 (FLOPs) out=DIR [seeds=3] [tune=lr:4:1e12,1e13] [resume=auto] "
            "[jobs=2] [cache=DIR], and the recipe's own, such as corpus=my.txt",
            show_default=False,
        ),
    ] = None,
    n_counts: NCounts = "all",
    holdout: HoldOutName = "none",
    budget: Budgets = None,
    resamples: Resamples = 1000,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Train every size for every budget: unmask scale run decoder-small corpus=my.txt sizes=… budgets=… out=DIR

    Writes points.jsonl, results.json, report.html, picture.svg and the runs. With resume=auto it goes on where it was
    stopped, and finished runs are not run again; sizes, budgets and seeds may be added.
    """
    from unmask.recipe import load_recipe
    from unmask.scale.train import Ladder, run

    own, rest = _sorted_out(settings or [])
    ladder = Ladder(
        [_size(s) for s in own["sizes"].split(",")],
        [_flops("budgets", b) for b in own["budgets"].split(",")],
        _whole("seeds", own.get("seeds", "1")),
        _trials(own["tune"]) if own.get("tune") else None,
    )
    asked = _asked(n_counts, holdout, budget, resamples, seed)
    found = run(
        load_recipe(recipe, rest),
        ladder,
        own["out"],
        asked,
        command=" ".join(["unmask scale run", recipe, *(settings or []), _spoken(asked)]),
        resume=own.get("resume", "never"),
        jobs=_whole("jobs", own["jobs"]) if own.get("jobs") else None,
        cache=own.get("cache"),
        say=lambda sentence: print(sentence, file=sys.stderr, flush=True),
    )
    _print(found, own["out"], as_json)


def _sorted_out(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Settings of the ladder by name, and those of the recipe."""
    own = {key: value for key, _, value in (text.partition("=") for text in words) if key in OWN}
    rest = [text for text in words if text.partition("=")[0] not in OWN]
    if any(text.startswith("budget.") for text in rest):
        raise UserError("a ladder has several budgets: give budgets=1e13,1e14 (FLOPs) instead of budget.…")
    if missing := [key for key in ("sizes", "budgets", "out") if not own.get(key)]:
        raise UserError(f"no {missing[0]}: give sizes=1M,2M,4M budgets=1e13,1e14 out=DIR")
    return own, rest


def _trials(text: str) -> Trials:
    """lr:COUNT:FLOPs[,FLOPs…]"""
    from unmask.scale.rates import Trials

    name, _, given = text.partition(":")
    count, _, budgets = given.partition(":")
    if name != "lr" or not count.isdigit() or not budgets:
        raise UserError(f"tune={text} is not known: write tune=lr:4:1e12,1e13 for 4 learning rates at these budgets")
    return Trials(int(count), tuple(_flops("tune", b) for b in budgets.split(",")))


def _size(text: str) -> float:
    """Of a model; a ladder's may be smaller than those that are advised."""
    from unmask.model.advise import parse_count

    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kK]?)", text.strip())
    small = float(found[1]) * (1e3 if found[2] else 1) if found else 0.0
    return small if LEAST_SIZE <= small < 1e5 else parse_count(text)


def _asked(n_counts: str, holdout: str, budgets: list[float] | None, resamples: int, seed: int) -> Asked:
    from unmask.scale.study import Asked

    counted: Any = n_counts
    held: Any = holdout
    return Asked(counted, held, tuple(budgets or ()), resamples, seed)


def _spoken(asked: Asked) -> str:
    budgets = "".join(f" --budget {b:g}" for b in asked.budgets)
    return (
        f"--n-counts {asked.counted} --holdout {asked.holdout}{budgets} --resamples {asked.resamples} "
        f"--seed {asked.seed}"
    )


def _flops(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise UserError(f"{name}={text} is no number of FLOPs: write 1e13")
    return value


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UserError(f"{name}={text} is no whole number") from None


def _print(found: Study, out: str | None, as_json: bool) -> None:
    from unmask.cli.table import table
    from unmask.scale.report import tables

    if as_json:
        return emit(found.summary())
    for one in tables(found)[:-2]:  # the curve and the points are in results.json
        print(f"{one.title}\n")
        rows = [_readable(dict(zip(one.columns, row, strict=True))) for row in one.rows]
        print("\n".join([*table(rows), *([f"  ({one.note})"] if one.note else []), ""]))
    for note in found.notes:
        print(f"note: {note}")
    if out is not None:
        print(f"results.json, report.html, picture.svg: {out}")


def _readable(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with counts in few characters, and each interval's two ends in one column.

    >>> _readable({"n": 52_081.2, "n low": 3031.0, "n high": 1.4e6, "loss": 2.65512, "low": None, "high": None})
    {'n': '52.08k', 'n, 95 %': '3031 to 1.4M', 'loss': '2.655', '95 %': None}
    """
    from unmask.chart import label

    out: dict[str, Any] = {}
    for name, value in row.items():
        of, _, end = name.rpartition(" ")
        if end == "high":
            continue
        show = label if (of or name) in ("n", "d", "flops") else "{:.4g}".format
        if end == "low":
            high = row[f"{of} high".strip()]
            out[f"{of}, 95 %".removeprefix(", ")] = None if value is None else f"{show(value)} to {show(high)}"
        else:
            out[name] = show(value) if isinstance(value, float) else value
    return out
