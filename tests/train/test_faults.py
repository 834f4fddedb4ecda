"""An update at fault names the documents that it reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from unmask.errors import UserError
from unmask.recipe import load_recipe
from unmask.run import begin, pretrain, resolve, training_loader

SETTINGS = {
    "tokenizer.vocab_size": 400,
    "model.hidden_size": 16,
    "model.num_layers": 1,
    "model.num_heads": 2,
    "train.batch_size": 2,
    "budget.steps": 3,
    "device": "cpu",
    "precision": "fp32",
}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Forty documents that each begin with a word of their own."""
    file = tmp_path / "text.jsonl"
    lines = [{"text": f"name{k} " + "goes to the market and buys some bread " * (1 + k % 5)} for k in range(40)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


def test_its_documents_are_those_of_its_batches(corpus: Path) -> None:
    recipe, text, _ = begin(load_recipe("encoder-small", {**SETTINGS, "corpus.path": str(corpus)}), None, print)
    loader = training_loader(resolve(recipe, text.tokenizer), text)
    for step in range(5):
        read: set[int] = set()
        for batch in loader(step):
            assert batch.samples is not None
            read |= set(loader.pieces.document[loader.order.find(batch.samples.index)[0]].tolist())
        assert sorted({d for d, _ in loader.texts(step)}) == sorted(read) and read
        for document, tokens in loader.texts(step):
            first, end = text.train.documents[document : document + 2]
            assert tokens.tolist() == text.train.tokens[first:end].tolist()
    assert np.unique([d for s in range(200) for d, _ in loader.texts(s)]).size == len(text.train.documents) - 1


def test_a_run_that_stops_says_which_and_writes_them_down(corpus: Path, tmp_path: Path) -> None:
    asked = load_recipe("encoder-small", {**SETTINGS, "corpus.path": str(corpus), "train.skip_above": 1e-9})
    with pytest.raises(UserError, match=r"update 1 is at fault: its gradient norm .*'name\d+ .*train.at_fault=skip"):
        pretrain(asked, out=tmp_path / "run")
    (line,) = (tmp_path / "run" / "faults.jsonl").read_text(encoding="utf-8").splitlines()
    named = json.loads(line)["documents"]
    assert named and all(d["begins"].startswith("name") for d in named)
