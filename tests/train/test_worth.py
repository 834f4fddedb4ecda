"""compile=auto: what is timed, what follows from it, and that the answer is asked for once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import toy

from unmask.train import compiled, worth
from unmask.train.worth import TIMED, WARM, decide


class Clock:
    """Passes that take `plain` seconds, from `compile` on `fast` ones, and `cost` more the first time."""

    def __init__(self, plain: float, fast: float, cost: float) -> None:
        self.now, self.each, self.fast, self.cost, self.made = 0.0, plain, fast, cost, 0

    def __call__(self) -> float:
        return self.now

    def passes(self, step: int) -> None:
        self.made += 1
        self.now += self.each

    def compile(self) -> None:
        self.each, self.now = self.fast, self.now  # the first passes pay
        first = self.passes

        def paying(step: int) -> None:
            self.now += self.cost
            self.passes = first  # type: ignore[method-assign]
            first(step)

        self.passes = paying  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("updates", "minutes", "fast", "cost", "answer", "said"),
    [
        (10_000, None, 0.8, 100.0, True, "takes 1 s, and 0.8 s compiled, which takes 100 s"),
        (10_000, None, 0.8, 2100.0, False, "0.8 s compiled, which takes 2100 s"),
        (10_000, None, 1.1, 1.0, False, "1.1 s compiled"),
        (1000, None, 0.5, 1.0, False, "about 17 minutes, too few"),
        (None, 60.0, 0.5, 100.0, True, "0.5 s compiled"),
        (None, 10.0, 0.5, 1.0, False, "about 10 minutes"),
    ],
)
def test_what_compiling_saves_is_weighed_against_its_seconds(
    updates: int | None, minutes: float | None, fast: float, cost: float, answer: bool, said: str
) -> None:
    clock = Clock(1.0, fast, cost)
    found, reason = decide(lambda step: clock.passes(step), clock.compile, updates, minutes, clock)
    assert found is answer and said in reason
    assert clock.made == (WARM + TIMED) * (1 if "too few" in reason else 2)


def test_a_compiler_that_fails_is_told() -> None:
    def broken() -> None:
        raise RuntimeError("no compiler\nwas found")

    clock = Clock(1.0, 1.0, 0.0)
    assert decide(clock.passes, broken, 10**6, None, clock) == (
        False,
        "auto: torch.compile does not work here (no compiler was found)",
    )


def test_the_answer_is_written_down_and_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With auto a run is that of its answer bit for bit: copies are tried, and no number of the run moves."""
    monkeypatch.setattr(compiled, "BACKEND", "eager")
    monkeypatch.setattr(worth, "LEAST", 0.0)
    tried = []

    def answered(*given: object) -> worth.Answer:
        tried.append(decide(*given))  # type: ignore[arg-type]
        return True, "auto: because"

    make = lambda name, asked: toy.trainer(tmp_path / name, steps=8, every=4, compile=asked)
    whole = make("whole", True)
    whole.run()
    torch._dynamo.reset()
    monkeypatch.setattr(worth, "decide", answered)
    own = make("auto", "auto")
    own.run()
    assert len(tried) == 1 and "compiled, which takes" in tried[0][1]
    plan = json.loads((tmp_path / "auto" / "plan.json").read_text())
    assert (plan["compile"], plan["compile_reason"]) == (True, "auto: because")
    assert own.counters.compilations > 0
    for name, value in toy.weights(own).items():
        assert torch.equal(value, toy.weights(whole)[name])
    again = make("auto", "auto")
    again.run(resume=True)
    assert len(tried) == 1 and again.compiles == (True, "auto: because")
    torch._dynamo.reset()


def test_a_short_run_is_not_compiled(tmp_path: Path) -> None:
    own, plain = (toy.trainer(tmp_path / str(asked), steps=6, compile=asked) for asked in ("auto", False))
    own.run()
    plain.run()
    assert own.counters.compilations == 0 and "too few to pay" in own.compiles[1]
    for name, value in toy.weights(own).items():
        assert torch.equal(value, toy.weights(plain)[name])
