"""BERT and the encoders in its line: RoBERTa, ALBERT, ELECTRA and DistilBERT."""

from __future__ import annotations

from typing import Any

from unmask.batch import Head
from unmask.config import ModelConfig
from unmask.errors import UserError
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

_SHAPE: dict[str, Any] = {
    "visibility": "bidirectional",
    "norm_position": "post",
    "embedding_norm": True,
    "final_norm": False,
    "head_transform": True,
    "head_bias": True,
}
"""What all of them are."""


def _read(c: Settings, family: str) -> dict[str, Any]:
    """The settings under the names that all but DistilBERT use."""
    need(c, family, position_embedding_type="absolute", is_decoder=False, add_cross_attention=False, pruned_heads={})
    return {
        **_SHAPE,
        "vocab_size": c.get("vocab_size", 30522),
        "hidden_size": c.get("hidden_size", 768),
        "num_layers": c.get("num_hidden_layers", 12),
        "num_heads": c.get("num_attention_heads", 12),
        "intermediate_size": c.get("intermediate_size", 3072),
        "activation": activation(c.get("hidden_act", "gelu")),
        "max_position": c.get("max_position_embeddings", 512),
        "token_types": c.get("type_vocab_size", 2),
        "norm_eps": c.get("layer_norm_eps", 1e-12),
        "tied_head": c.get("tie_word_embeddings", True),
        "dropout": c.get("hidden_dropout_prob", 0.1),
        "attention_dropout": c.get("attention_probs_dropout_prob", 0.1),
        "init_std": c.get("initializer_range", 0.02),
    }


def _write(m: ModelConfig) -> dict[str, Any]:
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


def _embeddings(theirs: str) -> tuple[Row, ...]:
    return (
        *pair("embedding", f"{theirs}.word_embeddings", bias=False),
        *pair("stack.positions", f"{theirs}.position_embeddings", bias=False),
        token_types(f"{theirs}.token_type_embeddings"),
        *pair("stack.embedding_norm", f"{theirs}.LayerNorm"),
    )


def _layers(theirs: str) -> tuple[Row, ...]:
    """Rows of the layers as BERT, RoBERTa and ELECTRA call them."""
    ours, layer = "stack.layers.{i}.", f"{theirs}.encoder.layer.{{i}}."
    return (
        *pair(ours + "attention.qkv", several(layer + "attention.self.", "query key value"), form=QKV),
        *pair(ours + "attention.out", layer + "attention.output.dense"),
        *pair(ours + "attention_norm", layer + "attention.output.LayerNorm"),
        *pair(ours + "mlp.up", layer + "intermediate.dense"),
        *pair(ours + "mlp.down", layer + "output.dense"),
        *pair(ours + "mlp_norm", layer + "output.LayerNorm"),
    )


def _head(dense: str, norm: str, table: str, bias: str = "") -> tuple[Row, ...]:
    """Rows of the vocabulary head; `bias` is a second name of the table's bias.

    That is one parameter under two names; where the head is untied, the stock class reads the table's.
    """
    return (
        *pair("heads.{lm}.dense.dense", dense),
        *pair("heads.{lm}.dense.norm", norm),
        Row("heads.{lm}.weight", (f"{table}.weight",)),
        Row("heads.{lm}.bias", (f"{table}.bias",), also=(bias,) if bias else ()),
    )


# ---------------------------------------------------------------- BERT


def _read_bert(c: Settings) -> dict[str, Any]:
    need(c, "bert", relax_projection=0, new_pos_ids=False)  # UniLM's fine-tuned models may set them
    return {**_read(c, "bert"), "pooler": "BertForPreTraining" in (c.get("architectures") or ())}


BERT = Family(
    name="bert",
    read=_read_bert,
    write=_write,
    prefix="bert.",
    classes={"": "BertModel", "lm": "BertForMaskedLM", "lm+pair": "BertForPreTraining"},
    heads={"lm": Head("lm"), "pair": Head("nsp", over="classes", size=2)},
    visibility="bidirectional",
    unused=("embeddings.position_ids",),
    rows=(
        *_embeddings("bert.embeddings"),
        *_layers("bert"),
        *_head(
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.decoder",
            "cls.predictions.bias",
        ),
        *pair("heads.{pair}.pooler", "bert.pooler.dense"),
        *pair("heads.{pair}", "cls.seq_relationship"),
    ),
)

