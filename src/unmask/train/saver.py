"""Saves a run's checkpoints: who writes what of them, and whether training waits for it.

    one process, ddp         rank 0 writes whole tensors
    fsdp                     every rank writes the rows that it holds; with checkpoint.sharded=false they are gathered
                             in rank 0's main memory, which writes them
    checkpoint.background    what a rank writes is copied to main memory, and a thread writes while training goes on

Threads only write files. Between two updates all ranks ask each other whether they are done; then rank 0 puts the
checkpoint in its place, and what failed on one rank fails on all. One checkpoint is written at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, Self

from torch import Tensor, nn

from unmask.config import CheckpointConfig
from unmask.errors import UserError
from unmask.tensors import named_once
from unmask.train import checkpoint
from unmask.train.base import Counters
from unmask.train.layout import Layout
from unmask.train.optim import Optimizer
from unmask.train.plan import Plan
from unmask.train.ranks import Ranks
from unmask.train.sharded import Share, copied, share_of

DONE, RUNNING, FAILED = 0.0, 1.0, 2.0
GRACE = 10.0
"""Seconds that rank 0 waits for the other ranks' files after an error, when nobody answers any more."""


class Task:
    """Work that is done when it is waited for, or in a thread meanwhile."""

    def __init__(self, work: Callable[[], None], background: bool) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="checkpoint", daemon=True) if background else None
        if self._thread is not None:
            self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # told by `finish`
            self._error = error

    @property
    def status(self) -> float:
        if self._error is not None:
            return FAILED
        return RUNNING if self._thread is None or self._thread.is_alive() else DONE

    def finish(self) -> None:
        """Wait for it; its error is raised here."""
        if self._thread is None:
            return self._work()
        self._thread.join()
        if self._error is not None:
            raise self._error


@dataclass(frozen=True)
class Pending:
    """A checkpoint that is not in its place yet."""

    writing: checkpoint.Writing
    task: Task
    state: Mapping[str, Any]
    counters: Counters
    """Where its bytes are added when it is there."""


class Saver:
    """The checkpoints of one run. As a context it ends with the last one in its place, where that can be."""

    def __init__(self, checkpoints: Path, config: CheckpointConfig, ranks: Ranks, layout: Layout) -> None:
        self.checkpoints, self.config, self.ranks, self.layout = checkpoints, config, ranks, layout
        self.sharded = config.sharded and layout.sharded
        self._pending: Pending | None = None

    def save(self, networks: nn.Module, optimizer: Optimizer, counters: Counters, plan: Plan | None) -> None:
        """Write the checkpoint of this step, or begin to. A collective."""
        self.settle()
        state = {**asdict(counters), "plan": asdict(plan) if plan else None}
        tensors, aliases = named_once(networks)
        moments = optimizer.state_tensors()
        writers = self.ranks.count if self.sharded else 1
        needed = checkpoint.need(tensors, sum(t.numel() * t.element_size() for t in moments.values()), writers)
        writing = checkpoint.Writing(self.checkpoints, counters.step, needed, writers)
        with self.ranks.together():
            if self.ranks.first:
                writing.begin()
        shares = self._share(tensors), self._share(moments)
        writes = self.sharded or self.ranks.first
        work = partial(writing.write, self.ranks.rank, shares[0], aliases, shares[1]) if writes else lambda: None
        self._pending = Pending(writing, Task(work, self.config.background), state, counters)
        if not self.config.background:
            self.settle()

    def _share(self, tensors: Mapping[str, Tensor]) -> Share:
        """What this rank writes of them; a copy of its own, where training goes on meanwhile."""
        there = tensors if self.sharded else self.layout.gathered(tensors, self.ranks.first)
        share = share_of(there, self.layout, self.ranks.first)
        live = self.sharded or not self.layout.sharded  # what was gathered is a copy already
        return copied(share) if self.config.background and live else share

    def between(self) -> None:
        """Between two updates: what is written by now, or failed, is settled. A collective."""
        if self._pending is not None and self.ranks.most(self._pending.task.status) != RUNNING:
            self.settle()

    def settle(self) -> None:
        """Wait for the checkpoint that is being written and put it in its place. A collective."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            with self.ranks.together():
                pending.task.finish()
            with self.ranks.together():
                if self.ranks.first:
                    self._commit(pending)
        except UserError:
            if self.ranks.first:
                pending.writing.abandon()
            raise

    def _commit(self, pending: Pending) -> None:
        config, best = self.config, pending.state["best_step"]  # of its own step: a later best is not there yet
        place = pending.writing.commit(pending.state)
        pending.counters.checkpoint_bytes += checkpoint.size(place)
        checkpoint.retain(self.checkpoints, config.keep, best, config.at, not config.only_best)

    # ------------------------------------------------------------ the end

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.settle()
        elif not issubclass(kind, KeyboardInterrupt):  # who asks twice to stop does not want to wait
            self._salvage()

    def _salvage(self) -> None:
        """After an error, where other ranks may be gone: nothing is asked of them, their files are looked for."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        with suppress(Exception):  # the first error is the one to tell
            pending.task.finish()
            until = time.monotonic() + GRACE
            while self.ranks.first and pending.writing.missing() and time.monotonic() < until:
                time.sleep(0.1)
            if self.ranks.first and not pending.writing.missing():
                self._commit(pending)
