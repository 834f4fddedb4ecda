"""The verb that prepares text: data prepare."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.cli.data import data_app
from unmask.cli.output import Json, emit


@data_app.command("prepare")
def data_prepare(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="Perhaps a recipe, then key=value settings, such as corpus=my.txt tokenizer.vocab_size=8192 out=DIR",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Tokenize text once, for all runs on it: unmask data prepare encoder-small corpus=my.txt out=DIR

    out=DIR is a cache folder; pretraining finds the text there again, by content, with the same settings of corpus,
    valid and tokenizer and cache=DIR. Without out, it is the one that pretraining looks into by itself.

    part=i/n writes the i-th of n parts. Processes and machines that share the folder do so side by side; the last to
    finish joins the parts to what one alone would have written. They need tokenizer.file=FILE.
    """
    import sys

    from unmask.data.cache import cache_folder
    from unmask.data.parts import parse_part, prepare_part
    from unmask.recipe import load_recipe, load_text

    own: dict[str, str] = {}
    settings: list[str] = []
    recipe = None
    for place, text in enumerate(arguments or []):
        key, sign, value = text.partition("=")
        if not sign and place == 0:
            recipe = text
        elif key in ("out", "part"):
            own[key] = value
        else:
            settings.append(text)
    what = load_text(settings) if recipe is None else load_recipe(recipe, settings)
    begun = time.perf_counter()
    part = prepare_part(
        what.corpus,
        what.valid,
        what.tokenizer,
        cache_folder(own.get("out")),
        parse_part(own.get("part", "1/1")),
        lambda sentence: print(sentence, file=sys.stderr),
    )
    seconds = time.perf_counter() - begun
    result: dict[str, Any] = {"directory": part.directory, "part": f"{part.number}/{part.of}", "missing": part.missing}
    if part.prepared is not None:
        result |= part.prepared.summary()
    result |= {"disk": _disk(part.directory), "seconds": round(seconds, 3)}
    emit(result) if as_json else _show(result)


def _disk(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _show(result: dict[str, Any]) -> None:
    print(f"{result['directory']}: {result['disk']:,} bytes on disk, {result['seconds']:.1f} s")
    if result["missing"]:
        left = ", ".join(f"part={k}/{result['part'].split('/')[1]}" for k in result["missing"])
        return print(f"part={result['part']} is written; the parts are joined when {left} are there too")
    print(f"{'':24} {'documents':>12} {'tokens':>14} {'bytes':>14} {'bytes/token':>12}")
    for side in ("train", "valid"):
        for name, row in result[side].items():
            print(
                f"{side + ' ' + name:24} {row['documents']:12,} {row['tokens']:14,} {row['bytes']:14,} "
                f"{row['bytes_per_token']:12.3f}"
            )
