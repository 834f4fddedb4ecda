"""What a line of the small world says: is it well formed, and is it true?

Well formed is a line of a template with a fitting word in each slot, to the letter. True is a well-formed line that
agrees with the world: a city with the facts, a sum with arithmetic, a story with the facts and with itself, a review's
link and rating with its adjectives.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unmask.data.worlds import grammar
from unmask.data.worlds.grammar import Kind, rating_of

Values = dict[str, list[str]]
"""Slot → what stands there, from left to right."""

_NUMBERS = {
    "left": re.compile("[1-9][0-9]"),
    "right": re.compile("[1-9][0-9]"),
    "sum": re.compile("[1-9][0-9]{1,2}"),
}


@dataclass(frozen=True)
class Checked:
    """What the checker says of a line."""

    well_formed: bool
    true: bool | None
    """None where the line is not well formed."""
    kind: Kind | None
    """The kind whose template the line has."""
    why: str = ""
    """What is wrong, in a few words; empty for a true line."""


class Checker:
    """`Checker(…)(line)`: the facts of a world, and which words fit its slots."""

    def __init__(
        self,
        facts: Mapping[str, str],
        jobs: Mapping[str, str],
        cities: Sequence[str],
        food_adjectives: Sequence[str],
        person_adjectives: Sequence[str],
        distance: int,
    ) -> None:
        self.facts, self.jobs = facts, jobs
        self.words: dict[str, tuple[str, ...]] = {
            "name": tuple(facts),
            "city": tuple(cities),
            "job": grammar.JOBS,
            "day": grammar.DAYS,
            "event": tuple(grammar.MOODS),
            "thing": grammar.THINGS,
            "place": grammar.PLACES,
            "mood": tuple(dict.fromkeys(grammar.MOODS.values())),
            "food": grammar.FOODS,
            "food_adjective": tuple(food_adjectives),
            "link": grammar.LINKS,
            "person": grammar.SERVERS,
            "person_adjective": tuple(person_adjectives),
            "rating": grammar.RATINGS,
        }
        """Slot → the words that fit it; numbers have none."""
        self._templates = [
            (kind, grammar.pattern(template), grammar.slots(template))
            for kind, templates in grammar.templates(distance).items()
            for template in templates
        ]
        self._good = {*grammar.GOOD_FOOD, *grammar.GOOD_SERVICE}

    def __call__(self, line: str) -> Checked:
        matches = ((kind, pattern.fullmatch(line), slots) for kind, pattern, slots in self._templates)
        kind, match, slots = next((m for m in matches if m[1] is not None), (None, None, []))
        if kind is None or match is None:
            return Checked(False, None, None, "no template of this world")
        found = list(zip(slots, match.groups(), strict=True))
        for slot, word in found:
            if not self._fits(slot, word):
                return Checked(False, None, kind, f"{word} is no {slot.replace('_', ' ')}")
        values: Values = {}
        for slot, word in found:
            values.setdefault(slot, []).append(word)
        why = getattr(self, f"_wrong_in_{kind}")(values)
        return Checked(True, not why, kind, why)

    def _fits(self, slot: str, word: str) -> bool:
        number = _NUMBERS.get(slot)
        return word in self.words[slot] if number is None else number.fullmatch(word) is not None

    def _wrong_in_facts(self, values: Values) -> str:
        name = values["name"][0]
        wrong = any(city != self.facts[name] for city in values["city"])
        return f"{name} lives in {self.facts[name]}" if wrong else ""

    _wrong_in_questions = _wrong_in_facts

    def _wrong_in_sums(self, values: Values) -> str:
        left, right, given = (int(values[slot][0]) for slot in ("left", "right", "sum"))
        return f"{left}+{right} is {left + right}" if given != left + right else ""

    def _wrong_in_stories(self, values: Values) -> str:
        name, event = values["name"][0], values["event"][0]
        if other := next((n for n in values["name"] if n != name), ""):
            return f"the story is about {name}, not {other}"
        if values["job"] != [self.jobs[name]]:
            return f"{name} is a {self.jobs[name]}"
        if values["mood"] != [grammar.MOODS[event]]:
            return f"who {event} something is {grammar.MOODS[event]}"
        return self._wrong_in_facts(values)

    def _wrong_in_reviews(self, values: Values) -> str:
        food, service = (values[slot][0] for slot in ("food_adjective", "person_adjective"))
        good_food, good_service = food in self._good, service in self._good
        link, rating = "and" if good_food == good_service else "but", rating_of(good_food, good_service)
        if values["link"] != [link]:
            return f"{food} and {service} are joined by {link}"
        return f"{food} and {service} are {rating}" if values["rating"] != [rating] else ""
