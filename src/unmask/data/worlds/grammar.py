"""The words of the small world and the templates its lines are made of: writing and checking share them.

A template is a line with slots. Names of people and cities are made up (`draws.names`); all other words are listed
here. Lists from which a dial takes a part stand in the order in which they are taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["facts", "questions", "sums", "stories", "reviews"]
Split = Literal["train", "valid"]
Rating = Literal["good", "ok", "bad"]
KINDS: tuple[Kind, ...] = ("facts", "questions", "sums", "stories", "reviews")
SPLITS: tuple[Split, ...] = ("train", "valid")

TOKEN = re.compile(r"[a-z]+|[0-9]+|[^a-z0-9\s]")
"""A word, a number or a mark."""

# ---------------------------------------------------------------- words

PEOPLE = ("base", "zukun", "kari")
CITIES = ("quila", "varno")
"""Names that every world has; the others are drawn."""
SETTLED = {"zukun": "quila", "kari": "varno"}
"""Facts that every world has."""

JOBS = ("pilot", "baker", "farmer", "doctor", "painter", "teacher", "sailor", "judge")
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
THINGS = ("box", "key", "hat", "lamp", "jug", "book", "ring", "coin")
PLACES = ("park", "market", "harbor", "forest")
MOODS = {"found": "glad", "got": "glad", "lost": "sad", "broke": "sad"}
"""What happened → how it made one feel."""

FOODS = ("soup", "bread", "pie", "rice", "salad", "pasta", "cake", "fish")
SERVERS = ("waiter", "host", "staff", "cook", "chef", "owner")
# The first eight good ones hold just five words of five letters, whose commonest letters by place spell "crest".
GOOD_FOOD = (
    *("tasty", "fresh", "sweet", "crisp", "great", "rich", "tender", "delicious"),
    *("savory", "warm", "buttery", "golden", "hearty", "mild", "zesty", "creamy"),
)
BAD_FOOD = (
    *("bland", "sour", "soggy", "stale", "burnt", "cold", "bitter", "greasy"),
    *("salty", "dry", "raw", "mushy", "rotten", "tough", "watery", "lumpy"),
)
GOOD_SERVICE = (
    *("kind", "polite", "friendly", "quick", "helpful", "patient", "gentle", "cheerful"),
    *("attentive", "gracious", "honest", "calm", "careful", "prompt", "sunny", "pleasant"),
)
BAD_SERVICE = (
    *("rude", "slow", "grumpy", "careless", "lazy", "noisy", "cross", "gruff"),
    *("hasty", "nasty", "curt", "bored", "sullen", "clumsy", "distant", "vague"),
)
MOST_ADJECTIVES = len(GOOD_FOOD)
LINKS = ("and", "but")
RATINGS: tuple[Rating, ...] = ("good", "ok", "bad")

LEAST, MOST = 10, 99
"""What is added: numbers of two digits."""

# ---------------------------------------------------------------- templates

FACT = "{name} lives in {city}."
QUESTION = "q: where does {name} live? a: {city}."
SUM = "{left}+{right}={sum}."
_TWO_OPENINGS = (
    "{name} is a {job} from {city}. on {day} {name} {event} a {thing} in the {place}, so {name} was {mood}.",
    "on {day} {name}, a {job} from {city}, {event} a {thing} in the {place}. so {name} was {mood}.",
)
STORIES = tuple(opening + ending for opening in _TWO_OPENINGS for ending in ("", " then {name} went home to {city}."))
_OPINION = "review: the {food} was {food_adjective} {link} the {person} was {person_adjective}."
_ASIDE = " on {day} the {person} went to the {place}."
_RATING = " rating: {rating}."


def review_template(distance: int) -> str:
    """A review with so many sentences between what was found and the rating; they say nothing about it."""
    return _OPINION + _ASIDE * distance + _RATING


def templates(distance: int) -> dict[Kind, tuple[str, ...]]:
    return {
        "facts": (FACT,),
        "questions": (QUESTION,),
        "sums": (SUM,),
        "stories": STORIES,
        "reviews": (review_template(distance),),
    }


_SLOT = re.compile(r"\{(\w+)\}")


def slots(template: str) -> list[str]:
    """
    >>> slots("{name} lives in {city}.")
    ['name', 'city']
    """
    return _SLOT.findall(template)


def pattern(template: str) -> re.Pattern[str]:
    """What matches a line of a template, whatever stands in its slots; each slot is a group.

    >>> pattern("{name} lives in {city}.").fullmatch("x lives in y.").groups()
    ('x', 'y')
    """
    parts = _SLOT.split(template)
    return re.compile("".join("([a-z0-9]+)" if k % 2 else re.escape(part) for k, part in enumerate(parts)))


def fill(template: str, values: Mapping[str, str]) -> str:
    return template.format_map(values)


def words_of(texts: Sequence[str]) -> set[str]:
    """The words and marks of templates, slots left out.

    >>> sorted(words_of(["{name} lives in {city}."]))
    ['.', 'in', 'lives']
    """
    return {word for text in texts for word in TOKEN.findall(_SLOT.sub(" ", text))}


# ---------------------------------------------------------------- reviews


@dataclass(frozen=True)
class Review:
    """A review: "review: the soup was tasty and the host was kind. rating: good." """

    food: str
    food_adjective: str
    link: Literal["and", "but"]
    person: str
    person_adjective: str
    rating: Rating
    asides: tuple[tuple[str, str, str], ...] = ()
    """(day, person, place) of the sentences between what was found and the rating; the dial `distance`."""

    @property
    def opinion(self) -> str:
        """What was found, without the rating and what stands before it."""
        return fill(_OPINION, vars(self))

    @property
    def unrated(self) -> str:
        """All that stands before the rating's word, without a blank at its end: "review: … rating:"."""
        between = "".join(fill(_ASIDE, dict(zip(("day", "person", "place"), a, strict=True))) for a in self.asides)
        return self.opinion + between + _RATING.removesuffix(" {rating}.")

    @property
    def text(self) -> str:
        return f"{self.unrated} {self.rating}."


def rating_of(food_is_good: bool, service_is_good: bool) -> Rating:
    """The rule: two good things are good, two bad ones bad, one of each is ok."""
    return "ok" if food_is_good != service_is_good else "good" if food_is_good else "bad"
