"""What is measured of a subject at a milestone: what can be read from it, what its generator does, what it detects."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from unmask.data.worlds import Review, World
from unmask.labs.electra import floor
from unmask.labs.electra.corrupted import Corrupted, by_generator, by_objective, likelihoods, scores, windows
from unmask.labs.electra.kinds import KINDS, auc, kind
from unmask.labs.electra.names import ALARMS, AUC, BEST, FOUND, LABELS, PLACES, PROBES, REPLACED
from unmask.labs.reviews import probes
from unmask.labs.reviews.asked import FOOD, LENGTH
from unmask.labs.reviews.bench import Found, Moment
from unmask.lm import LM
from unmask.loading import load
from unmask.objectives.replaced import DETECTION, GENERATOR

PERSON = 10
"""The place of the person's adjective among a review's tokens."""
ASKED = 200
"""Held-out reviews, in windows as of training."""
NOISE = 0
"""Of what is measured: the same places and the same uniforms under every seed and at every milestone."""


def measure(lm: LM, moment: Moment) -> Found:
    """A `bench.MeasureModel`."""
    world, noise = moment.world, moment.subject.asks["noise"]
    opinions = _opinions(world)
    read = probes.readings(lm, opinions, ["mean", "last", "place"])
    values: dict[str, float | None] = {name: read["mean"][str(k)] for k, name in PROBES.items()}
    values |= {name: read["place"][str(k)] for k, name in PLACES.items()}
    details: dict[str, Any] = {"probes": read}
    if moment.last:
        details["clause"] = probes.readings(lm, opinions, ["mean", "last"], "clause")
        details["hidden"] = probes.hidden(lm, opinions)
    if moment.last and noise == "none":
        details["controls"] = _controls(lm, opinions, moment.seed)
    if noise == "none":
        return Found(values, details)
    reviews = world.reviews("valid")[:ASKED]
    texts = windows(lm, reviews)
    if noise == "opposites":
        corrupted, generator = by_objective(lm, texts, NOISE), None
    else:
        generator = load(moment.run, moment.step, network=GENERATOR)
        corrupted = by_generator(generator, texts, NOISE)
        details["generator"] = sum(p.numel() for p in generator.network.parameters())
        values[REPLACED] = float(corrupted.replaced.sum() / corrupted.selected.sum())
    named = kinds_of(lm, world, corrupted)
    counts = {name: int((named == name).sum()) for name in KINDS}
    details["kinds"] = counts
    details["positions"] = named.size
    details["selected"] = int(corrupted.selected.sum())
    values[LABELS] = counts["meaning"] / named.size
    if DETECTION in lm.network.heads:
        best = _best(lm, world, corrupted, generator, moment)
        seen = _detected(scores(lm, corrupted.given), named)
        details["detector"] = seen
        details["best"] = floor_ = None if best is None else _detected(best, named)
        values |= {
            AUC: seen["auc"]["all"],
            BEST: None if floor_ is None else floor_["auc"]["all"],
            FOUND: seen["found"]["meaning"] / counts["meaning"] if counts["meaning"] else None,
            ALARMS: seen["alarms"] / seen["originals"],
        }
    samples = _samples(lm, corrupted, named) if moment.last else ()
    return Found(values, details, samples)


def kinds_of(lm: LM, world: World, corrupted: Corrupted) -> np.ndarray:
    """(N, L) the kind of each word of the reviews: "unchanged", or what its replacement does."""
    assert lm.tokenizer is not None
    out = np.full(corrupted.replaced.shape, "unchanged", dtype=object)
    for row, place in np.argwhere(corrupted.replaced):
        review = corrupted.text[row, :LENGTH].tolist()
        out[row, place] = kind(world, lm.tokenizer, review, int(place), int(corrupted.given[row, place]))
    return out


def _detected(score: np.ndarray, named: np.ndarray) -> dict[str, Any]:
    """What a detector (N, L) finds; where its score is above 0 it says "replaced"."""
    original = named == "unchanged"
    areas = {"all": auc(score.ravel(), ~original.ravel())}
    for name in KINDS:
        mine = original | (named == name)
        areas[name] = auc(score[mine], ~original[mine])
    chance = np.where(original, np.logaddexp(0, score), np.logaddexp(0, -score))
    return {
        "auc": areas,
        "found": {name: int(((named == name) & (score > 0)).sum()) for name in KINDS},
        "alarms": int((original & (score > 0)).sum()),
        "originals": int(original.sum()),
        "bits": float(chance.mean() / np.log(2)),
    }


def _best(lm: LM, world: World, corrupted: Corrupted, generator: LM | None, moment: Moment) -> np.ndarray | None:
    """(N, L) the logit of the exact chance; None in a world that is too large to go through."""
    if generator is None:
        told = [_review(lm, row) for row in corrupted.given[:, :LENGTH]]
        chance = floor.opposed(world, told, moment.subject.asks["rate"], (FOOD, PERSON), LENGTH)
    else:
        every = _every(world)
        if every is None:
            return None
        given = corrupted.given[:, :LENGTH]
        chance = floor.posterior(*every, given, likelihoods(generator, corrupted.given))
    with np.errstate(divide="ignore"):
        return np.clip(np.log(chance) - np.log1p(-np.minimum(chance, 1)), -50, 50)


def _review(lm: LM, ids: np.ndarray) -> Review:
    """The review that a text of 16 tokens is."""
    assert lm.tokenizer is not None
    words = [lm.tokenizer.decode([int(k)]) for k in ids]
    return Review(words[3], words[FOOD], words[6], words[8], words[PERSON], words[14])  # type: ignore[arg-type]


def _samples(lm: LM, corrupted: Corrupted, named: np.ndarray) -> tuple[tuple[str, str], ...]:
    """The first replacement of each kind: what was read, and what stood there."""
    assert lm.tokenizer is not None
    out = []
    for name in KINDS:
        for row, place in np.argwhere(named == name)[:1]:
            given = lm.tokenizer.decode(corrupted.given[row, :LENGTH].tolist())
            was, now = (lm.tokenizer.decode([int(t[row, place])]) for t in (corrupted.text, corrupted.given))
            out.append((given, f"{name}: {was} → {now}"))
    return tuple(out)


def _controls(lm: LM, opinions: probes.Labelled, seed: int) -> dict[str, dict[str, float]]:
    """Probes of the network before its first update, and of a bag of words."""
    words = probes.bag(lm, probes.every(opinions))
    before = probes.readings(probes.untrained(lm, seed), opinions, ["mean", "place"])
    bag = {str(k): probes.probed(words, opinions, k) for k in probes.LABELS}
    return {"untrained": before["mean"], "untrained, at the adjective": before["place"], "words": bag}


@lru_cache(maxsize=2)
def _opinions(world: World) -> probes.Labelled:
    return probes.Labelled.of(world)


@lru_cache(maxsize=2)
def _every(world: World) -> tuple[np.ndarray, np.ndarray] | None:
    """Ids of every review, and the chance of each."""
    found = floor.texts_of(world)
    if found is None:
        return None
    reviews, prior = found
    return np.stack(world.tokenizer("word").encode_batch([review.text for review in reviews])), prior
