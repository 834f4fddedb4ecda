"""ModernBERT (Warner et al. 2024)."""

from __future__ import annotations

from typing import Any

from unmask.config import ModelConfig
from unmask.model.families.base import (
    ACTIVATIONS,
    GATES,
    Family,
    Settings,
    activation,
    gate,
    pair,
    pattern_of,
    reach,
    rope,
)

_KINDS = {"full_attention": "G", "sliding_attention": "L"}
_NAMES = {letter: kind for kind, letter in _KINDS.items()}


def _read_modernbert(c: Settings) -> dict[str, Any]:
    depth = c.get("num_hidden_layers", 22)
    bases, pattern = _bases(c), pattern_of(_layers(c, depth), _KINDS)
    both = reach(c, "modernbert", "local_attention", 128) + 1 if "L" in pattern else 0
    return {
        "visibility": "bidirectional",
        "vocab_size": c.get("vocab_size", 50368),
        "hidden_size": c.get("hidden_size", 768),
        "num_layers": depth,
        "num_heads": c.get("num_attention_heads", 12),
        "intermediate_size": c.get("intermediate_size", 1152),
        "activation": gate(c.get("hidden_activation", "gelu")),
        "max_position": c.get("max_position_embeddings", 8192),
        "positions": "rotary",
        "rotary_base": bases["full_attention"],
        "rotary_local_base": bases["sliding_attention"],
        "attention_pattern": pattern,
        "window": both // 2,  # theirs counts both sides
        "norm_eps": c.get("norm_eps", 1e-5),
        "norm_bias": c.get("norm_bias", False),
        "embedding_norm": True,
        "skip_first_norm": True,
        "attention_bias": c.get("attention_bias", False),
        "mlp_bias": c.get("mlp_bias", False),
        "tied_head": c.get("tie_word_embeddings", True),
        "head_transform": True,
        "head_transform_bias": c.get("classifier_bias", False),
        "head_activation": activation(c.get("classifier_activation", "gelu")),
        "head_bias": c.get("decoder_bias", True),
        # it drops out embeddings and inner states at rates of their own; here is one rate
        "dropout": max(c.get("embedding_dropout", 0.0), c.get("mlp_dropout", 0.0)),
        "attention_dropout": c.get("attention_dropout", 0.0),
        "init_std": c.get("initializer_range", 0.02),
    }


def _bases(c: Settings) -> dict[str, float]:
    """The rotary bases by kind of layer, in either spelling: nested since version 5, flat before."""
    nested = c.get("rope_parameters") or {}
    flat = {
        "full_attention": c.get("global_rope_theta", 160000.0),
        "sliding_attention": c.get("local_rope_theta", 10000.0) or c.get("global_rope_theta", 160000.0),
    }
    out = {}
    for kind, base in flat.items():
        turn = rope({"rope_parameters": nested.get(kind), "rope_scaling": c.get("rope_scaling")}, "modernbert")
        out[kind] = float(turn.get("rope_theta") or base)
    return out


def _layers(c: Settings, depth: int) -> list[str]:
    """The kind of each layer: a list since version 5, before that every so many a global one."""
    every = c.get("global_attn_every_n_layers", 3)
    kinds = c.get("layer_types") or ["sliding_attention" if i % every else "full_attention" for i in range(depth)]
    return list(kinds[:depth])


def _write_modernbert(m: ModelConfig) -> dict[str, Any]:
    bases = {"full_attention": m.rotary_base, "sliding_attention": m.rotary_local_base or m.rotary_base}
    head = m.head_activation or m.activation
    return {
        "vocab_size": m.vocab_size,
        "hidden_size": m.hidden_size,
        "num_hidden_layers": m.num_layers,
        "num_attention_heads": m.num_heads,
        "intermediate_size": m.mlp_size,
        "hidden_activation": GATES.get(m.activation, m.activation),
        "max_position_embeddings": m.max_position,
        "rope_parameters": {k: {"rope_type": "default", "rope_theta": base} for k, base in bases.items()},
        "layer_types": [_NAMES["L" if m.local(i) else "G"] for i in range(m.num_layers)],
        "local_attention": 2 * m.window or 128,
        "norm_eps": m.norm_eps,
        "norm_bias": m.norm_bias,
        "attention_bias": m.attention_bias,
        "mlp_bias": m.mlp_bias,
        "tie_word_embeddings": m.tied_head,
        "classifier_bias": m.head_transform_bias,
        "classifier_activation": ACTIVATIONS.get(head) or GATES[head],
        "decoder_bias": m.head_bias,
        "embedding_dropout": m.dropout,
        "mlp_dropout": m.dropout,
        "attention_dropout": m.attention_dropout,
        "initializer_range": m.init_std,
    }


_LAYER = "model.layers.{i}."
MODERNBERT = Family(
    name="modernbert",
    read=_read_modernbert,
    write=_write_modernbert,
    prefix="model.",
    classes={"": "ModernBertModel", "lm": "ModernBertForMaskedLM"},
    visibility="bidirectional",
    ids=("cls", "sep"),
    head_names=("head.", "decoder."),
    rows=(
        *pair("embedding", "model.embeddings.tok_embeddings", bias=False),
        *pair("stack.embedding_norm", "model.embeddings.norm"),
        *pair("stack.layers.{i}.attention_norm", _LAYER + "attn_norm"),
        *pair("stack.layers.{i}.attention.qkv", _LAYER + "attn.Wqkv"),
        *pair("stack.layers.{i}.attention.out", _LAYER + "attn.Wo"),
        *pair("stack.layers.{i}.mlp_norm", _LAYER + "mlp_norm"),
        *pair("stack.layers.{i}.mlp.up", _LAYER + "mlp.Wi"),  # its first half is the one that is activated, as here
        *pair("stack.layers.{i}.mlp.down", _LAYER + "mlp.Wo"),
        *pair("stack.final_norm", "model.final_norm"),
        *pair("heads.{lm}.dense.dense", "head.dense"),
        *pair("heads.{lm}.dense.norm", "head.norm"),
        *pair("heads.{lm}", "decoder"),
    ),
)
