from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from unmask import vocabulary
from unmask.batch import Examples, Head, Rows, Targets, full
from unmask.config import ModelConfig
from unmask.config.model import ExpertsConfig
from unmask.data.collate import collate
from unmask.loss import announced, forward_heads
from unmask.objectives import Causal, Masked
from unmask.objectives.base import LM
from unmask.objectives.show import toy
from unmask.vocabulary import linear_cross_entropy

N, D, V = 37, 8, 23
CHUNKS = [1, 5, 16, 37, 100]


def inputs(dtype: torch.dtype = torch.float64, n: int = N, v: int = V) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(s, generator=g, dtype=dtype) for s in ((n, D), (v, D), (v,)))
    value = torch.randint(v, (n,), generator=g)
    w = torch.rand(n, generator=g)
    w[::5] = 0
    return x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_(), value, w


def plain(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    value: torch.Tensor,
    w: torch.Tensor,
    cap: float | None = None,
) -> torch.Tensor:
    """The same sum, by the book: all logits at once."""
    logits = F.linear(x, weight, bias)
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    return (F.cross_entropy(logits, value, reduction="none") * w).sum()


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_equals_cross_entropy(
    dtype: torch.dtype, biased: bool, cap: float | None, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary, "_chunk", lambda v: chunk)
    x, weight, bias, value, w = inputs(dtype)
    learned = [x, weight, bias] if biased else [x, weight]
    ours = linear_cross_entropy(x, weight, bias if biased else None, value, w, cap)
    theirs = plain(x, weight, bias if biased else None, value, w, cap)
    tolerance = {"rtol": 1e-10, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-5}
    assert ours.dtype == dtype
    torch.testing.assert_close(ours, theirs, check_dtype=False, **tolerance)
    # The gradient of 3 · loss: what comes from above is not forgotten.
    mine, want = torch.autograd.grad(3 * ours, learned), torch.autograd.grad(3 * theirs, learned)
    for a, b in zip(mine, want, strict=True):
        torch.testing.assert_close(a, b, **tolerance)


@pytest.mark.parametrize("weights", [1.0, 0.25])
@pytest.mark.parametrize("v", [1, 5, 31, 32, 33, 700])
def test_few_words_at_once_and_weights_of_one(v: int, weights: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of 7 words, blocks of 5 rows that share their memory, and no pass over the gradient for weights of 1."""
    monkeypatch.setattr(vocabulary, "WORDS", 7)
    monkeypatch.setattr(vocabulary, "_block", lambda v: 5)
    x, weight, bias, value, _ = inputs(torch.float32, v=v)
    w = torch.full((N,), weights)
    w[N // 2] = 1.0
    found = [loss(x, weight, bias, value, w) for loss in (linear_cross_entropy, plain)]
    torch.testing.assert_close(*found)
    for ours, theirs in zip(*(torch.autograd.grad(total, (x, weight, bias)) for total in found), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_the_gradients_of_a_step_are_scaled_in_their_place() -> None:
    """A new table for every factor would be as large as the model's largest parameter."""
    x, weight, bias, value, w = inputs()
    total = linear_cross_entropy(x, weight, bias, value, w) / 3
    held = {t.data_ptr() for t in total.grad_fn.next_functions[0][0].saved_tensors}  # type: ignore[union-attr]
    found = torch.autograd.grad(total, (x, weight, bias))
    assert {g.data_ptr() for g in found} == held


@pytest.mark.parametrize("cap", [None, 1.5])
def test_gradcheck(cap: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "_chunk", lambda v: 4)
    x, weight, bias, value, w = inputs(n=9, v=6)
    w = w.double()
    assert torch.autograd.gradcheck(lambda a, b, c: linear_cross_entropy(a, b, c, value, w, cap), (x, weight, bias))


def test_the_graph_can_be_kept_and_a_second_derivative_is_refused() -> None:
    x, weight, bias, value, w = inputs()
    total = 3 * linear_cross_entropy(x, weight, bias, value, w)
    first = torch.autograd.grad(total, (x, weight), retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(total, (x, weight))))
    (g,) = torch.autograd.grad(linear_cross_entropy(x, weight, bias, value, w), x, create_graph=True)
    with pytest.raises(RuntimeError):
        g.sum().backward()


def test_frozen_parts_get_no_gradient() -> None:
    x, weight, bias, value, w = inputs()
    linear_cross_entropy(x.detach(), weight, bias.detach(), value, w).backward()
    assert weight.grad is not None and x.grad is None and bias.grad is None


def test_o04_no_targets_and_only_padding_give_a_finite_zero_with_a_graph() -> None:
    x, weight, bias, value, w = inputs()
    for n in (0, N):
        total = linear_cross_entropy(x[:n], weight, bias, value[:n], w[:n] * 0)
        total.backward()
        assert total.item() == 0 and not weight.grad.any() and not bias.grad.any()


