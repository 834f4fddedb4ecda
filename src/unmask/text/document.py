"""A document, what reading counts, and what happens to marked characters when text is taken out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

LONG = 100_000_000
"""Bytes of a document from which on a user is told that it is held whole."""


@dataclass(frozen=True)
class Document:
    text: str
    where: str
    """file:line, or the file."""
    words: np.ndarray | None = field(default=None, compare=False)
    """(W,) int64 characters where words start, ascending, if the source says so (words=blanks or jieba)."""
    spans: np.ndarray | None = field(default=None, compare=False)
    """(S, 2) int64 [begin, end) characters of annotated spans, ascending and apart, if the source has any."""
    target: str | None = None
    """What is to be written when the text is read, if the source says so; never empty. Such a text stays whole."""


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
    """What was no text and became U+FFFD: bytes of UTF-8 files, sequences of other encodings."""
    targets: int = 0
    """Documents that have a target."""
    target_bytes: int = 0
    """UTF-8 bytes of the targets."""
    no_target: int = 0
    """Documents whose target is null or white space alone, skipped."""
    filtered: dict[str, int] = field(default_factory=dict)
    """Reason → documents (of "duplicate lines": lines) that `filter` dropped."""
    encodings: dict[str, int] = field(default_factory=dict, compare=False)
    """Encoding → files read with it."""
    first_invalid: str = field(default="", compare=False)
    """Where the first of `invalid` stands: file, line and byte offset."""
    looks_like: str = field(default="", compare=False)
    """The encoding that the first invalid bytes look like, or ""."""
    consumed: int = field(default=0, compare=False)
    """Bytes of files behind the reader, packed as they lie on disk: for a progress bar."""

    longest: int = field(default=0, compare=False)
    """UTF-8 bytes of the longest document."""
    parted: int = field(default=0, compare=False)
    """Plain text files too large to be one document."""

    def drop(self, reason: str, number: int = 1) -> None:
        self.filtered[reason] = self.filtered.get(reason, 0) + number

    def notes(self) -> list[str]:
        """What a user should be told once, a sentence each."""
        notes = []
        if self.invalid:
            as_what = f"; the bytes look like {self.looks_like}: corpus.encoding={self.looks_like}"
            notes.append(
                f"{self.invalid:,} invalid bytes became U+FFFD (corpus.strict refuses them), the first in "
                f"{self.first_invalid}{as_what if self.looks_like else ''}"
            )
        if set(self.encodings) - {"utf-8"}:
            each = (f"{name} ({n:,} file{'s' * (n > 1)})" for name, n in sorted(self.encodings.items()))
            notes.append(f"encodings of the files: {', '.join(each)}")
        if self.parted:
            notes.append(
                f"{self.parted} plain text file{'s are' if self.parted > 1 else ' is'} beyond 64 MB and read as "
                "documents of about 16 MB (document=file keeps a file whole; blank_line and line part it by its lines)"
            )
        if self.longest > LONG:
            notes.append(
                f"the longest document has {self.longest:,} bytes and is held in memory whole, at one to four bytes a "
                "character: document=blank_line or line parts a file"
            )
        if self.no_target:
            notes.append(
                f"{self.no_target:,} documents are left out: their target is null or white space alone"
                if self.no_target > 1
                else "one document is left out: its target is null or white space alone"
            )
        if self.filtered:
            each = (f"{n:,} {reason}" for reason, n in sorted(self.filtered.items()))
            notes.append(f"filters dropped {', '.join(each)}")
        return notes


def without(document: Document, pieces: Sequence[tuple[int, int]] | np.ndarray) -> Document:
    """The document with characters [begin, end) of each piece taken out; pieces are ascending and apart.

    Words and spans move along. A word that starts inside a piece starts at what follows it; a span loses
    the characters taken out, and with all of them itself.

    >>> d = Document("a bc d", "", words=np.array([0, 2, 5]), spans=np.array([[2, 6]]))
    >>> shorter = without(d, [(1, 2), (4, 5)])
    >>> shorter.text, shorter.words.tolist(), shorter.spans.tolist()
    ('abcd', [0, 1, 3], [[1, 4]])
    """
    cuts = np.asarray(pieces, np.int64).reshape(-1, 2)
    if not len(cuts):
        return document
    text = document.text
    kept = [text[a:b] for a, b in zip([0, *cuts[:, 1].tolist()], [*cuts[:, 0].tolist(), len(text)], strict=True)]
    words, spans = document.words, document.spans
    if words is not None:
        words = np.unique(moved(words, cuts))
        words = words[words < sum(map(len, kept))]
    if spans is not None:
        spans = moved(spans, cuts)
        spans = spans[spans[:, 0] < spans[:, 1]]
    return replace(document, text="".join(kept), words=words, spans=spans)


def part(document: Document, begin: int, end: int, where: str) -> Document:
    """Characters [begin, end) as a document of its own, with the words and spans inside it (a span is cut to it)."""
    words, spans = document.words, document.spans
    if words is not None:
        words = words[(words >= begin) & (words < end)] - begin
    if spans is not None:
        spans = np.clip(spans, begin, end) - begin
        spans = spans[spans[:, 0] < spans[:, 1]]
    return Document(document.text[begin:end], where, words, spans)


def moved(places: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """Where characters stand after the (C, 2) [begin, end) cuts are taken out; inside a cut: where it was."""
    before = np.searchsorted(cuts[:, 0], places, side="right") - 1  # the last cut that begins at or before the place
    ends = np.concatenate([[0], np.cumsum(cuts[:, 1] - cuts[:, 0])])  # characters taken out by the first k cuts
    inside = np.where(before >= 0, np.maximum(cuts[before, 1] - places, 0), 0)
    return places - (ends[before + 1] - inside)


def well_formed(text: str) -> str:
    """The text with surrogates (JSON's "\\ud800") joined to characters, or replaced where they stand alone."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def number_of(text: str, purpose: bytes = b"") -> int:
    """A fixed, even 64-bit function of a text: two texts of n share one with a chance of n² / 2⁶⁵."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, person=purpose).digest(), "little")


def utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
