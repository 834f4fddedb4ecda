"""What a model is and costs, without building it: of a recipe, a run, a directory, a preset or a file of settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import TypeAdapter, ValidationError

from unmask.batch import Head
from unmask.config import ModelConfig
from unmask.errors import UserError, nearest
from unmask.model.advise import Advice, advise
from unmask.model.cost import cache_numbers, flops, forward_flops, memory
from unmask.model.presets import PRESETS, preset_config, preset_heads
from unmask.model.shapes import shapes
from unmask.model.spec import LANGUAGE_MODEL, active_parameters, parameters, parts
from unmask.model.translate import read_config, read_hf_config

ASSUMED_VOCABULARY = 32768
"""Of a preset that leaves it to a tokenizer."""


class _Model(NamedTuple):
    config: ModelConfig
    heads: Sequence[Head] = LANGUAGE_MODEL


def describe(
    what: str | Path | ModelConfig, context: int | None = None, batch: int = 1, vocab_size: int | None = None
) -> dict[str, Any]:
    """A model's parameters, shapes, FLOPs, memory and cache.

    what: a recipe's name or path (its tokenizer's size stands for the vocabulary), a run directory, a Hugging Face
    directory, a preset's name, a YAML or JSON file of model settings, or the settings themselves.
    context, batch: tokens of a row (the model's longest; of the source as well) and rows, for everything that
    depends on them. Counts are numbers, sizes are bytes in fp32.
    """
    model = _Model(what) if isinstance(what, ModelConfig) else _model(str(what))
    c = model.config
    if not c.vocab_size or vocab_size:
        c = c.model_copy(update={"vocab_size": vocab_size or ASSUMED_VOCABULARY})
    return _described("settings" if isinstance(what, ModelConfig) else str(what), c, model.heads, context, batch)


def advice(
    target: float,
    preset: str | None = None,
    family: str | None = None,
    vocab_size: int | None = None,
    context: int | None = None,
    batch: int = 1,
) -> dict[str, Any]:
    """Sizes for about `target` parameters with the reason for each, then the model as `describe` has it."""
    found: Advice = advise(target, preset, family, vocab_size)
    chosen = [{"setting": k, "value": v, "why": found.why[k]} for k, v in found.changed.items()]
    return {
        "target": round(target),
        "off": found.parameters / target - 1,
        "preset": found.preset,
        "chosen": chosen,
        "overrides": [f"model.preset={found.preset}", *(f"model.{k}={_word(v)}" for k, v in found.changed.items())],
        **_described(found.preset, found.config, LANGUAGE_MODEL, context, batch),
    }


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _described(
    name: str, config: ModelConfig, heads: Sequence[Head], context: int | None, batch: int
) -> dict[str, Any]:
    c, two = config, config.num_source_layers > 0
    length = context or c.max_position
    if length < 1 or batch < 1:
        raise UserError(f"context={length} and batch={batch}: give at least 1 of each")
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
        "cache_bytes_per_token": 4 * (cache_numbers(c).token + cache_numbers(c).local),
        "cache_bytes_per_source_token": 4 * cache_numbers(c).source,
        "cache_bytes_of_a_row": _cache(c, length, source),
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


def _cache(config: ModelConfig, length: int, source: int) -> dict[str, int]:
    """Bytes for a whole row as decoding here keeps it, and what would do: local layers' windows, latent states."""
    size = cache_numbers(config)
    least = size.token * length + size.local * min(length, config.window + 1)
    if size.latent:
        least = size.latent * length
    crossed = size.source * source
    return {"kept": 4 * ((size.token + size.local) * length + crossed), "needed": 4 * (least + crossed)}


# ---------------------------------------------------------------- where a model is described


def _model(what: str) -> _Model:
    path = Path(what)
    if (path / "recipe.yaml").is_file():
        return _of_run(path / "recipe.yaml")
    if (path / "config.json").is_file():
        return _Model(read_hf_config(path))
    if path.is_dir():
        raise UserError(f"{what} is no model: it has neither recipe.yaml (a run) nor config.json (Hugging Face)")
    if what in PRESETS:
        return _Model(preset_config(what), preset_heads(what))
    if path.is_file():
        values = _values(path)
        if "model_type" in values:
            return _Model(read_config(values))
        if not {"model", "objective", "init"} & values.keys():
            return _Model(_settings(values, what))
    return _of_recipe(what)


def _of_run(file: Path) -> _Model:
    from unmask.objectives import AnyObjective

    values = _values(file)
    config = _settings(values.get("model", {}), str(file))
    if "objective" not in values:
        return _Model(config)
    try:
        return _Model(config, TypeAdapter(AnyObjective).validate_python(values["objective"]).heads())
    except ValidationError as error:
        raise UserError(f"{file} names no objective that is known: {error.errors()[0]['msg']}") from error


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
    size = recipe.model.vocab_size or recipe.tokenizer.vocab_size
    config = recipe.model.model_copy(update={"vocab_size": size, "visibility": recipe.objective.visibility})
    return _Model(config, recipe.objective.heads())


def _settings(values: dict[str, Any], where: str) -> ModelConfig:
    """Model settings, with those of `preset` below them."""
    from unmask.model.presets import preset
    from unmask.recipe import explain

    under = preset(str(values["preset"])) if "preset" in values else {}
    try:
        return ModelConfig.model_validate({**under, **{k: v for k, v in values.items() if k != "preset"}})
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
