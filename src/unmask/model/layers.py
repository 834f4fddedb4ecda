"""One layer: attention with its projections, feed-forward, norms and residuals.

Legend: B rows, T tokens, S source tokens, d hidden size, H heads, K key-value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from unmask.config import ModelConfig
from unmask.model.attention import Cache, Drop, attend
from unmask.model.experts import Experts
from unmask.model.fused import rotate
from unmask.model.parts import Context, FeedForward, Linear, Norm, Table
from unmask.model.relative import relation_of


class Attention(nn.Module):
    """Queries, keys and values from one fused projection, attention, and the way back to the stream."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.config = config
        self.heads, self.groups, self.size = config.num_heads, config.kv_heads, config.size_per_head
        d = config.hidden_size
        self.parts = (self.heads * self.size, self.groups * self.size, self.groups * self.size)
        self.qkv = Linear(d, sum(self.parts), config.attention_bias, self.parts)
        self.out = Linear(self.heads * self.size, d, config.out_bias)
        self.q_norm = Norm(config, self.size, "rms") if config.qk_norm else None
        self.k_norm = Norm(config, self.size, "rms") if config.qk_norm else None
        self.relation = relation_of(config)
        self.values = ValueTable(config) if config.lends_values(layer) else None

    def forward(self, x: Tensor, context: Context, depth: int, keys: Tensor | None = None) -> Tensor:
        """x (B, T, d) → (B, T, d); `keys` are the states that keys and values come from, where not x's own."""
        local = self.config.local(depth)
        q, k, v = self._project(x, keys)
        given = context.of_keys
        if self.values is not None and given.tokens is not None:
            v = v + self.values(given.tokens, x if keys is None else keys)
        q = self._place(q, self.q_norm, context.local_angles if local else context.angles)
        k = self._place(k, self.k_norm, given.local_angles if local else given.angles)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if context.cache is not None:
            k, v = context.cache.store(depth, k, v)
        terms = None if self.relation is None else self.relation(q, k, context.pairs, self.qkv)
        view = context.local if local and context.local is not None else context.view
        out = attend(q, k, v, view, self.config.scale, context.drop_attention, terms, self.config.attention_softcap)
        return self.out(out.transpose(1, 2).flatten(2))

    def _project(self, x: Tensor, keys: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, H or K, D) each."""
        rows, length, _ = x.shape
        if keys is None:
            joint = self.qkv(x).view(rows, length, -1, self.size)
            q, k, v = joint.split([self.heads, self.groups, self.groups], 2)
            return q, k, v
        query = self.parts[0]
        weight, bias = self.qkv.weight, self.qkv.bias
        q = F.linear(x, weight[:query], None if bias is None else bias[:query])
        both = F.linear(keys, weight[query:], None if bias is None else bias[query:])
        k, v = both.view(rows, keys.shape[1], -1, self.size).chunk(2, 2)
        return q.view(rows, length, -1, self.size), k, v

    def _place(self, x: Tensor, norm: Norm | None, angles: tuple[Tensor, Tensor] | None) -> Tensor:
        """Queries or keys, normalised and turned by position."""
        after = self.config.qk_norm_after
        if norm is not None and not after:
            x = norm(x)
        if angles is not None:
            x = rotate(x, angles)
        return norm(x) if norm is not None and after else x


class ValueTable(nn.Module):
    """A table of the layer's own, added to its values by a gate a head that the state opens (0 to 2, at first 1).

    modded-nanogpt (record 14), with nanochat's gate over the first 32 channels.
    """

    CHANNELS = 32

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.groups = config.kv_heads
        self.table = Table(config.vocab_size, config.kv_heads * config.size_per_head)
        self.gate = Linear(min(self.CHANNELS, config.hidden_size), config.kv_heads, False)

    def forward(self, tokens: Tensor, x: Tensor) -> Tensor:
        """(B, T, K, D) of tokens (B, T) and the states x (B, T, d)."""
        gate = 2 * self.gate(x[..., : self.gate.in_features]).sigmoid()
        return gate[..., None] * self.table(tokens.clamp(min=0)).unflatten(-1, (self.groups, -1))


class CrossAttention(nn.Module):
    """Queries from the stream, keys and values from the source; no positions and no score."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.heads, self.groups, self.size = config.num_heads, config.kv_heads, config.size_per_head
        d, bias = config.hidden_size, config.attention_bias
        self.q = Linear(d, self.heads * self.size, bias)
        parts = (self.groups * self.size, self.groups * self.size)
        self.kv = Linear(d, sum(parts), bias, parts)
        self.out = Linear(self.heads * self.size, d, config.out_bias)
        self.q_norm = Norm(config, self.size, "rms") if config.qk_norm else None
        self.k_norm = Norm(config, self.size, "rms") if config.qk_norm else None

    def forward(self, x: Tensor, context: Context, depth: int) -> Tensor:
        assert context.memory is not None and context.cross is not None
        rows, length, _ = x.shape
        q = self.q(x).view(rows, length, self.heads, self.size)
        if self.q_norm is not None:
            q = self.q_norm(q)
        k, v = self._stored(context.memory, context.cache, depth)
        cap = self.config.attention_softcap
        out = attend(q.transpose(1, 2), k, v, context.cross, self.config.scale, context.drop_attention, cap=cap)
        return self.out(out.transpose(1, 2).reshape(rows, length, -1))

    def _stored(self, memory: Tensor, cache: Cache | None, depth: int) -> tuple[Tensor, Tensor]:
        """Keys and values (B, K, S, D) of the source, from the cache once it holds them."""
        if cache is not None and depth in cache.memory:
            return cache.memory[depth]
        rows, length, _ = memory.shape
        k, v = self.kv(memory).view(rows, length, 2 * self.groups, self.size).chunk(2, 2)
        if self.k_norm is not None:
            k = self.k_norm(k)
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        if cache is not None:
            k, v = cache.memory[depth] = (k.contiguous(), v.contiguous())  # every step reads all of both
        return k, v


