"""Spans of words, their boundaries, annotated spans, and masks that share the causal head."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from unmask.batch import Rows, visible
from unmask.config import ModelConfig
from unmask.data.collate import collate
from unmask.data.loader import Loader
from unmask.loss import forward_heads
from unmask.model.transformer import Transformer
from unmask.objectives import REGISTRY, Causal
from unmask.objectives.annotated import Ernie, SalientSpans
from unmask.objectives.base import Shape
from unmask.objectives.masked import Masked
from unmask.objectives.shifted import ShiftedMasked
from unmask.objectives.show import toy
from unmask.objectives.units import annotated, law, phrases

from .cases import MASK, examples, texts
from .cases_masked import hidden, marked, selected, uniform_words, within

LENGTHS = [7, 1, 33, 0, 2, 64, 3, 12, 5, 40, 1, 90]


# ---------------------------------------------------------------- spans


def spans_of(objective: Masked, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """(G,) where spans begin and how many tokens they have."""
    found = selected(objective, rows)
    return found.first, np.bincount(found.span)


@pytest.mark.parametrize(
    ("objective", "mean"), [(Masked.albert(), 18 / 11), (Masked.spanbert(), 3.797), (REGISTRY.preset("gpt_bert"), 2.0)]
)
def test_span_lengths_follow_their_law(objective: Masked, mean: float) -> None:
    _, length = spans_of(objective, uniform_words(20, 5000))
    share = law(objective.span_lengths, objective.max_span, objective.span_p)
    assert length.max() == objective.max_span and length.mean() == pytest.approx(mean, rel=0.03)
    drawn = np.bincount(length, minlength=objective.max_span + 1)[1:] / len(length)
    assert drawn == pytest.approx(share, abs=0.015)
    # Of 1/n a third of a third: n-grams of 1, 2 and 3 words stand as 6 : 3 : 2.
    if objective.span_lengths == "harmonic":
        assert share * 11 == pytest.approx([6, 3, 2])


@pytest.mark.parametrize("rate", [0.15, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("lengths", ["uniform", "harmonic", "geometric"])
def test_the_budget_is_exact_in_words_and_no_spans_touch_while_there_is_room(rate: float, lengths: str) -> None:
    objective = Masked(unit="word", span_lengths=lengths, mask_rate=rate)
    for n in (1, 2, 3, 7, 20, 100):
        rows = uniform_words(200, n, 2)
        found = hidden(objective, rows).reshape(200, n, 2)
        assert (found[..., 0] == found[..., 1]).all()
        assert (found[..., 0].sum(1) == min(max(round(rate * n), 1), n)).all()
        first, length = spans_of(objective, rows)
        assert length.max() <= 2 * objective.max_span
        touching = first[1:] == (first + length)[:-1]
        if round(rate * n) <= n - round(rate * n):
            assert not touching.any()
        if rate == 1.0 and n == 100:
            assert touching.any() and len(first) > 200  # they stay apart in name


def test_spans_have_one_fate_and_touching_ones_their_own() -> None:
    rows = uniform_words(200, 100)
    objective = Masked(unit="word", span_lengths="uniform", max_span=3, fate="span", mask_rate=1.0, random_share=0.0)
    found = selected(objective, rows)
    masked = objective(rows, toy()).stream.tokens[found.at] == MASK
    share = np.bincount(found.span, masked) / np.bincount(found.span)
    assert set(share) == {0.0, 1.0} and within(int(share.sum()), len(share), 0.8)
    same = found.first[1:] == found.first[:-1] + np.bincount(found.span)[:-1]
    joint = (share[1:] == 1) & (share[:-1] == 1)
    assert within(int(joint[same].sum()), int(same.sum()), 0.64)


def test_a_span_that_is_cut_by_a_special_token_is_two() -> None:
    rows = uniform_words(50, 60)
    rows = replace(rows, fixed=rows.place % 4 == 3)
    found = selected(Masked.spanbert(), rows)
    assert (np.diff(found.at)[np.diff(found.span) == 0] == 1).all() and np.bincount(found.span).max() == 3


# ---------------------------------------------------------------- the boundary objective


def test_boundary_targets_read_the_two_tokens_just_outside() -> None:
    rows, objective = marked(texts([120] * 40)), Masked.spanbert()
    e, found = objective(rows, toy()), selected(objective, rows)
    t = e.targets["sbo"]
    assert objective.heads()[1].arity == 2 and objective.heads()[1].extra == 20 and t.index.shape == (len(t.value), 2)
    size = np.bincount(found.span)[found.span]
    offset = found.at - found.first[found.span]
    told = offset < 20
    want = np.stack([found.first[found.span] - 1, found.first[found.span] + size], 1)
    assert (t.index == want[told]).all() and (t.extra == offset[told]).all()
    assert (t.value == e.targets["lm"].value[told]).all()
    assert not np.isin(t.index, found.at).any()  # observed tokens, of the same text
    owner = np.searchsorted(e.stream.start, t.index, "right")
    assert (owner[:, 0] == owner[:, 1]).all()


def test_boundary_offsets_beyond_the_table_have_no_target() -> None:
    e = Masked(unit="word", span_lengths="geometric", boundary_offsets=3)(uniform_words(20, 200), toy())
    assert set(e.targets["sbo"].extra.tolist()) == {0, 1, 2}
    assert len(e.targets["sbo"].value) < len(e.targets["lm"].value) == 20 * 30


def test_both_heads_of_spanbert_learn_together() -> None:
    rng = np.random.default_rng(0)
    lists = [rng.integers(5, 45, n) for n in rng.integers(8, 13, 64)]
    rows, objective = Rows.of(lists), Masked.spanbert().model_copy(update={"mask_rate": 0.3})
    rows = replace(rows, word=np.ones(len(rows.tokens), bool))
    batch = collate({"x": objective(rows, toy())}, {"x": objective.heads()}, shape=Shape(16)).map(torch.from_numpy)
    config = ModelConfig(vocab_size=100, hidden_size=64, num_layers=2, num_heads=4, max_position=16)
    model = Transformer(config, objective.heads(), seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98))
    losses = []
    for _ in range(150):
        terms = forward_heads({"model": model}, batch)
        values = [terms["x", name].sum / terms["x", name].norm for name in ("lm", "sbo")]
        losses.append([v.item() for v in values])
        if max(losses[-1]) < 1.8:
            break
        optimizer.zero_grad()
        sum(values).backward()
        optimizer.step()
    assert min(losses[0]) > 3.5 and max(losses[-1]) < 1.8, losses[::15]


# ---------------------------------------------------------------- annotated spans


def test_ernie_goes_from_tokens_over_words_to_entities() -> None:
    rows = marked(texts([100] * 100))
    objective = Ernie()
    number = np.cumsum(rows.word) - 1
    inside = np.zeros(len(rows.tokens), int)
    for k, (a, b) in enumerate(rows.spans):
        inside[a:b] = k + 1
    whole = {}
    for progress, stage in (
        (0.0, "basic"),
        (0.33, "basic"),
        (0.34, "phrase"),
        (0.66, "phrase"),
        (0.67, "entity"),
        (1, "entity"),
    ):
        found = hidden(objective, replace(rows, progress=progress))
        assert objective.stage(progress) == stage and found.mean() == pytest.approx(0.15, abs=0.01)
        words_whole = set(np.bincount(number, found) / np.bincount(number)) == {0.0, 1.0}
        share = (np.bincount(inside, found) / np.maximum(np.bincount(inside), 1))[1:]
        whole[stage] = (words_whole, set(share) == {0.0, 1.0})
        if stage == "entity":  # entities as often as words
            assert within(int(share.sum()), len(share), 0.15)
    assert whole == {"basic": (False, False), "phrase": (True, False), "entity": (False, True)}


def test_units_of_the_entity_stage_are_spans_and_the_words_between() -> None:
    word, spans = np.array([1, 0, 1, 0, 0, 1, 1], bool), np.array([[1, 3], [5, 6]])
    found = phrases(Rows.of([[7] * 7], word=word, spans=spans))
    assert found.begin.tolist() == [0, 1, 3, 5, 6] and found.length.tolist() == [1, 2, 2, 1, 1]
    fixed = np.array([0, 0, 1, 0, 0, 0, 0], bool)
    assert annotated(Rows.of([[7] * 7], spans=spans, fixed=fixed)).begin.tolist() == [5]


def test_only_annotated_spans_are_salient_and_each_as_often() -> None:
    spans = np.array([[2, 4], [7, 8], [10, 15]])
    count = 3000
    rows = texts([20] * count + [5] * 10)
    where = (np.arange(count)[:, None, None] * 20 + spans).reshape(-1, 2)
    rows = replace(rows, spans=where)
    found = selected(SalientSpans.realm(), rows)
    begin = found.first - 2 * np.searchsorted(rows.start, found.first - 1 - 2 * (found.first // 22), "right") + 1
    assert len(found.first) == count and begin.max() < 20 * count
    drawn = np.bincount(begin % 20, minlength=20)
    assert all(within(int(drawn[a]), count, 1 / 3) for a, _ in spans) and drawn.sum() == drawn[[2, 7, 10]].sum()
    e = SalientSpans(max_spans=2)(rows, toy())
    assert (e.stream.tokens[e.targets["lm"].index] == MASK).all()
    assert (np.bincount(selected(SalientSpans(max_spans=2), rows).first // 22, minlength=count)[:count] == 2).all()
    assert len(selected(SalientSpans(max_spans=9), rows).at) == count * 8


# ---------------------------------------------------------------- shifted, and its hybrid


def test_shifted_targets_are_the_masked_ones_one_to_the_left() -> None:
    rows = marked(texts(LENGTHS))
    for more in ({}, {"unit": "word"}, {"span_lengths": "uniform", "mask_rate": 0.3, "fate": "span"}):
        a, b = Masked(**more)(rows, toy()), ShiftedMasked(**more)(rows, toy())
        assert (a.stream.tokens == b.stream.tokens).all()
        s, t = a.targets["lm"], b.targets["lm"]
        assert (s.index == t.index + 1).all() and (s.value == t.value).all()
    assert ShiftedMasked().heads() == Causal().heads()


@pytest.mark.parametrize("share", [0.0, 1 / 16, 0.25, 0.5, 0.7, 1.0])
def test_samples_in_a_row_hold_their_share_of_causal_ones(share: float) -> None:
    causal = ShiftedMasked(causal_share=share).is_causal(np.arange(3200))
    assert abs(causal.reshape(-1, 16).sum(1) - 16 * share).max() < 1
    assert abs(np.cumsum(causal)[15::16] - 16 * share * np.arange(1, 201)).max() < 1
    for step in (2, 3, 16, 21):  # every n-th sample is as fair
        part = causal[::step]
        assert within(int(part.sum()), len(part), share)
    if share == 0.5:
        assert len({tuple(row) for row in causal.reshape(-1, 16).tolist()}) > 150


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_causal_texts_of_the_hybrid_are_the_causal_objective_s(share: float) -> None:
    rows, objective = marked(texts(LENGTHS * 3)), ShiftedMasked(causal_share=share, unit="word")
    causal = objective.is_causal(rows.index)
    e = objective(rows, toy())
    assert e.stream.pattern == ("causal" if share == 1 else "order") and 0 < causal.sum() <= len(causal)
    masked = examples(ShiftedMasked(unit="word")(rows, toy()))
    for a, b, m, is_causal in zip(examples(e), examples(Causal()(rows, toy())), masked, causal, strict=True):
        if not is_causal:
            assert a == m
            continue
        n = len(b.value)
        assert (a.index, a.value) == (b.index, b.value)
        assert a.stream["tokens"][:n] == b.stream["tokens"]
        s = {k: np.array(v) for k, v in a.stream.items()}
        seen = visible(s["block"], s["horizon"], s["block"], s["reveal"])
        assert (seen == np.tril(np.ones_like(seen))).all()


def test_the_hybrid_keeps_its_ratio_inside_a_batch_under_one_head() -> None:
    class Text:
        tokens = np.random.default_rng(0).integers(5, 90, 4000).astype(np.int32)
        documents = np.arange(0, 4001, 40)

    objective = ShiftedMasked(causal_share=0.25)
    loader = Loader(Text(), objective, toy(), Shape(42), rows=16, seed=0)
    counts = []
    for step in range(32):
        (batch,) = loader(step)
        assert set(batch.heads) == {("shifted_masked", "lm")} and len(batch.stream.tokens) == 16
        counts.append(int((batch.stream.reveal.max(1) > 0).sum()))
    assert sum(counts) == 32 * 4 and max(counts) <= 10
