"""The worked examples of the lecture notes' first section and first two exercises, in exact fractions.

Merges and cuts are `tokens.bpe`'s, segmentations `tokens.unigram`'s; only their probabilities are multiplied here,
as fractions, where the library has logarithms.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from unmask.tokens import bpe
from unmask.tokens.bpe import Pair
from unmask.tokens.unigram import Pieces, Unigram


@dataclass(frozen=True)
class Merged:
    """A small corpus, its first merges, and a text cut by them."""

    corpus: str
    steps: tuple[tuple[str, int], ...]
    """What each merge makes, and how often its pair occurred when it was made."""
    vocabulary: tuple[str, ...]
    """Characters, then what the merges made."""
    asked: str
    cut: tuple[str, ...]
    """Blanks are tokens of their own: ␣."""


def merged(corpus: str, merges: int, asked: str) -> Merged:
    """BPE on the words of a corpus; of equally common pairs the one that stands first.

    >>> merged("low low low lower newest newest", 3, "lowest").cut
    ('low', 'e', 's', 't')
    """
    words = Counter(corpus.split())
    learnt = bpe.learn_merges(words, merges, ties="first")
    steps = tuple(("".join(pair), _count(words, learnt[:k], pair)) for k, pair in enumerate(learnt))
    cut: list[str] = []
    for k, word in enumerate(asked.split()):
        cut += ["␣"] * (k > 0) + bpe.encode(word, learnt)
    return Merged(corpus, steps, (*sorted(set("".join(words))), *(made for made, _ in steps)), asked, tuple(cut))


def _count(words: Mapping[str, int], merges: Sequence[Pair], pair: Pair) -> int:
    """How often a pair stands in the words as these merges cut them."""
    cuts = ((bpe.encode(word, merges), n) for word, n in words.items())
    return sum(n * list(pairwise(cut)).count(pair) for cut, n in cuts)


@dataclass(frozen=True)
class Segmented:
    """All segmentations of a string, the likeliest first."""

    text: str
    chances: Mapping[str, Fraction]
    """Of the pieces."""
    ways: tuple[tuple[Pieces, Fraction], ...]

    @property
    def likelihood(self) -> Fraction:
        """Of the string: the sum over its segmentations."""
        return sum((chance for _, chance in self.ways), Fraction())


MOST = 100
"""Segmentations of an example, and more than any here has."""


def segmented(text: str, chances: Mapping[str, Fraction]) -> Segmented:
    """Every segmentation under a unigram model, with its probability.

    >>> chances = {"a": Fraction(1, 8), "b": Fraction(1, 8), "c": Fraction(1, 4), "ab": Fraction(1, 2)}
    >>> [("|".join(pieces), str(p)) for pieces, p in segmented("abc", chances).ways]
    [('ab|c', '1/8'), ('a|b|c', '1/256')]
    """
    model = Unigram([(piece, math.log(p)) for piece, p in chances.items()])
    ways = [
        (pieces, math.prod((chances[p] for p in pieces), start=Fraction(1))) for pieces, _ in model.nbest(text, MOST)
    ]
    return Segmented(text, chances, tuple(ways))


def frequencies(pieces: Sequence[str]) -> dict[str, Fraction]:
    """The most likely probabilities of a segmentation's pieces: how often each occurs in it.

    >>> {piece: str(p) for piece, p in frequencies(("ab", "ab", "c")).items()}
    {'ab': '2/3', 'c': '1/3'}
    """
    return {piece: Fraction(n, len(pieces)) for piece, n in Counter(pieces).items()}


@dataclass(frozen=True)
class Examples:
    """All of them."""

    rat: Merged
    """the car, the cat, the rat."""
    lowest: Merged
    """low, lower, newest: exercise 1."""
    taught: Segmented
    """ababc under the frequencies of ab | ab | c."""
    listed: Segmented
    """ababc where a, b, c, ab have 1/8, 1/8, 1/4, 1/2."""
    shorter: Segmented
    """abc under the same: exercise 2."""


def examples() -> Examples:
    listed = {"a": Fraction(1, 8), "b": Fraction(1, 8), "c": Fraction(1, 4), "ab": Fraction(1, 2)}
    return Examples(
        rat=merged("the car the cat the rat", 3, "the ox"),
        lowest=merged("low low low lower newest newest", 3, "lowest"),
        taught=segmented("ababc", frequencies(("ab", "ab", "c"))),
        listed=segmented("ababc", listed),
        shorter=segmented("abc", listed),
    )
