"""Targets that objectives over two segments promise: what is masked in both, and the question about them.

A text is cut at one of its places, and its second part may give way to the end of a partner, cut as well. So the total
length T of the two has a law that can be enumerated, given the places at which sentences start; what is masked follows
from T, and there is a question where there are cuts.
"""

from __future__ import annotations

import numpy as np

from unmask.batch import Rows
from unmask.objectives import units
from unmask.objectives.masked import Masked
from unmask.objectives.sentence import NextSentence, SentenceOrder
from unmask.show.moments import Array, Moments, sampled

Outcome = tuple[float, int, bool]
"""A probability, the tokens of both segments, and whether there is a question."""


def next_sentence(o: NextSentence, rows: Rows) -> Moments | str:
    """What is masked in T tokens, over the cuts and the short lengths, and 1 for the question where there is one."""
    if o.masking.unit == "word":
        return "which words the partner's stretch holds"
    if rows.partner is None:
        return "which partner a text gets"
    factor = boundary_factor(o.masking, 1)
    if factor is None:
        return "how long the spans are that the boundary objective reads"
    told = [_asked(o.masking, _outcomes(o, rows, r), rows.progress, factor) for r in range(len(rows.lengths))]
    mean, variance = np.array(told).reshape(-1, 2).T
    return Moments.of(mean, variance)


def sentence_order(o: SentenceOrder, rows: Rows) -> Moments | str:
    """Both halves are read whole: what is masked in n tokens, and 1 for the question where there is a cut.

    A cut inside a word makes two of it: with whole words the mean is over the cuts.
    """
    n, masking = rows.lengths, o.masking
    if masking.unit == "token":
        factor = boundary_factor(masking, 1)
        told = [_masked(masking, np.array([k]), np.ones(1), rows.progress) for k in n.tolist()]
    else:
        factor = boundary_factor(masking, longest(units.words(rows), masking))
        told = [_words_after_cut(o, rows, r) for r in range(len(n))]
    if factor is None:
        return "how long the spans are that the boundary objective reads"
    mean, variance = np.array(told).reshape(-1, 2).T
    return (
        Moments.of(mean, variance).times(factor).plus(np.array([len(_halves(o, rows, r)) > 0 for r in range(len(n))]))
    )


def boundary_factor(masking: Masked, longest_unit_run: int) -> int | None:
    """How often each hidden token is asked: twice under the boundary objective, if no span can pass its offsets."""
    if not masking.boundary_offsets:
        return 1
    run = longest_unit_run if masking.unit == "word" else 1 if masking.span_lengths == "one" else masking.max_span
    return 2 if run <= masking.boundary_offsets else None


def longest(found: units.Units, masking: Masked) -> int:
    """Tokens of the longest stretch that a span can be: `max_span` neighbouring units of one text."""
    most = 1 if masking.span_lengths == "one" else masking.max_span
    total = np.append(0, np.cumsum(found.length))
    at = np.arange(len(found.length))
    until = np.minimum(at + most, np.repeat(found.start[1:], found.counts))
    return int((total[until] - total[at]).max(initial=0))


def _masked(masking: Masked, length: Array, chance: Array, progress: float) -> tuple[float, float]:
    """Mean and variance of the tokens that are masked, where there are `length` of them with these chances."""
    if masking.selection == "independent":
        rate = masking.rate(progress)
        mean, inner = rate * length, rate * (1 - rate) * length
    else:
        mean, inner = masking.budget(length, progress).astype(float), np.zeros(len(length))
    first = float(chance @ mean)
    return first, max(float(chance @ (inner + mean**2)) - first**2, 0.0)


def _asked(masking: Masked, outcomes: list[Outcome], progress: float, factor: int) -> tuple[float, float]:
    """Mean and variance of the targets: `factor` for every token that is masked, and the question."""
    mean = square = 0.0
    for chance, length, asked in outcomes:
        hidden, spread = _masked(masking, np.array([length]), np.ones(1), progress)
        first = factor * hidden + asked
        mean, square = mean + chance * first, square + chance * (factor**2 * spread + first**2)
    return mean, max(square - mean**2, 0.0)


def _starts(rows: Rows, r: int) -> Array:
    """The places of a text, not the first, at which sentences start."""
    if rows.sentence is None:
        return np.zeros(0, np.int64)
    return np.flatnonzero(rows.sentence[rows.start[r] : rows.start[r + 1]][1:]) + 1


