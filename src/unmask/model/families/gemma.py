"""T5Gemma: two Gemma 2 stacks with cross-attention between them (Zhang et al. 2025)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model.families.base import (
    GATE_UP,
    GATES,
    KV,
    PLUS_ONE,
    QKV,
    Family,
    Row,
    Settings,
    gate,
    need,
    pair,
    reach,
    rope,
    several,
)

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}
_SHARED = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"),
    *("hidden_activation", "rms_norm_eps", "query_pre_attn_scalar", "attn_logit_softcapping", "sliding_window"),
)
"""Settings that both stacks must have alike."""


def _read(c: Settings) -> dict[str, Any]:
    source, stream = ({**_DEFAULTS, **(c.get(name) or {})} for name in ("encoder", "decoder"))
    for name in _SHARED:
        if source[name] != stream[name]:
            raise UserError(
                f"config.json: {name} is {source[name]} in the encoder and {stream[name]} in the decoder of t5gemma; "
                "stacks of one shape are supported"
            )
    kinds = _pattern(source), _pattern(stream)
    if not (kinds[0].startswith(kinds[1]) or kinds[1].startswith(kinds[0])):
        raise UserError("config.json: layer_types differ between the stacks of t5gemma; one pattern is supported")
    need(stream, "t5gemma", attention_bias=False)
    base = _base(source, stream)
    d, pattern = stream["hidden_size"], max(kinds, key=len)
    window = reach(stream, "t5gemma", "sliding_window", 4096) if "L" in pattern else 0
    return {
        "visibility": "causal",
        "vocab_size": stream["vocab_size"],
        "hidden_size": d,
        "num_source_layers": source["num_hidden_layers"],
        "num_layers": stream["num_hidden_layers"],
        "num_heads": stream["num_attention_heads"],
        "num_kv_heads": stream["num_key_value_heads"],
        "head_size": stream["head_dim"],
        "intermediate_size": stream["intermediate_size"],
        "activation": gate(stream["hidden_activation"]),
        "max_position": stream["max_position_embeddings"],
        "positions": "rotary",
        "rotary_base": base,
        "source_table": True,
        "embedding_scale": d**0.5,
        "norm": "rms",
        "norm_position": "both",
        "norm_eps": stream["rms_norm_eps"],
        "attention_pattern": pattern,
        "window": window,
        "source_window": window + 1,  # the encoder's sees one more than the decoder's
        "attention_bias": False,
        "attention_scale": stream["query_pre_attn_scalar"] ** -0.5,
        "attention_softcap": stream["attn_logit_softcapping"],
        "mlp_bias": False,
        "tied_head": c.get("tie_word_embeddings", True),
        "logit_softcap": stream["final_logit_softcapping"],
        "dropout": c.get("dropout_rate", 0.0),
        "attention_dropout": c.get("attention_dropout", 0.0),
        "init_std": stream["initializer_range"],
    }


def _base(*stacks: Settings) -> float:
    """The rotary base that both stacks have."""
    one, two = (float(rope(x, "t5gemma").get("rope_theta") or x.get("rope_theta") or 1e4) for x in stacks)
    if one != two:
        raise UserError(
            f"config.json: rope_theta is {one} in the encoder and {two} in the decoder of t5gemma, not one base"
        )
    return one


def _pattern(stack: Settings) -> str:
    kinds = stack.get("layer_types") or ["sliding_attention", "full_attention"] * stack["num_hidden_layers"]
    return "".join("L" if k == "sliding_attention" else "G" for k in kinds[: stack["num_hidden_layers"]])


def _write(m: ModelConfig) -> dict[str, Any]:
    def stack(depth: int) -> dict[str, Any]:
        return {
            "vocab_size": m.vocab_size,
            "hidden_size": m.hidden_size,
            "intermediate_size": m.mlp_size,
            "num_hidden_layers": depth,
            "num_attention_heads": m.num_heads,
            "num_key_value_heads": m.kv_heads,
            "head_dim": m.size_per_head,
            "hidden_activation": GATES[m.activation],
            "max_position_embeddings": m.max_position,
            "initializer_range": m.init_std,
            "rms_norm_eps": m.norm_eps,
            "attention_bias": False,
            "query_pre_attn_scalar": round(m.scale**-2),
            "sliding_window": m.window + 1,
            "layer_types": ["sliding_attention" if m.local(i) else "full_attention" for i in range(depth)],
            "final_logit_softcapping": m.logit_softcap,
            "attn_logit_softcapping": m.attention_softcap,
            "rope_parameters": {"rope_type": "default", "rope_theta": m.rotary_base},
        }

    return {
        "encoder": stack(m.num_source_layers),
        "decoder": stack(m.num_layers),
        "vocab_size": m.vocab_size,
        "tie_word_embeddings": m.tied_head,
        "dropout_rate": m.dropout,
        "attention_dropout": m.attention_dropout,
        "is_encoder_decoder": True,
    }


def _stack(ours: str, theirs: str) -> Iterator[Row]:
    layer, block = f"{ours}.layers.{{i}}.", f"{theirs}.layers.{{i}}."
    yield from pair(layer + "attention.qkv", several(block + "self_attn.", "q_proj k_proj v_proj"), False, QKV)
    yield from pair(layer + "attention.out", block + "self_attn.o_proj", bias=False)
    yield from pair(layer + "mlp.up", several(block + "mlp.", "gate_proj up_proj"), False, GATE_UP)
    yield from pair(layer + "mlp.down", block + "mlp.down_proj", bias=False)
    for norm, name in (("attention", "self_attn"), ("mlp", "feedforward")):
        yield from pair(f"{layer}{norm}_norm", f"{block}pre_{name}_layernorm", False, PLUS_ONE)
        yield from pair(f"{layer}{norm}_after_norm", f"{block}post_{name}_layernorm", False, PLUS_ONE)
    yield from pair(f"{ours}.final_norm", f"{theirs}.norm", False, PLUS_ONE)


_BLOCK = "model.decoder.layers.{i}."
T5GEMMA = Family(
    name="t5gemma",
    read=_read,
    write=_write,
    prefix="model.",
    classes={"": "T5GemmaModel", "lm": "T5GemmaForConditionalGeneration"},
    two_stacks=True,
    rows=(
        *pair("embedding", "model.decoder.embed_tokens", bias=False),
        *pair("source_embedding", "model.encoder.embed_tokens", bias=False),
        *_stack("source", "model.encoder"),
        *_stack("stack", "model.decoder"),
        *pair("stack.layers.{i}.cross.q", _BLOCK + "cross_attn.q_proj", bias=False),
        *pair("stack.layers.{i}.cross.kv", several(_BLOCK + "cross_attn.", "k_proj v_proj"), False, KV),
        *pair("stack.layers.{i}.cross.out", _BLOCK + "cross_attn.o_proj", bias=False),
        *pair("stack.layers.{i}.cross_norm", _BLOCK + "pre_cross_attn_layernorm", False, PLUS_ONE),
        *pair("stack.layers.{i}.cross_after_norm", _BLOCK + "post_cross_attn_layernorm", False, PLUS_ONE),
        *pair("heads.{lm}", "lm_head.out_proj", bias=False),
    ),
)
