"""Decoders in Llama's line: Llama, Mistral, Qwen 3, nanochat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model.families.base import (
    ACTIVATIONS,
    GATE_UP,
    GATES,
    QKV,
    Family,
    Form,
    Row,
    Settings,
    activation,
    gate,
    pair,
    pattern_of,
    reach,
    rope,
    several,
)


def turning(c: Settings, family: str, base: float = 10000.0) -> dict[str, Any]:
    """Rotary positions from either spelling of their base, or the family's own base."""
    return {
        "positions": "rotary",
        "rotary_base": float(rope(c, family).get("rope_theta") or c.get("rope_theta") or base),
    }


def turned(m: ModelConfig) -> dict[str, Any]:
    """The reverse, for version 4 (rope_theta) and version 5."""
    return {"rope_theta": m.rotary_base, "rope_parameters": {"rope_type": "default", "rope_theta": m.rotary_base}}


def _read_llama(c: Settings, family: str = "llama") -> dict[str, Any]:
    return {
        "visibility": "causal",
        "vocab_size": c.get("vocab_size", 32000),
        "hidden_size": c.get("hidden_size", 4096),
        "num_layers": c.get("num_hidden_layers", 32),
        "num_heads": c.get("num_attention_heads", 32),
        "num_kv_heads": c.get("num_key_value_heads"),
        "head_size": c.get("head_dim"),
        "intermediate_size": c.get("intermediate_size", 11008),
        "activation": gate(c.get("hidden_act", "silu")),
        "max_position": c.get("max_position_embeddings", 2048),
        **turning(c, family),
        "norm": "rms",
        "norm_eps": c.get("rms_norm_eps", 1e-6),
        "attention_bias": c.get("attention_bias", False),
        "mlp_bias": c.get("mlp_bias", False),
        "tied_head": c.get("tie_word_embeddings", False),
        "dropout": 0.0,
        "attention_dropout": c.get("attention_dropout") or 0.0,
        "init_std": c.get("initializer_range", 0.02),
    }


def _write_llama(m: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": m.vocab_size,
        "hidden_size": m.hidden_size,
        "num_hidden_layers": m.num_layers,
        "num_attention_heads": m.num_heads,
        "num_key_value_heads": m.kv_heads,
        "head_dim": m.size_per_head,
        "intermediate_size": m.mlp_size,
        "hidden_act": GATES.get(m.activation, m.activation),
        "max_position_embeddings": m.max_position,
        **turned(m),
        "rms_norm_eps": m.norm_eps,
        "attention_bias": m.attention_bias,
        "mlp_bias": m.mlp_bias,
        "tie_word_embeddings": m.tied_head,
        "attention_dropout": m.attention_dropout,
        "initializer_range": m.init_std,
    }


_LAYER = "model.layers.{i}."
BODY = (
    *pair("embedding", "model.embed_tokens", bias=False),
    *pair("stack.layers.{i}.attention_norm", _LAYER + "input_layernorm", bias=False),
    *pair("stack.layers.{i}.mlp_norm", _LAYER + "post_attention_layernorm", bias=False),
    *pair("stack.final_norm", "model.norm", bias=False),
    *pair("heads.{lm}", "lm_head", bias=False),
)
"""What all of the line have."""
ATTENTION = (
    *pair("stack.layers.{i}.attention.qkv", several(_LAYER + "self_attn.", "q_proj k_proj v_proj"), form=QKV),
    *pair("stack.layers.{i}.attention.out", _LAYER + "self_attn.o_proj"),
)
MLP = (
    *pair("stack.layers.{i}.mlp.up", several(_LAYER + "mlp.", "gate_proj up_proj"), form=GATE_UP),
    *pair("stack.layers.{i}.mlp.down", _LAYER + "mlp.down_proj"),
)
LLAMA = Family(
    name="llama",
    read=_read_llama,
    write=_write_llama,
    prefix="model.",
    classes={"": "LlamaModel", "lm": "LlamaForCausalLM"},
    unused=("rotary_emb.inv_freq",),
    rows=(*BODY, *ATTENTION, *MLP),
)


# ---------------------------------------------------------------- Mistral


def windowed(c: Settings, family: str, default: int | None) -> dict[str, Any]:
    """Every layer local, or none."""
    if c.get("sliding_window", default) is None:
        return {"attention_pattern": "G", "window": 0}
    return {"attention_pattern": "L", "window": reach(c, family, "sliding_window", default or 0)}


def width_of(m: ModelConfig) -> int | None:
    """The reverse."""
    return m.window + 1 if m.local(0) else None


