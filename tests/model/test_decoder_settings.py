"""Settings of the decoder families: stock defaults, every key accounted for, refusals, exact parameter counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from unmask.batch import Head
from unmask.errors import UserError
from unmask.model.families import FAMILIES
from unmask.model.transformer import Transformer
from unmask.model.translate import family_of, read_config

from .test_parity_decoders import resolved

transformers = pytest.importorskip("transformers")

DEFAULTS: dict[str, str] = {
    "openai-gpt": "OpenAIGPTConfig",
    "gpt2": "GPT2Config",
    "gpt_neo": "GPTNeoConfig",
    "gpt_neox": "GPTNeoXConfig",
    "bloom": "BloomConfig",
    "llama": "LlamaConfig",
    "mistral": "MistralConfig",
    "qwen3": "Qwen3Config",
    "mixtral": "MixtralConfig",
    "deepseek_v3": "DeepseekV3Config",
    "nanochat": "NanoChatConfig",
}
WITHOUT_EFFECT = {
    *("model_type", "architectures", "dtype", "transformers_version", "_name_or_path", "use_cache", "return_dict"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "output_hidden_states", "output_attentions", "id2label"),
    *("label2id", "problem_type", "chunk_size_feed_forward", "is_encoder_decoder", "output_router_logits"),
    *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout"),
    *("classifier_dropout", "reorder_and_upcast_attn", "pretraining_tp", "num_nextn_predict_layers", "qk_head_dim"),
    *("n_ctx", "is_decoder", "num_labels", "max_window_layers", "intermediate_size_mlp"),
}
"""Keys that change no number: ids, how outputs are handed over, heads that are not here, what follows from others."""


@pytest.mark.parametrize("family", DEFAULTS)
def test_stock_default_settings_are_read_and_written_back(family: str) -> None:
    """From an empty config.json too: every default of ours is theirs."""
    stock = getattr(transformers, DEFAULTS[family])
    theirs = stock().to_dict()
    config = read_config(theirs)
    bare = read_config({"model_type": family})
    assert resolved(bare) == resolved(config)
    back = stock(**FAMILIES[family].write(config)).to_dict()
    for key, value in theirs.items():
        if key not in WITHOUT_EFFECT and key not in ("attention_types", "head_dim", "n_inner", "intermediate_size"):
            assert back[key] == value, key
    assert resolved(read_config(back)) == resolved(config)


@pytest.mark.parametrize("family", DEFAULTS)
def test_every_key_of_a_stock_config_is_written_or_has_no_effect(family: str) -> None:
    stock = getattr(transformers, DEFAULTS[family])
    written = FAMILIES[family].write(read_config(stock().to_dict())).keys()
    refused = {"gpt2": {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}, "mixtral": {"router_jitter_noise"}}
    derived = {"gpt_neo": {"attention_layers"}, "deepseek_v3": {"head_dim"}}  # of attention_types; of qk_rope_head_dim
    known = {*written, *WITHOUT_EFFECT, *refused.get(family, ()), *derived.get(family, ())}
    assert set(stock().to_dict()) - known == set()


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        ("openai-gpt", {"afn": "tanh"}, "afn 'tanh' is not one of"),
        ("gpt_neo", {"attention_types": [[["global", "sparse"], 12]]}, "'sparse' is not one of global, local"),
        ("gpt_neo", {"num_layers": 3}, "attention_types names 24 layers, but num_layers is 3"),
        ("gpt_neox", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope type 'linear'"),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm=True"),
        ("bloom", {"slow_but_exact": True, "pretraining_tp": 2}, "slow_but_exact=True is not supported for bloom"),
        ("qwen3", {"layer_types": ["chunked_attention"] * 32}, "'chunked_attention' is not one of"),
        ("qwen3", {"layer_types": ["full_attention"]}, "layer_types names 1 layers, but num_hidden_layers is 32"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 32}, "but use_sliding_window is off"),
        ("mixtral", {"router_jitter_noise": 0.1}, "router_jitter_noise=0.1 is not supported for mixtral, only 0.0"),
        ("deepseek_v3", {"rope_scaling": {"type": "yarn", "factor": 40}}, "rope type 'yarn' is not supported"),
        ("deepseek_v3", {"rope_interleave": False}, "rope_interleave=False is not supported"),
        ("deepseek_v3", {"rms_norm_eps": 1e-5}, "rms_norm_eps=1e-05 is not supported for deepseek_v3, only 1e-06"),
        ("deepseek_v3", {"num_key_value_heads": 8}, "num_key_value_heads=8 is not supported for deepseek_v3, only 128"),
        ("deepseek_v3", {"n_shared_experts": 0}, "n_shared_experts=0 is not supported for deepseek_v3"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func=softmax is not supported"),
    ],
)
def test_what_the_model_does_not_do_is_refused(family: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_config({"model_type": family, **settings})


def test_slow_but_exact_in_one_slice_is_as_any_other() -> None:
    assert read_config({"model_type": "bloom", "slow_but_exact": True}) == read_config({"model_type": "bloom"})


def test_a_norm_that_deepseek_cannot_have_is_named() -> None:
    config = read_config({"model_type": "deepseek_v3"})
    with pytest.raises(UserError, match=r"deepseek_v3 cannot hold this model: rms_norm_eps=0\.01 is not supported"):
        family_of(config.model_copy(update={"norm_eps": 0.01}))


def test_old_spellings() -> None:
    """The keys of the published files: Pythia's rotary_pct, BLOOM's n_embed, version 4's rope_theta."""
    neox = read_config({"model_type": "gpt_neox", "rotary_pct": 0.5, "rotary_emb_base": 1000})
    assert (neox.rotary_share, neox.rotary_base) == (0.5, 1000.0)
    neox = read_config({"model_type": "gpt_neox", "rotary_pct": 0.5, "rope_parameters": {"partial_rotary_factor": 1.0}})
    assert neox.rotary_share == 1.0
    bloom = read_config({"model_type": "bloom", "n_embed": 128, "n_layer": 3, "num_attention_heads": 16})
    assert (bloom.hidden_size, bloom.num_layers, bloom.num_heads) == (128, 3, 16)
    assert read_config({"model_type": "mistral", "rope_theta": 5e4}).rotary_base == 5e4
    assert read_config({"model_type": "mixtral"}).rotary_base == 1e6


