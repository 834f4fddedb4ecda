"""Decoders in GPT's line."""

from __future__ import annotations

from typing import Any

from unmask.config import ModelConfig
from unmask.model.families.base import ACTIVATIONS, TRANSPOSED, Family, Settings, activation, need, pair


def _read_gpt2(c: Settings) -> dict[str, Any]:
    need(c, "gpt2", scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    return {
        "visibility": "causal",
        "vocab_size": c.get("vocab_size", 50257),
        "hidden_size": c.get("n_embd", 768),
        "num_layers": c.get("n_layer", 12),
        "num_heads": c.get("n_head", 12),
        "intermediate_size": c.get("n_inner"),
        "activation": activation(c.get("activation_function", "gelu_new")),
        "max_position": c.get("n_positions", 1024),
        "norm_eps": c.get("layer_norm_epsilon", 1e-5),
        "attention_scale": None if c.get("scale_attn_weights", True) else 1.0,
        "tied_head": c.get("tie_word_embeddings", True),
        "dropout": c.get("resid_pdrop", 0.1),
        "attention_dropout": c.get("attn_pdrop", 0.1),
        "init_std": c.get("initializer_range", 0.02),
    }


def _write_gpt2(m: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": m.vocab_size,
        "n_embd": m.hidden_size,
        "n_layer": m.num_layers,
        "n_head": m.num_heads,
        "n_inner": m.mlp_size,
        "activation_function": ACTIVATIONS[m.activation],
        "n_positions": m.max_position,
        "layer_norm_epsilon": m.norm_eps,
        "scale_attn_weights": m.attention_scale is None or m.attention_scale == m.size_per_head**-0.5,
        "tie_word_embeddings": m.tied_head,
        "resid_pdrop": m.dropout,
        "embd_pdrop": m.dropout,
        "attn_pdrop": m.attention_dropout,
        "initializer_range": m.init_std,
    }


_GPT2_LAYER = "transformer.h.{i}."
GPT2 = Family(
    name="gpt2",
    read=_read_gpt2,
    write=_write_gpt2,
    prefix="transformer.",
    classes={"": "GPT2Model", "lm": "GPT2LMHeadModel"},
    unused=(".attn.bias", ".attn.masked_bias"),
    rows=(
        *pair("embedding", "transformer.wte", bias=False),
        *pair("stack.positions", "transformer.wpe", bias=False),
        *pair("stack.layers.{i}.attention_norm", _GPT2_LAYER + "ln_1"),
        *pair("stack.layers.{i}.attention.qkv", _GPT2_LAYER + "attn.c_attn", form=TRANSPOSED),
        *pair("stack.layers.{i}.attention.out", _GPT2_LAYER + "attn.c_proj", form=TRANSPOSED),
        *pair("stack.layers.{i}.mlp_norm", _GPT2_LAYER + "ln_2"),
        *pair("stack.layers.{i}.mlp.up", _GPT2_LAYER + "mlp.c_fc", form=TRANSPOSED),
        *pair("stack.layers.{i}.mlp.down", _GPT2_LAYER + "mlp.c_proj", form=TRANSPOSED),
        *pair("stack.final_norm", "transformer.ln_f"),
        *pair("heads.{lm}", "lm_head", bias=False),
    ),
)
