"""Typed settings. Every field is documented where it stands; contradictions name their field.

This package is a leaf: it knows nothing of data, models or training. An objective's settings live with
the objective (`unmask.objectives`), and a whole recipe in `unmask.recipe`.
"""

from unmask.config.base import Strict
from unmask.config.model import Activation, ModelConfig, Visibility
from unmask.config.text import CorpusConfig, FilterConfig, Kind, SourceConfig, Split, TokenizerConfig
from unmask.config.train import BudgetConfig, CheckpointConfig, StageConfig, TrainConfig

__all__ = [
    "Activation",
    "BudgetConfig",
    "CheckpointConfig",
    "CorpusConfig",
    "FilterConfig",
    "Kind",
    "ModelConfig",
    "SourceConfig",
    "Split",
    "StageConfig",
    "Strict",
    "TokenizerConfig",
    "TrainConfig",
    "Visibility",
]
