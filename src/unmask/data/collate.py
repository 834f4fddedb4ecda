"""From ragged examples to a batch: who goes into which row, and how the vectors are laid there.

Nothing here knows an objective: fields are scattered, block ids are made unique within a row, target
indices follow their tokens. Packing keeps examples apart by their blocks alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from unmask.batch import (
    OPTIONAL,
    Batch,
    Examples,
    Head,
    Samples,
    Stream,
    Targets,
    TermKey,
    joined,
    places,
    start_of,
)
from unmask.objectives.base import Shape, Sizes


@dataclass(frozen=True)
class Placement:
    """For S examples: the row each goes to, and where it begins in that row's stream and source."""

    row: np.ndarray
    stream_at: np.ndarray
    source_at: np.ndarray
    rows: int

    def take(self, which: np.ndarray, rows: np.ndarray) -> Placement:
        """The examples `which`, in a batch made of the given `rows` only."""
        renumber = np.full(self.rows, -1)
        renumber[rows] = np.arange(len(rows))
        return Placement(renumber[self.row[which]], self.stream_at[which], self.source_at[which], len(rows))


def one_per_row(sizes: Sizes) -> Placement:
    s = len(sizes.stream)
    zero = np.zeros(s, np.int64)
    return Placement(np.arange(s), zero, zero, s)


def pack(sizes: Sizes, shape: Shape) -> Placement:
    """First fit, longest first, into rows of `shape`; with two stacks both lengths must fit.

    An example longer than a row is an error: objectives promise `sizes <= shape` for texts of `room`.
    """
    stream = np.asarray(sizes.stream)
    source = np.zeros_like(stream) if sizes.source is None else np.asarray(sizes.source)
    if (stream > shape.stream).any() or (source > shape.source).any():
        raise ValueError(f"an example of {stream.max()} (source {source.max()}) tokens exceeds a row of {shape}")
    row, stream_at, source_at = (np.zeros(len(stream), np.int64) for _ in range(3))
    used: list[list[int]] = []
    first_open = 0
    share = stream / shape.stream + source / max(shape.source, 1)
    for i in np.argsort(-share, kind="stable").tolist():
        a, b = int(stream[i]), int(source[i])
        for r in range(first_open, len(used)):
            if used[r][0] + a <= shape.stream and used[r][1] + b <= shape.source:
                break
        else:
            r = len(used)
            used.append([0, 0])
        row[i], stream_at[i], source_at[i] = r, used[r][0], used[r][1]
        used[r][0] += a
        used[r][1] += b
        while first_open < len(used) and used[first_open][0] >= shape.stream:
            first_open += 1
    return Placement(row, stream_at, source_at, len(used))


def at_least(place: Placement, rows: int) -> Placement:
    """The placement over `rows` rows or more: while there are fewer, the last example of a row opens a new one."""
    row, stream_at, source_at, have = place.row.copy(), place.stream_at.copy(), place.source_at.copy(), place.rows
    for i in np.lexsort((source_at, stream_at))[::-1].tolist():
        if have >= rows:
            break
        if (row == row[i]).sum() > 1:
            row[i], stream_at[i], source_at[i] = have, 0, 0
            have += 1
    return Placement(row, stream_at, source_at, have)


