"""Latent attention against the common library's, outputs and gradients; in a model: caching, packing, kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

from unmask.batch import Batch, Stream, visible
from unmask.config import ModelConfig
from unmask.model.attention import Cache, self_view
from unmask.model.latent import LatentAttention
from unmask.model.parts import Context
from unmask.model.positions import rotary

from .helpers import laid, model_of, one_text, perturb, stream_of, tokens_of

D, HEADS, PLAIN, TURNED, VALUE, RANK = 24, 3, 6, 4, 8, 10
LATENT = {"key_rank": RANK, "rotary_size": TURNED, "value_size": VALUE}
SIZES: dict[str, Any] = {"positions": "rotary", "num_heads": HEADS, "head_size": PLAIN, "norm_eps": 1e-6}


def ours_of(query_rank: int | None, bias: bool) -> LatentAttention:
    latent = {**LATENT, "query_rank": query_rank}
    config = ModelConfig(**SIZES, hidden_size=D, norm="rms", attention_bias=bias, latent=latent)
    module = LatentAttention(config).double()
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
    return perturb(module)


def theirs_of(query_rank: int | None, bias: bool, interleaved: bool) -> DeepseekV3Attention:
    config = DeepseekV3Config(
        hidden_size=D, num_attention_heads=HEADS, num_key_value_heads=HEADS, q_lora_rank=query_rank, kv_lora_rank=RANK,
        qk_rope_head_dim=TURNED, qk_nope_head_dim=PLAIN, v_head_dim=VALUE, attention_bias=bias,
        rope_interleave=interleaved, attention_dropout=0.0,
    )  # fmt: skip
    config._attn_implementation = "sdpa"  # eager takes its softmax in fp32
    return DeepseekV3Attention(config, 0).double()


def half_split(rows: Tensor, interleaved: bool) -> Tensor:
    """The last P rows, paired 2 i with 2 i + 1, in our order; rows (…, n, columns) or a bias (…, n)."""
    if not interleaved:
        return rows
    order = list(range(0, TURNED, 2)) + list(range(1, TURNED, 2))
    return torch.cat([rows[:-TURNED], rows[-TURNED:][order]])


def by_head(weight: Tensor, interleaved: bool) -> Tensor:
    return torch.cat([half_split(w, interleaved) for w in weight.chunk(HEADS)])


def pairs_of(ours: LatentAttention, theirs: DeepseekV3Attention, interleaved: bool) -> dict[str, Any]:
    """Our parameter's name → (theirs, how its rows are put into our order)."""
    same = lambda w: w
    last, heads = lambda w: half_split(w, interleaved), lambda w: by_head(w, interleaved)
    names = {
        "q.weight": (theirs.q_proj, "weight", heads),
        "q_a.weight": (theirs.q_a_proj, "weight", same),
        "q_a.bias": (theirs.q_a_proj, "bias", same),
        "q_a_norm.weight": (theirs.q_a_layernorm, "weight", same),
        "q_b.weight": (theirs.q_b_proj, "weight", heads),
        "kv_a.weight": (theirs.kv_a_proj_with_mqa, "weight", last),
        "kv_a.bias": (theirs.kv_a_proj_with_mqa, "bias", last),
        "kv_a_norm.weight": (theirs.kv_a_layernorm, "weight", same),
        "kv_b.weight": (theirs.kv_b_proj, "weight", same),
        "out.weight": (theirs.o_proj, "weight", same),
        "out.bias": (theirs.o_proj, "bias", same),
    }
    return {name: (getattr(names[name][0], names[name][1]), names[name][2]) for name, _ in ours.named_parameters()}


def padded(pattern: Any = "causal") -> Stream:
    texts = [one_text(t[:n], pattern) for t, n in zip(tokens_of(3, 9), (9, 6, 7), strict=True)]
    return laid(texts, [[0], [1], [2]], 9)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(("query_rank", "bias"), [(None, False), (7, False), (7, True)])
