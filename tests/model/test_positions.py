"""T5's buckets against transformers, the shared relative table, rotary angles."""

from __future__ import annotations

import pytest
import torch

from unmask.model.positions import RelativeBuckets, relative_bucket, rotary, rotate, sinusoids

from .helpers import laid, one_text, tokens_of


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 20)])
def test_buckets_are_those_of_transformers(bidirectional: bool, buckets: int, distance: int) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    difference = torch.arange(-300, 301)
    theirs = t5.T5Attention._relative_position_bucket(difference, bidirectional, buckets, distance)
    assert torch.equal(relative_bucket(difference, bidirectional, buckets, distance), theirs)
    assert torch.equal(relative_bucket(difference.int(), bidirectional, buckets, distance).long(), theirs)


@pytest.mark.parametrize("left", [False, True])
def test_a_contiguous_stream_needs_one_table(left: bool) -> None:
    """Inside a block the shared table gives what positions give, also packed and padded."""
    texts = [one_text(t[:n], "full") for t, n in zip(tokens_of(4, 12), (5, 6, 12, 3), strict=True)]
    stream = laid(texts, [[0, 1], [2], [3]], 12, left=left)
    score = RelativeBuckets(8, 6, 3, bidirectional=True)
    with torch.no_grad():
        score.weight.copy_(torch.arange(24.0).view(8, 3))
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
