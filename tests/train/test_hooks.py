"""What a user sees while a run goes on, and budgets that are turned into steps."""

from __future__ import annotations

import io

import pytest
import toy

from unmask.config import BudgetConfig, TrainConfig
from unmask.errors import UserError
from unmask.train.hooks import Progress
from unmask.train.plan import Calibration, read_plan, steps_within


def line(step: int, seconds: float, **more) -> dict:
    return {"step": step, "seconds": seconds, "tokens": 100 * step, "loss": 2.0, "terms": {"a/b": 2.0}, **more}


def test_progress_writes_a_line_every_interval_and_at_the_end() -> None:
    stream = io.StringIO()
    progress = Progress(stream, interval=1000.0)
    for step in range(1, 101):
        progress.show(line(step, step * 36.0), 100)
    progress.close()
    assert stream.getvalue().splitlines() == [
        "step 1/100 · loss 2.000 of all targets · 3 tokens/s · 59:24 left",
        "step 100/100 · loss 2.000 of all targets · 3 tokens/s · 0:00 left",
    ]


def test_progress_names_terms_and_says_what_it_does_not_know() -> None:
    progress = Progress(io.StringIO())
    terms = {"rtd/lm": 2.5, "rtd/detect": None}
    assert progress.text(line(2, 1.0, loss=None, terms=terms), None) == (
        "step 2/? · loss no targets (rtd/lm 2.500, rtd/detect no targets) · 200 tokens/s · timing the first steps"
    )
    assert progress.text(line(1, 36.0), 1001).endswith("10:00:00 left")


def test_progress_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    progress = Progress(stream)
    progress.show(line(1, 1.0), 2)
    progress.say("a [message] that stays")
    progress.show(line(2, 2.0), 2)
    progress.close()
    assert "a [message] that stays" in stream.getvalue() and "step 1/2" in stream.getvalue()


@pytest.mark.parametrize("unit,amount", [("tokens", 4800), ("target_tokens", 2900), ("flops", 4800.0)])
def test_budget_in_other_units_becomes_steps(unit: str, amount: float) -> None:
    build = toy.batches(2)
    flops = lambda b: float(b.counts()["tokens"])
    steps = steps_within(BudgetConfig(**{unit: amount}), build, flops)
    spent = sum(b.counts()["tokens" if unit == "flops" else unit] for s in range(steps) for b in build(s, 0.0))
    assert spent == pytest.approx(amount, rel=0.02)
    assert steps_within(BudgetConfig(minutes=1), build, flops) is None


def test_budget_of_something_the_batches_lack() -> None:
    with pytest.raises(UserError, match="hold no target tokens"):
        steps_within(BudgetConfig(target_tokens=5), toy.batches(empty=lambda s: True), lambda b: 0.0)


def test_calibration_ends_with_the_warm_up_or_when_it_knows_enough() -> None:
    def steps_until_known(seconds: float, warmup: int, minutes: float = 5) -> int:
        c = Calibration(minutes, TrainConfig(warmup_steps=warmup))
        return next(n for n in range(1, 1000) if c.add(seconds))

    assert steps_until_known(0.5, 100) == 18  # 3 % of 5 minutes
    assert steps_until_known(0.5, 10) == 10
    assert steps_until_known(30.0, 100) == 5
    assert steps_until_known(40.0, 100, minutes=1) == 2  # the budget itself is spent
    c = Calibration(1, TrainConfig(warmup_steps=5))
    for seconds in (9.0, 3.0, 2.0, 2.0, 2.0):
        c.add(seconds)
    assert c.seconds_per_step == 2.0 and c.total_steps == 5 + 21


def test_damaged_plan_is_a_clear_error(tmp_path) -> None:
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(UserError, match=r"plan\.json is not a plan of a run"):
        read_plan(tmp_path / "plan.json")
    (tmp_path / "plan.json").write_text('{"format": 2}')
    with pytest.raises(UserError, match="another format"):
        read_plan(tmp_path / "plan.json")
