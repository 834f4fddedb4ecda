"""Named models: published ones by the values of their papers and checkpoints, and small modern ones to train.

A preset is settings of `ModelConfig` and nothing else. What trains it (data, optimiser, objective) is a recipe's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from unmask.batch import Head
from unmask.config import ModelConfig
from unmask.errors import UserError, nearest
from unmask.model.presets.base import Values, settled
from unmask.model.presets.decoders import DECODERS
from unmask.model.presets.encoders import ENCODERS
from unmask.model.presets.modern import SMALL
from unmask.model.presets.pairs import PAIRS

PRESETS: dict[str, Values] = {**ENCODERS, **DECODERS, **PAIRS, **SMALL}
"""Name → settings as `preset` gives them. The small modern ones leave vocab_size to the tokenizer."""

_PAIR = Head("nsp", over="classes", size=2)
_HEADS: dict[str, tuple[Head, ...]] = {
    "bert-base": (Head("lm"), _PAIR),
    "bert-large": (Head("lm"), _PAIR),
    "albert-base": (Head("lm"), Head("sop", over="classes", size=2)),
    "electra-small-discriminator": (Head("rtd", over="binary"),),
    # spans of at most 10 tokens (Joshi et al. 2020, section 3.1)
    "spanbert-base": (Head("lm"), Head("boundary", arity=2, extra=10)),
}


def preset(name: str, hidden_size: object = None) -> Values:
    """Settings of a named model, for `ModelConfig`; a copy that may be changed.

    hidden_size  another width that the settings are for: factors that follow from the width follow from it

    >>> preset("gpt2")["num_layers"]
    12
    """
    if name not in PRESETS:
        raise UserError(f"no preset '{name}' (known: {', '.join(PRESETS)}){nearest(name, PRESETS)}")
    return settled(PRESETS[name], hidden_size)


def expanded(values: Mapping[str, Any], left_open: Collection[str] = ()) -> Values:
    """Settings with those of the preset they name below them, groups setting by setting; `left_open` ones stay unset.

    >>> expanded({"preset": "deepseek-v3", "experts": {"count": 64}})["experts"]["per_token"]
    8
    """
    if "preset" not in values:
        return dict(values)
    out = preset(str(values["preset"]), values.get("hidden_size"))
    out = {k: v for k, v in out.items() if k not in left_open}
    for key, value in values.items():
        under = out.get(key)
        out[key] = {**under, **value} if isinstance(under, Mapping) and isinstance(value, Mapping) else value
    del out["preset"]
    return out


def preset_config(name: str) -> ModelConfig:
    """The model of a preset."""
    return ModelConfig.model_validate(preset(name))


def preset_heads(name: str) -> tuple[Head, ...]:
    """The heads a named model was pretrained with: one over the vocabulary, where nothing else is known."""
    return _HEADS.get(name, (Head("lm"),))
