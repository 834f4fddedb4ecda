"""A run on disk: `checkpoints/step-N/`, whole or not there at all.

    model.safetensors      every distinct tensor once; the header lists which names share it ("aliases")
    optimizer.safetensors  see `unmask.train.optim`; one that is kept to be measured loses it later (`lighten`)
    state.json             format version, step, counters, best value, plan
    manifest.json          size and SHA-256 of the others, written last

Where each rank writes its own rows the first two are as many files as ranks (`train.sharded`).

A checkpoint is built in a hidden directory beside its place, every file is flushed to the disk, and one rename
puts it there: a kill at any moment leaves the previous checkpoints untouched and at worst a hidden directory,
which the next save removes. Removal is a rename first, too. No pickle is read or written.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from unmask.disk import cannot_write, sync, write_text
from unmask.errors import UserError
from unmask.tensors import named_once
from unmask.train.layout import HERE, Layout
from unmask.train.sharded import Share, Stored, file_of, is_of, save_share, whole

FORMAT = 1
MODEL, OPTIMIZER, STATE, MANIFEST = "model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"
_WRITING, _REMOVING, _REPLACED = _HIDDEN = (".writing-", ".removing-", ".replaced-")


# ---------------------------------------------------------------- tensors of networks


def load_model(networks: nn.Module, directory: Path, layout: Layout = HERE) -> None:
    """Copy a checkpoint's weights into `networks`, of which this rank holds what `layout` says and reads no more.

    Names and shapes must match exactly.
    """
    own, _ = named_once(networks)
    stored = Stored(directory, MODEL)
    wrong = [f"'{n}'" for n in sorted(own.keys() ^ stored.keys())] or [
        f"'{n}' is {tuple(stored[n].shape)} there and {tuple(own[n].shape)} here"
        for n in sorted(own)
        if own[n].shape != stored[n].shape
    ]
    if wrong:
        raise UserError(
            f"{stored.title} does not fit this model ({len(wrong)} tensors differ, first {wrong[0]}): "
            "use the recipe that the run was started with"
        )
    layout.fill_all(own, stored)


def load_optimizer(directory: Path) -> Stored:
    """The flat optimizer state of a checkpoint, read where it is asked for."""
    return Stored(directory, OPTIMIZER)


# ---------------------------------------------------------------- writing


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file so that it is the old one or the new one, never half of either."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def need(model: Mapping[str, Tensor], optimizer_bytes: int, writers: int = 1) -> int:
    """Bytes one checkpoint takes: tensors, their headers in each writer's files, and a little JSON."""
    headers = 256 * len(model) if writers == 1 else 1024 * len(model) * writers
    return sum(t.numel() * t.element_size() for t in model.values()) + optimizer_bytes + headers + 65536


def require_space(directory: Path, needed: int) -> None:
    """A disk too small for one more checkpoint is refused before anything is written."""
    if shutil.disk_usage(directory).free < needed:
        raise cannot_write(directory, needed, OSError(errno.ENOSPC, "No space left on device"))


