from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from unmask.batch import Batch, Rows
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.evaluation.base import shape_of
from unmask.evaluation.plans import FORWARD, Query, expand, plans_of, room, source_room
from unmask.evaluation.score import score
from unmask.lm import LM
from unmask.model.transformer import Transformer
from unmask.objectives import Causal, Masked, PrefixLM, SpanCorruption
from unmask.objectives.base import Plan

from .helpers import OBJECTIVES, model_of, stub_of, tokenizer
from .scoring import CASES, without_start, word_starts, words_in

TEXTS = ["the cat sat", "a", "", "the dog sat on the log and the cat on the mat, and then they all went home"]


@pytest.mark.parametrize(("name", "plan"), CASES)
@pytest.mark.parametrize("batch_tokens", [1, 50, 10_000])
def test_a_stub_gives_the_known_sum_under_every_plan(name: str, plan: Plan, batch_tokens: int) -> None:
    lm, log_p = stub_of(name)
    for text, s in zip(TEXTS, score(lm, TEXTS, plan=plan, batch_tokens=batch_tokens), strict=True):
        ids = tokenizer().encode(text)
        assert s.logprob == pytest.approx(log_p[ids].sum(), rel=1e-6, abs=1e-6)
        assert s.each == pytest.approx(log_p[ids].tolist(), rel=1e-5)
        assert (s.tokens, s.bytes, s.words, s.plan) == (len(ids), len(text), words_in(text), plan)
        assert ("cut into pieces of at most" in s.event) == (len(ids) > room(OBJECTIVES[name], shape_of(lm), plan))
        assert s.event.startswith("log p(text |" if plan in FORWARD else "sum over tokens of log p(token |")


@pytest.mark.parametrize(("name", "plan"), CASES)
def test_contexts_are_not_scored_under_any_plan(name: str, plan: Plan) -> None:
    lm, log_p = stub_of(name)
    ids = tokenizer().encode(" sat on it")
    s = score(lm, " sat on it", "the cat", plan=plan)[0]
    assert s.each == pytest.approx(log_p[ids].tolist(), rel=1e-5) and s.bytes == len(" sat on it")
    assert "context" in s.event and not s.merged


def test_which_plans_fit() -> None:
    assert plans_of(Causal()) == plans_of(PrefixLM()) == ("left_to_right",)
    assert plans_of(Masked()) == ("pseudo", "pseudo_words", "bound")
    assert plans_of(SpanCorruption()) == ("infill", "decoder")
    for name, objective in OBJECTIVES.items():
        assert plans_of(objective)[0] == objective.plan
        for plan in ("left_to_right", "pseudo", "pseudo_words", "bound", "infill", "decoder"):
            if plan not in plans_of(objective):
                with pytest.raises(UserError, match=f"plan {plan} does not fit a model of .*: its plan") as said:
                    model_of(name).score("a", plan=plan)
                assert all(p in str(said.value) for p in plans_of(objective))
    with pytest.raises(
        UserError, match=r"no plan 'pseudo_word' .* pseudo, pseudo_words, bound\); did you mean 'pseudo_words'\?$"
    ):
        model_of("masked").score("a", plan="pseudo_word")  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "plan"), CASES)
def test_the_room_is_what_fits_and_no_less(name: str, plan: Plan) -> None:
    lm = model_of(name)
    shape = shape_of(lm)
    for context in (0, 3):
        n = room(OBJECTIVES[name], shape, plan) - (0 if shape.source and plan in FORWARD else context)
        rows = Rows.of([np.full(n + context, 9)], ends=np.array([plan in FORWARD]), word=np.arange(n + context) == 0)
        for part in expand(OBJECTIVES[name], Query.of(rows, np.array([context])), lm.vocabulary, 10_000, plan):
            stream, source = part.sizes.stream.max(), 0 if part.sizes.source is None else part.sizes.source.max()
            assert stream <= shape.stream and source <= shape.source
            full = stream == shape.stream or source == shape.source > 0
            assert full or n + context == OBJECTIVES[name].room(shape)  # training had no longer texts
    most = source_room(shape, plan)
    if most is not None and plan in FORWARD:
        query = Query.of(Rows.of([np.full(most + 1, 9)]), np.array([most]))
        (part,) = expand(OBJECTIVES[name], query, lm.vocabulary, 10_000, plan)
        assert part.sizes.source is not None and part.sizes.source.max() == shape.source


