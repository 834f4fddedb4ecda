"""Classes of characters, looked up in tables over code points: scripts of letters, and what makes words.

A text of n characters becomes n code points once (`codes`); every question is then one array operation.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

import numpy as np

SCRIPTS = (
    "latin",
    "han",
    "hiragana",
    "katakana",
    "hangul",
    "cyrillic",
    "arabic",
    "hebrew",
    "greek",
    "devanagari",
    "thai",
    "other",
)
"""What letters are told apart by; `other` is every letter of another script."""

_BLOCKS = {  # of Unicode 15's Scripts.txt, joined where what lies between are no letters
    "latin": "41-5A 61-7A AA BA C0-2B8 2E0-2E4 1D00-1D25 1D2C-1D5C 1D62-1D65 1D6B-1D77 1D79-1DBE 1E00-1EFF 2071 207F "
    "2090-209C 212A-212B 2132 214E 2183-2184 2C60-2C7F A722-A787 A78B-A7FF AB30-AB5A AB5C-AB64 AB66-AB69 FB00-FB06 "
    "10780-107BA 1DF00-1DF2A FF21-FF3A FF41-FF5A",
    "han": "2E80-2FD5 3005-3007 3021-3029 3038-303B 3400-4DBF 4E00-9FFF F900-FAD9 16FE3 16FF0-16FF1 20000-323AF",
    "hiragana": "3041-3096 309D-309F 1B001-1B11F 1B150-1B152",
    "katakana": "30A1-30FA 30FC-30FF 31F0-31FF FF66-FF9D 1AFF0-1AFFE 1B000 1B120-1B122 1B164-1B167",
    "hangul": "1100-11FF 3131-318E A960-A97C AC00-D7FB FFA0-FFDC",
    "cyrillic": "400-484 487-52F 1C80-1C88 1D2B 1D78 2DE0-2DFF A640-A69F 1E030-1E08F",
    "arabic": "600-604 606-6FF 750-77F 870-8FF FB50-FDFF FE70-FEFC 10E60-10E7E 1EE00-1EEF1",
    "hebrew": "591-5F4 FB1D-FB4F",
    "greek": "370-373 375-377 37A-37D 37F 384 386 388-3E1 3F0-3FF 1D26-1D2A 1D5D-1D61 1D66-1D6A 1DBF 1F00-1FFE 2126",
    "devanagari": "900-950 955-963 966-97F A8E0-A8FF 11B00-11B09",
    "thai": "E01-E3A E40-E5B",
}
_ALONE = (  # written without blanks between words, so that no rule but a dictionary finds them
    "E01-E3A E40-E4E E80-EFF F00-FDA 1000-109F 1780-17D3 17D7 17DC 1950-19DF 1A20-1AAD A9E0-A9FE AA60-AADF 3100-312F "
    "31A0-31BF"
)
_EAST_ASIAN = "2E80-303F 3041-3096 3099-30FF 3105-312F 31A0-31BF 31F0-31FF 3220-33FF 3400-4DBF 4E00-9FFF F900-FAFF "
_EAST_ASIAN += "FE30-FE4F FF01-FF9F FFE0-FFE6 1AFF0-1B167 16FF0-16FF1 20000-323AF"
_SHARED = "B7 2010-2027 2030-205E 00AB 00BB"
"""Quotes, dashes, dots that East Asian text shares with the others."""
LAST = 0x3FFFF
"""Beyond it there is no letter."""

OTHER, WORD, ALONE, BLANK = range(4)
"""Kinds of characters: any other visible one, part of a run that is a word, a word by itself, white space."""


def codes(text: str) -> np.ndarray:
    """(n,) uint32 code points of the n characters; none beyond `LAST` (they all are private or tags)."""
    raw = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    return raw if text.isascii() else np.minimum(raw, LAST)


def letters(text: str) -> np.ndarray:
    """(S,) int64: how many letters of each of `SCRIPTS` a text has.

    >>> dict(zip(SCRIPTS, letters("NLP, 自然言語とは?").tolist()))["hiragana"]
    2
    """
    if text.isascii():  # one byte a character, the latin letters alone
        found = np.count_nonzero(_script_table()[:128][np.frombuffer(text.encode(), np.uint8)] == 0)
        return np.array([found] + [0] * (len(SCRIPTS) - 1))
    return np.bincount(_script_table()[codes(text)], minlength=len(SCRIPTS) + 1)[: len(SCRIPTS)]


def scripts_of(points: np.ndarray) -> np.ndarray:
    """(n,) uint8 index into `SCRIPTS` of each letter; its length for what is none."""
    return _script_table()[points]


def kinds(points: np.ndarray) -> np.ndarray:
    """(n,) uint8 kinds of characters by the rule for words (`tokens.words`)."""
    return _kind_table()[points]


def word_starts(points: np.ndarray) -> np.ndarray:
    """(n,) bool: a word starts at this character; a blank before a word is not part of it here.

    A word is a run of letters, marks, digits and underscores, or one other visible character. A run of
    white space other than one blank before a word is a word too.

    >>> np.flatnonzero(word_starts(codes("It's 北京."))).tolist()
    [0, 2, 3, 5, 6, 7]
    """
    kind = kinds(points)
    starts = kind != BLANK
    starts[1:] &= (kind[1:] != WORD) | (kind[:-1] != WORD)
    return starts | _own_white_space(points, kind == BLANK)


def run_starts(points: np.ndarray) -> np.ndarray:
    """(n,) bool: the same where words are parted by white space alone."""
    blank = kinds(points) == BLANK
    starts = ~blank
    starts[1:] &= blank[:-1]
    return starts | _own_white_space(points, blank)


def _own_white_space(points: np.ndarray, blank: np.ndarray) -> np.ndarray:
    """Where a run of white space starts that is more than a blank before a word."""
    starts = blank.copy()
    starts[1:] &= ~blank[:-1]
    before_word = np.append(~blank[1:], False)
    return starts & ~((points == ord(" ")) & before_word)


def between_east_asian(points: np.ndarray) -> np.ndarray:
    """(R, 2) [begin, end): runs of blanks that part Chinese or Japanese characters (one side may be a shared quote).

    >>> between_east_asian(codes("我 爱 NLP ，“ 你 ”")).tolist()
    [[1, 2], [10, 11], [12, 13]]
    """
    blank = np.isin(points, np.array([0x20, 0x09, 0x3000], np.uint32))
    edges = np.flatnonzero(np.diff(np.concatenate([[False], blank, [False]]).astype(np.int8)))
    runs = edges.reshape(-1, 2)
    runs = runs[(runs[:, 0] > 0) & (runs[:, 1] < len(points))]
    before, after = (_side_table()[points[at]] for at in (runs[:, 0] - 1, runs[:, 1]))
    return runs[(np.minimum(before, after) > 0) & (np.maximum(before, after) > 1)]


# ---------------------------------------------------------------- tables


def _points(blocks: str) -> np.ndarray:
    """Code points of hexadecimal ranges."""
    ends = [block.split("-") for block in blocks.split()]
    return np.concatenate([np.arange(int(e[0], 16), int(e[-1], 16) + 1) for e in ends])


@lru_cache(maxsize=1)
def _categories() -> np.ndarray:
    """(LAST + 1,) one character each: the major class of the general category (L, M, N, P, S, Z, C)."""
    return np.array([unicodedata.category(chr(c))[0] for c in range(LAST + 1)])


@lru_cache(maxsize=1)
def _script_table() -> np.ndarray:
    """Index into `SCRIPTS` by code point; its length where there is no letter."""
    table = np.full(LAST + 1, len(SCRIPTS) - 1, np.uint8)
    for k, script in enumerate(SCRIPTS[:-1]):
        table[_points(_BLOCKS[script])] = k
    table[_categories() != "L"] = len(SCRIPTS)
    return table


@lru_cache(maxsize=1)
def _kind_table() -> np.ndarray:
    category = _categories()
    table = np.full(LAST + 1, OTHER, np.uint8)
    table[np.isin(category, ["L", "M", "N"])] = WORD
    table[ord("_")] = WORD
    for blocks in (_BLOCKS["han"], _BLOCKS["hiragana"], _BLOCKS["katakana"], _ALONE):
        table[_points(blocks)] = ALONE
    table[[c for c in range(LAST + 1) if chr(c).isspace()]] = BLANK
    return table


@lru_cache(maxsize=1)
def _side_table() -> np.ndarray:
    """2 = Chinese or Japanese, 1 = punctuation they share, 0 = anything else."""
    table = np.zeros(LAST + 1, np.uint8)
    table[_points(_SHARED)] = 1
    table[_points(_EAST_ASIAN)] = 2
    return table


def word_spans(text: str) -> np.ndarray:
    """(W, 2) int64 characters [begin, end) of the words of a text, by the one rule (`tokens.words`), no white space.

    >>> [("It's 北京." )[a:b] for a, b in word_spans("It's 北京.")]
    ['It', "'", 's', '北', '京', '.']
    """
    points = codes(text)
    blank = kinds(points) == BLANK
    begin = np.flatnonzero(word_starts(points) & ~blank)
    edges = np.append(np.flatnonzero(word_starts(points) | blank), len(text))
    return np.stack([begin, edges[np.searchsorted(edges, begin, "right")]], axis=1)
