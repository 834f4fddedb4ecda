"""Which parameter goes where, Muon against torch's, decay, and the state without pickle."""

from __future__ import annotations

import pytest
import torch
import toy
from safetensors.torch import load, save
from torch import nn

from unmask.config import TrainConfig
from unmask.errors import UserError
from unmask.train.optim import Muon, Optimizer, fused_parts, orthogonalise, split


def matrices(seed: int = 0) -> list[nn.Parameter]:
    g = torch.Generator().manual_seed(seed)
    shapes = [(16, 16), (64, 16), (16, 64), (16, 16), (64, 16)]
    return [nn.Parameter(torch.randn(s, generator=g)) for s in shapes]


def test_muon_equals_torch_muon() -> None:
    """Ten steps. Both run Newton–Schulz in bf16 (8 bits); batched and single products may round apart, so two
    updates may differ by a few bf16 units: 1 % of the distance moved. Here they agree far better."""
    ours, theirs = matrices(), matrices()
    start = [p.detach().clone() for p in ours]
    mine = Muon({str(i): p for i, p in enumerate(ours)}, 0.95, 0.1)
    reference = torch.optim.Muon(theirs, lr=0.02, momentum=0.95, weight_decay=0.1)
    g = torch.Generator().manual_seed(1)
    for _ in range(10):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=g)
            b.grad = a.grad.clone()
        mine.step(0.02)
        reference.step()
    for a, b, s in zip(ours, theirs, start, strict=True):
        assert (a - b).norm() <= 0.01 * (b - s).norm()


def test_orthogonalise_brings_singular_values_near_one() -> None:
    g = torch.Generator().manual_seed(0)
    for shape in ((3, 32, 32), (2, 48, 16), (2, 16, 48)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape, generator=g)).float())
        assert values.max() < 1.3 and values.median() > 0.6


def test_fused_parts_are_orthogonalised_apart() -> None:
    layer = nn.Linear(16, 48, bias=False)
    layer.weight = nn.Parameter(matrices()[1].detach()[:48])
    layer.parts = (16, 16, 16)
    apart = [nn.Parameter(p.clone()) for p in layer.weight.detach().split(16)]
    layer.weight.grad = torch.randn(48, 16, generator=torch.Generator().manual_seed(2))
    for p, g in zip(apart, layer.weight.grad.split(16), strict=True):
        p.grad = g.clone()
    Muon({"w": layer.weight}, 0.95, 0.0, fused_parts(layer)).step(0.1)
    Muon({str(i): p for i, p in enumerate(apart)}, 0.95, 0.0).step(0.1)
    assert torch.equal(layer.weight, torch.cat(apart))


def test_who_is_moved_by_which() -> None:
    networks = toy.networks()
    networks["model"].heads = nn.ModuleDict({"lm": nn.ModuleList([nn.Linear(8, 8)])})
    muon, adam = split(networks, TrainConfig(optimizer="muon"))
    assert sorted(muon) == ["model.layers.0.weight", "model.layers.1.weight"]
    assert {"model.table.weight", "model.head.bias", "model.layers.0.bias"} < set(adam)
    assert not split(networks, TrainConfig(optimizer="adamw"))[0]
    networks["model"].tied = networks["model"].layers[1]  # a matrix with a name outside the layers is AdamW's
    assert sorted(split(networks, TrainConfig(optimizer="muon"))[0]) == ["model.layers.0.weight"]
    networks["model"].layers[0].weight.requires_grad_(False)
    muon, adam = split(networks, TrainConfig(optimizer="muon"))
    assert not muon and "model.layers.0.weight" not in adam
    networks["model"].layers.append(nn.Embedding(4, 8))  # a table inside a layer stays a table
    assert "model.layers.2.weight" in split(networks, TrainConfig(optimizer="muon"))[1]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_decay_touches_matrices_only(optimizer: str) -> None:
    networks = toy.networks()
    before = {n: p.detach().clone() for n, p in networks.named_parameters()}
    rates = {"learning_rate": 0.5, "muon_learning_rate": 0.5}
    o = Optimizer(networks, TrainConfig(optimizer=optimizer, weight_decay=0.1, **rates))
    for p in networks.parameters():
        p.grad = torch.zeros_like(p)
    o.step(0.5)
    for name, p in networks.named_parameters():
        kept = 1 - 0.25 * 0.1 if p.ndim == 2 else 1.0
        assert torch.allclose(p, before[name] * kept), name


def test_clipping_is_by_one_norm_over_all() -> None:
    networks = toy.networks()
    o = Optimizer(networks, TrainConfig())
    for p in networks.parameters():
        p.grad = torch.ones_like(p)
    count = sum(p.numel() for p in networks.parameters())
    assert o.gradient_norm(0.0) == pytest.approx(count**0.5)
    assert o.gradient_norm(2.0) == pytest.approx(count**0.5)
    assert o.gradient_norm(0.0) == pytest.approx(2.0, rel=1e-5)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_state_goes_through_safetensors_bit_for_bit(optimizer: str) -> None:
    config = TrainConfig(optimizer=optimizer)

    def steps(o: Optimizer, networks: nn.Module, seeds: range) -> None:
        for s in seeds:
            g = torch.Generator().manual_seed(s)
            for name, p in networks.named_parameters():
                p.grad = None if name.endswith("head.bias") else torch.randn(p.shape, generator=g)
            o.step(1.0)

    straight = toy.networks()
    steps(Optimizer(straight, config), straight, range(6))
    cut = toy.networks()
    first = Optimizer(cut, config)
    steps(first, cut, range(3))
    stored = save({k: v.contiguous() for k, v in first.state_tensors().items()})
    assert len(stored) <= first.state_bytes() + 256 * len(first.named) + 65536
    second = Optimizer(cut, config)
    second.load_state_tensors(load(stored))
    steps(second, cut, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), cut.parameters(), strict=True))


def test_state_of_another_model_or_optimizer_is_refused() -> None:
    o = Optimizer(toy.networks(), TrainConfig())
    with pytest.raises(UserError, match="fits no parameter"):
        o.load_state_tensors({"model.nothing:exp_avg": torch.zeros(2)})
    with pytest.raises(UserError, match="fits no parameter"):
        o.load_state_tensors({"model.table.weight:exp_avg": torch.zeros(2)})
    muon = Optimizer(toy.networks(), TrainConfig(optimizer="muon"))
    with pytest.raises(UserError, match="another optimizer"):
        muon.load_state_tensors({"model.layers.0.weight:exp_avg": torch.zeros(8, 8)})


def test_the_model_declares_its_fused_projections() -> None:
    from unmask.batch import Head
    from unmask.config import ModelConfig
    from unmask.model.transformer import Transformer

    config = ModelConfig(vocab_size=20, hidden_size=8, num_layers=1, num_heads=2, activation="swiglu")
    model = Transformer(config, [Head("lm")])
    rows = sorted(fused_parts(model).values())
    assert (8, 8, 8) in rows and (config.mlp_size, config.mlp_size) in rows
