"""What a process should be told before torch starts its threads."""

from __future__ import annotations

import os
import sys


def patient_threads() -> None:
    """Let OpenMP's threads sleep while they wait for each other, unless the user decided otherwise.

    By default they spin. On a busy machine a spinning thread takes the core that the one it waits for needs
    (docs/results.md, "Threads"). It works only before torch is imported.
    """
    if "torch" not in sys.modules and "GOMP_SPINCOUNT" not in os.environ:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def peak_memory() -> int:
    """Bytes of the largest resident set this process has had; 0 where no system tells."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # Linux counts kB


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processes() -> int:
    """How many processes torchrun started together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Which of the processes this is that torchrun started together; 0 is the one that speaks, and one alone."""
    return int(os.environ.get("RANK", "0")) if processes() > 1 else 0
