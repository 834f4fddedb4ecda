"""Targets that an objective's settings promise, in closed form: mean and variance over the noise, summed over texts.

Given the lengths n of the texts and whether each ends its document (the end token is a target then). What the noise
of an objective decides by chance has a variance; where the settings fix a number, it is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from unmask.objectives.ahead import MultiToken
from unmask.objectives.bart import Bart
from unmask.objectives.base import Objective
from unmask.objectives.causal import Causal
from unmask.objectives.denoise import PrefixLM, SpanCorruption
from unmask.objectives.infilling import CausallyMasked, FillInTheMiddle
from unmask.objectives.masked import Masked
from unmask.objectives.mass import Mass
from unmask.objectives.permutation import Permutation
from unmask.objectives.study import DroppedTokens, Restoration
from unmask.objectives.ul2 import UL2


@dataclass(frozen=True)
class Expected:
    """Sums over texts: all targets with weight, and those that are sentinels."""

    targets: float
    targets_variance: float = 0.0
    marks: float = 0.0
    marks_variance: float = 0.0


Array = np.ndarray
Moments = tuple[Array, Array]
"""Mean and variance of each text, (R,)."""


def expected(objective: Objective, lengths: np.ndarray, ends: np.ndarray) -> Expected | None:
    """None where no formula is written down, or where words and sentences decide, which lengths do not tell."""
    rule, layout = RULES.get(type(objective)), getattr(objective, "layout", None)
    if layout is not None and layout.loss == "all":
        return None
    return None if rule is None else rule(objective, np.asarray(lengths, np.int64), np.asarray(ends, bool))


def _summed(n: Array, ends: Array, targets: Moments, marks: Moments | None = None) -> Expected:
    """Means and variances (R,) of each text, added up: noise is independent from text to text."""
    marks = marks or (np.zeros(len(n)), np.zeros(len(n)))
    return Expected(*(float(np.sum(part)) for part in (*targets, *marks)))


def _causal(o: Causal, n: Array, ends: Array) -> Expected:
    """Every token, and the end: n + [ends]."""
    return Expected(float((n + ends).sum()))


def _multi_token(o: MultiToken, n: Array, ends: Array) -> Expected:
    """Head k misses the last k − 1: Σ_k max(n + [ends] − k + 1, 0)."""
    return Expected(float(sum(np.maximum(n + ends - k, 0).sum() for k in range(o.num_future))))


def _fill_in_the_middle(o: FillInTheMiddle, n: Array, ends: Array) -> Expected | None:
    """A text is cut with probability rate: then n + 3 sentinels and the end, else n + [ends]. Bernoulli.

    end="sentinel": n + 4 sentinels + [ends]. With loss="middle" the cuts decide.
    """
    if o.loss == "middle":
        return None
    p, marks = o.rate * (n > 0), 3 + (o.end == "sentinel")
    more = 4 - ends * (o.end == "eos")
    return _summed(n, ends, (n + ends + p * more, p * (1 - p) * more**2), (p * marks, p * (1 - p) * marks**2))


def _causally_masked(o: CausallyMasked, n: Array, ends: Array) -> Expected | None:
    """m = max(Poisson(1), 1) spans, at most (n + 1) / 2 and max_spans, of two sentinels each: n + 2 m + [ends]."""
    if o.end_of_span or not o.predict_sentinels:
        return None
    most = np.minimum((n + 1) // 2, o.max_spans)
    drawn = np.arange(25)
    chance = np.exp(-1.0) / np.cumprod(np.maximum(drawn, 1)).astype(float)
    m = np.minimum(np.maximum(drawn, 1), most[:, None])
    mean, square = m @ chance, (m * m) @ chance
    return _summed(n, ends, (n + ends + 2 * mean, 4 * (square - mean**2)), (2 * mean, 4 * (square - mean**2)))


def _masked(o: Masked, n: Array, ends: Array) -> Expected | None:
    """exact: max(1, round(rate · n)); independent: binomial (n, rate), mean rate · n, variance rate (1 − rate) n.

    Spans of tokens keep the same count; whole words and the boundary objective's spans are not told by lengths.
    """
    if o.unit == "word" or o.boundary_offsets:
        return None
    rate = o.rate(0.0)
    if o.selection == "independent":
        return _summed(n, ends, (rate * n, rate * (1 - rate) * n))
    return Expected(float(np.minimum(np.maximum(np.rint(rate * n), 1), n).sum()))


def _permutation(o: Permutation, n: Array, ends: Array) -> Expected:
    """One token in K: max(1, round(n / K))."""
    return Expected(float(np.minimum(np.maximum(np.rint(n / o.one_in), 1), n).sum()))


def _prefix_lm(o: PrefixLM, n: Array, ends: Array) -> Expected:
    """The split is uniform over 0 … n − 1: n − (n − 1) / 2 + [ends], variance (n² − 1) / 12."""
    m = np.maximum(n, 1)
    return _summed(n, ends, (n - (m - 1) / 2 + ends, (m * m - 1) / 12))


def _spans(o: SpanCorruption, n: Array, ends: Array) -> Expected:
    """round(density · n) noise tokens in round(noise / mean_span) spans: noise + sentinels + [EOS], all fixed by n."""
    noise, spans = o.counts(n)
    marks = float((spans + int(o.final_sentinel)).sum())
    return Expected(float(noise.sum()) + marks + len(n), marks=marks)


def _dropped(o: DroppedTokens, n: Array, ends: Array) -> Expected:
    """The noise tokens and [EOS]."""
    return Expected(float(o.counts(n)[0].sum()) + len(n))


def _whole_text(o: Bart | Restoration, n: Array, ends: Array) -> Expected:
    """The whole text and [EOS], whatever the noise: n + 1."""
    return Expected(float(n.sum()) + len(n))


def _mass(o: Mass, n: Array, ends: Array) -> Expected:
    """One fragment: max(1, round(share · (n + [ends]))), or so many tokens."""
    length = n + ends
    k = np.rint(o.fragment * length) if o.fragment_tokens is None else np.full(len(n), o.fragment_tokens)
    return Expected(float(np.minimum(np.maximum(k, 1), length).sum()))


def _ul2(o: UL2, n: Array, ends: Array) -> Expected:
    """A mixture: Σ_d w_d E_d, and Σ_d w_d (variance_d + E_d²) − E² as if every text drew its denoiser alone.

    (They are spread evenly over sample numbers, so that the true variance is smaller.) R and X as span corruption; S
    asks for a length uniform between two bounds, in one span.
    """
    weight = np.array([d.weight for d in o.denoisers]) / sum(d.weight for d in o.denoisers)
    first, second = np.zeros((2, 2, len(n)))  # of targets and marks
    for w, d in zip(weight, o.denoisers, strict=True):
        if d.mode == "S":
            low, high = _suffix(o, n)
            noise, variance, spans = (low + high) / 2, ((high - low + 1) ** 2 - 1) / 12, np.minimum(n, 1)
        else:
            plain = SpanCorruption(noise_density=d.noise_density or 0.5, mean_span=d.mean_span or 1.0)
            noise, spans = plain.counts(n)
            variance = np.zeros(len(n))
        marks = spans + int(o.final_sentinel)
        for k, (mean, spread) in enumerate(((noise + marks + 1, variance), (marks, np.zeros(len(n))))):
            first[k] += w * mean
            second[k] += w * (spread + mean**2)
    return _summed(n, ends, (first[0], second[0] - first[0] ** 2), (first[1], second[1] - first[1] ** 2))


def _suffix(o: UL2, n: Array) -> tuple[Array, Array]:
    """The fewest and the most tokens that S asks for: 1 … n / 2, 1 … n − 1, or 3/4 of them."""
    least = np.minimum(n, 1)
    most = np.maximum(n - 1, least)
    if o.sequential == "three_quarters":
        share = np.clip(np.rint(0.75 * n).astype(np.int64), least, most)
        return share, share
    return least, np.clip(n // 2, least, most) if o.sequential == "half" else most


RULES: dict[type[Objective], Callable[[Any, Array, Array], Expected | None]] = {
    Causal: _causal,
    MultiToken: _multi_token,
    FillInTheMiddle: _fill_in_the_middle,
    CausallyMasked: _causally_masked,
    Masked: _masked,
    Permutation: _permutation,
    PrefixLM: _prefix_lm,
    SpanCorruption: _spans,
    DroppedTokens: _dropped,
    Restoration: _whole_text,
    Bart: _whole_text,
    Mass: _mass,
    UL2: _ul2,
}
"""By exact class: a subclass may select otherwise."""
