"""Factors of named models that follow from the width follow it."""

from __future__ import annotations

from typing import Any

import pytest

from unmask.config import ModelConfig
from unmask.description import describe
from unmask.model.bundle import stock_family
from unmask.model.presets import PRESETS, preset, preset_config
from unmask.model.presets.base import OfWidth
from unmask.recipe import load_recipe

SCALES = {
    "transformer-2017-base": ("embedding_scale", 0.5, "marian"),
    "mbart-large": ("embedding_scale", 0.5, "mbart"),
    "t5-small": ("head_scale", -0.5, "t5"),
    "t5-base": ("head_scale", -0.5, "t5"),
    "switch-base-8": ("head_scale", -0.5, None),
    "t5gemma-2b-2b": ("embedding_scale", 0.5, "t5gemma"),
}
NARROW = {"hidden_size": 64, "num_layers": 2, "num_source_layers": 2, "intermediate_size": 96, "vocab_size": 60}


def recipe(name: str, **more: Any) -> ModelConfig:
    given = {f"model.{k}": v for k, v in {"preset": name, **NARROW, "num_heads": 4, **more}.items()}
    objective = {"objective.type": "span_corruption", "objective.layout": "encdec"}
    return load_recipe("encoder-small", {"corpus": "nowhere", **objective, **given}).model


def test_all_presets_whose_factors_follow_the_width_are_tested() -> None:
    assert {n for n, values in PRESETS.items() if any(isinstance(v, OfWidth) for v in values.values())} == set(SCALES)
    for name in PRESETS:
        config = preset_config(name)
        absolute = {config.embedding_scale, config.head_scale} - {1.0}
        assert bool(absolute) == (name in SCALES), name


@pytest.mark.parametrize("name", SCALES)
def test_a_narrower_model_in_a_recipe(name: str) -> None:
    key, power, family = SCALES[name]
    config = recipe(name)
    assert getattr(config, key) == pytest.approx(64**power, rel=1e-15)
    assert getattr(recipe(name, **{key: 3.0}), key) == 3.0  # unless it is given
    whole = preset_config(name)
    assert getattr(whole, key) == pytest.approx(whole.hidden_size**power, rel=1e-15)
    found = stock_family(config)
    assert (found.name if found else None) == family


def test_a_narrower_t5gemma_scales_by_its_own_heads() -> None:
    assert preset_config("t5gemma-2b-2b").scale == 256**-0.5
    assert recipe("t5gemma-2b-2b", head_size=16).scale == 0.25


def test_a_narrower_model_in_a_settings_file(tmp_path: Any) -> None:
    file = tmp_path / "model.yaml"
    file.write_text("preset: t5-small\nhidden_size: 64\n")
    described = describe(file)
    wide = describe("t5-small")
    assert described["parameters"] < wide["parameters"]
    assert preset("t5-small", 64)["head_scale"] == 0.125 and preset("t5-small")["head_scale"] == 512**-0.5
    assert preset("t5-small", "wide")["head_scale"] == 512**-0.5  # the validation refuses such a width