class Layer(nn.Module):
    """Self-attention, cross-attention where there is a source, feed-forward; each with norm and residual.

    Post-norm: norm(x + f(x)). Pre-norm: x + f(norm(x)). Both: x + after_norm(f(norm(x))). A parallel block adds
    attention and feed-forward of the same x at once.
    """

    def __init__(self, config: ModelConfig, layer: int, cross: bool) -> None:
        super().__init__()
        self.post, self.parallel = config.norm_position == "post", config.parallel_block
        both = config.norm_position == "both"
        self.attention_norm = None if layer == 0 and config.skip_first_norm else Norm(config)
        self.attention: nn.Module = _attention(config, layer)
        self.attention_after_norm = Norm(config) if both else None
        self.cross_norm = Norm(config) if cross else None
        self.cross = CrossAttention(config) if cross else None
        self.cross_after_norm = Norm(config) if cross and both else None
        self.mlp_norm = Norm(config)
        self.mlp: nn.Module = Experts(config) if config.sparse(layer) else FeedForward(config)
        self.mlp_after_norm = Norm(config) if both else None

    def forward(self, x: Tensor, context: Context, depth: int, keys: Tensor | None = None) -> Tensor:
        """x (B, T, d) → (B, T, d). `keys`: see `Attention`."""
        if keys is not None and not self.post:
            keys = _normed(keys, self.attention_norm)

        def attention(y: Tensor) -> Tensor:
            return self.attention(y, context, depth, keys)

        def mlp(y: Tensor) -> Tensor:
            return feed_forward(self.mlp, y, context)

        if self.parallel:
            change = _kept(attention(_normed(x, self.attention_norm)), context.drop)
            return x + change + _kept(mlp(_normed(x, self.mlp_norm)), context.drop)
        x = self._residual(x, attention, self.attention_norm, self.attention_after_norm, context.drop)
        if self.cross is not None and context.memory is not None:
            cross = self.cross
            x = self._residual(
                x, lambda y: cross(y, context, depth), self.cross_norm, self.cross_after_norm, context.drop
            )
        return self._residual(x, mlp, self.mlp_norm, self.mlp_after_norm, context.drop)

    def _residual(
        self, x: Tensor, f: Callable[[Tensor], Tensor], norm: Norm | None, after: Norm | None, drop: Drop | None
    ) -> Tensor:
        if self.post:
            return _normed(x + _kept(f(x), drop), norm)
        return x + _kept(_normed(f(_normed(x, norm)), after), drop)


def _attention(config: ModelConfig, layer: int) -> nn.Module:
    if config.latent is None:
        return Attention(config, layer)
    from unmask.model.latent import LatentAttention

    return LatentAttention(config)


def feed_forward(mlp: nn.Module, x: Tensor, context: Context) -> Tensor:
    """A dense layer's output, or that of experts, whose routing is written down in the context."""
    if not isinstance(mlp, Experts):
        return mlp(x)  # type: ignore[no-any-return]
    y, routing = mlp(x, context.real)
    if context.routing is not None:
        context.routing.found.append(routing)
    return y


def _normed(x: Tensor, norm: Norm | None) -> Tensor:
    return x if norm is None else norm(x)


def _kept(x: Tensor, drop: Drop | None) -> Tensor:
    return x if drop is None else drop(x)
