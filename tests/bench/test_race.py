"""The character race: what both sides are measured by, and what they are."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from unmask.config import ModelConfig
from unmask.model.spec import parameters
from unmask.recipe import Recipe, load_recipe

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "race.py"


@pytest.fixture(scope="module")
def race() -> ModuleType:
    spec = importlib.util.spec_from_file_location("race", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["race"] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def recipe(race: ModuleType) -> Recipe:
    return load_recipe("decoder-small", {**race.SETTINGS, "corpus": "train.txt", "valid": "valid.txt"})


@pytest.mark.parametrize("length", [2, 64, 65, 66, 3 * 64 + 1, 4 * 64 + 20, 5 * 64 + 20])
def test_nats_are_those_of_every_window_by_itself(race: ModuleType, length: int) -> None:
    torch.manual_seed(0)
    table = nn.Embedding(7, 7)

    def logits(x: Tensor) -> Tensor:
        return table(x).cumsum(1)  # depends on all that stands before in the row, and on nothing else

    ids = torch.randint(0, 7, (length,))
    losses = []
    for t in range(1, length):
        begin = (t - 1) // race.WINDOW * race.WINDOW
        with torch.no_grad():
            losses.append(-float(logits(ids[None, begin:t])[0, -1].log_softmax(-1)[ids[t]]))
    assert math.isclose(race.nats(logits, ids, rows=2), sum(losses) / len(losses), rel_tol=1e-5)


def test_text_is_split_by_position(race: ModuleType) -> None:
    text = "".join(chr(65 + i % 50) for i in range(1009))
    train, valid = race.split(text)
    assert train + valid == text and len(train) == 908


def test_sizes_are_alike(race: ModuleType) -> None:
    model = race.GPT(65)
    assert sum(p.numel() for p in model.parameters()) == 804_096  # 0.80 M
    config: ModelConfig = recipe(race).model
    size = parameters(config.model_copy(update={"vocab_size": 70}))  # 65 characters, five control tokens
    assert 0.79e6 < size <= 0.81e6


def test_the_whole_schedule_lies_inside_the_tokens_allowed(race: ModuleType) -> None:
    assert race.STEPS * race.BATCH * (race.WINDOW + 1) <= race.MOST_TOKENS
    assert race.SETTINGS["checkpoint.at"][-1] == race.STEPS


def test_the_peers_rate_is_the_documented_one(race: ModuleType) -> None:
    assert race.rate(0) == pytest.approx(1e-3 / 101) and race.rate(100) == pytest.approx(1e-3)
    assert race.rate(1050) == pytest.approx(5.5e-4) and race.rate(1999) == pytest.approx(1e-4, rel=1e-3)


def test_a_row_tells_the_first_evaluation_at_the_aim(race: ModuleType) -> None:
    points = [race.Point(20 * k, 1000 * k, 2.0 * k, loss) for k, loss in ((1, 2.5), (2, 1.88), (3, 1.8))]
    raced = race.Raced("unmask", 0, 800_000, 2, points)
    assert raced.reached == points[1]
    assert race.row(raced) == "| unmask | 0 | 40 | 2,000 | 4.0 | 1.8800 | 60 | 6.0 | 1.8000 |"
    never = race.Raced("unmask", 1, 800_000, 2, points[:1])
    assert race.summary([raced, never, never])["unmask"]["seconds"] is None
    assert race.summary([raced, raced, never])["unmask"]["seconds"] == 4.0


@pytest.mark.shared
def test_no_validation_text_is_trained_on(
    race: ModuleType, shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unmask.building import resolve, training_loader
    from unmask.run import begin

    monkeypatch.setenv("UNMASK_DATA", str(shared_data))
    train, valid = race.split(race.read_text())
    for name, part in (("train", train), ("valid", valid)):
        (tmp_path / f"{name}.txt").write_text(part, encoding="utf-8")
    paths = {name: str(tmp_path / f"{name}.txt") for name in ("train", "valid")}
    asked = load_recipe("decoder-small", {**race.SETTINGS, "corpus": paths["train"], "valid": paths["valid"]})
    own, text, _ = begin(asked, tmp_path / "cache", lambda told: None)
    own = resolve(own, text.tokenizer)
    assert parameters(own.model) <= 0.81e6
    assert text.tokenizer.decode(text.train.tokens.tolist()) == train
    assert text.tokenizer.decode(text.valid.tokens.tolist()) == valid
    loader = training_loader(own, text)
    read = Counter(int(b.counts()["tokens"]) for step in range(3) for b in loader(step))
    assert read == {race.BATCH * (race.WINDOW + 1): 3}
