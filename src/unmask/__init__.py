"""Pretrain language models: any objective, any Transformer architecture, any tokenizer, on your own text.

Public names are imported when first used, so that reading text needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unmask.lm import LM, load
    from unmask.run import pretrain

__version__ = "0.1.0"
__all__ = ["LM", "load", "pretrain"]

_HOME = {"pretrain": "unmask.run", "load": "unmask.lm", "LM": "unmask.lm"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'unmask' has no attribute {name!r}")
