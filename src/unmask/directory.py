"""A run's directory: what is written there once, read again, and compared when the run is continued.

recipe.yaml         everything the run is made from, resolved
tokenizer.json      its tokenizer
text.json           where its tokenized text was kept
environment.json    what it was made with
init/, init.json    with `init`: the weights it started from, and what of them was used
stream.jsonl        of a stream: what was read of it, and which updates read it (`data.stream`)
chapters/           of a stream: shards of what is read, while the run trains
logs.json           with `log=`: which loggers get its metrics, and the name it has there
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml

from unmask.config.base import flat
from unmask.data.cache import cache_folder
from unmask.data.chapters import TABLE, amounts, read_table
from unmask.data.prepare import prepare
from unmask.data.shards import Prepared
from unmask.data.stream import FOLDER, Chapters
from unmask.data.text import absolute, title
from unmask.errors import UserError
from unmask.model.families import FAMILIES
from unmask.recipe import Recipe, dump, validate
from unmask.tokens.tokenizer import Tokenizer
from unmask.train.checkpoint import write_json

FORMAT = 1
"""Version of the run directory's layout."""
FREE = {"parallel", "checkpoint.sharded", "checkpoint.background"}
"""Settings that change no number and may be others when a run goes on."""
FAILED = "failed.txt"
"""What went wrong at a start that never made an update."""
OWN = (
    "tokenizer.json",
    "text.json",
    "environment.json",
    "plan.json",
    "metrics.jsonl",
    "result.json",
    "init",
    "init.json",
    "logs.json",
    TABLE,
    FOLDER,
)
"""Files of a run beside recipe.yaml and checkpoints/."""


def stored_recipe(out: Path) -> Recipe:
    """The resolved recipe of a run directory."""
    path = out / "recipe.yaml"
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{out} is no run: it has no recipe.yaml") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        fault = " ".join(str(error).split())
        raise UserError(f"{out} is no run: it has no readable recipe.yaml ({fault})") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} holds no settings of a run: restore it")
    return validate(values, str(path))


def stored(out: Path, resume: str) -> Recipe | None:
    """The recipe of the run in `out` that is to be continued, or None to start one."""
    if resume not in ("never", "auto", "must"):
        raise UserError(f"resume={resume} is none of never, auto, must")
    failed = gave_up(out)
    exists = (out / "recipe.yaml").exists() and not failed
    if resume == "never" and exists:
        raise UserError(f"{out} already holds a run: give another out=, or resume=auto to continue it")
    if resume == "must" and not exists:
        raise UserError(f"{out} holds no run to resume: check the path, or use resume=auto to start one")
    if not exists and out.exists() and not out.is_dir():
        raise UserError(f"out={out} is a file: give a directory")
    if not exists and any((out / "checkpoints").glob("step-*")):
        raise UserError(f"{out} holds checkpoints of a run without its recipe.yaml: restore it, or give another out=")
    taken = next((name for name in OWN if (out / name).exists()), None)
    if not exists and not failed and taken is not None:
        raise UserError(f"{out} holds {taken} of something else, which a run would write over: give another out=")
    return stored_recipe(out) if exists else None


def same(asked: Recipe, stored: Recipe, out: Path) -> None:
    """A run is continued with its own recipe: name the first setting that differs."""
    paths: dict[str, Any] = {k: absolute(c) for k in ("corpus", "valid") if (c := getattr(asked, k)) is not None}
    if asked.init is not None:
        paths["init"] = str(Path(asked.init).absolute())
    if asked.init is not None and stored.init is not None:  # what is not given came from there
        explicit = {k: getattr(asked.model, k) for k in asked.model.model_fields_set}
        paths["model"] = stored.model.model_copy(update=explicit)
        paths |= {k: getattr(stored, k) for k in ("tokenizer", "start", "end") if k not in asked.model_fields_set}
    a, b = (flat(r.model_dump(mode="json")) for r in (asked.model_copy(update=paths), stored))
    # what `resolve` fills in where it is left out
    decided: dict[str, Any] = {"model.vocab_size": 0, "model.visibility": "causal", "start": None}
    family = FAMILIES.get(stored.model.family)
    if family is not None and family.offset_from_pad:  # then it is the tokenizer's, whatever the recipe says
        decided["model.position_offset"] = asked.model.position_offset
    for key in sorted((a.keys() | b.keys()) - FREE):
        if a.get(key) != b.get(key) and a.get(key) != decided.get(key, a):
            raise UserError(
                f"{out} was started with {key}={b.get(key)}, not {a.get(key)}: "
                "resume it with its own settings (unmask resume), or give another out="
            )


