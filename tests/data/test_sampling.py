"""The training order and the loader: every text once an epoch, and any update found by arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from unmask.batch import Batch, starts
from unmask.data.loader import Loader
from unmask.data.sampling import Order, Pieces, read_rows
from unmask.errors import UserError
from unmask.objectives import Causal, Masked, PrefixLM, SpanCorruption
from unmask.objectives.base import Objective, Shape, outline
from unmask.objectives.show import Toy

VOCABULARY = Toy(size=400, sentinels=np.arange(90, 400, dtype=np.int32))
OBJECTIVES: list[Objective] = [
    Causal(),
    Masked(),
    PrefixLM(),
    PrefixLM(layout="encdec"),
    SpanCorruption(),
    SpanCorruption(layout="causal"),
]
every = pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: f"{o.type}-{getattr(o, 'layout', '')}"[:30])


@dataclass(frozen=True)
class Text:
    tokens: np.ndarray
    documents: np.ndarray

    @staticmethod
    def of(*lengths: int, seed: int = 0) -> Text:
        """Documents of distinct words where 85 are enough."""
        n = sum(lengths)
        words = 5 + np.random.default_rng(seed).permutation(n) % 85
        return Text(words.astype(np.uint16), starts(lengths))


def loader(text: Text, objective: Objective, context: int = 16, **more: object) -> Loader:
    return Loader(text, objective, VOCABULARY, objective.shape(context), **{"rows": 4, "seed": 0, **more})


def same(a: Batch, b: Batch) -> bool:
    """Two batches, array by array."""

    def arrays(batch: Batch) -> list[np.ndarray]:
        out: list[np.ndarray] = []
        batch.map(lambda x: out.append(x) or x)
        s = batch.samples
        return [*out, s.row, s.block, s.index, s.objective]

    x, y = arrays(a), arrays(b)
    return a.norms() == b.norms() and len(x) == len(y) and all(np.array_equal(p, q) for p, q in zip(x, y, strict=True))


def alike(a: list[Batch], b: list[Batch]) -> bool:
    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))


# ---------------------------------------------------------------- order


@pytest.mark.parametrize("size", [1, 2, 3, 5, 63, 64, 65, 127, 128, 129, 1000])
def test_every_piece_once_an_epoch_and_epochs_differ(size: int) -> None:
    order = Order(size, seed=3)
    epochs = order.piece(np.arange(4 * size)).reshape(4, size)
    assert (np.sort(epochs, axis=1) == np.arange(size)).all()
    assert size < 5 or len({tuple(e) for e in epochs.tolist()}) == 4


def test_an_index_means_the_same_alone_and_in_any_company() -> None:
    order = Order(100, seed=1)
    index = np.random.default_rng(0).integers(0, 1000, 50)
    assert [order.piece(np.array([i]))[0] for i in index] == order.piece(index).tolist()
    assert [order.find(np.array([i]))[1][0] for i in index] == order.find(index)[1].tolist()


def test_without_shuffling_pieces_come_in_order() -> None:
    assert Order(5, 0, shuffle=False).piece(np.arange(12)).tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]


def test_o28_noise_keys_differ_by_epoch_piece_and_seed() -> None:
    keys = [k for seed in range(5) for k in Order(50, seed).find(np.arange(200))[1].tolist()]
    assert len(set(keys)) == len(keys)
    by_piece = dict(
        zip(Order(50, 0).piece(np.arange(50)).tolist(), Order(50, 0).find(np.arange(50))[1].tolist(), strict=True)
    )
    in_order = Order(50, 0, shuffle=False).find(np.arange(50))[1]
    assert [by_piece[p] for p in range(50)] == in_order.tolist()  # a piece's noise does not hang on its place


def test_seed_one_epoch_zero_is_not_seed_zero_epoch_one() -> None:
    one_zero, zero_one = Order(200, 1), Order(200, 0)
    a, b = one_zero.piece(np.arange(200)), zero_one.piece(np.arange(200, 400))
    assert (a == b).mean() < 0.05
    assert not set(one_zero.find(np.arange(200))[1].tolist()) & set(zero_one.find(np.arange(200, 400))[1].tolist())


def test_cutting_loses_nothing() -> None:
    rng = np.random.default_rng(0)
    for room in (1, 2, 7, 100):
        documents = starts(rng.integers(0, 30, 40))
        p = Pieces.cut(documents, room)
        covered = np.concatenate([np.arange(a, a + n) for a, n in zip(p.begin, p.length, strict=True)])
        assert (covered == np.arange(documents[-1])).all() and p.length.min() >= 1 and p.length.max() <= room
        assert (p.ends == (p.begin + p.length == documents[1:][p.document])).all()
        assert (p.begin + p.length <= documents[1:][p.document]).all() and (p.begin >= documents[:-1][p.document]).all()


def test_read_rows_reads_the_pieces_asked_for() -> None:
    text = Text.of(5, 0, 9, 2)
    pieces = Pieces.cut(text.documents, 4)
    which = np.array([3, 0, 5])
    rows = read_rows(text.tokens, pieces, which, np.zeros(3, np.uint64), np.arange(3), 0.5)
    assert rows.tokens.dtype == np.int32 and rows.progress == 0.5 and not rows.fixed.any()
    parts = [text.tokens[pieces.begin[w] : pieces.begin[w] + pieces.length[w]].tolist() for w in which]
    assert [x.tolist() for x in np.split(rows.tokens, rows.start[1:-1])] == parts
    assert rows.ends.tolist() == pieces.ends[which].tolist()


# ---------------------------------------------------------------- loader


@every
def test_an_update_is_a_pure_function_of_its_number(objective: Objective) -> None:
    text = Text.of(*np.random.default_rng(0).integers(1, 60, 40))
    uncut = loader(text, objective)
    whole = [uncut(step) for step in range(30)]
    assert all(whole) and not alike(whole[0], whole[1])
    for step in np.random.default_rng(1).permutation(30).tolist():
        assert alike(uncut(step), whole[step])
    resumed = loader(text, objective)
    assert all(alike(resumed(step), whole[step]) for step in range(17, 30))
    other = loader(text, objective, seed=1)
    assert not alike(other(0), whole[0])


@every
@pytest.mark.parametrize("micro", [2, 3, 50])
def test_accumulation_changes_neither_samples_nor_norms(objective: Objective, micro: int) -> None:
    text = Text.of(*np.random.default_rng(0).integers(1, 60, 40))
    one, many = loader(text, objective), loader(text, objective, micro=micro)
    for step in range(8):
        (a,), parts = one(step), many(step)
        assert len(parts) == min(micro, len(a.stream.tokens))
        assert sorted(a.samples.index.tolist()) == sorted(i for b in parts for i in b.samples.index.tolist())
        for key, norm in a.norms().items():
            assert norm == pytest.approx(sum(b.norms()[key] for b in parts), rel=1e-12)
        rows = [sorted(map(tuple, np.concatenate([b.stream.tokens for b in bs]).tolist())) for bs in ([a], parts)]
        assert rows[0] == rows[1]


@every
def test_every_sample_number_once_over_the_updates(objective: Objective) -> None:
    text = Text.of(*np.random.default_rng(0).integers(1, 60, 40))
    x = loader(text, objective)
    steps = x.steps * 3
    seen = sorted(i for s in range(steps) for b in x(s) for i in b.samples.index.tolist())
    assert seen == list(range(len(seen)))  # so every piece once an epoch
    rows = np.mean([sum(len(b.stream.tokens) for b in x(s)) for s in range(steps)])
    assert rows == pytest.approx(4, abs=0.3)


def test_updates_do_not_depend_on_which_was_asked_before_even_with_progress() -> None:
    class Growing(Masked):
        """Longer examples later in the run: sizes that hang on progress."""

        def sizes(self, of):  # type: ignore[no-untyped-def]
            assert 0 <= of.progress <= 1
            seen.append(of.progress)
            return super().sizes(of)

    seen: list[float] = []
    text = Text.of(*[14] * 50)
    x = loader(text, Growing())
    seen.clear()
    total = x.steps * 6 + 1
    for step in range(x.steps * 5):
        x(step, step / total)
    assert len(seen) == len(set(seen)) == 5  # one size for the window that steps share, to the last bit


@every
def test_once_shows_every_piece_once(objective: Objective) -> None:
    text = Text.of(*np.random.default_rng(0).integers(0, 60, 23))
    x = loader(text, objective, shuffle=False)
    index = [i for b in x.once() for i in b.samples.index.tolist()]
    assert sorted(index) == list(range(len(x.pieces)))
    assert sum(len(b.samples.index) for b in x.once(limit=5)) == min(5, len(x.pieces))


def test_no_update_is_empty_where_texts_are_mostly_tiny() -> None:
    # 2 rows an update by the long texts at the beginning; then come windows that few rows could take.
    x = loader(Text.of(*[15] * 600, *[1] * 600), Causal(), rows=2, shuffle=False)
    assert all(x(step) for step in range(600))


# ---------------------------------------------------------------- small corpora


@every
@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 35])
def test_d02_corpora_around_the_context(objective: Objective, tokens: int) -> None:
    context = 16
    x = loader(Text.of(tokens), objective, context)
    shape = objective.shape(context)
    assert len(x.pieces) == -(-tokens // objective.room(shape)) and x.pieces.length.sum() == tokens
    for batches in ([b for s in range(5) for b in x(s)], list(x.once())):
        assert batches
        for b in batches:
            assert b.stream.tokens.shape[1] == shape.stream
            assert b.source is None or b.source.tokens.shape[1] == shape.source
            assert b.counts()["target_tokens"] > 0
    epoch = list(x.once())
    assert sum(len(b.samples.index) for b in epoch) == len(x.pieces)
    if isinstance(objective, Causal):
        assert sum(b.counts()["tokens"] for b in epoch) == tokens + 1  # the text and its end, nothing dropped


@pytest.mark.parametrize("documents", [[], [0], [0, 0, 0]])
def test_d02_a_corpus_without_tokens_is_a_named_error(documents: list[int]) -> None:
    with pytest.raises(UserError, match="holds no tokens"):
        loader(Text.of(*documents), Causal())


@every
def test_a_context_without_room_is_a_named_error(objective: Objective) -> None:
    with pytest.raises(UserError, match="leaves no room for text"):
        Loader(Text.of(5), objective, VOCABULARY, Shape(1, 1), rows=1, seed=0)


def test_d03_ten_short_documents_are_ten_examples() -> None:
    x = loader(Text.of(3, 4, 5, 6, 7, 8, 9, 1, 2, 3), Causal(), shuffle=False)
    epoch = list(x.once())
    assert len(x.pieces) == 10 == sum(len(b.samples.index) for b in epoch)
    assert sum(b.counts()["tokens"] for b in epoch) == 48 + 10


def test_d02_an_update_of_a_tiny_corpus_is_as_large_as_asked() -> None:
    x = loader(Text.of(3), Causal(), context=16, rows=8)
    assert np.mean([len(b.stream.tokens) for s in range(4) for b in x(s)]) == pytest.approx(8, abs=1)


# ---------------------------------------------------------------- noise through the loader


def test_o27_o28_noise_of_a_piece_changes_with_the_epoch_and_repeats_with_the_seed() -> None:
    text = Text.of(*[14] * 20)
    objective = Masked(mask_rate=0.4, mask_share=1.0, random_share=0.0)

    def masks(seed: int) -> dict[tuple[int, int], tuple[int, ...]]:
        x = loader(text, objective, seed=seed)
        out = {}
        for step in range(30):
            for b in x(step):
                for r, i in zip(b.samples.row.tolist(), b.samples.index.tolist(), strict=True):
                    hidden = tuple(np.flatnonzero(b.stream.tokens[r] == 4).tolist())
                    out[i // 20, int(x.order.piece(np.array([i]))[0])] = hidden
        return out

    a, b = masks(0), masks(0)
    assert a == b and len(a) >= 60
    changed = [a[0, p] != a[1, p] for p in range(20) if (1, p) in a]
    assert np.mean(changed) > 0.9
    other = masks(1)
    assert np.mean([a[k] != other[k] for k in a.keys() & other.keys()]) > 0.9


def test_the_outline_is_enough_for_the_sizes() -> None:
    x = loader(Text.of(*np.random.default_rng(0).integers(1, 60, 40)), SpanCorruption())
    index = np.arange(30)
    piece = x.order.piece(index)
    rows = read_rows(x.text.tokens, x.pieces, piece, x.order.find(index)[1], index, 0.0)
    a, b = x.objective.sizes(outline(rows)), x.objective.sizes(x._outline(index))
    assert (a.stream == b.stream).all() and (a.source == b.source).all()
