"""Decoder families: logits and gradients equal those of `transformers` on tiny models whose every tensor is random.

A family is an entry of `CASES`; every test below runs over all of them.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask.batch import Batch, Head, Stream
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model.attention import Cache
from unmask.model.interop import check_export, export_hf, load_hf
from unmask.model.transformer import Transformer
from unmask.model.translate import concrete, family_of, known_heads, read_config

from .helpers import VOCABULARY, close, laid, logits_of, one_text, perturb, tokens_of

transformers = pytest.importorskip("transformers")

GPT1 = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 24}
NEO = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_layers": 3,
    "num_heads": 4,
    "max_position_embeddings": 24,
    "attention_types": [[["global", "local"], 1], [["local"], 1]],
    "window_size": 4,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
NEOX = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 56,
    "rotary_pct": 0.5,
    "rotary_emb_base": 500,
}
BLOOM = {"vocab_size": VOCABULARY, "hidden_size": 36, "n_layer": 2, "n_head": 6}  # slopes of no power of two
LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 56,
}
QWEN3 = {**LLAMA, "head_dim": 12}
SLIDING = {"use_sliding_window": True, "sliding_window": 4}
MIXTRAL = {**LLAMA, "num_local_experts": 4, "router_aux_loss_coef": 0.02}
DEEPSEEK = {
    **LLAMA,
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "q_lora_rank": 10,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 6,
    "v_head_dim": 7,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "moe_intermediate_size": 12,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
}
TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt1": ("OpenAIGPTLMHeadModel", GPT1),
    "gpt1-untied": ("OpenAIGPTLMHeadModel", {**GPT1, **UNTIED, "afn": "relu"}),
    "neo": ("GPTNeoForCausalLM", NEO),
    "neo-untied": (
        "GPTNeoForCausalLM",
        {**NEO, **UNTIED, "attention_types": [[["global"], 3]], "intermediate_size": 40, "activation_function": "relu"},
    ),
    "neox": ("GPTNeoXForCausalLM", NEOX),
    "neox-tied": (
        "GPTNeoXForCausalLM",
        {**NEOX, **TIED, "use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_new"},
    ),
    "bloom": ("BloomForCausalLM", BLOOM),
    "bloom-untied": ("BloomForCausalLM", {**BLOOM, **UNTIED, "n_head": 4}),
    "mistral": ("MistralForCausalLM", {**LLAMA, "sliding_window": 4}),
    "mistral-tied": ("MistralForCausalLM", {**LLAMA, **TIED, "sliding_window": None, "head_dim": 12}),
    "qwen3": ("Qwen3ForCausalLM", QWEN3),
    "qwen3-tied": (
        "Qwen3ForCausalLM",
        {**QWEN3, **TIED, **SLIDING, "num_hidden_layers": 3, "max_window_layers": 1, "attention_bias": True},
    ),
    "mixtral": ("MixtralForCausalLM", MIXTRAL),
    "mixtral-tied": (
        "MixtralForCausalLM",
        {**MIXTRAL, **TIED, "sliding_window": 4, "num_experts_per_tok": 3, "head_dim": 12},
    ),
    "deepseek": ("DeepseekV3ForCausalLM", DEEPSEEK),
    "deepseek-tied": (
        "DeepseekV3ForCausalLM",
        {**DEEPSEEK, **TIED, "q_lora_rank": None, "attention_bias": True, "norm_topk_prob": False, "n_group": 1}
        | {"topk_group": 1, "first_k_dense_replace": 0},
    ),
    "nanochat": ("NanoChatForCausalLM", LLAMA),
    "nanochat-tied": (
        "NanoChatForCausalLM",
        {
            **LLAMA,
            **TIED,
            "attention_bias": True,
            "final_logit_softcapping": None,
            "hidden_act": "gelu",
            "head_dim": 12,
        },
    ),
    "llama-old-rope": ("LlamaForCausalLM", {**LLAMA, "rope_theta": 500.0, "mlp_bias": True}),
}
IDS = {"pad": 0, "bos": 2, "eos": 3}


@torch.no_grad()
def saved(name: str, path: Path) -> Any:
    """The stock model, random throughout (a buffer of weights too), and its directory."""
    kind, settings = CASES[name]
    stock = getattr(transformers, kind)
    torch.manual_seed(0)  # the stock class draws from the global generator
    model = perturb(stock(stock.config_class(**settings, attn_implementation="eager")).eval())
    for buffer, tensor in model.named_buffers():
        if buffer.endswith("e_score_correction_bias"):
            tensor.normal_(0, 0.3, generator=torch.Generator().manual_seed(1))
    model.save_pretrained(path)
    return model


def ragged(lengths: Sequence[int] = (9, 14), width: int = 14, left: bool = False) -> Stream:
    texts = [one_text(row[:n], "causal") for row, n in zip(tokens_of(len(lengths), width), lengths, strict=True)]
    return laid(texts, [[i] for i in range(len(lengths))], width, left)


def gradients(model: Transformer) -> dict[str, Tensor]:
    """Our gradients under the family's names, the other names of each tensor among them."""
    held = copy.deepcopy(model)
    with torch.no_grad():
        for ours, copied in zip(model.parameters(), held.parameters(), strict=True):
            copied.copy_(torch.zeros_like(ours) if ours.grad is None else ours.grad)
    family, state, out = family_of(model.config), held.state_dict(), {}
    for row in concrete(family, model.config, known_heads(model.declared, family)):
        if row.ours in state:
            out.update(zip(row.theirs, row.form.save(state[row.ours], model.config), strict=True))
            out.update({name: state[row.ours] for name in row.also})
    return out


