"""A chapter of a stream as a corpus of its own: its records, read once, in a file of JSON lines while it is needed.

    stream     file 0: a b c d    file 1: e f g    file 2: h
    chapters   a b c | d e f | g h                 by `corpus.chapter` bytes of text; a record is in one chapter whole

A chapter ends before the first record that begins once it holds so many bytes, so where chapters end is a function of
the stream alone, and a chapter is read again from its beginning without what lies before. Where filters drop
duplicates, they do so within a chapter.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from unmask.config import CorpusConfig
from unmask.data.text import Text
from unmask.data.whole import alive
from unmask.errors import UserError
from unmask.text import corpus as corpora
from unmask.text.document import Counts, Document, utf8_length
from unmask.text.files import File, files, size_of, version_of
from unmask.text.position import Cursor, Position, Span
from unmask.text.progress import progress
from unmask.text.tables import hub_listing, is_hub

START = Position()
Listing = Sequence[tuple[str, int, str]]
"""(name, bytes, version) of every file of a stream."""


@dataclass(frozen=True)
class Spooled:
    """A chapter's text, where it came from, and the sentences that reading it said."""

    text: Text
    span: Span
    notes: list[str]


def listing(corpus: CorpusConfig) -> Listing:
    """The files that a stream consists of now; what the hub says of a name."""
    if is_hub(corpus):
        return tuple((str(name), int(size), str(version)) for name, size, version in hub_listing(corpus))
    return tuple((_name(file), size_of(file), version_of(file)) for file in files(corpus))


def _name(file: File) -> str:
    return os.path.abspath(file) if isinstance(file, Path) else str(file)  # as `data.text.absolute` has it


def _chosen(corpus: CorpusConfig, listed: Listing) -> list[File] | None:
    """The files of a listing, which must be as they were; files that came later are no part of the stream."""
    found = {name: size for name, size, _ in listing(corpus)}
    for name, size, _ in listed:
        if found.get(name) != size:
            now = "is gone" if name not in found else f"has {found[name]:,} bytes, not {size:,}"
            raise UserError(
                f"{name} {now}: the stream {corpus.path} has changed since the run was started; restore it, or start "
                "a new run"
            )
    names = {name for name, _, _ in listed}
    return None if is_hub(corpus) else [file for file in files(corpus) if _name(file) in names]


@contextlib.contextmanager
def spooled(
    corpus: CorpusConfig,
    valid: CorpusConfig | None,
    folder: Path,
    begin: Position = START,
    chapter: int = 0,
    listed: Listing | None = None,
) -> Iterator[Spooled]:
    """Chapter number `chapter` of a stream, which begins at `begin`; its file lies in `folder` until the block ends.

    listed: the files as they were when the run was started.
    """
    listed = listing(corpus) if listed is None else listed
    place = folder / f"{_owner()}{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
    counts, cursor = Counts(), Cursor(begin)
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob(f"{_owner()}*"):  # by processes that were killed
                if not alive(left.name.removeprefix(_owner()).split("-")[0]):
                    left.unlink(missing_ok=True)
            with contextlib.closing(corpora.records(corpus, counts, cursor, _chosen(corpus, listed))) as records:
                end, number = _write(records, cursor, place, corpus.chapter)
        except OSError as error:
            raise UserError(
                f"cannot keep a chapter of {corpus.path} in {folder} ({error.strerror or error}): make room, or choose "
                "another directory or a smaller corpus.chapter"
            ) from error
        text = Text(_as_file(corpus, place), valid, chapter)
        yield Spooled(text, Span(begin, end, number, tuple(listed)), counts.notes())
    except UserError as error:  # a user knows the stream, not the file
        if str(place) not in str(error):
            raise
        raise UserError(str(error).replace(str(place), f"{corpus.path} (chapter {chapter + 1})")) from error
    finally:
        with contextlib.suppress(OSError):
            place.unlink(missing_ok=True)


def _owner() -> str:
    return f".reading.{socket.gethostname()}."


def _write(records: Iterator[Document], cursor: Cursor, place: Path, limit: int) -> tuple[Position | None, int]:
    """Write records until a chapter is full: where the next one begins (None: nowhere), and how many there are."""
    size, number, last = 0, 0, cursor.at
    with place.open("w", encoding="utf-8") as out, progress("reading a chapter", limit) as advance:
        for document in records:
            if size >= limit and cursor.at != last:
                return cursor.at, number
            last = cursor.at
            more = utf8_length(document.text) + utf8_length(document.target or "")
            out.write(json.dumps(_line(document), ensure_ascii=False) + "\n")
            size, number = size + more, number + 1
            advance(more)
    return None, number


def _line(document: Document) -> dict[str, object]:
    line: dict[str, object] = {"text": document.text}
    if document.target is not None:
        line["target"] = document.target
    if document.spans is not None:
        line["spans"] = document.spans.tolist()
    return line


def _as_file(corpus: CorpusConfig, place: Path) -> CorpusConfig:
    """The settings that read back what `_line` wrote, and treat it as the stream's settings say."""
    written = {"path": str(place), "field": "text", "document": "auto", "separator": None, "encoding": "utf-8"}
    keys = {"target": corpus.target and "target", "spans": corpus.spans and "spans"}
    return corpus.model_copy(update={**written, **keys, "strict": False, "stream": False, "split": "train"})
