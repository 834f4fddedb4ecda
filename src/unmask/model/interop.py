"""Hugging Face directories in and out; safetensors only, never pickle.

import_hf(directory)           → (ModelConfig, state dict, Report)
load_hf(directory)             → (Transformer, Report)
export_hf(model, directory)    writes config.json and model.safetensors for the stock class
check_export(model, directory) reloads them with transformers and compares logits, or refuses (`verify`)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.batch import Head
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model.bundle import import_own, is_own, own_outline
from unmask.model.families import FAMILIES, Family, Row
from unmask.model.families.base import SAME
from unmask.model.files import fetch, stored, write_json
from unmask.model.heads import labels
from unmask.model.transformer import Transformer
from unmask.model.translate import concrete, family_of, known_heads, read_hf_config
from unmask.model.verify import check_export
from unmask.tensors import aliases_note, named_once, save_tensors

__all__ = ["Report", "check_export", "export_hf", "import_hf", "load_hf", "outline_hf", "read_hf_config"]

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
    if is_own(path):
        own, new, left = import_own(path, heads)
        numbers = sum(t.numel() for t in {t.data_ptr(): t for t in own.state.values()}.values())
        return own.config, own.state, Report(tuple(own.state), new, left, (), own.heads, numbers)
    config, declared, theirs = _recognised(path, heads)
    family = FAMILIES[config.family]
    with torch.device("meta"):
        blank = Transformer(config, declared)
    shapes = {k: tuple(v.shape) for k, v in blank.state_dict().items()}
    names = known_heads(blank.declared, family)
    rows = [r for r in concrete(family, config, names) if r.ours in shapes and not _is_tied(r.ours, config, names)]
    found = {r.ours: t for r in rows if (t := _assemble(r, theirs, shapes[r.ours], config)) is not None}
    zeros = {r.ours: torch.zeros(shapes[r.ours]) for r in rows if r.zero is not None and r.ours not in found}
    copies = named_once(blank)[1]
    absent = [k for k in shapes if k not in found and k not in zeros and k not in copies]
    lacking = {r.ours: tuple(n for n in r.theirs if not theirs.holds(n)) for r in rows}
    _complete(path, shapes, {k: lacking.get(k, (k,)) for k in absent}, with_heads=heads is None)
    report = Report(
        loaded=(*found, *copies),
        new=(*absent, *zeros),
        unused=tuple(theirs.left(family)),
        reshaped=tuple(r.ours for r in rows if r.ours in found and r.form is not SAME),
        heads=declared,
        parameters=sum(t.numel() for t in found.values()),
    )
    return config, {**found, **zeros, **{k: found[source] for k, source in copies.items()}}, report


def _recognised(path: Path, heads: Iterable[Head] | None) -> tuple[ModelConfig, tuple[Head, ...], _Files]:
    """Settings and heads as the files have them, which say what config.json does not."""
    config = read_hf_config(path)
    family = FAMILIES[config.family]
    theirs = _Files(path, family)
    declared = tuple(heads) if heads is not None else _heads_in(theirs, family, config)
    pooler = [r.theirs[0] for r in concrete(family, config, {"pair": "pair"}) if ".pooler." in r.ours]
    pooled = bool(pooler) and (heads is None or theirs.holds(pooler[0]))
    update = {
        "tied_head": _tied(config, theirs, family),
        "pooler": pooled and any(h.over == "classes" for h in declared),
        **family.decide(config, theirs.look),
    }
    return config.model_copy(update=update), declared, theirs


def outline_hf(directory: str | Path) -> tuple[ModelConfig, tuple[Head, ...]]:
    """Settings and heads that `load_hf` would give, from config.json and the tensors' names.

    No weights are read, but for a vocabulary head's table and the embedding where both are there: are they equal?
    """
    path = Path(directory)
    if is_own(path):
        return own_outline(path)
    return _recognised(path, None)[:2]


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
        there = stored(path)
        bare = family.prefix and not any(n.startswith(family.prefix) for n in there)
        for name, place in there.items():
            # the first BERT files call a norm's weight gamma and its bias beta
            plain = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
            for other, ours in family.renames.items():
                plain = plain.replace(other, ours)
            head = plain.startswith(family.head_names)
            self.where[family.prefix + plain if bare and not head else plain] = place
        self.read: set[str] = set()

    def holds(self, name: str) -> bool:
        return name in self.where

    def get(self, name: str) -> Tensor:
        self.read.add(name)
        tensor = fetch(*self.where[name])
        return tensor if tensor.dtype == torch.float64 else tensor.float()

    def look(self, name: str) -> Tensor | None:
        """A tensor without marking it as read; None where it is absent."""
        there, held = set(self.read), self.holds(name)
        tensor = self.get(name) if held else None
        self.read = there
        return tensor

    def left(self, family: Family) -> list[str]:
        """Names nobody read, without buffers that hold no weights."""
        return [n for n in self.where if n not in self.read and not n.endswith(family.unused or ("\0",))]


def _heads_in(theirs: _Files, family: Family, config: ModelConfig) -> tuple[Head, ...]:
    """The heads a directory holds: those of which a tensor is there, but for a pooler alone.

    A vocabulary head that is the tied table and nothing else (GPT-2's) is there with every body.
    """
    out = []
    for role, head in family.heads.items():
        rows = [r for r in concrete(family, config, {role: role}) if r.ours.startswith(f"heads.{role}.")]
        own = [r for r in rows if ".pooler." not in r.ours]
        there = any(theirs.holds(name) for row in own for name in (*row.theirs, *row.also))
        if there or (role == "lm" and config.tied_head and len(rows) == 1 and "detect" not in family.heads):
            out.append(head)
    return tuple(out)


def _tied(config: ModelConfig, theirs: _Files, family: Family) -> bool:
    """Tied as the files are: a head's table that differs from the embedding is a table of its own."""
    rows = {r.ours: r.theirs[0] for r in concrete(family, config, {"lm": "lm"})}
    table, head = rows["embedding.weight"], rows["heads.lm.weight"]
    if config.tied_head and theirs.holds(head) and theirs.holds(table):
        return torch.equal(theirs.get(table), theirs.get(head))
    return config.tied_head


def _assemble(row: Row, theirs: _Files, shape: tuple[int, ...], config: ModelConfig) -> Tensor | None:
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
    asked = [shape]  # of a file of what is ours too (`also`)
    if names == row.theirs:
        asked = [tuple(t.shape) for t in row.form.save(torch.empty(shape, device="meta"), config)]
    if (held := [tuple(p.shape) for p in parts]) != asked:
        shown, wanted = (" + ".join(str(shape) for shape in each[:3]) for each in (held, asked))
        raise UserError(
            f"{theirs.path}: tensor {' + '.join(names[:3])} has shape {shown}, but config.json asks for {wanted}"
        )
    return row.form.load(parts, config).contiguous()


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


# ---------------------------------------------------------------- out


def export_hf(
    model: Transformer, directory: str | Path, ids: Mapping[str, int | None] | None = None
) -> tuple[str, ...]:
    """Write config.json and model.safetensors for the stock class; our tensors that it lacks come back by name.

    `ids` maps roles (pad, bos, eos, cls, sep, mask, decoder_start) to token ids.
    """
    config, path = model.config, Path(directory)
    family = family_of(config)
    heads = known_heads(model.declared, family)
    if not config.pooler:
        heads.pop("pair", None)
    if not config.detector_transform:
        heads.pop("detect", None)
    roles = [role for role in family.heads if role in heads]
    while (there := "+".join(roles)) not in family.classes:
        heads.pop(roles.pop())  # no stock class has these heads at once: the first ones are written
    tensors, written = _theirs(model, family, heads)
    stock = family.classes[there]
    settings = family.write(config)
    settings = {**settings, **_ids(family, settings, ids or {}), "model_type": family.name}
    settings |= labels(model.declared.values()) if "pair" in heads else {}
    path.mkdir(parents=True, exist_ok=True)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    write_json(path / "config.json", {"architectures": [stock], **settings, "dtype": dtype})
    own = {f"{role}_token_id" for role in family.ids}  # generation has no use for these
    tokens = {k: v for k, v in settings.items() if k.endswith("_token_id") and v is not None and k not in own}
    write_json(path / "generation_config.json", tokens)
    save_tensors(tensors, path / "model.safetensors", format="pt", aliases=aliases_note(_shared(config, family, heads)))
    return tuple(k for k in named_once(model)[0] if k not in written)


def _shared(config: ModelConfig, family: Family, heads: Mapping[str, str]) -> dict[str, str]:
    """Their names of the tied head's table → their name of the embedding, under which the file holds it."""
    rows = {r.ours: r for r in concrete(family, config, heads)}
    head = [rows[name] for name in rows if _is_tied(name, config, heads)]
    return {name: rows["embedding.weight"].theirs[0] for row in head for name in (*row.theirs, *row.also)}


def _theirs(model: Transformer, family: Family, heads: Mapping[str, str]) -> tuple[dict[str, Tensor], set[str]]:
    """Their tensors, and our names that went into them."""
    config = model.config
    state = {k: v.detach().cpu() for k, v in model.state_dict().items()}
    out: dict[str, Tensor] = {}
    written = set()
    for row in concrete(family, config, heads):
        if _is_tied(row.ours, config, heads):
            continue
        if row.ours not in state:
            if row.zero is None:
                continue
            state[row.ours] = state["embedding.weight"].new_zeros(row.zero(config))
        written.add(row.ours)
        tensor = state[row.ours]
        for name, part in zip(row.theirs, row.form.save(tensor, config), strict=True):
            out[name] = part.clone(memory_format=torch.contiguous_format)
        if row.ours.startswith("heads."):
            out.update({name: tensor.clone() for name in row.also})
    return out, written


def _ids(family: Family, settings: Mapping[str, Any], ids: Mapping[str, int | None]) -> dict[str, int | None]:
    """Token ids of config.json; absent ones are null, so that no default of the class slips in."""
    out = {f"{role}_token_id": ids.get(role) for role in ("pad", "bos", "eos", *family.ids)}
    if family.offset_from_pad:
        out["pad_token_id"] = pad = settings["pad_token_id"]
        if ids and ids.get("pad") != pad:
            raise UserError(
                f"{family.name} counts positions from the pad id: model.position_offset={pad + 1} belongs to pad id "
                f"{pad}, but the tokenizer's is {ids.get('pad')}: use a tokenizer whose pad id is {pad}"
            )
    if family.two_stacks:
        out["decoder_start_token_id"] = ids.get("decoder_start", ids.get("pad"))
    return out
