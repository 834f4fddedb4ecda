"""The parts of one layer: normalisation, attention with its projections, feed-forward, residuals.

Legend: B rows, T tokens, S source tokens, d hidden size, H heads, K key-value heads, D head size, I feed-forward size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.config import ModelConfig
from unmask.model.attention import Cache, Drop, View, attend
from unmask.model.positions import rotate

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),  # So et al. 2021 (Primer)
    "silu": F.silu,
    "geglu": F.gelu,  # the gated ones: act(gate) * up (Shazeer 2020)
    "geglu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "swiglu": F.silu,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The elementwise function of a (gated) activation's name."""
    return _ACTIVATIONS[name]


class Norm(nn.Module):
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019) over the last dimension."""

    def __init__(self, config: ModelConfig, size: int | None = None, kind: str | None = None) -> None:
        super().__init__()
        self.size = size or config.hidden_size
        self.kind = kind or config.norm
        self.eps = config.norm_eps
        self.weight = nn.Parameter(torch.empty(self.size))
        self.bias = nn.Parameter(torch.empty(self.size)) if self.kind == "layer" and config.norm_bias else None

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "layer":
            return F.layer_norm(x, (self.size,), self.weight, self.bias, self.eps)
        return F.rms_norm(x, (self.size,), self.weight.to(x.dtype), self.eps)


class Linear(nn.Linear):
    """x Wᵀ + b, which draws nothing when it is built: the model fills it from its own generator.

    `parts` are the row counts of projections fused into one, for optimisers that treat matrices apart (Muon).
    """

    def __init__(self, inputs: int, outputs: int, bias: bool, parts: tuple[int, ...] | None = None) -> None:
        super().__init__(inputs, outputs, bias)
        self.parts = parts

    def reset_parameters(self) -> None:
        """Nothing: see `transformer._initialise`."""


class Table(nn.Embedding):
    """Rows of learned vectors, empty until the model fills them."""

    def reset_parameters(self) -> None:
        """Nothing: see `transformer._initialise`."""


@dataclass(frozen=True)
class Context:
    """What all layers of a stack share in one forward pass."""

    view: View
    angles: tuple[Tensor, Tensor] | None = None  # rotary
    cross: View | None = None
    memory: Tensor | None = None  # (B, S, d) the source's final states
    cache: Cache | None = None
    drop: Drop | None = None
    drop_attention: Drop | None = None


class Attention(nn.Module):
    """Queries, keys and values from one fused projection, attention, and the way back to the stream."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.groups, self.size = config.num_heads, config.kv_heads, config.size_per_head
        self.scale = self.size**-0.5 if config.attention_scale is None else config.attention_scale
        d, bias = config.hidden_size, config.attention_bias
        parts = (self.heads * self.size, self.groups * self.size, self.groups * self.size)
        self.qkv = Linear(d, sum(parts), bias, parts)
        self.out = Linear(self.heads * self.size, d, bias)
        self.q_norm = Norm(config, self.size, "rms") if config.qk_norm else None
        self.k_norm = Norm(config, self.size, "rms") if config.qk_norm else None

    def forward(self, x: Tensor, context: Context) -> Tensor:
        rows, length, _ = x.shape
        joint = self.qkv(x).view(rows, length, -1, self.size)
        q, k, v = joint.split([self.heads, self.groups, self.groups], 2)  # (B, T, H or K, D)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if context.angles is not None:
            angles = (context.angles[0].to(q.dtype), context.angles[1].to(q.dtype))
            q, k = rotate(q, angles), rotate(k, angles)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if context.cache is not None:
            k, v = context.cache.store(self.layer, k, v)
        out = attend(q, k, v, context.view, self.scale, context.drop_attention)
        return self.out(out.transpose(1, 2).reshape(rows, length, -1))


class CrossAttention(nn.Module):
    """Queries from the stream, keys and values from the source; no positions and no score."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.groups, self.size = config.num_heads, config.kv_heads, config.size_per_head
        self.scale = self.size**-0.5 if config.attention_scale is None else config.attention_scale
        d, bias = config.hidden_size, config.attention_bias
        self.q = Linear(d, self.heads * self.size, bias)
        parts = (self.groups * self.size, self.groups * self.size)
        self.kv = Linear(d, sum(parts), bias, parts)
        self.out = Linear(self.heads * self.size, d, bias)
        self.q_norm = Norm(config, self.size, "rms") if config.qk_norm else None
        self.k_norm = Norm(config, self.size, "rms") if config.qk_norm else None

    def forward(self, x: Tensor, context: Context) -> Tensor:
        assert context.memory is not None and context.cross is not None
        rows, length, _ = x.shape
        q = self.q(x).view(rows, length, self.heads, self.size)
        if self.q_norm is not None:
            q = self.q_norm(q)
        k, v = self._stored(context.memory, context.cache)
        out = attend(q.transpose(1, 2), k, v, context.cross, self.scale, context.drop_attention)
        return self.out(out.transpose(1, 2).reshape(rows, length, -1))

    def _stored(self, memory: Tensor, cache: Cache | None) -> tuple[Tensor, Tensor]:
        """Keys and values (B, K, S, D) of the source, from the cache once it holds them."""
        if cache is not None and self.layer in cache.memory:
            return cache.memory[self.layer]
        rows, length, _ = memory.shape
        k, v = self.kv(memory).view(rows, length, 2 * self.groups, self.size).chunk(2, 2)
        if self.k_norm is not None:
            k = self.k_norm(k)
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        if cache is not None:
            cache.memory[self.layer] = (k, v)
        return k, v


class FeedForward(nn.Module):
    """Up, activation, down; gated ones fuse gate and up: the first I rows of `up` are the gate."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gated = config.gated
        self.activation = activation(config.activation)
        parts = (config.mlp_size,) * (2 if self.gated else 1)
        self.up = Linear(config.hidden_size, sum(parts), config.mlp_bias, parts)
        self.down = Linear(config.mlp_size, config.hidden_size, config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)
        if self.gated:
            gate, up = hidden.chunk(2, -1)
            return self.down(self.activation(gate) * up)
        return self.down(self.activation(hidden))


class Layer(nn.Module):
    """Self-attention, cross-attention where there is a source, feed-forward; each with norm and residual."""

    def __init__(self, config: ModelConfig, layer: int, cross: bool) -> None:
        super().__init__()
        self.pre = config.norm_position == "pre"
        self.attention_norm = Norm(config)
        self.attention = Attention(config, layer)
        self.cross_norm = Norm(config) if cross else None
        self.cross = CrossAttention(config, layer) if cross else None
        self.mlp_norm = Norm(config)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        x = self._residual(x, self.attention_norm, lambda y: self.attention(y, context), context.drop)
        if self.cross is not None and self.cross_norm is not None:
            cross = self.cross
            x = self._residual(x, self.cross_norm, lambda y: cross(y, context), context.drop)
        return self._residual(x, self.mlp_norm, self.mlp, context.drop)

    def _residual(self, x: Tensor, norm: Norm, f: Callable[[Tensor], Tensor], drop: Drop | None) -> Tensor:
        change = f(norm(x)) if self.pre else f(x)
        if drop is not None:
            change = drop(change)
        return x + change if self.pre else norm(x + change)
