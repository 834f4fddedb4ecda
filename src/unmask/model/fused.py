"""Elementwise parts of layers on a CPU, each with a backward pass of its own: fewer passes over memory than autograd's.

They equal their plain forms, which stand here too, to rounding, and have no second derivatives. Compilers fuse by
themselves, and GPUs have kernels for most: there the plain forms run.

Legend: B rows, T tokens, H heads, D head size, d features, I feed-forward size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

aten = torch.ops.aten


def fuses(x: Tensor) -> bool:
    """Whether these run on x in the place of the plain forms."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """w · x / rms(x) over the last dimension, rms(x)² = mean(x²) + ε (Zhang and Sennrich 2019, equation 4)."""
    if fuses(x):
        return _RMSNorm.apply(x, weight, eps)  # type: ignore[no-any-return, no-untyped-call]
    return F.rms_norm(x, x.shape[-1:], None if weight is None else weight.to(x.dtype), eps)


def rotate(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """x (B, T, H, D) turned by its position: dimension i is paired with i + R / 2 (Llama as in transformers).

    R = twice the angles' size (B, T, 1, R / 2); dimensions beyond the first R stay (GPT-NeoX turns a quarter of them).
    """
    cos, sin = (angle.to(x.dtype) for angle in angles)
    turned = 2 * cos.shape[-1]
    if fuses(x) and turned == x.shape[-1]:
        return _Rotation.apply(x, cos, sin)  # type: ignore[no-any-return, no-untyped-call]
    first, second = x[..., :turned].chunk(2, -1)
    parts = [first * cos - second * sin, second * cos + first * sin]
    return torch.cat(parts if turned == x.shape[-1] else [*parts, x[..., turned:]], -1)


def relu2(x: Tensor) -> Tensor:
    """max(x, 0)² (So et al. 2021, Primer)."""
    return _Relu2.apply(x) if fuses(x) else F.relu(x).square()  # type: ignore[no-any-return, no-untyped-call]


def gated(hidden: Tensor, name: str) -> Tensor:
    """act(gate) · up (…, I) of (…, 2 I) numbers, the gate first, by the name of a gated activation (Shazeer 2020)."""
    if fuses(hidden):
        return _Gated.apply(hidden, name)  # type: ignore[no-any-return, no-untyped-call]
    gate, up = hidden.chunk(2, -1)
    return GATES[name].function(gate) * up


# ---------------------------------------------------------------- with a backward pass of their own


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        wide = torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
        scale = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        y = x * scale
        return (y if weight is None else y.mul_(weight)).to(x.dtype)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """dx = s (w g) − x s³ mean(w g x), dw = Σ g x s, where s = 1 / rms(x)."""
        x, weight, scale = ctx.saved_tensors
        product = (gradient.to(scale.dtype) * x).reshape(-1, x.shape[-1])  # (N, d)
        if weight is None:
            dot, dweight = product.sum(-1), None
        else:
            dot = product.mv(weight.to(product.dtype))
            dweight = product.t().mv(scale.flatten()).to(weight.dtype)
        dx = gradient * scale
        if weight is not None:
            dx.mul_(weight)
        dx.addcmul_(x, scale.pow(3).mul_(dot.view_as(scale)).div_(x.shape[-1]), value=-1)
        return dx.to(x.dtype), dweight, None


class _Rotation(torch.autograd.Function):
    """Backwards they turn the other way.

    x · (cos, cos) + (second half, first half) · (−sin, sin). What comes out lies in memory as (B, H, T, D), which is
    how attention reads it, so that a position's D numbers meet those of its neighbours in one stretch.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        rows, length, heads, size = x.shape
        return _turned(x, cos, sin, x.new_empty(rows, heads, length, size).transpose(1, 2))

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _turned(gradient, cos, -sin, gradient.new_empty(gradient.shape)), None, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> Tensor:
    half = cos.shape[-1]
    swapped = torch.empty_like(out)
    swapped[..., :half] = x[..., half:]
    swapped[..., half:] = x[..., :half]
    torch.mul(x, torch.cat([cos, cos], -1), out=out)
    return out.addcmul_(swapped, torch.cat([-sin, sin], -1))


class _Relu2(torch.autograd.Function):
    """The derivative is 2 max(x, 0)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = x.relu()
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        return (gradient * positive).mul_(2)


class _Gated(torch.autograd.Function):
    """The gate is copied before it is worked on: functions (not products) are much slower on rows with gaps."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, name: str) -> Tensor:
        gate, up = hidden.chunk(2, -1)
        gate = gate.contiguous()
        opened = GATES[name].function(gate)
        ctx.save_for_backward(gate, up, opened)
        ctx.name = name
        return opened * up

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gate, up, opened = ctx.saved_tensors
        both = gradient.new_empty(*gradient.shape[:-1], 2 * gradient.shape[-1])
        of_gate, of_up = both.chunk(2, -1)
        of_gate.copy_(GATES[ctx.name].backward(gradient * up, gate))
        torch.mul(gradient, opened, out=of_up)
        return both, None


class Gate(NamedTuple):
    """An activation, and what makes its gradient of (gradient after it, what it was given)."""

    function: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]


GATES = {
    "swiglu": Gate(F.silu, aten.silu_backward),
    "geglu": Gate(F.gelu, aten.gelu_backward),
    "geglu_tanh": Gate(partial(F.gelu, approximate="tanh"), partial(aten.gelu_backward, approximate="tanh")),
    "reglu": Gate(F.relu, lambda gradient, x: aten.threshold_backward(gradient, x, 0)),
}
