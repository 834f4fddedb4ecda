"""Model families of the common library: which settings a family is, and what it calls each tensor.

A family is data: `read` and `write` translate config.json, `rows` tensors; a fused one is its row's parts in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from unmask.config import ModelConfig
from unmask.errors import UserError

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One tensor of ours and the tensor or tensors of theirs that make it.

    {i} runs over the layers of the stack, {lm} and {pair} are our names of the vocabulary and the pair head.
    """

    ours: str
    theirs: tuple[str, ...]
    transpose: bool = False  # GPT-2 stores (inputs, outputs)
    also: tuple[str, ...] = ()  # further names under which files hold the same tensor
    when: Literal["always", "gated", "plain"] = "always"  # the feed-forward layer's kind
    zero: bool = False  # files may lack it: then it is zeros, which add nothing


@dataclass(frozen=True)
class Family:
    """How one family is written in the common library."""

    name: str
    read: Callable[[Settings], dict[str, Any]]  # config.json → fields of ModelConfig
    write: Callable[[ModelConfig], dict[str, Any]]  # the reverse, without token ids
    rows: tuple[Row, ...]
    prefix: str  # in front of the body's names; absent in files of the bare body
    classes: tuple[str, ...]  # of the body, the language model, and with the pair head
    unused: tuple[str, ...] = ()  # ends of names that hold no weights (buffers of older versions)
    visibility: tuple[str, ...] = ("causal",)  # the stock class's own first


def pair(ours: str, theirs: str | tuple[str, ...], bias: bool = True, **more: Any) -> tuple[Row, ...]:
    """Rows of a weight and, where there is one, its bias (which is never transposed)."""
    names = (theirs,) if isinstance(theirs, str) else theirs
    row = Row(f"{ours}.weight", tuple(f"{n}.weight" for n in names), **more)
    if not bias:
        return (row,)
    return row, replace(row, ours=f"{ours}.bias", theirs=tuple(f"{n}.bias" for n in names), transpose=False)


def several(prefix: str, names: str) -> tuple[str, ...]:
    """`several("a.", "q k") == ("a.q", "a.k")`."""
    return tuple(prefix + name for name in names.split())


_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu", "relu2": "relu2"}
_READ_ACTIVATIONS = {v: k for k, v in _ACTIVATIONS.items()} | {"gelu_pytorch_tanh": "gelu_tanh", "swish": "silu"}
_GATES = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_pytorch_tanh"}
_READ_GATES = {v: k for k, v in _GATES.items()} | {"gelu_new": "geglu_tanh", "swish": "swiglu", "gelu_python": "geglu"}


def _activation(name: str) -> str:
    if name not in _READ_ACTIVATIONS:
        raise UserError(f"config.json: activation '{name}' is not one of {', '.join(sorted(_READ_ACTIVATIONS))}")
    return _READ_ACTIVATIONS[name]


def _gate(name: str) -> str:
    if name not in _READ_GATES:
        raise UserError(f"config.json: gate activation '{name}' is not one of {', '.join(sorted(_READ_GATES))}")
    return _READ_GATES[name]


def _need(settings: Settings, family: str, **wanted: Any) -> None:
    """These settings must hold their plain value (or be absent)."""
    for name, value in wanted.items():
        if settings.get(name, value) != value:
            raise UserError(f"config.json: {name}={settings[name]} is not supported for {family}, only {value}")


# ---------------------------------------------------------------- BERT


