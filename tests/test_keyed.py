from __future__ import annotations

import time

import numpy as np
import pytest

from unmask import keyed

SIZES = sorted({1, 2, 3, 5, 7, 100, 1000, *(2**k + d for k in range(2, 13) for d in (-1, 0, 1))})


def fits(counts: np.ndarray, chances: np.ndarray | float = 1.0) -> bool:
    """The chances are believable: the χ² test does not refuse them at about one in a million.

    Wilson and Hilferty (1931): the cube root of χ² / k is nearly normal.
    """
    expected = counts.sum() * chances / np.sum(np.broadcast_to(chances, counts.shape))
    k = len(counts) - 1
    chi2 = ((counts - expected) ** 2 / expected).sum()
    return bool(((chi2 / k) ** (1 / 3) - (1 - 2 / (9 * k))) / np.sqrt(2 / (9 * k)) < 4.75)


# ---------------------------------------------------------------- the generator


def test_published_values_of_splitmix64() -> None:
    # Vigna's splitmix64.c from seed 0: the counter is golden, 2 · golden, …
    first = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    assert keyed.bits(np.uint64(0), np.arange(4)).tolist() == first


def test_mix_leaves_its_argument_alone() -> None:
    x = np.arange(5, dtype=np.uint64)
    assert len(set(keyed.mix(x).tolist())) == 5 and x.tolist() == [0, 1, 2, 3, 4]


def test_every_bit_is_even_and_independent_of_the_others() -> None:
    b = keyed.bits(keyed.row_keys(0, 0, np.arange(200))[:, None], np.arange(500))
    ones = np.array([((b >> np.uint64(k)) & np.uint64(1)).mean() for k in range(64)])
    assert np.abs(ones - 0.5).max() < 5 * 0.5 / np.sqrt(b.size)
    low, high = b & np.uint64(0xFF), b >> np.uint64(56)
    assert fits(np.bincount((low * np.uint64(256) + high).ravel().astype(np.int64), minlength=1 << 16))


def test_uniforms_are_uniform_and_inside_the_unit_interval() -> None:
    u = keyed.uniform(np.uint64(3), np.arange(200_000))
    assert u.min() >= 0 and u.max() < 1 and fits(np.bincount((u * 1000).astype(int), minlength=1000))


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100, 8192])
def test_below_is_even(limit: int) -> None:
    x = keyed.below(keyed.bits(np.uint64(1), np.arange(200_000)), limit)
    assert x.min() >= 0 and x.max() < limit and (limit == 1 or fits(np.bincount(x, minlength=limit)))


@pytest.mark.parametrize("word", ["seed", "epoch", "id", "purpose", "position"])
def test_streams_whose_keys_differ_in_one_word_do_not_correlate(word: str) -> None:
    n = 100_000
    base = {"seed": 0, "epoch": 0, "id": 0, "purpose": "a"}
    a = keyed.uniform(keyed.row_keys(*base.values()), np.arange(n))
    worst = 0.0
    for k in range(1, 20):
        other = base | ({"purpose": f"a{k}"} if word == "purpose" else {word: k} if word != "position" else {})
        at = np.arange(n) + (k if word == "position" else 0)
        b = keyed.uniform(keyed.row_keys(*other.values()), at)
        worst = max(worst, abs(np.corrcoef(a, b)[0, 1]) * np.sqrt(n))
    assert worst < 4.5


def test_all_words_are_absorbed_in_order() -> None:
    keys = [int(keyed.row_keys(s, e, i)) for s in range(-3, 8) for e in range(8) for i in range(8)]
    assert len(set(keys)) == len(keys)
    assert keyed.row_keys(1, 0, 5) != keyed.row_keys(0, 1, 5)
    assert len(set(keyed.row_keys(0, 0, np.arange(1_000_000)).tolist())) == 1_000_000
    assert keyed.row_keys(0, 0, 0, "a") != keyed.row_keys(0, 0, 0, "b")


