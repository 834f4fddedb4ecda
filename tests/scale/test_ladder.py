"""The ladder: sizes, budgets and seeds as runs, costs by formula, what is refused before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import unmask.cli.scale  # noqa: F401  (joins the verb to the app)
from unmask.cli.output import app
from unmask.errors import UserError
from unmask.model import advise
from unmask.model.spec import parameters
from unmask.networks import networks_of
from unmask.recipe import Recipe, dump, validate
from unmask.scale.ladder import Sampled, body, cells, costs, sampled, shaped
from unmask.scale.rates import Rates
from unmask.scale.study import Asked
from unmask.scale.train import Ladder, run

from .helpers import LADDER_BUDGETS as BUDGETS
from .helpers import LADDER_SIZES as SIZES
from .helpers import small


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Sampled:
    folder = tmp_path_factory.mktemp("ladder")
    return sampled(small(folder), folder / "cache", lambda _: None)


def test_sizes_are_advised_shapes_of_the_recipes_model(given: Sampled) -> None:
    for size in SIZES:
        config = shaped(given, size)
        assert parameters(config) == pytest.approx(size, rel=0.03)
        assert config.size_per_head == 64 and config.family == "llama" and config.positions == "rotary"
        assert body(given, config) == parameters(config) - config.vocab_size * config.hidden_size  # a tied table
    with pytest.raises(UserError, match=r"cannot have 100k parameters with a vocabulary of 30\d+: give larger sizes="):
        shaped(Sampled(recipe_with_rows(given, 30000), given.text, given.updates), 1e5)


def test_a_recipe_with_every_setting_written_out_gives_the_same_models(given: Sampled) -> None:
    whole = validate(yaml.safe_load(dump(given.recipe)), "recipe.yaml")
    for size in SIZES[:2]:
        assert shaped(Sampled(whole, given.text, given.updates), size) == shaped(given, size)


@pytest.mark.parametrize(("width", "heads"), [(192, 4), (96, 4), (200, 2), (144, 1), (200, 5), (206, 1)])
def test_heads_of_any_size_fit_the_widths(given: Sampled, width: int, heads: int) -> None:
    """Also those that do not divide tiles of 64 numbers: 48, 24, 100 (50 in a small model), 144, 40, 206."""
    model = given.recipe.model.model_copy(update={"hidden_size": width, "num_heads": heads})
    found = shaped(Sampled(given.recipe.model_copy(update={"model": model}), given.text, given.updates), 2e6)
    assert found.hidden_size % found.num_heads == 0 and parameters(found) == pytest.approx(2e6, rel=0.03)


def test_a_shape_that_cannot_be_is_one_sentence(given: Sampled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advise, "_between", lambda head: 65)
    with pytest.raises(UserError, match=r"cannot be made 2M parameters large: set model.hidden_size= and model.num_h"):
        shaped(given, 2e6)


def recipe_with_rows(given: Sampled, rows: int) -> Recipe:
    return given.recipe.model_copy(update={"model": given.recipe.model.model_copy(update={"vocab_size": rows})})


def test_a_run_for_each_size_and_budget(given: Sampled, tmp_path: Path) -> None:
    found = cells(given, SIZES, BUDGETS, tmp_path)
    assert [c.name for c in found[:2]] == ["120k-1e12", "220k-1e12"] and len({c.place for c in found}) == 8
    for cell, budget in zip(found, [1e12] * 4 + [2e11] * 4, strict=True):
        assert (
            cell.recipe.budget.flops == budget and cell.recipe.model.vocab_size == given.text.tokenizer.vocabulary.size
        )
        updates = budget / given.flops(cell.recipe.model)
        assert cell.recipe.train.warmup_steps == min(50, int(updates / 10))


def test_seeds_are_runs_of_one_rung_and_rates_are_those_of_size_and_budget(given: Sampled, tmp_path: Path) -> None:
    rates = Rates({n: 0.0 for n in SIZES}, -0.1)
    found = cells(given, SIZES, BUDGETS, tmp_path, seeds=3, rates=rates)
    assert [c.name for c in found[:3]] == ["120k-1e12", "120k-1e12-seed1", "120k-1e12-seed2"]
    assert len({c.place for c in found}) == 24 and len({c.rung for c in found}) == 8
    assert [c.recipe.seed for c in found[:4]] == [0, 1, 2, 0]
    for cell in found:
        flops, train = float(cell.recipe.budget.flops or 0), cell.recipe.train
        assert train.learning_rate == pytest.approx(3e-3 * flops**-0.1, rel=5e-3)
        assert train.muon_learning_rate / 0.02 == pytest.approx(train.learning_rate / 3e-3)
    alone = cells(given, SIZES, BUDGETS, tmp_path)
    assert [c.place for c in found[::3]] == [c.place for c in alone], "seeds may be added to a ladder that is there"


@pytest.mark.parametrize("tied", [True, False])
def test_body_is_what_a_real_model_has_beside_tables_and_heads(given: Sampled, tied: bool) -> None:
    model = given.recipe.model.model_copy(update={"tied_head": tied, "positions": "learned"})
    one = Sampled(given.recipe.model_copy(update={"model": model}), given.text, given.updates)
    config = shaped(one, 4e5)
    network = networks_of(one.recipe.objective, config)["model"]
    each = {id(p): (name, p.numel()) for name, p in network.named_parameters()}
    assert sum(size for _, size in each.values()) == parameters(config)
    layers = sum(size for name, size in each.values() if name.startswith(("stack.layers.", "stack.final_norm.")))
    rest = {name for name, _ in each.values() if not name.startswith(("stack.layers.", "stack.final_norm."))}
    assert rest == {"embedding.weight", "stack.positions.weight"} | (set() if tied else {"heads.lm.weight"})
    assert body(one, config) == layers


def test_costs_are_those_of_the_batches(given: Sampled) -> None:
    """Dense products: 6 FLOPs a weight, 12 L T d a token of scores, at rows of 32 tokens."""
    config = shaped(given, 4e5)
    weights = body(given, config) - (2 * config.num_layers + 1) * config.hidden_size  # without norms
    layers = 6 * weights + 12 * config.num_layers * 32 * config.hidden_size
    assert given.cost(config) == pytest.approx(layers + 6 * config.vocab_size * config.hidden_size, rel=0.05)
    by_n, by_flops = costs(given, SIZES, "all"), costs(given, SIZES, "flops")
    assert by_n(parameters(config)) == pytest.approx(given.cost(config), rel=0.1)
    assert by_flops(1e6) == pytest.approx(6e6)
    assert by_n.sizes[-1] > 100 * SIZES[-1]


@pytest.mark.parametrize(
    ("sizes", "budgets", "says"),
    [
        (SIZES, [1e12, 1e12], r"budgets= wants different numbers above 0"),
        ([1.2e5, 1.201e5, 4e5], BUDGETS, r"give the same model: set them further apart"),
        (SIZES, [1e9, 1e12], r"a budget of 1e\+09 FLOPs buys .* updates of the model of .*: give at least"),
    ],
)
def test_what_is_no_ladder(given: Sampled, tmp_path: Path, sizes: list[float], budgets: list[float], says: str) -> None:
    with pytest.raises(UserError, match=says):
        cells(given, sizes, budgets, tmp_path)


@pytest.mark.parametrize(
    ("sizes", "budgets", "holdout", "says"),
    [
        (
            SIZES[:2],
            BUDGETS * 4,
            "none",
            r"2 sizes × 8 budgets are no ladder: fit at least 3 sizes= and 2 budgets=, 8 runs",
        ),
        (SIZES, [1e12], "none", r"4 sizes × 1 budgets are no ladder"),
        (SIZES[:3], BUDGETS, "none", r"3 sizes × 2 budgets are no ladder"),
        (SIZES, BUDGETS, "largest", r"4 sizes × 2 budgets of which holdout=largest leaves 1 are no ladder"),
    ],
)
def test_too_small_a_ladder_is_refused_before_it_is_trained(
    given: Sampled, tmp_path: Path, sizes: list[float], budgets: list[float], holdout: Any, says: str
) -> None:
    with pytest.raises(UserError, match=says):
        run(given.recipe, Ladder(sizes, budgets), tmp_path, Asked(holdout=holdout))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given_settings", "says"),
    [
        (["sizes=1M,2M,4M", "out=x"], r"no budgets: give sizes="),
        (["sizes=1M,2M,4M", "budgets=1e13,many", "out=x"], r"budgets=many is no number of FLOPs"),
        (["sizes=1M,2M,4M", "budgets=1e13", "out=x", "budget.steps=3"], r"give budgets=1e13,1e14 \(FLOPs\) instead"),
        (["sizes=1M,2M,4M", "budgets=1e13", "out=x", "jobs=two"], r"jobs=two is no whole number"),
        (["sizes=1M,2M,4M", "budgets=1e13,-1", "out=x"], r"budgets=-1 is no number of FLOPs"),
        (["sizes=1M,2M,4M", "budgets=1e13", "out=x", "seeds=some"], r"seeds=some is no whole number"),
        (["sizes=1M,2M,4M", "budgets=1e13", "out=x", "tune=lr:4"], r"tune=lr:4 is not known: write tune=lr:4:1e12"),
        (["sizes=1M,2M,4M", "budgets=1e13", "out=x", "tune=lr:4:no"], r"tune=no is no number of FLOPs"),
        (
            ["sizes=1M,2M,4M", "budgets=1e13,2e13,4e13", "out=x", f"corpus={__file__}", "tune=lr:2:1e12"],
            r"tune=lr:2 tries 2: of fewer than 3 learning rates the best always lies at the edge",
        ),
        (["sizes=1M,2M,500", "budgets=1e13", "out=x"], r"'500' is no size of a model"),
    ],
)
def test_the_verb_says_what_is_missing(given_settings: list[str], says: str) -> None:
    ended = CliRunner().invoke(app, ["scale", "run", "decoder-small", "corpus=none.txt", *given_settings])
    assert isinstance(ended.exception, UserError)
    with pytest.raises(UserError, match=says):
        raise ended.exception
