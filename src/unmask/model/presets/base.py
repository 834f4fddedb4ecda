"""Settings that several presets share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Values = dict[str, Any]


@dataclass(frozen=True)
class OfWidth:
    """A factor that follows from the model's width: hidden_size ** power."""

    power: float


def settled(values: Values, width: object = None) -> Values:
    """A copy with numbers instead of `OfWidth`; `width` is the hidden_size in place of the preset's own.

    What is no width (a recipe may hold anything) is left to the validation of the settings.
    """
    d = width if isinstance(width, int) and width > 0 else values.get("hidden_size", 1)
    out = {k: d**v.power if isinstance(v, OfWidth) else v for k, v in values.items()}
    return {k: dict(v) if isinstance(v, dict) else v for k, v in out.items()}


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
