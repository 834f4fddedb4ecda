"""Models of the reviews' bench before their first update, without a run."""

from __future__ import annotations

from pathlib import Path

from unmask.data.worlds import World
from unmask.labs.reviews.setting import Subject, recipe
from unmask.lm import LM
from unmask.networks import networks_of
from unmask.tokens.tokenizer import Tokenizer


def untrained(subject: Subject, folder: Path, world: World, seed: int = 0) -> LM:
    made = recipe(world, subject, seed, folder)
    assert made.objective is not None and made.tokenizer.file is not None
    tokenizer = Tokenizer.load(made.tokenizer.file)
    sees = {"vocab_size": tokenizer.vocabulary.size, "visibility": made.objective.visibility}
    networks = networks_of(made.objective, made.model.model_copy(update=sees), seed)
    return LM(networks[made.objective.kept].eval(), made.context, tokenizer, made.objective)  # type: ignore[arg-type]
