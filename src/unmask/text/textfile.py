"""Bytes of one file to lines of text: encodings, byte-order marks, line ends, gzip, and what is no text.

Bytes are decoded in blocks of whole lines of about a megabyte, or of one line where that is longer: a line of
100 MB costs its bytes and its text. A byte-order mark decides the encoding; without one it is what the
settings say. Marks at the start of later lines (of files that were joined) are dropped too. "\\r\\n" becomes
"\\n", and so does "\\r" in a file whose beginning knows no other line end; any other "\\r" stays.
"""

from __future__ import annotations

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from encodings.aliases import aliases
from typing import IO

from unmask.errors import UserError, nearest
from unmask.text.document import Counts
from unmask.text.encodings import guess, without_mark
from unmask.text.files import File, reading
from unmask.text.position import Cursor, Position

CHUNK = 1 << 20
"""Bytes read at once."""

_MARKS = {  # longest first: UTF-32's little-endian mark begins with UTF-16's
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
    codecs.BOM_UTF8: "utf-8",
}
_MARK = re.compile("^\ufeff+", re.MULTILINE)


def lines(
    path: File, encoding: str, strict: bool, counts: Counts, cursor: Cursor | None = None
) -> Iterator[tuple[int, str]]:
    """(number from 1, line without its end) of a file, from the cursor on."""
    skip = 0 if cursor is None else cursor.at.row
    for number, block in blocks(path, encoding, strict, counts, cursor):
        if cursor is not None:
            begin, every = cursor.now, block.split("\n")
            for row, line in enumerate(every[skip:], skip):
                cursor.now = Position(begin.file, begin.offset, begin.line, row)
                yield number + row, line
            skip = max(0, skip - len(every))  # what was one block may be several, read from elsewhere
        elif "\n" in block:
            yield from enumerate(block.split("\n"), number)
        else:  # one long line is not copied
            yield number, block
        del block


def whole_text(path: File, encoding: str, strict: bool, counts: Counts) -> str:
    """All of a file's text, the last line end kept."""
    return "".join(text for _, text in blocks(path, encoding, strict, counts, whole=True))


def blocks(
    path: File, encoding: str, strict: bool, counts: Counts, cursor: Cursor | None = None, whole: bool = False
) -> Iterator[tuple[int, str]]:
    """(number of the first line, lines joined by "\\n") of a file; `whole`: everything at once, with its last end.

    cursor: blocks begin where it is (without its `row`), and `now` says where the one at hand does.
    """
    with reading(path):
        try:
            with path.open("rb") as plain, _unpacked(path, plain) as stream:
                yield from _Reader(path, plain, stream, encoding, strict, counts).blocks(whole, cursor)
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise UserError(f"{path} is no whole gzip file ({error}); unpack it, or copy it again") from error


def _unpacked(path: File, plain: IO[bytes]) -> io.BufferedReader:
    if path.suffix.lower() != ".gz":
        return io.BufferedReader(plain)  # type: ignore[type-var,arg-type]
    return io.BufferedReader(gzip.GzipFile(fileobj=plain, mode="rb"), 1 << 17)  # type: ignore[type-var,arg-type]


