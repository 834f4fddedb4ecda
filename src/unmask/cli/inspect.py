"""The verb that describes a model before it is built, and advises its sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from unmask.cli.output import Json, app, emit, in_bytes
from unmask.errors import UserError


@app.command()
def inspect(
    what: Annotated[
        str | None,
        typer.Argument(
            help="A recipe, a run, a Hugging Face directory, a preset such as bert-base, or a file of model settings.",
            show_default=False,
        ),
    ] = None,
    context: Annotated[int | None, typer.Option(help="Tokens of a row.", show_default="the model's longest")] = None,
    batch: Annotated[int, typer.Option(help="Rows.")] = 1,
    target: Annotated[
        str | None, typer.Option(help="Instead of a model: advise one of this size, such as 150M.", show_default=False)
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="With --target: whose switches.", show_default="modern-decoder")
    ] = None,
    family: Annotated[str | None, typer.Option(help="With --target: a family instead of a preset.")] = None,
    vocab_size: Annotated[
        int | None, typer.Option(help="Rows of the table of tokens.", show_default="the model's own")
    ] = None,
    as_json: Json = False,
) -> None:
    """Shapes, parameters, FLOPs and memory of a model: unmask inspect bert-base, or unmask inspect --target 150M"""
    from unmask.description import advice, describe
    from unmask.model.advise import parse_count

    if what is not None and target is not None:
        raise UserError(f"{what} is inspected as it is, --target advises a new model: leave one out (or --preset NAME)")
    if what is None and target is None:
        raise UserError("say what to inspect: a recipe, run, directory, preset or file, or --target SIZE for advice")
    if target is None and (preset or family):
        raise UserError("--preset and --family go with --target; to inspect a preset, give its name alone")
    if preset and family:
        raise UserError("give --preset or --family, not both")
    if target is not None:
        result = advice(parse_count(target), preset, family, vocab_size, context, batch)
    else:
        result = describe(str(what), context, batch, vocab_size)
    if as_json:
        return emit(result)
    print("\n".join(_lines(result)))


def _lines(result: Mapping[str, Any]) -> Iterator[str]:
    from unmask.cli.table import lines

    hidden = ("overrides", "flops_per_token_body", "flops_per_target", "embedding_parameters", "active_parameters")
    shown = {k: v for k, v in result.items() if k not in hidden}
    dense = result["active_parameters"] == result["parameters"]
    shown["parameters"] = _counted(result["parameters"], None if dense else result["active_parameters"])
    if "off" in shown:
        shown["off"] = f"{100 * shown['off']:+.1f} %"
    shown |= {
        k.replace("_bytes", "").replace("source_token", "source"): _bytes(v)
        for k, v in shown.items()
        if k.startswith("cache_bytes") and v
    }
    shown["shapes"] = [_step(step) for step in result["shapes"]]
    shown["parts"] = [{**p, "share": f"{100 * p['share']:5.1f} %"} for p in result["parts"]]
    shown["flops"] = [
        {k.replace("_", " "): v if k == "per token" else _short(v) for k, v in row.items()} for row in result["flops"]
    ]
    shown["memory"] = [{k: v if k == "with" else _bytes(v) for k, v in row.items()} for row in result["memory"]]
    if dense:
        shown["parts"] = [{k: v for k, v in p.items() if k != "active"} for p in shown["parts"]]
    yield from lines({k: v for k, v in shown.items() if not k.startswith("cache_bytes")})
    if "overrides" in result:
        yield f"\nin a recipe, or behind unmask pretrain: {' '.join(result['overrides'])}"


def _counted(total: int, active: int | None) -> str:
    """
    >>> _counted(124439808, None), _counted(1000, 500)
    ('124,439,808 (124.4 M)', '1,000 (1.00 k), of which a token meets 500 (500)')
    """
    met = "" if active is None else f", of which a token meets {active:,} ({_short(active)})"
    return f"{total:,} ({_short(total)}){met}"


def _step(step: Mapping[str, Any]) -> dict[str, str]:
    shape = ", ".join(f"{n:,}".replace(",", " ") for n in step["shape"])
    return {"step": step["step"], "shape": f"({shape})", "depths": _ranges(step["depths"]), "": step["what"]}


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers that rise, in short.

    >>> _ranges([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    if len(runs) > 4:
        return f"{len(numbers)} layers from {numbers[0]} on"
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def _short(number: float) -> str:
    """
    >>> _short(124439808), _short(12.5e9), _short(640)
    ('124.4 M', '12.50 G', '640')
    """
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f} {unit}" if number >= 100 * size else f"{number / size:.2f} {unit}"
    return f"{number:.0f}"


def _bytes(value: Any) -> Any:
    """Bytes in powers of 1024; of each value where there are several."""
    if isinstance(value, Mapping):
        return {k: _bytes(v) for k, v in value.items()}
    return in_bytes(value)
