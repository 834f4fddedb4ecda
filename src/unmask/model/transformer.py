"""One Transformer: a stack over the stream and, where the record has a source, one over the source.

It reads `Stream`s and nothing else: which objective made them it never knows.

Legend: B rows, T tokens of the stream, S of the source, d hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from unmask.batch import QUERY, Batch, Head, Stream
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model.ahead import Ahead
from unmask.model.attention import Cache, Drop, Keys, View, cross_view, explicit_kernel, self_view
from unmask.model.convolution import Convolution
from unmask.model.experts import Routing
from unmask.model.flex import flex_of, suits_flex
from unmask.model.heads import HeadModule
from unmask.model.initialise import initialise
from unmask.model.layers import Layer
from unmask.model.parts import Context, Linear, Norm, Reports, Table
from unmask.model.positions import Alibi, RelativeBuckets, rotary, sinusoids
from unmask.model.recompute import recomputed
from unmask.model.relative import Relative


class Stack(nn.Module):
    """Embeddings, layers and final norm of one stack; the token table is lent to it by the model."""

    kernel = "dense"
    """Of self-attention: dense, flex (FlexAttention wherever it can) or auto (flex on a GPU, where it needs a mask)."""
    recompute = False
    """Whether layers are computed again in the backward pass instead of keeping what they computed."""

    def __init__(self, config: ModelConfig, source: bool) -> None:
        super().__init__()
        self.config = config
        d, table = config.hidden_size, config.table_size
        cross = config.num_source_layers > 0 and not source
        self.decodes_masks = config.mask_decoder and not source
        placed = config.positions == "learned" or self.decodes_masks
        self.positions = Table(config.max_position + config.position_offset, table) if placed else None
        self.positions2 = Table(config.positions2, table) if config.positions2 else None
        self.token_types = Table(config.token_types, table) if config.token_types else None
        self.embedding_norm = Norm(config, table) if config.embedding_norm else None
        self.widen = Linear(table, d, True) if table != d else None
        both_ways = source or (config.num_source_layers == 0 and config.visibility != "causal")
        self.score = _score(config, both_ways)
        self.window = config.source_window or config.window if source else config.window
        self.relative = Relative(config) if config.positions in ("deberta", "xlnet") else None
        depth = config.num_source_layers if source else config.num_layers
        self.depths = config.depths(depth)
        self.layers = nn.ModuleList(Layer(config, i, cross) for i in range(self.depths[-1] + 1))
        self.convolution = Convolution(config) if config.convolution else None
        self.stream_scale = nn.Parameter(torch.empty(depth)) if config.residual_scalars else None
        self.embedding_scale = nn.Parameter(torch.empty(depth)) if config.residual_scalars else None
        self.final_norm = Norm(config) if config.final_norm and config.norm_position != "post" else None
        self.ahead = nn.ModuleList(Ahead(config, k) for k in range(0 if source else config.ahead_layers))

    def forward(
        self,
        embedded: Tensor,
        stream: Stream,
        memory: tuple[Tensor, Stream] | None = None,
        cache: Cache | None = None,
        generator: torch.Generator | None = None,
        explicit: bool | None = None,
        routing: list[Routing] | None = None,
        states: list[Tensor] | None = None,
        ahead: list[Tensor] | None = None,
        at: Tensor | None = None,
    ) -> Tensor:
        """The final hidden states (B, T, d) of embedded tokens (B, T, table size).

        `memory` is the source's final states and its stream; `explicit` forces one attention kernel; what layers of
        experts report is appended to `routing`. `states` receives depth + 1 of (B, T, d): what the first layer reads
        and what each depth gives to the next one, the last being what is returned. `ahead` receives the states
        (B, T, d) of each module that looks ahead. `at` (B, Q) asks for so many places of each row and for nothing else:
        (B, Q, d) comes back, and the last layer has no other queries.
        """
        c = self.config
        drop = Drop(c.dropout, generator) if generator is not None and c.dropout else None
        start = self._place(embedded, stream)
        if drop is not None:
            start = drop(start)
        if self.widen is not None:
            start = self.widen(start)
        copied = explicit_kernel(explicit, _compute_dtype(start), start.device, None)
        keys = None if cache is None else cache.extend(stream, whole=copied)
        context = self._context(start, stream, keys, memory, cache, generator, explicit, drop)
        asked = None
        if at is not None:
            own = self._context(start, _at(stream, at), keys or stream, memory, cache, generator, explicit, drop)
            asked = _Asked(at, replace(own, keys=context))
        below, x = self._through(start, stream, context, states, asked)
        x = x if self.final_norm is None else self.final_norm(x)
        if ahead is not None:
            for module in self.ahead:
                given = below if c.ahead == "parallel" else [x, *ahead][-1]
                ahead.append(module(given, embedded, stream, context, self.final_norm))
        if routing is not None and context.routing is not None:
            routing.extend(context.routing.found)
        if states is not None:
            states[-1] = x
        return x

    def _through(
        self, start: Tensor, stream: Stream, context: Context, states: list[Tensor] | None, asked: _Asked | None
    ) -> tuple[Tensor, Tensor]:
        """What the last layer reads and gives, (B, T, d) each; all depths' states go into `states`."""
        below = x = start
        for depth, layer in enumerate(self.depths):
            last = depth == len(self.depths) - 1
            if states is not None:
                states.append(x)
            if self.decodes_masks and last:
                below, x = x, self._decode_masks(x, stream, context)
                break
            if self.stream_scale is not None and self.embedding_scale is not None:
                x = self.stream_scale[depth] * x + self.embedding_scale[depth] * start
            below = x
            if last and asked is not None and self.convolution is None:
                return below, self._layer(layer, _rows_at(x, asked.at), asked.context, depth, x)
            x = self._layer(layer, x, context, depth)
            if depth == 0 and self.convolution is not None:
                x = self.convolution(start, x, stream.block)
        if states is not None:
            states.append(x)
        return below, x if asked is None else _rows_at(x, asked.at)

    def _layer(self, number: int, x: Tensor, context: Context, depth: int, keys: Tensor | None = None) -> Tensor:
        """What one of the layers makes of x (B, T, d)."""
        if self.recompute and torch.is_grad_enabled():
            return recomputed(self.layers[number], x, context, depth, keys)
        return self.layers[number](x, context, depth, keys)  # type: ignore[no-any-return]

    def _view(self, stream: Stream, keys: Stream | Keys | None, window: int | None, how: _How) -> View:
        """The view of a stream on itself or on other keys, for the kernel that serves it."""
        c = self.config
        if keys is None and how.free and suits_flex(self.kernel, c, stream, window):
            return View(False, flex=flex_of(stream, self.score, how.dtype, window))
        return self_view(stream, keys, self.score, c.num_heads, how.dtype, how.explicit, window)

    def _place(self, x: Tensor, stream: Stream) -> Tensor:
        """Token vectors with positions, token types and norm."""
        c = self.config
        if c.embedding_scale != 1.0:
            x = x * c.embedding_scale
        if c.positions == "learned" and self.positions is not None:
            x = x + self.positions(stream.positions + c.position_offset)
        elif c.positions == "sinusoidal":
            x = x + sinusoids(stream.positions, c.table_size, x.dtype)
        if self.positions2 is not None:
            x = x + self.positions2(
                torch.zeros_like(stream.positions) if stream.positions2 is None else stream.positions2
            )
        if self.token_types is not None:
            types = torch.zeros_like(stream.positions) if stream.token_type is None else stream.token_type
            x = x + self.token_types(types)
        return x if self.embedding_norm is None else self.embedding_norm(x)

    def _decode_masks(self, x: Tensor, stream: Stream, context: Context) -> Tensor:
        """The last layer, twice, for queries that start at x + absolute position; keys and values are x's.

        He et al. 2021, section 3.2, as their code does it (`emd_context_layer`).
        """
        assert self.positions is not None
        depth = len(self.depths) - 1
        query = x + self.positions(stream.positions + self.config.position_offset)
        for _ in range(2):
            query = self._layer(self.depths[depth], query, context, depth, x)
        return query

    def _context(
        self,
        x: Tensor,
        stream: Stream,
        keys: Stream | Keys | None,
        memory: tuple[Tensor, Stream] | None,
        cache: Cache | None,
        generator: torch.Generator | None,
        explicit: bool | None,
        drop: Drop | None,
    ) -> Context:
        c = self.config
        dtype = _compute_dtype(x)
        drop_attention = Drop(c.attention_dropout, generator) if generator is not None and c.attention_dropout else None
        free = explicit is None and drop_attention is None
        if drop_attention is not None or self.relative is not None or c.attention_softcap is not None:
            explicit = True  # the fused kernel knows none of them
        elif explicit is None and stream.tokens.shape[1] == 1 and not torch.is_grad_enabled():
            explicit = False  # of one query a row the fused kernel is the faster one in 16 bits, too
        how = _How(dtype, explicit, free)
        local = "L" in c.attention_pattern
        turn = c.positions == "rotary"
        base = c.rotary_local_base or c.rotary_base
        return Context(
            view=self._view(stream, keys, None, how),
            local=self._view(stream, keys, self.window, how) if local else None,
            angles=rotary(stream.positions, c.rotary_size, c.rotary_base, dtype) if turn else None,
            local_angles=rotary(stream.positions, c.rotary_size, base, dtype) if turn and local else None,
            pairs=None if self.relative is None else self.relative.pairs(stream, keys),
            tokens=stream.tokens,
            real=None if c.experts is None else stream.block != 0,
            routing=None if c.experts is None else Reports(),
            cross=None if memory is None else cross_view(stream, memory[1], c.num_heads, dtype, explicit),
            memory=None if memory is None else memory[0],
            cache=cache,
            drop=drop,
            drop_attention=drop_attention,
        )


