"""Several gaps at once, as in training, and what a model of span corruption writes into one.

In training a window of 30 tokens lacks 4 of them, in up to 4 gaps. A question with the rating's gap alone is one that
such a model hardly ever saw; here other places are open, too, which say nothing about the rating.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from unmask import keyed
from unmask.batch import starts
from unmask.evaluation.base import evaluating, objective_of
from unmask.evaluation.generate import Writer
from unmask.evaluation.prompts import gap, gap_ends
from unmask.evaluation.sampling import Sampling
from unmask.evaluation.steps import Start, Steps
from unmask.labs.reviews.asked import FOOD, RATING, slots
from unmask.labs.reviews.setting import WINDOW
from unmask.lm import LM
from unmask.objectives.denoise import SpanCorruption
from unmask.objectives.spans import choose

LINK, PERSON = 6, 10
TOLD = (FOOD, LINK, PERSON, RATING - 1, RATING, RATING + 1)
"""Places that are never opened beside the rating: what decides it, and its neighbours, so that its gap is one token."""
LONGEST = 8
"""Tokens of a written span, at the most."""


def elsewhere(number: int, count: int) -> np.ndarray:
    """(number, WINDOW) bool: `count` other open places of each window, any that is not `TOLD`."""
    eligible = np.ones((number, WINDOW), bool)
    eligible[:, TOLD] = False
    key = keyed.row_keys(0, 0, np.arange(number), "other gaps")
    drawn = choose(starts([WINDOW] * number), key, np.full(number, count), eligible.reshape(-1))
    return drawn.reshape(number, WINDOW)


def beside_others(lm: LM, windows: Sequence[np.ndarray], count: int) -> Tensor:
    """(n, V) logits at the rating's slot where `count` other places are open, too.

    Masked models see [MASK] there. Span corruption: neighbours make one gap, and what stood in gaps further left is
    given, as in training.
    """
    others = elsewhere(len(windows), count)
    if not isinstance(objective_of(lm), SpanCorruption):
        mask = lm.vocabulary.need("mask")
        hidden = [np.where(open_, mask, ids) for ids, open_ in zip(windows, others, strict=True)]
        return slots(lm, hidden, [RATING] * len(windows))
    others[:, RATING] = True
    begin = [_start(lm, ids, open_) for ids, open_ in zip(windows, others, strict=True)]
    with evaluating(lm.network):
        return Steps(lm, begin).logits().float().cpu()


def _start(lm: LM, ids: np.ndarray, open_: np.ndarray) -> Start:
    """The source with a sentinel for each run of open places, and the target up to the rating's sentinel."""
    marks = lm.vocabulary.sentinels
    first = open_ & ~np.insert(open_[:-1], 0, False)
    number = np.cumsum(first) - 1
    source = np.where(first, marks[np.maximum(number, 0)], ids)[~open_ | first]
    target: list[int] = []
    for k in range(int(number[RATING])):
        target += [int(marks[k]), *ids[open_ & (number == k)].tolist()]
    target.append(int(marks[number[RATING]]))
    end = lm.vocabulary.need("eos")
    return Start(np.append(source, end).astype(np.int32), np.array(target, np.int32), 0, "infill")


def written(lm: LM, windows: Sequence[np.ndarray]) -> list[str]:
    """The span that the model writes for the rating's gap, the likeliest token each time, up to the next sentinel."""
    objective, vocabulary = objective_of(lm), lm.vocabulary
    zero = vocabulary.sentinels[:1]
    lacking = [np.concatenate([ids[:RATING], zero, ids[RATING + 1 :]]) for ids in windows]
    begin = [gap(objective, ids, (), vocabulary) for ids in lacking]
    writer = Writer(lm, Sampling(), gap_ends(objective, vocabulary))
    return [g.text.strip() for g in writer.write(begin, [np.zeros(0, np.int32)] * len(begin), LONGEST)]


def trained_on(lm: LM, sources: np.ndarray, row: np.ndarray) -> dict[str, float]:
    """How many gaps the sources (N,) of texts have, `row` (N,) being whose each token is: number → share."""
    marks = np.isin(sources, lm.vocabulary.sentinels)
    counts = Counter(np.bincount(row[marks], minlength=int(row.max()) + 1).tolist())
    return {str(k): counts[k] / sum(counts.values()) for k in sorted(counts)}
