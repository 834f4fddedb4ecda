"""Batches built one thread ahead of the updates that use them.

On a CPU a batch costs little against a step, and a second thread would only compete for the cores:
there the depth is 0 and batches are built in place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from unmask.batch import Batch


class Prefetch:
    """At most `depth` updates ahead; since `batches` is pure, what is built early equals what is built late."""

    def __init__(self, batches: Callable[[int, float], list[Batch]], depth: int) -> None:
        self.batches, self.depth = batches, depth
        self.pool = ThreadPoolExecutor(1, "prefetch") if depth else None
        self.waiting: dict[int, Future[list[Batch]]] = {}
        self.waited = 0.0
        """Seconds that updates have waited for their batches."""

    def get(self, step: int, later: Iterable[int], progress: Callable[[int], float]) -> list[Batch]:
        """The micro-batches of `step`; starts on those of the first `depth` of `later`."""
        began = time.perf_counter()
        ready = self.waiting.pop(step, None)
        batches = ready.result() if ready is not None else self.batches(step, progress(step))
        self.waited += time.perf_counter() - began
        if self.pool is not None:
            for _, s in zip(range(self.depth), later, strict=False):
                if s not in self.waiting:
                    self.waiting[s] = self.pool.submit(self.batches, s, progress(s))
        return batches

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)
