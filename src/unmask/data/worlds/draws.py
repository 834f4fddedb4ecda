"""Which lines a world draws: each a pure function of (seed, purpose, place), by `unmask.keyed`.

What must not repeat (stories, sums, reviews) is dealt from its whole space by a keyed permutation: the first draws are
the training split, the next ones the held-out split, so no line stands in both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import count, islice
from typing import Literal, TypeVar

import numpy as np

from unmask import keyed
from unmask.data.worlds import grammar
from unmask.data.worlds.grammar import LEAST, MOST, Review, rating_of

T = TypeVar("T")
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"


def key(seed: int, purpose: str) -> np.ndarray:
    """() uint64."""
    return keyed.row_keys(seed, 0, 0, f"world {purpose}")


def below(seed: int, purpose: str, places: np.ndarray, limit: int) -> np.ndarray:
    """int64 in [0, limit) at each place."""
    return keyed.below(keyed.bits(key(seed, purpose), places), limit)


def chance(seed: int, purpose: str, places: np.ndarray) -> np.ndarray:
    """float64 in [0, 1) at each place."""
    return keyed.uniform(key(seed, purpose), places)


def order(seed: int, purpose: str, size: int, start: int = 0, stop: int | None = None) -> np.ndarray:
    """The places [start, stop) of a permutation of range(size)."""
    return keyed.permuted(np.arange(start, size if stop is None else stop), size, key(seed, purpose))


def shuffled(seed: int, purpose: str, items: Sequence[T]) -> list[T]:
    return [items[k] for k in order(seed, purpose, len(items))] if items else []


def mixed(numbers: np.ndarray, sizes: Sequence[int]) -> Iterator[list[int]]:
    """Each number as digits, the last the fastest, each below its own size.

    >>> list(mixed(np.array([0, 5]), (2, 3)))
    [[0, 0], [1, 2]]
    """
    return iter(np.stack(np.unravel_index(numbers, tuple(sizes)), 1).tolist())


# ---------------------------------------------------------------- people and cities


def names(seed: int, what: Literal["people", "cities"], number: int, taken: Collection[str]) -> tuple[str, ...]:
    """Made-up names, none of them taken: those every world has, then drawn ones (pimu, dolas; hatro, belvun)."""
    first = grammar.PEOPLE if what == "people" else grammar.CITIES

    def drawn() -> Iterator[str]:
        known = {*taken, *first}
        for k in count():
            if (name := _name(seed, what, k)) not in known:
                known.add(name)
                yield name

    return (*first, *islice(drawn(), number - len(first)))[:number]


def _name(seed: int, what: str, k: int) -> str:
    """Two syllables; the first one of a city is closed, and half of all last ones are."""
    city = what == "cities"
    parts = (_CONSONANTS, _VOWELS, "lnrs" if city else " ", _CONSONANTS, "ao" if city else _VOWELS, "nrlsk     ")
    drawn = (below(seed, f"name of {what}", np.asarray(len(parts) * k + j), len(p)) for j, p in enumerate(parts))
    return "".join(part[int(d)] for part, d in zip(parts, drawn, strict=True)).replace(" ", "")


def homes(seed: int, people: Sequence[str], cities: Sequence[str]) -> dict[str, str]:
    """Who lives where: as many people in each city as in any other, or one more; and `grammar.SETTLED`."""
    where = [cities[k % len(cities)] for k in order(seed, "homes", len(people)).tolist()]
    for name, city in grammar.SETTLED.items():
        mine, other = people.index(name), where.index(city)
        where[mine], where[other] = where[other], where[mine]
    return dict(zip(people, where, strict=True))


# ---------------------------------------------------------------- sums and stories


def sums(seed: int, unseen: Collection[int]) -> np.ndarray:
    """(n, 2) int64, all pairs of two-digit numbers whose sum is not among `unseen`, in the order they are drawn.

    The first pairs hold each sum once, so that a training text holds every number that may occur.
    """
    numbers = np.arange(LEAST, MOST + 1)
    pairs = np.stack(np.meshgrid(numbers, numbers, indexing="ij"), -1).reshape(-1, 2)
    pairs = pairs[~np.isin(pairs.sum(1), list(unseen))]
    pairs = pairs[order(seed, "sums", len(pairs))]
    first = np.sort(np.unique(pairs.sum(1), return_index=True)[1])
    rest = np.ones(len(pairs), bool)
    rest[first] = False
    return np.concatenate([pairs[first], pairs[rest]])


def story_sizes(people: int) -> tuple[int, ...]:
    """How many values each choice of a story has: template, name, day, event, thing, place."""
    return len(grammar.STORIES), people, *map(len, (grammar.DAYS, grammar.MOODS, grammar.THINGS, grammar.PLACES))


def stories(seed: int, facts: dict[str, str], jobs: dict[str, str], start: int, stop: int) -> list[str]:
    """The stories [start, stop) of all that could be told, in the order they are drawn."""
    people, events, sizes = list(facts), list(grammar.MOODS), story_sizes(len(facts))
    told = []
    for form, who, day, event, thing, place in mixed(order(seed, "stories", int(np.prod(sizes)), start, stop), sizes):
        name = people[who]
        values = {"name": name, "city": facts[name], "job": jobs[name], "day": grammar.DAYS[day]}
        values |= {"event": events[event], "mood": grammar.MOODS[events[event]]}
        values |= {"thing": grammar.THINGS[thing], "place": grammar.PLACES[place]}
        told.append(grammar.fill(grammar.STORIES[form], values))
    return told


# ---------------------------------------------------------------- reviews


def pool_sizes(adjectives: int) -> tuple[int, ...]:
    """The choices of a review whose link is given: food, person, is the food good, and both adjectives."""
    return len(grammar.FOODS), len(grammar.SERVERS), 2, adjectives, adjectives


def reviews(seed: int, adjectives: int, but_share: float, noise: float, distance: int) -> list[Review]:
    """All reviews a world can draw, no two alike, in the order they are drawn: until either link's pool is dealt."""
    sizes = pool_sizes(adjectives)
    pool = int(np.prod(sizes))
    but = chance(seed, "link", np.arange(2 * pool)) < but_share
    rank = np.where(but, np.cumsum(but), np.cumsum(~but)) - 1
    number = int(np.argmax(rank == pool)) if (rank == pool).any() else 2 * pool
    but, rank = but[:number], rank[:number]
    dealt = np.where(but, order(seed, "but", pool)[rank], order(seed, "and", pool)[rank])
    places = np.arange(number)
    wrong = chance(seed, "noise", places) < noise
    other = below(seed, "wrong rating", places, len(grammar.RATINGS) - 1)
    asides = _asides(seed, number, distance)
    return [
        _review(digits, bool(but[k]), int(other[k]) if wrong[k] else None, asides[k])
        for k, digits in enumerate(mixed(dealt, sizes))
    ]


