"""Runs on texts with targets: alone, beside span corruption, resumed, evaluated, and refused before text is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unmask.config import SourceConfig
from unmask.description import describe
from unmask.errors import UserError
from unmask.loading import load
from unmask.run import evaluate, prepared, pretrain, resume_run, stored_recipe, training_loader

TINY: dict[str, Any] = {
    "tokenizer.type": "byte",
    "model.hidden_size": 16,
    "model.num_layers": 1,
    "model.num_source_layers": 1,
    "model.num_heads": 2,
    "context": 32,
    "train.batch_size": 4,
    "evaluation.pieces": 24,
    "budget.steps": 2,
}
PAIRS: dict[str, Any] = {"objective.type": "pairs", "objective.max_target": 16}
MIXED: dict[str, Any] = {
    "objective.type": "mixture",
    "objective.parts": {"pairs": {"type": "pairs", "max_target": 16}, "spans": {"type": "span_corruption"}},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [{"text": f"what is {i} and {i}?", "answer": f"{i + i}"} for i in range(80)]
    Path("sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    Path("plain.jsonl").write_text("\n".join(json.dumps({"text": f"line {i} of plain text"}) for i in range(60)))
    return tmp_path


def test_pairs_train_alone_and_are_measured_on_held_out_targets(folder: Path) -> None:
    run = pretrain("encdec-small", out="run", cache="cache", corpus="sums.jsonl", **TINY, **PAIRS,
                   **{"corpus.target": "answer"})  # fmt: skip
    text = prepared(folder / "run")
    assert text.valid.target is not None and text.train.target is not None
    assert run.held_out.content_targets == len(text.valid.target.tokens)  # digits of held-out answers, no others
    counts = np.asarray(text.train.target.counts).astype(np.float64)
    content = ~text.tokenizer.vocabulary.is_special
    share = (counts + 1)[content] / (counts + 1)[content].sum()
    floors = np.zeros(len(counts))
    floors[content] = -np.log(share)
    assert run.held_out.unigram_floor == pytest.approx(floors[np.asarray(text.valid.target.tokens)].mean())
    again = training_loader(stored_recipe(folder / "run"), text)
    (a,), (b,) = training_loader(stored_recipe(folder / "run"), text)(5), again(5)
    assert np.array_equal(a.stream.tokens, b.stream.tokens)
    whole = evaluate("run", cache="cache")
    assert whole["label"] == "bits per byte of targets given sources" and "| source context [EOS]" in whole["event"]
    assert whole["loss"] == pytest.approx(run.held_out.loss, rel=1e-5)  # the same question as in training
    assert whole["unigram_floor"] == pytest.approx(run.held_out.unigram_floor)
    assert whole["counts"]["bytes"] == len(text.valid.target.tokens)  # digits of a byte each
    assert describe("run")
    load("run").export("exported", license="mit", language="en")
    assert " target tokens" in Path("exported/README.md").read_text()


def test_a_text_without_its_source_is_refused_and_with_it_is_what_evaluate_measures(folder: Path) -> None:
    pretrain("encdec-small", out="run", cache="cache", corpus="sums.jsonl", **TINY, **PAIRS,
             **{"corpus.target": "answer"})  # fmt: skip
    lm = load("run", device="cpu")
    for ask in (lambda: lm.score("84"), lambda: lm.score(["84", "2"], ["what is 42 and 42?", ""])):
        with pytest.raises(UserError, match="a text by itself has no probability under it: give its source"):
            ask()
    with pytest.raises(UserError, match=r"writes targets for sources, and plain\.jsonl names none: .*--target KEY"):
        evaluate(lm, "bpb", "plain.jsonl")
    with pytest.raises(UserError, match="drop stride=4"):
        evaluate("run", cache="cache", stride=4)
    rows = [json.loads(line) for line in Path("sums.jsonl").read_text().splitlines()]
    found = lm.score([r["answer"] for r in rows], [r["text"] for r in rows], end=True)
    assert all(not s.merged for s in found)
    bits = -sum(s.logprob for s in found) / np.log(2)
    measured = evaluate("run", "bpb", SourceConfig(path="sums.jsonl", target="answer"), cache="cache")
    assert measured["value"] == pytest.approx(bits / sum(len(r["answer"]) for r in rows), rel=1e-5)
    assert measured["counts"]["pairs"] == 80 and measured["counts"]["scored"] == sum(s.tokens for s in found)
    some = evaluate("run", "bpb", SourceConfig(path="sums.jsonl", target="answer"), limit=7, cache="cache")
    assert some["counts"]["pairs"] == 7


def test_a_source_and_its_target_are_encoded_each_by_itself_and_cut_as_in_training(folder: Path) -> None:
    rows = [{"text": f"what is {i} and {i}?", "answer": f"it is {i + i} " * 6} for i in range(80)]
    Path("long.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run = pretrain("encdec-small", out="long", cache="cache", corpus="long.jsonl", **{**TINY, "context": 20}, **PAIRS,
                   **{"corpus.target": "answer"})  # fmt: skip
    whole = evaluate("long", cache="cache")
    assert whole["loss"] == pytest.approx(run.held_out.loss, rel=1e-5)
    pairs = prepared(folder / "long").valid
    assert pairs.target is not None
    assert whole["counts"]["scored"] == 16 * (len(pairs.target.documents) - 1)  # no end: more was to come
    lm = load("long", device="cpu")
    long, short = lm.score(["it is"] * 2, ["what is 40 and 4444?", "what is 40 and 4444"])
    assert long.logprob == short.logprob and "the source without its end" in long.event  # 19 tokens and [EOS]
    assert "the source without" not in short.event


def test_pairs_beside_span_corruption_and_a_resume(folder: Path) -> None:
    given = {**TINY, **MIXED, "corpus.sources.sums.path": "sums.jsonl", "corpus.sources.sums.target": "answer",
             "corpus.sources.plain": "plain.jsonl"}  # fmt: skip
    said: list[str] = []
    run = pretrain("encdec-small", out="run", cache="cache", say=said.append, **given)
    parts = run.held_out.parts
    assert set(parts) == {"pairs", "spans"} and parts["pairs"]["unigram_floor"] != parts["spans"]["unigram_floor"]
    text = prepared(folder / "run")
    train = [s.documents for s in text.train.sources]
    assert f"{train[0]} texts with a target train pairs, {train[1]} without train spans" in said
    loader = training_loader(stored_recipe(folder / "run"), text)
    for path in sorted((folder / "cache").rglob("*"), reverse=True):  # the text must be made again
        path.unlink() if path.is_file() else path.rmdir()
    resume_run(folder / "run", cache=folder / "cache")
    (a,), (b,) = loader(7), training_loader(stored_recipe(folder / "run"), prepared(folder / "run", "cache"))(7)
    assert np.array_equal(a.stream.tokens, b.stream.tokens) and a.source is not None and b.source is not None
    assert np.array_equal(a.source.tokens, b.source.tokens)


def test_pairs_without_targets_are_refused_before_text_is_prepared(folder: Path) -> None:
    with pytest.raises(UserError, match=r"pairs writes a target for each text.*set corpus\.target"):
        pretrain("encdec-small", out="run", cache="cache", corpus="sums.jsonl", **TINY, **PAIRS)
    assert not (folder / "cache").exists() and not (folder / "run").exists()


def test_targets_that_an_objective_does_not_read_are_said_once(folder: Path) -> None:
    said: list[str] = []
    pretrain("encdec-small", out="run", cache="cache", say=said.append, corpus="sums.jsonl", **TINY,
             **{"corpus.target": "answer"})  # fmt: skip
    assert sum("does not read: they are left out" in sentence for sentence in said) == 1
