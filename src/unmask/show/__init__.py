"""What an objective makes of a text, to look at: `unmask show`.

reading    a text as rows, with the stubs that stand for what only a corpus has
generator  a stub of ELECTRA's generator, so that the discriminator's input is seen, too
records    examples as plain values, one each: what `--json` prints
draw       the same for the eye: columns that line up, and the grid of who sees whom
density    targets per 1,000 positions on a corpus, beside what the settings say by formula (`expected`), and how much
           of the text predictions do not see (`corruption`)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from unmask.errors import UserError
from unmask.objectives import REGISTRY
from unmask.objectives.base import Objective
from unmask.objectives.denoise import TextToText
from unmask.objectives.layout import Layout
from unmask.objectives.registry import given
from unmask.show.draw import drawn
from unmask.show.reading import Reading, read
from unmask.show.records import records
from unmask.tokens.tokenizer import Tokenizer

__all__ = ["Shown", "layouts", "listing", "show"]


@dataclass(frozen=True)
class Shown:
    """Examples of one text: as plain values, and what is needed to draw them."""

    objective: Objective
    reading: Reading
    records: list[dict[str, Any]]

    def lines(self, width: int = 100) -> list[str]:
        return drawn(self.objective, self.reading, self.records, width)


def show(
    objective: str | Objective,
    text: str,
    *,
    tokenizer: Tokenizer | None = None,
    layout: str | None = None,
    seed: int = 0,
    count: int = 1,
    settings: Mapping[str, Any] | None = None,
    target: str | None = None,
    progress: float = 0.0,
) -> Shown:
    """What an objective makes of a text, `count` times under different noise.

    objective: the name of a type or of a preset, with `settings` and `layout` on top, or an Objective.
    tokenizer: without one the text is split into words and punctuation (`reading.Words`).
    target: what pairs is to write for the text.
    progress: the point of the run, 0 to 1, for objectives that change along it.
    """
    chosen = objective if isinstance(objective, Objective) else named(objective, layout, settings)
    reading = read(text, chosen, tokenizer, seed, count, target, progress)
    return Shown(chosen, reading, records(chosen, reading))


def named(name: str, layout: str | None = None, settings: Mapping[str, Any] | None = None) -> Objective:
    """The objective of a type's or preset's name; a layout that it does not have is refused."""
    values = dict(settings or {})
    if layout is not None:
        known = layouts(type(REGISTRY.make(name)))
        if layout not in known:
            raise UserError(f"{name} has no layout '{layout}' (it has: {', '.join(known) or 'one of its own'})")
        under = values.get("layout", {})
        values["layout"] = {**(under if isinstance(under, Mapping) else {}), "kind": layout}
    return REGISTRY.make(name, values)


def layouts(cls: type[Objective]) -> list[str]:
    """The layouts that an objective's pairs can take; none where it fills the stream in place.

    >>> layouts(REGISTRY.named("prefix_lm")), layouts(REGISTRY.named("masked"))
    (['encdec', 'prefix', 'causal'], [])
    """
    kinds = get_args(Layout.model_fields["kind"].annotation)
    return [str(kind) for kind in kinds] if issubclass(cls, TextToText) else []


def listing(only: str | None = None) -> tuple[list[dict[str, Any]], list[str]]:
    """Every objective with its first sentence, heads, layouts and presets; and why a plug-in is not among them.

    only: the name of one of them, or of one of its presets.
    """
    types, broken = REGISTRY.types()
    presets = REGISTRY.presets()
    rows = []
    wanted = None if only is None else types.get(only) or type(REGISTRY.make(only))
    for name, cls in types.items():
        if wanted is not None and cls is not wanted:
            continue
        mine = {p: make for p, make in presets.items() if getattr(make, "__self__", None) is cls}
        rows.append(
            {
                "name": name,
                "about": first_line(cls),
                "plugin": name in REGISTRY.plugins,
                "layouts": layouts(cls),
                "needs": _needs(name),
                "presets": [{"name": p, "about": first_line(make) or _settings(make())} for p, make in mine.items()],
            }
        )
    return rows, list(broken.values())


def _needs(name: str) -> list[str]:
    """What it needs of a text; a plug-in whose settings must be given cannot say it without them."""
    try:
        return sorted(REGISTRY.make(name).needs)
    except UserError:
        return []


def _settings(objective: Objective) -> str:
    """What a preset without a word of its own sets."""
    return ", ".join(f"{k} {v}" for k, v in given(objective).items() if k != "type") or "the defaults"


def first_line(thing: Any) -> str:
    """The first paragraph of a docstring, as one line; a word that is parted at its hyphen is one again."""
    lines = (thing.__doc__ or "").strip().partition("\n\n")[0]
    return " ".join(re.sub(r"(?<=\w)-\n\s*", "-", lines).split())
