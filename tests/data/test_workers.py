"""Encoding by other processes gives what encoding here gives, and their failures are one sentence."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from unmask.config import CorpusConfig, TokenizerConfig
from unmask.data import prepare as module
from unmask.data.ahead import ahead
from unmask.data.prepare import prepare
from unmask.data.shards import Encoded
from unmask.data.workers import Workers, encode_documents, read_message, write_message
from unmask.errors import UserError
from unmask.text.document import Document
from unmask.tokens.tokenizer import Tokenizer

TEXTS = ["The cat sat. It slept!", "北京是首都。", "", "a\u2028b  c\n\nd 😀", "New York is large. " * 50]
EVERYTHING = frozenset({"word", "sentence", "spans"})


def documents() -> list[Document]:
    out = []
    for k, text in enumerate(TEXTS * 3):
        words = np.arange(0, len(text), 2) if k % 2 else None
        spans = np.array([[0, 3], [4, 6]])[: len(text) // 3] if k % 3 else None
        out.append(Document(text, "somewhere", words, spans))
    return out


def same(a: Encoded, b: Encoded) -> bool:
    pairs = [(getattr(a, name), getattr(b, name)) for name in vars(a)]
    return all((x is None) == (y is None) and (x is None or np.array_equal(x, y)) for x, y in pairs)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TokenizerConfig(vocab_size=400, sentinels=2), TEXTS * 3)


@pytest.mark.parametrize("kept", [frozenset(), frozenset({"sentence"}), EVERYTHING], ids=lambda k: "+".join(sorted(k)))
def test_a_process_answers_what_is_encoded_here(tokenizer: Tokenizer, kept: frozenset[str]) -> None:
    expected = [documents(), documents()[:1], documents()[4:], [], [Document("", "")]]
    batches = [list(batch) for batch in expected]
    workers = Workers(tokenizer, kept, 2)
    try:
        answers = list(ahead(workers, batches, len, 4))
    finally:
        workers.close()
    assert all(process.returncode is not None for process in workers.processes)
    for batch, answer in zip(expected, answers, strict=True):
        assert same(answer, encode_documents(batch, tokenizer, kept))


@pytest.mark.parametrize("kind", ["bbpe", "char"])
def test_shards_are_the_same_with_and_without_processes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"text": f"{text} {k}", "s": [[0, 2]]} for k in range(60) for text in TEXTS if text]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    a = {"path": str(tmp_path / "c.jsonl"), "sentences": True, "spans": "s"}
    corpus = CorpusConfig.model_validate({"sources": {"a": a, "b": {**a, "words": "blanks"}}, "valid_fraction": 0.2})
    tokenizer = TokenizerConfig(type=kind, vocab_size=400, sentinels=0)  # type: ignore[arg-type]
    made = []
    for name, small in (("here", 1 << 60), ("there", 0)):
        monkeypatch.setattr(module, "SMALL", small)
        monkeypatch.setattr(module, "BATCH_CHARACTERS", 5000 if small else 700)
        made.append(prepare(corpus, None, tokenizer, tmp_path / name, lambda _: None).directory)
    files = [p.relative_to(made[0]) for p in made[0].rglob("*") if p.is_file()]
    assert len(files) == 2 * 8 + 2
    assert all((made[0] / f).read_bytes() == (made[1] / f).read_bytes() for f in files)


def test_a_process_that_was_killed_is_one_sentence(tokenizer: Tokenizer) -> None:
    workers = Workers(tokenizer, frozenset(), 2)
    for process in workers.processes:
        process.kill()
        process.wait()
    with pytest.raises(UserError, match=r"was ended by something else \(exit code -9\), perhaps for want of memory"):
        list(
            ahead(workers, [documents() for _ in range(9)], len, 20)
        )  # nobody waits for a process that never comes back
    workers.close()


def test_an_error_travels_as_its_sentence() -> None:
    model = tokenizers.models.Unigram([("a", -1.0), ("b", -2.0)])
    tokenizer = Tokenizer(tokenizers.Tokenizer(model).to_str())
    with pytest.raises(UserError) as here:
        encode_documents([Document("c", "")], tokenizer, frozenset())
    workers = Workers(tokenizer, frozenset(), 1)
    with pytest.raises(UserError) as there:
        workers([Document("c", "")])
    assert str(here.value) == str(there.value)
    assert workers([Document("ab", "")]).length.tolist() == [2]  # and the process goes on
    workers.close()


def test_messages_are_read_as_written_and_cut_ones_are_none() -> None:
    pipe = io.BytesIO()
    arrays = {"a": np.arange(6, dtype=np.int32).reshape(3, 2), "empty": np.zeros(0, np.int64), "b": np.array([True])}
    write_message(pipe, arrays)
    raw = pipe.getvalue()
    found = read_message(io.BytesIO(raw))
    assert found is not None and list(found) == list(arrays)
    assert all(np.array_equal(found[k], arrays[k]) and found[k].dtype == arrays[k].dtype for k in arrays)
    assert all(read_message(io.BytesIO(raw[:n])) is None for n in (0, 5, len(raw) - 1))


def test_ahead_keeps_order_and_bounds_what_is_in_work() -> None:
    at_work: list[int] = []
    most = 0

    def function(k: int) -> int:
        at_work.append(k)
        return k * k

    taken = 0
    for result in ahead(function, range(50), lambda k: 10, 30):
        assert result == taken * taken
        taken += 1
        most = max(most, len(at_work) - taken)
    assert taken == 50 and most <= 3
    assert list(ahead(function, [7, 8], lambda k: 1000, 30)) == [49, 64]  # one at least
    with pytest.raises(ZeroDivisionError):
        list(ahead(lambda k: 1 // k, [2, 1, 0, 5], lambda k: 1, 2))


def test_a_process_imports_no_torch() -> None:
    code = "import sys, unmask.data.workers; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
