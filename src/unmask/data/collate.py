"""From ragged examples to a batch: who goes into which row, and how the vectors are laid there.

Nothing here knows an objective: fields are scattered, block ids are made unique within a row, target
indices follow their tokens. Packing keeps examples apart by their blocks alone.
"""

from __future__ import annotations

from collections import defaultdict
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
    """Best fit, longest first, into rows of `shape`: each example goes where it leaves least room.

    With two stacks both lengths must fit, and the room is that of the stack that needs more rows.
    An example longer than a row is an error: objectives promise `sizes <= shape` for texts of `room`.
    """
    stream = np.asarray(sizes.stream)
    source = np.zeros_like(stream) if sizes.source is None else np.asarray(sizes.source)
    if (stream > shape.stream).any() or (source > shape.source).any():
        raise ValueError(f"an example of {stream.max()} (source {source.max()}) tokens exceeds a row of {shape}")
    share = stream / shape.stream, source / max(shape.source, 1)
    order = np.argsort(-(share[0] + share[1]), kind="stable")
    if share[1].sum() > share[0].sum():
        row, source_at, stream_at, rows = _best_fit(order, source, stream, shape.source, shape.stream)
    else:
        row, stream_at, source_at, rows = _best_fit(order, stream, source, shape.stream, shape.source)
    return Placement(row, stream_at, source_at, rows)


def _best_fit(
    order: np.ndarray, length: np.ndarray, other: np.ndarray, size: int, other_size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """(S,) the row of each example and where it begins in both stacks, and how many rows there are.

    Rows stand in lists by the room they have left in the first stack, and bit n of one integer says that list n holds
    any: the tightest is its lowest bit, found without a walk over rows. What fills a row takes one of its own.
    """
    whole = length[order] == size
    alone, order = order[whole], order[~whole]
    rows = len(alone)
    by_room: defaultdict[int, list[int]] = defaultdict(list)
    left: list[int] = []  # of each row, in the other stack
    levels, found = 0, []
    for a, b in zip(length[order].tolist(), other[order].tolist(), strict=True):
        r, room = _tightest(levels >> a, by_room, left, a, b)
        if r < 0:
            r, room = len(left), size
            left.append(other_size)
        else:
            by_room[room].remove(r)
            if not by_room[room]:
                levels ^= 1 << room
        found.append((rows + r, size - room, other_size - left[r]))
        by_room[room - a].append(r)
        levels |= 1 << (room - a)
        left[r] -= b
    placed = np.zeros((len(length), 3), np.int64)
    placed[alone, 0] = np.arange(rows)
    placed[order] = np.array(found, np.int64).reshape(-1, 3)
    return placed[:, 0].copy(), placed[:, 1].copy(), placed[:, 2].copy(), rows + len(left)


def _tightest(levels: int, by_room: Mapping[int, list[int]], left: list[int], a: int, b: int) -> tuple[int, int]:
    """The row that has least room of at least `a`, and `b` in its other stack, and that room; (-1, 0) without one.

    levels: bit n says that a row has room for a + n.
    """
    while levels:
        room = a + (levels & -levels).bit_length() - 1
        for r in by_room[room]:
            if left[r] >= b:
                return r, room
        levels &= levels - 1
    return -1, 0


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
    size = rows * length
    into: Any = where
    if (first[1:] >= first[:-1] + sizes[:-1]).all():  # in order: what has no gap is copied, a mask beats indices
        into = slice(None) if len(where) == size else _marked(where, size)

    def scatter(values: np.ndarray, fill: int) -> np.ndarray:
        out = np.full(size, fill, np.int32)
        if fill or values.any():
            out[into] = values
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


def _marked(where: np.ndarray, size: int) -> np.ndarray:
    """(size,) bool: the places `where`."""
    out = np.zeros(size, bool)
    out[where] = True
    return out


def _contiguous(stream: Stream) -> bool:
    """Inside every block, two positions differ by as much as their indices do.

    An example stays in one piece in its row, so the ragged stream tells it.
    """
    start = start_of(stream)
    jumps = np.flatnonzero(np.diff(stream.positions) != 1) + 1
    if _marked(start, len(stream.positions) + 1)[jumps].all():
        return True
    offset = places(start) - stream.positions
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