class _How(NamedTuple):
    """What decides on a kernel: the type of its products, the dense one that is needed, and whether that is no must."""

    dtype: torch.dtype
    explicit: bool | None
    free: bool


class _Asked(NamedTuple):
    """The places (B, Q) of each row whose states are asked for, and the context of the queries there."""

    at: Tensor
    context: Context


def _rows_at(x: Tensor, at: Tensor) -> Tensor:
    """(B, Q, d) or (B, Q) of (B, T, d) or (B, T)."""
    return x.gather(1, at if x.dim() == 2 else at[..., None].expand(-1, -1, x.shape[2]))


def _at(stream: Stream, at: Tensor) -> Stream:
    """Those places of each row as a stream of its own; where all see all, that stays so."""
    found = replace(stream.map(lambda a: _rows_at(a, at)), contiguous=False)
    return found if stream.pattern == "full" and stream.isolated else replace(found, pattern="order", isolated=False)


def _score(config: ModelConfig, both_ways: bool) -> RelativeBuckets | Alibi | None:
    """The additive score that all layers of a stack share."""
    if config.positions == "t5":
        return RelativeBuckets(config.relative_buckets, config.relative_max_distance, config.num_heads, both_ways)
    return Alibi(config.num_heads) if config.positions == "alibi" else None


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
        self.embedding = Table(config.vocab_size, config.table_size)
        two_tables = config.source_table and config.num_source_layers
        self.source_embedding = Table(config.vocab_size, config.table_size) if two_tables else None
        self.query = nn.Parameter(torch.empty(config.table_size)) if config.query_vector else None
        self.stack = Stack(config, source=False)
        self.source = Stack(config, source=True) if config.num_source_layers else None
        if self.source is not None and config.share_stacks:
            self.source.layers = self.stack.layers
        self.declared: dict[str, Head] = {}  # module name → the first head that uses it
        for head in heads:
            self.declared.setdefault(head.uses, head)
            if head.ahead > config.ahead_layers:
                raise UserError(f"head '{head.name}' reads a module of model.ahead_layers={config.ahead_layers}")
        self.heads = nn.ModuleDict(
            {name: HeadModule(config, head, self.embedding.weight) for name, head in self.declared.items()}
        )
        initialise(self, config, seed)

    def forward(
        self,
        batch: Batch,
        generator: torch.Generator | None = None,
        explicit: bool | None = None,
        at: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The final states {"stream": (B, T, d)}, and {"source": (B, S, d)} where there is a source.

        {"ahead1": (B, T, d), …} as well where a head of the batch reads a module that looks ahead.

        `at` (B, Q) says that no other places of the stream will be read, no place twice in a row: the last layer then
        computes nothing else, and the states elsewhere are 0. A masked LM saves most of its last layer by it.

        With experts, {"router": (2,)} as well: the balance loss, a mean over the layers that route, and the z-loss, a
        mean over their tokens.
        """
        routing: list[Routing] = []
        out: dict[str, Tensor] = {}
        memory = None
        if batch.source is not None:
            memory = out["source"] = self.encode(batch.source, generator, explicit, routing)
        ahead: list[Tensor] | None = [] if any(head.ahead for head in batch.heads.values()) else None
        if ahead is not None or self.config.experts is not None:
            at = None  # both read all states
        given = batch.stream, memory, batch.source, None, generator, explicit, routing
        out["stream"] = _laid(self.decode(*given, ahead=ahead, at=at), at, batch.stream)
        out |= {f"ahead{k}": states for k, states in enumerate(ahead or (), 1)}
        if routing:
            tokens = torch.stack([r.tokens for r in routing])
            z = (torch.stack([r.z for r in routing]) * tokens).sum() / tokens.sum()
            out["router"] = torch.stack([torch.stack([r.balance for r in routing]).mean(), z])
        return out

    def encode(
        self,
        source: Stream,
        generator: torch.Generator | None = None,
        explicit: bool | None = None,
        routing: list[Routing] | None = None,
        states: list[Tensor] | None = None,
    ) -> Tensor:
        """The source stack's final states (B, S, d); `states` receives those of every depth (`Stack.forward`)."""
        if self.source is None:
            raise UserError("the batch has a source but the model has one stack: set model.num_source_layers")
        embedded = self._embed(source, self.source_embedding)
        return self.source(embedded, source, None, None, generator, explicit, routing, states)

    def decode(
        self,
        stream: Stream,
        memory: Tensor | None = None,
        source: Stream | None = None,
        cache: Cache | None = None,
        generator: torch.Generator | None = None,
        explicit: bool | None = None,
        routing: list[Routing] | None = None,
        states: list[Tensor] | None = None,
        ahead: list[Tensor] | None = None,
        at: Tensor | None = None,
    ) -> Tensor:
        """The stream's final states (B, T, d). With a cache, T new tokens see its keys and join them.

        `states` receives those of every depth, `ahead` those of modules that look ahead; with `at` (B, Q) it is
        (B, Q, d), those of so many places of each row (`Stack.forward`).
        """
        if (memory is None or source is None) != (self.source is None):
            raise UserError("a model with a source stack reads a source: give one, or set model.num_source_layers=0")
        given = None if memory is None or source is None else (memory, source)
        return self.stack(self._embed(stream), stream, given, cache, generator, explicit, routing, states, ahead, at)

    def _embed(self, stream: Stream, table: Table | None = None) -> Tensor:
        """Token vectors (B, T, d), after the stream's values are known to lie inside the tables.

        A compiled graph leaves the check out: it asks for values, which would cut the graph.
        """
        if not torch.compiler.is_compiling():
            _check(stream, self.config)
        if table is not None:
            return table(stream.tokens)
        if self.query is None:
            return self.embedding(stream.tokens)
        appended = stream.tokens == QUERY
        return torch.where(appended[..., None], self.query, self.embedding(stream.tokens.clamp(min=0)))


def _laid(states: Tensor, at: Tensor | None, stream: Stream) -> Tensor:
    """States (B, Q, d) back at their places in the stream (B, T, d), 0 elsewhere."""
    if at is None:
        return states
    index = at[..., None].expand_as(states)
    return states.new_zeros(*stream.tokens.shape, states.shape[2]).scatter(1, index, states)


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
    if config.convolution and stream.pattern != "full":
        raise UserError(f"model.convolution reads what follows: under a {stream.pattern} mask it would tell the answer")
    placed = config.positions == "learned" or config.mask_decoder
    if placed and (last := int(stream.positions.max())) >= config.max_position:
        raise UserError(
            f"position {last} lies beyond the model's {config.max_position} positions: "
            f"use a context of at most {config.max_position}, or a larger model.max_position"
        )
    if config.positions2 and stream.positions2 is not None:
        last = int(stream.positions2.max())
        if last >= config.positions2:
            raise UserError(f"second position {last} lies beyond the table of {config.positions2} (model.positions2)")
    if config.token_types and stream.token_type is not None:
        last = int(stream.token_type.max())
        if last >= config.token_types:
            raise UserError(f"token type {last} lies outside the table of {config.token_types} (model.token_types)")


def _compute_dtype(x: Tensor) -> torch.dtype:
    """The type matrix products run in: autocast's where it is on."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
