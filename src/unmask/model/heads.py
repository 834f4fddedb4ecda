"""Heads: what is read off the final states. Each is built from its declaration (`batch.Head`).

A head works in two steps so that logits exist only at targets: `features` (n, a, d) → (n, d'), then `project`.
A vocabulary head also lends its `projection`, with which the loss runs in chunks over the table.

Legend: n targets, a = 1 or 2 positions each, d hidden size, d' feature size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.batch import Head, Stream
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model.parts import Linear, Norm, activation


class Projection(NamedTuple):
    """logits = softcap(scale · features weightᵀ + bias), softcap(x) = cap · tanh(x / cap)."""

    weight: Tensor  # (V, d')
    bias: Tensor | None  # (V,)
    scale: float
    softcap: float | None


FEW = 16
"""Rows of a decoding step, as many as are written together by default."""


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b of x (n, d). Where nothing is trained, few rows are taken as (W xᵀ)ᵀ on a CPU.

    What such a product costs is the reading of W, and BLAS reads it faster as its first factor.
    """
    if len(x) > FEW or torch.is_grad_enabled() or x.device.type != "cpu":
        return F.linear(x, weight, bias)
    y = torch.mm(weight, x.t()).t().contiguous()
    return y if bias is None else y + bias


class HeadModule(nn.Module):
    """The parameters of one declared head; a tied table is the embedding's own Parameter."""

    def __init__(self, config: ModelConfig, head: Head, table: Tensor) -> None:
        super().__init__()
        self.head = head
        self.scale = config.head_scale
        self.softcap = config.logit_softcap
        d = config.hidden_size
        self.pooler: nn.Module | None = None
        self.dense: nn.Module | None = None
        self.boundary: nn.Module | None = None
        self.squash: Callable[[Tensor], Tensor] = torch.tanh  # of the pooler
        if head.arity not in (1, 2):
            raise UserError(f"head '{head.name}' reads {head.arity} positions; 1 and 2 are known")
        if head.arity == 2 and config.tied_head and config.table_size != d:
            raise UserError(
                f"head '{head.name}' reads two positions with the embedding's own table, which is {config.table_size} "
                f"wide and not {d}: set model.tied_head=false, or drop model.embedding_size"
            )
        if head.arity == 2:
            self.boundary = Boundary(config, head.extra)
        elif head.over == "vocabulary" and config.head_transform:
            self.dense = Transform(config, config.table_size)
            d = config.table_size
        elif head.over == "binary" and config.detector_transform:
            self.pooler, self.squash = Linear(d, d, True), activation(config.activation)
        elif head.over in ("classes", "score", "group") and config.pooler:
            self.pooler = Linear(d, d, True)
        rows = outputs(head, config)
        tied = head.over == "vocabulary" and config.tied_head
        self.weight: Tensor = table if tied else nn.Parameter(torch.empty(rows, d))
        has_bias = config.head_bias if head.over == "vocabulary" else True
        self.bias = nn.Parameter(torch.empty(rows)) if has_bias else None

    def features(self, x: Tensor, extra: Tensor | None = None) -> Tensor:
        """(n, d') from states x (n, a, d); `extra` (n,) is the offset inside a span where a = 2."""
        if self.boundary is not None:
            return self.boundary(x, extra)
        x = x[:, 0]
        if self.dense is not None:
            return self.dense(x)
        return x if self.pooler is None else self.squash(self.pooler(x))

    def project(self, features: Tensor) -> Tensor:
        """Logits (n, V), (n, classes), or (n, 1) for binary, score, group and positions.

        Over positions it is the score of each place; the two ends of a span are two heads.
        """
        if self.head.over != "vocabulary":
            return F.linear(features, self.weight, self.bias)
        scaled = features if self.scale == 1.0 else features * self.scale
        logits = _product(scaled, self.weight, self.bias)
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def projection(self) -> Projection:
        """What a chunked loss over the vocabulary needs."""
        return Projection(self.weight, self.bias, self.scale, self.softcap)


class Transform(nn.Module):
    """dense, activation, norm: BERT's head before its table (Devlin et al. 2018; their code)."""

    def __init__(self, config: ModelConfig, size: int) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, size, config.head_transform_bias)
        self.norm = Norm(config, size)
        self.activation = activation(config.head_activation or config.activation)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x)))


class Boundary(nn.Module):
    """SpanBERT's boundary objective (Joshi et al. 2019, section 3.2): two layers of LayerNorm(GELU(W h))
    over [left state; right state; embedding of the offset]."""

    def __init__(self, config: ModelConfig, offsets: int) -> None:
        super().__init__()
        d = config.hidden_size
        self.offsets = nn.Parameter(torch.empty(offsets, d)) if offsets else None
        self.dense1 = Linear((3 if offsets else 2) * d, d, True)
        self.norm1 = Norm(config)
        self.dense2 = Linear(d, d, True)
        self.norm2 = Norm(config)

    def forward(self, x: Tensor, extra: Tensor | None) -> Tensor:
        h = x.flatten(1)
        if self.offsets is not None:
            if extra is None:
                raise UserError("a boundary head with a table of offsets needs Targets.extra")
            h = torch.cat([h, F.embedding(extra, self.offsets)], -1)
        h = self.norm1(F.gelu(self.dense1(h)))
        return self.norm2(F.gelu(self.dense2(h)))


def labels(heads: Iterable[Head]) -> dict[str, dict[str, int] | dict[int, str]]:
    """What an export says of its classes, by the common library's keys: the names of the first head that has some.

    >>> labels([Head("lm"), Head("nsp", over="classes", size=2, names=("is_next", "not_next"))])
    {'id2label': {0: 'is_next', 1: 'not_next'}, 'label2id': {'is_next': 0, 'not_next': 1}}
    """
    names = next((head.names for head in heads if head.names), ())
    if not names:
        return {}
    return {"id2label": dict(enumerate(names)), "label2id": {name: k for k, name in enumerate(names)}}


def outputs(head: Head, config: ModelConfig) -> int:
    """How many numbers a head answers with at one target."""
    if head.over == "vocabulary":
        return head.size or config.vocab_size
    if head.over == "classes":
        if head.size < 1:
            raise UserError(f"head '{head.name}' over classes needs a size")
        return head.size
    return 1


def read(states: Tensor, stream: Stream, head: Head, index: Tensor | None) -> Tensor:
    """The states (n, a, d) that a head's targets read, from states (B, T, d).

    index   (n,) or (n, 2) into the flat stream; None = every position
    pool    at: that state · mean, max: over the block that the index lies in
    """
    flat = states.flatten(0, 1)
    if head.pool == "at":
        if index is None:
            return flat[:, None]
        return flat.index_select(0, index.reshape(-1)).view(len(index), -1, flat.shape[1])
    if index is None or index.dim() != 1:
        raise UserError(f"head '{head.name}' pools by {head.pool}: its targets need one index each")
    row = index // states.shape[1]
    same = stream.block[row] == stream.block.reshape(-1)[index][:, None]  # (n, T)
    if head.pool == "max":
        return states[row].masked_fill(~same[..., None], float("-inf")).amax(1, keepdim=True)
    weight = same.to(states.dtype) / same.sum(1, keepdim=True)
    return torch.bmm(weight[:, None], states[row])
