"""Byte-pair encoding: which neighbours to merge, learnt from counted words (Sennrich et al. 2016, algorithm 1).

The distinct words lie end to end in one array of symbols. A symbol knows its neighbours by two links and weighs
as much as its word occurs; the slots between words hold `EDGE`. Merging (a, b) writes the new symbol over every a,
kills the b and joins the links: work only where the pair stands, all of its places at once.

Which pair is next comes from a heap of upper bounds. A pair's count only falls after its symbols exist, so an
entry is checked when it surfaces: its places are looked up, and if it has lost some it goes back with its true
count. Pairs rarer than a floor are left out; when the heap runs dry, the symbols are packed together, pairs are
counted anew, and the floor falls. So memory is bounded by the text, not by the number of different pairs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

Pair = tuple[str, str]
Ties = Literal["library", "first", "greatest"]

EDGE, DEAD = -1, -2
"""What stands between words (and in place of characters outside the alphabet), and where a merged symbol was."""
FALL = 8
"""The floor is the highest count over this."""

Tie = tuple[int | str, ...]
Entry = tuple[int, Tie, int, int, np.ndarray]
"""(- count, tie, a, b, places): the heap's order is the order of merges."""


def learn_merges(
    words: Mapping[str, int],
    most: int,
    *,
    ties: Ties = "library",
    min_frequency: int = 2,
    alphabet: Sequence[str] | None = None,
    continuing: str = "",
    end: str = "",
    spelling: Callable[[str], bytes] = str.encode,
    forbidden: Collection[str] = (),
) -> list[Pair]:
    """At most `most` merges, in order; fewer where no pair is left that occurs `min_frequency` times.

    Args:
        words: how often each occurs, in order of first appearance.
        ties: of the commonest pairs, library takes the one of lower numbers (symbols are numbered by `alphabet`, then
            by merge; the `tokenizers` library does the same), first the one that stands first in the text, greatest
            the one whose `spelling` is lexicographically greatest (Stanford CS336, assignment 1).
        alphabet: the symbols to start from; characters that are not in it take no part. None = all, sorted.
        continuing: the mark before symbols inside a word ("##").
        end: the mark after the last symbol of a word ("</w>").
        forbidden: strings that no merge may make.

    >>> learn_merges({"the": 3, "car": 1, "cat": 1, "rat": 1}, 3, ties="first")
    [('t', 'h'), ('th', 'e'), ('c', 'a')]
    """
    text = LaidOut(words, alphabet, continuing, end)
    learner = _Learner(text, ties, min_frequency, continuing, spelling, frozenset(forbidden))
    return list(learner.merges(most))


def encode(word: str, merges: Sequence[Pair], continuing: str = "", end: str = "") -> list[str]:
    """Symbols of one word: of the pairs it holds, the one learnt first is merged, until none is left.

    >>> encode("lowest", [("l", "o"), ("lo", "w"), ("n", "e")])
    ['low', 'e', 's', 't']
    """
    rank = {pair: i for i, pair in enumerate(merges)}
    symbols = marked(word, continuing, end)
    while len(symbols) > 1:
        place = min(range(len(symbols) - 1), key=lambda i: (rank.get((symbols[i], symbols[i + 1]), len(rank)), i))
        if (symbols[place], symbols[place + 1]) not in rank:
            break
        symbols[place : place + 2] = [joined(symbols[place], symbols[place + 1], continuing)]
    return symbols


def marked(word: str, continuing: str = "", end: str = "") -> list[str]:
    """The symbols a word starts from.

    >>> marked("abc", "##"), marked("abc", end="</w>")
    (['a', '##b', '##c'], ['a', 'b', 'c</w>'])
    """
    last = len(word) - 1
    return [(continuing if i else "") + c + (end if i == last else "") for i, c in enumerate(word)]


def joined(a: str, b: str, continuing: str = "") -> str:
    """What a merge makes.

    >>> joined("##a", "##bc", "##")
    '##abc'
    """
    return a + b.removeprefix(continuing)


