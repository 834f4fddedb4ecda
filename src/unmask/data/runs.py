"""Cuts inside runs of letters, each confirmed from the vocabulary: for texts in which nothing else parts words.

BPE. A sequence of tokens is the encoding of its text exactly if every two neighbours are the encoding of theirs: merges
on the two sides of a boundary know nothing of each other until one joins across it, and the first that would do so
joins parts of the two tokens at the boundary. So a prefix of an encoding is the encoding of its text, and two texts
may be encoded apart if the last token of one and the first of the other stay as they are when encoded together.

Unigram. No path can pass a place that no piece of the text lies across.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import NamedTuple

import tokenizers

from unmask.data.cuts import soft_places

TRIES = 64
"""Places that are tried in a window before it is made longer."""
_NEAR = 256
"""Characters behind a place that its first trial looks at."""


class Ends(NamedTuple):
    """The first or last whole characters of an encoding that are whole tokens: their text and ids."""

    text: str
    ids: list[int]


def bpe_cuts(text: str, by: tokenizers.Tokenizer, bare: tokenizers.Tokenizer, size: int) -> list[int]:
    """Ends of pieces of about `size` characters; the first is encoded by `by`, the others by `bare`."""
    begins, lasts, length = [0], [Ends("", [])], size
    looked: list[int] = []  # how far was looked ahead for each cut
    while True:
        begin = begins[-1]
        while begin + length < len(text) and not soft_places(text, begin + length - 1):
            length *= 2
        window = text[begin : begin + length]
        encoded = (bare if begin else by).encode(window, add_special_tokens=False)
        if begin and not _apart(bare, lasts[-1], _head(window, encoded)):
            begins, lasts, length = begins[:-1], lasts[:-1], 2 * looked.pop()  # a longer look changed the first token
            continue
        if begin + length >= len(text):
            return [*begins[1:], len(text)]
        found = _place(window, encoded, bare)
        if found is None:
            length *= 2
            continue
        end, last = found
        begins.append(begin + end)
        lasts.append(last)
        looked.append(length)
        length = size


def spanned(text: str, at: int, known: Collection[str], longest: int, bare: tokenizers.Tokenizer) -> bool:
    """May a piece of `known` lie across `at`? (True too where the normaliser or an unknown character blurs it.)"""
    low, high = max(at - longest, 0), min(at + longest, len(text))
    around = text[low:high]
    if bare.normalizer is not None and bare.normalizer.normalize_str(around) != around:
        return True
    if text[at - 1] not in known and text[at] not in known:  # unknown neighbours become one token
        return True
    return any(text[a:b] in known for a in range(low, at) for b in range(at + 1, min(a + longest, len(text)) + 1))


def _place(window: str, encoded: tokenizers.Encoding, bare: tokenizers.Tokenizer) -> tuple[int, Ends] | None:
    """The last place between letters, before the end of the window, where its encoding may be cut; what ends there."""
    clean = _clean(encoded)
    places = [p for p in soft_places(window, len(window) - 1) if p in clean]
    for place in places[:TRIES]:
        low = max((p for p in clean if p < place), default=0)
        last = Ends(window[low:place], encoded.ids[clean.get(low, 0) : clean[place]])
        near = window[place : place + _NEAR]
        if _apart(bare, last, _head(near, bare.encode(near, add_special_tokens=False))):
            return place, last
    return None


def _clean(encoded: tokenizers.Encoding) -> dict[int, int]:
    """Character → token, where both begin (a token may hold a part of a character)."""
    offsets = encoded.offsets
    return {a: k for k, ((_, b), (a, _)) in enumerate(itertools.pairwise(offsets), 1) if a == b}


def _head(text: str, encoded: tokenizers.Encoding) -> Ends:
    clean = _clean(encoded)
    end = min(clean, default=len(text))
    return Ends(text[:end], encoded.ids[: clean.get(end)])


def _apart(bare: tokenizers.Tokenizer, left: Ends, right: Ends) -> bool:
    """Do they stay the tokens they are when their texts are encoded together?"""
    found: list[int] = bare.encode(left.text + right.text, add_special_tokens=False).ids
    return found == left.ids + right.ids
