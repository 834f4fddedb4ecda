"""Held-out windows with some words of their review replaced, as a detector reads them.

A window is read as in training: a review, a line end and the beginning of another. Of the review's 16 words two are
selected (12.5 %; training selects 4 of a window's 30), and the rest of the window stays as it is.

Legend: N windows of T tokens, framed by a mark at each end; L = 16 words of the review.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from unmask import keyed
from unmask.batch import Rows, starts
from unmask.data.collate import collate
from unmask.data.worlds import Review
from unmask.evaluation.base import device_of, evaluating
from unmask.evaluation.inputs import framed
from unmask.labs.electra.floor import pairs
from unmask.labs.reviews.asked import LENGTH, encode, in_windows
from unmask.lm import LM
from unmask.model.heads import HeadModule
from unmask.objectives.base import LM as TOKENS
from unmask.objectives.replaced import DETECTION
from unmask.objectives.spans import choose
from unmask.train.devices import to_device
from unmask.vocabulary import inverse

BATCH = 2048
"""Windows of one pass."""
SELECTED = 2


@dataclass(frozen=True)
class Corrupted:
    """What stood there, what stands there now, and where a word was selected."""

    text: np.ndarray  # (N, T)
    given: np.ndarray  # (N, T)
    selected: np.ndarray  # (N, L) bool

    @property
    def replaced(self) -> np.ndarray:
        """(N, L) bool."""
        return (self.text != self.given)[:, :LENGTH]


def windows(lm: LM, reviews: Sequence[Review]) -> np.ndarray:
    return np.stack([encode(lm, text) for text in in_windows(reviews)])


def keys(seed: int, n: int) -> np.ndarray:
    """(n,) uint64, of each window's noise."""
    return keyed.row_keys(seed, 0, np.arange(n), "electra laboratory")


def by_generator(generator: LM, texts: np.ndarray, seed: int) -> Corrupted:
    """Two places of each review drawn anew by the generator, which reads [MASK] at both."""
    n, key = len(texts), keys(seed, len(texts))
    chosen = choose(starts([LENGTH] * n), keyed.absorb(key, keyed.purpose("select")), np.full(n, SELECTED))
    selected = chosen.reshape(n, LENGTH)
    row, place = np.nonzero(selected)
    read = texts.copy()
    read[row, place] = generator.vocabulary.need("mask")
    logits = said(generator, read, place.reshape(n, SELECTED))
    draw = keyed.uniform(keyed.absorb(key, keyed.purpose("draw"))[row], place)
    given = texts.copy()
    given[row, place] = inverse(logits.flatten(0, 1).softmax(-1), torch.from_numpy(draw)).numpy()
    return Corrupted(texts, given, selected)


def by_objective(lm: LM, texts: np.ndarray, seed: int) -> Corrupted:
    """As the objective replaces words by itself."""
    assert lm.objective is not None
    n, length = texts.shape
    rows = Rows.of(texts, ends=np.zeros(n, bool), key=keys(seed, n))
    made = lm.objective(rows, lm.vocabulary)
    given = made.stream.tokens.reshape(n, length + 2)[:, 1:-1].astype(texts.dtype)
    return Corrupted(texts, given, (given != texts)[:, :LENGTH])


def said(lm: LM, texts: np.ndarray, at: np.ndarray) -> Tensor:
    """(N, k, V) a masked network's logits at the places `at` (N, k)."""
    head = cast(HeadModule, lm.network.heads[TOKENS.uses])
    found = []
    with evaluating(lm.network):
        for begin in range(0, len(texts), BATCH):
            places = torch.from_numpy(at[begin : begin + BATCH]).long()
            states = _states(lm, texts[begin : begin + BATCH])
            here = states.gather(1, places[..., None].expand(-1, -1, states.shape[-1])).flatten(0, 1)
            logits = head.project(head.features(here[:, None])).float()
            found.append(logits.view(*places.shape, -1))
    return torch.cat(found)


def scores(lm: LM, texts: np.ndarray) -> np.ndarray:
    """(N, L) the detector's logit that each word of the review was replaced."""
    head = cast(HeadModule, lm.network.heads[DETECTION])
    with evaluating(lm.network):
        states = _states(lm, texts)[:, :LENGTH]
        found = head.project(head.features(states.flatten(0, 1)[:, None])).float()
    return found.view(len(texts), LENGTH).double().numpy()


def _states(lm: LM, texts: np.ndarray) -> Tensor:
    """(n, T, d) last states of each window's tokens, read as in training; on the processor."""
    examples = framed(Rows.of(texts, ends=np.zeros(len(texts), bool)), lm.config, lm.vocabulary, lm.objective)
    stream = to_device(collate({"text": examples}, {"text": ()}), device_of(lm.network)).stream
    return lm.network.decode(stream)[:, 1 : 1 + texts.shape[1]].cpu()


def likelihoods(generator: LM, given: np.ndarray) -> np.ndarray:
    """(N, L (L − 1) / 2) the chance that the generator draws what stands there, at each of `pairs(L)`."""
    both = np.array(pairs(LENGTH))
    mask = generator.vocabulary.need("mask")
    out = np.empty((len(given), len(both)))
    step = max(1, BATCH // len(both))
    for begin in range(0, len(given), step):
        part = given[begin : begin + step]
        read = np.repeat(part, len(both), 0)
        at = np.tile(both, (len(part), 1))
        each = np.arange(len(read))[:, None]
        seen = torch.from_numpy(read[each, at]).long()
        read[each, at] = mask
        chance = said(generator, read, at).double().log_softmax(-1).gather(2, seen[..., None]).squeeze(2)
        out[begin : begin + step] = chance.sum(1).exp().view(len(part), len(both)).numpy()
    return out
