"""Invariances of a forward pass, in fp64: packing, padding, batching, kernels, caching, empty queries, dropout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from unmask.batch import INFINITY, Batch, Head, Pattern, Stream
from unmask.model.attention import Cache, Drop, attend, cross_view, self_view
from unmask.model.positions import RelativeBuckets
from unmask.model.transformer import Transformer

from .helpers import close, laid, model_of, one_text, stream_of, tokens_of

POSITIONS = ("learned", "sinusoidal", "rotary", "t5", "none")
LENGTHS = (5, 7, 4, 12)
SOURCES = (6, 3, 8, 10)
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"num_kv_heads": 2, "qk_norm": True, "norm": "rms", "activation": "swiglu", "relative_buckets": 8},
    "post": {"norm_position": "post", "embedding_norm": True, "activation": "relu2", "attention_scale": 1.0},
}


def texts(pattern: Pattern, lengths: Sequence[int] = LENGTHS, seed: int = 0) -> list[Stream]:
    return [one_text(t[:n], pattern) for t, n in zip(tokens_of(len(lengths), max(lengths), seed), lengths, strict=True)]


def states(model: Transformer, rows: Sequence[Sequence[int]], pattern: Pattern, **how: Any) -> dict[str, list[Tensor]]:
    """The final states of each text, by stack, with texts laid into these rows."""
    explicit, flags = how.pop("explicit", None), {"left": how.pop("left", False), **how}
    parts = {"stream": texts(pattern)}
    if model.source is not None:
        parts["source"] = texts("full", SOURCES, seed=1)
    width = {name: max(sum(len(part[m].tokens) for m in r) for r in rows) for name, part in parts.items()}
    streams = {name: laid(part, rows, width[name], **flags) for name, part in parts.items()}
    with torch.no_grad():
        out = model(Batch(streams["stream"], {}, {}, streams.get("source")), explicit=explicit)
    found: dict[str, list[Tensor]] = {}
    where = {m: (r, b + 1) for r, members in enumerate(rows) for b, m in enumerate(members)}
    for name in parts:
        found[name] = [out[name][r][streams[name].block[r] == b] for _, (r, b) in sorted(where.items())]
    return found


def equal(a: dict[str, list[Tensor]], b: dict[str, list[Tensor]], tolerance: float = 1e-12) -> bool:
    return all(torch.allclose(x, y, rtol=0, atol=tolerance) for k in a for x, y in zip(a[k], b[k], strict=True))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("stacks", [1, 2])
def test_packing_padding_and_batching_change_nothing(positions: Any, stacks: int, variant: str) -> None:
    """Each text alone, all in one batch padded on the right or left, and several packed into a row."""
    model = model_of(positions=positions, num_source_layers=2 * (stacks - 1), **VARIANTS[variant])
    patterns: tuple[Pattern, ...] = ("full", "causal", "prefix", "order") if variant == "plain" else ("causal",)
    for pattern in patterns:
        one_each: list[list[int]] = [[0], [1], [2], [3]]
        right = states(model, one_each, pattern)
        alone: dict[str, list[Tensor]] = {}
        for m in range(4):
            part = texts(pattern)[m : m + 1]
            source = texts("full", SOURCES, seed=1)[m : m + 1] if stacks == 2 else None
            streams = [None if s is None else laid(s, [[0]], len(s[0].tokens)) for s in (part, source)]
            assert streams[0] is not None and streams[0].isolated
            with torch.no_grad():
                for name, out in model(Batch(streams[0], {}, {}, streams[1])).items():
                    alone.setdefault(name, []).append(out[0])
        assert equal(right, alone)
        assert equal(right, states(model, one_each, pattern, left=True))
        packed = [[0, 3], [2, 1]]
        assert equal(right, states(model, packed, pattern))
        assert equal(right, states(model, packed, pattern, contiguous=False))
        assert equal(right, states(model, packed, pattern, explicit=True))


@pytest.mark.parametrize("positions", ["learned", "t5"])
@pytest.mark.parametrize("pattern", ["full", "causal", "prefix"])
def test_kernels_agree_in_values_and_gradients(positions: Any, pattern: Pattern) -> None:
    """Explicit and fused; with the isolated hint and without; grouped queries."""
    results = []
    for explicit in (False, True):
        for isolated in (False, True):
            model = model_of(positions=positions, num_kv_heads=2)
            stream = replace(stream_of(pattern=pattern), isolated=isolated)
            out = model(Batch(stream, {}, {}), explicit=explicit)["stream"]
            (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
            results.append([out.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    for other in results[1:]:
        assert len(other) == len(results[0])
        assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-11) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("scored", [False, True])
def test_a_query_that_sees_nothing_gives_zero(dtype: torch.dtype, explicit: bool, scored: bool) -> None:
    """The first rank of a query stream, a key that none may see, and a source that a block lacks."""
    block = torch.tensor([[1, 1, 1, 2]], dtype=torch.int32)
    order = torch.tensor([[0, 1, 2, 0]], dtype=torch.int32)
    reveal = torch.tensor([[0, 1, 2, INFINITY]], dtype=torch.int32)
    stream = Stream(block, order, block, reveal, order - 1)
    score = RelativeBuckets(8, 4, 4, True) if scored else None
    if score is not None:
        torch.nn.init.zeros_(score.weight)
    source = replace(stream, block=torch.ones_like(block) * 3)
    own = self_view(stream, None, score, 4, dtype, explicit)
    for view in (own, cross_view(stream, source, 4, dtype, explicit)):
        q, k, v = (torch.randn(1, n, 4, 8, dtype=dtype, requires_grad=True) for n in (4, 2, 2))
        out = attend(q, k, v, view, 0.3)
        out.sum().backward()
        assert all(x.grad is not None and bool(x.grad.isfinite().all()) for x in (q, k, v))
        assert not out[:, :, 0].any() and not out[:, :, 3].any()
        assert bool(out.any()) == (view is own)


@pytest.mark.parametrize("stacks", [1, 2])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("pattern", ["causal", "prefix"])
def test_cached_decoding_equals_full(positions: Any, stacks: int, pattern: Pattern) -> None:
    """Prompts of unequal length, padded on the right, then token by token, then two at once."""
    lengths, prompts, width = (9, 12, 7), (4, 6, 3), 12
    model = model_of(positions=positions, num_source_layers=2 * (stacks - 1), num_kv_heads=2, visibility=pattern)
    whole = texts(pattern, lengths)
    stream = laid(whole, [[0], [1], [2]], width)
    source = laid(texts("full", SOURCES[:3], seed=1), [[0], [1], [2]], 10) if stacks == 2 else None
    with torch.no_grad():
        memory = None if source is None else model.encode(source)
        full = model.decode(stream, memory, source)
        cache, found = Cache(), torch.zeros_like(full)
        steps = [[range(p) for p in prompts]]
        steps += [[range(p + i, p + i + 1) for p in prompts] for i in range(3)]
        steps += [[range(p + 3, min(p + 5, n)) for p, n in zip(prompts, lengths, strict=True)]]
        for step in steps:
            part = picked(stream, step)
            out = model.decode(part, memory, source, cache)
            for r, places in enumerate(step):
                found[r, list(places)] = out[r, : len(places)]
    for r, (p, n) in enumerate(zip(prompts, lengths, strict=True)):
        end = min(p + 5, n)
        assert torch.allclose(found[r, :end], full[r, :end], rtol=0, atol=1e-10)


def picked(stream: Stream, places: Sequence[range]) -> Stream:
    """Other positions of each row, right-padded with block 0."""
    width = max(len(p) for p in places)
    index = torch.tensor([[*p, *[0] * (width - len(p))] for p in places])
    real = torch.tensor([[1] * len(p) + [0] * (width - len(p)) for p in places], dtype=torch.int32)
    part = stream.map(lambda a: a.gather(1, index))
    return replace(part, block=part.block * real)


@pytest.mark.parametrize("positions", ["rotary", "t5"])
def test_one_query_in_16_bits_goes_through_the_fused_kernel(positions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without gradients; what it says is what the explicit one says, to rounding."""
    model = model_of(positions=positions, visibility="causal").to(torch.bfloat16)
    stream = stream_of(1, 9, "causal")
    fused: list[int] = []
    kernel = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda q, *a, **k: (fused.append(q.shape[2]), kernel(q, *a, **k))[1],
    )
    with torch.no_grad():
        by_kernel = []
        for explicit in (None, True):
            cache = Cache()
            for places in (range(8), range(8, 9)):
                states = model.decode(picked(stream, [places]), None, None, cache, explicit=explicit)
            by_kernel.append(states.float())
    assert set(fused) == {1}
    assert float((by_kernel[0] - by_kernel[1]).norm() / by_kernel[1].norm()) < 0.02


