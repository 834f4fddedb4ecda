"""Small files written whole, and the one sentence for a disk that takes no more."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from unmask.errors import UserError

_FULL = (errno.ENOSPC, errno.EDQUOT)


def write_text(path: Path, text: str) -> None:
    """Write a file so that it is the old one or the new one, never half of either."""
    temporary = path.with_name(f".{path.name}.writing")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise cannot_write(path, max(4096, len(text.encode())), error) from error
    sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file or a directory's entries to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cannot_write(where: Path, needed: int, error: OSError) -> UserError:
    """The one message for a failed write: what was needed and what is free."""
    free = shutil.disk_usage(next(p for p in (where, *where.absolute().parents) if p.exists())).free
    if (number := error.errno) in _FULL:
        return UserError(
            f"no room to write {where}: it needs {needed:,} bytes and {free:,} bytes are free "
            f"({os.strerror(number)}); earlier checkpoints are intact: free some space, then resume the run"
        )
    if number == errno.EFBIG:
        return UserError(
            f"cannot write {where}: its {needed:,} bytes are more than a file may have here (ulimit -f, or the file "
            "system's limit); earlier checkpoints are intact: raise the limit, then resume the run"
        )
    return UserError(f"cannot write {where} ({error}); earlier checkpoints are intact: mend this, then resume the run")
