"""Denominators over ranks: two processes of gloo with 3 and 97 targets against one process with 100.

Norms are added up over the ranks before the backward pass and gradients in it. Runs of many updates: `test_many_ranks`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rankwork
import torch
import toy
from torch import nn

from unmask.batch import Batch, Head
from unmask.config import BudgetConfig, ModelConfig, TrainConfig
from unmask.loss import announced, forward_heads
from unmask.model.transformer import Transformer
from unmask.train.base import Settings
from unmask.train.ranks import Ranks, session
from unmask.train.totals import totals_of
from unmask.train.trainer import Trainer

ROWS, TARGETS, CLIP = 17, (3, 97), 0.05
Result = dict[str, Any]


def batches(rank: int, micro: int) -> list[Batch]:
    """A rank's rows, cut into micro-batches; its targets stand in the first of its rows."""
    tokens = np.random.default_rng(rank).integers(0, toy.VOCABULARY, (ROWS, toy.LENGTH + 1))
    weight = (np.arange(ROWS * toy.LENGTH) < TARGETS[rank]).astype(np.float32).reshape(ROWS, toy.LENGTH)
    return [toy.part(tokens[rows], weight[rows]) for rows in np.array_split(np.arange(ROWS), micro)]


def update(out: Path, micro: list[Batch], ranks: Ranks) -> Result:
    """The loss, gradients and norm of one update, as the trainer's `_update` makes them, clipped."""
    config = ModelConfig(
        vocab_size=toy.VOCABULARY, hidden_size=16, num_layers=2, num_heads=2, max_position=8, visibility="causal"
    )
    networks = nn.ModuleDict({"model": Transformer(config, (Head("lm"),), seed=1)})
    settings = Settings(TrainConfig(clip_norm=CLIP), BudgetConfig(steps=1), precision="fp32")
    t = Trainer(networks, forward_heads, lambda step, progress: micro, lambda batch: 0.0, settings, out, ranks=ranks)
    t.precision = "fp32"
    t._lay_out(None)
    totals = totals_of(micro, micro[0], lambda batch: announced(networks, batch), t.flops, ranks)
    values = t.passes(0, micro, totals.norms, totals.number, micro[0])
    whole = {n: p.grad.clone() for n, p in networks.named_parameters() if p.grad is not None}
    norm = t.optimizer.gradient_norm(CLIP)
    clipped = {n: p.grad.clone() for n, p in networks.named_parameters() if p.grad is not None}
    loss, targets = values[toy.KEY][1], totals.norms[toy.KEY]
    return {"loss": loss, "norm": norm, "whole": whole, "clipped": clipped, "targets": targets}


@pytest.mark.parametrize("micro", [1, 3])
def test_o26_ranks_with_3_and_97_targets_are_one_process_with_100(tmp_path: Path, micro: int) -> None:
    with rankwork.start([__file__, str(tmp_path), str(micro)], 2) as ranks:
        one = update(tmp_path, batches(0, 1) + batches(1, 1), Ranks())
        told = [r.communicate(timeout=240)[1] for r in ranks]
    assert [r.returncode for r in ranks] == [0, 0], told
    found = [torch.load(tmp_path / f"{r}.pt") for r in (0, 1)]
    assert one["targets"] == 100 and [f["targets"] for f in found] == [100, 100]
    for rank in found:
        assert rank["loss"] == pytest.approx(one["loss"], abs=1e-6)
        assert rank["norm"] == pytest.approx(one["norm"], rel=1e-5) and one["norm"] > 2 * CLIP
        for kind in ("whole", "clipped"):
            assert rank[kind].keys() == one[kind].keys()
            assert all(torch.allclose(g, one[kind][n], atol=1e-6, rtol=0) for n, g in rank[kind].items())
    # What others do, the mean of the ranks' means, is far from it: three targets would count as much as 97.
    means = [update(tmp_path, batches(r, 1), Ranks()) for r in (0, 1)]
    apart = [(sum(m["whole"][n] for m in means) / 2 - g).abs().max() for n, g in one["whole"].items()]
    assert max(apart) > 1e-3


def main() -> None:
    place, micro = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    with session("cpu") as ranks:
        torch.save(update(place, batches(ranks.rank, micro), ranks), place / f"{ranks.rank}.pt")


if __name__ == "__main__":
    main()
