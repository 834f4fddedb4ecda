"""One run from a recipe: text → shards → model → training → a directory that holds everything."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import nn

from unmask.batch import Batch
from unmask.config import ModelConfig, SourceConfig
from unmask.data.cache import cache_folder
from unmask.data.loader import Loader
from unmask.data.prepare import prepare
from unmask.data.shards import Prepared
from unmask.data.text import absolute, title
from unmask.errors import UserError
from unmask.evaluate import suites
from unmask.evaluate.heldout import HeldOut, held_out
from unmask.evaluate.items import Options
from unmask.evaluate.watch import Watch, silent
from unmask.lm import LM
from unmask.loading import load
from unmask.loss import Program, forward_heads
from unmask.model.spec import flops, parameters
from unmask.model.transformer import Transformer
from unmask.model.translate import family_of
from unmask.objectives.base import Plan, Shape
from unmask.recipe import Recipe, dump, load_recipe, validate
from unmask.tokens.tokenizer import Tokenizer
from unmask.train.checkpoint import write_json
from unmask.train.devices import choose_device, tune_process
from unmask.train.hooks import Evaluation, Progress
from unmask.train.trainer import Counters, Settings, Trainer

FORMAT = 1
"""Version of the run directory's layout."""


AT_FLOOR = 0.05
"""Nats below the unigram floor that a model must reach before it is taken to have learnt any context."""


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
    **overrides: Any,
) -> Run:
    """Train a model and write the run to `out`.

    recipe: a shipped name, a YAML file, or a Recipe. Overrides are recipe keys with `__` for the dot:
    ``pretrain("encoder-small", out="runs/a", corpus="my.txt", budget__minutes=5)``.
    resume: never refuses a directory that holds a run, auto continues it or starts, must continues it.
    cache: where tokenized text is kept and found again ($UNMASK_CACHE, else ~/.cache/unmask).
    """
    tune_process()
    progress = Progress()
    say = say or progress.say
    out = Path(out)
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe, {k.replace("__", "."): v for k, v in overrides.items()})
    elif overrides:
        raise UserError(f"a Recipe is complete: set {next(iter(overrides))} in it, or give the recipe's name")
    stored = _stored(out, resume)
    if stored is None:
        text = prepare(recipe.corpus, recipe.valid, recipe.tokenizer, cache_folder(cache), say)
    else:
        _same(recipe, stored, out)
        _same_machine(out, say)
        text = prepared(out, cache, say)
    recipe = resolve(recipe, text.tokenizer)
    loader = training_loader(recipe, text)
    trainer, evaluate = build(recipe, text, loader, out, progress)
    if stored is None:
        _write_down(recipe, text, out)
    size = parameters(recipe.model, recipe.objective.heads())
    say(f"{out}: {recipe.objective.type}, {size:,} parameters, {len(text.train.tokens):,} training tokens")
    if len(text.train.sources) > 1:
        say(loader.mixture([s.name for s in text.train.sources], recipe.budget.steps))
    counters = trainer.run(resume=stored is not None)
    held = evaluate(trainer.networks)
    result = Run(out, counters, held, size)
    write_json(out / "result.json", {"format": FORMAT, "parameters": size, **vars(counters), **held.summary()})
    if held.loss > held.unigram_floor - AT_FLOOR:
        say(
            f"the held-out loss {held.loss:.3f} is not below the unigram floor {held.unigram_floor:.3f}: the model "
            "knows word frequencies at best, and no context yet; train longer, or lower the learning rates"
        )
    return result


def resume_run(out: str | Path, cache: str | Path | None = None) -> Run:
    """Continue the run in a directory with the recipe it was started with."""
    return pretrain(stored_recipe(Path(out)), out=out, resume="must", cache=cache)


# ---------------------------------------------------------------- the parts of a run


def build(
    recipe: Recipe, text: Prepared, loader: Loader, out: Path, progress: Progress | None = None
) -> tuple[Trainer, Callable[[nn.ModuleDict], HeldOut]]:
    """The trainer of a resolved recipe, and the function that measures its networks on held-out text."""
    objective, train = recipe.objective, recipe.train
    networks = nn.ModuleDict({"model": Transformer(recipe.model, objective.heads(), recipe.seed)})
    settings = Settings(
        train,
        recipe.budget,
        recipe.checkpoint,
        recipe.seed,
        recipe.precision,
        choose_device(recipe.device),
        recipe.compile,
    )
    evaluate = evaluator(recipe, text, loader.shape)
    program: Program = forward_heads
    trainer = Trainer(
        networks,
        program,
        loader,
        lambda batch: batch_flops(recipe.model, batch),
        settings,
        out,
        Evaluation(recipe.evaluation.every, lambda n: evaluate(n).figures()) if recipe.evaluation.every else None,
        progress,
    )
    return trainer, evaluate


