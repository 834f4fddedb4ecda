"""RoBERTa, ALBERT, ELECTRA, DistilBERT, ModernBERT and bare BERT against transformers, every tensor random.

As in test_parity: ‖a − b‖ ≤ 1e-5 · ‖b‖ for answers at real positions, and for each tensor's gradient the same
+ 1e-6 × the largest gradient norm.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from unmask.batch import Batch
from unmask.model.families import FAMILIES
from unmask.model.interop import export_hf, load_hf
from unmask.model.transformer import Transformer
from unmask.model.translate import family_of
from unmask.model.verify import check_export

from .helpers import VOCABULARY, close, laid, logits_of, one_text, perturb, tokens_of
from .test_parity import gradients

transformers = pytest.importorskip("transformers")

BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 56,
    "max_position_embeddings": 24,
}
NARROW = {**BERT, "embedding_size": 20}
DISTIL = {"vocab_size": VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 56}
DISTIL["max_position_embeddings"] = 24
MODERN = {**BERT, "num_hidden_layers": 4, "local_attention": 6, "pad_token_id": 0, "max_position_embeddings": 40}
BIASES = {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True}
ALL_GLOBAL = ["full_attention"] * 4
UNTIED = {"tie_word_embeddings": False}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert-body": ("BertModel", {**BERT, "hidden_act": "relu"}),
    "roberta": ("RobertaForMaskedLM", BERT),
    "roberta-pad-0": ("RobertaForMaskedLM", {**BERT, "pad_token_id": 0, "type_vocab_size": 1}),
    "roberta-pad-3": ("RobertaForMaskedLM", {**BERT, **UNTIED, "pad_token_id": 3}),
    "roberta-own-head": ("RobertaForMaskedLM", {**BERT, "hidden_act": "relu"}),  # whose head keeps its gelu
    "roberta-body": ("RobertaModel", BERT),
    "xlm-roberta": ("XLMRobertaForMaskedLM", BERT),
    "camembert": ("CamembertForMaskedLM", {**BERT, "layer_norm_eps": 1e-5}),
    "albert": ("AlbertForMaskedLM", NARROW),
    "albert-pretraining": ("AlbertForPreTraining", {**NARROW, "hidden_act": "gelu"}),
    "albert-groups": ("AlbertForMaskedLM", {**NARROW, **UNTIED, "num_hidden_layers": 4, "num_hidden_groups": 2}),
    "albert-body": ("AlbertModel", NARROW),
    "electra-generator": ("ElectraForMaskedLM", NARROW),
    "electra-generator-untied": ("ElectraForMaskedLM", {**NARROW, **UNTIED, "hidden_act": "relu"}),
    "electra-one-width": ("ElectraForMaskedLM", {**BERT, "embedding_size": 32}),
    "electra-discriminator": ("ElectraForPreTraining", NARROW),
    "electra-discriminator-silu": ("ElectraForPreTraining", {**BERT, "embedding_size": 32, "hidden_act": "silu"}),
    "electra-body": ("ElectraModel", NARROW),
    "distilbert": ("DistilBertForMaskedLM", DISTIL),
    "distilbert-sinusoidal": ("DistilBertForMaskedLM", {**DISTIL, **UNTIED, "sinusoidal_pos_embds": True}),
    "distilbert-body": ("DistilBertModel", {**DISTIL, "activation": "relu"}),
    "modernbert": ("ModernBertForMaskedLM", MODERN),
    "modernbert-biases": ("ModernBertForMaskedLM", {**MODERN, **BIASES, "hidden_activation": "silu"}),
    "modernbert-untied": ("ModernBertForMaskedLM", {**MODERN, **UNTIED, "decoder_bias": False}),
    "modernbert-global": ("ModernBertForMaskedLM", {**MODERN, "layer_types": ALL_GLOBAL}),
    "modernbert-body": ("ModernBertModel", {**MODERN, "classifier_activation": "relu"}),
}
IDS = {"bos": 2, "eos": 3}


def saved(name: str, path: Path) -> Any:
    """The stock model, random throughout, and its directory."""
    kind, settings = CASES[name]
    stock = getattr(transformers, kind)
    torch.manual_seed(0)  # the stock class draws from the global generator
    model = stock(stock.config_class(**settings, attn_implementation="eager")).eval()
    perturb(model).save_pretrained(path)
    return model


def batch_of(types: bool, packed: bool = False, left: bool = False) -> Batch:
    """Two rows of lengths 9 and 16; packed: the two in one row, and a third beside it."""
    tokens = tokens_of(3, 16)
    texts = [one_text(t, "full") for t in (tokens[0][:9], tokens[1], tokens[2][:13])]
    stream = laid(texts[:2], [[0], [1]], 16, left) if not packed else laid(texts, [[0, 1], [2]], 27, left)
    if types:
        stream = replace(stream, token_type=(stream.positions > 4).to(torch.int32))
    return Batch(stream, {}, {})


def theirs_of(stock: Any, batch: Batch, offset: int | None = None) -> dict[str, Tensor]:
    """What the stock model answers: lm, detect, pair or states. `offset` = pass positions, and what they start from."""
    stream = batch.stream
    arguments = {"input_ids": stream.tokens.long(), "attention_mask": (stream.block != 0).long()}
    if stream.token_type is not None:
        arguments["token_type_ids"] = stream.token_type.long()
    if offset is not None:
        arguments["position_ids"] = stream.positions.long() + offset
    accepted = inspect.signature(stock.forward).parameters
    assert arguments.keys() <= accepted.keys()
    out = stock(**arguments)
    found = {}
    for key, value in out.items():
        role = {"prediction_logits": "lm", "sop_logits": "pair", "last_hidden_state": "states"}.get(key)
        if key == "logits":
            role = "lm" if value.dim() == 3 else "detect"
        if role is not None:
            found[role] = value
    return found


def ours_of(model: Transformer, batch: Batch, explicit: bool | None = None) -> dict[str, Tensor]:
    states = model(batch, explicit=explicit)["stream"]
    found = {"states": states}
    for name, role in (("lm", "lm"), ("rtd", "detect"), ("sop", "pair")):
        if name not in model.heads:
            continue
        head = model.heads[name]
        if role == "pair":
            found[role] = head.project(head.features(states[:, :1]))
        elif role == "detect":
            found[role] = head.project(head.features(states.flatten(0, 1)[:, None])).view(states.shape[:2])
        else:
            found[role] = logits_of(model, states)
    return found


def real_of(role: str, answers: Tensor, batch: Batch) -> Tensor:
    return answers if role == "pair" else answers[batch.stream.block != 0]


def typed(model: Transformer) -> bool:
    return model.config.token_types > 1


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_equals_transformers(name: str, explicit: bool, tmp_path: Path) -> None:
    stock = saved(name, tmp_path)
    model, report = load_hf(tmp_path)
    unused = [n for n in report.unused if not n.split(".")[1].startswith("pooler")]  # of a body, which has no head
    assert report.new == () and unused == [] and (report.unused == () or name.endswith("body"))
    batch = batch_of(typed(model))
    theirs, ours = theirs_of(stock, batch), ours_of(model, batch, explicit)
    assert len(theirs) == (2 if name == "albert-pretraining" else 1)
    assert set(theirs) == (set(ours) - {"states"} or {"states"})
    loss, their_loss = torch.zeros(()), torch.zeros(())
    for role, answers in theirs.items():
        mine, other = real_of(role, ours[role], batch), real_of(role, answers, batch)
        assert close(mine, other)
        direction = torch.randn(other.shape, generator=torch.Generator().manual_seed(3))
        loss, their_loss = loss + (mine * direction).sum(), their_loss + (other * direction).sum()
    loss.backward()
    their_loss.backward()
    found = gradients(model)
    prefix = FAMILIES[model.config.family].prefix
    stored = {prefix + n if name.endswith("body") else n: p for n, p in stock.named_parameters(remove_duplicate=False)}
    norms = {n: float(p.grad.norm()) for n, p in stored.items() if p.grad is not None}
    for tensor, gradient in found.items():
        if (their := stored[tensor].grad) is None:  # untied, a decoder's bias has a copy that nothing reads
            assert tensor.endswith("bias") and f"{tensor[:-4]}decoder.bias" in found
        else:
            assert close(gradient, their, absolute=1e-6 * max(norms.values())), tensor
    copies = {n for n, p in stored.items() if p is stock.get_input_embeddings().weight}
    assert norms.keys() - found.keys() <= copies


@pytest.mark.parametrize("name", CASES)
def test_left_padding_equals_right_and_theirs_given_positions(name: str, tmp_path: Path) -> None:
    stock = saved(name, tmp_path)
    model, _ = load_hf(tmp_path)
    right, left = batch_of(typed(model)), batch_of(typed(model), left=True)
    offset = model.config.position_offset
    theirs, ours, before = theirs_of(stock, left, offset), ours_of(model, left), ours_of(model, right)
    for role, answers in theirs.items():
        if role == "pair":  # the stock class reads the first column, which is padding here
            continue
        mine = real_of(role, ours[role], left)
        assert close(mine, real_of(role, answers, left))
        assert close(mine, real_of(role, before[role], right))


@pytest.mark.parametrize(
    "name", ["bert-body", "roberta", "albert", "electra-discriminator", "distilbert", "modernbert"]
)
def test_packed_rows_equal_texts_alone(name: str, tmp_path: Path) -> None:
    saved(name, tmp_path)
    model, _ = load_hf(tmp_path)
    model.double()

    def by_text(batch: Batch) -> dict[tuple[int, ...], Tensor]:
        states, stream = ours_of(model, batch)["states"], batch.stream
        return {
            tuple(stream.tokens[row, stream.block[row] == block].tolist()): states[row, stream.block[row] == block]
            for row in range(len(stream.block))
            for block in range(1, int(stream.block[row].max()) + 1)
        }

    alone, packed = by_text(batch_of(typed(model))), by_text(batch_of(typed(model), packed=True))
    assert len(alone) == 2 and len(packed) == 3
    assert all(close(packed[text], states, 1e-10) for text, states in alone.items())


# ---------------------------------------------------------------- out


@pytest.mark.parametrize("name", CASES)
def test_the_stock_class_reads_an_export_and_the_round_trip_is_exact(name: str, tmp_path: Path) -> None:
    saved(name, tmp_path / "stock")
    model, _ = load_hf(tmp_path / "stock")
    family = family_of(model.config)
    ids = {**IDS, "pad": model.config.position_offset - 1 if family.offset_from_pad else 0}
    assert export_hf(model, tmp_path / "a", ids) == ()
    assert check_export(model, tmp_path / "a") < 1e-5  # no missing and no unexpected tensors, the same answers
    again, report = load_hf(tmp_path / "a")
    assert report.new == () and report.unused == () and again.config == model.config
    for key, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], tensor), key
    export_hf(again, tmp_path / "b", ids)
    first, second = (load_file(tmp_path / d / "model.safetensors") for d in "ab")
    assert first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)
    assert (tmp_path / "a" / "config.json").read_text() == (tmp_path / "b" / "config.json").read_text()
    settings = json.loads((tmp_path / "a" / "config.json").read_text())
    same_class = CASES[name][0].replace("XLMRoberta", "Roberta").replace("Camembert", "Roberta")
    assert settings["architectures"] == [same_class] and settings["pad_token_id"] == ids["pad"]
