"""The networks that an objective trains together: which heads each has, and what they share.

A shared Parameter is one object under several names: it is optimised, counted and written once (`tensors.named_once`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.batch import Batch, Head
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.keyed import absorb, purpose
from unmask.model.cost import flops, head_flops
from unmask.model.heads import HeadModule
from unmask.model.initialise import starts as initial_values
from unmask.model.parts import Table
from unmask.model.transformer import Stack, Transformer
from unmask.objectives.base import Objective
from unmask.objectives.replaced import GENERATOR, Replaced
from unmask.tensors import Readable

TABLES = ("embedding", "stack.positions", "stack.token_types")
"""What has one row a token, position or type."""


def networks_of(objective: Objective, model: ModelConfig, seed: int = 0) -> nn.ModuleDict:
    """Every network of an objective with the heads that name it; `model` is the recipe's.

    "model" starts from the seed itself, another one from a seed of its own: two of one shape do not start alike.
    """
    made: dict[str, Transformer] = {}
    for name, config in objective.networks(model).items():
        heads = [head for head in objective.heads() if head.network == name]
        made[name] = Transformer(config, heads, _seed(name, seed))
    if isinstance(objective, Replaced):
        share(made["model"], made[GENERATOR], objective.sharing)
    return nn.ModuleDict(made)


def _seed(name: str, seed: int) -> int:
    return seed if name == "model" else int(absorb(absorb(0, seed), purpose(f"network {name}")) >> 1)


def starts(networks: nn.ModuleDict, seed: int = 0) -> dict[str, Readable]:
    """What `networks_of` fills each parameter with, by its first name: for networks that were made without storage.

    What two networks share starts as the first one's; the table that `Shifted` borrows as that of its own network.
    """
    found: dict[int, Readable] = {}
    for name, network in networks.items():
        assert isinstance(network, Transformer)
        borrowed = {id(module.weight) for module in network.modules() if isinstance(module, Shifted)}
        for key, start in initial_values(network, network.config, _seed(name, seed)).items():
            parameter = network.get_parameter(key)
            if id(parameter) not in borrowed:
                found.setdefault(id(parameter), start)
    return {name: found[id(parameter)] for name, parameter in networks.named_parameters()}


def run_with(networks: nn.ModuleDict, attention: str, recompute: bool, device: torch.device) -> None:
    """Set how networks are computed in training, which changes no number but by rounding.

    attention: "auto", "flex" or "dense" (`Stack.kernel`). recompute: activation checkpointing, layer by layer.
    """
    if attention == "flex" and device.type != "cuda":
        raise UserError(
            f"attention=flex needs a GPU with CUDA: FlexAttention has no backward pass on {device.type} (auto takes it "
            "where it can)"
        )
    for module in networks.modules():
        if isinstance(module, Stack):
            module.kernel, module.recompute = attention, recompute


def share(model: Transformer, generator: Transformer, how: str) -> None:
    """Let a generator share with its discriminator (`Replaced.sharing`), in place."""
    if how == "gdes":
        table = model.embedding.weight
        if tied := [
            name for name, head in model.heads.items() if isinstance(head, HeadModule) and head.weight is table
        ]:
            raise UserError(
                f"sharing=gdes gives the model a table that is a sum of two, which its head '{tied[0]}' cannot be tied "
                "to: set model.tied_head=false, or another sharing"
            )
        for name in TABLES:
            if _get(model, name) is not None:
                own = _get(generator, name)
                assert isinstance(own, Table)
                _set(model, name, Shifted(own.weight))
    elif how == "embeddings":
        for name in TABLES:
            if (shared := _get(model, name)) is not None:
                _set(generator, name, shared)
        generator.stack.embedding_norm = model.stack.embedding_norm
        _tie(generator)
    elif how == "all":
        generator.embedding, generator.stack = model.embedding, model.stack
        generator.query = model.query
        _tie(generator)


def _tie(network: Transformer) -> None:
    """Heads that are tied to the embedding read the table that it has now."""
    if network.config.tied_head:
        for head in network.heads.values():
            assert isinstance(head, HeadModule)
            if head.head.over == "vocabulary":
                head.weight = network.embedding.weight


class Shifted(Table):
    """A table E_D = stop_gradient(E_G) + E_Δ, E_Δ = 0 at the start (He et al. 2023, equation 5).

    `weight` is E_G, the generator's own Parameter; no gradient of this table's reader goes there.
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__(len(weight), weight.shape[1])
        assert isinstance(weight, nn.Parameter)
        self.weight = weight
        self.delta = nn.Parameter(torch.zeros_like(weight))

    def forward(self, index: Tensor) -> Tensor:
        return F.embedding(index, self.weight.detach()) + F.embedding(index, self.delta)


@torch.no_grad()
def summed(network: Transformer) -> Transformer:
    """The network, its shifted tables replaced in place by plain ones: what is loaded and exported."""
    for name in TABLES:
        table = _get(network, name)
        if isinstance(table, Shifted):
            plain = Table(table.num_embeddings, table.embedding_dim).to(table.weight.device)
            plain.weight.copy_(table.weight + table.delta)
            _set(network, name, plain)
    return network


def _get(network: nn.Module, name: str) -> nn.Module | None:
    here: nn.Module | None = network
    for part in name.split("."):
        here = getattr(here, part, None)
    return here


def _set(network: nn.Module, name: str, module: nn.Module) -> None:
    *parents, last = name.split(".")
    setattr(network.get_submodule(".".join(parents)), last, module)


def sizes(networks: nn.ModuleDict) -> dict[str, int]:
    """Distinct parameters of each network; what two share counts in both."""
    return {name: sum(p.numel() for p in network.parameters()) for name, network in networks.items()}


def batch_flops(config: ModelConfig, batch: Batch, objective: Objective | None = None) -> float:
    """Training FLOPs of a batch by formula, at its real tokens and targets and its rows' length.

    With an objective it counts each of its networks; samples that a program draws cost one more pass of their head.
    """
    configs = {"model": config} if objective is None else objective.networks(config)
    total = 0.0
    for name, own in configs.items():
        asked = {key: head for key, head in batch.heads.items() if head.network == name}
        targets = [(head, int((batch.targets[key].weight != 0).sum())) for key, head in asked.items()]
        drawn = [n for n, key in zip(targets, asked, strict=True) if batch.targets[key].draw is not None]
        total += _flops(own, batch, targets) + sum(n * head_flops(own, head) for head, n in drawn)
    return total


def _flops(config: ModelConfig, batch: Batch, targets: list[tuple[Head, int]]) -> float:
    source = batch.source
    return flops(
        config,
        stream_tokens=int((batch.stream.block != 0).sum()),
        source_tokens=0 if source is None else int((source.block != 0).sum()),
        targets=targets,
        context=batch.stream.tokens.shape[1],
        source_context=0 if source is None else source.tokens.shape[1],
    )
