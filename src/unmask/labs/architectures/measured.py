"""What each model is asked: at every milestone one slot and one protocol for all, at the end what else it can do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from torch import Tensor

from unmask import keyed
from unmask.batch import Rows
from unmask.compare.items import packed
from unmask.compare.results import Level, Measure
from unmask.data.collate import collate
from unmask.data.worlds import Review, World
from unmask.evaluation.base import device_of, evaluating, objective_of, states_of, token_losses
from unmask.evaluation.items import outcomes
from unmask.labs.architectures import writing
from unmask.labs.architectures.subjects import MASKED, MASKED_ANYWHERE, T5, T5_ANYWHERE
from unmask.labs.reviews import gaps, probes
from unmask.labs.reviews.asked import FOOD, LENGTH, RATING, RATINGS, encode, hits, in_windows, likeliest, right, slots
from unmask.labs.reviews.bench import Found, Moment
from unmask.labs.reviews.setting import WINDOW, windows
from unmask.lm import LM
from unmask.model.heads import HeadModule
from unmask.objectives.base import LM as TOKENS
from unmask.train.devices import to_device

ASKED = 200
"""Held-out reviews that are asked about."""
SCORED = 100
"""Of them, those whose lines are scored with each of the 16 adjectives."""
NOISE = 5
"""Draws of the objective's own noise on each held-out window."""
OTHERS = (1, 3)
"""Other open places beside the rating's; with 3 there are as many as in training."""
PLACES = (0, 4, 8, 13)
"""Where in the window the review begins, for models whose windows begin anywhere."""

RATED, ANY_WORD, BESIDE = "rating", "rating, any word", "rating, 3 other gaps"
EXACT, FILLED, LINE = "rating, written", "fill, one pass", "fill, lines scored"


def curve(lm: LM, moment: Moment) -> Found:
    """What is asked at every milestone."""
    reviews = asked(moment.world)
    ids = [encode(lm, text) for text in in_windows(reviews)]
    rated, food = (slots(lm, ids, [at] * len(ids)) for at in (RATING, FOOD))
    answered = {
        RATED: hits(likeliest(lm, rated, RATINGS), reviews),
        ANY_WORD: hits(_words(lm, rated), reviews),
        FILLED: _sided(moment.world, likeliest(lm, food, moment.world.food_adjectives), reviews),
    }
    details: dict[str, Any] = {"chosen": dict(Counter(likeliest(lm, rated, RATINGS)))}
    kind = moment.subject.name
    if kind in (MASKED, MASKED_ANYWHERE, T5, T5_ANYWHERE):
        found = [gaps.beside_others(lm, ids, count) for count in OTHERS]
        others = [hits(likeliest(lm, logits, RATINGS), reviews) for logits in found]
        answered[BESIDE] = others[-1]
        details["beside"] = dict(zip(map(str, OTHERS), map(_share, others), strict=True))
    if kind in (T5, T5_ANYWHERE):
        spans = gaps.written(lm, ids)
        answered[EXACT] = hits(spans, reviews)
        details["spans"] = Counter(spans).most_common(5)
    if moment.last:
        details["words"] = Counter(_words(lm, food)).most_common(5)
        details["fill, any word"] = _share(_sided(moment.world, _words(lm, food), reviews))
        details |= {measure: _items(each) for measure, each in answered.items()}
    return Found({measure: _share(each) for measure, each in answered.items()}, details)


def everything(lm: LM, moment: Moment) -> Found:
    """The curve, and at the end all that a model can do."""
    found = curve(lm, moment)
    if not moment.last:
        return found
    world, kind = moment.world, moment.subject.name
    reviews = asked(world)
    values, details = dict(found.values), dict(found.details)
    filled, details["event"] = _lines_scored(lm, world, reviews[:SCORED])
    values[LINE], details[LINE] = _share(filled), _items(filled)
    details["alone"] = _alone(lm, reviews)
    details["turned"] = turned(lm, world, reviews)
    if moment.subject.windows == "anywhere":
        details["by place"] = {str(at): _placed(lm, reviews, at) for at in PLACES}
    details["own"] = own(lm, world, moment)
    made = writing.lines(lm, moment.seed, kind in (MASKED, MASKED_ANYWHERE))
    details["writing"] = {way: writing.judged(world, lines) for way, lines in made.items()}
    details["probes"] = _probes(lm, moment)
    samples = [(way, line) for way, lines in made.items() for line in lines[:3]]
    return Found(values, details, tuple(samples))


