"""DeBERTa v2/v3 and XLNet against transformers, every tensor random: logits, gradients, two streams, memory.

As in test_parity: ‖a − b‖ ≤ 1e-5 · ‖b‖ for logits at real positions, and for each tensor's gradient the same
+ 1e-6 × the largest gradient norm.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask.batch import Batch, Stream
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.evaluation.inputs import stream_of
from unmask.model.attention import Cache
from unmask.model.interop import export_hf, load_hf
from unmask.model.transformer import Transformer
from unmask.model.translate import read_config
from unmask.model.verify import check_export

from .helpers import VOCABULARY, close, laid, logits_of, model_of, one_text, perturb, tokens_of
from .test_parity import gradients

transformers = pytest.importorskip("transformers")

DEBERTA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 56,
    "max_position_embeddings": 24,
    "relative_attention": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
}
V3 = {**DEBERTA, "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True}
XLNET = {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 3, "n_head": 4, "d_inner": 56, "mem_len": None}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "deberta-v3": ("DebertaV2ForMaskedLM", V3),
    "deberta-v3-types": ("DebertaV2ForMaskedLM", {**V3, "type_vocab_size": 2, "max_relative_positions": 10}),
    "deberta-v3-own-head": ("DebertaV2ForMaskedLM", {**V3, "legacy": False}),
    "deberta-v3-untied": ("DebertaV2ForMaskedLM", {**V3, "tie_word_embeddings": False}),
    "deberta-v2": ("DebertaV2ForMaskedLM", {**V3, "conv_kernel_size": 3, "conv_act": "gelu"}),
    "deberta-v2-tanh": ("DebertaV2ForMaskedLM", {**V3, "conv_kernel_size": 5, "norm_rel_ebd": "none"}),
    "deberta-own-projections": ("DebertaV2ForMaskedLM", {**DEBERTA, "hidden_act": "gelu_new"}),
    "deberta-short-table": ("DebertaV2ForMaskedLM", {**DEBERTA, "max_relative_positions": 5}),
    "xlnet": ("XLNetLMHeadModel", XLNET),
    "xlnet-types": ("XLNetLMHeadModel", {**XLNET, "ff_activation": "relu"}),
}


def saved(name: str, path: Path) -> Any:
    """The stock model, random throughout, and its directory."""
    kind, settings = CASES[name]
    stock = getattr(transformers, kind)
    torch.manual_seed(0)  # the stock class draws from the global generator
    model = stock(stock.config_class(**settings)).eval()
    perturb(model).save_pretrained(path)
    return model


def records(types: bool, packed: bool = False, left: bool = False) -> Batch:
    """Two rows of lengths 9 and 16; or the two in one row and a third beside it."""
    tokens = tokens_of(3, 16)
    texts = [one_text(t, "full") for t in (tokens[0][:9], tokens[1], tokens[2][:13])]
    stream = laid(texts[:2], [[0], [1]], 16, left) if not packed else laid(texts, [[0, 1], [2]], 27, left)
    if types:
        stream = replace(stream, token_type=(stream.positions > 4).to(torch.int32))
    return Batch(stream, {}, {})


def theirs_of(stock: Any, batch: Batch) -> Any:
    tokens, real = batch.stream.tokens.long(), (batch.stream.block != 0).long()
    types = {} if batch.stream.token_type is None else {"token_type_ids": batch.stream.token_type.long()}
    return stock(input_ids=tokens, attention_mask=real, **types)


@pytest.mark.parametrize("name", CASES)
def test_equals_transformers(name: str, tmp_path: Path) -> None:
    stock = saved(name, tmp_path)
    model, report = load_hf(tmp_path)
    assert report.new == () and report.unused == ()
    batch = records(types=name.endswith("types"))
    real = batch.stream.block != 0
    theirs = theirs_of(stock, batch).logits[real]
    ours = logits_of(model, model(batch)["stream"])[real]
    assert close(ours, theirs)

    direction = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(3))
    (ours * direction).sum().backward()
    (theirs * direction).sum().backward()
    found = gradients(model)
    norms = {n: float(p.grad.norm()) for n, p in stock.named_parameters() if p.grad is not None}
    checked = 0
    for tensor, parameter in stock.named_parameters():
        there = _canonical(tensor)
        if parameter.grad is not None and there in found:
            assert close(found[there], parameter.grad, absolute=1e-6 * max(norms.values())), tensor
            checked += 1
        else:  # not reached there: a segment term without token types, the second stream's start, a copied bias
            assert parameter.grad is None or not parameter.grad.any(), tensor
    assert checked >= 0.8 * len(norms) and checked > 30


def _canonical(name: str) -> str:
    """The legacy name of a tensor of DeBERTa's newer head."""
    name = name.replace("lm_predictions.lm_head.bias", "cls.predictions.bias")
    return name.replace("lm_predictions.lm_head.", "cls.predictions.transform.")