@pytest.mark.parametrize("shift", [-1e4, 1e4])
def test_large_logits_overflow_nothing(shift: float) -> None:
    x, weight, bias, value, w = inputs(torch.float32)
    a, b = (f(x * 100, weight, bias + shift, value, w) for f in (linear_cross_entropy, plain))
    assert torch.isfinite(a)
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-2)


# ---------------------------------------------------------------- reduced precision


def reduced(n: int = 4000, v: int = 50) -> tuple[torch.Tensor, ...]:
    return inputs(torch.float32, n, v)


def test_bf16_autocast_sums_in_fp32() -> None:
    x, weight, bias, value, w = reduced()
    exact = plain(x.double(), weight.double(), bias.double(), value, w.double())
    want = torch.autograd.grad(exact, (x, weight, bias))
    with torch.autocast("cpu", torch.bfloat16):
        total = linear_cross_entropy(x, weight, bias, value, w)
    assert total.dtype == torch.float32
    # Only the products are rounded: softmax and sums are those of fp32.
    logits = (x.bfloat16() @ weight.bfloat16().t()).float() + bias
    by_hand = (F.cross_entropy(logits, value, reduction="none") * w).sum()
    assert total.item() == pytest.approx(by_hand.item(), rel=4e-7)
    dx, by_hand_dx = (torch.autograd.grad(t, x, retain_graph=True)[0] for t in (total, by_hand))
    assert ((dx - by_hand_dx).norm() / by_hand_dx.norm()).item() < 1e-3
    # A bf16 sum of thousands would be off by a per cent; the rounding of products averages out.
    assert total.item() == pytest.approx(exact.item(), rel=1e-3)
    for a, b in zip(torch.autograd.grad(total, (x, weight, bias)), want, strict=True):
        assert a.dtype == torch.float32 and ((a - b).norm() / b.norm()).item() < 1e-2


def test_bf16_gradients_do_not_lose_bits_with_the_number_of_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias, value, w = reduced()
    want = torch.autograd.grad(plain(x.double(), weight.double(), bias.double(), value, w.double()), weight)[0]

    def error(chunk: int) -> float:
        monkeypatch.setattr(vocabulary, "_chunk", lambda v: chunk)
        with torch.autocast("cpu", torch.bfloat16):
            total = linear_cross_entropy(x, weight, bias, value, w)
        got = torch.autograd.grad(total / 1000, weight)[0]
        return ((got * 1000 - want).norm() / want.norm()).item()

    assert error(16) < 1.5 * error(4000)


# ---------------------------------------------------------------- cost


class Largest(TorchDispatchMode):
    """Remembers the most elements that any tensor had, and how many matrix products were made."""

    def __init__(self) -> None:
        super().__init__()
        self.elements, self.products = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        self.products += any(k in str(func) for k in ("aten.mm", "aten.addmm"))
        for t in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(t, torch.Tensor):
                self.elements = max(self.elements, t.numel())
        return out


def test_logits_exist_in_chunks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "_chunk", lambda v: 10)
    x, weight, bias, value, w = inputs(torch.float32, n=500, v=300)
    with Largest() as ours:
        linear_cross_entropy(x, weight, bias, value, w).backward()
    with Largest() as theirs:
        plain(x, weight, bias, value, w).backward()
    assert theirs.elements == 500 * 300 and ours.elements <= max(10 * 300, 500 * D, 300 * D)


def test_a_chunk_is_128_megabytes_at_most_and_a_block_two() -> None:
    assert vocabulary._chunk(1 << 17) * (1 << 17) * 2 == 1 << 27  # in bf16
    assert vocabulary._chunk(10) == 1024 and vocabulary._chunk(10**9) == 32
    assert vocabulary._block(1 << 15) * (1 << 15) * 4 == 1 << 21 and vocabulary._block(10**9) == 1


def test_evaluation_makes_no_gradients() -> None:
    x, weight, bias, value, w = inputs()
    with torch.no_grad(), Largest() as quiet:
        total = linear_cross_entropy(x, weight, bias, value, w)
    assert not total.requires_grad and quiet.products == 1


# ---------------------------------------------------------------- accumulation


