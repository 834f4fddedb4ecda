"""BERT."""

from __future__ import annotations

from typing import Any

from unmask.batch import Head
from unmask.config import ModelConfig
from unmask.model.families.base import (
    ACTIVATIONS,
    QKV,
    Family,
    Row,
    Settings,
    activation,
    need,
    pair,
    several,
    token_types,
)


def _read_bert(c: Settings) -> dict[str, Any]:
    need(c, "bert", position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    return {
        "visibility": "bidirectional",
        "vocab_size": c.get("vocab_size", 30522),
        "hidden_size": c.get("hidden_size", 768),
        "num_layers": c.get("num_hidden_layers", 12),
        "num_heads": c.get("num_attention_heads", 12),
        "intermediate_size": c.get("intermediate_size", 3072),
        "activation": activation(c.get("hidden_act", "gelu")),
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
        "hidden_act": ACTIVATIONS[m.activation],
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
    classes={"": "BertModel", "lm": "BertForMaskedLM", "lm+pair": "BertForPreTraining"},
    heads={"lm": Head("lm"), "pair": Head("nsp", over="classes", size=2)},
    visibility="bidirectional",
    unused=("embeddings.position_ids",),
    rows=(
        *pair("embedding", "bert.embeddings.word_embeddings", bias=False),
        *pair("stack.positions", "bert.embeddings.position_embeddings", bias=False),
        token_types("bert.embeddings.token_type_embeddings"),
        *pair("stack.embedding_norm", "bert.embeddings.LayerNorm"),
        *pair("stack.layers.{i}.attention.qkv", several(_BERT_LAYER + "attention.self.", "query key value"), form=QKV),
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
