from __future__ import annotations

import json

import numpy as np
import pytest

from unmask.errors import UserError
from unmask.evaluate.intervals import ratio
from unmask.evaluate.suites import encode, evaluate

from .helpers import OBJECTIVES, model_of, stub_of, tokenizer

TEXTS = ["the cat sat on the mat", "a dog", "the log, the mat, the dog and the cat went on and on", "é", "a"] * 5


@pytest.mark.parametrize("name", ["causal", "prefix", "prefix-encdec"])
def test_bits_per_byte_of_a_stub_are_known(name: str) -> None:
    lm, log_p = stub_of(name)
    r = evaluate(lm, "bpb", encode(lm, TEXTS))
    tokens, size = np.concatenate(tokenizer().encode_batch(TEXTS)), sum(len(t.encode()) for t in TEXTS)
    nll = -log_p[tokens].sum() - len(TEXTS) * log_p[tokenizer().vocabulary.need("eos")]
    assert r["value"] == pytest.approx(nll / np.log(2) / size, rel=1e-6)
    assert r["label"] == "bits per byte" and "[EOS]" in r["event"] and "cut into pieces" in r["event"]
    assert r["counts"] == {
        "documents": len(TEXTS), "tokens": len(tokens), "bytes": size, "scored": len(tokens) + len(TEXTS)
    }  # fmt: skip
    assert r["loss"] == pytest.approx(-log_p[tokens].mean(), rel=1e-6)
    assert r["interval"][0] < r["value"] < r["interval"][1] and r["interval_over"] == "documents"
    assert r["unigram_floor"] is None
    json.dumps(r, allow_nan=False)


@pytest.mark.parametrize("name", ["masked", "spans", "spans-prefix"])
def test_pseudo_bits_per_byte_are_labelled_and_come_with_their_error(name: str) -> None:
    lm, log_p = stub_of(name)
    text = encode(lm, TEXTS)
    every = evaluate(lm, "bpb", text, limit=10**6)
    tokens, size = np.concatenate(tokenizer().encode_batch(TEXTS)), sum(len(t.encode()) for t in TEXTS)
    exact = -log_p[tokens].sum() / np.log(2) / size
    assert every["value"] == pytest.approx(exact, rel=1e-6) and every["label"] == "pseudo bits per byte"
    assert every["counts"]["scored"] == len(tokens) and "mean over a sample" in every["event"]
    some = [evaluate(lm, "bpb", text, limit=60, seed=s) for s in range(20)]
    assert all(r["counts"]["scored"] == 60 for r in some)
    away = [(r["value"] - exact) / r["standard_error"] for r in some]
    assert np.sqrt(np.mean(np.square(away))) < 2 and len({r["value"] for r in some}) > 10
    assert evaluate(lm, "bpb", text, limit=60, seed=3) == some[3]


def test_the_floor_uses_the_training_counts() -> None:
    lm, _ = stub_of("causal")
    text, v = encode(lm, TEXTS), tokenizer().vocabulary
    counts = np.bincount(text.tokens, minlength=v.size)
    r = evaluate(lm, "bpb", text, counts)
    p = (counts + 1) / (counts[v.ordinary].sum() + len(v.ordinary))
    assert r["unigram_floor"] == pytest.approx(-np.log(p[text.tokens]).mean())


def test_few_documents_vary_by_pieces() -> None:
    lm = model_of("causal")
    one = evaluate(lm, "bpb", encode(lm, [" ".join(TEXTS)]))
    assert one["interval_over"] == "pieces" and one["interval"][0] < one["value"] < one["interval"][1]
    single = evaluate(lm, "bpb", encode(lm, ["a"]))
    assert single["interval"] is None and single["value"] > 0


@pytest.mark.parametrize("documents", [TEXTS * 8, [" ".join(TEXTS * 20)]], ids=["many", "one"])
def test_a_limit_draws_pieces(documents: list[str]) -> None:
    lm = model_of("causal")
    text = encode(lm, documents)
    whole, some = evaluate(lm, "bpb", text), evaluate(lm, "bpb", text, limit=40)
    assert some["counts"]["scored"] < whole["counts"]["scored"] and some["interval_over"] == "pieces"
    assert some["counts"]["tokens"] == whole["counts"]["tokens"]
    assert abs(some["value"] - whole["value"]) < 4 * some["standard_error"]
    assert evaluate(lm, "bpb", text, limit=10**6) == whole


@pytest.mark.parametrize("name", OBJECTIVES)
def test_suites_agree_with_scores(name: str) -> None:
    lm = model_of(name)
    end = OBJECTIVES[name].plan == "left_to_right"
    r = evaluate(lm, "bpb", encode(lm, TEXTS[:5]), limit=10**6)
    scores = lm.score(TEXTS[:5], end=end)
    total = -sum(s.logprob for s in scores) / np.log(2) / sum(s.bytes for s in scores)
    assert r["value"] == pytest.approx(total, rel=1e-5)


def test_bad_input_is_said() -> None:
    lm = model_of("causal")
    with pytest.raises(UserError, match=r"no suite 'bbp' .*; did you mean 'bpb'"):
        evaluate(lm, "bbp", encode(lm, ["a"]))
    with pytest.raises(UserError, match="limit=0 must be at least 1"):
        evaluate(lm, "bpb", encode(lm, ["a"]), limit=0)
    with pytest.raises(UserError, match="is empty"):
        encode(lm, ["", ""])


def test_ratios_cover_the_truth_and_report_a_linearised_error() -> None:
    random = np.random.default_rng(0)
    inside, errors, values = 0, [], []
    for trial in range(60):
        d = random.integers(1, 20, 80)
        n = d * 2.0 + random.normal(0, 3, 80)
        r = ratio(n, d, seed=trial)
        assert r.interval is not None and r.error is not None
        inside += r.interval[0] <= 2 <= r.interval[1]
        errors.append(r.error)
        values.append(r.value)
    assert inside >= 50
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.3)
    assert ratio(np.ones(1), np.ones(1)).interval is None
