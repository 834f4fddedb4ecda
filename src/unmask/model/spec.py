"""What a configuration is made of, by formula: its parameters, by part, and which of them a token meets.

Everything comes from one list of `Piece`s a layer, from which `cost` counts FLOPs, too.

Legend: V vocabulary, d hidden size, E embedding size, H heads, K key-value heads, D head size, I feed-forward size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from unmask.batch import Head
from unmask.config import ModelConfig

LANGUAGE_MODEL = (Head("lm"),)
"""One head over the vocabulary: what a language model has."""

Reader = Literal["token", "memory", "table", "constant", "target"]
"""What a matrix is multiplied with: tokens of its stack, final states of the source, rows of a table of relative
positions (learned, or constant: no gradient goes into it), or targets of a head."""


class Piece(NamedTuple):
    """Some parameters that are used alike."""

    part: str
    weights: int = 0
    """Numbers in matrices: 2 FLOPs each for whatever reads them."""
    others: int = 0
    """Biases, factors of norms, rows that are looked up."""
    copies: int = 1
    """Experts side by side,"""
    used: int = 1
    """of which a token meets so many."""
    reader: Reader = "token"

    @property
    def total(self) -> int:
        return self.copies * (self.weights + self.others)

    @property
    def active(self) -> int:
        return self.used * (self.weights + self.others)


class Part(NamedTuple):
    """The parameters of one part, all layers together."""

    part: str
    total: int
    active: int


def parameters(config: ModelConfig, heads: Iterable[Head] = LANGUAGE_MODEL) -> int:
    """Numbers that `Transformer(config, heads)` holds; a tied table counts once."""
    return sum(piece.total for piece in pieces(config, heads))


def active_parameters(config: ModelConfig, heads: Iterable[Head] = LANGUAGE_MODEL) -> int:
    """Those that one token meets: all but the experts it is not sent to (Jiang et al. 2024, section 2.1)."""
    return sum(piece.active for piece in pieces(config, heads))


def parts(config: ModelConfig, heads: Iterable[Head] = LANGUAGE_MODEL) -> list[Part]:
    """Parameters by part, in the order in which a token meets them."""
    found: dict[str, Part] = {}
    for piece in pieces(config, heads):
        old = found.get(piece.part, Part(piece.part, 0, 0))
        found[piece.part] = Part(piece.part, old.total + piece.total, old.active + piece.active)
    return [part for part in found.values() if part.total]


def pieces(config: ModelConfig, heads: Iterable[Head]) -> Iterator[Piece]:
    """All parameters of a model, each once."""
    tables = 2 if config.source_table and config.num_source_layers else 1
    yield Piece("token embeddings", 0, tables * config.vocab_size * config.table_size)
    yield Piece("query vector", 0, config.query_vector * config.table_size)
    yield from _held(config, source=False)
    if config.num_source_layers:
        yield from _held(config, source=True)
    modules: dict[str, Head] = {}
    for head in heads:
        modules.setdefault(head.uses, head)  # the first declaration of a module builds it
    for name, head in modules.items():
        yield from head_pieces(config, head, f"head {name}")


def _held(config: ModelConfig, source: bool) -> Iterator[Piece]:
    """One stack's parameters, those of shared layers once."""
    yield from stack_pieces(config, source)
    for k in range(0 if source else config.ahead_layers):
        yield from ahead_pieces(config, k)
    if source and config.share_stacks:  # its layers are the stream's, of which cross-attention is no part
        return
    cross = config.num_source_layers > 0 and not source
    depth = config.num_source_layers if source else config.num_layers
    for layer in range(config.distinct_layers or depth):
        yield from layer_pieces(config, layer, cross)


# ---------------------------------------------------------------- around the layers


def stack_pieces(config: ModelConfig, source: bool) -> Iterator[Piece]:
    """What stands around the layers of one stack."""
    e, d = config.table_size, config.hidden_size
    if config.positions == "learned" or (config.mask_decoder and not source):
        yield Piece("positions", 0, (config.max_position + config.position_offset) * e)
    yield Piece("positions", 0, config.positions2 * e)
    yield Piece("token types", 0, config.token_types * e)
    if config.embedding_norm:
        yield Piece("norms", 0, _norm(config, e))
    if e != d:
        yield Piece("embedding projection", e * d, d)
    if config.positions == "t5":
        yield Piece("relative positions", 0, config.relative_buckets * config.num_heads)
    if config.positions == "deberta":
        rows = 2 * (config.relative_buckets or config.relative_max_distance)
        yield Piece("relative positions", 0, rows * d + config.relative_norm * _norm(config, d, "layer"))
    if config.convolution:
        yield Piece("convolution", d * d * config.convolution, d)
        yield Piece("norms", 0, _norm(config, d))
    if config.residual_scalars:
        yield Piece("residual scalars", 0, 2 * (config.num_source_layers if source else config.num_layers))
    if config.final_norm and config.norm_position != "post":
        yield Piece("norms", 0, _norm(config, d))


def _norm(config: ModelConfig, size: int, kind: str | None = None) -> int:
    if not config.norm_weight:
        return 0
    return size * (2 if (kind or config.norm) == "layer" and config.norm_bias else 1)


# ---------------------------------------------------------------- one layer


def layer_pieces(config: ModelConfig, layer: int, cross: bool) -> Iterator[Piece]:
    """The parameters of the layer with this number."""
    d = config.hidden_size
    norms = (3 if cross else 2) * (2 if config.norm_position == "both" else 1)
    norms -= layer == 0 and config.skip_first_norm
    yield from _latent(config) if config.latent else _attention(config)
    yield from _relative(config)
    if config.lends_values(layer):
        rows, channels = config.vocab_size * config.kv_heads * config.size_per_head, min(VALUE_CHANNELS, d)
        yield Piece("value embeddings", channels * config.kv_heads, rows)
    if cross:
        yield from _cross(config)
    if config.sparse(layer):
        yield from _experts(config)
    else:
        yield _feed_forward("feed-forward", config, config.mlp_size)
    yield Piece("norms", 0, norms * _norm(config, d))


