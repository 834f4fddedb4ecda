"""What a configuration costs, by formula: parameters, and training FLOPs.

Legend: V vocabulary, d hidden size, H heads, K key-value heads, D head size, I feed-forward size.
"""

from __future__ import annotations

from collections.abc import Iterable

from unmask.batch import Head
from unmask.config import ModelConfig

LANGUAGE_MODEL = (Head("lm"),)
"""One head over the vocabulary: what a language model has."""


def parameters(config: ModelConfig, heads: Iterable[Head] = LANGUAGE_MODEL) -> int:
    """Trainable numbers of `Transformer(config, heads)`; a tied table counts once."""
    modules = {head.uses: head for head in reversed(list(heads))}  # the first declaration of a module builds it
    total = config.vocab_size * config.hidden_size + config.query_vector * config.hidden_size
    total += _stack(config, config.num_layers, cross=config.num_source_layers > 0)
    if config.num_source_layers:
        total += _stack(config, config.num_source_layers, cross=False)
    return total + sum(_head(config, head) for head in modules.values())


def _norm(config: ModelConfig, size: int) -> int:
    return size * (2 if config.norm == "layer" and config.norm_bias else 1)


def _matrices(config: ModelConfig) -> tuple[int, int, int]:
    """Weights of one layer's projections: query and output, key and value, feed-forward."""
    d = config.hidden_size
    query = 2 * d * config.num_heads * config.size_per_head
    key = 2 * d * config.kv_heads * config.size_per_head
    return query, key, (3 if config.gated else 2) * d * config.mlp_size


def _stack(config: ModelConfig, layers: int, cross: bool) -> int:
    d = config.hidden_size
    query, key, feed_forward = _matrices(config)
    attention = query + key
    if config.attention_bias:
        attention += (config.num_heads + 2 * config.kv_heads) * config.size_per_head + d
    if config.qk_norm:
        attention += 2 * config.size_per_head
    if config.mlp_bias:
        feed_forward += (2 if config.gated else 1) * config.mlp_size + d
    sublayers = 2 if cross else 1
    layer = sublayers * (attention + _norm(config, d)) + feed_forward + _norm(config, d)
    around = config.token_types * d
    around += config.max_position * d if config.positions == "learned" else 0
    around += config.relative_buckets * config.num_heads if config.positions == "t5" else 0
    around += _norm(config, d) if config.embedding_norm else 0
    around += _norm(config, d) if config.final_norm and config.norm_position == "pre" else 0
    return layers * layer + around


def _head(config: ModelConfig, head: Head) -> int:
    d = config.hidden_size
    dense = d * d + d
    if head.arity == 2:
        inputs = (3 if head.extra else 2) * d
        hidden = head.extra * d + inputs * d + d + dense + 2 * _norm(config, d)
    elif head.over == "vocabulary":
        hidden = dense + _norm(config, d) if config.head_transform else 0
    else:
        hidden = dense if config.pooler and head.over in ("classes", "score", "group") else 0
    if head.over == "vocabulary":
        rows = head.size or config.vocab_size
        return hidden + (0 if config.tied_head else rows * d) + (rows if config.head_bias else 0)
    rows = head.size if head.over == "classes" else 1
    return hidden + rows * (d + 1)


def flops(
    config: ModelConfig,
    stream_tokens: float,
    source_tokens: float = 0,
    targets: float = 0,
    context: float = 0,
    source_context: float = 0,
) -> float:
    """Training FLOPs of a batch: 3 × the forward pass's matrix products (backward costs twice forward).

    A token costs 2 FLOPs for each weight it meets, and 2 · 2 · context · H·D a layer for scores and weighted sum
    (Kaplan et al. 2020, section 2.1; Hoffmann et al. 2022, appendix F). `context` and `source_context` are the keys
    that a query's products run over: the row's length on a kernel that computes masked scores too. The vocabulary
    head counts only at `targets`. Embedding look-ups, norms and activations are left out.
    """
    width = config.num_heads * config.size_per_head
    query, key, feed_forward = _matrices(config)
    own = 2 * (query + key + feed_forward)
    forward = stream_tokens * config.num_layers * (own + 4 * context * width)
    if config.num_source_layers:
        forward += source_tokens * config.num_source_layers * (own + 4 * source_context * width)
        cross_stream = 2 * query + 4 * source_context * width
        forward += config.num_layers * (stream_tokens * cross_stream + source_tokens * 2 * key)
    per_target = 2 * config.vocab_size * config.hidden_size
    if config.head_transform:
        per_target += 2 * config.hidden_size**2
    return 3.0 * (forward + targets * per_target)
