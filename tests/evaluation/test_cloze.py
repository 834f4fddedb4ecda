from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unmask.errors import UserError
from unmask.evaluation.cloze import Placed, _placed, cloze, narrowed, standings
from unmask.evaluation.gaps import Gap, Gaps, read_gaps
from unmask.evaluation.items import Options, Standing, standing
from unmask.evaluation.plans import plans_of

from .helpers import OBJECTIVES, Stub, model_of, stub_of, tokenizer
from .scoring import accentless, without_start

FORWARD = ("causal", "prefix", "prefix-encdec")


def gap(text: str, *answers: str, candidates: tuple[str, ...] = (), relation: str = "r") -> Gap:
    before, after = text.split("[MASK]")
    return Gap(before, after, answers, candidates, relation)


CLOSED = (
    gap("the [MASK] sat on", "cat", candidates=("cat", "dog"), relation="animals"),
    gap("a dog sat on the [MASK].", "mat", candidates=("log", "mat", "big log"), relation="places"),
    gap("the [MASK] and a cat", "dog", candidates=("log", "dog"), relation="animals"),
)


# ---------------------------------------------------------------- candidates


@pytest.mark.parametrize("name", OBJECTIVES)
def test_candidates_are_won_by_what_a_stub_knows(name: str) -> None:
    """Whatever stands around the gap is the same for all candidates, so their own sums decide."""
    lm, log_p = stub_of(name, max_position=64)
    r = cloze(lm, Gaps(CLOSED), Options())

    def known(word: str) -> float:
        return float(log_p[tokenizer().encode(word)].sum())

    right = [max(g.candidates, key=known) == g.answers[0] for g in CLOSED]
    by_relation = [np.mean([right[0], right[2]]), right[1]]
    assert r["value"] == pytest.approx(100 * np.mean(by_relation))
    assert [(row["relation"], row["gaps"]) for row in r["relations"]] == [("animals", 2), ("places", 1)]
    assert r["chance"] == pytest.approx(100 * np.mean([1 / 2, 1 / 3]))
    assert r["counts"]["candidates"] == 7 and r["counts"]["scored"] == 3
    words = sum(len(tokenizer().encode(c)) for g in CLOSED for c in g.candidates)
    around = sum(len(tokenizer().encode(g.before + g.after)) * len(g.candidates) for g in CLOSED)
    inside = name not in FORWARD
    closes = 7 if name.startswith("spans") else 0  # what closes the span, the same for every candidate
    assert r["counts"]["scored_tokens"] == (words + closes if inside else words + around)
    assert r["plan"] == {"pseudo": "pseudo_words", "infill": "decoder"}.get(
        OBJECTIVES[name].plan, OBJECTIVES[name].plan
    )
    assert ("whole text" in r["protocol"]) != inside and "p(t" in r["event"]
    json.dumps(r, allow_nan=False)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_candidates_are_scored_as_scores_are_and_in_any_order(name: str) -> None:
    lm, g = model_of(name), CLOSED[1]
    plan: Any = {"pseudo": "pseudo_words", "infill": "decoder"}.get(OBJECTIVES[name].plan)
    texts = [g.filled(c) for c in g.candidates]
    only = None if name in FORWARD else [(len(g.before), len(g.before) + len(c)) for c in g.candidates]
    from unmask.evaluation.score import score

    best = int(np.argmax([s.logprob for s in score(lm, texts, plan=plan, only=only, end=plan == "decoder")]))
    for word in g.candidates:
        asked = replace(g, answers=(word,))
        values = [cloze(lm, Gaps((replace(asked, candidates=c),)), Options())["value"]
                  for c in (g.candidates, g.candidates[::-1])]  # fmt: skip
        assert values == [100.0 * (word == g.candidates[best])] * 2


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_constant_model_is_at_chance(name: str) -> None:
    lm, _ = stub_of(name)
    network: Any = Stub(torch.zeros(lm.config.vocab_size), lm.config)
    lm = replace(lm, network=network)
    gaps = tuple(gap("the [MASK] sat", "cat", candidates=("dog", "cat", "log", "mat")) for _ in range(3))
    r = cloze(lm, Gaps(gaps), Options())
    assert r["value"] == pytest.approx(25.0) and r["chance"] == pytest.approx(25.0)
    assert r["mrr"] == pytest.approx(np.mean(1 / np.arange(1, 5)))  # each rank is as likely
    n = len(lm.vocabulary.ordinary)
    r = cloze(lm, Gaps((gap("the ca[MASK]", "t"), gap("the [MASK]at", "c"))), Options())
    assert r["value"] == pytest.approx(100 / n) and r["p_at_10"] == pytest.approx(1000 / n)
    assert r["mrr"] == pytest.approx(np.mean(1 / np.arange(1, n + 1))) and r["chance"] == pytest.approx(100 / n)
    several = cloze(lm, Gaps((gap("the ca[MASK]", "t", "r", "b", "tt"),)), Options())  # the last is no one token
    assert several["value"] == pytest.approx(300 / n) == several["chance"]


