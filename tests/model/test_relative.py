"""DeBERTa's and XLNet's score terms against loops over pairs in numpy, and DeBERTa's against transformers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from unmask.batch import Stream, visible
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model.attention import Keys
from unmask.model.parts import Linear
from unmask.model.relative import Relative, log_bucket, relation_of

from .helpers import close, laid, one_text, tokens_of

D, H = 24, 3
KINDS: dict[str, dict[str, Any]] = {
    "deberta": {"positions": "deberta", "relative_buckets": 8, "relative_max_distance": 12},
    "deberta-own": {
        "positions": "deberta",
        "relative_buckets": 0,
        "relative_max_distance": 6,
        "relative_shared": False,
    },
    "deberta-norm": {
        "positions": "deberta",
        "relative_buckets": 6,
        "relative_max_distance": 40,
        "relative_norm": True,
    },
    "xlnet": {"positions": "xlnet", "attention_bias": False},
}


def random(module: Any) -> Any:
    """Every parameter N(0, .6) in fp64: far from a uniform softmax."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in module.double().parameters():
            p.normal_(0.0, 0.6, generator=generator)
    return module


class Part(nn.Module):
    """One attention without its way out: the parts under test, and softmax over what the rule lets a query see."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.config = ModelConfig(**{"hidden_size": D, "num_heads": H, "max_position": 64, **settings})
        self.qkv = Linear(D, 3 * D, self.config.attention_bias)
        self.relative = Relative(self.config)
        self.relation = relation_of(self.config)
        random(self)

    def heads(self, x: Tensor) -> list[Tensor]:
        """q, k, v (B, H, T, D) of x (B, T, d)."""
        return [p.unflatten(-1, (H, -1)).transpose(1, 2) for p in self.qkv(x).chunk(3, -1)]

    def scores(self, x: Tensor, stream: Stream, keys: Keys | None = None, before: Tensor | None = None) -> Tensor:
        """(B, H, Tq, Tk) of q·k + terms; `before` are the states of keys in front of the stream's own."""
        q, k, _ = self.heads(x)
        if before is not None:
            k = torch.cat([self.heads(before)[1], k], 2)
        assert self.relation is not None
        return q @ k.transpose(2, 3) + self.relation(q, k, self.relative.pairs(stream, keys), self.qkv)

    def forward(self, x: Tensor, stream: Stream) -> Tensor:
        mask = visible(stream.block, stream.horizon, stream.block, stream.reveal)[:, None]
        scores = (self.scores(x, stream) * self.config.scale).masked_fill(~mask, -math.inf)
        out = scores.softmax(-1).nan_to_num() @ self.heads(x)[2]
        return out.transpose(1, 2).flatten(2)


