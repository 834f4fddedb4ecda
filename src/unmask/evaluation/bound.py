"""A bound of a text's log-probability from masked draws, as masked diffusion has it (plan `bound`).

    log p(text)  ≥  E over masks of w · Σ over masked tokens of log p(token | the other tokens)

    number   l even in 1 … L tokens are masked, every set of l alike, and w = L / l   (Nie et al. 2025, equation 6)
    rate     each token is masked with probability p, even in [0, 1), and w = 1 / p    (Sahoo et al. 2024, section 3.2)

Both expectations are the same number: the mean over all orders of writing the text of its log-probability in that
order (Ou et al. 2024, "Your Absorbing Discrete Diffusion Secretly Models the Conditional Distributions of Clean Data").
The first varies less. Any network that fills [MASK]s has this bound, whatever it was trained for. K draws estimate it;
their l or p are stratified, one in each K-th of their range.

Legend: R pieces of text, N their tokens end to end, K draws of each, L maskable tokens of a piece.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from unmask import keyed
from unmask.errors import UserError
from unmask.objectives.spans import choose

if TYPE_CHECKING:
    from unmask.evaluation.plans import Query
    from unmask.evaluation.score import Answers


@dataclass(frozen=True)
class Draws:
    """How a bound is estimated: K draws a piece, what each masks, and the seed."""

    number: int = 64
    masks: Literal["number", "rate"] = "number"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.number < 1:
            raise UserError(f"draws={self.number} must be at least 1")
        if self.masks not in ("number", "rate"):
            raise UserError(f"masks={self.masks!r} must be 'number' or 'rate'")

    def __call__(self, start: np.ndarray, asked: np.ndarray, key: np.ndarray, draw: np.ndarray) -> Masks:
        """The masks of U copies of texts: their offsets (U + 1,), maskable tokens, keys (U,), and which draw each is.

        >>> m = Draws(3)(np.array([0, 6, 12, 18]), np.ones(18, bool), np.zeros(3, np.uint64), np.arange(3))
        >>> m.hidden.reshape(3, 6).astype(int)
        array([[0, 0, 1, 0, 0, 0],
               [1, 0, 1, 0, 1, 0],
               [1, 1, 1, 1, 1, 1]])
        >>> m.weight.tolist()
        [6.0, 2.0, 1.0]
        """
        key = keyed.absorb(keyed.absorb(keyed.absorb(key, self.seed), keyed.purpose("bound")), draw)
        row = np.repeat(np.arange(len(key)), np.diff(start))
        most = np.bincount(row, asked, len(key)).astype(np.int64)
        u = (draw + keyed.uniform(keyed.absorb(key, keyed.purpose("rate")), np.zeros(len(key), np.int64))) / self.number
        if self.masks == "number":
            count = np.minimum(1 + np.floor(u * most).astype(np.int64), most)
            return Masks(choose(start, key, count, asked), most / np.maximum(count, 1))
        place = np.arange(start[-1]) - np.repeat(start[:-1], np.diff(start))
        p = 1 - u  # in (0, 1]
        return Masks((keyed.uniform(key[row], place) < p[row]) & asked, 1 / p)


DRAWS = Draws()


@dataclass(frozen=True)
class Masks:
    """hidden (N,) bool: the masked tokens of U copies of texts; weight (U,): w of each copy."""

    hidden: np.ndarray
    weight: np.ndarray


@dataclass(frozen=True)
class Bounds:
    """Of a query: (N + R,) the mean of −w log p over the draws at every asked slot, NaN elsewhere; (N + R,) whether the
    token was the likeliest in every draw that masked it; (R, K) the sum −w Σ log p of each draw."""

    losses: np.ndarray
    likeliest: np.ndarray
    totals: np.ndarray


def gathered(query: Query, answers: Iterable[Answers]) -> Bounds:
    """The bound of a query's pieces from the answers of its draws."""
    k, pieces = query.draws.number, len(query.rows.lengths)
    losses, missed = np.full(query.slots, np.nan), np.zeros(query.slots, bool)
    losses[: len(query.rows.tokens)][query.asked] = 0.0
    totals = np.zeros((pieces, k))
    row = query.rows.row
    for a in answers:
        assert a.weight is not None and a.draw is not None
        weighed = a.weight * a.loss.double().cpu().numpy()
        np.add.at(losses, a.slot, weighed / k)
        np.add.at(totals, (row[a.slot], a.draw), weighed)
        missed[a.slot[(a.logits.argmax(-1) != a.token).cpu().numpy()]] = True
    likeliest = ~missed
    likeliest[len(query.rows.tokens) :] = False  # end tokens are never asked
    return Bounds(losses, likeliest, totals)


def error(totals: np.ndarray) -> np.ndarray | None:
    """(R,) standard errors of the means of draws (R, K); None for a single draw.

    From the differences of neighbours: the draws are stratified, so their spread as a whole says too much.
    """
    k = totals.shape[1]
    if k < 2:
        return None
    return np.asarray(np.sqrt((np.diff(totals, axis=1) ** 2).sum(1) / (2 * (k - 1) * k)))
