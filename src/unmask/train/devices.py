"""Where and in what precision a step runs. The choices are rules, not timings, and carry their reason."""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from unmask.batch import Array, Batch
from unmask.errors import UserError

Precision = Literal["auto", "fp32", "bf16"]

BF16_WIDTH = 64
"""Hidden size from which bf16 autocast is chosen on a CPU with bf16 instructions.

Below it the casts cost what the products save; `precision=fp32|bf16` decides otherwise."""


def choose_device(name: str = "auto") -> torch.device:
    """`auto` is the first GPU, else the CPU; anything else must exist."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device={name} is not available here: use device=auto, or cpu") from error
    return device


def choose_precision(asked: Precision, device: torch.device, networks: nn.ModuleDict) -> tuple[str, str]:
    """("fp32" or "bf16", why). `bf16` means autocast: weights, their gradients and the optimizer stay fp32."""
    if asked not in get_args(Precision):
        raise UserError(f"precision={asked} is not known: give {', '.join(get_args(Precision))}")
    if asked != "auto":
        return asked, "as asked"
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16", "auto: the GPU has bf16 units"
        return "fp32", "auto: the GPU has no bf16 units"
    if device.type != "cpu":
        return "fp32", f"auto: fp32 on {device.type}"
    has = torch.cpu.get_capabilities()
    units = [name for name in ("amx_bf16", "avx512_bf16") if has.get(name)]
    if not units:
        return "fp32", "auto: the CPU has neither amx_bf16 nor avx512_bf16"
    width = hidden_size(networks)
    if width < BF16_WIDTH:
        return "fp32", f"auto: at width {width} (below {BF16_WIDTH}) casting costs more than {units[0]} gains"
    return "bf16", f"auto: the CPU has {units[0]} and the width {width} is at least {BF16_WIDTH}"


def hold(network: nn.Module, precision: Precision, device: torch.device) -> nn.Module:
    """Move a network that is only asked to a device, its weights rounded to bf16 where that is its precision."""
    chosen, _ = choose_precision(precision, device, nn.ModuleDict({"model": network}))
    return network.to(device, torch.bfloat16 if chosen == "bf16" else None)


def hidden_size(networks: nn.ModuleDict) -> int:
    """The widest network's width, read off its matrices: the largest smaller side of one."""
    return max((min(p.shape) for p in networks.parameters() if p.ndim == 2), default=0)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The numpy batch as tensors on the device."""

    def move(a: Array) -> Tensor:
        # Broadcast views (stride 0, read-only) become real arrays: torch warns about and may write to them.
        return torch.from_numpy(np.require(a, requirements=["C", "W"])).to(device, non_blocking=True)

    return batch.map(move)


def doubled(x: Tensor) -> Tensor:
    """In fp64: on the CPU where the device has none (MPS)."""
    return x.cpu().double() if x.device.type == "mps" else x.double()


@contextmanager
def missing_explained(device: torch.device) -> Iterator[None]:
    """An operation that a device lacks, as a sentence; on CPU and CUDA such an error is ours and stays as it is."""
    try:
        yield
    except (NotImplementedError, TypeError) as error:
        if device.type in ("cpu", "cuda"):
            raise
        said = " ".join(str(error).split()).split(". ")[0]
        advice = "set PYTORCH_ENABLE_MPS_FALLBACK=1, which computes it on the CPU, or " if device.type == "mps" else ""
        raise UserError(
            f"device={device.type} lacks an operation of this run ({said}): {advice}use device=cpu"
        ) from error


@contextmanager
def at_rest(networks: nn.Module, device: torch.device) -> Iterator[None]:
    """Without gradients, in evaluation mode; modes and the global generator are afterwards what they were."""
    gpus = [device.index or 0] if device.type == "cuda" else []
    modes = [(module, module.training) for module in networks.modules()]
    try:
        with torch.no_grad(), torch.random.fork_rng(gpus):
            networks.eval()
            yield
    finally:
        for module, training in modes:
            module.training = training


def tune_process() -> bool:
    """Let the C library keep large freed arrays instead of returning them to the kernel; True where it took.

    glibc serves arrays of 128 kB and more by mmap and gives them back when freed, so each step pays page faults
    again, which slows numpy batches and small training steps.
    Call it once when a run starts. Elsewhere than on glibc it does nothing.
    """
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(ctypes.util.find_library("c"))
    if not hasattr(library, "mallopt"):
        return False
    m_trim_threshold, m_mmap_threshold = -1, -3  # malloc.h
    return bool(library.mallopt(m_mmap_threshold, 1 << 30)) and bool(library.mallopt(m_trim_threshold, (1 << 31) - 1))