# ---------------------------------------------------------------- words of several tokens


class Counting(nn.Module):
    """log p of every token is −(number of [MASK]s in its row, which is itself included) · ln 2."""

    def __init__(self, config: ModelConfig, mask: int) -> None:
        super().__init__()
        self.config, self.mask = config, mask
        self.heads = {"lm": self}

    def forward(self, batch: Batch, generator: Any = None, at: Any = None) -> dict[str, Tensor]:
        tokens, block = batch.stream.tokens, batch.stream.block
        same = block[:, :, None] == block[:, None, :]
        masks = (same & (tokens == self.mask)[:, None, :]).sum(-1)
        return {"stream": masks[..., None].float()}

    def features(self, x: Tensor, extra: Tensor | None = None) -> Tensor:
        return x[:, 0]

    def project(self, masks: Tensor) -> Tensor:
        """Two kinds of ids: ordinary ones share 2 ** −masks each, and id 0 gets the rest."""
        p = torch.exp2(-masks.double()).expand(-1, self.config.vocab_size) / 1024
        rest = 1 - p[:, 1:].sum(1, keepdim=True)
        return torch.cat([rest, p[:, 1:]], 1).log().float()


def test_f16_a_word_of_three_tokens_by_hand_under_both_conventions() -> None:
    """In "I abc" the word " abc" is long; each of its tokens hides itself, or also what follows in the word."""
    words = tokenizer()
    network: Any = Counting(
        ModelConfig(vocab_size=words.vocabulary.size, visibility="bidirectional"), words.vocabulary.mask
    )
    lm = LM(network, 32, words, Masked())
    for text, lengths in (("abc", [3]), ("I ab", [1, 3]), ("an a bcd", [2, 2, 4])):
        original, by_word = score(lm, text)[0], score(lm, text, plan="pseudo_words")[0]
        hidden = [n - i for n in lengths for i in range(n)]  # 3, 2, 1 for a word of three
        assert original.each == pytest.approx([-np.log(2) - np.log(1024)] * len(text), rel=1e-5)
        assert by_word.each == pytest.approx([-h * np.log(2) - np.log(1024) for h in hidden], rel=1e-5)
    assert original.plan == "pseudo" and by_word.plan == "pseudo_words"
    assert original.event == (
        "sum over tokens of log p(token | all other tokens, between [CLS] and [SEP]): a pseudo-log-likelihood"
    )
    assert by_word.event == (
        "sum over tokens of log p(token | all other tokens but those of its word to its right, between [CLS] and "
        "[SEP]): a whole-word left-to-right pseudo-log-likelihood"
    )


def test_f16_both_conventions_equal_masks_put_by_hand() -> None:
    lm = model_of("masked")
    v, ids = tokenizer().vocabulary, tokenizer().encode("a cat sat").tolist()
    words = [(0, 1), (1, 5), (5, 9)]
    assert [i for i, starts in enumerate(word_starts("a cat sat")) if starts] == [0, 1, 5]
    for plan in ("pseudo", "pseudo_words"):
        expected = []
        for begin, end in words:
            for i in range(begin, end):
                row = [v.cls, *ids, v.sep]
                for j in range(i, end if plan == "pseudo_words" else i + 1):
                    row[j + 1] = v.mask
                expected.append(float(lm.logits([row])[0, i + 1].double().log_softmax(-1)[ids[i]]))
        for texts in (["a cat sat"], ["on it", "a cat sat", "a"]):
            s = score(lm, texts, plan=plan)[texts.index("a cat sat")]  # type: ignore[arg-type]
            assert s.each == pytest.approx(expected, rel=1e-5)
    with_context = score(lm, " sat", "a cat", plan="pseudo_words")[0]
    assert with_context.each == pytest.approx(expected[5:], rel=1e-5) and "after the context" in with_context.event


