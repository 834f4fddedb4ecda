"""Decoders in GPT's line."""

from __future__ import annotations

from typing import Any

from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model.families.base import (
    ACTIVATIONS,
    INTERLEAVED,
    QKV,
    TRANSPOSED,
    Family,
    Settings,
    activation,
    need,
    pair,
    pattern_of,
    reach,
    rope,
    several,
)

# ---------------------------------------------------------------- GPT-1

_AFN = {"gelu_tanh": "gelu", "relu": "relu", "silu": "silu"}
"""Our activation → its name there: GPT-1's files say gelu and mean the tanh approximation."""


def _read_gpt1(c: Settings) -> dict[str, Any]:
    acts = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
    act = c.get("afn", "gelu")
    if act not in acts:
        raise UserError(f"config.json: afn '{act}' is not one of {', '.join(sorted(acts))}")
    return {
        "visibility": "causal",
        "vocab_size": c.get("vocab_size", 40478),
        "hidden_size": c.get("n_embd", 768),
        "num_layers": c.get("n_layer", 12),
        "num_heads": c.get("n_head", 12),
        "activation": acts[act],
        "max_position": c.get("n_positions", 512),
        "norm_position": "post",
        "norm_eps": c.get("layer_norm_epsilon", 1e-5),
        "final_norm": False,
        "tied_head": c.get("tie_word_embeddings", True),
        "dropout": c.get("resid_pdrop", 0.1),
        "attention_dropout": c.get("attn_pdrop", 0.1),
        "init_std": c.get("initializer_range", 0.02),
    }


def _write_gpt1(m: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": m.vocab_size,
        "n_embd": m.hidden_size,
        "n_layer": m.num_layers,
        "n_head": m.num_heads,
        "afn": _AFN[m.activation],
        "n_positions": m.max_position,
        "layer_norm_epsilon": m.norm_eps,
        "tie_word_embeddings": m.tied_head,
        "resid_pdrop": m.dropout,
        "embd_pdrop": m.dropout,
        "attn_pdrop": m.attention_dropout,
        "initializer_range": m.init_std,
    }


_GPT1_LAYER = "transformer.h.{i}."
GPT1 = Family(
    name="openai-gpt",
    read=_read_gpt1,
    write=_write_gpt1,
    prefix="transformer.",
    classes={"": "OpenAIGPTModel", "lm": "OpenAIGPTLMHeadModel"},
    unused=(".attn.bias", "position_ids"),
    rows=(
        *pair("embedding", "transformer.tokens_embed", bias=False),
        *pair("stack.positions", "transformer.positions_embed", bias=False),
        *pair("stack.layers.{i}.attention.qkv", _GPT1_LAYER + "attn.c_attn", form=TRANSPOSED),
        *pair("stack.layers.{i}.attention.out", _GPT1_LAYER + "attn.c_proj", form=TRANSPOSED),
        *pair("stack.layers.{i}.attention_norm", _GPT1_LAYER + "ln_1"),
        *pair("stack.layers.{i}.mlp.up", _GPT1_LAYER + "mlp.c_fc", form=TRANSPOSED),
        *pair("stack.layers.{i}.mlp.down", _GPT1_LAYER + "mlp.c_proj", form=TRANSPOSED),
        *pair("stack.layers.{i}.mlp_norm", _GPT1_LAYER + "ln_2"),
        *pair("heads.{lm}", "lm_head", bias=False),
    ),
)


# ---------------------------------------------------------------- GPT-2


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


# ---------------------------------------------------------------- GPT-Neo: GPT-3's alternating local layers


def _layers_of_neo(c: Settings, depth: int) -> list[str]:
    """Each layer's kind, from [[[kinds], times], …] or the list that it stands for."""
    types = c.get("attention_types") or [[["global", "local"], 12]]
    layers = c.get("attention_layers") or [kind for kinds, times in types for kind in kinds * times]
    if len(layers) != depth:
        raise UserError(f"config.json: attention_types names {len(layers)} layers, but num_layers is {depth}")
    return list(layers)


def _read_neo(c: Settings) -> dict[str, Any]:
    depth = c.get("num_layers", c.get("num_hidden_layers", 24))
    pattern = pattern_of(_layers_of_neo(c, depth), {"global": "G", "local": "L"})
    return {
        "visibility": "causal",
        "vocab_size": c.get("vocab_size", 50257),
        "hidden_size": c.get("hidden_size", 2048),
        "num_layers": depth,
        "num_heads": c.get("num_heads", c.get("num_attention_heads", 16)),
        "intermediate_size": c.get("intermediate_size"),
        "activation": activation(c.get("activation_function", "gelu_new")),
        "max_position": c.get("max_position_embeddings", 2048),
        "norm_eps": c.get("layer_norm_epsilon", 1e-5),
        "attention_pattern": pattern,
        "window": reach(c, "gpt_neo", "window_size", 256) if "L" in pattern else 0,
        "attention_bias": False,
        "attention_out_bias": True,
        "attention_scale": 1.0,
        "tied_head": c.get("tie_word_embeddings", True),
        "dropout": c.get("resid_dropout", 0.0),
        "attention_dropout": c.get("attention_dropout", 0.0),
        "init_std": c.get("initializer_range", 0.02),
    }


