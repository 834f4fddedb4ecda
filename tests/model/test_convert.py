"""Conversions: equal to the common library's own, or to their definition by brute force."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from unmask.batch import Batch, Head
from unmask.errors import UserError
from unmask.model.convert import Weights, grow_vocabulary, longer_positions, pair, shapes_of, to_visibility
from unmask.model.interop import load_hf
from unmask.model.transformer import Transformer

from .helpers import VOCABULARY, close, logits_of, model_of, perturb, stream_of, tokens_of

transformers = pytest.importorskip("transformers")

BERT: dict[str, Any] = {
    "norm_position": "post",
    "embedding_norm": True,
    "final_norm": False,
    "head_transform": True,
    "head_bias": True,
    "token_types": 2,
    "visibility": "bidirectional",
}
GPT2: dict[str, Any] = {"activation": "gelu_tanh"}
LLAMA: dict[str, Any] = {
    "positions": "rotary",
    "norm": "rms",
    "activation": "swiglu",
    "num_kv_heads": 2,
    "attention_bias": False,
    "mlp_bias": False,
    "tied_head": False,
}
ALL = {"bert": BERT, "gpt2": GPT2, "llama": LLAMA}
SMALL_BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def bert(path: Path, seed: int) -> Path:
    """A BERT of the common library with every tensor random, on disk."""
    model = transformers.BertForMaskedLM(transformers.BertConfig(**SMALL_BERT))
    for name, parameter in model.named_parameters():  # the library starts them from the global generator
        parameter.data.fill_(float(name.endswith("LayerNorm.weight")))
    perturb(model, seed)
    model.save_pretrained(path)
    return path


def loaded(path: Path) -> Weights:
    return Weights.of(load_hf(path)[0].double())


def ids(seed: int = 0) -> Tensor:
    return torch.from_numpy(tokens_of(2, 10, seed)).long()


# ---------------------------------------------------------------- masks


def test_an_encoder_made_causal_equals_berts_own_decoder(tmp_path: Path) -> None:
    theirs = transformers.BertLMHeadModel.from_pretrained(bert(tmp_path, 1), is_decoder=True).double().eval()
    made = to_visibility(loaded(tmp_path), "causal")
    assert made.config.visibility == "causal" and made.config.family == "unmask"  # BERT's class is no decoder
    network = made.network()
    ours = logits_of(network, network(Batch(stream_of(pattern="causal"), {}, {}))["stream"])
    assert close(ours, theirs(ids()).logits, 1e-10)
    full = logits_of(network, network(Batch(stream_of(pattern="full"), {}, {}))["stream"])
    assert not close(full, ours, 1e-2)


@pytest.mark.parametrize("visibility", ["prefix", "bidirectional"])
def test_causal_weights_under_another_mask_are_the_same_tensors(visibility: Any) -> None:
    weights = Weights.of(model_of(**GPT2, family="gpt2"))
    made = to_visibility(weights, visibility)
    assert all(made.state[name] is tensor for name, tensor in weights.state.items())
    assert to_visibility(made, "causal").config.visibility == "causal"


def test_t5_buckets_mean_the_same_distances_under_another_mask() -> None:
    causal = model_of(positions="t5", relative_buckets=16, relative_max_distance=20)
    both = to_visibility(Weights.of(causal), "bidirectional").network()
    # Eight buckets a direction: the first four distances have one each in either table.
    near, far = stream_of(length=4, pattern="causal"), stream_of(length=30, pattern="causal")
    ours, theirs = (m(Batch(near, {}, {}))["stream"] for m in (both, causal))
    assert close(ours, theirs, 1e-12)
    ours, theirs = (m(Batch(far, {}, {}))["stream"] for m in (both, causal))
    assert close(ours, theirs, 0.3) and not close(ours, theirs, 1e-6)
    positions = torch.arange(30)[None]
    new, old = both.stack.score.dense(positions, positions)[0], causal.stack.score.dense(positions, positions)[0]
    assert torch.equal(new[:, 0, 3], new[:, 3, 0])  # the future takes what the past had
    same_bucket = [d for d in range(30) if torch.equal(new[:, 29, 29 - d], new[:, 29, 29 - 9])]
    assert torch.allclose(new[:, 29, 20], torch.stack([old[:, 29, 29 - d] for d in same_bucket]).mean(0))
    again = to_visibility(Weights.of(both), "causal").network()
    assert close(again.stack.score.dense(positions, positions)[0, :, 29, :], new[:, 29, :], 0.2)


def test_two_stacks_have_no_other_mask() -> None:
    with pytest.raises(UserError, match="two stacks has no other mask"):
        to_visibility(Weights.of(model_of(num_source_layers=2)), "prefix")


# ---------------------------------------------------------------- two stacks


def _give_cross(theirs: Any, made: Weights) -> None:
    """Copy our new cross-attention over into BERT's, by hand."""
    for i, layer in enumerate(theirs.decoder.bert.encoder.layer):
        ours = {k.split("cross", 1)[1]: v for k, v in made.state.items() if k.startswith(f"stack.layers.{i}.cross")}
        cross = layer.crossattention
        key, value = ours[".kv.weight"].chunk(2)
        key_bias, value_bias = ours[".kv.bias"].chunk(2)
        pairs = [
            (cross.self.query, ours[".q.weight"], ours[".q.bias"]),
            (cross.self.key, key, key_bias),
            (cross.self.value, value, value_bias),
            (cross.output.dense, ours[".out.weight"], ours[".out.bias"]),
            (cross.output.LayerNorm, ours["_norm.weight"], ours["_norm.bias"]),
        ]
        for module, weight, bias in pairs:
            module.weight.data.copy_(weight)
            module.bias.data.copy_(bias)


