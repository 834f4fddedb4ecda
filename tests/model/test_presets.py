"""Presets against the configurations and the models of the common library."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from unmask.batch import Batch, Head
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model.presets import PRESETS, preset, preset_config, preset_heads
from unmask.model.spec import parameters
from unmask.model.transformer import Transformer
from unmask.model.translate import read_config

from .helpers import stream_of

BASE_OF_DEBERTA: dict[str, Any] = {
    "relative_attention": True,
    "position_biased_input": False,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
}
T5_BASE: dict[str, Any] = {"d_model": 768, "num_layers": 12, "num_heads": 12}
V11: dict[str, Any] = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
LARGE: dict[str, Any] = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
SMALL_BART: dict[str, Any] = {"d_model": 768, "vocab_size": 50265, "attention_dropout": 0.1} | {
    f"{side}_{key}": value
    for side in ("encoder", "decoder")
    for key, value in {"layers": 6, "attention_heads": 12, "ffn_dim": 3072}.items()
}
# preset → class of configuration, what differs from its defaults (as the checkpoint's config.json says), class of model
THEIRS: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert-base": ("Bert", {}, "ForPreTraining"),
    "bert-large": ("Bert", {**LARGE, "intermediate_size": 4096}, "ForPreTraining"),
    "roberta-base": ("Roberta", {"max_position_embeddings": 514, "layer_norm_eps": 1e-5, "type_vocab_size": 1}, ""),
    "albert-base": (
        "Albert",
        {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
        "ForPreTraining",
    ),
    "electra-small-generator": ("Electra", {}, ""),
    "electra-small-discriminator": ("Electra", {}, "ForPreTraining"),
    "deberta-v2-xlarge": ("DebertaV2", {**BASE_OF_DEBERTA, "conv_kernel_size": 3, "conv_act": "gelu"}, ""),
    "deberta-v3-base": (
        "DebertaV2",
        {**BASE_OF_DEBERTA, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
        | {"intermediate_size": 3072},
        "",
    ),
    "xlnet-base": ("XLNet", {"d_model": 768, "n_layer": 12, "n_head": 12, "d_inner": 3072}, "LMHeadModel"),
    "modernbert-base": ("ModernBert", {}, ""),
    "spanbert-base": ("Bert", {"vocab_size": 28996}, ""),
    "distilbert-base": ("DistilBert", {}, ""),
    "gpt1": ("OpenAIGPT", {}, "LMHeadModel"),
    "gpt2": ("GPT2", {}, "LMHeadModel"),
    "llama-7b": ("Llama", {}, "ForCausalLM"),
    "llama2-7b": ("Llama", {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}, "ForCausalLM"),
    "pythia-160m": (
        "GPTNeoX",
        {"vocab_size": 50304, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
        | {"intermediate_size": 3072},
        "ForCausalLM",
    ),
    "bloom-560m": ("Bloom", {"hidden_size": 1024, "n_layer": 24, "n_head": 16}, "ForCausalLM"),
    "mixtral-8x7b": ("Mixtral", {"max_position_embeddings": 32768, "router_aux_loss_coef": 0.02}, "ForCausalLM"),
    "deepseek-v3": ("DeepseekV3", {}, "ForCausalLM"),
    "bart-base": ("Bart", SMALL_BART, "ForConditionalGeneration"),
    "mbart-large": ("MBart", {"vocab_size": 250027, "scale_embedding": True}, "ForConditionalGeneration"),
    "transformer-2017-base": (
        "Marian",
        {"vocab_size": 37000, "decoder_vocab_size": 37000, "d_model": 512, "max_position_embeddings": 512}
        | {f"{side}_layers": 6 for side in ("encoder", "decoder")}
        | {f"{side}_attention_heads": 8 for side in ("encoder", "decoder")}
        | {f"{side}_ffn_dim": 2048 for side in ("encoder", "decoder")}
        | {"activation_function": "relu", "scale_embedding": True, "pad_token_id": 0},
        "MTModel",
    ),
    "t5-small": ("T5", {}, "ForConditionalGeneration"),
    "t5-base": ("T5", {**T5_BASE, "d_ff": 3072}, "ForConditionalGeneration"),
    "t5-1.1-base": ("T5", {**T5_BASE, **V11, "scale_decoder_outputs": False}, "ForConditionalGeneration"),
    "mt5-small": ("MT5", V11, "ForConditionalGeneration"),
    "ul2": (
        "T5",
        {"d_model": 4096, "d_kv": 256, "d_ff": 16384, "num_layers": 32, "num_heads": 16, "num_decoder_layers": 32}
        | {"feed_forward_proj": "gated-silu", "tie_word_embeddings": False, "scale_decoder_outputs": False},
        "ForConditionalGeneration",
    ),
    "switch-base-8": (
        "SwitchTransformers",
        {"d_ff": 3072, "num_sparse_encoder_layers": 6, "num_sparse_decoder_layers": 6},
        "ForConditionalGeneration",
    ),
    "t5gemma-2b-2b": ("T5Gemma", {}, "ForConditionalGeneration"),
}
# fields that a preset takes from the paper and config.json does not say, or says otherwise
OURS: dict[str, set[str]] = {
    # its capacity is a number of tokens, its coefficient another one: no stock class holds the paper's
    "switch-base-8": {"experts", "family"},
    "deepseek-v3": {"experts"},  # the library has no loss there
}
# what their parameters and ours count apart: a preset → theirs minus ours
APART = {
    "spanbert-base": None,  # the boundary head is not theirs
    "deepseek-v3": -58 * 256,  # the biases that choose experts are a buffer there
    "transformer-2017-base": 2 * 512 * 512,  # its sinusoids are parameters without a gradient
    # the library ties T5's head whatever config.json says; the checkpoints have one of its own
    "t5-1.1-base": -32128 * 768,
    "mt5-small": -250112 * 512,
    "ul2": -32128 * 4096,
}


def theirs(name: str) -> Any:
    kind, settings, _ = THEIRS[name]
    return getattr(transformers, f"{kind}Config")(**settings)


@pytest.mark.parametrize("name", [n for n in THEIRS if APART.get(n, 0) is not None])
def test_a_preset_has_the_parameters_of_the_stock_model(name: str) -> None:
    kind, _, model = THEIRS[name]
    with torch.device("meta"):
        stock = getattr(transformers, kind + (model or "ForMaskedLM"))(theirs(name))
    count = sum(p.numel() for p in stock.parameters())
    assert count - parameters(preset_config(name), preset_heads(name)) == (APART.get(name) or 0)


@pytest.mark.parametrize("name", THEIRS)
def test_a_preset_says_what_the_stock_configuration_says(name: str) -> None:
    config = preset_config(name)
    kind, _, model = THEIRS[name]
    # as config.json says it: the library's T5 forgets tie_word_embeddings, its DeBERTa conv_act
    stock = {**theirs(name).to_dict(), **THEIRS[name][1], "architectures": [kind + model]}
    read, own = _resolved(read_config(stock)), _resolved(config)
    assert {k: (v, read[k]) for k, v in own.items() if v != pytest.approx(read[k]) and k not in _free(name)} == {}


def _free(name: str) -> set[str]:
    """Fields whose value config.json leaves open, or that do nothing here."""
    config = preset_config(name)
    unbounded = {"max_position"} if config.positions in ("t5", "xlnet") else set()
    return unbounded | OURS.get(name, set()) | (set() if config.convolution else {"convolution_activation"})


def _resolved(config: ModelConfig) -> dict[str, Any]:
    """Values with those filled in that follow from others."""
    values = config.model_dump()
    values |= {"num_kv_heads": config.kv_heads, "head_size": config.size_per_head, "attention_scale": config.scale}
    values |= {"intermediate_size": config.mlp_size, "attention_out_bias": config.out_bias}
    values |= {"embedding_size": config.table_size, "head_activation": config.head_activation or config.activation}
    values["attention_pattern"] = [config.local(depth) for depth in range(config.num_layers)]
    values |= {"rotary_local_base": config.rotary_local_base or config.rotary_base}
    return values


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_model_that_learns(name: str) -> None:
    """Shrunk to two layers of a narrow model, with all its switches, a gradient reaches every parameter."""
    small = {"vocab_size": 60, "hidden_size": 32, "num_heads": 4, "intermediate_size": 48, "head_size": 8}
    values = {**preset(name), **small, "num_layers": 2, "max_position": 32}
    values |= {"num_source_layers": 2} if values.get("num_source_layers") else {}
    values |= {"num_kv_heads": 2} if values.get("num_kv_heads") else {}
    values |= {"embedding_size": 16} if values.get("embedding_size") else {}
    if "experts" in values:
        values["experts"] = {**values["experts"], "count": 8, "per_token": 2, "groups": 1, "groups_kept": 1}
        values["experts"] |= {"first_dense": 0, "capacity_factor": None}
    if "latent" in values:
        values["latent"] = {"query_rank": 8, "key_rank": 8, "rotary_size": 4, "value_size": 8}
    config = ModelConfig.model_validate({**values, "zero_init_projections": False})
    model = Transformer(config, preset_heads(name))
    source = stream_of(3, 8, "full") if config.num_source_layers else None
    stream = stream_of(3, 12, "causal" if config.visibility == "causal" else "full")
    types = 2 if config.positions == "xlnet" else max(config.token_types, 1)
    stream = replace(stream, token_type=torch.arange(12).expand(3, 12) % types)
    states = model(Batch(stream, {}, {}, source))["stream"].flatten(0, 1)
    loss = states.new_zeros(())
    for name_, module in model.heads.items():
        read = states[:, None].expand(-1, model.declared[name_].arity, -1)
        extra = torch.arange(len(states)) % 10
        loss = loss + module.project(module.features(read, extra)).sin().sum()
    loss.backward()
    silent = {n for n, p in model.named_parameters() if p.requires_grad and p.grad is None}
    assert torch.isfinite(loss) and silent <= {"query"}, silent


def test_a_preset_may_be_changed_and_an_unknown_one_names_the_nearest() -> None:
    values = preset("mixtral-8x7b")
    values["experts"]["count"] = 3
    assert preset("mixtral-8x7b")["experts"]["count"] == 8
    with pytest.raises(UserError, match=r"no preset 'bert-bsae' .*did you mean 'bert-base'"):
        preset("bert-bsae")
    assert preset_heads("gpt2") == (Head("lm"),)


def test_the_small_modern_ones_leave_the_vocabulary_to_the_tokenizer() -> None:
    small = [name for name in PRESETS if not preset_config(name).vocab_size]
    assert small == ["modern-decoder", "modern-encoder", "modern-encdec", "fixed-data"]
    for name in small:
        body = parameters(preset_config(name))  # without any table
        assert 5e6 < body < 40e6, name
