"""The loss over a vocabulary, whose logits exist only in chunks, and samples of its softmax.

Legend: n targets, d features, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

TINY = 1e-30
"""A probability below it has lost digits to underflow in fp32."""
FINE = 256
"""Tokens whose shares are summed at once when a token is drawn."""
ROWS = 1024
"""Rows of a table's gradient that are added to at once."""
WORDS = 4096
"""Rows of a table that a CPU multiplies at once: they and what comes out stay in its caches."""


class Sampled(NamedTuple):
    """tokens (n,) int64, one drawn from each softmax; right (n,) bool, whether no token is likelier than the target."""

    tokens: Tensor
    right: Tensor


def linear_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, value: Tensor, w: Tensor, cap: float | None = None
) -> Tensor:
    """Σ w · −log softmax(x Wᵀ + b)[value]: x (n, d), weight (V, d), value (n,), w (n,) → fp32 scalar.

    The (n, V) logits exist only in chunks: the gradients of a chunk are computed in the forward pass,
    while its logits are there. Under autocast the products run in bf16, softmax and sums in fp32.
    """
    return _applied(x, weight, bias, value, w, cap, None)[0]


def sampled_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, value: Tensor, w: Tensor, cap: float | None, draw: Tensor
) -> tuple[Tensor, Sampled]:
    """`linear_cross_entropy`, and a token of each softmax, drawn by the uniforms `draw` (n,) (`inverse`)."""
    total, tokens, right = _applied(x, weight, bias, value, w, cap, draw)
    return total, Sampled(tokens, right)


def _applied(x: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    learns = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, *given[:2]))
    found: tuple[Tensor, Tensor, Tensor] = _LinearCrossEntropy.apply(x, *given, learns)  # type: ignore[no-untyped-call]
    return found