def training_loader(recipe: Recipe, text: Prepared) -> Loader:
    """The batches of a resolved recipe."""
    objective = recipe.objective
    return Loader(
        text.train,
        objective,
        text.tokenizer.vocabulary,
        objective.shape(recipe.context, recipe.target_context),
        rows=recipe.train.batch_size,
        seed=recipe.seed,
        micro=recipe.train.grad_accumulation,
        sources=text.train.first,
        mix=recipe.corpus,
        kept=text.train,
        words=_words(recipe, text),
    )


def _words(recipe: Recipe, text: Prepared) -> Callable[[np.ndarray, np.ndarray], np.ndarray] | None:
    return text.tokenizer.words if "word" in recipe.objective.needs else None


def evaluator(recipe: Recipe, text: Prepared, shape: Shape) -> Callable[[nn.ModuleDict], HeldOut]:
    """Held-out loss of networks, at noise that is the same in every run: its seed is 0, whatever the recipe's."""
    loader = Loader(
        text.valid,
        recipe.objective,
        text.tokenizer.vocabulary,
        shape,
        rows=recipe.train.batch_size,
        seed=0,
        shuffle=False,
        sources=text.valid.first,
        kept=text.valid,
        words=_words(recipe, text),
    )
    counts, limit = np.asarray(text.train.counts), recipe.evaluation.pieces
    return lambda networks: held_out(dict(networks.items()), loader, text.tokenizer.vocabulary, counts, limit)


def batch_flops(config: ModelConfig, batch: Batch) -> float:
    """Training FLOPs of a batch by formula, at its real tokens and targets and its rows' length."""
    source = batch.source
    targets = sum(int((t.weight != 0).sum()) for t in batch.targets.values())
    return flops(
        config,
        stream_tokens=int((batch.stream.block != 0).sum()),
        source_tokens=0 if source is None else int((source.block != 0).sum()),
        targets=targets,
        context=batch.stream.tokens.shape[1],
        source_context=0 if source is None else source.tokens.shape[1],
    )


def resolve(recipe: Recipe, tokenizer: Tokenizer) -> Recipe:
    """The recipe with everything filled in that its tokenizer and objective decide."""
    size = tokenizer.vocabulary.size
    rows = recipe.model.vocab_size
    if rows and rows < size:
        raise UserError(
            f"the tokenizer has {size} entries but model.vocab_size={rows} rows: "
            f"set model.vocab_size to at least {size} (0 takes the tokenizer's size) or train a smaller tokenizer"
        )
    sees = recipe.objective.visibility
    if "visibility" in recipe.model.model_fields_set and recipe.model.visibility != sees:
        raise UserError(
            f"model.visibility={recipe.model.visibility} contradicts objective {recipe.objective.type}, "
            f"which trains a {sees} model: leave model.visibility out"
        )
    model = recipe.model.model_copy(update={"vocab_size": rows or size, "visibility": sees})
    if model.family != "unmask":
        _exportable(model)
    corpora = {k: absolute(c) for k in ("corpus", "valid") if (c := getattr(recipe, k)) is not None}
    return recipe.model_copy(update={"model": model, **corpora})


def _exportable(model: ModelConfig) -> None:
    """A family's settings are checked before training, not at the export after it."""
    try:
        family_of(model)
    except UserError as error:
        raise UserError(f"{error} (model.family=unmask trains it all the same, without an export)") from error


# ---------------------------------------------------------------- the directory


def stored_recipe(out: Path) -> Recipe:
    """The resolved recipe of a run directory."""
    path = out / "recipe.yaml"
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"{out} is no run: it has no readable recipe.yaml ({error})") from error
    return validate(values, str(path))


def _stored(out: Path, resume: str) -> Recipe | None:
    """The recipe of the run in `out` that is to be continued, or None to start one."""
    if resume not in ("never", "auto", "must"):
        raise UserError(f"resume={resume} is none of never, auto, must")
    exists = (out / "recipe.yaml").exists()
    if resume == "never" and exists:
        raise UserError(f"{out} already holds a run: give another out=, or resume=auto to continue it")
    if resume == "must" and not exists:
        raise UserError(f"{out} holds no run to resume: check the path, or use resume=auto to start one")
    if not exists and out.exists() and not out.is_dir():
        raise UserError(f"out={out} is a file: give a directory")
    return stored_recipe(out) if exists else None


