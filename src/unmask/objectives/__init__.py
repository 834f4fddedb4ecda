"""Pretraining objectives by name. A new objective is one file and one line here."""

from __future__ import annotations

from typing import Annotated, Union

from pydantic import Field

from unmask.objectives.causal import Causal
from unmask.objectives.denoise import PrefixLM, SpanCorruption
from unmask.objectives.masked import Masked

AnyObjective = Annotated[
    Union[Causal, Masked, PrefixLM, SpanCorruption],  # noqa: UP007 - read by pydantic
    Field(discriminator="type"),
]

__all__ = ["AnyObjective", "Causal", "Masked", "PrefixLM", "SpanCorruption"]
