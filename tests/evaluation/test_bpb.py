from __future__ import annotations

import contextlib
import json
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from unmask.errors import UserError
from unmask.evaluation.base import objective_of, shape_of
from unmask.evaluation.bpb import bits_per_byte, encode
from unmask.evaluation.intervals import ratio
from unmask.evaluation.plans import FORWARD, room
from unmask.evaluation.score import score
from unmask.lm import LM
from unmask.objectives.base import Plan

from .helpers import OBJECTIVES, model_of, stub_of, tokenizer
from .scoring import CASES, without_start, word_starts

TEXTS = ["the cat sat on the mat", "a dog", "the log, the mat, the dog and the cat went on and on", "é", "a"] * 5


@pytest.mark.parametrize("name", ["causal", "prefix", "prefix-encdec"])
def test_bits_per_byte_of_a_stub_are_known(name: str) -> None:
    lm, log_p = stub_of(name)
    r = bits_per_byte(lm, encode(lm, TEXTS))
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
    every = bits_per_byte(lm, text, limit=10**6)
    tokens, size = np.concatenate(tokenizer().encode_batch(TEXTS)), sum(len(t.encode()) for t in TEXTS)
    exact = -log_p[tokens].sum() / np.log(2) / size
    assert every["value"] == pytest.approx(exact, rel=1e-6) and every["label"] == "pseudo bits per byte"
    assert every["counts"]["scored"] == len(tokens) and every["event"].startswith("sum over tokens")
    some = [bits_per_byte(lm, text, limit=60, seed=s) for s in range(20)]
    assert all(r["counts"]["scored"] == 60 for r in some)
    assert "mean over a sample of tokens" in some[0]["event"] and some[0]["limit"] == 60
    assert f"a sample of 60 of {len(tokens)} tokens, its bits a token times tokens / bytes" in some[0]["event"]
    away = [(r["value"] - exact) / r["standard_error"] for r in some]
    assert np.sqrt(np.mean(np.square(away))) < 2 and len({r["value"] for r in some}) > 10
    assert bits_per_byte(lm, text, limit=60, seed=3) == some[3]


def test_the_floor_uses_the_training_counts() -> None:
    lm, _ = stub_of("causal")
    text, v = encode(lm, TEXTS), tokenizer().vocabulary
    counts = np.bincount(text.tokens, minlength=v.size)
    r = bits_per_byte(lm, text, counts)
    p = (counts + 1) / (counts[v.ordinary].sum() + len(v.ordinary))
    assert r["unigram_floor"] == pytest.approx(-np.log(p[text.tokens]).mean())


def test_few_documents_vary_by_pieces() -> None:
    lm = model_of("causal")
    one = bits_per_byte(lm, encode(lm, [" ".join(TEXTS)]))
    assert one["interval_over"] == "pieces" and one["interval"][0] < one["value"] < one["interval"][1]
    single = bits_per_byte(lm, encode(lm, ["a"]))
    assert single["interval"] is None and single["value"] > 0


@pytest.mark.parametrize("documents", [TEXTS * 8, [" ".join(TEXTS * 20)]], ids=["many", "one"])
def test_a_limit_draws_pieces(documents: list[str]) -> None:
    lm = model_of("causal")
    text = encode(lm, documents)
    whole, some = bits_per_byte(lm, text), bits_per_byte(lm, text, limit=40)
    assert some["counts"]["scored"] < whole["counts"]["scored"]
    assert some["interval_over"] == ("documents" if len(documents) > 20 else "pieces")
    assert some["limit"] == 40 and "a sample of 40 of " in some["event"] and "sample" not in whole["event"]
    assert some["counts"]["tokens"] == whole["counts"]["tokens"]
    assert abs(some["value"] - whole["value"]) < 4 * some["standard_error"]
    assert bits_per_byte(lm, text, limit=10**6) == {**whole, "limit": 10**6}


