"""How much of an evaluation text stands in a corpus, by n-grams of words (Brown et al. 2020, appendix C).

Case, punctuation and white space are ignored. n is the 5th percentile of the evaluation documents' lengths in
words, but at least 8 and at most 13, as there; a document with fewer words is not judged. A document is found if
any of its n-grams stands in the corpus. n-grams are compared as 64-bit numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from unmask.errors import UserError

LEAST, MOST = 8, 13
_BASE = np.uint64(0x9E3779B97F4A7C15)
_EAST = "\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_EAST}]|[^\W_{_EAST}]+")


@dataclass(frozen=True)
class Found:
    """What of an evaluation text a corpus holds."""

    n: int
    documents: int
    """Documents of at least n words."""
    short: int
    """Documents with fewer words, not judged."""
    documents_found: int
    document_share: float
    ngrams: int
    """Distinct n-grams of the evaluation text."""
    ngrams_found: int
    ngram_share: float


class Overlap:
    """The n-grams of an evaluation text, and which of them were met so far: 9 bytes each, and 16 for each place."""

    def __init__(self, texts: Iterable[str]) -> None:
        words = [words_of(text) for text in texts]
        lengths = np.array([len(w) for w in words if w])
        if not len(lengths):
            raise UserError("the evaluation text to compare with has no words")
        self.n = int(np.clip(np.percentile(lengths, 5), LEAST, MOST))
        self.vocabulary = {word: k for k, word in enumerate(dict.fromkeys(w for ws in words for w in ws), 1)}
        judged = [w for w in words if len(w) >= self.n]
        self.documents, self.short = len(judged), len(lengths) - len(judged)
        grams = [self._grams(self._ids([w])) for w in judged]
        every = np.concatenate([np.zeros(0, np.uint64), *grams])
        self.document = np.repeat(np.arange(len(grams)), [len(g) for g in grams])  # (G,) of every n-gram's place
        self.numbers, self.number = np.unique(every, return_inverse=True)
        self.met = np.zeros(len(self.numbers), bool)

    def add(self, texts: Sequence[str]) -> None:
        """Look for the n-grams in texts of the corpus; none reaches over the end of one."""
        grams = self._grams(self._ids([words_of(text) for text in texts]))
        if len(grams) and len(self.numbers):
            place = np.minimum(np.searchsorted(self.numbers, grams), len(self.numbers) - 1)
            self.met[place[self.numbers[place] == grams]] = True

    def result(self) -> Found:
        documents = len(np.unique(self.document[self.met[self.number]]))
        ngrams, met = len(self.numbers), int(self.met.sum())
        return Found(
            self.n,
            self.documents,
            self.short,
            documents,
            documents / max(1, self.documents),
            ngrams,
            met,
            met / max(1, ngrams),
        )

    def _ids(self, documents: Sequence[Sequence[str]]) -> np.ndarray:
        """(n,) int64: numbers of the words in the evaluation text's vocabulary, 0 for others and between documents."""
        get = self.vocabulary.get
        ids = [get(word, 0) for words in documents for word in (*words, "")]
        return np.array(ids, np.int64)

    def _grams(self, ids: np.ndarray) -> np.ndarray:
        """(g,) uint64: a number for each run of n words that all are in the vocabulary."""
        count = len(ids) - self.n + 1
        if count <= 0:
            return np.zeros(0, np.uint64)
        unknown = np.concatenate([[0], np.cumsum(ids == 0)])
        starts = np.flatnonzero(unknown[self.n :] == unknown[: -self.n])
        mixed = ids.astype(np.uint64) * _BASE
        mixed ^= mixed >> np.uint64(29)
        number = np.zeros(len(starts), np.uint64)
        for k in range(self.n):
            number = (number ^ (number >> np.uint64(31))) * _BASE + mixed[starts + k]
        return number


def words_of(text: str) -> list[str]:
    """Words of letters and digits, in lower case; a Chinese or Japanese character is one.

    >>> words_of("It's GPT-3, 是吗?")
    ['it', 's', 'gpt', '3', '是', '吗']
    """
    return _WORD.findall(text.lower())
