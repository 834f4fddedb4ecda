"""`unmask diff`: settings, text, tokenizer, environment and results of two runs, and no more than what differs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from unmask.cli import app
from unmask.difference import difference
from unmask.errors import UserError
from unmask.run import pretrain

TINY: dict[str, Any] = {
    "tokenizer__type": "byte",
    "model__hidden_size": 16,
    "model__num_layers": 1,
    "model__num_heads": 2,
    "context": 32,
    "train__batch_size": 4,
    "evaluation__pieces": 4,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs: a; b with another rate, length and corpus; c, as a but with characters as tokens."""
    place = tmp_path_factory.mktemp("diff")
    for name in ("one", "other"):
        (place / f"{name}.txt").write_text("\n\n".join(f"{name} sentence of {i} words." for i in range(80)))
    say = {"say": lambda _: None, "cache": place / "cache"}
    pretrain("decoder-small", out=place / "a", corpus=str(place / "one.txt"), budget__steps=2, **TINY, **say)
    more = {"budget__steps": 3, "train__learning_rate": 2e-3}
    pretrain("decoder-small", out=place / "b", corpus=str(place / "other.txt"), **more, **TINY, **say)
    chars = {**TINY, "tokenizer__type": "char"}
    pretrain("decoder-small", out=place / "c", corpus=str(place / "one.txt"), budget__steps=2, **chars, **say)
    return place


def keys(found: dict[str, Any], table: str, name: str) -> set[str]:
    return {row[name] for row in found[table]}


def test_a_run_and_itself(runs: Path) -> None:
    found = difference(runs / "a", runs / "a")
    assert found["same"] and found["text"] == found["tokenizer"] == "same"
    assert found["settings"] == found["environment"] == found["results"] == []


def test_two_runs(runs: Path) -> None:
    found = difference(runs / "a", runs / "b")
    assert not found["same"] and (found["text"], found["tokenizer"]) == ("different", "same")
    assert keys(found, "settings", "setting") == {"corpus.path", "budget.steps", "train.learning_rate"}
    rate = next(row for row in found["settings"] if row["setting"] == "train.learning_rate")
    assert rate["b"] == 2e-3 != rate["a"]
    assert {"total_steps", "step", "tokens", "held_out_loss", "seconds"} <= keys(found, "results", "measure")
    result = json.loads((runs / "b" / "result.json").read_text())
    loss = next(row for row in found["results"] if row["measure"] == "held_out_loss")
    assert loss["b"] == result["held_out_loss"] and found["environment"] == []


def test_another_tokenizer_and_another_machine(runs: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(runs / "c", copy)
    values = json.loads((copy / "environment.json").read_text())
    values["packages"]["torch"] = "1.0"
    (copy / "environment.json").write_text(json.dumps(values))
    found = difference(runs / "a", copy)
    assert (found["text"], found["tokenizer"]) == ("different", "different")
    assert "tokenizer.type" in keys(found, "settings", "setting")
    assert keys(found, "environment", "what") == {"packages.torch"}


def test_a_run_that_is_not_finished_has_its_last_line(runs: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(runs / "a", copy)
    (copy / "result.json").unlink()
    found = difference(runs / "b", copy)
    step = next(row for row in found["results"] if row["measure"] == "step")
    assert (step["a"], step["b"]) == (3, 2)


def test_two_recipes(runs: Path) -> None:
    found = difference("encoder-small", "decoder-small")
    kind = next(row for row in found["settings"] if row["setting"] == "objective.type")
    assert (kind["a"], kind["b"]) == ("masked", "causal") and found["text"] == "unknown"
    file = runs / "own.yaml"
    file.write_text((runs / "a" / "recipe.yaml").read_text().replace("seed: 0", "seed: 7"))
    assert difference(runs / "a", file)["settings"] == [{"setting": "seed", "a": 0, "b": 7}]


def test_what_is_no_run_is_one_sentence(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'gone' is neither a run's directory nor a recipe: give two directories"):
        difference(runs / "a", "gone")
    with pytest.raises(UserError, match=r"is no run: it has no recipe\.yaml"):
        difference(tmp_path, runs / "a")
    with pytest.raises(UserError, match="is a folder of runs, not a run: give one of its runs, such as"):
        difference(runs, runs / "a")


def test_the_command_prints_both_forms(runs: Path) -> None:
    words = ["diff", str(runs / "a"), str(runs / "b")]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0 and "3 settings differ" in told.stdout and "different text" in told.stdout
    assert "train.learning_rate" in told.stdout and "held_out_loss" in told.stdout
    plain = CliRunner().invoke(app, [*words, "--json"])
    assert plain.exit_code == 0 and json.loads(plain.stdout) == json.loads(json.dumps(difference(*words[1:])))
    assert "same settings" in CliRunner().invoke(app, ["diff", str(runs / "a"), str(runs / "a")]).stdout
