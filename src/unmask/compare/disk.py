"""DIR/study.yaml: what is asked of a study, frozen before its first run; it is resumed with the same one only."""

from __future__ import annotations

import os
from pathlib import Path

import yaml
from pydantic import ValidationError

from unmask.compare.settings import Study, flat
from unmask.errors import UserError

STUDY = "study.yaml"


def keep(study: Study, out: Path, resume: str) -> Study:
    """Freeze a study in `out`, or find it there; the one that lies there is what is run."""
    if resume not in ("never", "auto", "must"):
        raise UserError(f"resume={resume} is none of never, auto, must")
    file = out / STUDY
    if not file.exists():
        if resume == "must":
            raise UserError(f"{out} holds no study to resume: check the path, or use resume=auto to start one")
        if out.exists() and (not out.is_dir() or any(not p.name.startswith(".") for p in out.iterdir())):
            raise UserError(f"{out} holds something else than a study: give another out=")
        out.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f".{STUDY}.writing")
        text = yaml.safe_dump(study.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, file)
        return study
    if resume == "never":
        raise UserError(f"{out} already holds a study: give another out=, or resume=auto to continue it")
    stored = read(file)
    a, b = (flat(s.model_dump(mode="json", exclude={"command"})) for s in (study, stored))
    for key in sorted(a.keys() | b.keys()):
        if a.get(key) != b.get(key):
            raise UserError(
                f"{out} was started with {key}={b.get(key)}, not {a.get(key)}: resume it with its own settings, or "
                "give another out="
            )
    return stored


def read(file: Path) -> Study:
    """A frozen study."""
    try:
        return Study.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValidationError) as error:
        raise UserError(f"{file} is no study of this version: {' '.join(str(error).split())[:300]}") from error