def _review(digits: list[int], but: bool, wrong: int | None, asides: tuple[tuple[str, str, str], ...]) -> Review:
    food, person, bad, first, second = digits
    good_food = not bad
    good_service = good_food != but
    rating = rating_of(good_food, good_service)
    if wrong is not None:
        rating = [r for r in grammar.RATINGS if r != rating][wrong]
    return Review(
        food=grammar.FOODS[food],
        food_adjective=(grammar.GOOD_FOOD if good_food else grammar.BAD_FOOD)[first],
        link="but" if but else "and",
        person=grammar.SERVERS[person],
        person_adjective=(grammar.GOOD_SERVICE if good_service else grammar.BAD_SERVICE)[second],
        rating=rating,
        asides=asides,
    )


def _asides(seed: int, number: int, distance: int) -> list[tuple[tuple[str, str, str], ...]]:
    """For each review, the (day, person, place) of its sentences in between."""
    lists = (grammar.DAYS, grammar.SERVERS, grammar.PLACES)
    drawn = below(seed, "asides", np.arange(number * distance), int(np.prod([len(x) for x in lists])))
    each = [(lists[0][a], lists[1][b], lists[2][c]) for a, b, c in mixed(drawn, [len(x) for x in lists])]
    return [tuple(each[k * distance : (k + 1) * distance]) for k in range(number)]
