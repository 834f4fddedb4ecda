"""Runs on a mixture: the recipe's shares, after a resume too, and text that was prepared beforehand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from unmask.data.sampling import Mixture
from unmask.errors import UserError
from unmask.run import prepared, pretrain, resume_run, stored_recipe, training_loader

TINY: dict[str, Any] = {
    "tokenizer.type": "byte",
    "model.hidden_size": 16,
    "model.num_layers": 1,
    "model.num_heads": 2,
    "context": 16,
    "train.batch_size": 4,
    "evaluation.pieces": 8,
    "budget.steps": 2,
}


@pytest.fixture
def mixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings of two sources by relative paths."""
    monkeypatch.chdir(tmp_path)
    Path("wiki.jsonl").write_text("\n".join(json.dumps({"text": f"Article {i} is about {i * i}."}) for i in range(80)))
    Path("books.txt").write_text("\n".join(f"chapter {i}: it was a dark night" for i in range(40)))
    return {
        "corpus.sources.wiki": "wiki.jsonl",
        "corpus.sources.books.path": "books.txt",
        "corpus.sources.books.document": "line",
        "corpus.sources.books.weight": 3,
        "corpus.mix": "weight",
    }


def test_a_run_on_a_mixture_says_its_shares_and_resumes_with_them(
    mixture: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    run = pretrain("encoder-small", out="run", cache="cache", say=said.append, **TINY, **mixture)
    assert run.counters.step == 2 and 0 < run.held_out.loss < 20
    shares = [s for s in said if s.startswith("mixture: ")]
    assert len(shares) == 1 and "wiki 25.0% of samples, " in shares[0] and "books 75.0% of samples, " in shares[0]
    recipe = stored_recipe(tmp_path / "run")
    assert recipe.corpus.sources["books"].path == str(tmp_path / "books.txt") and recipe.corpus.path == ""
    before = training_loader(recipe, prepared(tmp_path / "run"))
    assert isinstance(before.order, Mixture) and before.order.counts == (256, 768)
    monkeypatch.chdir("/")
    for path in sorted((tmp_path / "cache").rglob("*"), reverse=True):  # the text must be made again
        path.unlink() if path.is_file() else path.rmdir()
    resume_run(tmp_path / "run", cache=tmp_path / "cache")
    after = training_loader(recipe, prepared(tmp_path / "run", tmp_path / "cache"))
    assert after.order == before.order
    (a,), (b,) = before(7), after(7)
    assert np.array_equal(a.stream.tokens, b.stream.tokens)


def test_a_run_is_not_continued_with_other_shares(mixture: dict[str, Any]) -> None:
    pretrain("encoder-small", out="run", cache="cache", **TINY, **mixture)
    other = {**mixture, "corpus.sources.books.weight": 2}
    with pytest.raises(UserError, match=r"started with corpus\.sources\.books\.weight=3\.0, not 2\.0"):
        pretrain("encoder-small", out="run", cache="cache", resume="auto", **TINY, **other)
    pretrain("encoder-small", out="run", cache="cache", resume="auto", **TINY, **mixture)


def test_a_changed_source_is_named(mixture: dict[str, Any], tmp_path: Path) -> None:
    pretrain("encoder-small", out="run", cache="cache", **TINY, **mixture)
    for path in sorted((tmp_path / "cache").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    Path("books.txt").write_text("\n".join(f"something else {i}" for i in range(30)))
    with pytest.raises(UserError, match=r"the mixture of wiki, books has changed since run was started"):
        prepared(Path("run"), "cache")


def unmask(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-m", "unmask", *words], env=environment, capture_output=True, text=True)


def test_text_prepared_beforehand_is_found_by_a_run_from_the_command_line(mixture: dict[str, Any]) -> None:
    corpus = [f"{key}={value}" for key, value in mixture.items()]
    rest = [f"{key}={value}" for key, value in TINY.items() if key != "tokenizer.type"]
    made = unmask("data", "prepare", "encoder-small", *corpus, "tokenizer.type=byte", "out=there", "--json")
    assert made.returncode == 0, made.stderr
    (line,) = made.stdout.splitlines()
    result = json.loads(line)
    assert result["missing"] == [] and result["train"]["books"]["bytes_per_token"] == 1.0
    assert result["disk"] == sum(p.stat().st_size for p in Path(result["directory"]).rglob("*") if p.is_file())
    shown = unmask("data", "prepare", "encoder-small", *corpus, "tokenizer.type=byte", "out=there")  # found again
    assert "re-using the shards in" in shown.stderr and result["directory"] in shown.stdout
    assert [line.split()[:2] for line in shown.stdout.splitlines()[2:]] == [
        [side, name] for side in ("train", "valid") for name in ("wiki", "books")
    ]
    run = unmask("pretrain", "encoder-small", *corpus, *rest, "tokenizer.type=byte", "cache=there", "out=run")
    assert run.returncode == 0, run.stderr
    assert f"re-using the shards in {result['directory']}" in run.stderr and "mixture: wiki 25.0%" in run.stderr
    assert yaml.safe_load(Path("run/recipe.yaml").read_text())["corpus"]["mix"] == "weight"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["corpus=nowhere.txt"], "no such corpus file: nowhere.txt"),
        (["tokenizer.vocab_size=300"], "no corpus: give corpus=PATH"),
        (["corpus=wiki.jsonl", "part=3"], "part=3 is no part: write part=2/3"),
        (["corpus=wiki.jsonl", "part=2/3"], "needs a tokenizer that is the same for all parts"),
        (["corpus=wiki.jsonl", "train.batch_size=3"], "unknown key 'train' in the settings given"),
        (["encoder-smal", "corpus=wiki.jsonl"], "did you mean 'encoder-small'"),
        (["corpus=wiki.jsonl", "corpus.fild=x"], "did you mean 'field'"),
    ],
)
def test_bad_input_of_data_prepare_is_one_sentence(words: list[str], sentence: str, mixture: dict[str, Any]) -> None:
    done = unmask("data", "prepare", *words, "out=there")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and sentence in done.stderr


def test_preparing_imports_no_torch(mixture: dict[str, Any]) -> None:
    code = (
        "import sys; sys.argv = ['unmask', 'data', 'prepare', 'corpus=wiki.jsonl', 'tokenizer.type=byte', 'out=t']\n"
        "from unmask.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_source_that_the_datasets_library_loads(mixture: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A local directory: no network. Its content, not its place, finds the shards again."""
    for name in ("HF_HOME", "HF_DATASETS_CACHE"):
        monkeypatch.setenv(name, str(Path("hub").absolute()))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    Path("table").mkdir()
    Path("wiki.jsonl").rename("table/wiki.jsonl")
    books = ["corpus.sources.books.path=books.txt", "corpus.sources.books.document=line"]
    settings = [*books, "tokenizer.type=byte", "out=there", "--json"]
    first = unmask("data", "prepare", "corpus.sources.hub=hf:table", *settings)
    assert first.returncode == 0, first.stderr
    made = json.loads(first.stdout)
    assert made["train"]["hub"]["documents"] + made["valid"]["hub"]["documents"] == 80
    Path("table").rename("moved")
    again = unmask("data", "prepare", f"corpus.sources.hub=hf:{Path('moved').absolute()}", *settings)
    assert "re-using the shards in" in again.stderr and json.loads(again.stdout)["directory"] == made["directory"]
