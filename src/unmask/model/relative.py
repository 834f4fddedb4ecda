"""Attention terms of content and relative position: DeBERTa's disentangled ones and Transformer-XL's, in XLNet's form.

The stack makes `Pairs` once per forward pass: which row of one table of relative positions each query-key pair reads.
A layer's own module turns them into numbers that attention adds to q·k before it multiplies by its scale:

    deberta   q · K(r) + k · Q(r)                             Disentangled
    xlnet     (q + u) · R(r) + v · k + (q + w) · segment      Recurrence

Each term is a product with the whole table, (B, H, T, R), from which the pairs gather: memory grows with T · (T + R),
never with T · T · d.

Legend: B rows, Tq queries, Tk keys, H heads, K key-value heads, D head size, d hidden size, R rows of the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.batch import Stream
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model.attention import Keys
from unmask.model.parts import Linear, Norm
from unmask.model.positions import differences, sinusoids


@dataclass(frozen=True)
class Pairs:
    """What the layers of a stack share about query-key pairs.

    index      (1 or B, Tq, Tk) int64, the row of the table of each pair; any row where the two are in different blocks
    table      (R, d) vectors of relative positions
    same_type  (B, Tq, Tk) whether both have one token type (xlnet); None = no segment term
    """

    index: Tensor
    table: Tensor
    same_type: Tensor | None = None


def log_bucket(difference: Tensor, buckets: int, max_distance: int) -> Tensor:
    """DeBERTa v2's bucket of query position - key position, with its sign (`make_log_bucket_position` of their code).

    Distances up to half of `buckets` are exact; beyond, buckets grow as logarithms, and max_distance - 1 falls
    into the last one. Larger ones lie outside: the caller clips them.

    >>> log_bucket(torch.tensor([-15, -9, -5, -4, -1, 0, 3, 4, 5, 6, 9, 15, 16]), 8, 16).tolist()
    [-7, -6, -5, -4, -1, 0, 3, 4, 5, 5, 6, 7, 8]
    """
    middle = buckets // 2
    distance = difference.abs()
    # in float32 and in their order of operations, so that no ceiling falls on the other side
    ratio = torch.log(distance.clamp(min=middle) / middle) / torch.log(torch.tensor((max_distance - 1) / middle))
    far = torch.ceil(ratio * (middle - 1)) + middle
    return torch.where(distance <= middle, difference, (far * difference.sign()).to(difference.dtype))


def shrinks(config: ModelConfig) -> bool:
    """Whether a short row reads the middle of deberta's table alone: no bucket is farther than its distance.

    So it is without buckets, and where the logarithm starts slowly.
    """
    return not config.relative_buckets or config.relative_max_distance - 1 >= math.e * (config.relative_buckets // 2)


class Relative(nn.Module):
    """A stack's relative positions: the table, and which of its rows each query-key pair reads.

    deberta  `weight` (2 · span, d), learned; row span + b holds bucket b of query position - key position, or that
             difference itself where `relative_buckets` is 0; farther ones share the outermost rows (He et al. 2021,
             section 3.1; v2's code)
    xlnet    sinusoids of the difference, sines then cosines (Dai et al. 2019, section 3.3); nothing is learned
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.size = config.hidden_size
        self.longest = config.max_position
        self.buckets, self.max_distance = config.relative_buckets, config.relative_max_distance
        self.span = self.buckets or self.max_distance
        self.shrinks = shrinks(config)
        learned = config.positions == "deberta"
        if learned and self.buckets and not 2 <= self.buckets <= 2 * self.max_distance - 4:
            raise UserError(
                f"model.relative_buckets={self.buckets} does not fit model.relative_max_distance={self.max_distance}: "
                "half of the buckets are exact distances, and the largest distance must lie beyond them"
            )
        self.weight = nn.Parameter(torch.empty(2 * self.span, self.size)) if learned else None
        self.norm = Norm(config, kind="layer") if learned and config.relative_norm else None

    def pairs(self, stream: Stream, keys: Stream | Keys | None) -> Pairs:
        """The pairs of a stream with itself, or with other keys: of a cache (which then hold the stream's own), or of
        a stream.

        In a contiguous stream a difference of positions is one of indices, and one (1, T, T) index serves all rows.
        """
        contiguous = stream.contiguous and keys is None
        seen: Stream | Keys = stream if keys is None else keys
        difference = differences(stream.positions, seen.positions, contiguous).neg().long()
        reach = difference.shape[1] - 1 if contiguous else None
        if self.weight is not None:
            if reach is None and self.shrinks and not torch.compiler.is_compiling():
                reach = self._farthest(difference)
            return self._learned(difference, self.weight, reach)
        if reach is None:
            reach = self._farthest(difference)
        span = torch.arange(-reach, reach + 1, device=difference.device)
        index = (difference + reach).clamp(0, 2 * reach)
        return Pairs(index, sinusoids(span, self.size, torch.float32), _same_type(stream, keys))

    def _learned(self, difference: Tensor, weight: Tensor, reach: int | None) -> Pairs:
        bucket = log_bucket(difference, self.buckets, self.max_distance) if self.buckets else difference
        index = (bucket + self.span).clamp(0, 2 * self.span - 1)
        if reach is not None and reach < self.span and self.shrinks:  # rows beyond the text are left out
            weight = weight[self.span - reach : self.span + reach + 1]
            index = index - (self.span - reach)
        return Pairs(index, weight if self.norm is None else self.norm(weight))

    def _farthest(self, difference: Tensor) -> int:
        """The largest |difference|; a compiled graph, which should not wait for a value, takes the longest text's."""
        if torch.compiler.is_compiling():
            return max(self.longest, difference.shape[-1])
        return int(difference.abs().max())


def _same_type(stream: Stream, keys: Stream | Keys | None) -> Tensor | None:
    """(B, Tq, Tk); None where nobody has a type, which is the same as one type for all."""
    q, k = stream.token_type, stream.token_type if keys is None else keys.token_type
    if q is None and k is None:
        return None
    q = torch.zeros_like(stream.positions) if q is None else q
    k = torch.zeros_like(stream.positions if keys is None else keys.positions) if k is None else k
    return q[:, :, None] == k[:, None, :]


def relation_of(config: ModelConfig) -> Disentangled | Recurrence | None:
    """The module of a layer that turns `Pairs` into score terms; None for positions of other kinds."""
    kinds: dict[str, Callable[[ModelConfig], Disentangled | Recurrence]]
    kinds = {"deberta": Disentangled, "xlnet": Recurrence}
    return kinds[config.positions](config) if config.positions in kinds else None


class Disentangled(nn.Module):
    """DeBERTa's content-to-position and position-to-content terms (He et al. 2021, equations 4 and 5; v2's code).

    Both read one row per pair, that of bucket(i - j): for the second term the paper asks for bucket(j - i) from the
    key's side, whose mirrored table is the same row. Relative positions are projected by the layer's own query and key
    rows of `qkv`, biases included (`relative_shared`, v3 and v2), or by `pos_query` and `pos_key`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.groups, self.size = config.num_heads, config.kv_heads, config.size_per_head
        own = not config.relative_shared
        self.pos_key = Linear(config.hidden_size, self.groups * self.size, True) if own else None
        self.pos_query = Linear(config.hidden_size, self.heads * self.size, True) if own else None

    def forward(self, q: Tensor, k: Tensor, pairs: Pairs, qkv: nn.Linear) -> Tensor:
        """Terms (B, H, Tq, Tk) of q (B, H, Tq, D) and k (B, K or H, Tk, D)."""
        q_table, k_table = self._tables(pairs.table, qkv)
        k = k.repeat_interleave(self.heads // k.shape[1], 1)
        k_table = k_table.repeat_interleave(self.heads // self.groups, 0)
        from_query = _over(q, k_table.to(q.dtype).transpose(1, 2))  # (B, H, Tq, R)
        from_key = _over(k, q_table.to(k.dtype).transpose(1, 2))  # (B, H, Tk, R)
        return _pick(from_query, pairs.index) + _pick(from_key, pairs.index.transpose(1, 2)).transpose(2, 3)

    def _tables(self, table: Tensor, qkv: nn.Linear) -> tuple[Tensor, Tensor]:
        """The table as queries (H, R, D) and as keys (K, R, D)."""
        if self.pos_query is not None and self.pos_key is not None:
            q, k = self.pos_query(table), self.pos_key(table)
        else:
            rows = (self.heads + self.groups) * self.size
            joint = F.linear(table, qkv.weight[:rows], None if qkv.bias is None else qkv.bias[:rows])
            q, k = joint[:, : self.heads * self.size], joint[:, self.heads * self.size :]
        return q.reshape(-1, self.heads, self.size).transpose(0, 1), k.reshape(-1, self.groups, self.size).transpose(
            0, 1
        )


class Recurrence(nn.Module):
    """Transformer-XL's terms (Dai et al. 2019, section 3.3) and XLNet's segment term (Yang et al. 2019, section 2.4).

    r              projects the sinusoids of i - j
    position_bias  our name of their r_r_bias, the query's part that no content moves; content_bias is r_w_bias,
                   type_bias r_s_bias
    types          (2, H, D): added where query and key have the same token type, and where they differ
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.size = config.num_heads, config.size_per_head
        self.r = Linear(config.hidden_size, self.heads * self.size, False)
        self.content_bias = nn.Parameter(torch.empty(self.heads, self.size))
        self.position_bias = nn.Parameter(torch.empty(self.heads, self.size))
        self.type_bias = nn.Parameter(torch.empty(self.heads, self.size))
        self.types = nn.Parameter(torch.empty(2, self.heads, self.size))

    def forward(self, q: Tensor, k: Tensor, pairs: Pairs, qkv: nn.Linear) -> Tensor:
        """Terms (B, H, Tq, Tk) of q (B, H, Tq, D) and k (B, K or H, Tk, D); `qkv` is not read."""
        r = self.r(pairs.table.to(self.r.weight.dtype)).view(-1, self.heads, self.size).permute(1, 2, 0)  # (H, D, R)
        content, position, kind = (
            b[:, None].to(q.dtype) for b in (self.content_bias, self.position_bias, self.type_bias)
        )
        k = k.repeat_interleave(self.heads // k.shape[1], 1)
        out = _pick(_over(q + position, r.to(q.dtype)), pairs.index) + content @ k.transpose(2, 3)
        if pairs.same_type is None:
            return out
        both = _over(q + kind, self.types.to(q.dtype).permute(1, 2, 0))  # (B, H, Tq, 2)
        return out + torch.where(pairs.same_type[:, None], both[..., :1], both[..., 1:])


def _over(x: Tensor, table: Tensor) -> Tensor:
    """(B, H, T, R): x (B, H, T, D) times table (H, D, R), without the B copies of it that broadcasting would keep."""
    rows, heads, length, size = x.shape
    folded = x.transpose(0, 1).reshape(heads, rows * length, size)
    return (folded @ table).view(heads, rows, length, -1).transpose(0, 1)


def _pick(terms: Tensor, index: Tensor) -> Tensor:
    """(B, H, T, T') out of terms (B, H, T, R) at rows index (1 or B, T, T')."""
    return terms.gather(3, index[:, None].expand(*terms.shape[:3], index.shape[2]))
