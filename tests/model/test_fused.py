"""Elementwise parts with a backward pass of their own: equal to their plain forms, values and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from unmask.model import fused
from unmask.model.fused import GATES, gated, relu2, rms_norm, rotate
from unmask.model.positions import rotary


def drawn(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64).to(dtype)


def turned(x: Tensor) -> Tensor:
    """As layers do it: some heads of a fused projection, at other positions in each row."""
    positions = torch.arange(x.shape[1])[None] + torch.tensor([[0], [7], [30]])
    return rotate(x[:, :, 1:3], rotary(positions, 6, 100.0, x.dtype))


CASES: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "rms": (lambda x, w: rms_norm(x, w, 1e-6), (drawn(3, 5, 8), drawn(8))),
    "rms, no weight": (lambda x: rms_norm(x, None, 1e-3), (drawn(3, 5, 8),)),
    "rms, heads": (lambda x, w: rms_norm(x[:, :, 1:3], w, 1e-6), (drawn(3, 5, 4, 6), drawn(6))),
    "rms, one vector": (lambda x, w: rms_norm(x, w, 1e-6), (drawn(8), drawn(8))),
    "rotate": (turned, (drawn(3, 5, 4, 6),)),
    "relu2": (relu2, (drawn(3, 5, 8),)),
    **{name: ((lambda x, name=name: gated(x, name)), (drawn(3, 5, 14),)) for name in GATES},
}


def answer(
    function: Callable[..., Tensor], given: tuple[Tensor, ...], dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """The function's value, and its gradients along one direction."""
    inputs = [t.to(dtype).requires_grad_() for t in given]
    value = function(*inputs)
    assert value.dtype == dtype
    return [value, *torch.autograd.grad(value, inputs, drawn(*value.shape, dtype=dtype))]


@pytest.mark.parametrize("name", CASES)
def test_equal_to_the_plain_form(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, given = CASES[name]
    ours, rounded = answer(function, given), answer(function, given, torch.bfloat16)
    monkeypatch.setattr(fused, "fuses", lambda x: False)
    plain, coarse = answer(function, given), answer(function, given, torch.bfloat16)
    assert "Backward" in str(function(*(t.requires_grad_() for t in given)).grad_fn)
    for a, b, c, d in zip(ours, plain, rounded, coarse, strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-12)
        worst = float(((d.double() - b).norm() / b.norm()).detach())
        assert float(((c.double() - b).norm() / b.norm()).detach()) <= 1.5 * worst + 1e-3


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_differences(name: str) -> None:
    function, given = CASES[name]
    assert torch.autograd.gradcheck(function, [t.detach().clone().requires_grad_() for t in given])


def test_a_rotation_lies_as_attention_reads_it() -> None:
    assert turned(drawn(3, 5, 4, 6)).transpose(1, 2).is_contiguous()


def test_zeros_and_rows_without_a_place_stay_finite() -> None:
    x = torch.zeros(2, 3, 4, requires_grad=True)
    y = rms_norm(x, torch.ones(4), 1e-6)
    y.sum().backward()
    assert x.grad is not None and bool(x.grad.isfinite().all()) and not y.any()
    assert rms_norm(torch.zeros(0, 3, 4), None, 1e-6).shape == (0, 3, 4)
    assert gated(torch.zeros(2, 0, 6), "swiglu").shape == (2, 0, 3)


def test_a_graph_that_is_compiled_has_the_plain_forms() -> None:
    """A compiler fuses by itself; a function of our own would be a wall to it."""
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Tensor]:
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    work = torch.compile(lambda x, w: relu2(rms_norm(x, w, 1e-6)), backend=backend, fullgraph=True)
    given = drawn(3, 8), drawn(8)
    assert torch.allclose(work(*given), relu2(rms_norm(given[0], given[1], 1e-6)))
    assert any("rms_norm" in name for name in seen)


@pytest.mark.parametrize("ours", [True, False])
def test_a_rotation_keeps_its_type_whatever_the_angles_have(ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not ours:
        monkeypatch.setattr(fused, "fuses", lambda x: False)
    angles = rotary(torch.arange(5)[None], 6, 100.0, torch.float32)
    assert rotate(drawn(1, 5, 2, 6, dtype=torch.bfloat16), angles).dtype == torch.bfloat16
