"""The verbs of tokenizers: train, report."""

from __future__ import annotations

from typing import Annotated

import typer

from unmask.cli.output import Json, app, emit

tokenizer_app = typer.Typer(help="Train and compare tokenizers.", no_args_is_help=True)
app.add_typer(tokenizer_app, name="tokenizer")


@tokenizer_app.command("train")
def tokenizer_train(
    inputs: Annotated[list[str], typer.Argument(help="Text files, directories or globs.", show_default=False)],
    out: Annotated[str, typer.Option(help="The tokenizer.json to write.")],
    kind: Annotated[str, typer.Option("--type", help="bbpe, wordpiece, char, byte or word.")] = "bbpe",
    vocab_size: Annotated[int, typer.Option(help="Entries; a ceiling for char, byte and word.")] = 8192,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Fold case (wordpiece and word).")] = False,
    sentinels: Annotated[int, typer.Option(help="How many <extra_id_k> tokens.")] = 100,
    field: Annotated[str, typer.Option(help="The key of a JSON line that holds its text.")] = "text",
    as_json: Json = False,
) -> None:
    """Train a tokenizer on text."""
    from unmask.data.tokenizer import train_tokenizer

    settings = {"type": kind, "vocab_size": vocab_size, "lowercase": lowercase, "sentinels": sentinels}
    tokenizer = train_tokenizer(inputs, settings, field)
    tokenizer.save(out)
    if as_json:
        return emit({"out": out, "type": tokenizer.type, "vocab_size": tokenizer.vocabulary.size})
    print(f"{out}: {tokenizer.vocabulary.size} entries")
