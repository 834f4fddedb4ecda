"""Targets that an objective's settings promise, in closed form: mean and variance over the noise, summed over texts.

Given the texts as they are cut: lengths n, whether each ends its document (the end token is a target then), and where
the settings ask for it their words, sentences, spans and partners. What the noise decides by chance has a variance;
where the settings fix a number, it is 0. Choices that are spread evenly over sample numbers (UL2's denoisers, UniLM's
kinds, the parts of a mixture, diffusion's t) count as if every text drew alone, so that they vary less than told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from unmask.batch import Rows, starts
from unmask.objectives import units
from unmask.objectives.ahead import MultiToken
from unmask.objectives.annotated import Ernie, SalientSpans
from unmask.objectives.bart import Bart
from unmask.objectives.base import Objective, outline
from unmask.objectives.causal import Causal
from unmask.objectives.contrastive import Contrastive
from unmask.objectives.denoise import PrefixLM, SpanCorruption, SpanNoise, TextToText
from unmask.objectives.dials import Dials
from unmask.objectives.diffuse import Diffusion
from unmask.objectives.glm import GLM
from unmask.objectives.infilling import CausallyMasked, FillInTheMiddle
from unmask.objectives.masked import Masked, Spanned
from unmask.objectives.mass import Mass
from unmask.objectives.mixture import Mixture
from unmask.objectives.permutation import Permutation
from unmask.objectives.replaced import Replaced
from unmask.objectives.sentence import FullSentences, NextSentence, SentenceOrder
from unmask.objectives.shifted import ShiftedMasked
from unmask.objectives.study import DroppedTokens, Restoration
from unmask.objectives.supervised import Supervised
from unmask.objectives.ul2 import UL2
from unmask.objectives.unilm import UniLM
from unmask.show.expected_pairs import boundary_factor, longest, next_sentence, sentence_order
from unmask.show.moments import Array, Moments, drawn, independent, mixed


@dataclass(frozen=True)
class Expected:
    """Sums over texts: all targets with weight, and those that are sentinels."""

    targets: float
    targets_variance: float = 0.0
    marks: float = 0.0
    marks_variance: float = 0.0


def expected(objective: Objective, rows: Rows) -> Expected | str:
    """The sums over texts, whose noise is independent; or what decides that the texts do not tell, in a few words."""
    found = moments(objective, rows)
    return found if isinstance(found, str) else Expected(*(float(np.sum(part)) for part in astuple(found)))


def moments(objective: Objective, rows: Rows) -> Moments | str:
    """Of each text by itself."""
    rule = RULES.get(type(objective))
    if rule is None:
        return "what it asks for"
    if isinstance(objective, TextToText) and objective.layout.loss == "all":
        return "how long the sources are, which layout.loss=all asks for"
    return rule(objective, rows)


# ---------------------------------------------------------------- left to right


def _causal(o: Causal, rows: Rows) -> Moments:
    """Every token, and the end: n + [ends]."""
    return Moments.of(rows.lengths + rows.ends)


def _multi_token(o: MultiToken, rows: Rows) -> Moments:
    """Head k misses the last k − 1: Σ_k max(n + [ends] − k + 1, 0)."""
    return Moments.of(sum(np.maximum(rows.lengths + rows.ends - k, 0) for k in range(o.num_future)))


def _fill_in_the_middle(o: FillInTheMiddle, rows: Rows) -> Moments:
    """A text is cut with probability rate: then n + 3 sentinels and the end, else n + [ends].

    end="sentinel": n + 4 sentinels + [ends]. loss="middle": of a cut one the |a − b| tokens between two cuts, and
    what closes them.
    """
    n, ends = rows.lengths, rows.ends
    closes = ends + 1 if o.end == "sentinel" else np.ones(len(n))
    extra = float(o.end == "sentinel")
    if o.loss == "middle":
        mean, variance = _between(_borders(o, rows), len(n))
        cut = Moments.of(mean + closes, variance, extra)
    else:
        cut = Moments.of(n + 3 + closes, 0.0, 3 + extra)
    either = mixed((o.rate, 1 - o.rate), (cut, Moments.of(n + ends)))
    some = n > 0
    return Moments(*(np.where(some, a, b) for a, b in zip(astuple(either), astuple(Moments.of(n + ends)), strict=True)))


def _borders(o: FillInTheMiddle, rows: Rows) -> tuple[Array, Array]:
    """(B,) the places at which texts may be cut, and the text of each: 0 … n, or in front of words and at the end."""
    row = np.repeat(np.arange(len(rows.lengths)), rows.lengths + 1)
    place = np.arange(len(row)) - np.repeat(starts(rows.lengths + 1)[:-1], rows.lengths + 1)
    if o.splits == "words":
        assert rows.word is not None
        allowed = (place == 0) | (place == rows.lengths[row])
        allowed[np.arange(len(rows.tokens)) + rows.row] |= rows.word
        place, row = place[allowed], row[allowed]
    return place, row


def _between(borders: tuple[Array, Array], texts: int) -> tuple[Array, Array]:
    """Mean and variance of |a − b| for a, b uniform over the m borders of a text, ascending p_0 … p_(m−1):
    E|a − b| = 2 / m² Σ (2 i − m + 1) p_i, and E (a − b)² = 2 (E p² − (E p)²)."""
    place, row = borders
    m = np.bincount(row, minlength=texts)
    i = np.arange(len(row)) - starts(m)[:-1][row]
    mean = 2 * np.bincount(row, (2 * i - m[row] + 1) * place, texts) / m**2
    first, second = (np.bincount(row, place.astype(float) ** k, texts) / m for k in (1, 2))
    return mean, 2 * (second - first**2) - mean**2


def _causally_masked(o: CausallyMasked, rows: Rows) -> Moments:
    """m = max(Poisson(1), 1) spans, at most (n + 1) / 2 and max_spans: n + [ends] and so many sentinels a span as are
    asked for, 2, and 1 more that closes it."""
    n, each = rows.lengths, 2 * o.predict_sentinels + o.end_of_span
    most = np.minimum((n + 1) // 2, o.max_spans)
    counts = np.arange(25)
    chance = np.exp(-1.0) / np.cumprod(np.maximum(counts, 1)).astype(float)
    m = np.minimum(np.maximum(counts, 1), most[:, None])
    mean, square = m @ chance, (m * m) @ chance
    spread = each**2 * (square - mean**2)
    return Moments.of(n + rows.ends + each * mean, spread, each * mean, spread)


def _dials(o: Dials, rows: Rows) -> Moments:
    """h tokens are masked and always asked; predict=masked asks for no more.

    Else the K = n + 1 − h others, [BOS] among them, ask for what follows unless they are among the first s, and the
    last one only where the document ends: h + max(K − s, 0) − [not ends, the last is not masked, K > s]. s is 0, or
    uniform over 0 … n − 1; h as in `Masked`.
    """
    out = np.zeros((2, len(rows.lengths)))
    masked = Masked(mask_rate=o.mask_rate or 1.0)
    for n, ends in {(int(n), bool(e)) for n, e in zip(rows.lengths, rows.ends, strict=True)}:
        h, chance = np.zeros(1), np.ones(1)
        if o.mask_rate and o.selection == "exact":
            h = masked.budget(np.array([n]), 0.0).astype(float)
        elif o.mask_rate:
            h, chance = np.arange(n + 1.0), _binomial(n, o.mask_rate)
        mean, square = (h, h * h) if o.predict == "masked" else _dialled(o, n, ends, h)
        first = chance @ mean
        out[:, (rows.lengths == n) & (rows.ends == ends)] = np.array([first, chance @ square - first**2])[:, None]
    return Moments.of(out[0], np.maximum(out[1], 0))


def _dialled(o: Dials, n: int, ends: bool, h: Array) -> tuple[Array, Array]:
    """E T and E T² for each number h of masked tokens, T = h + M − L as told in `_dials`."""
    k = n + 1 - h
    if o.prefix == "none":
        some, m, mm = np.ones(len(h)), k, k**2
    else:  # sums over s = 0 … n − 1 of M = max(K − s, 0) and its square; K = n + 1 would go on to s = n, where M = 1
        beyond = k > n
        some, m = np.minimum(k, n) / n, (k * (k + 1) / 2 - beyond) / n
        mm = (k * (k + 1) * (2 * k + 1) / 6 - beyond) / n
    left = (not ends) * (1 - h / n)  # the last token is not masked, and has nothing to predict
    mean = h + m - left * some
    return mean, h**2 + mm + left * some + 2 * h * m - 2 * h * left * some - 2 * left * m


def _binomial(n: int, p: float) -> Array:
    """(n + 1,) probabilities of 0 … n."""
    k = np.arange(1, n + 1)
    log = np.append(0.0, np.cumsum(np.log(n - k + 1) - np.log(k))) + np.arange(n + 1) * np.log(p / (1 - p))
    return np.asarray(np.exp(log + n * np.log(1 - p)))


# ---------------------------------------------------------------- masked


def selected(o: Spanned | Ernie | SalientSpans, rows: Rows) -> Moments:
    """Tokens that are hidden. exact: max(1, round(rate · U)) of the U tokens, words or spans of each text;
    independent: each by itself (`moments.drawn`, `moments.independent`)."""
    if isinstance(o, SalientSpans):
        found = units.annotated(rows)
        return drawn(found, np.minimum(o.max_spans, found.counts))
    found = o.units(rows) if isinstance(o, Ernie) else units.words(rows) if o.unit == "word" else units.tokens(rows)
    if isinstance(o, Spanned) and o.selection == "independent":
        return independent(found, o.rate(rows.progress))
    return drawn(found, o.budget(found.counts, rows.progress))


def _masked(o: Masked, rows: Rows) -> Moments | str:
    """Each hidden token, and once more for the boundary objective."""
    run = longest(units.words(rows), o) if o.unit == "word" and o.boundary_offsets else 1
    factor = boundary_factor(o, run)
    if factor is None:
        return f"how many tokens stand beyond the first {o.boundary_offsets} of a span"
    return selected(o, rows).times(factor)


def _full_sentences(o: FullSentences, rows: Rows) -> Moments | str:
    """As masked; separators between documents are fixed."""
    return _masked(o.masking, rows)


def _shifted(o: ShiftedMasked, rows: Rows) -> Moments:
    """As masked, and n + [ends] of the causal texts."""
    return mixed((o.causal_share, 1 - o.causal_share), (Moments.of(rows.lengths + rows.ends), selected(o, rows)))


def _replaced(o: Replaced, rows: Rows) -> Moments:
    """The hidden tokens for the generator; for the discriminator these again, or every token, once or twice (copy)."""
    hidden, every = selected(o, rows), np.bincount(rows.row, ~rows.fixed, len(rows.lengths))
    if o.task in ("masked_detection", "recovery"):
        return hidden.times(2)
    return hidden.plus(every * (2 if o.task == "all_tokens" else 1))


def _unilm(o: UniLM, rows: Rows) -> Moments:
    """By kind: max(1, round(rate · n)) masked tokens. next_token: n + [ends] left to right and n right to left; of a
    pair the second part, 0 … n − 1 tokens, and [ends]: (n − 1) / 2 + [ends], variance (n² − 1) / 12."""
    n, ends = rows.lengths, rows.ends
    masked = Moments.of(Masked(mask_rate=o.mask_rate).budget(n, 0.0))
    if not o.next_token:
        return masked
    second = Moments.of((n - 1) / 2 + ends, (n * n - 1) / 12)
    return mixed(o.shares, (masked, Moments.of(n + ends), Moments.of(n), second))


def _diffusion(o: Diffusion, rows: Rows) -> Moments:
    """Each of n' tokens with probability p, uniform over [ε, 1): E p = (1 + ε) / 2, var p = (1 − ε)² / 12; n' = n, or
    in some texts uniform over 1 … n. Variance E n' (E p − E p²) + E n'² E p² − (E n' E p)²."""
    n, short = rows.lengths, o.random_length_share
    p = (1 + o.eps) / 2
    pp = (1 - o.eps) ** 2 / 12 + p * p
    m, mm = (1 - short) * n + short * (n + 1) / 2, (1 - short) * n**2 + short * (n + 1) * (2 * n + 1) / 6
    return Moments.of(p * m, m * (p - pp) + mm * pp - (m * p) ** 2)


def _permutation(o: Permutation, rows: Rows) -> Moments | str:
    """One token in K: max(1, round(n / K))."""
    return Moments.of(o.count(rows.lengths))


def _glm(o: GLM, rows: Rows) -> Moments | str:
    """Noise tokens, and [EOS] for each blank. document: one blank of ⌈n / 2⌉ … n tokens, all alike often.

    short: x tokens are thrown into b boxes, of which N stay filled: E N = b (1 − (1 − 1/b)^x), and two given ones are
    both filled with probability 1 − 2 (1 − 1/b)^x + (1 − 2/b)^x. A ring of N spans is cut at one of n places, inside
    a span with probability (x − N) / n, which makes two of it.
    """
    n = rows.lengths
    if o.spans == "sentence":
        return "which sentences come first, until there are enough"
    if o.spans == "document":
        least = (n + 1) // 2
        return Moments.of((least + n) / 2 + 1, ((n - least + 1) ** 2 - 1) / 12)
    x, _ = o.counts(n)
    kept = n - x
    b = np.minimum(np.clip(np.rint(x / o.mean_span), 1, np.maximum(kept, 1)), x)
    full = b * (1 - (1 - 1 / b) ** x)
    square = full + b * (b - 1) * (1 - 2 * (1 - 1 / b) ** x + np.maximum(1 - 2 / b, 0) ** x)
    torn = (kept > 0) * (x - full) / n
    blanks = full + torn
    variance = square + (kept > 0) * 2 * (x * full - square) / n + torn - blanks**2
    return Moments.of(x + blanks, np.maximum(variance, 0))


def _contrastive(o: Contrastive, rows: Rows) -> Moments:
    """One answer of each side, of every text that can be parted: 2 where n > 1."""
    return Moments.of(2 * (rows.lengths > 1))


# ---------------------------------------------------------------- text to text


def _prefix_lm(o: PrefixLM, rows: Rows) -> Moments:
    """The split is uniform over 0 … n − 1: n − (n − 1) / 2 + [ends], variance (n² − 1) / 12."""
    n, m = rows.lengths, np.maximum(rows.lengths, 1)
    return Moments.of(n - (m - 1) / 2 + rows.ends, (m * m - 1) / 12)


def _spans(o: SpanCorruption, rows: Rows) -> Moments:
    """round(density · n) noise tokens in round(noise / mean_span) spans: noise + sentinels + [EOS], all fixed by n.

    Without a mean span x of n tokens are chosen one by one, and their runs are hypergeometric: of n tokens n − x + 1
    begin one, x are drawn.
    """
    (x, runs), n = o.counts(rows.lengths), rows.lengths
    spread: Array = np.zeros(len(n))
    if o.mean_span is None:
        share = (n - x + 1) / np.maximum(n, 1)
        runs, spread = x * share, x * share * (1 - share) * (n - x) / np.maximum(n - 1, 1)
    marks = runs + int(o.final_sentinel)
    return Moments.of(x + marks + 1, spread, marks, spread)


def _dropped(o: SpanNoise, rows: Rows) -> Moments:
    """The noise tokens and [EOS]."""
    return Moments.of(o.counts(rows.lengths)[0] + 1)


def _whole_text(o: Bart | Restoration, rows: Rows) -> Moments:
    """The whole text and [EOS], whatever the noise: n + 1."""
    return Moments.of(rows.lengths + 1)


def _mass(o: Mass, rows: Rows) -> Moments:
    """One fragment: max(1, round(share · (n + [ends]))), or so many tokens."""
    length = rows.lengths + rows.ends
    k = np.rint(o.fragment * length) if o.fragment_tokens is None else np.full(len(length), o.fragment_tokens)
    return Moments.of(np.minimum(np.maximum(k, 1), length))


def _supervised(o: Supervised, rows: Rows) -> Moments | str:
    """The tokens of the given target and [EOS], at most max_target."""
    return "which target a text has" if rows.partner is None else Moments.of(o.pair_sizes(outline(rows))[1])


def _ul2(o: UL2, rows: Rows) -> Moments:
    """A mixture of denoisers: R and X as span corruption; S asks for a length uniform between two bounds, one span."""
    n, each = rows.lengths, []
    for d in o.denoisers:
        if d.mode == "S":
            low, high = _suffix(o, n)
            noise, variance, spans = (low + high) / 2, ((high - low + 1) ** 2 - 1) / 12, np.minimum(n, 1)
        else:
            plain = SpanCorruption(noise_density=d.noise_density or 0.5, mean_span=d.mean_span or 1.0)
            noise, spans = plain.counts(n)
            variance = np.zeros(len(n))
        marks = spans + int(o.final_sentinel)
        each.append(Moments.of(noise + marks + 1, variance, marks))
    return mixed([d.weight for d in o.denoisers], each)


def _suffix(o: UL2, n: Array) -> tuple[Array, Array]:
    """The fewest and the most tokens that S asks for: 1 … n / 2, 1 … n − 1, or 3/4 of them."""
    least = np.minimum(n, 1)
    most = np.maximum(n - 1, least)
    if o.sequential == "three_quarters":
        share = np.clip(np.rint(0.75 * n).astype(np.int64), least, most)
        return share, share
    return least, np.clip(n // 2, least, most) if o.sequential == "half" else most


# ---------------------------------------------------------------- several


def _mixture(o: Mixture, rows: Rows) -> Moments | str:
    """Σ shares × parts, at the mean shares of the run."""
    if "target" in o.needs:
        return "which texts have a target"
    each = []
    for name, part in o.parts.items():
        found = moments(part.objective, rows)
        if isinstance(found, str):
            return f"of part {name}: {found}"
        each.append(found)
    return mixed(o.shares(), each)


RULES: dict[type[Objective], Callable[[Any, Rows], Moments | str]] = {
    Causal: _causal,
    MultiToken: _multi_token,
    FillInTheMiddle: _fill_in_the_middle,
    CausallyMasked: _causally_masked,
    Dials: _dials,
    Masked: _masked,
    ShiftedMasked: _shifted,
    Ernie: selected,
    SalientSpans: selected,
    FullSentences: _full_sentences,
    NextSentence: next_sentence,
    SentenceOrder: sentence_order,
    Replaced: _replaced,
    UniLM: _unilm,
    Diffusion: _diffusion,
    Permutation: _permutation,
    GLM: _glm,
    Contrastive: _contrastive,
    PrefixLM: _prefix_lm,
    SpanCorruption: _spans,
    DroppedTokens: _dropped,
    Restoration: _whole_text,
    Bart: _whole_text,
    Mass: _mass,
    Supervised: _supervised,
    UL2: _ul2,
    Mixture: _mixture,
}
"""By exact class: a subclass may select otherwise."""
