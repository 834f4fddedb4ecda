"""Rows of training steps: forward, backward, update, of one batch of 32 × 128 tokens, ours beside `transformers`.

Both sides load the same weights from one directory and read the same tokens and targets. Dropout is 0 on both sides,
so the losses of step 0 can be compared, and the peer pays nothing for noise. Ours is the whole of `Trainer`'s update,
norms, counters and its line of metrics included; the peer's is a plain loop with AdamW, in fp32 or under bf16 autocast.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unmask.batch import Batch, Head
from unmask.bench.base import OURS, Losses, MakeSide, Row, Tick, Worker
from unmask.config import BudgetConfig, CheckpointConfig, TrainConfig
from unmask.loss import Program, forward_heads
from unmask.model.interop import load_hf
from unmask.networks import batch_flops
from unmask.train.base import Settings
from unmask.train.devices import choose_precision, to_device, tune_process
from unmask.train.hooks import Progress
from unmask.train.trainer import Trainer

VOCABULARY = 30522
ROWS, LENGTH = 32, 128
RATE = 0.15
COMPILED = "bf16, compiled"
Tokens = Callable[[Path], int]
WEIGHTS, BATCH = "weights", "batch.npz"
FIRST = 5
"""Tokens below it are control tokens, which no text holds."""


@dataclass(frozen=True)
class Kind:
    """An architecture and an objective as both sides have them."""

    peer: Callable[[], Any]
    """The model of `transformers`, at random weights."""
    theirs: Callable[[Mapping[str, np.ndarray]], dict[str, Tensor]]
    """Its arguments, labels among them."""
    ours: Callable[[Mapping[str, np.ndarray], Head], Batch]
    tokens: int = ROWS * LENGTH
    """Of a step, source and target."""


# ---------------------------------------------------------------- what both sides read


def drawn() -> dict[str, np.ndarray]:
    """Random tokens (B, T) and which of them are asked for: 15 %, exactly."""
    noise = np.random.default_rng(0)
    tokens = noise.integers(FIRST, VOCABULARY, (ROWS, LENGTH), dtype=np.int32)
    order = noise.permutation(ROWS * LENGTH).reshape(ROWS, LENGTH)
    return {"tokens": tokens, "asked": order < round(RATE * ROWS * LENGTH)}


def prepare(kind: Kind, folder: Path) -> None:
    """Weights at random as a Hugging Face directory, and the batch."""
    write_weights(kind.peer(), folder)
    save(folder / BATCH, drawn())


@torch.no_grad()
def write_weights(model: Any, folder: Path) -> None:
    """The peer's model with its matrices drawn anew, from a generator of our own."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.normal_(0.0, 0.02, generator=generator)
    model.save_pretrained(folder / WEIGHTS)


def save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """What both sides read, as one file."""
    np.savez(path, **arrays)  # type: ignore[arg-type]


def read(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / BATCH) as held:
        return dict(held)


# ---------------------------------------------------------------- ours


def _ours(kind: Kind, folder: Path) -> tuple[nn.ModuleDict, Batch]:
    model, report = load_hf(folder / WEIGHTS)
    (head,) = report.heads
    return nn.ModuleDict({"model": model}), kind.ours(read(folder), head)


class _Between(Progress):
    """Says nothing and hands over after every update."""

    def __init__(self, tick: Tick) -> None:
        super().__init__()
        self.tick = tick

    def show(self, line: Mapping[str, Any], total: int | None) -> None:
        self.tick()


def trained(
    networks: nn.ModuleDict, batches: Sequence[Batch], tokens: int, program: Program, flops: Callable[[Batch], float]
) -> Worker:
    """Our side: the trainer over these batches, again and again; tokens: of a step, on average."""
    tune_process()
    settings = Settings(
        TrainConfig(schedule="constant", learning_rate=1e-4),
        BudgetConfig(steps=10**9),
        CheckpointConfig(every=10**9),
    )

    def take(step: int, progress: float) -> list[Batch]:
        return [batches[step % len(batches)]]

    def run(tick: Tick) -> None:
        with tempfile.TemporaryDirectory() as out:
            between = _Between(tick)
            Trainer(networks, program, take, flops, settings, Path(out), progress=between).run()

    precision, reason = choose_precision("auto", settings.device, networks)
    parameters = sum(p.numel() for p in networks.parameters())
    return Worker(tokens, run, {"precision": f"{precision} ({reason})", "parameters": parameters})


def _our_side(kind: Kind) -> Callable[[Path], Worker]:
    def make(folder: Path) -> Worker:
        networks, batch = _ours(kind, folder)
        config: Any = networks["model"].config
        return trained(networks, [batch], kind.tokens, forward_heads, lambda b: batch_flops(config, b))

    return make


# ---------------------------------------------------------------- the peer


def peer(folder: Path) -> Any:
    """The model of `transformers` with the weights of the folder."""
    import transformers
    from transformers import AutoConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = AutoConfig.from_pretrained(folder / WEIGHTS)
    return getattr(transformers, config.architectures[0]).from_pretrained(folder / WEIGHTS)


def plain_loop(
    model: Any, batches: Sequence[Mapping[str, Tensor]], tokens: int, bf16: bool, compiled: bool = False
) -> Worker:
    """The peer's side: forward, backward, AdamW, over these batches again and again."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    if compiled:
        model = torch.compile(model)

    def run(tick: Tick) -> None:
        for arguments in itertools.cycle(batches):
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = model(**arguments).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            tick()

    return Worker(tokens, run, {"parameters": sum(p.numel() for p in model.parameters())})


def peer_sides(batches: Callable[[Path], Sequence[Mapping[str, Tensor]]], tokens: Tokens) -> dict[str, MakeSide]:
    """The peer's sides: fp32, bf16, and the latter compiled."""

    def side(bf16: bool, compiled: bool = False) -> MakeSide:
        return lambda folder: plain_loop(peer(folder), batches(folder), tokens(folder), bf16, compiled)

    return {"fp32": side(False), "bf16": side(True), COMPILED: side(True, compiled=True)}


# ---------------------------------------------------------------- equal at step 0


def sum_of(terms: Mapping[Any, Any]) -> float:
    """The loss of one micro-batch."""
    return sum(t.coefficient * float(t.sum.detach()) / t.norm for t in terms.values())


def their_loss(folder: Path, arguments: Mapping[str, Tensor]) -> float:
    model = peer(folder)
    model.train()
    with torch.no_grad():
        return float(model(**arguments).loss)


def _check(kind: Kind) -> Losses:
    def losses(folder: Path) -> tuple[float, float]:
        networks, batch = _ours(kind, folder)
        named: Any = networks
        ours = sum_of(forward_heads(named, to_device(batch, torch.device("cpu"))))
        return ours, their_loss(folder, kind.theirs(read(folder)))

    return losses


def row(name: str, work: str, peer: str, target: float, kind: Kind) -> Row:
    """A row of one batch."""
    theirs = peer_sides(lambda folder: [kind.theirs(read(folder))], lambda folder: kind.tokens)
    sides = {OURS: _our_side(kind), **theirs}
    return Row(name, work, peer, target, sides, lambda f: prepare(kind, f), _check(kind), apart=(COMPILED,))
