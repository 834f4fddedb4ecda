"""What a configuration costs, by formula: FLOPs, memory, and the cache of keys and values.

Legend: T tokens of a row, S of the source's, d hidden size, H heads, K key-value heads, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from unmask.batch import Head
from unmask.config import ModelConfig, Visibility
from unmask.model.relative import shrinks
from unmask.model.spec import LANGUAGE_MODEL, Piece, ahead_pieces, head_pieces, layer_pieces, pieces, stack_pieces

Attended = Literal["dense", "visible"]
"""Which query-key products count: all of a row, as a kernel with a mask computes them, or those that are seen."""

# ---------------------------------------------------------------- FLOPs


def flops(
    config: ModelConfig,
    stream_tokens: float,
    source_tokens: float = 0,
    targets: float | Iterable[tuple[Head, float]] = 0,
    context: float = 0,
    source_context: float = 0,
    attended: Attended = "dense",
    prefix: float | None = None,
) -> float:
    """Training FLOPs of a batch: forward, and backward at twice that (no gradient goes into constants).

    A token costs 2 FLOPs for each weight it meets, and 2 · keys · 2 D a head for scores and weighted sum (Kaplan et
    al. 2020, section 2.1; Hoffmann et al. 2022, appendix F). Embedding look-ups, norms and activations are left out.
    With `experts.capacity` or `capacity_factor` it is an upper bound: a token that finds an expert full costs nothing.

    targets         how many positions ask the vocabulary head, or how many ask which head: logits exist only there
    context         tokens of a row; its queries meet as many keys (dense), or what the mask leaves (visible)
    source_context  the same of the source, which cross-attention meets as a whole
    prefix          visible, under a prefix mask: tokens that see each other; None = half of the context
    """
    return _flops(config, stream_tokens, source_tokens, targets, context, source_context, attended, prefix, True)


def forward_flops(
    config: ModelConfig,
    stream_tokens: float,
    source_tokens: float = 0,
    targets: float | Iterable[tuple[Head, float]] = 0,
    context: float = 0,
    source_context: float = 0,
    attended: Attended = "dense",
    prefix: float | None = None,
) -> float:
    """FLOPs of the forward pass alone; see `flops`."""
    return _flops(config, stream_tokens, source_tokens, targets, context, source_context, attended, prefix, False)


def _flops(
    config: ModelConfig,
    stream_tokens: float,
    source_tokens: float,
    targets: float | Iterable[tuple[Head, float]],
    context: float,
    source_context: float,
    attended: Attended,
    prefix: float | None,
    training: bool,
) -> float:
    asked = [(LANGUAGE_MODEL[0], targets)] if isinstance(targets, (int, float)) else targets
    total = sum(n * head_flops(config, head) for head, n in asked) * (3 if training else 1)
    if stream_tokens:
        row = _Row(config, False, stream_tokens, context, source_tokens, source_context, attended, prefix)
        total += row.flops(training)
    if source_tokens:
        row = _Row(config, True, source_tokens, source_context, 0, 0, attended, None)
        total += row.flops(training)
    return float(total)


def head_flops(config: ModelConfig, head: Head) -> float:
    """Forward FLOPs of one target of a head."""
    return 2.0 * sum(piece.weights for piece in head_pieces(config, head, head.name))


@dataclass(frozen=True)
class _Row:
    """The tokens of one stack in a batch, all in rows of one length."""

    config: ModelConfig
    source: bool
    tokens: float
    context: float
    memory: float  # tokens of the source that cross-attention reads
    memory_context: float
    attended: Attended
    prefix: float | None

    def flops(self, training: bool) -> float:
        c, times = self.config, 3 if training else 1
        depth = c.num_source_layers if self.source else c.num_layers
        cross = c.num_source_layers > 0 and not self.source
        around = sum(2 * self.tokens * p.weights for p in stack_pieces(c, self.source))
        total = times * around
        for d, layer in enumerate(c.depths(depth)):
            twice = 2 if c.mask_decoder and not self.source and d == depth - 1 else 1  # He et al. 2021, section 3.2
            held = sum(self._piece(piece, training) for piece in layer_pieces(c, layer, cross))
            products = times * self.tokens * self._products(d, cross)
            total += twice * (held + products + times * self._relative())
        for k in range(c.ahead_layers if training and not self.source else 0):  # else no head asks them
            held = sum(self._piece(piece, training) for piece in ahead_pieces(c, k))
            total += held + times * (self.tokens * self._products(c.ahead_depth(k), False) + self._relative())
        return total

    def _piece(self, piece: Piece, training: bool) -> float:
        reads = {"token": self.tokens, "memory": self.memory, "target": 0.0}
        rows = reads[piece.reader] if piece.reader in reads else table_rows(self.config, self.context)
        times = (2 if piece.reader == "constant" else 3) if training else 1
        return times * 2 * rows * piece.used * piece.weights

    def _products(self, depth: int, cross: bool) -> float:
        """FLOPs of a query's scores and weighted sum, at its layer's keys."""
        c = self.config
        rotary = c.latent.rotary_size if c.latent else 0
        own = 2 * c.num_heads * (c.size_per_head + rotary + c.value_size) * self._keys(depth)
        return own + cross * 4 * c.num_heads * c.size_per_head * self.memory_context

    def _keys(self, depth: int) -> float:
        if self.attended == "dense":
            return self.context
        c = self.config
        visibility: Visibility = "bidirectional" if self.source else "causal" if c.num_source_layers else c.visibility
        reach = c.source_window or c.window if self.source else c.window
        return visible_keys(round(self.context), visibility, reach if c.local(depth) else None, self.prefix)

    def _relative(self) -> float:
        """FLOPs of one layer's terms of content and relative position."""
        c, d, table = self.config, self.config.hidden_size, table_rows(self.config, self.context)
        query, key = c.num_heads * c.size_per_head, c.kv_heads * c.size_per_head
        if c.positions == "deberta":  # queries with the table as keys, and keys with the table as queries
            projected = 2 * table * d * (query + key) if c.relative_shared else 0
            return projected + self.tokens * 2 * table * 2 * query
        if c.positions == "xlnet":  # queries with the table, and the content's bias with the keys
            return self.tokens * 2 * query * (table + 1)
        return 0