def test_every_plan_of_a_model_may_be_asked_for() -> None:
    for name, objective in OBJECTIVES.items():
        for plan in plans_of(objective):
            # those that are asked for are taken: `SPANS` is for none
            r = cloze(model_of(name), Gaps(CLOSED[:1]), Options(plan=plan))
            assert r["plan"] == plan
    with pytest.raises(UserError, match="plan pseudo does not fit"):
        cloze(model_of("causal"), Gaps(CLOSED), Options(plan="pseudo"))


# ---------------------------------------------------------------- the whole vocabulary


@pytest.mark.parametrize("name", OBJECTIVES)
def test_ranks_equal_those_of_the_logits(name: str) -> None:
    """One token's logits, read the way users read them, in `lm.logits`."""
    lm, v = model_of(name), tokenizer().vocabulary
    g = gap("the ca[MASK] sat", "t")
    ids = tokenizer().encode("the cat sat").tolist()
    at = len("the ca")
    if name == "masked":
        framed = [v.cls, *ids, v.sep]
        framed[at + 1] = v.mask
        logits = lm.logits([framed])[0, at + 1]
    elif name == "causal":
        logits = lm.logits([[v.bos, *ids[:at]]])[0, -1]
    elif name == "prefix":
        logits = lm.logits([[v.bos, *ids[:at]]], prefix_length=at + 1)[0, -1]
    elif name == "prefix-encdec":
        logits = lm.logits([ids[:at]], decoder_input_ids=[[v.bos]])[0, -1]
    else:
        zero = int(v.sentinels[0])
        source = [*ids[:at], zero, *ids[at + 1 :], v.eos]
        if name == "spans":
            logits = lm.logits([source], decoder_input_ids=[[v.bos, zero]])[0, -1]
        else:
            logits = lm.logits([[v.bos, *source, zero]], prefix_length=1 + len(source))[0, -1]
    own = logits[ids[at]]
    above = int((logits[torch.from_numpy(v.ordinary).long()] > own).sum())
    r = cloze(lm, Gaps((g,)), Options())
    assert r["mrr"] == pytest.approx(1 / (1 + above))
    assert r["value"] == 100.0 * (above == 0) and r["p_at_10"] == 100.0 * (above < 10)
    assert ("not read" in r["protocol"]) == (name in FORWARD)
    best = int(v.ordinary[logits[torch.from_numpy(v.ordinary).long()].argmax()])
    found = _placed(lm, g, "t", OBJECTIVES[name].plan)
    assert isinstance(found, Placed)
    found.ids[found.at] = best
    assert standings(lm, [found], OBJECTIVES[name].plan).tolist() == [[0, 0]]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_ranks_do_not_depend_on_the_batch(name: str) -> None:
    lm = model_of(name)
    texts = ("the ca[MASK] sat", "[MASK]", "a do[MASK]", "the cat sat on the [MASK]at and the dog")
    placed = [p for t in texts if isinstance(p := _placed(lm, gap(t, "m"), "m", OBJECTIVES[name].plan), Placed)]
    assert len(placed) == 4
    whole = standings(lm, placed, OBJECTIVES[name].plan)
    for batch in (1, 40):
        assert np.array_equal(standings(lm, placed, OBJECTIVES[name].plan, batch), whole)
    alone = np.concatenate([standings(lm, [p], OBJECTIVES[name].plan) for p in placed])
    assert np.array_equal(alone, whole)


