from __future__ import annotations

import numpy as np
import pytest
import torch

from unmask.batch import Rows
from unmask.errors import UserError
from unmask.evaluate.base import shape_of
from unmask.evaluate.plans import Query, room
from unmask.evaluate.score import log_losses, score

from .helpers import OBJECTIVES, model_of, stub_of, tokenizer

TEXTS = ["the cat sat", "a", "", "the dog sat on the log and the cat on the mat, and then they all went home"]


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("batch_tokens", [1, 50, 10_000])
def test_a_stub_gives_the_known_sum(name: str, batch_tokens: int) -> None:
    lm, log_p = stub_of(name)
    for text, s in zip(TEXTS, score(lm, TEXTS, batch_tokens=batch_tokens), strict=True):
        ids = tokenizer().encode(text)
        assert s.logprob == pytest.approx(log_p[ids].sum(), rel=1e-6, abs=1e-6)
        assert s.each == pytest.approx(log_p[ids].tolist(), rel=1e-5)
        assert (s.tokens, s.bytes, s.plan) == (len(ids), len(text), OBJECTIVES[name].plan)
        assert ("cut into pieces of at most" in s.event) == (len(ids) > room(OBJECTIVES[name], shape_of(lm)))


@pytest.mark.parametrize("name", ["causal", "prefix", "prefix-encdec"])
def test_the_end_token_is_scored_where_asked(name: str) -> None:
    lm, log_p = stub_of(name)
    eos = tokenizer().vocabulary.need("eos")
    for text, s in zip(TEXTS, score(lm, TEXTS, end=True), strict=True):
        ids = tokenizer().encode(text)
        assert s.logprob == pytest.approx(log_p[ids].sum() + log_p[eos], rel=1e-6)
        assert s.each[-1] == pytest.approx(log_p[eos], rel=1e-6) and s.tokens == len(ids) + 1
        assert "[EOS]" in s.event


@pytest.mark.parametrize("name", OBJECTIVES)
def test_f18_batch_and_padding_side_change_nothing(name: str) -> None:
    lm = model_of(name)
    ids = [tokenizer().encode(t) for t in ("the cat sat", "a dog", "the log, the mat")]
    query = Query.of(Rows.of(ids, ends=np.full(3, OBJECTIVES[name].plan == "left_to_right")))
    whole = log_losses(lm, query)
    for batch_tokens in (1, 30, 100):
        for side in ("left", "right"):
            np.testing.assert_allclose(log_losses(lm, query, batch_tokens, side), whole, rtol=2e-6)
    alone = np.concatenate([log_losses(lm, Query.of(Rows.of([i], ends=query.rows.ends[:1])))[: len(i)] for i in ids])
    np.testing.assert_allclose(alone, whole[: len(alone)], rtol=2e-6)


@pytest.mark.parametrize("kind", ["byte", "bbpe", "wordpiece"])
def test_f20_context_and_answer_add_up(kind: str) -> None:
    lm = model_of("causal", kind)
    for context, answer in (("the cat sat on", " the mat"), ("a dog", " sat"), ("the", " cat and a dog")):
        answers = score(lm, answer, context)[0]
        both, before = score(lm, [context + answer, context])
        assert both.logprob - before.logprob == pytest.approx(answers.logprob, rel=1e-5)
        assert both.tokens == before.tokens + answers.tokens
        assert "seam" not in answers.event and "[BOS] context" in answers.event


def test_f20_a_token_over_the_seam_is_named() -> None:
    lm = model_of("causal", "bbpe")
    s = score(lm, "cat", "the ")[0]  # " cat" is one piece
    assert "spans the seam" in s.event and s.tokens == len(tokenizer("bbpe").encode(" cat"))


def test_causal_scores_are_the_chain_rule() -> None:
    lm = model_of("causal")
    ids = tokenizer().encode("the cat sat")
    with torch.no_grad():
        log_p = lm.logits([[tokenizer().vocabulary.need("bos"), *ids[:-1]]])[0].double().log_softmax(-1)
    assert score(lm, "the cat sat")[0].each == pytest.approx(log_p[range(len(ids)), ids].tolist(), rel=1e-5)


def test_pseudo_scores_mask_one_token_at_a_time() -> None:
    lm = model_of("masked")
    ids, v = tokenizer().encode("the cat"), tokenizer().vocabulary
    each = []
    for i, token in enumerate(ids):
        framed = np.array([v.cls, *ids, v.sep])
        framed[i + 1] = v.mask
        each.append(float(lm.logits(framed)[0, i + 1].double().log_softmax(-1)[token]))
    s = score(lm, "the cat")[0]
    assert s.each == pytest.approx(each, rel=1e-5)
    assert s.event == (
        "sum over tokens of log p(token | all other tokens, between [CLS] and [SEP]): a pseudo-log-likelihood"
    )


def test_infill_scores_put_sentinel_0_in_place() -> None:
    lm = model_of("spans")
    ids, v = tokenizer().encode("the cat"), tokenizer().vocabulary
    each = []
    for i, token in enumerate(ids):
        source = [*ids, v.eos]
        source[i] = v.sentinels[0]
        logits = lm.logits([source], decoder_input_ids=[[v.bos, v.sentinels[0]]])
        each.append(float(logits[0, 1].double().log_softmax(-1)[token]))
    assert score(lm, "the cat")[0].each == pytest.approx(each, rel=1e-5)


def test_a_context_is_a_visible_prefix_or_a_source() -> None:
    context, answer, v = "the cat sat", " on", tokenizer().vocabulary
    c, a = tokenizer().encode(context), tokenizer().encode(answer)
    prefix = model_of("prefix")
    log_p = prefix.logits([[v.bos, *c, *a[:-1]]], prefix_length=1 + len(c))[0].double().log_softmax(-1)[len(c) :]
    assert score(prefix, answer, context)[0].each == pytest.approx(log_p[range(3), a].tolist(), rel=1e-5)
    two = model_of("prefix-encdec")
    log_p = two.logits([c], decoder_input_ids=[[v.bos, *a[:-1]]])[0].double().log_softmax(-1)
    assert score(two, answer, context)[0].each == pytest.approx(log_p[range(3), a].tolist(), rel=1e-5)


def test_what_cannot_be_scored_is_said() -> None:
    lm = model_of("masked")
    with pytest.raises(UserError, match="plan left_to_right does not fit"):
        score(lm, "a", plan="left_to_right")
    with pytest.raises(UserError, match="drop end"):
        score(lm, "a", end=True)
    with pytest.raises(UserError, match="2 contexts for 1 texts"):
        score(lm, "a", ["b", "c"])
    with pytest.raises(UserError, match="the context has 60 tokens"):
        score(model_of("prefix"), "a", "x" * 60)
