"""A model, an objective and batches small enough to train hundreds of updates a second; also a program to kill.

`python toy.py OUT '{"steps": 20, "lives": [0.1, 0.2], …}'` trains the run in OUT, resuming what is there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unmask.batch import Batch, Head, Targets, causal
from unmask.config import BudgetConfig, CheckpointConfig, TrainConfig
from unmask.keyed import below, bits, row_keys, uniform
from unmask.train.base import Settings
from unmask.train.hooks import Evaluation
from unmask.train.trainer import Trainer

VOCABULARY, WIDTH, LENGTH, ROWS = 16, 8, 6, 8
KEY = ("toy", "lm")


@dataclass(frozen=True)
class Addend:
    """The shape of `unmask.loss.Term`."""

    sum: Tensor
    norm: float
    coefficient: float = 1.0


class Toy(nn.Module):
    """Embedding, two "layers" with dropout from a generator, a tied head."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor, generator: torch.Generator | None) -> Tensor:
        x = self.table(tokens)
        for layer in self.layers:
            x = x + layer(x).tanh()
            if generator is not None and self.dropout:
                kept = torch.rand(x.shape, generator=generator) >= self.dropout
                x = x * kept / (1 - self.dropout)
        return self.head(x)


def networks(seed: int = 0, dropout: float = 0.0) -> nn.ModuleDict:
    model = Toy(dropout)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.3, generator=generator)
    return nn.ModuleDict({"model": model})


def batches(micro: int = 1, empty: Callable[[int], bool] = lambda step: False) -> Callable[[int, float], list[Batch]]:
    """8 rows an update, cut into `micro` micro-batches with very different numbers of targets."""

    def build(step: int, progress: float) -> list[Batch]:
        ids = step * ROWS + np.arange(ROWS)
        keys = row_keys(7, 0, ids)[:, None]
        tokens = below(bits(keys, np.arange(LENGTH + 1)), VOCABULARY)
        share = np.where(np.arange(ROWS) < ROWS // 2, 0.1, 0.9)[:, None]
        weight = (uniform(keys, 100 + np.arange(LENGTH)) < share).astype(np.float32)
        weight[:, 0] = 1.0
        if empty(step):
            weight[:] = 0.0
        return [part(tokens[rows], weight[rows]) for rows in np.split(np.arange(ROWS), micro)]

    return build


def part(tokens: np.ndarray, weight: np.ndarray) -> Batch:
    """Rows of next-token prediction; tokens (B, T + 1), weight (B, T)."""
    b, t = weight.shape
    stream = causal(tokens[:, :t].reshape(-1), np.arange(b + 1) * t)
    stream = replace(stream.map(lambda a: a.reshape(b, t)), start=None)
    value = tokens[:, 1:].reshape(-1) % VOCABULARY // 2  # a skewed target that can be learned
    targets = Targets(np.arange(b * t), value, weight.reshape(-1), norm=np.float32(weight.sum()))
    return Batch(stream, {KEY: targets}, {KEY: Head("lm")})


def terms(networks: nn.ModuleDict, batch: Batch, generator: torch.Generator | None) -> dict[tuple[str, str], Addend]:
    logits = networks["model"](batch.stream.tokens, generator).flatten(0, 1).float()
    targets = batch.targets[KEY]
    losses = nn.functional.cross_entropy(logits[targets.index], targets.value, reduction="none")
    return {KEY: Addend((losses * targets.weight).sum(), float(targets.norm))}


def evaluate(networks: nn.ModuleDict) -> dict[str, float]:
    batch = batches()(10**6, 0.0)[0].map(_tensor)
    term = terms(networks, batch, None)[KEY]
    return {"loss": float(term.sum) / term.norm}


def _tensor(a: Any) -> Tensor:
    return torch.as_tensor(np.array(a))


def trainer(out: Path, steps: int = 20, micro: int = 1, dropout: float = 0.0, **options: Any) -> Trainer:
    """A trainer of the toy; options: any of TrainConfig's, CheckpointConfig's and Settings' fields, and these."""
    evaluation = Evaluation(options.pop("evaluate_every"), evaluate) if "evaluate_every" in options else None
    build = options.pop("batches", None) or batches(micro)
    budget = options.pop("budget", {"steps": steps})
    save = {k: options.pop(k) for k in ("every", "keep", "at", "only_best", "background") if k in options}
    rest = {k: options.pop(k) for k in ("precision", "seed", "compile") if k in options}
    train = TrainConfig(**{"warmup_steps": 4, "learning_rate": 0.02, "grad_accumulation": micro, **options})
    settings = Settings(train, BudgetConfig(**budget), CheckpointConfig(**save), **{"precision": "fp32", **rest})
    flops = lambda batch: 1.0 * batch.counts()["tokens"]
    return Trainer(networks(dropout=dropout), terms, build, flops, settings, out, evaluation)


def metrics(out: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without `seconds`, the one field that may differ between two equal runs."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def weights(t: Trainer) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in t.networks.state_dict().items()}


def main() -> None:
    """Train the run in OUT; with `lives`, first that many seconds each in a process that then dies by SIGKILL.

    Prints how many of them were still training when they died.
    """
    out, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    pause, lives = options.pop("pause", 0.0), options.pop("lives", [])
    torch.set_num_threads(1)
    os.fsync = lambda handle: None  # see conftest.py
    died = 0
    for seconds in lives:
        child = os.fork()  # the imports are paid once
        if child == 0:
            live(out, options, pause)
            os._exit(0)
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        died += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    live(out, options, 0.0)
    print(died)


def live(out: Path, options: dict[str, Any], pause: float) -> None:
    t = trainer(out, **options)
    build = t.batches

    def slow(step: int, progress: float) -> list[Batch]:
        time.sleep(pause)
        return build(step, progress)

    t.batches = slow
    t.run(resume=True)


if __name__ == "__main__":
    main()
