"""`unmask inspect`: every kind of thing it reads, what it says, and the sizes it advises."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from unmask.batch import Head
from unmask.cli import app
from unmask.config import ModelConfig, TokenizerConfig
from unmask.description import advice, describe
from unmask.errors import UserError
from unmask.model.advise import advise, parse_count
from unmask.model.cost import flops, visible_keys
from unmask.model.presets import PRESETS, preset, preset_config
from unmask.model.spec import parameters
from unmask.model.transformer import Transformer
from unmask.recipe import shipped
from unmask.tokens.tokenizer import Tokenizer

OLD_KEYS = (
    *("model", "family", "visibility", "stacks", "layers", "hidden_size", "num_heads", "vocab_size", "max_position"),
    *("parameters", "embedding_parameters", "flops_per_token_body", "flops_per_target"),
)


def asked(*words: str) -> Any:
    """What the command prints with --json."""
    done = CliRunner().invoke(app, ["inspect", *words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


# ---------------------------------------------------------------- what is read


@pytest.mark.parametrize("name", [*shipped(), *PRESETS])
def test_every_recipe_and_preset_is_described(name: str) -> None:
    found = describe(name, context=64)
    assert set(OLD_KEYS) <= found.keys() and found["model"] == name
    assert sum(part["parameters"] for part in found["parts"]) == found["parameters"]
    assert sum(part["share"] for part in found["parts"]) == pytest.approx(1)
    assert sum(part["active"] for part in found["parts"]) == found["active_parameters"] <= found["parameters"]
    body, whole = found["flops"]
    for row in (body, whole):
        assert 0 < row["forward_visible"] <= row["forward_dense"] < row["training_dense"]
    assert whole["training_dense"] - body["training_dense"] == pytest.approx(found["flops_per_target"], abs=2)
    assert found["shapes"][0]["shape"] == [1, 64] or found["shapes"][0]["shape"] == (1, 64)
    assert len(json.dumps(found)) < 60_000


def test_a_preset_has_the_heads_it_was_trained_with() -> None:
    assert asked("bert-base")["parameters"] == 110_106_428
    steps = {step["step"]: step["shape"] for step in asked("bert-base", "--context", "8", "--batch", "2")["shapes"]}
    assert steps["[heads.lm]"] == [16, 30522] and steps["[heads.nsp]"] == [16, 2]
    assert steps["[scores]"] == [2, 12, 8, 8] and steps["stack.layers.0.attention.qkv"] == [2, 8, 2304]


def test_settings_come_from_yaml_and_json_files(tmp_path: Path) -> None:
    values = {"vocab_size": 100, "hidden_size": 32, "num_layers": 2, "max_position": 16}
    (tmp_path / "a.yaml").write_text("\n".join(f"{k}: {v}" for k, v in values.items()))
    (tmp_path / "a.json").write_text(json.dumps(values))
    count = parameters(ModelConfig(**values))
    assert describe(str(tmp_path / "a.yaml"))["parameters"] == describe(tmp_path / "a.json")["parameters"] == count
    (tmp_path / "b.yaml").write_text("preset: gpt2\nnum_layers: 2\n")
    assert describe(tmp_path / "b.yaml")["parameters"] == parameters(ModelConfig(**{**preset("gpt2"), "num_layers": 2}))
    (tmp_path / "config.txt").write_text(json.dumps({"model_type": "gpt2", "n_layer": 3}))
    assert describe(tmp_path / "config.txt")["layers"] == 3
    assert describe(ModelConfig(**values))["parameters"] == count


def test_a_run_and_a_directory_of_the_common_library(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text(
        "objective: {type: masked}\nmodel: {vocab_size: 50, hidden_size: 32, visibility: bidirectional}\n"
    )
    assert describe(tmp_path / "run")["visibility"] == "bidirectional"
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text('{"model_type": "gpt2"}')
    assert describe(tmp_path / "hf")["parameters"] == 124_439_808


FAULTS = [
    (["decoder-smal"], r"'decoder-smal' is no recipe, preset.*did you mean 'decoder-small'"),
    (["brt-base"], r"did you mean 'bert-base'"),
    ([], r"say what to inspect"),
    (["gpt2", "--target", "1M"], r"leave one out"),
    (["gpt2", "--family", "bert"], r"--preset and --family go with --target"),
    (["gpt2", "--context", "2000"], r"context=2000 goes beyond the model's table of 1024"),
    (["gpt2", "--batch", "0"], r"batch=0"),
    (["--target", "soon"], r"'soon' is no size of a model"),
    (["--target", "1.5.2M"], r"no size of a model"),
    (["--target", "1M", "--preset", "bert-bas"], r"no preset 'bert-bas'.*did you mean 'bert-base'"),
    (["--target", "1M", "--family", "lama"], r"no preset of family 'lama'.*did you mean 'llama'"),
    (["gpt2", "--vocab-size", "0"], r"vocab_size=0 must be at least 1"),
    (["gpt2", "--vocab-size", "-5"], r"vocab_size=-5 must be at least 1"),
    (["gpt2", "--context", "0"], r"context=0 must be at least 1"),
    (["--target", "1M", "--vocab-size", "0"], r"vocab_size=0 must be at least 1"),
    (["--target", "1M", "--context", "0"], r"context=0 must be at least 1"),
    (["--target", "0"], r"'0' is no size of a model"),
    (["--target", "1M", "--vocab-size", "500000"], r"no model of this kind has 1,000,000 parameters"),
]


@pytest.mark.parametrize(("words", "fault"), FAULTS)
def test_bad_input_is_one_sentence(words: list[str], fault: str) -> None:
    done = CliRunner().invoke(app, ["inspect", *words])
    assert isinstance(done.exception, UserError)
    with pytest.raises(UserError, match=fault):
        raise done.exception


@pytest.mark.parametrize(("kind", "sentinels", "size"), [("byte", 0, 262), ("byte", 100, 362), ("bbpe", 0, 500)])
def test_the_vocabulary_of_a_recipe_is_its_tokenizers(kind: str, sentinels: int, size: int, tmp_path: Path) -> None:
    found = describe(_recipe(tmp_path, {"type": kind, "vocab_size": 500, "sentinels": sentinels}))
    assert found["vocab_size"] == size and "vocab_size_is" not in found
    if kind == "byte":
        config = TokenizerConfig(type="byte", vocab_size=500, sentinels=sentinels)
        trained = Tokenizer.train(config, ["any text"])
        assert trained.vocabulary.size == size
        trained.save(tmp_path / "tokenizer.json")
        assert describe(_recipe(tmp_path, {"file": str(tmp_path / "tokenizer.json")}))["vocab_size"] == size


@pytest.mark.parametrize("kind", ["char", "word"])
def test_a_vocabulary_that_the_text_decides_is_a_ceiling(kind: str, tmp_path: Path) -> None:
    place = _recipe(tmp_path, {"type": kind, "vocab_size": 500})
    assert asked(str(place))["vocab_size_is"] == "ceiling" and describe(place)["vocab_size"] == 500
    assert "vocab_size_is" not in describe(place, vocab_size=90)
    assert re.search(r"vocab_size_is +ceiling", CliRunner().invoke(app, ["inspect", str(place)]).stdout)


def _recipe(folder: Path, tokenizer: dict[str, Any]) -> Path:
    values = {"objective": {"type": "causal"}, "model": {"hidden_size": 32}, "budget": {"steps": 1}}
    (folder / "recipe-of.yaml").write_text(json.dumps({**values, "corpus": "-", "tokenizer": tokenizer}))
    return folder / "recipe-of.yaml"


def test_encoders_keep_no_cache() -> None:
    assert not [key for key in describe("bert-base") if key.startswith("cache")]
    assert "cache" not in CliRunner().invoke(app, ["inspect", "bert-base"]).stdout
    assert "cache" in CliRunner().invoke(app, ["inspect", "t5-small"]).stdout


def test_lengths_beyond_any_array_are_counted() -> None:
    began = time.perf_counter()
    for name in ("llama-7b", "modern-encoder", "t5-small"):
        assert describe(name, context=10**12)["context"] == 10**12
    assert time.perf_counter() - began < 5
    assert visible_keys(10**12) == (10**12 + 1) / 2


@pytest.mark.parametrize("text", ['"model_type": "gpt2", "n_head": 7', '"model_type": "bert", "hidden_size": [1]'])
def test_bad_values_of_a_config_json_are_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{" + text + "}")
    for what in (tmp_path, tmp_path / "config.json"):
        with pytest.raises(UserError, match=r"config\.json (describes no model|holds a value of the wrong kind)"):
            describe(what)


@pytest.mark.parametrize("text", ["model: 3", "model: [1]", "model: {}\nobjective: 3", "model: {}\nheads: [{a: 1}]"])
def test_a_broken_recipe_of_a_run_is_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(UserError, match=r"recipe\.yaml"):
        describe(tmp_path)


def test_faults_of_files_name_the_file(tmp_path: Path) -> None:
    for text, fault in [
        ("hiden_size: 3", r"unknown key 'hiden_size' in .*bad.yaml.*did you mean 'hidden_size'"),
        ("- 1", r"bad.yaml holds no settings"),
        ("a: [", r"bad.yaml is not YAML"),
        ("hidden_size: 30\nnum_heads: 4", r"num_heads=4 does not divide hidden_size=30"),
    ]:
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(UserError, match=fault):
            describe(tmp_path / "bad.yaml")
    with pytest.raises(UserError, match="is no model: it has neither"):
        describe(tmp_path)


# ---------------------------------------------------------------- what is said


def test_numbers_of_context_and_batch() -> None:
    short, long = (asked("gpt2", "--context", c, "--batch", "4") for c in ("128", "1024"))
    assert long["flops_per_token_body"] - short["flops_per_token_body"] == 3 * 12 * 4 * 768 * (1024 - 128)
    adamw, muon = long["memory"]
    assert adamw["weights"] == adamw["gradients"] == 4 * 124_439_808 and adamw["optimizer"] == 2 * adamw["weights"]
    assert adamw["optimizer"] - muon["optimizer"] == 4 * 12 * 12 * 768**2
    assert long["memory"][0]["activations"] == 8 * short["memory"][0]["activations"]  # no scores are kept
    assert long["cache_bytes_per_token"] == 4 * 12 * 2 * 768
    assert long["cache_bytes_of_a_row"] == {"kept": 1024 * 73728, "needed": 1024 * 73728}


def test_the_cache_of_windows_latents_and_sources() -> None:
    gpt3 = describe("gpt3")
    per_layer = 4 * 2 * 12288
    assert gpt3["cache_bytes_of_a_row"]["needed"] == 48 * per_layer * (2048 + 256)
    v3 = describe("deepseek-v3")
    assert v3["cache_bytes_of_a_row"]["needed"] == 4 * 61 * 576 * 4096  # DeepSeek-V2, section 2.1.2
    t5 = describe("t5-base", context=100)
    assert t5["cache_bytes_per_source_token"] == t5["cache_bytes_per_token"] == 4 * 12 * 2 * 768
    assert t5["cache_bytes_of_a_row"]["kept"] == 2 * 100 * 4 * 12 * 2 * 768


def test_flops_per_token_are_those_of_a_row() -> None:
    config = preset_config("t5-small")
    found = describe("t5-small", context=32)
    assert found["flops_per_token_body"] == round(flops(config, 32, 32, 0, 32, 32) / 32)
    assert found["flops_per_target"] == 3 * 2 * 512 * 32128


def test_the_text_shows_all_tables() -> None:
    done = CliRunner().invoke(app, ["inspect", "mixtral-8x7b", "--context", "4096"])
    text = done.stdout
    for piece in (
        "46,702,792,704 (46.7",
        "meets 12,879,925,248 (12.88 G)",
        "experts",
        "96.6 %",
        "0-31",
        "(8 192, 28 672)",
    ):
        assert piece in text, piece
    assert "(1, 32, 4 096, 4 096)" in text and "stack.layers.0.attention.qkv" in text
    assert "muon" in text and "GiB" in text and max(map(len, text.splitlines())) < 160
    plain = CliRunner().invoke(app, ["inspect", "gpt2"]).stdout
    assert "active" not in plain and "meets" not in plain


# ---------------------------------------------------------------- advice


@pytest.mark.parametrize("target", ["700k", "5M", "30M", "150M", "1B", "7B"])
@pytest.mark.parametrize(
    "name", ["modern-decoder", "modern-encoder", "modern-encdec", "fixed-data", "bert-base", "gpt2"]
)
def test_advice_meets_the_target(name: str, target: str) -> None:
    size = parse_count(target)
    found = advise(size, name)
    c = found.config
    with torch.device("meta"):
        built = sum(p.numel() for p in Transformer(c, (Head("lm"),)).parameters())
    assert built == found.parameters == pytest.approx(size, rel=0.03)
    assert c.hidden_size % 64 == 0 and c.hidden_size % c.num_heads == 0 and c.mlp_size % 8 == 0
    assert 1 / 3 < c.hidden_size / c.num_layers / (36 if name == "modern-encoder" else 64) < 3 or size < 1e6
    assert c.tied_head or size >= 30e6
    # nothing but sizes is other than in the preset, and the overrides make the same model of it
    merged = ModelConfig.model_validate({**preset(name), **found.changed})
    assert parameters(merged) == built and merged.activation == c.activation
    assert all(len(why) < 140 and not why.endswith(".") for why in found.why.values())


@pytest.mark.parametrize(
    "name", ["albert-base", "t5-1.1-base", "electra-small-generator", "xlnet-base", "deberta-v3-base"]
)
def test_advice_of_other_kinds(name: str) -> None:
    assert advise(60e6, name).parameters == pytest.approx(60e6, rel=0.03)
    assert advise(2e9, "mixtral-8x7b").parameters == pytest.approx(2e9, rel=0.03)
    assert advise(1e9, "deepseek-v3").parameters == pytest.approx(1e9, rel=0.03)


def test_advice_near_published_sizes_is_near_published_shapes() -> None:
    gpt2 = advise(124_439_808, "gpt2", vocab_size=50257).config
    assert 10 <= gpt2.num_layers <= 14 and 704 <= gpt2.hidden_size <= 832
    modernbert = advise(149_655_232, "modernbert-base", vocab_size=50368).config
    assert 19 <= modernbert.num_layers <= 25 and 704 <= modernbert.hidden_size <= 832
    assert advise(124e6, family="gpt2").preset == "gpt2" and advise(300e6, family="bert").preset == "bert-base"


def test_advice_prints_reasons_and_overrides_that_work() -> None:
    found = asked("--target", "12M", "--preset", "modern-encoder", "--vocab-size", "4096")
    assert found["parameters"] == pytest.approx(12e6, rel=0.03) and abs(found["off"]) < 0.03
    assert {row["setting"] for row in found["chosen"]} >= {"num_layers", "hidden_size", "num_heads", "vocab_size"}
    from unmask.recipe import load_recipe

    words = [*found["overrides"], "corpus=-", "tokenizer.vocab_size=4096"]
    recipe = load_recipe("encoder-small", words)
    assert parameters(recipe.model) == found["parameters"]
    text = CliRunner().invoke(app, ["inspect", "--target", "150M"]).stdout
    assert "model.preset=modern-decoder model.vocab_size=32768" in text and "nanochat" in text
    assert advice(12e6, "modern-encoder", vocab_size=4096)["parameters"] == found["parameters"]
