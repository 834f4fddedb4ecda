"""What a model of reviews is asked, each question the same event for all.

An open slot is one place of a text. Masked models see [MASK] there, models of span corruption a sentinel (and answer
behind it), models that read forward nothing from there on; a prefix is all that precedes it. In all of them the answer
is the likeliest of the same candidates at that place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from unmask.batch import Rows
from unmask.data.worlds import Review
from unmask.data.worlds.grammar import TOKEN
from unmask.evaluation.base import objective_of
from unmask.evaluation.plans import FORWARD, Query, in_source, plan_of
from unmask.evaluation.score import answers
from unmask.labs.reviews.setting import WINDOW
from unmask.lm import LM
from unmask.objectives.base import Plan

RATINGS = ("good", "ok", "bad")
LENGTH, RATING, FOOD = 16, 14, 5
"""Tokens of a review, and the places of the rating and of the food adjective among them:
review : the soup was tasty and the host was kind . rating : good ."""


def in_windows(reviews: Sequence[Review]) -> list[str]:
    """Each review as windows of training hold it: behind it a line end and the beginning of the next of `reviews`."""
    texts = []
    for k, review in enumerate(reviews):
        following = TOKEN.findall(reviews[(k + 1) % len(reviews)].text)[: WINDOW - LENGTH - 1]
        texts.append(review.text + "\n" + " ".join(following))
    return texts


def slots(lm: LM, texts: Sequence[np.ndarray], at: Sequence[int], plan: Plan | None = None) -> Tensor:
    """(n, V) logits at the open slot `at` of each text; what stands there is not read.

    plan: how the model is asked (`evaluation.plans`), its objective's own unless given.
    """
    objective = objective_of(lm)
    plan = plan_of(objective, plan, lm.objective)
    places = np.asarray(at)
    if plan in FORWARD:
        texts = [text[: k + 1] for text, k in zip(texts, places, strict=True)]
    rows = Rows.of(list(texts), ends=np.zeros(len(texts), bool))
    slot = rows.start[:-1] + places
    asked = np.zeros(len(rows.tokens), bool)
    asked[slot] = True
    word = np.ones(len(rows.tokens), bool)  # every token is a word
    given = places if in_source(objective, plan) else np.zeros_like(places)
    query = Query(replace(rows, word=word), given, asked)
    out = torch.full((query.slots, lm.vocabulary.size), torch.nan)
    for answer in answers(lm, query, plan=plan):
        out[answer.slot] = answer.logits.float().cpu()
    return out[slot]


def words(lm: LM, names: Sequence[str]) -> np.ndarray:
    """The ids of words that are one token each."""
    ids = [encode(lm, name) for name in names]
    assert all(len(one) == 1 for one in ids)
    return np.concatenate(ids)


def encode(lm: LM, text: str) -> np.ndarray:
    assert lm.tokenizer is not None
    return lm.tokenizer.encode(text)


def likeliest(lm: LM, logits: Tensor, candidates: Sequence[str]) -> list[str]:
    """The likeliest candidate of each row of logits (n, V)."""
    best = logits[:, torch.from_numpy(words(lm, candidates)).long()].argmax(1)
    return [candidates[k] for k in best.tolist()]


def chosen(lm: LM, texts: Sequence[str], at: int, candidates: Sequence[str], plan: Plan | None = None) -> list[str]:
    """The likeliest candidate at the open slot of each text."""
    return likeliest(lm, slots(lm, [encode(lm, text) for text in texts], [at] * len(texts), plan), candidates)


def rating(lm: LM, reviews: Sequence[Review], plan: Plan | None = None) -> float:
    """The share of reviews whose rating is the likeliest of the three at its slot, asked in windows as of training."""
    return right(chosen(lm, in_windows(reviews), RATING, RATINGS, plan), reviews)


def right(ratings: Sequence[str], reviews: Sequence[Review]) -> float:
    return float(np.mean(hits(ratings, reviews)))


def hits(ratings: Sequence[str], reviews: Sequence[Review]) -> list[bool]:
    """Review by review."""
    return [given == review.rating for given, review in zip(ratings, reviews, strict=True)]
