"""Files of weights: wrapped names, shards, damaged indexes, and weights that are none, of stock models and our own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask.errors import UserError
from unmask.loading import load
from unmask.model.bundle import export_own, read_own
from unmask.model.interop import export_hf, import_hf, load_hf, read_hf_config
from unmask.model.transformer import Transformer

from .helpers import model_of

KINDS = {"stock": export_hf, "own": export_own}
WEIGHT = {"stock": "transformer.wte.weight", "own": "model.embedding.weight"}


def written(kind: str, path: Path) -> Transformer:
    model = model_of(torch.float32, **({} if kind == "stock" else {"visibility": "prefix"}))
    KINDS[kind](model, path)
    return model


def rewrite(path: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    file = path / "model.safetensors"
    save_file(change(load_file(file)), file)


def same(model: Transformer, path: Path) -> bool:
    again = load_hf(path)[0].state_dict()
    return all(torch.equal(tensor, again[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("front", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_names_of_wrapped_models_are_read(kind: str, front: str, tmp_path: Path) -> None:
    model = written(kind, tmp_path)
    rewrite(tmp_path, lambda held: {front + name: tensor for name, tensor in held.items()})
    assert same(model, tmp_path) and load_hf(tmp_path)[1].unused == ()


def in_shards(path: Path) -> dict[str, Any]:
    """Cut the weights of a directory in three; the index."""
    held = load_file(path / "model.safetensors")
    files = {name: f"model-{i % 3}.safetensors" for i, name in enumerate(held)}
    for file in set(files.values()):
        save_file({name: held[name] for name in held if files[name] == file}, path / file)
    (path / "model.safetensors").unlink()
    index = {"metadata": {"total_size": 1}, "weight_map": files}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return index


@pytest.mark.parametrize("kind", KINDS)
def test_weights_in_several_files(kind: str, tmp_path: Path) -> None:
    model = written(kind, tmp_path)
    in_shards(tmp_path)
    assert same(model, tmp_path)
    (tmp_path / "model-1.safetensors").unlink()
    with pytest.raises(UserError, match=r"lacks model-1\.safetensors \(1 of the 3 files its index names\)"):
        load_hf(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{bad", r"index\.json is not valid JSON"),
        ("\x80", r"index\.json is not valid JSON"),
        ("{}", r"index\.json names no files: it must hold weight_map"),
        ("[1]", "names no files"),
        ('{"weight_map": {}}', "names no files"),
        ('{"weight_map": ["a.safetensors"]}', "names no files"),
        ('{"weight_map": {"a": 1}}', "names no files"),
    ],
)
def test_damaged_indexes(kind: str, text: str, message: str, tmp_path: Path) -> None:
    written(kind, tmp_path)
    in_shards(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=message):
        load_hf(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2])
def test_codes_of_a_quantiser_are_no_weights(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    written(kind, tmp_path)
    name = WEIGHT[kind]
    rewrite(tmp_path, lambda held: {**held, name: held[name].to(dtype)})
    word = str(dtype).removeprefix("torch.")
    with pytest.raises(UserError, match=rf"tensor {name} is {word}: quantised weights are not supported"):
        load_hf(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_type_of_whole_weights_is_read(dtype: torch.dtype, tmp_path: Path) -> None:
    model = written("stock", tmp_path)
    rewrite(tmp_path, lambda held: {name: tensor.to(dtype) for name, tensor in held.items()})
    state = import_hf(tmp_path)[1]
    want = model.state_dict()["embedding.weight"].to(dtype)
    assert torch.equal(state["embedding.weight"].to(dtype), want)


def test_buffers_that_are_no_weights_may_have_any_type(tmp_path: Path) -> None:
    model = written("stock", tmp_path)
    more = {"transformer.h.0.attn.bias": torch.ones(1, 1, 4, 4, dtype=torch.bool), "other": torch.tensor([torch.nan])}
    rewrite(tmp_path, lambda held: {**held, **more})
    assert same(model, tmp_path) and load_hf(tmp_path)[1].unused == ("other",)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_none_are_refused_by_tensor(kind: str, number: float, tmp_path: Path) -> None:
    written(kind, tmp_path)
    name = WEIGHT[kind]

    def spoil(held: dict[str, Tensor]) -> dict[str, Tensor]:
        held[name][3, 5] = number
        return held

    rewrite(tmp_path, spoil)
    with pytest.raises(UserError, match=rf"tensor {name} holds NaN or infinity"):
        load(tmp_path, device="cpu")


def change(path: Path, **settings: Any) -> None:
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


@pytest.mark.parametrize("kind", KINDS)
def test_quantised_directories_are_refused(kind: str, tmp_path: Path) -> None:
    written(kind, tmp_path)
    if kind == "stock":
        change(tmp_path, quantization_config=None)
        import_hf(tmp_path)
    change(tmp_path, quantization_config={"quant_method": "fp8"})
    with pytest.raises(UserError, match=r"quantization_config \(fp8\) is not supported"):
        load_hf(tmp_path)


def test_a_settings_file_without_sense_is_one_sentence(tmp_path: Path) -> None:
    base = {"model_type": "deberta-v2", "relative_attention": True, "pos_att_type": "c2p|p2c"}
    for wrong in ({"num_attention_heads": 0}, {"num_attention_heads": "many"}, {"hidden_act": ["gelu"]}):
        (tmp_path / "config.json").write_text(json.dumps({**base, **wrong}))
        with pytest.raises(UserError, match=r"config\.json"):
            read_hf_config(tmp_path)


@pytest.mark.parametrize(
    ("name", "shape", "asked"),
    [
        ("transformer.h.0.attn.c_attn.weight", (96, 32), (32, 96)),  # stored transposed
        ("transformer.h.0.attn.c_attn.bias", (95,), (96,)),
        ("transformer.wte.weight", (50, 31), (50, 32)),
    ],
)
def test_shapes_are_compared_as_they_are_stored(
    name: str, shape: tuple[int, ...], asked: tuple[int, ...], tmp_path: Path
) -> None:
    written("stock", tmp_path)
    rewrite(tmp_path, lambda held: {**held, name: torch.zeros(shape)})
    with pytest.raises(UserError) as caught:
        import_hf(tmp_path)
    assert f"tensor {name} has shape {shape}, but config.json asks for {asked}" in str(caught.value)


def test_shapes_of_tensors_that_become_one(tmp_path: Path) -> None:
    settings = {"positions": "rotary", "norm": "rms", "num_kv_heads": 2, "attention_bias": False, "mlp_bias": False}
    export_hf(model_of(torch.float32, activation="swiglu", tied_head=False, **settings), tmp_path)
    name = "model.layers.0.self_attn.{}_proj.weight"
    swapped = {name.format("q"): torch.zeros(16, 32), name.format("k"): torch.zeros(32, 32)}  # 64 rows as ever
    rewrite(tmp_path, lambda held: {**held, **swapped})
    with pytest.raises(UserError) as caught:
        import_hf(tmp_path)
    assert "has shape (16, 32) + (32, 32) + (16, 32), but config.json asks for (32, 32) + (16, 32) + (16, 32)" in str(
        caught.value
    )


def test_a_file_of_our_own_is_checked_the_same_way(tmp_path: Path) -> None:
    written("own", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"has no model\.safetensors"):
        read_own(tmp_path)
