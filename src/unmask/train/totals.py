"""What an update adds up to before its first backward pass: the divisors of its terms, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.batch import Batch, TermKey
from unmask.train.ranks import Ranks

Norms = Callable[[Any, Batch], Mapping[TermKey, float]]
"""(networks, batch) → the norms of the terms that are sums."""


@dataclass(frozen=True)
class Totals:
    """Over all micro-batches of an update, and all ranks."""

    norms: dict[TermKey, float]
    number: int
    """Micro-batches."""
    asked: int
    """Those of them that have a target."""
    tokens: int
    target_tokens: int
    flops: float


def totals_of(
    micro: Sequence[Batch],
    filler: Batch,
    norms: Callable[[Batch], Mapping[TermKey, float]],
    flops: Callable[[Batch], float],
    ranks: Ranks,
) -> Totals:
    """Of this rank's micro-batches and the others'; a rank without one takes the names of the terms from `filler`."""
    own = summed(map(norms, micro or [filler]))
    keys, counts = sorted(own), [batch.counts() for batch in micro]
    asked = sum(any(batch.norms().values()) for batch in micro)
    counted = [len(micro), asked, *(sum(c[k] for c in counts) for k in ("tokens", "target_tokens"))]
    *added, cost = ranks.add([*(own[k] if micro else 0.0 for k in keys), *counted, sum(map(flops, micro))])
    shared = dict(zip(keys, added, strict=False))
    number, asked, tokens, target_tokens = map(int, added[len(keys) :])
    return Totals({k: shared[k] for k in own}, number, asked, tokens, target_tokens, cost)


def summed(norms: Iterable[Mapping[TermKey, float]]) -> dict[TermKey, float]:
    """The divisor of every announced term, from the norms of the update's micro-batches."""
    out: dict[TermKey, float] = {}
    for of_batch in norms:
        for key, norm in of_batch.items():
            out[key] = out.get(key, 0.0) + norm
    return out
