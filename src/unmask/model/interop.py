"""Hugging Face directories in and out; safetensors only, never pickle.

import_hf(directory)           → (ModelConfig, state dict, Report)
load_hf(directory)             → (Transformer, Report)
export_hf(model, directory)    writes config.json and model.safetensors for the stock class
check_export(model, directory) reloads them with transformers and compares logits, or refuses (`verify`)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from unmask.batch import Head
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model.families import Family, Row
from unmask.model.transformer import Transformer
from unmask.model.translate import NOTES, concrete, family_of, known_heads, read_hf_config
from unmask.model.verify import check_export

__all__ = ["Report", "check_export", "export_hf", "import_hf", "load_hf", "read_hf_config"]

LEAST = 0.9
"""Files that hold a smaller share of the body's weights belong to another model; a larger one, and they are damaged."""


@dataclass(frozen=True)
class Report:
    """What an import did, by tensor name: ours in `loaded`, `new` and `reshaped`, theirs in `unused`."""

    loaded: tuple[str, ...]
    new: tuple[str, ...]  # ours that the files do not hold: parts of the heads asked for, and tables of zeros
    unused: tuple[str, ...]
    reshaped: tuple[str, ...]  # fused from several or transposed
    heads: tuple[Head, ...]
    parameters: int  # numbers loaded


# ---------------------------------------------------------------- in


def import_hf(
    directory: str | Path, heads: Iterable[Head] | None = None
) -> tuple[ModelConfig, dict[str, Tensor], Report]:
    """Settings and weights (fp32, our names) of a Hugging Face directory.

    Without `heads` they are recognised by the tensors there: a vocabulary head "lm", BERT's pair head "nsp". A body
    that lacks a tensor is refused, and so is a recognised head; what the files lack of given `heads` is `new`.
    """
    path = Path(directory)
    config = read_hf_config(path)
    family = family_of(config)
    theirs = _Files(path, family)
    declared = tuple(heads) if heads is not None else _heads_in(theirs, family, config)
    pooled = heads is None or theirs.holds("bert.pooler.dense.weight")
    config = config.model_copy(
        update={
            "tied_head": _tied(config, theirs, family),
            "pooler": family.name == "bert" and pooled and any(h.over == "classes" for h in declared),
        }
    )
    with torch.device("meta"):
        blank = Transformer(config, declared)
    shapes = {k: tuple(v.shape) for k, v in blank.state_dict().items()}
    names = known_heads(blank.declared)
    rows = [r for r in concrete(family, config, names) if r.ours in shapes and not _is_tied(r.ours, config, names)]
    found = {r.ours: t for r in rows if (t := _assemble(r, theirs, shapes[r.ours])) is not None}
    zeros = {r.ours: torch.zeros(shapes[r.ours]) for r in rows if r.zero and r.ours not in found}
    copies = [k for k in shapes if _is_tied(k, config, names)]
    absent = [k for k in shapes if k not in found and k not in zeros and k not in copies]
    lacking = {r.ours: tuple(n for n in r.theirs if not theirs.holds(n)) for r in rows}
    _complete(path, shapes, {k: lacking.get(k, (k,)) for k in absent}, with_heads=heads is None)
    report = Report(
        loaded=(*found, *copies),
        new=(*absent, *zeros),
        unused=tuple(theirs.left(family)),
        reshaped=tuple(r.ours for r in rows if r.ours in found and (r.transpose or len(r.theirs) > 1)),
        heads=declared,
        parameters=sum(t.numel() for t in found.values()),
    )
    return config, {**found, **zeros, **{k: found["embedding.weight"] for k in copies}}, report


def load_hf(directory: str | Path, heads: Iterable[Head] | None = None, seed: int = 0) -> tuple[Transformer, Report]:
    """The model of a Hugging Face directory; what the files lack of given `heads` starts from `seed`."""
    config, state, report = import_hf(directory, heads)
    model = Transformer(config, report.heads, seed)
    model.load_state_dict(state, strict=False)
    return model, report


