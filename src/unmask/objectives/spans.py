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
    edges="free": a span may touch either end, gaps between spans are at least 1; needs
    spans <= length - noise + 1. edges="official": T5's code, where every text starts with kept tokens
    and ends with a span, so the first token is never noise and the last always is; needs
    spans <= length - noise.
    """
    kept = length - noise
    noise_key = keyed.absorb(key, keyed.purpose("noise lengths"))
    gap_key = keyed.absorb(key, keyed.purpose("gap lengths"))
    inside = compose(noise, spans, noise_key)
    first_gap = np.cumsum(spans + 1) - (spans + 1)
    if edges == "free":
        gaps = compose(kept + 2, spans + 1, gap_key)
        gaps[first_gap] -= 1
        gaps[np.cumsum(spans + 1) - 1] -= 1
    else:
        gaps = np.zeros(int((spans + 1).sum()), np.int64)
        last = np.zeros(gaps.size, bool)
        last[np.cumsum(spans + 1) - 1] = True
        gaps[~last] = compose(kept, spans, gap_key)
    runs = np.zeros(int((2 * spans + 1).sum()), np.int64)
    is_noise = places(starts(2 * spans + 1)) % 2 == 1
    runs[is_noise], runs[~is_noise] = inside, gaps
    return np.repeat(is_noise, runs)
