"""Corrupted spans: their number, lengths, places and sentinels, and the three layouts of a pair."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from unmask import keyed
from unmask.batch import Rows, starts
from unmask.errors import UserError
from unmask.objectives import PrefixLM, SpanCorruption, spans
from unmask.objectives.base import Shape, outline
from unmask.objectives.layout import Layout
from unmask.objectives.show import Toy
from unmask.objectives.spans import choose

from .cases import BOS, EOS, KINDS, LENGTHS, OBJECTIVES, VOCABULARY, examples, pair, starts_of, texts, within
from .cases_text import restored

spans_only = pytest.mark.parametrize(
    "name", [n for n, o in OBJECTIVES.items() if isinstance(o, SpanCorruption) and o.mean_span is not None]
)


# ---------------------------------------------------------------- how many, how long, where


def noise_of(objective: SpanCorruption, n: int, count: int) -> np.ndarray:
    """(count, n) bool: which tokens were noise in many texts of n tokens."""
    rows = texts([n] * count, ends=True)
    return np.array([restored(objective, e, True)[1] for e in examples(objective(rows, VOCABULARY))])


@pytest.mark.parametrize("name", ["spans-encdec-free", "spans-mean1", "spans-half", "spans-long"])
def test_span_rate_by_position_decile(name: str) -> None:
    # Spans of one text hang together: the interval counts them, not their tokens.
    n, texts_drawn = 200, 1000
    objective = OBJECTIVES[name]
    noise = noise_of(objective, n, texts_drawn)
    count, spans = (int(x[0]) for x in objective.counts(np.array([n])))
    assert (noise.sum(1) == count).all() and (starts_of(noise).sum(1) == spans).all()
    for part in np.array_split(noise, 10, axis=1):
        assert within(int(part.sum() / (count / spans)), int(part.size / (count / spans)), count / n)
    assert within(int(noise[:, 0].sum()), texts_drawn, count / n)
    assert within(int(noise[:, -1].sum()), texts_drawn, count / n)


def test_official_edges_keep_the_first_token_and_hide_the_last() -> None:
    noise = noise_of(OBJECTIVES["spans-encdec-official"], 200, 500)
    assert not noise[:, 0].any() and noise[:, -1].all()
    assert noise.mean() == 0.15 and noise[:, -25:].mean() > 0.2  # text-to-text-transfer-transformer#905


def test_span_lengths_are_a_uniform_composition() -> None:
    # 4 noise tokens in 2 spans: 1 + 3, 2 + 2 and 3 + 1 are equally likely.
    noise = noise_of(SpanCorruption(noise_density=0.2, mean_span=2), 20, 3000)
    first = np.array([np.diff(np.flatnonzero(np.diff(np.pad(row.astype(int), 1))))[0] for row in noise])
    assert all(within(int((first == k).sum()), len(first), 1 / 3) for k in (1, 2, 3))


@pytest.mark.parametrize(("mean", "room", "target"), [(2.0, 70, 22), (1.0, 63, 27)])
def test_o11_room_never_passes_the_context(mean: float, room: int, target: int) -> None:
    # google-research/text-to-text-transfer-transformer, random_spans_helper; a copy elsewhere gave one more.
    objective = SpanCorruption(noise_density=0.2, mean_span=mean, final_sentinel=False)
    assert objective.shape(64) == Shape(target, 64) and objective.room(Shape(target, 64)) == room


@pytest.mark.parametrize("edges", ["free", "official"])
@pytest.mark.parametrize("mean", [1.0, 3.0, 10.0])
@pytest.mark.parametrize("density", [0.05, 0.15, 0.3, 0.5, 0.75, 0.9])
def test_o10_every_length_density_and_span(density: float, mean: float, edges: str) -> None:
    objective = SpanCorruption(noise_density=density, mean_span=mean, edges=edges)
    rows = texts(list(range(1, 41)) * 3)
    noise, spans = objective.counts(rows.lengths)
    whole = examples(objective(rows, VOCABULARY))
    for e, text, count, parts in zip(whole, np.split(rows.tokens, rows.start[1:-1]), noise, spans, strict=True):
        n = len(text)
        back, hidden = restored(objective, e, True)
        assert back == text.tolist() and sum(hidden) == count
        assert starts_of(np.array([hidden])).sum() == parts
        if n > 1:
            assert count == min(max(round(n * density), 1), n - 1)
            assert 1 <= parts <= min(count, n - count + (edges == "free"))
            assert edges == "free" or (not hidden[0] and hidden[-1])
        else:
            assert count == (edges == "free")


@spans_only
def test_o12_sentinels_count_up_on_both_sides_once_each(name: str) -> None:
    objective = OBJECTIVES[name]
    for e in examples(objective(texts([50] * 10), VOCABULARY)):
        source, target = pair(e)
        count = int(objective.counts(np.array([50]))[1][0])
        assert [x for x in source if x >= 90] == list(range(90, 90 + count))
        assert [x for x in target if x >= 90] == list(range(90, 90 + count + objective.final_sentinel))


@pytest.mark.parametrize("final", [True, False])
def test_o12_running_out_of_sentinels_is_one_clear_sentence(final: bool) -> None:
    objective = SpanCorruption(noise_density=0.5, mean_span=1, final_sentinel=final)
    need = 20 + final
    exact = Toy(size=90 + need, sentinels=np.arange(90, 90 + need, dtype=np.int32))
    objective(texts([40]), exact)
    with pytest.raises(UserError, match=rf"a text needs {need} sentinels but the tokenizer has {need - 1}"):
        objective(texts([40]), replace(exact, sentinels=exact.sentinels[:-1]))
    with pytest.raises(UserError, match="has 0"):
        objective(texts([1]), replace(exact, sentinels=exact.sentinels[:0]))


def test_o14_the_realised_share_of_removed_tokens_is_the_stated_one() -> None:
    rows = texts([512] * 200)
    objective = SpanCorruption(noise_density=0.3, mean_span=3.5)
    source = np.diff(objective(rows, VOCABULARY).source.start)
    _, spans = objective.counts(rows.lengths)
    assert 1 - ((source - spans - 1) / 512).mean() == pytest.approx(0.3, abs=0.002)


# ---------------------------------------------------------------- layouts


@pytest.mark.parametrize("kind", KINDS)
def test_all_layouts_hold_the_same_pair(kind: str) -> None:
    rows = texts(LENGTHS)
    for objective in (PrefixLM(), SpanCorruption()):
        want = objective.model_copy(update={"layout": Layout(kind="encdec")})(rows, VOCABULARY)
        got = objective.model_copy(update={"layout": Layout(kind=kind)})(rows, VOCABULARY)
        assert [pair(e) for e in examples(got)] == [pair(e) for e in examples(want)]


def test_o16_the_decoder_starts_with_bos_and_never_reads_its_last_target() -> None:
    for e in examples(OBJECTIVES["spans-encdec-free-final"](texts([30] * 5), VOCABULARY)):
        assert e.stream["tokens"] == [BOS, *e.value[:-1]] and e.value[-1] == EOS


@pytest.mark.parametrize(("kind", "sees"), [("prefix", [0, 0, 0, 0, 1, 2]), ("causal", [0, 1, 2, 3, 4, 5])])
def test_one_stack_shows_the_source_both_ways_only_under_prefix(kind: str, sees: list[int]) -> None:
    e = PrefixLM(layout=Layout(kind=kind))
    rows = next(r for k in range(100) if e.pair_sizes(outline(r := Rows.of([range(11, 17)], [k])))[0][0] == 3)
    assert e(rows, VOCABULARY).stream.reveal.tolist() == [*sees, sees[-1] + 1][: len(rows.tokens) + 1]


def test_prefix_lm_splits_evenly_and_keeps_both_sides() -> None:
    rows = texts([11] * 5000, ends=False)
    split = np.array([len(pair(e)[0]) for e in examples(PrefixLM(layout=Layout(kind="encdec"))(rows, VOCABULARY))])
    assert all(within(int((split == k).sum()), 5000, 0.1) for k in range(1, 11))


# ---------------------------------------------------------------- the choosing itself


def test_choose_takes_exactly_as_many_and_every_subset_alike() -> None:
    n = 20_000
    picked = choose(starts([5] * n), keyed.row_keys(0, 0, np.arange(n)), np.full(n, 2)).reshape(n, 5)
    assert (picked.sum(1) == 2).all()
    _, counts = np.unique(picked @ 2 ** np.arange(5), return_counts=True)
    assert len(counts) == 10 and all(within(int(c), n, 0.1) for c in counts)


def test_choose_breaks_ties_by_place(monkeypatch: pytest.MonkeyPatch) -> None:
    words = keyed.bits
    two = np.uint64(3 << 32)  # two bits: ties abound
    monkeypatch.setattr(spans.keyed, "bits", lambda k, p: words(k, p) & two)
    start, eligible = starts([0, 9, 1, 30, 4]), np.random.default_rng(0).random(44) < 0.7
    key, count = np.arange(5).astype(np.uint64), np.array([3, 4, 1, 9, 0])
    picked = choose(start, key, count, eligible)
    for r in range(5):
        part = slice(start[r], start[r + 1])
        mine, ok = picked[part], eligible[part]
        drawn = spans.draws(key[r : r + 1], len(ok))[0]
        order = [i for i in np.argsort(drawn, kind="stable") if ok[i]]
        assert np.flatnonzero(mine).tolist() == sorted(order[: count[r]])


def test_draws_that_look_like_padding_are_chosen_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "draws", lambda key, width: np.full((len(key), width), 0xFFFFFFFF, np.uint32))
    eligible = np.array([False, True, True, True, True, True, False])
    picked = choose(starts([4, 3]), np.arange(2).astype(np.uint64), np.array([2, 1]), eligible)
    assert picked.tolist() == [False, True, True, False, True, False, False]


def test_one_long_text_among_short_ones_changes_no_choice_and_makes_no_wide_grid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cells = 0
    draws = spans.draws

    def counted(key: np.ndarray, width: int) -> np.ndarray:
        nonlocal cells
        cells += len(key) * width
        return draws(key, width)

    lengths = np.append(np.random.default_rng(0).integers(0, 40, 3000), 20_000)
    start, key, count = starts(lengths), np.arange(3001).astype(np.uint64), lengths // 3
    eligible = np.random.default_rng(1).random(start[-1]) < 0.8
    monkeypatch.setattr(spans, "draws", counted)
    picked = choose(start, key, count, eligible)
    assert cells < 2 * start[-1] < 3001 * 20_000 / 100
    for r in [*range(0, 3000, 97), 3000]:
        part = slice(start[r], start[r + 1])
        alone = choose(starts(lengths[r : r + 1]), key[r : r + 1], count[r : r + 1], eligible[part])
        assert (alone == picked[part]).all() and alone.sum() == min(count[r], eligible[part].sum())


# ---------------------------------------------------------------- where spans stand


def t5_mask(n: int, noise: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """(n,) bool: `random_spans_noise_mask` of the released text-to-text-transfer-transformer, in numpy."""

    def segments(items: int) -> np.ndarray:
        first = np.pad(rng.permutation(items - 1) < count - 1, [[1, 0]])
        return np.bincount(np.cumsum(first), minlength=count)

    runs = np.stack([segments(n - noise), segments(noise)], 1).reshape(-1)
    return np.repeat(np.arange(2 * count) % 2 == 1, runs)


def placed(n: int, noise: int, count: int, edges: str, texts_drawn: int) -> np.ndarray:
    """(texts, n) bool."""
    every = (np.full(texts_drawn, x) for x in (n, noise, count))
    key = keyed.row_keys(3, 0, np.arange(texts_drawn))
    return spans.place_spans(*every, key, edges).reshape(texts_drawn, n)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_official_spans_stand_where_those_of_the_released_code_do(count: int) -> None:
    n, noise, drawn = 200, 100, 4000
    rng = np.random.default_rng(0)
    theirs = np.array([t5_mask(n, noise, count, rng) for _ in range(drawn)])
    ours = placed(n, noise, count, "official", drawn)
    for mask in (lambda m: m, starts_of):
        a, b = (np.array([x.mean() for x in np.array_split(mask(m), 10, axis=1)]) for m in (ours, theirs))
        assert np.abs(a - b).max() < 5 * np.sqrt(0.5 / drawn) * np.sqrt(b.max())


@pytest.mark.parametrize(("count", "off"), [(2, 0.118), (3, 0.032), (5, 0.017), (20, 0.003)])
def test_how_even_a_given_number_of_free_spans_can_stand(count: int, off: float) -> None:
    # Exactly so many spans, each end noise as often as the rate says: a few long ones cannot be even in between.
    noise = placed(200, 100, count, "free", 20_000)
    decile = np.array([part.mean() for part in np.array_split(noise, 10, axis=1)])
    assert np.abs(decile - 0.5).max() == pytest.approx(off, abs=0.01)
    assert within(int(noise[:, 0].sum()), len(noise), 0.5) and within(int(noise[:, -1].sum()), len(noise), 0.5)
