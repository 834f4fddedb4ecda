"""Families that the common library lacks against their equations, written out in `explicit.py`: fp64, to 1e-10."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from unmask import batch as record
from unmask.batch import Batch, Head, Stream
from unmask.model.attention import Cache
from unmask.model.spec import parameters
from unmask.model.transformer import Transformer
from unmask.train import checkpoint

from . import explicit
from .explicit import Explicit, Text, after_prefix, backward, causal, full
from .helpers import laid, logits_of, model_of, one_text, tokens_of

POST: dict[str, Any] = {"norm_position": "post", "final_norm": False}


def by_text(
    model: Transformer, texts: Sequence[Stream], rows: Sequence[Sequence[int]], sources: Any = None, **how: Any
) -> list[Tensor]:
    """The final states of each text, with texts (and their sources) laid into these rows."""
    kernel = how.pop("explicit", None)
    parts = [laid(p, rows, max(sum(len(p[m].tokens) for m in r) for r in rows), **how) for p in (texts, sources) if p]
    out = model(Batch(parts[0], {}, {}, parts[1] if sources else None), explicit=kernel)["stream"]
    where = {m: (r, b + 1) for r, members in enumerate(rows) for b, m in enumerate(members)}
    return [out[r][parts[0].block[r] == b] for _, (r, b) in sorted(where.items())]


def same(a: Tensor, b: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def row(tokens: Any, **arrays: Any) -> Stream:
    """One unpadded row of hand-written vectors."""
    made = record.full(np.asarray(tokens, np.int32), np.array([0, len(tokens)]))
    made = replace(made, **{k: np.asarray(v, np.int32) for k, v in arrays.items()}, start=None, pattern="order")
    return made.map(lambda a: torch.from_numpy(a)[None])


# ---------------------------------------------------------------- GLM (Du et al. 2022, section 2.1 and figure 2)


def test_glm_is_the_papers_figure() -> None:
    """x1 x2 [M] x4 [M] [S] x5 x6 [S] x3: two tables of positions; part A sees itself, part B what stands before it."""
    model = model_of(positions2=8, visibility="prefix", num_layers=3)
    tokens = [11, 12, 4, 14, 4, 3, 15, 16, 3, 13]
    first = [p - 1 for p in (1, 2, 3, 4, 5, 5, 5, 5, 3, 3)]
    second = [0, 0, 0, 0, 0, 1, 2, 3, 1, 2]
    order = [0, 0, 0, 0, 0, 1, 2, 3, 4, 5]
    stream = row(tokens, positions=first, positions2=second, reveal=order, horizon=order)
    text = Text.of(tokens, lambda i, j: j < 5 or (i >= 5 and j <= i), positions=first, positions2=second)
    reference = Explicit(model)
    want = reference(text)
    for kernel in (False, True):
        got = model(Batch(stream, {}, {}), explicit=kernel)["stream"][0]
        same(got, want)
        same(logits_of(model, got), reference.logits(want))
    flat = reference(replace(text, positions2=None))
    assert (flat - want).abs().max() > 1e-2  # the second table matters
    padded = replace(stream.map(lambda a: nn.functional.pad(a, (2, 3))), isolated=False)
    same(model(Batch(padded, {}, {}))["stream"][0, 2:-3], want)
    with torch.no_grad():
        cache, steps = Cache(), [(0, 5), (5, 6), (6, 10)]
        found = [model.decode(stream.map(lambda a, b=b, e=e: a[:, b:e]), cache=cache)[0] for b, e in steps]
    same(torch.cat(found), want)


# ---------------------------------------------------------------- UniLM (Dong et al. 2019, section 2.3)


@pytest.mark.parametrize("rows", [[[0], [1], [2], [3]], [[2, 0], [3, 1]]], ids=["rows", "packed"])
@pytest.mark.parametrize("kernel", [False, True])
def test_unilm_is_one_set_of_weights_under_four_masks(rows: list[list[int]], kernel: bool) -> None:
    """Bidirectional, left to right, right to left and sequence to sequence in one batch."""
    model = model_of(**POST, embedding_norm=True, token_types=6, visibility="prefix", head_transform=True)
    tokens, lengths, source = tokens_of(4, 10), (10, 8, 9, 7), 4
    rules = [full, causal, backward, after_prefix(source)]
    patterns: list[Any] = ["full", "causal", "order", "prefix"]
    texts = [one_text(t[:n], p, source) for t, n, p in zip(tokens, lengths, patterns, strict=True)]
    types = [[0] * 5 + [1] * 5, [2] * 8, [3] * 9, [4] * 4 + [5] * 3]
    width = max(sum(lengths[m] for m in r) for r in rows)
    of_type = torch.zeros(len(rows), width, dtype=torch.int32)
    for r, members in enumerate(rows):
        found = [t for m in members for t in types[m]]
        of_type[r, : len(found)] = torch.tensor(found)
    stream = laid(texts, rows, width, pattern="order", token_type=of_type)
    out = model(Batch(stream, {}, {}), explicit=kernel)["stream"]
    reference = Explicit(model)
    for r, members in enumerate(rows):
        for b, m in enumerate(members):
            want = reference(Text.of(tokens[m][: lengths[m]], rules[m], types=types[m]))
            got = out[r][stream.block[r] == b + 1]
            same(got, want)
            same(logits_of(model, got), reference.logits(want))


# ---------------------------------------------------------------- encoder-decoders


def pair_case(length: int = 9, source: int = 7) -> tuple[np.ndarray, np.ndarray]:
    return tokens_of(1, length)[0], tokens_of(1, source, seed=1)[0]


@pytest.mark.parametrize("kernel", [False, True])
def test_mass_places_its_decoder_where_the_span_stood(kernel: bool) -> None:
    """Song et al. 2019, section 3.1: a masked span in the source; the decoder keeps the positions of that span."""
    model = model_of(**POST, embedding_norm=True, num_source_layers=3)
    sentence = tokens_of(1, 12)[0]
    begin, end, mask = 4, 9, 4
    corrupted = sentence.copy()
    corrupted[begin:end] = mask
    spoken = [mask, *sentence[begin : end - 1]]  # the token before the first predicted one is masked as well
    at = list(range(begin, end))
    order = range(end - begin)
    stream = row(spoken, positions=at, reveal=order, horizon=order)
    source = laid([one_text(corrupted, "full")], [[0]], 12)
    got = model(Batch(stream, {}, {}, source), explicit=kernel)["stream"][0]
    reference = Explicit(model)
    want = reference(Text.of(spoken, causal, positions=at), Text.of(corrupted, full))
    same(got, want)
    from_zero = reference(Text.of(spoken, causal), Text.of(corrupted, full))
    assert (from_zero - want).abs().max() > 1e-2


@pytest.mark.parametrize("kernel", [False, True])
def test_the_first_transformer(kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vaswani et al. 2017, section 3: sinusoids on scaled embeddings, relu, norm after the sum, one table for all."""
    scale = math.sqrt(32)
    model = model_of(**POST, positions="sinusoidal", embedding_scale=scale, activation="relu", num_source_layers=2)
    tokens, sources = tokens_of(3, 9), tokens_of(3, 8, seed=1)
    sizes = [(9, 5), (4, 8), (6, 3)]
    texts = [one_text(t[:n], "causal") for t, (n, _) in zip(tokens, sizes, strict=True)]
    sides = [one_text(t[:n], "full") for t, (_, n) in zip(sources, sizes, strict=True)]
    reference = Explicit(model)

    def wanted(m: int) -> Tensor:
        n, s = sizes[m]
        return reference(Text.of(tokens[m][:n], causal), Text.of(sources[m][:s], full))

    for rows in ([[0], [1], [2]], [[2, 0], [1]]):
        for m, got in enumerate(by_text(model, texts, rows, sides, explicit=kernel)):
            same(got, wanted(m))
            same(logits_of(model, got), reference.logits(wanted(m)))
    in_fp64 = explicit.sinusoids
    monkeypatch.setattr(explicit, "sinusoids", lambda p, d, _: in_fp64(p, d, torch.float64))
    same(by_text(model, texts, [[0], [1], [2]], sides)[0], wanted(0), 1e-5)  # the exact functions
    exact = [f(3 / 10000 ** (2 * i / 32)) for f in (math.sin, math.cos) for i in range(16)]
    same(in_fp64([3], 32, torch.float64)[0], torch.tensor(exact, dtype=torch.float64))