def _read_mistral(c: Settings) -> dict[str, Any]:
    given = {"intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 4096 * 32, **c}
    none = {"attention_bias": False, "mlp_bias": False}  # whatever the file says: the class has no biases
    return {**_read_llama(given, "mistral"), **none, **windowed(c, "mistral", 4096)}


def _write_mistral(m: ModelConfig) -> dict[str, Any]:
    settings = {k: v for k, v in _write_llama(m).items() if k not in ("attention_bias", "mlp_bias")}
    return {**settings, "sliding_window": width_of(m)}


MISTRAL = Family(
    name="mistral",
    read=_read_mistral,
    write=_write_mistral,
    prefix="model.",
    classes={"": "MistralModel", "lm": "MistralForCausalLM"},
    unused=("rotary_emb.inv_freq",),
    rows=(*BODY, *ATTENTION, *MLP),
)


# ---------------------------------------------------------------- Qwen 3

_KINDS = {"full_attention": "G", "sliding_attention": "L"}


def _read_qwen3(c: Settings) -> dict[str, Any]:
    given = {
        "vocab_size": 151936,
        "intermediate_size": 22016,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "max_position_embeddings": 32768,
        **c,
    }
    base = {**_read_llama(given, "qwen3"), "mlp_bias": False}
    depth = base["num_layers"]
    width = c.get("sliding_window", 4096) if c.get("use_sliding_window", False) else None
    first = c.get("max_window_layers", 28) if width is not None else depth
    layers = c.get("layer_types") or [list(_KINDS)[i >= first] for i in range(depth)]
    if len(layers) != depth:
        raise UserError(f"config.json: layer_types names {len(layers)} layers, but num_hidden_layers is {depth}")
    pattern = pattern_of(layers, _KINDS)
    if "L" in pattern and width is None:
        raise UserError("config.json: layer_types has sliding_attention, but use_sliding_window is off")
    return {
        **base,
        "qk_norm": True,
        "attention_pattern": pattern,
        "window": reach(c, "qwen3", "sliding_window", 4096) if "L" in pattern else 0,
    }


def _write_qwen3(m: ModelConfig) -> dict[str, Any]:
    settings = {k: v for k, v in _write_llama(m).items() if k != "mlp_bias"}
    locals_ = [m.local(i) for i in range(m.num_layers)]
    return {
        **settings,
        "use_sliding_window": any(locals_),
        "sliding_window": m.window + 1 if any(locals_) else None,
        "layer_types": [list(_KINDS)[local] for local in locals_],
    }


QWEN3 = Family(
    name="qwen3",
    read=_read_qwen3,
    write=_write_qwen3,
    prefix="model.",
    classes={"": "Qwen3Model", "lm": "Qwen3ForCausalLM"},
    unused=("rotary_emb.inv_freq",),
    rows=(
        *BODY,
        *ATTENTION,
        *MLP,
        *pair("stack.layers.{i}.attention.q_norm", _LAYER + "self_attn.q_norm", bias=False),
        *pair("stack.layers.{i}.attention.k_norm", _LAYER + "self_attn.k_norm", bias=False),
    ),
)


# ---------------------------------------------------------------- nanochat


def _read_nanochat(c: Settings) -> dict[str, Any]:
    return {
        "visibility": "causal",
        "vocab_size": c.get("vocab_size", 50304),
        "hidden_size": c.get("hidden_size", 768),
        "num_layers": c.get("num_hidden_layers", 12),
        "num_heads": c.get("num_attention_heads", 6),
        "num_kv_heads": c.get("num_key_value_heads"),
        "head_size": c.get("head_dim"),
        "intermediate_size": c.get("intermediate_size", 8192),
        "activation": activation(c.get("hidden_act", "relu2")),
        "max_position": c.get("max_position_embeddings", 2048),
        **turning(c, "nanochat"),
        "embedding_norm": True,
        "norm": "rms",
        "norm_weight": False,
        "norm_eps": c.get("rms_norm_eps", 1e-6),
        "qk_norm": True,
        "qk_norm_after": True,
        "attention_bias": c.get("attention_bias", False),
        "mlp_bias": False,
        "tied_head": c.get("tie_word_embeddings", False),
        "logit_softcap": c.get("final_logit_softcapping", 15.0),
        "dropout": 0.0,
        "attention_dropout": c.get("attention_dropout", 0.0),
        "init_std": c.get("initializer_range", 0.02),
    }


def _write_nanochat(m: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": m.vocab_size,
        "hidden_size": m.hidden_size,
        "num_hidden_layers": m.num_layers,
        "num_attention_heads": m.num_heads,
        "num_key_value_heads": m.kv_heads,
        "head_dim": m.size_per_head,
        "intermediate_size": m.mlp_size,
        "hidden_act": ACTIVATIONS[m.activation],
        "max_position_embeddings": m.max_position,
        **turned(m),
        "rms_norm_eps": m.norm_eps,
        "attention_bias": m.attention_bias,
        "tie_word_embeddings": m.tied_head,
        "final_logit_softcapping": m.logit_softcap,
        "attention_dropout": m.attention_dropout,
        "initializer_range": m.init_std,
    }


def _swapped(rows: Tensor, c: ModelConfig) -> Tensor:
    """Each head's second half before its first."""
    return rows.reshape(-1, 2, c.size_per_head // 2, *rows.shape[1:]).flip(1).reshape(rows.shape)


def _load_turned_back(parts: Sequence[Tensor], c: ModelConfig) -> Tensor:
    q, k, v = parts
    return torch.cat([_swapped(q, c), _swapped(k, c), v])


def _save_turned_back(tensor: Tensor, c: ModelConfig) -> list[Tensor]:
    q, k, v = QKV.save(tensor, c)
    return [_swapped(q, c), _swapped(k, c), v]


TURNED_BACK = Form(_load_turned_back, _save_turned_back)
"""nanochat turns queries and keys by minus the angle, which is our turn of heads whose halves are swapped."""

NANOCHAT = Family(
    name="nanochat",
    read=_read_nanochat,
    write=_write_nanochat,
    prefix="model.",
    classes={"": "NanoChatModel", "lm": "NanoChatForCausalLM"},
    rows=(
        Row("embedding.weight", ("model.embed_tokens.weight",)),
        *pair(
            "stack.layers.{i}.attention.qkv", several(_LAYER + "self_attn.", "q_proj k_proj v_proj"), form=TURNED_BACK
        ),
        *pair("stack.layers.{i}.attention.out", _LAYER + "self_attn.o_proj"),
        *pair("stack.layers.{i}.mlp.up", _LAYER + "mlp.fc1", bias=False),
        *pair("stack.layers.{i}.mlp.down", _LAYER + "mlp.fc2", bias=False),
        *pair("heads.{lm}", "lm_head", bias=False),
    ),
)
