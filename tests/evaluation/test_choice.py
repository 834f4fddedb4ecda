from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unmask.errors import UserError
from unmask.evaluation import items
from unmask.evaluation.choice import Question, multiple_choice, read_choice
from unmask.evaluation.items import Options
from unmask.evaluation.score import score

from .helpers import OBJECTIVES, Stub, model_of, stub_of, tokenizer
from .scoring import accentless, without_start

LETTERS = tuple(
    Question(f"the cat sat on the\na. mat\nc. log\nd. dog\ne. {end}\nand on the:", (" a", " c", " d", " e"), label)
    for end, label in (("cat", 0), ("hat", 1), ("rat", 3))
)
WORDS = (
    Question("the cat sat", (" on the mat", " on", " and the dog sat on the log"), 0),
    Question("a dog", (" sat on", " and a cat"), 1),
    Question("the dog and", (" the cat", " a log", " on", " sat"), 2),
)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_three_readings_of_a_stub_are_known(name: str) -> None:
    lm, log_p = stub_of(name, max_position=96)
    r = multiple_choice(lm, WORDS, Options())
    hits: dict[str, list[bool]] = {"sum": [], "mean": [], "bytes": []}
    for q in WORDS:
        total = np.array([log_p[tokenizer().encode(c)].sum() for c in q.choices])
        tokens = np.array([len(tokenizer().encode(c)) for c in q.choices])
        size = np.array([len(c.encode()) for c in q.choices])
        for reading, values in (("sum", total), ("mean", total / tokens), ("bytes", total / size)):
            hits[reading].append(int(values.argmax()) == q.label)
    shown = {row["reading"]: row["value"] for row in r["readings"]}
    assert shown == {k: pytest.approx(100 * np.mean(v)) for k, v in hits.items()}
    assert r["value"] == shown["sum"]
    assert r["chance"] == pytest.approx(100 * (1 / 3 + 1 / 2 + 1 / 4) / 3) and r["majority_label"] == pytest.approx(
        100 / 3
    )
    assert r["plan"] == OBJECTIVES[name].plan and "context" in r["event"]
    assert r["counts"]["questions"] == 3 and r["counts"]["choices"] == 9 and r["warnings"] == []
    json.dumps(r, allow_nan=False)


def test_the_readings_differ_where_lengths_do() -> None:
    """Every token costs the same: the sum prefers few tokens, the mean none, bytes many bytes a token."""
    lm, _ = stub_of("causal", "bbpe", max_position=64)
    network: Any = Stub(torch.zeros(lm.config.vocab_size), lm.config)
    lm = replace(lm, network=network)
    words = tokenizer("bbpe")
    short, long = " xyz", " the cat"  # three bytes a token at most, against whole words
    assert len(words.encode(short)) > len(words.encode(long)) == 2
    r = multiple_choice(lm, (Question("a", (short, long), 1),), Options())
    assert {row["reading"]: row["value"] for row in r["readings"]} == {"sum": 100.0, "mean": 50.0, "bytes": 100.0}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_neither_order_nor_batches_matter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = model_of(name, max_position=96)
    whole = multiple_choice(lm, WORDS, Options())
    turned = tuple(replace(q, choices=q.choices[::-1], label=len(q.choices) - 1 - q.label) for q in WORDS[::-1])
    assert multiple_choice(lm, turned, Options())["readings"] == whole["readings"]
    monkeypatch.setattr(items, "PART", 2)
    assert multiple_choice(lm, WORDS, Options()) == whole


