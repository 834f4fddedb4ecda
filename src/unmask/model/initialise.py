"""How parameters start: every one from a generator keyed by (seed, its name), so order and other draws never matter.

So any one of them can be made alone: `starts` tells how, and a process that holds rows of each (FSDP) makes one after
the other and keeps its rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import EllipsisType

import torch
from torch import Tensor, nn

from unmask.config import ModelConfig
from unmask.keyed import absorb, purpose
from unmask.model.positions import RelativeBuckets, neighbours


@dataclass(frozen=True)
class Start:
    """The numbers that a parameter starts with, to be read (`tensors.Readable`): every read makes all of them anew."""

    shape: torch.Size
    dtype: torch.dtype
    fill: Callable[[Tensor], object]
    """Writes them into a tensor of that shape."""

    def __getitem__(self, index: slice | EllipsisType, /) -> Tensor:
        whole = torch.empty(self.shape, dtype=self.dtype, device="cpu")
        self.fill(whole)
        return whole[index]


@torch.no_grad()
def initialise(model: nn.Module, config: ModelConfig, seed: int) -> None:
    """Fill a model's parameters; those without storage (on the meta device) stay so."""
    found = starts(model, config, seed)
    for name, parameter in model.named_parameters():
        if not parameter.is_meta:
            found[name].fill(parameter)


def starts(model: nn.Module, config: ModelConfig, seed: int) -> dict[str, Start]:
    """Matrices N(0, init_std), norms 1, biases 0, projections into the residual stream smaller.

    The factor 1 / sqrt(2 · layers) keeps the stream's variance about constant in depth (Radford et al. 2019).
    """
    buckets = {
        f"{name}.weight": module
        for name, module in model.named_modules()
        if isinstance(module, RelativeBuckets) and config.relative_start == "neighbours"
    }
    found = {}
    for name, parameter in model.named_parameters():
        key = int(absorb(absorb(0, seed), purpose(name)))
        fill: Callable[[Tensor], object]
        if (parameter.dim() == 1 and name != "query") or name.endswith((".up_bias", ".down_bias", ".delta")):
            fill = partial(torch.Tensor.fill_, value=_flat(name))
        elif name in buckets:
            fill = partial(_near, key=key, table=buckets[name])
        else:
            fill = partial(_noise, key=key, std=spread(name, parameter, config))
        found[name] = Start(parameter.shape, parameter.dtype, fill)
    return found


def _noise(tensor: Tensor, key: int, std: float) -> None:
    tensor.normal_(0.0, std, generator=torch.Generator(tensor.device).manual_seed(key))


def _near(tensor: Tensor, key: int, table: RelativeBuckets) -> None:
    generator = torch.Generator(tensor.device).manual_seed(key)
    neighbours(tensor, table.bidirectional, table.max_distance, generator)


def _flat(name: str) -> float:
    """Where a vector starts: factors at 1, nanochat's share of the embeddings at 0.1, shifts and ELECTRA's E_Δ at 0."""
    if name.endswith("embedding_scale"):
        return 0.1
    return 1.0 if name.endswith("stream_scale") or ("norm" in name and name.endswith("weight")) else 0.0


def spread(name: str, parameter: Tensor, config: ModelConfig) -> float:
    """The standard deviation that a matrix starts with."""
    std = config.init_std
    if name.endswith((".out.weight", ".down.weight", ".down")):
        depth = config.num_source_layers if name.startswith("source.") else config.num_layers
        return 0.0 if config.zero_init_projections else std / math.sqrt(2 * depth)
    tables = ("embedding.weight", "positions.weight", "positions2.weight", "token_types.weight", "table.weight")
    if config.embedding_std is not None and (name == "query" or name.endswith(tables)):
        return config.embedding_std
    # an untied vocabulary head is the one table among the heads with as many rows as the embedding
    if config.head_std is not None and name.startswith("heads.") and len(parameter) == config.vocab_size:
        return config.head_std
    return std
