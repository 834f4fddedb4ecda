"""What every group of settings is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Frozen; an unknown key is an error, and so is a number that is infinite or none (nan)."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


def flat(values: Mapping[str, Any], prefix: str = "", join: str = ".") -> dict[str, Any]:
    """Nested mappings as one, its keys joined; empty ones leave nothing.

    >>> flat({"train": {"batch_size": 8}, "seed": 0, "extra": {}})
    {'train.batch_size': 8, 'seed': 0}
    """
    out: dict[str, Any] = {}
    for key, value in values.items():
        name = prefix + key
        out |= flat(value, name + join, join) if isinstance(value, Mapping) else {name: value}
    return out


def read_value(text: str) -> Any:
    """What a setting's text says, as YAML, but for numbers that YAML 1.1 takes for text; None = nothing.

    >>> [read_value(text) for text in ("7", ".2", "1e-3", "[1, 2]", "true", "much", "")]
    [7, 0.2, 0.001, [1, 2], True, 'much', None]
    """
    try:
        value = yaml.safe_load(text) if text else None
    except yaml.YAMLError:
        value = text
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return text
    return value


def finite(value: float | None) -> float | None:
    """As a record holds it: neither it nor JSON has a word for what is not finite."""
    return value if value is not None and math.isfinite(value) else None
