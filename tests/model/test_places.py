"""States at the places that heads read, without the rest of the last layer: the same numbers, the same gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from unmask import loss
from unmask.batch import Batch, Head, Rows, Stream
from unmask.config.model import ExpertsConfig, LatentConfig
from unmask.data.collate import collate
from unmask.loss import forward_heads, places_read
from unmask.objectives import Masked
from unmask.objectives.base import LM
from unmask.objectives.show import toy

from .helpers import laid, model_of, one_text, tokens_of

LOCAL = {"positions": "rotary", "attention_pattern": "LG", "window": 3}
MODELS: dict[str, dict[str, Any]] = {
    "learned": {},
    "post-norm": {"norm_position": "post", "final_norm": False},
    "both norms": {"norm_position": "both", "qk_norm": True, "positions": "rotary"},
    "rotary, grouped": {"positions": "rotary", "num_kv_heads": 2},
    "local last": {**LOCAL, "attention_pattern": "GL"},
    "local first": LOCAL,
    "t5": {"positions": "t5"},
    "alibi": {"positions": "alibi"},
    "deberta": {"positions": "deberta", "relative_buckets": 8, "relative_max_distance": 32},
    "xlnet": {"positions": "xlnet"},
    "latent": {"positions": "rotary", "latent": LatentConfig(key_rank=16, rotary_size=4, value_size=8)},
    "parallel": {"parallel_block": True},
    "value tables": {"positions": "rotary", "value_embeddings": True},
    "scalars": {"residual_scalars": True},
    "softcap": {"attention_softcap": 5.0},
    "shared layers": {"distinct_layers": 1},
    "convolution": {"convolution": 3, "positions": "deberta", "relative_buckets": 8, "relative_max_distance": 32},
    "mask decoder": {
        "mask_decoder": True, "positions": "deberta", "relative_buckets": 8, "relative_max_distance": 32,
        "norm_position": "post", "final_norm": False,
    },
    "experts": {"experts": ExpertsConfig(count=4, per_token=2)},
}  # fmt: skip


def streams() -> dict[str, Stream]:
    texts = [one_text(tokens_of(1, n, seed)[0], "full") for seed, n in enumerate((10, 10, 6, 3, 7))]
    return {
        "alone": laid(texts[:2], [[0], [1]], 10),
        "packed and padded": laid(texts[2:], [[0, 1], [2]], 10),
        "on the left": laid(texts[2:], [[0, 1], [2]], 12, left=True),
    }


STREAMS = streams()
AT = torch.tensor([[4, 1, 5], [0, 6, 3]])


def found(model: Any, stream: Stream, at: Tensor | None) -> tuple[Tensor, list[Tensor | None]]:
    """The states at the places, and the gradient of every parameter of a sum of them."""
    states = model(Batch(stream, {}, {}), at=at)["stream"]
    rows = torch.arange(2)[:, None]
    read = states[rows, AT]
    gradients = torch.autograd.grad((read * read.detach().cos()).sum(), list(model.parameters()), allow_unused=True)
    return states, list(gradients)


@pytest.mark.parametrize("placed", STREAMS)
@pytest.mark.parametrize("name", MODELS)
def test_states_and_gradients_are_those_of_a_full_pass(name: str, placed: str) -> None:
    model = model_of(**{"visibility": "bidirectional", **MODELS[name]})
    (all_, whole), (some, sparse) = (found(model, STREAMS[placed], at) for at in (None, AT))
    rows = torch.arange(2)[:, None]
    assert torch.allclose(all_[rows, AT], some[rows, AT], atol=1e-10)
    for one, other in zip(whole, sparse, strict=True):
        zero = torch.zeros(())
        assert torch.allclose(zero if one is None else one, zero if other is None else other, atol=1e-9)
    if name != "experts":  # whose router counts all tokens
        elsewhere = torch.ones(some.shape[:2], dtype=torch.bool)
        elsewhere[rows, AT] = False
        assert not bool(some[elsewhere].any()) and bool(all_[elsewhere].any())


@pytest.mark.parametrize("explicit", [True, False])
def test_both_kernels(explicit: bool) -> None:
    model = model_of(visibility="bidirectional")
    rows = torch.arange(2)[:, None]
    for stream in STREAMS.values():
        a, b = (model(Batch(stream, {}, {}), explicit=explicit, at=at)["stream"][rows, AT] for at in (None, AT))
        assert torch.allclose(a, b, atol=1e-10)


def masked(rate: float, *heads: Head) -> Batch:
    rows = Rows.of([range(11, 35), range(12, 30), range(15, 39)])
    return collate({"m": Masked(mask_rate=rate)(rows, toy())}, {"m": list(heads) or [LM]}).map(torch.from_numpy)


def test_the_loss_of_a_masked_batch_reads_few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = masked(0.15)
    targets = batch.targets["m", "lm"]
    at = places_read("model", batch)
    assert at is not None and at.shape == (3, 8)
    flat = (torch.arange(3)[:, None] * batch.stream.tokens.shape[1] + at).reshape(-1)
    assert set(targets.index.tolist()) <= set(flat.tolist()) and len(set(flat.tolist())) == 24
    model = model_of(vocab_size=toy().size, visibility="bidirectional")
    losses, gradients = [], []
    for places in (places_read, lambda name, batch: None):
        monkeypatch.setattr(loss, "places_read", places)
        term = forward_heads({"model": model}, batch)["m", "lm"]
        losses.append(term.sum)
        gradients.append(torch.autograd.grad(term.sum, list(model.parameters())))
    assert torch.allclose(*losses, rtol=1e-12)
    for one, other in zip(*gradients, strict=True):
        assert torch.allclose(one, other, atol=1e-10)


def test_where_many_places_or_whole_blocks_are_read_all_are_computed() -> None:
    assert places_read("model", masked(0.6)) is None
    assert places_read("other", masked(0.15)) is None
    batch = masked(0.15)
    for more in ({"pool": "mean"}, {"over": "positions"}, {"ahead": 1}):
        head = Head("lm", **more)  # type: ignore[arg-type]
        other = Batch(batch.stream, batch.targets, {("m", "lm"): head})
        assert places_read("model", other) is None
    assert np.asarray(places_read("model", Batch(batch.stream, batch.targets, {("m", "lm"): LM}))).shape == (3, 8)