def asked(world: World) -> list[Review]:
    return world.reviews("valid")[:ASKED]


def _words(lm: LM, logits: Tensor) -> list[str]:
    """The likeliest of all tokens of each row."""
    assert lm.tokenizer is not None
    return [lm.tokenizer.token(k) for k in logits.argmax(1).tolist()]


def _share(each: Sequence[bool]) -> float:
    return float(np.mean(each))


def _items(each: Sequence[bool]) -> dict[str, Any]:
    """Review by review, by which `compare.statistics` knows how coarse the share is."""
    return {"items": packed(outcomes("reviews", [float(hit) for hit in each], scale=1.0)["items"])}


def _sided(world: World, given: Sequence[str], reviews: Sequence[Review]) -> list[bool]:
    """Which words are food adjectives, and as good or bad as the one that stood there."""
    known = {adjective: world.positive(adjective) for adjective in world.food_adjectives}
    return [known.get(a) == known[r.food_adjective] for a, r in zip(given, reviews, strict=True)]


def _lines_scored(lm: LM, world: World, reviews: Sequence[Review]) -> tuple[list[bool], str]:
    """Each of the adjectives put in, the whole line scored, the likeliest line taken; and the event."""
    candidates = world.food_adjectives
    lines = [r.text.replace(f" {r.food_adjective} ", f" {a} ", 1) for r in reviews for a in candidates]
    scores = lm.score(lines)
    best = np.array([s.logprob for s in scores]).reshape(len(reviews), len(candidates)).argmax(1)
    return _sided(world, [candidates[k] for k in best], reviews), scores[0].event


def _alone(lm: LM, reviews: Sequence[Review]) -> float:
    """The rating where nothing follows the review: no row of training is so short."""
    logits = slots(lm, [encode(lm, review.text) for review in reviews], [RATING] * len(reviews))
    return right(likeliest(lm, logits, RATINGS), reviews)


