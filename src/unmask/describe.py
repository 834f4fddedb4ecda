"""What a recipe, a run or a Hugging Face directory is: parameters and FLOPs, without training it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model.spec import LANGUAGE_MODEL, flops, parameters
from unmask.model.translate import read_hf_config


def describe(what: str) -> dict[str, Any]:
    """Settings, parameters and training FLOPs per token of a model.

    what: a recipe's name or path (its tokenizer's size stands for the vocabulary), a run directory, or a
    Hugging Face directory. FLOPs are those of training: of a token's way through the layers at full context (with
    two stacks, one token of each), and of one target's vocabulary head.
    """
    config = _config(what)
    heads = LANGUAGE_MODEL
    context = config.max_position
    two = config.num_source_layers > 0
    body = flops(config, 1, 1 if two else 0, 0, context, context if two else 0)
    return {
        "model": what,
        "family": config.family,
        "visibility": config.visibility,
        "stacks": 2 if two else 1,
        "layers": config.num_layers + config.num_source_layers,
        "hidden_size": config.hidden_size,
        "num_heads": config.num_heads,
        "vocab_size": config.vocab_size,
        "max_position": config.max_position,
        "parameters": parameters(config, heads),
        "embedding_parameters": config.vocab_size * config.hidden_size,
        "flops_per_token_body": round(body),
        "flops_per_target": round(flops(config, 0, 0, 1)),
    }


def _config(what: str) -> ModelConfig:
    path = Path(what)
    if (path / "recipe.yaml").exists():
        return ModelConfig.model_validate(yaml.safe_load((path / "recipe.yaml").read_text(encoding="utf-8"))["model"])
    if (path / "config.json").exists():
        return read_hf_config(path)
    if path.is_dir():
        raise UserError(f"{what} is no model: it has neither recipe.yaml (a run) nor config.json (Hugging Face)")
    from unmask.recipe import load_recipe

    recipe = load_recipe(what, {"corpus": "-"})
    size = recipe.model.vocab_size or recipe.tokenizer.vocab_size
    return recipe.model.model_copy(update={"vocab_size": size, "visibility": recipe.objective.visibility})
