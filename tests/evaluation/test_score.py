from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from unmask.batch import Rows
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.evaluation.base import shape_of
from unmask.evaluation.generate import generations
from unmask.evaluation.plans import FORWARD, Query, room
from unmask.evaluation.score import log_losses, score
from unmask.lm import LM
from unmask.loading import load
from unmask.objectives.base import Plan
from unmask.tokens.tokenizer import Tokenizer

from .helpers import OBJECTIVES, Stub, model_of, stub_of, tokenizer
from .scoring import CASES, tokenized, without_start
from .test_lm import written_run

TEXTS = ["the cat sat", "a", "", "the dog sat on the log and the cat on the mat, and then they all went home"]


@pytest.mark.parametrize("name", ["causal", "prefix", "prefix-encdec"])
def test_the_end_token_is_scored_where_asked(name: str) -> None:
    lm, log_p = stub_of(name)
    eos = tokenizer().vocabulary.need("eos")
    for text, s in zip(TEXTS, score(lm, TEXTS, end=True), strict=True):
        ids = tokenizer().encode(text)
        assert s.logprob == pytest.approx(log_p[ids].sum() + log_p[eos], rel=1e-6)
        assert s.each[-1] == pytest.approx(log_p[eos], rel=1e-6) and s.tokens == len(ids) + 1
        assert "[EOS]" in s.event


# ---------------------------------------------------------------- F17: the start token


def test_f17_the_start_token_and_the_number_of_scored_tokens_are_stated() -> None:
    lm = model_of("causal", "wordpiece")
    with_start, without = score(lm, "the cat sat")[0], score(without_start(lm), "the cat sat")[0]
    ids = lm.tokenizer.encode("the cat sat")  # type: ignore[union-attr]
    assert (with_start.start, with_start.tokens) == ("[BOS]", len(ids)) and "| [BOS])" in with_start.event
    assert (without.start, without.tokens) == (None, len(ids) - 1) and "not scored" in without.event
    assert without.perplexity == pytest.approx(np.exp(-without.logprob / (len(ids) - 1)))
    gpt2 = replace(lm, words=replace(lm.vocabulary, bos=lm.vocabulary.eos))  # one token opens and closes
    assert score(gpt2, "the cat sat")[0].start == "[EOS]"


def test_f17_a_start_token_of_another_vocabulary_is_refused() -> None:
    lm = model_of("prefix-encdec")
    size = lm.vocabulary.size
    for wrong in (size, size + 3, -1):
        with pytest.raises(UserError, match=rf"starts its texts with token {wrong}, which its tokenizer \({size}"):
            score(replace(lm, words=replace(lm.vocabulary, bos=wrong)), "a")
    assert score(model_of("masked"), "a")[0].start is None  # [CLS] and [SEP] are named by the event


@pytest.mark.shared
def test_f17_the_start_token_of_gpt2_is_its_own(shared_data: Path) -> None:
    words = Tokenizer.load(shared_data / "tokenizers" / "gpt2")
    config = ModelConfig(vocab_size=words.vocabulary.size)
    network: Any = Stub(torch.zeros(config.vocab_size), config)
    lm = LM(network, 32, words, OBJECTIVES["causal"])
    s = score(lm, "a b c")[0]
    assert (s.start, s.tokens) == ("<|endoftext|>", 3)
    assert s.logprob == pytest.approx(-3 * np.log(50257), rel=1e-6)
    assert (score(without_start(lm), "a b c")[0].tokens, score(lm, " c", "a b")[0].tokens) == (2, 1)


# ---------------------------------------------------------------- F18: nothing depends on the batch


