"""A step is a program over named networks: it turns a batch into terms, and terms into a loss.

    loss = Σ over terms of coefficient × (global sum / global norm)

Sums and norms are added over micro-batches and ranks before the division: never a mean of means.
Logits exist only where there is a target, and there only in chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.batch import Batch, Head, Stream, Targets, TermKey
from unmask.config import ModelConfig
from unmask.model.heads import HeadModule, read
from unmask.vocabulary import Sampled, linear_cross_entropy, sampled_cross_entropy


@dataclass(frozen=True)
class Term:
    """One addend of the loss before its division: Σ weight · loss, what to divide by, and its factor."""

    sum: Tensor
    norm: float
    coefficient: float = 1.0


FEW = 8
"""Places of a row that are read are filled up to a multiple of it, so that shapes are few."""


class Program(Protocol):
    """A training step's forward pass: terms by (objective, head)."""

    def __call__(
        self, networks: Mapping[str, Any], batch: Batch, generator: torch.Generator | None
    ) -> dict[TermKey, Term]: ...


def forward_heads(
    networks: Mapping[str, Any], batch: Batch, generator: torch.Generator | None = None
) -> dict[TermKey, Term]:
    """The default program: one forward pass of each network that a head names, then its heads.

    A network whose layers have experts adds its router's losses under (its name, "balance") and "router_z", where
    they have a coefficient. The z-loss is a sum over tokens and its norm their number (`announced`). The balance loss
    is the exception to all sums: a product of two means over the tokens of one micro-batch (Fedus et al. 2021,
    equation 4), which no sum over micro-batches gives back. Its norm is 1, so an update takes the mean over its
    micro-batches: balance is asked of each of them, and that does depend on how an update is cut up.
    """
    states: dict[str, dict[str, Tensor]] = {}
    terms = {}
    for key, head in batch.heads.items():
        network = networks[head.network]
        if head.network not in states:
            states[head.network] = states_read(network, head.network, batch, generator)
        targets = batch.targets[key]
        total = head_sum(head, network.heads[head.uses], states[head.network][head.states], batch, targets)
        terms[key] = Term(total, float(targets.norm), head.coefficient)
    for name, found in states.items():
        if "router" in found:
            terms.update(router_terms(name, found["router"], networks[name].config, batch))
    return terms


