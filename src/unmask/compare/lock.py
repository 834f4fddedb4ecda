"""One command at a time in a directory: a study's or a ladder's lock, which its processes hold, too."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from unmask.errors import UserError

WAIT = 20.0
"""Seconds that the processes of a killed command are given to end."""


@contextlib.contextmanager
def alone(out: Path) -> Iterator[int | None]:
    """Hold the lock of a directory; its file descriptor, for processes that end soon after a parent that was killed."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield None
        return
    with (out / ".lock").open("w") as file:
        begun = time.monotonic()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() - begun > WAIT:
                    raise UserError(f"{out} is being run by another process: wait for it, or end it first") from None
                time.sleep(0.1)
        yield file.fileno()
