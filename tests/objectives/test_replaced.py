"""Replaced tokens: what the objective asks, and how big its generator is."""

from __future__ import annotations

import numpy as np
import pytest

from unmask.batch import Rows
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model.presets import expanded
from unmask.objectives import Masked, Replaced
from unmask.objectives.show import toy

from .cases import texts


def test_the_generator_s_task_is_masked_language_modelling() -> None:
    rows = texts([40, 3, 0, 12])
    e, plain = Replaced()(rows, toy()), Masked(mask_share=0.85, random_share=0.0)(rows, toy())
    assert e.stream.tokens.tolist() == plain.stream.tokens.tolist()
    for name in ("index", "value"):
        assert getattr(e.targets["lm"], name).tolist() == getattr(plain.targets["lm"], name).tolist()


def test_google_s_shares_and_the_paper_s() -> None:
    rows = Rows.of([[7] * 100] * 2000)
    for objective, share in ((Replaced.electra(), 0.85), (Replaced.deberta_v3(), 1.0)):
        e = objective(rows, toy())
        t = e.targets["lm"]
        masked = (e.stream.tokens[t.index] == 4).mean()
        assert len(t.index) == 2000 * 15 and abs(masked - share) < 4 * np.sqrt(0.25 / 30000) * (share < 1) + 1e-12
        assert set(e.stream.tokens[t.index].tolist()) <= {4, 7}


def test_uniforms_are_keyed_by_text_and_place_and_uniform() -> None:
    rows = Rows.of([[7] * 100] * 2000)
    draw = Replaced()(rows, toy()).targets["lm"].draw
    assert draw is not None and len(set(draw.tolist())) == len(draw) == 30000
    counts = np.histogram(draw, 20, (0, 1))[0]
    assert ((counts - 1500) ** 2 / 1500).sum() < 43.8  # chi-squared, 19 degrees of freedom, 1 in 1,000
    alone = Replaced()(Rows.of([[7] * 100], [1999]), toy()).targets["lm"].draw
    assert alone is not None and alone.tolist() == draw[-15:].tolist()
    t = Replaced()(rows, toy()).targets["lm"]  # neither the choice of places nor the fates tell the uniforms
    masked = Replaced()(rows, toy()).stream.tokens[t.index] == 4
    assert abs(draw[masked].mean() - draw[~masked].mean()) < 4 * np.sqrt(1 / 12 / 4500 * 1.2)


@pytest.mark.parametrize(
    ("objective", "asked", "values"),
    [
        (Replaced.electra(), {"rtd": range(1, 41)}, {"rtd": "zero"}),
        (Replaced.electra_15(), {"rtd": "lm"}, {"rtd": "zero"}),
        (Replaced.replace_mlm(), {"recovery": "lm"}, {"recovery": "text"}),
        (
            Replaced.all_tokens_mlm(),
            {"recovery": range(1, 41), "copy": range(1, 41)},
            {"recovery": "text", "copy": "zero"},
        ),
    ],
)
def test_what_the_discriminator_is_asked(objective: Replaced, asked: dict, values: dict) -> None:  # type: ignore[type-arg]
    rows = texts([40])
    e = objective(rows, toy())
    assert set(e.targets) == {"lm", *asked} == {head.name for head in objective.heads()}
    framed = [2, *rows.tokens.tolist(), 3]
    for name, places in asked.items():
        t = e.targets[name]
        assert t.index.tolist() == (e.targets["lm"].index.tolist() if places == "lm" else list(places))
        assert t.value.tolist() == [framed[i] if values[name] == "text" else 0 for i in t.index]


def test_terms_have_the_papers_coefficients() -> None:
    heads = {h.name: (h.network, h.coefficient) for h in Replaced.electra().heads()}
    assert heads == {"lm": ("generator", 1.0), "rtd": ("model", 50.0)}
    assert [h.coefficient for h in Replaced.all_tokens_mlm().heads()] == [1.0, 1.0, 0.0]


# ---------------------------------------------------------------- the generator


@pytest.mark.parametrize(("width", "size", "heads"), [(0.25, 192, 3), (1 / 3, 256, 4), (0.5, 384, 6), (1.0, 768, 12)])
def test_generators_of_a_base_model(width: float, size: int, heads: int) -> None:
    """Clark et al. 2020, table 6: the base generator has a third of the hidden size, heads and feed-forward size."""
    base = ModelConfig.model_validate(
        {
            **expanded({"preset": "electra-small-discriminator"}),
            "hidden_size": 768,
            "num_heads": 12,
            "embedding_size": 768,
        }
        | {"intermediate_size": 3072}
    )
    made = Replaced(generator_width=width).networks(base)
    g = made["generator"]
    assert made["model"] == base and (g.hidden_size, g.num_heads, g.num_layers) == (size, heads, 12)
    assert (g.mlp_size, g.table_size, g.size_per_head, g.family) == (4 * size, 768, 64, "electra")


def test_the_papers_small_generator() -> None:
    small = ModelConfig.model_validate(expanded({"preset": "electra-small-discriminator"}))
    g = Replaced.electra().generator(small)
    assert (g.hidden_size, g.num_heads, g.intermediate_size, g.embedding_size) == (64, 1, 256, 128)


def test_deberta_v3_has_a_generator_of_half_the_depth() -> None:
    base = ModelConfig(vocab_size=100, hidden_size=96, num_heads=4, num_layers=12)
    g = Replaced.deberta_v3().generator(base)
    assert (g.num_layers, g.hidden_size, g.num_heads) == (6, 96, 4)


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("width", [0.2, 0.25, 0.4, 0.9])
def test_any_width_makes_a_model(heads: int, width: float) -> None:
    model = ModelConfig(hidden_size=16 * heads, num_heads=heads, num_kv_heads=1, positions="rotary", activation="geglu")
    g = Replaced(generator_width=width).generator(model)
    assert g.hidden_size <= model.hidden_size and g.rotary_size % 2 == 0 and g.table_size == model.hidden_size


def test_what_cannot_be_built_is_one_sentence() -> None:
    deberta = ModelConfig(positions="deberta", mask_decoder=True)
    with pytest.raises(UserError, match="generator of objective replaced cannot be built for this model: mask_decoder"):
        Replaced.electra().networks(deberta)
    with pytest.raises(ValueError, match="sharing=all needs a generator of the model's size"):
        Replaced(sharing="all")