@dataclass(frozen=True)
class Writing:
    """A checkpoint that is being written by `writers` processes: begun and put in its place by the first of them."""

    checkpoints: Path
    step: int
    needed: int
    """Bytes."""
    writers: int = 1

    @property
    def place(self) -> Path:
        return self.checkpoints / f"step-{self.step}"

    @property
    def hidden(self) -> Path:
        return self.checkpoints / f"{_WRITING}step-{self.step}"

    def begin(self) -> None:
        """Make the hidden directory, where the disk has room; before any writer writes."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        clean(self.checkpoints)
        require_space(self.checkpoints, self.needed)
        with self._explained():
            self.hidden.mkdir()

    def write(self, rank: int, model: Share, aliases: Mapping[str, str], optimizer: Share) -> None:
        """Write a rank's share, flushed, and beside it what the manifest will say of its files."""
        with self._explained():
            names = file_of(MODEL, rank, self.writers), file_of(OPTIMIZER, rank, self.writers)
            save_share(model, self.hidden / names[0], self.writers, aliases)
            save_share(optimizer, self.hidden / names[1], self.writers)
            files = {name: _fingerprint(self.hidden / name) for name in names}
            for name in names:
                sync(self.hidden / name)
            half = self._note(rank).with_suffix(".half")
            half.write_text(json.dumps(files), encoding="utf-8")
            os.replace(half, self._note(rank))  # whole or not there: the first one looks for it

    def _note(self, rank: int) -> Path:
        return self.hidden / f"written-{rank}.json"

    def missing(self) -> list[int]:
        """The writers that are not done."""
        return [rank for rank in range(self.writers) if not self._note(rank).exists()]

    def commit(self, state: Mapping[str, Any]) -> Path:
        """Put the checkpoint in its place when all have written their shares."""
        with self._explained():
            files: dict[str, Any] = {}
            for rank in range(self.writers):
                files |= json.loads(self._note(rank).read_text())
                self._note(rank).unlink()
            content = json.dumps({"format": FORMAT, **state}, indent=1, allow_nan=False)
            (self.hidden / STATE).write_text(content + "\n", encoding="utf-8")
            files[STATE] = _fingerprint(self.hidden / STATE)
            manifest = {"format": FORMAT, "files": files}
            (self.hidden / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
            for name in (STATE, MANIFEST):
                sync(self.hidden / name)
            sync(self.hidden)
            replaced = self.checkpoints / f"{_REPLACED}step-{self.step}"
            if self.place.exists():  # written before a stop; `clean` puts it back after a kill between two renames
                os.rename(self.place, replaced)
            os.rename(self.hidden, self.place)
            sync(self.checkpoints)
            shutil.rmtree(replaced, ignore_errors=True)
        return self.place

    def abandon(self) -> None:
        """Leave nothing of it."""
        shutil.rmtree(self.hidden, ignore_errors=True)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise cannot_write(self.place, self.needed, error) from error


def write(
    checkpoints: Path, step: int, networks: nn.Module, optimizer: Mapping[str, Tensor], state: Mapping[str, Any]
) -> Path:
    """Write `checkpoints/step-N` of whole networks, or raise UserError and leave nothing of it."""
    tensors, aliases = named_once(networks)
    needed = need(tensors, sum(t.numel() * t.element_size() for t in optimizer.values()))
    writing = Writing(checkpoints, step, needed)
    writing.begin()
    try:
        writing.write(0, whole(tensors), aliases, whole(optimizer))
        return writing.commit(state)
    except UserError:
        writing.abandon()
        raise


def _fingerprint(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


# ---------------------------------------------------------------- finding and keeping


@dataclass(frozen=True)
class Found:
    """The whole checkpoints of a run by rising step, and what lies there half-written or damaged."""

    whole: dict[int, Path]
    partial: list[str]


def find(checkpoints: Path) -> Found:
    """List a run's checkpoints by their manifests (sizes only; `read_state` also compares the hashes)."""
    whole: dict[int, Path] = {}
    partial: list[str] = []
    for path in sorted(checkpoints.iterdir()) if checkpoints.is_dir() else []:
        if path.name.startswith(_HIDDEN):
            partial.append(path.name)
        elif re.fullmatch(r"step-\d+", path.name):
            damage = _damage(path, hashes=False)
            if damage:
                partial.append(f"{path.name} ({damage})")
            else:
                whole[int(path.name[5:])] = path
    return Found(dict(sorted(whole.items())), partial)


def newest(checkpoints: Path, resumable: bool = False) -> tuple[Path | None, list[str]]:
    """The newest checkpoint whose content matches its hashes, and what was passed over on the way to it.

    resumable: only those that training can go on from, which weights alone are not enough for.
    """
    found = find(checkpoints)
    passed = list(found.partial)
    for path in reversed(found.whole.values()):
        if resumable and is_light(path):
            continue
        damage = _damage(path, hashes=True)
        if not damage:
            return path, passed
        passed.append(f"{path.name} ({damage})")
    return None, passed


def read_state(directory: Path) -> dict[str, Any]:
    """A checkpoint's counters."""
    try:
        state = json.loads((directory / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{directory / STATE} cannot be read ({error}): resume from an older checkpoint") from error
    if state.get("format") != FORMAT:
        raise UserError(f"{directory} has format {state.get('format')}, this version of unmask reads {FORMAT}")
    return dict(state)


def best_checkpoint(checkpoints: Path) -> Path | None:
    """The checkpoint with the best evaluation so far, as the newest one remembers it."""
    latest, _ = newest(checkpoints)
    step = read_state(latest)["best_step"] if latest else None
    return find(checkpoints).whole.get(step) if step is not None else None


def _damage(path: Path, hashes: bool) -> str:
    """Why a checkpoint cannot be used, or ""."""
    files = _listed(path)
    if files is None:
        return "no manifest"
    for name, expected in files.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != expected["bytes"] or (hashes and _fingerprint(file) != expected):
            return f"{name} is damaged"
    return ""


def _listed(path: Path) -> dict[str, Any] | None:
    """The files of a checkpoint by its manifest."""
    try:
        return dict(json.loads((path / MANIFEST).read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_power_of_two(step: int) -> bool:
    return step > 0 and step & (step - 1) == 0


def retain(checkpoints: Path, keep: int, best: int | None, at: Collection[int] = (), powers: bool = True) -> None:
    """Remove all but the last `keep`, the best, `powers` of two, and those `at` these steps: of these, weights stay."""
    whole = find(checkpoints).whole
    newest_ones = list(whole)[-keep:]
    for step, path in whole.items():
        if step in newest_ones:
            continue
        if step in at:
            lighten(path)
        elif step != best and not (powers and is_power_of_two(step)):
            _remove(path)


def lighten(path: Path) -> None:
    """Leave a checkpoint's weights and counters alone: its manifest forgets the optimizer before the files go."""
    files = _listed(path)
    if files is None:
        return
    left = {name: file for name, file in files.items() if not is_of(OPTIMIZER, name)}
    if left != files:
        write_json(path / MANIFEST, {"format": FORMAT, "files": left})
    for file in [p for p in path.iterdir() if is_of(OPTIMIZER, p.name)]:  # also what a kill left between the two
        file.unlink(missing_ok=True)


def is_light(path: Path) -> bool:
    """Whether a whole checkpoint holds weights alone."""
    files = _listed(path)
    return files is not None and not any(is_of(OPTIMIZER, name) for name in files)


def size(path: Path) -> int:
    """Bytes of a checkpoint's tensors: what else lies there is small, and counts seconds."""
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))


def discard(checkpoints: Path) -> None:
    """Remove every checkpoint."""
    for path in find(checkpoints).whole.values():
        _remove(path)


def clean(checkpoints: Path) -> None:
    """Remove what kills left behind: hidden directories only. One that was being replaced returns to its place."""
    for path in checkpoints.iterdir() if checkpoints.is_dir() else []:
        if path.name.startswith(_REPLACED) and not path.with_name(path.name[len(_REPLACED) :]).exists():
            os.rename(path, path.with_name(path.name[len(_REPLACED) :]))
        elif path.name.startswith(_HIDDEN):
            shutil.rmtree(path)


def _remove(path: Path) -> None:
    hidden = path.with_name(_REMOVING + path.name)
    if hidden.exists():
        shutil.rmtree(hidden)
    os.rename(path, hidden)
    shutil.rmtree(hidden)
