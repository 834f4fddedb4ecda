"""Work that runs ahead of who takes it: one item is taken while the next ones are made."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def ahead(
    function: Callable[[T], R], items: Iterable[T], weight: Callable[[T], int], limit: int, threads: int = 2
) -> Iterator[R]:
    """`map(function, items)` by threads, in order: items of `limit` weight in all are in work at a time (one at least).

    It pays where the function lets go of the interpreter, as the tokenizers library does: while the threads
    work, the caller reads the next items and writes the last results.
    """
    waiting: deque[tuple[int, Future[R]]] = deque()
    total = 0
    with ThreadPoolExecutor(threads, "ahead") as pool:
        try:
            for item in items:
                heavy = weight(item)
                while waiting and total + heavy > limit:
                    done, future = waiting.popleft()
                    total -= done
                    yield future.result()
                waiting.append((heavy, pool.submit(function, item)))
                total += heavy
            while waiting:
                yield waiting.popleft()[1].result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
