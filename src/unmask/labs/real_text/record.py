"""What of a study's results stands in a laboratory's record: all but single items, and no path of a machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from unmask.compare.results import Entry, Point, Results
from unmask.labs.base import DATA, Asked

DETAILS = ("interval", "event", "counts")
"""Of what a suite found beside its value."""


def kept(found: Results, asked: Asked) -> Results:
    """The results with names in the place of this machine's folders."""
    places = {os.path.abspath(asked.out): "OUT", os.path.abspath(asked.data or "."): f"${DATA}"}
    return found.model_copy(update={"entries": [_entry(e, places) for e in found.entries], "environment": {}})


def _entry(entry: Entry, places: Mapping[str, str]) -> Entry:
    runs = [run.model_copy(update={"directory": None, "points": [_point(p) for p in run.points]}) for run in entry.runs]
    return entry.model_copy(update={"settings": _named(entry.settings, places), "runs": runs})


def _point(point: Point) -> Point:
    details = {
        measure: {k: v for k, v in found.items() if k in DETAILS}
        for measure, found in point.details.items()
        if isinstance(found, Mapping)
    }
    return point.model_copy(update={"details": {m: d for m, d in details.items() if d}})


def _named(value: Any, places: Mapping[str, str]) -> Any:
    """Settings in which no text begins with a folder of this machine."""
    if isinstance(value, Mapping):
        return {k: _named(v, places) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_named(v, places) for v in value]
    if isinstance(value, str):
        for folder, name in places.items():
            if value == folder or value.startswith(folder + os.sep):
                return name + value[len(folder) :]
    return value