def in_files(name: str, model: Transformer) -> str:
    """The name of a parameter of the stock class in our table."""
    for there, ours in family_of(model.config).renames.items():
        name = name.replace(there, ours)
    return name


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_equals_transformers(name: str, explicit: bool, tmp_path: Path) -> None:
    stock = saved(name, tmp_path)
    model, report = load_hf(tmp_path)
    assert report.new == () and report.unused == ()
    assert model.config.tied_head is stock.config.tie_word_embeddings
    stream = ragged()
    real = stream.block != 0
    theirs = stock(input_ids=stream.tokens.long(), attention_mask=real.long()).logits[real]
    ours = logits_of(model, model(Batch(stream, {}, {}), explicit=explicit)["stream"])[real]
    assert close(ours, theirs)

    direction = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(3))
    (ours * direction).sum().backward()
    (theirs * direction).sum().backward()
    found = gradients(model)
    norms = {n: float(p.grad.norm()) for n, p in stock.named_parameters() if p.grad is not None}
    assert norms.keys() == dict(stock.named_parameters()).keys() and min(norms.values()) > 0
    for tensor, parameter in stock.named_parameters():
        mine = found[in_files(tensor, model)]
        assert close(mine, parameter.grad, absolute=1e-6 * max(norms.values())), tensor
    trained = [p for p in model.parameters() if p.requires_grad]
    assert sum(p.numel() for p in trained) == sum(p.numel() for p in stock.parameters())


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_padding_on_the_left_and_packed_rows_change_nothing(name: str, explicit: bool, tmp_path: Path) -> None:
    """Left padding: ours, and theirs with positions. Packed: three texts in two rows equal each alone."""
    stock = saved(name, tmp_path)
    model, _ = load_hf(tmp_path)
    right, left = ragged(), ragged(left=True)
    real, other = right.block != 0, left.block != 0

    def ours(stream: Stream) -> Tensor:
        return logits_of(model, model(Batch(stream, {}, {}), explicit=explicit)["stream"])

    assert close(ours(left)[other], ours(right)[real])
    positions = {} if name.startswith("bloom") else {"position_ids": left.positions.long()}  # BLOOM counts its mask
    theirs = stock(input_ids=left.tokens.long(), attention_mask=other.long(), **positions).logits
    assert close(ours(left)[other], theirs[other])

    texts = [one_text(row[:n], "causal") for row, n in zip(tokens_of(3, 12), (5, 12, 8), strict=True)]
    packed = ours(laid(texts, [[0, 2], [1]], 14))
    alone = ours(laid(texts, [[0], [1], [2]], 12))
    assert close(packed[0, :5], alone[0, :5]) and close(packed[0, 5:13], alone[2, :8])
    assert close(packed[1, :12], alone[1])


