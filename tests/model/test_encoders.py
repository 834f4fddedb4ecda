"""Encoder families: settings read, written and refused, RoBERTa's positions (D24), answers of each kind of head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from unmask.batch import Batch, Head
from unmask.errors import UserError
from unmask.lm import LM
from unmask.loading import load
from unmask.model.families import FAMILIES
from unmask.model.interop import export_hf, load_hf
from unmask.model.transformer import Transformer
from unmask.model.translate import family_of, read_config

from .helpers import close, laid, model_of, one_text, tokens_of
from .test_parity_encoders import IDS, batch_of, saved, theirs_of

transformers = pytest.importorskip("transformers")

ENCODERS = {
    "bert": "BertConfig",
    "roberta": "RobertaConfig",
    "albert": "AlbertConfig",
    "electra": "ElectraConfig",
    "distilbert": "DistilBertConfig",
    "modernbert": "ModernBertConfig",
}


@pytest.mark.parametrize("family", ENCODERS)
def test_the_stock_defaults_are_read_and_written_back(family: str) -> None:
    """From a file that says everything and from one that says nothing, as the class itself reads it."""
    stock = json.loads(getattr(transformers, ENCODERS[family])().to_json_string(use_diff=False))
    config = read_config(stock)
    assert config == read_config({"model_type": family})
    assert family_of(config).name == family
    written = FAMILIES[family].write(config)
    assert {k: stock[k] for k in written} == written


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_type": "bert", "is_decoder": True}, "is_decoder=True is not supported for bert, only False"),
        ({"model_type": "bert", "position_embedding_type": "relative_key"}, "position_embedding_type=relative_key"),
        ({"model_type": "bert", "relax_projection": 4}, "relax_projection=4 is not supported"),
        ({"model_type": "bert", "pruned_heads": {"0": [1]}}, "pruned_heads="),
        ({"model_type": "bert", "hidden_act": "mish"}, "activation 'mish' is not one of"),
        ({"model_type": "roberta", "add_cross_attention": True}, "add_cross_attention=True"),
        ({"model_type": "roberta", "pad_token_id": None}, "pad_token_id=None is not supported for roberta"),
        ({"model_type": "camembert", "pad_token_id": 511}, "pad_token_id=511 .* with 512 rows of positions"),
        ({"model_type": "albert", "inner_group_num": 2}, "inner_group_num=2"),
        ({"model_type": "albert", "embedding_size": 4096}, "embedding_size=4096 is not supported for albert with"),
        ({"model_type": "electra", "is_decoder": True}, "is_decoder=True is not supported for electra"),
        ({"model_type": "distilbert", "activation": "mish"}, "'mish'"),
        ({"model_type": "modernbert", "rope_scaling": {"rope_type": "yarn"}}, "rope type 'yarn' is not supported"),
        (
            {"model_type": "modernbert", "rope_parameters": {"sliding_attention": {"rope_type": "linear"}}},
            "rope type 'linear' is not supported for modernbert",
        ),
        ({"model_type": "modernbert", "layer_types": ["chunked_attention"] * 22}, "'chunked_attention' is not one of"),
        ({"model_type": "modernbert", "hidden_activation": "tanh"}, "gate activation 'tanh'"),
    ],
)
def test_what_is_not_computed_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_config(settings)


POST = {
    "visibility": "bidirectional",
    "norm_position": "post",
    "embedding_norm": True,
    "head_transform": True,
    "head_bias": True,
    "norm_eps": 1e-12,
}


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        ("roberta", {}, r"position_offset=0 \(it is 1 there\)"),
        ("roberta", {"position_offset": 2, "head_activation": "relu"}, r"head_activation=relu \(it is gelu there\)"),
        ("electra", {"activation": "relu"}, r"head_activation=relu \(it is gelu there\)"),
        ("albert", {"distinct_layers": 1}, "embedding_size=32 is not supported for albert with hidden_size=32"),
        ("distilbert", {"norm_eps": 1e-5}, r"norm_eps=1e-05 \(it is 1e-12 there\)"),
        ("distilbert", {"token_types": 1}, r"token_types=1 \(it is 0 there\)"),
        ("distilbert", {"token_types": 2}, r"token_types=2 \(it is 1 there\)"),
        ("bert", {"embedding_size": 20}, r"embedding_size=20 \(it is 32 there\)"),
        ("modernbert", {}, r"positions=learned \(it is rotary there\)"),
    ],
)
def test_what_a_family_cannot_hold_is_refused_by_field(family: str, settings: dict[str, Any], message: str) -> None:
    model = model_of(torch.float32, **{**POST, **settings, "family": family})
    with pytest.raises(UserError, match=message):
        family_of(model.config)


# ---------------------------------------------------------------- config.json as it is found


FIRST = {  # the configuration that Google's BERT came with, and so SpanBERT's: no model_type, no norm's epsilon
    "attention_probs_dropout_prob": 0.1,
    "directionality": "bidi",
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pooler_fc_size": 768,
    "pooler_type": "first_token_transform",
    "type_vocab_size": 2,
    "vocab_size": 28996,
}


@pytest.mark.parametrize("extra", [{}, {"type_vocab_size": 6, "relax_projection": 0, "new_pos_ids": False}])
def test_configurations_of_spanbert_and_unilm(extra: dict[str, Any]) -> None:
    """UniLM has six rows of token types, which also say the mask."""
    config = read_config({**FIRST, **extra})
    assert (config.family, config.token_types) == ("bert", extra.get("type_vocab_size", 2))
    assert (config.vocab_size, config.norm_eps, config.tied_head, config.dropout) == (28996, 1e-12, True, 0.1)
    assert config == read_config({**FIRST, **extra, "model_type": "bert"})
    for other in ({"embedding_size": 128}, {"architectures": ["RobertaForMaskedLM"]}):
        with pytest.raises(UserError, match="model_type '' is not one of"):
            read_config({**FIRST, **other})
    assert "boundary" in model_of(heads=[Head("lm"), Head("boundary", arity=2, extra=10)], **POST).heads


def test_modernbert_settings_in_both_spellings() -> None:
    old = {
        "model_type": "modernbert",
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
        "local_attention": 128,
        "position_embedding_type": "absolute",  # which published files say, and no class reads
    }
    nested = {kind: {"rope_theta": base} for kind, base in (("full_attention", 16e4), ("sliding_attention", 1e4))}
    kinds = ["sliding_attention" if i % 3 else "full_attention" for i in range(22)]
    new = {"model_type": "modernbert", "rope_parameters": nested, "layer_types": kinds}
    config = read_config(old)
    assert config == read_config(new)
    assert (config.attention_pattern, config.window) == ("GLL", 64)
    assert (config.rotary_base, config.rotary_local_base) == (160000.0, 10000.0)
    assert [i for i in range(22) if not config.local(i)] == [0, 3, 6, 9, 12, 15, 18, 21]
    assert read_config({**old, "local_rope_theta": None}).rotary_local_base == 160000.0
    assert read_config({**old, "global_attn_every_n_layers": 2}).attention_pattern == "GL"


# ---------------------------------------------------------------- RoBERTa's positions


def roberta_of(pad: int, context: int) -> Transformer:
    settings = {**POST, "family": "roberta", "position_offset": pad + 1, "max_position": context}
    return model_of(torch.float32, **settings)


@pytest.mark.parametrize("pad", [0, 1, 3])
def test_d24_the_whole_context_is_usable_whatever_the_pad_id(pad: int, tmp_path: Path) -> None:
    """D24: 64 of 64 tokens, padded and unpadded, equal the stock class; 65 is a clear message."""
    model = roberta_of(pad, 64)
    export_hf(model, tmp_path, {**IDS, "pad": pad})
    settings = json.loads((tmp_path / "config.json").read_text())
    assert (settings["max_position_embeddings"], settings["pad_token_id"]) == (64 + pad + 1, pad)
    stock = transformers.RobertaForMaskedLM.from_pretrained(tmp_path).eval()
    lm = load(tmp_path, device="cpu")
    assert lm.config.max_position == 64
    ids = torch.from_numpy(tokens_of(2, 64)).long()
    mask = torch.ones_like(ids)
    for padded in (False, True):
        if padded:
            mask[1, 50:], ids[1, 50:] = 0, pad
        theirs = stock(input_ids=ids, attention_mask=mask).logits
        ours = lm.logits(ids, mask)
        assert close(ours[mask != 0], theirs[mask != 0])
    with pytest.raises(
        UserError, match=r"position 64 lies beyond the model's 64 positions: use a context of at most 64"
    ):
        lm.logits(torch.from_numpy(tokens_of(1, 65)))


def test_an_export_of_roberta_needs_the_pad_id_that_its_positions_start_after(tmp_path: Path) -> None:
    model = roberta_of(1, 20)
    for pad in (0, None):
        with pytest.raises(UserError, match=f"position_offset=2 belongs to pad id 1, but the tokenizer's is {pad}"):
            export_hf(model, tmp_path / "no", {**IDS, "pad": pad})
        assert not (tmp_path / "no").exists()
    export_hf(model, tmp_path / "bare")  # no tokenizer: nothing contradicts
    assert json.loads((tmp_path / "bare" / "config.json").read_text())["pad_token_id"] == 1


# ---------------------------------------------------------------- answers without a vocabulary head


def test_logits_of_a_detector_and_of_a_pair_head(tmp_path: Path) -> None:
    stock = saved("electra-discriminator", tmp_path)
    lm = load(tmp_path, device="cpu")
    assert lm.objective is None and [h.name for h in lm.report.heads] == ["rtd"]  # type: ignore[union-attr]
    batch = batch_of(True)
    ids, mask, types = batch.stream.tokens, batch.stream.block != 0, batch.stream.token_type
    logits = lm.logits(ids, mask, types)
    assert logits.shape == ids.shape and close(logits[mask], theirs_of(stock, batch)["detect"][mask])

    pair = model_of(torch.float32, [Head("sop", over="classes", size=2)], pooler=True, token_types=2, **POST)
    head = pair.heads["sop"]
    for left in (False, True):  # the first token's state, not the first column's
        stream = batch_of(True, left=left).stream
        states = pair(Batch(stream, {}, {}))["stream"]
        first = (stream.block != 0).int().argmax(1)
        wanted = head.project(head.features(states[torch.arange(2), first][:, None]))
        assert close(LM(pair, 20).logits(stream.tokens, stream.block != 0, stream.token_type), wanted)
    assert wanted.shape == (2, 2)


def test_hidden_states_at_every_depth_of_shared_layers(tmp_path: Path) -> None:
    stock = saved("albert-groups", tmp_path)
    model, _ = load_hf(tmp_path)
    tokens = one_text(tokens_of(1, 12)[0], "full")

    class Ids:
        vocabulary = None

        def encode(self, text: str) -> Any:
            return tokens.tokens

    lm = LM(model, 24)
    stream = laid([tokens], [[0]], 12)
    object.__setattr__(lm, "tokenizer", Ids())
    object.__setattr__(lm, "_framed", lambda texts: stream)
    theirs = stock(input_ids=stream.tokens.long(), output_hidden_states=True).hidden_states
    ours = lm.hidden("", range(5))
    for ours_at, theirs_at in zip(ours[1:], theirs[1:], strict=True):
        assert close(ours_at, theirs_at[0])


def test_heads_are_recognised_by_their_tensors(tmp_path: Path) -> None:
    wanted = {"albert-pretraining": {"lm", "sop"}, "electra-generator": {"lm"}, "electra-discriminator": {"rtd"}}
    for name, heads in (wanted | {"albert-body": set(), "distilbert-body": set()}).items():
        saved(name, tmp_path / name)
        model, report = load_hf(tmp_path / name)
        assert set(model.heads) == heads
        assert heads == {n.split(".")[1] for n in report.loaded if n.startswith("heads.")}
