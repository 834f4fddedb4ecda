"""Random choices over ragged rows, all keyed: k of n positions, and compositions of a length into parts."""

from __future__ import annotations

import numpy as np

from unmask import keyed
from unmask.batch import places

_COLUMN_BITS = np.uint64(24)


def choose(start: np.ndarray, key: np.ndarray, count: np.ndarray, eligible: np.ndarray | None = None) -> np.ndarray:
    """(N,) bool: for each text, `count` (R,) of its eligible positions, every subset equally likely.

    Sorts (40 random bits | column) in rows padded to the longest text, so ties break on the same bits
    whatever else is in the batch. `count` beyond the eligible positions takes them all.
    """
    lengths = np.diff(start)
    r, longest = len(lengths), int(lengths.max(initial=0))
    picked = np.zeros(int(start[-1]), bool)
    if not picked.size:
        return picked
    column = np.arange(longest, dtype=np.uint64)
    order = (keyed.bits(key[:, None], column[None]) & ~np.uint64((1 << 24) - 1)) | column
    ok = column[None] < lengths[:, None].astype(np.uint64)
    if eligible is not None:
        flags = np.zeros((r, longest), bool)
        flags[np.repeat(np.arange(r), lengths), places(start)] = eligible
        ok &= flags
    order = np.where(ok, order, np.uint64(0xFFFFFFFFFFFFFFFF))
    order.sort(axis=1)
    take = np.arange(longest)[None] < np.minimum(count, ok.sum(1))[:, None]
    at = (order & np.uint64((1 << 24) - 1)).astype(np.int64) + start[:-1, None]
    picked[at[take]] = True
    return picked


def compose(total: np.ndarray, parts: np.ndarray, key: np.ndarray) -> np.ndarray:
    """(Σ parts,) positive lengths: a uniformly random composition of each `total` (R,) into `parts` (R,).

    Needs total >= parts, and total = 0 exactly where parts = 0.
    """
    start = np.concatenate([[0], np.cumsum(total)]).astype(np.int64)
    first = places(start) == 0
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
    is_noise = places(np.concatenate([[0], np.cumsum(2 * spans + 1)])) % 2 == 1
    runs[is_noise], runs[~is_noise] = inside, gaps
    return np.repeat(is_noise, runs)