# ---------------------------------------------------------------- RoBERTa


def _read_roberta(c: Settings) -> dict[str, Any]:
    """Positions start after the pad id, and `max_position_embeddings` counts the rows before them."""
    pad, rows = c.get("pad_token_id", 1), c.get("max_position_embeddings", 512)
    if pad is None or not 0 <= pad < rows - 1:
        raise UserError(
            f"config.json: pad_token_id={pad} is not supported for roberta with {rows} rows of positions: "
            "they start after the pad id"
        )
    return {
        **_read(c, "roberta"),
        "vocab_size": c.get("vocab_size", 30522 if c.get("model_type") == "xlm-roberta" else 50265),
        "max_position": rows - pad - 1,
        "position_offset": pad + 1,
        "head_activation": "gelu",  # whatever the layers have
    }


def _write_roberta(m: ModelConfig) -> dict[str, Any]:
    pad = max(m.position_offset - 1, 0)
    return {**_write(m), "max_position_embeddings": m.max_position + pad + 1, "pad_token_id": pad}


ROBERTA = Family(
    name="roberta",
    read=_read_roberta,
    write=_write_roberta,
    prefix="roberta.",
    classes={"": "RobertaModel", "lm": "RobertaForMaskedLM"},
    visibility="bidirectional",
    offset_from_pad=True,
    unused=("embeddings.position_ids",),
    rows=(
        *_embeddings("roberta.embeddings"),
        *_layers("roberta"),
        *_head("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"),
    ),
)

# ---------------------------------------------------------------- ALBERT