@pytest.mark.parametrize("name", ["causal", "masked"])
def test_a_sample_of_documents_varies_by_documents(name: str) -> None:
    """Documents that agree within and differ from each other: their pieces do not vary by themselves."""
    lm, log_p = stub_of(name)
    cheap, dear = (chr(97 + int(f(log_p[tokenizer().encode("abcdefghij")]))) for f in (np.argmax, np.argmin))
    text = encode(lm, [(cheap if k % 2 else dear) * 300 for k in range(24)])
    r = bits_per_byte(lm, text, limit=200)
    assert r["interval_over"] == "documents"
    windows, tokens = 300 / (31 if name == "causal" else 30), r["counts"]["scored"]
    units = tokens if name == "masked" else 200
    assert units > 24 * 2 and windows > 9
    spread = abs(float(np.diff(log_p[tokenizer().encode(cheap + dear)])[0])) / np.log(2) / 2
    assert r["standard_error"] > 0.8 * spread / np.sqrt(24)  # by pieces: / sqrt(200)
    few = bits_per_byte(lm, encode(lm, [cheap * 300, dear * 300]), limit=8)
    assert few["interval_over"] == "pieces"


@pytest.mark.parametrize(("name", "plan"), CASES)
def test_bits_agree_with_scores_under_every_plan(name: str, plan: Plan) -> None:
    lm = model_of(name)
    r = bits_per_byte(lm, encode(lm, TEXTS[:5]), limit=10**6, plan=plan)
    scores = score(lm, TEXTS[:5], plan=plan, end=plan == "left_to_right")
    total = -sum(s.logprob for s in scores) / np.log(2) / sum(s.bytes for s in scores)
    assert r["value"] == pytest.approx(total, rel=1e-5)
    assert (r["plan"], r["start"], r["stride"]) == (plan, scores[0].start, None)
    assert r["label"] == ("bits per byte" if plan in FORWARD else "pseudo bits per byte")
    assert r["counts"]["scored"] == sum(s.tokens for s in scores)


# ---------------------------------------------------------------- rolling windows


