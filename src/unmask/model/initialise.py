"""How parameters start: every one from a generator keyed by (seed, its name), so order and other draws never matter."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from unmask.config import ModelConfig
from unmask.keyed import absorb, purpose
from unmask.model.positions import RelativeBuckets, neighbours


@torch.no_grad()
def initialise(model: nn.Module, config: ModelConfig, seed: int) -> None:
    """Matrices N(0, init_std), norms 1, biases 0, projections into the residual stream smaller.

    The factor 1 / sqrt(2 · layers) keeps the stream's variance about constant in depth (Radford et al. 2019).
    """
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            continue
        if (parameter.dim() == 1 and name != "query") or name.endswith((".up_bias", ".down_bias")):
            parameter.fill_(_flat(name))
            continue
        generator = torch.Generator(parameter.device).manual_seed(int(absorb(absorb(0, seed), purpose(name))))
        parameter.normal_(0.0, spread(name, parameter, config), generator=generator)
    if config.relative_start == "neighbours":
        for name, module in model.named_modules():
            if isinstance(module, RelativeBuckets) and not module.weight.is_meta:
                generator = torch.Generator(module.weight.device)
                generator.manual_seed(int(absorb(absorb(0, seed), purpose(f"{name}.weight"))))
                neighbours(module.weight, module.bidirectional, module.max_distance, generator)


def _flat(name: str) -> float:
    """Where a vector starts: factors at 1, shifts at 0, and nanochat's share of the embeddings at 0.1."""
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
