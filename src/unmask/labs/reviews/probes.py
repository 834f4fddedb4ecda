"""What can be read from a model's states: linear probes for the food's polarity, and their controls.

A probe is fitted to a few labelled reviews without their ratings and asked about others, whose food adjectives no
labelled one holds (`World.probe`). A bag of words cannot know their side. But link and person's adjective together give
it away ("… but the host was rude": the food was good), and a network that joins these two is right without knowing what
the food adjective means. So three texts are read:

    unrated   "review: the soup was tasty and the host was kind. rating:", up to where the rating is due
    opinion   the same without "rating:"
    clause    "review: the soup was tasty": only the adjective can tell

and `hidden` is what a probe reads of the first where every review has the same food adjective: without the word.
With eight tested adjectives an untrained network is right about more than half of them by luck of its draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from torch import Tensor

from unmask.batch import Rows
from unmask.data.collate import collate
from unmask.data.worlds import Review, World
from unmask.evaluation.base import device_of, evaluating
from unmask.evaluation.inputs import framed
from unmask.evaluation.steps import Start, Steps
from unmask.labs.reviews.asked import FOOD, RATING, encode
from unmask.lm import LM
from unmask.model.transformer import Transformer
from unmask.train.devices import to_device

How = Literal["mean", "last", "place", "behind"]
"""mean: over the text's tokens, control tokens apart. last: its last token. place: the food adjective. behind: of two
stacks, the decoder's state at <0>, where the rating is to be written. Two stacks otherwise: the encoder's states."""
Part = Literal["unrated", "opinion", "clause"]
LABELS = (32, 128)
DRAWS = 10
"""Draws of labelled opinions, each of which trains a probe."""
TESTED = 200
PENALTY = 1.0
"""Of the squared weights, beside twice the sum of the losses."""


def features(lm: LM, reviews: Sequence[Review], how: How, part: Part = "unrated") -> np.ndarray:
    """(n, d) what the model makes of each review; it never sees a rating."""
    if how == "behind":
        return _behind(lm, reviews)
    ids = [_part(lm, review, part) for review in reviews]
    states, first = _states(lm, ids)
    text = states[:, first : first + len(ids[0])]
    found = text.mean(1) if how == "mean" else text[:, {"last": -1, "place": FOOD}[how]]
    return found.double().numpy()


def _part(lm: LM, review: Review, part: Part) -> np.ndarray:
    return encode(lm, review.unrated)[: FOOD + 1] if part == "clause" else encode(lm, getattr(review, part))


def _states(lm: LM, ids: Sequence[np.ndarray]) -> tuple[Tensor, int]:
    """(n, T, d) last states of texts of one length, framed as in training, and where the text begins in a row."""
    two = lm.network.source is not None
    examples = framed(Rows.of(ids), lm.config, lm.vocabulary, lm.objective)
    stream = to_device(collate({"text": examples}, {"text": ()}), device_of(lm.network)).stream
    with evaluating(lm.network):
        states = lm.network.encode(stream) if two else lm.network.decode(stream)
    return states.float().cpu(), 0 if two else 1


def _behind(lm: LM, reviews: Sequence[Review]) -> np.ndarray:
    """The decoder's state at <0>, the rating being what the source lacks."""
    zero, end = lm.vocabulary.sentinels[:1], [lm.vocabulary.need("eos")]
    starts = []
    for review in reviews:
        ids = encode(lm, review.text)
        starts.append(Start(np.concatenate([ids[:RATING], zero, ids[RATING + 1 :], end]), zero, 0, "infill"))
    with evaluating(lm.network):
        return Steps(lm, starts).states.double().cpu().numpy()


def bag(lm: LM, reviews: Sequence[Review]) -> np.ndarray:
    """(n, V) how often each word stands in the review, its rating apart: a bag of words."""
    size = lm.vocabulary.size
    return np.stack([np.bincount(encode(lm, r.unrated), minlength=size) for r in reviews]).astype(float)