def same_machine(out: Path, say: Callable[[str], None]) -> None:
    """Say aloud what makes a resumed run differ in its last bits: another torch, processor or thread count."""
    try:
        before = json.loads((out / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    now = environment()
    flat_before, flat_now = flat(before), flat(now)
    for key in ("packages.torch", "cpu_capability", "threads"):
        if flat_before.get(key) != flat_now.get(key):
            say(
                f"{key} was {flat_before.get(key)} and is {flat_now.get(key)}: "
                "the run continues, but not bit for bit as it would have"
            )


def write_down(recipe: Recipe, text: Prepared, out: Path, chapters: Chapters | None = None) -> None:
    """The files that do not change: recipe last, since its presence says that a run lies here."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / FAILED).unlink(missing_ok=True)
        text.tokenizer.save(out / "tokenizer.json")
        write_json(out / "text.json", {"format": FORMAT, "prepared": str(text.directory.resolve())})
        write_json(out / "environment.json", environment())
        if chapters is not None:
            chapters.begin()
        temporary = out / ".recipe.yaml.writing"
        temporary.write_text(dump(recipe), encoding="utf-8")
        os.replace(temporary, out / "recipe.yaml")
    except OSError as error:
        free = shutil.disk_usage(out if out.exists() else out.parent).free if out.parent.exists() else 0
        raise UserError(
            f"cannot write the run to {out} ({error.strerror}; {free:,} bytes free): give another out="
        ) from error


def give_up(out: Path, error: BaseException) -> None:
    """Note that a start failed before its first update, so that a mended command may start in the same place."""
    with contextlib.suppress(OSError):  # the error itself is what the user must hear of
        (out / FAILED).write_text(f"{error}\n", encoding="utf-8")


def gave_up(out: Path) -> bool:
    """Whether what lies there is a start that never made an update: there is nothing in it to lose."""
    return (out / FAILED).exists() and not any((out / "checkpoints").glob("step-*"))


def environment() -> dict[str, Any]:
    """What a run was made with."""
    packages = ("unmask", "torch", "numpy", "tokenizers", "safetensors", "pydantic", "transformers")
    return {
        "format": FORMAT,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "packages": {p: _version(p) for p in packages},
    }


def _processor() -> str:
    """The model's name where the system says it: `platform` knows no more than the instruction set on Linux."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def prepared(out: Path, cache: str | Path | None = None, say: Callable[[str], None] = lambda _: None) -> Prepared:
    """The tokenized text that a run was trained on: where it was kept, or made again from the same corpus."""
    if not (out / "text.json").exists():
        raise UserError(f"{out} is no run with a text of its own: give the text to evaluate on")
    try:
        place = Path(json.loads((out / "text.json").read_text(encoding="utf-8"))["prepared"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{out} does not say what text it was trained on (text.json: {error})") from error
    if (place / "meta.json").exists():
        return Prepared.load(place)
    recipe, tokenizer = stored_recipe(out), Tokenizer.load(out / "tokenizer.json")
    listed = read_table(out)[0] if recipe.corpus.stream and (out / TABLE).exists() else None
    text = prepare(recipe.corpus, recipe.valid, tokenizer, cache_folder(cache), say, listed=listed)
    if text.directory.name != place.name:
        raise UserError(
            f"{title(recipe.corpus)} has changed since {out} was started, or another version of unmask prepared it: "
            "restore it, or start a new run"
        )
    return text


def data_of(run: Path | None) -> dict[str, Any] | None:
    """How much text a run was trained on, where that is still known."""
    if run is not None and (run / "text.json").is_file():
        with contextlib.suppress(UserError, OSError, ValueError, KeyError, TypeError):  # the text may be gone
            values = json.loads((run / "text.json").read_text(encoding="utf-8"))
            found = Prepared.load(Path(values["prepared"])).summary()
            return {**found, "train": amounts(run)} if (run / TABLE).exists() else found
    return None


def first_of(run: Path | None) -> Path | None:
    """The directory that a run's first weights come from, by `init`, an import or a conversion."""
    if run is not None and (run / "recipe.yaml").is_file():
        with contextlib.suppress(OSError, ValueError, yaml.YAMLError):
            values = yaml.safe_load((run / "recipe.yaml").read_text(encoding="utf-8"))
            if isinstance(values, dict) and (place := values.get("imported") or values.get("init")):
                return Path(str(place))
    return None
