"""A source of text to documents, streaming: no file is held whole unless a document is one.

Files: .jsonl(.gz) and .ndjson hold one JSON object a line, .parquet a table; any other ending is plain text.
Encodings, marks and line ends are `textfile`'s matter. A line of white space is a blank line, and a document of
white space is skipped and counted. `hf:NAME` is loaded by the `datasets` library.

| document   | plain text                            | JSON lines, tables            |
|------------|---------------------------------------|-------------------------------|
| auto       | the file; beyond 64 MB, its stretches | each line's or row's text     |
| file       | the file                              | each line's or row's text     |
| line       | each line that is not blank           | each line's or row's text     |
| blank_line | runs of lines without a blank line    | the same inside each text     |
| regex      | what lies between matches             | the same inside each text     |

On its way a document passes: blanks taken out (words=blanks), filters, words by jieba, matches of a lexicon. A target
(`target`: another key or column) is mended as the text is; it goes wherever its text goes, and where it is empty the
document is skipped and counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from unmask.config import FilterConfig, SourceConfig
from unmask.errors import UserError, nearest
from unmask.text import segment, spans, tables
from unmask.text.document import Counts, Document, part, utf8_length, well_formed, without
from unmask.text.files import HUB, JSON_ENDINGS, TABLE_ENDING, File, content_hash, content_of, ending, files, size_of
from unmask.text.filters import Filter
from unmask.text.position import Cursor, Position
from unmask.text.textfile import blocks, lines, whole_text

__all__ = ["Counts", "Document", "content", "files", "read", "utf8_length", "well_formed"]

LARGE = 64_000_000
"""Bytes beyond which document=auto parts a plain text file."""
STRETCH = 16_000_000
"""Characters of such a part, about: it ends at the end of a block of lines."""

Step = Callable[[Document], Document | None]


# ---------------------------------------------------------------- what it depends on


def content(source: SourceConfig) -> list[Any]:
    """What a source's documents depend on besides its settings, ready for JSON: contents of files, not their paths
    or dates; the hub's revision; and what is `beside` it."""
    of_text = (
        tables.hub_content(source)
        if tables.is_hub(source)
        else [[ending(p), p.suffix.lower() == ".gz", *content_of(p)] for p in files(source)]
    )
    return [of_text, *beside(source)]


def beside(source: SourceConfig) -> list[str | None]:
    """What documents depend on besides files and settings: the lexicon's content, the version of jieba."""
    segment.check(source.words)
    lexicon = None if source.lexicon is None else content_hash(Path(source.lexicon).expanduser())
    return [lexicon, metadata.version("jieba") if source.words == "jieba" else None]


# ---------------------------------------------------------------- documents


def read(source: SourceConfig, counts: Counts | None = None, required: bool = True) -> Iterator[Document]:
    """Documents in the order of the files. `counts` is filled as they pass. required: no document is an error."""
    counts = Counts() if counts is None else counts
    before = counts.documents
    steps = _steps(source, counts)
    for document in records(source, counts):
        if not document.text or document.text.isspace():
            counts.empty += 1
            continue
        if document.target is not None and (not document.target or document.target.isspace()):
            counts.no_target += 1
            continue
        passed: Document | None = document
        for step in steps:
            passed = step(passed) if passed is not None else None
        if passed is not None:
            counts.documents += 1
            size = utf8_length(passed.text)
            counts.bytes += size
            counts.longest = max(counts.longest, size)
            if passed.target is not None:
                counts.targets += 1
                counts.target_bytes += utf8_length(passed.target)
            yield passed
    if counts.documents == before and required:
        dropped = "".join(f", {n:,} {reason}" for reason, n in sorted(counts.filtered.items()))
        dropped += f", {counts.no_target:,} without a target" if counts.no_target else ""
        raise UserError(
            f"the corpus {source.path} has no text ({counts.files} files, {counts.empty} empty documents{dropped})"
        )


def _steps(source: SourceConfig, counts: Counts) -> list[Step]:
    """What happens to each document, in order."""
    segment.check(source.words)
    steps: list[Step] = []
    if source.words == "blanks":
        steps.append(segment.by_blanks)
    if source.filter != FilterConfig():
        steps.append(Filter(source.filter, counts))
    if source.words == "jieba":
        steps.append(segment.by_jieba)
    if source.lexicon is not None:
        steps.append(partial(spans.with_matches, lexicon=spans.Lexicon.load(source.lexicon)))
    return steps


