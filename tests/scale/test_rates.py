"""Learning rates: the rule is found again from trials that obey it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from unmask.errors import UserError
from unmask.scale.rates import Rates, Trial, Trials, keep, kept, rule

FACTORS = [0.25, 0.5, 1.0, 2.0]


def trial(size: float, flops: float, best: float) -> Trial:
    """Losses are a parabola in the log of the rate."""
    return Trial(size, flops, FACTORS, [3 + 0.1 * math.log(f / best) ** 2 for f in FACTORS])


def test_levels_and_slope_are_found_again() -> None:
    def best(size: float, flops: float) -> float:
        return (size / 1e6) ** -0.2 * (flops / 1e12) ** -0.3

    found = rule([trial(n, c, best(n, c)) for n in (1e6, 4e6) for c in (5e11, 1e12, 4e12)])
    assert found.slope == pytest.approx(-0.3)
    for n, c in ((1e6, 1e12), (4e6, 1e14)):
        assert found.factor(n, c) == pytest.approx(best(n, c), rel=5e-3)


def test_trials_of_one_budget_give_one_rate_a_size() -> None:
    found = rule([trial(1e6, 1e12, 0.6), trial(2e6, 1e12, 0.9)])
    assert found.slope == 0 and found.factor(1e6, 1e15) == 0.6 and found.factor(2e6, 1e11) == 0.9


def test_what_no_ladder_shows_is_not_believed() -> None:
    """Two noisy trials: a rate that rises with the budget, or falls faster than its root."""
    assert rule([trial(1e6, 1e12, 0.5), trial(1e6, 2e12, 1.0)]).slope == 0
    assert rule([trial(1e6, 1e12, 1.0), trial(1e6, 1.2e12, 0.5)]).slope == -0.5


def test_edges_and_divergence() -> None:
    assert trial(1e6, 1e12, 4.0).edge and not trial(1e6, 1e12, 1.0).edge
    high = Trial(1e6, 1e12, FACTORS, [3.0, 2.9, 3.0, None])
    assert high.best == pytest.approx(0.5) and not high.edge
    with pytest.raises(UserError, match=r"every learning rate tried for 1e\+06 parameters diverged"):
        _ = Trial(1e6, 1e12, FACTORS, [None] * 4).best


def test_what_a_ladder_was_begun_with_is_kept(tmp_path: Path) -> None:
    file, trials, rates = tmp_path / "rates.json", Trials(4, (1e11, 1e12)), Rates({1e5: -0.3, 2.5e5: 0.1}, -0.25)
    assert kept(trials, file) is None
    keep(rates, trials, file)
    assert kept(trials, file) == rates
    with pytest.raises(UserError, match=r"begun with tune=lr:4:1e\+11,1e\+12"):
        kept(None, file)
    file.write_text("{}")
    with pytest.raises(UserError, match="cannot be read"):
        kept(trials, file)