class _Reader:
    """One file on its way from bytes to text."""

    def __init__(
        self, path: File, plain: IO[bytes], stream: IO[bytes], encoding: str, strict: bool, counts: Counts
    ) -> None:
        self.path, self.plain, self.stream, self.strict, self.counts = path, plain, stream, strict, counts
        self.line, self.offset, self.seen, self.before = 1, 0, 0, counts.consumed
        self.buffer = bytearray()
        self._fill()
        _refuse_binary(path, self.buffer)
        mark = next((mark for mark in _MARKS if self.buffer.startswith(mark)), b"")
        self.codec = _MARKS[mark] if mark else _codec(encoding, bytes(self.buffer), path)
        counts.encodings[self.codec] = counts.encodings.get(self.codec, 0) + 1
        del self.buffer[: len(mark)]
        self.offset += len(mark)
        self.feed, self.back = "\n".encode(self.codec), "\r".encode(self.codec)
        old_mac = self._find(self.back) >= 0 and self._find(self.feed) < 0
        self.end = self.back if old_mac else self.feed
        """Bytes of a line end; "\\r" where the beginning has no "\\n" but has that (Mac OS 9)."""

    def blocks(self, whole: bool, cursor: Cursor | None) -> Iterator[tuple[int, str]]:
        more = self._go_to(cursor.at) if cursor is not None and cursor.at.offset else True
        while more:
            if not whole and (cut := self._find(self.end, self.seen)) >= 0:
                yield self._noted(cursor), self._take(cut + len(self.end))
            self.seen = len(self.buffer)
            more = self._fill()
        if self.buffer:
            yield self._noted(cursor), self._take(len(self.buffer), keep_end=whole)

    def _noted(self, cursor: Cursor | None) -> int:
        """The line that is to come; the cursor is set there."""
        if cursor is not None:
            cursor.now = Position(cursor.at.file, self.offset, self.line)
        return self.line

    def _go_to(self, at: Position) -> bool:
        """Pass over what lies before a position; a packed file, and one that cannot seek, is read up to there."""
        left = at.offset - self.offset
        if left > len(self.buffer):
            left -= len(self.buffer)
            self.buffer.clear()
            try:
                self.stream.seek(at.offset)
            except (OSError, ValueError):
                while left > 0 and (passed := len(self.stream.read(min(left, CHUNK)))):
                    left -= passed
        else:
            del self.buffer[:left]
        self.offset, self.line = at.offset, at.line
        return True

    def _fill(self) -> bool:
        chunk = self.stream.read(CHUNK)
        self.buffer += chunk
        if self.plain.seekable():  # a pipe does not tell
            self.counts.consumed = self.before + self.plain.tell()
        return bool(chunk)

    def _find(self, end: bytes, start: int = 0) -> int:
        """Where the last such line end stands in the buffer, or -1; wide encodings are searched in step."""
        width, at = len(end), len(self.buffer)
        start = max(0, start - width)
        while (at := self.buffer.rfind(end, start, at)) >= 0 and at % width:
            at += width - 1
        return at

    def _take(self, size: int, keep_end: bool = False) -> str:
        """The first `size` bytes as text; they leave the buffer."""
        shown = size if keep_end else self._without_end(size)
        try:
            with memoryview(self.buffer) as view, view[:shown] as raw:
                text = str(raw, self.codec)
        except UnicodeDecodeError as error:
            text = self._mended(bytes(self.buffer[:shown]), error)
        if "\0" in text:
            self._refuse_zeros(text)
        if self.end == self.back:
            text = text.replace("\r", "\n")
        elif "\r" in text:
            text = text.replace("\r\n", "\n")
        if "\ufeff" in text:
            text = _MARK.sub("", text)
        self.line += text.count("\n") + 1
        self.offset += size
        del self.buffer[:size]
        self.seen = 0
        return text

    def _without_end(self, size: int) -> int:
        """How many of the first `size` bytes stand before a line end there."""
        for end in (self.end,) if self.end == self.back else (self.feed, self.back):
            if size < len(end) or self.buffer[size - len(end) : size] != end:
                break
            size -= len(end)
        return size

    def _mended(self, raw: bytes, error: UnicodeDecodeError) -> str:
        """The text with U+FFFD for what is none, counted; strict: an error that says where."""
        fed = raw[: error.start].decode(self.codec, "ignore")
        line = self.line + fed.count("\r" if self.end == self.back else "\n")
        where = f"{self.path} line {line}, byte offset {self.offset + error.start}"
        if self.strict or not self.counts.first_invalid:
            looks_like = guess(raw) if self.codec == "utf-8" else ""
            if self.strict:
                advice = f"{looks_like} (its bytes look like that)" if looks_like else "NAME of its codec"
                raise UserError(
                    f"{where} is not {self.codec.upper()}: pass encoding={advice}, "
                    "or drop strict to have such bytes replaced and counted"
                ) from error
            self.counts.first_invalid, self.counts.looks_like = where, looks_like
        text = raw.decode(self.codec, "replace")
        left = raw.decode(self.codec, "ignore")
        if self.codec == "utf-8":
            self.counts.invalid += len(raw) - len(left.encode())
        else:
            self.counts.invalid += text.count("\ufffd") - left.count("\ufffd")
        return text

    def _refuse_zeros(self, text: str) -> None:
        line = self.line + text.count("\n", 0, text.index("\0"))
        wide = without_mark(bytes(self.buffer[:CHUNK]))
        if wide and wide != self.codec:
            raise UserError(
                f"{self.path} looks like {wide} without a byte-order mark: pass encoding={wide}, or convert it to UTF-8"
            )
        raise UserError(
            f"{self.path} is a binary file (a NUL byte in line {line}); a corpus is text, .jsonl (both also .gz) "
            "or .parquet"
        )


def _refuse_binary(path: File, start: bytearray) -> None:
    if start.startswith(b"%PDF"):
        raise UserError(f"{path} is a binary file, not text; take the text out of it first")
    if start.startswith(b"\x1f\x8b"):
        raise UserError(f"{path} is a binary file, not text; name it .gz to have it unpacked")
    if start.startswith(b"PAR1"):
        raise UserError(f"{path} is a binary file, not text; name it .parquet to have it read as a table")


def _codec(encoding: str, start: bytes, path: File) -> str:
    """The codec to read a file by, in Python's spelling: checked, or detected from the file's beginning."""
    if encoding == "detect":
        return without_mark(start) or _detected(start, path)
    try:
        name = codecs.lookup(encoding).name
        "\n".encode(name)  # codecs from text to text or bytes to bytes fail here
        if name in ("punycode", "idna"):  # of host names
            raise LookupError(name)
    except (LookupError, UnicodeError) as error:
        known = {alias.replace("_", "-") for pair in aliases.items() for alias in pair} | {"detect"}
        raise UserError(
            f"encoding={encoding} is no text encoding that Python knows, such as utf-8, cp1252 or gb18030"
            f"{nearest(encoding, known)}"
        ) from error
    if name in ("utf-16", "utf-32"):  # without a mark: the order that the zeros show, else that of nearly all machines
        wide = without_mark(start)
        return wide if wide.startswith(name) else f"{name}-le"
    return {"utf-8-sig": "utf-8"}.get(name, name)


def _detected(start: bytes, path: File) -> str:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        if name := guess(start):
            return name
        raise UserError(
            f"cannot tell the encoding of {path} from its beginning: pass encoding=NAME of its codec"
        ) from None
    return "utf-8"
