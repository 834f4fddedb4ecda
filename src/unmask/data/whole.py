"""Directories that are either whole or not there."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

from unmask.errors import UserError


@contextlib.contextmanager
def whole(place: Path) -> Iterator[Path]:
    """A fresh directory that is renamed to `place` when the block ends well, and removed when it does not.

    What a killed process of this machine left behind is removed too. Where another process was faster,
    its result stays.
    """
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        directory = owned(place.parent, place.name)
        directory.mkdir()
    except OSError as error:
        raise UserError(f"cannot write to {place.parent}: {error.strerror or error}") from error
    try:
        yield directory
        if not place.exists():
            try:
                os.rename(directory, place)
            except OSError:  # ENOTEMPTY or EEXIST: another process was faster
                if not place.exists():
                    raise
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def owned(folder: Path, name: str) -> Path:
    """A hidden path in a folder for what becomes `name`, which nobody else has; what lies there under such paths of
    processes of this machine that were killed is removed."""
    owner = f".{name}.{socket.gethostname()}."
    for stale in folder.glob(f"{owner}*"):
        if not alive(stale.name.removeprefix(owner).split("-")[0]):
            if stale.is_dir():
                shutil.rmtree(stale, ignore_errors=True)
            else:
                stale.unlink(missing_ok=True)
    return folder / f"{owner}{os.getpid()}-{uuid.uuid4().hex[:8]}"


def alive(pid: str) -> bool:
    """Whether a process of this machine still runs; on Windows any may, since there the question would stop it."""
    if os.name == "nt":
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, ValueError):
        return True
    return True
