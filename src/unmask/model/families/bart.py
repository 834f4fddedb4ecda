"""Encoder-decoders in the line of the 2017 Transformer: BART, mBART and Marian."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model.families.base import (
    ACTIVATIONS,
    KV,
    QKV,
    ROW,
    Family,
    Row,
    Settings,
    activation,
    need,
    pair,
    several,
)

OFFSET = 2
"""fairseq's position tables begin with two rows that no position uses."""


_SIZES = {"layers": 12, "attention_heads": 16, "ffn_dim": 4096}
"""The library's defaults for either stack."""


def _read(c: Settings, family: str) -> dict[str, Any]:
    sizes = {f"{side}_{k}": n for side in ("encoder", "decoder") for k, n in _SIZES.items()}
    c = {**sizes, **c}
    d, heads, width = c.get("d_model", 1024), c["encoder_attention_heads"], c["encoder_ffn_dim"]
    need(c, family, decoder_attention_heads=heads, decoder_ffn_dim=width, is_decoder=False)
    need(c, family, tie_word_embeddings=True)  # untied, the library parts the two stacks' tables as well
    return {
        "visibility": "causal",
        "vocab_size": c.get("vocab_size", 50265),
        "hidden_size": d,
        "num_source_layers": c["encoder_layers"],
        "num_layers": c["decoder_layers"],
        "num_heads": heads,
        "intermediate_size": width,
        "activation": activation(c.get("activation_function", "gelu")),
        "max_position": c.get("max_position_embeddings", 1024),
        "embedding_scale": d**0.5 if c.get("scale_embedding", False) else 1.0,
        "dropout": c.get("dropout", 0.1),
        "attention_dropout": c.get("attention_dropout", 0.0),
        "init_std": c.get("init_std", 0.02),
    }


def _read_bart(c: Settings) -> dict[str, Any]:
    post = {"norm_position": "post", "embedding_norm": True, "final_norm": False, "position_offset": OFFSET}
    return _read(c, "bart") | post


def _read_mbart(c: Settings) -> dict[str, Any]:
    pre = {"norm_position": "pre", "embedding_norm": True, "final_norm": True, "position_offset": OFFSET}
    return _read(c, "mbart") | pre


def _read_marian(c: Settings) -> dict[str, Any]:
    size = c.get("vocab_size", 58101)
    need(c, "marian", share_encoder_decoder_embeddings=True)
    if c.get("decoder_vocab_size") not in (None, size):
        raise UserError(f"config.json: decoder_vocab_size={c['decoder_vocab_size']} is not supported, only {size}")
    post = {"norm_position": "post", "final_norm": False, "positions": "sinusoidal"}
    return _read({"vocab_size": size, **c}, "marian") | post


def _write(m: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": m.vocab_size,
        "d_model": m.hidden_size,
        "encoder_layers": m.num_source_layers,
        "decoder_layers": m.num_layers,
        "encoder_attention_heads": m.num_heads,
        "decoder_attention_heads": m.num_heads,
        "encoder_ffn_dim": m.mlp_size,
        "decoder_ffn_dim": m.mlp_size,
        "activation_function": ACTIVATIONS[m.activation],
        "max_position_embeddings": m.max_position,
        "scale_embedding": m.embedding_scale != 1.0,
        "tie_word_embeddings": m.tied_head,
        "dropout": m.dropout,
        "attention_dropout": m.attention_dropout,
        "activation_dropout": 0.0,
        "init_std": m.init_std,
        "is_encoder_decoder": True,
        "forced_eos_token_id": None,
    }


def _write_marian(m: ModelConfig) -> dict[str, Any]:
    shared = {"share_encoder_decoder_embeddings": True, "decoder_vocab_size": m.vocab_size}
    return _write(m) | shared


def _stack(ours: str, theirs: str) -> Iterator[Row]:
    layer, block = f"{ours}.layers.{{i}}.", f"{theirs}.layers.{{i}}."
    yield from pair(layer + "attention.qkv", several(block + "self_attn.", "q_proj k_proj v_proj"), form=QKV)
    yield from pair(layer + "attention.out", block + "self_attn.out_proj")
    yield from pair(layer + "attention_norm", block + "self_attn_layer_norm")
    yield from pair(layer + "mlp.up", block + "fc1")
    yield from pair(layer + "mlp.down", block + "fc2")
    yield from pair(layer + "mlp_norm", block + "final_layer_norm")
    yield from pair(f"{ours}.positions", f"{theirs}.embed_positions", bias=False)
    yield from pair(f"{ours}.embedding_norm", f"{theirs}.layernorm_embedding")
    yield from pair(f"{ours}.final_norm", f"{theirs}.layer_norm")


def _head_bias(config: ModelConfig, tensor: Callable[[str], Tensor | None]) -> dict[str, Any]:
    """final_logits_bias is a row of zeros in all but a few files: then there is no bias to train."""
    bias = tensor("final_logits_bias")
    return {"head_bias": bias is not None and bool(bias.any())}


_CROSS = "model.decoder.layers.{i}.encoder_attn"
_COPIES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
_ROWS = (
    Row("embedding.weight", ("model.shared.weight",), also=_COPIES),
    *_stack("source", "model.encoder"),
    *_stack("stack", "model.decoder"),
    *pair("stack.layers.{i}.cross.q", f"{_CROSS}.q_proj"),
    *pair("stack.layers.{i}.cross.kv", several(f"{_CROSS}.", "k_proj v_proj"), form=KV),
    *pair("stack.layers.{i}.cross.out", f"{_CROSS}.out_proj"),
    *pair("stack.layers.{i}.cross_norm", f"{_CROSS}_layer_norm"),
    *pair("heads.{lm}", "lm_head", bias=False),
    Row("heads.{lm}.bias", ("final_logits_bias",), form=ROW, zero=lambda c: (c.vocab_size,)),
)


def _family(name: str, stock: str, read: Callable[[Settings], dict[str, Any]]) -> Family:
    lm = f"{stock}MTModel" if stock == "Marian" else f"{stock}ForConditionalGeneration"
    return Family(
        name=name,
        read=read,
        write=_write_marian if stock == "Marian" else _write,
        prefix="model.",
        classes={"": f"{stock}Model", "lm": lm},
        rows=_ROWS,
        two_stacks=True,
        unused=("final_logits_bias", *(("embed_positions.weight",) if stock == "Marian" else ())),
        head_names=("lm_head.", "final_logits_bias"),
        decide=_head_bias,
        told=("head_bias",),
    )


BART = _family("bart", "Bart", _read_bart)
MBART = _family("mbart", "MBart", _read_mbart)
MARIAN = _family("marian", "Marian", _read_marian)
