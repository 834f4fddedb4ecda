"""The verbs of tokenizers: train, report."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import typer
from pydantic import BaseModel, ValidationError

from unmask.cli.output import Json, app, emit
from unmask.config import Kind, SourceConfig, Split, TokenizerConfig
from unmask.errors import UserError, nearest
from unmask.process import peak_memory

if TYPE_CHECKING:
    from unmask.tokens.report import Report, Row

tokenizer_app = typer.Typer(help="Train and compare tokenizers.", no_args_is_help=True)
app.add_typer(tokenizer_app, name="tokenizer")

Settings = TypeVar("Settings", bound=BaseModel)
Field = Annotated[str, typer.Option(help="The key of a JSON line, or the column of a table, that holds the text.")]
Encoding = Annotated[str, typer.Option(help="Of files without a byte-order mark: a codec such as cp1252, or detect.")]
Document = Annotated[str, typer.Option(help="What one document is: auto, file, line, blank_line or regex.")]
Separator = Annotated[str | None, typer.Option(help="With --document regex: the pattern between two documents.")]


@tokenizer_app.command("train")
def tokenizer_train(
    inputs: Annotated[
        list[str], typer.Argument(help="Text files, directories, globs or hf: names.", show_default=False)
    ],
    out: Annotated[str, typer.Option(help="The tokenizer.json to write.", show_default=False)],
    kind: Annotated[str, typer.Option("--type", help=f"{', '.join(get_args(Kind))}.")] = "bbpe",
    vocab_size: Annotated[int, typer.Option(help="Entries; a ceiling for char, byte and word.")] = 8192,
    split: Annotated[
        str | None,
        typer.Option(help=f"How text is cut first: {', '.join(get_args(Split))}.", show_default="the type's"),
    ] = None,
    digits: Annotated[str, typer.Option(help="keep; or split: every digit is a token of its own.")] = "keep",
    end_of_word: Annotated[str | None, typer.Option(help="bpe: the mark that closes a word, such as </w>.")] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Fold case (bpe, wordpiece, unigram, word).")] = False,
    normalization: Annotated[str, typer.Option(help="Of Unicode: none, nfc or nfkc.")] = "none",
    ties: Annotated[str, typer.Option(help="Of equally common pairs, merge: library, first or greatest.")] = "library",
    min_frequency: Annotated[int, typer.Option(help="Rarer pairs are not merged, rarer words have no entry.")] = 2,
    sentinels: Annotated[int, typer.Option(help="How many <extra_id_k> tokens.")] = 100,
    extra: Annotated[list[str] | None, typer.Option(help="Another control token: [NLU].", show_default=False)] = None,
    field: Field = "text",
    encoding: Encoding = "utf-8",
    document: Document = "auto",
    separator: Separator = None,
    as_json: Json = False,
) -> None:
    """Train a tokenizer on text: unmask tokenizer train --type bbpe --vocab-size 8192 --out tokenizer.json my.txt"""
    config = _checked(
        TokenizerConfig,
        type=kind,
        vocab_size=vocab_size,
        split=split,
        digits=digits,
        end_of_word=end_of_word,
        lowercase=lowercase,
        normalization=normalization,
        ties=ties,
        min_frequency=min_frequency,
        sentinels=sentinels,
        extra=extra or (),
    )
    settings = {"field": field, "encoding": encoding, "document": document, "separator": separator}
    sources = [_checked(SourceConfig, path=path, **settings) for path in inputs]
    from unmask.text.corpus import read
    from unmask.text.document import Counts
    from unmask.tokens.tokenizer import Tokenizer

    begun, counts = time.perf_counter(), Counts()
    tokenizer = Tokenizer.train(config, (d.text for source in sources for d in read(source, counts)), _say)
    seconds = time.perf_counter() - begun
    if not counts.documents:  # a byte vocabulary needs no text, but a path that holds none is still a mistake
        for source in sources:
            next(read(source))
    for note in counts.notes():
        _say(note)
    tokenizer.save(out)
    size, lost, peak = tokenizer.vocabulary.size, tokenizer.normalisation, peak_memory()
    if as_json:
        told = {"out": out, "type": tokenizer.type, "vocab_size": size, "lost": tokenizer.losses}
        return emit({**told, "fingerprint": tokenizer.fingerprint, "seconds": seconds, "peak_memory_bytes": peak})
    print(f"{out}: {tokenizer.type}, {size:,} entries; lost: {lost}; {seconds:.1f} s, {peak / 1e6:,.0f} MB peak memory")


@tokenizer_app.command("report")
def tokenizer_report(
    text: Annotated[str, typer.Argument(help="A file, a directory, a glob or an hf: name.", show_default=False)],
    tokenizers: Annotated[
        list[str],
        typer.Argument(
            help="Files or directories, or types to train on the text, such as bbpe:4096.", show_default=False
        ),
    ],
    context: Annotated[int, typer.Option(min=1, help="Tokens a model reads at once.")] = 512,
    hidden_size: Annotated[int, typer.Option(min=1, help="Of the model whose embedding table is weighed.")] = 768,
    num_layers: Annotated[int, typer.Option(min=1, help="Of that model.")] = 12,
    limit: Annotated[int, typer.Option(min=1, help="Bytes of text that are read.")] = 4_000_000,
    picture: Annotated[str | None, typer.Option(help="Also draw the report: an .svg file.")] = None,
    field: Field = "text",
    encoding: Encoding = "utf-8",
    document: Document = "auto",
    separator: Separator = None,
    as_json: Json = False,
) -> None:
    """What tokenizers do to a text: unmask tokenizer report my.txt tokenizer.json bbpe:4096 --context 512"""
    settings = {"field": field, "encoding": encoding, "document": document, "separator": separator}
    source = _checked(SourceConfig, path=text, **settings)
    if picture is not None and Path(picture).suffix.lower() != ".svg":
        raise UserError(f"--picture {picture}: the picture is drawn as .svg, give a name with that ending")
    from unmask.tokens import report as reports

    result = reports.report(
        source,
        tokenizers,
        context=context,
        hidden_size=hidden_size,
        num_layers=num_layers,
        limit=limit,
        say=_say,
    )
    if picture is not None:
        Path(picture).parent.mkdir(parents=True, exist_ok=True)
        Path(picture).write_text(reports.picture(result), encoding="utf-8")
    if as_json:
        return emit(result)
    _print_report(result)
    if picture is not None:
        print(f"picture: {picture}")


def _say(what: str) -> None:
    print(what, file=sys.stderr)


def _checked(model: type[Settings], **values: Any) -> Settings:
    """Settings from options; the first that is wrong is one sentence that names its option."""
    try:
        return model(**values)
    except ValidationError as error:
        first = error.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        if not first["loc"]:
            raise UserError(message) from error
        name = str(first["loc"][0])
        known = [str(v) for a in (model.model_fields[name].annotation,) for v in _choices(a)]
        close = nearest(str(first["input"]), known)
        raise UserError(
            f"--{name.replace('_', '-')} {first['input']}: {message[0].lower()}{message[1:]}{close}"
        ) from error


def _choices(annotation: Any) -> list[str]:
    """The values of a Literal, also inside an Optional."""
    return [x for a in get_args(annotation) for x in ([a] if isinstance(a, str) else _choices(a))]


# ---------------------------------------------------------------- the table


def _print_report(result: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    text = result.text
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False)
    part = "" if text.whole else "the beginning of "
    console.print(
        f"{part}{text.path}: {text.documents:,} documents, {text.bytes:,} bytes, "
        f"{text.characters:,} characters, {text.words:,} words\n"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for row in result.tokenizers:
        table.add_column(row.name, justify="right", overflow="fold")
    for label, tell in {**_lines(result), **_merged(result)}.items():
        table.add_row(label, *(tell(row) for row in result.tokenizers))
    console.print(table, "")
    for row in result.tokenizers:
        lost = "; ".join(row.losses) or "nothing"
        shown = f", as {row.difference[0]!r} came back as {row.difference[1]!r}" if row.difference else ""
        console.print(f"{row.name} gives up: {lost}{shown}")
    told = result.definitions
    console.print(
        f"\nwords: {told['words']}. Kept whole: {told['whole_words']}.\n"
        f"embedding share: {told['embedding_share']}; here d = {result.hidden_size}, L = {result.num_layers}.\n"
        f"cut alike: {told['aligned']}. tokens shared: {told['shared']}.\n"
        f"merges: bytes per token of the first {text.merge_sample:,} bytes when only the first k merges are made.\n"
        f"MB/s: {told['megabytes_per_second']}."
    )


def _lines(result: Report) -> dict[str, Callable[[Row], str]]:
    """Label → what it says of a tokenizer."""
    return {
        "type": lambda r: r.type,
        "vocabulary": lambda r: f"{r.vocab_size:,}",
        "  used by this text": lambda r: f"{r.vocabulary_used:.1%}",
        "  embedding share": lambda r: f"{r.embedding_share:.1%}",
        "tokens": lambda r: f"{r.tokens:,}",
        "bytes per token": lambda r: f"{r.bytes_per_token:.2f}",
        "characters per token": lambda r: f"{r.characters_per_token:.2f}",
        "fertility (tokens per word)": lambda r: f"{r.fertility:.2f}",
        "words kept whole": lambda r: f"{r.whole_words:.1%}",
        "unknown tokens": lambda r: f"{r.unknown_tokens:.2%}",
        "characters lost": lambda r: f"{r.lost_characters:.2%}",
        f"length, {result.tokenizers[0].name} = 1": lambda r: f"{r.length_ratio:.2f}",
        "  attention cost": lambda r: f"{r.attention_ratio:.2f}",
        f"documents within {result.context:,} tokens": lambda r: f"{r.documents_fit:.1%}",
        f"mean documents in {result.context:,}": lambda r: f"{r.documents_per_context:.3g}",
        "0-999 in 1, 2, 3 tokens": lambda r: ", ".join(str(r.numbers.tokens.get(n, 0)) for n in (1, 2, 3)),
        "  cut alike": lambda r: f"{r.numbers.aligned:.1%}",
        "  107, 738": lambda r: ", ".join("|".join(r.numbers.examples[n]) for n in ("107", "738")),
        "letters swapped: tokens": _swapped,
        "  tokens shared": lambda r: "-" if r.misspellings is None else f"{r.misspellings.shared:.1%}",
        "documents back exactly": lambda r: f"{r.exact_documents:.1%}",
        "MB/s (measured here)": lambda r: f"{r.megabytes_per_second:.1f}",
    }


def _swapped(row: Row) -> str:
    found = row.misspellings
    return "-" if found is None else f"{found.tokens_before:.2f} → {found.tokens_after:.2f}"


def _merged(result: Report) -> dict[str, Callable[[Row], str]]:
    """Bytes per token when 10, 100, … merges are made, as far as the tokenizer with the most has any."""
    most = max((row.tokens_by_merges[-1][0] for row in result.tokenizers if row.tokens_by_merges), default=0)
    size = result.text.merge_sample

    def at(k: int) -> Callable[[Row], str]:
        def tell(row: Row) -> str:
            tokens = dict(row.tokens_by_merges or ()).get(k)
            return "-" if tokens is None else f"{size / tokens:.2f}"

        return tell

    counts = [10**n for n in range(1, len(str(most))) if 10**n < most]
    return {f"bytes per token, {k:,} merges": at(k) for k in counts}
