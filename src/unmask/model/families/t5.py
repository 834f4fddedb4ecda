"""T5 and its line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from unmask.config import ModelConfig
from unmask.model.families.base import (
    ACTIVATIONS,
    GATE_UP,
    KV,
    QKV,
    Family,
    Row,
    Settings,
    activation,
    gate,
    gated,
    pair,
    plain,
    several,
)


def _read_t5(c: Settings) -> dict[str, Any]:
    act, d = c.get("feed_forward_proj", "relu"), c.get("d_model", 512)
    gated = act.startswith("gated-")
    tied = c.get("tie_word_embeddings", True) is not False
    scaled = c.get("scale_decoder_outputs", tied)
    return {
        "visibility": "causal",
        "vocab_size": c.get("vocab_size", 32128),
        "hidden_size": d,
        "num_source_layers": c.get("num_layers", 6),
        "num_layers": c.get("num_decoder_layers") or c.get("num_layers", 6),
        "num_heads": c.get("num_heads", 8),
        "head_size": c.get("d_kv", 64),
        "intermediate_size": c.get("d_ff", 2048),
        # transformers reads gated-gelu as the tanh approximation, whatever it is elsewhere
        "activation": "geglu_tanh" if act == "gated-gelu" else gate(act[6:]) if gated else activation(act),
        "max_position": c.get("n_positions", 512),
        "positions": "t5",
        "relative_buckets": c.get("relative_attention_num_buckets", 32),
        "relative_max_distance": c.get("relative_attention_max_distance", 128),
        "norm": "rms",
        "norm_eps": c.get("layer_norm_epsilon", 1e-6),
        "attention_bias": False,
        "mlp_bias": False,
        "attention_scale": 1.0,
        "tied_head": tied,
        "head_scale": d**-0.5 if scaled else 1.0,
        "dropout": c.get("dropout_rate", 0.1),
        "attention_dropout": c.get("dropout_rate", 0.1),
    }


def _write_t5(m: ModelConfig) -> dict[str, Any]:
    gates = {"geglu_tanh": "gated-gelu", "geglu": "gated-gelu_python", "swiglu": "gated-silu"}
    return {
        "vocab_size": m.vocab_size,
        "d_model": m.hidden_size,
        "num_layers": m.num_source_layers,
        "num_decoder_layers": m.num_layers,
        "num_heads": m.num_heads,
        "d_kv": m.size_per_head,
        "d_ff": m.mlp_size,
        "feed_forward_proj": gates.get(m.activation) or ACTIVATIONS[m.activation],
        "n_positions": m.max_position,
        "relative_attention_num_buckets": m.relative_buckets,
        "relative_attention_max_distance": m.relative_max_distance,
        "layer_norm_epsilon": m.norm_eps,
        "tie_word_embeddings": m.tied_head,
        "scale_decoder_outputs": m.head_scale != 1.0,
        "dropout_rate": m.dropout,
        "is_encoder_decoder": True,
    }


def _t5_stack(ours: str, theirs: str, feed_forward: int) -> Iterator[Row]:
    """Rows of one stack, whose feed-forward part is sub-layer number `feed_forward` of a block."""
    block, layer = f"{theirs}.block.{{i}}.layer.", f"{ours}.layers.{{i}}."
    dense = f"{block}{feed_forward}.DenseReluDense."
    yield Row(f"{ours}.score.weight", (f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",))
    yield from pair(layer + "attention_norm", block + "0.layer_norm", bias=False)
    yield from pair(layer + "attention.qkv", several(block + "0.SelfAttention.", "q k v"), bias=False, form=QKV)
    yield from pair(layer + "attention.out", block + "0.SelfAttention.o", bias=False)
    yield from pair(layer + "mlp_norm", f"{block}{feed_forward}.layer_norm", bias=False)
    yield from pair(layer + "mlp.up", dense + "wi", bias=False, when=plain)
    yield from pair(layer + "mlp.up", several(dense, "wi_0 wi_1"), bias=False, form=GATE_UP, when=gated)
    yield from pair(layer + "mlp.down", dense + "wo", bias=False)
    yield from pair(f"{ours}.final_norm", f"{theirs}.final_layer_norm", bias=False)


_T5_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
_T5_CROSS = "decoder.block.{i}.layer.1."
T5 = Family(
    name="t5",
    read=_read_t5,
    write=_write_t5,
    prefix="",
    classes={"": "T5Model", "lm": "T5ForConditionalGeneration"},
    two_stacks=True,
    unused=("EncDecAttention.relative_attention_bias.weight",),
    rows=(
        Row("embedding.weight", ("shared.weight",), also=_T5_COPIES),
        *_t5_stack("source", "encoder", 1),
        *_t5_stack("stack", "decoder", 2),
        *pair("stack.layers.{i}.cross_norm", _T5_CROSS + "layer_norm", bias=False),
        *pair("stack.layers.{i}.cross.q", _T5_CROSS + "EncDecAttention.q", bias=False),
        *pair("stack.layers.{i}.cross.kv", several(_T5_CROSS + "EncDecAttention.", "k v"), bias=False, form=KV),
        *pair("stack.layers.{i}.cross.out", _T5_CROSS + "EncDecAttention.o", bias=False),
        *pair("heads.{lm}", "lm_head", bias=False),
    ),
)