@pytest.mark.parametrize("name", ["deberta-v3-types", "deberta-v2", "deberta-own-projections", "xlnet-types"])
def test_packed_rows_equal_texts_alone(name: str, tmp_path: Path) -> None:
    """Also padded on the left, and without the flag that differences of positions are those of indices."""
    saved(name, tmp_path)
    model, _ = load_hf(tmp_path)
    model.double()
    types = name.endswith("types")

    def answers(batch: Batch) -> dict[tuple[int, ...], Tensor]:
        """Logits by the text's tokens."""
        states = model(batch)["stream"]
        out = {}
        for row, blocks in enumerate(batch.stream.block):
            for block in range(1, int(blocks.max()) + 1):
                at = blocks == block
                out[tuple(batch.stream.tokens[row, at].tolist())] = logits_of(model, states[row : row + 1, at])
        return out

    alone = answers(records(types))
    for left in (False, True):
        packed = records(types, packed=True, left=left)
        for flag in (True, False):
            got = answers(replace(packed, stream=replace(packed.stream, contiguous=flag)))
            assert len(got) == 3 and len(alone) == 2
            for text, logits in alone.items():
                assert close(got[text], logits, 1e-10)


@pytest.mark.parametrize("name", CASES)
def test_exports_reload_in_the_stock_class(name: str, tmp_path: Path) -> None:
    saved(name, tmp_path / "theirs")
    model, _ = load_hf(tmp_path / "theirs")
    left_out = export_hf(model, tmp_path / "ours")
    assert left_out == ()
    assert check_export(model, tmp_path / "ours") < 1e-4
    mine, other = (load_file(tmp_path / d / "model.safetensors") for d in ("ours", "theirs"))
    other = {_canonical(n): t for n, t in other.items()}
    assert set(other) <= set(mine)
    for tensor, value in other.items():
        if tensor == "cls.predictions.bias" and not model.config.tied_head:
            continue  # there a second parameter, which no computation reads
        assert torch.equal(mine[tensor], value), tensor
    again, _ = load_hf(tmp_path / "ours")
    assert again.config == model.config


def test_what_the_common_library_cannot_hold_is_refused(tmp_path: Path) -> None:
    model = model_of(
        torch.float32,
        family="deberta-v2",
        visibility="bidirectional",
        positions="deberta",
        norm_position="post",
        embedding_norm=True,
        final_norm=False,
        head_transform=True,
        head_bias=True,
        mask_decoder=True,
    )
    with pytest.raises(UserError, match="deberta-v2 cannot hold this model: mask_decoder=True"):
        export_hf(model, tmp_path)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"position_biased_input": True}, "position_biased_input=true is not supported"),
        ({"relative_attention": False}, "relative_attention and pos_att_type"),
        ({"pos_att_type": ["c2p"]}, r"not True and \['c2p'\]"),
        ({"embedding_size": 16}, "embedding_size=16 is not supported for deberta-v2"),
        ({"conv_groups": 2}, "conv_groups=2"),
    ],
)
def test_other_debertas_are_refused(settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        read_config({"model_type": "deberta-v2", **V3, **settings})


@pytest.mark.parametrize(
    "settings", [{"attn_type": "uni"}, {"untie_r": False}, {"clamp_len": 8}, {"bi_data": True}, {"same_length": True}]
)
def test_other_xlnets_are_refused(settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(UserError, match=f"{name}={settings[name]} is not supported for xlnet"):
        read_config({"model_type": "xlnet", **XLNET, **settings})


def test_published_settings_are_read() -> None:
    """As in the files of deberta-v3-base, deberta-v2-xlarge and xlnet-base-cased."""
    v3 = json.loads(
        '{"model_type": "deberta-v2", "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", '
        '"hidden_dropout_prob": 0.1, "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072, '
        '"max_position_embeddings": 512, "relative_attention": true, "position_buckets": 256, '
        '"norm_rel_ebd": "layer_norm", "share_att_key": true, "pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-7, '
        '"max_relative_positions": -1, "position_biased_input": false, "num_attention_heads": 12, '
        '"num_hidden_layers": 12, "type_vocab_size": 0, "vocab_size": 128100}'
    )
    c = read_config(v3)
    assert (c.relative_buckets, c.relative_max_distance, c.relative_shared, c.relative_norm) == (256, 512, True, True)
    assert c.scale == 192**-0.5 and c.token_types == 0 and c.convolution == 0
    c = read_config({**v3, "conv_kernel_size": 3, "conv_act": "gelu", "hidden_size": 1536, "num_attention_heads": 24})
    assert (c.convolution, c.convolution_activation) == (3, "gelu")
    c = read_config(
        {"model_type": "xlnet", "attn_type": "bi", "bi_data": False, "clamp_len": -1, "d_head": 64, "d_inner": 3072}
        | {"d_model": 768, "dropout": 0.1, "ff_activation": "gelu", "mem_len": None, "n_head": 12, "n_layer": 12}
        | {"n_token": 32000, "reuse_len": None, "same_length": False, "untie_r": True, "layer_norm_eps": 1e-12}
    )
    assert (c.vocab_size, c.num_layers, c.query_vector, c.size_per_head) == (32000, 12, True, 64)


def test_tensors_of_detector_and_mask_decoder_are_no_surprise(tmp_path: Path) -> None:
    """Published v3 files hold them beside the body."""
    saved("deberta-v3-own-head", tmp_path)
    held = load_file(tmp_path / "model.safetensors")
    held["deberta.embeddings.position_embeddings.weight"] = torch.zeros(24, 32)
    held["mask_predictions.dense.weight"] = torch.zeros(32, 32)
    save_file(held, tmp_path / "model.safetensors", metadata={"format": "pt"})
    _, report = load_hf(tmp_path)
    assert report.new == () and report.unused == ()


@pytest.mark.parametrize("types", [False, True])
def test_a_cache_equals_memory(types: bool, tmp_path: Path) -> None:
    """The second segment reads the first one's states; there memory counts as token type 0, so its types are 0."""
    stock = saved("xlnet", tmp_path)
    model, _ = load_hf(tmp_path)
    tokens = torch.tensor(tokens_of(2, 13))
    first, second = tokens[:, :8], tokens[:, 8:]
    kinds = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]])
    mems = stock(input_ids=first.long(), use_mems=True).mems
    more = {"token_type_ids": kinds} if types else {}
    theirs = stock(input_ids=second.long(), mems=mems, use_mems=True, **more).logits

    def segment(ids: Tensor, begin: int, token_type: Tensor | None = None) -> Stream:
        stream = stream_of(ids, "bidirectional", token_type=token_type)
        return replace(stream, positions=stream.positions + begin, contiguous=True)

    cache = Cache()
    with torch.no_grad():
        model.decode(segment(first, 0), cache=cache)
        states = model.decode(segment(second, 8, kinds if types else None), cache=cache)
    assert close(logits_of(model, states), theirs)