@pytest.mark.parametrize(("name", "plan"), CASES)
def test_f18_batch_and_padding_side_change_nothing(name: str, plan: Plan) -> None:
    lm = model_of(name)
    ids = [tokenizer().encode(t) for t in ("the cat sat", "a dog", "the log, the m")]
    ends = np.full(3, plan in FORWARD)
    query = Query.of(Rows.of(ids, ends=ends))
    whole, hits = log_losses(lm, query, plan=plan)
    for batch_tokens in (1, 30, 100):
        for side in ("left", "right"):
            again, likeliest = log_losses(lm, query, batch_tokens, side, plan)
            np.testing.assert_allclose(again, whole, rtol=2e-6)
            assert (likeliest == hits).all()
    alone = [log_losses(lm, Query.of(Rows.of([i], ends=ends[:1])), plan=plan)[0][: len(i)] for i in ids]
    np.testing.assert_allclose(np.concatenate(alone), whole[: len(query.rows.tokens)], rtol=2e-6)


@pytest.mark.parametrize(("name", "plan"), CASES)
def test_f18_perplexity_depends_on_neither_batch_size_nor_order(name: str, plan: Plan) -> None:
    lm = model_of(name)
    texts = ["the cat sat", "a", "a dog and a cat", "the log", "on the mat, the dog", "it", "é", "mat " * 12]
    whole = score(lm, texts, plan=plan)
    for size in (1, 2, 8):
        parts = [s for i in range(0, len(texts), size) for s in score(lm, texts[i : i + size], plan=plan)]
        for a, b in zip(parts, whole, strict=True):
            assert a.perplexity == pytest.approx(b.perplexity, rel=1e-6)
            assert a.word_perplexity == pytest.approx(b.word_perplexity, rel=1e-6 * b.tokens / b.words)
            assert (a.tokens, a.words, a.greedy, a.event) == (b.tokens, b.words, b.greedy, b.event)
    order = np.random.default_rng(0).permutation(len(texts))
    turned = score(lm, [texts[i] for i in order], plan=plan)
    assert [turned[k].logprob for k in np.argsort(order)] == pytest.approx([s.logprob for s in whole], rel=1e-6)


def test_f18_per_token_and_per_word_perplexity_come_with_their_counts() -> None:
    lm, log_p = stub_of("causal")
    s = score(lm, "the cat  sat.\n")[0]
    total = log_p[tokenizer().encode("the cat  sat.\n")].sum()
    assert (s.tokens, s.words) == (14, 4)
    assert s.perplexity == pytest.approx(np.exp(-total / 14), rel=1e-6)
    assert s.word_perplexity == pytest.approx(np.exp(-total / 4), rel=1e-6)
    assert score(lm, "自然言語")[0].words == 4  # a script without blanks has words too
    assert score(lm, " ")[0].word_perplexity is None and score(lm, "")[0].perplexity is None


# ---------------------------------------------------------------- what was not asked, and what has no answer


@pytest.mark.parametrize(("name", "plan"), CASES)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_model_without_finite_log_probabilities_is_refused(name: str, plan: Plan, wrong: float) -> None:
    lm, _ = stub_of(name)
    network: Any = lm.network
    for at in (5, slice(None)):
        logits = network.heads["lm"].logits.clone()
        logits[at] = wrong
        broken = replace(lm, network=Stub(logits, network.config))
        with pytest.raises(UserError, match="log-probabilities are not finite numbers"):
            score(broken, ["abc", "a"], plan=plan)


def test_what_stands_before_any_scored_token_is_not_counted() -> None:
    lm = without_start(model_of("causal", "wordpiece"))
    one = score(lm, "the")[0]
    assert (one.tokens, one.bytes, one.words) == (0, 0, 0) and one.word_perplexity is None
    s = score(lm, "the cat sat")[0]
    assert (s.bytes, s.words) == (8, 2)  # " cat sat"
    after = score(lm, " cat", "the")[0]
    assert (after.bytes, after.words, after.tokens) == (4, 1, 1)
    glued = score(without_start(tokenized("bbpe")), "cat", " ")[0]  # " cat" is one token, with nothing before it
    assert glued.tokens == 0 and glued.merged and (glued.bytes, glued.words) == (0, 0)
    assert "is not scored, as nothing precedes it" in glued.event and "scored from it on" not in glued.event
    end = score(lm, "", end=True)[0]
    assert end.word_perplexity is None


