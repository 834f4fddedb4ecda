"""The verb that makes another kind of model of a trained one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from unmask.cli.output import Json, app, emit

Source = Annotated[str, typer.Argument(help="A run directory, or a Hugging Face model directory.", show_default=False)]
Out = Annotated[str, typer.Argument(help="The run directory to write.", show_default=False)]
To = Annotated[
    str | None,
    typer.Option(help="causal, prefix or masked: the same weights under that mask. encdec: two stacks."),
]
With = Annotated[
    str | None,
    typer.Option("--with", help="encdec: the model that becomes the decoder.", show_default="SRC once more"),
]
Cross = Annotated[
    str, typer.Option(help="encdec: cross-attention is new, or from the decoder's self-attention (self).")
]
Words = Annotated[
    str | None,
    typer.Option(help="Another vocabulary: a tokenizer's file or directory. Equal tokens keep their rows."),
]
Added = Annotated[
    list[str] | None,
    typer.Option(help="One more token, such as [MASK] (may be repeated). [...] and <...> are control tokens."),
]
Longest = Annotated[int | None, typer.Option(help="Room for longer texts.")]
Grown = Annotated[str, typer.Option(help="How a learned table of positions grows: interpolate, repeat or new.")]
Base = Annotated[float | None, typer.Option(help="Another base of rotary positions.")]
Seed = Annotated[int, typer.Option(help="Of what starts anew.")]


@app.command()
def convert(
    source: Source,
    out: Out,
    to: To = None,
    with_: With = None,
    cross: Cross = "new",
    tokenizer: Words = None,
    add_token: Added = None,
    max_position: Longest = None,
    positions: Grown = "interpolate",
    rotary_base: Base = None,
    seed: Seed = 0,
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