def states(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, length, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def line(rows: int, length: int, **more: Any) -> Stream:
    texts = [one_text(t, "full") for t in tokens_of(rows, length)]
    return replace(laid(texts, [[i] for i in range(rows)], length), **more)


# ---------------------------------------------------------------- DeBERTa


@pytest.mark.parametrize(("buckets", "distance"), [(8, 16), (8, 7), (32, 128), (256, 512), (2, 3)])
def test_log_buckets_are_those_of_transformers(buckets: int, distance: int) -> None:
    stock = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    difference = torch.arange(-700, 701)
    theirs = stock.make_log_bucket_position(difference, buckets, distance).long()
    assert torch.equal(log_bucket(difference, buckets, distance), theirs)
    assert torch.equal(log_bucket(difference.int(), buckets, distance).long(), theirs)


def test_buckets_that_leave_no_distance_are_refused() -> None:
    with pytest.raises(UserError, match=r"relative_buckets=32 does not fit model\.relative_max_distance=16"):
        Relative(ModelConfig(positions="deberta", relative_buckets=32, relative_max_distance=16))


def disentangled(part: Part, buckets: int, distance: int) -> nn.Module:
    """transformers' attention with the same weights."""
    stock = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    settings = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": distance}
    own = not part.config.relative_shared
    config = stock.DebertaV2Config(hidden_size=D, num_attention_heads=H, **settings)
    config.share_att_key, config.position_buckets = not own, buckets
    theirs = stock.DisentangledSelfAttention(config).double().eval()
    with torch.no_grad():
        for name, w, b in zip(("query", "key", "value"), part.qkv.weight.chunk(3), part.qkv.bias.chunk(3), strict=True):
            getattr(theirs, f"{name}_proj").weight.copy_(w)
            getattr(theirs, f"{name}_proj").bias.copy_(b)
        for name in ("pos_key", "pos_query") if own else ():
            getattr(theirs, f"{name}_proj").load_state_dict(getattr(part.relation, name).state_dict())
    return theirs


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("buckets", "distance"), [(8, 16), (8, 7), (-1, 6), (-1, 40)])
@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("norm", [True, False])
def test_deberta_equals_transformers(shared: bool, buckets: int, distance: int, contiguous: bool, norm: bool) -> None:
    """Texts shorter and longer than the table; gradients too."""
    part = Part(
        positions="deberta",
        relative_buckets=max(buckets, 0),
        relative_max_distance=distance,
        relative_shared=shared,
        relative_norm=norm,
    )
    theirs = disentangled(part, buckets, distance)
    norm_of = part.relative.norm
    for length in (4, 23):
        x = states(2, length)
        weight = part.relative.weight
        assert weight is not None
        table = weight if norm_of is None else nn.functional.layer_norm(weight, (D,), norm_of.weight, norm_of.bias)
        there = torch.ones(2, 1, length, length)
        other, _ = theirs(x, there, rel_embeddings=table)
        ours = part(x, line(2, length, contiguous=contiguous))
        assert close(ours, other, 1e-7)  # their scale is a float32
        direction = states(2, length, seed=1)
        (mine,) = torch.autograd.grad((ours * direction).sum(), weight, retain_graph=True)
        (them,) = torch.autograd.grad((other * direction).sum(), weight)
        assert close(mine, them, 1e-6)
        (mine,) = torch.autograd.grad((ours * direction).sum(), part.qkv.weight)
        other, _ = theirs(x, there, rel_embeddings=table.detach())
        parts = [theirs.query_proj.weight, theirs.key_proj.weight, theirs.value_proj.weight]
        assert close(mine, torch.cat(torch.autograd.grad((other * direction).sum(), parts)), 1e-6)


# ---------------------------------------------------------------- loops over pairs


def plain(part: Part, q: np.ndarray, k: np.ndarray, difference: int, same: bool | None) -> np.ndarray:
    """(H,) the terms of one pair by the formulas of the papers; q and k (H, D), difference i - j."""
    named = {n: p.detach().numpy() for n, p in part.named_parameters()}
    c = part.config
    if c.positions == "xlnet":
        rate = 1 / 10000 ** (np.arange(0, D, 2) / D)
        r = np.concatenate([np.sin(difference * rate), np.cos(difference * rate)])
        r = (named["relation.r.weight"] @ r).reshape(H, -1)
        out = ((q + named["relation.position_bias"]) * r + named["relation.content_bias"] * k).sum(-1)
        if same is not None:
            out = out + ((q + named["relation.type_bias"]) * named["relation.types"][0 if same else 1]).sum(-1)
        return out
    span, middle = c.relative_buckets or c.relative_max_distance, c.relative_buckets // 2
    bucket = abs(difference)
    if c.relative_buckets and bucket > middle:
        ratio = np.log(np.float32(bucket / middle)) / np.log(np.float32((c.relative_max_distance - 1) / middle))
        bucket = middle + math.ceil(ratio * (middle - 1))
    row = min(max(int(np.sign(difference)) * bucket + span, 0), 2 * span - 1)
    vector = named["relative.weight"][row]
    if c.relative_norm:
        vector = (vector - vector.mean()) / np.sqrt(vector.var() + c.norm_eps)
        vector = vector * named["relative.norm.weight"] + named["relative.norm.bias"]
    if c.relative_shared:
        as_query, as_key, _ = (named["qkv.weight"] @ vector + named["qkv.bias"]).reshape(3, H, -1)
    else:
        as_query = (named["relation.pos_query.weight"] @ vector + named["relation.pos_query.bias"]).reshape(H, -1)
        as_key = (named["relation.pos_key.weight"] @ vector + named["relation.pos_key.bias"]).reshape(H, -1)
    return (q * as_key + k * as_query).sum(-1)