def table_rows(config: ModelConfig, context: float) -> float:
    """Rows of the table of relative positions that the distances of a row reach (`relative.Relative`)."""
    reached = max(2 * context - 1, 0)
    if config.positions != "deberta":
        return reached
    held = 2 * (config.relative_buckets or config.relative_max_distance)
    return min(reached, held) if shrinks(config) else held


def visible_keys(
    length: int, visibility: Visibility = "causal", window: int | None = None, prefix: float | None = None
) -> float:
    """Keys that a query of a row sees on average, itself among them.

    window: largest position difference; prefix: tokens that see each other (None = half of the row).

    >>> visible_keys(9), visible_keys(9, "bidirectional"), visible_keys(8, window=2), visible_keys(4, "prefix", None, 2)
    (5.0, 9.0, 2.625, 2.75)
    """
    if length < 1:
        return 0.0
    reach = length - 1 if window is None else window
    given = length // 2 if prefix is None else min(prefix, length)
    ahead = {"causal": 0, "bidirectional": length, "prefix": given}[visibility]
    return 1 + (_rising(length, reach) + _rising(ahead, reach)) / length


def _rising(count: float, reach: int) -> float:
    """min(0, reach) + min(1, reach) + … of `count` addends; between whole counts it rises in a straight line.

    >>> _rising(4, 9), _rising(4, 2), _rising(2.5, 9)
    (6, 5, 2.0)
    """
    whole = math.floor(count)
    top = min(reach, max(whole - 1, 0))
    total = top * (top + 1) // 2 + (max(whole - 1, 0) - top) * top
    return total if whole == count else total + (count - whole) * min(whole, reach)


def packed_keys(lengths: Sequence[int], visibility: Visibility = "causal", window: int | None = None) -> float:
    """The same over documents that share a row without seeing each other.

    >>> packed_keys([5, 3])  # (5 · 3 + 3 · 2) / 8
    2.625
    """
    return sum(n * visible_keys(n, visibility, window) for n in lengths) / max(sum(lengths), 1)


# ---------------------------------------------------------------- memory


@dataclass(frozen=True)
class Memory:
    """Bytes that training holds at once."""

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations


def memory(
    config: ModelConfig,
    heads: Iterable[Head] = LANGUAGE_MODEL,
    batch: int = 1,
    context: int = 0,
    source_context: int = 0,
    optimizer: Literal["adamw", "muon"] = "adamw",
    bytes_per_number: int = 4,
    explicit: bool = False,
) -> Memory:
    """Bytes for weights, gradients, the optimizer's state and activations of `batch` rows, all in one precision.

    AdamW keeps two moments a parameter; Muon one for a hidden matrix, and AdamW's two for the rest.
    Activations: see `activation_numbers`.
    """
    held = list(pieces(config, heads))
    size = sum(piece.total for piece in held)
    hidden = sum(p.copies * p.weights for p in held if p.reader != "target" and p.part in _HIDDEN)
    state = 2 * size - (hidden if optimizer == "muon" else 0)
    kept = batch * activation_numbers(config, context, source_context, explicit)
    return Memory(*(bytes_per_number * n for n in (size, size, state, kept)))


_HIDDEN = (
    "attention",
    "cross-attention",
    "feed-forward",
    "router",
    "experts",
    "shared experts",
    "relative positions",
    "value embeddings",
)
"""Parts whose matrices Muon moves (`train.optim`)."""


