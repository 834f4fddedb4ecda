"""How a model knows where a token stands: sinusoids, rotary angles, T5's relative buckets.

Learned tables need no function: they are a parameter of their stack (`transformer.py`).

Legend: B rows, T tokens, Tq queries, Tk keys, H heads, D head size, d hidden size.
"""

from __future__ import annotations

import math

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


def rotate(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """x (B, T, H, D) turned by its position: dimension i is paired with i + D / 2 (Llama as in transformers)."""
    cos, sin = angles
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


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


class RelativeBuckets(nn.Module):
    """A score on (query position, key position): T5's learned scalar per bucket and head, shared by all layers."""

    def __init__(self, buckets: int, max_distance: int, heads: int, bidirectional: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(buckets, heads))
        self.max_distance = max_distance
        self.bidirectional = bidirectional

    def dense(self, q_positions: Tensor, k_positions: Tensor, contiguous: bool = False) -> Tensor:
        """The additive bias (1 or B, H, Tq, Tk) of positions (B, Tq) and (B, Tk).

        `contiguous` says that queries are the keys and that inside a block positions rise by one per index:
        then a difference of positions is a difference of indices, and one table serves all rows. (Pairs from
        different blocks get a wrong value there; the mask hides them.)
        """
        if contiguous:
            index = torch.arange(q_positions.shape[1], device=q_positions.device)
            difference = index[None, None, :] - index[None, :, None]
        else:
            difference = k_positions[:, None, :] - q_positions[:, :, None]
        bucket = relative_bucket(difference, self.bidirectional, self.weight.shape[0], self.max_distance)
        return nn.functional.embedding(bucket, self.weight).permute(0, 3, 1, 2).contiguous()