def test_a_published_row_of_terms() -> None:
    """The oracle itself, on numbers worked out by hand: one head of one dimension."""
    part = Part(**KINDS["xlnet"])
    assert np.allclose(plain(part, np.zeros((H, 8)), np.zeros((H, 8)), 3, None), _by_hand(part, 3))


def _by_hand(part: Part, difference: int) -> np.ndarray:
    named = dict(part.named_parameters())
    out = torch.zeros(H, dtype=torch.float64)
    for h in range(H):
        for i in range(8):
            row = named["relation.r.weight"][h * 8 + i]
            for j in range(D // 2):
                angle = difference / 10000 ** (2 * j / D)
                value = row[j] * math.sin(angle) + row[D // 2 + j] * math.cos(angle)
                out[h] += (named["relation.position_bias"][h, i] * value).detach()
    return out.numpy()


def check_pairs(
    part: Part, x: Tensor, stream: Stream, keys: Keys | None = None, before: Tensor | None = None
) -> Tensor:
    """Our scores, equal to the loops' wherever query and key are in one block."""
    ours = part.scores(x, stream, keys, before)
    q, k = part.heads(x)[0], part.heads(x if before is None else torch.cat([before, x], 1))[1]
    qs, ks = q.detach().numpy(), k.detach().numpy()
    seen: Stream | Keys = stream if keys is None else keys
    typed = stream.token_type is not None or keys is not None
    count = 0
    for b, i, j in np.ndindex(ours.shape[0], ours.shape[2], ours.shape[3]):
        if stream.block[b, i] != seen.block[b, j] or stream.block[b, i] == 0:
            continue
        same = None
        if typed:
            mine = 0 if stream.token_type is None else stream.token_type[b, i]
            other = 0 if seen.token_type is None else seen.token_type[b, j]
            same = bool(mine == other)
        difference = int(stream.positions[b, i]) - int(seen.positions[b, j])
        a, c = qs[b, :, i], ks[b, :, j]
        expected = (a * c).sum(-1) + plain(part, a, c, difference, same)
        # sinusoids are made in float32
        assert np.allclose(ours[b, :, i, j].detach().numpy(), expected, rtol=1e-5, atol=1e-5), (b, i, j)
        count += 1
    assert count > 40
    return ours


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_rows_equal_loops_over_pairs(kind: str, left: bool, contiguous: bool) -> None:
    texts = [one_text(t[:n], "full") for t, n in zip(tokens_of(4, 17), (5, 9, 17, 6), strict=True)]
    stream = replace(laid(texts, [[0, 1], [2], [3]], 17, left=left), contiguous=contiguous)
    check_pairs(Part(**KINDS[kind]), states(3, 17), stream)
    if kind == "xlnet":
        types = (stream.positions > 3).int()
        check_pairs(Part(**KINDS[kind]), states(3, 17), replace(stream, token_type=types))


@pytest.mark.parametrize("kind", KINDS)
def test_any_positions_equal_loops_over_pairs(kind: str) -> None:
    """Positions with holes, repeated and out of order, as appended queries and infilled spans have them."""
    positions = torch.tensor([[0, 1, 2, 3, 9, 9, 4, 30], [7, 6, 5, 40, 3, 3, 2, 0]], dtype=torch.int32)
    stream = replace(line(2, 8), positions=positions, contiguous=False)
    check_pairs(Part(**KINDS[kind]), states(2, 8), stream)


@pytest.mark.parametrize("types", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_a_cache_equal_loops_over_pairs(kind: str, types: bool) -> None:
    stream = replace(line(2, 4), positions=torch.tensor([[6, 7, 8, 9], [3, 4, 5, 6]], dtype=torch.int32))
    kept = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 0, 0, 0, 1, 2]], dtype=torch.int32)
    block = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1]], dtype=torch.int32)
    kinds = torch.tensor([[0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 0, 1]], dtype=torch.int32)
    if types:
        stream = replace(stream, token_type=torch.tensor([[0, 1, 1, 0], [1, 1, 0, 0]], dtype=torch.int32))
    own = torch.zeros_like(stream.block) if stream.token_type is None else stream.token_type
    keys = Keys(
        positions=torch.cat([kept, stream.positions], 1),
        block=torch.cat([block, stream.block], 1),
        reveal=torch.zeros(2, 10, dtype=torch.int32),
        token_type=torch.cat([kinds if types else torch.zeros_like(kinds), own], 1),
    )
    check_pairs(Part(**KINDS[kind]), states(2, 4), stream, keys, before=states(2, 6, seed=5))