def _same(asked: Recipe, stored: Recipe, out: Path) -> None:
    """A run is continued with its own recipe: name the first setting that differs."""
    paths = {k: absolute(c) for k in ("corpus", "valid") if (c := getattr(asked, k)) is not None}
    a, b = (_flat(r.model_dump(mode="json")) for r in (asked.model_copy(update=paths), stored))
    decided = {"model.vocab_size": 0, "model.visibility": "causal"}  # filled in by `resolve` where left out
    for key in sorted(a.keys() | b.keys()):
        if a.get(key) != b.get(key) and a.get(key) != decided.get(key, a):
            raise UserError(
                f"{out} was started with {key}={b.get(key)}, not {a.get(key)}: "
                "resume it with its own settings (unmask resume), or give another out="
            )


def _same_machine(out: Path, say: Callable[[str], None]) -> None:
    """Say aloud what makes a resumed run differ in its last bits: another torch, processor or thread count."""
    try:
        before = json.loads((out / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    now = environment()
    flat_before, flat_now = _flat(before), _flat(now)
    for key in ("packages.torch", "cpu_capability", "threads"):
        if flat_before.get(key) != flat_now.get(key):
            say(
                f"{key} was {flat_before.get(key)} and is {flat_now.get(key)}: "
                "the run continues, but not bit for bit as it would have"
            )


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in values.items():
        out.update(_flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value})
    return out


def _write_down(recipe: Recipe, text: Prepared, out: Path) -> None:
    """The files that do not change: recipe last, since its presence says that a run lies here."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        text.tokenizer.save(out / "tokenizer.json")
        write_json(out / "text.json", {"format": FORMAT, "prepared": str(text.directory.resolve())})
        write_json(out / "environment.json", environment())
        temporary = out / ".recipe.yaml.writing"
        temporary.write_text(dump(recipe), encoding="utf-8")
        os.replace(temporary, out / "recipe.yaml")
    except OSError as error:
        free = shutil.disk_usage(out if out.exists() else out.parent).free if out.parent.exists() else 0
        raise UserError(
            f"cannot write the run to {out} ({error.strerror}; {free:,} bytes free): give another out="
        ) from error


def environment() -> dict[str, Any]:
    """What a run was made with."""
    packages = ("unmask", "torch", "numpy", "tokenizers", "safetensors", "pydantic", "transformers")
    return {
        "format": FORMAT,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "packages": {p: _version(p) for p in packages},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


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
) -> dict[str, Any]:
    """Measure a run or a Hugging Face directory by a suite (`evaluate.suites`); see `evaluate.items.Options`.

    text: what the suite reads; without it bpb takes the run's held-out part, and cloze the battery that is shipped.
    """
    options = Options(plan, limit, stride, seed, watch=watch)
    lm = load(model) if not isinstance(model, LM) else model
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
            options = replace(options, counts=np.asarray(own.train.counts))
            data = own.valid if text is None else None
    if data is None:
        data = chosen.read(lm, text)
    found = suites.evaluate(lm, suite, data, options)
    return {**found, "warnings": [*found.get("warnings", ()), *warnings]} if warnings else found


def read_held_out_text(out: Path, tokens: int = 64, cache: str | Path | None = None) -> str:
    """The beginning of the first held-out document of a run, decoded."""
    text = prepared(out, cache)
    return text.tokenizer.decode(np.asarray(text.valid.document(0)[:tokens]))


def prepared(out: Path, cache: str | Path | None = None, say: Callable[[str], None] = lambda _: None) -> Prepared:
    """The tokenized text that a run was trained on: where it was kept, or made again from the same corpus."""
    if not (out / "text.json").exists():
        raise UserError(f"{out} is no run with a text of its own: give the text to evaluate on")
    try:
        place = Path(json.loads((out / "text.json").read_text(encoding="utf-8"))["prepared"])
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{out} does not say what text it was trained on (text.json: {error})") from error
    if (place / "meta.json").exists():
        return Prepared.load(place)
    recipe, tokenizer = stored_recipe(out), Tokenizer.load(out / "tokenizer.json")
    text = prepare(recipe.corpus, recipe.valid, tokenizer, cache_folder(cache), say)
    if text.directory.name != place.name:
        raise UserError(
            f"{title(recipe.corpus)} has changed since {out} was started, or another version of unmask prepared it: "
            "restore it, or start a new run"
        )
    return text