# ---------------------------------------------------------------- one set of layers for two stacks


def twins(**settings: Any) -> tuple[Transformer, Transformer]:
    """A model with shared layers, and one with two stacks whose layers have the same weights."""
    shared = model_of(num_source_layers=2, share_stacks=True, norm="rms", **settings)
    apart = model_of(num_source_layers=2, norm="rms", **settings)
    held = dict(shared.state_dict())
    apart.load_state_dict({n: held[n] for n in apart.state_dict()})
    return shared, apart


@pytest.mark.parametrize(
    "settings",
    [{"positions": "t5", "attention_scale": 1.0}, {"positions": "learned"}, {"positions": "rotary", "qk_norm": True}],
    ids=["t5", "learned", "rotary"],
)
def test_shared_stacks_equal_two_stacks_with_the_same_weights(settings: dict[str, Any]) -> None:
    """Raffel et al. 2020, section 3.2.2: states, and the gradient of a shared tensor is the sum of both."""
    shared, apart = twins(**settings)
    assert all(a is b for a, b in zip(shared.source.layers, shared.stack.layers, strict=True))
    tokens, sources = pair_case()
    texts, sides = [one_text(tokens, "causal")], [one_text(sources, "full")]
    weight = torch.randn(9, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for model in (shared, apart):
        out = by_text(model, texts, [[0]], sides)[0]
        (out * weight).sum().backward()
        if settings["positions"] != "t5":
            same(out, Explicit(model)(Text.of(tokens, causal), Text.of(sources, full)))
    same(by_text(shared, texts, [[0]], sides)[0], by_text(apart, texts, [[0]], sides)[0], 1e-13)
    grads = {n: p.grad for n, p in apart.named_parameters()}
    for name, p in shared.named_parameters():
        want = grads[name]
        twin = name.replace("stack.layers.", "source.layers.")
        if twin != name and twin in grads:
            assert grads[twin].abs().max() > 1e-6
            want = want + grads[twin]
        if want is not None:  # the head is not part of these states
            same(p.grad, want, 1e-11)


def test_shared_stacks_are_counted_and_saved_once(tmp_path: Path) -> None:
    shared, apart = twins(positions="t5")
    numbers = [sum(p.numel() for p in m.parameters()) for m in (shared, apart)]
    assert numbers[0] == numbers[1] - sum(p.numel() for p in apart.source.layers.parameters())
    assert numbers == [parameters(m.config, [Head("lm")]) for m in (shared, apart)]
    place = checkpoint.write(tmp_path, 0, nn.ModuleDict({"model": shared}), {}, {"step": 0})
    again = Transformer(shared.config, [Head("lm")], seed=3).double()
    checkpoint.load_model(nn.ModuleDict({"model": again}), place)
    tokens, sources = pair_case()
    texts, sides = [one_text(tokens, "causal")], [one_text(sources, "full")]
    same(by_text(again, texts, [[0]], sides)[0], by_text(shared, texts, [[0]], sides)[0], 0.0)
    with torch.no_grad():
        again.source.layers[1].mlp.up.weight.add_(1)
    assert torch.equal(again.stack.layers[1].mlp.up.weight, shared.stack.layers[1].mlp.up.weight + 1)


# ---------------------------------------------------------------- DeBERTa, ALiBi, experts


@pytest.mark.parametrize(
    "settings",
    [{}, {"head_transform": True, "position_offset": 2}, {"distinct_layers": 1}, {"norm_position": "pre"}],
    ids=["published", "offset", "one-layer", "pre-norm"],
)
def test_the_enhanced_mask_decoder(settings: dict[str, Any]) -> None:
    """He et al. 2021, section 3.2: the last layer twice, from states + absolute positions, keys from those states."""
    deberta = {"positions": "deberta", "relative_buckets": 0, "relative_max_distance": 6, "visibility": "bidirectional"}
    deberta |= {**POST, "embedding_norm": True, "mask_decoder": True, "num_layers": 3}
    model = model_of(**{**deberta, **settings})
    tokens, lengths = tokens_of(3, 10), (10, 4, 7)
    texts = [one_text(t[:n], "full") for t, n in zip(tokens, lengths, strict=True)]
    reference = Explicit(model)
    for rows in ([[0], [1], [2]], [[1, 2], [0]]):
        for m, got in enumerate(by_text(model, texts, rows)):
            want = reference(Text.of(tokens[m][: lengths[m]], full))
            same(got, want)
            same(logits_of(model, got), reference.logits(want))


def test_only_the_stream_has_a_mask_decoder() -> None:
    model = model_of(**POST, positions="deberta", relative_buckets=0, mask_decoder=True, num_source_layers=2)
    tokens, sources = pair_case()
    got = by_text(model, [one_text(tokens, "causal")], [[0]], [one_text(sources, "full")])[0]
    same(got, Explicit(model)(Text.of(tokens, causal), Text.of(sources, full)))


@pytest.mark.parametrize("heads", [4, 6])
@pytest.mark.parametrize("kernel", [False, True])
def test_alibi_looks_both_ways(heads: int, kernel: bool) -> None:
    """Press et al. 2022 with the distance's absolute value; 6 heads take the slopes of their code."""
    model = model_of(positions="alibi", visibility="bidirectional", num_heads=heads, head_size=6)
    tokens, lengths = tokens_of(3, 11), (11, 6, 8)
    texts = [one_text(t[:n], "full") for t, n in zip(tokens, lengths, strict=True)]
    reference = Explicit(model)
    for rows in ([[0], [1], [2]], [[1, 2], [0]]):
        for m, got in enumerate(by_text(model, texts, rows, explicit=kernel)):
            same(got, reference(Text.of(tokens[m][: lengths[m]], full)))


@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_experts_in_every_second_layer_with_a_shared_one(activation: str) -> None:
    """Their losses are in test_experts.py; here the whole model, and gradients of every tensor."""
    choice = {"count": 5, "per_token": 2, "pattern": "DE", "shared": 2, "intermediate_size": 12}
    model = model_of(experts=choice, num_layers=4, activation=activation)
    assert ["router" in dict(layer.mlp.named_children()) for layer in model.stack.layers] == [False, True] * 2
    tokens, lengths = tokens_of(2, 9), (9, 6)
    texts = [one_text(t[:n], "causal") for t, n in zip(tokens, lengths, strict=True)]
    reference = Explicit(model)
    want = [reference(Text.of(t[:n], causal)) for t, n in zip(tokens, lengths, strict=True)]
    for rows in ([[0], [1]], [[1, 0]]):
        got = by_text(model, texts, rows)
        for a, b in zip(got, want, strict=True):
            same(a, b)
    weights = dict(model.named_parameters())
    ours, theirs = (
        torch.autograd.grad(sum((s**3).sum() for s in states), list(weights.values()), retain_graph=True)
        for states in (got, want)
    )
    for name, a, b in zip(weights, ours, theirs, strict=True):
        assert b.abs().max() > 0, name
        same(a, b, 1e-9)