def activation_numbers(
    config: ModelConfig, context: int, source_context: int = 0, explicit: bool = False, recompute: bool = False
) -> int:
    """Numbers that one row's forward pass keeps for the backward pass; without dropout, logits and their loss.

    A layer keeps, for each token, what its parts read:

        a norm         its input and output, 2 d; RMSNorm its quotient, too
        attention      (H + 2 K) D queries, keys and values, 2 H D of output; turned and normalised ones again
        feed-forward   hidden units before and after the activation, 2 I (ReLU: I; gated: 4 I); of a token's experts
        scores         H · T after softmax, where an explicit kernel runs

    recompute: a layer keeps d a token, its input; what the largest one keeps is there once, while it is computed again.

    An estimate: statistics, masks and copies come on top (measurements lie within a factor of 1.3).
    """
    total = context * _kept(config, context, False, source_context, explicit, recompute)
    if config.num_source_layers:
        total += source_context * _kept(config, source_context, True, 0, explicit, recompute)
        held = 1 if recompute else config.num_layers
        total += source_context * held * 2 * config.kv_heads * config.size_per_head
    return round(total)


def _kept(
    config: ModelConfig, context: int, source: bool, memory_context: int, explicit: bool, recompute: bool
) -> float:
    """Numbers a token of one stack keeps."""
    c, d = config, config.hidden_size
    depth = c.num_source_layers if source else c.num_layers
    scores = c.num_heads if explicit or c.positions in ("deberta", "xlnet") or c.attention_softcap else 0
    norm = (3 if c.norm == "rms" and c.norm_weight else 2) * d + (d if c.norm_position == "both" else 0)
    total = 2.0 * d + (c.convolution + 4) * d * (c.convolution > 0)
    layers = []
    for layer in [*c.depths(depth), *([depth - 1] if c.mask_decoder and not source else [])]:
        own = 2 * norm + _kept_heads(c) + scores * context + _kept_units(c, layer) + _kept_terms(c)
        if c.num_source_layers and not source:
            own += norm + 3 * c.num_heads * c.size_per_head + scores * memory_context
        total += 2 * d * c.residual_scalars
        layers.append(own)
    return total + (max(layers) + d * len(layers) if recompute else sum(layers))


def _kept_heads(c: ModelConfig) -> int:
    out = 2 * c.num_heads * c.value_size
    if c.latent:
        whole = c.num_heads * (c.size_per_head + c.latent.rotary_size)
        return out + 2 * whole + c.num_heads * c.value_size + 2 * (c.latent.key_rank + (c.latent.query_rank or 0))
    both = (c.num_heads + c.kv_heads) * c.size_per_head
    again = (c.positions == "rotary") + 2 * c.qk_norm
    return out + both + c.kv_heads * c.size_per_head + again * both


def _kept_terms(c: ModelConfig) -> int:
    """Terms of relative position: queries and keys again. (The table itself is kept once a batch.)"""
    if c.positions not in ("deberta", "xlnet"):
        return 0
    copies = 1 if c.positions == "xlnet" else 2
    return copies * c.num_heads * c.size_per_head


def _kept_units(c: ModelConfig, layer: int) -> int:
    times = 4 if c.gated else 1 if c.activation == "relu" else 2
    if c.experts is None or not c.sparse(layer):
        return times * c.mlp_size
    e = c.experts
    return times * c.expert_size * (e.per_token + e.shared) + 3 * c.hidden_size * e.per_token + 3 * e.count


# ---------------------------------------------------------------- the cache of decoding


@dataclass(frozen=True)
class CacheSize:
    """Numbers that decoding keeps, over all layers.

    token   a token's keys and values in layers that keep all of them
    local   the same in local layers, which need no more than `window` + 1 tokens (ours keeps all)
    source  a source token's keys and values for cross-attention
    latent  what would do in latent attention: the compressed state and the shared rotary key (DeepSeek-V2,
            section 2.1.2); 0 without it
    """

    token: int
    local: int
    source: int
    latent: int


def cache_numbers(config: ModelConfig) -> CacheSize:
    """Numbers a token; × 4 bytes in fp32, × 2 in 16 bits."""
    c = config
    key, value = c.kv_heads * c.size_per_head, c.kv_heads * c.value_size
    if c.latent:
        key, value = c.num_heads * (c.size_per_head + c.latent.rotary_size), c.num_heads * c.value_size
    local = sum(c.local(depth) for depth in range(c.num_layers))
    cross = c.num_layers * 2 * c.kv_heads * c.size_per_head if c.num_source_layers else 0
    latent = c.num_layers * (c.latent.key_rank + c.latent.rotary_size) if c.latent else 0
    return CacheSize((c.num_layers - local) * (key + value), local * (key + value), cross, latent)