@pytest.mark.parametrize("twice", [False, True])
def test_bert2bert_equals_the_common_librarys(twice: bool, tmp_path: Path) -> None:
    first = bert(tmp_path / "a", 1)
    second = first if twice else bert(tmp_path / "b", 2)
    made = pair(loaded(first), None if twice else loaded(second))
    assert made.config.source_table is not twice  # two tables only where they differ
    new = {n for n in made.state if ".cross" in n}
    made = Weights(
        made.config,
        {
            n: t + 0.05 * torch.sin(torch.arange(t.numel())).view(t.shape) if n in new else t
            for n, t in made.state.items()
        },
    )
    theirs = transformers.EncoderDecoderModel.from_encoder_decoder_pretrained(str(first), str(second)).double().eval()
    _give_cross(theirs, made)
    network = made.network()
    batch = Batch(stream_of(length=7, pattern="causal", seed=3), {}, {}, stream_of(pattern="full", seed=4))
    ours = logits_of(network, network(batch)["stream"])
    target = torch.from_numpy(tokens_of(2, 7, 3)).long()
    assert close(ours, theirs(ids(4), decoder_input_ids=target).logits, 1e-10)


def test_a_pair_of_gpt2_equals_its_two_halves_in_the_common_library(tmp_path: Path) -> None:
    from unmask.model.interop import export_hf

    network = model_of(torch.float32, **GPT2)
    export_hf(network, tmp_path)
    made = pair(Weights.of(network.double()), cross="self")
    assert any("of the decoder's self-attention" in note for note in made.notes)
    both = made.network()
    source, stream = stream_of(pattern="full", seed=4), stream_of(length=7, pattern="causal", seed=3)
    memory = both(Batch(stream, {}, {}, source))["source"]
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, attn_implementation="eager").double().eval()
    open_mask = torch.zeros(2, 1, 10, 10, dtype=torch.float64)
    encoded = theirs.transformer(ids(4), attention_mask=open_mask).last_hidden_state
    assert close(memory, encoded, 1e-10)

    decoder = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, add_cross_attention=True).double().eval()
    for block in decoder.transformer.h:  # cross="self", by hand: q, then k and v, of the fused projection
        d = block.attn.c_attn.weight.shape[0]
        block.crossattention.q_attn.weight.data.copy_(block.attn.c_attn.weight[:, :d])
        block.crossattention.q_attn.bias.data.copy_(block.attn.c_attn.bias[:d])
        block.crossattention.c_attn.weight.data.copy_(block.attn.c_attn.weight[:, d:])
        block.crossattention.c_attn.bias.data.copy_(block.attn.c_attn.bias[d:])
        block.crossattention.c_proj.load_state_dict(block.attn.c_proj.state_dict())
        block.ln_cross_attn.load_state_dict(block.ln_1.state_dict())
    target = torch.from_numpy(tokens_of(2, 7, 3)).long()
    logits = decoder(target, encoder_hidden_states=encoded).logits
    assert close(logits_of(both, both(Batch(stream, {}, {}, source))["stream"]), logits, 1e-10)


