"""The verb that makes another kind of model of a trained one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from unmask.cli.output import Json, app, emit


@app.command()
def convert(
    source: Annotated[
        str, typer.Argument(help="A run directory, or a Hugging Face model directory.", show_default=False)
    ],
    out: Annotated[str, typer.Argument(help="The run directory to write.", show_default=False)],
    to: Annotated[
        str | None,
        typer.Option(help="causal, prefix or masked: the same weights under that mask. encdec: two stacks."),
    ] = None,
    with_: Annotated[
        str | None,
        typer.Option("--with", help="encdec: the model that becomes the decoder.", show_default="SRC once more"),
    ] = None,
    cross: Annotated[
        str, typer.Option(help="encdec: cross-attention is new, or from the decoder's self-attention (self).")
    ] = "new",
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Another vocabulary: a tokenizer's file or directory. Equal tokens keep their rows."),
    ] = None,
    add_token: Annotated[
        list[str] | None,
        typer.Option(help="One more token, such as [MASK] (may be repeated). [...] and <...> are control tokens."),
    ] = None,
    max_position: Annotated[int | None, typer.Option(help="Room for longer texts.")] = None,
    positions: Annotated[
        str, typer.Option(help="How a learned table of positions grows: interpolate, repeat or new.")
    ] = "interpolate",
    rotary_base: Annotated[float | None, typer.Option(help="Another base of rotary positions.")] = None,
    seed: Annotated[int, typer.Option(help="Of what starts anew.")] = 0,
    as_json: Json = False,
) -> None:
    """Make another kind of model of a trained one: unmask convert runs/bert runs/pair --to encdec --cross self"""
    from unmask.conversion import convert as make

    named: dict[str, Any] = {"to": to, "cross": cross, "positions": positions}
    made = make(
        source,
        out,
        decoder=with_,
        tokenizer=tokenizer,
        add_tokens=add_token or (),
        max_position=max_position,
        rotary_base=rotary_base,
        seed=seed,
        **named,
    )
    if as_json:
        return emit({"run": made.run, "source": source, "notes": made.notes})
    for note in made.notes:
        print(note)
    print(made.run)
