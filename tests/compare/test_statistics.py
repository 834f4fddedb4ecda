"""Statistics against scipy, against definitions by brute force, and against studies whose truth is known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from unmask.compare.results import Entry, Measure, Point, Results, Run
from unmask.compare.statistics import (
    bootstrap,
    compared,
    critical,
    crossed,
    ends,
    final,
    flipped,
    holm,
    paired,
    two_sided,
)

from .example import example

RNG = np.random.default_rng


def study(values: dict[str, list[float | None]], items: dict[str, list[list[float]]] | None = None) -> Results:
    """One measure; entries by name with a value for each seed."""
    entries = []
    for name, line in values.items():
        runs = []
        for seed, value in enumerate(line):
            details = {"m": {"items": items[name][seed]}} if items else {}
            ran = {"step": 1, "tokens": 1, "target_tokens": 1, "flops": 1, "seconds": 1}
            points = [Point(**ran, values={"m": 0.5}), Point(**ran, values={"m": value}, details=details)]
            runs.append(Run(seed=seed, points=points))
        entries.append(Entry(name=name, settings={}, parameters=1, flops_per_token=1, target_density=1, runs=runs))
    measure = Measure(name="m", label="M", protocol="p", better="higher")
    return Results(title="t", command="c", measures=[measure], entries=entries)


@pytest.mark.parametrize("df", [1, 2, 3, 4, 5, 9, 10, 31, 100])
def test_t_is_scipys(df: int) -> None:
    for t in (0.0, 0.1, 1.0, 2.5, 7.0, 40.0):
        assert two_sided(t, df) == pytest.approx(2 * stats.t.sf(t, df), abs=1e-13)
    assert critical(df) == pytest.approx(stats.t.ppf(0.975, df), rel=1e-10)


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_paired_is_scipys_paired_t_test(n: int) -> None:
    a, b = RNG(n).normal(size=(2, n))
    found, theirs = paired(list(a - b)), stats.ttest_rel(a, b)
    interval = theirs.confidence_interval()
    assert found.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert found.interval == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert found.mean == pytest.approx((a - b).mean())


@pytest.mark.parametrize("n", [1, 2, 5, 7])
def test_signs_are_all_tried(n: int) -> None:
    d = RNG(n).normal(0.3, 1, size=n)
    sums = [abs(sum(s * v for s, v in zip(signs, d, strict=True))) for signs in itertools.product((-1, 1), repeat=n)]
    assert flipped(d) == pytest.approx(np.mean([s >= abs(d.sum()) - 1e-12 for s in sums]))
    if n > 1:
        settings = {"permutation_type": "samples", "n_resamples": np.inf, "alternative": "two-sided"}
        theirs = stats.permutation_test((d, np.zeros(n)), lambda x, y: np.mean(x - y), **settings)
        assert flipped(d) == pytest.approx(theirs.pvalue)


def test_five_seeds_that_agree_cannot_say_less_than_two_of_thirty_two() -> None:
    assert min(flipped(RNG(k).uniform(0.1, 9, 5)) for k in range(20)) == 2 / 32
    assert flipped(np.array([1.0, 2.0, -3.0, 0.0])) == 1.0


def test_many_seeds_are_flipped_at_random() -> None:
    d = RNG(0).normal(0.4, 1, size=20)
    signs = RNG(1).choice([-1, 1], size=(100_000, 20))
    assert flipped(d) == pytest.approx((np.abs(signs @ d) >= abs(d.sum())).mean(), abs=0.01)
    assert flipped(np.full(30, 1.0)) > 0  # never 0 where not all were tried


def test_holm_rejects_what_the_step_down_rule_rejects() -> None:
    for k in range(50):
        ps = list(RNG(k).uniform(0, 0.2, size=k % 7 + 1))
        for alpha in (0.01, 0.05, 0.3):
            rejected: set[int] = set()
            for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
                if ps[i] > alpha / (len(ps) - rank):
                    break
                rejected.add(i)
            assert {i for i, p in enumerate(holm(ps)) if p is not None and p <= alpha} == rejected
    assert holm([None, 0.5]) == [None, 0.5] and holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_few_values_are_resampled_in_every_way(n: int) -> None:
    values = RNG(n).normal(size=n)
    means = [float(np.mean(drawn)) for drawn in itertools.product(values, repeat=n)]
    tail = stats.norm.cdf(-math.sqrt(n / (n - 1)) * stats.t.ppf(0.975, n - 1))
    assert bootstrap(values) == pytest.approx(np.quantile(means, [tail, 1 - tail]))
    assert min(values) <= bootstrap(values)[0] <= bootstrap(values)[1] <= max(values)


def test_many_values_have_nearly_the_t_interval() -> None:
    values = RNG(3).normal(size=100)
    theirs = stats.ttest_1samp(values, 0).confidence_interval()
    assert bootstrap(values) == pytest.approx((theirs.low, theirs.high), abs=0.02)
    assert bootstrap(values) == bootstrap(values)


def test_the_interval_of_five_seeds_holds_the_truth_as_often_as_is_said() -> None:
    hits, plain = 0, 0
    every = np.indices((5,) * 5).reshape(5, -1).T
    for values in RNG(0).normal(size=(1500, 5)):
        low, high = bootstrap(values)
        hits += low <= 0 <= high
        low, high = np.quantile(values[every].mean(1), [0.025, 0.975])
        plain += low <= 0 <= high
    assert hits / 1500 == pytest.approx(0.92, abs=0.02) and plain / 1500 == pytest.approx(0.83, abs=0.025)


def test_items_are_resampled_with_the_seeds() -> None:
    """Against another generator; and more than seeds alone would say where items vary."""
    rng = RNG(5)
    right = (rng.normal(size=(5, 1)) * 0.3 + rng.normal(size=(1, 60)) + rng.normal(size=(5, 60)) > 0).astype(float)
    means = [right[rng.integers(0, 5, 5)][:, rng.integers(0, 60, 60)].mean() for _ in range(20_000)]
    tail = stats.norm.cdf(-math.sqrt(5 / 4) * stats.t.ppf(0.975, 4))
    low, high = crossed(right)
    assert (low, high) == pytest.approx(np.quantile(means, [tail, 1 - tail]), abs=0.03)
    alone = bootstrap(right.mean(1))
    assert high - low > alone[1] - alone[0]
    one = crossed(right[:1])
    p = right[0].mean()
    assert one[1] - one[0] == pytest.approx(2 * stats.t.ppf(0.975, 59) * math.sqrt(p * (1 - p) / 60), rel=0.1)


def test_final_values_say_what_was_resampled() -> None:
    items = {"a": [[1.0, 0.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0]]}
    both = final(study({"a": [0.75, 0.75]}, items).entries[0], "m")
    assert both and both.over == "2 seeds and 4 items" and both.interval and both.interval[0] < 0.75 < both.interval[1]
    other = final(study({"a": [0.75, 0.7]}, items).entries[0], "m")  # 0.7 is not the mean of its items
    assert other and other.over == "2 seeds" and other.interval == bootstrap(np.array([0.75, 0.7]))
    single = final(study({"a": [0.75]}, {"a": items["a"][:1]}).entries[0], "m")
    assert single and single.over == "4 items" and single.interval
    bare = final(study({"a": [0.75]}).entries[0], "m")
    assert bare and bare.over == "" and bare.interval is None and bare.values == {0: 0.75}
    assert final(study({"a": [None, None]}).entries[0], "m") is None


def test_ends_are_last_points_and_pairs_are_common_seeds() -> None:
    results = study({"a": [0.9, None, 0.7, 0.8], "b": [0.5, 0.1, 0.4, 0.2]})
    other = study({"a": [0.9, None, 0.7, 0.8], "b": [0.5, 0.1, None, 0.2]})  # as many values, of other seeds
    assert compared(other)[0].difference == pytest.approx(0.5)
    assert ends(results.entries[0], "m") == {0: 0.9, 2: 0.7, 3: 0.8}
    (found,) = compared(results)
    theirs = stats.ttest_rel([0.9, 0.7, 0.8], [0.5, 0.4, 0.2])
    assert (found.a, found.b) == ("a", "b") and found.difference == pytest.approx(1.3 / 3)
    assert found.p == pytest.approx(theirs.pvalue) and found.real


def test_one_seed_tells_a_difference_and_no_more() -> None:
    (found,) = compared(study({"a": [0.9], "b": [0.1]}))
    assert found.difference == pytest.approx(0.8)
    assert found.interval is None and found.p is None and found.real is False
    assert compared(study({"a": [0.9], "b": [None]})) == []


def test_two_seeds_call_nothing_real_and_three_alike_do() -> None:
    assert not compared(study({"a": [1.0, 1.0], "b": [0.5, 0.5]}))[0].real
    (found,) = compared(study({"a": [1.0] * 3, "b": [0.5] * 3}))
    assert found.real and found.p == 0.0 and found.interval == (0.5, 0.5)
    (same,) = compared(study({"a": [1.0] * 3, "b": [1.0] * 3}))
    assert not same.real and same.p == 1.0


def test_a_difference_that_stands_alone_may_fall_among_many() -> None:
    """p = .03 is real of one comparison; of ten it is not."""
    d = np.array([1.0, 2.0, 3.0, 4.0, 5.0]) * 0.01
    noise = RNG(2).normal(0, 0.02, size=(4, 5))
    alone = compared(study({"a": list(0.5 + d), "b": [0.5] * 5}))
    assert alone[0].real and alone[0].p == pytest.approx(0.0132, abs=1e-3)
    values = {"a": list(0.5 + d), "b": [0.5] * 5} | {f"c{k}": list(0.51 + line) for k, line in enumerate(noise)}
    among = compared(study(values))
    assert len(among) == 15 and among[0].p == alone[0].p and not among[0].real


def test_a_study_without_differences_finds_one_in_at_most_five_of_a_hundred() -> None:
    found = 0
    for k in range(300):
        values = RNG(k).normal(0.7, 0.05, size=(4, 5))
        found += any(c.real for c in compared(study({f"e{i}": list(line) for i, line in enumerate(values)})))
    assert found / 300 <= 0.08


def test_the_example_is_found_as_it_was_made() -> None:
    real = {(c.measure, c.a, c.b): c.real for c in example().comparisons}
    assert not real["rating", "causal", "prefix"] and real["rating", "masked", "t5-span"]
    assert ("fill", "causal", "masked") not in real  # it cannot be asked


def test_seeds_that_are_alike_give_no_interval_and_no_false_label() -> None:
    """All right in every seed: nothing varied, which is no certainty, and items were not resampled."""
    alike = final(study({"a": [1.0, 1.0]}, {"a": [[1.0] * 4] * 2}).entries[0], "m")
    assert alike and alike.interval is None and alike.over == "" and alike.mean == 1.0
    bare = final(study({"a": [0.7, 0.7, 0.7]}).entries[0], "m")
    assert bare and bare.interval is None and bare.over == ""
    single = final(study({"a": [1.0]}, {"a": [[1.0] * 4]}).entries[0], "m")
    assert single and single.interval is None and single.over == ""


def test_a_coarse_measure_has_no_p_of_nothing() -> None:
    """3 of 4 against 2 of 4 in every seed: one item, three times by chance. 90 of 100 against 40 is another matter."""

    def lines(right: int, of: int) -> list[list[float]]:
        return [[1.0] * right + [0.0] * (of - right)] * 3

    (found,) = compared(study({"a": [0.75] * 3, "b": [0.5] * 3}, {"a": lines(3, 4), "b": lines(2, 4)}))
    assert not found.real and found.p == pytest.approx(2 * stats.t.sf(math.sqrt(18), 2))  # 1 step / (step / √6 / √3)
    assert found.interval and found.interval[0] < 0.25 < found.interval[1]
    (clear,) = compared(study({"a": [0.9] * 3, "b": [0.4] * 3}, {"a": lines(90, 100), "b": lines(40, 100)}))
    assert clear.real and 0 < clear.p < 1e-3
    (number,) = compared(study({"a": [0.9] * 3, "b": [0.3] * 3}, {"a": [[1.3, 0.5]] * 3, "b": [[0.3, 0.3]] * 3}))
    assert number.p == 0.0  # losses move in no steps


@pytest.mark.parametrize(("items", "seeds"), [(4, 3), (10, 3), (4, 5)])
def test_coarse_measures_find_no_more_than_they_should(items: int, seeds: int) -> None:
    a, b = RNG(items).binomial(items, 0.5, size=(2, 4000, seeds)) / items
    ps = np.array([paired(list(line), 1 / items).p for line in a - b], np.float64)
    for level in (0.05, 0.01, 0.001):
        assert (ps < level).mean() <= level + 3 * math.sqrt(level / 4000)
    if seeds == 3 and items == 4:
        plain = np.array([paired(list(line)).p for line in a - b], np.float64)
        assert (plain < 0.001).mean() > 0.015  # without it
