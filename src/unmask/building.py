"""The parts of a run, built from a resolved recipe and its text: loader, networks, evaluation, trainer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from unmask.config import ModelConfig
from unmask.data.loader import Loader, Stretch
from unmask.data.shards import Prepared
from unmask.data.stages import Stages, seed_of
from unmask.data.stream import Chapters
from unmask.data.targets import counts_by_part
from unmask.data.text import absolute
from unmask.errors import UserError
from unmask.evaluation.heldout import HeldOut, held_out
from unmask.evaluation.learnt import Classes
from unmask.loading import words_of
from unmask.model.bundle import stock_family
from unmask.model.families import FAMILIES
from unmask.networks import batch_flops, networks_of, run_with, starts
from unmask.objectives.base import Shape
from unmask.programs import norms_of, program_of
from unmask.recipe import Recipe
from unmask.tensors import named_once
from unmask.tokens.special import Vocabulary
from unmask.tokens.start import started
from unmask.tokens.tokenizer import Tokenizer
from unmask.train.base import Settings
from unmask.train.hooks import Evaluation, Gradients, Progress
from unmask.train.ranks import Ranks
from unmask.train.trainer import Trainer


def build(
    recipe: Recipe,
    text: Prepared,
    batches: Loader | Stages,
    out: Path,
    progress: Progress | None = None,
    classes: Classes | None = None,
    ranks: Ranks | None = None,
    chapters: Chapters | None = None,
) -> tuple[Trainer, Callable[[nn.ModuleDict], HeldOut]]:
    """The trainer of a resolved recipe, and the function that measures its networks on held-out text.

    chapters: of a stream, whose first one is `text`; without, the run is trained on `text` alone.
    classes: told of what is measured during training; what it says goes to `progress`.
    """
    objective, ranks = recipe.objective, ranks or Ranks()
    train = recipe.train.model_copy(update={"stages": tuple(recipe.stages)})
    cut = ranks.parallel == "fsdp"  # made without storage: no rank ever holds more than its rows
    with torch.device("meta") if cut else nullcontext():
        networks = networks_of(objective, recipe.model, recipe.seed)
    settings = Settings(
        train,
        recipe.budget,
        recipe.checkpoint,
        recipe.seed,
        recipe.precision,
        ranks.device(recipe.device),
        recipe.compile,
    )
    run_with(networks, recipe.attention, train.activation_checkpointing, settings.device)
    evaluate = evaluator(recipe, text, recipe.shape())

    def figures(networks: nn.ModuleDict) -> dict[str, float]:
        found = evaluate(networks)
        if classes is not None and progress is not None:
            for sentence in classes(trainer.counters.step, found.terms):
                progress.say(sentence)
        return found.figures()

    trainer = Trainer(
        networks,
        program_of(objective),
        chapters or batches,
        lambda batch: batch_flops(recipe.model, batch, objective),
        settings,
        out,
        Evaluation(recipe.evaluation.every, figures) if recipe.evaluation.every else None,
        progress,
        norms_of(objective),
        Gradients(recipe.evaluation.gradients_every) if recipe.evaluation.gradients_every else None,
        ranks,
        lambda step, progress: _texts(chapters or batches, text, step, progress),
        sample=batches,
    )
    if cut:
        trainer.start = lambda networks, layout: layout.fill_all(named_once(networks)[0], starts(networks, recipe.seed))
    if chapters is not None:
        chapters.total = lambda: trainer.total_steps
        chapters.stopped = lambda: trainer.stopped
    return trainer, evaluate


BEGINS = 12
"""Tokens that tell which text is meant."""


def _texts(batches: Loader | Stages | Chapters, text: Prepared, step: int, progress: float) -> list[dict[str, Any]]:
    """The texts that an update reads: each one's document (of a stream, in its chapter) and first words."""
    decode = text.tokenizer.decode
    chapter = {"chapter": batches.chapter(step)} if isinstance(batches, Chapters) else {}
    return [
        {**chapter, "document": document, "begins": decode(tokens[:BEGINS].tolist())}
        for document, tokens in batches.texts(step, progress)
    ]


def training_batches(recipe: Recipe, text: Prepared) -> Stages:
    """The batches of a resolved recipe's run; of a stream (`chapters_of`), its first chapter again and again."""
    made: dict[Shape, Loader] = {}
    loaders = []
    for stage in recipe.stages:
        shape = recipe.shape(stage)
        if shape not in made:
            made[shape] = _ordered(recipe, text, shape, list(made.values()))
        loaders.append(made[shape].of_rows(stage.batch_size or recipe.train.batch_size))
    return Stages(loaders, recipe.train.begins)


