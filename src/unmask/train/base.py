"""What the training loop is given, and where it stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from unmask.batch import Batch
from unmask.config import BudgetConfig, CheckpointConfig, TrainConfig
from unmask.train.devices import Precision
from unmask.train.worth import Asked

Batches = Callable[..., list[Batch]]
"""(step, progress in [0, 1)) → the micro-batches of that update, numpy; a pure function. Progress is step / total, 0
while the total is not known. Where an update is cut up for ranks, it is called with a third argument: the numbers of
the micro-batches to build, a range whose end is how many the update has (`data.loader.Loader`)."""


@dataclass
class Counters:
    """Where a run stands after `step` updates."""

    step: int = 0
    tokens: int = 0
    target_tokens: int = 0
    seconds: float = 0.0
    """Of updates alone: neither evaluation nor saving."""
    flops: float = 0.0
    batches_without_targets: int = 0
    skipped: int = 0
    """Updates at fault that were passed over (`faults`)."""
    skipped_in_a_row: int = 0
    checkpoint_bytes: int = 0
    """Written into checkpoints so far, but for what lives wrote that were killed later."""
    compilations: int = 0
    """Of torch.compile, over all lives of the run."""
    evaluated: int = 0
    """The last step whose evaluation was made."""
    best_step: int | None = None
    best_value: float | None = None


@dataclass(frozen=True)
class Settings:
    """What of a recipe the loop needs."""

    train: TrainConfig
    budget: BudgetConfig
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    seed: int = 0
    precision: Precision = "auto"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    compile: Asked = False
    """torch.compile each network; auto: where it pays (`worth`)."""
