"""Words of a text stream: how often each occurs, in order of first appearance, in bounded memory.

A word here is what the tokenizer cuts before it looks for pieces (the library says "pre-token"). The library
cuts a few megabytes a second, so text is first counted in chunks, white space followed by visible characters,
and the library sees each distinct chunk once. No cut of ours crosses from a visible character to white space,
and none looks further than the end of a chunk, so the words are the same as those of the whole text.

Memory is bounded: when the distinct words grow beyond `MOST` characters, rare ones are sampled. With a
threshold t that doubles as often as it must, a word counted n < t times stays with probability n / t, and then
counts as t ("threshold sampling": Duffield, Lund and Thorup 2005, "Learn more, sample less"). So every count stays
unbiased, and with it those of the pairs that a vocabulary is learnt from. The draw is a hash of the word: the same
text gives the same words.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from unmask.keyed import row_keys, uniform
from unmask.process import peak_memory
from unmask.text.progress import Say

Cutter = Callable[[str], list[str]]
"""A chunk of text to its words."""

MOST = 16_000_000
"""Cost of the distinct words kept: characters, and `EACH` for every word."""
EACH = 8
WAITING = 8_000_000
"""Cost of the chunks that wait for the library."""
BLOCK = 1 << 20
"""Characters that are searched for chunks at once."""
LONGEST = 256
"""Characters of a word or a run of white space; longer ones (text without blanks) are counted in parts."""
LONGEST_CHUNK = 4096
"""Characters of a chunk, so that text without blanks does not wait whole."""
_ODD = 0x9E3779B97F4A7C15

# White space as the library sees it; Python also counts the separators \x1c to \x1f. BERT's normaliser drops three of
# them as control characters, so what they part may be one word: a chunk goes on behind them.
_SOLID = "\t\n\r \xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_DROPPED = "\v\f\x85"
_BLANKS = _SOLID + _DROPPED
_RUN, _VISIBLE = f"[{_BLANKS}]{{0,{LONGEST}}}", f"[^{_BLANKS}]"
_chunks = re.compile(
    rf"{_RUN}{_VISIBLE}{{1,{LONGEST_CHUNK}}}(?:[{_DROPPED}]{_RUN}{_VISIBLE}{{0,{LONGEST_CHUNK}}})*"
    rf"|[{_BLANKS}]{{1,{LONGEST}}}"
).findall
_word_end = re.compile(rf"{_VISIBLE}(?=[{_SOLID}])")


def count_words(texts: Iterable[str], cutter: Cutter, say: Say | None = None, most: int = MOST) -> dict[str, int]:
    """Word → count, in order of first appearance; what is estimated or cut is said.

    >>> count_words(["to be", " or not to be"], str.split)
    {'to': 2, 'be': 2, 'or': 1, 'not': 1}
    """
    counter = _WordCounter(cutter, most)
    for text in texts:
        counter.add(text)
    counter.flush()
    if counter.sampled is not None:
        (say or _to_stderr)(counter.sampled)
    if say is not None:
        if counter.parted:
            say(f"{counter.parted:,} words longer than {LONGEST} characters were counted in parts")
        say(f"counted {counter.characters:,} characters, {len(counter.words):,} distinct words")
    return counter.words


def count_characters(texts: Iterable[str], normalize: Callable[[str], str]) -> dict[str, int]:
    """Character → count: there are at most 1.1 million, so nothing is dropped."""
    counts: Counter[str] = Counter()
    for text in texts:
        for block in blocks(text):
            counts.update(normalize(block))
    return counts


def blocks(text: str, limit: int = BLOCK) -> Iterator[str]:
    """The text in parts of at most `limit` characters, cut before white space (anywhere, where there is none)."""
    start = 0
    while len(text) - start > limit:
        end = start + limit
        for far in (LONGEST_CHUNK, limit):
            ends = [m.end() for m in _word_end.finditer(text, max(start, end - far), end)]
            if ends:
                break
        end = ends[-1] if ends else end
        yield text[start:end]
        start = end
    yield text[start:]


def peak_note() -> str:
    """The end of a sentence, such as ", peak memory 123 MB" (of this process so far)."""
    return f", peak memory {peak_memory() / 1e6:,.0f} MB"


class _WordCounter:
    """Chunks wait until they are many; then the library cuts them, and their words are added up."""

    def __init__(self, cutter: Cutter, most: int) -> None:
        self.words: dict[str, int] = {}
        self.characters = self.parted = 0
        self._cutter, self._most = cutter, most
        self._waiting: Counter[str] = Counter()
        self._waiting_cost = self._weighed = self._unweighed = self._cost = 0
        self._threshold = 1  # words seen less often are a sample
        self._round = 0

    def add(self, text: str) -> None:
        for block in blocks(text):
            self._waiting.update(_chunks(block))
            self.characters += len(block)
            self._unweighed += len(block)
            if self._unweighed >= BLOCK:
                self._weigh()

    def _weigh(self) -> None:
        """Chunks new since the last weighing are the last of the dictionary."""
        self._unweighed = 0
        new = len(self._waiting) - self._weighed
        self._waiting_cost += sum(map(len, itertools.islice(reversed(self._waiting), new))) + EACH * new
        self._weighed += new
        if self._waiting_cost > min(WAITING, self._most):
            self.flush()

    def flush(self) -> None:
        """Cut what waits into words."""
        waiting: Mapping[str, int] = self._waiting
        while waiting:
            threshold = self._threshold
            if threshold > 1:
                waiting = self._drawn(waiting)
            done = 0
            for chunks, n in _alike(waiting):
                for word in self._cutter("".join(chunks)):
                    if word in self.words:
                        self.words[word] += n
                    else:
                        self._enter(word, n)
                done += len(chunks)
                if self._threshold > threshold:  # what waits is drawn by the new one
                    break
            waiting = dict(itertools.islice(waiting.items(), done, None))
        self._waiting = Counter()
        self._waiting_cost = self._weighed = 0

    def _enter(self, word: str, n: int) -> None:
        if len(word) > LONGEST:
            self.parted += n
            for part in _parts(word):
                if part in self.words:
                    self.words[part] += n
                else:
                    self._enter(part, n)
            return
        self.words[word] = n
        self._cost += len(word) + EACH
        while self._cost > self._most:
            self._threshold *= 2
            self.words = self._drawn(self.words)
            self._cost = sum(map(len, self.words)) + EACH * len(self.words)

    def _drawn(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Entries at least as common as the threshold, and a sample of the others."""
        self._round += 1
        words = list(counts)
        count = np.fromiter(counts.values(), np.int64, len(words))
        key = row_keys(0, self._round, 0, "words")
        chance = uniform(key, _hashes(words))
        kept = chance * self._threshold < count  # certain for counts from the threshold on
        count = np.maximum(count, self._threshold)[kept].tolist()
        return dict(zip(itertools.compress(words, kept.tolist()), count, strict=True))

    @property
    def sampled(self) -> str | None:
        """What was estimated instead of counted."""
        if self._threshold == 1:
            return None
        return (
            f"the text has more distinct words than the memory set aside for them ({self._most:,} characters): "
            f"words seen fewer than {self._threshold:,} times are a sample drawn by hash, each counted as "
            f"{self._threshold:,}{peak_note()}"
        )


