"""Outcomes of items: they make the value, are short, and two entries are compared by them as definitions say."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from unmask.compare.halves import halved
from unmask.compare.items import MOST, packed, unpacked
from unmask.compare.results import Entry, Measure, OverItems, Point, Results, Run
from unmask.compare.statistics import compared, crossed, final, flipped, items_note
from unmask.data.prepare import prepare
from unmask.evaluation.items import outcomes
from unmask.recipe import load_recipe

RNG = np.random.default_rng


def entry(name: str, lines: list[list[float | None]], groups: list[int], weights: list[float] | None = None) -> Entry:
    """A run for each line of outcomes, whose values are per cent."""
    runs = []
    for seed, line in enumerate(lines):
        held = packed(outcomes("pairs", line, groups, weights)["items"])
        value = by_hand(line, groups, weights)
        ran = {"step": 1, "tokens": 1, "target_tokens": 1, "flops": 1, "seconds": 1}
        runs.append(Run(seed=seed, points=[Point(**ran, values={"m": value}, details={"m": {"items": held}})]))
    return Entry(name=name, settings={}, parameters=1, flops_per_token=1, target_density=1, runs=runs)


def by_hand(line: list[float | None], groups: list[int], weights: list[float] | None = None) -> float:
    weights = weights or [1.0] * len(line)
    means, begin = [], 0
    for n in groups:
        own = [
            (v, w) for v, w in zip(line[begin : begin + n], weights[begin : begin + n], strict=True) if v is not None
        ]
        means += [sum(v for v, _ in own) / sum(w for _, w in own)] if own else []
        begin += n
    return 100 * sum(means) / len(means)


def study(*entries: Entry) -> Results:
    measure = Measure(name="m", label="M", protocol="p", better="higher")
    return Results(title="t", command="c", measures=[measure], entries=list(entries))


def over(a: Entry, b: Entry) -> OverItems:
    (found,) = compared(study(a, b))
    assert found.over_items is not None and found.real is False
    return found.over_items


def test_outcomes_are_a_sign_each_and_make_the_value() -> None:
    line = [1.0, 0.0, 0.5, None, 1.0, 1.0, None]
    held = packed(outcomes("gaps", line, [4, 3])["items"])
    assert held == {"of": "gaps", "outcomes": "10h-11-", "scale": 100.0, "groups": [4, 3]}
    items = unpacked(json.loads(json.dumps(held)), by_hand(line, [4, 3]))
    assert items is not None and items.value() == pytest.approx(75.0) and items.of == "gaps"
    assert unpacked(held, 74.0) is None  # not what the value is made of
    bits = packed(outcomes("documents", [10.25, 3.0, 7.125], (), [4, 2, 3], 1.5)["items"])
    assert bits == {"of": "documents", "outcomes": "10.25 3 7.125", "scale": 1.5, "weights": "4 2 3"}
    assert unpacked(bits, 1.5 * 20.375 / 9) is not None
    thirds = packed(outcomes("gaps", [1 / 3, None, 1.0])["items"])
    assert thirds is not None and thirds["outcomes"] == "0.333333 - 1" and unpacked(thirds, 100 * 2 / 3) is not None
    assert packed(outcomes("pairs", [1.0] * (MOST + 1))["items"]) is None
    for broken in (None, 3, "01", {"of": "x"}, {**bits, "weights": "4 2"}, {**bits, "outcomes": "01x"}, [0.5]):
        assert unpacked(broken, 0.5) is None


def test_one_seed_over_items_is_the_exact_sign_test_of_those_that_differ() -> None:
    """Of right and wrong in one group the flips are McNemar's exact test."""
    a = [1.0] * 9 + [0.0] * 2 + [1.0] * 20 + [0.0] * 5
    b = [0.0] * 9 + [1.0] * 2 + [1.0] * 20 + [0.0] * 5
    found = over(entry("a", [a], [36]), entry("b", [b], [36]))
    tail = sum(math.comb(11, k) for k in range(3)) / 2**11
    assert found.p == pytest.approx(2 * tail) and (found.items, found.seeds, found.of) == (36, 1, "pairs")
    assert found.difference == pytest.approx(100 * 7 / 36)
    assert found.interval[0] < found.difference < found.interval[1]


def test_groups_and_weights_count_as_in_the_value() -> None:
    """Against all signs by brute force."""
    rng = RNG(1)
    groups, weights = [3, 6], list(rng.integers(1, 9, 9).astype(float))
    a, b = (list(rng.integers(0, 2, 9).astype(float)) for _ in range(2))
    found = over(entry("a", [a], groups, weights), entry("b", [b], groups, weights))
    difference = by_hand(a, groups, weights) - by_hand(b, groups, weights)
    assert found.difference == pytest.approx(difference)
    far = 0
    for swap in itertools.product((False, True), repeat=9):
        x, y = ([q if s else p for p, q, s in zip(*two, swap, strict=True)] for two in ((a, b), (b, a)))
        far += abs(by_hand(x, groups, weights) - by_hand(y, groups, weights)) >= abs(difference) - 1e-9
    assert found.p == pytest.approx(far / 2**9)


