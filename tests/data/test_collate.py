"""Collation against a slow reference that lays one token at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from unmask.batch import Batch, Examples, Head, Stream, Targets, full, ranges, same_block, starts, visible
from unmask.data.collate import Placement, at_least, capacity, collate, one_per_row, pack
from unmask.objectives import Causal, Masked, SpanCorruption
from unmask.objectives.base import LM, Shape, Sizes
from unmask.objectives.show import toy

FIELDS = ("tokens", "positions", "block", "reveal", "horizon", "token_type", "positions2")
HEADS = {"lm": LM, "pair": Head("pair", arity=2, extra=5), "span": Head("span", "positions"), "all": Head("all")}


def random_stream(rng: np.random.Generator, lengths: np.ndarray, optional: bool) -> Stream:
    """Blocks of several kinds, positions that jump, any order of revealing."""
    n = int(lengths.sum())
    reveal = rng.integers(0, 5, n).astype(np.int32)
    more = {k: rng.integers(0, 3, n).astype(np.int32) for k in ("token_type", "positions2")} if optional else {}
    return Stream(
        tokens=rng.integers(1, 90, n).astype(np.int32),
        positions=rng.integers(0, 9, n).astype(np.int32),
        block=rng.integers(1, 4, n).astype(np.int32),
        reveal=reveal,
        horizon=reveal - rng.integers(0, 2, n).astype(np.int32),
        start=starts(lengths),
        **more,
    )


def random_examples(rng: np.random.Generator, texts: int, two: bool, heads: list[str], optional: bool) -> Examples:
    stream = random_stream(rng, rng.integers(0, 7, texts), optional)
    n = len(stream.tokens)
    targets = {}
    for name in heads:
        size = n if name == "all" else int(rng.integers(0, n + 1)) if n else 0
        index = {"all": None, "pair": rng.integers(0, max(n, 1), (size, 2))}.get(name, rng.integers(0, max(n, 1), size))
        value = rng.integers(0, max(n, 1), size) if name == "span" else rng.integers(0, 90, size)
        targets[name] = Targets(
            index,
            value,
            rng.random(size).astype(np.float32),
            norm=rng.random(texts) if name == "pair" else None,
            extra=rng.integers(0, 5, size) if name == "pair" else None,
            draw=rng.random(size) if name == "lm" else None,
        )
    return Examples(stream, targets, random_stream(rng, rng.integers(0, 7, texts), optional) if two else None)


# ---------------------------------------------------------------- the reference


def reference(streams: list[Stream], place: Placement, at: np.ndarray, length: int, side: str) -> dict[str, np.ndarray]:
    """(rows, T) arrays of every field, -1 where padding stands, and `where` of each ragged token."""
    tokens = [[(s, i) for i in range(a, b)] for s in streams for a, b in zip(s.start[:-1], s.start[1:], strict=True)]
    used = [max([0, *(at[k] + len(tokens[k]) for k in np.flatnonzero(place.row == r))]) for r in range(place.rows)]
    length = length or max([1, *used])
    out = {k: np.full((place.rows, length), -1) for k in FIELDS}
    where = []
    for k, text in enumerate(tokens):
        r = place.row[k]
        for j, (s, i) in enumerate(text):
            column = at[k] + j + (length - used[r] if side == "left" else 0)
            where.append(r * length + column)
            for f in FIELDS:
                out[f][r, column] = 0 if getattr(s, f) is None else getattr(s, f)[i]
            out["block"][r, column] += 1000 * (k + 1)  # examples apart, blocks of one example as they were
    return {**out, "where": np.array(where, int)}


def agree(laid: Stream, want: dict[str, np.ndarray], pad: int) -> None:
    real = want["block"] >= 0
    assert ((laid.block > 0) == real).all() and (laid.tokens[~real] == pad).all()
    for f in FIELDS:
        got = getattr(laid, f)
        if f == "block":
            for row, ours in zip(want["block"], laid.block, strict=True):
                pairs = {(a, b) for a, b in zip(row.tolist(), ours.tolist(), strict=True)}
                assert len({a for a, _ in pairs}) == len(pairs) == len({b for _, b in pairs})
        elif got is not None:
            assert got.dtype == np.int32 and (got[real] == want[f][real]).all()
            assert f == "tokens" or not got[~real].any()


def flags(laid: Stream) -> tuple[bool, bool]:
    """isolated and contiguous by the letter of their definitions."""
    isolated = all(len(set(row.tolist())) == 1 and row[0] > 0 for row in laid.block)
    t = laid.block.shape[1]
    contiguous = all(
        p[i] - p[j] == i - j
        for b, p in zip(laid.block, laid.positions, strict=True)
        for i in range(t)
        for j in range(i)
        if b[i] == b[j] > 0
    )
    return isolated, contiguous


@pytest.mark.parametrize("seed", range(60))
def test_random_mixtures_agree_with_the_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    two, side, pad = bool(seed % 2), ("right", "left")[seed // 2 % 2], (0, 7)[seed // 4 % 2]
    names = [["lm"], ["lm", "pair", "all"], ["span", "pair"]][: 1 + seed % 3]
    parts = {
        f"o{k}": random_examples(rng, int(rng.integers(1, 6)), two, heads, bool(rng.integers(2)))
        for k, heads in enumerate(names)
    }
    heads = {name: [HEADS[h] for h in given] for name, given in zip(parts, names, strict=True)}
    streams, sources = [e.stream for e in parts.values()], [e.source for e in parts.values() if e.source is not None]
    sizes = Sizes(
        np.concatenate([np.diff(s.start) for s in streams]),
        np.concatenate([np.diff(s.start) for s in sources]) if two else None,
    )
    shape = Shape(9, 11 if two else 0)
    packed = bool(rng.integers(2))
    place = pack(sizes, shape) if packed else one_per_row(sizes)
    given = shape if rng.integers(2) else None
    batch = collate(parts, heads, place if packed else None, shape=given, side=side, pad=pad)
    want = reference(streams, place, place.stream_at, given.stream if given else 0, side)
    agree(batch.stream, want, pad)
    assert (batch.stream.isolated, batch.stream.contiguous) == flags(batch.stream)
    if two:
        source = reference(sources, place, place.source_at, given.source if given else 0, side)
        agree(batch.source, source, pad)
        _same_examples_meet(batch, want, source)
    _targets_moved(batch, parts, heads, want["where"])
    assert batch.samples.objective.tolist() == [
        k for k, e in enumerate(parts.values()) for _ in range(len(e.stream.start) - 1)
    ]
    assert batch.counts()["tokens"] == sizes.stream.sum() + (sizes.source.sum() if two else 0)


@pytest.mark.parametrize("lengths", [[6, 6], [4, 2, 1, 5], [4, 2, 1, 4], [2, 4, 5, 1]])
def test_full_rows_and_rows_in_order_are_laid_out_like_any(lengths: list[int]) -> None:
    stream = random_stream(np.random.default_rng(0), np.array(lengths), True)
    place = pack(Sizes(np.array(lengths)), Shape(6))
    for order in (np.arange(len(lengths)), np.lexsort((place.stream_at, place.row))):
        sizes = np.array(lengths)[order]
        moved = stream.map(partial(np.take, indices=ranges(stream.start[order], sizes)))
        moved = replace(moved, start=starts(sizes))
        there = place.take(order, np.arange(place.rows))
        laid = collate({"x": Examples(moved, {})}, {"x": []}, there, shape=Shape(6), pad=7).stream
        agree(laid, reference([moved], there, there.stream_at, 6, "right"), 7)


def _same_examples_meet(batch: Batch, stream: dict[str, np.ndarray], source: dict[str, np.ndarray]) -> None:
    """Cross-attention joins equal blocks of the same example and nothing else."""
    ours = same_block(batch.stream.block, batch.source.block)
    theirs = stream["block"][:, :, None] == source["block"][:, None, :]
    assert (ours == theirs).all()


def _targets_moved(
    batch: Batch, parts: Mapping[str, Examples], heads: Mapping[str, list[Head]], where: np.ndarray
) -> None:
    begin, (rows, length) = 0, batch.stream.tokens.shape
    for name, e in parts.items():
        mine = where[begin : begin + len(e.stream.tokens)]
        begin += len(e.stream.tokens)
        for head in heads[name]:
            old, new = e.targets[head.name], batch.targets[name, head.name]
            assert new.norm == pytest.approx(float(np.sum(old.weight if old.norm is None else old.norm)), rel=1e-6)
            assert new.value.dtype == np.int64 and new.weight.dtype == np.float32
            value = mine[old.value] % length if head.over == "positions" else old.value
            if old.index is None:
                assert new.index is None and len(new.value) == rows * length
                assert (new.value[mine] == value).all() and (new.weight[mine] == old.weight).all()
                assert new.weight.sum() == pytest.approx(old.weight.sum())
                continue
            n = len(old.index)
            assert len(new.index) == capacity(n) == len(new.value) and not new.weight[n:].any()
            assert (new.index[:n] == mine[old.index]).all() and (new.value[:n] == value).all()
            assert (new.weight[:n] == old.weight).all() and new.index.max(initial=0) < rows * length
            for k in ("extra", "draw"):
                assert (getattr(old, k) is None) == (getattr(new, k) is None)
                assert getattr(old, k) is None or (getattr(new, k)[:n] == getattr(old, k)).all()


def test_visibility_inside_an_example_is_what_it_was_alone() -> None:
    rng = np.random.default_rng(1)
    e = random_examples(rng, 12, False, ["lm"], False)
    place = pack(Sizes(np.diff(e.stream.start)), Shape(16))
    laid = collate({"x": e}, {"x": [LM]}, place, shape=Shape(16), side="left").stream
    where = reference([e.stream], place, place.stream_at, 16, "left")["where"]
    together = visible(laid.block, laid.horizon, laid.block, laid.reveal)
    assert together.sum() - np.square((laid.block == 0).sum(1)).sum() == sum(
        visible(*(getattr(e.stream, k)[a:b] for k in ("block", "horizon", "block", "reveal"))).sum()
        for a, b in zip(e.stream.start[:-1], e.stream.start[1:], strict=True)
    )
    assert len(where) == len(set(where.tolist()))


# ---------------------------------------------------------------- flags of what objectives make


@pytest.mark.parametrize(("lengths", "isolated"), [([8, 8], True), ([8, 7], False), ([4, 4, 8], False)])
def test_flags_of_packed_causal_rows(lengths: list[int], isolated: bool) -> None:
    from unmask.batch import Rows

    rows = Rows.of([range(5, 5 + n) for n in lengths], ends=np.zeros(len(lengths), bool))
    e = Causal()(rows, toy())
    batch = collate({"c": e}, {"c": [LM]}, pack(Sizes(np.array(lengths)), Shape(8)), shape=Shape(8))
    assert batch.stream.isolated is isolated and batch.stream.contiguous and batch.stream.pattern == "causal"


def test_a_row_of_padding_alone_is_not_isolated() -> None:
    ids = np.array([11, 12, 13])
    e = Examples(full(ids, starts([3])), {"lm": Targets.at(np.array([0]), np.array([11]))})
    for rows, isolated in ((1, True), (2, False)):
        zero = np.zeros(1, np.int64)
        batch = collate({"x": e}, {"x": [LM]}, Placement(zero, zero, zero, rows))
        assert batch.stream.isolated is isolated and batch.stream.contiguous


def test_choices_keep_their_groups_and_padding_has_none() -> None:
    e = Examples(full(np.arange(5, 9), starts([2, 2])), {"choose": Targets.at(np.array([0, 2]), np.array([0, 1]))})
    e.targets["choose"] = replace(e.targets["choose"], group=np.array([7, 7]))
    t = collate({"x": e}, {"x": [Head("choose", "group")]}).targets["x", "choose"]
    assert t.group.tolist() == [7, 7] + [-1] * 14 and t.weight.tolist() == [1, 1] + [0] * 14


def test_a_block_in_two_pieces_is_contiguous_only_if_its_positions_say_so() -> None:
    def stream(positions: list[int]) -> Stream:
        n = np.zeros(5, np.int32)
        return Stream(n, np.array(positions, np.int32), np.array([1, 1, 2, 1, 1], np.int32), n, n, start=starts([5]))

    for positions, want in (([0, 1, 0, 3, 4], True), ([0, 1, 0, 2, 3], False), ([4, 5, 9, 7, 8], True)):
        batch = collate({"x": Examples(stream(positions), {})}, {"x": []})
        assert batch.stream.contiguous is want is flags(batch.stream)[1]


def test_patterns_join_to_order_where_they_differ() -> None:
    from unmask.batch import Rows

    rows = Rows.of([[11, 12, 13]])
    parts = {"c": Causal()(rows, toy()), "m": Masked()(rows, toy())}
    assert collate(parts, {"c": [LM], "m": [LM]}).stream.pattern == "order"
    assert collate({"a": parts["m"], "b": parts["m"]}, {"a": [LM], "b": [LM]}).stream.pattern == "full"


# ---------------------------------------------------------------- heads without targets, and bad input


def test_every_declared_head_has_a_target_of_weight_zero() -> None:
    e = random_examples(np.random.default_rng(0), 3, False, [], False)
    heads = [HEADS["lm"], HEADS["pair"], Head("choose", "group")]
    batch = collate({"x": e}, {"x": heads})
    for head in heads:
        t = batch.targets["x", head.name]
        assert t.norm == 0 and t.weight.tolist() == [0.0] and len(t.value) == 1
        assert t.index.shape == ((1, 2) if head.arity == 2 else (1,))
        assert (t.extra is not None) == bool(head.extra) and (t.group is not None) == (head.over == "group")


def test_what_cannot_be_laid_out_is_refused() -> None:
    e = random_examples(np.random.default_rng(0), 3, False, ["lm"], False)
    with pytest.raises(ValueError, match=r"a row holds \d tokens but its capacity is 2"):
        collate({"x": e}, {"x": [LM]}, shape=Shape(2))
    with pytest.raises(ValueError, match="blocks of an example count from 1"):
        collate({"x": replace(e, stream=replace(e.stream, block=e.stream.block * 0))}, {"x": [LM]})
    with pytest.raises(ValueError, match="no `start`"):
        collate({"x": replace(e, stream=replace(e.stream, start=None))}, {"x": [LM]})
    two = random_examples(np.random.default_rng(0), 3, True, ["lm"], False)
    with pytest.raises(ValueError, match="with and without a source"):
        collate({"x": e, "y": two}, {"x": [LM], "y": [LM]})
    with pytest.raises(ValueError, match="exceeds a row"):
        pack(Sizes(np.array([3, 5])), Shape(4))


# ---------------------------------------------------------------- packing


@pytest.mark.parametrize("seed", range(20))
def test_pack_never_overfills_and_is_deterministic(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, two = int(rng.integers(0, 200)), bool(seed % 2)
    sizes = Sizes(rng.integers(0, 33, n), rng.integers(0, 49, n) if two else None)
    shape = Shape(32, 48 if two else 0)
    place = pack(sizes, shape)
    again = pack(sizes, shape)
    assert all((getattr(place, k) == getattr(again, k)).all() for k in ("row", "stream_at", "source_at"))
    for at, length, size in ((place.stream_at, sizes.stream, 32), (place.source_at, sizes.source, 48)):
        if length is None:
            continue
        taken = np.zeros((place.rows, size), int)
        for r, a, b in zip(place.row, at, length, strict=True):
            assert 0 <= a <= a + b <= size
            taken[r, a : a + b] += 1
        assert taken.max(initial=0) <= 1
    assert sorted(set(place.row.tolist())) == list(range(place.rows))


def best_fit(stream: list[int], source: list[int], shape: Shape) -> list[int]:
    """The row of each example, by a walk over all rows."""
    share = [a / shape.stream + (b / shape.source if shape.source else 0) for a, b in zip(stream, source, strict=True)]
    tight = int(bool(shape.source) and sum(source) / shape.source > sum(stream) / shape.stream)
    order = sorted(range(len(stream)), key=lambda i: -share[i])
    full = [i for i in order if (stream, source)[tight][i] == (shape.stream, shape.source)[tight]]
    row = {i: r for r, i in enumerate(full)}
    room: list[list[int]] = []
    came: list[int] = []  # when the last one came into a row: of equally tight rows the one that was reached first
    for now, i in enumerate(i for i in order if i not in row):
        fits = [r for r, x in enumerate(room) if x[0] >= stream[i] and x[1] >= source[i]]
        r = min(fits, key=lambda r: (room[r][tight], came[r]), default=len(room))
        if r == len(room):
            room.append([shape.stream, shape.source])
            came.append(now)
        room[r][0] -= stream[i]
        room[r][1] -= source[i]
        row[i], came[r] = r + len(full), now
    return [row[i] for i in range(len(stream))]


@pytest.mark.parametrize("seed", range(30))
def test_pack_is_the_tightest_fit_of_a_slow_walk(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, two = int(rng.integers(1, 300)), bool(seed % 2)
    stream = np.minimum(rng.integers(1, int(rng.integers(10, 70)), n), 32)
    source = np.minimum(rng.integers(1, int(rng.integers(10, 70)), n), 48) if two else np.zeros(n, np.int64)
    shape = Shape(32, 48 if two else 0)
    place = pack(Sizes(stream, source if two else None), shape)
    assert place.row.tolist() == best_fit(stream.tolist(), source.tolist(), shape)


def test_pack_wastes_little() -> None:
    lengths = np.random.default_rng(0).integers(1, 33, 1000)
    assert pack(Sizes(lengths), Shape(64)).rows <= 1.01 * lengths.sum() / 64


@pytest.mark.parametrize("rows", [1, 3, 6, 40])
def test_at_least_so_many_rows(rows: int) -> None:
    sizes = Sizes(np.array([3, 1, 2, 5, 1, 1, 4, 2]), np.array([1, 5, 2, 2, 1, 1, 1, 1]))
    before = pack(sizes, Shape(10, 10))
    after = at_least(before, rows)
    assert after.rows == min(max(before.rows, rows), 8) and sorted(set(after.row.tolist())) == list(range(after.rows))
    for at, length in ((after.stream_at, sizes.stream), (after.source_at, sizes.source)):
        places = [(r, a + k) for r, a, b in zip(after.row, at, length, strict=True) for k in range(b)]
        assert len(places) == len(set(places)) and max(c for _, c in places) < 10


def test_take_keeps_rows_and_renumbers_them() -> None:
    place = pack(Sizes(np.array([5, 5, 3, 3, 2])), Shape(5))
    rows = np.array([0, place.rows - 1])
    which = np.flatnonzero(np.isin(place.row, rows))
    part = place.take(which, rows)
    assert part.rows == 2 and (rows[part.row] == place.row[which]).all() and set(part.row.tolist()) == {0, 1}


def test_d01_blocks_of_an_encoder_open_and_close_and_lose_nothing() -> None:
    from unmask.batch import Rows
    from unmask.data.sampling import Pieces

    objective, shape = Masked(mask_share=0.0, random_share=0.0), Shape(8)
    pieces = Pieces.cut(starts([7, 5, 9]), objective.room(shape))
    texts = [np.arange(a, a + n) % 80 + 5 for a, n in zip(pieces.begin, pieces.length, strict=True)]
    e = objective(Rows.of(texts), toy())
    place = pack(Sizes(np.diff(e.stream.start)), shape)
    laid = collate({"m": e}, {"m": [LM]}, place, shape=shape).stream
    for tokens, block in zip(laid.tokens, laid.block, strict=True):
        for b in set(block.tolist()) - {0}:
            own = tokens[block == b].tolist()
            assert own[0] == 2 and own[-1] == 3 and not {2, 3} & set(own[1:-1])
    assert (laid.tokens[laid.block > 0] >= 5).sum() == 21 == pieces.length.sum()


def test_packed_spans_fit_both_stacks() -> None:
    from unmask.batch import Rows
    from unmask.objectives.base import outline

    objective = SpanCorruption()
    shape = objective.shape(64)
    rng = np.random.default_rng(0)
    rows = Rows.of([rng.integers(5, 90, n) for n in rng.integers(1, objective.room(shape) + 1, 50)])
    place = pack(objective.sizes(outline(rows)), shape)
    batch = collate({"s": objective(rows, toy())}, {"s": [LM]}, place, shape=shape)
    assert batch.stream.tokens.shape == (place.rows, shape.stream)
    assert batch.source.tokens.shape == (place.rows, shape.source)
