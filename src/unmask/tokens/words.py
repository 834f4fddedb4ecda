"""Where words start, as a pure function of ids: the one definition, right for every tokenizer.

A word is a maximal run of letters, marks, digits and underscores; every other visible character is a word by itself,
and so is every character of a script written without blanks (Han, Hiragana, Katakana, Thai, …; a segmentation given
with the corpus overrides this, `starts_from_characters`). One blank (U+0020, or the tokenizer's mark for it) directly
before a word belongs to that word; any other run of white space is a word of its own. `text.characters` holds the
kinds of characters.

A token starts a word if a word, or its blank, begins inside it; the first token of a text always does. A control
token is a word by itself. An unknown token starts a word where the tokenizer replaces whole words, and is part of one
where it replaces characters.

    tokens of "The cat's  hat, 北京"    The| cat|'|s| | hat|,| |北|京
    a word starts                       1   1    1 1 1 1    1 1 0 1

Of the two blanks the second belongs to "hat"; the blank before 北 is a token of its own, so the word starts there.
What counts is what the tokens say: BERT parts snake_case into three words, and no id tells that there was no blank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unmask.batch import ranges
from unmask.text.characters import BLANK, LAST, codes, kinds, word_starts

SPACE = ord(" ")
_BEFORE = "!a \n"
"""One character of each class that decides about the next one: visible and alone, of a run, a blank, white space."""
_AFTER = "!\n"
"""Visible, or not (white space, or the end)."""
_INVALID = 0xFFFD


@dataclass(frozen=True)
class Part:
    """What a token stands for."""

    content: bytes
    """Its piece of the text in UTF-8, blanks as blanks; perhaps part of a character."""
    control: bool = False
    """A word by itself: a control token, or an unknown one that replaces a whole word."""
    last: bool = False
    """It ends a word whatever follows (an end-of-word mark)."""


@dataclass(frozen=True, eq=False)
class WordStarts:
    """`WordStarts.of(parts)(tokens, start)`: (N,) bool. Build it once a tokenizer; it holds numpy arrays only."""

    starts: np.ndarray
    """(size,) uint8: bit 2p + n says whether a token starts a word after `_BEFORE[p]` and before `_AFTER[n]`."""
    before: np.ndarray
    """(size,) uint8: the place in `_BEFORE` of the class that its last character has for what follows."""
    visible: np.ndarray
    """(size,) bool: its first character is visible."""
    broken: np.ndarray
    """(size,) bool: it holds a part of a character, so that only its text tells."""
    control: np.ndarray
    """(size,) bool: it starts a word in any case."""
    content: np.ndarray
    """All contents end to end, uint8; one line end behind them."""
    place: np.ndarray
    """(size + 2,) int64: where each content begins; the last entry is the line end."""

    @staticmethod
    def of(parts: Sequence[Part]) -> WordStarts:
        told = [_text(part) for part in parts]
        broken = np.array([text is None for text in told], bool)
        texts = [text or "\ufffd" for text in told]
        control = np.array([part.control for part in parts], bool)
        bits = _simulated(texts)
        bits[control] = 255
        first, last = (codes("".join(text[k] for text in texts)) for k in (0, -1))
        before = _class_before(last)
        before[[k for k, part in enumerate(parts) if part.last]] = _BEFORE.index("\n")
        contents = [b"\x01" if part.control or not part.content else part.content for part in parts]
        sizes = [len(c) for c in contents]
        return WordStarts(
            bits,
            before,
            kinds(first) != BLANK,
            broken,
            control,
            np.frombuffer(b"".join([*contents, b"\n"]), np.uint8),
            np.concatenate([[0], np.cumsum([*sizes, 1])]),
        )

    def __call__(self, tokens: np.ndarray, start: np.ndarray) -> np.ndarray:
        """(N,) bool for tokens (N,) of R texts laid end to end, whose text r is [start[r], start[r + 1])."""
        tokens = np.asarray(tokens)
        start = np.asarray(start, np.int64)
        if not tokens.size:
            return np.zeros(0, bool)
        out = self._by_table(tokens, start)
        broken = self.broken[tokens]
        first = np.zeros(tokens.size, bool)
        first[start[:-1][start[:-1] < start[1:]]] = True
        if broken.any():  # its neighbours have it as context, and theirs are context to them
            unsure = _wider(broken, first)
            shown = np.flatnonzero(_wider(unsure, first))
            runs = np.flatnonzero((np.diff(shown, prepend=-2) > 1) | first[shown])
            found = self._by_text(tokens[shown], np.append(runs, shown.size))
            keep = unsure[shown]
            out[shown[keep]] = found[keep]
        return out | first

    def _by_table(self, tokens: np.ndarray, start: np.ndarray) -> np.ndarray:
        """Each token by the class of the character before it and what comes after it."""
        ends = start[1:-1][(start[1:-1] > 0) & (start[1:-1] < tokens.size)]
        context = np.zeros(tokens.size, np.uint8)
        context[1:] = self.before[tokens[:-1]] * 2
        hidden = ~self.visible[tokens]
        context[:-1] += hidden[1:]
        context[-1] += 1
        context[ends - 1] |= 1  # nothing visible follows the last token of a text
        return (self.starts[tokens] >> context & 1).astype(bool)

    def _by_text(self, tokens: np.ndarray, start: np.ndarray) -> np.ndarray:
        """The same from the characters themselves; a line end parts the texts."""
        line_end = len(self.place) - 2
        parts = np.insert(tokens.astype(np.int64), start[1:], line_end)
        sizes = self.place[parts + 1] - self.place[parts]
        points, at = decode(self.content[ranges(self.place[parts], sizes)])
        begins = at[starts_with_blanks(points)]
        ends = np.cumsum(sizes)
        found = np.zeros(len(parts), bool)
        found[np.searchsorted(ends, begins, "right")] = True
        out = found[np.arange(len(tokens)) + np.repeat(np.arange(len(start) - 1), np.diff(start))]
        return out | self.control[tokens]


def starts_with_blanks(points: np.ndarray) -> np.ndarray:
    """(n,) bool for code points (n,): a word starts here, its blank included.

    >>> text = "a b  c, \\n 北 "
    >>> "".join("^" if s else "." for s in starts_with_blanks(codes(text)))
    '^^.^^.^^.^.^'
    """
    found = word_starts(np.minimum(points, LAST))
    blank = points[:-1] == SPACE
    moves = blank & found[1:] & (kinds(np.minimum(points[1:], LAST)) != BLANK)
    found[1:] &= ~moves
    found[:-1] |= moves
    return found


def starts_from_characters(begin: np.ndarray, end: np.ndarray, characters: np.ndarray) -> np.ndarray:
    """(n,) bool: words (or sentences) that start at `characters` (W,), as tokens that cover [begin, end) (n,).

    A word starts at the first token that reaches its first character; what no token holds (white space, what the
    normaliser dropped) starts with the token after it. The first token always starts one.

    >>> begin, end = np.array([0, 2, 3, 3, 4]), np.array([2, 3, 4, 4, 6])
    >>> starts_from_characters(begin, end, np.array([0, 3, 5])).astype(int).tolist()
    [1, 0, 1, 0, 1]
    """
    found = np.zeros(len(begin), bool)
    reach = np.maximum.accumulate(end) if len(end) else end
    at = np.searchsorted(reach, characters, "right")
    found[at[at < len(begin)]] = True
    found[:1] = True
    return found


def decode(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """UTF-8 bytes (n,) as code points (m,) and the byte each begins at; a byte of no character is U+FFFD by itself.

    >>> points, at = decode(np.frombuffer("aé北".encode() + b"\\xe5\\x8c" + "😀".encode(), np.uint8))
    >>> [hex(p) for p in points], at.tolist()
    (['0x61', '0xe9', '0x5317', '0xfffd', '0xfffd', '0x1f600'], [0, 1, 3, 6, 7, 8])
    """
    value = np.where(raw < 0x80, raw.astype(np.uint32), np.uint32(_INVALID))
    inner = np.full(raw.size + 3, 0xFF, np.uint8)  # the six bits of a byte inside a character
    np.copyto(inner[: raw.size], raw & 0x3F, where=(raw & 0xC0) == 0x80)
    taken = np.zeros(raw.size, bool)
    leads = np.flatnonzero(raw >= 0xC0)
    sized = np.searchsorted(np.array([0xE0, 0xF0, 0xF8], np.uint8), raw[leads], "right") + 2
    for size, least, most in ((2, 0x80, 0x7FF), (3, 0x800, 0xFFFF), (4, 0x10000, 0x10FFFF)):
        lead = leads[sized == size]
        point = (raw[lead] & (0x7F >> size)).astype(np.uint32)
        whole = np.ones(lead.size, bool)
        for k in range(1, size):
            six = inner[lead + k]
            whole &= six < 0x40
            point = point << np.uint32(6) | six
        whole &= (point >= least) & (point <= most) & ~((point >= 0xD800) & (point < 0xE000))
        lead = lead[whole]
        value[lead] = point[whole]
        for k in range(1, size):
            taken[lead + k] = True
    at = np.flatnonzero(~taken)
    return value[at], at


# ---------------------------------------------------------------- building the tables


def _text(part: Part) -> str | None:
    """A token's characters, None where it holds a part of one; what has no text is a visible character."""
    try:
        return "\ufffd" if part.control else part.content.decode() or "\ufffd"
    except UnicodeDecodeError:
        return None