class LaidOut:
    """Distinct words end to end.

    names: the symbols by number. symbol (n,) int32: an edge before, between and after words. weight (n,) int64 or
    int32: how often the word of each symbol occurs.
    """

    def __init__(self, words: Mapping[str, int], alphabet: Sequence[str] | None, continuing: str, end: str) -> None:
        counts = np.fromiter(words.values(), np.int64, len(words))
        lengths = np.fromiter(map(len, words), np.int64, len(words))
        codes = np.frombuffer("\0".join(["", *words, ""]).encode("utf-32-le"), "<u4")
        edge = np.zeros(len(codes), bool)
        edge[0] = True
        edge[np.cumsum(lengths + 1)] = True
        # Four forms of each character: first in its word or not, last or not.
        form = codes.astype(np.int32) * 4
        form[1:] += 2 * (~edge[:-1] & bool(continuing))
        form[:-1] += edge[1:] & bool(end)
        form[edge] = 0
        seen = np.zeros(int(form.max()) + 1, bool)
        seen[form[~edge]] = True
        spelt = {int(f): _spelt(int(f), continuing, end) for f in np.flatnonzero(seen)}
        self.names = sorted(spelt.values()) if alphabet is None else list(alphabet)
        number = {name: i for i, name in enumerate(self.names)}
        table = np.full(len(seen), EDGE, np.int32)
        table[list(spelt)] = [number.get(name, EDGE) for name in spelt.values()]
        self.symbol = table[form]
        self.symbol[edge] = EDGE
        small = counts.max(initial=0) < 2**31
        self.weight = np.zeros(len(form), np.int32 if small else np.int64)
        self.weight[~edge] = np.repeat(counts.astype(self.weight.dtype), lengths)


def _spelt(form: int, continuing: str, end: str) -> str:
    return (continuing if form & 2 else "") + chr(form >> 2) + (end if form & 1 else "")


