"""The verbs of text: stats here, prepare in a file of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.cli.output import Json, app, emit

data_app = typer.Typer(help="Look at text, and prepare it for training.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@data_app.command("stats")
def data_stats(
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Files, directories, globs or hf: names; and settings of a corpus, such as filter.duplicates=lines.",
            show_default=False,
        ),
    ],
    field: Annotated[str | None, typer.Option(help="The key of a JSON line, or column, that holds the text.")] = None,
    document: Annotated[str | None, typer.Option(help="auto, file, blank_line, line or regex.")] = None,
    encoding: Annotated[str | None, typer.Option(help="Of files without a byte-order mark, or detect.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Count the tokens of this tokenizer.")] = None,
    against: Annotated[str | None, typer.Option(help="An evaluation text to look for in the corpus.")] = None,
    as_json: Json = False,
) -> None:
    """Measure a corpus: lengths, repeats, scripts, sentences, suspicious strings, overlap with an evaluation text."""
    from unmask.data.stats import stats
    from unmask.errors import UserError
    from unmask.recipe import load_text

    options = {"field": field, "document": document, "encoding": encoding}
    settings = [f"corpus.{key}={value}" for key, value in options.items() if value is not None]
    paths = []
    for text in inputs:
        is_setting = "=" in text and not Path(text).exists()
        settings.append(f"corpus.{text.removeprefix('corpus.')}") if is_setting else paths.append(text)
    if not paths:
        raise UserError("no text: give files, directories, globs or hf: names to measure")
    sources = [load_text([f"corpus={path}", *settings]).corpus for path in paths]
    plain = [s for s in settings if s.split("=")[0] in ("corpus.field", "corpus.encoding")]
    evaluation = None if against is None else load_text([f"corpus={against}", *plain]).corpus
    result = stats(sources, None if tokenizer is None else _tokenizer(tokenizer), evaluation)
    if as_json:
        return emit(result)
    for warning in result.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print("\n".join(_table(result)))


def _tokenizer(path: str) -> Any:
    from unmask.tokens.tokenizer import Tokenizer

    return Tokenizer.load(path)


def _table(result: Any) -> list[str]:
    """The figures, one line each, then the tables."""
    repeated = {"documents": result.duplicate_documents, "lines": result.duplicate_lines}
    rows = {name: getattr(result, name) for name in ("files", "documents", "sentences", "lines", "words")}
    rows |= {name: getattr(result, name) for name in ("characters", "bytes", "tokens", "targets", "empty", "invalid")}
    lines = [f"{name:>20}  {value:,}" for name, value in rows.items() if value is not None]
    lines.append(f"{'sentences/document':>20}  {result.sentences_per_document:.2f}")
    lines += [
        f"{'repeated ' + what:>20}  {r.share:.2%}{' (estimated from a sample)' if r.estimated else ''}"
        for what, r in repeated.items()
    ]
    shares = {"scripts": result.scripts, "languages": result.languages}
    for name, values in shares.items():
        each = sorted(values.items(), key=lambda item: -item[1])
        lines.append(f"{name:>20}  " + ", ".join(f"{key} {share:.1%}" for key, share in each if share > 0.0005))
    lines += [f"{'mail addresses':>20}  about {result.mails:,}", f"{'phone numbers':>20}  about {result.phones:,}"]
    controls = ", ".join(f"{text} {n:,}" for text, n in list(result.controls.items())[:10])
    lines.append(f"{'control strings':>20}  {controls or 'none'}")
    lines += [f"{'dropped':>20}  {n:,} {reason}" for reason, n in sorted(result.filtered.items())]
    if (found := result.overlap) is not None:
        lines.append(
            f"{'evaluation text':>20}  {found.document_share:.2%} of {found.documents:,} documents and "
            f"{found.ngram_share:.3%} of {found.ngrams:,} {found.n}-grams are in the corpus ({found.short:,} documents "
            "are too short to tell)"
        )
    lines += [
        "",
        "characters of a document",
        "  " + "  ".join(f"{k} {'~' if k[0] == 'p' and v > 127 else ''}{v:,}" for k, v in result.length.items()),
    ]
    most = max(row["documents"] for row in result.histogram)
    for row in result.histogram:
        bar = "█" * round(40 * row["documents"] / most)
        lines.append(f"  {row['low']:>11,} – {row['high']:>11,}  {row['documents']:>12,}  {bar}".rstrip())
    if result.duplicate_lines.top:
        lines += ["", "most repeated lines"]
        lines += [f"  {row['count']:>9,}  {row['text'][:100]!r}" for row in result.duplicate_lines.top]
    return lines
