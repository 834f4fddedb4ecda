"""Every shipped recipe trains, and bad settings are one clear sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unmask.errors import UserError
from unmask.recipe import load_recipe, shipped
from unmask.run import pretrain

TINY = {
    "tokenizer.vocab_size": 512,
    "model.hidden_size": 32,
    "model.num_heads": 2,
    "context": 32,
    "train.batch_size": 4,
    "evaluation.pieces": 8,
    "precision": "fp32",
}


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from pydoc_data.topics import topics

    path = tmp_path_factory.mktemp("text") / "topics.jsonl"
    path.write_text("".join(json.dumps({"text": t}) + "\n" for _, t in sorted(topics.items())), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_recipe_takes_two_steps(name: str, corpus: Path, tmp_path: Path) -> None:
    said: list[str] = []
    settings = {"budget.steps": 2, **TINY}
    run = pretrain(name, out=tmp_path / "run", cache=corpus.parent, corpus=str(corpus), say=said.append, **settings)
    assert run.counters.step == 2 and run.counters.tokens > 0
    assert 0 < run.held_out.loss < 20
    assert "not clearly below the unigram floor" in said[-1]  # o30: two steps teach nothing, and the run says so
    assert (tmp_path / "run" / "recipe.yaml").exists() and (tmp_path / "run" / "tokenizer.json").exists()


def test_an_exported_decoder_continues_as_ours_does(corpus: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from unmask.loading import load

    settings = {"budget.steps": 2, **TINY}
    pretrain("decoder-small", out=tmp_path / "run", cache=corpus.parent, corpus=str(corpus), **settings)
    lm = load(tmp_path / "run")
    lm.export(tmp_path / "hf")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    ids = tokenizer("The value of", return_tensors="pt")["input_ids"]
    assert ids[0, 0] == lm.vocabulary.bos
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    theirs = model.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
    assert tokenizer.decode(theirs, skip_special_tokens=True) == lm.generate("The value of", max_tokens=8)[0]


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ({"train.learning_rat": 1}, "did you mean 'learning_rate'"),
        ({"objective.mask_rat": 0.3}, "did you mean 'mask_rate'"),
        ({"objective.type": "maskd"}, "did you mean 'masked'"),
        ({"model.num_heads": 7}, "num_heads=7 does not divide hidden_size"),
        ({"context": 500}, "beyond model.max_position=128"),
        ({"model.num_source_layers": 2}, "needs a model with one stack"),
        ({"budget.steps": 1, "budget.tokens": 2}, "exactly one"),
        ({"corpus.document": "regex"}, "separator"),
        ({"train.batch_size": "many"}, "train.batch_size"),
    ],
)
def test_a_wrong_setting_names_itself(override: dict[str, object], says: str) -> None:
    with pytest.raises(UserError) as error:
        load_recipe("encoder-small", {"corpus": "x.txt", **override})
    assert says in str(error.value)
    assert "\n" not in str(error.value)
