"""Experts against the common library's blocks, outputs and gradients; capacity and losses against loops."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DeepseekV3Config, MixtralConfig, SwitchTransformersConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.switch_transformers.modeling_switch_transformers import SwitchTransformersSparseMLP

from unmask.config import ModelConfig, TrainConfig
from unmask.model.experts import Experts, within_capacity
from unmask.train.optim import Optimizer, split

D, WIDTH, E = 16, 24, 6


def drawn(module: Any, seed: int = 0) -> Any:
    """Every parameter and buffer N(0, 0.3), in fp64."""
    g = torch.Generator().manual_seed(seed)
    module = module.double()
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            tensor.copy_(0.3 * torch.randn(tensor.shape, generator=g, dtype=torch.float64))
    return module


def experts(seed: int = 0, model: dict[str, Any] | None = None, **settings: Any) -> Experts:
    about = {"hidden_size": D, "num_heads": 2, "intermediate_size": WIDTH, "activation": "swiglu", "mlp_bias": False}
    config = ModelConfig(**{**about, **(model or {}), "experts": {"count": E, **settings}})
    return drawn(Experts(config), seed)


def states(rows: int = 3, length: int = 11, seed: int = 1) -> Tensor:
    return torch.randn(rows, length, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def compare(ours: Experts, theirs: nn.Module, pairs: list[tuple[Tensor, Tensor]], tolerance: float) -> None:
    """Equal outputs, and equal gradients of the input and of each pair (ours, theirs) of parameters."""
    x = states().requires_grad_()
    x2 = x.detach().clone().requires_grad_()
    up = states(seed=2)
    y, y2 = ours(x)[0], theirs(x2)
    torch.testing.assert_close(y, y2, rtol=tolerance, atol=tolerance)
    y.backward(up)
    y2.backward(up)
    torch.testing.assert_close(x.grad, x2.grad, rtol=tolerance, atol=tolerance)
    for a, b in pairs:
        assert a.grad is not None and b.grad is not None and a.grad.abs().max() > 0
        torch.testing.assert_close(a.grad, b.grad, rtol=tolerance, atol=tolerance)


def copied(pairs: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    with torch.no_grad():
        for a, b in pairs:
            a.copy_(b)
    return pairs


@pytest.mark.parametrize("per_token", [1, 2, 3])
def test_equals_mixtral(per_token: int) -> None:
    """Their softmax is in fp32 even here, hence 1e-6."""
    config = MixtralConfig(
        hidden_size=D,
        intermediate_size=WIDTH,
        num_local_experts=E,
        num_experts_per_tok=per_token,
        num_attention_heads=2,
    )
    config._experts_implementation = "eager"
    theirs, ours = drawn(MixtralSparseMoeBlock(config)), experts(5, per_token=per_token)
    pairs = [(ours.up, theirs.experts.gate_up_proj), (ours.down, theirs.experts.down_proj)]
    pairs = copied([*pairs, (ours.router.weight, theirs.gate.weight)])
    compare(ours, theirs, pairs if per_token > 1 else pairs[:2], 1e-6)  # one renormalised gate is 1: no gradient


@pytest.mark.parametrize("capacity", [1, 2, 3, 11])
@pytest.mark.parametrize("share", [True, False])
def test_equals_switch_with_its_dropped_tokens(share: bool, capacity: int) -> None:
    config = SwitchTransformersConfig(d_model=D, d_ff=WIDTH, num_experts=E, expert_capacity=capacity, router_bias=True)
    theirs = drawn(SwitchTransformersSparseMLP(config).eval())
    theirs.router.dtype = torch.float64
    factor = (capacity - 0.5) * E / states().shape[1]  # whose ceiling over a row is `capacity`
    limit: dict[str, Any] = {"capacity_factor": factor} if share else {"capacity": capacity}
    ours = experts(model={"activation": "relu"}, per_token=1, normalise=False, router_bias=True, **limit)
    with torch.no_grad():
        for i, expert in enumerate(theirs.experts.values()):
            ours.up[i], ours.down[i] = expert.wi.weight, expert.wo.weight
    classifier = theirs.router.classifier
    compare(ours, theirs, copied([(ours.router.weight, classifier.weight), (ours.router.bias, classifier.bias)]), 1e-12)
    for i, expert in enumerate(theirs.experts.values()):
        for mine, other in ((ours.up, expert.wi.weight), (ours.down, expert.wo.weight)):
            torch.testing.assert_close(mine.grad[i], torch.zeros_like(other) if other.grad is None else other.grad)
    dropped = (ours(states())[0] == 0).all(-1)
    assert bool(dropped.any()) == (capacity < 11)


@pytest.mark.parametrize("normalise", [True, False])
def test_equals_deepseek_v3(normalise: bool) -> None:
    """Groups, sigmoids, the bias that only chooses, shared experts and the scale; their router is in fp32."""
    config = DeepseekV3Config(
        hidden_size=D, moe_intermediate_size=WIDTH, n_routed_experts=12, num_experts_per_tok=3, n_group=4, topk_group=2,
        n_shared_experts=2, routed_scaling_factor=2.5, norm_topk_prob=normalise,
    )  # fmt: skip
    config._experts_implementation = "eager"
    theirs = drawn(DeepseekV3MoE(config))
    ours = experts(
        count=12, per_token=3, groups=4, groups_kept=2, shared=2, scale=2.5, normalise=normalise, router="sigmoid",
        balance_bias=True,
    )  # fmt: skip
    both = theirs.shared_experts
    with torch.no_grad():
        ours.shared.up.weight.copy_(torch.cat([both.gate_proj.weight, both.up_proj.weight]))
        ours.balance_bias.copy_(theirs.gate.e_score_correction_bias)
    unbiased = ours(states())[1].balance
    pairs = [(ours.up, theirs.experts.gate_up_proj), (ours.down, theirs.experts.down_proj)]
    pairs += [(ours.router.weight, theirs.gate.weight), (ours.shared.down.weight, both.down_proj.weight)]
    compare(ours, theirs, copied(pairs), 2e-6)
    gate, up = ours.shared.up.weight.grad.chunk(2)
    torch.testing.assert_close(gate, both.gate_proj.weight.grad, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(up, both.up_proj.weight.grad, rtol=2e-6, atol=2e-6)
    assert ours.balance_bias.grad is None and not ours.balance_bias.requires_grad
    with torch.no_grad():
        ours.balance_bias.zero_()
    assert ours(states())[1].balance != unbiased  # the bias did choose


# ---------------------------------------------------------------- capacity


def full_loop(chosen: list[list[list[int]]], count: int, factor: float, most: int = 99) -> list[list[list[int]]]:
    """GShard's algorithm 1 by the letter, for each row."""
    out = [[list(token) for token in row] for row in chosen]
    for row in out:
        k = len(row[0])
        capacity = math.ceil(round(factor * sum(t[0] != count for t in row) * k / count, 9))
        capacity = min(capacity, most)
        taken = [0] * count
        for choice in range(k):
            for token in row:
                if (e := token[choice]) != count:
                    if taken[e] < capacity:
                        taken[e] += 1
                    else:
                        token[choice] = count
    return out