def collate(
    parts: Mapping[str, Examples],
    heads: Mapping[str, Sequence[Head]],
    place: Placement | None = None,
    *,
    shape: Shape | None = None,
    index: np.ndarray | None = None,
    side: Literal["right", "left"] = "right",
    pad: int = 0,
) -> Batch:
    """Lay the examples of each objective (concatenated in order) into rows.

    place: one example a row if None. shape: the rows' capacity; as long as the fullest row if None.
    side: on which side of a row the padding stands. index: (S,) global sample numbers, carried along.
    """
    examples = list(parts.values())
    stream = joined([e.stream for e in examples])
    sources = [e.source for e in examples]
    source = joined([s for s in sources if s is not None]) if any(s is not None for s in sources) else None
    if source is not None and any(s is None for s in sources):
        raise ValueError("a batch cannot mix objectives with and without a source")
    place = place or one_per_row(Sizes(np.diff(start_of(stream))))
    base = _block_base(stream, source, place)
    t, s = (0, 0) if shape is None else (shape.stream, shape.source)
    laid, where = _lay(stream, place.row, place.stream_at, place.rows, t, base, side, pad)
    where_source = None
    if source is not None:
        source, where_source = _lay(source, place.row, place.source_at, place.rows, s, base, side, pad)
    number = np.repeat(np.arange(len(examples)), [len(start_of(e.stream)) - 1 for e in examples])
    samples = Samples(place.row, base + 1, np.arange(len(number)) if index is None else index, number)
    targets, declared = _targets(parts, heads, {"stream": (where, laid), "source": (where_source, source)})
    return Batch(laid, targets, declared, source, samples)


def _block_base(stream: Stream, source: Stream | None, place: Placement) -> np.ndarray:
    """(S,) what to add to an example's block ids so that they are unique in its row."""
    top = _blocks(stream)
    if source is not None:
        top = np.maximum(top, _blocks(source))
    order = np.lexsort((place.source_at, place.stream_at, place.row))
    run = np.cumsum(top[order]) - top[order]
    first = np.searchsorted(place.row[order], np.arange(place.rows))
    base = np.empty_like(top)
    base[order] = run - run[np.minimum(first, len(run) - 1)][place.row[order]] if len(run) else run
    return base


def _blocks(stream: Stream) -> np.ndarray:
    """(S,) the highest block id of each example, 0 where it has no tokens."""
    start = start_of(stream)
    top = np.zeros(len(start) - 1, np.int64)
    some = np.diff(start) > 0
    if some.any():
        if stream.block.min() < 1:
            raise ValueError("the blocks of an example count from 1; 0 is padding, which collation adds")
        top[some] = np.maximum.reduceat(stream.block, start[:-1][some])
    return top


def _lay(
    stream: Stream, row: np.ndarray, at: np.ndarray, rows: int, length: int, base: np.ndarray, side: str, pad: int
) -> tuple[Stream, np.ndarray]:
    """(rows, T) arrays, and for each ragged token its flat place in them."""
    start = start_of(stream)
    sizes = np.diff(start)
    used = np.zeros(rows, np.int64)
    np.maximum.at(used, row, at + sizes)
    fullest = int(used.max(initial=1))
    length = length or fullest
    if fullest > length:
        raise ValueError(f"a row holds {fullest} tokens but its capacity is {length}")
    first = row * length + at + ((length - used)[row] if side == "left" else 0)
    where = np.repeat(first - start[:-1], sizes)
    where += np.arange(len(where))

    def scatter(values: np.ndarray, fill: int) -> np.ndarray:
        out = np.full(rows * length, fill, np.int32)
        out[where] = values
        return out.reshape(rows, length)

    reveal = scatter(stream.reveal, 0)
    block = scatter(stream.block + np.repeat(base.astype(np.int32), sizes), 0)
    laid = Stream(
        tokens=scatter(stream.tokens, pad),
        positions=scatter(stream.positions, 0),
        block=block,
        reveal=reveal,
        horizon=reveal.copy() if stream.horizon is stream.reveal else scatter(stream.horizon, 0),
        pattern=stream.pattern,
        isolated=bool((block == block[:, :1]).all() and (block != 0).all()),
        contiguous=_contiguous(stream),
    )
    more: dict[str, Any] = {k: scatter(getattr(stream, k), 0) for k in OPTIONAL if getattr(stream, k) is not None}
    return replace(laid, **more), where


def _contiguous(stream: Stream) -> bool:
    """Inside every block, two positions differ by as much as their indices do.

    An example stays in one piece in its row, so the ragged stream tells it.
    """
    start = start_of(stream)
    offset = places(start) - stream.positions
    if not offset.any():
        return True
    top = int(stream.block.max())
    blocks = stream.block.astype(np.int64)
    blocks += np.repeat(np.arange(len(start) - 1) * (top + 1), np.diff(start))
    of_block = np.zeros((len(start) - 1) * (top + 1), np.int64)
    of_block[blocks] = offset
    return bool((of_block[blocks] == offset).all())