class Linear(torch.nn.Module):
    """A network of a table and one head over the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.table = torch.nn.Parameter(torch.randn(100, D, generator=g))
        self.weight = torch.nn.Parameter(torch.randn(100, D, generator=g))
        self.heads = {
            "lm": SimpleNamespace(
                projection=lambda: (self.weight, None, 1.0, None), features=lambda x, extra: x.reshape(len(x), -1)
            )
        }

    def forward(self, batch: object, generator: object = None, at: object = None) -> dict[str, torch.Tensor]:
        return {"stream": self.table[batch.stream.tokens.long()]}


def test_o25_micro_batches_of_3_and_97_targets_equal_one_batch() -> None:
    lengths = [3, 50, 47]
    parts = [[0], [1, 2]]
    texts = [np.random.default_rng(k).integers(5, 90, n) for k, n in enumerate(lengths)]

    def gradients(groups: list[list[int]]) -> tuple[float, torch.Tensor]:
        network = Linear()
        batches = []
        for group in groups:
            rows = Rows.of([texts[i] for i in group], ends=np.zeros(len(group), bool))
            batches.append(collate({"c": Causal()(rows, toy())}, {"c": [LM]}).map(torch.from_numpy))
        norm = sum(b.norms()["c", "lm"] for b in batches)
        assert norm == 100
        value = 0.0
        for b in batches:
            term = forward_heads({"model": network}, b)["c", "lm"]
            part = term.coefficient * term.sum / norm
            part.backward()
            value += part.item()
        return value, torch.cat([network.table.grad, network.weight.grad])

    one, two = gradients([[0, 1, 2]]), gradients(parts)
    assert one[0] == pytest.approx(two[0], rel=1e-6)
    torch.testing.assert_close(one[1], two[1], rtol=1e-5, atol=1e-6)


def test_padding_targets_change_nothing() -> None:
    rows = Rows.of([range(11, 28)])
    batch = collate({"m": Masked(mask_rate=0.3)(rows, toy())}, {"m": [LM]}).map(torch.from_numpy)
    t = batch.targets["m", "lm"]
    assert t.weight.sum() < len(t.weight)
    term = forward_heads({"model": Linear()}, batch)["m", "lm"]
    real = t.weight > 0
    network = Linear()
    logits = network.table[batch.stream.tokens.reshape(-1)[t.index[real]].long()] @ network.weight.t()
    torch.testing.assert_close(term.sum, F.cross_entropy(logits, t.value[real], reduction="sum"))
    assert term.norm == real.sum()


def test_a_choice_of_position_follows_its_token_into_a_packed_row() -> None:
    # Two questions in one row: the answer of each is a token of its own block.
    rows = Rows.of([[11, 12, 13], [21, 22, 23, 24]])
    e = Examples(full(rows.tokens, rows.start), {"span": Targets.at(rows.start[:-1], np.array([2, 4]))})
    from unmask.data.collate import pack
    from unmask.objectives.base import Shape, Sizes

    head = Head("span", "positions")
    place = pack(Sizes(rows.lengths), Shape(8))
    batch = collate({"q": e}, {"q": [head]}, place, shape=Shape(8)).map(torch.from_numpy)
    t = batch.targets["q", "span"]
    assert batch.stream.tokens[0, t.value[:2]].tolist() == [13, 22]
    network = Linear()
    score = torch.randn(D, 1)
    network.heads["span"] = SimpleNamespace(
        features=lambda x, extra: x.reshape(len(x), -1), project=lambda f: f @ score
    )
    term = forward_heads({"model": network}, batch)["q", "span"]
    of = lambda ids: (network.table[ids] @ score)[:, 0].log_softmax(0)
    hand = -(of([11, 12, 13])[2] + of([21, 22, 23, 24])[1])
    torch.testing.assert_close(term.sum, hand)


# ---------------------------------------------------------------- a router's losses


class Routed(Linear):
    """The same with a router's balance and z-loss, learned numbers of their own here."""

    def __init__(self, **coefficients: float) -> None:
        super().__init__()
        self.config = ModelConfig(experts=ExpertsConfig(**coefficients))
        self.router = torch.nn.Parameter(torch.tensor([1.5, 4.0]))

    def forward(self, batch: object, generator: object = None, at: object = None) -> dict[str, torch.Tensor]:
        return {**super().forward(batch), "router": self.router}


def test_a_network_that_routes_adds_its_losses_under_its_own_name() -> None:
    rows = Rows.of([range(11, 28)])
    heads = [LM, replace(LM, name="other", network="second"), replace(LM, name="again", network="second")]
    targets = Causal()(rows, toy())
    targets = replace(targets, targets={h.name: targets.targets["lm"] for h in heads})
    batch = collate({"c": targets}, {"c": heads}).map(torch.from_numpy)
    second = Routed(balance_loss=0.01, z_loss=0.001)
    second.heads = {name: second.heads["lm"] for name in ("other", "again")}
    routed = 4.0 * batch.counts()["tokens"]  # four layers
    terms = forward_heads({"model": Routed(balance_loss=0.02), "second": second}, batch)
    found = {k: (float(t.sum.detach()), t.norm, t.coefficient) for k, t in terms.items() if k[0] != "c"}
    assert found == {
        ("model", "balance"): (1.5, 1.0, 0.02),  # no coefficient, no term
        ("second", "balance"): (1.5, 1.0, 0.01),
        ("second", "router_z"): (4.0 * routed, routed, 0.001),
    }
    assert announced({"model": Routed(balance_loss=0.02), "second": second}, batch) == {
        **batch.norms(),
        ("second", "router_z"): routed,
    }
    sum(t.sum / t.norm * t.coefficient for k, t in terms.items() if k[0] == "second").backward()
    torch.testing.assert_close(second.router.grad, torch.tensor([0.01, 0.001]))
    silent = forward_heads({"model": Routed(), "second": second}, batch)
    assert ("model", "balance") not in silent and ("model", "router_z") not in silent