def untrained(lm: LM, seed: int) -> LM:
    """The same network as it stood before its first update."""
    heads = list(lm.network.declared.values())
    return replace(lm, network=Transformer(lm.config, heads, seed).to(device_of(lm.network)).eval())


# ---------------------------------------------------------------- the probe


def accuracy(labelled: np.ndarray, labels: np.ndarray, tested: np.ndarray, wanted: np.ndarray) -> float:
    """The share of tested rows (m, d) that a probe fitted to labelled ones (n, d) puts on the right side.

    Logistic regression on standardised columns (by the labelled rows), with `PENALTY` on the weights: unique, whatever
    n and d are.
    """
    centre, spread = labelled.mean(0), labelled.std(0)
    spread = np.where(spread > 1e-9, spread, 1.0)
    weights, bias = fitted((labelled - centre) / spread, np.asarray(labels, float))
    return float(np.mean(((tested - centre) / spread @ weights + bias > 0) == wanted))


def fitted(rows: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, float]:
    """Weights (d,) and bias of the logistic regression, by Newton's method in the span of the rows.

    The best weights are a combination of the n rows, so n + 1 numbers are sought however large d is.
    """
    n = len(rows)
    kernel = rows @ rows.T
    design = np.hstack([kernel, np.ones((n, 1))])
    ridge = np.zeros((n + 1, n + 1))
    ridge[:n, :n] = kernel
    found = np.zeros(n + 1)
    for _ in range(100):
        p = 1 / (1 + np.exp(-np.clip(design @ found, -500, 500)))
        gradient = design.T @ (p - labels) + PENALTY * ridge @ found
        curvature = (design * (p * (1 - p))[:, None]).T @ design + PENALTY * ridge + 1e-9 * np.eye(n + 1)
        step = np.linalg.solve(curvature, gradient)
        found = found - step
        if np.abs(design @ step).max() < 1e-9:
            break
    return rows.T @ found[:n], float(found[n])


# ---------------------------------------------------------------- all readings of a model


@dataclass(frozen=True)
class Labelled:
    """Reviews to learn from, in several draws, and to be tested on; with the side of each one's food adjective."""

    draws: tuple[list[Review], ...]
    tested: list[Review]
    sides: Mapping[str, bool]

    @staticmethod
    def of(world: World, draws: int = DRAWS) -> Labelled:
        drawn = tuple(world.probe("labelled", max(LABELS), draw) for draw in range(draws))
        sides = {adjective: world.positive(adjective) for adjective in world.food_adjectives}
        return Labelled(drawn, world.probe("test", TESTED), sides)

    def good(self, reviews: Sequence[Review]) -> np.ndarray:
        return np.array([self.sides[review.food_adjective] for review in reviews])


def probed(made: np.ndarray, of: Labelled, number: int) -> float:
    """Mean accuracy over the draws with so many labels each; `made`: features of `every(of)`."""
    size = max(LABELS)
    tested, wanted = made[size * len(of.draws) :], of.good(of.tested)
    found = []
    for k, reviews in enumerate(of.draws):
        rows = made[size * k : size * k + number]
        found.append(accuracy(rows, of.good(reviews[:number]), tested, wanted))
    return float(np.mean(found))


def every(of: Labelled) -> list[Review]:
    """Those to learn from, draw after draw, then those to be tested on."""
    return [*(review for draw in of.draws for review in draw), *of.tested]


def readings(lm: LM, of: Labelled, ways: Sequence[How], part: Part = "unrated") -> dict[str, dict[str, float]]:
    """Reading → number of labels → mean accuracy."""
    made = {how: features(lm, every(of), how, part) for how in ways}
    return {how: {str(k): probed(rows, of, k) for k in LABELS} for how, rows in made.items()}


def hidden(lm: LM, of: Labelled) -> dict[str, float]:
    """What a probe of the mean reads without the word: every review has the same food adjective, the sides stay."""
    same = of.tested[0].food_adjective
    made = features(lm, [replace(review, food_adjective=same) for review in every(of)], "mean")
    return {str(k): probed(made, of, k) for k in LABELS}
