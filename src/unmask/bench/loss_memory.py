"""The row of the loss's memory: forward and backward over a vocabulary of 131,072, beside logits that lie there whole.

What is read is the high-water mark of resident memory over what was resident before, with the inputs there: so the
gradients of both inputs count on both sides. The peer is `F.cross_entropy(x @ W.T, value)`, in fp32 and under bf16
autocast, in which it takes its softmax in fp32.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.bench.base import Figure, Reading
from unmask.errors import UserError
from unmask.train.devices import choose_precision, tune_process
from unmask.vocabulary import linear_cross_entropy

SIZES = {"tokens": 4096, "width": 256, "vocabulary": 131072}
SIZE = "size.json"
PASSES = 2
"""The first one's time is not counted, its memory is."""

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""States (n, d), table (V, d), values (n,) → the mean loss."""


def ours(x: Tensor, weight: Tensor, value: Tensor) -> Tensor:
    return linear_cross_entropy(x, weight, None, value, torch.ones(len(x))) / len(x)


def theirs(x: Tensor, weight: Tensor, value: Tensor) -> Tensor:
    return F.cross_entropy(x @ weight.T, value)


def inputs(folder: Path) -> tuple[nn.Parameter, nn.Parameter, Tensor]:
    """What both sides read: drawn anew from one seed, since the table alone would be a file of 134 MB."""
    size = json.loads((folder / SIZE).read_text(encoding="utf-8"))
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(size["tokens"], size["width"], generator=noise)
    weight = torch.randn(size["vocabulary"], size["width"], generator=noise).mul_(0.02)
    value = torch.randint(size["vocabulary"], (size["tokens"],), generator=noise)
    return nn.Parameter(x), nn.Parameter(weight), value


def resident(field: str) -> int:
    """Bytes by /proc/self/status. `ru_maxrss` will not do: a child's begins at its parent's size."""
    status = Path("/proc/self/status")
    if not status.exists():
        raise UserError("bench row loss-memory reads /proc/self/status, which only Linux has")
    line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


def forget_peak() -> None:
    """Let the high-water mark be what is resident now; where that is forbidden, importing may hide a lower peak."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def autocast(bf16: bool) -> AbstractContextManager[object]:
    return torch.autocast("cpu", torch.bfloat16, enabled=bf16)


def peak(loss: Loss, folder: Path, bf16: bool) -> Reading:
    """Megabytes above the inputs, and seconds of the last pass."""
    x, weight, value = inputs(folder)
    forget_peak()
    before = resident("VmRSS")
    found, seconds = 0.0, 0.0
    for _ in range(PASSES):
        x.grad = weight.grad = None
        began = time.perf_counter()
        with autocast(bf16):
            total = loss(x, weight, value)
        total.backward()  # type: ignore[no-untyped-call]
        seconds, found = time.perf_counter() - began, float(total.detach())
        del total
    precision, reason = choose_precision("auto", torch.device("cpu"), nn.ModuleDict({"table": _Table(weight)}))
    about = {"loss": found, "the library chooses": f"{precision} ({reason})"}
    return Reading((resident("VmHWM") - before) / 1e6, {"s": seconds}, about)


class _Table(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight


def _prepare(folder: Path) -> None:
    (folder / SIZE).write_text(json.dumps(SIZES), encoding="utf-8")


@torch.no_grad()
def _check(folder: Path) -> tuple[float, float]:
    x, weight, value = inputs(folder)
    return float(ours(x, weight, value)), float(theirs(x, weight, value))


def _ours(bf16: bool) -> Callable[[Path], Reading]:
    def read(folder: Path) -> Reading:
        tune_process()  # as a run does: what was freed stays resident
        return peak(ours, folder, bf16)

    return read


def _theirs(bf16: bool) -> Callable[[Path], Reading]:
    return lambda folder: peak(theirs, folder, bf16)


LOSS_MEMORY = Figure(
    "loss-memory",
    "memory of the loss above its inputs, forward and backward: 4,096 tokens, width 256, 131,072 words",
    "F.cross_entropy(x @ W.T): all logits",
    "MB",
    0.25,
    {"fp32": _ours(False), "bf16": _ours(True), "fp32 logits": _theirs(False), "bf16 autocast": _theirs(True)},
    _prepare,
    _check,
    peers=("fp32 logits", "bf16 autocast"),
    of_peer=True,
)