def _read_bert(c: Settings) -> dict[str, Any]:
    _need(c, "bert", position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    return {
        "visibility": "bidirectional",
        "vocab_size": c.get("vocab_size", 30522),
        "hidden_size": c.get("hidden_size", 768),
        "num_layers": c.get("num_hidden_layers", 12),
        "num_heads": c.get("num_attention_heads", 12),
        "intermediate_size": c.get("intermediate_size", 3072),
        "activation": _activation(c.get("hidden_act", "gelu")),
        "max_position": c.get("max_position_embeddings", 512),
        "token_types": c.get("type_vocab_size", 2),
        "norm_position": "post",
        "norm_eps": c.get("layer_norm_eps", 1e-12),
        "embedding_norm": True,
        "final_norm": False,
        "head_transform": True,
        "head_bias": True,
        "pooler": "BertForPreTraining" in (c.get("architectures") or ()),
        "tied_head": c.get("tie_word_embeddings", True),
        "dropout": c.get("hidden_dropout_prob", 0.1),
        "attention_dropout": c.get("attention_probs_dropout_prob", 0.1),
        "init_std": c.get("initializer_range", 0.02),
    }


def _write_bert(m: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": m.vocab_size,
        "hidden_size": m.hidden_size,
        "num_hidden_layers": m.num_layers,
        "num_attention_heads": m.num_heads,
        "intermediate_size": m.mlp_size,
        "hidden_act": _ACTIVATIONS[m.activation],
        "max_position_embeddings": m.max_position,
        "type_vocab_size": max(m.token_types, 1),  # no types: one row of zeros
        "layer_norm_eps": m.norm_eps,
        "tie_word_embeddings": m.tied_head,
        "hidden_dropout_prob": m.dropout,
        "attention_probs_dropout_prob": m.attention_dropout,
        "initializer_range": m.init_std,
    }


_BERT_LAYER = "bert.encoder.layer.{i}."
BERT = Family(
    name="bert",
    read=_read_bert,
    write=_write_bert,
    prefix="bert.",
    classes=("BertModel", "BertForMaskedLM", "BertForPreTraining"),
    visibility=("bidirectional",),
    unused=("embeddings.position_ids",),
    rows=(
        *pair("embedding", "bert.embeddings.word_embeddings", bias=False),
        *pair("stack.positions", "bert.embeddings.position_embeddings", bias=False),
        *pair("stack.token_types", "bert.embeddings.token_type_embeddings", bias=False, zero=True),
        *pair("stack.embedding_norm", "bert.embeddings.LayerNorm"),
        *pair("stack.layers.{i}.attention.qkv", several(_BERT_LAYER + "attention.self.", "query key value")),
        *pair("stack.layers.{i}.attention.out", _BERT_LAYER + "attention.output.dense"),
        *pair("stack.layers.{i}.attention_norm", _BERT_LAYER + "attention.output.LayerNorm"),
        *pair("stack.layers.{i}.mlp.up", _BERT_LAYER + "intermediate.dense"),
        *pair("stack.layers.{i}.mlp.down", _BERT_LAYER + "output.dense"),
        *pair("stack.layers.{i}.mlp_norm", _BERT_LAYER + "output.LayerNorm"),
        *pair("heads.{lm}.dense.dense", "cls.predictions.transform.dense"),
        *pair("heads.{lm}.dense.norm", "cls.predictions.transform.LayerNorm"),
        Row("heads.{lm}.weight", ("cls.predictions.decoder.weight",)),
        # one parameter under two names; where the head is untied, the stock class reads the decoder's
        Row("heads.{lm}.bias", ("cls.predictions.decoder.bias",), also=("cls.predictions.bias",)),
        *pair("heads.{pair}.pooler", "bert.pooler.dense"),
        *pair("heads.{pair}", "cls.seq_relationship"),
    ),
)


# ---------------------------------------------------------------- GPT-2


def _read_gpt2(c: Settings) -> dict[str, Any]:
    _need(c, "gpt2", scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    return {
        "visibility": "causal",
        "vocab_size": c.get("vocab_size", 50257),
        "hidden_size": c.get("n_embd", 768),
        "num_layers": c.get("n_layer", 12),
        "num_heads": c.get("n_head", 12),
        "intermediate_size": c.get("n_inner"),
        "activation": _activation(c.get("activation_function", "gelu_new")),
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
        "activation_function": _ACTIVATIONS[m.activation],
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
    classes=("GPT2Model", "GPT2LMHeadModel"),
    visibility=("causal", "prefix"),
    unused=(".attn.bias", ".attn.masked_bias"),
    rows=(
        *pair("embedding", "transformer.wte", bias=False),
        *pair("stack.positions", "transformer.wpe", bias=False),
        *pair("stack.layers.{i}.attention_norm", _GPT2_LAYER + "ln_1"),
        *pair("stack.layers.{i}.attention.qkv", _GPT2_LAYER + "attn.c_attn", transpose=True),
        *pair("stack.layers.{i}.attention.out", _GPT2_LAYER + "attn.c_proj", transpose=True),
        *pair("stack.layers.{i}.mlp_norm", _GPT2_LAYER + "ln_2"),
        *pair("stack.layers.{i}.mlp.up", _GPT2_LAYER + "mlp.c_fc", transpose=True),
        *pair("stack.layers.{i}.mlp.down", _GPT2_LAYER + "mlp.c_proj", transpose=True),
        *pair("stack.final_norm", "transformer.ln_f"),
        *pair("heads.{lm}", "lm_head", bias=False),
    ),
)


# ---------------------------------------------------------------- Llama


def _read_llama(c: Settings) -> dict[str, Any]:
    rope: dict[str, Any] = {**(c.get("rope_scaling") or {}), **(c.get("rope_parameters") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise UserError(f"config.json: rope type '{kind}' is not supported for llama, only 'default'")
    return {
        "visibility": "causal",
        "vocab_size": c.get("vocab_size", 32000),
        "hidden_size": c.get("hidden_size", 4096),
        "num_layers": c.get("num_hidden_layers", 32),
        "num_heads": c.get("num_attention_heads", 32),
        "num_kv_heads": c.get("num_key_value_heads"),
        "head_size": c.get("head_dim"),
        "intermediate_size": c.get("intermediate_size", 11008),
        "activation": _gate(c.get("hidden_act", "silu")),
        "max_position": c.get("max_position_embeddings", 2048),
        "positions": "rotary",
        "rotary_base": float(rope.get("rope_theta") or c.get("rope_theta") or 10000.0),
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
        "hidden_act": _GATES.get(m.activation, m.activation),
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
    classes=("LlamaModel", "LlamaForCausalLM"),
    visibility=("causal", "prefix"),
    unused=("rotary_emb.inv_freq",),
    rows=(
        *pair("embedding", "model.embed_tokens", bias=False),
        *pair("stack.layers.{i}.attention_norm", _LLAMA_LAYER + "input_layernorm", bias=False),
        *pair("stack.layers.{i}.attention.qkv", several(_LLAMA_LAYER + "self_attn.", "q_proj k_proj v_proj")),
        *pair("stack.layers.{i}.attention.out", _LLAMA_LAYER + "self_attn.o_proj"),
        *pair("stack.layers.{i}.mlp_norm", _LLAMA_LAYER + "post_attention_layernorm", bias=False),
        *pair("stack.layers.{i}.mlp.up", several(_LLAMA_LAYER + "mlp.", "gate_proj up_proj")),
        *pair("stack.layers.{i}.mlp.down", _LLAMA_LAYER + "mlp.down_proj"),
        *pair("stack.final_norm", "model.norm", bias=False),
        *pair("heads.{lm}", "lm_head", bias=False),
    ),
)


# ---------------------------------------------------------------- T5


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
        "activation": "geglu_tanh" if act == "gated-gelu" else _gate(act[6:]) if gated else _activation(act),
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
        "feed_forward_proj": gates.get(m.activation) or _ACTIVATIONS[m.activation],
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
    yield from pair(layer + "attention.qkv", several(block + "0.SelfAttention.", "q k v"), bias=False)
    yield from pair(layer + "attention.out", block + "0.SelfAttention.o", bias=False)
    yield from pair(layer + "mlp_norm", f"{block}{feed_forward}.layer_norm", bias=False)
    yield from pair(layer + "mlp.up", dense + "wi", bias=False, when="plain")
    yield from pair(layer + "mlp.up", several(dense, "wi_0 wi_1"), bias=False, when="gated")
    yield from pair(layer + "mlp.down", dense + "wo", bias=False)
    yield from pair(f"{ours}.final_norm", f"{theirs}.final_layer_norm", bias=False)


_T5_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
_T5_CROSS = "decoder.block.{i}.layer.1."
T5 = Family(
    name="t5",
    read=_read_t5,
    write=_write_t5,
    prefix="",
    classes=("T5Model", "T5ForConditionalGeneration"),
    unused=("EncDecAttention.relative_attention_bias.weight",),
    rows=(
        Row("embedding.weight", ("shared.weight",), also=_T5_COPIES),
        *_t5_stack("source", "encoder", 1),
        *_t5_stack("stack", "decoder", 2),
        *pair("stack.layers.{i}.cross_norm", _T5_CROSS + "layer_norm", bias=False),
        *pair("stack.layers.{i}.cross.q", _T5_CROSS + "EncDecAttention.q", bias=False),
        *pair("stack.layers.{i}.cross.kv", several(_T5_CROSS + "EncDecAttention.", "k v"), bias=False),
        *pair("stack.layers.{i}.cross.out", _T5_CROSS + "EncDecAttention.o", bias=False),
        *pair("heads.{lm}", "lm_head", bias=False),
    ),
)

FAMILIES: dict[str, Family] = {f.name: f for f in (BERT, GPT2, LLAMA, T5)}
