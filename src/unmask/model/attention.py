"""Attention takes (visible, score): who sees whom, and an additive score on position pairs.

The mask comes from the record's vectors by `batch.visible`, once per forward pass; every layer of a stack
shares it, in the form its kernel wants (`View`). There are three kernels, and they agree:

    fused      F.scaled_dot_product_attention; boolean mask, or additive where there is a score
    explicit   baddbmm, softmax, bmm; on CPU the faster one in bf16 (of more than one query), and the one with dropout
    flex       FlexAttention, on GPUs (`flex`): the rule itself in place of a mask

A query that sees nothing outputs 0 on all, with finite gradients.

Legend: B rows, Tq queries, Tk keys, H heads, K key-value heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.batch import Stream, same_block, visible
from unmask.model.flex import Flex, flex_attend


class Score(Protocol):
    """An additive term of attention scores that depends on positions."""

    def dense(self, q_positions: Tensor, k_positions: Tensor, contiguous: bool = False) -> Tensor:
        """(1 or B, H, Tq, Tk)."""


@dataclass(frozen=True)
class View:
    """Who sees whom for one set of queries and keys, ready for a kernel.

    bias   fused: None, boolean (B, 1, Tq, Tk) or additive (B, H, Tq, Tk); explicit: additive (B·H, Tq, Tk)
    sees   explicit: (B, 1, Tq, 1), 0 where a query sees nothing; None when every query sees something
    """

    explicit: bool
    bias: Tensor | None = None
    sees: Tensor | None = None
    causal: bool = False
    flex: Flex | None = None


def self_view(
    stream: Stream,
    keys: Stream | Keys | None,
    score: Score | None,
    heads: int,
    dtype: torch.dtype,
    explicit: bool | None = None,
    window: int | None = None,
) -> View:
    """The view of a stream on itself, or on other keys: of a cache (which then hold the stream's own), or of a stream.

    window   the largest difference of positions that is seen; None = any
    """
    alone = window is None and stream.isolated and not isinstance(keys, Keys)
    if alone and score is None and stream.pattern in ("full", "causal"):
        causal = stream.pattern == "causal"
        if not explicit_kernel(explicit, dtype, stream.tokens.device, None):
            return View(False, causal=causal)
        if not causal:
            return View(True)
    seen: Stream | Keys = stream if keys is None else keys
    bias = None if score is None else score.dense(stream.positions, seen.positions, stream.contiguous and keys is None)
    fused = not explicit_kernel(explicit, dtype, stream.tokens.device, bias)
    if bias is not None and fused and alone and keys is None and stream.pattern == "full":
        return View(False, bias.to(dtype))  # one for all rows where positions are contiguous
    mask = visible(stream.block, stream.horizon, seen.block, seen.reveal)
    if window is not None:
        mask = mask & ((stream.positions[:, :, None] - seen.positions[:, None, :]).abs() <= window)
    return _view(mask[:, None], bias, heads, dtype, explicit)


def cross_view(stream: Stream, source: Stream, heads: int, dtype: torch.dtype, explicit: bool | None = None) -> View:
    """The view of a stream on the source: block equality alone."""
    return _view(same_block(stream.block, source.block)[:, None], None, heads, dtype, explicit)


def explicit_kernel(explicit: bool | None, dtype: torch.dtype, device: torch.device, bias: Tensor | None) -> bool:
    """Whether the explicit kernel runs: as asked, else on CPU in 16 bits or where the score needs a gradient."""
    if explicit is not None:
        return explicit
    trained = bias is not None and bias.requires_grad
    return device.type == "cpu" and (trained or dtype in (torch.bfloat16, torch.float16))


def _view(mask: Tensor, bias: Tensor | None, heads: int, dtype: torch.dtype, explicit: bool | None) -> View:
    if not explicit_kernel(explicit, dtype, mask.device, bias):
        if bias is None:
            return View(False, mask)
        return View(False, bias.to(dtype).masked_fill(~mask, float("-inf")))
    rows, _, queries, keys = mask.shape
    # -inf would make NaN of a row without keys; a low number makes a mean of it, which `sees` turns into 0
    lowest = torch.finfo(dtype).min / 2
    added = torch.zeros((), dtype=dtype, device=mask.device) if bias is None else bias.to(dtype)
    added = added.masked_fill(~mask, lowest).expand(rows, heads, queries, keys)
    sees = mask.any(-1, keepdim=True)
    added = added.reshape(rows * heads, queries, keys).contiguous()
    needless = not torch.compiler.is_compiling() and bool(sees.all())
    return View(True, added, None if needless else sees.to(dtype))


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    view: View,
    scale: float,
    drop: Drop | None = None,
    terms: Tensor | None = None,
    cap: float | None = None,
) -> Tensor:
    """softmax(cap(scale · (q kᵀ + terms)) + bias) v over visible keys, cap(x) = cap · tanh(x / cap).

    q (B, H, Tq, D), k (B, K, Tk, D), v (B, K, Tk, Dv), terms (B, H, Tq, Tk) → (B, H, Tq, Dv). Query head h reads
    key-value head h // (H / K) (grouped queries, Ainslie et al. 2023). Terms and cap need an explicit view.
    """
    if view.flex is not None:
        assert drop is None and terms is None, "FlexAttention knows neither"
        return flex_attend(q, k, v, view.flex, scale, cap)
    if view.explicit:
        return _explicit(q, k, v, view, scale, drop, terms, cap)
    assert terms is None and cap is None, "the fused kernel knows neither"
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=view.bias, is_causal=view.causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def _explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    view: View,
    scale: float,
    drop: Drop | None,
    terms: Tensor | None,
    cap: float | None,
) -> Tensor:
    rows, heads, queries, size = q.shape
    groups, keys = k.shape[1], k.shape[2]
    folded = (rows * groups, heads // groups * queries)  # the queries of one key-value head lie end to end
    q3 = q.reshape(*folded, size)
    k3 = k.reshape(rows * groups, keys, size).transpose(1, 2)
    bias = None if view.bias is None else view.bias.view(*folded, keys)
    added = None if cap is not None else bias  # a cap holds scores alone: the mask comes after it
    if terms is not None:
        scaled = terms.reshape(*folded, keys) * scale
        added = scaled if added is None else scaled + added
    if added is None:
        scores = torch.baddbmm(q3.new_zeros(()), q3, k3, beta=0, alpha=scale)
    else:
        scores = torch.baddbmm(added, q3, k3, alpha=scale)
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
        scores = scores if bias is None else scores + bias
    weights = scores.softmax(-1)
    if drop is not None:
        weights = drop(weights)
    out = torch.bmm(weights, v.reshape(rows * groups, keys, -1)).view(rows, heads, queries, -1)
    return out if view.sees is None else out * view.sees


class Drop:
    """Inverted dropout whose mask comes from an explicit generator, never from global state.

    The rate is rounded to 1 / 65,536: four elements share one 64-bit draw, and the kept ones are scaled by the
    rounded rate, so the expectation is exact.
    """

    def __init__(self, rate: float, generator: torch.Generator) -> None:
        self.limit = round(rate * 65536)
        self.generator = generator

    def __call__(self, x: Tensor) -> Tensor:
        if not self.limit:
            return x
        draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device)
        draws.random_(-(2**63), None, generator=self.generator)
        keep = draws.view(torch.int16)[: x.numel()].view(x.shape) >= self.limit - 32768
        return x * (keep.to(x.dtype) * (65536 / (65536 - self.limit)))


# ---------------------------------------------------------------- key–value cache


@dataclass
class Keys:
    """The vectors of the stored keys (B, length): all that visibility and relative scores ask for."""

    positions: Tensor
    block: Tensor
    reveal: Tensor
    token_type: Tensor


@dataclass
class Cache:
    """The record of the keys, so any decode order works; for inference (it is written in place).

    A cache that is made with the capacity it will need is never copied; else buffers double when full, so that n
    single tokens cost O(n) copies. `memory` holds the cross-attention keys and values of each layer, computed from
    the source once.

    `whole`: buffers are handed out with their empty places, which nobody sees (block 0). Products in 16 bits on a CPU
    want one stretch of memory, and would copy the used part of it at every step.
    """

    length: int = 0
    capacity: int = 0
    whole: bool = False
    record: Tensor | None = None  # (4, B, capacity): the vectors of `Keys`
    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # depth → (B, K, capacity, D): keys, values
    memory: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def extend(self, stream: Stream, whole: bool = False) -> Keys | None:
        """Write down the stream's keys and give all there are; each layer then `store`s its own tensors for them.

        None where there are no others than the stream's: it sees itself alone, for which kernels know shorter ways.
        """
        types = torch.zeros_like(stream.block) if stream.token_type is None else stream.token_type
        new = torch.stack([stream.positions, stream.block, stream.reveal, types])
        begin, self.length, self.whole = self.length, self.length + new.shape[2], whole
        if self.length > self.capacity:
            self.capacity = max(2 * self.capacity, self.length, 32)
        self.record = _room(self.record, new, self.capacity, begin, axis=2)
        self.record[:, :, begin : self.length] = new
        if whole:  # what was stored there and forgotten is nobody's to see
            self.record[:, :, self.length :] = 0
        return Keys(*self.record[:, :, : self._shown]) if begin else None

    @property
    def _shown(self) -> int:
        return self.capacity if self.whole else self.length

    def store(self, depth: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append k and v (B, K, T, D) of a layer; all its keys and values so far come back."""
        begin = self.length - k.shape[2]
        old = self.layers.get(depth, (None, None))
        held_k, held_v = (
            _room(x, new, self.capacity, begin, axis=2, blank=self.whole) for x, new in zip(old, (k, v), strict=True)
        )
        held_k[:, :, begin : self.length] = k
        held_v[:, :, begin : self.length] = v
        self.layers[depth] = (held_k, held_v)
        return (held_k[:, :, : self._shown], held_v[:, :, : self._shown]) if begin else (k, v)

    @property
    def nbytes(self) -> int:
        """Of all buffers, whether full or not."""
        pairs = [*self.layers.values(), *self.memory.values()]
        return sum(x.nbytes for pair in pairs for x in pair) + (0 if self.record is None else self.record.nbytes)

    def select(self, rows: Tensor) -> None:
        """Keep these rows in this order (beam search; rows that have ended)."""
        if self.record is not None:
            self.record = self.record[:, rows]
        self.layers = {i: (k[rows], v[rows]) for i, (k, v) in self.layers.items()}
        self.memory = {i: (k[rows], v[rows]) for i, (k, v) in self.memory.items()}


def _room(held: Tensor | None, new: Tensor, capacity: int, used: int, axis: int, blank: bool = False) -> Tensor:
    """`held`, or a copy of its first `used` entries with room for `capacity` along `axis`; blank: 0 where it is empty,
    since a weight of 0 times what memory happens to hold may be NaN."""
    if held is not None and held.shape[axis] >= capacity:
        return held
    shape = list(new.shape)
    shape[axis] = capacity
    grown = new.new_zeros(shape) if blank else new.new_empty(shape)  # without zeros what is never used costs no memory
    if held is not None:
        grown.narrow(axis, 0, used).copy_(held.narrow(axis, 0, used))
    return grown