class ByHand:
    """log p of each token of one document, in a loop over tokens that finds the token's window by its rule."""

    def __init__(self, lm: LM, plan: Plan, stride: int) -> None:
        self.lm, self.plan, self.stride = lm, plan, stride
        self.shape = shape_of(lm)
        self.room = room(objective_of(lm), self.shape, plan)

    def __call__(self, ids: list[int]) -> list[float]:
        one = self.forward if self.plan in FORWARD else self.infill if self.plan == "infill" else self.masked
        return [one(ids, i) for i in range(len(ids))]

    def log_p(self, row: list[int], place: int, token: int, **more: Any) -> float:
        return float(self.lm.logits([row], **more)[0, place].double().log_softmax(-1)[token])

    def forward(self, ids: list[int], i: int) -> float:
        v, n = self.lm.vocabulary, len(ids)
        k = 0 if i < self.room else (i - self.room) // self.stride + 1  # the window that scores token i
        end = min(self.room + k * self.stride, n)
        first = 0 if k == 0 else self.room + (k - 1) * self.stride
        two = self.shape.source
        begin = max(0, first - two + 2 * (self.plan == "decoder")) if two else max(0, end - self.room)
        source, target = ids[begin:first], ids[first:i]
        assert two or len(source) >= min(first, self.room - self.stride)
        if self.plan == "decoder":
            source, target = [*source, v.sentinels[0], v.need("eos")], [v.sentinels[0], *target]
        if two:
            empty = {} if source else {"attention_mask": [[0]]}
            return self.log_p(source or [0], -1, ids[i], decoder_input_ids=[[v.bos, *target]], **empty)
        prefix = {"prefix_length": len(source) + 1} if self.lm.config.visibility == "prefix" else {}
        return self.log_p([v.need("bos"), *source, *target], -1, ids[i], **prefix)

    def around(self, ids: list[int], i: int) -> tuple[list[int], int]:
        """The window that has token i in its middle, and its place there."""
        begin = 0
        while begin + self.room < len(ids) and i >= begin + (self.room - self.stride) // 2 + self.stride:
            begin += self.stride
        begin = max(0, min(begin, len(ids) - self.room))
        assert i - begin >= min(i, (self.room - self.stride) // 2)
        return list(ids[begin : begin + self.room]), i - begin

    def infill(self, ids: list[int], i: int) -> float:
        v = self.lm.vocabulary
        row, place = self.around(ids, i)
        row[place] = zero = int(v.sentinels[0])
        row.append(v.need("eos"))
        if self.shape.source:
            return self.log_p(row, -1, ids[i], decoder_input_ids=[[v.bos, zero]])
        return self.log_p([v.need("bos"), *row, zero], -1, ids[i], prefix_length=len(row) + 1)

    def masked(self, ids: list[int], i: int) -> float:
        v = self.lm.vocabulary
        row, place = self.around(ids, i)
        word = word_starts(tokenizer().decode(ids))
        for j in range(place, len(row)):
            if j > place and (self.plan == "pseudo" or word[i + j - place]):
                break
            row[j] = v.need("mask")
        return self.log_p([v.need("cls"), *row, v.need("sep")], place + 1, ids[i])


LONG = "the cat sat on the mat, the dog on a log: and so on"


@pytest.mark.parametrize("stride", [3, 5, 9])
@pytest.mark.parametrize(("name", "plan"), CASES)
def test_rolling_windows_equal_a_loop_by_hand(name: str, plan: Plan, stride: int) -> None:
    lm = model_of(name, context=16 if name != "spans" else 40)
    longest = room(OBJECTIVES[name], shape_of(lm), plan)
    documents = [LONG, LONG[:longest], "a", LONG[: longest + 1]]
    r = bits_per_byte(lm, encode(lm, documents), limit=10**6, plan=plan, stride=stride)
    ids = [tokenizer().encode(d).tolist() for d in documents]
    tokens, nats = sum(map(len, ids)), -sum(sum(ByHand(lm, plan, stride)(d)) for d in ids)
    assert r["loss"] == pytest.approx(nats / tokens, rel=1e-5)
    if plan == "left_to_right":
        assert r["counts"]["scored"] == tokens + len(documents)
    else:  # a byte is a token, and nothing else is scored
        assert r["value"] == pytest.approx(nats / np.log(2) / tokens, rel=1e-5) and r["counts"]["scored"] == tokens
    assert f"windows of {longest} tokens with stride {stride}" in r["event"] and r["stride"] == stride


@pytest.mark.parametrize(("name", "plan"), CASES)
def test_rolling_windows_of_a_stub_give_the_known_sum(name: str, plan: Plan) -> None:
    lm, log_p = stub_of(name, max_position=40 if name == "spans" else 24)
    text = encode(lm, [LONG, LONG[:20], "a"])
    tokens = np.concatenate(tokenizer().encode_batch([LONG, LONG[:20], "a"]))
    for stride in (None, 1, 4):
        r = bits_per_byte(lm, text, limit=10**6, plan=plan, stride=stride)
        assert r["loss"] == pytest.approx(-log_p[tokens].mean(), rel=1e-6)
        assert r["counts"]["scored"] == len(tokens) + (3 if plan == "left_to_right" else 0)
        some = bits_per_byte(lm, text, limit=10, plan=plan, stride=stride)
        assert plan in FORWARD or some["counts"]["scored"] == 10


def test_windows_without_a_start_token() -> None:
    lm = without_start(model_of("causal", context=16))
    text = encode(lm, [LONG])
    r = [bits_per_byte(lm, text, stride=s) for s in (None, 14, 4)]
    assert [x["counts"]["scored"] for x in r] == [len(LONG) - 1 + 1] * 3  # the first token is not, the end is
    assert len({x["value"] for x in r}) == 3 and all(x["start"] is None for x in r)
    assert "given the last token of the one before" in r[0]["event"]
    assert "windows of 15 tokens with stride 4" in r[2]["event"]
    assert [x["counts"]["bytes"] for x in r] == [len(LONG) - 1] * 3  # nor are its bytes counted
    one = bits_per_byte(lm, encode(lm, ["a"]))
    assert one["counts"]["scored"] == 1 and one["loss"] is None  # the end alone
    ids, v = tokenizer().encode(LONG).tolist(), lm.vocabulary
    each = []
    for i in range(1, len(ids)):
        k = 0 if i < 15 else (i - 15) // 4 + 1
        begin = max(0, min(15 + 4 * k, len(ids)) - 15)
        each.append(float(lm.logits([ids[begin:i]])[0, -1].double().log_softmax(-1)[ids[i]]))
    assert r[2]["loss"] == pytest.approx(-np.mean(each), rel=1e-5) and v.bos is None


@pytest.mark.parametrize("kind", ["byte", "bbpe", "wordpiece"])
def test_bits_without_a_start_token_are_per_byte_of_what_is_scored(kind: str) -> None:
    lm = without_start(model_of("causal", kind))
    texts = ["the cat sat on the mat", "dog", "a", "on a"]
    text = encode(lm, texts)
    scores = score(lm, texts, end=True)
    r = bits_per_byte(lm, text)
    assert r["counts"]["scored"] == sum(s.tokens for s in scores)
    assert r["counts"]["bytes"] == sum(s.bytes for s in scores)
    total = -sum(s.logprob for s in scores) / np.log(2)
    assert r["value"] == pytest.approx(total / r["counts"]["bytes"], rel=1e-5)
    first = len(tokenizer(kind).decode(tokenizer(kind).encode(texts[0])[:1]))
    assert scores[0].bytes == len(texts[0]) - first > 0


def test_an_event_says_nothing_of_windows_where_every_document_fits() -> None:
    lm = model_of("causal")
    short, rolling = (bits_per_byte(lm, encode(lm, ["a cat", "a"]), stride=s) for s in (None, 4))
    assert short["event"] == rolling["event"] and short["value"] == rolling["value"]


def test_a_stride_beyond_the_room_is_refused() -> None:
    lm = model_of("causal", context=16)
    text = encode(lm, [LONG])
    for wrong in (0, 16, -2):
        with pytest.raises(UserError, match=f"stride={wrong} does not fit: .* so give 1 to 15"):
            bits_per_byte(lm, text, stride=wrong)
    assert bits_per_byte(lm, text, stride=15)["value"] > 0
    with pytest.raises(UserError, match="so give 1 to 14"):
        bits_per_byte(without_start(lm), text, stride=15)


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("name", ["causal", "masked"])
def test_f23_memory_does_not_grow_with_the_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.evaluation.bpb.PART", 2000)
    monkeypatch.setattr("unmask.evaluation.intervals.RESAMPLES", 2)  # its blocks are bounded too, but larger
    lm = model_of(name)
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(["the", "cat", "sat", "dog"], 10)) for _ in range(1000)]
    above = {}
    for number in (200, 1000):
        text = encode(lm, texts[:number])
        tracemalloc.start()
        bits_per_byte(lm, text, limit=number)
        above[number] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert above[1000] - above[200] < 800 * 200  # bytes: a few numbers a document; the ids of one take as much


