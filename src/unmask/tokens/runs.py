"""Cuts inside runs of letters, each confirmed from the vocabulary: for texts in which nothing else parts words.

BPE. A sequence of tokens is the encoding of its text exactly if every two neighbours are the encoding of theirs: merges
on the two sides of a boundary know nothing of each other until one joins across it, and the first that would do so
joins parts of the two tokens at the boundary. So a prefix of an encoding is the encoding of its text, and two texts
may be encoded apart if the last token of one and the first of the other stay as they are when encoded together.

Unigram. No path can pass a place that no piece of the text lies across.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np
import tokenizers

from unmask.tokens.cuts import soft_places

TRIES = 64
"""Places that are tried in a window before it is made longer."""
_NEAR = 256
"""Characters behind a place that its first trial looks at."""


class Placed(NamedTuple):
    """An encoding, and where its tokens begin and end with whole characters: `at` (k,) and the token number there."""

    ids: np.ndarray
    at: np.ndarray  # ascending; not 0, and not the end of the text
    token: np.ndarray


class Ends(NamedTuple):
    """The first or last characters of an encoding that are whole tokens."""

    text: str
    ids: list[int]


Place = Callable[[str], Placed]


def bpe_pieces(text: str, first: Place, other: Place, size: int) -> list[tuple[int, np.ndarray]]:
    """(end, ids) of pieces of about `size` characters; the first is encoded by `first`, those behind it by `other`."""
    begins, lasts, length = [0], [Ends("", [])], size
    looked: list[int] = []  # how far was looked ahead for each cut
    pieces: list[tuple[int, np.ndarray]] = []
    while True:
        begin = begins[-1]
        while begin + length < len(text) and not soft_places(text, begin + length - 1):
            length *= 2
        window = text[begin : begin + length]
        placed = (other if begin else first)(window)
        if begin and not _apart(other, lasts[-1], _head(window, placed)):  # a longer look changed the first token
            length = 2 * looked.pop()
            del begins[-1], lasts[-1], pieces[-1]
            continue
        if begin + length >= len(text):
            return [*pieces, (len(text), placed.ids)]
        found = _place(window, placed, other)
        if found is None:
            length *= 2
            continue
        end, token, last = found
        begins.append(begin + end)
        lasts.append(last)
        looked.append(length)
        pieces.append((begin + end, placed.ids[:token]))
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


def placed_by_bytes(text: str, ids: np.ndarray, sizes: np.ndarray) -> Placed:
    """Tokens that stand for sizes (n,) bytes of the text each.

    >>> found = placed_by_bytes("aé!", np.array([7, 8, 9, 9]), np.array([1, 1, 1, 1]))
    >>> found.at.tolist(), found.token.tolist()
    ([1, 2], [1, 3])
    """
    stop = np.cumsum(sizes)[:-1]
    token = np.arange(1, len(ids))
    if not text.isascii():
        begins = (np.frombuffer(text.encode(), np.uint8) & 0xC0) != 0x80
        whole = begins[stop]
        token, stop = token[whole], np.cumsum(begins)[stop[whole]] - 1
    return Placed(ids, stop, token)


def placed_by_library(text: str, by: tokenizers.Tokenizer) -> Placed:
    encoding = by.encode(text, add_special_tokens=False)
    offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    token = np.flatnonzero(offsets[:-1, 1] == offsets[1:, 0]) + 1
    return Placed(np.array(encoding.ids, np.int32), offsets[token, 0], token)


def _place(window: str, placed: Placed, other: Place) -> tuple[int, int, Ends] | None:
    """The last place between letters, before the end of the window, where its encoding may be cut; the token that
    begins there; and what ends there."""
    tries = 0
    for place in soft_places(window, len(window) - 1):
        k = int(np.searchsorted(placed.at, place))
        if k == len(placed.at) or placed.at[k] != place:
            continue
        low, before = (int(placed.at[k - 1]), int(placed.token[k - 1])) if k else (0, 0)
        token = int(placed.token[k])
        last = Ends(window[low:place], placed.ids[before:token].tolist())
        near = window[place : place + _NEAR]
        if _apart(other, last, _head(near, other(near))):
            return place, token, last
        tries += 1
        if tries == TRIES:
            return None
    return None


def _head(text: str, placed: Placed) -> Ends:
    if not len(placed.at):
        return Ends(text, placed.ids.tolist())
    return Ends(text[: int(placed.at[0])], placed.ids[: int(placed.token[0])].tolist())


def _apart(other: Place, left: Ends, right: Ends) -> bool:
    """Do they stay the tokens they are when their texts are encoded together?"""
    found: list[int] = other(left.text + right.text).ids.tolist()
    return found == left.ids + right.ids