def _halves(o: SentenceOrder, rows: Rows, r: int) -> Array:
    """The places at which a text may be cut in halves, all equally likely."""
    n = int(rows.lengths[r])
    if o.boundary == "token":
        return np.arange(1, n)
    at = _starts(rows, r)
    if not len(at):
        return at
    far = np.abs(at[:, None] + at - n).min(1)
    return at[(far <= max(n // 32, far.min())) & (far <= -(-n // 8))]


def _outcomes(o: NextSentence, rows: Rows, r: int) -> list[Outcome]:
    """What may become of one text and its partner, in either half of the samples."""
    assert rows.partner is not None
    n, m = int(rows.lengths[r]), int(rows.partner.lengths[r])
    mine, theirs = _starts(rows, r), _starts(rows.partner, r)
    if o.input_format == "sentence_pair":
        pairs = [(a, n, c, m) for a in mine for c in theirs]
        return _either(pairs, n)
    longer = max(n, m)
    found = [(1 - o.short_share, longer)]
    if o.short_share:
        found += [(o.short_share / max(longer - 1, 1), k) for k in range(2, max(longer, 2) + 1)]
    out: list[Outcome] = []
    for share, most in found:
        if o.boundary == "token":
            k = min(n, most)
            part = [(1.0, k, True)] if min(k, m, most) > 1 else [(1.0, n, False)]
        else:
            part = _either(_alike(mine, theirs, _beginning(mine, n, most), _beginning(theirs, m, most)), n)
            behind = theirs[theirs >= n]
            if o.one_sentence == "random" and not len(mine) and n and len(behind):
                part = [(1.0, n + m - int(behind[0]), True)]
        out += [(share * chance, length, asked) for chance, length, asked in part]
    return out


def _either(pairs: list[tuple[int, int, int, int]], n: int) -> list[Outcome]:
    """Cuts (a, end, c, end), all equally likely, each with what follows or with the partner's end; or none."""
    if not pairs:
        return [(1.0, n, False)]
    share = 0.5 / len(pairs)
    return [(share, int(length), True) for a, end, c, theirs in pairs for length in (end, a + theirs - c)]


def _beginning(at: Array, n: int, most: int) -> int:
    """The tokens of whole sentences that fit in `most`, of two at least."""
    ends = [*at.tolist(), n]
    return n if n <= most else max(max((e for e in ends if e <= most), default=0), ends[min(1, len(ends) - 1)])


def _alike(mine: Array, theirs: Array, n: int, m: int) -> list[tuple[int, int, int, int]]:
    """The cuts of `pairs.alike`, by trying all."""
    most = max(n, m)
    while n and m:
        every = [
            (min(abs(a - c), abs((n - a) - (m - c))), (a, n, c, m))
            for a in mine[mine < n].tolist()
            for c in theirs[theirs < m].tolist()
            if a + m - c <= most and c + n - a <= most
        ]
        if every:
            return [cut for far, cut in every if far == min(every)[0]]
        n, m = (int(at[at < end].max(initial=0)) for at, end in ((mine, n), (theirs, m)))
    return []


def _words_after_cut(o: SentenceOrder, rows: Rows, r: int) -> tuple[float, float]:
    """Mean and variance of the tokens of one text in masked words, over the cuts: a word that is cut is two."""
    assert rows.word is not None
    span = slice(int(rows.start[r]), int(rows.start[r + 1]))
    word, n = rows.word[span].copy(), span.stop - span.start
    word[:1] = True
    begin = np.append(np.flatnonzero(word), n)
    length = np.diff(begin).astype(float)
    at = _halves(o, rows, r)
    at = at if len(at) else np.zeros(1, np.int64)
    inside = ~word[at]
    of = np.searchsorted(begin, at, "right") - 1
    left = (at - begin[of]).astype(float)
    number = len(length) + inside
    square = (length**2).sum() + inside * (left**2 + (length[of] - left) ** 2 - length[of] ** 2)
    if o.masking.selection == "independent":
        rate = o.masking.rate(rows.progress)
        mean, inner = np.full(len(at), rate * n), rate * (1 - rate) * square
    else:
        budget = o.masking.budget(number, rows.progress)
        mean, inner = sampled(np.full(len(at), float(n)), square, number, budget)
    first = float(mean.mean())
    return first, max(float((inner + mean**2).mean()) - first**2, 0.0)
