"""Each objective can be learnt: a tiny model brings 64 sentences below half of its floor.

The floor is the entropy of the targets under their own frequencies: what a model that ignores its input reaches.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unmask.batch import Rows
from unmask.config import ModelConfig
from unmask.data.collate import collate, pack
from unmask.loss import forward_heads
from unmask.model.transformer import Transformer
from unmask.objectives.base import outline

from .cases import OBJECTIVES, VOCABULARY

NAMES = [
    "causal",
    "masked",
    *(f"{objective}-{kind}" for objective in ("prefix_lm", "spans") for kind in ("encdec", "prefix", "causal")),
]


def sentences() -> Rows:
    rng = np.random.default_rng(0)
    return Rows.of([rng.integers(5, 45, n) for n in rng.integers(6, 13, 64)])


@pytest.mark.parametrize("name", NAMES)
def test_overfits_64_sentences_to_half_its_floor(name: str) -> None:
    objective = OBJECTIVES.get(name) or OBJECTIVES[f"{name}-free-final"]
    rows, shape = sentences(), objective.shape(32)
    place = pack(objective.sizes(outline(rows)), shape)
    batch = collate({"x": objective(rows, VOCABULARY)}, {"x": objective.heads()}, place, shape=shape)
    t = batch.targets["x", "lm"]
    _, counts = np.unique(t.value[t.weight > 0], return_counts=True)
    floor = -(counts / counts.sum() * np.log(counts / counts.sum())).sum()
    config = ModelConfig(
        vocab_size=110,
        hidden_size=64,
        num_layers=2,
        num_source_layers=2 if batch.source is not None else 0,
        num_heads=4,
        max_position=64,
    )
    model = Transformer(config, objective.heads(), seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98))
    batch, losses = batch.map(torch.from_numpy), []
    for _ in range(250):
        term = forward_heads({"model": model}, batch)["x", "lm"]
        value = term.sum / term.norm
        losses.append(value.item())
        if losses[-1] < floor / 2:
            break
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    assert losses[-1] < floor / 2 < floor < losses[0] + 1, (floor, losses[::10])
