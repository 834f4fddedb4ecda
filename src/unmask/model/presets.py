"""Named models: published ones by the values of their papers and checkpoints, and small modern ones to train.

A preset is settings of `ModelConfig` and nothing else. What trains it (data, optimiser, objective) is a recipe's.
"""

from __future__ import annotations

from typing import Any

from unmask.batch import Head
from unmask.config import ModelConfig
from unmask.errors import UserError, nearest

Values = dict[str, Any]

# ---------------------------------------------------------------- what several presets share

_BASE: Values = {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "intermediate_size": 3072}
_LARGE: Values = {"hidden_size": 1024, "num_layers": 24, "num_heads": 16, "intermediate_size": 4096}
_DROP: Values = {"dropout": 0.1, "attention_dropout": 0.1}
_POST: Values = {"norm_position": "post", "final_norm": False}
_PLAIN: Values = {"attention_bias": False, "mlp_bias": False}
_RMS: Values = {"norm": "rms", "norm_eps": 1e-6}

_BERT: Values = {
    **_BASE,
    **_POST,
    **_DROP,
    "family": "bert",
    "visibility": "bidirectional",
    "vocab_size": 30522,
    "max_position": 512,
    "token_types": 2,
    "norm_eps": 1e-12,
    "embedding_norm": True,
    "head_transform": True,
    "head_bias": True,
}
_ELECTRA: Values = {
    **_BERT,
    "family": "electra",
    "embedding_size": 128,
    "hidden_size": 256,
    "num_heads": 4,
    "intermediate_size": 1024,
}
_DEBERTA: Values = {
    **_BERT,
    "family": "deberta-v2",
    "vocab_size": 128100,
    "token_types": 0,
    "norm_eps": 1e-7,
    "positions": "deberta",
    "relative_buckets": 256,
    "relative_max_distance": 512,
    "relative_norm": True,
}
_BART: Values = {
    **_BASE,
    **_POST,
    **_DROP,
    "family": "bart",
    "vocab_size": 50265,
    "num_layers": 6,
    "num_source_layers": 6,
    "max_position": 1024,
    "position_offset": 2,
    "embedding_norm": True,
}
_T5: Values = {
    **_PLAIN,
    **_RMS,
    **_DROP,
    "family": "t5",
    "vocab_size": 32128,
    "positions": "t5",
    "attention_scale": 1.0,
    "head_size": 64,
    "activation": "relu",
}
_T5_BASE: Values = {**_T5, **_BASE, "num_source_layers": 12}
_T5_11: Values = {"activation": "geglu_tanh", "tied_head": False}  # and no factor in front of the head
_GPT: Values = {**_BASE, **_DROP, "activation": "gelu_tanh"}
_LLAMA: Values = {
    **_PLAIN,
    **_RMS,
    "family": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "num_layers": 32,
    "num_heads": 32,
    "intermediate_size": 11008,
    "positions": "rotary",
    "activation": "swiglu",
    "tied_head": False,
}

# ---------------------------------------------------------------- encoders

