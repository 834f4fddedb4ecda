from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unmask.errors import UserError
from unmask.evaluation import items
from unmask.evaluation.intervals import macro
from unmask.evaluation.items import Options
from unmask.evaluation.pairs import PairSet, PairSets, minimal_pairs, preferred, read_pairs
from unmask.lm import LM

from .helpers import OBJECTIVES, Stub, model_of, stub_of, tokenizer
from .scoring import accentless

WORDS = ("the", "cat", "dog", "sat", "mat", "log", "on", "and")


def sentences(n: int, words: int = 4, seed: int = 0) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, words)) for _ in range(n)]


def swapped(n: int, seed: int = 0) -> tuple[tuple[str, str], ...]:
    """Pairs of the same bytes in another order, so of equal length."""
    out = []
    for text in sentences(2 * n, 3, seed):
        first, second, *rest = text.split()
        other = " ".join([second, first, *rest])
        out += [(text, other)] if other != text else []
    return tuple(out[:n])


def constant(name: str) -> LM:
    """Every token has the same probability everywhere."""
    lm, _ = stub_of(name)
    network: Any = Stub(torch.zeros(lm.config.vocab_size), lm.config)
    return replace(lm, network=network)


def one(pairs: tuple[tuple[str, str], ...], name: str = "a") -> PairSets:
    return PairSets((PairSet(name, pairs),))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_constant_model_scores_exactly_half_on_pairs_of_equal_length(name: str) -> None:
    r = minimal_pairs(constant(name), one(swapped(40)), Options())
    assert r["value"] == 50.0 and r["length_baseline"] == 50.0
    assert r["interval"] is None and r["standard_error"] is None  # they are all alike: no spread is known
    assert r["counts"]["ties"] == 40 and r["counts"]["identical"] == 0


@pytest.mark.parametrize("name", ["causal", "masked"])
def test_a_constant_model_prefers_what_is_shorter(name: str) -> None:
    pairs = (("a cat", "a dog sat"), ("the cat sat", "a cat"), ("cat", "dog"))
    r = minimal_pairs(constant(name), one(pairs), Options())
    assert r["value"] == r["length_baseline"] == 50.0 and r["sets"][0]["ties"] == 1
    r = minimal_pairs(constant(name), one(pairs[:1]), Options())
    assert r["value"] == r["length_baseline"] == 100.0 and r["interval"] is None


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_stub_prefers_what_its_known_sums_say(name: str) -> None:
    lm, log_p = stub_of(name, max_position=64)
    texts = sentences(40, seed=1)
    pairs = tuple(zip(texts[::2], texts[1::2], strict=True))
    known = [tuple(log_p[tokenizer().encode(t)].sum() for t in pair) for pair in pairs]
    length = [tuple(len(tokenizer().encode(t)) for t in pair) for pair in pairs]
    r = minimal_pairs(lm, one(pairs), Options())
    assert r["value"] == pytest.approx(100 * np.mean([a > b for a, b in known]))
    shorter = np.mean([0.5 if a == b else float(a < b) for a, b in length])
    assert r["length_baseline"] == pytest.approx(100 * shorter)
    assert r["counts"]["scored_tokens"] == sum(map(sum, length))
    scores = lm.score(list(pairs[0]))
    assert r["plan"] == scores[0].plan and r["event"] == scores[0].event and r["start"] == scores[0].start
    json.dumps(r, allow_nan=False)


def test_ties_count_half_and_identical_pairs_are_shown_apart() -> None:
    lm, log_p = stub_of("causal")
    ids = [tokenizer().encode(c)[0] for c in "ab"]
    good, bad = ("a", "b") if log_p[ids[0]] > log_p[ids[1]] else ("b", "a")
    pairs = ((good, bad), (bad, good), ("ab", "ba"), ("a", "a"), ("cat", "cat"))
    r = minimal_pairs(lm, PairSets((PairSet("mixed", pairs), PairSet("won", ((good, bad),) * 3))), Options())
    assert [row["value"] for row in r["sets"]] == [50.0, 100.0]
    assert r["value"] == 75.0  # the mean over sets, not over pairs
    assert (r["sets"][0]["ties"], r["sets"][0]["identical"], r["sets"][0]["pairs"]) == (1, 2, 5)
    assert r["counts"] | {"scored_tokens": 0} == {
        "sets": 2, "pairs": 8, "ties": 1, "identical": 2, "scored_tokens": 0, "unscorable": 0,
        "texts_with_unknown_tokens": 0,
    }  # fmt: skip


