"""What a model is and costs, without building it: of a recipe, a run, a directory, a preset or a file of settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import TypeAdapter, ValidationError

from unmask.batch import Head
from unmask.config import ModelConfig, TokenizerConfig
from unmask.errors import UserError, nearest
from unmask.model.advise import Advice, advise
from unmask.model.cost import cache_numbers, flops, forward_flops, memory
from unmask.model.interop import outline_hf
from unmask.model.presets import PRESETS, expanded, preset_config, preset_heads
from unmask.model.shapes import shapes
from unmask.model.spec import LANGUAGE_MODEL, active_parameters, parameters, parts
from unmask.model.translate import first_fault, read_hf_config, read_settings
from unmask.objectives.base import Objective
from unmask.studies import instead_of_a_run

ASSUMED_VOCABULARY = 32768
"""Of a preset that leaves it to a tokenizer."""


class _Model(NamedTuple):
    config: ModelConfig
    heads: Sequence[Head] = LANGUAGE_MODEL
    ceiling: bool = False
    """Whether the vocabulary's size is the most there can be: the text decides (char, word)."""


def describe(
    what: str | Path | ModelConfig, context: int | None = None, batch: int = 1, vocab_size: int | None = None
) -> dict[str, Any]:
    """A model's parameters, shapes, FLOPs, memory and cache.

    what: a recipe's name or path, a run directory, a Hugging Face directory (whose tensors' names say which heads it
    has), a preset's name, a YAML or JSON file of model settings, or the settings themselves.
    A recipe's vocabulary has its tokenizer's size: that of a file, of bytes, or the size asked for. The text decides
    about characters and words alone; then it is the most there can be, and `vocab_size_is` says "ceiling".
    context, batch: tokens of a row (the model's longest; of the source as well) and rows, for everything that
    depends on them. Counts are numbers, sizes are bytes in fp32.
    """
    model = _Model(what) if isinstance(what, ModelConfig) else _model(str(what))
    c = model.config
    _require(vocab_size=vocab_size)
    if not c.vocab_size or vocab_size:
        c = c.model_copy(update={"vocab_size": vocab_size or ASSUMED_VOCABULARY})
    name = "settings" if isinstance(what, ModelConfig) else str(what)
    found = _described(name, c, model.heads, context, batch)
    return {**found, "vocab_size_is": "ceiling"} if model.ceiling and not vocab_size else found


def advice(
    target: float,
    preset: str | None = None,
    family: str | None = None,
    vocab_size: int | None = None,
    context: int | None = None,
    batch: int = 1,
) -> dict[str, Any]:
    """Sizes for about `target` parameters with the reason for each, then the model as `describe` has it."""
    _require(vocab_size=vocab_size)
    found: Advice = advise(target, preset, family, vocab_size)
    chosen = [{"setting": k, "value": v, "why": found.why[k]} for k, v in found.changed.items()]
    return {
        "target": round(target),
        "off": found.parameters / target - 1,
        "preset": found.preset,
        "chosen": chosen,
        "overrides": [
            f"model.preset={found.preset}",
            *(f"model.{k}={_word(v)}" for k, v in found.changed.items()),
            f"tokenizer.vocab_size={found.config.vocab_size}",
        ],
        **_described(found.preset, found.config, LANGUAGE_MODEL, context, batch),
    }


