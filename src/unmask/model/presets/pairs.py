"""Published encoder–decoders."""

from __future__ import annotations

from unmask.model.presets.base import BASE, BERT, DROP, LARGE, PLAIN, POST, RMS, OfWidth, Values

_BART: Values = {
    **BASE,
    **POST,
    **DROP,
    "family": "bart",
    "vocab_size": 50265,
    "num_layers": 6,
    "num_source_layers": 6,
    "max_position": 1024,
    "position_offset": 2,
    "embedding_norm": True,
}
_T5: Values = {
    **PLAIN,
    **RMS,
    **DROP,
    "family": "t5",
    "vocab_size": 32128,
    "positions": "t5",
    "attention_scale": 1.0,
    "head_size": 64,
    "activation": "relu",
}
_T5_BASE: Values = {**_T5, **BASE, "num_source_layers": 12}
_T5_11: Values = {"activation": "geglu_tanh", "tied_head": False}  # and no factor in front of the head

PAIRS: dict[str, Values] = {
    # Vaswani et al. 2017, table 3 (base) and section 3.4: one table for source, target and output
    "transformer-2017-base": {
        **POST,
        "family": "marian",
        "vocab_size": 37000,
        "hidden_size": 512,
        "num_layers": 6,
        "num_source_layers": 6,
        "num_heads": 8,
        "intermediate_size": 2048,
        "max_position": 512,
        "positions": "sinusoidal",
        "embedding_scale": OfWidth(0.5),
        "activation": "relu",
        "dropout": 0.1,
    },
    # Lewis et al. 2020, section 2.1
    "bart-base": _BART,
    # Liu et al. 2020, section 2.2: _BART large, normalised before each part and at the end
    "mbart-large": {
        **_BART,
        **LARGE,
        "family": "mbart",
        "vocab_size": 250027,
        "num_layers": 12,
        "num_source_layers": 12,
        "norm_position": "pre",
        "final_norm": True,
        "embedding_scale": OfWidth(0.5),
        "attention_dropout": 0.0,
    },
    # Raffel et al. 2020, section 3.1.1 and 3.7; the checkpoints' tied heads are scaled by hidden_size ** -0.5
    "t5-small": {**_T5, "hidden_size": 512, "num_layers": 6, "num_source_layers": 6, "num_heads": 8}
    | {"intermediate_size": 2048, "head_scale": OfWidth(-0.5)},
    "t5-base": {**_T5_BASE, "head_scale": OfWidth(-0.5)},
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
        "family": "unmask",  # the stock class has a capacity in tokens, not the paper's factor
        "head_scale": OfWidth(-0.5),
        "experts": {
            "count": 8,
            "per_token": 1,
            "pattern": "DE",
            "normalise": False,
            "capacity_factor": 1.25,
            "balance_loss": 0.01,
        },
    },
    # Zhang et al. 2025: both stacks are Gemma 2's 2B. Its window of 4096 counts the token itself in the decoder only
    "t5gemma-2b-2b": {
        **PLAIN,
        **RMS,
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
        "source_window": 4096,
        "source_table": True,
        "norm_position": "both",
        "embedding_scale": OfWidth(0.5),
        "attention_softcap": 50.0,
        "logit_softcap": 30.0,
    },
    # Song et al. 2019, section 4.1, in XLM's layer (Conneau and Lample 2019): two languages as token types
    "mass-base": {
        **POST,
        **DROP,
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
    "bert2bert-base": {**BERT, "family": "unmask", "visibility": "causal", "num_source_layers": 12},
}
