"""A bounded memo from chunks of text to ids, read by whole arrays.

A text is split at blanks (`str.split`), every piece is looked up once, and ids are gathered for a million characters
at a time:

    "the cat sat, the cat"   pieces   the | cat | sat, | the | cat      each but the first has a blank in front
                             entries   0     1     2      3     1       the first, without one, is another entry

Where a blank begins no chunk ("a  b"), the pieces on its two sides are joined and looked up as one. The memo keeps at
most about `ENTRIES` chunks of at most `LONGEST` characters (some 60 MB); when it is full, the half that was met most
often stays, and nothing that was met once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import numpy as np

ENTRIES = 1 << 18
LONGEST = 64
WINDOW = 1 << 20
"""Characters that are looked up at once."""
FIRST = "\ufdd2"
"""Stands before the key of a chunk that begins a text and has no blank (a noncharacter, which no text should hold)."""
_GLUED, _AHEAD, _WHITE, _FIRST = 1, 2, 4, 8
"""Flags of a piece: the blank behind it begins no chunk; only if white space follows that blank; the piece begins
with white space or is empty; it begins a text."""


class _Index(dict[str, int]):
    """Chunk → entry. What was never met gets the next number; what is too long is numbered, but not kept."""

    def __init__(self) -> None:
        super().__init__()
        self.keys_: list[str] = []

    def __missing__(self, key: str) -> int:
        entry = len(self.keys_)
        self.keys_.append(key)
        if len(key) <= LONGEST:
            self[key] = entry
        return entry


class Memo:
    """`memo(segments)`: ids of each (text, does it begin a document?); the others begin with a blank.

    glues: pieces → of each, begins the blank behind it no chunk? ahead: only if white space follows that blank.
    encode: keys → (which of them, their ids end to end, how many each has), by groups; a key is a chunk without its
    blank, or `FIRST` and a chunk without one.
    """

    def __init__(
        self,
        glues: Callable[[Sequence[str]], Sequence[bool]],
        ahead: bool,
        encode: Callable[[Sequence[str]], Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]],
    ) -> None:
        self.glues, self.ahead, self.encode = glues, ahead, encode
        self._clear()

    def _clear(self) -> None:
        self.index = _Index()
        self.flags = np.zeros(1024, np.uint8)
        self.uses = np.zeros(1024, np.int64)
        self.begin = np.zeros(1024, np.int64)  # into `ids`
        self.size = np.full(1024, -1, np.int32)  # -1: not encoded
        self.ids = np.zeros(4096, np.int32)
        self.noted = self.filled = 0  # entries with flags; ids that are kept

    def __call__(self, segments: Sequence[tuple[str, bool]]) -> list[np.ndarray]:
        if self.noted > ENTRIES:
            self._forget()
        try:
            return self._window(segments)
        except BaseException:
            self._clear()  # cut short, its parts may disagree
            raise

    def _window(self, segments: Sequence[tuple[str, bool]]) -> list[np.ndarray]:
        pieces: list[str] = []
        ends: list[int] = []
        for text, first in segments:
            own = text.split(" ")
            if first:
                own[0] = FIRST + own[0]
            else:
                del own[0]
            pieces += own
            ends.append(len(pieces))
        begun = self.noted
        entry = self._find(pieces)
        entry, kept = self._glue(pieces, entry)
        self._encode(entry)
        sizes = self.size[entry].astype(np.int64)
        stops = np.cumsum(sizes)
        ids = self.ids[np.arange(stops[-1] if stops.size else 0) + np.repeat(self.begin[entry] - stops + sizes, sizes)]
        count = len(self.index.keys_)
        self.uses[:count] += np.bincount(entry, minlength=count)
        for i in range(begun, count):
            if len(self.index.keys_[i]) > LONGEST:
                self.index.keys_[i] = ""  # it is not kept
        last = np.searchsorted(kept, ends) - 1  # the last chunk of each segment
        bounds = [0, *np.append(0, stops)[last + 1].tolist()]
        return [ids[a:b] for a, b in itertools.pairwise(bounds)]

    def _find(self, pieces: Sequence[str]) -> np.ndarray:
        """(n,) int64 entries; new ones get their flags."""
        entry = np.fromiter(map(self.index.__getitem__, pieces), np.int64, len(pieces))
        keys = self.index.keys_
        if len(keys) > len(self.flags):
            more = max(len(keys), 2 * len(self.flags)) - len(self.flags)
            self.flags, self.uses, self.begin = (
                np.concatenate([a, np.zeros(more, a.dtype)]) for a in (self.flags, self.uses, self.begin)
            )
            self.size = np.concatenate([self.size, np.full(more, -1, np.int32)])
        self.flags[self.noted : len(keys)] = self._flags(keys[self.noted :])
        self.noted = len(keys)
        return entry

    def _flags(self, keys: Sequence[str]) -> np.ndarray:
        """(n,) uint8."""
        first = np.array([key[:1] == FIRST for key in keys], bool)
        pieces = [key[1:] if key[:1] == FIRST else key for key in keys] if first.any() else keys
        glued = np.array(self.glues(pieces), bool)
        white = np.array([not piece or piece[0].isspace() for piece in pieces], bool)
        flags = glued * np.uint8(_AHEAD if self.ahead else _GLUED) | white * np.uint8(_WHITE) | first * np.uint8(_FIRST)
        flags[[key == FIRST for key in keys]] = _GLUED | _FIRST  # nothing stands before the blank that begins the text
        return flags

    def _glue(self, pieces: list[str], entry: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Join pieces where a blank begins no chunk. → (entries, the first piece of each)."""
        flags = self.flags[entry]
        before, after = flags[:-1], flags[1:]
        joins = (before & _GLUED > 0) | ((before & _AHEAD > 0) & (after & _WHITE > 0))
        joins &= after & _FIRST == 0
        if not joins.any():
            return entry, np.arange(len(entry))
        inside = np.concatenate([[False], joins])
        kept = np.flatnonzero(~inside)
        runs = kept[np.append(inside[1:], False)[kept]]
        stops = np.append(kept, len(entry))[np.searchsorted(kept, runs) + 1]
        joined = [" ".join(pieces[a:b]) for a, b in zip(runs.tolist(), stops.tolist(), strict=True)]
        entry[runs] = self._find(joined)
        return entry[kept], kept

    def _encode(self, entry: np.ndarray) -> None:
        """Give ids to the entries that have none; those of long chunks last, where the next window overwrites them."""
        new = np.unique(entry[self.size[entry] < 0])
        keys = [self.index.keys_[i] for i in new.tolist()]
        long = np.array([len(key) > LONGEST for key in keys], bool)
        self.filled = stop = self._write(new[~long], [key for key in keys if len(key) <= LONGEST], self.filled)
        self._write(new[long], [key for key in keys if len(key) > LONGEST], stop)

    def _write(self, entry: np.ndarray, keys: Sequence[str], at: int) -> int:
        """Put the ids of the keys into `ids` from `at` on; where they end."""
        for which, ids, sizes in self.encode(keys) if len(keys) else ():
            stop = at + len(ids)
            if stop > len(self.ids):
                more = max(stop, 2 * len(self.ids)) - len(self.ids)
                self.ids = np.concatenate([self.ids, np.zeros(more, np.int32)])
            self.ids[at:stop] = ids
            self.size[entry[which]] = sizes
            self.begin[entry[which]] = at + np.cumsum(sizes) - sizes
            at = stop
        return at

    def _forget(self) -> None:
        """Keep the chunks that were met most often, at most half, and none that was met once."""
        old = self.index
        met = self.uses[: self.noted]
        stored = np.fromiter(old.values(), np.int64, len(old))
        stored = stored[(self.size[stored] >= 0) & (met[stored] > 1)]
        stored = np.sort(stored[np.argsort(-met[stored], kind="stable")][: ENTRIES // 2])
        flags, uses, size, begin, ids = self.flags, self.uses, self.size, self.begin, self.ids
        self._clear()
        for i in stored.tolist():
            self.index[old.keys_[i]]  # numbers it
        count = len(stored)
        room = max(count, 1024)
        self.flags, self.uses, self.begin = np.zeros(room, np.uint8), np.zeros(room, np.int64), np.zeros(room, np.int64)
        self.size = np.full(room, -1, np.int32)
        sizes = size[stored].astype(np.int64)
        stops = np.cumsum(sizes)
        self.flags[:count], self.uses[:count], self.size[:count] = flags[stored], uses[stored] // 2, sizes
        self.begin[:count] = stops - sizes
        self.ids = ids[np.arange(stops[-1] if count else 0) + np.repeat(begin[stored] - stops + sizes, sizes)]
        self.noted, self.filled = count, len(self.ids)