# ---------------------------------------------------------------- the decoder's likelihood


@pytest.mark.parametrize("final", [True, False])
@pytest.mark.parametrize("kind", ["encdec", "prefix", "causal"])
@pytest.mark.parametrize("context", ["", "the cat"])
def test_decoder_scores_are_the_chain_rule_after_sentinel_0(context: str, kind: str, final: bool) -> None:
    objective = SpanCorruption(layout=kind, final_sentinel=final)  # type: ignore[arg-type]
    base = model_of("spans" if kind == "encdec" else "spans-prefix").config
    config = base.model_copy(update={"visibility": "causal" if kind == "causal" else base.visibility})
    lm = LM(Transformer(config, objective.heads(), seed=2).eval(), 48, tokenizer(), objective)
    v, text = tokenizer().vocabulary, " sat on"
    zero, one = v.sentinels[:2].tolist()
    c, ids = tokenizer().encode(context).tolist(), tokenizer().encode(context + text).tolist()[len(context) :]
    source, target = [*c, zero, v.eos], [zero, *ids, one if final else v.eos]
    if kind == "encdec":
        logits = lm.logits([source], decoder_input_ids=[[v.bos, *target[:-1]]])[0]
    else:
        more = {"prefix_length": 1 + len(source)} if kind == "prefix" else {}
        logits = lm.logits([[v.bos, *source, *target[:-1]]], **more)[0, len(source) :]
    log_p = logits.double().log_softmax(-1)[range(len(target)), target]
    without, whole = (score(lm, text, context, plan="decoder", end=end)[0] for end in (False, True))
    assert without.each == pytest.approx(log_p[1:-1].tolist(), rel=1e-5)
    assert whole.each == pytest.approx(log_p[1:].tolist(), rel=1e-5) and whole.tokens == len(ids) + 1
    before = {
        "encdec": f"source {context and 'context '}<extra_id_0> [EOS], [BOS] <extra_id_0>",
        "prefix": f"visible prefix [BOS] {context and 'context '}<extra_id_0> [EOS], <extra_id_0>",
        "causal": f"[BOS] {context and 'context '}<extra_id_0> [EOS], <extra_id_0>",
    }[kind]
    assert without.event == f"log p(text | {before})"
    assert whole.event == f"log p(text {'<extra_id_1>' if final else '[EOS]'} | {before})"


def test_an_empty_text_has_an_end_under_decoder() -> None:
    lm, log_p = stub_of("spans")
    s = score(lm, "", plan="decoder", end=True)[0]
    assert s.each == pytest.approx([log_p[tokenizer().vocabulary.sentinels[1]]], rel=1e-6)


@pytest.mark.parametrize("name", ["spans", "spans-prefix"])
def test_every_piece_of_a_long_text_gets_the_context(name: str) -> None:
    lm = model_of(name, context=40)
    longest = room(OBJECTIVES[name], shape_of(lm), "decoder")
    context, text = "the cat", " sat on the mat, the dog on the log, a cat"
    size = longest if name == "spans" else longest - len(context)
    s = score(lm, text, context, plan="decoder")[0]
    each = [
        e for i in range(0, len(text), size) for e in score(lm, text[i : i + size], context, plan="decoder")[0].each
    ]
    assert s.each == pytest.approx(each, rel=1e-5) and len(text) > size and "cut into pieces" in s.event
    given = "each given the context and nothing else of the text"
    assert f"pieces of at most {size} tokens, {given}" in s.event


