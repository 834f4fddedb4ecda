"""How a model is trained, for how long, and when it is written down."""

from __future__ import annotations

from itertools import accumulate
from typing import Literal

from pydantic import Field, model_validator

from unmask.config.base import Strict


class StageConfig(Strict):
    """A part of a run with a context or a batch size of its own; what is not given is the recipe's."""

    share: float = Field(gt=0, le=1)
    """Of the run's updates."""
    context: int | None = Field(None, ge=4)
    """At most the recipe's; short rows first are sequence-length warm-up."""
    target_context: int | None = Field(None, ge=1)
    batch_size: int | None = Field(None, ge=1)
    """Small batches first are batch-size warm-up."""


class TrainConfig(Strict):
    """How parameters move."""

    batch_size: int = Field(32, ge=1)
    """Rows of `context` tokens in an update, over all micro-batches (packed: about this many)."""
    grad_accumulation: int = Field(1, ge=1)
    """Micro-batches an update is built from."""
    activation_checkpointing: bool = False
    """Layers keep their input alone and are computed again in the backward pass: less memory, about a third more
    FLOPs, the same numbers."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """muon: Muon on hidden matrices; tables, tied, 1-D and head parameters stay with AdamW."""
    learning_rate: float = Field(1e-3, gt=0)
    """Peak rate of AdamW's parameters."""
    muon_learning_rate: float = Field(0.02, gt=0)
    """Peak rate of Muon's matrices."""
    muon_momentum: float = Field(0.95, ge=0, lt=1)
    weight_decay: float = Field(0.01, ge=0)
    """Decoupled; matrices and tables only."""
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.98, ge=0, lt=1)
    adam_eps: float = Field(1e-8, gt=0)
    clip_norm: float = Field(1.0, ge=0)
    """Largest global gradient norm; 0 = no clipping."""
    at_fault: Literal["stop", "skip"] = "stop"
    """What becomes of an update whose loss or gradient norm is not finite, or whose norm passes `skip_above`: the run
    stops before using it, or goes on without it (weights stay, its number passes; ten in a row stop the run)."""
    skip_above: float = Field(0.0, ge=0)
    """Gradient norm, before clipping, from which on an update is at fault; 0 = none is."""
    schedule: Literal["constant", "linear", "cosine", "wsd"] = "linear"
    """linear and cosine fall from the peak to `final_lr`; wsd holds, then falls linearly over `decay_fraction`."""
    warmup_steps: int = Field(100, ge=0)
    decay_fraction: float = Field(0.4, ge=0, le=1)
    """Share of the run that wsd spends falling."""
    final_lr: float = Field(0.0, ge=0, le=1)
    """Last rate as a share of the peak."""
    stages: tuple[StageConfig, ...] = ()
    """Stages of the run, one after the other; none = one, of the recipe's context and batch size. The learning rate
    goes by the update alone."""

    @model_validator(mode="after")
    def _whole(self) -> TrainConfig:
        if self.stages and abs((total := sum(stage.share for stage in self.stages)) - 1) > 1e-6:
            raise ValueError(f"the shares of stages make {total:g}, and must make 1, the whole run")
        return self

    def begins(self, total: int) -> list[int]:
        """The first update of every stage in a run of `total`.

        >>> TrainConfig(stages=({"share": 0.7}, {"share": 0.3})).begins(9), TrainConfig().begins(9)
        ([0, 6], [0])
        """
        return [0, *(round(total * share) for share in accumulate(stage.share for stage in self.stages[:-1]))]


class BudgetConfig(Strict):
    """How long to train; exactly one is given."""

    steps: int | None = Field(None, ge=1)
    tokens: float | None = Field(None, gt=0)
    """Processed tokens, source and stream, without padding."""
    target_tokens: float | None = Field(None, gt=0)
    flops: float | None = Field(None, gt=0)
    """Training FLOPs by formula."""
    minutes: float | None = Field(None, gt=0)
    """Minutes of training steps; the step count is fixed after a calibration and written down."""

    @model_validator(mode="after")
    def _one(self) -> BudgetConfig:
        given = [k for k, v in self.model_dump().items() if v is not None]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of budget.steps, tokens, target_tokens, flops, minutes (given: {given or 'none'})"
            )
        return self


class CheckpointConfig(Strict):
    """When the run is written down."""

    every: int = Field(0, ge=0)
    """Steps between checkpoints; 0 = powers of two, then every 1,000."""
    keep: int = Field(2, ge=1)
    """How many of the newest stay besides the powers of two and the best."""
    only_best: bool = False
    """No schedule: a checkpoint where the held-out loss (`evaluation.every`) is the best so far, one at the end and one
    when the run is stopped. A run that is killed goes on from the best."""
    at: tuple[int, ...] = ()
    """Updates whose checkpoints stay, in the place of `every`: all but the newest `keep` of them weights alone."""
    sharded: bool = True
    """With parallel=fsdp every rank writes the rows that it holds; false: rank 0 gathers all in its main memory and
    writes two files. Either is read by any number of ranks."""
    background: bool = False
    """Copy to main memory what a checkpoint holds, and write it while training goes on."""

    @model_validator(mode="after")
    def _one_rule(self) -> CheckpointConfig:
        if list(self.at) != sorted(set(self.at)) or any(step < 1 for step in self.at):
            raise ValueError(f"checkpoint.at={list(self.at)} must be numbers of updates from 1 on that ascend")
        if self.at and self.every:
            raise ValueError(f"checkpoint.at stands in the place of checkpoint.every={self.every}: give one of them")
        if self.only_best and (self.at or self.every):
            raise ValueError("checkpoint.only_best stands in the place of checkpoint.every and .at: drop them")
        return self