class _Files:
    """The tensors of a directory by canonical name, read one at a time; it remembers which were read."""

    def __init__(self, path: Path, family: Family) -> None:
        self.path = path
        self.where: dict[str, tuple[Path, str]] = {}  # canonical name → file, name there
        stored = {name: file for file in _shards(path) for name in readable(file)}
        bare = family.prefix and not any(n.startswith(family.prefix) for n in stored)
        for name, file in stored.items():
            # the first BERT files call a norm's weight gamma and its bias beta
            plain = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
            head = plain.startswith(("lm_head.", "cls."))
            self.where[family.prefix + plain if bare and not head else plain] = (file, name)
        self.read: set[str] = set()

    def holds(self, name: str) -> bool:
        return name in self.where

    def get(self, name: str) -> Tensor:
        self.read.add(name)
        file, stored = self.where[name]
        with safe_open(file, "pt") as tensors:
            tensor = tensors.get_tensor(stored)
        return tensor.float() if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor

    def left(self, family: Family) -> list[str]:
        """Names nobody read, without buffers that hold no weights."""
        return [n for n in self.where if n not in self.read and not n.endswith(family.unused or ("\0",))]


def _shards(path: Path) -> list[Path]:
    index, single = path / "model.safetensors.index.json", path / "model.safetensors"
    if single.is_file():
        return [single]
    if index.is_file():
        files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        if missing := [f for f in files if not (path / Path(f).name).is_file()]:
            raise UserError(f"{path} lacks {missing[0]} ({len(missing)} of the {len(files)} files its index names)")
        return [path / Path(f).name for f in files]
    if any(path.glob("*.bin")) or any(path.glob("*.pt")):
        raise UserError(
            f"{path} holds weights as pickle only, which can run code when read: "
            "convert them to model.safetensors (transformers: save_pretrained) first"
        )
    raise UserError(f"{path} is not a model directory: it has no model.safetensors")


def _heads_in(theirs: _Files, family: Family, config: ModelConfig) -> tuple[Head, ...]:
    """The heads a directory holds: those of which a tensor is there.

    A vocabulary head that is the tied table and nothing else (GPT-2's) is there with every body.
    """
    lm = [r for r in concrete(family, config, {"lm": "lm"}) if r.ours.startswith("heads.lm.")]
    there = any(theirs.holds(name) for row in lm for name in (*row.theirs, *row.also))
    heads = (Head("lm"),) if there or (config.tied_head and len(lm) == 1) else ()
    return (*heads, Head("nsp", over="classes", size=2)) if theirs.holds("cls.seq_relationship.weight") else heads


def _tied(config: ModelConfig, theirs: _Files, family: Family) -> bool:
    """Tied as the files are: a head's table that differs from the embedding is a table of its own."""
    rows = {r.ours: r.theirs[0] for r in concrete(family, config, {"lm": "lm"})}
    table, head = rows["embedding.weight"], rows["heads.lm.weight"]
    if config.tied_head and theirs.holds(head) and theirs.holds(table):
        return torch.equal(theirs.get(table), theirs.get(head))
    return config.tied_head


def _assemble(row: Row, theirs: _Files, shape: tuple[int, ...]) -> Tensor | None:
    """Our tensor of a row, or None where the files lack it."""
    names = row.theirs
    for other in filter(theirs.holds, row.also):
        if not theirs.holds(names[0]):
            names = (other,)
        elif not torch.equal(theirs.get(other), theirs.get(names[0])) and not row.ours.startswith("heads."):
            raise UserError(f"{theirs.path}: {other} differs from {names[0]}; a model with one table cannot hold both")
    if not all(theirs.holds(n) for n in names):
        return None
    parts = [theirs.get(n) for n in names]
    tensor = torch.cat([p.t() if row.transpose else p for p in parts]) if len(parts) > 1 or row.transpose else parts[0]
    if tuple(tensor.shape) != shape:
        raise UserError(
            f"{theirs.path}: tensor {' + '.join(names)} has shape {tuple(tensor.shape)}, "
            f"but config.json asks for {shape}"
        )
    return tensor.contiguous()


def _is_tied(name: str, config: ModelConfig, heads: Mapping[str, str]) -> bool:
    return config.tied_head and "lm" in heads and name == f"heads.{heads['lm']}.weight"


def _complete(
    path: Path, shapes: Mapping[str, tuple[int, ...]], absent: Mapping[str, tuple[str, ...]], with_heads: bool
) -> None:
    """Refuse a body (and heads) of which tensors are absent: nothing starts at random unless it was asked for.

    absent  our name → the names that the files would have to hold for it
    """
    body = {k: int(np.prod(s)) for k, s in shapes.items() if not k.startswith("heads.")}
    total, lacks = sum(body.values()), sum(n for k, n in body.items() if k in absent)
    names = [name for ours, theirs in absent.items() if with_heads or ours in body for name in theirs]
    if total - lacks < LEAST * total:
        raise UserError(
            f"{path} holds only {total - lacks:,} of the {total:,} weights ({1 - lacks / total:.0%}) that its "
            f"config.json asks for (first missing: {names[0]}): the files belong to another model"
        )
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise UserError(
            f"{path} lacks {', '.join(names[:3])}{more}, which its config.json asks for: "
            "the files are incomplete, get them again"
        )