def states_read(network: Any, name: str, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
    """A network's final states for its heads; where few places are read, those alone are right (`Transformer`)."""
    at = places_read(name, batch)
    found: dict[str, Tensor] = network(batch, generator) if at is None else network(batch, generator, at=at)
    return found


def places_read(network: str, batch: Batch) -> Tensor | None:
    """(B, Q) the places of the stream that a network's heads read, filled up to the most of a row by others.

    None where that is no saving: from half of all places on, or where a head reads a whole block.
    """
    b, t = batch.stream.tokens.shape
    found: list[Tensor] = []
    for key, head in batch.heads.items():
        index = batch.targets[key].index
        if head.network != network or head.stack == "source":
            continue
        if index is None or head.ahead or head.pool != "at" or head.over == "positions":
            return None
        found.append(index.reshape(-1))
    if not found or 2 * sum(len(index) for index in found) > b * t:
        return None
    read = torch.zeros(b * t, dtype=torch.uint8, device=found[0].device)
    read[torch.cat(found)] = 1
    read = read.view(b, t)
    most = -(-int(read.sum(1).max()) // FEW) * FEW
    return read.argsort(dim=1, descending=True, stable=True)[:, :most] if 2 * most <= t else None


def router_terms(network: str, losses: Tensor, config: ModelConfig, batch: Batch) -> dict[TermKey, Term]:
    """Terms of the router's losses (2,): balance and z, means over a batch."""
    assert config.experts is not None
    terms: dict[TermKey, Term] = {}
    if config.experts.balance_loss:
        terms[network, "balance"] = Term(losses[0], 1.0, config.experts.balance_loss)
    if config.experts.z_loss:
        routed = _routed(config, batch)
        terms[network, "router_z"] = Term(losses[1] * routed, routed, config.experts.z_loss)
    return terms


def announced(networks: Mapping[str, Any], batch: Batch) -> dict[TermKey, float]:
    """The norm of every term that is a sum, known before any forward pass: those of targets, and of the z-loss."""
    norms = batch.norms()
    for name in dict.fromkeys(head.network for head in batch.heads.values()):
        config = getattr(networks[name], "config", None)
        if isinstance(config, ModelConfig) and config.experts is not None and config.experts.z_loss:
            norms[name, "router_z"] = _routed(config, batch)
    return norms


def _routed(config: ModelConfig, batch: Batch) -> float:
    """How many times a batch's real tokens meet a router: each at every layer of experts of its stack."""
    total = 0
    for stream, depth in ((batch.stream, config.num_layers), (batch.source, config.num_source_layers)):
        if stream is not None and depth:
            total += sum(config.sparse(i) for i in config.depths(depth)) * int((stream.block != 0).sum())
    return float(total)


def head_sum(head: Head, module: HeadModule, states: Tensor, batch: Batch, targets: Targets) -> Tensor:
    """Σ weight · loss of one head; states (B, T, d). A scalar in fp32, differentiable."""
    if head.over == "vocabulary" and targets.value.ndim == 1:
        return linear_cross_entropy(*_linear(head, module, states, batch, targets))
    return (head_losses(head, module, states, batch, targets) * targets.weight).sum()


def sampled_sum(
    head: Head, module: HeadModule, states: Tensor, batch: Batch, targets: Targets
) -> tuple[Tensor, Sampled]:
    """`head_sum` of a head over the vocabulary, and a sample of its softmax at each target, drawn by `targets.draw`.

    A batch without real targets has no draws: what is sampled at its padding is no matter.
    """
    draw = targets.draw
    assert draw is not None or not bool((targets.weight > 0).any())
    given = _linear(head, module, states, batch, targets)
    return sampled_cross_entropy(*given, torch.zeros(len(targets.value)).to(targets.weight) if draw is None else draw)


def _linear(
    head: Head, module: HeadModule, states: Tensor, batch: Batch, targets: Targets
) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor, float | None]:
    """What `linear_cross_entropy` reads."""
    weight, bias, scale, cap = module.projection()
    x = module.features(read(states, _stream(head, batch), head, targets.index), targets.extra) * scale
    return x, weight, bias, targets.value, targets.weight, cap


def head_losses(head: Head, module: HeadModule, states: Tensor, batch: Batch, targets: Targets) -> Tensor:
    """(n,) the unweighted loss at each target, in fp32: −log probability of `value` (squared error for scores).

    For `group` it stands at the right choice and is 0 at the others.
    """
    if head.over == "positions":
        return _position_losses(module, states, batch, targets, head)
    logits = module.project(
        module.features(read(states, _stream(head, batch), head, targets.index), targets.extra)
    ).float()
    value = targets.value
    if head.over in ("vocabulary", "classes"):
        if value.ndim == 2:
            return -(value * logits.log_softmax(-1)).sum(-1)
        return F.cross_entropy(logits, value, reduction="none")
    score = logits.reshape(len(logits))
    if head.over == "binary":
        return F.binary_cross_entropy_with_logits(score, value.to(score.dtype), reduction="none")
    if head.over == "score":
        return (score - value) ** 2
    return _group_losses(score, targets)


def _stream(head: Head, batch: Batch) -> Stream:
    stream = batch.stream if head.stack == "stream" else batch.source
    assert stream is not None
    return stream


def _position_losses(module: HeadModule, states: Tensor, batch: Batch, targets: Targets, head: Head) -> Tensor:
    """A choice among the positions of the target's own block; `value` is the position in its row."""
    stream = _stream(head, batch)
    b, t, d = states.shape
    score = module.project(module.features(states.reshape(-1, 1, d), None)).float().view(b, t)
    assert targets.index is not None
    row = targets.index // t
    mine = stream.block[row] == stream.block.reshape(-1)[targets.index][:, None]
    return F.cross_entropy(score[row].masked_fill(~mine, -torch.inf), targets.value, reduction="none")


def _group_losses(score: Tensor, targets: Targets) -> Tensor:
    """−log softmax inside each group, at the targets whose value is 1."""
    assert targets.group is not None
    _, group = torch.unique(targets.group, return_inverse=True)
    n = int(group.max()) + 1
    top = torch.full((n,), -torch.inf).to(score).scatter_reduce(0, group, score.detach(), "amax")
    total = torch.zeros(n).to(score).index_add(0, group, (score - top[group]).exp())
    return (total.log()[group] + top[group] - score) * (targets.value == 1)
