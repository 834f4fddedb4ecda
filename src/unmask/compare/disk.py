"""DIR/study.yaml: what is asked of a study, frozen before its first run.

It is resumed with the same one only, or with more seeds behind those that it has: their runs are added, and all that
was decided and done before stays.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from unmask.compare.results import RESULTS, Results
from unmask.compare.settings import Study
from unmask.config.base import flat
from unmask.errors import UserError

STUDY = "study.yaml"


def keep(study: Study, out: Path, resume: str) -> Study:
    """Freeze a study in `out`, or find it there: what is run. More seeds are not written down yet (`grown`)."""
    if resume not in ("never", "auto", "must"):
        raise UserError(f"resume={resume} is none of never, auto, must")
    file = out / STUDY
    if not file.exists():
        if resume == "must":
            raise UserError(f"{out} holds no study to resume: check the path, or use resume=auto to start one")
        if out.exists() and (not out.is_dir() or any(not p.name.startswith(".") for p in out.iterdir())):
            raise UserError(f"{out} holds something else than a study: give another out=")
        out.mkdir(parents=True, exist_ok=True)
        _write(study, file)
        return study
    if resume == "never":
        raise UserError(f"{out} already holds a study: give another out=, or resume=auto to continue it")
    return _continued(study, read(file), out)


def grown(study: Study, out: Path) -> Study:
    """The study of `keep` once its directory is held (`lock`): with seeds added it replaces the one that lies there."""
    stored = read(out / STUDY)
    found = _continued(study, stored, out)
    if found.seeds != stored.seeds:
        if (out / RESULTS).exists():
            known = len(Results.read(out / RESULTS).seeds)
            found = found.model_copy(update={"seen": list(dict.fromkeys([*stored.seen, known]))})
        _write(found, out / STUDY)
    return found


def _continued(study: Study, stored: Study, out: Path) -> Study:
    """The stored study, or the one that is asked for where it only has more seeds."""
    apart: Any = {"command": True, "seeds": True, "seen": True, "tune": {"seed"}}
    a, b = (flat(s.model_dump(mode="json", exclude=apart)) for s in (study, stored))
    for key in sorted(a.keys() | b.keys()):
        if a.get(key) != b.get(key):
            raise UserError(
                f"{out} was started with {key}={b.get(key)}, not {a.get(key)}: resume it with its own settings, or "
                "give another out="
            )
    had = stored.seeds
    if study.seeds == had:
        return stored
    if study.seeds[: len(had)] != had:
        raise UserError(
            f"{out} was started with seeds={_listed(had)}, not {_listed(study.seeds)}: seeds may be added behind these "
            "and none taken away, so give more of them, or another out="
        )
    if stored.tune is not None and stored.tune.seed in study.seeds:
        raise UserError(
            f"{out}: seed {stored.tune.seed} chose the learning rates, so no run can have it: leave it out of seeds=, "
            "or give another out="
        )
    return study.model_copy(update={"seen": stored.seen})  # whose held-out seed is the first that no run has, as before


def _listed(seeds: Sequence[int]) -> str:
    return ",".join(map(str, seeds))


def _write(study: Study, file: Path) -> None:
    temporary = file.with_name(f".{STUDY}.writing")
    text = yaml.safe_dump(study.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, file)


def read(file: Path) -> Study:
    """A frozen study."""
    try:
        return Study.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValidationError) as error:
        raise UserError(f"{file} is no study of this version: {' '.join(str(error).split())[:300]}") from error
