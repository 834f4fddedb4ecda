"""How a model knows where a token stands: sinusoids, rotary angles, and scores on position pairs (T5, ALiBi).

Learned tables need no function: they are a parameter of their stack (`transformer.py`). Terms that depend on content
too (DeBERTa, XLNet) are in `relative.py`.

Legend: B rows, T tokens, Tq queries, Tk keys, H heads, D head size, d hidden size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn


def sinusoids(positions: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """(…, size) sines then cosines of positions (…) (Vaswani et al. 2017, section 3.5).

    The halves lie side by side instead of interleaved: the same functions in another order.
    """
    half = (size + 1) // 2
    rate = torch.exp(torch.arange(half, device=positions.device, dtype=torch.float32) * (-math.log(10000.0) / half))
    angle = positions[..., None] * rate
    return torch.cat([angle.sin(), angle.cos()], -1)[..., :size].to(dtype)


def rotary(positions: Tensor, head_size: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines (B, T, 1, D / 2) of each position's angles (Su et al. 2021, section 3.2.2)."""
    exponent = torch.arange(0, head_size, 2, device=positions.device, dtype=torch.float32) / head_size
    angle = (positions[..., None] * (1.0 / base**exponent))[:, :, None]
    return angle.cos().to(dtype), angle.sin().to(dtype)


def relative_bucket(difference: Tensor, bidirectional: bool, buckets: int, max_distance: int) -> Tensor:
    """T5's bucket of key position - query position (Raffel et al. 2020, section 2.1; their code is the spec).

    Half of the buckets are exact distances, the rest grow as logarithms up to `max_distance`. With
    `bidirectional`, keys to the right use the upper half of the table; without, they share bucket 0.

    >>> relative_bucket(torch.tensor([-40, -9, -1, 0, 1, 9]), True, 32, 128).tolist()
    [12, 8, 1, 0, 17, 24]
    >>> relative_bucket(torch.tensor([-40, -9, -1, 0, 1, 9]), False, 32, 128).tolist()
    [23, 9, 1, 0, 0, 0]
    """
    offset = torch.zeros_like(difference)
    if bidirectional:
        buckets //= 2
        offset = (difference > 0).to(difference.dtype) * buckets
        distance = difference.abs()
    else:
        distance = -difference.clamp(max=0)
    exact = buckets // 2
    ratio = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = (exact + (ratio * (buckets - exact)).to(difference.dtype)).clamp(max=buckets - 1)
    return offset + torch.where(distance < exact, distance, far)


def differences(q_positions: Tensor, k_positions: Tensor, contiguous: bool) -> Tensor:
    """Key position - query position, (1 or B, Tq, Tk), of positions (B, Tq) and (B, Tk).

    `contiguous` says that queries are the keys and that inside a block positions rise by one per index:
    then a difference of positions is a difference of indices, and one table serves all rows. (Pairs from
    different blocks get a wrong value there; the mask hides them.)
    """
    if contiguous:
        index = torch.arange(q_positions.shape[1], device=q_positions.device)
        return index[None, None, :] - index[None, :, None]
    return k_positions[:, None, :] - q_positions[:, :, None]


class RelativeBuckets(nn.Module):
    """A score on (query position, key position): T5's learned scalar per bucket and head, shared by all layers."""

    def __init__(self, buckets: int, max_distance: int, heads: int, bidirectional: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(buckets, heads))
        self.max_distance = max_distance
        self.bidirectional = bidirectional

    def dense(self, q_positions: Tensor, k_positions: Tensor, contiguous: bool = False) -> Tensor:
        """The additive bias (1 or B, H, Tq, Tk) of positions (B, Tq) and (B, Tk); `contiguous`: see `differences`."""
        difference = differences(q_positions, k_positions, contiguous)
        bucket = relative_bucket(difference, self.bidirectional, self.weight.shape[0], self.max_distance)
        return nn.functional.embedding(bucket, self.weight).permute(0, 3, 1, 2).contiguous()


@torch.no_grad()
def neighbours(weight: Tensor, bidirectional: bool, max_distance: int, generator: torch.Generator) -> None:
    """Fill T5's table (buckets, H) so that heads start out looking at their neighbours.

    N(0, 2), and 4 more (nats, where queries and keys are not scaled) at one offset of a head, key position - query
    position: -1, 1, -2, 2 in turn, or -1, -2 in a stack that sees no later key.

    >>> weight, noise = torch.empty(2, 8, 4)
    >>> neighbours(weight, True, 20, torch.Generator().manual_seed(0))
    >>> noise = noise.normal_(0.0, 2.0, generator=torch.Generator().manual_seed(0))
    >>> (weight - noise).argmax(0).tolist()  # buckets 1 and 2 hold -1 and -2, buckets 5 and 6 hold 1 and 2
    [1, 5, 2, 6]
    """
    weight.normal_(0.0, 2.0, generator=generator)
    offsets = torch.tensor([-1, 1, -2, 2] if bidirectional else [-1, -2], device=weight.device)
    heads = torch.arange(weight.shape[1], device=weight.device)
    preferred = relative_bucket(offsets, bidirectional, weight.shape[0], max_distance)
    weight[preferred[heads % len(offsets)], heads] += 4.0


def alibi_slopes(heads: int) -> list[float]:
    """A slope of each head: 2 ** (-8 h / H) for h = 1 … H where H is a power of two (Press et al. 2022, section 3).

    Else those of the power of two below, then every other one of the power above (their code).

    >>> alibi_slopes(8)
    [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]
    >>> alibi_slopes(3)
    [0.0625, 0.00390625, 0.25]
    """
    below = 2 ** (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * h / below) for h in range(1, below + 1)]
    return slopes + [2.0 ** (-4 * h / below) for h in range(1, 2 * (heads - below), 2)]


@dataclass(frozen=True)
class Alibi:
    """A score on (query position, key position): minus a head's slope × distance (Press et al. 2022), nothing learned.

    BLOOM adds slope × key position instead: in a causal stack that differs by a constant per query, which softmax
    does not see.
    """

    heads: int

    def dense(self, q_positions: Tensor, k_positions: Tensor, contiguous: bool = False) -> Tensor:
        """The additive bias (1 or B, H, Tq, Tk) of positions (B, Tq) and (B, Tk); `contiguous`: see `differences`."""
        slopes = torch.tensor(alibi_slopes(self.heads), device=q_positions.device)
        return -slopes[:, None, None] * differences(q_positions, k_positions, contiguous).abs()[:, None]
