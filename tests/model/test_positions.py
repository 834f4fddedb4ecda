"""T5's buckets and ALiBi's slopes against transformers, tables that prefer neighbours, rotary angles, sinusoids."""

from __future__ import annotations

import pytest
import torch

from unmask.model.fused import rotate
from unmask.model.positions import (
    Alibi,
    RelativeBuckets,
    alibi_slopes,
    neighbours,
    relative_bucket,
    rotary,
    sinusoids,
)

from .helpers import laid, one_text, tokens_of


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 20)])
def test_buckets_are_those_of_transformers(bidirectional: bool, buckets: int, distance: int) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    difference = torch.arange(-300, 301)
    theirs = t5.T5Attention._relative_position_bucket(difference, bidirectional, buckets, distance)
    assert torch.equal(relative_bucket(difference, bidirectional, buckets, distance), theirs)
    assert torch.equal(relative_bucket(difference.int(), bidirectional, buckets, distance).long(), theirs)


@pytest.mark.parametrize("kind", ["t5", "alibi"])
@pytest.mark.parametrize("left", [False, True])
def test_a_contiguous_stream_needs_one_table(left: bool, kind: str) -> None:
    """Inside a block the shared table gives what positions give, also packed and padded."""
    texts = [one_text(t[:n], "full") for t, n in zip(tokens_of(4, 12), (5, 6, 12, 3), strict=True)]
    stream = laid(texts, [[0, 1], [2], [3]], 12, left=left)
    buckets = RelativeBuckets(8, 6, 3, bidirectional=True)
    with torch.no_grad():
        buckets.weight.copy_(torch.arange(24.0).view(8, 3))
    score = buckets if kind == "t5" else Alibi(3)
    shared = score.dense(stream.positions, stream.positions, contiguous=True)
    exact = score.dense(stream.positions, stream.positions)
    assert shared.shape == (1, 3, 12, 12) and exact.shape == (3, 3, 12, 12)
    same = (stream.block[:, :, None] == stream.block[:, None, :]) & (stream.block != 0)[:, None, :]
    same = same[:, None].expand_as(exact)
    assert torch.equal(shared.expand_as(exact)[same], exact[same])


def test_rotary_products_depend_on_the_difference_alone() -> None:
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def product(i: int, j: int) -> torch.Tensor:
        at = [rotary(torch.tensor([[p]]), 8, 10000.0, torch.float64) for p in (i, j)]
        return (rotate(q, at[0]) * rotate(k, at[1])).sum()

    assert torch.allclose(product(3, 10), product(103, 110), atol=1e-5)
    assert torch.equal(rotate(q, rotary(torch.tensor([[0]]), 8, 10000.0, torch.float64)), q)


def test_sinusoids() -> None:
    out = sinusoids(torch.tensor([[0, 1]]), 4, torch.float64)
    expected = torch.tensor([[[0.0, 0.0, 1.0, 1.0], [0.841471, 0.0099998, 0.540302, 0.99995]]], dtype=torch.float64)
    assert torch.allclose(out, expected, atol=1e-6)
    assert sinusoids(torch.tensor([5]), 7, torch.float32).shape == (1, 7)


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 6, 8, 12, 16, 24, 25, 112])
def test_slopes_are_those_of_bloom(heads: int) -> None:
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    theirs = bloom.build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    assert torch.allclose(torch.tensor(alibi_slopes(heads)), theirs, rtol=1e-6, atol=0)


def test_alibi_equals_bloom_up_to_a_constant_per_query() -> None:
    """Both over positions that start anew in a row, and over the keys of a cache."""
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    real = torch.tensor([[1] * 9, [0, 0, 0] + [1] * 6])
    theirs = bloom.build_alibi_tensor(real, 6, torch.float64).view(2, 6, 1, 9)
    positions = ((real.cumsum(1) - 1) * real).int()
    for queries in (9, 2):
        ours = Alibi(6).dense(positions[:, -queries:], positions)
        assert ours.shape == (2, 6, queries, 9)
        seen = (
            (positions[:, -queries:, None] >= positions[:, None, :])
            & (real != 0)[:, None]
            & (real != 0)[:, -queries:, None]
        )
        mask = seen[:, None].expand_as(ours)
        a, b = (x.masked_fill(~mask, float("-inf")).softmax(-1)[mask] for x in (ours.double(), theirs.expand_as(ours)))
        assert torch.allclose(a, b, atol=1e-6) and a.std() > 0.05
    assert torch.equal(
        Alibi(6).dense(positions[:1], positions[:1], contiguous=True), Alibi(6).dense(positions[:1], positions[:1])
    )


def test_alibi_falls_with_the_distance_on_both_sides() -> None:
    bias = Alibi(1).dense(torch.tensor([[2]]), torch.arange(5)[None])
    assert torch.allclose(bias[0, 0, 0], torch.tensor([2.0, 1.0, 0.0, 1.0, 2.0]) * -(2.0**-8))


@pytest.mark.parametrize(("both_ways", "offsets"), [(True, [-1, 1, -2, 2, -1]), (False, [-1, -2, -1, -2, -1])])
def test_heads_start_out_looking_at_their_neighbours(both_ways: bool, offsets: list[int]) -> None:
    """4 more at one offset of each head, and N(0, 2) everywhere."""
    score = RelativeBuckets(32, 128, 5, both_ways)
    neighbours(score.weight, both_ways, 128, torch.Generator().manual_seed(3))
    noise = torch.empty(32, 5).normal_(0.0, 2.0, generator=torch.Generator().manual_seed(3))
    more = RelativeBuckets(32, 128, 5, both_ways)
    with torch.no_grad():
        more.weight.copy_(score.weight - noise)
    at = torch.arange(-20, 21)
    bias = more.dense(torch.tensor([[0]]), at[None])[0, :, 0]  # (heads, offsets)
    for head, offset in enumerate(offsets):
        assert torch.allclose(bias[head], 4.0 * (at == offset), atol=1e-5)
    wide = torch.empty(32, 4096)
    neighbours(wide, both_ways, 128, torch.Generator().manual_seed(0))
    assert abs(float(wide[20:].std()) - 2) < 0.02 and abs(float(wide[20:].mean())) < 0.02
