"""DeBERTa v2 and v3 (He et al. 2021; He et al. 2023), which share a model type.

The common library has no enhanced mask decoder; a model that was trained with one is another function there.
"""

from __future__ import annotations

from typing import Any

from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model.families.base import ACTIVATIONS, QKV, Family, Row, Settings, activation, need, pair, several


def _read_deberta(c: Settings) -> dict[str, Any]:
    d, heads = c.get("hidden_size", 1536), c.get("num_attention_heads", 24)
    need(c, "deberta-v2", conv_groups=1, embedding_size=d, attention_head_size=d // heads)
    if not c.get("relative_attention", False) or sorted(_words(c.get("pos_att_type"))) != ["c2p", "p2c"]:
        raise UserError(
            "config.json: relative_attention and pos_att_type=p2c|c2p are what is supported for deberta-v2, "
            f"not {c.get('relative_attention', False)} and {c.get('pos_att_type')}"
        )
    if c.get("position_biased_input", True):
        raise UserError(
            "config.json: position_biased_input=true is not supported for deberta-v2, whose published models have "
            "relative positions alone (a config.json that says nothing means true)"
        )
    longest, buckets = c.get("max_position_embeddings", 512), c.get("position_buckets", -1)
    farthest = c.get("max_relative_positions", -1)
    legacy = c.get("legacy", True)
    return {
        "visibility": "bidirectional",
        "vocab_size": c.get("vocab_size", 128100),
        "hidden_size": d,
        "num_layers": c.get("num_hidden_layers", 24),
        "num_heads": heads,
        "intermediate_size": c.get("intermediate_size", 6144),
        "activation": activation(c.get("hidden_act", "gelu")),
        "max_position": longest,
        "positions": "deberta",
        "relative_buckets": max(buckets, 0),
        "relative_max_distance": farthest if farthest >= 1 else longest,
        "relative_norm": "layer_norm" in _words(c.get("norm_rel_ebd", "none")),
        "relative_shared": c.get("share_att_key", False),
        "convolution": max(c.get("conv_kernel_size", 0), 0),
        "convolution_activation": activation(c.get("conv_act", "tanh")),
        "token_types": c.get("type_vocab_size", 0),
        "norm_position": "post",
        "norm_eps": c.get("layer_norm_eps", 1e-7),
        "embedding_norm": True,
        "final_norm": False,
        "head_transform": True,
        "head_bias": True,
        "tied_head": c.get("tie_word_embeddings", True) or not legacy,  # the newer head reads the embedding itself
        "dropout": c.get("hidden_dropout_prob", 0.1),
        "attention_dropout": c.get("attention_probs_dropout_prob", 0.1),
        "init_std": c.get("initializer_range", 0.02),
    }


def _words(value: str | list[str] | None) -> list[str]:
    """The entries of a list, or of a string with bars between them."""
    return [x.strip() for x in value.lower().split("|")] if isinstance(value, str) else list(value or ())


def _write_deberta(m: ModelConfig) -> dict[str, Any]:
    convolution = {"conv_kernel_size": m.convolution, "conv_act": ACTIVATIONS[m.convolution_activation]}
    return {
        "vocab_size": m.vocab_size,
        "hidden_size": m.hidden_size,
        "num_hidden_layers": m.num_layers,
        "num_attention_heads": m.num_heads,
        "intermediate_size": m.mlp_size,
        "hidden_act": ACTIVATIONS[m.activation],
        "max_position_embeddings": m.max_position,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "position_buckets": m.relative_buckets or -1,
        "max_relative_positions": m.relative_max_distance,
        "norm_rel_ebd": "layer_norm" if m.relative_norm else "none",
        "share_att_key": m.relative_shared,
        **(convolution if m.convolution else {}),
        "type_vocab_size": m.token_types,
        "layer_norm_eps": m.norm_eps,
        "legacy": True,
        "tie_word_embeddings": m.tied_head,
        "hidden_dropout_prob": m.dropout,
        "attention_probs_dropout_prob": m.attention_dropout,
        "initializer_range": m.init_std,
    }


_LAYER = "deberta.encoder.layer.{i}."
_SELF = _LAYER + "attention.self."
_RELATION = "stack.layers.{i}.attention.relation."
DEBERTA = Family(
    name="deberta-v2",
    read=_read_deberta,
    write=_write_deberta,
    prefix="deberta.",
    classes={"": "DebertaV2Model", "lm": "DebertaV2ForMaskedLM"},
    visibility="bidirectional",
    head_names=("cls.", "lm_predictions.", "mask_predictions."),
    renames={  # the head as their own code has it (legacy=false); both compute the same
        "lm_predictions.lm_head.bias": "cls.predictions.bias",
        "lm_predictions.lm_head.": "cls.predictions.transform.",
    },
    # absolute positions are the mask decoder's, mask_predictions the detector's
    unused=(
        "embeddings.position_ids",
        "embeddings.position_embeddings.weight",
        *(f"mask_predictions.{n}.{p}" for n in ("dense", "LayerNorm", "classifier") for p in ("weight", "bias")),
    ),
    rows=(
        *pair("embedding", "deberta.embeddings.word_embeddings", bias=False),
        *pair("stack.token_types", "deberta.embeddings.token_type_embeddings", bias=False),
        *pair("stack.embedding_norm", "deberta.embeddings.LayerNorm"),
        *pair("stack.relative", "deberta.encoder.rel_embeddings", bias=False),
        *pair("stack.relative.norm", "deberta.encoder.LayerNorm"),
        *pair("stack.convolution", "deberta.encoder.conv.conv"),
        *pair("stack.convolution.norm", "deberta.encoder.conv.LayerNorm"),
        *pair("stack.layers.{i}.attention.qkv", several(_SELF, "query_proj key_proj value_proj"), form=QKV),
        *pair(_RELATION + "pos_key", _SELF + "pos_key_proj"),
        *pair(_RELATION + "pos_query", _SELF + "pos_query_proj"),
        *pair("stack.layers.{i}.attention.out", _LAYER + "attention.output.dense"),
        *pair("stack.layers.{i}.attention_norm", _LAYER + "attention.output.LayerNorm"),
        *pair("stack.layers.{i}.mlp.up", _LAYER + "intermediate.dense"),
        *pair("stack.layers.{i}.mlp.down", _LAYER + "output.dense"),
        *pair("stack.layers.{i}.mlp_norm", _LAYER + "output.LayerNorm"),
        *pair("heads.{lm}.dense.dense", "cls.predictions.transform.dense"),
        *pair("heads.{lm}.dense.norm", "cls.predictions.transform.LayerNorm"),
        Row("heads.{lm}.weight", ("cls.predictions.decoder.weight",)),
        Row("heads.{lm}.bias", ("cls.predictions.decoder.bias",), also=("cls.predictions.bias",)),
    ),
)