def test_ties_are_within_a_millionth_of_a_nat_a_token() -> None:
    sums = np.array([[-10.0, -10.0 - 0.9e-5], [-10.0, -10.0 - 1.1e-5], [-10.0 - 1.1e-5, -10.0]])
    assert preferred(sums, np.array([[10, 8], [10, 8], [8, 10]])).tolist() == [0.5, 1.0, 0.0]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_neither_batches_nor_the_order_of_pairs_or_candidates_matter(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm, pairs = model_of(name), swapped(12, seed=3)
    whole = minimal_pairs(lm, one(pairs), Options())
    turned = minimal_pairs(lm, one(tuple((b, a) for a, b in pairs)), Options())
    assert turned["value"] == pytest.approx(100 - whole["value"])
    again = minimal_pairs(lm, one(pairs[::-1]), Options())
    assert (again["value"], again["counts"]) == (whole["value"], whole["counts"])
    monkeypatch.setattr(items, "PART", 5)
    assert minimal_pairs(lm, one(pairs), Options()) == whole


def sentence_pairs(n: int) -> tuple[tuple[str, str], ...]:
    """English pairs as BLiMP builds them, of equal bytes: which of the two is called good is a coin's."""
    random = np.random.default_rng(4)
    nouns, verbs = ("cat", "dog", "boy", "cow", "fox", "hen", "man"), ("sees", "hits", "eats", "buys", "owns", "wins")
    out = set()
    while len(out) < n:
        first, second = random.choice(nouns, 2, replace=False)
        verb, kind = random.choice(verbs), int(random.integers(3))
        pair = (
            (f"{first} {verb} the {second}", f"{first} {verb} {second} the"),  # determiners
            (f"{first} that {verb} {second}s", f"{first}s that {verb} {second}"),  # agreement
            (f"who does {first} {verb[:-1]}", f"does who {first} {verb[:-1]}"),  # questions
        )[kind]
        if pair not in out and pair[::-1] not in out:
            out.add(pair if random.random() < 0.5 else pair[::-1])
    return tuple(sorted(out, key=lambda p: p[0] + p[1]))


def test_f21_every_architecture_gives_a_number_and_random_weights_half() -> None:
    """Encoder, decoder, prefix and encoder-decoder models; a second plan where there is one."""
    pairs, named = sentence_pairs(500), set()
    assert all(len(a) == len(b) for a, b in pairs) and sum(a > b for a, b in pairs) not in (0, 500)
    for name, objective in OBJECTIVES.items():
        lm = model_of(name)
        r = minimal_pairs(lm, one(pairs), Options())
        assert abs(r["value"] - 50) <= 5, (name, r["value"])
        assert r["counts"]["ties"] == 0 and r["length_baseline"] == 50.0
        by_hand = lm.score([text for pair in pairs[:8] for text in pair])
        few = minimal_pairs(lm, one(pairs[:8]), Options())
        assert few["value"] == 12.5 * sum(
            a.logprob > b.logprob for a, b in zip(by_hand[::2], by_hand[1::2], strict=True)
        )
        assert r["plan"] == objective.plan
        other: Any = {"pseudo": "pseudo_words", "infill": "decoder"}.get(r["plan"])
        if other is not None:
            short = minimal_pairs(lm, one(pairs[:20]), Options(plan=other))
            assert short["plan"] == other and short["event"] != r["event"]
            named.add(short["event"])
        named.add(r["event"])
    assert len(named) >= 8  # each method says which log-probability it sums


def test_a_limit_draws_pairs_of_each_set_by_key() -> None:
    lm, data = constant("causal"), PairSets((PairSet("a", swapped(30)), PairSet("b", swapped(10, seed=1))))
    r = minimal_pairs(lm, data, Options(limit=12))
    assert [row["pairs"] for row in r["sets"]] == [12, 10]
    drawn = items.sample(30, 12, 0, "a")
    assert len(set(drawn.tolist())) == 12 and (np.diff(drawn) > 0).all()
    assert not np.array_equal(drawn, items.sample(30, 12, 1, "a"))
    assert not np.array_equal(drawn, items.sample(30, 12, 0, "b"))


def test_macro_intervals_cover_the_truth_and_stay_within_sets() -> None:
    random = np.random.default_rng(0)
    inside, errors, values = 0, [], []
    for trial in range(60):
        groups = [(random.random(n) < p).astype(float) for n, p in ((60, 0.9), (200, 0.5), (40, 0.3))]
        whole, each = macro(groups, seed=trial)
        assert whole.interval is not None and whole.value == pytest.approx(np.mean([g.mean() for g in groups]))
        inside += whole.interval[0] <= (0.9 + 0.5 + 0.3) / 3 <= whole.interval[1]
        errors.append(whole.error)
        values.append(whole.value)
        assert [m.units for m in each] == [60, 200, 40]
    assert inside >= 52 and np.mean(errors) == pytest.approx(np.std(values), rel=0.3)
    assert macro([np.array([1.0])])[0].interval is None


def test_a_set_that_is_all_right_or_all_wrong_shows_no_certainty() -> None:
    whole, each = macro([np.ones(5), np.zeros(4), np.array([0.0, 1.0, 1.0])])
    assert [m.interval is None and m.error is None for m in each] == [True, True, False]
    assert whole.interval is not None and whole.interval[0] < whole.value < whole.interval[1]
    assert macro([np.ones(5), np.zeros(4)])[0].interval is None


@pytest.mark.parametrize("name", ["causal", "masked"])
def test_pairs_with_a_sentence_of_no_token_are_left_out_and_counted(name: str) -> None:
    """The normaliser drops a lone accent: nothing of it is scored, which is no log-probability of 0."""
    lm, good = accentless(model_of(name, "wordpiece", max_position=64)), ("the cat sat", "the dog sat")
    r = minimal_pairs(lm, PairSets((PairSet("a", (good, ("a cat", "\u0301"))), PairSet("b", (good,)))), Options())
    assert (r["counts"]["pairs"], r["counts"]["unscorable"]) == (3, 1)
    assert r["value"] == minimal_pairs(lm, one((good,)), Options())["value"]
    assert [row["unscorable"] for row in r["sets"]] == [1, 0]
    nothing = minimal_pairs(lm, PairSets((PairSet("a", (("a cat", "\u0301"),)), PairSet("b", (good,)))), Options())
    assert nothing["sets"][0]["value"] is None and nothing["value"] == r["value"]
    none = minimal_pairs(lm, one((("a cat", "\u0301"),)), Options())
    assert none["value"] is None and none["length_baseline"] is None
    json.dumps(none, allow_nan=False)


def test_sentences_with_unknown_tokens_are_counted() -> None:
    lm = model_of("causal", "wordpiece")
    r = minimal_pairs(lm, one((("the cat", "the 漢"), ("a cat", "a dog"))), Options())
    assert r["counts"]["texts_with_unknown_tokens"] == 1


# ---------------------------------------------------------------- files


def write(place: Path, *items: dict[str, Any] | str) -> Path:
    place.write_text("".join((i if isinstance(i, str) else json.dumps(i)) + "\n" for i in items))
    return place


PAIR = {"sentence_good": "a cat sat", "sentence_bad": "a cat sit", "linguistics_term": "verbs"}


def test_files_and_directories_are_sets(tmp_path: Path) -> None:
    write(tmp_path / "first.jsonl", PAIR, "", PAIR)
    write(tmp_path / "second.jsonl", {"good": "x", "bad": "y"})
    write(tmp_path / "summary.jsonl", {"UID": "overall", "gpt2": 0.8})
    with gzip.open(tmp_path / "third.jsonl.gz", "wt") as file:
        file.write("\ufeff" + json.dumps(PAIR) + "\n")
    (tmp_path / "NOTE.md").write_text("no set")
    data = read_pairs(tmp_path)
    assert [(s.name, len(s.pairs), s.term) for s in data.sets] == [
        ("first", 2, "verbs"), ("second", 1, None), ("third", 1, "verbs")
    ]  # fmt: skip
    assert data.passed_over == ("summary.jsonl",)
    assert read_pairs(tmp_path / "first.jsonl").sets == data.sets[:1]


BAD = {
    "json": (["{"], "bad.jsonl:1 is no line of JSON"),
    "list": (["[1]"], "bad.jsonl:1 holds no JSON object"),
    "key": ([PAIR, {"sentence_good": "x", "sentence_bda": "y"}], r"bad.jsonl:2 has no 'sentence_bad' .*did you mean"),
    "missing": ([PAIR, {"sentence_good": "x"}], r"bad.jsonl:2 has no 'sentence_bad' \(it has: sentence_good\)$"),
    "empty": ([PAIR, {**PAIR, "sentence_bad": " "}], "bad.jsonl:2: 'sentence_bad' must be a text that is not empty"),
    "number": ([{**PAIR, "sentence_good": 3}], "must be a text that is not empty, not 3"),
    "nothing": ([], "holds no pairs"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_lines_are_named_by_file_and_line(case: str, tmp_path: Path) -> None:
    lines, says = BAD[case]
    with pytest.raises(UserError, match=says):
        read_pairs(write(tmp_path / "bad.jsonl", *lines))  # type: ignore[arg-type]


def test_what_is_no_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        read_pairs(tmp_path / "absent.jsonl")
    with pytest.raises(UserError, match=r"holds no \.jsonl or"):
        read_pairs(tmp_path)
    broken = tmp_path / "broken.jsonl.gz"
    broken.write_bytes(b"no gzip")
    with pytest.raises(UserError, match=r"cannot read .*broken"):
        read_pairs(broken)


@pytest.mark.shared
def test_blimp_is_read_whole_with_its_identical_pairs(shared_data: Path) -> None:
    data = read_pairs(shared_data / "blimp")
    assert len(data.sets) == 67 and {len(s.pairs) for s in data.sets} == {1000}
    assert data.passed_over == ("models_summary.jsonl",)
    same = {s.name: sum(a == b for a, b in s.pairs) for s in data.sets}
    assert {k: v for k, v in same.items() if v} == {"passive_1": 2, "principle_A_case_2": 5}
    r = minimal_pairs(model_of("causal", max_position=256), data, Options(limit=4))
    assert len(r["sets"]) == 67 and len(r["terms"]) == 13 and r["counts"]["pairs"] == 268
