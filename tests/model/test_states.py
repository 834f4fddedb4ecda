"""`lm.hidden` at every layer against the hidden states of stock classes, and where no stock class has any."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from unmask.batch import Batch, Head
from unmask.config import ModelConfig, TokenizerConfig
from unmask.errors import UserError
from unmask.lm import LM
from unmask.loading import load
from unmask.model.transformer import Transformer
from unmask.tokens.tokenizer import Tokenizer

from .helpers import model_of, perturb, stream_of

TEXT = "the cat sat on the mat"
COMMON: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 64,
}  # fmt: skip
DEBERTA = {
    "relative_attention": True, "pos_att_type": "p2c|c2p", "position_biased_input": False, "position_buckets": 8,
    "max_relative_positions": 32, "norm_rel_ebd": "layer_norm", "conv_kernel_size": 3, "conv_act": "gelu",
}  # fmt: skip
STOCK: dict[str, tuple[str, dict[str, Any]]] = {
    "deberta": ("DebertaV2ForMaskedLM", {**COMMON, **DEBERTA}),
    "albert": ("AlbertForMaskedLM", {**COMMON, "embedding_size": 16}),
    "albert-groups": ("AlbertForMaskedLM", {**COMMON, "embedding_size": 16, "num_hidden_groups": 3}),
    "electra": ("ElectraForMaskedLM", {**COMMON, "embedding_size": 16}),
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}),
    "llama": ("LlamaForCausalLM", {**COMMON, "num_key_value_heads": 2}),
    "t5": ("T5ForConditionalGeneration", {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 3, "num_heads": 4}),
}


@cache
def words() -> Tokenizer:
    return Tokenizer.train(
        TokenizerConfig(type="bbpe", vocab_size=300, sentinels=8), [f"{TEXT}, and a dog sat on the log. " * 4]
    )


@pytest.mark.parametrize("name", STOCK)
def test_every_layer_gives_what_the_stock_class_gives(name: str, tmp_path: Any) -> None:
    stock, settings = STOCK[name]
    kind = getattr(transformers, stock)
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    theirs = perturb(kind(kind.config_class(vocab_size=words().vocabulary.size, **settings, **ids)).eval())
    theirs.save_pretrained(tmp_path)
    words().save_hf(tmp_path, ("cls", "sep"))
    lm = load(tmp_path, device="cpu")
    read = lm._framed([words().encode(TEXT)]).tokens.long()
    body = theirs.encoder if name == "t5" else theirs
    with torch.no_grad():
        states = body(read, output_hidden_states=True).hidden_states
    ours = lm.hidden(TEXT, range(4))
    assert len(states) == 4
    for layer, (mine, other) in enumerate(zip(ours, states, strict=True)):
        assert torch.allclose(mine, other[0], atol=1e-5), layer
    assert not torch.allclose(ours[1], ours[2], atol=0.1)  # or the order would not matter


def lm_of(**settings: Any) -> LM:
    sizes = {"hidden_size": 32, "num_layers": 3, "num_heads": 4, "max_position": 64}
    config = ModelConfig(vocab_size=words().vocabulary.size, **{**sizes, **settings})
    return LM(perturb(Transformer(config, [Head("lm")])).eval(), 64, words())


def test_the_mask_decoders_last_layer_is_its_second_run() -> None:
    """Depth 3 of 3 is the decoded state, which heads read; the plain run of that layer is not there at all."""
    deberta = {"positions": "deberta", "visibility": "bidirectional", "norm_position": "post", "final_norm": False}
    lm = lm_of(**deberta, mask_decoder=True, relative_buckets=8, relative_max_distance=32)
    plain = lm_of(**deberta, relative_buckets=8, relative_max_distance=32)
    plain.network.load_state_dict(lm.network.state_dict(), strict=False)
    decoded, undecoded = lm.hidden(TEXT, range(4)), plain.hidden(TEXT, range(4))
    assert torch.equal(decoded[:3], undecoded[:3]) and not torch.allclose(decoded[3], undecoded[3], atol=1e-2)
    with torch.no_grad():
        final = lm.network(Batch(lm._framed([words().encode(TEXT)]), {}, {}))["stream"]
    assert torch.equal(decoded[3], final[0])


def test_residual_scalars_come_after_the_embeddings() -> None:
    lm = lm_of(residual_scalars=True, embedding_norm=True, norm="rms")
    stack, stream = lm.network.stack, lm._framed([words().encode(TEXT)])
    with torch.no_grad():
        placed = stack._place(lm.network._embed(stream), stream)
        final = lm.network(Batch(stream, {}, {}))["stream"]
    states = lm.hidden(TEXT, range(4))
    assert torch.equal(states[0], placed[0]) and torch.equal(states[3], final[0])
    assert stack.stream_scale is not None and abs(float(stack.stream_scale.detach()[0]) - 1) > 0.01


def test_states_are_kept_only_where_they_are_asked_for() -> None:
    network = model_of(num_source_layers=2)
    source, stream = stream_of(pattern="full"), stream_of(pattern="causal")
    of_source: list[Tensor] = []
    of_stream: list[Tensor] = []
    memory = network.encode(source, states=of_source)
    last = network.decode(stream, memory, source, states=of_stream)
    assert torch.equal(last, network(Batch(stream, {}, {}, source))["stream"])
    assert len(of_source) == len(of_stream) == 3
    assert torch.equal(of_source[-1], memory) and torch.equal(of_stream[-1], last)


def test_types_that_a_model_does_not_have_are_refused() -> None:
    ids, types = [[9, 10, 11]], [[0, 0, 1]]
    untyped = lm_of()
    with pytest.raises(UserError, match="no token types"):
        untyped.logits(ids, token_type_ids=types)
    assert torch.equal(untyped.logits(ids, token_type_ids=np.zeros((1, 3), int)), untyped.logits(ids))
    xlnet = {"positions": "xlnet", "query_vector": True, "visibility": "bidirectional"}
    for settings in ({"token_types": 2}, xlnet):
        typed = lm_of(**settings)
        assert not torch.allclose(typed.logits(ids, token_type_ids=types), typed.logits(ids), atol=1e-3)
    with pytest.raises(UserError, match="no token types"):
        lm_of(num_source_layers=1).logits(ids, token_type_ids=types, decoder_input_ids=ids)