def test_answers_of_several_tokens_and_unknown_ones_are_counted_and_enter_no_mean() -> None:
    lm = model_of("masked", "wordpiece")
    known = next(w for w in ("cat", "dog", "mat", "log") if len(tokenizer("wordpiece").encode(w)) == 1)
    several = next(w for w in ("matlog", "catdog") if len(tokenizer("wordpiece").encode(w)) > 1)
    gaps = (
        gap("the [MASK] sat", known, relation="a"),
        gap("the [MASK] sat", several, relation="a"),
        gap("the [MASK] sat", "漢", relation="b"),
    )
    r = cloze(lm, Gaps(gaps), Options())
    assert r["counts"] | {"cut_texts": 0} == {
        "relations": 2, "gaps": 3, "scored": 1, "several_tokens": 1, "unknown_words": 1, "no_start": 0, "cut_texts": 0
    }  # fmt: skip
    assert r["value"] == r["relations"][0]["p_at_1"] and r["relations"][1]["p_at_1"] is None
    assert [row["scored"] for row in r["relations"]] == [1, 0]
    nothing = cloze(lm, Gaps(gaps[1:]), Options())
    assert nothing["value"] is None and nothing["interval"] is None and nothing["counts"]["scored"] == 0
    several_answers = cloze(lm, Gaps((gap("the [MASK] sat", several, known),)), Options())
    assert several_answers["value"] == r["value"] and several_answers["counts"]["scored"] == 1


def test_a_token_may_hold_the_blank_before_the_answer_and_nothing_else() -> None:
    lm = model_of("causal", "bbpe")
    found = _placed(lm, gap("the [MASK] sat", "cat"), "cat", "left_to_right")
    assert isinstance(found, Placed) and tokenizer("bbpe").token(found.ids[found.at]) == " cat"
    assert tokenizer("bbpe").decode(found.ids) == "the cat"
    masked = _placed(model_of("masked", "bbpe"), gap("the c[MASK]t", "a"), "a", "pseudo")
    assert masked == "several_tokens"  # " cat" is one piece, which holds more than the answer


@pytest.mark.parametrize("name", OBJECTIVES)
def test_long_texts_keep_what_is_near_the_gap(name: str) -> None:
    lm = model_of(name, context=24)
    text = "the cat sat on the mat and on the log and a dog sat on [MASK]he mat, and the cat and the dog sat"
    r = cloze(lm, Gaps((gap(text, "t"),)), Options())
    assert r["counts"]["cut_texts"] == 1 and r["counts"]["scored"] == 1
    placed = _placed(lm, gap(text, "t"), "t", OBJECTIVES[name].plan)
    assert isinstance(placed, Placed) and placed.at > 4
    assert text[: text.index("[MASK]")].endswith(tokenizer().decode(placed.ids[: placed.at]))


# ---------------------------------------------------------------- numbers


def test_two_protocols_are_never_one_number() -> None:
    r = cloze(model_of("masked"), Gaps((*CLOSED, gap("the ca[MASK]", "t"))), Options())
    assert r["value"] is None and r["interval"] is None
    first, second = r["parts"]
    assert first["protocol"].startswith("candidates") and second["protocol"].startswith("vocabulary")
    assert first == {k: v for k, v in cloze(model_of("masked"), Gaps(CLOSED), Options()).items() if k in first}


def test_the_most_frequent_answer_stands_beside() -> None:
    gaps = (
        gap("[MASK]", "a", relation="x"), gap("b[MASK]", "a", relation="x"), gap("c[MASK]", "d", relation="x"),
        gap("d[MASK]", "e", "f", relation="y"),
        gap("g[MASK]", "f", relation="y"),
    )  # fmt: skip
    r = cloze(model_of("causal"), Gaps(gaps), Options())
    assert [row["majority"] for row in r["relations"]] == [pytest.approx(200 / 3), 100.0]
    assert r["majority"] == pytest.approx((200 / 3 + 100) / 2)
    closed = (
        gap("a [MASK]", "good", candidates=("good", "bad")), gap("b [MASK]", "good", candidates=("good", "bad")),
        gap("c [MASK]", "bad", candidates=("good", "bad")), gap("d [MASK]", "dog", candidates=("dog", "cat")),
    )  # fmt: skip
    r = cloze(model_of("causal"), Gaps(closed), Options())
    assert r["majority"] == pytest.approx(100 * (1 + 1 + 0 + 0.5) / 4)  # chance, where it is no candidate


