"""Where prepared text lies."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(given: str | Path | None = None) -> Path:
    """The argument, $UNMASK_CACHE, or ~/.cache/unmask."""
    return Path(given or os.environ.get("UNMASK_CACHE") or Path.home() / ".cache" / "unmask").expanduser()