@pytest.mark.parametrize("kind", ["byte", "bbpe", "wordpiece"])
def test_f20_answers_are_scored_as_one_string_with_their_context(kind: str) -> None:
    """Four letters with three kinds of tokenizer: an answer's score is log p(context + answer) − log p(context)."""
    lm = model_of("causal", kind, max_position=128)
    r = multiple_choice(lm, LETTERS, Options())
    assert r["counts"]["merged_seams"] == 0 and r["warnings"] == []
    right = []
    for q in LETTERS:
        both, before = score(lm, [q.context + c for c in q.choices]), score(lm, q.context)[0]
        own = score(lm, q.choices, q.context)
        for a, b in zip(own, both, strict=True):
            assert a.logprob == pytest.approx(b.logprob - before.logprob, rel=1e-4, abs=1e-4) and not a.merged
        right.append(int(np.argmax([s.logprob for s in own])) == q.label)
    assert r["value"] == pytest.approx(100 * np.mean(right))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_f20_a_merged_seam_is_warned_of_and_moved_for_every_answer_alike(name: str) -> None:
    """The context ends with a blank that one answer's token takes in: all are scored from that blank on."""
    lm = model_of(name, "bbpe", max_position=96)
    moved = Question("a dog and the ", ("cat", "xyz"), 0)
    r = multiple_choice(lm, (moved,), Options())
    assert r["counts"]["merged_seams"] == 1 and "spans the seam" in r["warnings"][0]
    assert len(r["warnings"]) == 1 and "seam" not in r["event"] and "other_events" not in r
    plain = multiple_choice(lm, (Question("a dog and the", (" cat", " xyz"), 0),), Options())
    assert {row["reading"]: row["value"] for row in r["readings"]} == {
        row["reading"]: row["value"] for row in plain["readings"]
    }
    assert r["counts"]["scored_tokens"] == plain["counts"]["scored_tokens"]


def test_equal_ids_that_cover_more_characters_are_a_merged_seam() -> None:
    """A whole-word [UNK] swallows the answer without a change of ids: both answers start where it does."""
    lm = model_of("causal", "wordpiece", max_position=64)
    r = multiple_choice(lm, (Question("the x", ("x", " cat"), 0), Question("the cat", (" sat", " on"), 0)), Options())
    assert r["counts"]["merged_seams"] == 1 and r["counts"]["unscorable"] == 0
    assert r["counts"]["scored_tokens"] == 1 + 2 + 2 and r["counts"]["texts_with_unknown_tokens"] == 2


@pytest.mark.parametrize("name", ["causal", "masked"])
def test_an_answer_of_which_nothing_is_scored_does_not_win(name: str) -> None:
    """A lone accent is dropped by the normaliser; a first token without a start token has nothing to be given."""
    lm = accentless(model_of(name, "wordpiece", max_position=64))
    good = Question("the cat", (" sat", " on"), 0)
    r = multiple_choice(lm, (good, Question("the cat", (" \u0301", " on"), 0)), Options())
    assert (r["counts"]["questions"], r["counts"]["unscorable"]) == (2, 1) and "left out" in r["warnings"][0]
    assert r["readings"] == multiple_choice(lm, (good,), Options())["readings"]
    moved = Question("the x", ("\u0301", "x"), 0)  # the second is one unknown word with the end of the context
    r = multiple_choice(lm, (good, moved), Options())
    assert r["counts"]["unscorable"] == 1 and r["counts"]["merged_seams"] == 1
    first = (Question("", ("a", "b"), 0),)
    none = multiple_choice(without_start(model_of("causal")), first, Options())
    assert none["value"] is None and none["counts"]["unscorable"] == 1 and none["chance"] is None
    json.dumps(none, allow_nan=False)


def test_one_long_answer_leaves_half_of_the_room_to_the_context() -> None:
    lm = model_of("causal", context=32)
    context = "the cat sat on the mat and the dog sat on the log"
    longest = lm.context - 1
    kept = items.shortened(lm, None, context, (" a", " and the dog" * 9))
    assert len(kept) == longest // 2 and context.endswith(kept)
    fits = " and the dog"
    assert len(items.shortened(lm, None, context, (" a", fits))) == longest - len(fits)
    r = multiple_choice(lm, (Question(context, (" a", " and the dog" * 9), 0),), Options())
    assert r["counts"]["shortened_contexts"] == 1 and "all of it" not in r["warnings"][0]


def test_words_that_meet_without_a_blank_are_warned_of() -> None:
    r = multiple_choice(model_of("causal"), (Question("the cat", ("sat", "is"), 0), WORDS[1]), Options())
    assert any("without a blank" in w for w in r["warnings"])
    chinese = multiple_choice(model_of("causal"), (Question("猫", ("狗", "鱼"), 0),), Options())
    assert chinese["warnings"] == []


