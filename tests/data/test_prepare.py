"""Preparing text: each document once, found again by content, whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import gzip
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from unmask.config import CorpusConfig, SourceConfig, TokenizerConfig
from unmask.data import prepare as module
from unmask.data import text as text_module
from unmask.data.prepare import prepare
from unmask.data.shards import Prepared, Shards, Writer
from unmask.data.text import absolute
from unmask.errors import UserError
from unmask.text.corpus import read
from unmask.tokens.tokenizer import Tokenizer

BYTE = TokenizerConfig(type="byte", sentinels=3)


@pytest.fixture
def corpus(tmp_path: Path) -> CorpusConfig:
    path = tmp_path / "corpus.jsonl"
    rows = [{"text": f"Document {i} tells of {'é' * (i % 5)} and {i * i}."} for i in range(60)]
    path.write_text("\n".join(map(json.dumps, [*rows, {"text": " "}])))
    return CorpusConfig(path=str(path), valid_fraction=0.1)


def quiet(_: str) -> None:
    pass


def test_shards_hold_every_document_once(corpus: CorpusConfig, tmp_path: Path) -> None:
    made = prepare(corpus, None, BYTE, tmp_path / "cache", quiet)
    assert len(made.train) + len(made.valid) == 60
    met = made.counts[""]
    assert (met.files, met.documents, met.bytes, met.empty) == (
        1,
        60,
        int(made.train.bytes.sum() + made.valid.bytes.sum()),
        1,
    )
    texts = []
    for side in (made.train, made.valid):
        assert side.documents[0] == 0 and side.documents[-1] == len(side.tokens)
        for i in range(len(side)):
            ids = side.document(i)
            assert ids.dtype == np.int32
            texts.append(made.tokenizer.decode(ids))
            assert side.bytes[i] == len(texts[-1].encode()) == len(ids)
        assert side.counts.tolist() == np.bincount(side.tokens, minlength=made.tokenizer.vocabulary.size).tolist()
    expected = [f"Document {i} tells of {'é' * (i % 5)} and {i * i}." for i in range(60)]
    assert sorted(texts) == sorted(expected)
    assert not made.tokenizer.vocabulary.is_special[made.train.tokens].any()


def test_d20_two_bytes_a_token_and_four_above_65536(corpus: CorpusConfig, tmp_path: Path) -> None:
    made = prepare(corpus, None, BYTE, tmp_path / "cache", quiet)
    assert made.train.tokens.dtype == np.uint16
    assert (made.directory / "train" / "tokens.bin").stat().st_size == 2 * len(made.train.tokens)
    many = tmp_path / "many.txt"
    many.write_text("".join(map(chr, range(0x20000, 0x20000 + 65_600))) + "the rest is held out " * 200)
    config = TokenizerConfig(type="char", vocab_size=70_000, sentinels=0)
    large = prepare(CorpusConfig(path=str(many)), None, config, tmp_path / "cache", quiet)
    assert large.train.tokens.dtype == np.uint32 and large.tokenizer.vocabulary.size > 65_536
    assert large.tokenizer.decode(large.train.document(0)) == many.read_text()[: len(large.train.tokens)]


def test_d20_second_call_reuses_and_a_changed_byte_rebuilds(
    corpus: CorpusConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare(corpus, None, BYTE, tmp_path / "cache", quiet)
    with monkeypatch.context() as patch:
        patch.setattr(text_module.corpora, "read", lambda *_: pytest.fail("read again"))
        said: list[str] = []
        again = prepare(corpus, None, BYTE, tmp_path / "cache", said.append)
        loaded = prepare(corpus, None, first.tokenizer, tmp_path / "cache", quiet)
        moved = tmp_path / "elsewhere.jsonl"
        shutil.copy(corpus.path, moved)
        copied = prepare(corpus.model_copy(update={"path": str(moved)}), None, BYTE, tmp_path / "cache", quiet)
    assert again.directory == loaded.directory == copied.directory == first.directory
    assert again.counts == first.counts and "re-using" in said[-1]
    assert np.array_equal(again.train.tokens, first.train.tokens)
    text = Path(corpus.path).read_text()
    Path(corpus.path).write_text(text.replace("Document 7 ", "Document 8 ", 1))
    changed = prepare(corpus, None, BYTE, tmp_path / "cache", quiet)
    assert changed.directory != first.directory
    other = prepare(corpus.model_copy(update={"valid_fraction": 0.3}), None, BYTE, tmp_path / "cache", quiet)
    assert other.directory != changed.directory and len(other.valid) > len(changed.valid)


def test_explicit_valid_wins(corpus: CorpusConfig, tmp_path: Path) -> None:
    held = tmp_path / "held.txt"
    held.write_text("one\ntwo\n")
    valid = CorpusConfig(path=str(held), document="line")
    made = prepare(corpus, valid, BYTE, tmp_path / "cache", quiet)
    assert (len(made.train), len(made.valid)) == (60, 2)
    assert made.valid_counts is not None and made.valid_counts[""].documents == 2
    assert [made.tokenizer.decode(made.valid.document(i)) for i in range(2)] == ["one", "two"]


def test_a_training_file_that_is_held_out_too_is_said(corpus: CorpusConfig, tmp_path: Path) -> None:
    said: list[str] = []
    prepare(corpus, corpus, BYTE, tmp_path / "cache", said.append)
    assert any("no measure of unseen text" in sentence for sentence in said)


def test_the_tokenizer_sees_the_training_part_only(tmp_path: Path) -> None:
    train, held = tmp_path / "t.txt", tmp_path / "v.txt"
    train.write_text("abc abc")
    held.write_text("abc xyz")
    config = TokenizerConfig(type="char", sentinels=0)
    said: list[str] = []
    made = prepare(CorpusConfig(path=str(train)), CorpusConfig(path=str(held)), config, tmp_path / "c", said.append)
    unk = made.tokenizer.vocabulary.unk
    assert made.valid.document(0).tolist()[-3:] == [unk] * 3
    assert any("3 of 14 tokens (21.43%) are unknown" in s for s in said)


def test_a_large_corpus_is_sampled_and_it_is_said(corpus: CorpusConfig, tmp_path: Path) -> None:
    config = TokenizerConfig(type="word", sentinels=0)
    said: list[str] = []
    part = prepare(corpus, None, config, tmp_path / "c", said.append, training_bytes=500)
    whole = prepare(corpus, None, config, tmp_path / "c", quiet)
    assert part.tokenizer.vocabulary.size < whole.tokenizer.vocabulary.size
    assert any("drawn by hash" in s for s in said)
    assert prepare(corpus, None, config, tmp_path / "d", quiet, 500).tokenizer.fingerprint == part.tokenizer.fingerprint


def test_notes_are_said_again(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("the only text, line by line\n" * 100)
    said: list[str] = []
    for _ in range(2):
        made = prepare(CorpusConfig(path=str(path)), None, BYTE, tmp_path / "c", said.append)
    assert sum("by position" in s for s in said) == 2 and any("by position" in n for n in made.notes)
    assert len(made.train) == len(made.valid) == 1


def test_tokenizer_file(corpus: CorpusConfig, tmp_path: Path) -> None:
    Tokenizer.train(BYTE, []).save(tmp_path / "t.json")
    made = prepare(corpus, None, TokenizerConfig(file=str(tmp_path / "t.json")), tmp_path / "c", quiet)
    assert made.tokenizer.type == "byte"


def test_paths_are_made_absolute_but_names_on_the_hub_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    (tmp_path / "table").mkdir()
    sources = {
        "a": SourceConfig(path="a/*.txt", lexicon="l.txt"),
        "b": SourceConfig(path="hf:org/name:en"),
        "c": SourceConfig(path="hf:table:small"),
        "d": SourceConfig(path="~/d.txt"),
    }
    found = absolute(CorpusConfig(sources=sources)).sources
    assert {name: source.path for name, source in found.items()} == {
        "a": f"{tmp_path}/a/*.txt",
        "b": "hf:org/name:en",
        "c": f"hf:{tmp_path}/table:small",
        "d": "/home/somebody/d.txt",
    }
    assert found["a"].lexicon == f"{tmp_path}/l.txt" and found["b"].lexicon is None
    assert absolute(CorpusConfig(path="x.txt")).path == f"{tmp_path}/x.txt"


# ---------------------------------------------------------------- what can go wrong


def test_an_interrupted_preparation_is_never_taken_for_whole(
    corpus: CorpusConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    with monkeypatch.context() as patch:
        patch.setattr(Writer, "finish", lambda _: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            prepare(corpus, None, BYTE, cache, quiet)
    assert not [p for p in cache.iterdir() if p.is_dir()]
    program = (
        "import os, sys\nfrom pathlib import Path\n"
        "from unmask.config import CorpusConfig, TokenizerConfig\nfrom unmask.data import prepare, shards\n"
        "shards.Writer.finish = lambda _: os._exit(9)\n"
        f"c = CorpusConfig(path={corpus.path!r}, valid_fraction=.1)\n"
        f"prepare.prepare(c, None, TokenizerConfig(type='byte', sentinels=3), Path({str(cache)!r}), print)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 9
    assert len([p for p in cache.iterdir() if p.is_dir()]) == 1  # what the killed process left
    made = prepare(corpus, None, BYTE, cache, quiet)
    assert [p for p in cache.iterdir() if p.is_dir()] == [made.directory]


def test_damaged_shards_are_refused(corpus: CorpusConfig, tmp_path: Path) -> None:
    made = prepare(corpus, None, BYTE, tmp_path / "c", quiet)
    tokens = made.directory / "train" / "tokens.bin"
    os.truncate(tokens, tokens.stat().st_size - 2)
    with pytest.raises(UserError, match="damaged"):
        Shards.load(made.directory / "train")
    tokens.unlink()
    with pytest.raises(UserError, match="no whole shards"):
        Prepared.load(made.directory)


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_a_full_disk_is_one_sentence(corpus: CorpusConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = r"too full for the shards: about 1,\d{3},\d{3} bytes are needed, 7 are free"
    with monkeypatch.context() as patch:
        patch.setattr(module.shutil, "disk_usage", lambda _: Usage(9, 2, 7))
        with pytest.raises(UserError, match=sentence):
            prepare(corpus, None, BYTE, tmp_path / "c", quiet)

    def full(*_: object) -> None:
        monkeypatch.setattr(module.shutil, "disk_usage", lambda _: Usage(9, 2, 7))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Writer, "write", full)
    with pytest.raises(UserError, match=sentence):
        prepare(corpus, None, BYTE, tmp_path / "c", quiet)
    assert not [p for p in (tmp_path / "c").iterdir() if p.is_dir()]


def test_an_empty_side_is_refused(corpus: CorpusConfig, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"held-out part .* is empty"):
        prepare(corpus.model_copy(update={"valid_fraction": 0.0}), None, BYTE, tmp_path / "c", quiet)
    (tmp_path / "tiny.txt").write_text("a")
    with pytest.raises(UserError, match=r"held-out part .* is empty"):
        prepare(CorpusConfig(path=str(tmp_path / "tiny.txt")), None, BYTE, tmp_path / "c", quiet)
    (tmp_path / "same.txt").write_text("the same\n" * 50)
    with pytest.raises(UserError, match=r"training part .* is empty"):
        prepare(CorpusConfig(path=str(tmp_path / "same.txt"), document="line"), None, BYTE, tmp_path / "c", quiet)


@pytest.mark.shared
def test_real_articles(shared_data: Path, tmp_path: Path) -> None:
    corpus = CorpusConfig(path=str(shared_data / "enwiki2015" / "dev.jsonl.gz"))
    made = prepare(corpus, None, TokenizerConfig(vocab_size=2000), tmp_path / "c", quiet, training_bytes=1_000_000)
    assert len(made.train) > 10 * len(made.valid) > 0
    assert made.train.bytes.sum() / len(made.train.tokens) > 2.5  # bytes a token


def measured(corpus: Path, cache: Path, *settings: str) -> dict[str, float]:
    """What `unmask data prepare` says in a process of its own; and the most memory that it and the processes it
    started held at a time, in MB (pages that they share are counted once)."""
    program = (
        "import sys\nfrom unmask.cli import main\n"
        "try: main()\nexcept SystemExit as end: assert not end.code\n"
        "assert 'torch' not in sys.modules\n"
    )
    command = [sys.executable, "-c", program, "data", "prepare", f"corpus={corpus}", f"out={cache}", "--json"]
    with subprocess.Popen([*command, *settings], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        peak = 0.0
        while process.poll() is None:
            peak = max(peak, held(process.pid))
            time.sleep(0.05)
        out, error = process.communicate()
    assert process.returncode == 0, error
    return {**json.loads(out), "peak": peak, "reused": "re-using" in error}


def held(pid: int) -> float:
    """MB of a process and its children."""
    total = 0.0
    with contextlib.suppress(OSError, IndexError):  # it has just ended
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        total += sum(held(int(child)) for child in children)
        total += int(Path(f"/proc/{pid}/smaps_rollup").read_text().split("\nPss:")[1].split()[0]) * 1.024e-3
    return total


@pytest.mark.shared
def test_d20_two_bytes_a_token_small_memory_and_a_second_run_that_reads_nothing(
    shared_data: Path, tmp_path: Path
) -> None:
    articles = shared_data / "enwiki2015" / "dev.jsonl.gz"
    Tokenizer.train(TokenizerConfig(vocab_size=4000), (d.text for d in read(SourceConfig(path=str(articles))))).save(
        tmp_path / "t.json"
    )
    first = measured(articles, tmp_path / "c", f"tokenizer.file={tmp_path / 't.json'}")
    again = measured(articles, tmp_path / "c", f"tokenizer.file={tmp_path / 't.json'}")
    place = Path(first["directory"])
    tokens = sum(first[side][""]["tokens"] for side in ("train", "valid"))
    grows = [p for side in ("train", "valid") for p in (place / side).glob("*.bin")]
    assert {p.name for p in grows} == {"tokens.bin", "documents.bin", "bytes.bin"}
    assert sum(p.stat().st_size for p in grows) <= 2.02 * tokens
    once = (place / "tokenizer.json").stat().st_size + 2 * 8 * 4000 + 2000  # the tokenizer, and a count of each entry
    assert first["disk"] <= 2.02 * tokens + once
    assert 30 < first["peak"] < 250 and again["peak"] < 250
    assert again["reused"] and not first["reused"] and again["directory"] == first["directory"]


def articles_of(shared_data: Path) -> list[str]:
    """120 MB of text."""
    return [
        json.loads(row)["text"]
        for path in sorted((shared_data / "enwiki2015").glob("train-*.jsonl.gz"))
        for row in gzip.decompress(path.read_bytes()).decode().split("\n")[:-1]
    ]


@pytest.mark.slow
@pytest.mark.shared
def test_d20_a_gigabyte_of_text_in_half_a_gigabyte_of_memory(shared_data: Path, tmp_path: Path) -> None:
    texts = articles_of(shared_data)
    Tokenizer.train(TokenizerConfig(vocab_size=32_000), texts[:600]).save(tmp_path / "t.json")
    size = 0
    with (tmp_path / "c.jsonl").open("w", encoding="utf-8") as out:
        for number in itertools.count():  # each round with other words
            for text in texts if size < 1e9 else ():
                size += out.write(json.dumps({"text": text.replace(" the ", f" the{number} ")}) + "\n")
            if size >= 1e9:
                break
    del texts
    made = measured(tmp_path / "c.jsonl", tmp_path / "cache", f"tokenizer.file={tmp_path / 't.json'}")
    assert made["peak"] < 500


@pytest.mark.slow
@pytest.mark.shared
def test_one_line_of_100_mb_passes(shared_data: Path, tmp_path: Path) -> None:
    texts = articles_of(shared_data)
    Tokenizer.train(TokenizerConfig(vocab_size=32_000), texts[:600]).save(tmp_path / "t.json")
    line = " ".join(texts).replace("\n", " ").encode("ascii", "replace")[:100_000_000]
    (tmp_path / "line.txt").write_bytes(line)
    made = measured(tmp_path / "line.txt", tmp_path / "cache", f"tokenizer.file={tmp_path / 't.json'}")
    assert made["train"][""]["documents"] == 1 and made["peak"] < 800
