"""Masked diffusion: rates, weights and lengths, and that its loss is the bound that it claims to be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from unmask import keyed
from unmask.batch import Rows
from unmask.data.collate import collate
from unmask.objectives import Diffusion
from unmask.objectives.base import Shape, outline
from unmask.objectives.show import toy

from .cases import LENGTHS, VOCABULARY, changed, examples, reachable, take, texts
from .cases_diffuse import CUT, OBJECTIVES, restored
from .learn import learnt, sentences

every = pytest.mark.parametrize("name", OBJECTIVES)


def many(n: int, count: int) -> Rows:
    """`count` texts of n tokens, as a run would number them."""
    tokens = np.tile(np.arange(5, 5 + n, dtype=np.int32) % 80 + 5, count)
    rows = Rows.of([[7] * n] * count, keyed.row_keys(0, 0, np.arange(count)), index=np.arange(count) + 1234)
    return replace(rows, tokens=tokens)


# ---------------------------------------------------------------- what every objective owes


@every
def test_a_batch_is_its_texts_alone_and_noise_follows_the_key(name: str) -> None:
    objective, rows = OBJECTIVES[name], texts(LENGTHS)
    whole = examples(objective(rows, VOCABULARY))
    order = np.random.default_rng(0).permutation(len(LENGTHS))
    for part in np.array_split(order, 4):
        assert examples(objective(take(rows, part), VOCABULARY)) == [whole[i] for i in part]
    other = examples(objective(replace(rows, key=rows.key + np.uint64(1)), VOCABULARY))
    assert sum(a != b for a, b in zip(whole, other, strict=True)) >= 6


@every
def test_sizes_room_and_norm_are_the_lengths_that_come_out(name: str) -> None:
    objective, rows = OBJECTIVES[name], texts(LENGTHS * 5)
    e = objective(rows, VOCABULARY)
    lengths = np.diff(e.stream.start)
    assert lengths.tolist() == objective.sizes(outline(rows)).stream.tolist()
    assert np.array_equal(e.targets["lm"].norm, lengths - 2)
    assert objective.room(Shape(34)) == 32 and (lengths <= rows.lengths + 2).all()
    assert (name in CUT) or (lengths == rows.lengths + 2).all()
    for some in (texts([]), texts([0]), texts([0, 1, 0])):
        assert len(objective(some, VOCABULARY).stream.tokens) == objective.sizes(outline(some)).stream.sum()


@every
def test_the_text_comes_back_and_nothing_leaks(name: str) -> None:
    objective, rows, asked = OBJECTIVES[name], texts([20, 9, 1], ends=True), 0
    before = examples(objective(rows, VOCABULARY))
    for e, text in zip(before, np.split(rows.tokens, rows.start[1:-1]), strict=True):
        found = restored(objective, e, True)
        assert found is not None and found[0] == text.tolist()[: len(found[0])]
        assert reachable(e.stream).all()
    for at in range(len(rows.tokens)):
        for a, b in zip(before, examples(objective(changed(rows, at), VOCABULARY)), strict=True):
            if a.value != b.value:
                asked += 1
                assert a.stream == b.stream and a.index == b.index
    assert asked >= 3


@every
def test_specials_are_neither_hidden_nor_counted(name: str) -> None:
    rows = many(50, 400)
    fixed = np.random.default_rng(0).random(len(rows.tokens)) < 0.3
    e = OBJECTIVES[name](replace(rows, fixed=fixed, tokens=np.where(fixed, 88, rows.tokens)), toy())
    t = e.targets["lm"]
    assert 88 not in t.value and (e.stream.tokens[t.index] == 4).all()
    kept = np.add.reduceat(np.append(e.stream.tokens == 88, False), e.stream.start[:-1])
    assert np.array_equal(t.norm, np.diff(e.stream.start) - 2 - kept)


def test_o30_overfits_64_sentences_to_half_its_floor() -> None:
    last, half = learnt(Diffusion(), sentences())
    assert last < half


# ---------------------------------------------------------------- rates


@pytest.mark.parametrize("times", ["stratified", "antithetic", "independent"])
def test_rates_are_even_over_the_run_and_over_the_text(times: str) -> None:
    objective = Diffusion(times=times)
    rows = many(100, 4000)
    p = objective.rates(rows)
    share = np.bincount((p * 10).astype(int), minlength=10) / len(p)
    spread = {"independent": 4 * np.sqrt(0.09 / len(p))}.get(times, 0.003)
    assert len(share) == 10 and abs(share - 0.1).max() <= spread
    hidden = np.array([restored(objective, e, True)[1] for e in examples(objective(rows, VOCABULARY))])
    off = 3.9 * np.sqrt((p * (1 - p)).sum() * 10) / (len(p) * 10)
    for part in np.array_split(hidden, 10, axis=1):
        assert abs(part.mean() - p.mean()) <= off
    for begin in range(0, len(p), 400):  # and a text's rate is the one that was drawn
        each = hidden[begin : begin + 400].mean(1) - p[begin : begin + 400]
        assert abs(each).max() <= 5 * np.sqrt(0.25 / 100)


def test_any_batch_has_even_rates_where_they_are_stratified() -> None:
    """The mean of 64 rates strays by .036 (one σ) if they are drawn by chance: at least twice as much as these."""
    for step in (1, 2, 4):  # every step-th sample, as ranks take them
        off = []
        for begin in range(0, 6400, 64):
            rows = Rows.of([[7]] * 64, index=begin + step * np.arange(64))
            off.append(Diffusion().rates(rows).mean() - 0.5005)
        assert np.std(off) < np.sqrt(1 / 12 / 64) / 2
    for rows in (Rows.of([[7]] * 64, index=64 * k + np.arange(64)) for k in range(20)):
        assert Diffusion(times="antithetic").rates(rows).mean() == pytest.approx(0.5005, abs=1e-12)


def test_the_expected_weight_of_a_token_is_one() -> None:
    """E[hidden / p] = 1 for every token, within 3 σ; the variance of hidden / p is 1 / p − 1."""
    for objective in (Diffusion(), Diffusion(times="independent"), Diffusion(eps=0.1)):
        rows = many(30, 20_000)
        t, p = objective(rows, toy()).targets["lm"], objective.rates(rows)
        got = float(t.weight.astype(np.float64).sum() / t.norm.sum())
        sigma = np.sqrt(((1 / p - 1) * 30).sum()) / t.norm.sum()
        assert abs(got - 1) < 3 * sigma < 0.02


def test_lengths_are_even_in_the_share_that_is_cut() -> None:
    n, rows = 20, many(20, 20_000)
    lengths = Diffusion(random_length_share=0.4).sizes(outline(rows)).stream - 2
    counts = np.bincount(lengths, minlength=n + 1) / len(lengths)
    expected = np.append(0, np.full(n, 0.4 / n))
    expected[n] += 0.6
    assert (abs(counts - expected) <= 4 * np.sqrt(expected * (1 - expected) / len(lengths)) + 1e-12).all()
    short = (Diffusion.llada().sizes(outline(rows)).stream - 2 < n).mean()
    assert short == pytest.approx(0.01 * 19 / 20, abs=0.003)


# ---------------------------------------------------------------- the loss


def test_the_norm_is_all_tokens_and_not_the_hidden_ones() -> None:
    """SPIKE.md, 1.4: a loss of 2 + 4 t at rate t is 4 a token in truth; the mean over hidden tokens says 4.66."""
    objective, rows = Diffusion(), many(64, 4096)
    batch = collate({"x": objective(rows, toy())}, {"x": objective.heads()})
    t = batch.targets["x", "lm"]
    p = objective.rates(rows)[t.index // batch.stream.tokens.shape[1]]
    loss, weight = np.where(t.weight > 0, 2 + 4 * p, 0), np.asarray(t.weight, np.float64)
    assert t.norm == 64 * 4096
    assert (loss * weight).sum() / t.norm == pytest.approx(4.0, abs=0.03)
    assert loss[weight > 0].mean() == pytest.approx(4.66, abs=0.02)