_ENCODERS: dict[str, Values] = {
    # Devlin et al. 2019, section 3; with next-sentence head
    "bert-base": {**_BERT, "pooler": True},
    "bert-large": {**_BERT, **_LARGE, "pooler": True},
    # Liu et al. 2019: byte-level BPE, and positions that begin after the pad id, which is 1
    "roberta-base": {
        **_BERT,
        "family": "roberta",
        "vocab_size": 50265,
        "token_types": 1,
        "norm_eps": 1e-5,
        "position_offset": 2,
    },
    # Lan et al. 2020, table 1 (version 2, which has no dropout): one layer's weights used twelve times
    "albert-base": {
        **_BERT,
        "family": "albert",
        "vocab_size": 30000,
        "embedding_size": 128,
        "distinct_layers": 1,
        "activation": "gelu_tanh",
        "pooler": True,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    },
    # Clark et al. 2020, table 6. The released small generator is as large as its discriminator;
    # the paper's is a quarter of it (hidden_size 64, num_heads 1, intermediate_size 256)
    "electra-small-generator": _ELECTRA,
    "electra-small-discriminator": {
        **_ELECTRA,
        "head_transform": False,
        "head_bias": False,
        "tied_head": False,
        "detector_transform": True,
    },
    # He et al. 2021 (v2: convolution, shared projections) and He et al. 2023 (v3)
    "deberta-v2-xlarge": {**_DEBERTA, **_LARGE, "hidden_size": 1536, "num_heads": 24, "intermediate_size": 6144}
    | {"convolution": 3},
    "deberta-v3-base": _DEBERTA,
    # Yang et al. 2019, appendix A.4
    "xlnet-base": {
        **_BASE,
        **_POST,
        **_DROP,
        "family": "xlnet",
        "visibility": "bidirectional",
        "vocab_size": 32000,
        "positions": "xlnet",
        "norm_eps": 1e-12,
        "attention_bias": False,
        "query_vector": True,
        "head_bias": True,
    },
    # Warner et al. 2024, table 4: alternating attention, window 128 = 64 to either side
    "modernbert-base": {
        **_PLAIN,
        **_BASE,
        "family": "modernbert",
        "visibility": "bidirectional",
        "vocab_size": 50368,
        "num_layers": 22,
        "intermediate_size": 1152,
        "activation": "geglu",
        "max_position": 8192,
        "positions": "rotary",
        "rotary_base": 160000.0,
        "rotary_local_base": 10000.0,
        "attention_pattern": "GLL",
        "window": 64,
        "norm_bias": False,
        "embedding_norm": True,
        "skip_first_norm": True,
        "head_transform": True,
        "head_transform_bias": False,
        "head_bias": True,
    },
    # Joshi et al. 2020: BERT without sentence pairs; cased vocabulary
    "spanbert-base": {**_BERT, "vocab_size": 28996},
    # Sanh et al. 2019: every second layer of BERT, no token types, no pooler
    "distilbert-base": {**_BERT, "family": "distilbert", "num_layers": 6, "token_types": 0},
    # Dong et al. 2019, section 2.2: the segment embedding also says which objective trains; their code has 6 rows
    "unilm-base": {**_BERT, "family": "unmask", "visibility": "prefix", "vocab_size": 28996, "token_types": 6},
    # Du et al. 2022, section 2.2: normalise before, one linear output, two tables of positions (their code: 512 + 1)
    "glm-base": {
        **_BASE,
        **_DROP,
        "visibility": "prefix",
        "vocab_size": 30522,
        "max_position": 513,
        "positions2": 513,
    },
}

# ---------------------------------------------------------------- decoders

_DECODERS: dict[str, Values] = {
    # Radford et al. 2018; normalises after the sum, as the first Transformer
    "gpt1": {**_GPT, **_POST, "family": "openai-gpt", "vocab_size": 40478, "max_position": 512},
    # Radford et al. 2019, table 2
    "gpt2": {**_GPT, "family": "gpt2", "vocab_size": 50257, "max_position": 1024},
    # Brown et al. 2020, table 2.1; the window of its local layers is unpublished: GPT-Neo's 256
    "gpt3": {
        **_GPT,
        "vocab_size": 50257,
        "hidden_size": 12288,
        "num_layers": 96,
        "num_heads": 96,
        "intermediate_size": 49152,
        "max_position": 2048,
        "attention_pattern": "GL",
        "window": 255,
    },
    # Touvron et al. 2023a, table 2; 2023b
    "llama-7b": {**_LLAMA, "max_position": 2048},
    "llama2-7b": {**_LLAMA, "max_position": 4096, "norm_eps": 1e-5},
    # Biderman et al. 2023, table 1 (GPT-NeoX's layer: Black et al. 2022)
    "pythia-160m": {
        **_BASE,
        "family": "gpt_neox",
        "vocab_size": 50304,
        "max_position": 2048,
        "positions": "rotary",
        "rotary_share": 0.25,
        "parallel_block": True,
        "tied_head": False,
    },
    # Scao et al. 2022, table 3
    "bloom-560m": {
        **_LARGE,
        "family": "bloom",
        "vocab_size": 250880,
        "max_position": 2048,
        "positions": "alibi",
        "activation": "gelu_tanh",
        "embedding_norm": True,
    },
    # Jiang et al. 2024, table 1; the coefficient is the checkpoint's
    "mixtral-8x7b": {
        **_LLAMA,
        "family": "mixtral",
        "num_kv_heads": 8,
        "intermediate_size": 14336,
        "norm_eps": 1e-5,
        "max_position": 32768,
        "rotary_base": 1e6,
        "experts": {"count": 8, "per_token": 2, "balance_loss": 0.02},
    },
    # DeepSeek-AI 2024, section 4.2; the layer that predicts a second token is not part of it
    "deepseek-v3": {
        **_LLAMA,
        "family": "deepseek_v3",
        "vocab_size": 129280,
        "hidden_size": 7168,
        "num_layers": 61,
        "num_heads": 128,
        "head_size": 128,
        "intermediate_size": 18432,
        "max_position": 4096,
        "latent": {"query_rank": 1536, "key_rank": 512, "rotary_size": 64, "value_size": 128},
        "experts": {
            "count": 256,
            "per_token": 8,
            "intermediate_size": 2048,
            "shared": 1,
            "first_dense": 3,
            "router": "sigmoid",
            "scale": 2.5,
            "groups": 8,
            "groups_kept": 4,
            "balance_bias": True,
            "balance_loss": 1e-4,
        },
    },
}

