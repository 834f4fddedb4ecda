"""Draws that samples share evenly by their numbers."""

from __future__ import annotations

import numpy as np
import pytest

from unmask.objectives.even import LEVELS, even


@pytest.mark.parametrize("level", range(LEVELS + 1))
def test_one_in_each_part_of_any_aligned_run(level: int) -> None:
    size = 2**level
    for begin in (0, 37 * size, 10**12 // size * size):
        part = (even(np.arange(begin, begin + size), "test") * size).astype(int)
        assert sorted(part.tolist()) == list(range(size))


@pytest.mark.parametrize("name", ["unilm", "ul2"])
def test_every_nth_sample_is_a_fair_draw_whatever_n(name: str) -> None:
    """χ² of ten tenths over 1,000 samples, 9 degrees of freedom: 256 of them below 40 with p = .998."""
    worst = 0.0
    for stride in range(1, 257):
        u = even(3 + stride * np.arange(1000), name)
        assert ((u >= 0) & (u < 1)).all()
        worst = max(worst, float(((np.bincount((u * 10).astype(int), minlength=10) - 100.0) ** 2).sum() / 100))
        # Neighbours among them know nothing of each other, but that next samples part: no more alike than by chance.
        assert np.corrcoef(u[:-1], u[1:])[0, 1] < 4 / np.sqrt(1000), stride
    assert worst < 40


def test_draws_of_two_names_know_nothing_of_each_other() -> None:
    number = np.arange(5000)
    assert abs(np.corrcoef(even(number, "unilm"), even(number, "ul2"))[0, 1]) < 4 / np.sqrt(5000)
    alone = even(number[4321:4322], "unilm")
    assert alone == even(number, "unilm")[4321]
