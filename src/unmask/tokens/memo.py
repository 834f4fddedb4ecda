"""A bounded memo from chunks of text to ids, read by whole arrays.

Text repeats its words. A window of some hundred thousand characters becomes an array of code points; `cuts` says where
chunks begin; every chunk gets a 64-bit hash from prefix sums, is found in a hash table, and is compared with what the
table holds character by character, so that a collision costs time, never an id. Only chunks that were never met are
encoded, each once.

    "the cat sat, the cat"   chunks    the | cat| sat|,| the| cat
                             entries   0    1    2   3  4   1         the first "the", without a blank, is another one

Memory is bounded: about `ENTRIES` chunks of at most `LONGEST` characters are kept, `CHARACTERS` in all (some 50 MB).
When the memo is full, the half that was met most often stays, and nothing that was met once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from unmask import keyed
from unmask.batch import ranges

ENTRIES = 1 << 19
LONGEST = 32
CHARACTERS = 1 << 22
"""Of all chunks that are kept, and of their ids."""
WINDOW = 1 << 18
"""Characters that are looked up at once."""
BETWEEN = "\n"
"""Stands between the texts of a window, so that none looks at the next one."""
_BASE = 0x9E3779B97F4A7C15
"""Of the hash, odd: sum of (point + 1) * base ** place, times base ** -begin, modulo 2 ** 64."""

Group = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Which chunks of a list (k,), their ids end to end, how many each has (k,)."""
Encode = Callable[[Sequence[str], np.ndarray], Iterable[Group]]
"""(chunks, does each begin a text? (n,) bool) → their ids."""


