"""Encoder-decoder families: logits and gradients equal those of `transformers` on tiny models, every tensor random."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from unmask.model.interop import export_hf, load_hf

from .helpers import VOCABULARY, close, logits_of, perturb
from .test_parity import gradients, records, stock_arguments

transformers = pytest.importorskip("transformers")

BART: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 56,
    "decoder_ffn_dim": 56,
    "max_position_embeddings": 24,
}
T5 = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 12, "d_ff": 56, "num_layers": 2, "num_heads": 4}
SWITCH = {**T5, "num_layers": 4, "num_decoder_layers": 4, "num_experts": 3}
SWITCH |= {"num_sparse_encoder_layers": 2, "num_sparse_decoder_layers": 2}
GEMMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "query_pre_attn_scalar": 20,
    "sliding_window": 4,
    "attn_logit_softcapping": 3.0,
    "final_logit_softcapping": 5.0,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": ("BartForConditionalGeneration", BART),
    "bart-scaled": ("BartForConditionalGeneration", {**BART, "scale_embedding": True, "activation_function": "relu"}),
    "mbart": ("MBartForConditionalGeneration", {**BART, "activation_function": "relu", "scale_embedding": True}),
    "marian": (
        "MarianMTModel",
        {**BART, "activation_function": "swish", "scale_embedding": True, "pad_token_id": 3, "eos_token_id": 0},
    ),
    "mt5": ("MT5ForConditionalGeneration", {**T5, "d_ff": 40}),
    "ul2": ("T5ForConditionalGeneration", {**T5, "feed_forward_proj": "gated-silu", "tie_word_embeddings": False}),
    "switch": ("SwitchTransformersForConditionalGeneration", {**SWITCH, "router_bias": True}),
    "switch-full": ("SwitchTransformersForConditionalGeneration", {**SWITCH, "expert_capacity": 4}),
    "switch-dense": (
        "SwitchTransformersForConditionalGeneration",
        {**SWITCH, "num_sparse_encoder_layers": 4, "num_sparse_decoder_layers": 4, "tie_word_embeddings": True},
    ),
    "t5gemma": (
        "T5GemmaForConditionalGeneration",
        {
            "vocab_size": VOCABULARY,
            "encoder": {**GEMMA, "num_hidden_layers": 2},
            "decoder": {**GEMMA, "num_hidden_layers": 3},
        },
    ),
}


def stock_model(name: str, path: Path) -> Any:
    """The stock model, random throughout (a buffer that is a bias, too), and its directory."""
    kind, settings = CASES[name]
    stock = getattr(transformers, kind)
    torch.manual_seed(0)  # the stock class draws from the global generator
    model = stock(stock.config_class(**settings, attn_implementation="eager")).eval()
    if name == "ul2":  # version 5 ties while building, whatever is asked
        model.lm_head.weight = torch.nn.Parameter(model.get_input_embeddings().weight.detach().clone())
    perturb(model)
    if hasattr(model, "final_logits_bias") and name != "mbart":
        model.final_logits_bias.normal_(generator=torch.Generator().manual_seed(1))
    if name == "marian":
        for stack in (model.model.encoder, model.model.decoder):  # sinusoids are no parameters of the family
            stack.embed_positions.weight.copy_(stack.embed_positions.create_weight())
    model.save_pretrained(path)
    return model


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_equals_transformers(name: str, explicit: bool, tmp_path: Path) -> None:
    with torch.no_grad():
        stock = stock_model(name, tmp_path)
    model, report = load_hf(tmp_path)
    assert report.new == () and report.unused == ()
    batch = records("causal", encdec=True)
    real = batch.stream.block != 0
    theirs = stock(**stock_arguments(batch, None)).logits[real]
    ours = logits_of(model, model(batch, explicit=explicit)["stream"])[real]
    assert close(ours, theirs)

    direction = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(3))
    (ours * direction).sum().backward()
    (theirs * direction).sum().backward()
    found = gradients(model)
    held = dict(stock.named_parameters())
    norms = {n: float(p.grad.norm()) for n, p in held.items() if p.grad is not None}
    compared = 0
    for tensor, parameter in held.items():
        if parameter.grad is not None and tensor in found:
            assert close(found[tensor], parameter.grad, absolute=1e-6 * max(norms.values())), tensor
            compared += 1
    assert compared == len(norms)


@pytest.mark.parametrize("name", CASES)
def test_an_export_is_loaded_by_the_stock_class_and_comes_back_the_same(name: str, tmp_path: Path) -> None:
    with torch.no_grad():
        stock = stock_model(name, tmp_path / "stock")
        model, _ = load_hf(tmp_path / "stock")
        assert export_hf(model, tmp_path / "ours", {"pad": 0, "bos": 1, "eos": 2}) == ()
        again, info = type(stock).from_pretrained(
            tmp_path / "ours", output_loading_info=True, attn_implementation="eager"
        )
        assert not info["missing_keys"] and not info["unexpected_keys"]
        batch = records("causal", encdec=True)
        real = batch.stream.block != 0
        arguments = stock_arguments(batch, None)
        assert torch.equal(again.eval()(**arguments).logits[real], stock(**arguments).logits[real])
        back, report = load_hf(tmp_path / "ours")
    assert back.config == model.config and report.new == () and report.unused == ()
    for ours, theirs in zip(model.state_dict().values(), back.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)
