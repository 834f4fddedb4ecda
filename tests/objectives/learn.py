"""A tiny model learns one batch: shared by the tests that overfit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from unmask.batch import Rows
from unmask.config import ModelConfig
from unmask.data.collate import collate, pack
from unmask.loss import forward_heads
from unmask.model.transformer import Transformer
from unmask.objectives.base import Objective, outline

from .cases import VOCABULARY


def learnt(objective: Objective, rows: Rows, steps: int = 300, **more: Any) -> tuple[float, float]:
    """The last loss, and half of its floor, which it is to pass below; `more` settings of the model.

    The floor is the entropy of the targets under their own frequencies: what a model that ignores its input reaches.
    """
    shape = objective.shape(40 if objective.shape(8).source else 64)
    batch = collate(
        {"x": objective(rows, VOCABULARY)},
        {"x": objective.heads()},
        pack(objective.sizes(outline(rows)), shape),
        shape=shape,
    )
    t = batch.targets["x", "lm"]
    _, counts = np.unique(t.value[t.weight > 0], return_counts=True)
    half = -(counts / counts.sum() * np.log(counts / counts.sum())).sum() / 2
    config = ModelConfig(
        vocab_size=600,
        hidden_size=64,
        num_layers=2,
        num_source_layers=2 if batch.source is not None else 0,
        num_heads=4,
        max_position=128,
        **more,
    )
    model = Transformer(config, objective.heads(), seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98))
    batch, last = batch.map(torch.from_numpy), np.inf
    for _ in range(steps):
        term = forward_heads({"model": model}, batch)["x", "lm"]
        value = term.sum / term.norm
        last = value.item()
        if last < half:
            break
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return last, half


def sentences() -> Rows:
    """64 texts of 4 to 7 words."""
    rng = np.random.default_rng(0)
    return Rows.of([rng.integers(5, 45, n) for n in rng.integers(4, 8, 64)])