def test_any_order_of_decoding_gives_the_same_states() -> None:
    """Right to left: positions are fed in the order in which they are revealed."""
    model = model_of(positions="t5", visibility="prefix")
    stream = stream_of(pattern="order", length=40)
    with torch.no_grad():
        full, cache = model(Batch(stream, {}, {}))["stream"], Cache()
        for i in reversed(range(40)):
            out = model.decode(picked(stream, [range(i, i + 1)] * 2), cache=cache)
            assert torch.allclose(out[:, 0], full[:, i], rtol=0, atol=1e-10)
    assert cache.capacity == 64


def test_a_cache_keeps_the_rows_it_is_told_to() -> None:
    model = model_of(num_source_layers=1)
    stream, source = stream_of(rows=3, pattern="causal"), stream_of(rows=3, length=6)
    rows = torch.tensor([2, 0])
    with torch.no_grad():
        memory, cache = model.encode(source), Cache()
        full = model.decode(stream, memory, source)
        model.decode(picked(stream, [range(9)] * 3), memory, source, cache)
        cache.select(rows)
        chosen, of_source = stream.map(lambda a: a[rows]), source.map(lambda a: a[rows])
        out = model.decode(picked(chosen, [range(9, 10)] * 2), memory[rows], of_source, cache)
    assert torch.allclose(out[:, 0], full[rows, 9], rtol=0, atol=1e-10)


