"""Denominators over ranks: two processes of gloo with 3 and 97 targets against one process with 100.

The trainer has no ranks yet. What ranks need of it is here: an update's divisors are given to the backward pass from
outside and terms are sums, so that ranks add up their norms before it and their gradients after it, and nothing else.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toy
from torch import nn

from unmask.batch import Batch, Head
from unmask.config import BudgetConfig, ModelConfig, TrainConfig
from unmask.loss import announced, forward_heads
from unmask.model.transformer import Transformer
from unmask.train.trainer import Settings, Trainer, summed

ROWS, TARGETS, CLIP = 17, (3, 97), 0.05
Result = dict[str, Any]


def batches(rank: int, micro: int) -> list[Batch]:
    """A rank's rows, cut into micro-batches; its targets stand in the first of its rows."""
    tokens = np.random.default_rng(rank).integers(0, toy.VOCABULARY, (ROWS, toy.LENGTH + 1))
    weight = (np.arange(ROWS * toy.LENGTH) < TARGETS[rank]).astype(np.float32).reshape(ROWS, toy.LENGTH)
    return [toy.part(tokens[rows], weight[rows]) for rows in np.array_split(np.arange(ROWS), micro)]


def update(out: Path, micro: list[Batch], ranks: int = 1) -> Result:
    """The loss, gradients and norm of one update, as the trainer's `_update` makes them, clipped; over `ranks`."""
    config = ModelConfig(
        vocab_size=toy.VOCABULARY, hidden_size=16, num_layers=2, num_heads=2, max_position=8, visibility="causal"
    )
    networks = nn.ModuleDict({"model": Transformer(config, (Head("lm"),), seed=1)})
    settings = Settings(TrainConfig(clip_norm=CLIP), BudgetConfig(steps=1), precision="fp32")
    t = Trainer(networks, forward_heads, lambda step, progress: micro, lambda batch: 0.0, settings, out)
    t.precision = "fp32"
    norms = everywhere(summed(announced(networks, batch) for batch in micro), ranks)
    values = t._backward(0, micro, norms)
    loss = everywhere({key: value for key, (_, value) in values.items()}, ranks)[toy.KEY]
    if ranks > 1:
        for p in networks.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            torch.distributed.all_reduce(p.grad)
    whole = {n: p.grad.clone() for n, p in networks.named_parameters() if p.grad is not None}
    norm = t.optimizer.gradient_norm(CLIP)
    clipped = {n: p.grad.clone() for n, p in networks.named_parameters() if p.grad is not None}
    return {"loss": loss, "norm": norm, "whole": whole, "clipped": clipped, "targets": norms[toy.KEY]}


def everywhere(values: dict[Any, float], ranks: int) -> dict[Any, float]:
    """Each value summed over the ranks."""
    if ranks == 1:
        return values
    total = torch.tensor([values[key] for key in sorted(values)], dtype=torch.float64)
    torch.distributed.all_reduce(total)
    return dict(zip(sorted(values), total.tolist(), strict=True))


@pytest.mark.parametrize("micro", [1, 3])
def test_o26_ranks_with_3_and_97_targets_are_one_process_with_100(tmp_path: Path, micro: int) -> None:
    ranks = [subprocess.Popen([sys.executable, __file__, str(r), str(tmp_path), str(micro)]) for r in (0, 1)]
    one = update(tmp_path, batches(0, 1) + batches(1, 1))
    assert [r.wait(100) for r in ranks] == [0, 0]
    found = [torch.load(tmp_path / f"{r}.pt") for r in (0, 1)]
    assert one["targets"] == 100 and [f["targets"] for f in found] == [100, 100]
    for rank in found:
        assert rank["loss"] == pytest.approx(one["loss"], abs=1e-6)
        assert rank["norm"] == pytest.approx(one["norm"], rel=1e-5) and one["norm"] > 2 * CLIP
        for kind in ("whole", "clipped"):
            assert rank[kind].keys() == one[kind].keys()
            assert all(torch.allclose(g, one[kind][n], atol=1e-6, rtol=0) for n, g in rank[kind].items())
    # What others do, the mean of the ranks' means, is far from it: three targets would count as much as 97.
    means = [update(tmp_path, batches(r, 1)) for r in (0, 1)]
    apart = [(sum(m["whole"][n] for m in means) / 2 - g).abs().max() for n, g in one["whole"].items()]
    assert max(apart) > 1e-3


def main() -> None:
    rank, place, micro = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{place / 'meet'}", rank=rank, world_size=2)
    torch.save(update(place / str(rank), batches(rank, micro), 2), place / f"{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