# ---------------------------------------------------------------- encoder–decoders

_PAIRS: dict[str, Values] = {
    # Vaswani et al. 2017, table 3 (base) and section 3.4: one table for source, target and output
    "transformer-2017-base": {
        **_POST,
        "family": "marian",
        "vocab_size": 37000,
        "hidden_size": 512,
        "num_layers": 6,
        "num_source_layers": 6,
        "num_heads": 8,
        "intermediate_size": 2048,
        "max_position": 512,
        "positions": "sinusoidal",
        "embedding_scale": 512**0.5,
        "activation": "relu",
        "dropout": 0.1,
    },
    # Lewis et al. 2020, section 2.1
    "bart-base": _BART,
    # Liu et al. 2020, section 2.2: BART large, normalised before each part and at the end
    "mbart-large": {
        **_BART,
        **_LARGE,
        "family": "mbart",
        "vocab_size": 250027,
        "num_layers": 12,
        "num_source_layers": 12,
        "norm_position": "pre",
        "final_norm": True,
        "embedding_scale": 32.0,
        "attention_dropout": 0.0,
    },
    # Raffel et al. 2020, section 3.1.1 and 3.7; the checkpoints' tied heads are scaled by hidden_size ** -0.5
    "t5-small": {**_T5, "hidden_size": 512, "num_layers": 6, "num_source_layers": 6, "num_heads": 8}
    | {"intermediate_size": 2048, "head_scale": 512**-0.5},
    "t5-base": {**_T5_BASE, "head_scale": 768**-0.5},
    # Shazeer 2020: gated feed-forward layers
    "t5-1.1-base": {**_T5_BASE, **_T5_11, "intermediate_size": 2048},
    # Xue et al. 2021, section 3
    "mt5-small": {
        **_T5,
        **_T5_11,
        "family": "mt5",
        "vocab_size": 250112,
        "hidden_size": 512,
        "num_layers": 8,
        "num_source_layers": 8,
        "num_heads": 6,
        "intermediate_size": 1024,
    },
    # Tay et al. 2022, section 4.1: 20B
    "ul2": {
        **_T5,
        **_T5_11,
        "hidden_size": 4096,
        "num_layers": 32,
        "num_source_layers": 32,
        "num_heads": 16,
        "head_size": 256,
        "intermediate_size": 16384,
        "activation": "swiglu",
    },
    # Fedus et al. 2021, table 9 and section 2.2: every second feed-forward layer, one expert a token
    "switch-base-8": {
        **_T5_BASE,
        "family": "switch_transformers",
        "head_scale": 768**-0.5,
        "experts": {
            "count": 8,
            "per_token": 1,
            "pattern": "DE",
            "normalise": False,
            "capacity_factor": 1.25,
            "balance_loss": 0.01,
        },
    },
    # Zhang et al. 2025: both stacks are Gemma 2's 2B
    "t5gemma-2b-2b": {
        **_PLAIN,
        **_RMS,
        "family": "t5gemma",
        "vocab_size": 256000,
        "hidden_size": 2304,
        "num_layers": 26,
        "num_source_layers": 26,
        "num_heads": 8,
        "num_kv_heads": 4,
        "head_size": 256,
        "intermediate_size": 9216,
        "activation": "geglu_tanh",
        "max_position": 8192,
        "positions": "rotary",
        "attention_pattern": "LG",
        "window": 4095,
        "norm_position": "both",
        "embedding_scale": 2304**0.5,
        "attention_scale": 256**-0.5,
        "attention_softcap": 50.0,
        "logit_softcap": 30.0,
    },
    # Song et al. 2019, section 4.1, in XLM's layer (Conneau and Lample 2019): two languages as token types
    "mass-base": {
        **_POST,
        **_DROP,
        "vocab_size": 60000,
        "hidden_size": 1024,
        "num_layers": 6,
        "num_source_layers": 6,
        "num_heads": 8,
        "intermediate_size": 4096,
        "max_position": 512,
        "token_types": 2,
        "norm_eps": 1e-12,
        "embedding_norm": True,
        "head_bias": True,
    },
    # Rothe et al. 2020, section 2: both stacks are BERT, cross-attention is new
    "bert2bert-base": {**_BERT, "family": "unmask", "visibility": "causal", "num_source_layers": 12},
}

