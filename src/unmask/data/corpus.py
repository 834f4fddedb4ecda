"""Text files to documents, streaming: no file is held whole unless a document is one.

Files: .jsonl(.gz) and .ndjson hold one JSON object a line; any other ending is plain text. A byte-order
mark is dropped (UTF-16 and UTF-32 with one are decoded), Windows line ends become "\\n", a line of white
space is a blank line, and a document of white space is skipped and counted.

| document   | plain text                            | JSON lines                    |
|------------|---------------------------------------|-------------------------------|
| auto       | the file                              | each line's text              |
| file       | the file                              | each line's text              |
| line       | each line that is not blank           | each line's text              |
| blank_line | runs of lines without a blank line    | the same inside each text     |
| regex      | what lies between matches             | the same inside each text     |
"""

from __future__ import annotations

import codecs
import glob
import gzip
import hashlib
import io
import itertools
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from unmask.config import CorpusConfig
from unmask.errors import UserError, nearest

JSON_ENDINGS = (".jsonl", ".ndjson")
ENDINGS = (".txt", *JSON_ENDINGS)
"""What a directory is searched for, each also with .gz; a file or glob may have any ending."""
FEW = 20
"""Below this many documents the held-out part is taken by position."""

_MARKS = {  # longest first: UTF-32's little-endian mark begins with UTF-16's
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


@dataclass(frozen=True)
class Document:
    text: str
    where: str
    """file:line, or the file."""


@dataclass
class Counts:
    """What reading met; filled while `read` runs."""

    files: int = 0
    documents: int = 0
    bytes: int = 0
    """UTF-8 bytes of the documents."""
    empty: int = 0
    """Documents of white space alone, skipped (in plain text, also surplus blank lines)."""
    invalid: int = 0
    """Bytes that were no text and became U+FFFD."""


# ---------------------------------------------------------------- files


def files(config: CorpusConfig) -> list[Path]:
    """The files of a corpus, sorted by path; hidden ones and, in a directory, other endings are passed over."""
    path = Path(config.path).expanduser()
    if path.is_dir():
        every = [p for p in sorted(path.rglob("*")) if p.is_file() and not _hidden(p.relative_to(path))]
        found = [p for p in every if ending(p) in ENDINGS]
        if not found:
            others = sorted({p.suffix for p in every if p.suffix})[:5]
            more = f"; for its {', '.join(others)} files give a glob such as '{path}/*{others[0]}'" if others else ""
            raise UserError(f"the directory {path} holds no .txt, .txt.gz, .jsonl or .jsonl.gz file{more}")
        return found
    if path.exists():
        return [path]
    if any(c in config.path for c in "*?["):
        found = [p for p in map(Path, sorted(glob.glob(str(path), recursive=True))) if p.is_file()]
        if not found:
            raise UserError(f"no file matches the corpus glob {config.path}")
        return found
    siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    raise UserError(f"no such corpus file: {config.path}{nearest(path.name, siblings)}")


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def ending(path: Path) -> str:
    name = path.name.lower().removesuffix(".gz")
    return Path(name).suffix


# ---------------------------------------------------------------- documents


def read(config: CorpusConfig, counts: Counts | None = None) -> Iterator[Document]:
    """Documents in the order of the files. `counts` is filled as they pass."""
    counts = Counts() if counts is None else counts
    separator = _pattern(config)
    for path in files(config):
        counts.files += 1
        for document in _of_file(path, config, separator, counts):
            if not document.text or document.text.isspace():
                counts.empty += 1
                continue
            counts.documents += 1
            counts.bytes += utf8_length(document.text)
            yield document
    if not counts.documents:
        raise UserError(f"the corpus {config.path} has no text ({counts.files} files, {counts.empty} empty documents)")


def _of_file(path: Path, config: CorpusConfig, separator: re.Pattern[str] | None, counts: Counts) -> Iterator[Document]:
    lines = _lines(path, config.strict, counts)
    mode = config.document
    if ending(path) in JSON_ENDINGS:
        for number, line in lines:
            if line and not line.isspace():
                where = f"{path}:{number}"
                text = _field(line, config.field, where, counts)
                if mode == "blank_line":
                    parts = _paragraphs(enumerate(text.split("\n"), 1), counts)
                    yield from (Document(part, where) for _, part in parts)
                elif separator is not None:
                    yield from (Document(part, where) for _, part in _between(separator, text))
                else:
                    yield Document(text, where)
    elif mode == "line":
        yield from (Document(line.removesuffix("\n"), f"{path}:{number}") for number, line in lines)
    elif mode == "blank_line":
        yield from (Document(text, f"{path}:{number}") for number, text in _paragraphs(lines, counts))
    else:
        text = "".join(line for _, line in lines)
        if separator is None:
            yield Document(text, str(path))
        else:
            yield from (Document(part, f"{path}:{number}") for number, part in _between(separator, text))


def _paragraphs(lines: Iterable[tuple[int, str]], counts: Counts) -> Iterator[tuple[int, str]]:
    """(first line, text) of each run of lines that are not blank; blank lines in excess are counted."""
    run: list[str] = []
    first = 0
    for number, line in lines:
        if line and not line.isspace():
            first = first if run else number
            run.append(line.removesuffix("\n"))
        elif run:
            yield first, "\n".join(run)
            run = []
        else:
            counts.empty += 1
    if run:
        yield first, "\n".join(run)


def _between(separator: re.Pattern[str], text: str) -> Iterator[tuple[int, str]]:
    """(first line, text) of what lies between matches; groups in the pattern change nothing."""
    number, start = 1, 0
    for match in separator.finditer(text):
        yield number, text[start : match.start()]
        number += text.count("\n", start, match.end())
        start = match.end()
    yield number, text[start:]


def _pattern(config: CorpusConfig) -> re.Pattern[str] | None:
    if config.separator is None:
        return None
    try:
        return re.compile(config.separator, re.MULTILINE)
    except re.error as error:
        raise UserError(f"corpus.separator={config.separator!r} is no regular expression: {error}") from error


def _field(line: str, field: str, where: str, counts: Counts) -> str:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where} is no valid JSON ({error}); a .jsonl file holds one JSON object a line") from error
    if not isinstance(record, dict):
        raise UserError(f"{where} holds a {type(record).__name__}, not a JSON object with the key '{field}'")
    if field not in record:
        has = ", ".join(map(str, list(record)[:8])) or "none"
        raise UserError(f"{where} has no key '{field}' (its keys: {has}): set corpus.field{nearest(field, record)}")
    text = record[field]
    if not isinstance(text, str):
        raise UserError(f"{where}: the key '{field}' holds a {type(text).__name__}, not text")
    whole = well_formed(text)
    if whole is not text:
        counts.invalid += whole.count("\ufffd") - text.count("\ufffd")
    return whole.replace("\r\n", "\n")