@pytest.mark.parametrize("factor", [0.3, 0.5, 1.0, 1.25, 1.1, 9.0])
def test_capacity_equals_a_loop(factor: float) -> None:
    g = torch.Generator().manual_seed(3)
    dropped = 0
    for k in (1, 2, 3):
        chosen = torch.rand(4, 13, E, generator=g).argsort(-1)[..., :k]
        chosen[1, 8:] = chosen[2, :3] = chosen[3] = E  # padding right, left, everywhere
        ours = within_capacity(chosen, E, factor)
        assert ours.tolist() == full_loop(chosen.tolist(), E, factor)
        assert within_capacity(chosen, E, factor, 2).tolist() == full_loop(chosen.tolist(), E, factor, 2)
        dropped += int((ours != chosen).sum())
    assert (dropped > 0) == (factor < 2)


def test_a_whole_capacity_is_not_rounded_up() -> None:
    """Factor 1.1 · 100 tokens / 10 experts is 11 places, not the 12 that 11.000000000000002 would give."""
    assert math.ceil(1.1 * 100 / 10) == 12
    chosen = within_capacity(torch.zeros(1, 100, 1, dtype=torch.long), 10, 1.1)
    assert chosen.flatten().tolist() == [0] * 11 + [10] * 89


def looped(m: Experts, x: Tensor, real: Tensor) -> Tensor:
    """One token and one expert at a time, with capacity: softmax, two experts, renormalised, biases, gelu."""
    y = torch.zeros_like(x)
    e = m.settings
    for b in range(len(x)):
        capacity = math.ceil(e.capacity_factor * int(real[b].sum()) * e.per_token / e.count)
        taken = [0] * e.count
        p = (x[b] @ m.router.weight.t()).softmax(-1)
        best = p.topk(e.per_token).indices
        for choice in range(e.per_token):
            for t in range(x.shape[1]):
                i = int(best[t, choice])
                if not real[b, t] or taken[i] >= capacity:
                    continue
                taken[i] += 1
                hidden = nn.functional.gelu(m.up[i] @ x[b, t] + m.up_bias[i])
                y[b, t] += p[t, i] / p[t, best[t]].sum() * (m.down[i] @ hidden + m.down_bias[i])
    return y


