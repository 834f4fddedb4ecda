"""XLNet (Yang et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model.families.base import ACTIVATIONS, Family, Form, Row, Settings, activation, need, pair, several


def _read_xlnet(c: Settings) -> dict[str, Any]:
    need(c, "xlnet", attn_type="bi", untie_r=True, same_length=False, bi_data=False)
    if c.get("clamp_len", -1) > 0:
        raise UserError(f"config.json: clamp_len={c['clamp_len']} is not supported for xlnet, only -1")
    return {
        "visibility": "bidirectional",
        "vocab_size": c.get("vocab_size") or c.get("n_token", 32000),
        "hidden_size": c.get("d_model", 1024),
        "num_layers": c.get("n_layer", 24),
        "num_heads": c.get("n_head", 16),
        "head_size": c.get("d_head"),
        "intermediate_size": c.get("d_inner", 4096),
        "activation": activation(c.get("ff_activation", "gelu")),
        "positions": "xlnet",
        "query_vector": True,
        "norm_position": "post",
        "norm_eps": c.get("layer_norm_eps", 1e-12),
        "final_norm": False,
        "attention_bias": False,
        "head_bias": True,
        "tied_head": c.get("tie_word_embeddings", True),
        "dropout": c.get("dropout", 0.1),
        "attention_dropout": c.get("dropout", 0.1),
        "init_std": c.get("initializer_range", 0.02),
    }


def _write_xlnet(m: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": m.vocab_size,
        "d_model": m.hidden_size,
        "n_layer": m.num_layers,
        "n_head": m.num_heads,
        "d_head": m.size_per_head,
        "d_inner": m.mlp_size,
        "ff_activation": ACTIVATIONS[m.activation],
        "attn_type": "bi",
        "untie_r": True,
        "clamp_len": -1,
        "mem_len": None,
        "layer_norm_eps": m.norm_eps,
        "tie_word_embeddings": m.tied_head,
        "dropout": m.dropout,
        "initializer_range": m.init_std,
    }


def _join(parts: Sequence[Tensor], c: ModelConfig) -> Tensor:
    return torch.cat([p.flatten(1).t() for p in parts])


def _split(tensor: Tensor, c: ModelConfig) -> list[Tensor]:
    parts = tensor.reshape(-1, c.num_heads * c.size_per_head, c.hidden_size)
    return [p.t().reshape(c.hidden_size, c.num_heads, -1) for p in parts]


_BY_HEAD = Form(_join, _split)
"""Theirs are (d, H, D) each, ours (H · D, d), one below the other."""
_OUT = Form(lambda parts, c: parts[0].flatten(1), lambda tensor, c: [tensor.reshape(c.hidden_size, c.num_heads, -1)])
"""Theirs is (d, H, D), ours (d, H · D)."""
_VECTOR = Form(lambda parts, c: parts[0].reshape(-1), lambda tensor, c: [tensor.reshape(1, 1, -1)])

_ATTENTION = "transformer.layer.{i}.rel_attn."
_OURS = "stack.layers.{i}.attention."
XLNET = Family(
    name="xlnet",
    read=_read_xlnet,
    write=_write_xlnet,
    prefix="transformer.",
    classes={"": "XLNetModel", "lm": "XLNetLMHeadModel"},
    visibility="bidirectional",
    head_names=("lm_loss.",),
    rows=(
        *pair("embedding", "transformer.word_embedding", bias=False),
        Row("query", ("transformer.mask_emb",), _VECTOR, zero=lambda c: (c.hidden_size,)),
        Row(_OURS + "qkv.weight", several(_ATTENTION, "q k v"), _BY_HEAD),
        Row(_OURS + "out.weight", (_ATTENTION + "o",), _OUT),
        Row(_OURS + "relation.r.weight", (_ATTENTION + "r",), _BY_HEAD),
        Row(_OURS + "relation.content_bias", (_ATTENTION + "r_w_bias",)),
        Row(_OURS + "relation.position_bias", (_ATTENTION + "r_r_bias",)),
        Row(_OURS + "relation.type_bias", (_ATTENTION + "r_s_bias",)),
        Row(_OURS + "relation.types", (_ATTENTION + "seg_embed",)),
        *pair("stack.layers.{i}.attention_norm", _ATTENTION + "layer_norm"),
        *pair("stack.layers.{i}.mlp.up", "transformer.layer.{i}.ff.layer_1"),
        *pair("stack.layers.{i}.mlp.down", "transformer.layer.{i}.ff.layer_2"),
        *pair("stack.layers.{i}.mlp_norm", "transformer.layer.{i}.ff.layer_norm"),
        *pair("heads.{lm}", "lm_loss"),
    ),
)
