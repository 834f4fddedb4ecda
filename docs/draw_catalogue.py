"""The catalogue of docs/objectives.md, from the registry: python docs/draw_catalogue.py rewrites it in place."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from unmask.batch import Head
from unmask.evaluation.abilities import abilities
from unmask.objectives import REGISTRY
from unmask.objectives.base import Objective
from unmask.objectives.registry import presets_of
from unmask.show import layouts

PAGE = Path(__file__).with_name("objectives.md")
BEGIN, END = "<!-- catalogue -->\n", "<!-- end of the catalogue -->"
_PAPER = re.compile(r"[A-Z][\w-]+(?: et al\.| and [A-Z]\w+) \d{4}")


def catalogue() -> str:
    """A table of markdown: a row for each objective of this package."""
    names = ("type", "paper", "settings and their defaults", "heads", "plans", "layouts", "presets")
    rows = [_row(names), "|---" * len(names) + "|"]
    for name, cls in REGISTRY.own_types.items():
        objective = REGISTRY.make(name)
        heads = ", ".join(f"{h.name} ({h.over})" for h in objective.heads())
        kinds = ", ".join(layouts(cls)) or "in place"
        presets = ", ".join(f"`{p}`" for p in presets_of(cls)) or "–"
        plans, said = ", ".join(abilities(objective).plans) or "–", _network(objective.heads())
        plans += f" (its {said})" if said not in ("model", None) else ""
        rows.append(_row((f"`{name}`", paper(cls), settings(objective), heads, plans, kinds, presets)))
    return "\n".join(rows) + "\n"


def _network(heads: Iterable[Head]) -> str | None:
    """The network that says tokens."""
    return next((h.network for h in heads if h.over == "vocabulary"), None)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def paper(cls: type[Objective]) -> str:
    """The first paper that the class, its module, or the classes it builds on name."""
    ours = [c for c in cls.__mro__ if c.__module__.startswith("unmask.objectives")]
    modules = [sys.modules[c.__module__].__doc__ or "" for c in ours]
    found = next((m[0] for text in (cls.__doc__ or "", *modules) if (m := _PAPER.search(text))), None)
    return found or "–"


def settings(objective: Objective) -> str:
    """Name and default of each, one line; nested ones by name alone."""
    each = []
    for name in type(objective).model_fields:
        value = getattr(objective, name)
        if name in ("type", "layout"):
            continue
        plain = isinstance(value, (int, float, str, type(None)))
        shown = _plain(value) if plain else "…"
        each.append(f"{name} {shown}" if shown != "" else name)
    return ", ".join(each) or "–"


def _plain(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def rewritten(page: str) -> str:
    before, rest = page.split(BEGIN)
    return before + BEGIN + catalogue() + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(rewritten(PAGE.read_text(encoding="utf-8")) != PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