def _read_albert(c: Settings) -> dict[str, Any]:
    need(c, "albert", inner_group_num=1)
    plain: dict[str, Any] = {  # the class's own defaults
        "vocab_size": 30000,
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    found, narrow = _read({**plain, **c}, "albert"), c.get("embedding_size", 128)
    if narrow == found["hidden_size"]:
        raise UserError(
            f"config.json: embedding_size={narrow} is not supported for albert with hidden_size={narrow}: "
            "it keeps a projection between them, which is there only where they differ"
        )
    return {
        **found,
        "embedding_size": narrow,
        "distinct_layers": c.get("num_hidden_groups", 1),
        "pooler": "AlbertForPreTraining" in (c.get("architectures") or ()),
    }


def _write_albert(m: ModelConfig) -> dict[str, Any]:
    groups = m.depths(m.num_layers)[-1] + 1
    return {**_write(m), "embedding_size": m.table_size, "num_hidden_groups": groups, "inner_group_num": 1}


_ALBERT_LAYER = "albert.encoder.albert_layer_groups.{i}.albert_layers.0."
ALBERT = Family(
    name="albert",
    read=_read_albert,
    write=_write_albert,
    prefix="albert.",
    classes={"": "AlbertModel", "lm": "AlbertForMaskedLM", "lm+pair": "AlbertForPreTraining"},
    heads={"lm": Head("lm"), "pair": Head("sop", over="classes", size=2)},
    visibility="bidirectional",
    head_names=("predictions.", "sop_classifier."),
    unused=("embeddings.position_ids",),
    rows=(
        *_embeddings("albert.embeddings"),
        *pair("stack.widen", "albert.encoder.embedding_hidden_mapping_in"),
        *pair("stack.layers.{i}.attention.qkv", several(_ALBERT_LAYER + "attention.", "query key value"), form=QKV),
        *pair("stack.layers.{i}.attention.out", _ALBERT_LAYER + "attention.dense"),
        *pair("stack.layers.{i}.attention_norm", _ALBERT_LAYER + "attention.LayerNorm"),
        *pair("stack.layers.{i}.mlp.up", _ALBERT_LAYER + "ffn"),
        *pair("stack.layers.{i}.mlp.down", _ALBERT_LAYER + "ffn_output"),
        *pair("stack.layers.{i}.mlp_norm", _ALBERT_LAYER + "full_layer_layer_norm"),
        *_head("predictions.dense", "predictions.LayerNorm", "predictions.decoder", "predictions.bias"),
        *pair("heads.{pair}.pooler", "albert.pooler"),
        *pair("heads.{pair}", "sop_classifier.classifier"),
    ),
)

# ---------------------------------------------------------------- ELECTRA


def _read_electra(c: Settings) -> dict[str, Any]:
    plain = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
    return {
        **_read({**plain, **c}, "electra"),
        "embedding_size": c.get("embedding_size", 128),
        "head_activation": "gelu",  # of the generator, whatever the layers have
        "detector_transform": True,
    }


ELECTRA = Family(
    name="electra",
    read=_read_electra,
    write=lambda m: {**_write(m), "embedding_size": m.table_size},
    prefix="electra.",
    classes={"": "ElectraModel", "lm": "ElectraForMaskedLM", "detect": "ElectraForPreTraining"},
    heads={"lm": Head("lm"), "detect": Head("rtd", over="binary")},
    visibility="bidirectional",
    head_names=("generator_", "discriminator_"),
    unused=("embeddings.position_ids",),
    rows=(
        *_embeddings("electra.embeddings"),
        *pair("stack.widen", "electra.embeddings_project"),
        *_layers("electra"),
        *_head("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head"),
        *pair("heads.{detect}.pooler", "discriminator_predictions.dense"),
        *pair("heads.{detect}", "discriminator_predictions.dense_prediction"),
    ),
)

# ---------------------------------------------------------------- DistilBERT


def _read_distilbert(c: Settings) -> dict[str, Any]:
    """`sinusoidal_pos_embds` says how the table of positions starts: it lies in the file like a learned one."""
    need(c, "distilbert", pruned_heads={})
    return {
        **_SHAPE,
        "vocab_size": c.get("vocab_size", 30522),
        "hidden_size": c.get("dim", 768),
        "num_layers": c.get("n_layers", 6),
        "num_heads": c.get("n_heads", 12),
        "intermediate_size": c.get("hidden_dim", 3072),
        "activation": activation(c.get("activation", "gelu")),
        "max_position": c.get("max_position_embeddings", 512),
        "norm_eps": 1e-12,
        "tied_head": c.get("tie_word_embeddings", True),
        "dropout": c.get("dropout", 0.1),
        "attention_dropout": c.get("attention_dropout", 0.1),
        "init_std": c.get("initializer_range", 0.02),
    }


def _write_distilbert(m: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": m.vocab_size,
        "dim": m.hidden_size,
        "n_layers": m.num_layers,
        "n_heads": m.num_heads,
        "hidden_dim": m.mlp_size,
        "activation": ACTIVATIONS[m.activation],
        "max_position_embeddings": m.max_position,
        "sinusoidal_pos_embds": False,
        "tie_word_embeddings": m.tied_head,
        "dropout": m.dropout,
        "attention_dropout": m.attention_dropout,
        "initializer_range": m.init_std,
    }


_DISTIL, _DISTIL_LAYER = "distilbert.embeddings.", "distilbert.transformer.layer.{i}."
DISTILBERT = Family(
    name="distilbert",
    read=_read_distilbert,
    write=_write_distilbert,
    prefix="distilbert.",
    classes={"": "DistilBertModel", "lm": "DistilBertForMaskedLM"},
    visibility="bidirectional",
    head_names=("vocab_",),
    unused=("embeddings.position_ids",),
    rows=(
        *pair("embedding", _DISTIL + "word_embeddings", bias=False),
        *pair("stack.positions", _DISTIL + "position_embeddings", bias=False),
        *pair("stack.embedding_norm", _DISTIL + "LayerNorm"),
        *pair("stack.layers.{i}.attention.qkv", several(_DISTIL_LAYER + "attention.", "q_lin k_lin v_lin"), form=QKV),
        *pair("stack.layers.{i}.attention.out", _DISTIL_LAYER + "attention.out_lin"),
        *pair("stack.layers.{i}.attention_norm", _DISTIL_LAYER + "sa_layer_norm"),
        *pair("stack.layers.{i}.mlp.up", _DISTIL_LAYER + "ffn.lin1"),
        *pair("stack.layers.{i}.mlp.down", _DISTIL_LAYER + "ffn.lin2"),
        *pair("stack.layers.{i}.mlp_norm", _DISTIL_LAYER + "output_layer_norm"),
        *_head("vocab_transform", "vocab_layer_norm", "vocab_projector"),
    ),
)
