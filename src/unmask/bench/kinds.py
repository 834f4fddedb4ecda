"""The shapes of the training-step rows: four layers of width 256, one of each of the peer's families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.batch import Batch, Examples, Head, Targets, causal, full, starts
from unmask.bench.steps import LENGTH, ROWS, VOCABULARY, Kind, row
from unmask.data.collate import collate

WIDTH, LAYERS, HEADS = 256, 4, 4
SOURCE, TARGET = 114, 29
"""T5's: 15 % of 128 tokens in spans of mean length 3, with sentinels and the end."""

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
}
"""Under the names that most families have."""
ENCODER = {
    **SHAPE,
    "intermediate_size": 4 * WIDTH,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
"""BERT's and ELECTRA's."""

# ---------------------------------------------------------------- tokens and targets


def _long(a: np.ndarray) -> Tensor:
    return torch.from_numpy(a.astype(np.int64))


def _masked_theirs(b: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    return {"input_ids": _long(b["tokens"]), "labels": _long(np.where(b["asked"], b["tokens"], -100))}


def _masked(b: Mapping[str, np.ndarray], head: Head) -> Batch:
    flat, at = b["tokens"].reshape(-1), np.flatnonzero(b["asked"])
    targets = Targets.at(at, flat[at].astype(np.int64))
    return collate({"text": Examples(full(flat, _rows(LENGTH)), {head.name: targets})}, {"text": [head]})


def _rows(length: int) -> np.ndarray:
    return starts([length] * ROWS)


def _next_theirs(b: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    return {"input_ids": _long(b["tokens"]), "labels": _long(b["tokens"])}


def _next(b: Mapping[str, np.ndarray], head: Head) -> Batch:
    flat = b["tokens"].reshape(-1)
    at = np.flatnonzero(np.arange(flat.size) % LENGTH != LENGTH - 1)
    targets = Targets.at(at, flat[at + 1].astype(np.int64))
    return collate({"text": Examples(causal(flat, _rows(LENGTH)), {head.name: targets})}, {"text": [head]})


def _span_theirs(b: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    return {"input_ids": _long(b["tokens"][:, :SOURCE]), "labels": _long(b["tokens"][:, :TARGET])}


def _span(b: Mapping[str, np.ndarray], head: Head) -> Batch:
    value = b["tokens"][:, :TARGET]
    read = np.concatenate([np.zeros((ROWS, 1), np.int32), value[:, :-1]], 1)  # T5 begins with its padding token
    examples = Examples(
        causal(read.reshape(-1), _rows(TARGET)),
        {head.name: Targets.at(np.arange(value.size), value.reshape(-1).astype(np.int64))},
        full(b["tokens"][:, :SOURCE].reshape(-1), _rows(SOURCE)),
    )
    return collate({"text": examples}, {"text": [head]})


# ---------------------------------------------------------------- the peer's models


def bert() -> Any:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(**ENCODER))


def _modernbert() -> Any:
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    marks = {"pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}
    settings = ModernBertConfig(**SHAPE, intermediate_size=2 * WIDTH, sparse_prediction=True, **marks)
    return ModernBertForMaskedLM(settings)


def _gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS}
    return GPT2LMHeadModel(GPT2Config(**shape, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**SHAPE, intermediate_size=WIDTH * 8 // 3))


def t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCABULARY,
            d_model=WIDTH,
            d_kv=WIDTH // HEADS,
            d_ff=4 * WIDTH,
            num_layers=LAYERS,
            num_heads=HEADS,
            decoder_start_token_id=0,
            dropout_rate=0.0,
        )
    )


KINDS = (
    row("bert", "masked LM step, BERT's shape", "BertForMaskedLM", 4.0, Kind(bert, _masked_theirs, _masked)),
    row(
        "modernbert",
        "masked LM step, ModernBERT's shape",
        "ModernBertForMaskedLM, sparse_prediction",
        3.0,
        Kind(_modernbert, _masked_theirs, _masked),
    ),
    row("gpt2", "causal LM step, GPT-2's shape", "GPT2LMHeadModel", 2.0, Kind(_gpt2, _next_theirs, _next)),
    row("llama", "causal LM step, Llama's shape", "LlamaForCausalLM", 2.0, Kind(llama, _next_theirs, _next)),
    row(
        "t5",
        "T5's span corruption step",
        "T5ForConditionalGeneration",
        2.0,
        Kind(t5, _span_theirs, _span, ROWS * (SOURCE + TARGET)),
    ),
)
