"""Why masking characters teaches spelling: what a masked character's own word tells, and what happens without it.

A masked character is decided by its own word when all words of the vocabulary that have this length and these visible
letters agree on it. Blanks stay visible, so a word's length is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from unmask import keyed
from unmask.batch import Rows
from unmask.data.worlds import World
from unmask.data.worlds.grammar import TOKEN
from unmask.objectives.masked import Masked
from unmask.tokens.special import ROLES, Vocabulary

RATE = 0.15
RATES = (0.15, 0.3, 0.4, 0.5, 0.75)
LETTERS = 5
"""Of the adjectives that the gap may hold, in the notes' example."""


def undecided(word: str, known: Sequence[str]) -> np.ndarray:
    """(2 ** n,) bits: for each set of hidden places (bit j = place j), those that the visible letters leave open.

    >>> undecided("an", ["an", "in", "at"]).tolist()  # an → _n, a_, __
    [0, 1, 2, 3]
    >>> undecided("an", ["an", "to"]).tolist()  # one letter of two is enough
    [0, 0, 0, 3]
    """
    others = np.array([[c != d for c, d in zip(word, w, strict=True)] for w in known if len(w) == len(word)], bool)
    differ = others.astype(np.int64) @ (1 << np.arange(len(word)))  # (W,) bits
    hidden = np.arange(1 << len(word))
    fits = (differ[None] & ~hidden[:, None]) == 0  # (2 ** n, W)
    return np.bitwise_or.reduce(np.where(fits, differ[None], 0), axis=1) & hidden


def decided_share(words: Mapping[str, int], known: Sequence[str], rate: float) -> float:
    """Of all masked characters of a text, the expected share that their own words decide.

    words: how often each occurs; every character is masked by itself, with this rate.

    >>> round(decided_share({"an": 1}, ["an", "to"], 0.5), 6)  # of (0, 1, 1, 2) masked (0, 1, 1, 0) are decided
    0.5
    """
    decided = masked = 0.0
    for word, count in words.items():
        hidden, size = np.arange(1 << len(word)), _ones(np.arange(1 << len(word)))
        chance = rate**size * (1 - rate) ** (len(word) - size)
        decided += count * float(chance @ _ones(hidden & ~undecided(word, known)))
        masked += count * rate * len(word)
    return decided / masked


def _ones(bits: np.ndarray) -> np.ndarray:
    """How many bits are set in each number."""
    return np.asarray(((bits[:, None] >> np.arange(16)) & 1).sum(1))


def decided_count(lines: Sequence[str], known: Sequence[str], seed: int) -> tuple[int, int]:
    """Counted: characters of words that `Masked` hides at `RATE` in the lines, and those of them that are decided."""
    names = [*ROLES.values(), *sorted(set("".join(lines)))]
    vocabulary = Vocabulary.of({name: k for k, name in enumerate(names)})
    number = {name: k for k, name in enumerate(names)}
    rows = Rows.of(
        [[number[c] for c in line] for line in lines], keyed.row_keys(seed, 0, np.arange(len(lines)), "noise")
    )
    found = Masked(selection="independent", mask_rate=RATE)(rows, vocabulary)
    hidden = np.zeros(len(found.stream.tokens), bool)
    hidden[found.targets["lm"].index] = True
    open_: dict[str, np.ndarray] = {}
    masked = decided = 0
    start = found.stream.start
    assert start is not None
    for line, first in zip(lines, start[:-1].tolist(), strict=True):
        for match in TOKEN.finditer(line):
            word = match[0]
            if word not in open_:
                open_[word] = undecided(word, known)
            at = first + 1 + match.start()  # behind [CLS]
            bits = int(hidden[at : at + len(word)] @ (1 << np.arange(len(word))))
            masked += bits.bit_count()
            decided += (bits & ~int(open_[word][bits])).bit_count()
    return masked, decided


@dataclass(frozen=True)
class Spelt:
    """Answers to a hidden word, each place by itself, though each is right about its own place."""

    words: dict[str, Fraction]
    """What may stand there, and how likely each is."""
    marginals: tuple[dict[str, Fraction], ...]
    """Of each place: letter → its probability."""
    likeliest: str
    """The likeliest letter of every place; of equally likely ones the first of the alphabet."""
    right: Fraction
    """How likely letters drawn place by place spell one of the words."""


def spelt(words: Mapping[str, int]) -> Spelt:
    """
    >>> found = spelt({"tasty": 1, "fresh": 1, "sweet": 1, "crisp": 1, "great": 1})
    >>> found.likeliest, str(found.right)
    ('crest', '49/3125')
    """
    total = sum(words.values())
    chances = {word: Fraction(n, total) for word, n in words.items()}
    length = len(next(iter(words)))
    marginals = []
    for place in range(length):
        here: Counter[str] = Counter()
        for word, n in words.items():
            here[word[place]] += n
        marginals.append({letter: Fraction(here[letter], total) for letter in sorted(here)})
    right = Fraction()
    for word in words:
        drawn = Fraction(1)
        for place, letter in enumerate(word):
            drawn *= marginals[place][letter]
        right += drawn
    return Spelt(chances, tuple(marginals), "".join(max(m, key=m.__getitem__) for m in marginals), right)


@dataclass(frozen=True)
class Characters:
    """What one world shows."""

    expected: dict[tuple[str, str], dict[float, float]]
    """(which characters, among which words) → mask rate → share of them, masked, that their own words decide."""
    masked: int
    """Counted in the reviews at `RATE`."""
    decided: int
    even: Spelt
    """The five-letter good adjectives for food, as likely as each other."""
    counted: Spelt
    """The same, as often as the training reviews hold them."""
    is_word: dict[str, bool]
    """Whether the likeliest spellings are words of the world."""


LETTERS_OF_REVIEWS, ALL_OF_REVIEWS, ALL = "letters of reviews", "letters and marks of reviews", "all lines"
WORLD, THEIR_OWN = "all words of the world", "the words of reviews"


def characters(world: World, seed: int) -> Characters:
    known, reviews = world.words(), world.lines("reviews", "train")
    in_reviews, everywhere = (
        Counter(m[0] for line in lines for m in TOKEN.finditer(line)) for lines in (reviews, world.text().splitlines())
    )
    letters = {word: n for word, n in in_reviews.items() if word.isalpha()}
    asked = {
        (LETTERS_OF_REVIEWS, THEIR_OWN): (letters, list(in_reviews)),
        (LETTERS_OF_REVIEWS, WORLD): (letters, known),
        (ALL_OF_REVIEWS, WORLD): (in_reviews, known),
        (ALL, WORLD): (everywhere, known),
    }
    expected = {
        name: {rate: decided_share(words, among, rate) for rate in RATES} for name, (words, among) in asked.items()
    }
    masked, decided = decided_count(reviews, known, seed)
    short = [w for w in world.food_adjectives if len(w) == LETTERS and world.positive(w)]
    often = Counter(review.food_adjective for review in world.reviews("train"))
    even, counted = spelt(dict.fromkeys(short, 1)), spelt({w: often[w] for w in short})
    is_word = {s.likeliest: s.likeliest in known for s in (even, counted)}
    return Characters(expected, masked, decided, even, counted, is_word)
