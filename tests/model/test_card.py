from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.loading import load
from unmask.model.card import Facts, Usage, card
from unmask.model.verify import trusted
from unmask.run import pretrain

from .test_verify import lm_of, sentences

SIZES = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "max_position": 64}
USAGE = Usage(("print(model)",), "text-generation")
FACTS = Facts(ModelConfig(**{**SIZES, "vocab_size": 50}), 1234, 1e-6, ("AutoModel", "AutoModelForCausalLM"), USAGE)


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


DISCRIMINATOR = replace(FACTS, classes=("AutoModel", "AutoModelForPreTraining"), heads=("rtd",))
ELECTRA = {"lm": 4.9385, "rtd": 0.4097, "accuracy": 0.8561, "always_original": 0.8552, "generator_accuracy": 0.0366}
OLD = {"held_out_loss": 4.9386, "held_out_accuracy": 0.0366, "held_out_unigram_floor": 4.9205}
NEW = {"held_out_loss": 0.4097, "held_out_accuracy": None, "held_out_content_targets": 0}


def card_of(facts: Facts, place: Path, **result: Any) -> str:
    (place / "recipe.yaml").write_text(yaml.safe_dump({"context": 64}))
    (place / "result.json").write_text(json.dumps(result))
    return card(facts, place)


def rows_of(text: str) -> dict[str, str]:
    found = re.findall(r"^\| (\S.*?) \| (.*?) \|$", text, re.MULTILINE)
    return dict(found)


@pytest.mark.parametrize("result", [OLD, NEW], ids=["old", "new"])
def test_a_discriminators_figures_are_its_own(result: dict[str, Any], tmp_path: Path) -> None:
    """The generator's loss, accuracy and floor stood there, as if they were of the files exported."""
    text = card_of(DISCRIMINATOR, tmp_path, **result, held_out_terms=ELECTRA)
    assert rows_of(text) == {
        "held-out loss of its head `rtd`, nats per target": "0.4097",
        "share of tokens rightly called original or replaced": "0.8561",
        "the same, if every token were called original": "0.8552",
    }
    assert "content target" not in text and "floor" not in text and "It calls no more" not in text
    text = card_of(DISCRIMINATOR, tmp_path, **result, held_out_terms={**ELECTRA, "accuracy": 0.85})
    assert "It calls no more tokens rightly original or replaced (0.850) than calling all of them original" in text


def test_a_generators_figures_are_its_own(tmp_path: Path) -> None:
    text = card_of(replace(FACTS, heads=("lm",)), tmp_path, **NEW, held_out_terms=ELECTRA)
    assert rows_of(text) == {
        "held-out loss of its head `lm`, nats per target": "4.9385",
        "share of masked tokens whose token is the likeliest": "0.0366",
    }


def test_a_loss_without_tokens_is_called_the_sum_of_its_terms(tmp_path: Path) -> None:
    terms = {"query": 1.2932, "passage": 1.2861}
    text = card_of(DISCRIMINATOR, tmp_path, held_out_loss=1.2896, held_out_content_targets=0, held_out_terms=terms)
    assert rows_of(text) == {
        "held-out loss, the mean of its terms by their weights": "1.2896",
        "term `query`, nats per target": "1.2932",
        "term `passage`, nats per target": "1.2861",
    }


def test_parts_and_further_heads_have_rows_of_their_own(tmp_path: Path) -> None:
    terms = {"lm": 4.9, "nsp": 0.69, "nsp_accuracy": 0.5, "nsp_majority": 0.55}
    parts = {"clm": {"loss": 4.8, "unigram_floor": 4.9, "accuracy": 0.05, "content_targets": 9}}
    told = {"held_out_loss": 4.9, "held_out_content_targets": 9, "held_out_terms": terms, "held_out_parts": parts}
    assert rows_of(card_of(FACTS, tmp_path, **told)) == {
        "held-out loss, nats per content target": "4.9000",
        "content targets": "9",
        "part `clm`: held-out loss, nats per content target": "4.8000",
        "part `clm`: unigram floor": "4.9000",
        "term `nsp`, nats per target": "0.6900",
        "share of targets that its head `nsp` gets right": "0.5000",
        "share of targets of head `nsp` that are the commonest class": "0.5500",
    }