@pytest.mark.parametrize("name", ["prefix", "prefix-encdec", "spans", "spans-prefix"])
def test_the_end_of_a_context_beyond_the_source_is_read(name: str) -> None:
    lm = model_of(name, context=40)
    plan = plans_of(OBJECTIVES[name])[-1]
    most = source_room(shape_of(lm), plan)
    kept = room(OBJECTIVES[name], shape_of(lm), plan) - 4 if most is None else most
    context = "the cat sat on the mat, the dog on the log, a cat on a log"
    s, short = (score(lm, " cat", c, plan)[0] for c in (context, context[-kept:]))
    assert s.each == pytest.approx(short.each, rel=1e-5) and "without its beginning" not in short.event
    assert s.event.startswith(short.event + "; the context without its beginning, which does not fit into")
    assert score(lm, [" cat", "a"], [context, "a"], plan)[1].event == short.event  # said of the text that it is true of


def test_events_of_pieces_say_what_each_is_given() -> None:
    text, context = "a cat on a mat, a dog on a log, and so on", "the cat"
    said = {name: score(model_of(name, context=24), text, context)[0].event for name in ("causal", "prefix", "masked")}
    assert "pieces of at most 23 tokens, the first after the context, each other scored by itself" in said["causal"]
    assert "pieces of at most 16 tokens, each given the context and nothing else of the text" in said["prefix"]
    assert "pieces of at most 22 tokens, the first after the context" in said["masked"]
    assert "each scored by itself" in score(model_of("causal", context=24), text)[0].event


# ---------------------------------------------------------------- spans


@pytest.mark.parametrize("kind", ["encdec", "prefix"])
@pytest.mark.parametrize("context", ["", "it: "])
def test_a_span_is_written_by_the_decoder_given_both_sides(kind: str, context: str) -> None:
    """`the <0> sat` asks for the span that was left out, by the chain rule."""
    lm = model_of("spans" if kind == "encdec" else "spans-prefix")
    v, text, (a, b) = tokenizer().vocabulary, "the cat sat", (4, 7)
    zero, one = v.sentinels[:2].tolist()
    ids = tokenizer().encode(text).tolist()
    source = [*tokenizer().encode(context).tolist(), *ids[:a], zero, *ids[b:], v.eos]
    target = [zero, *ids[a:b], one]
    if kind == "encdec":
        logits = lm.logits([source], decoder_input_ids=[[v.bos, *target[:-1]]])[0]
    else:
        logits = lm.logits([[v.bos, *source, *target[:-1]]], prefix_length=1 + len(source))[0, len(source) :]
    log_p = logits.double().log_softmax(-1)[range(len(target)), target]
    for others in ([], ["a", "a dog and a cat"]):  # in any company
        texts, only = [*others, text], [(0, 1)] * len(others) + [(a, b)]
        some, whole = (score(lm, texts, context, "decoder", only=only, end=end)[-1] for end in (False, True))
        assert some.each == pytest.approx(log_p[1:-1].tolist(), rel=1e-5)
        assert whole.each == pytest.approx(log_p[1:].tolist(), rel=1e-5)
    assert "what precedes <extra_id_0> what follows [EOS]" in some.event
    assert some.event.startswith("log p(the given characters | ")
    assert some.event.endswith("; only the tokens of the given characters")


