"""Folders that hold a study of several runs and are none themselves: what to say where one is given for a run."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

RECIPE = "recipe.yaml"
"""What a run has, and a study has not."""
PLACES = ("runs/*", "runs/*/*", "*", "*/*", "*/runs/*", "*/runs/*/*")
"""Where the runs of a study lie: of a ladder, of `compare`, of a demo; the others of laboratories."""


@dataclass(frozen=True)
class Study:
    """what: as it is called in a sentence; command: that began it, "" where it is not known or cannot be continued."""

    place: Path
    what: str
    command: str = ""

    @property
    def run(self) -> Path | None:
        """One of its runs, the first by name."""
        for pattern in PLACES:
            found = sorted(self.place.glob(f"{pattern}/{RECIPE}"))
            if found:
                return found[0].parent
        return None


def instead_of_a_run(place: Path) -> str:
    """The sentence for a study that stands where a run belongs; "" for every other place."""
    study = _study(place)
    return "" if study is None else f"{place} is {study.what}, not a run: {_give(study)}"


def instead_of_resuming(place: Path) -> str:
    """The same where a run was to be continued: a study is continued by its own command."""
    study = _study(place)
    if study is None:
        return ""
    again = f"continue it by its own command ({_again(study.command)}), or " if study.command else ""
    return f"{place} is {study.what}, not a run: {again}{_give(study)}"


def _give(study: Study) -> str:
    run = study.run
    return "give a run (beneath it lies none yet)" if run is None else f"give one of its runs, such as {run}"


def _again(command: str) -> str:
    """
    >>> _again("unmask lab beyond out=b"), _again("unmask scale run a resume=never --seed 0")
    ('unmask lab beyond out=b resume=auto', 'unmask scale run a --seed 0 resume=auto')
    """
    return f"{re.sub(r' resume=[a-z]+', '', command)} resume=auto"


def _study(place: Path) -> Study | None:
    if (place / RECIPE).is_file() or not place.is_dir():
        return None
    if (place / "study.yaml").is_file():
        return Study(place, "a study of unmask compare", _command(place / "study.yaml") or "unmask compare …")
    command = _command(place / "results.json")
    if command.startswith("unmask scale run") or (not command and any((place / "jobs").glob("*.job"))):
        return Study(place, "a ladder of unmask scale", command or "unmask scale run …")
    if command.startswith("unmask lab "):
        return Study(place, f"what {' '.join(command.split()[:3])} wrote", command)
    found = Study(place, "what unmask demo wrote" if command.startswith("unmask demo") else "a folder of runs")
    return found if found.run is not None else None


def _command(file: Path) -> str:
    """What a frozen study or a record says that it was begun with; "" where it says nothing."""
    try:
        text = file.read_text(encoding="utf-8")
        values = json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError):
        return ""
    found = values.get("command") if isinstance(values, dict) else None
    return found if isinstance(found, str) else ""
