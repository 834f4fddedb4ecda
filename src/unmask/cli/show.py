"""The verb that shows what an objective makes of text."""

from __future__ import annotations

import shutil
import sys
from typing import Annotated, Any

import typer

from unmask.cli.output import Json, app, emit
from unmask.errors import UserError

_NONE: list[str] = []
_Objective = Annotated[
    str | None, typer.Argument(help="An objective such as masked, or a preset such as bert.", show_default=False)
]
_Text = Annotated[str | None, typer.Option(help="The text to show it on.", show_default=False)]
_Target = Annotated[str | None, typer.Option(help="What pairs is to write for the text.", show_default="a stub")]
_Tokenizer = Annotated[
    str | None, typer.Option(help="A tokenizer: its file or folder.", show_default="words and punctuation")
]
_Layout = Annotated[
    str | None, typer.Option(help="encdec, prefix or causal, for text-to-text.", show_default="the objective's")
]
_Seed = Annotated[int, typer.Option(help="Of the noise.", min=0)]
_Count = Annotated[int, typer.Option(help="Examples of the text, each with noise of its own.", min=1)]
_Progress = Annotated[
    float, typer.Option(help="The point of the run, for objectives that change along it.", min=0, max=1)
]
_Settings = Annotated[
    list[str], typer.Option("--set", help="A setting, such as mask_rate=0.4; may be repeated.", show_default=False)
]
_Listed = Annotated[bool, typer.Option("--list", help="Name every objective and preset, or those of one objective.")]
_Table = Annotated[
    str | None,
    typer.Option(help="Instead: the density of every objective's targets on this corpus.", show_default=False),
]
_Context = Annotated[int, typer.Option(help="With --table: tokens of a row.", min=8)]
_Limit = Annotated[int, typer.Option(help="With --table: about how many tokens are read.", min=100)]


@app.command()
def show(
    objective: _Objective = None,
    text: _Text = None,
    target: _Target = None,
    tokenizer: _Tokenizer = None,
    layout: _Layout = None,
    seed: _Seed = 0,
    count: _Count = 1,
    progress: _Progress = 0.0,
    settings: _Settings = _NONE,
    listed: _Listed = False,
    table: _Table = None,
    context: _Context = 512,
    limit: _Limit = 200_000,
    as_json: Json = False,
) -> None:
    """See what an objective makes of a text: unmask show bert --text "The cat sat on the mat." """
    if sum([listed, table is not None, text is not None]) != 1:
        raise UserError('say what to show: OBJECTIVE --text "…", or --list, or --table CORPUS')
    if listed:
        return _list(as_json, objective)
    chosen: dict[str, Any] = {"tokenizer": _tokenizer(tokenizer), "layout": layout, "seed": seed}
    if table is not None:
        if target is not None or count != 1 or progress:
            raise UserError("--target, --count and --progress go with --text: --table reads its corpus once")
        return _table(as_json, table, objective, settings, context=context, limit=limit, **chosen)
    if objective is None:
        raise UserError("name an objective to show --text on: unmask show --list names them all")
    from unmask.show import show as shown

    chosen |= {"target": target, "count": count, "progress": progress}
    found = shown(objective, str(text), settings=_settings(settings), **chosen)
    if as_json:
        for record in found.records:
            emit(record)
        return
    print("\n".join(found.lines(shutil.get_terminal_size((100, 40)).columns)))


def _settings(pairs: list[str]) -> dict[str, Any]:
    """KEY=VALUE pairs as nested settings: layout.kind=prefix is {"layout": {"kind": "prefix"}}."""
    from unmask.recipe import parse_override

    out: dict[str, Any] = {}
    for text in pairs:
        key, value = parse_override(text)
        *parents, last = key.removeprefix("objective.").split(".")
        here = out
        for part in parents:
            here = here.setdefault(part, {})
            if not isinstance(here, dict):
                raise UserError(f"--set {text}: {part} is a single value")
        here[last] = value
    return out


def _tokenizer(path: str | None) -> Any:
    if path is None:
        return None
    from unmask.tokens.tokenizer import Tokenizer

    return Tokenizer.load(path)


def _list(as_json: bool, only: str | None) -> None:
    from unmask.show import listing

    rows, broken = listing(only)
    for sentence in broken:
        print(f"warning: {sentence}", file=sys.stderr)
    if as_json:
        return emit(rows)
    named = [(row["name"], row["about"] + " (plug-in)" * row["plugin"], row["presets"]) for row in rows]
    each = [(n, about) for name, said, presets in named for n, about in [(name, said), *map(_preset, presets)]]
    wide = max(len(name) for name, _ in each)
    width = shutil.get_terminal_size((120, 40)).columns if sys.stdout.isatty() else None
    for name, about in each:
        line = f"{name:<{wide}}  {about}".rstrip()
        print(line if width is None or len(line) <= width else line[: width - 1] + "…")


def _preset(row: dict[str, str]) -> tuple[str, str]:
    return f"  {row['name']}", row["about"]


def _table(as_json: bool, corpus: str, only: str | None, settings: list[str], **chosen: Any) -> None:
    from unmask.show.density import densities
    from unmask.show.table import lines

    if settings and only is None:
        raise UserError("--set goes with the name of an objective: unmask show masked --table CORPUS --set …")
    rows = densities(corpus, only, settings=_settings(settings), **chosen)
    if as_json:
        for row in rows:
            emit(row)
        return
    print("\n".join(lines(rows)))
