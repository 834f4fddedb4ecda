"""Each parameter of networks without storage can be made alone, with the numbers that whole networks start with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from unmask.config import ModelConfig
from unmask.networks import networks_of, starts
from unmask.objectives.base import Objective
from unmask.objectives.causal import Causal
from unmask.objectives.masked import Masked
from unmask.objectives.replaced import Replaced
from unmask.tensors import named_once

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "untied": {"tied_head": False, "embedding_std": 1.0, "head_std": 0.001, "zero_init_projections": True},
    "narrow": {"embedding_size": 8, "head_transform": True, "positions": "learned", "token_types": 2},
    "neighbours": {"positions": "t5", "relative_start": "neighbours"},
    "scalars": {"residual_scalars": True, "query_vector": True},
    "shared layers": {"distinct_layers": 1},
    "experts": {"experts": {"count": 3, "per_token": 2, "balance_bias": True, "shared": 1}, "mlp_bias": True},
}
REPLACED = [
    *(Replaced(sharing=how) for how in ("none", "embeddings", "gdes")),
    Replaced(sharing="all", generator_width=1, generator_depth=1),
]


def made(objective: Objective, seed: int, **settings: Any) -> tuple[nn.ModuleDict, nn.ModuleDict]:
    """Networks with their numbers, and without."""
    config = ModelConfig(vocab_size=40, hidden_size=16, num_heads=2, num_layers=2, max_position=16, **settings)
    with torch.device("meta"):
        blank = networks_of(objective, config, seed)
    return networks_of(objective, config, seed), blank


def assert_equal(whole: nn.ModuleDict, blank: nn.ModuleDict, seed: int) -> None:
    assert all(tensor.is_meta for tensor in blank.parameters()) and not list(blank.buffers())
    found, (wanted, aliases) = starts(blank, seed), named_once(whole)
    assert found.keys() == wanted.keys() and aliases == named_once(blank)[1]
    for name, tensor in wanted.items():
        assert (found[name].shape, found[name].dtype) == (tensor.shape, tensor.dtype), name
        assert torch.equal(found[name][...], tensor) and torch.equal(found[name][1:2], tensor[1:2]), name


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("objective", [Masked(), Causal()], ids=lambda o: o.type)
def test_every_parameter_can_be_made_alone(objective: Objective, shape: str) -> None:
    assert_equal(*made(objective, 3, visibility=objective.visibility, **SHAPES[shape]), 3)


@pytest.mark.parametrize("shared", [False, True])
def test_of_two_stacks(shared: bool) -> None:
    assert_equal(*made(Causal(), 4, visibility="causal", num_source_layers=2, share_stacks=shared), 4)


@pytest.mark.parametrize("objective", REPLACED, ids=lambda o: o.sharing)
def test_of_two_networks_that_share(objective: Replaced) -> None:
    """… each parameter as in the network that it was made in, and gdes' differences at 0."""
    more = {"tied_head": objective.sharing != "gdes", "positions": "learned", "token_types": 2}
    assert_equal(*made(objective, 5, **more), 5)
