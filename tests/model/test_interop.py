"""Export and import: the round trip, the check, the refusals, tied tensors, and files of our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from unmask.batch import Head
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model.families import FAMILIES
from unmask.model.interop import _ids, check_export, export_hf, import_hf, load_hf, read_hf_config
from unmask.model.presets import preset_config
from unmask.model.transformer import Transformer
from unmask.model.translate import family_of

from .helpers import model_of

transformers = pytest.importorskip("transformers")

LM = Head("lm")
PAIR = Head("order", over="classes", size=2)
BERT: dict[str, Any] = {
    "norm_position": "post",
    "embedding_norm": True,
    "final_norm": False,
    "head_transform": True,
    "head_bias": True,
    "visibility": "bidirectional",
}
LLAMA: dict[str, Any] = {
    "positions": "rotary",
    "norm": "rms",
    "activation": "swiglu",
    "num_kv_heads": 2,
    "attention_bias": False,
    "mlp_bias": False,
}
T5: dict[str, Any] = {
    "positions": "t5",
    "norm": "rms",
    "attention_bias": False,
    "mlp_bias": False,
    "attention_scale": 1.0,
    "num_source_layers": 3,
    "activation": "relu",
}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("bert", "BertForMaskedLM", BERT),
    "bert-pair": ("bert", "BertForPreTraining", {**BERT, "pooler": True, "token_types": 2}),
    "gpt2": ("gpt2", "GPT2LMHeadModel", {}),
    "gpt2-tanh": ("gpt2", "GPT2LMHeadModel", {"activation": "gelu_tanh"}),
    "llama": ("llama", "LlamaForCausalLM", {**LLAMA, "tied_head": False}),
    "llama-tied": ("llama", "LlamaForCausalLM", {**LLAMA, "activation": "geglu"}),
    "t5-1.0": ("t5", "T5ForConditionalGeneration", {**T5, "head_scale": 32**-0.5}),
    "t5-1.1": ("t5", "T5ForConditionalGeneration", {**T5, "activation": "geglu_tanh", "tied_head": False}),
    "t5-silu": ("t5", "T5ForConditionalGeneration", {**T5, "activation": "swiglu"}),
}
IDS = {"pad": 0, "bos": 2, "eos": 3, "decoder_start": 4}


def exported(name: str, path: Path) -> Transformer:
    model = model_of(torch.float32, (LM, PAIR), **CASES[name][2])
    export_hf(model, path, IDS)
    return model


@pytest.mark.parametrize("name", CASES)
def test_the_stock_class_gives_the_same_logits_and_the_round_trip_is_exact(name: str, tmp_path: Path) -> None:
    family, stock, _ = CASES[name]
    model = exported(name, tmp_path / "a")
    assert family_of(model.config).name == family
    settings = json.loads((tmp_path / "a" / "config.json").read_text())
    assert settings["architectures"] == [stock] and settings["dtype"] == "float32"
    assert (settings["pad_token_id"], settings["bos_token_id"], settings["eos_token_id"]) == (0, 2, 3)
    assert settings.get("decoder_start_token_id") == (4 if family == "t5" else None)
    assert settings["tie_word_embeddings"] is model.config.tied_head
    assert check_export(model, tmp_path / "a") < 1e-5

    again, report = load_hf(tmp_path / "a")
    assert report.new == () and report.unused == ()
    assert again.config.visibility == model.config.visibility
    export_hf(again, tmp_path / "b", IDS)
    first, second = (load_file(tmp_path / d / "model.safetensors") for d in "ab")
    assert first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)
    for file in ("config.json", "generation_config.json"):
        assert (tmp_path / "a" / file).read_text() == (tmp_path / "b" / file).read_text()
    third = import_hf(tmp_path / "b")[0]
    assert third == again.config


def test_heads_the_stock_class_lacks_are_named(tmp_path: Path) -> None:
    model = model_of(torch.float32, (LM, PAIR))
    assert export_hf(model, tmp_path) == ("heads.order.weight", "heads.order.bias")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**BERT, "positions": "rotary", "family": "bert"}, "bert cannot hold this model: positions=rotary"),
        ({"family": "gpt2", "head_bias": True}, "head_bias=True"),
        ({"family": "gpt2", "activation": "swiglu"}, "activation=swiglu"),
        ({"family": "llama", **LLAMA, "qk_norm": True}, "qk_norm=True"),
        ({"family": "llama", **LLAMA, "visibility": "bidirectional"}, "visibility=bidirectional"),
        ({"family": "t5", **T5, "num_source_layers": 0}, "num_source_layers=0"),
        ({"family": "bert", **BERT, "query_vector": True}, "query_vector=True"),
        ({"family": "t5", **T5, "head_scale": 0.5}, "head_scale=0.5"),
        ({"visibility": "prefix"}, "gpt2 comes nearest: visibility=prefix"),
        ({"positions": "sinusoidal"}, "no family of the common library holds this model"),
    ],
)
def test_what_a_family_cannot_hold_is_refused_by_field(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        export_hf(model_of(torch.float32, **settings), tmp_path)
    assert not list(tmp_path.iterdir())


def test_directories_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no config\.json"):
        import_hf(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        import_hf(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt3"}')
    with pytest.raises(UserError, match="did you mean 'gpt2'"):
        import_hf(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(UserError, match=r"no model\.safetensors"):
        import_hf(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(UserError, match="pickle only"):
        import_hf(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"x" * 20)
    with pytest.raises(UserError, match="not a readable safetensors"):
        import_hf(tmp_path)


def change(path: Path, **settings: Any) -> None:
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    exported("gpt2", tmp_path)
    change(tmp_path, n_layer=9)
    with pytest.raises(UserError, match=r"holds only [\d,]+ of the [\d,]+ weights"):
        import_hf(tmp_path)
    change(tmp_path, n_layer=2, n_positions=30)
    with pytest.raises(UserError, match=r"shape \(40, 32\), but config.json asks for \(30, 32\)"):
        import_hf(tmp_path)


def test_unsupported_settings_are_named(tmp_path: Path) -> None:
    exported("llama", tmp_path)
    change(tmp_path, rope_parameters={"rope_type": "llama3", "rope_theta": 5e5})
    with pytest.raises(UserError, match="rope type 'llama3'"):
        import_hf(tmp_path)
    change(tmp_path, rope_parameters=None, hidden_act="tanh")
    with pytest.raises(UserError, match="'tanh'"):
        import_hf(tmp_path)


def test_tied_stays_tied_and_untied_untied(tmp_path: Path) -> None:
    exported("gpt2", tmp_path)
    model, _ = load_hf(tmp_path)
    assert model.heads["lm"].weight is model.embedding.weight
    tensors = load_file(tmp_path / "model.safetensors")
    assert "lm_head.weight" not in tensors
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    assert load_hf(tmp_path)[0].config.tied_head
    tensors["lm_head.weight"] += 1
    save_file(tensors, tmp_path / "model.safetensors")
    model, _ = load_hf(tmp_path)
    assert not model.config.tied_head
    assert torch.equal(model.heads["lm"].weight, model.embedding.weight + 1)


def test_names_of_bare_bodies_and_of_old_files(tmp_path: Path) -> None:
    """A body saved alone has no prefix; the first BERT files say gamma and beta; buffers are no weights."""
    whole = exported("bert", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    body = {k.removeprefix("bert."): v for k, v in tensors.items() if k.startswith("bert.")}
    for new, old in (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")):
        body = {k.replace(new, old): v for k, v in body.items()}
    body["embeddings.position_ids"] = torch.arange(40)
    save_file(body, tmp_path / "model.safetensors")
    model, report = load_hf(tmp_path)
    assert report.heads == () and report.new == () and report.unused == ()
    assert torch.equal(model.stack.layers[1].mlp.up.weight, whole.stack.layers[1].mlp.up.weight)
    three = Head("topic", over="classes", size=3)  # no head that the family knows
    assert load_hf(tmp_path, heads=[three])[1].new == ("heads.topic.weight", "heads.topic.bias")
    _, report = load_hf(tmp_path, heads=[LM])
    ours = ("dense.dense.weight", "dense.dense.bias", "dense.norm.weight", "dense.norm.bias", "bias")
    assert set(report.new) == {f"heads.lm.{n}" for n in ours}


def test_shards(tmp_path: Path) -> None:
    model = exported("gpt2", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    halves = {"one.safetensors": list(tensors)[::2], "two.safetensors": list(tensors)[1::2]}
    for file, names in halves.items():
        save_file({n: tensors[n] for n in names}, tmp_path / file)
    (tmp_path / "model.safetensors").unlink()
    index = {"weight_map": {n: file for file, names in halves.items() for n in names}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    again, report = load_hf(tmp_path)
    assert report.new == ()
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in again.state_dict().items())
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(UserError, match=r"lacks two\.safetensors"):
        import_hf(tmp_path)


# ---------------------------------------------------------------- incomplete files


def without(path: Path, *names: str) -> None:
    """Rewrite the weights without these tensors."""
    tensors = load_file(path / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if k not in names}, path / "model.safetensors")


Q_PROJ, NORM = "model.layers.5.self_attn.q_proj.weight", "model.norm.weight"


def test_a_body_that_lacks_a_tensor_is_refused_by_name(tmp_path: Path) -> None:
    """12 layers without one matrix and one norm still hold 99 % of the weights: nothing starts at random silently."""
    model = model_of(torch.float32, (LM,), **LLAMA, tied_head=False, num_layers=12)
    export_hf(model, tmp_path, IDS)
    without(tmp_path, Q_PROJ)
    with pytest.raises(UserError, match=rf"lacks {Q_PROJ}, which its config\.json asks for: the files are incomplete"):
        load_hf(tmp_path)
    without(tmp_path, NORM)
    with pytest.raises(UserError, match=f"lacks {Q_PROJ}, {NORM}, which"):
        load_hf(tmp_path)
    without(tmp_path, *(f"model.layers.{i}.mlp.down_proj.weight" for i in range(12)))
    with pytest.raises(UserError, match=r"holds only [\d,]+ of the [\d,]+ weights \(\d\d%\)"):
        load_hf(tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_every_tensor_of_a_file_is_needed(name: str, tmp_path: Path) -> None:
    """Take out one after another: each is missed by its name, but for what may be absent."""
    exported(name, tmp_path / "a")
    tensors = load_file(tmp_path / "a" / "model.safetensors")
    free = {"cls.predictions.bias", "bert.embeddings.token_type_embeddings.weight", "cls.seq_relationship.weight"}
    if name in ("llama", "t5-1.1"):
        free |= {"lm_head.weight"}  # the whole of an untied head: then there is none
    if name.startswith("bert"):
        free |= {"cls.predictions.decoder.bias"}  # the same as cls.predictions.bias
    for out in tensors.keys() - free:
        save_file({k: v for k, v in tensors.items() if k != out}, tmp_path / "a" / "model.safetensors")
        with pytest.raises(UserError, match=f"(lacks|first missing:) {out}"):
            import_hf(tmp_path / "a")


def test_an_absent_token_type_table_is_zeros(tmp_path: Path) -> None:
    model = exported("bert-pair", tmp_path)
    without(tmp_path, "bert.embeddings.token_type_embeddings.weight")
    again, report = load_hf(tmp_path)
    assert report.new == ("stack.token_types.weight",)
    assert torch.equal(again.stack.token_types.weight, torch.zeros(2, 32))
    assert torch.equal(again.embedding.weight, model.embedding.weight)


@pytest.mark.parametrize(("name", "head"), [("llama", False), ("llama-tied", True), ("t5-1.1", False), ("gpt2", True)])
def test_a_body_alone_has_a_vocabulary_head_only_where_that_is_the_tied_table(
    name: str, head: bool, tmp_path: Path
) -> None:
    exported(name, tmp_path)
    without(tmp_path, "lm_head.weight")
    model, report = load_hf(tmp_path)
    assert [h.name for h in report.heads] == (["lm"] if head else []) and report.new == ()
    assert list(model.heads) == (["lm"] if head else [])
    if not head:
        assert load_hf(tmp_path, heads=[LM])[1].new == ("heads.lm.weight",)  # asked for: it starts from the seed


# ---------------------------------------------------------------- settings and files


def test_settings_are_read_as_they_were_written(tmp_path: Path) -> None:
    for name in ("gpt2", "llama", "bert"):
        model = exported(name, tmp_path / name)
        assert read_hf_config(tmp_path / name).visibility == model.config.visibility
    place = tmp_path / "gpt2"
    for file, text, message in (
        ("config.json", "[]", "holds no settings"),
        ("config.json", '{"model_type": "gpt2", "n_head": 5}', "num_heads=5 does not divide"),
        ("config.json", '{"model_type": "gpt2", "n_layer": "x"}', "num_layers: Input should be"),
        ("config.json", '{"model_type": "llama", "rope_parameters": [1]}', "a value of the wrong kind"),
        ("config.json", "{", "config.json is not valid JSON"),
    ):
        (place / file).write_text(text)
        with pytest.raises(UserError, match=message):
            read_hf_config(place)
    with pytest.raises(UserError, match=r"no config\.json"):
        read_hf_config(tmp_path)


def test_every_file_of_an_export_can_be_read_by_the_same_people(tmp_path: Path) -> None:
    exported("gpt2", tmp_path)
    assert len({f.stat().st_mode for f in tmp_path.iterdir()}) == 1


# ---------------------------------------------------------------- control ids


@pytest.mark.parametrize("name", FAMILIES)
def test_no_control_id_of_the_class_own_vocabulary_slips_into_an_export(name: str) -> None:
    """ModernBERT's class says sep_token_id=50282 unless config.json says otherwise."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    family = FAMILIES[name]
    defaults = {k for k, v in CONFIG_MAPPING[name]().to_dict().items() if k.endswith("_token_id") and v is not None}
    settings = {"pad_token_id": 0} if family.offset_from_pad else {}
    said = _ids(family, settings, {"pad": 0, "bos": 2, "eos": 3, "cls": 2, "sep": 3})
    assert defaults - {"forced_eos_token_id"} <= said.keys()  # that one the BART-like families write themselves


def test_modernberts_own_roles_are_written_to_config_but_not_for_generation(tmp_path: Path) -> None:
    values = {k: v for k, v in preset_config("modernbert-base").model_dump().items() if k != "family"}
    small = {"vocab_size": 60, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 24}
    config = ModelConfig.model_validate({**values, **small, "head_size": None, "family": "modernbert"})
    export_hf(Transformer(config, (LM,)), tmp_path, {**IDS, "cls": 2, "sep": 3})
    settings = json.loads((tmp_path / "config.json").read_text())
    assert (settings["cls_token_id"], settings["sep_token_id"]) == (2, 3)
    held = transformers.AutoConfig.from_pretrained(tmp_path).to_dict()
    assert all(v < 60 for k, v in held.items() if k.endswith("_token_id") and v is not None)
    assert not {"cls_token_id", "sep_token_id"} & json.loads((tmp_path / "generation_config.json").read_text()).keys()
