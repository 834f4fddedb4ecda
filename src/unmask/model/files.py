"""The files of a Hugging Face directory: where its tensors lie, in one safetensors file or several; JSON settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from unmask.errors import UserError

WRAPPERS = ("module.", "_orig_mod.")
"""What DataParallel and torch.compile put in front of every name."""
WHOLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Types whose numbers are the weights themselves; narrower ones are codes that a quantiser has to read."""


def write_json(file: Path, value: Mapping[str, Any]) -> None:
    """Settings as people read them."""
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def stored(path: Path) -> dict[str, tuple[Path, str]]:
    """Every tensor of a directory: its name without `WRAPPERS` → its file, and its name there."""
    out: dict[str, tuple[Path, str]] = {}
    for file in shards(path):
        for name in readable(file):
            out[_bare(name)] = (file, name)
    return out


def fetch(file: Path, name: str) -> Tensor:
    """One tensor of weights; one that is quantised, or holds a number that is none, is refused."""
    with safe_open(file, "pt") as tensors:
        tensor: Tensor = tensors.get_tensor(name)
    if tensor.dtype not in WHOLE:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise UserError(f"{file}: tensor {name} is {kind}: quantised weights are not supported, save them as bfloat16")
    if not bool(torch.isfinite(tensor).all()):
        raise UserError(f"{file}: tensor {name} holds NaN or infinity: the model is damaged, get its files again")
    return tensor


def shards(path: Path) -> list[Path]:
    """The safetensors files of a directory: one, or those that its index names."""
    index, single = path / "model.safetensors.index.json", path / "model.safetensors"
    if single.is_file():
        return [single]
    if index.is_file():
        files = _indexed(index)
        if missing := [f for f in files if not (path / Path(f).name).is_file()]:
            raise UserError(f"{path} lacks {missing[0]} ({len(missing)} of the {len(files)} files its index names)")
        return [path / Path(f).name for f in files]
    if any(path.glob("*.bin")) or any(path.glob("*.pt")):
        raise UserError(
            f"{path} holds weights as pickle only, which can run code when read: "
            "convert them to model.safetensors (transformers: save_pretrained) first"
        )
    raise UserError(f"{path} is not a model directory: it has no model.safetensors")


def readable(file: Path) -> list[str]:
    """The tensor names of a safetensors file, or a clear refusal."""
    try:
        with safe_open(file, "pt") as tensors:
            return list(tensors.keys())
    except (OSError, SafetensorError) as fault:
        raise UserError(f"{file} is not a readable safetensors file: {fault}") from None


def _indexed(index: Path) -> list[str]:
    """The files that an index names, each once."""
    try:
        held = json.loads(index.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as fault:
        raise UserError(f"{index} is not valid JSON: {fault}") from None
    files = held.get("weight_map") if isinstance(held, dict) else None
    if not isinstance(files, dict) or not files or not all(isinstance(f, str) for f in files.values()):
        raise UserError(f"{index} names no files: it must hold weight_map, from tensor to file; get it again")
    return sorted(set(files.values()))


def _bare(name: str) -> str:
    """A name without what wraps the whole model."""
    while front := next((w for w in WRAPPERS if name.startswith(w)), ""):
        name = name.removeprefix(front)
    return name
