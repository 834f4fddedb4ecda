"""The law: its best N and D are where its loss is least, by 6 N D and by counted FLOPs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from unmask.scale.law import REFIT, Costs, Law, laws


@pytest.mark.parametrize("law", [REFIT, Law(0.5, 30.0, 900.0, 0.2, 0.5)])
@pytest.mark.parametrize("flops", [1e15, 1e21])
def test_no_other_size_has_less_loss_for_the_budget(law: Law, flops: float) -> None:
    n, d = law.best(flops)
    assert 6 * n * d == pytest.approx(flops)
    other = n * np.array([0.5, 0.9, 0.99, 1.01, 1.1, 2])
    assert (law.loss(other, flops / (6 * other)) > law.loss(n, d)).all()


def test_the_best_size_is_where_a_search_ends() -> None:
    """Every law of a few at once, against Brent's search along the budget."""
    for law in (REFIT, Law(0.5, 30.0, 900.0, 0.2, 0.5), Law(2.0, 5e3, 5e4, 0.9, 0.3)):
        for flops in (1e12, 1e17, 1e23):
            along = lambda x, law=law, flops=flops: float(law.loss(np.exp(x), flops / (6 * np.exp(x))))
            end = minimize_scalar(along, bounds=(0, np.log(flops)), method="bounded", options={"xatol": 1e-10})
            assert np.log(law.best(flops)[0]) == pytest.approx(end.x, abs=1e-4)


def test_at_six_flops_a_parameter_the_search_finds_the_formula() -> None:
    n, d = REFIT.best_at(1e21, Costs([1e8, 1e9, 1e10], [6e8, 6e9, 6e10]))
    assert n[0] == pytest.approx(REFIT.best(1e21)[0], rel=1e-3)
    assert d[0] == pytest.approx(REFIT.best(1e21)[1], rel=1e-3)


def test_costs_beyond_six_n_move_the_best_size() -> None:
    """A head that costs small models as much as their layers: the true minimum, by brute force."""
    sizes = np.geomspace(1e6, 1e10, 200)
    costs = Costs(sizes.tolist(), (6 * sizes + 3e8).tolist())
    n, d = REFIT.best_at(1e19, costs)
    assert costs(n) * d == pytest.approx(1e19)
    tried = np.geomspace(1e7, 1e10, 20001)
    least = tried[REFIT.loss(tried, 1e19 / (6 * tried + 3e8)).argmin()]
    assert n[0] == pytest.approx(least, rel=5e-3)


def test_many_laws_at_once_are_each_of_them() -> None:
    rows = np.array([[1.8, 480, 2000, 0.35, 0.36], [1.7, 400, 1500, 0.33, 0.35]])
    many = laws(rows)
    costs = Costs([1e7, 1e9], [8e7, 6.5e9])
    for k, row in enumerate(rows):
        one = Law(*row)
        assert many.loss(1e8, 1e10)[k, 0] == one.loss(1e8, 1e10)
        assert many.best(1e20)[0][k, 0] == pytest.approx(one.best(1e20)[0])
        assert many.best_at(1e20, costs)[0][k] == pytest.approx(one.best_at(1e20, costs)[0][0])
    assert many.row() == pytest.approx(rows)