# ---------------------------------------------------------------- counts


COUNTS: dict[str, tuple[str, dict[str, Any], int]] = {
    # numbers that their authors publish, or that the stock class has on meta tensors
    "gpt1": ("OpenAIGPTLMHeadModel", {}, 116_534_784),
    "gpt2": ("GPT2LMHeadModel", {}, 124_439_808),
    "pythia-160m": (  # Biderman et al. 2023, table 1: 85,056,000 without the two tables of 50,304 · 768
        "GPTNeoXForCausalLM",
        {
            "vocab_size": 50304,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
        },
        85_056_000 + 2 * 50_304 * 768,
    ),
    "mixtral-8x7b": ("MixtralForCausalLM", {}, 46_702_792_704),
    "gpt-neo": ("GPTNeoForCausalLM", {}, 0),
    "bloom": ("BloomForCausalLM", {}, 0),
    "mistral-7b": ("MistralForCausalLM", {}, 7_241_732_096),
    "qwen3": ("Qwen3ForCausalLM", {}, 0),
    "deepseek-v3": ("DeepseekV3ForCausalLM", {}, 0),
    "nanochat": ("NanoChatForCausalLM", {}, 0),
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_of_the_stock_sizes_are_exact(name: str) -> None:
    kind, settings, published = COUNTS[name]
    stock = getattr(transformers, kind)
    config = stock.config_class(**settings)
    with torch.device("meta"):
        theirs = sum(p.numel() for p in stock(config).parameters())
        model = Transformer(read_config(config.to_dict()), [Head("lm")])
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == theirs
    assert published in (0, theirs)