def _alike(chunks: Mapping[str, int]) -> Iterator[tuple[list[str], int]]:
    """Runs of equally common chunks, with their count: to cut them as one text saves calls of the library.

    That changes no word if each goes from white space to a visible character.
    """
    together: list[str] = []
    common = size = 0
    closed = False
    for chunk, n in chunks.items():
        if n != common or closed or size > LONGEST_CHUNK or chunk[0] not in _SOLID:
            if together:
                yield together, common
            together, size, common = [], 0, n
        together.append(chunk)
        size += len(chunk)
        closed = chunk[-1] in _BLANKS
    if together:
        yield together, common


def _hashes(words: list[str]) -> np.ndarray:
    """(W,) uint64: Σ code point × odd constant ** position, the same everywhere. None of the words is empty."""
    ends = np.cumsum(np.fromiter(map(len, words), np.int64, len(words)))
    cuts = np.searchsorted(ends, np.arange(BLOCK, ends[-1], BLOCK))  # about a block's characters at once
    bounds = np.unique([0, *cuts.tolist(), len(words)]).tolist()
    return np.concatenate([_hashes_at_once(words[a:b]) for a, b in itertools.pairwise(bounds)])


def _hashes_at_once(words: list[str]) -> np.ndarray:
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    starts = np.cumsum(lengths) - lengths
    place = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
    powers = np.cumprod(np.full(int(lengths.max()), _ODD, np.uint64))
    codes = np.frombuffer("".join(words).encode("utf-32-le"), "<u4").astype(np.uint64)
    return np.add.reduceat(codes * powers[place], starts)


def _parts(word: str) -> list[str]:
    """Equal parts of at most `LONGEST` characters (the last may be a little shorter)."""
    size = -(-len(word) // -(-len(word) // LONGEST))
    return [word[a : a + size] for a in range(0, len(word), size)]


def _to_stderr(sentence: str) -> None:
    print(sentence, file=sys.stderr)


def characters_of(words: Mapping[str, int]) -> dict[str, int]:
    """Character → how often it occurs in the counted words.

    >>> characters_of({"to": 2, "or": 1})
    {'o': 3, 'r': 1, 't': 2}
    """
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    counts = np.fromiter(words.values(), np.float64, len(words))  # exact below 2 ** 53
    codes = np.frombuffer("".join(words).encode("utf-32-le"), "<u4").astype(np.int32)
    total = np.bincount(codes, weights=np.repeat(counts, lengths))
    return {chr(code): int(total[code]) for code in np.flatnonzero(total)}