def resolved(config: ModelConfig) -> ModelConfig:
    """Sizes that are left open, filled in."""
    sizes = {"num_kv_heads": config.kv_heads, "head_size": config.size_per_head, "intermediate_size": config.mlp_size}
    return config.model_copy(update=sizes)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_an_export_is_loaded_by_the_stock_class_and_comes_back_the_same(name: str, tmp_path: Path) -> None:
    """Logits bit for bit, nothing missing or unexpected, tied stays one tensor (in the file too), and untied two."""
    stock = saved(name, tmp_path / "stock")
    model, _ = load_hf(tmp_path / "stock")
    assert export_hf(model, tmp_path / "a", IDS) == ()
    again, info = type(stock).from_pretrained(tmp_path / "a", output_loading_info=True, attn_implementation="eager")
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    stream = ragged()
    arguments = {"input_ids": stream.tokens.long(), "attention_mask": (stream.block != 0).long()}
    assert torch.equal(again.eval()(**arguments).logits, stock(**arguments).logits)
    assert check_export(model, tmp_path / "a") < 1e-4

    tied = stock.config.tie_word_embeddings
    output, table = again.get_output_embeddings().weight, again.get_input_embeddings().weight
    assert (output.data_ptr() == table.data_ptr()) is tied
    files = [load_file(tmp_path / d / "model.safetensors") for d in ("stock", "a")]
    assert files[0].keys() == files[1].keys()
    assert all(torch.equal(tensor, files[1][n]) for n, tensor in files[0].items())
    assert tied is not any(n.startswith(("lm_head", "embed_out")) for n in files[1])

    back, report = load_hf(tmp_path / "a")
    assert report.new == () and report.unused == () and resolved(back.config) == resolved(model.config)
    assert (back.heads["lm"].weight is back.embedding.weight) is tied
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), back.parameters(), strict=True))
    same = [m(Batch(stream, {}, {}))["stream"] for m in (model, back)]
    assert torch.equal(*same)
    export_hf(back, tmp_path / "b", IDS)
    assert (tmp_path / "a" / "config.json").read_text() == (tmp_path / "b" / "config.json").read_text()


@pytest.mark.parametrize("name", [n for n in CASES if n != "llama-old-rope"])
def test_a_model_of_no_named_family_goes_to_the_one_that_holds_it(name: str) -> None:
    kind, settings = CASES[name]
    stock = getattr(transformers, kind).config_class(**settings)
    config = read_config(stock.to_dict())
    found = family_of(config.model_copy(update={"family": "unmask"})).name
    same = {"mistral-tied": "llama", "neo-untied": "gpt_neo"}  # without a window Mistral is a Llama
    assert found == same.get(name, stock.model_type)


def test_bodies_without_a_head(tmp_path: Path) -> None:
    """A stock body saved alone has no prefix; a tied table is a head of its own."""
    for name in ("gpt1", "neo", "neox", "bloom", "mistral", "qwen3", "mixtral", "deepseek", "nanochat"):
        stock = saved(name, tmp_path / name)
        stock.base_model.save_pretrained(tmp_path / name / "body")
        model, report = load_hf(tmp_path / name / "body")
        assert report.new == () and report.unused == ()
        assert [h.name for h in report.heads] == (["lm"] if stock.config.tie_word_embeddings else [])
        whole = load_hf(tmp_path / name)[0].state_dict()
        assert all(torch.equal(tensor, whole[n]) for n, tensor in model.state_dict().items() if "heads" not in n)