# ---------------------------------------------------------------- only some characters


@pytest.mark.parametrize(("name", "plan"), CASES)
def test_only_the_tokens_of_the_given_characters_are_asked(
    name: str, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = model_of(name)
    texts, only = ["the cat sat", "é a", "a dog"], [(4, 7), (0, 1), (5, 5)]
    for context in ("", "it: "):
        some = score(lm, texts, context, plan, only=only)
        whole = score(lm, texts, context, plan)
        for w, s, at in zip(whole, some, (slice(4, 7), slice(0, 2), slice(0, 0)), strict=True):
            if plan != "decoder":  # its source shows what follows
                assert s.each == pytest.approx(w.each[at], rel=1e-5)
            assert s.tokens == len(w.each[at]) and not s.merged
            assert "only the tokens of the given characters" in s.event
        assert [s.bytes for s in some] == [3, 2, 0] and [s.words for s in some] == [1, 1, 0]
    everything = score(lm, texts, plan=plan, only=[(0, len(t)) for t in texts])
    if plan != "pseudo_words":  # a span is one word
        assert [s.each for s in everything] == [pytest.approx(s.each, rel=1e-5) for s in score(lm, texts, plan=plan)]
    monkeypatch.setattr("unmask.evaluation.score.PART", 5)  # the texts go in parts
    parts = score(lm, texts, "it: ", plan, only=only)
    assert [p.each for p in parts] == [pytest.approx(s.each, rel=1e-5) for s in some]


class Cut(Tokenizer):
    """Two characters are one token: 'ab', 'cd', … share the id of their first byte."""

    def encode_batch(self, texts: Any) -> list[np.ndarray]:
        return [super(Cut, self).encode_batch([t[::2]])[0] for t in texts]

    def encode_aligned(self, texts: Any) -> list[Any]:
        out = []
        for text, ids in zip(texts, self.encode_batch(texts), strict=True):
            begin = np.arange(len(ids)) * 2
            out.append(SimpleNamespace(ids=ids, begin=begin, end=np.minimum(begin + 2, len(text))))
        return out


def test_a_token_over_an_edge_is_scored_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm, log_p = stub_of("causal")
    tokenizer().save(tmp_path / "tokenizer.json")
    lm = replace(lm, tokenizer=Cut((tmp_path / "tokenizer.json").read_text()))
    ids = tokenizer().encode("acegik")
    inside, over = score(lm, ["abcdefghijkl"] * 2, only=[(4, 8), (3, 8)])
    assert inside.each == pytest.approx(log_p[ids[2:4]].tolist(), rel=1e-5) and not inside.merged
    assert over.each == pytest.approx(log_p[ids[1:4]].tolist(), rel=1e-5) and over.merged
    assert over.event == inside.event + "; a token spans their edge and is scored"
    ids = tokenizer().encode("ab")
    monkeypatch.setattr(Cut, "encode_aligned", lambda self, texts: [SimpleNamespace(ids=ids, begin=first, end=last)])
    first, last = np.array([2, 2]), np.array([2, 4])  # a mark without characters of its own, and what follows it
    marked, before = score(lm, "abcd", only=[(2, 4)])[0], score(lm, "abcd", only=[(0, 2)])[0]
    assert marked.tokens == 2 and not marked.merged and before.tokens == 0
    monkeypatch.undo()
    ids = tokenizer().encode("acegik")
    end = score(lm, "abcd", only=[(2, 4)], end=True)[0]
    assert end.each == pytest.approx([log_p[ids[1]], log_p[tokenizer().vocabulary.need("eos")]], rel=1e-5)


# ---------------------------------------------------------------- the likeliest


@pytest.mark.parametrize(("name", "plan"), CASES)
def test_greedy_says_that_every_scored_token_is_the_likeliest(name: str, plan: Plan) -> None:
    lm, log_p = stub_of(name)
    ordinary = lm.vocabulary.ordinary
    best = chr(32)
    network: Any = lm.network
    network.heads["lm"].logits[tokenizer().encode(best)[0]] = 9.0
    assert log_p[ordinary].max() < 0
    scores = score(lm, [best * 3, best + "a", ""], plan=plan)
    assert [s.greedy for s in scores] == [True, False, True]
    assert score(lm, best, "a", plan=plan)[0].greedy  # the context is not asked


def test_greedy_text_is_what_the_model_would_write() -> None:
    lm = model_of("causal")
    written = generations(lm, "the c", 6)[0]
    assert score(lm, written.text, "the c")[0].greedy or "\ufffd" in written.text
    assert not score(lm, "zq", "the c")[0].greedy


# ---------------------------------------------------------------- long contexts, many texts


@pytest.mark.parametrize(("name", "plan"), [("causal", "left_to_right"), ("masked", "pseudo"), ("spans", "infill")])
def test_the_end_of_a_long_context_is_read_beside_its_text(name: str, plan: Plan) -> None:
    lm = model_of(name, context=16)
    longest = room(OBJECTIVES[name], shape_of(lm), plan)
    context, text = "the dog sat on the log and", " a cat"
    s = score(lm, text, context, plan)[0]
    assert s.each == pytest.approx(score(lm, text, context[-(longest - len(text)) :], plan)[0].each, rel=1e-5)
    assert f"the context without its beginning, which does not fit into {longest} tokens" in s.event
    assert "cut into" not in s.event and s.tokens == len(text)
    both = score(lm, "a cat on a mat, a dog", context, plan)[
        0
    ]  # longer than the room: half of it stays for the context
    half = longest // 2
    first = score(lm, "a cat on a mat, a dog"[: longest - half], context[-half:], plan)[0]
    assert both.each[: longest - half] == pytest.approx(first.each, rel=1e-5)
    assert "cut into" in both.event and "without its beginning" in both.event and both.tokens == 21


def test_f23_a_thousand_texts_of_a_checkpoint_stream_in_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = load(written_run(model_of("causal"), tmp_path / "run"), device="cpu")
    seen: list[int] = []
    forward = lm.network.decode
    monkeypatch.setattr(lm.network, "decode", lambda s, *a, **k: seen.append(s.tokens.numel()) or forward(s, *a, **k))
    monkeypatch.setattr("unmask.evaluation.score.PART", 3000)
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(["the", "cat", "sat", "dog"], n)) for n in random.integers(1, 11, 1000)]
    above = {}
    for number in (200, 1000):
        tracemalloc.start()
        scores = score(lm, texts[:number], batch_tokens=500)
        kept, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        above[number] = peak - kept
    assert above[1000] - above[200] < 100 * 800  # bytes; the ids of a text alone take more
    assert max(seen) <= 600 and len(seen) > 50
    assert [s.logprob for s in scores[:50]] == pytest.approx([s.logprob for s in score(lm, texts[:50])], rel=1e-6)


# ---------------------------------------------------------------- what is summed


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
    for wrong in ((0, 2), (-1, 0), (1, 0)):
        with pytest.raises(UserError, match=r"only=.* lies outside its text of 1 characters"):
            score(lm, "a", only=[wrong])
    with pytest.raises(UserError, match="0 spans in only for 1 texts"):
        score(lm, "a", only=[])
    assert score(lm, []) == []
    with pytest.raises(UserError, match="2 contexts for 1 texts"):
        score(lm, "a", ["b", "c"])
    with pytest.raises(UserError, match=r"only asks for 'xxxx.* 44 tokens, and the model has room for 25 in one span"):
        score(model_of("spans-prefix", context=30), "x" * 60, plan="decoder", only=[(3, 47)])