@pytest.mark.parametrize("cross", ["new", "self"])
@pytest.mark.parametrize("name", ALL)
def test_each_tensor_of_a_pair_is_accounted_for(name: str, cross: Any) -> None:
    encoder, decoder = model_of(**ALL[name]), perturb(model_of(num_layers=3, **ALL[name]), 9)
    made = pair(Weights.of(encoder), Weights.of(decoder), cross)
    ours, theirs = encoder.state_dict(), decoder.state_dict()
    for key, tensor in made.state.items():
        if key.startswith("source."):
            assert torch.equal(tensor, ours["stack." + key[7:]]), key
        elif key == "source_embedding.weight":
            assert torch.equal(tensor, ours["embedding.weight"])
        elif ".cross" not in key:
            assert torch.equal(tensor, theirs[key]), key
        elif cross == "self" and key.endswith(".kv.weight"):
            assert torch.equal(tensor, theirs[key.replace("cross.kv", "attention.qkv")][32:]), key
        elif cross == "new" and key.endswith(".q.weight"):
            assert 0.015 < float(tensor.std()) < 0.025, key
    assert made.state.keys() == shapes_of(made.config, made.heads).keys()
    assert pair(Weights.of(encoder), Weights.of(decoder), cross, seed=1).state.keys() == made.state.keys()
    network = made.network()
    batch = Batch(stream_of(pattern="causal"), {}, {}, stream_of(pattern="full"))
    assert torch.isfinite(network(batch)["stream"]).all()


def test_new_cross_attention_is_a_function_of_the_seed() -> None:
    weights = Weights.of(model_of(**GPT2))
    name = "stack.layers.0.cross.q.weight"
    one, same, other = (pair(weights, seed=seed).state[name] for seed in (3, 3, 4))
    assert torch.equal(one, same) and not torch.equal(one, other)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"hidden_size": 16}, "the encoder has hidden_size=32 and the decoder hidden_size=16"),
        ({"norm": "rms"}, "norm=layer and the decoder norm=rms"),
        ({"vocab_size": 60}, "vocab_size=50 and the decoder vocab_size=60"),
        ({"max_position": 50}, "max_position=40 and the decoder 50: give both the same with longer_positions"),
        ({"num_source_layers": 2}, "only single stacks can be paired"),
        ({"heads": [Head("order", over="classes", size=2)]}, "no vocabulary head"),
    ],
)
def test_stacks_that_do_not_agree_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        pair(Weights.of(model_of()), Weights.of(model_of(**settings)))


# ---------------------------------------------------------------- vocabulary


@pytest.mark.parametrize(
    "settings", [{}, {"tied_head": False, "head_bias": True}, BERT], ids=["tied", "untied", "bert"]
)
def test_a_vocabulary_in_another_order_gives_the_same_logits_in_that_order(settings: dict[str, Any]) -> None:
    model = model_of(**settings)
    order = np.random.default_rng(0).permutation(VOCABULARY)
    made = grow_vocabulary(Weights.of(model), [[int(i)] for i in order])
    network = made.network()
    head = network.heads["lm"]
    assert (head.weight is network.embedding.weight) is made.config.tied_head
    stream = stream_of()
    place = torch.from_numpy(np.argsort(order))
    moved = type(stream)(**{**vars(stream), "tokens": place[stream.tokens.long()].to(stream.tokens.dtype)})
    ours = logits_of(network, network(Batch(moved, {}, {}))["stream"])
    theirs = logits_of(model, model(Batch(stream, {}, {}))["stream"])
    assert close(ours, theirs[..., torch.from_numpy(order)], 1e-13)