def test_integers_of_any_width_and_shape_give_the_same_bits() -> None:
    at = np.array([0, 1, 500])
    want = keyed.bits(np.uint64(9), at)
    for dtype in (np.int32, np.uint16, np.uint64):
        assert (keyed.bits(np.full(3, 9, np.uint64), at.astype(dtype)) == want).all()
    assert int(keyed.bits(np.uint64(9), 500)) == want[2]
    assert keyed.absorb(-1, -2) == keyed.absorb(2**64 - 1, 2**64 - 2)


# ---------------------------------------------------------------- permutations


@pytest.mark.parametrize("size", SIZES)
def test_permuted_is_a_bijection(size: int) -> None:
    p = keyed.permuted(np.arange(size), size, np.uint64(size))
    assert (np.sort(p) == np.arange(size)).all()


@pytest.mark.parametrize("size", [7, 64, 65, 1024])
def test_a_key_for_each_index_is_the_same_as_one_call_a_key(size: int) -> None:
    index, keys = np.array([[0, 3], [6, 6]]), np.array([[1, 2], [1, 9]], np.uint64)
    got = keyed.permuted(index, size, keys)
    assert got.shape == (2, 2)
    for i, k, g in zip(index.ravel(), keys.ravel(), got.ravel(), strict=True):
        assert keyed.permuted(np.array([i]), size, k)[0] == g


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_every_order_of_a_few_is_equally_likely(size: int) -> None:
    p = many(size, 20_000)
    _, counts = np.unique(p @ size ** np.arange(size), return_counts=True)
    assert len(counts) == [2, 6, 24, 120][size - 2] and fits(counts)


@pytest.mark.parametrize("size", [17, 66, 72, 100, 128, 256, 1000, 1024])
def test_places_are_even_and_neighbours_part(size: int) -> None:
    n = 2_000_000 // size
    p = many(size, n)
    for place in (0, 1, size // 2, size - 1):
        assert fits(np.bincount(p[:, place] * 16 // size, minlength=16), np.bincount(np.arange(size) * 16 // size))
    stay = (np.diff(p, axis=1) == 1).mean() * size
    assert stay == pytest.approx(1, abs=4 / np.sqrt(n))  # of each permutation Poisson(1), nearly
    inversions = (p[:, : size // 2] > p[:, size - size // 2 :]).mean()
    assert inversions == pytest.approx(0.5, abs=0.01)


def many(size: int, n: int) -> np.ndarray:
    """(n, size): permutations under n keys."""
    keys = np.repeat(keyed.row_keys(0, np.arange(n), 0, "order"), size)
    return keyed.permuted(np.tile(np.arange(size), n), size, keys).reshape(n, size)


@pytest.mark.parametrize("size", [65, 1000, 4097, 16385, 1_000_003, 10**9])
def test_hardly_any_value_walks(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, bits = 0, keyed.bits

    def counted(key: np.ndarray, position: np.ndarray) -> np.ndarray:
        nonlocal drawn
        drawn += np.broadcast(key, position).size
        return bits(key, position)

    monkeypatch.setattr(keyed, "bits", counted)
    index = np.random.default_rng(0).integers(0, size, 2000)
    keyed.permuted(index, size, 7)
    assert 8 * 2000 <= drawn <= 8 * 2000 * (1 + 2 / np.sqrt(size))


def test_ten_million_samples_cost_no_more_than_ten_thousand() -> None:
    def seconds(size: int) -> float:
        index = np.arange(64) * (size // 64)
        begin = time.process_time()
        for key in range(50):
            keyed.permuted(index, size, key)
        return time.process_time() - begin

    small, large = min(seconds(10_000) for _ in range(3)), min(seconds(10_000_000) for _ in range(3))
    assert large < 5 * small and large / 50 < 0.02
    index = np.arange(100_000)
    assert len(set(keyed.permuted(index, 10_000_000, 5).tolist())) == 100_000
