"""Parts of a text prepared side by side are, joined, what one process writes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from unmask.config import CorpusConfig, TokenizerConfig
from unmask.data import parts as module
from unmask.data.parts import parse_part, prepare_part
from unmask.data.prepare import prepare
from unmask.data.shards import Shards
from unmask.errors import UserError
from unmask.tokens.tokenizer import Tokenizer


def quiet(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TokenizerConfig:
    place = tmp_path_factory.mktemp("t") / "t.json"
    config = TokenizerConfig(type="word", vocab_size=60, sentinels=2)
    Tokenizer.train(config, [" ".join(f"word{i}" for i in range(40)) * 3]).save(place)
    return TokenizerConfig(file=str(place))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def written(path: Path, documents: int, seed: int) -> str:
    rng = np.random.default_rng(seed)
    texts = [" ".join(f"word{w}" for w in rng.integers(0, 60, rng.integers(1, 40))) for _ in range(documents)]
    path.write_text("\n".join(json.dumps({"text": t}) for t in texts))
    return str(path)


def corpora(tmp_path: Path) -> dict[str, tuple[CorpusConfig, CorpusConfig | None]]:
    many, other, few = (
        written(tmp_path / f"{n}.jsonl", d, k) for k, (n, d) in enumerate([("many", 150), ("other", 30), ("few", 3)])
    )
    mixture = CorpusConfig.model_validate({"sources": {"a": many, "b": few, "c": other}, "valid_fraction": 0.2})
    return {
        "by hash": (CorpusConfig(path=many, valid_fraction=0.1), None),
        "none drawn": (CorpusConfig(path=other, valid_fraction=1e-9), None),
        "by position": (CorpusConfig(path=few, valid_fraction=0.4), None),
        "several sources": (mixture, None),
        "given held-out text": (CorpusConfig(path=many), mixture),
        "sentences": (CorpusConfig(path=many, sentences=True, valid_fraction=0.1), None),
    }


CASES = ["by hash", "none drawn", "by position", "several sources", "given held-out text"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_joined_parts_are_byte_for_byte_what_one_process_writes(
    case: str, n: int, tmp_path: Path, tokenizer: TokenizerConfig
) -> None:
    corpus, valid = corpora(tmp_path)[case]
    whole = prepare(corpus, valid, tokenizer, tmp_path / "whole", quiet)
    order = np.random.default_rng(n).permutation(n) + 1
    for done, i in enumerate(order.tolist(), 1):
        part = prepare_part(corpus, valid, tokenizer, tmp_path / "parts", (i, n), quiet)
        assert part.missing == tuple(sorted(order[done:].tolist()))
        assert (part.prepared is not None) == (done == n)
    assert part.prepared is not None and part.prepared.directory.name == whole.directory.name
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")  # and nothing of the parts is left


def test_every_part_does_its_share_of_the_bytes(tmp_path: Path, tokenizer: TokenizerConfig) -> None:
    corpus, _ = corpora(tmp_path)["by hash"]
    place = prepare_part(corpus, None, tokenizer, tmp_path / "c", (1, 3), quiet).directory
    prepare_part(corpus, None, tokenizer, tmp_path / "c", (3, 3), quiet)
    whole = prepare(corpus, None, tokenizer, tmp_path / "d", quiet)
    total = int(whole.train.bytes.sum() + whole.valid.bytes.sum())
    longest = int(max(whole.train.bytes.max(), whole.valid.bytes.max()))
    for i in (1, 3):
        sides = [Shards.load(place.parent / str(i) / side) for side in ("train", "valid")]
        assert abs(int(sum(s.bytes.sum() for s in sides)) - total / 3) < longest


def test_a_part_is_not_written_twice_and_a_late_one_finds_the_whole(
    tmp_path: Path, tokenizer: TokenizerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, _ = corpora(tmp_path)["by hash"]
    prepare_part(corpus, None, tokenizer, tmp_path / "c", (2, 2), quiet)
    with monkeypatch.context() as patch:
        patch.setattr(module, "encode", lambda *_: pytest.fail("encoded again"))
        assert prepare_part(corpus, None, tokenizer, tmp_path / "c", (2, 2), quiet).missing == (1,)
    first = prepare_part(corpus, None, tokenizer, tmp_path / "c", (1, 2), quiet)
    with monkeypatch.context() as patch:
        patch.setattr(module, "encode", lambda *_: pytest.fail("encoded again"))
        again = prepare_part(corpus, None, tokenizer, tmp_path / "c", (2, 2), quiet)
        other = prepare_part(corpus, None, tokenizer, tmp_path / "c", (4, 7), quiet)
        assert prepare(corpus, None, tokenizer, tmp_path / "c", quiet).directory == first.directory
    assert again.prepared is not None and other.prepared is not None
    assert again.directory == first.directory == other.directory


@pytest.mark.parametrize("removed_first", [False, True])
def test_two_that_finish_at_once_both_end_with_the_whole(
    removed_first: bool, tmp_path: Path, tokenizer: TokenizerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, _ = corpora(tmp_path)["several sources"]
    for i in (1, 2):
        prepare_part(corpus, None, tokenizer, tmp_path / "c", (i, 3), quiet)
    prepare_part(corpus, None, tokenizer, tmp_path / "alone", (3, 3), quiet)
    source = next((tmp_path / "alone").rglob("part.json")).parent
    target = next((tmp_path / "c").rglob("of-3")) / "3"
    shutil.copytree(source, target)
    join_side, gate = module._join_side, threading.Barrier(2)
    late = threading.Event()

    def slow(*arguments: object) -> None:
        """Both begin to join; the second goes on only when the first has joined, and removed the parts."""
        mine = gate.wait(10)
        if removed_first and mine == 0:
            assert late.wait(10)
        join_side(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_join_side", lambda *a: slow(*a) if a[1].name == "train" else join_side(*a))
    rmtree = shutil.rmtree

    def removed(path: Path, **more: bool) -> None:
        rmtree(path, **more)
        if "of-3" in str(path):
            late.set()

    monkeypatch.setattr(module.shutil, "rmtree", removed)
    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(prepare_part, corpus, None, tokenizer, tmp_path / "c", (i, 3), quiet) for i in (1, 3)]
        parts = [end.result() for end in ends]
    whole = prepare(corpus, None, tokenizer, tmp_path / "whole", quiet)
    assert all(part.prepared is not None for part in parts)
    assert contents(tmp_path / "c") == contents(tmp_path / "whole")
    assert parts[0].directory.name == whole.directory.name


def test_processes_side_by_side(tmp_path: Path, tokenizer: TokenizerConfig) -> None:
    corpus, _ = corpora(tmp_path)["by hash"]
    settings = [f"corpus={corpus.path}", f"tokenizer.file={tokenizer.file}", f"out={tmp_path / 'c'}", "--json"]
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", "unmask", "data", "prepare", *settings, f"part={i}/3", "corpus.valid_fraction=0.1"],
            stdout=subprocess.PIPE,
        )
        for i in (1, 2, 3)
    ]
    results = [json.loads(run.communicate()[0]) for run in runs]
    assert all(run.returncode == 0 for run in runs)
    prepare(corpus, None, tokenizer, tmp_path / "whole", quiet)
    assert contents(tmp_path / "c") == contents(tmp_path / "whole")
    last = [r for r in results if not r["missing"]]
    assert last and last[0]["train"][""]["documents"] + last[0]["valid"][""]["documents"] == 150


def test_a_changed_text_is_another_text_and_never_joined(tmp_path: Path, tokenizer: TokenizerConfig) -> None:
    corpus, _ = corpora(tmp_path)["by hash"]
    prepare_part(corpus, None, tokenizer, tmp_path / "c", (1, 2), quiet)
    Path(corpus.path).write_text(Path(corpus.path).read_text() + '\n{"text": "word1 more"}')
    assert prepare_part(corpus, None, tokenizer, tmp_path / "c", (2, 2), quiet).missing == (1,)


def test_what_is_no_part_is_one_sentence(tmp_path: Path) -> None:
    for text in ("0/3", "4/3", "1", "a/b", "", "1/0"):
        with pytest.raises(UserError, match="is no part: write part=2/3"):
            parse_part(text)
    corpus, _ = corpora(tmp_path)["by hash"]
    with pytest.raises(UserError, match=r"part=2/3 needs a tokenizer .* tokenizer.file=FILE"):
        prepare_part(corpus, None, TokenizerConfig(), tmp_path / "c", (2, 3), quiet)
