from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.loading import load
from unmask.model.card import Facts, card
from unmask.model.verify import trusted
from unmask.run import pretrain

from .test_verify import lm_of, sentences

SIZES = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "max_position": 64}
FACTS = Facts(ModelConfig(**{**SIZES, "vocab_size": 50}), 1234, 1e-6, ("AutoModel", "AutoModelForCausalLM"))


def front_of(text: str) -> dict[str, Any]:
    assert text.startswith("---\n")
    return yaml.safe_load(text.split("---\n")[1])


def code_of(text: str) -> str:
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("secret-place")
    (place / "corpus.txt").write_text("\n\n".join(sentences(300)))
    pretrain(
        "prefix-small",
        out=place / "run",
        cache=place / "cache",
        say=lambda _: None,
        corpus=str(place / "corpus.txt"),
        corpus__document="blank_line",
        tokenizer__vocab_size=400,
        context=64,
        budget__steps=2,
        **{f"model__{k}": v for k, v in SIZES.items()},
    )
    return place / "run"


def test_the_card_says_what_the_runs_files_say(run: Path, tmp_path: Path) -> None:
    lm = load(run, device="cpu")
    report = lm.export(tmp_path / "hf", license="cc-by-4.0", language=["en"], datasets=["someone/words"])
    text = (tmp_path / "hf" / "README.md").read_text()
    result = json.loads((run / "result.json").read_text())
    front = front_of(text)
    assert front["license"] == "cc-by-4.0" and front["language"] == ["en"] and front["datasets"] == ["someone/words"]
    assert front["library_name"] == "transformers" and front["pipeline_tag"] == "text-generation"
    assert front["tags"] == ["unmask", "prefix_lm"]
    assert f"{result['parameters']:,} parameters" in text and f"{report['difference']:.2g}" in text
    assert f"| {result['held_out_loss']:.4f} |" in text and f"| {result['held_out_unigram_floor']:.4f} |" in text
    assert f"- Updates: {result['step']}\n" in text and f"- Tokens seen: {result['tokens']:,}\n" in text
    assert f"by formula: {result['flops']:.3g}\n" in text
    assert re.search(r"Training text: 2\d\d documents, [\d,]+ tokens, [\d,]+ bytes", text)
    assert "0.05 of every source is held out" in text and "`corpus.txt`" in text
    recipe = yaml.safe_load(re.search(r"```yaml\n(.*?)```", text, re.DOTALL)[1])  # type: ignore[index]
    assert recipe["corpus"].pop("path") == "corpus.txt"
    stored = yaml.safe_load((run / "recipe.yaml").read_text())
    stored["corpus"].pop("path")
    assert recipe == stored
    assert "secret-place" not in text and str(tmp_path) not in text
    assert "trust_remote_code=True" in text and "prefix_length" in text


def test_a_loss_above_the_floor_is_a_stated_limit(run: Path) -> None:
    text = card(FACTS, run)
    result = json.loads((run / "result.json").read_text())
    assert result["held_out_loss"] > result["held_out_unigram_floor"]  # two updates teach nothing
    assert "it has learnt no context" in text


@pytest.mark.parametrize("name", ["bert", "gpt2", "prefix", "t5", "body"])
def test_the_cards_code_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lm = replace(lm_of("prefix"), tokenizer=None) if name == "body" else lm_of(name)
    lm.export(tmp_path / "hf")
    code = code_of((tmp_path / "hf" / "README.md").read_text())
    assert code.startswith("import torch\nfrom transformers import AutoModelFor")
    monkeypatch.chdir(tmp_path / "hf")
    capsys.readouterr()
    with trusted():
        exec(compile(code, "README.md", "exec"), {})
    assert len(capsys.readouterr().out) > 10


def test_what_is_unknown_stays_out_and_is_not_invented() -> None:
    text = card(FACTS)
    assert set(front_of(text)) == {"library_name", "tags", "pipeline_tag"}
    for title in ("## Training", "## Results", "Recipe"):
        assert title not in text
    assert "Licence of the weights: not stated" in text and "Language: not stated" in text
    assert "no published one is named" in text and "No measurement of it is known here." in text
    assert not re.search(r"\bNone\b|\bnan\b", text)


def test_an_interrupted_run_has_costs_and_no_results(run: Path, tmp_path: Path) -> None:
    for name in ("recipe.yaml", "metrics.jsonl"):
        (tmp_path / name).write_text((run / name).read_text())
    text = card(FACTS, tmp_path)
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert f"- Tokens seen: {last['tokens']:,}" in text and "## Results" not in text and "Made with" not in text
    (tmp_path / "result.json").write_text("{broken")
    with pytest.raises(UserError, match="no model card can be written"):
        card(FACTS, tmp_path)


def test_imported_models_say_so_and_claim_no_training(tmp_path: Path) -> None:
    values = {"model": {}, "objective": {"type": "causal"}, "context": 64, "imported": "/home/someone/gpt2"}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(values))
    text = card(replace(FACTS, context=64, objective={"type": "causal"}), tmp_path)
    assert "imported (from `gpt2`), and not trained since." in text and "/home" not in text
    assert "## Training" not in text and "Tokens in a row" not in text and "trained on rows" not in text
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text("{}")
    assert "imported (from `hf`)" in card(FACTS, tmp_path / "hf")


def test_sources_of_the_hub_are_datasets_and_texts_of_others_cannot_break_the_card(tmp_path: Path) -> None:
    sources = {"a": {"path": "hf:someone/books:en"}, "b": {"path": "/data/b.txt"}, "c": {"path": "hf:/data/local"}}
    recipe = {"corpus": {"sources": sources, "valid_fraction": 0.1, "separator": "```\n# Heading"}, "context": 64}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    text = card(replace(FACTS, license="mit: [x\n---"), tmp_path)
    assert front_of(text)["datasets"] == ["someone/books"]
    assert front_of(text)["license"].startswith("mit: [x")
    assert "`hf:local`" in text and "/data" not in text
    assert text.count("```") == 4


def test_a_model_that_sees_both_sides_is_no_writer_whatever_class_holds_it() -> None:
    """The library counts XLNet's class among the causal ones."""
    from unmask.config import ModelConfig
    from unmask.model.card import _kind

    def facts(**settings: Any) -> Any:
        return SimpleNamespace(classes=("AutoModel", "AutoModelForCausalLM"), config=ModelConfig(**settings))

    assert _kind(facts(visibility="bidirectional")) == "AutoModelForMaskedLM"
    assert _kind(facts(visibility="causal")) == _kind(facts(visibility="prefix")) == "AutoModelForCausalLM"
