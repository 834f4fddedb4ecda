"""Ids with the characters of the original text that each token covers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unmask.tokens.encode import Encoder
from unmask.tokens.structure import MARK


@dataclass(frozen=True, eq=False)
class Aligned:
    """n tokens of a text, in order. Token k covers the characters [begin[k], end[k]) of the text as it was given.

    A token that holds part of a character covers that character; one that stands for nothing in the text (a blank put
    in front) covers nothing. What the normaliser drops is covered by no token.
    """

    ids: np.ndarray  # (n,) int32
    begin: np.ndarray  # (n,) int64
    end: np.ndarray  # (n,) int64

    def __len__(self) -> int:
        return len(self.ids)


def by_characters(ids: np.ndarray) -> Aligned:
    """Every token is a character."""
    at = np.arange(len(ids), dtype=np.int64)
    return Aligned(ids, at, at + 1)


def by_bytes(ids: np.ndarray, sizes: np.ndarray, text: str) -> Aligned:
    """Token k stands for the next sizes[k] bytes (n,) of the text.

    >>> found = by_bytes(np.array([7, 8, 9], np.int32), np.array([2, 1, 1]), "aé!")
    >>> found.begin.tolist(), found.end.tolist()
    ([0, 1, 2], [2, 2, 3])
    """
    stop = np.cumsum(sizes)
    begin, last = stop - sizes, stop - 1
    if not text.isascii():
        of_byte = np.cumsum((np.frombuffer(text.encode(), np.uint8) & 0xC0) != 0x80) - 1
        begin, last = of_byte[begin], of_byte[last]
    return Aligned(ids, begin.astype(np.int64), (last + 1).astype(np.int64))


def by_library(encoder: Encoder, text: str, blank: np.ndarray) -> Aligned:
    """As the library says. blank: (size,) bool, tokens that stand for a blank and nothing else."""
    ids, begin, end = [], [], []
    strips = encoder.cuts is not None and encoder.inner is encoder.outer and encoder.bare is not encoder.outer
    for a, b, by in encoder.parts(text):
        encoding = by.encode(text[a:b], add_special_tokens=False)
        own = np.array(encoding.ids, np.int32)
        offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2) + a
        if strips and a and by is encoder.inner and own.size:  # its blank was dropped, and a blank put in front
            at = b - len(text[a:b].lstrip(" ")) - 1  # of several, the last
            offsets[0] = at, at + 1 if blank[own[0]] else offsets[0, 1]
        ids.append(own)
        begin.append(offsets[:, 0])
        end.append(offsets[:, 1])
    found = Aligned(np.concatenate(ids), np.concatenate(begin), np.concatenate(end))
    # The library gives a blank that was put in front the character behind it.
    for k in np.flatnonzero(blank[found.ids]):
        under = text[found.begin[k] : found.begin[k] + 1]
        if not under.isspace() and under != MARK:
            found.end[k] = found.begin[k]
    return found


def in_original(found: Aligned, text: str) -> Aligned:
    """Positions in a text whose surrogate pairs were joined for encoding, moved to the text as it was."""
    units = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    high = (units >= 0xD800) & (units < 0xDC00)
    low = (units >= 0xDC00) & (units < 0xE000)
    joined = np.append(high[:-1] & low[1:], False)  # places of the first half of a pair
    second = np.concatenate([[False], joined[:-1]])
    origin = np.append(np.flatnonzero(~second), len(units))
    return Aligned(found.ids, origin[found.begin], origin[found.end])
