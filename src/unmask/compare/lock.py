"""One command at a time in a directory: a study's or a ladder's lock, which its processes hold, too."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from unmask.errors import UserError

LOCK = ".lock"
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
    begun = time.monotonic()
    while True:
        with (out / LOCK).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                ours = os.path.samestat(os.fstat(file.fileno()), os.stat(out / LOCK))  # or it was removed meanwhile
            except OSError:
                ours = False
            if ours:
                yield file.fileno()
                return
        if time.monotonic() - begun > WAIT:
            raise UserError(f"{out} is being run by another process: wait for it, or end it first")
        time.sleep(0.1)
