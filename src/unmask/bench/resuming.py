"""The row of resuming: seconds after imports until the first update after step 1,000,000 is done and written down.

The run is real: its first life trains updates 1,000,000 and 1,000,001 (an update is found by arithmetic, so it can
begin there) and saves between them; its metrics.jsonl is filled up to a million lines. Resuming is `resume_run`, whole.
The peer is a loop over a `DataLoader` that skips one batch after the other, and beside it one that draws the indices of
batches alone, as accelerate does. Both skip 2,000 batches and are scaled to a million; neither loads a model.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from unmask.bench.base import OURS, Figure, Reading
from unmask.bench.documents import real_text
from unmask.bench.waiting import CACHE, OBJECTIVES, recipe
from unmask.building import build, resolve, training_loader
from unmask.directory import write_down
from unmask.recipe import Recipe
from unmask.run import begin, prepared, resume_run
from unmask.train.base import Counters
from unmask.train.hooks import Progress

STEP = 1_000_000
"""Where a checkpoint lies: `recipe` saves there."""
RUN, UNCUT = "run", "uncut.json"
METRICS = "metrics.jsonl"
SKIPPED = 2_000
"""Batches that the peer skips; the rest of the million is scaled."""


class Quiet(Progress):
    def show(self, line: object, total: int | None) -> None:
        """Nothing: an update is a second of three."""


def resumable(one: Recipe, folder: Path, lines: int = STEP) -> None:
    """The directory of a run that was killed one update before its end, and beside it that update's loss when it was
    made without a stop. lines: of its metrics.jsonl, before the one of that update."""
    out, step = folder / RUN, (one.budget.steps or 1) - 1
    asked, text, _ = begin(one, folder / CACHE, lambda _: None)
    one = resolve(asked, text.tokenizer)
    write_down(one, text, out)
    trainer, _ = build(one, text, training_loader(one, text), out, Quiet())
    trainer.counters = Counters(step=step - 1)
    trainer.run()
    shutil.rmtree(out / "checkpoints" / f"step-{step + 1}")
    *_, last = (out / METRICS).read_text(encoding="utf-8").splitlines()
    (folder / UNCUT).write_text(last, encoding="utf-8")
    fill(out / METRICS, last, range(step - lines + 1, step + 2))


def fill(path: Path, like: str, steps: range) -> None:
    """A line for every update, as a run of so many has: its length is part of what resuming costs.

    like: the last one's.
    """
    before, after = like.split(f'"step": {steps[-1]}')
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f'{before}"step": {k}{after}\n' for k in steps)


def resumed(folder: Path) -> tuple[float, float]:
    """(seconds, loss) of the first update of a copy of the run.

    The update is done when its line stands in metrics.jsonl, and nothing else is written there after it: so the file
    says when. What comes then (a checkpoint, the evaluation at the end) is not counted.
    """
    with tempfile.TemporaryDirectory(dir=folder) as place:
        out = Path(place) / RUN
        shutil.copytree(folder / RUN, out)
        began = time.time()
        resume_run(out)
        seconds = (out / METRICS).stat().st_mtime - began
        with open(out / METRICS, "rb") as file:
            file.seek(-1, os.SEEK_END)
            file.seek(-min(file.tell(), 1 << 16), os.SEEK_END)
            return seconds, json.loads(file.read().splitlines()[-1])["loss"]


# ---------------------------------------------------------------- the peer


class Blocks(Dataset[Tensor]):
    """The training tokens in blocks of the context, as a plain data set holds them."""

    def __init__(self, tokens: np.ndarray, context: int) -> None:
        self.tokens, self.context = tokens, context

    def __len__(self) -> int:
        return len(self.tokens) // self.context

    def __getitem__(self, k: int) -> Tensor:
        return torch.from_numpy(self.tokens[k * self.context : (k + 1) * self.context].astype(np.int64))


def skipping(folder: Path, indices: bool, count: int = SKIPPED) -> Reading:
    """Seconds for a million batches, by so many that are drawn and dropped, epoch after epoch."""
    blocks = Blocks(np.asarray(prepared(folder / RUN).train.tokens), context=128)
    loader = DataLoader(blocks, batch_size=32, shuffle=True)
    each: Iterable[object] = loader.batch_sampler if indices and loader.batch_sampler is not None else loader
    began, left = time.perf_counter(), count
    while left:
        left -= sum(1 for _ in islice(each, left))
    seconds = time.perf_counter() - began
    said = f"{count:,} batches skipped, times {STEP / count:g}"
    return Reading(seconds * STEP / count, {f"s for {count:,}": seconds}, {"scaled": said})


# ---------------------------------------------------------------- the row


def _prepare(folder: Path) -> None:
    resumable(recipe(OBJECTIVES["masked words"], real_text("resume"), STEP + 1), folder)


def _check(folder: Path) -> tuple[float, float]:
    return resumed(folder)[1], json.loads((folder / UNCUT).read_text(encoding="utf-8"))["loss"]


def _ours(folder: Path) -> Reading:
    seconds, loss = resumed(folder)
    return Reading(seconds, about={"loss": loss})


RESUME = Figure(
    "resume",
    "from imports to the first update after step 1,000,000, 10 M parameters",
    "DataLoader, batches skipped one by one: 2,000 measured, × 500",
    "s",
    5.0,
    {
        OURS: _ours,
        "batches built": lambda folder: skipping(folder, indices=False),
        "indices alone": lambda folder: skipping(folder, indices=True),
    },
    _prepare,
    _check,
    peers=("batches built", "indices alone"),
)
