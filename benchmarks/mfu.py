"""How much of a processor's peak training uses: python benchmarks/mfu.py [--model gpt2|tiny] [--rows 16] [--steps 12].

A causal model of GPT-2's shape (124 M parameters, 1,024 tokens) by the trainer itself, on random tokens: rows that are
one text each, and rows packed with about four, under each attention and with torch.compile. MFU is the formula's FLOPs
(`networks.batch_flops`) over the seconds of the updates after the first few, over the peak of large matrix products
measured in the same process (`train.peak`). Written for a GPU; `--model tiny` shows on a CPU that it runs.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from unmask.batch import Batch, Examples, Head, Targets, causal
from unmask.config import BudgetConfig, CheckpointConfig, ModelConfig, TrainConfig
from unmask.data.collate import Placement, collate
from unmask.loss import forward_heads
from unmask.model.spec import parameters
from unmask.model.transformer import Transformer
from unmask.networks import batch_flops, run_with
from unmask.train.base import Settings
from unmask.train.devices import choose_device, choose_precision, tune_process
from unmask.train.hooks import Progress
from unmask.train.peak import measured
from unmask.train.trainer import Trainer

MODELS = {
    "gpt2": (ModelConfig(vocab_size=50257, hidden_size=768, num_layers=12, num_heads=12, max_position=1024), 1024),
    "tiny": (ModelConfig(vocab_size=512, hidden_size=64, num_layers=2, num_heads=2, max_position=64), 64),
}
PACKED = 4
"""Texts of a packed row, on average."""
WARM = 4
"""Updates that are not counted: compilers, caches, allocators."""
HEAD = Head("lm")


def batch(config: ModelConfig, length: int, rows: int, packed: bool) -> Batch:
    """Random tokens, each asked for the next one of its text."""
    noise = np.random.default_rng(0)
    tokens = noise.integers(0, config.vocab_size, rows * length, dtype=np.int32)
    begin = np.arange(rows) * length
    if packed:
        begin = np.union1d(begin, noise.choice(rows * length, (PACKED - 1) * rows, replace=False))
    edges = np.append(begin, rows * length)
    at = np.setdiff1d(np.arange(rows * length), edges - 1)
    texts = Examples(causal(tokens, edges), {HEAD.name: Targets.at(at, tokens[at + 1].astype(np.int64))})
    place = Placement(begin // length, begin % length, np.zeros(len(begin), np.int64), rows)
    return collate({"text": texts}, {"text": [HEAD]}, place)


class Rate(Progress):
    """Seconds of all updates so far, after each."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = [0.0]

    def say(self, text: str) -> None:
        """Nothing."""

    def show(self, line: Mapping[str, Any], total: int | None) -> None:
        self.seconds.append(float(line["seconds"]))


def measure(config: ModelConfig, one: Batch, steps: int, device: torch.device, attention: str, compiled: bool) -> float:
    """Seconds of an update, the median of `steps`."""
    networks = nn.ModuleDict({"model": Transformer(config, [HEAD])})
    run_with(networks, attention, False, device)
    settings = Settings(
        TrainConfig(schedule="constant", learning_rate=1e-4, warmup_steps=0),
        BudgetConfig(steps=WARM + steps),
        CheckpointConfig(every=10**9),
        device=device,
        compile=compiled,
    )
    rate = Rate()
    with tempfile.TemporaryDirectory() as out:
        flops = lambda b: batch_flops(config, b)
        Trainer(networks, forward_heads, lambda *_: [one], flops, settings, Path(out), progress=rate).run()
    return float(median(np.diff(rate.seconds)[WARM:]))


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="gpt2")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args(given)
    tune_process()
    (config, length), device = MODELS[asked.model], choose_device(asked.device)
    precision, reason = choose_precision("auto", device, nn.ModuleDict({"model": Transformer(config, [HEAD])}))
    peak = measured(device, precision)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"{device} ({where}), torch {torch.__version__}, {precision} ({reason}), peak {peak / 1e12:.2f} TFLOP/s")
    print(f"{parameters(config) / 1e6:.1f} M parameters, {asked.rows} rows of {length} tokens")
    kernels = ("dense", "flex") if device.type == "cuda" else ("dense",)
    for packed, attention, compiled in itertools.product((False, True), kernels, (False, True)):
        one = batch(config, length, asked.rows, packed)
        seconds = measure(config, one, asked.steps, device, attention, compiled)
        tokens, used = one.counts()["tokens"], batch_flops(config, one) / seconds
        what = f"{'packed' if packed else 'one text a row'}, {attention}{', compiled' if compiled else ''}"
        print(f"{what:34} {tokens / seconds:12,.0f} tokens/s   {used / 1e12:8.2f} TFLOP/s   MFU {used / peak:.1%}")


if __name__ == "__main__":
    main()
