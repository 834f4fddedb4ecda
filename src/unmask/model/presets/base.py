"""Settings that several presets share."""

from __future__ import annotations

from typing import Any

Values = dict[str, Any]

BASE: Values = {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "intermediate_size": 3072}
LARGE: Values = {"hidden_size": 1024, "num_layers": 24, "num_heads": 16, "intermediate_size": 4096}
DROP: Values = {"dropout": 0.1, "attention_dropout": 0.1}
POST: Values = {"norm_position": "post", "final_norm": False}
PLAIN: Values = {"attention_bias": False, "mlp_bias": False}
RMS: Values = {"norm": "rms", "norm_eps": 1e-6}
BERT: Values = {
    **BASE,
    **POST,
    **DROP,
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
