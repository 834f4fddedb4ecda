"""Logits and gradients equal those of `transformers` on tiny models whose every tensor is random.

Every family, with padding; ‖a − b‖ ≤ 1e-5 · ‖b‖ for logits at real positions, and for each tensor's gradient the
same + 1e-6 × the largest gradient norm (the gradient of an attention key's bias is zero but for rounding).
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from unmask.batch import Batch
from unmask.model.interop import _theirs, load_hf
from unmask.model.transformer import Transformer
from unmask.model.translate import family_of, known_heads

from .helpers import VOCABULARY, close, laid, logits_of, one_text, perturb, tokens_of

transformers = pytest.importorskip("transformers")

BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 56,
    "max_position_embeddings": 24,
}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 24}
LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 56,
}
T5 = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 12, "d_ff": 56, "num_layers": 2, "num_heads": 4}
T5["num_decoder_layers"] = 3
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", BERT),
    "bert-pretraining": ("BertForPreTraining", {**BERT, "hidden_act": "gelu_new"}),
    "bert-untied": ("BertForMaskedLM", {**BERT, "tie_word_embeddings": False}),
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2-relu": ("GPT2LMHeadModel", {**GPT2, "activation_function": "relu", "scale_attn_weights": False}),
    "llama": ("LlamaForCausalLM", LLAMA),
    "llama-tied": ("LlamaForCausalLM", {**LLAMA, "head_dim": 12, "attention_bias": True, "tie_word_embeddings": True}),
    "t5-1.0": ("T5ForConditionalGeneration", T5),
    "t5-1.1": (
        "T5ForConditionalGeneration",
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "relative_attention_num_buckets": 8},
    ),
}


def saved(name: str, path: Path) -> Any:
    """The stock model, random throughout, and its directory."""
    kind, settings = CASES[name]
    stock = getattr(transformers, kind)
    torch.manual_seed(0)  # the stock class draws from the global generator
    model = stock(stock.config_class(**settings, attn_implementation="eager")).eval()
    if name == "t5-1.1":  # version 5 ties while building, whatever is asked, and unties only while loading
        model.lm_head.weight = torch.nn.Parameter(model.shared.weight.detach().clone())
        model.config.tie_word_embeddings = False
    perturb(model).save_pretrained(path)
    return model


def records(pattern: Any, encdec: bool) -> Batch:
    """Two rows of lengths 9 and 14, right-padded to 14; a source of lengths 11 and 6."""
    tokens = tokens_of(2, 14)
    stream = laid([one_text(tokens[0][:9], pattern), one_text(tokens[1], pattern)], [[0], [1]], 14)
    other = tokens_of(2, 11, seed=1)
    source = laid([one_text(other[0], "full"), one_text(other[1][:6], "full")], [[0], [1]], 11)
    return Batch(stream, {}, {}, source if encdec else None)


def stock_arguments(batch: Batch, types: Tensor | None) -> dict[str, Tensor]:
    tokens, real = batch.stream.tokens.long(), (batch.stream.block != 0).long()
    if batch.source is None:
        arguments = {"input_ids": tokens, "attention_mask": real}
        return arguments if types is None else {**arguments, "token_type_ids": types.long()}
    return {
        "input_ids": batch.source.tokens.long(),
        "attention_mask": (batch.source.block != 0).long(),
        "decoder_input_ids": tokens,
        "decoder_attention_mask": real,
    }


def gradients(model: Transformer) -> dict[str, Tensor]:
    """Our gradients under the family's names."""
    held, family = copy.deepcopy(model), family_of(model.config)
    heads = known_heads(model.declared, family)
    with torch.no_grad():
        for copied in held.parameters():
            copied.zero_()
        shift = _theirs(held, family, heads)[0]  # what a form adds (Gemma's norms are 1 + weight) is no gradient
        for ours, copied in zip(model.parameters(), held.parameters(), strict=True):
            copied.copy_(torch.zeros_like(ours) if ours.grad is None else ours.grad)
        return {name: tensor - shift[name] for name, tensor in _theirs(held, family, heads)[0].items()}


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_equals_transformers(name: str, explicit: bool, tmp_path: Path) -> None:
    stock = saved(name, tmp_path)
    model, report = load_hf(tmp_path)
    assert report.new == () and report.unused == ()
    bert, encdec = name.startswith("bert"), name.startswith("t5")
    batch = records("full" if bert else "causal", encdec)
    real = batch.stream.block != 0
    if bert:
        types = (batch.stream.positions > 4).to(torch.int32)
        batch = Batch(replace(batch.stream, token_type=types), {}, {})
    out = stock(**stock_arguments(batch, types if bert else None))
    theirs = (out.prediction_logits if "prediction_logits" in out else out.logits)[real]
    states = model(batch, explicit=explicit)["stream"]
    ours = logits_of(model, states)[real]
    assert close(ours, theirs)

    direction = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(3))
    loss, their_loss = (ours * direction).sum(), (theirs * direction).sum()
    if "nsp" in model.heads:
        head = model.heads["nsp"]
        logits = head.project(head.features(states[:, :1]))
        assert close(logits, out.seq_relationship_logits)
        loss, their_loss = loss + logits[:, 0].sum(), their_loss + out.seq_relationship_logits[:, 0].sum()
    loss.backward()
    their_loss.backward()
    found = gradients(model)
    norms = {n: float(p.grad.norm()) for n, p in stock.named_parameters() if p.grad is not None}
    for tensor, parameter in stock.named_parameters():
        if parameter.grad is not None:
            assert close(found[tensor], parameter.grad, absolute=1e-6 * max(norms.values())), tensor
    assert len(norms) >= len(found) - 1  # BERT's decoder bias is one parameter under two names
