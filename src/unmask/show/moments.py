"""Means and variances of how many targets texts have, text by text, and how those of choices and mixtures come about.

Legend: R texts; E units (tokens, words, annotated spans) of l tokens each, U of them and n tokens in a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unmask.objectives.units import Units

Array = np.ndarray


@dataclass(frozen=True)
class Moments:
    """Of each text (R,): the mean and the variance of all targets with weight, and of those that are sentinels."""

    targets: Array
    variance: Array
    marks: Array
    marks_variance: Array

    @staticmethod
    def of(
        targets: Array, variance: Array | float = 0.0, marks: Array | float = 0.0, spread: Array | float = 0.0
    ) -> Moments:
        """Numbers count for every text; `spread` is the variance of the marks."""
        return Moments(
            *(np.broadcast_to(np.asarray(x, float), np.shape(targets)) for x in (targets, variance, marks, spread))
        )

    def plus(self, count: Array | float) -> Moments:
        """With so many targets more in each text, always."""
        return Moments(self.targets + count, self.variance, self.marks, self.marks_variance)

    def times(self, factor: float) -> Moments:
        """Where each target counts `factor` times."""
        square = factor**2
        return Moments(self.targets * factor, self.variance * square, self.marks * factor, self.marks_variance * square)


def mixed(weights: Sequence[float] | Array, parts: Sequence[Moments]) -> Moments:
    """Each text is of part p with probability w_p: E = Σ w_p E_p, variance = Σ w_p (variance_p + E_p²) − E².

    As if every text drew its part alone: parts that are spread evenly over sample numbers vary less.
    """
    share = np.asarray(weights, float) / np.sum(weights)

    def one(mean: str, variance: str) -> tuple[Array, Array]:
        e, v = (np.stack([getattr(p, name) for p in parts], 1) for name in (mean, variance))
        first = e @ share
        return first, np.maximum((v + e * e) @ share - first**2, 0)

    return Moments(*one("targets", "variance"), *one("marks", "marks_variance"))


def drawn(units: Units, count: Array) -> Moments:
    """Tokens of `count` (R,) units of each text, each unit as likely as any other.

    Mean count / U · n; variance that of a sample without replacement, count (1 − count / U) S², with S² the variance
    of the lengths l. Runs of neighbours have the same mean, and this variance where lengths do not depend on what
    stands beside them.
    """
    total, square, number = sums(units)
    return Moments.of(*sampled(total, square, number, count))


def sampled(total: Array, square: Array, number: Array, count: Array) -> tuple[Array, Array]:
    """Mean and variance of the sum of `count` of `number` lengths with this sum and this sum of squares.

    >>> [round(float(x), 4) for x in sampled(np.array(6.0), np.array(14.0), np.array(3), np.array(1))]  # 1, 2 or 3
    [2.0, 0.6667]
    """
    of = np.maximum(number, 1)
    spread = np.maximum(square - total**2 / of, 0) / np.maximum(number - 1, 1)
    return count * total / of, count * (1 - count / of) * spread


def independent(units: Units, rate: float) -> Moments:
    """Tokens of units that are each taken with probability `rate`: rate Σ l, variance rate (1 − rate) Σ l²."""
    total, square, _ = sums(units)
    return Moments.of(rate * total, rate * (1 - rate) * square)


def sums(units: Units) -> tuple[Array, Array, Array]:
    """(R,) Σ l, Σ l² and the number of units of each text."""
    row = np.repeat(np.arange(len(units.start) - 1), units.counts)
    length = units.length.astype(float)
    total, square = (np.bincount(row, length**k, len(units.start) - 1) for k in (1, 2))
    return total, square, units.counts
