"""FlexAttention, given the record's vectors, equals the dense kernels: forward, uncompiled, on the CPU; not on CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from unmask.batch import Batch, Stream
from unmask.errors import UserError
from unmask.model.flex import flex_of, suits_flex
from unmask.model.transformer import Stack, Transformer
from unmask.networks import run_with

from .helpers import close, laid, model_of, one_text, stream_of, tokens_of

T = 64
PACKED = [[0, 1, 2], [3]]
LENGTHS = (20, 9, 31, 40)
SETTINGS: dict[str, dict[str, Any]] = {
    "learned": {"positions": "learned"},
    "rotary, grouped": {"positions": "rotary", "num_kv_heads": 2},
    "alibi": {"positions": "alibi"},
    "window": {"positions": "rotary", "window": 5, "attention_pattern": "LG"},
    "soft-cap": {"positions": "none", "attention_softcap": 3.0},
    "alibi and soft-cap": {"positions": "alibi", "attention_softcap": 2.0},
}


def streams() -> dict[str, Stream]:
    """Texts of several lengths packed into rows of 64, the last row with padding; and one query that sees nothing."""
    out = {
        pattern: laid([one_text(t[:n], pattern) for t, n in zip(tokens_of(4, T), LENGTHS, strict=True)], PACKED, T)
        for pattern in ("causal", "prefix", "full", "order")
    }
    blind = out["causal"]
    horizon = blind.horizon.clone()
    horizon[0, 3] = -1
    return {**out, "blind": replace(blind, horizon=horizon, pattern="order")}


def xlnet() -> Stream:
    """A content stream in a random order, and behind it queries of rank r that see what comes before r alone."""
    order = np.random.default_rng(1).permutation(T // 2)
    rank = np.argsort(order).astype(np.int32)
    far = np.iinfo(np.int32).max
    whole = lambda a, b: torch.from_numpy(np.concatenate([a, b]).astype(np.int32))[None]
    place = np.arange(T // 2)
    return Stream(
        tokens=whole(tokens_of(1, T // 2)[0], tokens_of(1, T // 2, seed=2)[0]),
        positions=whole(place, place),
        block=torch.ones(1, T, dtype=torch.int32),
        reveal=whole(rank, np.full(T // 2, far)),
        horizon=whole(rank, rank - 1),
        pattern="order",
        isolated=False,
        contiguous=False,
    )


def states(model: Transformer, stream: Stream, kernel: str) -> torch.Tensor:
    run_stacks(model, kernel)
    with torch.no_grad():
        found: torch.Tensor = model(Batch(stream, {}, {}))["stream"]
    return found


def run_stacks(model: nn.Module, kernel: str) -> None:
    for module in model.modules():
        if isinstance(module, Stack):
            module.kernel = kernel


def cases() -> Iterator[tuple[str, str]]:
    """Every pattern under plain settings, and every setting under one pattern of each sort."""
    yield from (("learned", pattern) for pattern in ("causal", "prefix", "full", "order", "blind", "xlnet"))
    yield from ((name, pattern) for name in list(SETTINGS)[1:] for pattern in ("causal", "full"))


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize(("name", "pattern"), list(cases()))
def test_flex_equals_the_dense_kernels(name: str, pattern: str) -> None:
    model = model_of(torch.float32, max_position=T, **SETTINGS[name])
    stream = xlnet() if pattern == "xlnet" else streams()[pattern]
    assert close(states(model, stream, "flex"), states(model, stream, "dense"), 1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_a_query_that_sees_nothing_is_0() -> None:
    from unmask.model.flex import flex_attend

    stream = streams()["blind"]
    q, k, v = torch.randn(3, 2, 4, T, 8, generator=torch.Generator().manual_seed(0))
    out = flex_attend(q, k, v, flex_of(stream, None, torch.float32, None), 0.3, None)
    assert not out[0, :, 3].any() and out[0, :, 2].all()


def test_the_block_mask_leaves_out_what_nobody_sees() -> None:
    """Two documents of 128 tokens in a row: half of the four blocks of pairs are empty, of causal ones one more."""
    text = tokens_of(2, 128)
    for pattern, seen in (("full", 2), ("causal", 2)):
        row = laid([one_text(t, pattern) for t in text], [[0, 1]], 256)
        mask = flex_of(row, None, torch.float32, None).mask
        assert mask.sparsity() == 100 * (4 - seen) / 4
        assert int(mask.kv_num_blocks.sum() + mask.full_kv_num_blocks.sum()) == seen


def test_it_is_no_default_on_a_cpu_and_what_it_does_not_know_stays_dense() -> None:
    stream = streams()["causal"]
    config = model_of(max_position=T).config
    assert Stack.kernel == "dense"
    assert suits_flex("flex", config, stream, None) and not suits_flex("auto", config, stream, None)
    assert not suits_flex("dense", config, stream, None)
    for positions in ("t5", "deberta", "xlnet"):
        assert not suits_flex("flex", config.model_copy(update={"positions": positions}), stream, None)
    networks = nn.ModuleDict({"model": model_of(max_position=T)})
    with pytest.raises(
        UserError, match="attention=flex needs a GPU with CUDA: FlexAttention has no backward pass on cpu"
    ):
        run_with(networks, "flex", False, torch.device("cpu"))
    run_with(networks, "auto", False, torch.device("cpu"))
    model = networks["model"]
    out = model(Batch(stream, {}, {}))["stream"]
    out.sum().backward()  # no kernel without a backward pass


def test_dropout_on_weights_stays_dense() -> None:
    """The kernel knows no dropout: with a generator the explicit one runs, whatever is asked."""
    model = model_of(torch.float32, max_position=T, attention_dropout=0.5)
    run_stacks(model, "flex")
    batch = Batch(stream_of(1, 8, "prefix"), {}, {})
    model(batch, torch.Generator().manual_seed(0))["stream"].sum().backward()


@pytest.mark.slow
def test_compiled_flex_equals_the_dense_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    from unmask.model import flex

    torch._dynamo.reset()
    monkeypatch.setattr(flex, "_flex_kernel", lambda device: torch.compile(flex_attention))
    model = model_of(torch.float32, hidden_size=64, max_position=T)
    for name in ("causal", "full"):
        assert close(states(model, streams()[name], "flex"), states(model, streams()[name], "dense"), 1e-5)
    torch._dynamo.reset()