def _ordered(recipe: Recipe, text: Prepared, shape: Shape, others: list[Loader]) -> Loader:
    """A loader of rows of a shape, in an order of its own; in that of another one that cuts the texts alike."""
    own = training_loader(recipe, text, shape, seed_of(recipe.seed, len(others)))
    alike = [k for k, other in enumerate(others) if own.pieces.same(other.pieces)]
    return training_loader(recipe, text, shape, seed_of(recipe.seed, alike[0])) if alike else own


def chapters_of(recipe: Recipe, text: Prepared, out: Path, ranks: Ranks, say: Callable[[str], None]) -> Chapters | None:
    """The batches of a resolved recipe whose corpus is a stream; `text` is its first chapter. None of another one."""
    if not recipe.corpus.stream:
        return None
    fraction = recipe.corpus.valid_fraction if recipe.valid is None else 0.0
    loader = lambda text, stretch: training_loader(recipe, text, stretch=stretch)
    return Chapters(out, recipe.corpus, fraction, text, loader, ranks.first, say)


def training_loader(
    recipe: Recipe,
    text: Prepared,
    shape: Shape | None = None,
    seed: int | None = None,
    stretch: Stretch | None = None,
) -> Loader:
    """The batches of a resolved recipe without its stages; of rows of another shape, in another order.

    stretch: of a text that is a chapter of a stream.
    """
    objective = recipe.objective
    return Loader(
        text.train,
        objective,
        _vocabulary(recipe, text),
        shape or recipe.shape(),
        rows=recipe.train.batch_size,
        seed=recipe.seed if seed is None else seed,
        micro=recipe.train.grad_accumulation,
        sources=text.train.first,
        mix=recipe.corpus,
        kept=text.train,
        words=_words(recipe, text),
        stretch=stretch,
    )


def _words(recipe: Recipe, text: Prepared) -> Callable[[np.ndarray, np.ndarray], np.ndarray] | None:
    return text.tokenizer.words if "word" in recipe.objective.needs else None


def _vocabulary(recipe: Recipe, text: Prepared) -> Vocabulary:
    """The tokenizer's, with the start and end that the recipe names."""
    return words_of(text.tokenizer, recipe.start, recipe.end) or text.tokenizer.vocabulary


def evaluator(recipe: Recipe, text: Prepared, shape: Shape) -> Callable[[nn.ModuleDict], HeldOut]:
    """Held-out loss of networks, at noise that is the same in every run: its seed is 0, whatever the recipe's."""
    vocabulary = _vocabulary(recipe, text)
    loader = Loader(
        text.valid,
        recipe.objective,
        vocabulary,
        shape,
        rows=recipe.train.batch_size,
        seed=0,
        shuffle=False,
        sources=text.valid.first,
        kept=text.valid,
        words=_words(recipe, text),
    )
    counts, limit = counts_by_part(loader.parts, text.train), recipe.evaluation.pieces
    program = program_of(recipe.objective)

    def measure(networks: nn.ModuleDict) -> HeldOut:
        return held_out(dict(networks.items()), loader, vocabulary, counts, limit, program)

    return measure


def resolve(recipe: Recipe, tokenizer: Tokenizer) -> Recipe:
    """The recipe with everything filled in that its tokenizer and objective decide."""
    size = tokenizer.vocabulary.size
    rows = recipe.model.vocab_size
    if rows and rows < size:
        raise UserError(
            f"the tokenizer has {size} entries but model.vocab_size={rows} rows: "
            f"set model.vocab_size to at least {size} (0 takes the tokenizer's size) or train a smaller tokenizer"
        )
    for name in ("start", "end"):
        if (token := getattr(recipe, name)) is not None and token >= size:
            raise UserError(f"{name}={token} is no token: the tokenizer's ids are 0 to {size - 1}")
    sees = recipe.objective.visibility
    if "visibility" in recipe.model.model_fields_set and recipe.model.visibility != sees:
        raise UserError(
            f"model.visibility={recipe.model.visibility} contradicts objective {recipe.objective.type}, "
            f"which trains a {sees} model: leave model.visibility out"
        )
    model = recipe.model.model_copy(update={"vocab_size": rows or size, "visibility": sees})
    family = FAMILIES.get(model.family)
    if recipe.init is None and family is not None and family.offset_from_pad:
        model = model.model_copy(update={"position_offset": tokenizer.vocabulary.need("pad") + 1})
    if model.family != "unmask":
        _exportable(model)
    filled: dict[str, Any] = {k: absolute(c) for k in ("corpus", "valid") if (c := getattr(recipe, k)) is not None}
    if recipe.start is None and tokenizer.vocabulary.bos is None:
        filled["start"] = started(recipe.objective, tokenizer.vocabulary).bos
    return recipe.model_copy(update={"model": model, **filled})


def _exportable(model: ModelConfig) -> None:
    """A family's settings are checked before training, not at the export after it."""
    try:
        stock_family(model)
    except UserError as error:
        raise UserError(f"{error} (model.family=unmask trains it, and exports it with its own code)") from error
