"""What a replacement does to a review, and how well scores part what was replaced from what was not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from unmask.data.worlds import World
from unmask.tokens.tokenizer import Tokenizer

Kind = Literal["unchanged", "alike", "meaning", "obvious"]
KINDS: tuple[Kind, ...] = ("alike", "meaning", "obvious")
"""Of replacements. alike: the review is as true with it, so nothing tells (waiter → cook, one good adjective for
another). meaning: it is well formed and no longer true (an adjective of the other side, a wrong link or rating).
obvious: no review has such a word there. A word that is drawn and is the text's own ("unchanged") replaces nothing."""


def kind(world: World, tokenizer: Tokenizer, review: Sequence[int], place: int, word: int) -> Kind:
    """What it does to a true review (its ids) that `word` stands at `place`, all else as it was.

    Where two words of a review are replaced, each is judged by itself.
    """
    if review[place] == word:
        return "unchanged"
    tokens = [*review[:place], word, *review[place + 1 :]]
    if word not in tokenizer.vocabulary.ordinary:
        return "obvious"
    checked = world.check(tokenizer.decode(tokens))
    if not checked.well_formed:
        return "obvious"
    return "alike" if checked.true else "meaning"


def auc(scores: np.ndarray, positive: np.ndarray) -> float | None:
    """The chance that a positive scores above a negative, ties being half; None where there are none of either.

    >>> auc(np.array([0.1, 0.4, 0.4, 0.9]), np.array([False, False, True, True]))
    0.875
    """
    n, m = int(positive.sum()), int((~positive).sum())
    if not n or not m:
        return None
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    rank = (ends - (counts - 1) / 2)[inverse]  # from 1 on; ties share the mean of theirs
    return float((rank[positive].sum() - n * (n + 1) / 2) / (n * m))
