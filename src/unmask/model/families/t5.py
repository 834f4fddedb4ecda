"""T5 1.0 and 1.1 (and UL2, which is a T5 with SwiGLU), mT5, Switch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from unmask.config import ModelConfig
from unmask.config.model import ExpertsConfig
from unmask.errors import UserError
from unmask.model.families.base import (
    ACTIVATIONS,
    EACH,
    GATE_UP,
    KV,
    QKV,
    Family,
    Row,
    Settings,
    activation,
    gate,
    gated,
    need,
    pair,
    several,
    sparse,
)


def _read_t5(c: Settings) -> dict[str, Any]:
    kind, d = c.get("feed_forward_proj", "relu"), c.get("d_model", 512)
    # the two settings that the library makes of it go before it where a file has them; gated-gelu is the tanh form
    act = c.get("dense_act_fn", "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-"))
    gated = c.get("is_gated_act", kind.startswith("gated-"))
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
        "activation": gate(act) if gated else activation(act),
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


def _read_mt5(c: Settings) -> dict[str, Any]:
    """mT5's class never scales its decoder's output, tied or not."""
    sizes = {"vocab_size": 250112, "d_ff": 1024, "num_layers": 8, "num_heads": 6, "feed_forward_proj": "gated-gelu"}
    return _read_t5({**sizes, **c, "scale_decoder_outputs": False})


def _read_switch(c: Settings) -> dict[str, Any]:
    need(c, "switch_transformers", router_ignore_padding_tokens=False, router_dtype="float32")
    c = {"d_model": 768, "num_layers": 12, "num_heads": 12, "dense_act_fn": "relu", **c, "is_gated_act": False}
    tied = c.get("tie_word_embeddings", True) is not False
    out = _read_t5({**c, "scale_decoder_outputs": tied})
    layers = {"encoder": out["num_source_layers"], "decoder": out["num_layers"]}
    steps = {k: _step(layers[k], c.get(f"num_sparse_{k}_layers", 3)) for k in layers}
    source, stream = ("".join("DE"[i % steps[k] == 1 or steps[k] == 1] for i in range(layers[k])) for k in layers)
    pattern = max(source, stream, key=len)
    if not (pattern.startswith(source) and pattern.startswith(stream)):
        raise UserError(
            f"config.json: every {steps['encoder']}th layer of the encoder but every {steps['decoder']}th "
            "of the decoder has experts; one pattern for both is supported"
        )
    if "E" in pattern:
        out["experts"] = {
            "count": c.get("num_experts", 8),
            "per_token": 1,
            "pattern": pattern,
            "router_bias": c.get("router_bias", False),
            "normalise": False,
            "capacity": c.get("expert_capacity", 64),
            "balance_loss": c.get("router_aux_loss_coef", 0.001),
            "z_loss": c.get("router_z_loss_coef", 0.001),
        }
    return out


def _step(layers: int, sparse: int) -> int:
    """Every how many-th layer has experts; a step of all layers leaves one, as in the library."""
    return layers // sparse if sparse else layers


def _write_switch(m: ModelConfig) -> dict[str, Any]:
    e = m.experts or ExpertsConfig(per_token=1)
    own = {
        "dense_act_fn": ACTIVATIONS[m.activation],
        "num_experts": e.count,
        "expert_capacity": e.capacity or 2**31 - 1,
        "router_bias": e.router_bias,
        "router_aux_loss_coef": e.balance_loss,
        "router_z_loss_coef": e.z_loss,
        "num_sparse_encoder_layers": sum(m.sparse(i) for i in range(m.num_source_layers)),
        "num_sparse_decoder_layers": sum(m.sparse(i) for i in range(m.num_layers)),
    }
    plain = {k: v for k, v in _write_t5(m).items() if k not in ("feed_forward_proj", "scale_decoder_outputs")}
    return plain | own


def _t5_stack(ours: str, theirs: str, feed_forward: int, mlp: str = "DenseReluDense") -> Iterator[Row]:
    """Rows of one stack, whose feed-forward part is sub-layer number `feed_forward` of a block."""
    block, layer = f"{theirs}.block.{{i}}.layer.", f"{ours}.layers.{{i}}."
    dense = f"{block}{feed_forward}.{mlp}."
    yield Row(f"{ours}.score.weight", (f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",))
    yield from pair(layer + "attention_norm", block + "0.layer_norm", bias=False)
    yield from pair(layer + "attention.qkv", several(block + "0.SelfAttention.", "q k v"), bias=False, form=QKV)
    yield from pair(layer + "attention.out", block + "0.SelfAttention.o", bias=False)
    yield from pair(layer + "mlp_norm", f"{block}{feed_forward}.layer_norm", bias=False)
    yield from pair(layer + "mlp.up", dense + "wi", bias=False, when=lambda c, i: not c.gated and not c.sparse(i))
    yield from pair(layer + "mlp.up", several(dense, "wi_0 wi_1"), bias=False, form=GATE_UP, when=gated)
    yield from pair(layer + "mlp.down", dense + "wo", bias=False, when=lambda c, i: not c.sparse(i))
    yield from pair(f"{ours}.final_norm", f"{theirs}.final_layer_norm", bias=False)


def _experts(ours: str, theirs: str, feed_forward: int) -> Iterator[Row]:
    """Rows of Switch's layers of experts."""
    mlp, layer = f"{theirs}.block.{{i}}.layer.{feed_forward}.mlp.", f"{ours}.layers.{{i}}.mlp."
    yield from pair(layer + "router", mlp + "router.classifier", when=sparse)
    yield Row(layer + "up", (mlp + "experts.expert_{e}.wi.weight",), form=EACH, when=sparse)
    yield Row(layer + "down", (mlp + "experts.expert_{e}.wo.weight",), form=EACH, when=sparse)


def _rows(mlp: str = "DenseReluDense") -> Iterator[Row]:
    yield Row("embedding.weight", ("shared.weight",), also=_COPIES)
    yield from _t5_stack("source", "encoder", 1, mlp)
    yield from _t5_stack("stack", "decoder", 2, mlp)
    yield from pair("stack.layers.{i}.cross_norm", _CROSS + "layer_norm", bias=False)
    yield from pair("stack.layers.{i}.cross.q", _CROSS + "EncDecAttention.q", bias=False)
    yield from pair("stack.layers.{i}.cross.kv", several(_CROSS + "EncDecAttention.", "k v"), bias=False, form=KV)
    yield from pair("stack.layers.{i}.cross.out", _CROSS + "EncDecAttention.o", bias=False)
    yield from pair("heads.{lm}", "lm_head", bias=False)


_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
_CROSS = "decoder.block.{i}.layer.1."
T5 = Family(
    name="t5",
    read=_read_t5,
    write=_write_t5,
    prefix="",
    classes={"": "T5Model", "lm": "T5ForConditionalGeneration"},
    two_stacks=True,
    unused=("EncDecAttention.relative_attention_bias.weight",),
    rows=tuple(_rows()),
)
MT5 = replace(T5, name="mt5", read=_read_mt5, classes={"": "MT5Model", "lm": "MT5ForConditionalGeneration"})
SWITCH = replace(
    T5,
    name="switch_transformers",
    read=_read_switch,
    write=_write_switch,
    classes={"": "SwitchTransformersModel", "lm": "SwitchTransformersForConditionalGeneration"},
    rows=(*_rows("mlp"), *_experts("source", "encoder", 1), *_experts("stack", "decoder", 2)),
)
