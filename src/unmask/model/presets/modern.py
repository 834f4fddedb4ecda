"""Small models that use what the field learnt since, to train on a laptop or one GPU."""

from __future__ import annotations

from unmask.model.presets.base import PLAIN, RMS, Values

MODERN: Values = {
    **PLAIN,
    "positions": "rotary",
    "max_position": 1024,
    "qk_norm": True,  # Henry et al. 2020; Dehghani et al. 2023: larger learning rates stay stable
}
SMALL: dict[str, Values] = {
    # Karpathy's nanochat and Jordan's modded-nanogpt (their records in brackets)
    "modern-decoder": {
        **MODERN,
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
        **MODERN,
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
        "head_activation": "gelu",
        "head_bias": True,
    },
    # T5 1.1's layer (Shazeer 2020) with rotary positions, as T5Gemma (Zhang et al. 2025)
    "modern-encdec": {
        **MODERN,
        **RMS,
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
        **MODERN,
        **RMS,
        "hidden_size": 384,
        "num_layers": 6,
        "num_heads": 6,
        "activation": "swiglu",
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "residual_scalars": True,
    },
}
