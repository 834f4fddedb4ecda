"""Cuts of one text or two: those of a slow loop, and the same if two texts change places."""

from __future__ import annotations

import numpy as np
import pytest

from unmask import keyed
from unmask.batch import Rows, places, starts
from unmask.objectives.base import Outline
from unmask.objectives.pairs import Cuts, Sentences, alike, drawn, mirrored

from .cases_sentence import dressed


def texts(seed: int, number: int = 400, most: int = 60, least: int = 0) -> Outline:
    """Texts of `least` to `most` tokens in sentences of about five."""
    rng = np.random.default_rng(seed)
    n = rng.integers(least, most + 1, number)
    sentence = (rng.random(n.sum()) < 0.2) | (places(starts(n)) == 0)
    return Outline(n, keyed.row_keys(seed, 0, np.arange(number)), np.arange(number), n > 0, sentence=sentence)


def inner(of: Outline, r: int) -> list[int]:
    """Where sentences start in a text, but its first."""
    start = starts(of.lengths)
    assert of.sentence is not None
    return [i for i in np.flatnonzero(of.sentence[start[r] : start[r + 1]]).tolist() if i]


def slow(x: list[int], y: list[int], n: int, m: int) -> set[tuple[int, int, int, int]]:
    """The cuts (a, end, c, end) of `alike`, by trying all."""
    most = max(n, m)
    while n and m:
        found = {
            (a, n, c, m): min(abs(a - c), abs(n - a - m + c))
            for a in x
            for c in y
            if a < n and c < m and max(a + m - c, c + n - a) <= most
        }
        if found:
            return {cut for cut, far in found.items() if far == min(found.values())}
        n, m = max([a for a in x if a < n], default=0), max([c for c in y if c < m], default=0)
    return set()


@pytest.mark.parametrize("least", [0, 58])
def test_cuts_of_two_texts_are_those_of_a_slow_loop(least: int) -> None:
    one, other = texts(0, least=least), texts(1, least=least)
    cuts = alike(Sentences(one), Sentences(other), one.lengths, other.lengths, one.key)
    late = 0
    for r, (n, m) in enumerate(zip(one.lengths.tolist(), other.lengths.tolist(), strict=True)):
        wanted = slow(inner(one, r), inner(other, r), n, m)
        got = tuple(int(x[r]) for x in (cuts.at, cuts.end, cuts.other, cuts.other_end))
        assert cuts.found[r] == bool(wanted) and (not wanted or got in wanted)
        late += bool(wanted) and got[1] < n
    assert cuts.found.mean() > 0.6 and late > (10 if least else 0)  # last sentences are left out


def test_of_equal_cuts_each_is_as_likely() -> None:
    r = 4000
    of = Outline(np.full(r, 12), keyed.row_keys(0, 0, np.arange(r)), np.arange(r), np.ones(r, bool))
    of = Outline(of.lengths, of.key, of.index, of.ends, sentence=np.tile(np.arange(12) % 3 == 0, r))
    cuts = alike(Sentences(of), Sentences(of), of.lengths, of.lengths, of.key)
    assert cuts.found.all() and (cuts.at == cuts.other).all() and (cuts.end == 12).all()
    value, counts = np.unique(cuts.at, return_counts=True)
    assert value.tolist() == [3, 6, 9] and np.abs(counts / r - 1 / 3).max() < 0.03


def test_two_texts_that_change_places_are_cut_alike() -> None:
    one, other = texts(2), texts(3)
    for x, y in ((one, other), (other, one)):
        found = [slow(inner(x, r), inner(y, r), int(x.lengths[r]), int(y.lengths[r])) for r in range(len(x.key))]
        cuts = alike(Sentences(y), Sentences(x), y.lengths, x.lengths, one.key)
        for r, wanted in enumerate(found):
            got = tuple(int(z[r]) for z in (cuts.other, cuts.other_end, cuts.at, cuts.end))
            assert cuts.found[r] == bool(wanted) and (not wanted or got in wanted)


def test_cuts_at_tokens_are_even_and_of_equal_length() -> None:
    r = 6000
    cuts = Cuts.at_tokens(np.full(r, 9), np.full(r, 5), keyed.row_keys(0, 0, np.arange(r)))
    b = cuts.end - cuts.at
    assert cuts.found.all() and (b == cuts.other_end - cuts.other).all()
    value, counts = np.unique(b, return_counts=True)
    assert value.tolist() == [1, 2, 3, 4] and np.abs(counts / r - 0.25).max() < 0.03


@pytest.mark.parametrize("most", [20, 60, 300])
def test_halves_are_as_long_whichever_is_first(most: int) -> None:
    of = texts(4, 6000, most)
    at, found = mirrored(Sentences(of), of.lengths, of.key)
    for r in np.flatnonzero(of.lengths)[:500].tolist():
        n, inside = int(of.lengths[r]), inner(of, r)
        far = {a: min(abs(a + b - n) for b in inside) for a in inside}
        limit = min(max(n // 32, min(far.values(), default=n)), -(-n // 8))
        wanted = [a for a in inside if far[a] <= limit]
        assert found[r] == bool(wanted) and (not wanted or at[r] in wanted)
    longer = np.sign(2 * at - of.lengths)[found]
    assert abs(longer.mean()) < 4 / np.sqrt(found.sum())


def test_a_beginning_is_whole_sentences_two_at_least() -> None:
    of = texts(5)
    most = np.random.default_rng(0).integers(1, 60, len(of.key))
    got = Sentences(of).shortened(of.lengths, most)
    for r, (n, limit) in enumerate(zip(of.lengths.tolist(), most.tolist(), strict=True)):
        ends = [*inner(of, r), n]
        fit = [e for e in ends if e <= limit]
        assert got[r] == (n if n <= limit else max([*fit, ends[min(1, len(ends) - 1)]]))


def test_a_drawn_start_is_even() -> None:
    n = 6000
    eligible = np.tile([False, True, False, True, True, False], n)
    at, some = drawn(eligible, np.arange(n + 1) * 6, keyed.row_keys(0, 0, np.arange(n)))
    assert some.all() and set(at.tolist()) == {1, 3, 4}
    assert all(abs((at == k).mean() - 1 / 3) < 0.03 for k in (1, 3, 4))


def test_texts_without_sentences_have_no_cuts() -> None:
    rows = dressed(Rows.of([[5, 6, 7], [], [8]]))
    bare = Outline(rows.lengths, rows.key, rows.index, rows.ends)
    nowhere = Sentences(bare)
    assert not alike(nowhere, nowhere, rows.lengths, rows.lengths, rows.key).found.any()
    assert not mirrored(nowhere, rows.lengths, rows.key)[1].any()
    assert nowhere.shortened(rows.lengths, np.array([2, 2, 2])).tolist() == [3, 0, 1]