def well_formed(text: str) -> str:
    """The text with surrogates (JSON's "\\ud800") joined to characters, or replaced where they stand alone."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


# ---------------------------------------------------------------- bytes to lines


def _lines(path: Path, strict: bool, counts: Counts) -> Iterator[tuple[int, str]]:
    """(number, line) as text; a line ends with "\\n", the last one perhaps not."""
    offset = 0
    for number, raw in enumerate(_raw_lines(path, strict, counts), 1):
        if b"\0" in raw:
            raise UserError(f"{path} is a binary file (a NUL byte in line {number}); a corpus is text, .gz or .jsonl")
        line = _decode(raw, path, offset, strict, counts)
        yield number, line[:-2] + "\n" if line.endswith("\r\n") else line
        offset += len(raw)


def _decode(raw: bytes, path: Path, offset: int, strict: bool, counts: Counts) -> str:
    raw = raw.removeprefix(codecs.BOM_UTF8) if offset == 0 else raw
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        if strict:
            raise UserError(
                f"{path} is not UTF-8 at byte {offset + error.start:,}; convert it (iconv -t UTF-8), "
                "or drop corpus.strict to replace such bytes"
            ) from error
    counts.invalid += len(raw) - len(raw.decode(errors="ignore").encode())
    return raw.decode(errors="replace")


def _raw_lines(path: Path, strict: bool, counts: Counts) -> Iterator[bytes]:
    """Lines as UTF-8 bytes, unpacked and transcoded."""
    try:
        with path.open("rb") as plain, _unpacked(path, plain) as stream:
            start = stream.peek(4)[:4]
            encoding = next((name for mark, name in _MARKS.items() if start.startswith(mark)), None)
            if start == b"%PDF" or start.startswith(b"\x1f\x8b"):
                advice = "take the text out of it first" if start == b"%PDF" else "name it .gz to have it unpacked"
                raise UserError(f"{path} is a binary file, not text; {advice}")
            yield from stream if encoding is None else _transcoded(stream, encoding, strict, counts)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path} is no whole gzip file ({error}); unpack it, or copy it again") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not {error.encoding} near byte {error.start:,}: {error.reason}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def _unpacked(path: Path, plain: IO[bytes]) -> io.BufferedReader:
    if path.suffix.lower() != ".gz":
        return io.BufferedReader(plain)  # type: ignore[type-var,arg-type]
    return io.BufferedReader(gzip.GzipFile(fileobj=plain, mode="rb"), 1 << 17)  # type: ignore[type-var,arg-type]


def _transcoded(stream: Any, encoding: str, strict: bool, counts: Counts) -> Iterator[bytes]:
    text = io.TextIOWrapper(stream, encoding, errors="strict" if strict else "replace", newline="\n")
    for line in text:
        counts.invalid += line.count("\ufffd")
        yield line.encode()


# ---------------------------------------------------------------- train and held-out


def split(
    documents: Iterable[Document], valid_fraction: float, say: Callable[[str], None] | None = None
) -> Iterator[tuple[bool, Document]]:
    """(held out?, document), streaming: by a hash of the text, so that duplicates land on one side.

    With fewer than 20 documents, by position: the last `valid_fraction` of all characters, which is said
    aloud. With more, at least one text is held out: the one whose hash is smallest waits to the end, and
    is held out if no other was.
    """
    stream = iter(documents)
    first = list(itertools.islice(stream, FEW))
    if len(first) < FEW:
        yield from _by_position(first, valid_fraction, say)
    else:
        yield from _by_hash(itertools.chain(first, stream), valid_fraction)


def share(text: str, purpose: bytes = b"") -> float:
    """A number in [0, 1) that is a fixed, even function of the text."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, person=purpose).digest()
    return int.from_bytes(digest, "little") / 2**64


