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
from torch.autograd.function import once_differentiable

from unmask.batch import Batch, Head, Stream, Targets, TermKey
from unmask.config import ModelConfig
from unmask.model.heads import HeadModule, read


@dataclass(frozen=True)
class Term:
    """One addend of the loss before its division: Σ weight · loss, what to divide by, and its factor."""

    sum: Tensor
    norm: float
    coefficient: float = 1.0


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
            states[head.network] = network(batch, generator)
        targets = batch.targets[key]
        total = head_sum(head, network.heads[head.uses], states[head.network][head.states], batch, targets)
        terms[key] = Term(total, float(targets.norm), head.coefficient)
    for name, found in states.items():
        if "router" in found:
            terms.update(router_terms(name, found["router"], networks[name].config, batch))
    return terms


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
        weight, bias, scale, cap = module.projection()
        x = module.features(read(states, _stream(head, batch), head, targets.index), targets.extra) * scale
        return linear_cross_entropy(x, weight, bias, targets.value, targets.weight, cap)
    return (head_losses(head, module, states, batch, targets) * targets.weight).sum()


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


# ---------------------------------------------------------------- the loss over a vocabulary


def linear_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, value: Tensor, w: Tensor, cap: float | None = None
) -> Tensor:
    """Σ w · −log softmax(x Wᵀ + b)[value]: x (n, d), weight (V, d), value (n,), w (n,) → fp32 scalar.

    The (n, V) logits exist only in chunks: the gradients of a chunk are computed in the forward pass,
    while its logits are there. Under autocast the products run in bf16, softmax and sums in fp32.
    """
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    learns = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias))
    result: Tensor = _LinearCrossEntropy.apply(x, weight, bias, value, w, cap, learns)  # type: ignore[no-untyped-call]
    return result


def _chunk(v: int) -> int:
    """Rows of logits that are alive at once: about 16 MB in fp32, which stays near the caches."""
    return max(32, min(1024, (1 << 22) // v))


def logits_bytes(v: int) -> int:
    """Bytes of the largest logits, in fp32, that exist at once over a vocabulary of v."""
    return 4 * v * _chunk(v)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        value: Tensor,
        w: Tensor,
        cap: float | None,
        learns: bool,
    ) -> Tensor:
        """`learns` says whether gradients are wanted: inside a Function grad mode is always off."""
        table = weight.to(x.dtype)
        total = torch.zeros((), dtype=torch.float32 if x.dtype != torch.float64 else torch.float64, device=x.device)
        dx = torch.empty_like(x) if learns else None
        dweight = torch.zeros_like(weight) if learns else None
        dbias = torch.zeros_like(bias) if learns and bias is not None else None
        for i in range(0, len(x), _chunk(len(weight))):
            part = slice(i, i + _chunk(len(weight)))
            probability, losses, slope = _softmax(x[part], table, bias, value[part], cap)
            total += (losses * w[part]).sum()
            if dx is None or dweight is None:
                continue
            at_value = value[part][:, None]
            probability.scatter_add_(1, at_value, probability.new_full(at_value.shape, -1.0))
            probability *= w[part][:, None]
            grad = (probability if slope is None else probability.mul_(slope)).to(x.dtype)
            dx[part] = grad @ table
            if grad.dtype == dweight.dtype:
                dweight.addmm_(grad.t(), x[part])
            else:  # bf16 products are added in fp32: a bf16 sum over chunks would lose a bit for every four
                dweight += grad.t() @ x[part]
            if dbias is not None:
                dbias += grad.sum(0)
        ctx.save_for_backward(dx, dweight, dbias)
        return total

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        dx, dweight, dbias = (None if g is None else g * scale for g in ctx.saved_tensors)
        return dx, dweight, dbias, None, None, None, None


def _softmax(
    x: Tensor, weight: Tensor, bias: Tensor | None, value: Tensor, cap: float | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Probabilities (n, V), losses (n,) and the soft cap's slope, in fp32 (fp64 stays fp64)."""
    logits = x @ weight.t()
    logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    if bias is not None:
        logits += bias
    slope = None
    if cap is not None:
        squashed = torch.tanh(logits / cap)
        logits, slope = cap * squashed, 1 - squashed**2
    top = logits.amax(1, keepdim=True)
    at_value = logits.gather(1, value[:, None]).squeeze(1) - top.squeeze(1)
    probability = logits.sub_(top).exp_()
    total = probability.sum(1, keepdim=True)
    return probability.div_(total), total.log().squeeze(1) - at_value, slope
