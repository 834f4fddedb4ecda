"""How long measurements show where they stand: on stderr, with rate and time left."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

Watch = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""`with watch(what, total) as advance: … advance(n)`."""
INTERVAL = 10.0
"""Seconds between two lines where stderr is no terminal."""


@contextlib.contextmanager
def silent(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows nothing."""
    yield lambda n: None


@contextlib.contextmanager
def shown(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal; else a line about every ten seconds."""
    if not sys.stderr.isatty():
        yield _Lines(what, total).advance
        return
    from rich.console import Console  # imported here: only a terminal needs it
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    begin, done = time.monotonic(), 0
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(what, total=total, rate="")

        def advance(n: int) -> None:
            nonlocal done
            done += n
            bar.update(task, advance=n, rate=f"{done / max(time.monotonic() - begin, 1e-9):,.0f}/s")

        yield advance


class _Lines:
    """One line about every ten seconds, the first after ten."""

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.done = what, total, 0
        self.begin = self.said = time.monotonic()

    def advance(self, n: int) -> None:
        self.done += n
        now = time.monotonic()
        if now - self.said >= INTERVAL:
            self.said = now
            print(self.text(now - self.begin), file=sys.stderr, flush=True)

    def text(self, seconds: float) -> str:
        """
        >>> lines = _Lines("sentences", 1000)
        >>> lines.done = 400
        >>> lines.text(20.0)
        'sentences 400/1,000 · 20/s · 0:30 left'
        """
        left = round((self.total - self.done) * seconds / max(self.done, 1))
        rate = self.done / max(seconds, 1e-9)
        return f"{self.what} {self.done:,}/{self.total:,} · {rate:,.0f}/s · {left // 60}:{left % 60:02d} left"
