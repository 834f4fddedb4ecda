"""Decoders with experts: Mixtral, DeepSeek-V3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unmask.config import ModelConfig
from unmask.config.model import ExpertsConfig, LatentConfig
from unmask.errors import UserError
from unmask.model.families.base import (
    GATE_UP,
    GATES,
    SAME,
    Family,
    Form,
    Row,
    Settings,
    dense,
    gate,
    need,
    pair,
    several,
    sparse,
)
from unmask.model.families.llama import ATTENTION, BODY, turned, turning, width_of, windowed


def _load_up(parts: Sequence[Tensor], c: ModelConfig) -> Tensor:
    """Gates of all experts, then what they gate, or the two already joined and stacked: one tensor."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return torch.cat([torch.stack(list(parts[:half])), torch.stack(list(parts[half:]))], 1)


def _save_up(tensor: Tensor, c: ModelConfig) -> list[Tensor]:
    return [matrix for half in tensor.chunk(2, 1) for matrix in half.unbind(0)]


def _load_down(parts: Sequence[Tensor], c: ModelConfig) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(list(parts))


EXPERTS_UP = Form(_load_up, _save_up)
EXPERTS_DOWN = Form(_load_down, lambda tensor, c: list(tensor.unbind(0)))
"""Files hold a matrix an expert; the common library's memory (and files of it) the stacks that are ours too."""


# ---------------------------------------------------------------- Mixtral


def _read_mixtral(c: Settings) -> dict[str, Any]:
    need(c, "mixtral", router_jitter_noise=0.0)
    chosen = c.get("num_experts_per_tok", 2)
    return {
        "visibility": "causal",
        "vocab_size": c.get("vocab_size", 32000),
        "hidden_size": c.get("hidden_size", 4096),
        "num_layers": c.get("num_hidden_layers", 32),
        "num_heads": c.get("num_attention_heads", 32),
        "num_kv_heads": c.get("num_key_value_heads", 8),
        "head_size": c.get("head_dim"),
        "intermediate_size": c.get("intermediate_size", 14336),
        "activation": gate(c.get("hidden_act", "silu")),
        "max_position": c.get("max_position_embeddings", 4096 * 32),
        **turning(c, "mixtral", 1e6),
        **windowed(c, "mixtral", None),
        "norm": "rms",
        "norm_eps": c.get("rms_norm_eps", 1e-5),
        "attention_bias": False,
        "mlp_bias": False,
        "experts": {
            "count": c.get("num_local_experts", c.get("num_experts", 8)),
            "per_token": chosen,
            # their loss counts every choice of a token, ours its share
            "balance_loss": c.get("router_aux_loss_coef", 0.001) * chosen,
        },
        "tied_head": c.get("tie_word_embeddings", False),
        "dropout": 0.0,
        "attention_dropout": c.get("attention_dropout", 0.0),
        "init_std": c.get("initializer_range", 0.02),
    }


def _write_mixtral(m: ModelConfig) -> dict[str, Any]:
    e = m.experts or ExpertsConfig()
    return {
        "vocab_size": m.vocab_size,
        "hidden_size": m.hidden_size,
        "num_hidden_layers": m.num_layers,
        "num_attention_heads": m.num_heads,
        "num_key_value_heads": m.kv_heads,
        "head_dim": m.size_per_head,
        "intermediate_size": m.expert_size,
        "hidden_act": GATES.get(m.activation, m.activation),
        "max_position_embeddings": m.max_position,
        **turned(m),
        "sliding_window": width_of(m),
        "rms_norm_eps": m.norm_eps,
        "num_local_experts": e.count,
        "num_experts_per_tok": e.per_token,
        "router_aux_loss_coef": e.balance_loss / e.per_token,
        "tie_word_embeddings": m.tied_head,
        "attention_dropout": m.attention_dropout,
        "initializer_range": m.init_std,
    }


_LAYER = "model.layers.{i}."
_MIXTRAL = _LAYER + "block_sparse_moe."
MIXTRAL = Family(
    name="mixtral",
    read=_read_mixtral,
    write=_write_mixtral,
    prefix="model.",
    classes={"": "MixtralModel", "lm": "MixtralForCausalLM"},
    unused=("rotary_emb.inv_freq",),
    renames={".mlp.": ".block_sparse_moe."},
    rows=(
        *BODY,
        *ATTENTION,
        *pair("stack.layers.{i}.mlp.router", _MIXTRAL + "gate", bias=False),
        Row(
            "stack.layers.{i}.mlp.up",
            several(_MIXTRAL, "experts.{e}.w1.weight experts.{e}.w3.weight"),
            EXPERTS_UP,
            also=(_MIXTRAL + "experts.gate_up_proj",),
        ),
        Row(
            "stack.layers.{i}.mlp.down",
            (_MIXTRAL + "experts.{e}.w2.weight",),
            EXPERTS_DOWN,
            also=(_MIXTRAL + "experts.down_proj",),
        ),
    ),
)


