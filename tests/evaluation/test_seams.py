from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from unmask.evaluation.score import score
from unmask.evaluation.seams import seams
from unmask.tokens.tokenizer import Tokenizer

from .scoring import tokenized

# ---------------------------------------------------------------- F20: one string


@pytest.mark.parametrize("kind", ["byte", "bbpe", "wordpiece", "unigram"])
def test_f20_context_and_answer_add_up(kind: str) -> None:
    lm = tokenized(kind)
    for context, answer in (("the cat sat on", " the mat"), ("a dog", " sat"), ("the", " cat and a dog")):
        answers = score(lm, answer, context)[0]
        both, before = score(lm, [context + answer, context])
        assert both.logprob - before.logprob == pytest.approx(answers.logprob, rel=1e-5)
        assert both.tokens == before.tokens + answers.tokens
        assert not answers.merged and "seam" not in answers.event and "[BOS] context" in answers.event


@pytest.mark.parametrize("kind", ["bbpe", "wordpiece", "unigram"])
def test_f20_the_answers_of_a_multiple_choice_question_share_all_mass(kind: str) -> None:
    """Over every token that may follow, the probabilities of the answers sum to one: no stray piece takes any."""
    lm = tokenized(kind)
    words, context = lm.tokenizer, "the cat sat on the mat"
    assert words is not None
    blank = "" if kind == "bbpe" else " "
    last = words.encode(context)[-1]
    answers = [
        blank + words.decode([int(i)]).strip() if blank else words.decode([int(i)]) for i in words.vocabulary.ordinary
    ]
    fit = {a for a in answers if len(words.encode(context + a)) == len(words.encode(context)) + 1}
    fit = {a for a in fit if words.encode(context + a)[-2] == last}
    scores = score(lm, sorted(fit), context)
    assert len(fit) > 5 and all(s.tokens == 1 and not s.merged for s in scores)
    with torch.no_grad():
        p = lm.logits([[lm.vocabulary.need("bos"), *words.encode(context)]])[0, -1].double().softmax(-1)
    ids = [int(words.encode(context + a)[-1]) for a in sorted(fit)]
    assert [s.logprob for s in scores] == pytest.approx(p[ids].log().tolist(), rel=1e-5)
    assert sum(np.exp(s.logprob) for s in scores) == pytest.approx(float(p[ids].sum()), rel=1e-5)


@pytest.mark.parametrize(("kind", "answer", "context"), [("bbpe", "cat", "the "), ("unigram", "t sat", "the ca")])
def test_f20_a_token_over_the_seam_is_named(kind: str, answer: str, context: str) -> None:
    lm = tokenized(kind)
    s = score(lm, answer, context)[0]  # " cat" is one piece
    assert s.merged and "spans the seam" in s.event
    assert s.tokens == len(lm.tokenizer.encode(" cat" if kind == "bbpe" else "cat sat"))  # type: ignore[union-attr]


def test_f20_an_unknown_token_that_swallows_the_answer_spans_the_seam() -> None:
    """Equal ids may cover different characters: fused [UNK]s of a unigram model, whole words of WordPiece."""
    lm = tokenized("unigram")
    before, both = lm.tokenizer.encode("北京"), lm.tokenizer.encode("北京。")  # type: ignore[union-attr]
    assert before.tolist() == both.tolist()
    s = score(lm, "。", "北京")[0]
    assert s.tokens == len(both) and s.merged and s.logprob < 0 and "spans the seam" in s.event
    wordpiece = tokenized("wordpiece")
    s = score(wordpiece, "ψ cat", "the ξ")[0]  # "ξψ" is one unknown word, as "ξ" is
    assert s.merged and s.tokens == 1 + len(wordpiece.tokenizer.encode(" cat"))  # type: ignore[union-attr]


@pytest.mark.shared
def test_f20_no_answer_is_swallowed_under_the_vocabulary_of_t5(shared_data: Path) -> None:
    words = Tokenizer.load(shared_data / "tokenizers" / "t5")
    found = seams(words, ["北京", "the cat", "", "the "], ["。", " sat", "a", "cat"])
    assert found.merged.tolist() == [True, False, False, True] and found.begin.tolist() == [0, 7, 0, 3]
    assert all(len(i) > t for i, t in zip(found.ids, found.token, strict=True))
    assert [i.tolist() for i in found.ids] == [
        words.encode(t).tolist() for t in ("北京。", "the cat sat", "a", "the cat")
    ]


@pytest.mark.parametrize("kind", ["byte", "bbpe", "wordpiece", "unigram"])
def test_f20_seams_equal_a_search_over_characters(kind: str) -> None:
    words = tokenized(kind).tokenizer
    assert words is not None
    whole = "the cat  sat on é mats"
    found = seams(words, [whole[:k] for k in range(len(whole))], [whole[k:] for k in range(len(whole))])
    aligned = words.encode_aligned([whole])[0]
    spans = list(zip(aligned.begin.tolist(), aligned.end.tolist(), strict=True))
    for k in range(1, len(whole)):
        token = next(i for i, (_, end) in enumerate(spans) if end > k)
        assert found.merged[k] == (spans[token][0] < k) and found.begin[k] == min(spans[token][0], k)
        while token and spans[token - 1][0] == spans[token - 1][1] == spans[token][0]:
            token -= 1
        assert found.token[k] == token
    assert found.token[0] == 0 and not found.merged[0]


def test_white_space_at_an_edge_is_not_worth_a_word() -> None:
    lm = tokenized("bbpe")
    s = score(lm, "the cat sat", only=[(4, 7)])[0]
    assert s.tokens == 1 and not s.merged and "edge" not in s.event  # " cat" is one token
    inside = score(lm, "the cat sat", only=[(5, 7)])[0]
    assert inside.tokens == 1 and inside.merged and inside.event.endswith("; a token spans their edge and is scored")
