"""One half of the held-out documents tunes, the other measures: what chose a learning rate says nothing of it later."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from unmask import keyed
from unmask.batch import ranges, starts
from unmask.data.marks import Bits, TargetText
from unmask.data.shards import Prepared, Shards, Source

Half = Literal["tuning", "measuring", "all"]
LEAST = 40
"""Held-out documents below which they are not halved: intervals need 20 (`evaluation.bpb.FEW`)."""


def halved(text: Prepared, half: Half) -> Prepared:
    """The text with one half of its held-out documents, by a keyed hash of their number."""
    if half == "all":
        return text
    order = np.argsort(keyed.row_keys(0, 0, np.arange(len(text.valid)), "half"), kind="stable")
    middle = len(order) // 2
    chosen = order[:middle] if half == "tuning" else order[middle:]
    return replace(text, valid=of_documents(text.valid, np.sort(chosen)))


def of_documents(text: Shards, which: np.ndarray) -> Shards:
    """Some documents (k,), ascending, and all that is known of them."""
    tokens, documents = _taken(text.tokens, text.documents, which)
    moved = documents[:-1] - np.asarray(text.documents)[which]  # what is added to an offset into each document
    target = text.target
    if target is not None:
        own, start = _taken(target.tokens, target.documents, which)
        target = TargetText(own, start, np.bincount(own, minlength=len(target.counts)))
    at = ranges(np.asarray(text.documents)[which], np.diff(documents))
    return Shards(
        tokens=tokens,
        documents=documents,
        bytes=np.asarray(text.bytes)[which],
        counts=np.bincount(tokens, minlength=len(text.counts)),
        sources=_sources(text.sources, which),
        word=_bits(text.word, at),
        sentence=_bits(text.sentence, at),
        spans=None if text.spans is None else _spans(text, which, moved),
        target=target,
    )


def _taken(tokens: np.ndarray, documents: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    first, length = np.asarray(documents)[which], np.diff(documents)[which]
    return np.asarray(tokens[ranges(first, length)]), starts(length)


def _bits(held: Bits | None, at: np.ndarray) -> Bits | None:
    return None if held is None else Bits(np.packbits(held[at], bitorder="little"), len(at))


def _sources(sources: tuple[Source, ...], which: np.ndarray) -> tuple[Source, ...]:
    found = []
    for source in sources:
        first, last = np.searchsorted(which, [source.first, source.first + source.documents])
        if last > first:
            found.append(Source(source.name, int(first), int(last - first)))
    return tuple(found)


def _spans(text: Shards, which: np.ndarray, moved: np.ndarray) -> np.ndarray:
    spans = np.asarray(text.spans)
    document = np.searchsorted(np.asarray(text.documents), spans[:, 0], "right") - 1
    place = np.minimum(np.searchsorted(which, document), max(len(which) - 1, 0))
    here = which[place] == document
    return np.asarray(spans[here] + moved[place[here]][:, None])
