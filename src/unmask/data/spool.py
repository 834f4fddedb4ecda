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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from unmask.config import CorpusConfig
from unmask.data.text import Text
from unmask.data.whole import owned
from unmask.errors import UserError
from unmask.text import corpus as corpora
from unmask.text.document import Counts, Document, utf8_length
from unmask.text.files import File, files, is_url, size_of, version_of
from unmask.text.position import Cursor, Position, Span
from unmask.text.progress import progress
from unmask.text.tables import HubName, hub_listing, is_hub

START = Position()
Listing = Sequence[tuple[str, int, str]]
"""(name, bytes, version) of every file of a stream, and of what its texts depend on beside them (bytes 0)."""


@dataclass(frozen=True)
class Spooled:
    """A chapter's text, where it came from, and the sentences that reading it said."""

    text: Text
    span: Span
    notes: list[str]
    warning: str
    """A sentence where files of the stream may have changed."""


def listing(corpus: CorpusConfig) -> Listing:
    """What a stream consists of now: its files, or what the hub says of a name; its lexicon, and jieba."""
    return (*_listed(corpus, None if is_hub(corpus) else files(corpus)), *_beside(corpus))


def _listed(corpus: CorpusConfig, every: Sequence[File] | None) -> Listing:
    if every is None:
        return tuple((str(name), int(size), str(version)) for name, size, version in hub_listing(corpus))
    return tuple((_name(file), size_of(file), version_of(file)) for file in every)


def _beside(corpus: CorpusConfig) -> Listing:
    named = zip(("the lexicon", "jieba"), corpora.beside(corpus), strict=True)
    return tuple((name, 0, version) for name, version in named if version is not None)


def far(corpus: CorpusConfig) -> bool:
    """Whether a network lies between."""
    if is_hub(corpus):
        return not Path(HubName.of(corpus.path).name).is_dir()
    return is_url(corpus.path) and not corpus.path.lower().startswith(("file:", "memory:", "local:"))


def _name(file: File) -> str:
    return os.path.abspath(file) if isinstance(file, Path) else str(file)  # as `data.text.absolute` has it


def _chosen(corpus: CorpusConfig, listed: Listing) -> tuple[list[File] | None, str]:
    """The files of a listing, which must be as they were, and a warning. Files that came later are not among them.

    What a server says of a version, and a hash, must be the same. A date of a file here may be another one, since
    copying sets it, too: that is the warning.
    """
    every = None if is_hub(corpus) else files(corpus)
    now = {name: (size, version) for name, size, version in _listed(corpus, every)}
    dated = set() if far(corpus) else set(now)
    now |= {name: (size, version) for name, size, version in _beside(corpus)}
    redated = []
    for name, size, version in listed:
        changed = _changed(size, version, now.get(name), name in dated)
        if changed:
            raise UserError(
                f"{name} {changed}: the stream {corpus.path} has changed since the run was started; restore it, or "
                "start a new run"
            )
        if name in dated and version != now[name][1]:
            redated.append(name)
    warning = ""
    if redated:
        warning = (
            f"files of the stream have another date than when the run was started ({len(redated):,}, first "
            f"{redated[0]}): what is still to be read of them is read as it is now"
        )
    names = {name for name, _, _ in listed}
    return None if every is None else [file for file in every if _name(file) in names], warning


def _changed(size: int, version: str, now: tuple[int, str] | None, dated: bool) -> str:
    """In words, if it is known for sure."""
    if now is None:
        return "is gone"
    if now[0] != size:
        return f"has {now[0]:,} bytes, not {size:,}"
    return "is another version" if version and now[1] and now[1] != version and not dated else ""


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
    counts, cursor = Counts(), Cursor(begin)
    with _explained(corpus, folder):
        folder.mkdir(parents=True, exist_ok=True)
        hidden = owned(folder, "reading")
        place = hidden.with_name(f"{hidden.name}.jsonl")
    try:
        with _explained(corpus, folder):
            only, warning = _chosen(corpus, listed)
            with contextlib.closing(corpora.records(corpus, counts, cursor, only)) as records:
                end, number = _write(records, cursor, place, corpus.chapter)
        text = Text(_as_file(corpus, place), valid, chapter)
        yield Spooled(text, Span(begin, end, number, tuple(listed)), counts.notes(), warning)
    except UserError as error:  # a user knows the stream, not the file
        if str(place) not in str(error):
            raise
        raise UserError(str(error).replace(str(place), f"{corpus.path} (chapter {chapter + 1})")) from error
    finally:
        with contextlib.suppress(OSError):
            place.unlink(missing_ok=True)


@contextlib.contextmanager
def _explained(corpus: CorpusConfig, folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot keep a chapter of {corpus.path} in {folder} ({error.strerror or error}): make room, or choose "
            "another directory or a smaller corpus.chapter"
        ) from error


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
