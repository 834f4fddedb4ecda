"""A feed-forward layer of experts: a router sends each token to a few of them and adds what they say.

    y = Σ over the chosen experts e of gate_e · FFN_e(x)  (+ the shared expert's FFN(x))

The routers of the literature are one rule with different settings (`choose`): Shazeer et al. 2017; GShard (Lepikhin
et al. 2021); Switch (Fedus et al. 2021); Mixtral (Jiang et al. 2024, section 2.1); DeepSeek-V3 (Liu et al. 2024,
section 2.1.2).

Legend: B rows, T tokens, d hidden size, E experts, k experts a token, I width of one expert.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.config import ModelConfig
from unmask.config.model import ExpertsConfig
from unmask.model.parts import FeedForward, Linear, between


class Routing(NamedTuple):
    """The router's own losses over the real tokens of one batch, fp32 scalars with a gradient.

    balance   E · Σ share of the assignments × mean probability (Fedus et al. 2021, equations 4 to 6): 1 when even
    z         mean (log Σ exp logits)² (Zoph et al. 2022, equation 5)
    tokens    how many they were
    """

    balance: Tensor
    z: Tensor
    tokens: Tensor


class Experts(nn.Module):
    """E feed-forward networks side by side, as stacks of matrices, with their router.

    up     (E, I or 2 I, d): as `FeedForward.up`, the gate's rows before the others
    down   (E, d, I)

    `balance_bias` is no weight: no loss trains it, it only shifts the choice.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.experts is not None
        e, d, width = config.experts, config.hidden_size, config.expert_size
        self.settings = e
        self.activation = between(config)
        parts = (width,) * (2 if config.gated else 1)
        self.stacks = {"up": parts, "down": (d,)}  # see `train.optim`: rows of each matrix
        self.router = Linear(d, e.count, e.router_bias)
        self.up = nn.Parameter(torch.empty(e.count, sum(parts), d))
        self.down = nn.Parameter(torch.empty(e.count, d, width))
        self.up_bias = nn.Parameter(torch.empty(e.count, sum(parts))) if config.mlp_bias else None
        self.down_bias = nn.Parameter(torch.empty(e.count, d)) if config.mlp_bias else None
        self.shared = FeedForward(config, e.shared * width) if e.shared else None
        self.balance_bias = nn.Parameter(torch.empty(e.count), requires_grad=False) if e.balance_bias else None

    def forward(self, x: Tensor, real: Tensor | None = None) -> tuple[Tensor, Routing]:
        """The experts' answer (B, T, d) to x (B, T, d), and the router's losses.

        Where `real` (B, T) is False stands padding: it takes no capacity, counts in no loss and gets 0.
        """
        e = self.settings
        logits = self._logits(x)
        scores = logits.softmax(-1) if e.router == "softmax" else logits.sigmoid()
        gates, chosen = choose(scores, e, self.balance_bias)
        if real is not None:
            chosen = chosen.masked_fill(~real[..., None], e.count)  # nobody's
        routing = _losses(logits, scores, chosen)
        if e.capacity_factor is not None or e.capacity is not None:
            chosen = within_capacity(chosen, e.count, e.capacity_factor, e.capacity)
        y = self._mix(x.flatten(0, 1), gates.flatten(0, 1), chosen.flatten(0, 1)).view(x.shape)
        if self.shared is not None:
            y = y + self.shared(x)
        return y if real is None else y.masked_fill(~real[..., None], 0.0), routing

    def _logits(self, x: Tensor) -> Tensor:
        """(B, T, E) in fp32 at least: in 16 bits the router's rounding flips choices (Fedus et al. 2021, 2.4)."""
        with torch.autocast(x.device.type, enabled=False):
            dtype = torch.promote_types(x.dtype, torch.float32)
            bias = None if self.router.bias is None else self.router.bias.to(dtype)
            return F.linear(x.to(dtype), self.router.weight.to(dtype), bias)

    def _mix(self, x: Tensor, gates: Tensor, chosen: Tensor) -> Tensor:
        """(N, d): each expert runs once, on its own tokens laid side by side; x (N, d), gates and chosen (N, k).

        Gather, and scatter to places of their own: nothing is added in an order that a GPU could change.
        """
        count, k = self.settings.count, chosen.shape[1]
        slots = chosen.flatten()
        order = slots.argsort(stable=True)
        sizes = torch.bincount(slots, minlength=count + 1)[:count].tolist()
        taken = order[: sum(sizes)]
        answers = [
            self._expert(part, *weights)
            for part, *weights in zip(torch.split(x[taken // k], sizes), *self._matrices(), strict=True)
            if len(part)
        ]
        if not answers:
            return torch.zeros_like(x)
        found = torch.cat(answers)
        each = found.new_zeros(len(slots), x.shape[1]).index_put((taken,), found).view(len(x), k, -1)
        return (each * gates[..., None]).sum(1).to(found.dtype)

    def _matrices(self) -> list[tuple[Tensor, ...] | list[None]]:
        """up, its bias, down, its bias, one for each expert. (Indexing instead would cost E full gradients.)"""
        stacks = (self.up, self.up_bias, self.down, self.down_bias)
        return [[None] * self.settings.count if s is None else s.unbind(0) for s in stacks]

    def _expert(self, x: Tensor, up: Tensor, up_bias: Tensor | None, down: Tensor, down_bias: Tensor | None) -> Tensor:
        return F.linear(self.activation(F.linear(x, up, up_bias)), down, down_bias)


def choose(scores: Tensor, e: ExpertsConfig, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Gates and numbers (…, k) of the experts that tokens go to, best first; scores (…, E).

    With groups, a group's worth is the sum of its two best scores, and only the best groups' experts can be chosen
    (DeepSeek-V3). `bias` (E,) is added for the choice; the gates are of the scores alone.

    >>> gates, chosen = choose(torch.tensor([0.04, 0.8, 0.01, 0.15]), ExpertsConfig(count=4, per_token=2))
    >>> torch.zeros(4).scatter(0, chosen, gates)
    tensor([0.0000, 0.8421, 0.0000, 0.1579])
    """
    rank = scores.detach() if bias is None else scores.detach() + bias
    if e.groups_kept < e.groups:
        groups = rank.view(*rank.shape[:-1], e.groups, -1)
        worth = groups.topk(min(2, groups.shape[-1]), -1).values.sum(-1)
        kept = torch.zeros_like(worth, dtype=torch.bool).scatter(-1, worth.topk(e.groups_kept, -1).indices, True)
        rank = groups.masked_fill(~kept[..., None], -torch.inf).flatten(-2)
    chosen = rank.topk(e.per_token, -1).indices
    gates = scores.gather(-1, chosen)
    if e.normalise:
        gates = gates / (gates.sum(-1, keepdim=True) + 1e-20)  # sigmoids can all be 0
    return gates * e.scale, chosen


def within_capacity(chosen: Tensor, count: int, factor: float | None = None, most: int | None = None) -> Tensor:
    """`chosen` (B, T, k) with `count` (nobody) where an expert is full.

    Of each row an expert takes ⌈factor · real tokens · k / count⌉, and `most` at most: first choices in the order of
    positions, then second choices, and so on (GShard: Lepikhin et al. 2021, algorithm 1, whose groups are our rows).
    So a row's result does not depend on its batch. With k > 1 a later token's first choice can displace an earlier
    token's second: under a causal mask that tells a little of what follows, as it does in the literature.

    >>> within_capacity(torch.tensor([[[0], [0], [1], [0]]]), 2, 1.0).flatten().tolist()
    [0, 0, 1, 2]
    """
    rows, length, k = chosen.shape
    capacity = torch.full((rows,), length if most is None else most, device=chosen.device)
    if factor is not None:  # in integers: no rounding can add a place
        share = Fraction(factor).limit_denominator(10**6) * k / count
        real = (chosen[..., 0] != count).sum(1)
        capacity = torch.minimum(capacity, -(-real * share.numerator // share.denominator))
    row = torch.arange(rows, device=chosen.device)[:, None]
    arrival = chosen.transpose(1, 2).flatten(1)  # first choices, then second ones
    queue = (row * (count + 1) + arrival).flatten()  # of which row and expert
    order = queue.argsort(stable=True)
    arrived = queue[order]
    place = torch.arange(len(queue), device=chosen.device) - torch.searchsorted(arrived, arrived)
    place = torch.empty_like(place).scatter(0, order, place).view(rows, k, length).transpose(1, 2)
    return chosen.masked_fill(place >= capacity[:, None, None], count)


def _losses(logits: Tensor, scores: Tensor, chosen: Tensor) -> Routing:
    """Balance and z-loss of logits and scores (B, T, E); before capacity, as Fedus et al. count."""
    count = logits.shape[-1]
    real = chosen[..., :1] != count
    n = real.sum().clamp(min=1)
    share = torch.bincount(chosen.flatten(), minlength=count + 1)[:count] / (n * chosen.shape[-1])
    probability = (scores / (scores.sum(-1, keepdim=True) + 1e-20)).masked_fill(~real, 0.0).sum((0, 1)) / n
    z = logits.logsumexp(-1, keepdim=True).square().masked_fill(~real, 0.0).sum() / n
    return Routing(count * (share * probability).sum(), z, n)
