"""Random choices over ragged rows, all keyed: k of n positions, and compositions of a length into parts."""

from __future__ import annotations

import numpy as np

from unmask import keyed
from unmask.batch import places, starts

_LAST = np.uint32(0xFFFFFFFF)


def choose(start: np.ndarray, key: np.ndarray, count: np.ndarray, eligible: np.ndarray | None = None) -> np.ndarray:
    """(N,) bool: for each text, `count` (R,) of its eligible positions, every subset equally likely.

    Takes the positions with the smallest 32 random bits, of equal ones the earlier: the bits are a function
    of key and place, so the choice is the same whatever else is in the batch. `count` beyond the eligible
    positions takes them all.
    """
    lengths = np.diff(start)
    place, row = places(start), np.repeat(np.arange(len(lengths)), lengths)
    drawn = (keyed.bits(key[row], place) >> np.uint64(32)).astype(np.uint32)
    if eligible is not None:
        drawn[~eligible] = _LAST
        lengths = np.bincount(row, eligible, len(lengths)).astype(np.int64)
    count = np.minimum(count, lengths)
    if not len(count) or count.max() <= 0:
        return np.zeros(len(drawn), bool)
    grid = np.full((len(count), int(np.diff(start).max())), _LAST)
    grid.reshape(-1)[row * grid.shape[1] + place] = drawn
    grid.sort(axis=1)
    most = grid[np.arange(len(count)), np.maximum(count, 1) - 1]
    picked = (drawn <= most[row]) & (count > 0)[row]
    if eligible is not None:
        picked &= eligible
    return picked if picked.sum() == count.clip(0).sum() else _without_ties(picked, drawn == most[row], row, count)


def _without_ties(picked: np.ndarray, tied: np.ndarray, row: np.ndarray, count: np.ndarray) -> np.ndarray:
    """`picked` without the last of the tied positions of each text that has more than `count` (rare)."""
    excess = np.bincount(row[picked], minlength=len(count)) - count.clip(0)
    for r in np.flatnonzero(excess).tolist():
        picked[np.flatnonzero(picked & tied & (row == r))[-excess[r] :]] = False
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