@pytest.mark.parametrize("name", ["spans", "spans-prefix"])
def test_what_surrounds_a_span_is_cut_farthest_from_it(name: str) -> None:
    lm = model_of(name, context=24)
    text = "a dog and the cat sat on the mat, the dog on the log"
    most = source_room(shape_of(lm), "decoder")
    most = room(OBJECTIVES[name], shape_of(lm), "decoder") - 3 if most is None else most
    for a in (0, 2, 14, 30, 49):
        left = min(a, max(most - (len(text) - a - 3), most // 2))
        near = text[a - left : a + 3 + most - left]
        s = score(lm, text, plan="decoder", only=[(a, a + 3)])[0]
        same = score(lm, near, plan="decoder", only=[(left, left + 3)])[0]
        assert s.each == pytest.approx(same.each, rel=1e-5) and s.tokens == 3
        assert "only the nearest of what surrounds the span" in s.event and "nearest" not in same.event


def test_a_span_is_one_word_where_its_tokens_are_asked_by_words() -> None:
    """All of the span to the right is hidden, also across words, and nothing beyond it."""
    lm = model_of("masked")
    v, text, (a, b) = tokenizer().vocabulary, "the cat sat on", (5, 10)  # "at sa"
    ids = tokenizer().encode(text).tolist()
    each = []
    for i in range(a, b):
        row = [v.cls, *ids[:i], *[v.mask] * (b - i), *ids[b:], v.sep]
        each.append(float(lm.logits([row])[0, i + 1].double().log_softmax(-1)[ids[i]]))
    for texts in ([text], ["on it", text]):
        s = score(lm, texts, plan="pseudo_words", only=[*[(0, 2)] * (len(texts) - 1), (a, b)])[-1]
        assert s.each == pytest.approx(each, rel=1e-5)
    assert "all other tokens but those of its span to its right" in s.event and "whole-span left-to-right" in s.event


# ---------------------------------------------------------------- without a start token


@pytest.mark.parametrize("end", [False, True])
def test_without_a_start_token_the_first_token_is_not_scored(end: bool) -> None:
    lm = without_start(model_of("causal"))
    v = tokenizer().vocabulary
    ids = [*tokenizer().encode("the cat sat").tolist(), *([v.eos] if end else [])]
    with torch.no_grad():
        log_p = lm.logits([ids[:-1]])[0].double().log_softmax(-1)
    each = log_p[range(len(ids) - 1), ids[1:]].tolist()
    s = score(lm, ["a", "the cat sat"], end=end)[1]
    assert s.each == pytest.approx(each, rel=1e-5) and s.start is None
    assert "the tokenizer has no start token" in s.event and "without its first token" in s.event
    answer = score(lm, " sat", "the cat", end=end)[0]
    assert answer.each == pytest.approx(each[6:], rel=1e-5) and answer.tokens == 4 + end
    single = score(lm, ["a", ""], end=end)
    assert [x.tokens for x in single] == [int(end), 0] and single[1].logprob == 0 and single[1].perplexity is None
    assert score(lm, "", end=end)[0].tokens == 0


def test_a_long_text_without_a_start_token_is_scored_once_from_its_second_token_on() -> None:
    lm, log_p = stub_of("causal", max_position=16)
    ids = tokenizer().encode(TEXTS[3])
    s = score(without_start(lm), TEXTS[3])[0]
    assert s.each == pytest.approx(log_p[ids[1:]].tolist(), rel=1e-5)
    assert "pieces of at most 15 tokens, each given the last token of the one before" in s.event


# ---------------------------------------------------------------- parts


@pytest.mark.parametrize(("name", "plan"), CASES)
def test_parts_keep_to_the_budget_and_are_mostly_of_one_length(name: str, plan: Plan) -> None:
    lm = model_of(name)
    random = np.random.default_rng(0)
    rows = Rows.of([random.integers(9, 99, n) for n in random.integers(3, 9, 60)], ends=np.zeros(60, bool))
    query = Query.of(rows)
    if plan == "pseudo_words":
        query = Query.of(Rows.of(np.split(rows.tokens, rows.start[1:-1]), word=rows.place % 2 == 0, ends=rows.ends))
    parts = list(expand(OBJECTIVES[name], query, lm.vocabulary, 200, plan))
    slots = np.concatenate([p.slot for p in parts])
    assert sorted(slots.tolist()) == np.flatnonzero(query.asked).tolist()
    assert len(parts) < 3 * (rows.lengths + 3)[rows.row if plan not in FORWARD else slice(None)].sum() / 200 + 3
    assert all((p.sizes.stream.sum() + 3) < 200 * 2.5 for p in parts)