@pytest.mark.parametrize("name", ["mixtral", "deepseek"])
def test_stacked_experts_in_a_file_are_read_too(name: str, tmp_path: Path) -> None:
    """The names and shapes of version 5's memory, which `save_original_format=False` writes."""
    stock = saved(name, tmp_path)
    model, _ = load_hf(tmp_path)
    stock.save_pretrained(tmp_path / "new", save_original_format=False)
    names = load_file(tmp_path / "new" / "model.safetensors")
    assert any(n.endswith("experts.gate_up_proj") for n in names)
    again, report = load_hf(tmp_path / "new")
    assert report.new == () and report.unused == ()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_pythias_output_table_has_two_names(tmp_path: Path) -> None:
    saved("neox", tmp_path)
    model, _ = load_hf(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors.pop("embed_out.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    assert torch.equal(load_hf(tmp_path)[0].heads["lm"].weight, model.heads["lm"].weight)


@pytest.mark.parametrize("name", [n for n in CASES if not n.endswith(("tied", "rope"))])
def test_every_tensor_of_a_file_is_needed(name: str, tmp_path: Path) -> None:
    saved(name, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for out in tensors.keys() - {"lm_head.weight", "embed_out.weight"}:  # without its table there is no head
        save_file({k: v for k, v in tensors.items() if k != out}, tmp_path / "model.safetensors")
        with pytest.raises(UserError, match=f"(lacks|first missing:) {re.escape(out)}"):
            load_hf(tmp_path)


def test_the_balance_loss_is_mixtrals(tmp_path: Path) -> None:
    """router_aux_loss_coef weighs a loss that counts each of a token's k choices; ours counts shares: k times it."""
    kind, settings = CASES["mixtral"]
    one = {**settings, "num_hidden_layers": 1}  # theirs joins layers before the product
    stock = getattr(transformers, kind)
    torch.manual_seed(0)
    model = perturb(stock(stock.config_class(**one)).eval())
    model.save_pretrained(tmp_path)
    ours, _ = load_hf(tmp_path)
    stream = ragged()
    arguments = {"input_ids": stream.tokens.long(), "attention_mask": (stream.block != 0).long()}
    with torch.no_grad():
        theirs = model(**arguments, output_router_logits=True, labels=arguments["input_ids"]).aux_loss
        balance = ours(Batch(stream, {}, {}))["router"][0]
    assert ours.config.experts is not None
    assert close(ours.config.experts.balance_loss * balance, 0.02 * theirs)


# ---------------------------------------------------------------- decoding with a cache


def picked(stream: Stream, places: Sequence[range]) -> Stream:
    """Other positions of each row, right-padded with block 0."""
    width = max(len(p) for p in places)
    index = torch.tensor([[*p, *[0] * (width - len(p))] for p in places])
    real = torch.tensor([[1] * len(p) + [0] * (width - len(p)) for p in places], dtype=torch.int32)
    part = stream.map(lambda a: a.gather(1, index))
    return replace(part, block=part.block * real)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_cached_decoding_equals_full(name: str, tmp_path: Path) -> None:
    """Prompts of unequal length, then token by token, then two at once; fp64."""
    saved(name, tmp_path)
    model = load_hf(tmp_path)[0].double()
    lengths, prompts = (9, 12, 7), (4, 6, 3)
    stream = ragged(lengths, 12)
    full = model.decode(stream)
    cache, found = Cache(), torch.zeros_like(full)
    steps = [[range(p) for p in prompts], *([range(p + i, p + i + 1) for p in prompts] for i in range(3))]
    steps += [[range(p + 3, min(p + 5, n)) for p, n in zip(prompts, lengths, strict=True)]]
    for step in steps:
        out = model.decode(picked(stream, step), cache=cache)
        for r, places in enumerate(step):
            found[r, list(places)] = out[r, : len(places)]
    for r, (p, n) in enumerate(zip(prompts, lengths, strict=True)):
        end = min(p + 5, n)
        assert torch.allclose(found[r, :end], full[r, :end], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["neo", "mistral", "qwen3-tied", "mixtral-tied"])
@torch.no_grad()
def test_a_window_of_w_sees_w_tokens_with_the_query(name: str, tmp_path: Path) -> None:
    """One layer of the model, all local: token t depends on t - 3 and not on t - 4 (w = 4)."""
    kind, settings = CASES[name]
    more: dict[str, Any] = {"num_layers": 1, "attention_types": [[["local"], 1]]}
    more = more if name == "neo" else {"num_hidden_layers": 1, "max_window_layers": 0, "sliding_window": 4}
    config = getattr(transformers, kind).config_class(**{**settings, **more})
    model = Transformer(read_config(json.loads(config.to_json_string(use_diff=False))), [Head("lm")]).double()
    perturb(model)
    stream = ragged((12,), 12)
    before = model(Batch(stream, {}, {}))["stream"]
    tokens = stream.tokens.clone()
    tokens[0, 5] += 1
    after = model(Batch(replace(stream, tokens=tokens), {}, {}))["stream"]
    changed = ((before - after).abs() > 1e-9).any(-1)[0].nonzero().flatten().tolist()
    assert changed == [5, 6, 7, 8]