# ---------------------------------------------------------------- DeepSeek-V3


def _read_deepseek(c: Settings) -> dict[str, Any]:
    heads, latent_eps = c.get("num_attention_heads", 128), 1e-6  # the library's norms of latents know no other
    plain = {"rms_norm_eps": latent_eps, "num_key_value_heads": heads, "moe_layer_freq": 1}
    given = {"num_key_value_heads": 128, **{k: v for k, v in c.items() if v is not None}}  # null: the family's own
    if c.get("num_key_value_heads", 0) is None:
        given["num_key_value_heads"] = heads
    need(given, "deepseek_v3", **plain, scoring_func="sigmoid", topk_method="noaux_tc")
    need(c, "deepseek_v3", rope_interleave=True)  # where null is the library's false
    if not c.get("n_shared_experts", 1):
        raise UserError("config.json: n_shared_experts=0 is not supported for deepseek_v3, only 1 and more")
    return {
        "visibility": "causal",
        "vocab_size": c.get("vocab_size", 129280),
        "hidden_size": c.get("hidden_size", 7168),
        "num_layers": c.get("num_hidden_layers", 61),
        "num_heads": heads,
        "head_size": c.get("qk_nope_head_dim", 128),
        "intermediate_size": c.get("intermediate_size", 18432),
        "activation": gate(c.get("hidden_act", "silu")),
        "max_position": c.get("max_position_embeddings", 4096),
        **turning(c, "deepseek_v3"),
        "latent": {
            "query_rank": c.get("q_lora_rank", 1536),
            "key_rank": c.get("kv_lora_rank", 512),
            "rotary_size": c.get("qk_rope_head_dim", 64),
            "value_size": c.get("v_head_dim", 128),
        },
        "norm": "rms",
        "norm_eps": c.get("rms_norm_eps", latent_eps),
        "attention_bias": c.get("attention_bias", False),
        "mlp_bias": False,
        "experts": {
            "count": c.get("n_routed_experts", c.get("num_local_experts", 256)),
            "per_token": c.get("num_experts_per_tok", 8),
            "intermediate_size": c.get("moe_intermediate_size", 2048),
            "shared": c.get("n_shared_experts", 1),
            "first_dense": c.get("first_k_dense_replace", 3),
            "router": "sigmoid",
            "normalise": c.get("norm_topk_prob", True),
            "scale": c.get("routed_scaling_factor", 2.5),
            "groups": c.get("n_group", 8),
            "groups_kept": c.get("topk_group", 4),
            "balance_bias": True,
        },
        "tied_head": c.get("tie_word_embeddings", False),
        "dropout": 0.0,
        "attention_dropout": c.get("attention_dropout", 0.0),
        "init_std": c.get("initializer_range", 0.02),
    }


def _write_deepseek(m: ModelConfig) -> dict[str, Any]:
    e, latent = m.experts or ExpertsConfig(), m.latent or LatentConfig()
    return {
        "vocab_size": m.vocab_size,
        "hidden_size": m.hidden_size,
        "num_hidden_layers": m.num_layers,
        "num_attention_heads": m.num_heads,
        "num_key_value_heads": m.num_heads,
        "qk_nope_head_dim": m.size_per_head,
        "qk_rope_head_dim": latent.rotary_size,
        "v_head_dim": latent.value_size,
        "q_lora_rank": latent.query_rank,
        "kv_lora_rank": latent.key_rank,
        "intermediate_size": m.mlp_size,
        "moe_intermediate_size": m.expert_size,
        "hidden_act": GATES.get(m.activation, m.activation),
        "max_position_embeddings": m.max_position,
        **turned(m),
        "rope_interleave": True,
        "rms_norm_eps": m.norm_eps,
        "attention_bias": m.attention_bias,
        "n_routed_experts": e.count,
        "n_shared_experts": e.shared,
        "num_experts_per_tok": e.per_token,
        "first_k_dense_replace": min(e.first_dense, m.num_layers),
        "n_group": e.groups,
        "topk_group": e.groups_kept,
        "norm_topk_prob": e.normalise,
        "routed_scaling_factor": e.scale,
        "num_nextn_predict_layers": 0,
        "tie_word_embeddings": m.tied_head,
        "attention_dropout": m.attention_dropout,
        "initializer_range": m.init_std,
    }