class Memo:
    """`memo(segments)`: ids of each (text, does it begin a document?).

    mask: code points → where a chunk may begin. apart: are the chunks that begin a text encoded otherwise?
    """

    def __init__(self, encode: Encode, mask: Callable[[np.ndarray], np.ndarray], apart: bool) -> None:
        self.encode, self.mask, self.apart = encode, mask, apart
        self.powers: np.ndarray = np.zeros(0, np.uint64)
        self.inverses: np.ndarray = np.zeros(0, np.uint64)
        self._clear()

    def _clear(self) -> None:
        room = ENTRIES + 2 * WINDOW  # a window adds fewer; what is not touched takes no memory
        self.slots = np.zeros(1 << (2 * room - 1).bit_length(), np.int32)  # entry + 1; 0 = none
        self.hash = np.zeros(room, np.uint64)
        self.first = np.zeros(room, bool)  # begins a text
        self.uses = np.zeros(room, np.int32)
        self.at, self.length = np.zeros(room, np.int32), np.zeros(room, np.int32)  # in `points`
        self.begin, self.size = np.zeros(room, np.int32), np.zeros(room, np.int32)  # in `ids`
        self.points, self.ids = _Pool(np.uint32), _Pool(np.int32)
        self.count = 0

    def __call__(self, segments: Sequence[tuple[str, bool]]) -> list[np.ndarray]:
        if self.count > ENTRIES or max(self.points.filled, self.ids.filled) > CHARACTERS:
            self._forget()
        try:
            return self._window(segments)
        except BaseException:
            self._clear()  # cut short, its parts may disagree
            raise

    def _window(self, segments: Sequence[tuple[str, bool]]) -> list[np.ndarray]:
        text = BETWEEN.join([*(own for own, _ in segments), ""])
        points = np.frombuffer(text.encode("utf-32-le"), "<u4")
        stop = np.cumsum([len(own) + 1 for own, _ in segments])
        start = np.append(0, stop[:-1])
        cut = self.mask(points)
        cut[start] = cut[stop - 1] = True
        begin = np.flatnonzero(cut)
        length = np.diff(begin, append=len(points))
        owner = np.searchsorted(stop, begin, "right")
        real = begin != stop[owner] - 1  # the others stand between texts
        begin, length, owner = begin[real], length[real], owner[real]
        first = np.zeros(len(begin), bool)
        if self.apart:
            first = np.array([opens for _, opens in segments], bool)[owner] & (begin == start[owner])
        where, sizes = self._ids(_Chunks(text, points, begin, length, first))
        ids = self.ids.data[ranges(where, sizes)]
        bounds = np.append(0, np.cumsum(sizes))[np.searchsorted(owner, np.arange(len(segments) + 1))]
        return [ids[a:b] for a, b in itertools.pairwise(bounds.tolist())]

    def _ids(self, chunks: _Chunks) -> tuple[np.ndarray, np.ndarray]:
        """Where the ids of each chunk lie in `ids`, and how many they are."""
        hashes = self._hash(chunks)
        short = np.flatnonzero(chunks.length <= LONGEST)
        entry = np.full(len(chunks.begin), -1, np.int64)
        entry[short] = self._find(hashes[short])
        new = short[entry[short] < 0]
        if new.size:
            _, once = np.unique(hashes[new], return_index=True)
            self._add(chunks, new[once], hashes)
            entry[new] = self._find(hashes[new])
        self._compare(chunks, entry)
        known = entry >= 0
        np.add.at(self.uses, entry[known], 1)
        where, sizes = self.begin[entry].astype(np.int64), self.size[entry].astype(np.int64)
        alone = np.flatnonzero(~known)  # too long to be kept, or of a hash that is taken
        if alone.size:
            at = self.ids.filled
            for which, ids, size in self.encode(chunks.texts(alone), chunks.first[alone]):
                where[alone[which]] = at + np.cumsum(size) - size
                sizes[alone[which]] = size
                self.ids.write(at, ids)
                at += len(ids)
        return where, sizes

    def _hash(self, chunks: _Chunks) -> np.ndarray:
        """(n,) uint64."""
        n = len(chunks.points)
        if n > len(self.powers):
            size = max(n, WINDOW + 1)
            self.powers = np.cumprod(np.full(size, _BASE, np.uint64))
            self.inverses = np.cumprod(np.full(size, pow(_BASE, -1, 1 << 64), np.uint64))
        terms = (chunks.points.astype(np.uint64) + np.uint64(1)) * self.powers[:n]
        sums = np.append(np.uint64(0), np.cumsum(terms, dtype=np.uint64))
        own = (sums[chunks.begin + chunks.length] - sums[chunks.begin]) * self.inverses[chunks.begin]
        return keyed.mix(own ^ chunks.first.astype(np.uint64))

    def _compare(self, chunks: _Chunks, entry: np.ndarray) -> None:
        """Entries whose content is not the chunk's become -1."""
        known = np.flatnonzero(entry >= 0)
        found = entry[known]
        same = (self.length[found] == chunks.length[known]) & (self.first[found] == chunks.first[known])
        entry[known[~same]] = -1
        known, found = known[same], found[same]
        size = chunks.length[known]
        differ = chunks.points[ranges(chunks.begin[known], size)] != self.points.data[ranges(self.at[found], size)]
        if differ.any():
            entry[known[np.unique(np.searchsorted(np.cumsum(size), np.flatnonzero(differ), "right"))]] = -1

    def _add(self, chunks: _Chunks, which: np.ndarray, hashes: np.ndarray) -> None:
        """Encode chunks of different hashes and keep them."""
        number = self.count + np.arange(len(which))
        self.hash[number], self.first[number] = hashes[which], chunks.first[which]
        self.length[number] = size = chunks.length[which]
        self.at[number] = self.points.filled + np.cumsum(size) - size
        self.points.keep(chunks.points[ranges(chunks.begin[which], size)])
        for own, ids, sizes in self.encode(chunks.texts(which), chunks.first[which]):
            self.begin[number[own]] = self.ids.filled + np.cumsum(sizes) - sizes
            self.size[number[own]] = sizes
            self.ids.keep(ids)
        self.count += len(which)
        self._place(number)

    # ------------------------------------------------------------ the table: linear probing

    def _find(self, hashes: np.ndarray) -> np.ndarray:
        """(n,) int64 entries, -1 where there is none."""
        last = len(self.slots) - 1
        slot = (hashes & np.uint64(last)).astype(np.int64)
        entry = self.slots[slot].astype(np.int64) - 1
        todo = np.flatnonzero((entry >= 0) & (self.hash[entry] != hashes))
        while todo.size:
            slot[todo] = (slot[todo] + 1) & last
            entry[todo] = self.slots[slot[todo]] - 1
            todo = todo[(entry[todo] >= 0) & (self.hash[entry[todo]] != hashes[todo])]
        return entry

    def _place(self, entries: np.ndarray) -> None:
        """Put entries of different hashes into free slots."""
        last = len(self.slots) - 1
        slot = (self.hash[entries] & np.uint64(last)).astype(np.int64)
        while entries.size:
            free = self.slots[slot] == 0
            self.slots[slot[free]] = entries[free] + 1
            lost = self.slots[slot] != entries + 1  # taken, or another one came later
            entries, slot = entries[lost], (slot[lost] + 1) & last

    def _forget(self) -> None:
        """Keep the chunks that were met most often, at most half, and none that was met once."""
        old, uses = dict(vars(self)), self.uses[: self.count]
        kept = np.flatnonzero(uses > 1)
        kept = kept[np.argsort(-uses[kept], kind="stable")][: ENTRIES // 2]
        held = np.cumsum(np.maximum(self.length[kept], self.size[kept]))
        kept = np.sort(kept[held <= CHARACTERS // 2])
        self._clear()
        self.count = n = len(kept)
        for name in ("hash", "first", "length", "size"):
            getattr(self, name)[:n] = old[name][kept]
        self.uses[:n] = uses[kept] // 2
        self.at[:n] = np.cumsum(self.length[:n]) - self.length[:n]
        self.begin[:n] = np.cumsum(self.size[:n]) - self.size[:n]
        self.points.keep(old["points"].data[ranges(old["at"][kept], self.length[:n])])
        self.ids.keep(old["ids"].data[ranges(old["begin"][kept], self.size[:n])])
        self._place(np.arange(n))


class _Chunks:
    """Chunks of a window: where they begin (n,), their lengths (n,), and which begin a text (n,)."""

    def __init__(self, text: str, points: np.ndarray, begin: np.ndarray, length: np.ndarray, first: np.ndarray) -> None:
        self.text, self.points, self.begin, self.length, self.first = text, points, begin, length, first

    def texts(self, which: np.ndarray) -> list[str]:
        ends = self.begin[which] + self.length[which]
        return [self.text[a:b] for a, b in zip(self.begin[which].tolist(), ends.tolist(), strict=True)]


class _Pool:
    """An array that grows; what is written behind `filled` is overwritten by what is kept next."""

    def __init__(self, dtype: type) -> None:
        self.data: np.ndarray = np.zeros(4096, dtype)
        self.filled = 0

    def write(self, at: int, values: np.ndarray) -> None:
        stop = at + len(values)
        if stop > len(self.data):
            more = max(stop, 2 * len(self.data)) - len(self.data)
            self.data = np.concatenate([self.data, np.zeros(more, self.data.dtype)])
        self.data[at:stop] = values

    def keep(self, values: np.ndarray) -> None:
        self.write(self.filled, values)
        self.filled += len(values)
