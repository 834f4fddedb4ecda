"""The bound of masked draws: what it estimates, how far off it says it is, and that it is one."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from unmask.batch import Rows
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.evaluation.bound import Draws
from unmask.evaluation.bpb import bits_per_byte, encode
from unmask.evaluation.items import Options
from unmask.evaluation.plans import Query, plans_of
from unmask.evaluation.score import bounds, score
from unmask.evaluation.suites import evaluate
from unmask.lm import LM
from unmask.objectives import Diffusion, Masked

from .helpers import model_of, stub_of, tokenizer
from .test_plans import Counting

TEXTS = ["the cat sat on the mat", "a", "", "the dog sat on the log and the cat on the mat, and then they went home"]


def diffusion(lm: LM) -> LM:
    """The same network, as a model of masked diffusion."""
    return replace(lm, objective=Diffusion())


def counting() -> LM:
    """log2 p of a token is −(number of [MASK]s of its text) − 10."""
    words = tokenizer()
    config = ModelConfig(vocab_size=words.vocabulary.size, visibility="bidirectional")
    network: Any = Counting(config, words.vocabulary.mask)
    return LM(network, 48, words, Diffusion())


def test_it_is_the_plan_of_diffusion_and_one_of_masked_models() -> None:
    assert plans_of(Diffusion()) == ("bound", "pseudo", "pseudo_words")
    assert plans_of(Masked())[0] == "pseudo" and "bound" in plans_of(Masked())
    for masks in ("number", "rate"):
        a = score(model_of("masked"), TEXTS, plan="bound", draws=Draws(masks=masks))
        b = score(diffusion(model_of("masked")), TEXTS, draws=Draws(masks=masks))
        assert a == b and {s.plan for s in a} == {"bound"} and {s.start for s in a} == {None}


@pytest.mark.parametrize("masks", ["number", "rate"])
def test_a_stub_gives_the_known_sum_within_the_error(masks: Any) -> None:
    lm, log_p = stub_of("masked")
    lm = diffusion(lm)
    ids = [tokenizer().encode(t) for t in TEXTS]
    off = []
    for seed in range(40):
        for i, s in zip(ids, score(lm, TEXTS, draws=Draws(32, masks, seed)), strict=True):
            assert s.tokens == len(s.each) == len(i) and s.logprob == pytest.approx(sum(s.each))
            assert s.error is not None and (len(i) > 1 or masks == "rate" or s.error < 1e-6)
            if len(i) > 1:
                off.append((s.logprob - log_p[i].sum()) / s.error)
    assert abs(np.mean(off)) < 3.5 / np.sqrt(len(off)) * np.std(off)
    assert 0.7 < np.std(off) < 1.4  # the error is neither bragging nor shy
    if masks == "number":  # one token is always masked, with weight 1
        assert score(lm, "a")[0].logprob == pytest.approx(log_p[ids[1]].sum(), rel=1e-6)


def test_both_kinds_of_masks_estimate_the_mean_over_all_orders() -> None:
    """A token costs 10 + m bits where m are masked: the mean over m = 1 … L of L · (10 + m) is the bound's limit."""
    text = "the cat sat"
    n = len(text)
    expected = -np.log(2) * n * (10 + (n + 1) / 2)
    s = score(counting(), text, draws=Draws(44))[0]  # stratified: each number of masks has four draws
    assert s.logprob == pytest.approx(expected, rel=1e-5)
    s = score(counting(), text, draws=Draws(20_000, "rate"))[0]
    assert s.error is not None and abs(s.logprob - expected) < 4 * s.error < 4


def test_every_mask_of_few_tokens_gives_the_exact_bound_and_it_is_below_the_truth() -> None:
    """By hand over all masks of a text of 4 tokens under a real network, against 4,000 draws."""
    lm = diffusion(model_of("masked"))
    v, ids = tokenizer().vocabulary, tokenizer().encode("a ca").tolist()
    total = 0.0
    for count in range(1, 5):
        sets = list(itertools.combinations(range(4), count))
        rows = [[v.cls, *(v.mask if i in s else t for i, t in enumerate(ids)), v.sep] for s in sets]
        log_p = lm.logits(rows).double().log_softmax(-1)
        total += sum(float(log_p[k, i + 1, ids[i]]) * 4 / count for k, s in enumerate(sets) for i in s) / len(sets) / 4
    s = score(lm, "a ca", draws=Draws(4000))[0]
    assert s.error is not None and abs(s.logprob - total) < 4 * s.error < 0.5


