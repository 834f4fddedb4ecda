"""Documents to a training and a held-out side, streaming: a pure function of the texts and the share asked for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

from unmask.text.document import Document, number_of, part

FEW = 20
"""Below this many documents the held-out part is taken by position."""


def split(
    documents: Iterable[Document], valid_fraction: float, say: Callable[[str], None] | None = None
) -> Iterator[tuple[bool, Document]]:
    """(held out?, document), streaming: by a hash of the text, so that duplicates land on one side.

    With fewer than 20 documents, by position: the last `valid_fraction` of all characters, which is said
    aloud; a text that has a target is not cut. With more, at least one text is held out: the one whose hash is
    smallest waits to the end, and is held out if no other was.
    """
    stream = iter(documents)
    first = list(itertools.islice(stream, FEW))
    if len(first) < FEW:
        yield from _by_position(first, valid_fraction, say)
    else:
        yield from _by_hash(itertools.chain(first, stream), valid_fraction)


def by_hash(documents: Iterable[Document], valid_fraction: float) -> Iterator[tuple[bool, Document]]:
    """(held out?, document): by the hash of the text alone, whatever the other documents are."""
    return ((share(document.text) < valid_fraction, document) for document in documents)


def share(text: str, purpose: bytes = b"") -> float:
    """A number in [0, 1) that is a fixed, even function of the text."""
    return number_of(text, purpose) / 2**64


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
        elif before <= 0 or document.target is not None:
            yield True, document
        else:
            cut = _blank_before(text, before)
            if text[:cut].strip():
                yield False, part(document, 0, cut, document.where)
            if text[cut:].strip():
                yield True, part(document, cut, length, f"{document.where} (from character {cut:,})")
        before -= length


def _blank_before(text: str, at: int) -> int:
    """A cut near `at`: after the last line end, else the last blank, within a hundredth of the text."""
    low = max(0, at - max(200, len(text) // 100))
    for mark in ("\n", " "):
        found = text.rfind(mark, low, at)
        if found > 0:
            return found + 1
    return at
