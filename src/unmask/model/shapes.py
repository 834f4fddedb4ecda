"""The shapes at every step from tokens to logits, from the configuration alone.

Legend: B rows, T tokens of the stream, S of the source, d hidden size, H heads, K key-value heads, D head size,
n targets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from unmask.batch import Head
from unmask.config import ModelConfig
from unmask.model.spec import LANGUAGE_MODEL, pooled


@dataclass(frozen=True)
class Step:
    """One step of a forward pass: what comes out of it.

    step    the module's name in `Transformer`, or in brackets what no module of its own makes
    depths  at which depths of the stack the same happens; () = outside of the layers
    """

    step: str
    shape: tuple[int, ...]
    what: str
    depths: tuple[int, ...] = ()


def shapes(
    config: ModelConfig,
    heads: Iterable[Head] = LANGUAGE_MODEL,
    batch: int = 1,
    context: int = 1,
    source_context: int = 0,
    targets: int | None = None,
) -> list[Step]:
    """The steps of one forward pass of (batch, context) tokens; of a source as well where there are two stacks.

    targets: how many positions ask each head; None = all. Layers that are alike are listed once.
    """
    out: list[Step] = []
    if config.num_source_layers:
        out += _Shapes(config, True, batch, source_context, 0).steps()
    out += _Shapes(config, False, batch, context, source_context if config.num_source_layers else 0).steps()
    n = batch * context if targets is None else targets
    modules: dict[str, Head] = {}
    for head in heads:
        modules.setdefault(head.uses, head)
    return out + [step for name, head in modules.items() for step in _head(config, head, f"heads.{name}", n)]


@dataclass(frozen=True)
class _Shapes:
    config: ModelConfig
    source: bool
    rows: int
    length: int
    memory: int

    def steps(self) -> list[Step]:
        name = "source" if self.source else "stack"
        kinds: dict[tuple[object, ...], list[int]] = {}
        c = self.config
        depths = c.depths(c.num_source_layers if self.source else c.num_layers)
        for depth, layer in enumerate(depths):
            kind = (c.local(depth), c.sparse(layer), c.lends_values(layer), layer == 0 and c.skip_first_norm)
            kinds.setdefault(kind, []).append(depth)
        out = list(self._before(name))
        for found in kinds.values():
            layer = depths[found[0]]
            inside = self._layer(f"{name}.layers.{layer}", found[0], layer)
            out += [replace(step, depths=tuple(found)) for step in inside]
        if c.convolution:
            out.append(self._state(f"{name}.convolution", "beside the first layer"))
        if c.mask_decoder and not self.source:
            out.append(self._state(f"{name}.positions", "added to the queries of the last layer, which runs twice"))
        if c.final_norm and c.norm_position != "post":
            out.append(self._state(f"{name}.final_norm", "final states"))
        return out

    def _state(self, step: str, what: str, size: int | None = None) -> Step:
        return Step(step, (self.rows, self.length, size or self.config.hidden_size), what)

    def _before(self, name: str) -> Iterator[Step]:
        c, e = self.config, self.config.table_size
        yield Step("[tokens]", (self.rows, self.length), "source" if self.source else "stream")
        table = "source_embedding" if self.source and c.source_table else "embedding"
        yield self._state(table, "token vectors", e)
        if c.positions == "learned":
            yield self._state(f"{name}.positions", "added", e)
        if c.positions == "sinusoidal":
            yield self._state("[sinusoids]", "added", e)
        if c.positions2:
            yield self._state(f"{name}.positions2", "added", e)
        if c.token_types:
            yield self._state(f"{name}.token_types", "added", e)
        if c.embedding_norm:
            yield self._state(f"{name}.embedding_norm", "", e)
        if e != c.hidden_size:
            yield self._state(f"{name}.widen", "from the tables' width to the layers'")

    def _layer(self, name: str, depth: int, layer: int) -> Iterator[Step]:
        c = self.config
        both = c.norm_position == "both"
        norm = self._state(f"{name}.attention_norm", "")
        if not (layer == 0 and c.skip_first_norm) and c.norm_position != "post":
            yield norm
        yield from self._latent(name) if c.latent else self._attention(name, layer)
        if c.positions in ("deberta", "xlnet"):
            pairs = (self.rows, c.num_heads, self.length, self.length)
            yield Step(f"{name}.attention.relation", pairs, "terms of content and relative position")
        seen = f"of keys at most {c.window} away" if c.local(depth) else ""
        yield Step("[scores]", (self.rows, c.num_heads, self.length, self.length), seen)
        yield self._state(f"{name}.attention.out", "")
        if both:
            yield self._state(f"{name}.attention_after_norm", "")
        if c.norm_position == "post":
            yield norm
        if c.num_source_layers and not self.source:
            yield from self._cross(name)
        yield from self._feed_forward(name, layer)

    def _attention(self, name: str, layer: int) -> Iterator[Step]:
        c, d = self.config, self.config.size_per_head
        joint = (c.num_heads + 2 * c.kv_heads) * d
        yield self._state(f"{name}.attention.qkv", "queries, keys, values", joint)
        if c.qk_norm:
            yield Step(f"{name}.attention.q_norm", (self.rows, self.length, c.num_heads, d), "each head's queries")
            yield Step(f"{name}.attention.k_norm", (self.rows, self.length, c.kv_heads, d), "each head's keys")
        if c.lends_values(layer):
            yield Step(f"{name}.attention.values", (self.rows, self.length, c.kv_heads, d), "added to the values")
        yield Step("[queries]", (self.rows, c.num_heads, self.length, d), "")
        yield Step("[keys]", (self.rows, c.kv_heads, self.length, d), "")
        yield Step("[values]", (self.rows, c.kv_heads, self.length, d), "")

    def _latent(self, name: str) -> Iterator[Step]:
        c, m = self.config, self.config.latent
        assert m is not None
        d = c.size_per_head + m.rotary_size
        if m.query_rank is None:
            yield self._state(f"{name}.attention.q", "queries", c.num_heads * d)
        else:
            yield self._state(f"{name}.attention.q_a", "compressed queries", m.query_rank)
            yield self._state(f"{name}.attention.q_b", "queries", c.num_heads * d)
        yield self._state(
            f"{name}.attention.kv_a", "latent, and the rotary key of all heads", m.key_rank + m.rotary_size
        )
        both = c.num_heads * (c.size_per_head + m.value_size)
        yield self._state(f"{name}.attention.kv_b", "keys without position, and values", both)
        yield Step("[queries]", (self.rows, c.num_heads, self.length, d), "")
        yield Step("[keys]", (self.rows, c.num_heads, self.length, d), "")
        yield Step("[values]", (self.rows, c.num_heads, self.length, m.value_size), "")

    def _cross(self, name: str) -> Iterator[Step]:
        c, d = self.config, self.config.size_per_head
        norm = self._state(f"{name}.cross_norm", "")
        if c.norm_position != "post":
            yield norm
        yield self._state(f"{name}.cross.q", "queries", c.num_heads * d)
        yield Step(f"{name}.cross.kv", (self.rows, self.memory, 2 * c.kv_heads * d), "the source's keys and values")
        yield Step("[cross scores]", (self.rows, c.num_heads, self.length, self.memory), "")
        yield self._state(f"{name}.cross.out", "")
        if c.norm_position == "both":
            yield self._state(f"{name}.cross_after_norm", "")
        if c.norm_position == "post":
            yield norm

    def _feed_forward(self, name: str, layer: int) -> Iterator[Step]:
        c, up = self.config, 2 if self.config.gated else 1
        norm = self._state(f"{name}.mlp_norm", "")
        if c.norm_position != "post":
            yield norm
        if c.experts is not None and c.sparse(layer):
            e = c.experts
            yield self._state("[router]", f"logits, of which {e.per_token} are chosen", e.count)
            yield Step("[experts' up]", (self.rows * self.length * e.per_token, up * c.expert_size), "over all experts")
            if e.shared:
                yield self._state(f"{name}.mlp.shared", "the experts that every token visits")
            yield self._state(f"{name}.mlp", "")
        else:
            yield self._state(f"{name}.mlp.up", "gate and up" if c.gated else "", up * c.mlp_size)
            yield self._state(f"{name}.mlp.down", "")
        if c.norm_position == "both":
            yield self._state(f"{name}.mlp_after_norm", "")
        if c.norm_position == "post":
            yield norm


def _head(config: ModelConfig, head: Head, name: str, n: int) -> Iterator[Step]:
    d = config.hidden_size
    if head.arity == 2:
        yield Step(f"{name}.boundary", (n, d), "from both ends of a span")
    elif head.over == "vocabulary" and config.head_transform:
        yield Step(f"{name}.dense", (n, config.table_size), "dense, activation, norm")
    elif pooled(config, head):
        yield Step(f"{name}.pooler", (n, d), "")
    rows = head.size or config.vocab_size if head.over == "vocabulary" else head.size or 1
    yield Step(f"[{name}]", (n, rows), "logits at targets")
