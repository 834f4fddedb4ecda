"""The verb of the small world: data world writes its text, and checks lines that a model wrote."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.data import data_app
from unmask.cli.output import Json, emit
from unmask.errors import UserError, nearest

if TYPE_CHECKING:
    from unmask.data.worlds import World


@data_app.command("world")
def data_world(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="The directory to write to, then dials as name=value, such as but_share=0.2 people_count=80",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Another world of the same kind.")] = 0,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="facts, questions, sums, stories or reviews; may be repeated. [default: all]"),
    ] = None,
    split: Annotated[list[str] | None, typer.Option(help="train or valid. [default: both]")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Write tokenizer.json beside the text: word (its words) or char (its symbols).")
    ] = None,
    check: Annotated[
        Path | None, typer.Option(help="Say of each line of this file whether it is well formed and true (- = stdin).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a small world in which everything is known, or check lines against it: unmask data world OUT

    OUT/train.txt and OUT/valid.txt hold a line for each fact, question, sum, story and review. The dials are listed in
    docs/worlds.md; without any, it is the world that the laboratories are about.
    """
    from unmask.data.worlds import KINDS, SPLITS

    settings = [text for text in arguments or [] if "=" in text]
    paths = [text for text in arguments or [] if "=" not in text]
    world = _world(seed, settings)
    if check is not None:
        if paths or kind or split or tokenizer:
            raise UserError("--check reads lines and writes no world: leave out the directory and all but the dials")
        return _check(world, check, as_json)
    if len(paths) != 1:
        raise UserError("give one directory to write the world to, as in unmask data world OUT, or --check FILE")
    spelled = None if tokenizer is None else _chosen("--tokenizer", [tokenizer], ("word", "char"))[0]
    _write(world, Path(paths[0]), _chosen("--kind", kind, KINDS), _chosen("--split", split, SPLITS), spelled, as_json)


def _write(world: World, out: Path, kinds: list[Any], splits: list[Any], spelled: Any, as_json: bool) -> None:
    """A text for each split, and a tokenizer where one is asked for; then say what stands there."""
    made = [(out / f"{name}.txt", world.text(kinds, name)) for name in splits]
    tokenizer = None if spelled is None else world.tokenizer(spelled)
    for path, text in made:
        if path.exists() and path.read_bytes() != text.encode():
            raise UserError(f"{path} is there and holds something else: give another directory, or move it away")
    out.mkdir(parents=True, exist_ok=True)
    for path, text in made:
        path.write_text(text, encoding="utf-8", newline="\n")
    if tokenizer is not None:
        tokenizer.save(out / "tokenizer.json")
    entries = None if tokenizer is None else tokenizer.vocabulary.size
    result = {
        "seed": world.seed,
        "dials": {name: getattr(world, name) for name in world.dials() if name != "seed"},
        "kinds": kinds,
        "files": {str(path): {"lines": text.count("\n"), "characters": len(text)} for path, text in made},
        "words": len(world.words()),
        "symbols": len(world.symbols()),
        "tokenizer": entries,
    }
    if as_json:
        return emit(result)
    for path, text in made:
        print(f"{path}: {text.count(chr(10)):,} lines, {len(text):,} characters")
    print(f"{len(world.words())} words and marks, {len(world.symbols())} symbols")
    if entries is not None:
        print(f"{out / 'tokenizer.json'}: {entries} entries")


def _world(seed: int, settings: list[str]) -> World:
    from unmask.config.base import read_value
    from unmask.data.worlds import World

    dials: dict[str, Any] = {}
    for text in settings:
        name, _, value = text.partition("=")
        if name not in World.dials():
            raise UserError(f"a world has no dial '{name}'{nearest(name, World.dials())}")
        if name in dials:
            raise UserError(f"{name} is given twice: leave one out")
        read = read_value(value)
        dials[name] = tuple(read) if isinstance(read, list) else read
    if seed and "seed" in dials:
        raise UserError("seed is given twice: leave out seed= or --seed")
    return World(**{"seed": seed, **dials})


def _chosen(option: str, given: list[str] | None, known: tuple[Any, ...]) -> list[Any]:
    """What was asked for, in the order of all there is; all of it where nothing was."""
    for text in given or []:
        if text not in known:
            raise UserError(f"{option} {text}: choose {', '.join(known)}{nearest(text, known)}")
    return [name for name in known if not given or name in given]


def _lines(path: Path) -> list[str]:
    """The lines of a file or, for "-", of stdin, whether they end as on Unix or as on Windows."""
    stdin = str(path) == "-"
    data = sys.stdin.buffer.read() if stdin else path.read_bytes()
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise UserError(f"{'stdin' if stdin else path} is not UTF-8 text: give lines of text") from None
    return text.removesuffix("\n").split("\n") if text else []


def _check(world: World, path: Path, as_json: bool) -> None:
    """A verdict for each line, then the counts."""
    counts: Counter[str] = Counter()
    by_kind: dict[str, Counter[str]] = {}
    for line in _lines(path):
        found = world.check(line)
        verdict = "malformed" if not found.well_formed else "true" if found.true else "false"
        counts[verdict] += 1
        if found.kind is not None:
            by_kind.setdefault(found.kind, Counter())[verdict] += 1
        if as_json:
            emit({"line": line, **vars(found)})
        else:
            print(f"{verdict:9}  {line}" + (f"  ({found.why})" if found.why else ""))
    well_formed = counts["true"] + counts["false"]
    total = {"lines": counts.total(), "well_formed": well_formed, "true": counts["true"]}
    if as_json:
        return emit({**total, "kinds": by_kind})
    print(f"{total['lines']:,} lines: {well_formed:,} well formed, {counts['true']:,} of them true")
    for kind, each in by_kind.items():
        print(f"{kind:>9}: " + ", ".join(f"{n:,} {verdict}" for verdict, n in each.items()))
