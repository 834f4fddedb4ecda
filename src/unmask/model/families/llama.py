"""Decoders in Llama's line."""

from __future__ import annotations

from typing import Any

from unmask.config import ModelConfig
from unmask.model.families.base import GATE_UP, GATES, QKV, Family, Settings, gate, pair, rope, several


def _read_llama(c: Settings) -> dict[str, Any]:
    turn = rope(c, "llama")
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
        "positions": "rotary",
        "rotary_base": float(turn.get("rope_theta") or c.get("rope_theta") or 10000.0),
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
        "rope_theta": m.rotary_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": m.rotary_base},
        "rms_norm_eps": m.norm_eps,
        "attention_bias": m.attention_bias,
        "mlp_bias": m.mlp_bias,
        "tie_word_embeddings": m.tied_head,
        "attention_dropout": m.attention_dropout,
        "initializer_range": m.init_std,
    }


_LLAMA_LAYER = "model.layers.{i}."
LLAMA = Family(
    name="llama",
    read=_read_llama,
    write=_write_llama,
    prefix="model.",
    classes={"": "LlamaModel", "lm": "LlamaForCausalLM"},
    unused=("rotary_emb.inv_freq",),
    rows=(
        *pair("embedding", "model.embed_tokens", bias=False),
        *pair("stack.layers.{i}.attention_norm", _LLAMA_LAYER + "input_layernorm", bias=False),
        *pair("stack.layers.{i}.attention.qkv", several(_LLAMA_LAYER + "self_attn.", "q_proj k_proj v_proj"), form=QKV),
        *pair("stack.layers.{i}.attention.out", _LLAMA_LAYER + "self_attn.o_proj"),
        *pair("stack.layers.{i}.mlp_norm", _LLAMA_LAYER + "post_attention_layernorm", bias=False),
        *pair("stack.layers.{i}.mlp.up", several(_LLAMA_LAYER + "mlp.", "gate_proj up_proj"), form=GATE_UP),
        *pair("stack.layers.{i}.mlp.down", _LLAMA_LAYER + "mlp.down_proj"),
        *pair("stack.final_norm", "model.norm", bias=False),
        *pair("heads.{lm}", "lm_head", bias=False),
    ),
)
