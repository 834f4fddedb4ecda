"""The verb of the laboratories: lab runs one, or names them."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from unmask.cli.output import Json, app, emit
from unmask.errors import UserError, nearest

OWN = ("out", "seeds", "resume", "data")


@app.command("lab")
def lab(
    name: Annotated[str | None, typer.Argument(help="Which laboratory; --list names them.", show_default=False)] = None,
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="out=DIR [seeds=5] [resume=auto] [data=DIR]", show_default=False),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Name every laboratory.")] = False,
    as_json: Json = False,
) -> None:
    """Run a laboratory of the lecture notes: unmask lab tokens out=DIR

    Writes results.json and report.html, and prints which of its claims hold. seeds=5 runs it under the seeds 0 to 4.
    Laboratories of real text read data=DIR, by default $UNMASK_DATA.
    """
    from unmask.labs.base import laboratories, perform, require

    if listed:
        if name is not None:
            raise UserError("--list names every laboratory: leave out the rest")
        rows = [{"name": one.name, "title": one.title, "about": one.about} for one in laboratories()]
        if as_json:
            return emit(rows)
        wide = max(len(row["name"]) for row in rows)
        print("\n".join(f"{row['name']:<{wide}}  {row['title']}\n{'':{wide}}  {row['about']}" for row in rows))
        return
    if name is None:
        raise UserError("name a laboratory: unmask lab --list names them all")
    require(name)
    given = _settings(settings or [])
    if not given.get("out"):
        raise UserError(f"no out: say where to write, as in unmask lab {name} out=DIR")
    resume: Any = given.get("resume", "never")
    if resume not in ("never", "auto"):
        raise UserError(f"resume={resume} is none of never, auto{nearest(resume, ('never', 'auto'))}")
    say = lambda s: print(s, file=sys.stderr, flush=True)
    found = perform(name, given["out"], _seeds(given.get("seeds", "1")), resume, say, given.get("data"))
    if as_json:
        return emit(found.model_dump(mode="json"))
    for claim in found.claims:
        source = f" ({claim.source})" if claim.source else ""
        print(f"{claim.verdict:>12}  {claim.statement}{source}\n{'':14}{claim.evidence}")
    print(f"results.json, report.html: {given['out']}")


def _settings(texts: list[str]) -> dict[str, str]:
    """key=value pairs."""
    given: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or key not in OWN:
            raise UserError(
                f"'{text}' is no setting of a laboratory: give out=DIR seeds=5 resume=auto data=DIR{nearest(key, OWN)}"
            )
        if key in given:
            raise UserError(f"{key} is given twice, {key}={given[key]} and {text}: leave one out")
        given[key] = value
    return given


def _seeds(text: str) -> int:
    if not text.isdecimal():
        raise UserError(f"seeds={text} is no whole number: say how many seeds to run under, as in seeds=5")
    return int(text)