def _require(**numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise UserError(f"{name}={value} must be at least 1")


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _described(
    name: str, config: ModelConfig, heads: Sequence[Head], context: int | None, batch: int
) -> dict[str, Any]:
    c, two = config, config.num_source_layers > 0
    length = c.max_position if context is None else context
    _require(context=length, batch=batch)
    if length > c.max_position and c.positions == "learned":
        raise UserError(f"context={length} goes beyond the model's table of {c.max_position} positions: give less")
    total = parameters(c, heads)
    source = length if two else 0
    steps = shapes(c, heads, batch, length, source)
    return {
        "model": name,
        "family": c.family,
        "visibility": c.visibility,
        "stacks": 2 if two else 1,
        "layers": c.num_layers + c.num_source_layers,
        "hidden_size": c.hidden_size,
        "num_heads": c.num_heads,
        "vocab_size": c.vocab_size,
        "max_position": c.max_position,
        "parameters": total,
        "active_parameters": active_parameters(c, heads),
        "embedding_parameters": next(p.total for p in parts(c, heads)),
        "context": length,
        "batch": batch,
        **_flops(c, length, source),
        **(_cache(c, length, source) if two or c.visibility != "bidirectional" else {}),
        "shapes": [asdict(step) for step in steps],
        "parts": [
            {"part": p.part, "parameters": p.total, "share": p.total / total, "active": p.active}
            for p in parts(c, heads)
        ],
        "flops": _table_of_flops(c, length, source),
        "memory": [
            {"with": kind, **asdict(held), "total": held.total}
            for kind in ("adamw", "muon")
            for held in [memory(c, heads, batch, length, source, kind)]  # type: ignore[arg-type]
        ],
    }


def _flops(config: ModelConfig, length: int, source: int) -> dict[str, int]:
    """Training: a token's way through the layers of each stack, and one target's head."""
    body = flops(config, length, source, 0, length, source)
    return {"flops_per_token_body": round(body / length), "flops_per_target": round(flops(config, 0, 0, 1))}


def _table_of_flops(config: ModelConfig, length: int, source: int) -> list[dict[str, Any]]:
    """FLOPs a token: with a target at each, all products of a row or those that the mask leaves."""
    rows = []
    for name, targets in (("body", 0), ("body and head", length)):
        args = (config, length, source, targets, length, source)
        values = {
            f"{kind}_{attended}": round(f(*args, attended) / length)
            for kind, f in (("forward", forward_flops), ("training", flops))
            for attended in ("dense", "visible")
        }
        rows.append({"per token": name, **values})
    return rows


def _cache(config: ModelConfig, length: int, source: int) -> dict[str, Any]:
    """Bytes a token; for a whole row as decoding here keeps it, and what would do: local windows, latent states."""
    size = cache_numbers(config)
    least = size.token * length + size.local * min(length, config.window + 1)
    if size.latent:
        least = size.latent * length
    crossed = size.source * source
    return {
        "cache_bytes_per_token": 4 * (size.token + size.local),
        "cache_bytes_per_source_token": 4 * size.source,
        "cache_bytes_of_a_row": {
            "kept": 4 * ((size.token + size.local) * length + crossed),
            "needed": 4 * (least + crossed),
        },
    }


# ---------------------------------------------------------------- where a model is described


def _model(what: str) -> _Model:
    path = Path(what)
    if (path / "recipe.yaml").is_file():
        return _of_run(path / "recipe.yaml")
    if (path / "config.json").is_file():
        return _of_directory(path)
    if path.is_dir():
        raise UserError(
            instead_of_a_run(path)
            or f"{what} is no model: it has neither recipe.yaml (a run) nor config.json (Hugging Face)"
        )
    if what in PRESETS:
        return _Model(preset_config(what), preset_heads(what))
    if path.is_file():
        values = _values(path)
        if "model_type" in values:
            return _Model(read_settings(values, path))
        if not {"model", "objective", "init"} & values.keys():
            return _Model(_settings(values, what))
    return _of_recipe(what)


def _of_run(file: Path) -> _Model:
    from unmask.objectives import AnyObjective

    values = _values(file)
    config = _settings(values.get("model", {}), str(file))
    try:
        if (heads := values.get("heads")) is not None:  # of an imported or converted model
            return _Model(config, TypeAdapter(tuple[Head, ...]).validate_python(heads))
        if "objective" in values:
            return _Model(config, kept_heads(TypeAdapter(AnyObjective).validate_python(values["objective"])))
    except ValidationError as error:
        raise UserError(f"{file} names no objective or heads that are known: {first_fault(error)}") from error
    return _Model(config)


def _of_directory(path: Path) -> _Model:
    """A Hugging Face directory; of config.json alone it is a language model."""
    if any(path.glob("*.safetensors")):
        return _Model(*outline_hf(path))
    return _Model(read_hf_config(path))


def _of_recipe(what: str) -> _Model:
    from unmask.recipe import load_recipe, shipped

    if not Path(what).is_file() and what not in shipped():
        known = [*shipped(), *PRESETS]
        raise UserError(
            f"'{what}' is no recipe, preset, file, run or Hugging Face directory (known by name: {', '.join(known)})"
            f"{nearest(what, known)}"
        )
    recipe = load_recipe(what, {"corpus": "-"})
    if recipe.init is not None:
        raise UserError(f"{what} starts from {recipe.init}: inspect that instead")
    size, ceiling = _entries(recipe.tokenizer)
    update = {"vocab_size": recipe.model.vocab_size or size, "visibility": recipe.objective.visibility}
    ceiling = ceiling and not recipe.model.vocab_size
    return _Model(recipe.model.model_copy(update=update), kept_heads(recipe.objective), ceiling)


def kept_heads(objective: Objective) -> tuple[Head, ...]:
    """Those of the network that is kept: of a model trained beside a generator, its own."""
    return tuple(head for head in objective.heads() if head.network == objective.kept)


def _entries(config: TokenizerConfig) -> tuple[int, bool]:
    """Entries of a tokenizer that is not there yet, and whether they are the most there can be."""
    from unmask.tokens.pieces import fixed_size
    from unmask.tokens.tokenizer import Tokenizer

    if config.file is not None:
        return Tokenizer.load(config.file).vocabulary.size, False
    known = fixed_size(config)
    return (known, False) if known is not None else (config.vocab_size, config.type in ("char", "word"))


def _settings(values: Any, where: str) -> ModelConfig:
    """Model settings, with those of `preset` below them."""
    from unmask.recipe import explain

    if not isinstance(values, dict):
        raise UserError(f"{where} holds no settings of a model: write a mapping of keys like hidden_size")
    try:
        return ModelConfig.model_validate(expanded(values))
    except ValidationError as error:
        raise UserError(explain(error, where, ModelConfig)) from error


def _values(file: Path) -> dict[str, Any]:
    """A mapping in a YAML file, of which JSON is a part."""
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{file} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise UserError(f"{file} holds no settings: write a mapping of keys like hidden_size")
    return values