def ahead_pieces(config: ModelConfig, k: int) -> Iterator[Piece]:
    """The parameters of module k that looks ahead (`model.ahead`)."""
    d, own_norm = config.hidden_size, config.final_norm and config.norm_position != "post"
    if config.ahead == "sequential":
        yield Piece("prediction modules", 2 * d * d)
        yield Piece("norms", 0, (2 + own_norm) * _norm(config, d))
    yield from layer_pieces(config, config.ahead_depth(k), False)


VALUE_CHANNELS = 32
"""Channels of the state that open the gate of value embeddings (nanochat)."""


def _attention(config: ModelConfig) -> Iterator[Piece]:
    d, query, key = config.hidden_size, *_widths(config)
    biases = config.attention_bias * (query + 2 * key) + config.out_bias * d
    yield Piece("attention", d * (query + 2 * key) + query * d, biases)
    if config.qk_norm:
        yield Piece("norms", 0, 2 * _norm(config, config.size_per_head, "rms"))


def _widths(config: ModelConfig) -> tuple[int, int]:
    """Of all heads' queries, and of all key-value heads' keys."""
    return config.num_heads * config.size_per_head, config.kv_heads * config.size_per_head


def _latent(config: ModelConfig) -> Iterator[Piece]:
    """Multi-head latent attention (DeepSeek-V2, Liu et al. 2024, equations 9 to 19)."""
    assert config.latent is not None
    m, d, heads, bias = config.latent, config.hidden_size, config.num_heads, config.attention_bias
    query = heads * (config.size_per_head + m.rotary_size)
    if m.query_rank is None:
        yield Piece("attention", d * query)
    else:
        yield Piece("attention", d * m.query_rank + m.query_rank * query, bias * m.query_rank)
        yield Piece("norms", 0, _norm(config, m.query_rank, "rms"))
    down = m.key_rank + m.rotary_size
    up = heads * (config.size_per_head + m.value_size)
    yield Piece("attention", d * down + m.key_rank * up, bias * down)
    yield Piece("norms", 0, _norm(config, m.key_rank, "rms"))
    yield Piece("attention", heads * m.value_size * d, config.out_bias * d)


def _relative(config: ModelConfig) -> Iterator[Piece]:
    """What a layer's own terms of relative position hold."""
    d, query, key = config.hidden_size, *_widths(config)
    if config.positions == "deberta":
        own = not config.relative_shared  # else the table is multiplied with matrices that are counted already
        yield Piece("relative positions", d * (query + key), query + key, copies=own, used=own, reader="table")
    if config.positions == "xlnet":
        yield Piece("relative positions", d * query, 5 * query, reader="constant")


def _cross(config: ModelConfig) -> Iterator[Piece]:
    d, query, key = config.hidden_size, *_widths(config)
    yield Piece("cross-attention", 2 * d * query, config.attention_bias * query + config.out_bias * d)
    yield Piece("cross-attention", 2 * d * key, config.attention_bias * 2 * key, reader="memory")
    if config.qk_norm:
        yield Piece("norms", 0, 2 * _norm(config, config.size_per_head, "rms"))


def _feed_forward(part: str, config: ModelConfig, size: int, copies: int = 1, used: int = 1) -> Piece:
    up = 2 if config.gated else 1
    biases = config.mlp_bias * (up * size + config.hidden_size)
    return Piece(part, (up + 1) * config.hidden_size * size, biases, copies, used)


def _experts(config: ModelConfig) -> Iterator[Piece]:
    assert config.experts is not None
    e = config.experts
    yield Piece("router", config.hidden_size * e.count, (e.router_bias + e.balance_bias) * e.count)
    yield _feed_forward("experts", config, config.expert_size, e.count, e.per_token)
    if e.shared:
        yield _feed_forward("shared experts", config, e.shared * config.expert_size)


# ---------------------------------------------------------------- heads


def head_pieces(config: ModelConfig, head: Head, part: str) -> Iterator[Piece]:
    """The parameters of one head; those of a tied table are the embedding's, but are multiplied with all the same."""
    d, width = config.hidden_size, config.hidden_size
    if head.arity == 2:  # SpanBERT's boundary: two layers over both states and the offset
        inputs = (3 if head.extra else 2) * d
        yield Piece(part, inputs * d + d * d, head.extra * d + 2 * d + 2 * _norm(config, d), reader="target")
    elif head.over == "vocabulary" and config.head_transform:
        width = config.table_size
        bias = config.head_transform_bias * width
        yield Piece(part, d * width, bias + _norm(config, width), reader="target")
    elif pooled(config, head):
        yield Piece(part, d * d, d, reader="target")
    if head.over == "vocabulary":
        rows = head.size or config.vocab_size
        yield Piece(part, rows * width, copies=not config.tied_head, used=not config.tied_head, reader="target")
        yield Piece(part, 0, rows * config.head_bias)
    else:
        rows = head.size if head.over == "classes" else 1
        yield Piece(part, rows * d, rows, reader="target")


def pooled(config: ModelConfig, head: Head) -> bool:
    """Whether a dense layer stands in front of a head's own: BERT's pooler, ELECTRA's detector."""
    if head.over == "binary":
        return config.detector_transform
    return head.over in ("classes", "score", "group") and config.pooler
