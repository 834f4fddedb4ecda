"""Random choices over ragged rows, all keyed: k of n positions, and compositions of a length into parts."""

from __future__ import annotations

import numpy as np

from unmask import keyed
from unmask.batch import places, ranges, starts

_LAST = np.uint32(0xFFFFFFFF)
_SLACK = 1 << 16
"""Padding that a grid of texts may have beside four times their tokens."""


def choose(start: np.ndarray, key: np.ndarray, count: np.ndarray, eligible: np.ndarray | None = None) -> np.ndarray:
    """(N,) bool: for each text, `count` (R,) of its eligible positions, every subset equally likely.

    Takes the positions with the smallest 32 random bits, of equal ones the earlier: the bits are a function
    of key and place, so the choice is the same whatever else is in the batch. `count` beyond the eligible
    positions takes them all.
    """
    lengths = np.diff(start)
    width = int(lengths.max(initial=0))
    if len(lengths) * width > 4 * int(start[-1]) + _SLACK:
        return _by_length(start, key, count, eligible)
    fixed = np.zeros(0, np.int64) if eligible is None else np.flatnonzero(~eligible)
    blocked = np.diff(np.searchsorted(fixed, start))
    count = np.clip(count, 0, lengths - blocked)
    if not count.any():
        return np.zeros(int(start[-1]), bool)
    drawn = draws(key, width)
    row = np.repeat(np.arange(len(lengths)), blocked)
    drawn[row, fixed - start[row]] = _LAST
    inside = np.arange(width) < lengths[:, None]
    drawn[~inside] = _LAST
    most = np.sort(drawn, axis=1)[np.arange(len(lengths)), np.maximum(count, 1) - 1]
    grid = drawn <= most[:, None]
    grid[count == 0] = False
    picked = grid[inside]
    picked[fixed] = False
    if picked.sum() == count.sum():
        return picked
    return _without_ties(picked, (drawn == most[:, None])[inside], start, count)


def draws(key: np.ndarray, width: int) -> np.ndarray:
    """(R, width) uint32: 32 random bits for each place."""
    return (keyed.bits(key[:, None], np.arange(width)) >> np.uint64(32)).astype(np.uint32)


def _by_length(start: np.ndarray, key: np.ndarray, count: np.ndarray, eligible: np.ndarray | None) -> np.ndarray:
    """`choose` among texts of like length at a time: one long text does not make a wide grid of many short ones."""
    lengths = np.diff(start)
    picked = np.zeros(int(start[-1]), bool)
    scale = np.frexp(lengths)[1]
    for size in np.unique(scale):
        mine = scale == size
        at = ranges(start[:-1][mine], lengths[mine])
        some = None if eligible is None else eligible[at]
        picked[at] = choose(starts(lengths[mine]), key[mine], count[mine], some)
    return picked


def _without_ties(picked: np.ndarray, tied: np.ndarray, start: np.ndarray, count: np.ndarray) -> np.ndarray:
    """`picked` without the last of the tied positions of each text that has more than `count` (rare)."""
    total = starts(picked)[start]
    for r in np.flatnonzero(np.diff(total) > count).tolist():
        mine = slice(start[r], start[r + 1])
        surplus = total[r + 1] - total[r] - count[r]
        picked[start[r] + np.flatnonzero(picked[mine] & tied[mine])[-surplus:]] = False
    return picked


def compose(total: np.ndarray, parts: np.ndarray, key: np.ndarray) -> np.ndarray:
    """(Σ parts,) positive lengths: a uniformly random composition of each `total` (R,) into `parts` (R,).

    Needs total >= parts, and total = 0 exactly where parts = 0.
    """
    start = starts(total)
    first = np.zeros(int(start[-1]), bool)
    first[start[:-1][total > 0]] = True
    cut = choose(start, key, parts - 1, ~first) | first
    at = np.flatnonzero(cut)
    return np.diff(np.append(at, start[-1]))


def place_spans(length: np.ndarray, noise: np.ndarray, spans: np.ndarray, key: np.ndarray, edges: str) -> np.ndarray:
    """(N,) bool: `noise` (R,) of each text's `length` (R,) tokens in exactly `spans` (R,) separate spans.

    Span lengths and the gaps between them are uniformly random compositions (T5's `random_spans_noise_mask`).
    edges="free": a span may touch either end, so often that the ends are noise as often as the middle; needs
    spans <= length - noise + 1. edges="official": T5's code, where every text starts with kept tokens
    and ends with a span, so the first token is never noise and the last always is; needs
    spans <= length - noise.

    A few long spans are not even between the ends. At 100 of 200 tokens, by decile from the first to the fifth (free
    edges are symmetric) or to the last:

        free, 2 spans       .53 .57 .54 .47 .38         3: .53 .53 .50 .48 .47      5: within .02     20: within .003
        official, 2 spans   .09 .25 .38 .46 .50 .50 .54 .62 .75 .91                 5: .26 .47 .50 … .50 .53 .74

    One free span is as likely at each place where it fits, so the middle lies in it most often.
    """
    kept = length - noise
    noise_key = keyed.absorb(key, keyed.purpose("noise lengths"))
    gap_key = keyed.absorb(key, keyed.purpose("gap lengths"))
    if edges == "free":
        opens, closes = _touched(length, noise, spans, keyed.absorb(key, keyed.purpose("edges")))
    else:
        opens, closes = length == 0, spans > 0
    run = starts(2 * spans + 1)  # gap, span, gap, …, span, gap
    is_noise = places(run) % 2 == 1
    is_gap = ~is_noise
    is_gap[run[:-1][opens]] = False
    is_gap[run[1:][closes] - 1] = False
    runs = np.zeros(len(is_noise), np.int64)
    runs[is_noise] = compose(noise, spans, noise_key)
    runs[is_gap] = compose(kept, spans + 1 - opens - closes, gap_key)
    return np.repeat(is_noise, runs)


def _touched(
    length: np.ndarray, noise: np.ndarray, spans: np.ndarray, key: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(R,) bool each: no gap opens the text, none closes it.

    As if the text were a ring of `spans` spans, cut at a random place: of its n cuts, noise - spans fall inside
    a span and leave a part of it at both ends, spans fall just before one and spans just behind one. A single
    span cannot be at both ends.
    """
    kept = length - noise
    cut = keyed.below(keyed.bits(key, np.zeros(len(key), np.int64)), np.maximum(length, 1))
    both = np.where(spans > 1, (cut < noise - spans) | (kept < spans), kept == 0)
    closes = both | ((cut >= length - 2 * spans) & (cut < length - spans))
    opens = both | (cut >= length - spans) | (~closes & (kept == spans))
    return np.where(spans > 0, opens, length == 0), closes & (spans > 0)