def _by_hash(documents: Iterable[Document], valid_fraction: float) -> Iterator[tuple[bool, Document]]:
    waiting: list[Document] = []
    lowest, none_held_out = 1.0, True
    for document in documents:
        place = share(document.text)
        if place < valid_fraction:
            none_held_out = False
            yield True, document
        elif none_held_out and place <= lowest and valid_fraction:
            if place < lowest:
                yield from ((False, d) for d in waiting)
                waiting, lowest = [], place
            waiting.append(document)
        else:
            yield False, document
    yield from ((none_held_out, d) for d in waiting)


def _by_position(
    documents: list[Document], valid_fraction: float, say: Callable[[str], None] | None
) -> Iterator[tuple[bool, Document]]:
    total = sum(len(d.text) for d in documents)
    before = total - round(total * valid_fraction)
    if valid_fraction and say is not None:
        say(
            f"{len(documents)} document{'s' * (len(documents) > 1)} only: held out are the last "
            f"{valid_fraction:.0%} of the text ({total - before:,} characters), by position"
        )
    for document in documents:
        text, length = document.text, len(document.text)
        if length <= before:
            yield False, document
        elif before <= 0:
            yield True, document
        else:
            cut = _blank_before(text, before)
            head, tail = text[:cut], text[cut:]
            if head.strip():
                yield False, Document(head, document.where)
            if tail.strip():
                yield True, Document(tail, f"{document.where} (from character {cut:,})")
        before -= length


def _blank_before(text: str, at: int) -> int:
    """A cut near `at`: after the last line end, else the last blank, within a hundredth of the text."""
    low = max(0, at - max(200, len(text) // 100))
    for mark in ("\n", " "):
        found = text.rfind(mark, low, at)
        if found > 0:
            return found + 1
    return at
