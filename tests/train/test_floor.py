"""A run that sits at its unigram floor is told so once, by the stated rule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import toy

from unmask.evaluation.heldout import unigram_entropy
from unmask.tokens.special import Vocabulary
from unmask.train.floor import AT_FLOOR, Floor
from unmask.train.hooks import Evaluation, Progress


def warnings_of(tmp_path: Path, losses: list[float], floor: float | None = 2.0, warmup: int = 4) -> list[str]:
    """What a real run of the toy says whose evaluations, every second update, give these losses."""
    left, said = iter(losses), list[str]()
    progress = Progress()
    progress.say = said.append  # type: ignore[method-assign]
    trainer = toy.trainer(tmp_path / "run", steps=2 * len(losses), warmup_steps=warmup)
    figures = {} if floor is None else {"unigram_floor": floor}
    trainer.progress, trainer.evaluation = progress, Evaluation(2, lambda networks: {"loss": next(left), **figures})
    trainer.run()
    return [f"{i}: {s}" for i, s in enumerate(t for t in said if t.startswith(("step", "WARNING"))) if "WARN" in s]


def test_o30_sitting_on_the_floor_warns_once(tmp_path: Path) -> None:
    found = warnings_of(tmp_path, [2.03, 2.02, 2.01, 2.0, 2.0, 1.99])
    assert len(found) == 1 and found[0].startswith(
        "3: WARNING: the held-out loss 2.010 is not clearly below the unigram floor 2.000"
    )


@pytest.mark.parametrize(("losses", "floor"), [
    ([2.9, 2.5, 2.2, 2.1, 1.9, 1.8], 2.0),  # comes down through it
    ([2.0, 2.0, 1.9, 1.9, 1.9], 2.0),  # learnt by the end of the warm-up
    ([2.0, 1.9, 2.0, 1.9, 2.0, 1.9], 2.0),  # never twice in a row
    ([2.0, 2.0, 2.0, 2.0], None),  # says no tokens, so it has no floor
])  # fmt: skip
def test_other_runs_hear_nothing(losses: list[float], floor: float | None, tmp_path: Path) -> None:
    assert warnings_of(tmp_path, losses, floor) == []


def test_a_loss_that_stays_above_the_floor_is_told_too() -> None:
    watch = Floor(0)
    assert watch(1, {"loss": 7.0, "unigram_floor": 6.0}) is None
    assert "not clearly below" in str(watch(2, {"loss": 7.0 - AT_FLOOR / 2, "unigram_floor": 6.0}))
    assert Floor(0)(1, {"loss": float("nan"), "unigram_floor": 6.0}) is None


def test_the_entropy_is_that_of_the_texts_own_tokens() -> None:
    v = Vocabulary.of({t: i for i, t in enumerate(["[PAD]", "[SEP]", "a", "b", "c", "d", "e"])})
    counts = np.zeros(v.size, np.int64)
    counts[v.ordinary[:4]] = 10**9
    counts[v.need("sep")] = 10**6  # control tokens are none of it
    assert unigram_entropy(counts, v) == pytest.approx(np.log(4), abs=1e-6)
    counts[:] = 0
    assert unigram_entropy(counts, v) == 0.0
