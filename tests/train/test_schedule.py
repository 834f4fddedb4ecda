"""The shapes of the rate, by numbers."""

from __future__ import annotations

import pytest
import toy

from unmask.config import TrainConfig
from unmask.train.hooks import Progress
from unmask.train.schedule import factor, idle, warming


def curve(total: int, **options: object) -> list[float]:
    config = TrainConfig(**options)  # type: ignore[arg-type]
    return [round(factor(s, total, config), 4) for s in range(total)]


def test_shapes() -> None:
    assert curve(5, schedule="constant", warmup_steps=2) == [0.5, 1, 1, 1, 1]
    assert curve(5, schedule="linear", warmup_steps=0) == [1, 0.75, 0.5, 0.25, 0]
    assert curve(6, schedule="linear", warmup_steps=2, final_lr=0.2) == [0.5, 1, 0.8, 0.6, 0.4, 0.2]
    assert curve(5, schedule="cosine", warmup_steps=0) == [1, 0.8536, 0.5, 0.1464, 0]
    assert curve(10, schedule="wsd", warmup_steps=2, decay_fraction=0.4, final_lr=0.1) == (
        [0.5, 1, 1, 1, 1, 1, 0.775, 0.55, 0.325, 0.1]
    )


@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd"])
@pytest.mark.parametrize("total", [2, 3, 7, 100, 1001])
@pytest.mark.parametrize("warmup", [0, 1, 100])
def test_t05_last_update_reaches_the_final_rate(schedule: str, total: int, warmup: int) -> None:
    rates = curve(total, schedule=schedule, warmup_steps=warmup, final_lr=0.1)
    assert rates[-1] == 0.1
    assert max(rates) == 1.0
    top = rates.index(1.0)
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)


def test_a_single_update_and_a_long_warmup() -> None:
    assert curve(1, warmup_steps=100) == [1.0]
    assert curve(4, warmup_steps=100, schedule="linear") == [0.5, 1, 0.5, 0]  # cut to half the run


def test_warming_is_the_schedule_of_a_long_run() -> None:
    config = TrainConfig(warmup_steps=10)
    assert [warming(s, config) for s in range(10)] == [factor(s, 1000, config) for s in range(10)]


@pytest.mark.parametrize("micro", [1, 2, 8])
def test_t05_rate_counts_updates_not_micro_batches(tmp_path, micro: int) -> None:
    toy.trainer(tmp_path, steps=6, micro=micro, warmup_steps=2).run()
    expected = [0.02 * x for x in curve(6, warmup_steps=2)]
    assert [line["lr"] for line in toy.metrics(tmp_path)] == pytest.approx(expected)


@pytest.mark.parametrize(("settings", "says"), [
    ({"learning_rate": 1e-12}, "0 in effect in all 5,000 updates (at most 1e-12"),
    ({"learning_rate": 2e-9, "schedule": "linear", "warmup_steps": 0}, "0 in effect in the last 2,4"),
    ({"learning_rate": 2e-9, "schedule": "wsd", "decay_fraction": 0.1}, "0 in effect in the last 24"),
    ({"learning_rate": 2e-9, "schedule": "constant"}, None),
    ({"learning_rate": 1e-12, "optimizer": "muon"}, None),  # Muon's matrices move
    ({"schedule": "linear"}, None),  # only the last update is at 0
    ({"schedule": "cosine"}, None),
])  # fmt: skip
def test_a_rate_of_0_is_told_of(settings: dict, says: str | None) -> None:
    found = idle(5000, TrainConfig(**settings))
    assert (found is None) == (says is None) and (says or "") in (found or "")
    assert idle(1, TrainConfig()) is None and idle(2, TrainConfig()) is None


def test_a_run_says_it_once_when_its_length_is_known(tmp_path) -> None:
    said: list[str] = []
    for resume in (False, True):
        trainer = toy.trainer(tmp_path / "run", steps=4, learning_rate=1e-12)
        trainer.progress = Progress()
        trainer.progress.say = said.append  # type: ignore[method-assign]
        trainer.run(resume=resume)
    assert sum("learning rate is 0 in effect" in text for text in said) == 1
