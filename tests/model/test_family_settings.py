"""Settings of config.json that say the same thing twice, are silent, or ask for what no model here has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from unmask.errors import UserError
from unmask.loading import load
from unmask.model.interop import load_hf
from unmask.model.translate import family_of, read_config

from .helpers import perturb

SMALL: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 40,
}  # fmt: skip
T5: dict[str, Any] = {
    "vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
}  # fmt: skip
BART: dict[str, Any] = {"vocab_size": 60, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1}


# ---------------------------------------------------------------- T5's activation, said twice


@pytest.mark.parametrize("stock", ["T5", "MT5"])
@pytest.mark.parametrize(
    ("said", "more", "ours"),
    [
        ("relu", {"dense_act_fn": "gelu_new"}, "gelu_tanh"),
        ("relu", {"dense_act_fn": "silu"}, "silu"),
        ("gated-gelu", {"dense_act_fn": "gelu"}, "geglu"),
        ("gated-gelu", {"dense_act_fn": "silu"}, "swiglu"),
        ("gated-gelu", {}, "geglu_tanh"),
        ("gated-silu", {}, "swiglu"),
    ],
)
def test_t5_takes_its_activation_from_where_the_library_does(
    stock: str, said: str, more: dict[str, Any], ours: str, tmp_path: Path
) -> None:
    kind = getattr(transformers, f"{stock}ForConditionalGeneration")
    perturb(kind(kind.config_class(**T5, feed_forward_proj=said))).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    settings = json.loads(file.read_text())
    if not more:
        settings = {k: v for k, v in settings.items() if k not in ("dense_act_fn", "is_gated_act")}
    file.write_text(json.dumps({**settings, **more}))
    theirs, lm = kind.from_pretrained(tmp_path).eval(), load(tmp_path, device="cpu")
    ids = torch.arange(5, 14)[None]
    with torch.no_grad():
        want = theirs(input_ids=ids, decoder_input_ids=ids).logits
    assert lm.config.activation == ours
    assert torch.allclose(lm.logits(ids, decoder_input_ids=ids), want, atol=1e-4)


def test_t5s_gate_follows_its_own_setting() -> None:
    settings = {"model_type": "t5", "feed_forward_proj": "relu", **T5}
    assert read_config({**settings, "is_gated_act": True}).activation == "reglu"
    assert read_config({**settings, "feed_forward_proj": "gated-silu", "is_gated_act": False}).activation == "silu"
    assert read_config({"model_type": "switch_transformers", "dense_act_fn": "silu"}).activation == "silu"


# ---------------------------------------------------------------- what a silent file means


@pytest.mark.parametrize("family", ["bart", "mbart", "marian"])
def test_a_silent_stack_is_the_librarys_not_its_neighbours(family: str) -> None:
    """The library's decoder has 16 heads and 4096 inner units unless it is told, whatever the encoder has."""
    settings = {"model_type": family, **BART}
    for wrong, missing in (
        ({"encoder_attention_heads": 4}, "decoder_attention_heads=16"),
        ({"decoder_attention_heads": 4}, "decoder_attention_heads=4"),
        ({"encoder_ffn_dim": 48}, "decoder_ffn_dim=4096"),
        ({"decoder_ffn_dim": 48}, "decoder_ffn_dim=48"),
    ):
        with pytest.raises(UserError, match=f"{missing} is not supported for {family}"):
            read_config({**settings, **wrong})
    assert read_config(settings).num_heads == 16


def test_silent_rope_of_one_of_two_stacks() -> None:
    def gemma(source: dict[str, Any], stream: dict[str, Any]) -> dict[str, Any]:
        return {"model_type": "t5gemma", "encoder": source, "decoder": stream}

    told = {"rope_parameters": {"rope_type": "default", "rope_theta": 2e4}}
    for pair in ((told, {}), ({}, told), (told, {"rope_theta": 3e4})):
        with pytest.raises(UserError, match="of t5gemma, not one base"):
            read_config(gemma(*pair))
    assert read_config(gemma(told, {"rope_theta": 2e4})).rotary_base == 2e4
    assert read_config(gemma({}, {"rope_theta": 1e4})).rotary_base == 1e4