def records(
    source: SourceConfig, counts: Counts, cursor: Cursor | None = None, only: Sequence[File] | None = None
) -> Generator[Document]:
    """Documents as they stand in the source, before anything happens to them; white space alone is one, too.

    cursor: where to begin; as documents pass, where the record begins that the last one comes from.
    only: the files to read, which else are asked for.
    """
    if source.document == "regex":
        _pattern(source)
    if tables.is_hub(source):
        rows = tables.hub_rows(source, counts, cursor or Cursor())
        yield from _of_records((_row(row, source, source.path, counts) for row in rows), source, counts)
        return
    begin = Position() if cursor is None else cursor.at
    for number, path in enumerate(files(source) if only is None else only):
        if number < begin.file:
            continue
        counts.files += 1
        if cursor is not None:
            cursor.at = begin if number == begin.file else Position(number)
        if ending(path) in JSON_ENDINGS:
            yield from _of_records(_json_lines(path, source, counts, cursor), source, counts)
        elif path.suffix.lower() == TABLE_ENDING:
            table = tables.parquet_rows(path, source, counts, cursor or Cursor())
            yield from _of_records((_row(row, source, str(path), counts) for row in table), source, counts)
        else:
            yield from _of_plain_text(path, source, counts, cursor)


def _of_plain_text(path: File, source: SourceConfig, counts: Counts, cursor: Cursor | None) -> Iterator[Document]:
    if source.spans is not None:
        raise UserError(
            f"{path} is plain text, which has no key '{source.spans}': spans are read from JSON lines and tables; "
            "for plain text give corpus.lexicon"
        )
    if source.target is not None:
        raise UserError(
            f"{path} is plain text, which has no key '{source.target}': targets are read from JSON lines and tables"
        )
    if path.suffix.lower() == ".json":
        raise UserError(
            f"{path}: a .json file is not read as text; name it .jsonl if it holds one object a line, or have the "
            f"datasets library load its directory with {HUB}DIRECTORY"
        )
    how = path, source.encoding, source.strict, counts
    if source.document == "line":
        for number, line in lines(*how, cursor):
            if cursor is not None:
                cursor.at = cursor.now
            yield Document(line, f"{path}:{number}")
    elif source.document == "blank_line":
        found = _paragraphs(lines(*how, cursor), counts, cursor)
        yield from (Document(text, f"{path}:{number}") for number, text in found)
    elif source.document == "regex":
        text = whole_text(*how)
        yield from (Document(text[a:b], f"{path}:{number}") for number, a, b in _between(_pattern(source), text))
    elif source.document == "auto" and _unpacked_size(path) > LARGE:
        yield from _stretches(path, blocks(*how, cursor), counts, cursor)
    else:
        yield Document(whole_text(*how), str(path))


def _unpacked_size(path: File) -> int:
    """Bytes of text in a file, of a packed one about: English packs to between a half and a third."""
    return size_of(path) * (3 if path.suffix.lower() == ".gz" else 1)


def _stretches(
    path: File, numbered: Iterable[tuple[int, str]], counts: Counts, cursor: Cursor | None
) -> Iterator[Document]:
    """A large file in documents of about `STRETCH` characters, so that no more of it is held."""
    counts.parted += 1
    run: list[str] = []
    first, length = 1, 0
    for number, text in numbered:
        first = first if run else number
        if cursor is not None and not run:
            cursor.at = cursor.now
        run.append(text + "\n")
        length += len(text) + 1
        if length >= STRETCH:
            yield Document("".join(run), f"{path}:{first}")
            run, length = [], 0
    if run:
        yield Document("".join(run), f"{path}:{first}")


def _of_records(records: Iterable[Document], source: SourceConfig, counts: Counts) -> Iterator[Document]:
    """Documents inside the texts of JSON lines or rows."""
    if source.document not in ("blank_line", "regex"):
        yield from records
        return
    for record in records:
        if source.document == "regex":
            ends = [(a, b) for _, a, b in _between(_pattern(source), record.text)]
        else:
            ends = _paragraph_ends(record.text, counts)
        if record.spans is not None:
            _refuse_crossing(record, np.array(ends, np.int64).reshape(-1, 2), source)
        yield from (part(record, a, b, record.where) for a, b in ends)


def _refuse_crossing(record: Document, ends: np.ndarray, source: SourceConfig) -> None:
    assert record.spans is not None
    for begin, end in record.spans.tolist():
        if not ((ends[:, 0] <= begin) & (end <= ends[:, 1])).any():
            raise UserError(
                f"{record.where}: the span {record.text[begin:end][:40]!r} of '{source.spans}' is in no single "
                f"document, as document={source.document} parts the text; leave it out, or take document=auto"
            )