def test_layer_with_capacity_biases_and_padding_equals_a_loop() -> None:
    m = experts(model={"activation": "gelu", "mlp_bias": True}, capacity_factor=0.75)
    x = states()
    real = torch.ones(3, 11, dtype=torch.bool)
    real[0, 7:] = real[2, :4] = False
    y, _ = m(x, real)
    expected = looped(m, x, real)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    assert not torch.equal(m(x)[0], y)
    names = [n for n, p in m.named_parameters() if p.requires_grad]
    mine = torch.autograd.grad((y * states(seed=4)).sum(), list(m.parameters()))
    hand = torch.autograd.grad((expected * states(seed=4)).sum(), list(m.parameters()))
    for name, a, b in zip(names, mine, hand, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12, msg=name)


# ---------------------------------------------------------------- independence


@pytest.mark.parametrize("capacity", [None, 0.75])
def test_a_batch_equals_its_rows_and_padding_changes_nothing(capacity: float | None) -> None:
    m = experts(capacity_factor=capacity, shared=1)
    x, lengths = states(), [11, 6, 9]
    real = torch.arange(11) < torch.tensor(lengths)[:, None]
    y, routing = m(x, real)
    for b, n in enumerate(lengths):
        torch.testing.assert_close(y[b, :n], m(x[b : b + 1, :n])[0][0], rtol=1e-12, atol=1e-12)
    assert not y[~real].any() and y[real].all()
    other = torch.where(real[..., None], x, 1e3 * states(seed=9)).requires_grad_()
    y2, routing2 = m(other, real)
    assert torch.equal(y, y2) and torch.equal(torch.stack(routing), torch.stack(routing2))
    (y2.sum() + routing2.balance + routing2.z).backward()
    assert not other.grad[~real].any() and other.grad[real].all()
    left, routing3 = m(x.flip(1), real.flip(1))
    if capacity is None:  # capacity is given out in the order of positions
        torch.testing.assert_close(left.flip(1), y, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.stack(routing3), torch.stack(routing), rtol=1e-12, atol=1e-12)


def test_nothing_real_gives_zeros_and_finite_gradients() -> None:
    m = experts(capacity_factor=1.0)
    x = states().requires_grad_()
    y, routing = m(x, torch.zeros(3, 11, dtype=torch.bool))
    assert not y.any() and routing.balance == 0 and routing.z == 0
    (y.sum() + routing.balance + routing.z).backward()
    assert x.grad is not None and not x.grad.any()


# ---------------------------------------------------------------- the router's losses


@pytest.mark.parametrize("per_token", [1, 2])
def test_balance_is_1_when_even_and_E_when_one_expert_takes_all(per_token: int) -> None:
    m = experts(per_token=per_token)
    with torch.no_grad():
        m.router.weight.zero_()
    x = torch.zeros(1, E, D, dtype=torch.float64)
    routing = m(x)[1]
    torch.testing.assert_close(routing.balance, torch.ones_like(routing.balance))
    torch.testing.assert_close(routing.z, torch.full_like(routing.z, math.log(E) ** 2))
    with torch.no_grad():
        m.router.weight[:, 0] = 100 * torch.eye(E, dtype=torch.float64)[0]
    x[..., 0] = 1.0
    torch.testing.assert_close(m(x)[1].balance, torch.full_like(routing.balance, E / per_token))


@pytest.mark.parametrize("router", ["softmax", "sigmoid"])
def test_losses_equal_their_equations(router: str) -> None:
    m = experts(router=router, per_token=2, capacity_factor=0.5)
    x = states()
    real = torch.rand(3, 11, generator=torch.Generator().manual_seed(0)) < 0.7
    logits = x[real] @ m.router.weight.t()
    p = logits.softmax(-1) if router == "softmax" else logits.sigmoid() / logits.sigmoid().sum(-1, keepdim=True)
    f = nn.functional.one_hot(p.topk(2).indices, E).double().sum((0, 1)) / (2 * len(p))
    routing = m(x, real)[1]
    torch.testing.assert_close(routing.balance, E * (f * p.mean(0)).sum())
    torch.testing.assert_close(routing.z, logits.exp().sum(-1).log().square().mean())


