"""One model's weights made another's: an encoder made causal, two stacks paired, more words, longer texts.

Each function takes `Weights` and returns new ones with what it did in `notes`. Nothing is changed in place, and what
starts anew is a function of a seed. Tensors are recognised by what the settings say of their shapes (a table with a
row a word is one whose size follows `vocab_size`), so none of this knows a family.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from pydantic import ValidationError
from torch import Tensor

from unmask.batch import Head
from unmask.config import ModelConfig, Visibility
from unmask.errors import UserError
from unmask.model.positions import relative_bucket
from unmask.model.transformer import Transformer
from unmask.model.translate import family_of, first_fault
from unmask.tensors import named_once

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Weights:
    """A model apart from its module.

    state   tensors by our names, each once under its first name: a tied head is not among them
    notes   what conversions did, one phrase each
    """

    config: ModelConfig
    state: Mapping[str, Tensor]
    heads: tuple[Head, ...] = (Head("lm"),)
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(network: Transformer) -> Weights:
        """The weights of a model; its tensors are shared, not copied."""
        return Weights(network.config, named_once(network)[0], tuple(network.declared.values()))

    def network(self) -> Transformer:
        """The model that these weights are, in their precision."""
        network = Transformer(self.config, self.heads).to(self.state["embedding.weight"].dtype)
        own = named_once(network)[0]
        if odd := sorted(own.keys() ^ self.state.keys()):
            raise UserError(f"these weights are not this model's: {odd[0]} is in one of the two only")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(self.state[name])
        return network

    def changed(self, note: str, state: Mapping[str, Tensor] | None = None, **settings: Any) -> Weights:
        """The same with other settings; a family that cannot hold them any more is given up."""
        try:
            config = ModelConfig.model_validate({**self.config.model_dump(), **settings})
        except ValidationError as error:
            raise UserError(f"no such model: {first_fault(error)}") from error
        return replace(
            self,
            config=_family_kept(config),
            state=self.state if state is None else state,
            notes=(*self.notes, note),
        )


def shapes_of(config: ModelConfig, heads: Iterable[Head]) -> Shapes:
    """Name → shape of each tensor of a model, without building it."""
    with torch.device("meta"):
        blank = Transformer(config, heads)
    return {name: tuple(tensor.shape) for name, tensor in named_once(blank)[0].items()}


def _family_kept(config: ModelConfig) -> ModelConfig:
    if config.family == "unmask":
        return config
    try:
        family_of(config)
    except UserError:
        return config.model_copy(update={"family": "unmask"})
    return config


def _following(weights: Weights, **settings: Any) -> dict[str, int]:
    """Tensors whose first dimension follows these settings: name → by how many rows it changes."""
    config = weights.config
    one = shapes_of(config.model_copy(update={"vocab_size": max(config.vocab_size, 1)}), weights.heads)
    two = shapes_of(config.model_copy(update=settings), weights.heads)
    return {name: two[name][0] - shape[0] for name, shape in one.items() if two[name] != shape}


# ---------------------------------------------------------------- who sees whom


def to_visibility(weights: Weights, visibility: Visibility) -> Weights:
    """The same weights under another mask: an encoder made causal, a decoder made a prefix or masked model.

    No tensor changes, but for t5 positions, whose buckets mean other distances: a row of the new table is the mean of
    the old rows over its distances (without a future in the old table, the future takes the past's).

    >>> tiny = Transformer(ModelConfig(vocab_size=9, hidden_size=4, num_heads=1, num_layers=1), [Head("lm")])
    >>> made = to_visibility(Weights.of(tiny), "bidirectional")
    >>> made.config.visibility, made.notes
    ('bidirectional', ('visibility: causal becomes bidirectional, every tensor as it was',))
    """
    config = weights.config
    if config.num_source_layers:
        raise UserError("a model of two stacks has no other mask: its source is read both ways, its stream causally")
    if config.visibility == visibility:
        return weights
    note = f"visibility: {config.visibility} becomes {visibility}, "
    if config.positions != "t5" or "causal" not in (config.visibility, visibility):
        return weights.changed(note + "every tensor as it was", visibility=visibility)
    state = dict(weights.state)
    state["stack.score.weight"] = _rebucketed(state["stack.score.weight"], config, visibility != "causal")
    return weights.changed(
        note + "the relative buckets recomputed for it, the rest as it was", state, visibility=visibility
    )


def _rebucketed(table: Tensor, config: ModelConfig, both_ways: bool) -> Tensor:
    """(buckets, H) T5's table for the other kind of buckets."""
    far = config.relative_max_distance + 1
    difference = torch.arange(-far, far + 1 if both_ways else 1)
    buckets, limit = config.relative_buckets, config.relative_max_distance
    old = relative_bucket(-difference.abs() if both_ways else difference, not both_ways, buckets, limit)
    new = relative_bucket(difference, both_ways, buckets, limit)
    total = torch.zeros_like(table).index_add_(0, new, table[old])
    return total / torch.bincount(new, minlength=buckets).clamp(min=1)[:, None]


# ---------------------------------------------------------------- two stacks from one or two

_OWN = {
    *("family", "visibility", "num_layers", "num_source_layers", "max_position", "query_vector", "pooler"),
    *("tied_head", "head_bias", "head_transform", "head_transform_bias", "head_activation", "head_scale"),
    *("logit_softcap", "detector_transform", "dropout", "attention_dropout", "init_std", "embedding_std", "head_std"),
    *("zero_init_projections", "relative_start", "share_stacks", "source_table", "source_window"),
}
"""Settings in which two stacks may differ; the result has the decoder's."""


def pair(
    encoder: Weights, decoder: Weights | None = None, cross: Literal["new", "self"] = "new", seed: int = 0
) -> Weights:
    """An encoder–decoder from two single stacks, or from one that serves as both (Rothe et al. 2020).

    The encoder becomes bidirectional, the decoder causal; the vocabulary head is the decoder's. Where the two hold
    different token tables, both are kept. Depths may differ, all other sizes must be equal.

    cross  new: cross-attention starts from `seed`. self: from the decoder's self-attention (T5Gemma, Zhang et al. 2025)

    >>> tiny = Transformer(ModelConfig(vocab_size=9, hidden_size=4, num_heads=1, num_layers=2), [Head("lm")])
    >>> both = pair(Weights.of(tiny), cross="self")
    >>> both.config.num_source_layers, both.config.num_layers, both.network().source is not None
    (2, 2, True)
    >>> q, _, _ = tiny.state_dict()["stack.layers.1.attention.qkv.weight"].chunk(3)
    >>> torch.equal(both.state["stack.layers.1.cross.q.weight"], q)
    True
    """
    decoder = encoder if decoder is None else decoder
    _agree(encoder.config, decoder.config)
    encoder, decoder = to_visibility(encoder, "bidirectional"), to_visibility(decoder, "causal")
    heads = tuple(h for h in decoder.heads if h.over == "vocabulary" and h.arity == 1)
    if not heads:
        raise UserError("the decoder has no vocabulary head, so it can say nothing: take a language model")
    made = replace(decoder, heads=heads).changed(
        "",
        num_source_layers=encoder.config.num_layers,
        source_table=not torch.equal(encoder.state["embedding.weight"], decoder.state["embedding.weight"]),
        max_position=max(encoder.config.max_position, decoder.config.max_position),
        pooler=False,
    )
    fresh = named_once(Transformer(made.config, heads, seed))[0]
    state: dict[str, Tensor] = {}
    new: list[str] = []
    for name, start in fresh.items():
        found = _of_stack(name, encoder, decoder, cross)
        if found is None and ".cross" not in name:
            raise UserError(f"these two cannot be paired: neither holds {name}")
        if found is not None and found.shape != start.shape:
            raise UserError(f"these two cannot be paired: {name} is {_shape(found)}, but {_shape(start)} is needed")
        new += [name] if found is None else []
        state[name] = start.to(decoder.state["embedding.weight"].dtype) if found is None else found
    before = dict.fromkeys((*encoder.notes, *decoder.notes))  # said once of one that serves as both
    return replace(made, state=state, notes=(*before, *_pair_notes(state, new)))


def _agree(encoder: ModelConfig, decoder: ModelConfig) -> None:
    for config in (encoder, decoder):
        if config.num_source_layers:
            raise UserError("only single stacks can be paired, and one of these has two: take encoders and decoders")
    ours, theirs = (_resolved(c) for c in (encoder, decoder))
    for name, value in ours.items():
        if value != theirs[name]:
            raise UserError(
                f"the encoder has {name}={value} and the decoder {name}={theirs[name]}: "
                "a model of two stacks has one value for both"
            )
    if encoder.positions == "learned" and encoder.max_position != decoder.max_position:
        raise UserError(
            f"the encoder has max_position={encoder.max_position} and the decoder {decoder.max_position}: "
            "give both the same with longer_positions (--max-position)"
        )


def _resolved(config: ModelConfig) -> dict[str, Any]:
    """The settings that both stacks share, defaults filled in."""
    out = {k: v for k, v in config.model_dump().items() if k not in _OWN}
    out["num_kv_heads"], out["head_size"] = config.kv_heads, config.size_per_head
    out["intermediate_size"], out["embedding_size"] = config.mlp_size, config.table_size
    if config.attention_scale is None:
        out["attention_scale"] = config.size_per_head**-0.5
    return out


def _of_stack(name: str, encoder: Weights, decoder: Weights, cross: str) -> Tensor | None:
    """Where a tensor of the pair comes from; None = it starts anew."""
    if name.startswith("source."):
        return encoder.state.get("stack." + name.removeprefix("source."))
    if name.startswith("source_"):
        return encoder.state.get(name.removeprefix("source_"))
    if ".cross" in name:
        return _from_self_attention(name, decoder) if cross == "self" else None
    return decoder.state.get(name)


def _from_self_attention(name: str, decoder: Weights) -> Tensor | None:
    """The tensor of self-attention that does in its layer what this one does in cross-attention."""
    own = name.replace(".cross", ".attention", 1)
    if own in decoder.state:
        return decoder.state[own]
    queries = decoder.config.num_heads * decoder.config.size_per_head
    for part, rows in ((".q.", slice(0, queries)), (".kv.", slice(queries, None))):
        joint = own.replace(part, ".qkv.")
        if part in own and joint in decoder.state:
            return decoder.state[joint][rows]
    return None


def _pair_notes(state: Mapping[str, Tensor], new: Sequence[str]) -> list[str]:
    def counted(names: list[str]) -> str:
        return f"{len(names)} tensors ({sum(state[n].numel() for n in names):,} numbers)"

    source = [n for n in state if n.startswith("source")]
    cross = [n for n in state if ".cross" in n and n not in new]
    rest = [n for n in state if n not in source and n not in cross and n not in new]
    notes = [f"source stack: {counted(source)} of the encoder", f"stream: {counted(rest)} of the decoder"]
    notes += [f"cross-attention: {counted(cross)} of the decoder's self-attention"] if cross else []
    return notes + ([f"new, to be trained: {counted(list(new))} of cross-attention"] if new else [])


# ---------------------------------------------------------------- the vocabulary


def grow_vocabulary(weights: Weights, rows: Sequence[Sequence[int]], known: int | None = None) -> Weights:
    """Another vocabulary: its entry i starts as the mean of the old entries `rows[i]`.

    One entry is a copy; none, the mean of all (Hewitt 2021: a new word starts as likely as the average one), of the
    first `known` where the table was padded. Tables, an untied head and its bias are treated alike; what is tied stays
    tied. `tokens.grow` finds the rows of two tokenizers.

    >>> tiny = Transformer(ModelConfig(vocab_size=2, hidden_size=4, num_heads=1, num_layers=1), [Head("lm")])
    >>> grown = grow_vocabulary(Weights.of(tiny), [[1], [0], [0, 1], []])
    >>> old, new = tiny.embedding.weight, grown.state["embedding.weight"]
    >>> torch.equal(new[0], old[1]), torch.allclose(new[2], old.mean(0)), torch.equal(new[2], new[3])
    (True, True, True)
    >>> grown.notes
    ('vocabulary: 2 entries become 4; 2 copied, 1 the mean of their pieces, 1 the mean of all, 0 left out',)
    """
    size = weights.config.vocab_size
    known = size if known is None else known
    flat = torch.tensor([i for row in rows for i in row], dtype=torch.long)
    count = torch.tensor([len(row) for row in rows])
    if not len(rows) or (len(flat) and not 0 <= int(flat.min()) <= int(flat.max()) < size):
        raise UserError(f"the new vocabulary names an entry outside the old one's {size}")
    owner = torch.repeat_interleave(torch.arange(len(rows)), count)
    state = dict(weights.state)
    for name in _following(weights, vocab_size=size + 1):
        old = state[name]
        each = (-1, *[1] * (old.dim() - 1))
        total = old.new_zeros(len(rows), *old.shape[1:]).index_add_(0, owner, old[flat])
        mean = total / count.clamp(min=1).to(old.dtype).view(each)
        state[name] = torch.where((count == 0).view(each), old[:known].mean(0), mean)
    copied, several = sum(len(r) == 1 for r in rows), sum(len(r) > 1 for r in rows)
    left_out = known - len({r[0] for r in rows if len(r) == 1})
    note = (
        f"vocabulary: {size:,} entries become {len(rows):,}; {copied:,} copied, {several:,} the mean of their pieces, "
        f"{len(rows) - copied - several:,} the mean of all, {max(left_out, 0):,} left out"
    )
    return weights.changed(note, state, vocab_size=len(rows))


# ---------------------------------------------------------------- longer texts


def longer_positions(
    weights: Weights,
    max_position: int | None = None,
    how: Literal["interpolate", "repeat", "new"] = "interpolate",
    rotary_base: float | None = None,
    seed: int = 0,
) -> Weights:
    """Room for longer texts.

    Learned tables grow: `interpolate` spreads the old rows over the new range, first and last fixed, linearly between;
    `repeat` sets copies of the table behind it (Longformer, Beltagy et al. 2020, section 5); `new` keeps the old rows
    and starts the others from `seed`. Other positions need no row: only the limit rises, and for rotary ones
    `rotary_base` may rise with it, which slows the turn (Rozière et al. 2023, Code Llama, section 2.4).

    >>> tiny = Transformer(
    ...     ModelConfig(vocab_size=9, hidden_size=4, num_heads=1, num_layers=1, max_position=3), [Head("lm")]
    ... )
    >>> old = tiny.stack.positions.weight
    >>> new = longer_positions(Weights.of(tiny), 5).state["stack.positions.weight"]
    >>> torch.equal(new[::2], old), torch.allclose(new[1], (old[0] + old[1]) / 2)
    (True, True)
    """
    config = weights.config
    if how not in ("interpolate", "repeat", "new"):
        raise UserError(f"positions={how} is none of interpolate, repeat, new")
    if rotary_base is not None and config.positions != "rotary":
        raise UserError(f"rotary_base is for rotary positions, and this model's are {config.positions}: leave it out")
    if rotary_base is not None:
        weights = weights.changed(
            f"rotary_base: {config.rotary_base:g} becomes {rotary_base:g}", rotary_base=rotary_base
        )
    if max_position is None:
        return weights
    if max_position <= config.max_position:
        raise UserError(f"max_position={max_position} is not longer than this model's {config.max_position}")
    grown = _following(weights, max_position=max_position)
    more = max_position - config.max_position
    note = f"max_position: {config.max_position} becomes {max_position}"
    if odd := [name for name, rows in grown.items() if rows != more]:
        raise UserError(f"{odd[0]} grows by {grown[odd[0]]} rows for {more} positions: no way is known to fill it")
    if not grown:
        return weights.changed(f"{note}, which no tensor depends on", max_position=max_position)
    state = dict(weights.state)
    made = weights.changed(f"{note}; {', '.join(grown)}: {_HOW[how]}", state, max_position=max_position)
    fresh = named_once(Transformer(made.config, made.heads, seed))[0] if how == "new" else {}
    for name in grown:
        state[name] = _longer(state[name], config.max_position, more, how, fresh.get(name))
    return made


_HOW = {"interpolate": "old rows interpolated", "repeat": "old rows repeated", "new": "old rows kept, the rest new"}


def _longer(table: Tensor, size: int, more: int, how: str, fresh: Tensor | None) -> Tensor:
    """(offset + size + more, d) of a table (offset + size, d), whose unused head rows stay."""
    head, old = table[: len(table) - size], table[len(table) - size :]
    if fresh is not None:
        return torch.cat([table, fresh[len(table) :].to(table.dtype)])
    if how == "repeat":
        return torch.cat([head, old[torch.arange(size + more) % size]])
    at = torch.arange(size + more, dtype=torch.float64) * (size - 1) / (size + more - 1)
    low = at.floor().long().clamp(max=max(size - 2, 0))
    share = (at - low).to(table.dtype)[:, None]
    return torch.cat([head, torch.lerp(old[low], old[(low + 1).clamp(max=size - 1)], share)])


def _shape(tensor: Tensor) -> str:
    return " × ".join(f"{n:,}" for n in tensor.shape)