def turned(lm: LM, world: World, reviews: Sequence[Review]) -> dict[str, float]:
    """The share of answers that change where one word of the review is turned into its opposite.

    The link agrees with the adjectives, so a rating can be told from both adjectives, or from the link and one of them:
    and + kind is good, and + rude bad, but ok. Turned, one word contradicts the other two, and shows who went by it.
    """

    def opposite(word: str, words: Sequence[str]) -> str:  # as many good ones as bad ones, in this order
        return words[(words.index(word) + len(words) // 2) % len(words)]

    def answers(some: Sequence[Review]) -> np.ndarray:
        ids = [encode(lm, text) for text in in_windows(some)]
        return np.array(likeliest(lm, slots(lm, ids, [RATING] * len(ids)), RATINGS))

    food, person = world.food_adjectives, world.person_adjectives
    plain = answers(reviews)
    changed = {
        "food adjective": [replace(r, food_adjective=opposite(r.food_adjective, food)) for r in reviews],
        "link": [replace(r, link="but" if r.link == "and" else "and") for r in reviews],
        "person's adjective": [replace(r, person_adjective=opposite(r.person_adjective, person)) for r in reviews],
    }
    return {word: float(np.mean(answers(some) != plain)) for word, some in changed.items()}


def _placed(lm: LM, reviews: Sequence[Review], at: int) -> float:
    """The rating where the review begins at place `at` of the window, behind the end of the one before it."""
    ids = [encode(lm, f"{reviews[k - 1].text}\n{text}") for k, text in enumerate(in_windows(reviews))]
    cut = [text[LENGTH + 1 - at :][:WINDOW] for text in ids]
    return right(likeliest(lm, slots(lm, cut, [at + RATING] * len(cut)), RATINGS), reviews)


# ---------------------------------------------------------------- its own objective


def own(lm: LM, world: World, moment: Moment) -> dict[str, Any]:
    """The share of its own targets that are the likeliest token, of each kind; and how many gaps the texts had."""
    objective, device = objective_of(lm), device_of(lm.network)
    texts = windows(world, "valid", moment.subject.windows)
    step = max(1, len(texts) // ASKED)
    ids = [encode(lm, text) for text in texts[::step]] * NOISE
    rows = Rows.of(ids, key=keyed.row_keys(0, 0, np.arange(len(ids)), "own noise"))
    examples = objective(rows, lm.vocabulary)
    n = len(examples.targets[TOKENS.name].value)
    batch = to_device(collate({"own": examples}, {"own": (TOKENS,)}), device)
    with evaluating(lm.network):
        states = states_of({"model": lm.network}, batch)["model"]["stream"]
        targets = batch.targets["own", TOKENS.name].map(lambda a: a[:n])
        module = cast(HeadModule, lm.network.heads[TOKENS.uses])
        _, hits = token_losses(TOKENS, module, states, batch.stream, targets)
    value, hit = targets.value.cpu().numpy(), hits.cpu().numpy()
    kinds = {"content": lm.vocabulary.ordinary, "sentinels": lm.vocabulary.sentinels}
    found: dict[str, Any] = {
        k: float(hit[np.isin(value, of)].mean()) for k, of in kinds.items() if np.isin(value, of).any()
    }
    if examples.source is not None:
        assert examples.source.start is not None
        row = np.repeat(np.arange(len(ids)), np.diff(examples.source.start))
        found["gaps"] = gaps.trained_on(lm, examples.source.tokens, row)
    return found


# ---------------------------------------------------------------- its states


def _probes(lm: LM, moment: Moment) -> dict[str, dict[str, float]]:
    """Reading → number of labels → accuracy, with the controls."""
    of = probes.Labelled.of(moment.world)
    two = lm.network.source is not None
    found = probes.readings(lm, of, ("mean", "last", "place", "behind") if two else ("mean", "last", "place"))
    before = probes.untrained(lm, moment.seed)
    more: list[tuple[LM, probes.Part, str]] = [
        (lm, "opinion", "opinion"),
        (lm, "clause", "clause"),
        (before, "unrated", "untrained"),
        (before, "clause", "clause, untrained"),
    ]
    for model, part, name in more:
        found |= {f"{how}, {name}": v for how, v in probes.readings(model, of, ("mean", "last"), part).items()}
    found["mean, adjective hidden"] = probes.hidden(lm, of)
    bag = probes.bag(lm, probes.every(of))
    return found | {"bag of words": {str(k): probes.probed(bag, of, k) for k in probes.LABELS}}


# ---------------------------------------------------------------- measures


def levels(world: World) -> dict[str, float]:
    """What is reached without the rule: by guessing, by one word alone.

    but → ok: reviews with "but" are ok, the others whatever is commoner among them.
    """
    reviews = asked(world)
    share = {word: float(np.mean([r.rating == word for r in reviews])) for word in RATINGS}
    agree = [r.rating for r in reviews if r.link == "and"]
    link = [r.rating == ("ok" if r.link == "but" else Counter(agree).most_common(1)[0][0]) for r in reviews]
    return {
        "guessing": sum(p * p for p in share.values()),
        "always ok": share["ok"],
        "but → ok": float(np.mean(link)),
    }


def measures(world: World) -> list[Measure]:
    known = [Level(label=label, value=value) for label, value in levels(world).items()]
    half = [Level(label="by chance", value=0.5)]
    slot = "at the open slot of held-out reviews, in windows as of training, that slot alone being open"
    sided = "right if as good or bad as the word that stood there"
    return [
        Measure(name=RATED, label="Rating", protocol=f"3 candidates {slot}", better="higher", levels=known),
        Measure(
            name=ANY_WORD,
            label="Rating among all words",
            protocol=f"the likeliest of all tokens {slot}",
            better="higher",
        ),
        Measure(
            name=BESIDE,
            label="Rating, three other places open",
            protocol="3 candidates at the open slot, three other places of the window open that do not decide it",
            better="higher",
            levels=known,
        ),
        Measure(
            name=EXACT,
            label="Rating, freely written",
            protocol="free generation, exact match: the span up to the next sentinel, the likeliest token each time",
            better="higher",
        ),
        Measure(
            name=FILLED,
            label="Food adjective, in one pass",
            protocol=f"16 candidates {slot}; {sided}",
            better="higher",
            levels=half,
        ),
        Measure(
            name=LINE,
            label="Food adjective, by whole lines",
            protocol="16 candidates put in, the likeliest line taken (its log-probability from left to right, or the "
            f"sum of each token's given all others); {sided}",
            better="higher",
            levels=half,
        ),
    ]
