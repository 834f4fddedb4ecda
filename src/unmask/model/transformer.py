"""One Transformer: a stack over the stream and, where the record has a source, one over the source.

It reads `Stream`s and nothing else: which objective made them it never knows.

Legend: B rows, T tokens of the stream, S of the source, d hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from unmask.batch import QUERY, Batch, Head, Stream
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.keyed import absorb, purpose
from unmask.model.attention import Cache, Drop, cross_view, self_view
from unmask.model.heads import HeadModule
from unmask.model.layers import Context, Layer, Norm, Table
from unmask.model.positions import RelativeBuckets, rotary, sinusoids


class Stack(nn.Module):
    """Embeddings, layers and final norm of one stack; the token table is lent to it by the model."""

    def __init__(self, config: ModelConfig, source: bool) -> None:
        super().__init__()
        self.config = config
        d = config.hidden_size
        cross = config.num_source_layers > 0 and not source
        self.positions = Table(config.max_position, d) if config.positions == "learned" else None
        self.token_types = Table(config.token_types, d) if config.token_types else None
        self.embedding_norm = Norm(config) if config.embedding_norm else None
        both_ways = source or (config.num_source_layers == 0 and config.visibility != "causal")
        self.score = (
            RelativeBuckets(config.relative_buckets, config.relative_max_distance, config.num_heads, both_ways)
            if config.positions == "t5"
            else None
        )
        depth = config.num_source_layers if source else config.num_layers
        self.layers = nn.ModuleList(Layer(config, i, cross) for i in range(depth))
        self.final_norm = Norm(config) if config.final_norm and config.norm_position == "pre" else None

    def forward(
        self,
        embedded: Tensor,
        stream: Stream,
        memory: tuple[Tensor, Stream] | None = None,
        cache: Cache | None = None,
        generator: torch.Generator | None = None,
        explicit: bool | None = None,
    ) -> Tensor:
        """The final hidden states (B, T, d) of embedded tokens (B, T, d).

        `memory` is the source's final states and its stream; `explicit` forces one attention kernel.
        """
        c = self.config
        drop = Drop(c.dropout, generator) if generator is not None and c.dropout else None
        x = self._place(embedded, stream)
        if drop is not None:
            x = drop(x)
        context = self._context(x, stream, memory, cache, generator, explicit, drop)
        for layer in self.layers:
            x = layer(x, context)
        return x if self.final_norm is None else self.final_norm(x)

    def _place(self, x: Tensor, stream: Stream) -> Tensor:
        """Token vectors with positions, token types and norm."""
        c = self.config
        if c.embedding_scale != 1.0:
            x = x * c.embedding_scale
        if self.positions is not None:
            x = x + self.positions(stream.positions)
        elif c.positions == "sinusoidal":
            x = x + sinusoids(stream.positions, c.hidden_size, x.dtype)
        if self.token_types is not None:
            types = torch.zeros_like(stream.positions) if stream.token_type is None else stream.token_type
            x = x + self.token_types(types)
        return x if self.embedding_norm is None else self.embedding_norm(x)

    def _context(
        self,
        x: Tensor,
        stream: Stream,
        memory: tuple[Tensor, Stream] | None,
        cache: Cache | None,
        generator: torch.Generator | None,
        explicit: bool | None,
        drop: Drop | None,
    ) -> Context:
        c = self.config
        dtype = _compute_dtype(x)
        drop_attention = Drop(c.attention_dropout, generator) if generator is not None and c.attention_dropout else None
        if drop_attention is not None:
            explicit = True
        keys = None if cache is None else cache.extend(stream)
        return Context(
            view=self_view(stream, keys, self.score, c.num_heads, dtype, explicit),
            angles=rotary(stream.positions, c.size_per_head, c.rotary_base, dtype) if c.positions == "rotary" else None,
            cross=None if memory is None else cross_view(stream, memory[1], c.num_heads, dtype, explicit),
            memory=None if memory is None else memory[0],
            cache=cache,
            drop=drop,
            drop_attention=drop_attention,
        )


class Transformer(nn.Module):
    """The model of a `ModelConfig` with the declared heads.

    Parameters start from a generator keyed by (seed, parameter name): neither their order nor other draws
    matter. Dropout happens only where a generator is passed.
    """

    def __init__(self, config: ModelConfig, heads: Iterable[Head], seed: int = 0) -> None:
        super().__init__()
        if config.vocab_size < 1:
            raise UserError("model.vocab_size is 0: give it, or train a tokenizer whose size it takes")
        self.config = config
        self.embedding = Table(config.vocab_size, config.hidden_size)
        self.query = nn.Parameter(torch.empty(config.hidden_size)) if config.query_vector else None
        self.stack = Stack(config, source=False)
        self.source = Stack(config, source=True) if config.num_source_layers else None
        self.declared: dict[str, Head] = {}  # module name → the first head that uses it
        for head in heads:
            self.declared.setdefault(head.uses, head)
        self.heads = nn.ModuleDict(
            {name: HeadModule(config, head, self.embedding.weight) for name, head in self.declared.items()}
        )
        _initialise(self, config, seed)

    def forward(
        self, batch: Batch, generator: torch.Generator | None = None, explicit: bool | None = None
    ) -> dict[str, Tensor]:
        """The final states {"stream": (B, T, d)}, and {"source": (B, S, d)} where there is a source."""
        if batch.source is None:
            return {"stream": self.decode(batch.stream, generator=generator, explicit=explicit)}
        memory = self.encode(batch.source, generator, explicit)
        stream = self.decode(batch.stream, memory, batch.source, generator=generator, explicit=explicit)
        return {"stream": stream, "source": memory}

    def encode(self, source: Stream, generator: torch.Generator | None = None, explicit: bool | None = None) -> Tensor:
        """The source stack's final states (B, S, d)."""
        if self.source is None:
            raise UserError("the batch has a source but the model has one stack: set model.num_source_layers")
        return self.source(self._embed(source), source, generator=generator, explicit=explicit)

    def decode(
        self,
        stream: Stream,
        memory: Tensor | None = None,
        source: Stream | None = None,
        cache: Cache | None = None,
        generator: torch.Generator | None = None,
        explicit: bool | None = None,
    ) -> Tensor:
        """The stream's final states (B, T, d). With a cache, T new tokens see its keys and join them."""
        if (memory is None or source is None) != (self.source is None):
            raise UserError("a model with a source stack reads a source: give one, or set model.num_source_layers=0")
        given = None if memory is None or source is None else (memory, source)
        return self.stack(self._embed(stream), stream, given, cache, generator, explicit)

    def _embed(self, stream: Stream) -> Tensor:
        """Token vectors (B, T, d), after the stream's values are known to lie inside the tables.

        A compiled graph leaves the check out: it asks for values, which would cut the graph.
        """
        if not torch.compiler.is_compiling():
            _check(stream, self.config)
        if self.query is None:
            return self.embedding(stream.tokens)
        appended = stream.tokens == QUERY
        return torch.where(appended[..., None], self.query, self.embedding(stream.tokens.clamp(min=0)))