@pytest.mark.parametrize("tied", [True, False])
def test_new_rows_are_means_of_pieces_or_of_all(tied: bool) -> None:
    model = model_of(tied_head=tied, head_bias=True, heads=[Head("lm"), Head("order", over="classes", size=VOCABULARY)])
    rows = [*([i] for i in range(48)), [3, 4, 4], []]
    made = grow_vocabulary(Weights.of(model), rows, known=48)  # two rows of padding never count
    old = {**model.state_dict()}
    names = ["embedding.weight", "heads.lm.bias"] + ([] if tied else ["heads.lm.weight"])
    for name in names:
        assert torch.equal(made.state[name][:48], old[name][:48])
        assert torch.allclose(made.state[name][48], (old[name][3] + 2 * old[name][4]) / 3)
        assert torch.allclose(made.state[name][49], old[name][:48].mean(0))
    assert ("heads.lm.weight" in made.state) is not tied
    # A head over as many classes as there are words is none over words.
    assert torch.equal(made.state["heads.order.weight"], old["heads.order.weight"])
    assert "48 copied, 1 the mean of their pieces, 1 the mean of all, 0 left out" in made.notes[0]


def test_a_hidden_size_that_equals_the_vocabulary_confuses_nothing() -> None:
    model = model_of(hidden_size=VOCABULARY, num_heads=5, **{k: v for k, v in BERT.items() if k != "num_heads"})
    made = grow_vocabulary(Weights.of(model), [[i] for i in range(VOCABULARY)] + [[]])
    assert made.state["heads.lm.dense.dense.weight"].shape == (VOCABULARY, VOCABULARY)
    assert made.network().config.vocab_size == VOCABULARY + 1


def test_an_entry_outside_the_old_vocabulary_is_refused() -> None:
    with pytest.raises(UserError, match="outside the old one's 50"):
        grow_vocabulary(Weights.of(model_of()), [[50]])


# ---------------------------------------------------------------- positions


def test_positions_are_interpolated_repeated_or_new() -> None:
    model = model_of(position_offset=2)
    old = model.stack.positions.weight.detach()
    weights = Weights.of(model)
    made = {
        how: longer_positions(weights, 100, how).state["stack.positions.weight"]
        for how in ("interpolate", "repeat", "new")
    }
    at = np.linspace(0, 39, 100)
    wanted = np.stack([np.interp(at, np.arange(40), column) for column in old[2:].T.numpy()], 1)
    assert np.allclose(made["interpolate"][2:].numpy(), wanted)
    assert torch.equal(made["repeat"], torch.cat([old[:2], old[2:], old[2:], old[2:22]]))
    assert torch.equal(made["new"][:42], old) and 0.015 < float(made["new"][42:].std()) < 0.025
    assert all(torch.equal(table[:2], old[:2]) for table in made.values())


@pytest.mark.parametrize("how", ["repeat", "new"])
def test_short_texts_are_read_as_before(how: Any) -> None:
    model = model_of(**BERT, family="bert")
    made = longer_positions(Weights.of(model), 64, how)
    assert made.config.family == "bert" and made.config.max_position == 64
    batch = Batch(stream_of(), {}, {})
    assert torch.equal(made.network()(batch)["stream"], model(batch)["stream"])


@pytest.mark.parametrize("positions", ["rotary", "t5", "alibi", "sinusoidal", "deberta"])
def test_other_positions_only_raise_the_limit(positions: str) -> None:
    model = model_of(positions=positions)
    made = longer_positions(Weights.of(model), 64)
    assert "no tensor depends on" in made.notes[0] and made.config.max_position == 64
    batch = Batch(stream_of(), {}, {})
    assert torch.equal(made.network()(batch)["stream"], model(batch)["stream"])


def test_the_rotary_base_may_rise_alone() -> None:
    model = model_of(**LLAMA)
    made = longer_positions(Weights.of(model), rotary_base=1e6)
    assert made.config.rotary_base == 1e6 and made.config.max_position == 40
    assert made.network().state_dict().keys() == model.state_dict().keys()
    with pytest.raises(UserError, match="rotary_base is for rotary positions"):
        longer_positions(Weights.of(model_of()), rotary_base=1e6)


@pytest.mark.parametrize(
    ("more", "says"), [({"max_position": 40}, "not longer than"), ({"max_position": 50, "how": "x"}, "none of")]
)
def test_positions_that_cannot_be_are_refused(more: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        longer_positions(Weights.of(model_of()), **more)


def test_both_stacks_of_a_pair_grow() -> None:
    made = longer_positions(pair(Weights.of(model_of(**GPT2))), 60)
    assert all(made.state[f"{s}.positions.weight"].shape[0] == 60 for s in ("stack", "source"))
    assert isinstance(made.network(), Transformer)