def test_silent_and_null_settings_of_deepseek() -> None:
    settings = {"model_type": "deepseek_v3", "num_attention_heads": 4, "hidden_size": 32}
    with pytest.raises(UserError, match="num_key_value_heads=128 is not supported for deepseek_v3"):
        read_config(settings)
    assert read_config({**settings, "num_key_value_heads": None}).num_heads == 4
    with pytest.raises(UserError, match="rope_interleave=None is not supported for deepseek_v3"):
        read_config({**settings, "num_key_value_heads": 4, "rope_interleave": None})


# ---------------------------------------------------------------- windows of one token


@pytest.mark.parametrize(
    ("family", "settings", "name"),
    [
        ("mistral", {"sliding_window": 1}, "sliding_window=1"),
        ("mistral", {"sliding_window": 0}, "sliding_window=0"),
        ("mixtral", {"sliding_window": 1}, "sliding_window=1"),
        ("qwen3", {"sliding_window": 1, "use_sliding_window": True, "max_window_layers": 0}, "sliding_window=1"),
        ("gpt_neo", {"window_size": 1}, "window_size=1"),
        ("modernbert", {"local_attention": 1}, "local_attention=1"),
        ("t5gemma", {"encoder": {"sliding_window": 1}, "decoder": {"sliding_window": 1}}, "sliding_window=1"),
    ],
)
def test_a_window_of_the_token_alone_is_refused_in_the_familys_words(
    family: str, settings: dict[str, Any], name: str
) -> None:
    with pytest.raises(UserError, match=f"{name} is not supported for {family}"):
        read_config({"model_type": family, **settings})


def test_the_smallest_windows_and_windows_that_nobody_uses() -> None:
    assert read_config({"model_type": "mistral", "sliding_window": 2}).window == 1
    assert read_config({"model_type": "gpt_neo", "window_size": 2}).window == 1
    assert [read_config({"model_type": "modernbert", "local_attention": n}).window for n in (2, 3, 128)] == [1, 1, 64]
    unused = {"model_type": "gpt_neo", "window_size": 1, "num_layers": 2, "attention_types": [[["global"], 2]]}
    assert read_config(unused).window == 0
    full = {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2, "sliding_window": 1}
    config = read_config({"model_type": "t5gemma", "encoder": full, "decoder": full})
    assert config.window == 0 and family_of(config).name == "t5gemma"


# ---------------------------------------------------------------- the rest


@pytest.mark.parametrize(
    "family", ["llama", "mistral", "qwen3", "mixtral", "deepseek_v3", "nanochat", "gpt_neox", "modernbert", "t5gemma"]
)
def test_a_rope_that_is_not_known_names_the_family(family: str) -> None:
    with pytest.raises(UserError, match=f"rope type 'yarn' is not supported for {family},"):
        yarn = {"rope_scaling": {"rope_type": "yarn"}}
        nested = {"encoder": yarn, "decoder": yarn} if family == "t5gemma" else yarn
        read_config({"model_type": family, "num_key_value_heads": None, **nested})


@pytest.mark.parametrize(("head", "share"), [(16, 0.25), (8, 0.5), (32, 0.25), (None, 0.25)])
def test_gpt_neox_turns_a_share_of_the_head_size_that_is_given(head: int | None, share: float, tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": share}
    kind = transformers.GPTNeoXForCausalLM
    theirs = perturb(kind(transformers.GPTNeoXConfig(**SMALL, head_dim=head, rope_parameters=rope))).eval()
    theirs.save_pretrained(tmp_path)
    model, _ = load_hf(tmp_path)
    assert model.config.rotary_size == int((head or 8) * share)
    lm, ids = load(tmp_path, device="cpu"), torch.arange(5, 25)[None]
    with torch.no_grad():
        assert torch.allclose(lm.logits(ids), theirs(ids).logits, atol=1e-4)
    assert read_config({"model_type": "gpt_neox", **family_of(model.config).write(model.config)}) == model.config