def test_the_interval_draws_items_within_groups() -> None:
    rng = RNG(2)
    groups = [40, 10]
    lines = rng.integers(0, 2, (2, 50)).astype(float)
    d = 100 * (lines[0] - lines[1])
    drawn = [(d[rng.integers(0, 40, 40)].mean() + d[40 + rng.integers(0, 10, 10)].mean()) / 2 for _ in range(20_000)]
    found = over(entry("a", [list(lines[0])], groups), entry("b", [list(lines[1])], groups))
    assert found.interval == pytest.approx(np.quantile(drawn, [0.023, 0.977]), abs=2.5)
    alone = crossed(lines[:1], 0, None, np.repeat([0, 1], groups))
    assert alone == crossed(lines[:1], 0, np.ones(50), np.repeat([3, 7], groups))


def test_a_difference_that_is_none_has_a_large_p_in_nineteen_of_twenty() -> None:
    small = 0
    for k in range(200):
        rng = RNG(k)
        right = (rng.normal(size=60) + rng.normal(size=(2, 60)) > 0).astype(float)
        small += over(entry("a", [list(right[0])], [60]), entry("b", [list(right[1])], [60])).p <= 0.05  # type: ignore[operator]
    assert small / 200 <= 0.08


def test_seeds_vary_as_well_and_then_there_is_no_p() -> None:
    rng = RNG(3)
    a, b = (rng.integers(0, 2, (4, 30)).astype(float) for _ in range(2))
    (found,) = compared(study(entry("a", [list(x) for x in a], [30]), entry("b", [list(x) for x in b], [30])))
    assert found.over_items is not None and found.over_items.p is None and found.over_items.seeds == 4
    assert found.over_items.difference == pytest.approx(found.difference)
    assert "Over items and seeds" in items_note([found]) and "one seed" not in items_note([found])
    one = final(entry("a", [list(a[0])], [30]), "m")
    assert one is not None and one.over == "30 pairs" and one.interval is not None


def test_items_that_are_all_right_show_no_spread() -> None:
    one = final(entry("a", [[1.0] * 20], [20]), "m")
    assert one is not None and one.interval is None and one.mean == 100.0


def test_other_items_are_not_compared_and_unscored_ones_are_left_out() -> None:
    a, b = [1.0, 0.0, 1.0, None, 1.0], [0.0, 0.0, 1.0, 1.0, None]
    found = over(entry("a", [a], [5]), entry("b", [b], [5]))
    assert found.items == 3 and found.difference == pytest.approx(100 / 3)
    others = (entry("b", [b], [2, 3]), entry("b", [b], [5], [1, 1, 2, 1, 1]), entry("b", [[1.0, 0.0]], [2]))
    for other in others:
        (told,) = compared(study(entry("a", [a], [5]), other))
        assert told.over_items is None and items_note([told]) == ""


def test_many_signs_are_drawn_in_little_memory() -> None:
    d = RNG(4).normal(0.02, 1, 5000)
    z = abs(d.sum()) / math.sqrt((d**2).sum())
    assert flipped(d) == pytest.approx(math.erfc(z / math.sqrt(2)), abs=0.02)
    assert flipped(np.zeros(20)) == 1.0


def test_halves_part_the_held_out_documents_with_all_that_is_known_of_them(tmp_path: Path) -> None:
    corpus = tmp_path / "text.txt"
    corpus.write_text("\n".join(f"line {k}. of a text {'x' * (k * 7 % 19)}. about {k * k}." for k in range(400)))
    asked = {"corpus": str(corpus), "corpus.document": "line", "corpus.valid_fraction": 0.3, "corpus.sentences": True}
    recipe = load_recipe("encoder-small", {**asked, "tokenizer.type": "char", "budget.steps": 1})
    text = prepare(recipe.corpus, None, recipe.tokenizer, tmp_path / "cache", lambda _: None)
    whole, parts = text.valid, [halved(text, half).valid for half in ("tuning", "measuring")]
    assert halved(text, "all") is text and abs(len(parts[0]) - len(parts[1])) <= 1
    said = [[(tuple(p.document(i)), int(p.bytes[i])) for i in range(len(p))] for p in (whole, *parts)]
    assert sorted(said[1] + said[2]) == sorted(said[0]) and not set(said[1]) & set(said[2])
    assert np.array_equal(parts[0].counts + parts[1].counts, whole.counts)
    for part in parts:
        assert part.sentence is not None and whole.sentence is not None
        for i in range(len(part)):
            (j,) = [j for j in range(len(whole)) if np.array_equal(whole.document(j), part.document(i))]
            here, there = (np.arange(*p.documents[k : k + 2]) for p, k in ((part, i), (whole, j)))
            assert np.array_equal(part.sentence[here], whole.sentence[there])
        assert sum(source.documents for source in part.sources) == len(part)