def _write_neo(m: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": m.vocab_size,
        "hidden_size": m.hidden_size,
        "num_layers": m.num_layers,
        "num_heads": m.num_heads,
        "intermediate_size": m.mlp_size,
        "activation_function": ACTIVATIONS[m.activation],
        "max_position_embeddings": m.max_position,
        "layer_norm_epsilon": m.norm_eps,
        "attention_types": [[["local" if m.local(i) else "global"], 1] for i in range(m.num_layers)],
        "window_size": m.window + 1,
        "tie_word_embeddings": m.tied_head,
        "resid_dropout": m.dropout,
        "embed_dropout": m.dropout,
        "attention_dropout": m.attention_dropout,
        "initializer_range": m.init_std,
    }


_NEO_LAYER = "transformer.h.{i}."
_NEO_ATTENTION = _NEO_LAYER + "attn.attention."
GPT_NEO = Family(
    name="gpt_neo",
    read=_read_neo,
    write=_write_neo,
    prefix="transformer.",
    classes={"": "GPTNeoModel", "lm": "GPTNeoForCausalLM"},
    unused=(".attention.bias", ".attention.masked_bias"),
    rows=(
        *pair("embedding", "transformer.wte", bias=False),
        *pair("stack.positions", "transformer.wpe", bias=False),
        *pair("stack.layers.{i}.attention_norm", _NEO_LAYER + "ln_1"),
        *pair("stack.layers.{i}.attention.qkv", several(_NEO_ATTENTION, "q_proj k_proj v_proj"), bias=False, form=QKV),
        *pair("stack.layers.{i}.attention.out", _NEO_ATTENTION + "out_proj"),
        *pair("stack.layers.{i}.mlp_norm", _NEO_LAYER + "ln_2"),
        *pair("stack.layers.{i}.mlp.up", _NEO_LAYER + "mlp.c_fc"),
        *pair("stack.layers.{i}.mlp.down", _NEO_LAYER + "mlp.c_proj"),
        *pair("stack.final_norm", "transformer.ln_f"),
        *pair("heads.{lm}", "lm_head", bias=False),
    ),
)


# ---------------------------------------------------------------- GPT-NeoX: Pythia


def _read_neox(c: Settings) -> dict[str, Any]:
    turn, size = rope(c, "gpt_neox"), c.get("hidden_size", 6144) // c.get("num_attention_heads", 64)
    share = turn.get("partial_rotary_factor", c.get("rotary_pct", 0.25))
    if head := c.get("head_dim"):  # heads are as large as ever there: it only says of what the share is
        share = int(head * share) / size
    return {
        "visibility": "causal",
        "vocab_size": c.get("vocab_size", 50432),
        "hidden_size": c.get("hidden_size", 6144),
        "num_layers": c.get("num_hidden_layers", 44),
        "num_heads": c.get("num_attention_heads", 64),
        "intermediate_size": c.get("intermediate_size", 24576),
        "activation": activation(c.get("hidden_act", "gelu")),
        "max_position": c.get("max_position_embeddings", 2048),
        "positions": "rotary",
        "rotary_base": float(turn.get("rope_theta") or c.get("rotary_emb_base") or 10000.0),
        "rotary_share": share,
        "norm_eps": c.get("layer_norm_eps", 1e-5),
        "parallel_block": c.get("use_parallel_residual", True),
        "attention_bias": c.get("attention_bias", True),
        "tied_head": c.get("tie_word_embeddings", False),
        "dropout": c.get("hidden_dropout", 0.0),
        "attention_dropout": c.get("attention_dropout", 0.0),
        "init_std": c.get("initializer_range", 0.02),
    }


def _write_neox(m: ModelConfig) -> dict[str, Any]:
    turn = {"rope_theta": m.rotary_base, "partial_rotary_factor": m.rotary_share}
    return {
        "vocab_size": m.vocab_size,
        "hidden_size": m.hidden_size,
        "num_hidden_layers": m.num_layers,
        "num_attention_heads": m.num_heads,
        "intermediate_size": m.mlp_size,
        "hidden_act": ACTIVATIONS[m.activation],
        "max_position_embeddings": m.max_position,
        "rotary_emb_base": m.rotary_base,  # version 4 reads these two
        "rotary_pct": m.rotary_share,
        "rope_parameters": {"rope_type": "default", **turn},
        "layer_norm_eps": m.norm_eps,
        "use_parallel_residual": m.parallel_block,
        "attention_bias": m.attention_bias,
        "tie_word_embeddings": m.tied_head,
        "hidden_dropout": m.dropout,
        "attention_dropout": m.attention_dropout,
        "initializer_range": m.init_std,
    }


