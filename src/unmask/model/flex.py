"""FlexAttention from the record's vectors: the visibility rule as a function of two indices, the mask as blocks.

    visible   block[q] == block[k], reveal[k] <= horizon[q], |position[q] - position[k]| <= window
    score     cap · tanh(score / cap), then ALiBi's slope a head

The kernel is compiled for a GPU and skips blocks of 128 × 128 pairs that nobody sees, which a dense mask cannot. It
serves self-attention without a cache and without dropout on its weights. Learned scores (T5's table, DeBERTa's and
XLNet's terms) and latent attention stay with the dense kernels; so does a row that is one text under a plain pattern,
for which the fused kernel needs no mask, and whatever is compiled as a whole (`compile`). On a CPU it has no backward
pass: tests run it forward there, uncompiled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from unmask.batch import Stream
from unmask.config import ModelConfig
from unmask.model.positions import Alibi, alibi_slopes

FLEX_SIZE = 16
"""The smallest head that the kernel takes."""


@dataclass(frozen=True)
class Flex:
    """What the layers of a stack share: the block mask, the positions where the score reads them, and the slopes."""

    mask: Any
    dtype: torch.dtype
    positions: Tensor
    slopes: Tensor | None = None


def suits_flex(kernel: str, config: ModelConfig, stream: Stream, window: int | None) -> bool:
    """Whether the kernel serves this model and stream: where asked ("flex"), or on a GPU where a mask is needed."""
    if kernel == "dense" or config.latent is not None or config.positions in ("t5", "deberta", "xlnet"):
        return False
    if kernel == "flex":
        return True
    plain = stream.isolated and stream.pattern in ("full", "causal") and config.positions != "alibi"
    if plain and window is None and config.attention_softcap is None:
        return False
    if stream.block.device.type != "cuda" or config.size_per_head < FLEX_SIZE:
        return False
    return not torch.compiler.is_compiling() and _has_triton()


def flex_of(stream: Stream, score: object, dtype: torch.dtype, window: int | None) -> Flex:
    """A stream's view of itself."""
    from torch.nn.attention.flex_attention import create_block_mask

    block, reveal, horizon, positions = stream.block, stream.reveal, stream.horizon, stream.positions

    def seen(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        there = (block[b, q] == block[b, k]) & (reveal[b, k] <= horizon[b, q])
        return there if window is None else there & ((positions[b, q] - positions[b, k]).abs() <= window)

    rows, length = block.shape
    device = block.device
    mask = create_block_mask(seen, rows, None, length, length, device=device.type if device.index is None else device)
    slopes = torch.tensor(alibi_slopes(score.heads), device=device) if isinstance(score, Alibi) else None
    return Flex(mask, dtype, positions, slopes)


def flex_attend(q: Tensor, k: Tensor, v: Tensor, flex: Flex, scale: float, cap: float | None) -> Tensor:
    """softmax(cap(scale · q kᵀ) − slope · distance) v over visible keys; (B, H, T, D). A query that sees nothing: 0."""
    q, k, v = (x.to(flex.dtype) for x in (q, k, v))
    out: Tensor = _flex_kernel(q.device.type)(
        q,
        k,
        v,
        score_mod=_scored(flex.positions, flex.slopes, cap),
        block_mask=flex.mask,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out


def _scored(positions: Tensor, slopes: Tensor | None, cap: float | None) -> Callable[..., Tensor] | None:
    """The change of a score at (row, head, query, key), or None."""
    if slopes is None and cap is None:
        return None

    def changed(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if cap is not None:
            score = cap * torch.tanh(score / cap)
        if slopes is not None:
            score = score - slopes[h] * (positions[b, q] - positions[b, k]).abs()
        return score

    return changed


@cache
def _has_triton() -> bool:
    """Whether what compiles kernels for GPUs is there."""
    return find_spec("triton") is not None


@cache
def _flex_kernel(device: str) -> Any:
    """Compiled once a process on a GPU; elsewhere as it is, which materialises all scores."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention) if device == "cuda" else flex_attention