def test_standings_and_precision_share_ties() -> None:
    values, right = np.array([3.0, 1.0, 1.0, 1.0, 0.0]), np.array([False, True, False, False, False])
    assert standing(values, right) == Standing(1, 2)
    assert standing(values, right, tolerance=5.0) == Standing(0, 4)
    s = Standing(1, 2)
    assert s.precision(1) == 0 and s.precision(2) == pytest.approx(1 / 3) and s.precision(10) == 1


@pytest.mark.parametrize("above,tied,right", [(0, 0, 1), (2, 0, 1), (0, 3, 1), (1, 3, 2), (0, 2, 4), (3, 4, 3)])
def test_ties_are_averaged_over_every_order(above: int, tied: int, right: int) -> None:
    """Against each order of the tied ones, by name."""
    ranks = [
        1 + above + order.index(True) for order in itertools.permutations([True] * right + [False] * tied)
    ]  # fmt: skip
    s = Standing(above, tied, right)
    assert s.reciprocal_rank() == pytest.approx(np.mean([1 / r for r in ranks]))
    for k in range(1, above + tied + right + 2):
        assert s.precision(k) == pytest.approx(np.mean([r <= k for r in ranks]))


# ---------------------------------------------------------------- what is hidden, what fits, what cannot be scored


def test_the_likeliest_token_in_a_gap_is_given_all_that_follows_it() -> None:
    """Under pseudo_words, too: the answer is a word of its own, whatever the tokenizer's words are."""
    lm, v = model_of("masked"), tokenizer().vocabulary
    placed = [p for w in "tx" if isinstance(p := _placed(lm, gap("the ca[MASK] sat", w), w, "pseudo_words"), Placed)]
    ids = [v.cls, *tokenizer().encode("the cat sat").tolist(), v.sep]
    at = 1 + len("the ca")
    ids[at] = v.mask
    logits = lm.logits([ids])[0, at][torch.from_numpy(v.ordinary).long()]
    for p in placed:
        own = logits[int(np.flatnonzero(v.ordinary == p.ids[p.at])[0])]
        assert standings(lm, [p], "pseudo_words").tolist() == [[int((logits > own).sum()), 0]]
    assert np.array_equal(standings(lm, placed, "pseudo_words"), standings(lm, placed, "pseudo"))


def test_a_candidate_of_two_words_is_written_from_left_to_right() -> None:
    """Masked: each token from what precedes it and what follows the candidate; by hand."""
    lm, v = model_of("masked"), tokenizer().vocabulary
    g = gap("the [MASK] sat", "a b", candidates=("a b", "cat", "on"))
    known = {}
    for c in g.candidates:
        ids = np.array([v.cls, *tokenizer().encode(g.filled(c)), v.sep])
        first, last = 1 + len(g.before), 1 + len(g.before) + len(c)
        total = 0.0
        for at in range(first, last):
            hidden = ids.copy()
            hidden[at:last] = v.mask
            total += float(lm.logits([hidden.tolist()])[0, at].log_softmax(-1)[ids[at]])
        known[c] = total
    best = max(known, key=lambda c: known[c])
    for c in g.candidates:
        r = cloze(lm, Gaps((replace(g, answers=(c,)),)), Options())
        assert r["value"] == 100.0 * (c == best) and "span to its right" in r["event"]
        above = sum(value > known[c] for value in known.values())
        assert r["mrr"] == pytest.approx(1 / (1 + above))