@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_row_equals_its_texts(kind: str) -> None:
    part = Part(**KINDS[kind])
    texts = [one_text(t[:n], "causal") for t, n in zip(tokens_of(2, 20), (12, 20), strict=True)]
    x = states(1, 34)
    row = laid(texts, [[0, 1]], 34)  # two texts and padding
    packed = part(x, row)
    assert row.contiguous
    alone = [part(x[:, :12], laid(texts[:1], [[0]], 12)), part(x[:, 12:32], laid(texts[1:], [[0]], 20))]
    assert close(packed[:, :32], torch.cat(alone, 1), 1e-12)
    assert close(part(x, replace(row, contiguous=False))[:, :32], packed[:, :32], 1e-6 if kind == "xlnet" else 1e-12)
    shifted = torch.cat([x[:, 32:], x[:, :32]], 1)
    assert close(part(shifted, laid(texts, [[0, 1]], 34, left=True))[:, 2:], packed[:, :32], 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_graph_needs_no_value(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the table is as long as the longest text may be, and the numbers are the same."""
    part = Part(**KINDS[kind])
    stream = replace(line(2, 9), contiguous=False)
    eager = part(states(2, 9), stream)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(Tensor, "__int__", lambda self: pytest.fail("a value was asked for"))
    assert close(part(states(2, 9), stream), eager, 1e-12)


def test_grouped_queries_read_their_key_head() -> None:
    """With fewer key heads, terms are those of a model whose key heads are repeated."""
    for shared in (True, False):
        settings = {**KINDS["deberta"], "relative_shared": shared, "num_heads": 4}
        few = relation_of(ModelConfig(hidden_size=D, num_kv_heads=2, **settings))
        all_heads = relation_of(ModelConfig(hidden_size=D, **settings))
        assert few is not None and all_heads is not None
        random(few)
        qkv, joint = Linear(D, 2 * D, True).double(), Linear(D, 3 * D, True).double()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for p in (qkv.weight, qkv.bias):
                p.normal_(generator=generator)

            def spread(rows: Tensor) -> Tensor:
                return rows.unflatten(0, (2, -1)).repeat_interleave(2, 0).flatten(0, 1)

            for a, b in ((joint.weight, qkv.weight), (joint.bias, qkv.bias)):
                a.copy_(torch.cat([b[:D], spread(b[D : D + D // 2]), spread(b[D + D // 2 :])]))
            if not shared:
                all_heads.double().load_state_dict(
                    {n: spread(p) if "key" in n else p for n, p in few.state_dict().items()}
                )
        relative = random(Relative(ModelConfig(hidden_size=D, **settings)))
        pairs = relative.pairs(line(2, 9), None)
        q, k = torch.randn(2, 2, 4, 9, 6, dtype=torch.float64, generator=generator)
        k = k[:, :2]
        assert close(few(q, k, pairs, qkv), all_heads(q, k.repeat_interleave(2, 1), pairs, joint), 1e-12)
