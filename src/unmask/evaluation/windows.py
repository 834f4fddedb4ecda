"""Cutting texts that are longer than a model's room: each token is scored in exactly one window.

    side by side   pieces of at most `room` tokens, each by itself
    behind         rolling: a window's scored tokens come last, after tokens that precede them
    between        rolling: they stand in its middle, with tokens on both sides

A text of 12 tokens, room 6, stride 2 (· is read, # is scored):

    side by side   ######        behind   ######           between   ####··
                         ######             ····##                     ··##··
                                              ····##                     ··##··
                                                ····##                     ··####

Legend: D texts whose tokens lie end to end, N tokens, W windows.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from unmask.batch import Rows, ranges, starts
from unmask.evaluation.plans import Query


@dataclass(frozen=True)
class Windows:
    """W windows [begin, begin + length) of the token array, in the order of what they score.

    Of a window the tokens [skip, skip + scored) are scored, counted from its first.
    """

    text: np.ndarray
    begin: np.ndarray
    length: np.ndarray
    skip: np.ndarray
    scored: np.ndarray
    ends: np.ndarray  # bool: the last window of its text

    def __len__(self) -> int:
        return len(self.begin)

    def take(self, which: np.ndarray | slice) -> Windows:
        return Windows(**{f.name: getattr(self, f.name)[which] for f in fields(self)})


def side_by_side(start: np.ndarray, room: np.ndarray | int, opening: int = 0) -> Windows:
    """Texts, given by their (D + 1,) offsets, in full pieces and a rest; an empty text has one, empty piece.

    room     (D,) or for all
    opening  1: a token is scored only after another one, so a text's first never is, and a piece after the first
             begins with the last token of the one before
    """
    room = np.broadcast_to(room, len(start) - 1)
    return _rolling(start, room, room - opening, np.full(len(room), opening), opening)


def behind(start: np.ndarray, room: int, stride: int, source: int | None = None, opening: int = 0) -> Windows:
    """Windows that score `stride` tokens after what precedes them; the first scores all it holds.

    source   what precedes stands in a stack of its own, with room for so many tokens; None = in the same one, and
             a window is as long as `room` from the second on
    """
    each = np.ones(len(start) - 1, np.int64)
    return _rolling(start, room * each, stride * each, None if source is None else source * each, opening)


def between(start: np.ndarray, room: int, stride: int) -> Windows:
    """Windows that score `stride` tokens with at least (room − stride) // 2 on either side, where the text has them."""
    text, nth, size, last = _numbered(start, np.full(len(start) - 1, room), np.full(len(start) - 1, stride))
    begin = np.clip(size - room, 0, nth * stride)
    margin = (room - stride) // 2
    first = np.where(nth == 0, 0, nth * stride + margin)
    end = np.where(last, size, (nth + 1) * stride + margin)
    return Windows(text, start[text] + begin, np.minimum(room, size), first - begin, end - first, last)


def _rolling(
    start: np.ndarray, room: np.ndarray, stride: np.ndarray, before: np.ndarray | None, opening: int
) -> Windows:
    """`before` (D,): how many tokens at most precede the scored ones; None = as many as fill the room."""
    text, nth, size, last = _numbered(start, room, stride)
    end = np.minimum(size, room[text] + nth * stride[text])
    first = np.where(nth == 0, np.minimum(opening, size), room[text] + (nth - 1) * stride[text])
    skip = np.minimum(first, room[text] - (end - first) if before is None else before[text])
    return Windows(text, start[text] + first - skip, end - first + skip, skip, end - first, last)


def _numbered(start: np.ndarray, room: np.ndarray, stride: np.ndarray) -> tuple[np.ndarray, ...]:
    """Of each window: its text, its number there, the text's size, and whether it is the last."""
    size = np.diff(start)
    count = 1 + np.maximum(-(-(size - room) // stride), 0)
    text = np.repeat(np.arange(len(size)), count)
    nth = np.arange(len(text)) - np.repeat(np.cumsum(count) - count, count)
    return text, nth, size[text], nth == count[text] - 1


def read(
    tokens: np.ndarray, windows: Windows, lead: tuple[np.ndarray, np.ndarray] | None = None
) -> tuple[Query, np.ndarray]:
    """The query of some windows, and where (n,) each of its tokens stands in the token array.

    lead   (W,) beginnings and lengths of a context that is put in front of each window

    Everything before a window's scored tokens is `given`: a layout with a source shows it as such.
    """
    pieces = [(windows.begin, windows.length)] if lead is None else [lead, (windows.begin, windows.length)]
    begin, length = (np.stack(column, 1) for column in zip(*pieces, strict=True))
    at = ranges(begin.reshape(-1), length.reshape(-1))
    start, given = starts(length.sum(1)), windows.skip + (0 if lead is None else lead[1])
    r = len(windows)
    rows = Rows(
        tokens=np.asarray(tokens[at]).astype(np.int32),
        start=start,
        key=np.zeros(r, np.uint64),
        index=np.arange(r),
        fixed=np.zeros(len(at), bool),
        ends=windows.ends,
    )
    place, lengths = rows.place, rows.lengths
    asked = (place >= np.repeat(given, lengths)) & (place < np.repeat(given + windows.scored, lengths))
    return Query(rows, given, asked), at
