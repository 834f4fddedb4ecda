"""Named tensors of a network, and safetensors files whose bytes depend on nothing but their content."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from itertools import permutations
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor, nn


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


def save_tensors(tensors: Mapping[str, Tensor], file: Path, **metadata: str) -> None:
    """Write a safetensors file, readable by whoever may read its neighbours.

    The library writes several keys of metadata in the order of a randomly seeded hash map: they are put in order.
    """
    plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    save_file(plain, file, metadata or None)
    with open(file, "r+b") as opened:
        header = opened.read(8 + int.from_bytes(opened.read(8), "little"))
        orders = [_json(dict(order)) for order in permutations(metadata.items())] if len(metadata) > 1 else []
        for at in (header.find(written) for written in orders):
            if at >= 0:
                opened.seek(8 + at)
                opened.write(_json(dict(sorted(metadata.items()))))
    with tempfile.TemporaryDirectory(dir=file.parent) as beside:  # safetensors writes for the owner alone
        ordinary = Path(beside) / "ordinary"
        ordinary.touch()
        file.chmod(ordinary.stat().st_mode)


def aliases_note(aliases: Mapping[str, str]) -> str:
    """What a file's metadata says under "aliases": which other names its tensors have."""
    return json.dumps(dict(sorted(aliases.items())))


def _json(values: Mapping[str, str]) -> bytes:
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode()