@pytest.mark.parametrize("name", ["masked", "causal", "spans"])
def test_f22_a_pair_task_on_models_with_and_without_segments(name: str) -> None:
    """Nothing is to be set: without segment ids context and answer are of type 0 where a model has types.

    So one whose row of type 0 is zero answers as one without types that has its other weights, whatever row 1 holds.
    """
    two, none = (model_of(name, max_position=96, token_types=types) for types in (2, 0))
    tables = {k: v for k, v in two.network.state_dict().items() if k.endswith("token_types.weight")}
    assert tables and all(v.shape[0] == 2 for v in tables.values())
    none.network.load_state_dict({k: v for k, v in two.network.state_dict().items() if k not in tables})
    contexts, answers = zip(*[(q.context, c) for q in WORDS for c in q.choices], strict=True)
    before = score(two, answers, contexts)
    for table in tables.values():
        table[0], table[1] = 0.0, 1e6
    after, without = score(two, answers, contexts), score(none, answers, contexts)
    assert [s.logprob for s in after] == pytest.approx([s.logprob for s in without], rel=1e-5)
    assert [s.logprob for s in after] != pytest.approx([s.logprob for s in before], rel=1e-3)
    r = multiple_choice(two, WORDS, Options())
    assert r == multiple_choice(none, WORDS, Options()) and r["counts"]["scored_tokens"] > 0


@pytest.mark.parametrize("name", OBJECTIVES)
def test_long_contexts_lose_their_beginning_for_all_answers_alike(name: str) -> None:
    lm = model_of(name, context=32)
    context = "the cat sat on the mat and the dog sat on the log and on the mat and"
    q = Question(context, (" the", " a dog"), 1)
    r = multiple_choice(lm, (q,), Options())
    assert r["counts"]["shortened_contexts"] == 1 and "lost their beginning" in r["warnings"][0]
    assert "cut into" not in r["event"] and "other_events" not in r
    kept = items.shortened(lm, None, context, q.choices)
    assert context.endswith(kept) and 0 < len(kept) < len(context)
    one_less = items.shortened(lm, None, context[-len(kept) - 1 :], q.choices)
    assert one_less == kept  # as much as there is room for
    assert r["value"] == multiple_choice(lm, (replace(q, context=kept),), Options())["value"]


def test_an_empty_context_is_none() -> None:
    for name in OBJECTIVES:
        r = multiple_choice(model_of(name), (Question("", ("the cat", "a dog"), 0),), Options())
        assert r["counts"]["merged_seams"] == 0 and r["counts"]["scored_tokens"] == 12
        assert "context" not in r["event"]


def test_a_limit_draws_questions() -> None:
    r = multiple_choice(model_of("causal", max_position=128), LETTERS, Options(limit=2))
    assert r["counts"]["questions"] == 2


# ---------------------------------------------------------------- files


def write(place: Path, *items: dict[str, Any]) -> Path:
    place.write_text("".join(json.dumps(i) + "\n" for i in items))
    return place


def test_questions_are_read(tmp_path: Path) -> None:
    file = write(
        tmp_path / "q.jsonl",
        {"context": "a", "choices": [" b", " c"], "label": 1},
        {"context": "", "choices": ["x", "y", "z"], "label": 0},
    )
    assert read_choice(file) == (Question("a", (" b", " c"), 1), Question("", ("x", "y", "z"), 0))
    assert read_choice(tmp_path) == read_choice(file)


BAD = {
    "label": ({"context": "a", "choices": ["b", "c"], "label": 2}, "'label' must be the number .* 0 to 1, not 2"),
    "true": ({"context": "a", "choices": ["b", "c"], "label": True}, "not true"),
    "text": ({"context": "a", "choices": ["b", "c"], "label": "0"}, '0 to 1, not "0"'),
    "one": ({"context": "a", "choices": ["b"], "label": 0}, "at least 2 texts"),
    "empty": ({"context": "a", "choices": ["b", ""], "label": 0}, "must be a list of texts that are not empty"),
    "context": ({"choices": ["b", "c"], "label": 0}, "has no 'context'"),
    "choices": ({"context": "a", "label": 0}, "'choices' must be a list of texts"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_questions_are_named(case: str, tmp_path: Path) -> None:
    item, says = BAD[case]
    with pytest.raises(UserError, match=rf"q\.jsonl:1.*{says}"):
        read_choice(write(tmp_path / "q.jsonl", item))
