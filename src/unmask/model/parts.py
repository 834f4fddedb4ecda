"""The smallest parts that layers are made of, and what all layers share in one forward pass.

Legend: B rows, T tokens, S source tokens, d hidden size, I feed-forward size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.config import ModelConfig
from unmask.model.attention import Cache, Drop, View
from unmask.model.fused import GATES, gated, relu2, rms_norm

if TYPE_CHECKING:
    from unmask.model.experts import Routing
    from unmask.model.relative import Pairs

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": relu2,
    "silu": F.silu,
    "tanh": torch.tanh,
    **{name: gate.function for name, gate in GATES.items()},
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The elementwise function of a (gated) activation's name."""
    return _ACTIVATIONS[name]


def between(config: ModelConfig) -> Callable[[Tensor], Tensor]:
    """What stands between a feed-forward network's two matrices."""
    return partial(gated, name=config.activation) if config.gated else activation(config.activation)


class Norm(nn.Module):
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019) over the last dimension."""

    def __init__(self, config: ModelConfig, size: int | None = None, kind: str | None = None) -> None:
        super().__init__()
        self.size = size or config.hidden_size
        self.kind = kind or config.norm
        self.eps = config.norm_eps
        shifted = self.kind == "layer" and config.norm_bias and config.norm_weight
        self.weight = nn.Parameter(torch.empty(self.size)) if config.norm_weight else None
        self.bias = nn.Parameter(torch.empty(self.size)) if shifted else None

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "layer":
            return F.layer_norm(x, (self.size,), self.weight, self.bias, self.eps)
        return rms_norm(x, self.weight, self.eps)


class Linear(nn.Linear):
    """x Wᵀ + b, which draws nothing when it is built: the model fills it from its own generator.

    `parts` are the row counts of projections fused into one, for optimisers that treat matrices apart (Muon).
    """

    def __init__(self, inputs: int, outputs: int, bias: bool, parts: tuple[int, ...] | None = None) -> None:
        super().__init__(inputs, outputs, bias)
        self.parts = parts

    def reset_parameters(self) -> None:
        """Nothing: see `model.initialise`."""


class Table(nn.Embedding):
    """Rows of learned vectors, empty until the model fills them."""

    def reset_parameters(self) -> None:
        """Nothing: see `model.initialise`."""


class Reports:
    """What layers of experts report in a forward pass, in its order.

    No list and no dataclass: of those FSDP2 gives every layer a copy, and what is appended to a copy is lost.
    """

    def __init__(self) -> None:
        self.found: list[Routing] = []


@dataclass(frozen=True)
class Context:
    """What all layers of a stack share in one forward pass."""

    view: View
    local: View | None = None  # of local layers
    angles: tuple[Tensor, Tensor] | None = None  # rotary
    local_angles: tuple[Tensor, Tensor] | None = None
    pairs: Pairs | None = None  # relative positions that scores of content ask for
    tokens: Tensor | None = None  # (B, T)
    real: Tensor | None = None  # (B, T) no padding
    cross: View | None = None
    memory: Tensor | None = None  # (B, S, d) the source's final states
    cache: Cache | None = None
    drop: Drop | None = None
    drop_attention: Drop | None = None
    routing: Reports | None = None  # of experts; where there are none, nothing is made that compilers stumble over
    keys: Context | None = None  # of the tokens that keys come from, where those are not the queries' own

    @property
    def of_keys(self) -> Context:
        return self if self.keys is None else self.keys


class FeedForward(nn.Module):
    """Up, activation, down; gated ones fuse gate and up: the first I rows of `up` are the gate."""

    def __init__(self, config: ModelConfig, size: int | None = None) -> None:
        super().__init__()
        size = size or config.mlp_size
        self.activation = between(config)
        parts = (size,) * (2 if config.gated else 1)
        self.up = Linear(config.hidden_size, sum(parts), config.mlp_bias, parts)
        self.down = Linear(size, config.hidden_size, config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))
