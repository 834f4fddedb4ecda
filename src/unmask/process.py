"""What a process should be told before torch starts its threads."""

from __future__ import annotations

import os
import sys


def patient_threads() -> None:
    """Let OpenMP's threads sleep while they wait for each other, unless the user decided otherwise.

    By default they spin. On a busy machine a spinning thread takes the core that the one it waits for needs: beside
    one other busy process, an update of a small model on two cores became more than ten times slower, against
    about a tenth when nothing else runs. It works only before torch is imported.
    """
    if "torch" not in sys.modules and "GOMP_SPINCOUNT" not in os.environ:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
