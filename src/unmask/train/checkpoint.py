"""A run on disk: `checkpoints/step-N/`, whole or not there at all.

    model.safetensors      every distinct tensor once; the header lists which names share it ("aliases")
    optimizer.safetensors  see `unmask.train.optim`; one that is kept to be measured loses it later (`lighten`)
    state.json             format version, step, counters, best value, plan
    manifest.json          size and SHA-256 of the others, written last

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
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from unmask.errors import UserError
from unmask.tensors import aliases_note, named_once, save_tensors

FORMAT = 1
MODEL, OPTIMIZER, STATE, MANIFEST = "model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"
_WRITING, _REMOVING, _REPLACED = _HIDDEN = (".writing-", ".removing-", ".replaced-")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


# ---------------------------------------------------------------- tensors of networks


def load_model(networks: nn.Module, directory: Path) -> None:
    """Copy a checkpoint's weights into `networks`; names and shapes must match exactly."""
    own, _ = named_once(networks)
    stored = _load(directory / MODEL)
    wrong = [f"'{n}'" for n in sorted(own.keys() ^ stored.keys())] or [
        f"'{n}' is {tuple(stored[n].shape)} there and {tuple(own[n].shape)} here"
        for n in sorted(own)
        if own[n].shape != stored[n].shape
    ]
    if wrong:
        raise UserError(
            f"{directory / MODEL} does not fit this model ({len(wrong)} tensors differ, first {wrong[0]}): "
            "use the recipe that the run was started with"
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(stored[name])


def load_optimizer(directory: Path) -> dict[str, Tensor]:
    """The flat optimizer state of a checkpoint."""
    return _load(directory / OPTIMIZER)


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read ({error}): resume from an older checkpoint") from error


# ---------------------------------------------------------------- writing


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file so that it is the old one or the new one, never half of either."""
    temporary = path.with_name(f".{path.name}.writing")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(json.dumps(value, indent=1, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise cannot_write(path, 4096, error) from error
    _sync(path.parent)


def need(model: Mapping[str, Tensor], optimizer_bytes: int) -> int:
    """Bytes one checkpoint takes: tensors, their headers, and a little JSON."""
    return sum(t.numel() * t.element_size() for t in model.values()) + optimizer_bytes + 256 * len(model) + 65536


def require_space(directory: Path, needed: int) -> None:
    """A disk too small for one more checkpoint is refused before anything is written."""
    if shutil.disk_usage(directory).free < needed:
        raise cannot_write(directory, needed, OSError(errno.ENOSPC, "No space left on device"))


def cannot_write(where: Path, needed: int, error: Exception) -> UserError:
    """The one message for a failed write: what was needed and what is free."""
    free = shutil.disk_usage(next(p for p in (where, *where.absolute().parents) if p.exists())).free
    text = str(error)
    number = getattr(error, "errno", None)
    found = re.search(r"os error (\d+)", text)  # safetensors reports its errno only in the text
    number = int(found.group(1)) if number is None and found else number
    if number in _FULL:
        return UserError(
            f"no room to write {where}: it needs {needed:,} bytes and {free:,} bytes are free "
            f"({os.strerror(number)}); earlier checkpoints are intact: free some space, then resume the run"
        )
    return UserError(f"cannot write {where} ({text}); earlier checkpoints are intact: mend this, then resume the run")


def write(
    checkpoints: Path,
    step: int,
    networks: nn.Module,
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
    gathered: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write `checkpoints/step-N` whole, or raise UserError and leave nothing of it.

    gathered: the whole tensors of networks that hold shards, by the names of `named_once`.
    """
    checkpoints.mkdir(parents=True, exist_ok=True)
    clean(checkpoints)
    tensors, aliases = named_once(networks)
    tensors = tensors if gathered is None else dict(gathered)
    needed = need(tensors, sum(t.numel() * t.element_size() for t in optimizer.values()))
    require_space(checkpoints, needed)
    place, temporary = checkpoints / f"step-{step}", checkpoints / f"{_WRITING}step-{step}"
    try:
        temporary.mkdir()
        save_tensors(tensors, temporary / MODEL, aliases=aliases_note(aliases))
        save_tensors(optimizer, temporary / OPTIMIZER)
        content = json.dumps({"format": FORMAT, **state}, indent=1, allow_nan=False)
        (temporary / STATE).write_text(content + "\n", encoding="utf-8")
        files = {name: _fingerprint(temporary / name) for name in (MODEL, OPTIMIZER, STATE)}
        manifest = {"format": FORMAT, "files": files}
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        for name in (*files, MANIFEST):
            _sync(temporary / name)
        _sync(temporary)
        replaced = checkpoints / f"{_REPLACED}step-{step}"
        if place.exists():  # written before a stop; `clean` puts it back after a kill between the two renames
            os.rename(place, replaced)
        os.rename(temporary, place)
        _sync(checkpoints)
        shutil.rmtree(replaced, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise cannot_write(place, needed, error) from error
    return place


def _fingerprint(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _sync(path: Path) -> None:
    """Flush a file or a directory's entries to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
    """Leave a checkpoint's weights and counters alone: its manifest forgets the optimizer before the file goes."""
    files = _listed(path)
    if files is None:
        return
    if files.pop(OPTIMIZER, None) is not None:
        write_json(path / MANIFEST, {"format": FORMAT, "files": files})
    (path / OPTIMIZER).unlink(missing_ok=True)  # also what a kill left between the two


def is_light(path: Path) -> bool:
    """Whether a whole checkpoint holds weights alone."""
    return OPTIMIZER not in (_listed(path) or {OPTIMIZER: None})


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
