"""What a processor could compute at most: the denominator of the model FLOPs utilisation (MFU).

It is never guessed from a processor's name: either it is given, or large matrix products are timed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from unmask.errors import UserError
from unmask.process import processes

MEASURE = "measure"
SECONDS = 0.3
"""How long products are timed."""


@dataclass(frozen=True)
class Peak:
    """flops: FLOP/s of all processes of a run together; known: how, in a few words."""

    flops: float
    known: str


def peak_of(asked: str | float | None, device: torch.device, precision: str, ranks: int | None = None) -> Peak | None:
    """The peak by the setting `peak_flops`: FLOP/s of one process, or "measure"; None = not known.

    ranks: processes of the run; None = what torchrun says ($WORLD_SIZE), else 1.
    """
    check(asked)
    if asked is None or asked == "":
        return None
    count = ranks or processes()
    if asked == MEASURE:
        return Peak(count * measured(device, precision), f"measured by matrix products in {precision}")
    return Peak(count * float(asked), "by peak_flops")


def check(asked: str | float | None) -> None:
    """A sentence for what is no peak, before anything is prepared.

    >>> check("1e12"), check("measure"), check(None)
    (None, None, None)
    """
    if asked is None or asked in ("", MEASURE):
        return
    try:
        value = float(asked)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UserError(
            f"peak_flops={asked} is no peak: give the FLOP/s of one process, such as 1e12, or {MEASURE} to time "
            "matrix products at the start"
        )


def measured(device: torch.device, precision: str) -> float:
    """FLOP/s of large square matrix products in this precision: the best of those that `SECONDS` hold."""
    size = 1024 if device.type == "cpu" else 8192
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    a = torch.ones(size, size, dtype=kind, device=device)
    best, began = 0.0, time.perf_counter()
    _product(a)  # the first one pays for loading the kernel
    while best == 0.0 or time.perf_counter() - began < SECONDS:
        best = max(best, 2 * size**3 / _product(a))
    return best


def _product(a: torch.Tensor) -> float:
    """Seconds of one product."""
    began = time.perf_counter()
    a @ a
    if a.device.type == "cuda":
        torch.cuda.synchronize(a.device)
    return time.perf_counter() - began