def readable(file: Path) -> list[str]:
    """The tensor names of a safetensors file, or a clear refusal."""
    try:
        with safe_open(file, "pt") as tensors:
            return list(tensors.keys())
    except SafetensorError as fault:
        raise UserError(f"{file} is not a readable safetensors file: {fault}") from None


# ---------------------------------------------------------------- out


def export_hf(
    model: Transformer, directory: str | Path, ids: Mapping[str, int | None] | None = None
) -> tuple[str, ...]:
    """Write config.json and model.safetensors for the stock class; our tensors that it lacks come back by name.

    `ids` maps roles (pad, bos, eos, cls, sep, mask, decoder_start) to token ids. A prefix model is written
    under its causal family, with unmask.json and README.md that say which mask it was trained with.
    """
    config, path = model.config, Path(directory)
    family = family_of(config)
    heads = known_heads(model.declared)
    if not (config.pooler and family.name == "bert"):
        heads.pop("pair", None)
    tensors, written = _theirs(model, family, heads)
    stock = family.classes[2 if "pair" in heads else 1 if "lm" in heads else 0]
    path.mkdir(parents=True, exist_ok=True)
    settings = {**family.write(config), **_ids(family, ids or {}), "model_type": family.name}
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    _dump(path / "config.json", {"architectures": [stock], **settings, "dtype": dtype})
    tokens = {k: v for k, v in settings.items() if k.endswith("_token_id") and v is not None}
    _dump(path / "generation_config.json", tokens)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    # safetensors writes for the owner alone
    (path / "model.safetensors").chmod((path / "config.json").stat().st_mode)
    if config.visibility == "prefix":
        _dump(path / NOTES, {"visibility": "prefix", "family": family.name, "class": stock})
        (path / "README.md").write_text(_PREFIX_NOTE.format(stock=stock), encoding="utf-8")
    own = model.state_dict()
    return tuple(k for k in own if k not in written and not _is_tied(k, config, heads))


def _theirs(model: Transformer, family: Family, heads: Mapping[str, str]) -> tuple[dict[str, Tensor], set[str]]:
    """Their tensors, and our names that went into them."""
    config = model.config
    state = {k: v.detach().cpu() for k, v in model.state_dict().items()}
    if "stack.token_types.weight" not in state:
        state["stack.token_types.weight"] = state["embedding.weight"].new_zeros(1, config.hidden_size)
    size = config.size_per_head
    head, group = config.num_heads * size, config.kv_heads * size
    parts = {"qkv": [head, group, group], "kv": [group, group], "up": [config.mlp_size] * 2}
    out: dict[str, Tensor] = {}
    written = set()
    for row in concrete(family, config, heads):
        if row.ours not in state or _is_tied(row.ours, config, heads):
            continue
        written.add(row.ours)
        tensor = state[row.ours]
        split = tensor.split(parts[row.ours.split(".")[-2]]) if len(row.theirs) > 1 else (tensor,)
        for name, part in zip(row.theirs, split, strict=True):
            out[name] = (part.t() if row.transpose else part).clone(memory_format=torch.contiguous_format)
        if row.ours.startswith("heads."):
            out.update({name: tensor.clone() for name in row.also})
    return out, written


def _ids(family: Family, ids: Mapping[str, int | None]) -> dict[str, int | None]:
    """Token ids of config.json; absent ones are null, so that no default of the class slips in."""
    out = {f"{role}_token_id": ids.get(role) for role in ("pad", "bos", "eos")}
    if family.name == "t5":
        out["decoder_start_token_id"] = ids.get("decoder_start", ids.get("pad"))
    return out


def _dump(file: Path, value: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


_PREFIX_NOTE = """# A prefix language model

These weights were trained with a prefix mask: the first p tokens (the prefix) see each other, and every later
token sees the prefix and what stands before it. The stock class `{stock}` applies a causal mask instead, which
is another model. To get the trained one, pass the mask yourself:

```python
import torch
from transformers import {stock}

model = {stock}.from_pretrained(".")
length, prefix = input_ids.shape[1], p
i = torch.arange(length)
order = (i - prefix + 1).clamp(min=0)
sees = order[None, :] <= order[:, None]                      # key's order <= query's order
mask = torch.zeros(length, length).masked_fill(~sees, torch.finfo(torch.float32).min)
logits = model(input_ids, attention_mask=mask.expand(len(input_ids), 1, length, length)).logits
```
"""