class _Learner:
    def __init__(
        self,
        text: LaidOut,
        ties: Ties,
        min_frequency: int,
        continuing: str,
        spelling: Callable[[str], bytes],
        forbidden: frozenset[str],
    ) -> None:
        self.names = text.names
        self.symbol, self.weight = text.symbol, text.weight
        self.min_frequency, self.continuing = max(1, min_frequency), continuing
        self.taken = {*self.names, *forbidden}
        self.barred: list[tuple[int, int]] = []  # pairs that would make a string that exists
        self.spelling = spelling
        self.tie = {"library": self._lower, "first": self._first, "greatest": self._greatest}[ties]
        self.keys = [_descending(spelling(name)) for name in self.names] if ties == "greatest" else []
        self.heap: list[Entry] = []
        self.floor = 0
        self.before = self.after = np.empty(0, np.int32)  # links

    # ------------------------------------------------------------ what comes first among equals

    def _lower(self, a: int, b: int, places: np.ndarray) -> Tie:
        return ()  # the entry's own next fields

    def _first(self, a: int, b: int, places: np.ndarray) -> Tie:
        return (int(places[0]),)

    def _greatest(self, a: int, b: int, places: np.ndarray) -> Tie:
        return (self.keys[a], self.keys[b])

    # ------------------------------------------------------------ the loop

    def merges(self, most: int) -> Iterator[Pair]:
        done = 0
        while done < most:
            entry = self._next(most - done)
            if entry is None:
                return
            _, _, a, b, places = entry
            yield self.names[a], self.names[b]
            self._merge(a, b, places)
            done += 1

    def _next(self, remaining: int) -> Entry | None:
        """The pair to merge and all of its places."""
        while True:
            if not self.heap:
                self._count_all(remaining)
                if not self.heap:
                    return None
            count, tie, a, b, places = heapq.heappop(self.heap)
            places = places[(self.symbol[places] == a) & (self.symbol[self.after[places]] == b)]
            true = int(self.weight[places].sum(dtype=np.int64))
            if true < -count:
                self._push(a, b, true, places)
            elif joined(self.names[a], self.names[b], self.continuing) in self.taken:
                self.barred.append((a, b))
            else:
                return count, tie, a, b, places

    def _push(self, a: int, b: int, count: int, places: np.ndarray) -> None:
        if count >= self.floor:
            heapq.heappush(self.heap, (-count, self.tie(a, b, places), a, b, places))

    def _count_all(self, remaining: int) -> None:
        """Pack the living symbols together, and find the commonest pairs with their places."""
        alive = self.symbol != DEAD
        self.before = self.after = np.empty(0, np.int32)
        self.symbol, self.weight = self.symbol[alive], self.weight[alive]
        shift = len(self.symbol).bit_length()
        assert shift < 31 and 2 * len(self.names).bit_length() + shift < 64
        places = np.flatnonzero((self.symbol[:-1] >= 0) & (self.symbol[1:] >= 0)).astype(np.int32)
        # Sorting (pair, place) as one number is many times faster than sorting places by pair.
        packed = self.symbol[places].astype(np.int64)
        packed *= len(self.names)
        packed += self.symbol[places + 1]
        packed <<= shift
        packed |= places
        packed.sort()
        places = packed.astype(np.int32) & np.int32((1 << shift) - 1)  # the low bits
        packed >>= shift
        starts = run_starts(packed)
        pairs = packed[starts]
        del packed
        if not len(pairs):
            return
        counts = np.add.reduceat(self.weight[places], starts, dtype=np.int64)
        counts[np.isin(pairs, [a * len(self.names) + b for a, b in self.barred])] = 0
        self.floor = self._lower_floor(counts, remaining)
        ends = np.append(starts[1:], len(places))
        for i in np.flatnonzero(counts >= self.floor):
            a, b = divmod(int(pairs[i]), len(self.names))
            self._push(a, b, int(counts[i]), places[starts[i] : ends[i]].copy())
        n = len(self.symbol)
        self.before, self.after = np.arange(-1, n - 1, dtype=np.int32), np.arange(1, n + 1, dtype=np.int32)

    def _lower_floor(self, counts: np.ndarray, remaining: int) -> int:
        """Some pairs reach it, but not many more than there are merges to make."""
        top = int(counts.max())
        floor = max(self.min_frequency, top // FALL)
        many = 2 * remaining + 1000
        if len(counts) > many:
            rank = int(np.partition(counts, len(counts) - many)[len(counts) - many])
            floor = max(floor, min(rank + 1, top))
        return floor

    def _merge(self, a: int, b: int, places: np.ndarray) -> None:
        """places (k,): where a stands before b, ascending."""
        new = len(self.names)
        self.names.append(joined(self.names[a], self.names[b], self.continuing))
        self.taken.add(self.names[new])
        if self.keys:
            self.keys.append(_descending(self.spelling(self.names[new])))
        symbol, after, before = self.symbol, self.after, self.before
        if a == b:
            places = _apart(places, after)
        gone = after[places]
        right = after[gone]
        symbol[places], symbol[gone] = new, DEAD
        after[places] = right
        before[right] = places
        left = before[places]
        weight = self.weight[places]
        # Pairs (symbol, new) have even numbers, pairs (new, symbol) odd ones; (new, new) is counted as the former.
        first, second = symbol[left], symbol[right]
        has_first, has_second = first >= 0, (second >= 0) & (second != new)
        self._push_pairs(
            new,
            np.concatenate([2 * first[has_first], 2 * second[has_second] + 1]),
            np.concatenate([left[has_first], places[has_second]]),
            np.concatenate([weight[has_first], weight[has_second]]),
        )

    def _push_pairs(self, new: int, pair: np.ndarray, places: np.ndarray, weight: np.ndarray) -> None:
        """Each (k,): pairs with the new symbol, where they stand, and how often those words occur."""
        order = np.argsort(pair, kind="stable")
        pair = pair[order]
        starts = run_starts(pair)
        counts = np.add.reduceat(weight[order], starts, dtype=np.int64) if len(starts) else starts
        common = np.flatnonzero(counts >= self.floor)
        if not len(common):
            return
        places = places[order]
        ends = np.append(starts[1:], len(order))
        for i in common.tolist():
            other, follows = divmod(int(pair[starts[i]]), 2)
            a, b = (new, other) if follows else (other, new)
            self._push(a, b, int(counts[i]), places[starts[i] : ends[i]].copy())


def run_starts(ordered: np.ndarray) -> np.ndarray:
    """Where each run of equal values begins."""
    return np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(ordered) else np.empty(0, int)


def _apart(places: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Of a pair (a, a), the places that do not overlap, taken from the left: in a a a, the first alone."""
    follows = np.concatenate([[False], after[places[:-1]] == places[1:]])
    index = np.arange(len(places))
    run = np.maximum.accumulate(np.where(follows, 0, index))
    return places[(index - run) % 2 == 0]


def _descending(spelling: bytes) -> str:
    """A key that sorts before those of lesser strings; what is longer comes before its beginnings."""
    return "".join(chr(255 - byte) for byte in spelling) + "\u0100"