def _chunk(v: int) -> int:
    """Rows of logits that are alive at once: 128 MB of them in bf16 at most. Each chunk adds to a table's gradient."""
    return max(32, min(1024, (1 << 26) // v))


def _block(v: int) -> int:
    """Rows of a chunk that a CPU turns from logits to gradients at once: 2 MB in fp32 stay in its caches."""
    return max(1, (1 << 19) // v)


def logits_bytes(v: int) -> int:
    """Bytes of the largest logits that exist at once over a vocabulary of v, were they in fp32."""
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
        draw: Tensor | None,
        learns: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`learns` says whether gradients are wanted: inside a Function grad mode is always off."""
        n, table = len(x), weight.to(x.dtype)
        dx = torch.empty_like(x) if learns else None
        # The first chunk fills it: zeros that are added to would be written and read for nothing.
        dweight = (torch.empty_like if n else torch.zeros_like)(weight) if learns else None
        dbias = torch.zeros_like(bias) if learns and bias is not None else None
        losses = torch.empty(n, dtype=_wide(x), device=x.device)
        drawn = 0 if draw is None else n
        found = Sampled(value.new_empty(drawn), value.new_empty(drawn, dtype=torch.bool))
        step = _even(n, _chunk(len(weight)))
        room = x.new_empty(min(step, n), len(weight))  # for all chunks: a second one might lie beside the first
        for part in _slices(n, step):
            logits = _scores(x[part], table, room)
            into = losses[part], Sampled(*(kind[part] for kind in found))
            _to_gradient(logits, bias, value[part], w[part] if learns else None, cap, _of(draw, part), *into)
            if dx is not None and dweight is not None:
                dx[part] = logits @ table
                _add_product(dweight, logits.t(), x[part], first=part.start == 0)
                if dbias is not None:
                    dbias += logits.sum(0)
        ctx.save_for_backward(dx, dweight, dbias)
        ctx.mark_non_differentiable(*found)
        return (losses * w).sum(), *found

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, scale: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        kept = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)()
        times = torch.mul if kept else Tensor.mul_  # in its place, unless the graph will be asked once more
        dx, dweight, dbias = (None if g is None else times(g, scale) for g in ctx.saved_tensors)
        return dx, dweight, dbias, None, None, None, None, None


def _scores(x: Tensor, table: Tensor, room: Tensor) -> Tensor:
    """x (n, d) times the transposed table (V, d), in the first n rows of `room` (·, V)."""
    scores = room[: len(x)]
    for words in _slices(len(table), WORDS if x.device.type == "cpu" else len(table)):
        torch.mm(x, table[words].t(), out=scores[:, words])
    return scores


def _even(n: int, most: int) -> int:
    """The rows of each of the fewest equal chunks, of at most so many, that n rows make.

    >>> _even(614, 549), _even(549, 549), _even(0, 549)
    (307, 549, 1)
    """
    return max(1, -(-n // max(1, -(-n // most))))


def _add_product(total: Tensor, left: Tensor, right: Tensor, first: bool) -> None:
    """total (V, d) += left (V, n) @ right (n, d), or = where it is the first: bf16 products are added in fp32.

    A bf16 sum over chunks would lose a bit for every four. Rows are cast as they are added, a few at a time on a CPU,
    which would write all of them down in fp32 before it adds.
    """
    if left.dtype == total.dtype:
        torch.addmm(total, left, right, beta=0 if first else 1, out=total)
        return
    product = left @ right
    if first:
        total.copy_(product)
        return
    for rows in _slices(len(total), ROWS if total.device.type == "cpu" else len(total)):
        total[rows] += product[rows]


def _slices(n: int, step: int) -> Iterator[slice]:
    for i in range(0, n, step):
        yield slice(i, min(i + step, n))


def _of(x: Tensor | None, rows: slice) -> Tensor | None:
    return None if x is None else x[rows]


def _to_gradient(
    logits: Tensor,
    bias: Tensor | None,
    value: Tensor,
    w: Tensor | None,
    cap: float | None,
    draw: Tensor | None,
    losses: Tensor,
    drawn: Sampled,
) -> None:
    """Fill losses (n,) of logits (n, V) before bias and cap, whose place w times their gradient takes.

    Without w no gradient is wanted, and the logits stay. With `draw` samples are drawn.

    Softmax and sums are in fp32 (fp64 stays fp64), of a few rows at a time on a CPU, which all use the same memory:
    nothing else is as large as the logits are.
    """
    n, v = logits.shape
    cpu = logits.device.type == "cpu"
    size = min(n, _block(v)) if cpu else n
    room = torch.empty(size, v, dtype=losses.dtype, device=logits.device)
    at, less = value[:, None], room.new_full((size, 1), -1.0)
    weighted = w is not None and (not cpu or bool((w != 1).any()))  # nearly always they are 1, which saves a pass
    for rows in _slices(n, size):
        z, squashed = _finished(logits[rows], bias, cap, room[: rows.stop - rows.start])
        probability = torch.softmax(z, 1, out=z if cpu else None)
        hit = probability.gather(1, at[rows])
        torch.neg(hit.log().squeeze(1), out=losses[rows])
        # What underflows has no logarithm; a GPU would wait for the question, so there it is always mended.
        if not cpu or float(hit.min()) < TINY:
            exact = _by_logarithms(logits[rows], bias, at[rows], cap)
            losses[rows] = torch.where(hit < TINY, exact, losses[rows, None]).squeeze(1)
        if draw is not None:
            drawn.tokens[rows] = inverse(probability, draw[rows])
            drawn.right[rows] = hit.squeeze(1) >= probability.amax(1)
        if w is None:
            continue
        probability.scatter_add_(1, at[rows], less[: len(hit)])
        if squashed is not None:
            probability *= 1 - squashed**2
        if weighted:
            probability *= w[rows, None]
        logits[rows] = probability


def _by_logarithms(logits: Tensor, bias: Tensor | None, at: Tensor, cap: float | None) -> Tensor:
    """(n, 1) losses that need no probability."""
    z, _ = _finished(logits, bias, cap, torch.empty_like(logits, dtype=_wide(logits)))
    return z.logsumexp(1, keepdim=True) - z.gather(1, at)


def _finished(logits: Tensor, bias: Tensor | None, cap: float | None, room: Tensor) -> tuple[Tensor, Tensor | None]:
    """Logits with bias and cap, written into `room` (n, V), and the tanh of the cap."""
    z = room.copy_(logits)
    if bias is not None:
        z += bias
    if cap is None:
        return z, None
    squashed = torch.tanh(z / cap)
    return torch.mul(squashed, cap, out=z), squashed


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def inverse(probability: Tensor, draw: Tensor) -> Tensor:
    """(n,) int64 tokens at which the sums of shares (n, V) pass the uniforms (n,): P(< k) ≤ u < P(≤ k).

    First the sums of every 256 tokens, then those inside the 256 that hold the uniform: V sums of many small shares
    would need fp64 and take longer than the softmax.

    >>> shares = torch.tensor([[0.5, 0.25, 0.25]]).expand(4, 3)
    >>> inverse(shares, torch.tensor([0.0, 0.49, 0.5, 0.99], dtype=torch.float64)).tolist()
    [0, 0, 1, 2]
    """
    n, v = probability.shape
    wide = torch.float32 if probability.device.type == "mps" else torch.float64
    groups = F.pad(probability, (0, -v % FINE)).view(n, -1, FINE)
    coarse = groups.sum(2).to(wide).cumsum(1)
    share = draw.to(wide)[:, None]
    group = _passed(coarse, share * coarse[:, -1:])
    sums = F.pad(coarse, (1, 0))
    before, after = sums.gather(1, group), sums.gather(1, group + 1)
    fine = groups[torch.arange(n, device=group.device), group.squeeze(1)].to(wide).cumsum(1)
    left = (share * coarse[:, -1:] - before) / (after - before)
    return (group * FINE + _passed(fine, left * fine[:, -1:])).squeeze(1)


def _passed(sums: Tensor, goal: Tensor) -> Tensor:
    """(n, 1) the first of the rising sums (n, k) above the goal (n, 1), or the first that holds all there is."""
    return torch.searchsorted(sums, goal, right=True).minimum(torch.searchsorted(sums, sums[:, -1:].contiguous()))