@pytest.mark.parametrize("positions", ["deberta", "xlnet"])
def test_a_query_that_sees_nothing_gives_zero_with_finite_gradients(positions: str) -> None:
    model = model_of(positions=positions, relative_buckets=8, relative_max_distance=16, visibility="bidirectional")
    stream = stream_of(tokens_of(2, 6), "bidirectional")
    horizon = stream.horizon - (stream.positions == 2).int()
    blind = replace(stream, horizon=horizon, pattern="order", isolated=False)
    found: list[Tensor] = []
    layer = model.stack.layers[0].attention
    layer.out.register_forward_pre_hook(lambda module, inputs: found.append(inputs[0]))
    model(Batch(blind, {}, {}))["stream"].sum().backward()
    nothing = blind.positions == 2
    assert not found[0][nothing].any() and found[0][~nothing].abs().amin(-1).all()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or bool(parameter.grad.isfinite().all()), name


@pytest.mark.parametrize("positions", ["deberta", "xlnet"])
def test_one_token_at_a_time_equals_one_pass(positions: str) -> None:
    model = model_of(positions=positions, relative_buckets=6, relative_max_distance=9, convolution=0)
    tokens = torch.tensor(tokens_of(2, 14))
    whole = replace(stream_of(tokens, "causal"), contiguous=True)
    cache, parts = Cache(), []
    with torch.no_grad():
        for i in range(14):
            parts.append(model.decode(whole.map(lambda x, i=i: x[:, i : i + 1]), cache=cache))
        assert close(torch.cat(parts, 1), model.decode(whole), 1e-6 if positions == "xlnet" else 1e-12)


def test_the_starting_model_has_settings_of_its_own() -> None:
    """A fresh model of each kind has no empty tensor: everything is drawn or constant, and finite."""
    for settings in ({"positions": "deberta", "relative_norm": True, "convolution": 3}, {"positions": "xlnet"}):
        config = ModelConfig(vocab_size=VOCABULARY, hidden_size=32, relative_buckets=8, **settings)
        one, other = Transformer(config, (), seed=1), Transformer(config, (), seed=1)
        for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
            assert torch.equal(a, b) and float(a.detach().abs().max()) <= 1, name


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("positions", ["deberta", "xlnet"])
def test_sixteen_bits_are_close_to_thirty_two(positions: str, contiguous: bool) -> None:
    """Autocast computes the terms in bf16 as it does q·k; gradients arrive at every parameter."""
    model = model_of(torch.float32, positions=positions, relative_buckets=8, relative_max_distance=16)
    stream = replace(records(types=positions == "xlnet").stream, contiguous=contiguous)
    batch = Batch(replace(stream, token_type=stream.token_type if positions == "xlnet" else None), {}, {})
    real = stream.block != 0
    plain = model(batch)["stream"][real]
    with torch.autocast("cpu", torch.bfloat16):
        low = model(batch)["stream"][real]
    assert 1e-5 < float((low - plain).detach().norm() / plain.detach().norm()) < 2e-2
    low.square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for n, p in model.stack.named_parameters() if "relati" in n)