def _check(stream: Stream, config: ModelConfig) -> None:
    """A value outside a table is a clear error here instead of an index error (or a device assert) later."""
    low, high = (int(x) for x in stream.tokens.aminmax())
    if high >= config.vocab_size:
        raise UserError(
            f"token id {high} lies outside the vocabulary of {config.vocab_size}: "
            "the tokenizer is larger than the embedding table (model.vocab_size)"
        )
    if low < (QUERY if config.query_vector else 0):
        hint = "appended queries need model.query_vector=true" if low == QUERY else "ids start at 0"
        raise UserError(f"token id {low} is negative: {hint}")
    if config.positions == "learned" and (last := int(stream.positions.max())) >= config.max_position:
        raise UserError(
            f"position {last} lies beyond the model's {config.max_position} positions: "
            f"use a context of at most {config.max_position}, or a larger model.max_position"
        )
    if config.token_types and stream.token_type is not None:
        last = int(stream.token_type.max())
        if last >= config.token_types:
            raise UserError(f"token type {last} lies outside the table of {config.token_types} (model.token_types)")


def _compute_dtype(x: Tensor) -> torch.dtype:
    """The type matrix products run in: autocast's where it is on."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


@torch.no_grad()
def _initialise(model: Transformer, config: ModelConfig, seed: int) -> None:
    """Matrices N(0, init_std), norms 1, biases 0, projections into the residual stream smaller.

    The factor 1 / sqrt(2 · layers) keeps the stream's variance about constant in depth (Radford et al. 2019).
    """
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            continue
        if parameter.dim() == 1 and name != "query":
            parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
            continue
        std = config.init_std
        if name.endswith((".out.weight", ".down.weight")):
            depth = config.num_source_layers if name.startswith("source.") else config.num_layers
            std = 0.0 if config.zero_init_projections else std / (2 * depth) ** 0.5
        generator = torch.Generator(parameter.device).manual_seed(int(absorb(absorb(0, seed), purpose(name))))
        parameter.normal_(0.0, std, generator=generator)