def test_gradient_reaches_the_router_from_the_answer_and_from_each_loss() -> None:
    m = experts()
    y, routing = m(states())
    for value in (y.square().sum(), routing.balance, routing.z):
        (g,) = torch.autograd.grad(value, m.router.weight, retain_graph=True)
        assert (g.abs().sum(1) > 0).all()


def test_descent_on_the_balance_loss_evens_the_load() -> None:
    m = experts(per_token=1, normalise=False)
    x = states(rows=8) + 0.7
    with torch.no_grad():
        m.router.weight[0] += 0.2  # the favourite
    optimizer = torch.optim.SGD([m.router.weight], 0.02)
    before = m(x)[1].balance.item()
    for _ in range(100):
        optimizer.zero_grad()
        m(x)[1].balance.backward()
        optimizer.step()
    assert before > 2 and m(x)[1].balance.item() < 1.2


def test_under_autocast_the_router_stays_in_fp32() -> None:
    m = experts(shared=1, capacity_factor=1.0).float()
    x = states(rows=20).float()
    with torch.autocast("cpu", torch.bfloat16):
        y, routing = m(x)
    plain, exact = m(x)
    assert y.dtype == torch.bfloat16 and routing.balance.dtype == torch.float32
    assert torch.equal(torch.stack(routing), torch.stack(exact))
    assert (y - plain).norm() < 0.02 * plain.norm()
    (y.float().sum() + routing.z).backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in m.parameters())


def test_only_as_many_products_as_tokens_are_sent() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    m, x = experts(per_token=2), states()
    with FlopCounterMode(display=False) as counter:
        m(x)
    assert counter.get_total_flops() == 33 * (2 * E * D + 2 * 2 * 3 * D * WIDTH)


# ---------------------------------------------------------------- optimizers


def test_muon_moves_each_expert_as_a_matrix_of_its_own() -> None:
    config = TrainConfig(optimizer="muon", weight_decay=0.1)
    together = nn.ModuleDict({"layers": experts(shared=1, model={"mlp_bias": True}).float()})
    apart = nn.ParameterDict()
    for name in ("up", "down"):
        for i, matrix in enumerate(getattr(together["layers"], name).detach().unbind()):
            for j, part in enumerate(matrix.chunk(2) if name == "up" else [matrix]):
                apart[f"{name}_{i}_{j}"] = nn.Parameter(part.clone())
    muon, adam = split(together, config)
    matrices = {"up", "down", "router.weight", "shared.up.weight", "shared.down.weight"}
    assert set(muon) == {f"layers.{name}" for name in matrices}
    assert set(adam) == {f"layers.{name}" for name in ("up_bias", "down_bias", "shared.up.bias", "shared.down.bias")}
    one, two = Optimizer(together, config), Optimizer(nn.ModuleDict({"layers": apart}), config)
    g = torch.Generator().manual_seed(5)
    for _ in range(3):
        for p in together.parameters():
            p.grad = torch.randn(p.shape, generator=g)
        for name, p in apart.items():
            kind, i, j = name.split("_")
            p.grad = getattr(together["layers"], kind).grad[int(i)].chunk(2 if kind == "up" else 1)[int(j)].clone()
        one.step(1.0)
        two.step(1.0)
    for name, p in apart.items():
        kind, i, j = name.split("_")
        ours = getattr(together["layers"], kind)[int(i)].chunk(2 if kind == "up" else 1)[int(j)]
        torch.testing.assert_close(ours, p, rtol=0, atol=1e-4)  # batched and single products round apart in bf16
    stored = one.state_tensors()
    again = Optimizer(together, config)
    again.load_state_tensors(stored)
    assert again.state_tensors().keys() == stored.keys()
    assert stored["layers.up:momentum"].shape == together["layers"].up.shape


def test_decay_leaves_the_experts_biases_alone() -> None:
    m = nn.ModuleDict({"layers": experts(model={"mlp_bias": True})})
    before = {n: p.detach().clone() for n, p in m.named_parameters()}
    o = Optimizer(m, TrainConfig(optimizer="adamw", weight_decay=0.1, learning_rate=0.5))
    for p in m.parameters():
        p.grad = torch.zeros_like(p)
    o.step(1.0)
    for name, p in m.named_parameters():
        assert torch.equal(p, before[name]) == name.endswith("bias"), name