_NEOX_LAYER = "gpt_neox.layers.{i}."
GPT_NEOX = Family(
    name="gpt_neox",
    read=_read_neox,
    write=_write_neox,
    prefix="gpt_neox.",
    classes={"": "GPTNeoXModel", "lm": "GPTNeoXForCausalLM"},
    unused=(".attention.bias", ".attention.masked_bias", "rotary_emb.inv_freq"),
    head_names=("embed_out.",),
    renames={"lm_head.": "embed_out."},  # the name in version 5's memory
    rows=(
        *pair("embedding", "gpt_neox.embed_in", bias=False),
        *pair("stack.layers.{i}.attention_norm", _NEOX_LAYER + "input_layernorm"),
        *pair("stack.layers.{i}.attention.qkv", _NEOX_LAYER + "attention.query_key_value", form=INTERLEAVED),
        *pair("stack.layers.{i}.attention.out", _NEOX_LAYER + "attention.dense"),
        *pair("stack.layers.{i}.mlp_norm", _NEOX_LAYER + "post_attention_layernorm"),
        *pair("stack.layers.{i}.mlp.up", _NEOX_LAYER + "mlp.dense_h_to_4h"),
        *pair("stack.layers.{i}.mlp.down", _NEOX_LAYER + "mlp.dense_4h_to_h"),
        *pair("stack.final_norm", "gpt_neox.final_layer_norm"),
        *pair("heads.{lm}", "embed_out", bias=False),
    ),
)


# ---------------------------------------------------------------- BLOOM


def _read_bloom(c: Settings) -> dict[str, Any]:
    need(c, "bloom", apply_residual_connection_post_layernorm=False)
    if c.get("pretraining_tp", 1) > 1:
        need(c, "bloom", slow_but_exact=False)  # in several slices the library leaves two biases out
    return {
        "visibility": "causal",
        "vocab_size": c.get("vocab_size", 250880),
        "hidden_size": c.get("n_embed") or c.get("hidden_size", 64),
        "num_layers": c.get("n_layer", c.get("num_hidden_layers", 2)),
        "num_heads": c.get("n_head", c.get("num_attention_heads", 8)),
        "activation": "gelu_tanh",
        "max_position": c.get("seq_length", 2048),  # only as long as it was trained: ALiBi has no last position
        "positions": "alibi",
        "embedding_norm": True,
        "norm_eps": c.get("layer_norm_epsilon", 1e-5),
        "tied_head": c.get("tie_word_embeddings", True),
        "dropout": c.get("hidden_dropout", 0.0),
        "attention_dropout": c.get("attention_dropout", 0.0),
        "init_std": c.get("initializer_range", 0.02),
    }


def _write_bloom(m: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": m.vocab_size,
        "hidden_size": m.hidden_size,
        "n_layer": m.num_layers,
        "n_head": m.num_heads,
        "seq_length": m.max_position,
        "layer_norm_epsilon": m.norm_eps,
        "apply_residual_connection_post_layernorm": False,
        "slow_but_exact": False,
        "tie_word_embeddings": m.tied_head,
        "hidden_dropout": m.dropout,
        "attention_dropout": m.attention_dropout,
        "initializer_range": m.init_std,
    }


_BLOOM_LAYER = "transformer.h.{i}."
BLOOM = Family(
    name="bloom",
    read=_read_bloom,
    write=_write_bloom,
    prefix="transformer.",
    classes={"": "BloomModel", "lm": "BloomForCausalLM"},
    rows=(
        *pair("embedding", "transformer.word_embeddings", bias=False),
        *pair("stack.embedding_norm", "transformer.word_embeddings_layernorm"),
        *pair("stack.layers.{i}.attention_norm", _BLOOM_LAYER + "input_layernorm"),
        *pair("stack.layers.{i}.attention.qkv", _BLOOM_LAYER + "self_attention.query_key_value", form=INTERLEAVED),
        *pair("stack.layers.{i}.attention.out", _BLOOM_LAYER + "self_attention.dense"),
        *pair("stack.layers.{i}.mlp_norm", _BLOOM_LAYER + "post_attention_layernorm"),
        *pair("stack.layers.{i}.mlp.up", _BLOOM_LAYER + "mlp.dense_h_to_4h"),
        *pair("stack.layers.{i}.mlp.down", _BLOOM_LAYER + "mlp.dense_4h_to_h"),
        *pair("stack.final_norm", "transformer.ln_f"),
        *pair("heads.{lm}", "lm_head", bias=False),
    ),
)