def _paragraphs(
    numbered: Iterable[tuple[int, str]], counts: Counts, cursor: Cursor | None = None
) -> Iterator[tuple[int, str]]:
    """(first line, text) of each run of lines that are not blank; blank lines in excess are counted."""
    run: list[str] = []
    first = 0
    for number, line in numbered:
        if line and not line.isspace():
            first = first if run else number
            if cursor is not None and not run:
                cursor.at = cursor.now
            run.append(line)
        elif run:
            yield first, "\n".join(run)
            run = []
        else:
            counts.empty += 1
    if run:
        yield first, "\n".join(run)


def _paragraph_ends(text: str, counts: Counts) -> list[tuple[int, int]]:
    """[begin, end) of each run of lines that are not blank."""
    starts, at = [0], -1
    while (at := text.find("\n", at + 1)) >= 0:
        starts.append(at + 1)
    runs = _paragraphs(enumerate(text.split("\n")), counts)
    return [(starts[first], starts[first] + len(run)) for first, run in runs]


def _between(separator: re.Pattern[str], text: str) -> Iterator[tuple[int, int, int]]:
    """(first line, begin, end) of what lies between matches; groups in the pattern change nothing."""
    number, start = 1, 0
    for match in separator.finditer(text):
        yield number, start, match.start()
        number += text.count("\n", start, match.end())
        start = match.end()
    yield number, start, len(text)


def _pattern(source: SourceConfig) -> re.Pattern[str]:
    assert source.separator is not None
    try:
        return re.compile(source.separator, re.MULTILINE)
    except re.error as error:
        raise UserError(f"corpus.separator={source.separator!r} is no regular expression: {error}") from error


# ---------------------------------------------------------------- records


def _json_lines(path: File, source: SourceConfig, counts: Counts, cursor: Cursor | None) -> Iterator[Document]:
    for number, line in lines(path, source.encoding, source.strict, counts, cursor):
        if line and not line.isspace():
            if cursor is not None:
                cursor.at = cursor.now
            where = f"{path}:{number}"
            record = _object(line, where)
            text = _text(record, source.field, "field", where)
            target = None if source.target is None else _text(record, source.target, "target", where)
            marked = None if source.spans is None else _key(record, source.spans, "spans", where)
            yield _record(text, marked, target, where, source, counts)


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is no valid JSON ({error}); a .jsonl file holds one JSON object a line") from error
    if not isinstance(record, dict):
        raise UserError(f'{where} holds a {type(record).__name__}, not a JSON object such as {{"text": …}}')
    return record


def _key(record: dict[str, Any], key: str, setting: str, where: str) -> Any:
    if key not in record:
        has = ", ".join(map(str, list(record)[:8])) or "none"
        raise UserError(f"{where} has no key '{key}' (its keys: {has}): set corpus.{setting}{nearest(key, record)}")
    return record[key]


def _text(record: dict[str, Any], key: str, setting: str, where: str) -> str:
    """The text at a key; null is an empty one."""
    text = _key(record, key, setting, where)
    if text is not None and not isinstance(text, str):
        raise UserError(f"{where}: the key '{key}' holds a {type(text).__name__}, not text")
    return text or ""


def _row(row: tables.Row, source: SourceConfig, table: str, counts: Counts) -> Document:
    number, text, marked, target = row
    return _record(text, marked, target, f"{table}:{number}", source, counts)


def _record(text: str, marked: Any, target: str | None, where: str, source: SourceConfig, counts: Counts) -> Document:
    """A record's text and target, mended and with "\\n" as line end, and the text's spans moved along."""
    marks = None if source.spans is None else spans.checked(marked, source.spans, text, where)
    if target is not None:
        target = _mended(target, where, source, counts).replace("\r\n", "\n")
    document = Document(_mended(text, where, source, counts), where, None, marks, target)
    if "\r\n" in document.text:
        document = without(document, [(m.start(), m.start() + 1) for m in re.finditer("\r\n", document.text)])
    return document


def _mended(text: str, where: str, source: SourceConfig, counts: Counts) -> str:
    """The text with U+FFFD for halves of surrogate pairs, counted, or refused."""
    whole = well_formed(text)
    if whole is not text:
        invalid = whole.count("\ufffd") - text.count("\ufffd")
        if invalid and source.strict:
            raise UserError(f"{where} holds half a surrogate pair, which is no text: drop strict to have it replaced")
        counts.invalid += invalid
        counts.first_invalid = counts.first_invalid or (where if invalid else "")
    return whole
