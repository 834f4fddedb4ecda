"""Targets per 1,000 processed positions on the world's reviews: by formula, counted, and as the notes have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unmask.data.worlds import World
from unmask.labs.objectives.corruptions import tokenizer_of
from unmask.objectives import REGISTRY
from unmask.show.density import Side, density
from unmask.show.reading import Splitter

CONTEXT = 32
"""Positions of a row, as in the notes."""


@dataclass(frozen=True)
class Asked:
    """An objective, and what the notes counted for it: targets, and sentinels among them."""

    name: str
    objective: str
    settings: Mapping[str, Any]
    notes: tuple[int, int] | None = None


OBJECTIVES = (
    Asked("GPT", "causal", {}, (1000, 0)),
    Asked("prefix LM", "prefix_lm", {}, (533, 0)),
    Asked("BERT", "masked", {"selection": "independent"}, (137, 0)),
    Asked("BERT, exact budget", "masked", {}),
    Asked("T5, i.i.d.", "iid", {}, (187, 103)),
    Asked("T5, spans of 3", "t5", {}, (135, 61)),
    Asked("UL2", "ul2", {}),
    Asked("BART, infilling", "bart", {"permute_sentences": False}),
    Asked("ELECTRA", "electra", {}),
)


@dataclass(frozen=True)
class Density:
    """Per 1,000 positions; `off`: standard deviations of the noise between what is counted and what is expected."""

    name: str
    targets: float
    expected: float
    off: float
    words: float
    """Targets that are the text's own tokens."""
    marks: float
    """Sentinels."""
    expected_marks: float
    off_marks: float
    notes: tuple[int, int] | None

    @property
    def others(self) -> float:
        """End tokens, labels."""
        return self.targets - self.words - self.marks


def densities(world: World, seed: int) -> dict[str, Density]:
    """The reviews end to end, in pieces that fill a row of `CONTEXT`, each piece once."""
    text = "".join(line + "\n" for line in world.lines("reviews", "train"))
    split = Splitter.of(tokenizer_of(world), text, [])
    side, out = Side.of(split([text])), {}
    for asked in OBJECTIVES:
        objective = REGISTRY.make(asked.objective, dict(asked.settings))
        row = density(asked.name, objective, side, split.vocabulary, CONTEXT, seed)
        values = {field: float(row[key]) for field, key in _FIELDS.items()}
        out[asked.name] = Density(name=asked.name, notes=asked.notes, **values)
    return out


_FIELDS = {
    "targets": "targets",
    "expected": "expected",
    "off": "off",
    "words": "content",
    "marks": "marks",
    "expected_marks": "expected marks",
    "off_marks": "off marks",
}
"""Field of `Density` → key of `show.density`."""
