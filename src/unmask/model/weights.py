"""Weights of our own models in one safetensors file."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from unmask.errors import UserError


def save_weights(model: nn.Module, file: str | Path) -> None:
    """Every distinct tensor once, under its first name; the header lists the other names of shared ones."""
    first: dict[int, str] = {}
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if first.setdefault(id(tensor), name) == name:
            tensors[name] = tensor.detach().contiguous()
        else:
            aliases[name] = first[id(tensor)]
    save_file(tensors, file, metadata={"format": "pt", "aliases": json.dumps(aliases)})


def load_weights(model: nn.Module, file: str | Path) -> None:
    """Copy a file of `save_weights` into `model`; names and shapes must match exactly."""
    path = Path(file)
    stored = set(readable(path))
    own: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        own.setdefault(id(tensor), (name, tensor))
    wanted = dict(own.values())
    if wrong := sorted(stored ^ wanted.keys()):
        raise UserError(f"{path} does not fit this model: {len(wrong)} tensors differ, first '{wrong[0]}'")
    with torch.no_grad(), safe_open(path, "pt") as tensors:
        for name, tensor in wanted.items():
            value = tensors.get_tensor(name)
            if value.shape != tensor.shape:
                shapes = f"shape {tuple(value.shape)}, but the model's has {tuple(tensor.shape)}"
                raise UserError(f"{path}: tensor {name} has {shapes}")
            tensor.copy_(value)


def readable(file: Path) -> list[str]:
    """The tensor names of a safetensors file, or a clear refusal."""
    try:
        with safe_open(file, "pt") as tensors:
            return list(tensors.keys())
    except SafetensorError as fault:
        raise UserError(f"{file} is not a readable safetensors file: {fault}") from None
