"""The ladder: sizes and budgets as runs, costs by formula, one real run, resuming, failures, and the record."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import unmask.cli.scale  # noqa: F401  (joins the verb to the app)
from unmask.cli.output import app
from unmask.compare.results import Results
from unmask.errors import UserError
from unmask.model.spec import parameters
from unmask.recipe import Recipe, load_recipe
from unmask.scale import ladder as ladders
from unmask.scale.ladder import Cell, Sampled, body, cells, costs, rows, sampled, shaped, train
from unmask.scale.law import REFIT
from unmask.scale.study import Asked
from unmask.scale.train import run

TEXT = "the cat sat on the mat and the dog lay by the door; then it rained.\n"
SIZES, BUDGETS = [1.2e5, 2.2e5, 4e5, 8e5], [2e11, 1e12]


def recipe(folder: Path, **more: Any) -> Recipe:
    corpus = folder / "text.txt"
    corpus.write_text("\n".join(f"{i} {TEXT}" for i in range(400)))
    settings = {"corpus": str(corpus), "tokenizer.type": "byte", "context": 32, "train.batch_size": 4}
    return load_recipe("decoder-small", {**settings, "model.hidden_size": 64, "model.num_heads": 1, **more})


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Sampled:
    folder = tmp_path_factory.mktemp("ladder")
    return sampled(recipe(folder), folder / "cache", lambda _: None)


def quiet(_: str) -> None:
    pass


def test_sizes_are_advised_shapes_of_the_recipes_model(given: Sampled) -> None:
    for size in SIZES:
        config = shaped(given, size)
        assert parameters(config) == pytest.approx(size, rel=0.03)
        assert config.size_per_head == 64 and config.family == "llama" and config.positions == "rotary"
        assert body(given, config) == parameters(config) - config.vocab_size * config.hidden_size  # a tied table
    with pytest.raises(UserError, match=r"cannot have 100k parameters with a vocabulary of 30\d+: give larger sizes="):
        shaped(Sampled(recipe_with_rows(given, 30000), given.text, given.updates), 1e5)


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
        run(given.recipe, sizes, budgets, tmp_path, Asked(holdout=holdout))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given_settings", "says"),
    [
        (["sizes=1M,2M,4M", "out=x"], r"no budgets: give sizes="),
        (["sizes=1M,2M,4M", "budgets=1e13,many", "out=x"], r"budgets=many is no number of FLOPs"),
        (["sizes=1M,2M,4M", "budgets=1e13", "out=x", "budget.steps=3"], r"give budgets=1e13,1e14 \(FLOPs\) instead"),
        (["sizes=1M,2M,4M", "budgets=1e13", "out=x", "jobs=two"], r"jobs=two is no whole number"),
    ],
)
def test_the_verb_says_what_is_missing(given_settings: list[str], says: str) -> None:
    ended = CliRunner().invoke(app, ["scale", "run", "decoder-small", "corpus=none.txt", *given_settings])
    assert isinstance(ended.exception, UserError)
    with pytest.raises(UserError, match=says):
        raise ended.exception


def test_one_real_run_is_trained_once(given: Sampled, tmp_path: Path) -> None:
    cell = cells(given, SIZES[:3], [8e9, 1e12], tmp_path / "out")[3]
    said: list[str] = []
    train([cell], 1, given.text.directory.parent, said.append)
    (row,) = rows([cell], len(given.text.train.tokens))
    assert row["n"] == parameters(cell.recipe.model) and row["flops"] == pytest.approx(8e9, rel=0.1)
    assert row["flops"] / row["d"] == pytest.approx(given.cost(cell.recipe.model), rel=0.05)
    assert 0.1 < row["loss"] < 5.5 and said[-1].startswith(f"1 of 1: {cell.name}, loss {row['loss']:.4f}")
    train([cell], 1, None, said.append)
    assert said[-1] == "1 of 1 runs are done"
    other = Cell(cell.name, cell.recipe.model_copy(update={"seed": 5}), cell.body, cell.place)
    with pytest.raises(UserError, match=r"was started with seed=0, not 5"):
        train([other], 1, None, quiet)


def script(code: str) -> Callable[[Cell, int, Any], subprocess.Popen[bytes]]:
    """Children that do what a run does to its directory, in place of a run."""

    def start(cell: Cell, jobs: int, cache: Any) -> subprocess.Popen[bytes]:
        cell.place.mkdir(parents=True, exist_ok=True)
        config = cell.recipe.model
        n, flops = parameters(config), float(cell.recipe.budget.flops or 0)
        d = flops / (7 * n)
        loss = float(REFIT.loss(2e3 * n, 2e3 * d))
        found = {"parameters": n, "tokens": d, "flops": flops, "held_out_loss": loss, "target_tokens": d, "step": 9}
        with ladders._log(cell).open("ab") as log:
            arguments = [
                sys.executable,
                "-c",
                code,
                str(cell.place / "result.json"),
                json.dumps(found | {"seconds": 1.0}),
            ]
            return subprocess.Popen(arguments, stderr=log)

    return start


DONE = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"


def test_a_ladder_is_run_fitted_and_written_down(
    given: Sampled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ladders, "_start", script(DONE))
    monkeypatch.setattr(ladders, "POLL", 0.01)
    out, cache = tmp_path / "out", given.text.directory.parent
    budgets = [2e11, 1e12, 5e12]
    asked = Asked(holdout="largest", resamples=100)
    found = run(given.recipe, SIZES, budgets, out, asked, command="x", jobs=2, cache=cache)
    assert len(found.points) == 8 and len(found.held) == 4
    assert all(abs(h.error) < 0.01 for h in found.held)
    record = Results.read(out / "results.json")
    assert len(record.entries) == 12 and record.entries[0].runs[0].points[0].values["held_out_loss"] is not None
    assert len((out / "points.jsonl").read_text().splitlines()) == 12 and (out / "picture.svg").exists()
    assert any("epochs of the same text" in note for note in record.notes)
    with pytest.raises(UserError, match="already holds a ladder"):
        run(given.recipe, SIZES, budgets, out, asked, cache=cache)
    said: list[str] = []
    run(given.recipe, SIZES, [*budgets, 2e13], out, asked, resume="auto", jobs=2, cache=cache, say=said.append)
    assert "12 of 16 runs are done" in said and said[-1].startswith("16 of 16")


def test_a_failing_run_stops_the_ladder_with_its_last_words(
    given: Sampled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ladders, "_start", script("import sys; sys.exit('error: the loss is nan at step 7')"))
    with pytest.raises(UserError, match=r"the run 120k-1e12 ended with code 1 \(.*120k-1e12\.log\): the loss is nan"):
        train(cells(given, SIZES, BUDGETS, tmp_path), 1, None, quiet)
    with pytest.raises(UserError, match="leave init= out"):
        sampled(given.recipe.model_copy(update={"init": "x"}), None, quiet)


def test_an_interrupt_ends_the_runs_that_are_on_their_way(
    given: Sampled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(cell: Cell, jobs: int, cache: Any) -> subprocess.Popen[bytes]:
        code = DONE if not started else "import time; time.sleep(120)"
        started.append(script(code)(cell, jobs, cache))
        return started[-1]

    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ladders, "_start", start)
    with pytest.raises(KeyboardInterrupt):
        train(cells(given, SIZES, BUDGETS, tmp_path), 2, None, interrupted)
    assert len(started) == 2 and started[0].returncode == 0 and started[1].returncode == -signal.SIGTERM