def _targets(
    parts: Mapping[str, Examples], heads: Mapping[str, Sequence[Head]], stacks: Mapping[str, tuple[Any, Any]]
) -> tuple[dict[TermKey, Targets], dict[TermKey, Head]]:
    out: dict[TermKey, Targets] = {}
    declared: dict[TermKey, Head] = {}
    begin = {"stream": 0, "source": 0}
    for name, e in parts.items():
        for head in heads[name]:
            where, laid = stacks[head.stack]
            found = e.targets.get(head.name)
            n = len(e.stream.tokens) if head.stack == "stream" else len(e.source.tokens)  # type: ignore[union-attr]
            mine = where[begin[head.stack] : begin[head.stack] + n]
            out[name, head.name] = _absent(head) if found is None else _moved(found, head, mine, laid)
            declared[name, head.name] = head
        begin["stream"] += len(e.stream.tokens)
        begin["source"] += 0 if e.source is None else len(e.source.tokens)
    return out, declared


def _absent(head: Head) -> Targets:
    """One target of weight 0, so that no rank ever lacks a declared head."""
    zero = np.zeros(1, np.float32)
    index = np.zeros((1, head.arity) if head.arity > 1 else 1, np.int64)
    one = np.zeros(1, np.int64)
    return Targets(
        index, one, zero, norm=0.0, group=one - 1 if head.over == "group" else None, extra=one if head.extra else None
    )


def _moved(t: Targets, head: Head, where: np.ndarray, laid: Stream) -> Targets:
    """Targets whose indices point into the laid-out rows, padded to a bucketed count with weight 0."""
    norm = float(np.sum(t.weight if t.norm is None else t.norm, dtype=np.float64))
    if t.index is None:
        return _dense(t, norm, where, laid.tokens.size)
    n = len(t.index)
    extra = capacity(n) - n

    def padded(a: np.ndarray | None, dtype: Any) -> np.ndarray | None:
        return None if a is None else np.concatenate([a, np.zeros((extra, *a.shape[1:]), a.dtype)]).astype(dtype)

    value = np.asarray(t.value)
    if head.over == "positions":  # the answer is a token, too: it moves along, and becomes a place in its row
        value = where[value] % laid.tokens.shape[1]
    kind = np.float32 if value.dtype.kind == "f" else np.int64
    group = None if t.group is None else np.concatenate([t.group, np.full(extra, -1)])
    return Targets(
        padded(where[t.index], np.int64), padded(value, kind), padded(t.weight, np.float32), norm,
        group, padded(t.extra, np.int64), padded(t.draw, np.float64),
    )  # fmt: skip


def _dense(t: Targets, norm: float, where: np.ndarray, size: int) -> Targets:
    """index=None over all of (B · T): positions that no token reached have weight 0."""

    def spread(a: np.ndarray | None, dtype: Any, fill: int = 0) -> np.ndarray | None:
        if a is None:
            return None
        out = np.full((size, *a.shape[1:]), fill, dtype)
        out[where] = a
        return out

    kind = np.float32 if np.asarray(t.value).dtype.kind == "f" else np.int64
    return Targets(
        None, spread(t.value, kind), spread(t.weight, np.float32), norm,
        spread(t.group, np.int64, -1), spread(t.extra, np.int64), spread(t.draw, np.float64),
    )  # fmt: skip


def capacity(n: int) -> int:
    """The bucket for n targets: few distinct shapes, at most an eighth of padding above 128.

    >>> [capacity(n) for n in (0, 1, 16, 17, 130, 1000)]
    [16, 16, 16, 32, 144, 1024]
    """
    step = max(16, 1 << max(0, n.bit_length() - 4))
    return max(16, -(-n // step) * step)