def test_part_and_order_of_documents_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = model_of("causal", context=16)
    whole = bits_per_byte(lm, encode(lm, TEXTS), stride=4)
    monkeypatch.setattr("unmask.evaluation.bpb.PART", 20)
    parts = bits_per_byte(lm, encode(lm, TEXTS), stride=4)
    turned = bits_per_byte(lm, encode(lm, TEXTS[::-1]), stride=4)
    for r in (parts, turned):
        assert r["value"] == pytest.approx(whole["value"], rel=1e-6) and r["counts"] == whole["counts"]
    assert parts["interval"] == pytest.approx(whole["interval"], rel=1e-6)
    seen: list[int] = []

    @contextlib.contextmanager
    def watch(what: str, total: int) -> Iterator[Callable[[int], None]]:
        seen.append(-total)
        yield seen.append

    bits_per_byte(lm, encode(lm, TEXTS), watch=watch)
    assert sum(seen) == 0 and len(seen) > 5


def test_bad_input_is_said() -> None:
    lm = model_of("causal")
    for wrong in (float("nan"), float("inf")):
        broken = model_of("causal")
        next(broken.network.parameters()).data.fill_(wrong)
        with pytest.raises(UserError, match="are not finite numbers"):
            bits_per_byte(broken, encode(broken, TEXTS))
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
