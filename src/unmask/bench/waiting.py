"""The row of data: which share of a training step's time the step waits for its batch.

A model of about 10 million parameters, trained by `Trainer` in the precision that is fastest here, on Wikipedia's
paragraphs: shards → objective → packed batch, as `unmask pretrain` does it, prefetching included (on a CPU there is
none: a batch is built where it is used, and the wait is the whole of its cost).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from unmask.bench.base import Figure, Reading
from unmask.bench.documents import real_text
from unmask.building import build, resolve, training_loader
from unmask.config import BudgetConfig
from unmask.data.loader import Loader
from unmask.recipe import Recipe, validate
from unmask.run import begin
from unmask.train.devices import choose_precision, tune_process
from unmask.train.hooks import Progress

CACHE = "cache"
OBJECTIVES: dict[str, dict[str, Any]] = {
    "causal": {"type": "causal"},
    "masked words": {"type": "masked", "unit": "word"},
    "T5 spans": {"type": "span_corruption", "layout": "encdec"},
    "UL2": {"type": "ul2", "layout": "encdec"},
}
WIDTH = 320
LAYERS = {True: {"num_source_layers": 3, "num_layers": 2}, False: {"num_layers": 6}}
"""Whether there are two stacks → layers, for about 10 million parameters under 8,192 tokens."""
WINDOWS = 3
"""Updates whose samples the loader packs at once, timed whole, after one that is not."""


def recipe(objective: Mapping[str, Any], text: Path, steps: int, width: int = WIDTH) -> Recipe:
    """A run of 32 rows of 128 tokens an update; saved at the end and at every millionth."""
    shape = {"hidden_size": width, "num_heads": width // 64, "max_position": 128}
    values = {
        "objective": dict(objective),
        "corpus": {"path": os.fspath(text)},
        "tokenizer": {"type": "bbpe", "vocab_size": 8192, "extra": ["[NLU]", "[S2S]", "[NLG]"]},
        "model": {**shape, **LAYERS[objective.get("layout") == "encdec"]},
        "context": 128,
        "train": {"batch_size": 32, "schedule": "constant"},
        "budget": {"steps": steps},
        "checkpoint": {"every": 10**6, "keep": 2},
    }
    return validate(values, "bench")


class Marks(Progress):
    """Notes after every update the seconds of training so far, and those of them spent on waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[float, float, int]] = []

    def show(self, line: Mapping[str, Any], total: int | None) -> None:
        self.found.append((line["seconds"], self.waited or 0.0, line["tokens"]))


def waits(one: Recipe, cache: Path, windows: int = WINDOWS) -> Reading:
    """Train the recipe for so many windows, and read the share after the first one."""
    tune_process()
    asked, text, _ = begin(one, cache, lambda _: None)
    one = resolve(asked, text.tokenizer)
    loader, marks = training_loader(one, text), Marks()
    one = one.model_copy(update={"budget": BudgetConfig(steps=loader.steps * (1 + windows))})
    with tempfile.TemporaryDirectory() as out:
        trainer, _ = build(one, text, loader, Path(out), marks)
        trainer.run()
    first, last = marks.found[loader.steps - 1], marks.found[-1]
    seconds, waited, tokens = (b - a for a, b in zip(first, last, strict=True))
    precision, reason = choose_precision(one.precision, trainer.settings.device, trainer.networks)
    return Reading(
        100 * waited / seconds,
        {"tokens/s of data": data_rate(loader), "tokens/s of training": tokens / seconds},
        {
            "precision": f"{precision} ({reason})",
            "parameters": sum(p.numel() for p in trainer.networks.parameters()),
            "updates": len(marks.found) - loader.steps,
        },
    )


def data_rate(loader: Loader, at_least: float = 1.0) -> float:
    """Tokens a second of the loader alone, by whole windows of updates that were not asked for before."""
    step, tokens, began = 1000 * loader.steps, 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < at_least:
        for _ in range(loader.steps):
            tokens += sum(batch.counts()["tokens"] for batch in loader(step))
            step += 1
    return tokens / passed


def _prepare(folder: Path) -> None:
    """The shards, which all objectives share."""
    begin(recipe(OBJECTIVES["causal"], real_text("data"), 1), folder / CACHE, lambda _: None)


def _side(objective: Mapping[str, Any]) -> Callable[[Path], Reading]:
    return lambda folder: waits(recipe(objective, real_text("data"), 1), folder / CACHE)


DATA = Figure(
    "data",
    "time of a training step (10 M parameters, 32 × 128 tokens) that is spent on its batch",
    "",
    "%",
    2.0,
    {name: _side(objective) for name, objective in OBJECTIVES.items()},
    _prepare,
)
