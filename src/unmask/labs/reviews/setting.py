"""The text, the network, and what differs between those who are compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from unmask.data.worlds import SPLITS, Split, World
from unmask.data.worlds.grammar import TOKEN
from unmask.data.worlds.vocabulary import SENTINELS
from unmask.labs.recorded import recorded
from unmask.recipe import Recipe, load_recipe

STEPS = 2500
"""Updates of a run, unless its subject says otherwise."""
EVERY = 500
"""Updates between two milestones."""
WINDOW = 30
"""Tokens of text in a row of 32 positions: a mark stands at each end."""
Windows = Literal["aligned", "anywhere"]
"""Where the windows begin that a model is trained on. aligned: behind each line end, so that a place of a review is
always the same position. anywhere: at every token of the text."""


@dataclass(frozen=True)
class Subject:
    """Who is compared: a name, and its recipe as overrides of model.yaml."""

    name: str
    label: str
    settings: Mapping[str, Any]
    steps: int = STEPS
    every: int = EVERY
    windows: Windows = "aligned"
    sentinels: int = SENTINELS
    """Of the tokenizer; more than 7 change the number of parameters."""
    extra: tuple[str, ...] = ()
    """Control tokens of the tokenizer, such as the names of modes."""
    asks: Mapping[str, Any] = field(default_factory=dict)
    """What its measuring must know, such as a plan or a mode."""

    def scaled(self, steps: int) -> Subject:
        """With so many updates for every `STEPS`, and as many milestones.

        >>> short = Subject("a", "A", {}, steps=5000).scaled(250)
        >>> short.steps, short.every
        (500, 50)
        """
        return replace(self, steps=self.steps * steps // STEPS, every=-(-self.every * steps // STEPS))


def written(world: World, subject: Subject, folder: Path) -> dict[str, str]:
    """Write the subject's windows of the world's reviews, and its tokenizer; the recipe's keys that name them."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {split: folder / f"{split}-{subject.windows}.jsonl" for split in SPLITS}
    for split, file in files.items():
        if not file.exists():
            lines = (json.dumps({"text": window}) + "\n" for window in windows(world, split, subject.windows))
            file.write_text("".join(lines), encoding="utf-8", newline="\n")
    tokenizer = folder / f"words-{subject.sentinels}{''.join('-' + mark.strip('[]') for mark in subject.extra)}.json"
    if not tokenizer.exists():
        world.tokenizer("word", subject.sentinels, subject.extra).save(tokenizer)
    return {
        "tokenizer.file": str(tokenizer),
        "corpus.path": str(files["train"]),
        "valid.path": str(files["valid"]),
    }


def windows(world: World, split: Split, begin: Windows) -> list[str]:
    """Each window of `WINDOW` tokens of the split's reviews, one after another with a line end between them.

    The text is a ring, so that every token stands in as many windows as any other.
    """
    lines = world.text(["reviews"], split).splitlines()
    tokens = [token for line in lines for token in (*TOKEN.findall(line), "\n")]
    ring = tokens + tokens[:WINDOW]
    starts = [k for k in range(len(tokens)) if begin == "anywhere" or tokens[k - 1] == "\n"]
    return [" ".join(ring[k : k + WINDOW]) for k in starts]


def recipe(world: World, subject: Subject, seed: int, folder: Path) -> Recipe:
    """One run's recipe over a world's text in `folder`."""
    milestones = -(-subject.steps // subject.every)
    given = {
        **written(world, subject, folder),
        "seed": seed,
        "budget.steps": subject.steps,
        "checkpoint.every": subject.every,
        "checkpoint.keep": milestones + 1,
        **subject.settings,
    }
    with resources.as_file(resources.files("unmask.labs.reviews") / "model.yaml") as file:
        return load_recipe(file, given)


def settings(recipe: Recipe) -> dict[str, Any]:
    """A recipe for the record; where its windows begin stands in the name of its text (`written`)."""
    return recorded(recipe, "word", world="reviews", windows=Path(recipe.corpus.path).stem.rpartition("-")[2])