def test_equals_deepseek_v3(query_rank: int | None, bias: bool, interleaved: bool) -> None:
    """Their norms are in fp32 even here, hence 1e-5."""
    ours, theirs = ours_of(query_rank, bias), theirs_of(query_rank, bias, interleaved)
    pairs = pairs_of(ours, theirs, interleaved)
    assert len(pairs) == len(list(theirs.parameters()))
    g = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(0.5 * torch.randn(p.shape, generator=g, dtype=p.dtype))
        for name, p in ours.named_parameters():
            p.copy_(pairs[name][1](pairs[name][0]))
    stream = padded()
    angles = rotary(stream.positions, TURNED, 10000.0, torch.float64)
    context = Context(self_view(stream, None, None, HEADS, torch.float64), angles=angles)
    full = tuple(torch.cat([a, a], -1)[:, :, 0] for a in angles)
    x, up = (torch.randn(3, 9, D, generator=g, dtype=torch.float64) for _ in range(2))
    for a, b in zip(DeepseekV3RotaryEmbedding(theirs.config)(x, stream.positions), full, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    mask = visible(stream.block, stream.horizon, stream.block, stream.reveal)[:, None]
    x1, x2 = (x.clone().requires_grad_() for _ in range(2))
    y1, y2 = ours(x1, context, 0), theirs(x2, full, mask)[0]
    torch.testing.assert_close(y1, y2, rtol=1e-5, atol=2e-6)
    y1.backward(up)
    y2.backward(up)
    torch.testing.assert_close(x1.grad, x2.grad, rtol=1e-5, atol=1e-5)
    for name, p in ours.named_parameters():
        other, order = pairs[name]
        torch.testing.assert_close(p.grad, order(other.grad), rtol=1e-5, atol=1e-5, msg=name)


def test_keys_of_other_states_are_the_only_ones_read() -> None:
    """The interface's `keys`: with x's own it changes nothing, and nothing of x but its queries remains."""
    ours, stream = ours_of(7, True), stream_of(2, 5)
    g = torch.Generator().manual_seed(0)
    x, other = (torch.randn(2, 5, D, generator=g, dtype=torch.float64) for _ in range(2))
    angles = rotary(stream.positions, TURNED, 10000.0, torch.float64)
    context = Context(self_view(stream, None, None, HEADS, torch.float64), angles=angles)
    assert torch.equal(ours(x, context, 0), ours(x, context, 0, x))
    assert not torch.allclose(ours(x, context, 0), ours(x, context, 0, other))
    kv = ours.kv_b(ours.kv_a_norm(ours.kv_a(other)[..., :RANK])).unflatten(-1, (HEADS, -1))
    alike = ours(x, context, 0, other[:, :1].expand_as(other))  # one state everywhere: only its values can come out
    values = kv[:, :1, :, PLAIN:].expand(-1, 5, -1, -1).flatten(2)
    torch.testing.assert_close(alike, ours.out(values))


# ---------------------------------------------------------------- in a model


def model(**more: Any) -> Any:
    return model_of(**{**SIZES, "hidden_size": 32, "num_heads": 4, "latent": {**LATENT, "query_rank": 9}, **more})


@pytest.mark.parametrize("pattern", ["full", "causal", "prefix"])
def test_packing_padding_and_kernels_change_nothing(pattern: Any) -> None:
    m = model()
    texts = [one_text(t[:n], pattern) for t, n in zip(tokens_of(3, 9), (9, 6, 4), strict=True)]
    apart, packed = laid(texts, [[0], [1], [2]], 9), laid(texts, [[1, 2], [0]], 12, left=True)
    with torch.no_grad():
        one = m(Batch(apart, {}, {}), explicit=False)["stream"]
        two = m(Batch(packed, {}, {}), explicit=True)["stream"]
        alone = m(Batch(laid(texts[1:2], [[0]], 6), {}, {}))["stream"]
    for text, (row, block) in enumerate([(1, 1), (0, 1), (0, 2)]):
        want = one[text][apart.block[text] == 1]
        torch.testing.assert_close(two[row][packed.block[row] == block], want, rtol=0, atol=1e-12)
    torch.testing.assert_close(alone[0], one[1, :6], rtol=0, atol=1e-12)


def test_cached_equals_full_and_positions_matter() -> None:
    m = model()
    stream = stream_of(2, 10, "causal")
    cache, steps = Cache(), []
    with torch.no_grad():
        full = m.decode(stream)
        for part in (slice(0, 4), slice(4, 5), slice(5, 10)):
            piece = replace(stream.map(lambda a, part=part: a[:, part]), isolated=False)
            steps.append(m.decode(piece, cache=cache))
        moved = m.decode(replace(stream, positions=stream.positions * 2))
        shifted = m.decode(replace(stream, positions=stream.positions + 5))
    torch.testing.assert_close(torch.cat(steps, 1), full, rtol=0, atol=1e-12)
    assert not torch.allclose(moved, full, atol=1e-4)
    torch.testing.assert_close(shifted, full, rtol=0, atol=1e-6)  # only differences count; angles are fp32
