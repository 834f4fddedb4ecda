"""XLNet's score terms against transformers' attention: token types, memory, and the second stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unmask.batch import INFINITY
from unmask.model.attention import Keys

from .helpers import close
from .test_relative import KINDS, D, H, Part, line, states


def xlnet(part: Part) -> tuple[Any, Any]:
    """transformers' attention with the same weights and no residual worth mentioning, and a model for its encoding."""
    stock = pytest.importorskip("transformers.models.xlnet.modeling_xlnet")
    config = stock.XLNetConfig(vocab_size=50, d_model=D, n_head=H, d_inner=8, n_layer=1)
    model = stock.XLNetModel(config).double().eval()
    theirs = model.layer[0].rel_attn
    relation = part.relation
    with torch.no_grad():
        for name, rows in zip("qkv", part.qkv.weight.chunk(3), strict=True):
            getattr(theirs, name).copy_(rows.t().reshape(D, H, -1))
        theirs.r.copy_(relation.r.weight.t().reshape(D, H, -1))
        theirs.o.copy_(torch.eye(D, dtype=torch.float64).reshape(D, H, -1))
        theirs.r_w_bias.copy_(relation.content_bias)
        theirs.r_r_bias.copy_(relation.position_bias)
        theirs.r_s_bias.copy_(relation.type_bias)
        theirs.seg_embed.copy_(relation.types)
    return theirs, model


def their_scores(theirs: Any, model: Any, x: Tensor, before: Tensor | None, segments: Tensor | None) -> Tensor:
    """(B, T, d): their attention's output before residual and norm."""
    length, memory = x.shape[1], 0 if before is None else before.shape[1]
    r = model.relative_positional_encoding(length, length + memory, bsz=x.shape[0])
    got: list[Tensor] = []
    theirs.post_attention = lambda h, vector, residual=True: got.append(vector) or h
    same = None if segments is None else nn.functional.one_hot(segments.long(), 2).double()
    mems = None if before is None else before.transpose(0, 1)
    theirs(x.transpose(0, 1), None, None, None, r.double(), same, mems=mems)
    return got[0].flatten(2).transpose(0, 1)


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("types", [True, False])
def test_xlnet_equals_transformers(types: bool, contiguous: bool) -> None:
    part = Part(**KINDS["xlnet"])
    theirs, model = xlnet(part)
    stream = line(2, 11, contiguous=contiguous)
    segments = None
    if types:
        kinds = torch.tensor([[0] * 4 + [1] * 5 + [2] * 2, [0] * 8 + [1] * 3], dtype=torch.int32)
        stream = replace(stream, token_type=kinds)
        segments = (kinds.t()[:, None] != kinds.t()[None]).long()
    x = states(2, 11)
    assert close(part(x, stream), their_scores(theirs, model, x, None, segments), 1e-6)


@pytest.mark.parametrize("types", [True, False])
def test_xlnets_memory_equals_transformers(types: bool) -> None:
    """Keys before the stream's own; in transformers their token type is 0."""
    part = Part(**KINDS["xlnet"])
    theirs, model = xlnet(part)
    x, before = states(2, 5), states(2, 7, seed=3)
    stream = line(2, 5)
    kinds = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 0, 0, 0]], dtype=torch.int32)
    segments = None
    if types:
        stream = replace(stream, token_type=kinds)
        whole = torch.cat([torch.zeros(2, 7, dtype=torch.int32), kinds], 1)
        segments = (kinds.t()[:, None] != whole.t()[None]).long()
    stream = replace(stream, positions=stream.positions + 7)
    zero = torch.zeros(2, 12, dtype=torch.int32)
    at = torch.arange(12, dtype=torch.int32).expand(2, 12)
    own = torch.cat([zero[:, :7], kinds if types else zero[:, :5]], 1)
    keys = Keys(positions=at, block=zero + 1, reveal=zero, token_type=own)
    weights = (part.scores(x, stream, keys, before) * part.config.scale).softmax(-1)
    ours = weights @ torch.cat([part.heads(before)[2], part.heads(x)[2]], 2)
    assert close(ours.transpose(1, 2).flatten(2), their_scores(theirs, model, x, before, segments), 1e-6)


@pytest.mark.parametrize("types", [True, False])
def test_appended_queries_are_xlnets_second_stream(types: bool) -> None:
    """g is computed from the same keys with its own mask; a query of the first rank sees nothing and gives 0."""
    part = Part(**KINDS["xlnet"])
    theirs, model = xlnet(part)
    length = 7
    rank = torch.stack([torch.randperm(length, generator=torch.Generator().manual_seed(s)) for s in (0, 1)]).int()
    h, g = states(2, length), states(2, length, seed=4)
    kinds = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 0, 0]], dtype=torch.int32)
    content = line(2, length)
    stream = replace(
        content,
        tokens=torch.cat([content.tokens, torch.full_like(rank, -1)], 1),
        positions=content.positions.repeat(1, 2),
        block=content.block.repeat(1, 2),
        reveal=torch.cat([rank, torch.full_like(rank, INFINITY)], 1),
        horizon=torch.cat([rank, rank - 1], 1),
        token_type=kinds.repeat(1, 2) if types else None,
        contiguous=False,
    )
    blind_g = (rank[:, :, None] <= rank[:, None, :]).double()  # (B, query, key)
    blind_h = (rank[:, :, None] < rank[:, None, :]).double()
    got: list[Tensor] = []
    theirs.post_attention = lambda x, vector, residual=True: got.append(vector) or x
    segments = None
    if types:
        segments = nn.functional.one_hot((kinds.t()[:, None] != kinds.t()[None]).long(), 2).double()
    masks = [m.permute(1, 2, 0)[..., None] for m in (blind_h, blind_g)]
    r = model.relative_positional_encoding(length, length, bsz=2).double()
    theirs(h.transpose(0, 1), g.transpose(0, 1), *masks, r, segments)
    content_out, query_out = (v.flatten(2).transpose(0, 1) for v in got)
    ours = part(torch.cat([h, g], 1), stream)
    assert close(ours[:, :length], content_out, 1e-6)
    first = rank == 0
    assert close(ours[:, length:][~first], query_out[~first], 1e-6)
    assert not ours[:, length:][first].any()
