"""Activation checkpointing changes no number: losses and gradients are equal bit for bit, dropout included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unmask.batch import Batch, Head
from unmask.errors import UserError
from unmask.model.cost import activation_numbers
from unmask.model.transformer import Transformer
from unmask.networks import run_with
from unmask.recipe import load_recipe

from .helpers import model_of, stream_of

MODELS: dict[str, dict[str, Any]] = {
    "dropout": {"dropout": 0.2, "attention_dropout": 0.3},
    "shared layers": {"dropout": 0.2, "distinct_layers": 1, "num_layers": 3},
    "learned score": {"dropout": 0.2, "positions": "t5"},
    "mask decoder": {"dropout": 0.2, "mask_decoder": True, "positions": "deberta"},
    "experts": {"dropout": 0.2, "experts": {"count": 4, "per_token": 2, "balance_loss": 0.1}},
    "two stacks": {"dropout": 0.2, "attention_dropout": 0.1, "num_source_layers": 2},
}


def passed(model: Transformer, recompute: bool, seed: int = 5) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
    """(states, gradients, what the generator gives next) of one forward and backward pass."""
    run_with(nn.ModuleDict({"model": model}), "dense", recompute, torch.device("cpu"))
    model.zero_grad()
    generator = torch.Generator().manual_seed(seed)
    source = stream_of(2, 9) if model.source is not None else None
    pattern = "full" if model.config.mask_decoder else "causal"
    out = model(Batch(stream_of(2, 10, pattern), {}, {}, source), generator)
    loss = sum(x.float().square().sum() for x in out.values())
    assert isinstance(loss, Tensor)
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {**out, "loss": loss}, gradients, torch.rand(3, generator=generator)


@pytest.mark.parametrize("name", MODELS)
def test_the_same_numbers_bit_for_bit(name: str) -> None:
    model = model_of(torch.float32, heads=[Head("lm")], **MODELS[name])
    plain, again = passed(model, False), passed(model, True)
    for a, b in zip(plain[:2], again[:2], strict=True):
        assert a.keys() == b.keys()
        assert [key for key in a if not torch.equal(a[key], b[key])] == []
    assert torch.equal(plain[2], again[2])  # the generator stands where it would
    assert not torch.equal(passed(model, True, seed=6)[0]["loss"], plain[0]["loss"])


def test_layers_keep_their_input_alone() -> None:
    """Bytes that the graph holds between the passes, counted by torch's hooks on saved tensors."""

    def held(recompute: bool) -> int:
        model = model_of(torch.float32, num_layers=6)
        run_with(nn.ModuleDict({"model": model}), "dense", recompute, torch.device("cpu"))
        kept: dict[int, int] = {}

        def pack(x: Tensor) -> Tensor:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            model(Batch(stream_of(4, 32, "causal"), {}, {}))
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        return sum(size for place, size in kept.items() if place not in own)

    assert held(True) < held(False) / 4


def test_the_formula_of_memory_knows_it() -> None:
    config = model_of(num_layers=12).config
    whole, less = activation_numbers(config, 64), activation_numbers(config, 64, recompute=True)
    one = activation_numbers(config.model_copy(update={"num_layers": 1}), 64)
    assert less == one + 64 * 12 * config.hidden_size < whole / 4


def test_it_does_not_go_with_compile() -> None:
    with pytest.raises(UserError, match=r"compile=true plans by itself what is computed again: drop train\.activation"):
        load_recipe("decoder-small", {"corpus": "x", "compile": True, "train.activation_checkpointing": True})
