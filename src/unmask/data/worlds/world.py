"""The small world: its dials, what holds in it, its lines and its texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal

import numpy as np

from unmask.data.worlds import draws, grammar
from unmask.data.worlds.check import Checked, Checker
from unmask.data.worlds.grammar import KINDS, SPLITS, Kind, Review, Split
from unmask.data.worlds.vocabulary import SENTINELS, character_tokenizer, word_tokenizer
from unmask.errors import UserError, nearest
from unmask.tokens.tokenizer import Tokenizer

_BOUNDS: dict[str, tuple[float, float]] = {
    "people_count": (3, 1000),
    "city_count": (2, 200),
    "fact_repeats": (1, 10_000),
    "question_repeats": (0, 10_000),
    "asked_share": (0, 1),
    "sum_count": (0, 8100),
    "story_count": (0, 100_000),
    "review_count": (0, 100_000),
    "valid_share": (0, 0.5),
    "adjective_count": (2, grammar.MOST_ADJECTIVES),
    "probe_count": (1, grammar.MOST_ADJECTIVES - 1),
    "but_share": (0, 1),
    "rating_noise": (0, 1),
    "distance": (0, 20),
}


@dataclass(frozen=True)
class World:
    """A world is its seed and its dials; the defaults are the frozen one that the laboratories are about.

    >>> world = World()
    >>> world.facts["zukun"], world.check("zukun lives in quila.").true, world.check("12+13=26.").why
    ('quila', True, '12+13 is 25')
    """

    seed: int = 0
    people_count: int = 42
    city_count: int = 12
    fact_repeats: int = 26
    """How often the training text states each fact."""
    question_repeats: int = 20
    """How often it asks each question it asks at all."""
    asked_share: float = 0.8
    """Share of the people about whom the training text asks; the held-out questions are about the others."""
    sum_count: int = 2100
    unseen_sums: tuple[int, ...] = (195, 196, 198)
    """Results that no sum has, so that a number can be unseen."""
    story_count: int = 420
    review_count: int = 1897
    valid_share: float = 0.1
    """Of sums, stories and reviews: the share that is held out, beside the training lines that are counted above."""
    adjective_count: int = 8
    """Good ones, and as many bad ones, for food, and the same for people."""
    probe_count: int = 4
    """Good and as many bad food adjectives that no labelled review of a probe holds."""
    but_share: float = 0.5
    """Share of reviews whose adjectives disagree."""
    rating_noise: float = 0.0
    """Share of reviews whose rating is not what their adjectives say."""
    distance: int = 0
    """Sentences between the adjectives and the rating that say nothing about either."""

    def __post_init__(self) -> None:
        for field in fields(World):
            _check_type(field.name, getattr(self, field.name), field.default)
        for name, (low, high) in _BOUNDS.items():
            if not low <= getattr(self, name) <= high:
                raise UserError(f"a world's {name}={getattr(self, name)} must lie between {low:g} and {high:g}")
        if self.city_count > self.people_count:
            raise UserError(
                f"a world's city_count={self.city_count} must be at most its people_count={self.people_count}: "
                "somebody lives in every city"
            )
        if self.probe_count >= self.adjective_count:
            raise UserError(
                f"a world's probe_count={self.probe_count} must be below its adjective_count={self.adjective_count}: "
                "some adjectives must be left for the labels"
            )

    @staticmethod
    def dials() -> list[str]:
        """Names of all settings, the seed first."""
        return [f.name for f in fields(World)]

    # ------------------------------------------------------------ what holds

    @cached_property
    def people(self) -> tuple[str, ...]:
        taken = grammar.words_of(_own_words()) | set(grammar.CITIES)
        return draws.names(self.seed, "people", self.people_count, taken)

    @cached_property
    def cities(self) -> tuple[str, ...]:
        taken = grammar.words_of(_own_words()) | set(self.people)
        return draws.names(self.seed, "cities", self.city_count, taken)

    @cached_property
    def facts(self) -> dict[str, str]:
        """Who lives where."""
        return draws.homes(self.seed, self.people, self.cities)

    @cached_property
    def jobs(self) -> dict[str, str]:
        """What each does; only stories say it."""
        which = draws.below(self.seed, "jobs", np.arange(self.people_count), len(grammar.JOBS))
        return dict(zip(self.people, (grammar.JOBS[k] for k in which), strict=True))

    @cached_property
    def food_adjectives(self) -> tuple[str, ...]:
        """The good ones, then the bad ones: the candidates of a gap."""
        return grammar.GOOD_FOOD[: self.adjective_count] + grammar.BAD_FOOD[: self.adjective_count]

    @cached_property
    def person_adjectives(self) -> tuple[str, ...]:
        return grammar.GOOD_SERVICE[: self.adjective_count] + grammar.BAD_SERVICE[: self.adjective_count]

    @cached_property
    def probe_adjectives(self) -> tuple[str, ...]:
        """Food adjectives, half of them good, that are kept out of the labels of a probe (`probe`)."""
        n = self.adjective_count
        kept = (draws.shuffled(self.seed, f"probes {k}", self.food_adjectives[k * n : (k + 1) * n]) for k in range(2))
        return tuple(word for words in kept for word in words[: self.probe_count])

    def positive(self, adjective: str) -> bool:
        """Is it a good thing to be said?"""
        known = self.food_adjectives + self.person_adjectives
        if adjective not in known:
            raise UserError(f"'{adjective}' is no adjective of this world{nearest(adjective, known)}")
        return adjective in grammar.GOOD_FOOD or adjective in grammar.GOOD_SERVICE

    # ------------------------------------------------------------ lines

    def lines(self, kind: Kind, split: Split) -> list[str]:
        """The lines of a kind, without their line ends, in the order they are drawn."""
        _known("kind of line", kind, KINDS)
        _known("split", split, SPLITS)
        if kind == "reviews":
            return [review.text for review in self.reviews(split)]
        make = {
            "facts": self._fact_lines,
            "questions": self._question_lines,
            "sums": self._sum_lines,
            "stories": self._story_lines,
        }
        return make[kind](split)

    def text(self, kinds: Iterable[Kind] = KINDS, split: Split = "train") -> str:
        """The lines of these kinds, shuffled, each with its line end."""
        lines = [line for kind in kinds for line in self.lines(kind, split)]
        return "".join(line + "\n" for line in draws.shuffled(self.seed, f"text {split}", lines))

    def reviews(self, split: Split) -> list[Review]:
        """The reviews of a split; no review stands in both, nor in the ones of `probe`."""
        _known("split", split, SPLITS)
        start, stop = self._range(self.review_count, split)
        if self._drawn(self.review_count) > len(self._reviews):
            raise UserError(
                f"a world's review_count={self.review_count} is too large: with adjective_count="
                f"{self.adjective_count} and but_share={self.but_share:g} it has {len(self._reviews):,} reviews, "
                f"{int(len(self._reviews) * (1 - self.valid_share)):,} of them for training"
            )
        return self._reviews[start:stop]

    def probe(self, side: Literal["labelled", "test"], count: int, draw: int = 0) -> list[Review]:
        """Reviews to read the food's polarity from a representation; they stand in no text.

        Those to learn from ("labelled") hold no probe adjective, those to test on ("test") hold nothing else: what the
        labels say does not tell a test word's side. Give a model `Review.opinion`: the rating would tell.
        """
        _known("side of a probe", side, ("labelled", "test"))
        spare = self._reviews[self._drawn(self.review_count) :]
        held = set(self.probe_adjectives)
        fitting = [review for review in spare if (review.food_adjective in held) == (side == "test")]
        if count > len(fitting):
            raise UserError(f"this world has {len(fitting):,} reviews for side={side} of a probe, not {count:,}")
        return [fitting[k] for k in draws.order(self.seed, f"probe {side} {draw}", len(fitting), 0, count)]

    def check(self, line: str) -> Checked:
        """Is a line (without its line end) well formed, and is it true?"""
        return self._checker(line)

    # ------------------------------------------------------------ tokens

    def words(self) -> list[str]:
        """The closed vocabulary: marks, words by spelling, numbers by size; line ends are no part of it."""
        slots = (word for words in self._checker.words.values() for word in words)
        every = grammar.words_of([t for ts in grammar.templates(self.distance).values() for t in ts]) | set(slots)
        sums = {a + b for a in self._operands for b in self._operands} - set(self.unseen_sums)
        numbers = sorted(sums | set(self._operands))
        marks = sorted(word for word in every if not word.isalnum())
        return [*marks, *sorted(every - set(marks)), *map(str, numbers)]

    def symbols(self) -> list[str]:
        """The characters of the text by code point, the line end among them."""
        return sorted({"\n", " ", *"".join(self.words())})

    def tokenizer(
        self, kind: Literal["word", "char"], sentinels: int = SENTINELS, extra: Sequence[str] = ()
    ) -> Tokenizer:
        """word: words, marks, the line end and control tokens, 362 entries by default (`vocabulary.word_tokenizer`).
        char: the symbols, 44 entries, whose line end opens and closes a text (`vocabulary.character_tokenizer`)."""
        _known("kind of tokenizer", kind, ("word", "char"))
        return word_tokenizer(self.words(), sentinels, extra) if kind == "word" else character_tokenizer(self.symbols())

    # ------------------------------------------------------------ inside

    @property
    def _operands(self) -> range:
        return range(grammar.LEAST, grammar.MOST + 1)

    @cached_property
    def _checker(self) -> Checker:
        return Checker(self.facts, self.jobs, self.cities, self.food_adjectives, self.person_adjectives, self.distance)

    @cached_property
    def _reviews(self) -> list[Review]:
        return draws.reviews(self.seed, self.adjective_count, self.but_share, self.rating_noise, self.distance)

    def _range(self, number: int, split: Split) -> tuple[int, int]:
        """Which of the drawn lines a split holds, where the training text holds `number`."""
        return (0, number) if split == "train" else (number, self._drawn(number))

    def _drawn(self, number: int) -> int:
        """How many lines both splits hold, where the training text holds `number`."""
        return round(number / (1 - self.valid_share))

    def _fact_lines(self, split: Split) -> list[str]:
        """Every fact, in training many times: what is stated nowhere cannot be known."""
        lines = [grammar.fill(grammar.FACT, {"name": name, "city": city}) for name, city in self.facts.items()]
        return draws.shuffled(self.seed, f"facts {split}", lines * (self.fact_repeats if split == "train" else 1))

    def _question_lines(self, split: Split) -> list[str]:
        people = draws.shuffled(self.seed, "asked", self.people)
        asked = round(self.asked_share * len(people))
        chosen = people[:asked] * self.question_repeats if split == "train" else people[asked:]
        lines = [grammar.fill(grammar.QUESTION, {"name": name, "city": self.facts[name]}) for name in chosen]
        return draws.shuffled(self.seed, f"questions {split}", lines)

    def _sum_lines(self, split: Split) -> list[str]:
        pairs = draws.sums(self.seed, self.unseen_sums)
        start, stop = self._range(self.sum_count, split)
        _enough("sum_count", self.sum_count, self._drawn(self.sum_count), len(pairs))
        lines = [
            grammar.fill(grammar.SUM, {"left": str(a), "right": str(b), "sum": str(a + b)})
            for a, b in pairs[start:stop].tolist()
        ]
        return draws.shuffled(self.seed, f"sums {split}", lines)

    def _story_lines(self, split: Split) -> list[str]:
        start, stop = self._range(self.story_count, split)
        there = int(np.prod(draws.story_sizes(self.people_count)))
        _enough("story_count", self.story_count, self._drawn(self.story_count), there)
        return draws.stories(self.seed, self.facts, self.jobs, start, stop)


def _own_words() -> list[str]:
    """All words that any world may hold: no name is one of them."""
    lists = (grammar.JOBS, grammar.DAYS, grammar.THINGS, grammar.PLACES, grammar.MOODS, grammar.MOODS.values())
    reviews = (grammar.FOODS, grammar.SERVERS, grammar.LINKS, grammar.RATINGS)
    adjectives = (grammar.GOOD_FOOD, grammar.BAD_FOOD, grammar.GOOD_SERVICE, grammar.BAD_SERVICE)
    templates = (template for kind in grammar.templates(1).values() for template in kind)
    return [*templates, *(word for words in (*lists, *reviews, *adjectives) for word in words)]


def _check_type(name: str, value: object, default: object) -> None:
    """A whole number, a number, or a tuple of whole numbers, as the default is."""
    whole = type(value) is int
    if isinstance(default, tuple):
        fits, what = isinstance(value, tuple) and all(type(v) is int for v in value), "a list of whole numbers"
    elif isinstance(default, float):
        fits, what = whole or type(value) is float, "a number"
    else:
        fits, what = whole, "a whole number"
    if not fits:
        raise UserError(f"a world's {name}={value!r} must be {what}, such as {default}")


def _known(what: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise UserError(f"no such {what}: '{value}'; choose {', '.join(known)}{nearest(value, known)}")


def _enough(dial: str, value: int, needed: int, there: int) -> None:
    if needed > there:
        raise UserError(
            f"a world's {dial}={value} is too large: with what is held out it needs {needed:,} different lines, and "
            f"there are {there:,}"
        )
