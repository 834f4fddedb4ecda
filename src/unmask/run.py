"""One run from a recipe: text → shards → model → training → a directory that holds everything."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from unmask import initial
from unmask.building import build, chapters_of, evaluator, resolve, training_batches, training_loader
from unmask.config import SourceConfig, TokenizerConfig
from unmask.data.cache import cache_folder
from unmask.data.misfit import misfits
from unmask.data.prepare import prepare
from unmask.data.shards import Prepared
from unmask.data.stages import Stages
from unmask.data.targets import counts_by_part, require_columns
from unmask.directory import (
    FORMAT,
    environment,
    give_up,
    prepared,
    same,
    same_machine,
    stored,
    stored_recipe,
    write_down,
)
from unmask.errors import UserError
from unmask.evaluation import suites
from unmask.evaluation.heldout import HeldOut, unigram_entropy
from unmask.evaluation.items import Options
from unmask.evaluation.learnt import Classes
from unmask.evaluation.targets import training_counts
from unmask.evaluation.watch import Watch, silent
from unmask.lm import LM
from unmask.loading import load, words_of
from unmask.networks import batch_flops, networks_of, sizes
from unmask.objectives.base import Plan
from unmask.objectives.needed import require_sentinels
from unmask.recipe import Recipe, load_recipe
from unmask.studies import instead_of_resuming
from unmask.tokens.asked import require_controls, require_extra
from unmask.tokens.start import started
from unmask.tokens.tokenizer import Tokenizer
from unmask.train import peak
from unmask.train.base import Counters
from unmask.train.checkpoint import write_json
from unmask.train.devices import choose_precision, tune_process
from unmask.train.floor import ABOVE, at_floor
from unmask.train.hooks import Progress
from unmask.train.loggers import Loggers, chosen, kept
from unmask.train.ranks import Ranks, session
from unmask.train.trainer import Trainer

__all__ = [
    "Run",
    "batch_flops",
    "begin",
    "build",
    "environment",
    "evaluate",
    "evaluator",
    "prepared",
    "pretrain",
    "read_held_out_text",
    "resolve",
    "resume_run",
    "stored_recipe",
    "training_batches",
    "training_loader",
]


@dataclass(frozen=True)
class Run:
    """What `pretrain` returns: where the run lies, what it cost and what it reached."""

    out: Path
    counters: Counters
    held_out: HeldOut
    parameters: int


def pretrain(
    recipe: str | Path | Recipe,
    *,
    out: str | Path,
    resume: str = "never",
    cache: str | Path | None = None,
    say: Callable[[str], None] | None = None,
    log: str | Sequence[str] | None = None,
    peak_flops: str | float | None = None,
    **overrides: Any,
) -> Run:
    """Train a model and write the run to `out`.

    recipe: a shipped name, a YAML file, or a Recipe. Overrides are recipe keys with `__` for the dot:
    ``pretrain("encoder-small", out="runs/a", corpus="my.txt", budget__minutes=5)``.
    ``init`` is one of them: a run or a Hugging Face directory whose model is trained on (`initial`).
    resume: never refuses a directory that holds a run, auto continues it or starts, must continues it.
    cache: where tokenized text is kept and found again ($UNMASK_CACHE, else ~/.cache/unmask).
    log: who gets the metrics, too: tensorboard, wandb, trackio (`train.loggers`); a resumed run keeps those it had.
    peak_flops: FLOP/s of one process at most, or "measure": a terminal then shows which share of it is used (MFU).
    None of these four is part of the run's recipe.

    Under torchrun every rank calls this, trains its share and returns the same; rank 0 alone writes and says.
    """
    tune_process()
    peak.check(peak_flops)
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe, {k.replace("__", "."): v for k, v in overrides.items()})
    elif overrides:
        raise UserError(f"a Recipe is complete: set {next(iter(overrides))} in it, or give the recipe's name")
    with session(recipe.device) as ranks, open(os.devnull, "w") as nowhere:
        progress = Progress(None if ranks.first else nowhere)
        told = (say or progress.say) if ranks.first else progress.say
        return _trained(recipe, Path(out), resume, cache, told, log, peak_flops, progress, ranks)


def _trained(
    recipe: Recipe,
    out: Path,
    resume: str,
    cache: str | Path | None,
    say: Callable[[str], None],
    log: str | Sequence[str] | None,
    peak_flops: str | float | None,
    progress: Progress,
    ranks: Ranks,
) -> Run:
    """`pretrain` on one of the ranks."""
    with ranks.together():
        before = stored(out, resume)
    ranks.choose(recipe.parallel, continuing=before is not None)
    if recipe.evaluation.gradients_every and ranks.parallel == "fsdp":
        raise UserError(
            "evaluation.gradients_every compares whole gradients, which parallel=fsdp has nowhere: give parallel=ddp"
        )
    asked = recipe
    logs = chosen(kept(out) if log is None and before is not None else log or ())
    recipe, text, given = ranks.in_turn(
        lambda: begin(asked, cache, say) if before is None else _continue(asked, before, out, cache, say)
    )
    recipe = resolve(recipe, text.tokenizer)
    batches = training_batches(recipe, text)
    batches.require_sound()
    classes = Classes(recipe.train.warmup_steps)
    chapters = chapters_of(recipe, text, out, ranks, say)
    trainer, evaluate = build(recipe, text, batches, out, progress, classes, ranks, chapters)
    trainer.loggers = Loggers(out, logs, recipe.model_dump(mode="json"), say)
    progress.peak = _peak(peak_flops, trainer)
    try:
        with ranks.together():
            if given is not None and ranks.first:
                initial.start(_whole(trainer, recipe), given, recipe, out, say)
            given = None  # its weights are in the run now, where every rank reads what it holds of them
            if before is None and ranks.first:
                write_down(recipe, text, out, chapters)
        with ranks.together():
            if recipe.init is not None:
                trainer.start = partial(initial.again, out)
            if ranks.first:
                _announce(recipe, text, batches, trainer, say)
        with contextlib.closing(chapters) if chapters is not None else contextlib.nullcontext():
            trainer.run(resume=before is not None)
    except Exception as error:
        if before is None and trainer.counters.step == 0 and ranks.first:
            give_up(out, error)  # nothing was trained: the mended command may use the same place
        raise
    held = trainer.measured(evaluate)
    for sentence in classes(trainer.counters.step, held.terms, last=True):
        say(sentence)
    if told := (chapters or batches).coverage(trainer.counters.step):
        say(told)
    if chapters is not None:
        chapters.clear()
    say(f"{trainer.counters.checkpoint_bytes:,} bytes were written into checkpoints")
    if trainer.counters.compilations:
        say(f"networks were compiled {trainer.counters.compilations}×")
    with ranks.together():
        return _finish(recipe, trainer, held, out, say)


def _whole(trainer: Trainer, recipe: Recipe) -> nn.ModuleDict:
    """The run's networks with all their weights; made for this alone where the trainer's have no storage yet."""
    return trainer.networks if trainer.start is None else networks_of(recipe.objective, recipe.model, recipe.seed)


def _peak(asked: str | float | None, trainer: Trainer) -> peak.Peak | None:
    """What this run's processor could do at most in this run's precision, where it is given or asked to be timed."""
    settings = trainer.settings
    precision, _ = choose_precision(settings.precision, settings.device, trainer.networks)
    return peak.peak_of(asked, settings.device, precision)


def _announce(recipe: Recipe, text: Prepared, batches: Stages, trainer: Trainer, say: Callable[[str], None]) -> None:
    """Say what is about to be trained, on what and where."""
    each = sizes(trainer.networks)
    trained = " and ".join(f"{n:,} ({name})" if len(each) > 1 else f"{n:,}" for name, n in each.items())
    size, where = len(text.train.tokens), trainer.settings.device
    of_them = " in the stream's first chapter" if recipe.corpus.stream else ""
    say(f"{trainer.out}: {recipe.objective.type}, {trained} parameters, {size:,} training tokens{of_them}, on {where}")
    if len(text.train.sources) > 1:
        say(batches.mixture([s.name for s in text.train.sources], recipe.budget.steps))
    for sentence in (*batches.notes, *misfits(text)):
        say(sentence)
    counts = counts_by_part(batches.parts, text.train)
    found = {
        name: unigram_entropy(counts[name], text.tokenizer.vocabulary)
        for name, part in batches.parts.items()
        if any(head.over == "vocabulary" for head in part.heads())
    }
    if found:
        same = len({round(x, 3) for x in found.values()}) == 1
        told = f"{next(iter(found.values())):.3f}" if same else ", ".join(f"{x:.3f} ({n})" for n, x in found.items())
        say(f"unigram entropy {told} nats a token: the loss of a model that knows word frequencies, no context")


def _finish(recipe: Recipe, trainer: Trainer, held: HeldOut, out: Path, say: Callable[[str], None]) -> Run:
    """Write result.json, and say where the run has learnt nothing."""
    each = sizes(trainer.networks)
    size, networks = each[recipe.objective.kept], {"networks": each} if len(each) > 1 else {}
    measured = {**vars(trainer.counters), **held.summary()}
    if trainer.ranks.first:
        write_json(out / "result.json", {"format": FORMAT, "parameters": size, **networks, **measured})
    if held.unigram_floor is not None and at_floor(held.loss, held.unigram_floor):
        say(
            f"the held-out loss {held.loss:.3f} is {ABOVE} {held.unigram_floor:.3f}: the "
            "model knows word frequencies at best, and no context yet; train longer, or lower the learning rates"
        )
    return Run(out, trainer.counters, held, size)


Beginning = tuple[Recipe, Prepared, LM | None]
"""The recipe, its text, and the model to start from."""


def begin(recipe: Recipe, cache: str | Path | None, say: Callable[[str], None]) -> Beginning:
    """A new run, from the model in `init` where the recipe names one."""
    tokenizer: Tokenizer | TokenizerConfig = recipe.tokenizer
    given: LM | None = None
    if recipe.init is not None:
        given = load(recipe.init, device="cpu")
        recipe, tokenizer = initial.taken(recipe, given)
    require_columns(recipe.objective, recipe.corpus, recipe.valid)
    tokenizer = _with_controls(recipe, tokenizer)
    return recipe, prepare(recipe.corpus, recipe.valid, tokenizer, cache_folder(cache), say), given


def _with_controls(recipe: Recipe, tokenizer: Tokenizer | TokenizerConfig) -> Tokenizer | TokenizerConfig:
    """The tokenizer, read if it is a file; or a sentence that it lacks control tokens, before any text is prepared."""
    if isinstance(tokenizer, TokenizerConfig) and tokenizer.file is not None:
        tokenizer = Tokenizer.load(tokenizer.file)
        words = started(recipe.objective, words_of(tokenizer, recipe.start, recipe.end) or tokenizer.vocabulary)
        require_controls(recipe.objective, words, tokenizer, str(recipe.tokenizer.file))
    shape = recipe.shape()
    if isinstance(tokenizer, TokenizerConfig):
        require_extra(recipe.objective, tokenizer)
        require_sentinels(recipe.objective, shape, tokenizer.sentinels, "set tokenizer.sentinels={}")
    else:
        has = len(tokenizer.vocabulary.sentinels)
        how = "take one trained with tokenizer.sentinels={}"
        if recipe.init is not None:
            how = f"give its model {{}} of them first (unmask convert {recipe.init} NEW --add-token …)"
        require_sentinels(recipe.objective, shape, has, how)
    return tokenizer


def _continue(
    asked: Recipe, before: Recipe, out: Path, cache: str | Path | None, say: Callable[[str], None]
) -> Beginning:
    """A run that lies in `out`, with its own recipe but for how it is saved from now on: `init` is not read again."""
    same(asked, before, out)
    same_machine(out, say)
    saved = before.checkpoint.model_copy(update={k: getattr(asked.checkpoint, k) for k in ("sharded", "background")})
    return before.model_copy(update={"checkpoint": saved}), prepared(out, cache, say), None


def resume_run(out: str | Path, cache: str | Path | None = None, log: str | Sequence[str] | None = None) -> Run:
    """Continue the run in a directory with the recipe it was started with; `log`: see `pretrain`."""
    if told := instead_of_resuming(Path(out)):
        raise UserError(told)
    return pretrain(stored_recipe(Path(out)), out=out, resume="must", cache=cache, log=log)


# ---------------------------------------------------------------- measuring


def evaluate(
    model: str | Path | LM,
    suite: str = "bpb",
    text: str | Path | SourceConfig | None = None,
    limit: int | None = None,
    cache: str | Path | None = None,
    *,
    plan: Plan | None = None,
    stride: int | None = None,
    seed: int = 0,
    watch: Watch = silent,
    mode: str | None = None,
) -> dict[str, Any]:
    """Measure a run or a Hugging Face directory by a suite (`evaluation.suites`); see `evaluation.items.Options`.

    text: what the suite reads; without it bpb takes the run's held-out part, and cloze the battery that is shipped.
    Of a run of pairs bpb is that of targets given their sources: a text then is a SourceConfig that names its `target`.
    mode: which part of a mixture is asked, or which of UL2's modes (`LM.told`).
    """
    options = Options(plan, limit, stride, seed, watch=watch)
    lm = (load(model) if not isinstance(model, LM) else model).told(mode)
    chosen, place = suites.checked(lm, suite, options), lm.directory
    data: Any = None
    warnings: list[str] = []
    if suite == "bpb" and place is not None and (text is None or (place / "text.json").exists()):
        try:
            own = prepared(place, cache)
        except UserError as error:
            if text is None:
                raise
            warnings.append(f"no unigram floor, which needs the run's own text: {error}")
        else:
            options = replace(options, counts=training_counts(lm, own.train))
            data = own.valid if text is None else None
    if data is None:
        data = chosen.read(lm, text)
    found = suites.evaluate(lm, suite, data, options)
    if (held := next(lm.network.parameters()).dtype) != torch.float32:
        warnings.append(f"the model is held in {str(held).removeprefix('torch.')}, so the last digits are not fp32's")
    return {**found, "warnings": [*found.get("warnings", ()), *warnings]} if warnings else found


def read_held_out_text(out: Path, tokens: int = 64, cache: str | Path | None = None) -> str:
    """The beginning of the first held-out document of a run, decoded."""
    text = prepared(out, cache)
    return text.tokenizer.decode(np.asarray(text.valid.document(0)[:tokens]))
