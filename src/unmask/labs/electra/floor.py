"""The best any detector can do: the exact chance that a word was replaced, for one who knows the world and the noise.

A text x is drawn from the world, a set S of its places is selected, and what stands there is drawn anew by a generator
that reads the rest, so that c is seen. All who see c alone can know of the place t is

    P(t replaced | c) = Σ_x,S P(x) P(S) [x, c agree outside S] q(c_S | c outside S) [x_t ≠ c_t]  /  P(c)

with P(c) the same sum without its last bracket,

since outside S the two agree, what the generator has read is c's own. No ranking of the places of all texts has a
larger expected AUC, no threshold fewer expected errors than one half.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from unmask.data.worlds import World, draws, grammar
from unmask.data.worlds.grammar import Review, rating_of

MOST_TEXTS = 200_000


def pairs(length: int) -> list[tuple[int, int]]:
    """Every set of two places, in the order in which `posterior` is given their chances."""
    return list(combinations(range(length), 2))


def texts_of(world: World) -> tuple[list[Review], np.ndarray] | None:
    """Every review the world can draw, and the chance of each; None where they are too many or the rating is noisy."""
    sizes = draws.pool_sizes(world.adjective_count)
    if world.distance or world.rating_noise or 2 * int(np.prod(sizes)) > MOST_TEXTS:
        return None
    n, found, chance = world.adjective_count, [], []
    for food, person, bad, first, second in draws.mixed(np.arange(int(np.prod(sizes))), sizes):
        for link in grammar.LINKS:
            good = not bad
            service = good == (link == "and")
            adjectives = world.food_adjectives, world.person_adjectives
            words = [
                side[k + (0 if well else n)]
                for side, k, well in zip(adjectives, (first, second), (good, service), strict=True)
            ]
            found.append(
                Review(grammar.FOODS[food], words[0], link, grammar.SERVERS[person], words[1], rating_of(good, service))  # type: ignore[arg-type]
            )
            chance.append(world.but_share if link == "but" else 1 - world.but_share)
    share = np.array(chance)
    return found, share / share.sum()


def posterior(texts: np.ndarray, prior: np.ndarray, given: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """(N, T) the chance that each place was replaced.

    texts (X, T) all that can be, prior (X,); given (N, T) what is seen; drawn (N, T (T − 1) / 2) the chance of what is
    seen at each of `pairs(T)` under a generator that reads all the rest. Every pair is selected equally often.
    """
    n, length = given.shape
    where = np.zeros((length, length), np.int64)
    for k, (i, j) in enumerate(pairs(length)):
        where[i, j] = where[j, i] = k
    out = np.zeros((n, length))
    for row in range(n):
        differs = texts != given[row]
        count = differs.sum(1)
        near = np.flatnonzero(count <= 2)
        mask, much = differs[near], count[near]
        each = drawn[row][where] * (1 - np.eye(length))  # (T, T), no pair of a place with itself
        weight = np.where(much == 0, drawn[row].sum(), 0.0)
        one = much == 1
        weight[one] = each.sum(1)[mask[one].argmax(1)]
        two = np.flatnonzero(much == 2)
        if len(two):
            first, last = mask[two].argmax(1), length - 1 - mask[two][:, ::-1].argmax(1)
            weight[two] = each[first, last]
        weight = weight * prior[near]
        out[row] = weight @ mask / weight.sum()
    return out


def opposed(world: World, given: Sequence[Review], rate: float, places: tuple[int, int], length: int) -> np.ndarray:
    """(N, length) the same where each of a review's two adjectives became one of the other side with chance `rate`.

    Its side is all that matters: the words of a side are equally likely, before and after.
    """
    out = np.zeros((len(given), length))
    for row, review in enumerate(given):
        sides = world.positive(review.food_adjective), world.positive(review.person_adjective)
        total = 0.0
        for flipped in ((False, False), (True, False), (False, True), (True, True)):
            food, person = (side != flip for side, flip in zip(sides, flipped, strict=True))
            link = "and" if food == person else "but"
            if (link, rating_of(food, person)) != (review.link, review.rating):
                continue
            chance = float(np.prod([rate if flip else 1 - rate for flip in flipped]))
            total += chance
            for place, flip in zip(places, flipped, strict=True):
                out[row, place] += chance * flip
        out[row] /= total
    return out
