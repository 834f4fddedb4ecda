"""D24 from a recipe: a fresh RoBERTa takes the offset of its positions from the tokenizer's pad id."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import unmask
from unmask.config import TokenizerConfig
from unmask.errors import UserError
from unmask.recipe import Recipe, load_recipe
from unmask.run import pretrain, resolve, resume_run
from unmask.tokens.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

ROBERTA = {
    "model.preset": "roberta-base",
    "model.hidden_size": 32,
    "model.num_heads": 2,
    "model.num_layers": 2,
    "model.intermediate_size": 64,
    "model.max_position": 64,
    "context": 64,
    "tokenizer.vocab_size": 512,
    "train.batch_size": 4,
    "evaluation.pieces": 4,
    "budget.steps": 2,
    "precision": "fp32",
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from pydoc_data.topics import topics

    path = tmp_path_factory.mktemp("text") / "topics.jsonl"
    path.write_text("".join(json.dumps({"text": t}) + "\n" for _, t in sorted(topics.items())), encoding="utf-8")
    return path


def recipe_of(corpus: Path, **more: Any) -> Recipe:
    return load_recipe("encoder-small", {**ROBERTA, "corpus": str(corpus), **more})


@pytest.mark.parametrize("given", [0, 2])
def test_a_run_uses_its_whole_context_and_exports(given: int, corpus: Path, tmp_path: Path) -> None:
    recipe = recipe_of(corpus, **{"model.position_offset": given})
    out = tmp_path / "run"
    run = pretrain(recipe, out=out, cache=corpus.parent, say=lambda _: None)
    assert run.counters.step == 2
    lm = unmask.load(out, device="cpu")
    pad = lm.vocabulary.need("pad")
    assert lm.config.position_offset == pad + 1 and lm.config.max_position == 64
    assert len(lm.network.stack.positions.weight) == 64 + pad + 1  # type: ignore[union-attr]
    pretrain(recipe, out=out, cache=corpus.parent, resume="must", say=lambda _: None)  # the offset was not its to say
    resume_run(out, corpus.parent)

    lm.export(tmp_path / "hf")
    settings = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (settings["model_type"], settings["pad_token_id"]) == ("roberta", pad)
    stock = transformers.RobertaForMaskedLM.from_pretrained(tmp_path / "hf").eval()
    ids = torch.randint(10, 250, (1, 64), generator=torch.Generator().manual_seed(0))
    assert torch.allclose(lm.logits(ids), stock(input_ids=ids).logits, atol=1e-4)
    with pytest.raises(UserError, match="position 64 lies beyond the model's 64 positions"):
        lm.logits(torch.full((1, 65), 20))


@pytest.mark.parametrize("pad", [0, 1, 3])
def test_the_offset_follows_the_pad_id(pad: int, corpus: Path) -> None:
    recipe = recipe_of(corpus)

    class Words:
        vocabulary = replace(Tokenizer.train(TokenizerConfig(type="byte"), ["a b"]).vocabulary, pad=pad)

    assert resolve(recipe, Words()).model.position_offset == pad + 1  # type: ignore[arg-type]
    other = recipe.model_copy(update={"model": recipe.model.model_copy(update={"family": "unmask"})})
    assert resolve(other, Words()).model.position_offset == 2  # type: ignore[arg-type]