def _class_before(last: np.ndarray) -> np.ndarray:
    """(n,) uint8 places in `_BEFORE` of the classes of characters (n,)."""
    kind = kinds(np.minimum(last, LAST))
    known = kinds(codes(_BEFORE))
    out = np.full(last.size, _BEFORE.index("!"), np.uint8)
    out[kind == known[_BEFORE.index("a")]] = _BEFORE.index("a")
    out[kind == BLANK] = _BEFORE.index("\n")
    out[last == SPACE] = _BEFORE.index(" ")
    return out


def _simulated(texts: Sequence[str]) -> np.ndarray:
    """(size,) uint8 bits of `WordStarts.starts`: the rule is applied to every token in every context."""
    sizes = np.array([len(text) for text in texts], np.int64)
    begin = np.cumsum(sizes + 2) - sizes - 1  # room for a character before and after each
    text = np.zeros(int((sizes + 2).sum()), np.uint32)
    text[ranges(begin, sizes)] = codes("".join(texts))
    bits = np.zeros(len(texts), np.uint8)
    for p, before in enumerate(_BEFORE):
        for n, after in enumerate(_AFTER):
            text[begin - 1], text[begin + sizes] = ord(before), ord(after)
            found = np.concatenate([[0], np.cumsum(starts_with_blanks(text))])
            starts = found[begin + sizes] > found[begin]
            bits |= starts.astype(np.uint8) << np.uint8(2 * p + n)
    return bits


def _wider(flags: np.ndarray, first: np.ndarray) -> np.ndarray:
    """(n,) bool: the flags and their neighbours in the same text."""
    out = flags.copy()
    out[1:] |= flags[:-1] & ~first[1:]
    out[:-1] |= flags[1:] & ~first[1:]
    return out
