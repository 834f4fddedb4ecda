"""Pretrain language models: any objective, any Transformer architecture, any tokenizer, on your own text.

Public names are imported when first used, so that reading text needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unmask.conversion import convert
    from unmask.description import describe
    from unmask.lm import LM
    from unmask.loading import gather, import_run, load
    from unmask.run import evaluate, pretrain, resume_run

__version__ = "0.1.0"
__all__ = ["LM", "convert", "describe", "evaluate", "gather", "import_run", "load", "pretrain", "resume_run"]

_HOME = {
    "LM": "unmask.lm",
    "convert": "unmask.conversion",
    "describe": "unmask.description",
    "evaluate": "unmask.run",
    "gather": "unmask.loading",
    "import_run": "unmask.loading",
    "load": "unmask.loading",
    "pretrain": "unmask.run",
    "resume_run": "unmask.run",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        from unmask.process import patient_threads

        patient_threads()
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'unmask' has no attribute {name!r}")