def _pairs(rows: Tensor, back: bool) -> Tensor:
    """(…, P): pairs (2 i, 2 i + 1) there are (i, i + P / 2) here."""
    shape = (*rows.shape[:-1], *((2, -1) if back else (-1, 2)))
    return rows.reshape(shape).transpose(-1, -2).reshape(rows.shape)


def _query_pairs(tensor: Tensor, c: ModelConfig, back: bool) -> Tensor:
    """(H · (N + P), …): the last P rows of each head."""
    assert c.latent is not None
    heads = tensor.reshape(c.num_heads, -1, *tensor.shape[1:]).movedim(1, -1)  # (H, …, N + P)
    plain, last = torch.split(heads, [c.size_per_head, c.latent.rotary_size], -1)
    return torch.cat([plain, _pairs(last, back)], -1).movedim(-1, 1).flatten(0, 1)


def _key_pairs(tensor: Tensor, c: ModelConfig, back: bool) -> Tensor:
    """(R + P, …): the last P rows."""
    assert c.latent is not None
    latent, last = torch.split(tensor.movedim(0, -1), [c.latent.key_rank, c.latent.rotary_size], -1)
    return torch.cat([latent, _pairs(last, back)], -1).movedim(-1, 0)


def _paired(f: Any) -> Form:
    return Form(lambda parts, c: f(parts[0], c, False), lambda tensor, c: [f(tensor, c, True)])


QUERY_PAIRS, KEY_PAIRS = _paired(_query_pairs), _paired(_key_pairs)
HALVES = Form(lambda parts, c: torch.cat(list(parts)), lambda tensor, c: list(tensor.chunk(2)))

_ATTENTION, _MLP = _LAYER + "self_attn.", _LAYER + "mlp."
DEEPSEEK_V3 = Family(
    name="deepseek_v3",
    read=_read_deepseek,
    write=_write_deepseek,
    prefix="model.",
    classes={"": "DeepseekV3Model", "lm": "DeepseekV3ForCausalLM"},
    unused=("rotary_emb.inv_freq",),
    rows=(
        *BODY,
        *pair("stack.layers.{i}.attention.q", _ATTENTION + "q_proj", bias=False, form=QUERY_PAIRS),
        *pair("stack.layers.{i}.attention.q_a", _ATTENTION + "q_a_proj"),
        *pair("stack.layers.{i}.attention.q_a_norm", _ATTENTION + "q_a_layernorm", bias=False),
        *pair("stack.layers.{i}.attention.q_b", _ATTENTION + "q_b_proj", bias=False, form=QUERY_PAIRS),
        *pair("stack.layers.{i}.attention.kv_a", _ATTENTION + "kv_a_proj_with_mqa", form=KEY_PAIRS),
        *pair("stack.layers.{i}.attention.kv_a_norm", _ATTENTION + "kv_a_layernorm", bias=False),
        *pair("stack.layers.{i}.attention.kv_b", _ATTENTION + "kv_b_proj", bias=False),
        *pair("stack.layers.{i}.attention.out", _ATTENTION + "o_proj"),
        *pair("stack.layers.{i}.mlp.up", several(_MLP, "gate_proj up_proj"), bias=False, form=GATE_UP, when=dense),
        *pair("stack.layers.{i}.mlp.down", _MLP + "down_proj", bias=False, when=dense),
        *pair("stack.layers.{i}.mlp.router", _MLP + "gate", bias=False, when=sparse),
        Row("stack.layers.{i}.mlp.balance_bias", (_MLP + "gate.e_score_correction_bias",), SAME, when=sparse),
        Row(
            "stack.layers.{i}.mlp.up",
            several(_MLP, "experts.{e}.gate_proj.weight experts.{e}.up_proj.weight"),
            EXPERTS_UP,
            also=(_MLP + "experts.gate_up_proj",),
            when=sparse,
        ),
        Row(
            "stack.layers.{i}.mlp.down",
            (_MLP + "experts.{e}.down_proj.weight",),
            EXPERTS_DOWN,
            also=(_MLP + "experts.down_proj",),
            when=sparse,
        ),
        *pair(
            "stack.layers.{i}.mlp.shared.up",
            several(_MLP + "shared_experts.", "gate_proj up_proj"),
            bias=False,
            form=HALVES,
            when=sparse,
        ),
        *pair("stack.layers.{i}.mlp.shared.down", _MLP + "shared_experts.down_proj", bias=False, when=sparse),
    ),
)