def test_a_score_depends_on_no_other_text_and_no_batch() -> None:
    lm = diffusion(model_of("masked", context=24))
    together = score(lm, TEXTS, draws=Draws(9))
    for t, s in zip(TEXTS, together, strict=True):
        for size in (1, 50, 10_000):
            alone = score(lm, t, draws=Draws(9), batch_tokens=size)[0]
            assert alone.each == pytest.approx(s.each, rel=1e-4) and alone.event == s.event
            assert alone.error == pytest.approx(s.error, rel=1e-3, abs=1e-5)
    assert "cut into pieces of at most 22 tokens" in together[3].event
    again = score(lm, TEXTS[0], draws=Draws(9, seed=1))[0]
    assert again.logprob != pytest.approx(together[0].logprob, rel=1e-4)


def test_contexts_and_what_is_not_asked_are_never_masked() -> None:
    lm = counting()
    s = score(lm, " sat", "the cat", draws=Draws(40))[0]
    assert s.tokens == 4 and s.logprob == pytest.approx(-np.log(2) * 4 * 12.5, rel=1e-5)
    assert s.event.startswith("a lower bound of log p(text | its length and the context), between [CLS] and [SEP]")
    only = score(lm, "the cat sat", only=[(4, 7)], draws=Draws(30))[0]
    assert only.tokens == 3 and only.logprob == pytest.approx(-np.log(2) * 3 * 12, rel=1e-5)
    assert "a lower bound of log p(the given characters | all other characters)" in only.event


def test_the_likeliest_must_be_so_in_every_draw() -> None:
    lm = diffusion(stub_of("masked")[0])
    head: Any = lm.network.heads["lm"]
    head.logits[tokenizer().encode("a")[0]] = 50.0
    assert [s.greedy for s in score(lm, ["aaaa", "aaab", "a", "b"])] == [True, False, True, False]


def test_draws_are_counted_and_summed_by_piece() -> None:
    lm = counting()
    query = replace(Query.of(Rows.of([tokenizer().encode("the cat"), tokenizer().encode("")])), draws=Draws(7))
    found = bounds(lm, query)
    assert found.totals.shape == (2, 7) and (found.totals[1] == 0).all()
    assert np.nansum(found.losses) == pytest.approx(found.totals.mean(1).sum())
    assert sorted(np.rint(found.totals[0] / np.log(2) / 7).astype(int).tolist()) == list(range(11, 18))


def test_bits_per_byte_are_called_a_bound_and_agree_with_scores() -> None:
    lm = counting()
    text = [t for t in TEXTS if t]
    r = bits_per_byte(lm, encode(lm, text), limit=10**6)
    size = sum(len(t) for t in text)
    exact = 0.0
    for t in text:
        for n in [46] * (len(t) // 46) + ([len(t) % 46] if len(t) % 46 else []):
            exact += n * (10 + (n + 1) / 2)
    assert r["value"] == pytest.approx(exact / size, rel=0.05)
    assert r["label"] == "bits per byte (an upper bound)" and r["plan"] == "bound"
    assert r["event"].startswith("an upper bound of −log p(text | its length)") and "16 keyed draws" in r["event"]
    assert r["counts"]["scored"] == sum(len(t) for t in text)
    some = bits_per_byte(lm, encode(lm, text), limit=40)  # copies: 16 a piece
    assert "a sample of 2 of" in some["event"] and some["value"] > 0
    rolled = bits_per_byte(lm, encode(lm, text), limit=10**6, stride=10)
    assert "before them" in rolled["event"] and rolled["counts"]["scored"] == r["counts"]["scored"]
    assert rolled["value"] < r["value"]  # fewer are masked together
    assert evaluate(model_of("masked"), "bpb", encode(lm, text), Options(plan="bound", limit=64))["plan"] == "bound"


def test_pieces_have_draws_of_their_own() -> None:
    """Otherwise their errors would not average out: the same tokens would be masked in every piece."""
    lm, log_p = stub_of("masked")
    lm = diffusion(lm)
    text = encode(lm, ["the cat sat on the mat and the dog"] * 40)
    truth = -log_p[text.tokens].sum() / np.log(2) / text.bytes.sum()
    r = bits_per_byte(lm, text, limit=10**6)
    assert r["value"] == pytest.approx(truth, abs=4 * r["standard_error"])
    assert r["standard_error"] < 0.05 * truth


def test_what_does_not_fit_is_said() -> None:
    lm = model_of("masked")
    for settings, says in (({"number": 0}, "draws=0 must be"), ({"masks": "some"}, "must be 'number' or 'rate'")):
        with pytest.raises(UserError, match=says):
            Draws(**settings)
    with pytest.raises(UserError, match="the plan bound gives no probability to the end"):
        score(lm, "a", plan="bound", end=True)
    with pytest.raises(UserError, match="plan bound does not fit a model of causal"):
        score(model_of("causal"), "a", plan="bound")
    assert score(lm, "a cat", plan="bound", draws=Draws(1))[0].error is None