@pytest.mark.parametrize("name", ["spans", "spans-prefix"])
def test_a_candidate_is_one_span_of_what_span_corruption_left_out(name: str) -> None:
    """Source `before <0> after [EOS]`, target `<0> candidate` and what closes the span, by the chain rule; by hand."""
    lm, words = model_of(name), tokenizer()
    v = words.vocabulary
    g = gap("the [MASK] sat", "a b", candidates=("a b", "cat", "on"))
    zero, one = int(v.sentinels[0]), int(v.sentinels[1])
    source = [*words.encode(g.before).tolist(), zero, *words.encode(g.after).tolist(), v.eos]
    known = {}
    for c in g.candidates:
        target = [zero, *words.encode(c).tolist(), one]
        if name == "spans":
            logits = lm.logits([source], decoder_input_ids=[[v.bos, *target[:-1]]])[0, 1:]
        else:
            logits = lm.logits([[v.bos, *source, *target[:-1]]], prefix_length=1 + len(source))[0, 1 + len(source) :]
        p = logits.log_softmax(-1)
        known[c] = sum(float(p[i, t]) for i, t in enumerate(target[1:]))
    for c in g.candidates:
        r = cloze(lm, Gaps((replace(g, answers=(c,)),)), Options())
        assert r["plan"] == "decoder" and "what follows" in r["event"]
        assert r["mrr"] == pytest.approx(1 / (1 + sum(value > known[c] for value in known.values())))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_candidates_of_long_texts_keep_what_is_near_the_gap(name: str) -> None:
    """All candidates the same surroundings, as many as there is room for, and none is cut in two."""
    lm = model_of(name, context=32)
    text = "the cat sat on the mat and on the log and a dog sat on [MASK], and the cat and the dog sat on the log"
    g = gap(text, "the mat", candidates=("the mat", "a log", "it"))
    r = cloze(lm, Gaps((g,)), Options())
    assert r["counts"]["cut_texts"] == 1 and r["counts"]["scored"] == 1
    assert "cut into" not in r["event"] and "other_events" not in r
    small = narrowed(lm, g, r["plan"])
    assert isinstance(small, Gap) and small.candidates == g.candidates
    assert g.before.endswith(small.before) and g.after.startswith(small.after)
    assert min(len(small.before), len(small.after)) >= 6
    assert cloze(lm, Gaps((small,)), Options())["mrr"] == r["mrr"]
    wider = replace(g, before=g.before[-len(small.before) - 1 :], after=small.after)
    assert narrowed(lm, wider, r["plan"]) != wider  # as much as there is room for
    at_the_end = replace(g, after=".")
    found = narrowed(lm, at_the_end, r["plan"])
    assert isinstance(found, Gap) and found.after == "." and len(found.before) > len(small.before)
    assert narrowed(lm, replace(g, candidates=("x" * 40, "it")), r["plan"]) == "too_long"


def test_candidates_of_which_nothing_is_scored_are_counted_and_enter_no_mean() -> None:
    for name in ("masked", "causal"):
        lm = accentless(model_of(name, "wordpiece", max_position=64))
        good = gap("the [MASK] sat", "cat", candidates=("cat", "dog"))
        empty = gap("the [MASK] sat", "cat", candidates=("cat", "\u0301"))  # the normaliser drops it
        assert len(lm.tokenizer.encode("\u0301")) == 0  # type: ignore[union-attr]
        r = cloze(lm, Gaps((good, empty)), Options())
        assert (r["counts"]["gaps"], r["counts"]["scored"], r["counts"]["no_tokens"]) == (2, 1, 1)
        assert r["value"] == cloze(lm, Gaps((good,)), Options())["value"]
        nothing = cloze(lm, Gaps((empty,)), Options())
        assert nothing["value"] is None and nothing["event"] == "nothing was scored"
        unknown = cloze(lm, Gaps((replace(good, candidates=("cat", "漢")),)), Options())
        assert unknown["counts"]["texts_with_unknown_tokens"] == 1 and r["counts"]["texts_with_unknown_tokens"] == 0
    first = gap("[MASK] sat", "a", candidates=("a", "b"))
    r = cloze(without_start(model_of("causal")), Gaps((first, CLOSED[0])), Options())
    assert r["counts"]["no_start"] == 1 and r["counts"]["scored"] == 1


