"""T5's study: i.i.d. noise, dropped tokens, BERT- and MASS-style, deshuffling; supervised pairs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from unmask.batch import Rows
from unmask.data.collate import collate, pack
from unmask.errors import UserError
from unmask.objectives import DroppedTokens, Restoration, SpanCorruption, Supervised
from unmask.objectives.base import Objective, Shape, outline
from unmask.objectives.denoise import TextToText, first_of_runs
from unmask.objectives.layout import Layout
from unmask.objectives.show import Toy, toy
from unmask.objectives.shuffle import shuffled

from .cases import EOS, KINDS, MASK, VOCABULARY, changed, examples, pair, reachable, texts
from .cases_text import COPIED, OBJECTIVES, restored, sides
from .learn import learnt, sentences


def within(hits: float, draws: float, rate: float) -> bool:
    """A count of hits that lies inside the binomial interval of 1 in 10,000."""
    return abs(hits - draws * rate) <= 3.9 * np.sqrt(draws * rate * (1 - rate)) + 1e-9


# ---------------------------------------------------------------- named constructors


def test_named_constructors_are_the_study_s_rows() -> None:
    assert SpanCorruption.t5() == SpanCorruption(noise_density=0.15, mean_span=3, final_sentinel=True, edges="free")
    assert SpanCorruption.t5_code() == SpanCorruption(final_sentinel=False, edges="official")
    assert SpanCorruption.iid(layout="causal") == SpanCorruption(mean_span=None, layout="causal")
    assert DroppedTokens.t5_study().mean_span is None
    assert (Restoration.bert_style().random_share, Restoration.mass_style().random_share) == (0.1, 0.0)
    assert Restoration.deshuffling().noise == "shuffle"


def test_official_edges_are_about_spans() -> None:
    with pytest.raises(ValueError, match="edges=official is about spans"):
        SpanCorruption(mean_span=None, edges="official")


# ---------------------------------------------------------------- tokens one by one


def test_iid_noise_is_every_choice_alike_and_neighbours_share_a_sentinel() -> None:
    objective, n, count = SpanCorruption.iid(noise_density=0.4), 5, 10_000
    rows = texts([n] * count, ends=True)
    hidden = np.array([restored(objective, e, True)[1] for e in examples(objective(rows, VOCABULARY))])
    assert (hidden.sum(1) == 2).all()
    _, counts = np.unique(hidden @ 2 ** np.arange(n), return_counts=True)
    assert len(counts) == 10 and all(within(int(c), count, 0.1) for c in counts)
    spans = (hidden & ~np.pad(hidden, ((0, 0), (1, 0)))[:, :-1]).sum(1)
    assert (objective.drawn(outline(rows))[1] == spans).all() and within(int((spans == 1).sum()), count, 0.4)


def test_iid_rate_by_position_decile() -> None:
    objective = SpanCorruption.iid()
    rows = texts([200] * 500, ends=True)
    hidden = np.array([restored(objective, e, True)[1] for e in examples(objective(rows, VOCABULARY))])
    for part in np.array_split(hidden, 10, axis=1):
        assert within(int(part.sum()), part.size, 0.15)


def test_o10_iid_at_every_length_and_density() -> None:
    rows = texts(list(range(1, 41)) * 3)
    for density in (0.05, 0.15, 0.5, 0.9):
        objective = SpanCorruption.iid(noise_density=density)
        most_noise, most_spans = objective.counts(rows.lengths)
        noise, spans = objective.drawn(outline(rows))
        assert (noise == most_noise).all() and (spans <= most_spans).all() and (spans >= 1).all()
        for e, text in zip(examples(objective(rows, VOCABULARY)), np.split(rows.tokens, rows.start[1:-1]), strict=True):
            assert restored(objective, e, True)[0] == text.tolist()


def test_o12_iid_runs_out_of_sentinels_in_one_clear_sentence() -> None:
    few = Toy(size=95, sentinels=np.arange(90, 95, dtype=np.int32))
    with pytest.raises(UserError, match=r"a text needs \d+ sentinels but the tokenizer has 5"):
        SpanCorruption.iid()(texts([200]), few)


def test_runs_end_where_texts_do() -> None:
    noise = np.array([True, True, True, False, True])
    assert first_of_runs(noise, np.array([0, 2, 2, 5])).tolist() == [True, False, True, False, True]


# ---------------------------------------------------------------- dropped tokens


@pytest.mark.parametrize("mean", [None, 3.0])
def test_dropped_tokens_and_the_rest_are_the_text_in_order(mean: float | None) -> None:
    objective = DroppedTokens(noise_density=0.3, mean_span=mean)
    rows = texts([1, 2, 7, 40, 40, 0])
    noise = objective.noise(rows.lengths, rows.key)
    for r, e in enumerate(examples(objective(rows, VOCABULARY))):
        part = slice(rows.start[r], rows.start[r + 1])
        source, target = pair(e)
        assert source == [*rows.tokens[part][~noise[part]], EOS] and target == [*rows.tokens[part][noise[part]], EOS]
        assert len(target) - 1 == objective.counts(rows.lengths)[0][r]
    # The sentinels are not needed.
    objective(rows, Toy(size=90, sentinels=np.zeros(0, np.int32)))


# ---------------------------------------------------------------- the whole text from a spoilt one


def test_bert_style_hides_nine_of_ten_and_mass_style_all() -> None:
    rows = texts([200] * 300)
    rows = replace(rows, tokens=np.full_like(rows.tokens, 7))
    for objective, random in ((Restoration.bert_style(), 0.1), (Restoration.mass_style(), 0.0)):
        e = objective(rows, toy())
        source, target = (x.reshape(300, 201) for x in (e.source.tokens, e.targets["lm"].value))
        assert (source[:, -1] == EOS).all() and (target[:, :-1] == 7).all()
        masked = (source == MASK).sum()
        assert within(int(masked), 30 * 300, 1 - random)
        others = source[(source != MASK) & (source != EOS)]
        assert ((others >= 5) & (others < 90)).all()
        if random:
            assert within(int((others != 7).sum()), 30 * 300, 0.1 * 84 / 85)
        else:
            assert ((source == MASK).sum(1) == 30).all() and (others == 7).all()
        for part in np.array_split(source[:, :-1] == MASK, 10, axis=1):
            assert within(int(part.sum()), part.size, 0.15 * (1 - random))


def test_special_tokens_of_the_text_are_never_hidden() -> None:
    rows = texts([20] * 200)
    fixed = np.random.default_rng(0).random(len(rows.tokens)) < 0.3
    objective = Restoration.mass_style(mask_rate=0.9)
    source = objective(replace(rows, fixed=fixed), VOCABULARY).source.tokens.reshape(200, 21)[:, :-1].reshape(-1)
    assert (source[fixed] == rows.tokens[fixed]).all() and (source[~fixed] == MASK).mean() > 0.85


def test_deshuffling_orders_are_all_alike() -> None:
    count = 12_000
    orders = shuffled(np.arange(0, 3 * count + 1, 3), texts([3] * count).key).reshape(count, 3) % 3
    found, counts = np.unique(orders @ np.array([9, 3, 1]), return_counts=True)
    assert len(found) == 6 and all(within(int(c), count, 1 / 6) for c in counts)
    rows = texts([30, 1, 0, 5])
    for e in examples(Restoration.deshuffling()(rows, VOCABULARY)):
        source, target = pair(e)
        assert sorted(source[:-1]) == sorted(target[:-1]) and source[-1] == target[-1] == EOS


# ---------------------------------------------------------------- nothing leaks


@pytest.mark.parametrize("name", sorted(COPIED))
def test_a_copied_text_is_told_by_the_source_alone_and_hidden_tokens_by_nothing(name: str) -> None:
    """Another token at one place: what the target's queries see of the target changes only behind that place, and the
    source changes there and nowhere else, or, where the token was taken away, nowhere."""
    objective, hidden = OBJECTIVES[name], 0
    assert isinstance(objective, TextToText)
    for seed, lengths in enumerate([[12, 9], [3, 20]]):
        rows = texts(lengths, seed, ends=True)
        before = examples(objective(rows, VOCABULARY))
        for at in range(len(rows.tokens)):
            after = examples(objective(changed(rows, at), VOCABULARY))
            for r, (a, b) in enumerate(zip(before, after, strict=True)):
                (source, target), (source_b, target_b) = sides(objective, a), sides(objective, b)
                differ = [k for k, (x, y) in enumerate(zip(target, target_b, strict=True)) if x != y]
                assert differ == ([at - rows.start[r]] if rows.start[r] <= at < rows.start[r + 1] else [])
                told = [k for k, (x, y) in enumerate(zip(source, source_b, strict=True)) if x != y]
                assert len(told) <= len(differ)
                hidden += bool(differ) and not told
                first = 0 if a.source is not None else a.index[0]
                for k in differ:
                    view = np.flatnonzero(reachable(a.stream)[a.index[k]])
                    seen = [i for i in view if a.stream["tokens"][i] != b.stream["tokens"][i]]
                    assert all(i < first + (a.source is None and objective.layout.bos == "front") for i in seen)
                    assert len(seen) == (len(told) if a.source is None else 0)
    assert (hidden == 0) == (name == "restoration-shuffle")


# ---------------------------------------------------------------- supervised pairs


def pairs_of(sources: list[int], targets: list[int], seed: int = 0) -> Rows:
    return replace(texts(sources, seed), partner=texts(targets, seed + 100))


@pytest.mark.parametrize("kind", KINDS)
def test_supervised_pairs_in_every_layout(kind: str) -> None:
    objective = Supervised(layout=Layout(kind=kind), max_target=9)  # type: ignore[arg-type]
    rows = pairs_of([4, 0, 12, 7, 1], [9, 3, 30, 0, 10])
    e, sizes = objective(rows, VOCABULARY), objective.sizes(outline(rows))
    assert np.diff(e.stream.start).tolist() == sizes.stream.tolist()
    for r, one in enumerate(examples(e)):
        source, target = pair(one)
        text = rows.partner.tokens[rows.partner.start[r] : rows.partner.start[r + 1]].tolist()
        assert source == [*rows.tokens[rows.start[r] : rows.start[r + 1]], EOS]
        assert target == ([*text, EOS] if len(text) <= 9 else text[:9])
    shape = objective.shape(32)
    room = objective.room(shape)
    assert room == (31 if kind == "encdec" else 32 - 11)
    full = pairs_of([room] * 5, [3, 9, 10, 50, 0])
    batch = collate(
        {"x": objective(full, VOCABULARY)},
        {"x": objective.heads()},
        pack(objective.sizes(outline(full)), shape),
        shape=shape,
    )
    assert batch.counts()["target_tokens"] == 4 + 10 + 9 + 9 + 1
    assert not objective.layout.fits(objective.layout.sizes(*objective.longest(np.array([room + 1]))), shape).any()


def test_supervised_targets_never_show_in_what_their_query_sees() -> None:
    for kind in KINDS:
        objective, rows = Supervised(layout=Layout(kind=kind)), pairs_of([5, 3], [6, 4])
        before = examples(objective(rows, VOCABULARY))
        for at in range(len(rows.partner.tokens)):
            after = examples(objective(replace(rows, partner=changed(rows.partner, at)), VOCABULARY))
            for a, b in zip(before, after, strict=True):
                assert a.source == b.source
                for k, q in enumerate(a.index):
                    if a.value[k] != b.value[k]:
                        view = np.flatnonzero(reachable(a.stream)[q])
                        assert all(a.stream["tokens"][i] == b.stream["tokens"][i] for i in view)


def test_supervised_without_targets_says_what_is_lacking() -> None:
    rows = texts([3])
    for call in (lambda: Supervised()(rows, VOCABULARY), lambda: Supervised().sizes(outline(rows))):
        with pytest.raises(UserError, match="needs a target text beside each source text"):
            call()


# ---------------------------------------------------------------- all can be learnt


@pytest.mark.parametrize(
    "objective",
    [
        SpanCorruption.iid(),
        DroppedTokens(),
        Restoration.mass_style(layout="prefix"),
        Restoration.deshuffling(),
    ],
    ids=["iid", "dropped", "mass_style", "deshuffling"],
)
def test_overfits_64_sentences_to_half_its_floor(objective: Objective) -> None:
    last, half = learnt(objective, sentences())
    assert last < half


def test_overfits_64_supervised_pairs() -> None:
    rows = sentences()
    label = Rows.of([[5 + k // 8, 30 + k % 8] for k in range(64)])  # which text it is, in two words
    last, half = learnt(Supervised(max_target=16), replace(rows, partner=label))
    assert last < half and Supervised(max_target=16).shape(40) == Shape(17, 40)
