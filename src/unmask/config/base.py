"""What every group of settings is."""

from __future__ import annotations

import math
import re
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


class _Yaml(yaml.SafeLoader):
    """YAML with numbers such as 1e-3, which its version 1.1 takes for text."""


_Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_yaml(text: str) -> Any:
    """What a file of settings says; yaml.YAMLError where it is none.

    >>> read_yaml("lr: [1e-3, 2.5E4, .1e1, 7]")
    {'lr': [0.001, 25000.0, 1.0, 7]}
    """
    return yaml.load(text, _Yaml)


def read_value(text: str) -> Any:
    """What a setting's text says, as YAML; None = nothing.

    >>> [read_value(text) for text in ("7", ".2", "1e-3", "[1e-3, 2]", "true", "much", "")]
    [7, 0.2, 0.001, [0.001, 2], True, 'much', None]
    """
    try:
        return read_yaml(text) if text else None
    except yaml.YAMLError:
        return text


def finite(value: float | None) -> float | None:
    """As a record holds it: neither it nor JSON has a word for what is not finite."""
    return value if value is not None and math.isfinite(value) else None