# ---------------------------------------------------------------- small modern ones, to train

_MODERN: Values = {
    **_PLAIN,
    "positions": "rotary",
    "max_position": 1024,
    "qk_norm": True,  # Henry et al. 2020; Dehghani et al. 2023: larger learning rates stay stable
}
_SMALL: dict[str, Values] = {
    # Karpathy's nanochat and Jordan's modded-nanogpt (their records in brackets)
    "modern-decoder": {
        **_MODERN,
        "hidden_size": 512,  # 64 a layer (nanochat)
        "num_layers": 8,
        "num_heads": 4,  # of 128 (nanochat)
        "qk_norm_after": True,  # of the turned vectors (nanochat)
        "attention_scale": 0.12,  # normalised vectors of 128 numbers would give too flat a softmax [20]
        "norm": "rms",
        "norm_weight": False,  # (nanochat) [1]
        "embedding_norm": True,  # after the table, so that its spread does not matter [8]
        "activation": "relu2",  # So et al. 2021 [5]
        "zero_init_projections": True,  # Yang et al. 2021 [5]
        "value_embeddings": True,  # gated, every second layer (nanochat, 17 January) [14]
        "residual_scalars": True,  # (nanochat, 11 January: most at small sizes) [9]
        "logit_softcap": 15.0,  # Gemma 2; 15 instead of 30 [18]
        "tied_head": False,  # [8]
        "embedding_std": 0.8,  # (nanochat)
        "head_std": 0.001,  # (nanochat)
    },
    # ModernBERT's layer (Warner et al. 2024) at Ettin's 32M (Weller et al. 2025, table 1)
    "modern-encoder": {
        **_MODERN,
        "visibility": "bidirectional",
        "hidden_size": 384,
        "num_layers": 10,
        "num_heads": 6,
        "intermediate_size": 576,
        "qk_norm": False,
        "activation": "geglu",
        "rotary_base": 160000.0,
        "rotary_local_base": 10000.0,
        "attention_pattern": "GLL",
        "window": 64,
        "norm_bias": False,
        "embedding_norm": True,
        "skip_first_norm": True,
        "head_transform": True,
        "head_transform_bias": False,
        "head_bias": True,
    },
    # T5 1.1's layer (Shazeer 2020) with rotary positions, as T5Gemma (Zhang et al. 2025)
    "modern-encdec": {
        **_MODERN,
        **_RMS,
        "hidden_size": 384,
        "num_layers": 6,
        "num_source_layers": 6,
        "num_heads": 6,
        "activation": "geglu_tanh",
        "embedding_norm": True,
    },
    # Many epochs over little text (slowrun; Kim et al. 2025): gated layers and dropout, and projections that start
    # normal instead of at zero; the table is tied, as it would be a third of so small a model
    "fixed-data": {
        **_MODERN,
        **_RMS,
        "hidden_size": 384,
        "num_layers": 6,
        "num_heads": 6,
        "activation": "swiglu",
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "residual_scalars": True,
    },
}

PRESETS: dict[str, Values] = {**_ENCODERS, **_DECODERS, **_PAIRS, **_SMALL}
"""Name → settings of `ModelConfig`. The small modern ones leave vocab_size to the tokenizer."""

_PAIR = Head("nsp", over="classes", size=2)
_HEADS: dict[str, tuple[Head, ...]] = {
    "bert-base": (Head("lm"), _PAIR),
    "bert-large": (Head("lm"), _PAIR),
    "albert-base": (Head("lm"), Head("sop", over="classes", size=2)),
    "electra-small-discriminator": (Head("replaced", over="binary"),),
    # spans of at most 10 tokens (Joshi et al. 2020, section 3.1)
    "spanbert-base": (Head("lm"), Head("boundary", arity=2, extra=10)),
}


def preset(name: str) -> Values:
    """Settings of a named model, for `ModelConfig`; a copy that may be changed.

    >>> preset("gpt2")["num_layers"]
    12
    """
    if name not in PRESETS:
        raise UserError(f"no preset '{name}' (known: {', '.join(PRESETS)}){nearest(name, PRESETS)}")
    return {k: dict(v) if isinstance(v, dict) else v for k, v in PRESETS[name].items()}


def preset_config(name: str) -> ModelConfig:
    """The model of a preset."""
    return ModelConfig.model_validate(preset(name))


def preset_heads(name: str) -> tuple[Head, ...]:
    """The heads a named model was pretrained with: one over the vocabulary, where nothing else is known."""
    return _HEADS.get(name, (Head("lm"),))
