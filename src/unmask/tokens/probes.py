"""Small probes of a tokenizer: how numbers are cut, what a misspelling does, what each merge is worth.

Every probe looks at a word in running text ("a 107"), counts only tokens that hold some of its characters, and
reads them off the alignment, so a blank kept as a token of its own is no part of the number.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tokenizers
from tokenizers import models

from unmask import keyed
from unmask.tokens.structure import sealed
from unmask.tokens.tokenizer import Aligned, Tokenizer

BEFORE = "a "
SHOWN_NUMBERS = (7, 45, 107, 137, 480, 738)
FREQUENT = 200
"""How many words are misspelled: the most frequent of the text that have at least `LETTERS` letters."""
LETTERS = 5
SHOWN_WORDS = 3
PURPOSE = "misspelling"


@dataclass(frozen=True)
class Numbers:
    """How 0–999 are cut."""

    tokens: dict[int, int]
    """Number of tokens → how many of the thousand numbers."""
    cuts: dict[str, int]
    """Digits of each token, such as "1+2" for 1|07 → how many numbers."""
    aligned: float
    """Share of 10–999 that are cut at the commonest place of their length: at 1, tokens hold fixed place values."""
    unknown: int
    """Numbers with a digit that no token holds."""
    examples: dict[str, list[str]]


@dataclass(frozen=True)
class Misspelling:
    """One word, right and with two inner letters swapped, and the tokens of both."""

    right: str
    wrong: str
    right_tokens: list[str]
    wrong_tokens: list[str]


@dataclass(frozen=True)
class Misspellings:
    """What swapping two inner letters of frequent words does."""

    words: int
    tokens_before: float
    """Mean tokens of the words as they are spelt."""
    tokens_after: float
    shared: float
    """Share of the right spelling's tokens that the wrong one still has (as multisets)."""
    unknown: float
    """Share of misspelled words of which some token is unknown or some letter lost."""
    examples: list[Misspelling]


def held(aligned: Aligned, begin: int, end: int) -> np.ndarray:
    """(k,) places of the tokens that hold some of the characters [begin, end)."""
    return np.flatnonzero((aligned.begin < end) & (aligned.end > begin) & (aligned.end > aligned.begin))