def test_a_limit_is_for_each_relation() -> None:
    gaps = tuple(gap(f"{i} [MASK]", "a", relation=r) for i in range(8) for r in ("x", "y"))
    r = cloze(model_of("causal"), Gaps(gaps), Options(limit=3))
    assert [row["gaps"] for row in r["relations"]] == [3, 3]


# ---------------------------------------------------------------- files


def write(place: Path, *items: dict[str, Any]) -> Path:
    place.write_text("".join(json.dumps(i) + "\n" for i in items))
    return place


def test_gaps_are_read_with_all_they_may_say(tmp_path: Path) -> None:
    file = write(
        tmp_path / "gaps.jsonl",
        {"text": "Paris is the capital of [MASK].", "answer": "France"},
        {"text": "a [MASK] b", "answer": ["x", "y"], "candidates": ["x", "z"], "relation": "r"},
        {"uuid": "1", "relation": "P101", "template": "[X] works in [Y] .", "sub": "Turing", "obj": "logic"},
        {"relation": "born", "sub": "A", "obj": "1941", "sentences": ["no gap", "A (born [MASK]) is"]},
        {"relation": "born", "sub": "A", "obj": "1941", "masked_sentences": ["A [MASK] [MASK]"]},
    )
    data = read_gaps(file)
    assert data.passed_over == 1
    assert [(g.filled("_"), g.answers, g.candidates, g.relation) for g in data.gaps] == [
        ("Paris is the capital of _.", ("France",), (), ""),
        ("a _ b", ("x", "y"), ("x", "z"), "r"),
        ("Turing works in _ .", ("logic",), (), "P101"),
        ("A (born _) is", ("1941",), (), "born"),
    ]


BAD = {
    "no gap": ({"text": "a b", "answer": "x"}, "the text holds 0 .MASK.: write exactly one"),
    "two gaps": ({"text": "[MASK] [MASK]", "answer": "x"}, "the text holds 2"),
    "no answer": ({"text": "a [MASK]", "anwser": "x"}, r"has no 'answer' .*did you mean 'anwser'"),
    "empty": ({"text": "a [MASK]", "answer": []}, "'answer' must hold at least 1 texts"),
    "one candidate": ({"text": "a [MASK]", "answer": "x", "candidates": ["x"]}, "at least 2 texts"),
    "not among": ({"text": "a [MASK]", "answer": "x", "candidates": ["y", "z"]}, "'x' is not among the candidates"),
    "all right": ({"text": "[MASK]", "answer": ["y", "z"], "candidates": ["y", "z"]}, "every candidate is an answer"),
    "twice": ({"text": "[MASK]", "answer": "y", "candidates": ["y", "y"]}, "every candidate is an answer"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_gaps_are_named(case: str, tmp_path: Path) -> None:
    item, says = BAD[case]
    with pytest.raises(UserError, match=says):
        read_gaps(write(tmp_path / "gaps.jsonl", item))


def test_the_battery_is_shipped_and_runs_on_every_architecture() -> None:
    data = read_gaps()
    kinds = {g.relation for g in data.gaps}
    assert kinds == {"trivia", "syntax", "coreference", "lexical", "sentiment", "reasoning", "arithmetic"}
    assert len(data.gaps) == 70 and all(g.candidates for g in data.gaps)
    assert len({g.filled("") for g in data.gaps}) == 70
    for name in ("masked", "causal", "prefix", "spans"):
        r = cloze(model_of(name, max_position=128), data, Options(limit=2))
        assert len(r["relations"]) == 7 and r["counts"]["scored"] == 14 and 0 <= r["value"] <= 100


@pytest.mark.shared
def test_the_probes_of_lama_are_read(shared_data: Path) -> None:
    trex = read_gaps(shared_data / "facts" / "trex_probes.jsonl")
    assert len(trex.gaps) == 22_881 and trex.passed_over == 0 and len({g.relation for g in trex.gaps}) == 28
    assert trex.gaps[0].filled("logic") == "Alan Turing works in the field of logic ."
    google = read_gaps(shared_data / "facts" / "google_re_probes.jsonl")
    assert len(google.gaps) + google.passed_over == 5_528 and len(google.gaps) > 5_000
