"""Tensors of a checkpoint in safetensors files: whole ones in one file, or the rows of every rank in a file of its own.

    model.safetensors                               one writer
    model-00001-of-00004.safetensors and so on      four, each the rows that it held; rank 0 also what has no rows

A tensor of 10 rows on 4 ranks begins in these files at rows 0, 3, 6 and 9. Each header says so under
"DCP_SHARDING_INFO", as torch.distributed.checkpoint's HuggingFaceStorageWriter does, whose reader understands the
directory. That writer itself is not used: its header has no place for the names that share a tensor, and it
makes its plan by collectives, which a thread in the background must not.

`Stored` reads either form, and of it no more than is asked for: on as many ranks, on others, or on one process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from unmask.errors import UserError
from unmask.tensors import DTYPES, aliases_note, save_tensors
from unmask.train.layout import Layout

INFO, OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"
_TYPES = {name: dtype for dtype, name in DTYPES.items()}


@dataclass(frozen=True)
class Rows:
    """What a rank writes of a tensor: its rows from `first` on, or all of it."""

    numbers: Tensor
    first: int = 0


Share = Mapping[str, Rows]
"""What a rank writes of a network's or an optimizer's tensors."""


def whole(tensors: Mapping[str, Tensor]) -> dict[str, Rows]:
    """The share of one that writes all."""
    return {name: Rows(tensor) for name, tensor in tensors.items()}


def share_of(tensors: Mapping[str, Tensor], layout: Layout, first: bool) -> dict[str, Rows]:
    """A rank's share of tensors that lie on all; the `first` one also writes what each rank holds whole."""
    share = {}
    for name, tensor in tensors.items():
        rows = layout.rows(tensor)
        if first or (rows is not None and rows[0] < rows[1]):
            share[name] = Rows(layout.held(tensor), rows[0] if rows else 0)
    return share


def copied(share: Share) -> dict[str, Rows]:
    """A share as it is now, in main memory, whatever training does next."""
    return {name: Rows(rows.numbers.detach().to("cpu", copy=True), rows.first) for name, rows in share.items()}


def file_of(kind: str, rank: int, count: int) -> str:
    """
    >>> file_of("model.safetensors", 0, 1), file_of("model.safetensors", 1, 4)
    ('model.safetensors', 'model-00002-of-00004.safetensors')
    """
    stem, dot, end = kind.partition(".")
    return kind if count == 1 else f"{stem}-{rank + 1:05d}-of-{count:05d}{dot}{end}"


def is_of(kind: str, name: str) -> bool:
    """Whether a file's name is one that `file_of` gives to this kind."""
    stem, _, end = kind.partition(".")
    return re.fullmatch(rf"{stem}(-\d+-of-\d+)?\.{end}", name) is not None


def save_share(share: Share, file: Path, count: int, aliases: Mapping[str, str] | None = None) -> None:
    """Write one of `count` writers' file."""
    notes = {} if aliases is None else {"aliases": aliases_note(aliases)}
    if count > 1:
        begin = {name: [r.first, *[0] * (r.numbers.ndim - 1)] if r.numbers.ndim else [] for name, r in share.items()}
        notes[INFO] = json.dumps({name: {OFFSETS: at} for name, at in begin.items()})
    save_tensors({name: rows.numbers for name, rows in share.items()}, file, **notes)


# ---------------------------------------------------------------- reading


@dataclass(frozen=True)
class _Piece:
    first: int
    end: int
    file: Any
    """An open safetensors file that holds these rows."""


class StoredTensor:
    """A tensor in files: `x[...]` reads all of it, `x[a:b]` rows."""

    def __init__(self, name: str, pieces: Sequence[_Piece]) -> None:
        self.name, self.pieces = name, sorted(pieces, key=lambda p: p.first)
        stored = self.pieces[0].file.get_slice(name)
        self.dtype = _TYPES[stored.get_dtype()]
        rest = stored.get_shape()
        self.shape = torch.Size([self.pieces[-1].end, *rest[1:]] if rest else [])

    @property
    def complete(self) -> bool:
        """Whether each row is there once."""
        return [p.first for p in self.pieces] == [0, *(p.end for p in self.pieces[:-1])]

    def __getitem__(self, index: slice | EllipsisType, /) -> Tensor:
        if not self.shape:
            return self.pieces[0].file.get_tensor(self.name)  # type: ignore[no-any-return]
        first, end, _ = (slice(None) if isinstance(index, EllipsisType) else index).indices(self.shape[0])
        found = [
            piece.file.get_slice(self.name)[max(first, piece.first) - piece.first : min(end, piece.end) - piece.first]
            for piece in self.pieces
            if piece.first < end and first < piece.end
        ]
        if not found:
            return torch.empty(0, *self.shape[1:], dtype=self.dtype)
        return found[0] if len(found) == 1 else torch.cat(found)


class Stored(Mapping[str, StoredTensor]):
    """The tensors of one kind in a checkpoint's directory, by name; read where they are asked for."""

    def __init__(self, directory: Path, kind: str) -> None:
        parts = sorted(p for p in directory.iterdir() if is_of(kind, p.name)) if directory.is_dir() else []
        self.files = parts or [directory / kind]
        self.aliases: dict[str, str] = {}
        """Other names of these tensors."""
        pieces: dict[str, list[_Piece]] = {}
        for file in self.files:
            try:
                opened: Any = safe_open(file, "pt")
                notes = opened.metadata() or {}
                begin = json.loads(notes.get(INFO, "{}"))
                self.aliases |= json.loads(notes.get("aliases", "{}"))
                for name in opened.keys():  # noqa: SIM118 (no mapping)
                    shape, at = opened.get_slice(name).get_shape(), begin.get(name, {}).get(OFFSETS) or [0]
                    pieces.setdefault(name, []).append(_Piece(at[0], at[0] + (shape[0] if shape else 1), opened))
            except (OSError, SafetensorError, ValueError) as error:
                raise UserError(f"{file} cannot be read ({error}): resume from an older checkpoint") from error
        self._tensors = {name: StoredTensor(name, found) for name, found in pieces.items()}
        count = int(self.files[0].stem[-5:]) if len(parts) > 1 or "-of-" in self.files[0].name else 1
        torn = next((t.name for t in self._tensors.values() if not t.complete), None)
        if len(self.files) != count or torn:
            what = f"'{torn}' lacks rows" if torn else f"{len(self.files)} of {count} files are there"
            raise UserError(f"{self.title} cannot be read ({what}): resume from an older checkpoint")

    @property
    def title(self) -> str:
        """Where they lie, for messages."""
        return str(self.files[0] if len(self.files) == 1 else self.files[0].parent)

    def __getitem__(self, name: str) -> StoredTensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