def test_dropout_comes_from_the_generator_alone() -> None:
    """Equal seeds give equal masks, no generator gives none, and the global state is left alone."""
    model = model_of(dropout=0.3, attention_dropout=0.2)
    batch = Batch(stream_of(pattern="causal"), {}, {})

    def run(seed: int | None) -> Tensor:
        return model(batch, None if seed is None else torch.Generator().manual_seed(seed))["stream"]

    before = torch.get_rng_state()
    assert torch.equal(run(1), run(1)) and not torch.equal(run(1), run(2))
    assert torch.equal(run(None), run(None))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_keeps_the_mean(rate: float) -> None:
    x = torch.ones(1001, 301)
    out = Drop(rate, torch.Generator().manual_seed(0))(x)
    kept = out != 0
    sd = (rate * (1 - rate) / x.numel()) ** 0.5
    assert abs(float(kept.float().mean()) - (1 - rate)) < 4 * sd
    assert np.allclose(out[kept], 1 / (1 - rate), rtol=1e-4)


def test_autocast_runs_both_kernels() -> None:
    model = model_of(torch.float32, heads=[Head("lm")], positions="rotary", qk_norm=True, norm="rms", num_kv_heads=2)
    batch = Batch(stream_of(pattern="causal"), {}, {})
    plain = model(batch)["stream"]
    for explicit in (None, False):
        with torch.autocast("cpu", torch.bfloat16):
            out = model(batch, explicit=explicit)["stream"]
        assert close(out.float(), plain, 0.02)


@pytest.mark.parametrize("explicit", [False, True])
def test_a_forward_pass_is_one_graph(explicit: bool) -> None:
    """Nothing in it asks for a tensor's value once it is compiled."""
    model = model_of(positions="t5", num_source_layers=1, query_vector=True)
    stream, source = stream_of(pattern="causal"), stream_of()

    def run(stream: Stream, source: Stream) -> Tensor:
        return model(Batch(stream, {}, {}, source), explicit=explicit)["stream"]

    compiled = torch.compile(run, backend="eager", fullgraph=True)
    with torch.no_grad():
        assert torch.allclose(compiled(stream, source), run(stream, source), rtol=0, atol=1e-12)