def numbers(tokenizer: Tokenizer) -> Numbers:
    """Cut every number from 0 to 999."""
    texts = [str(n) for n in range(1000)]
    pieces: list[list[str] | None] = []
    for text, aligned in zip(texts, tokenizer.encode_aligned([BEFORE + t for t in texts]), strict=True):
        at = held(aligned, len(BEFORE), len(BEFORE) + len(text))
        starts = np.maximum(aligned.begin[at], len(BEFORE)) - len(BEFORE)
        stops = aligned.end[at] - len(BEFORE)
        cut = [text[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
        lost = "".join(cut) != text or (aligned.ids[at] == _unk(tokenizer)).any()
        pieces.append(None if lost else cut)
    known = [p for p in pieces if p is not None]
    cuts = Counter("+".join(str(len(t)) for t in p) for p in known)
    longer = [{c: n for c, n in cuts.items() if sum(map(int, c.split("+"))) == digits} for digits in (2, 3)]
    return Numbers(
        tokens=dict(sorted(Counter(map(len, known)).items())),
        cuts=dict(sorted(cuts.items(), key=lambda item: (len(item[0]), item[0]))),
        aligned=sum(max(c.values(), default=0) for c in longer) / 990,
        unknown=pieces.count(None),
        examples={str(n): pieces[n] or ["?"] for n in SHOWN_NUMBERS},
    )


def misspellings(tokenizer: Tokenizer, words: Mapping[str, int]) -> Misspellings | None:
    """Swap letters in the most frequent of the words (word → count); None where none is long enough."""
    pairs = [(right, wrong) for right in frequent(words) if (wrong := misspelt(right)) is not None]
    if not pairs:
        return None
    before = _tokens_of(tokenizer, [right for right, _ in pairs])
    after = _tokens_of(tokenizer, [wrong for _, wrong in pairs])
    tokens = sum(len(ids) for ids, _ in before)
    kept = sum(
        (Counter(a.tolist()) & Counter(b.tolist())).total() for (a, _), (b, _) in zip(before, after, strict=True)
    )
    shown = zip(pairs[:SHOWN_WORDS], before, after, strict=False)
    return Misspellings(
        words=len(pairs),
        tokens_before=tokens / len(pairs),
        tokens_after=sum(len(ids) for ids, _ in after) / len(pairs),
        shared=kept / tokens if tokens else 0.0,
        unknown=sum(lost for _, lost in after) / len(pairs),
        examples=[Misspelling(*pair, _names(tokenizer, a), _names(tokenizer, b)) for pair, (a, _), (b, _) in shown],
    )


def frequent(words: Mapping[str, int]) -> list[str]:
    """The most frequent words of letters alone; ties in the order of their spelling."""
    long = (w for w in words if len(w) >= LETTERS and w.isalpha())
    return sorted(long, key=lambda w: (-words[w], w))[:FREQUENT]


def misspelt(word: str) -> str | None:
    """The word with two neighbouring inner letters swapped, at a place keyed by the word; None if none differ.

    >>> misspelt("level"), misspelt("aaaaa"), misspelt("learn")
    ('leevl', None, 'leran')
    """
    places = [i for i in range(1, len(word) - 2) if word[i] != word[i + 1]]
    if not places:
        return None
    key = keyed.row_keys(0, 0, keyed.purpose(word), PURPOSE)
    at = places[int(keyed.below(keyed.bits(key, np.zeros(1, np.int64)), len(places))[0])]
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]


def _tokens_of(tokenizer: Tokenizer, words: Sequence[str]) -> list[tuple[np.ndarray, bool]]:
    """(ids of the tokens that hold the word, is some of it unknown or lost?) of each word."""
    out = []
    for word, aligned in zip(words, tokenizer.encode_aligned([BEFORE + w for w in words]), strict=True):
        at = held(aligned, len(BEFORE), len(BEFORE) + len(word))
        ids = aligned.ids[at]
        covered = np.zeros(len(BEFORE) + len(word), bool)
        for a, b in zip(aligned.begin[at].tolist(), aligned.end[at].tolist(), strict=True):
            covered[a:b] = True
        lost = not covered[len(BEFORE) :].all() or (ids == _unk(tokenizer)).any()
        out.append((ids, bool(lost)))
    return out


def _names(tokenizer: Tokenizer, ids: np.ndarray) -> list[str]:
    return [tokenizer.token(i) for i in ids.tolist()]


def _unk(tokenizer: Tokenizer) -> int:
    return -1 if tokenizer.vocabulary.unk is None else tokenizer.vocabulary.unk


def tokens_by_merges(tokenizer: Tokenizer, texts: Sequence[str]) -> list[tuple[int, int]] | None:
    """(k, tokens of the texts when only the first k merges are made), k from none to all; None where there are none.

    The library's own model is built with the first k merges, so what is counted is what it would do.
    """
    spec = sealed(tokenizer.spec)
    model = spec["model"]
    if model["type"] != "BPE" or not model["merges"]:
        return None
    words = _words(tokenizers.Tokenizer.from_str(json.dumps(spec, ensure_ascii=False)), texts)
    # With ignore_merges a word that is an entry is never cut, however few merges there are.
    left_out = ("type", "merges", "ignore_merges")
    options = {k: v for k, v in model.items() if k not in left_out and v is not None}
    merges = [(first, second) for first, second in model["merges"]]
    found = []
    for k in grid(len(merges)):
        cutter = models.BPE(merges=merges[:k], **options)
        found.append((k, sum(n * len(cutter.tokenize(word)) for word, n in words.items())))
    return found


def _words(library: tokenizers.Tokenizer, texts: Sequence[str]) -> Counter[str]:
    """What the library hands to its model: no token crosses from one such word to the next."""
    counts: Counter[str] = Counter()
    for text in texts:
        clean = text if library.normalizer is None else library.normalizer.normalize_str(text)
        before = library.pre_tokenizer
        counts.update([clean] if before is None else [word for word, _ in before.pre_tokenize_str(clean)])
    return counts


def grid(most: int) -> Iterable[int]:
    """0, 1, 2, 5, 10, 20, 50, … and the last.

    >>> list(grid(24))
    [0, 1, 2, 5, 10, 20, 24]
    """
    steps = [d * 10**k for k in range(len(str(most))) for d in (1, 2, 5)]
    return [0, *(k for k in steps if k < most), most]
