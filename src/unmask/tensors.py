"""Named tensors of a network, and safetensors files whose bytes depend on nothing but their content.

A file is written tensor by tensor, so of what lies elsewhere (on a GPU, in other files) one is here at a time:

    8 bytes         length of the header, little-endian
    header          JSON, padded by blanks to a multiple of 8: "__metadata__", then {name: dtype, shape, data_offsets}
    the tensors     end to end, the widest numbers first (so each lies at a multiple of its width), then by name
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import EllipsisType
from typing import Protocol

import torch
from torch import Tensor, nn

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The format's names of what networks and optimizers hold."""


class Readable(Protocol):
    """A tensor, here or to be read: `x[...]` is all of it, `x[a:b]` rows."""

    @property
    def shape(self) -> Sequence[int]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def __getitem__(self, index: slice | EllipsisType, /) -> Tensor: ...


def named_once(network: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(name → tensor, alias → name): parameters and persistent buffers, each once under its first name."""
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[int, str] = {}
    for name, tensor in network.state_dict(keep_vars=True).items():
        holder = first.setdefault(id(tensor), name)
        if holder == name:
            tensors[name] = tensor.detach()
        else:
            aliases[name] = holder
    return tensors, aliases


def save_tensors(tensors: Mapping[str, Readable], file: Path, **metadata: str) -> None:
    """Write a safetensors file; OSError where the disk refuses."""
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    entries: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    end = 0
    for name in order:
        begin, shape, dtype = end, list(tensors[name].shape), tensors[name].dtype
        end += math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": DTYPES[dtype], "shape": shape, "data_offsets": [begin, end]}
    header = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    with open(file, "wb") as opened:
        opened.write(len(header).to_bytes(8, "little"))
        opened.write(header)
        for numbers in (tensors[name][...] for name in order):
            opened.write(numbers.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def aliases_note(aliases: Mapping[str, str]) -> str:
    """What a file's metadata says under "aliases": which other names its tensors have."""
    return json.dumps(dict(sorted(aliases.items())))
