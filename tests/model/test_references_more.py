"""Every switch of the layer, alone and together: against its equations, and the same however texts are laid out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from unmask.batch import INFINITY, Batch, Stream
from unmask.model.attention import Cache
from unmask.model.transformer import Transformer

from .explicit import Explicit, Text, after_prefix, full
from .helpers import close, laid, logits_of, model_of, one_text, tokens_of
from .test_references import by_text, same

ROTARY: dict[str, Any] = {"positions": "rotary"}
NARROW: dict[str, Any] = {"embedding_size": 16, "head_transform": True, "head_bias": True}
PAIR: dict[str, Any] = {"num_source_layers": 3}
EXPERTS: dict[str, Any] = {"count": 4, "per_token": 2, "pattern": "DE", "shared": 1}
LATENT: dict[str, Any] = {"latent": {"key_rank": 12, "query_rank": 14, "rotary_size": 4, "value_size": 6}, **ROTARY}
MANY: dict[str, Any] = {
    **{"norm": "rms", "norm_position": "both", "embedding_norm": True, "skip_first_norm": True, "qk_norm": True},
    **{"qk_norm_after": True, "attention_scale": 0.3, "activation": "relu2", "num_kv_heads": 2},
    **{"attention_softcap": 3.0, "logit_softcap": 2.0, "value_embeddings": True, "residual_scalars": True},
    **{**ROTARY, "rotary_share": 0.4, "rotary_local_base": 50.0, "attention_pattern": "GLL", "window": 2},
}
SWITCHES: dict[str, dict[str, Any]] = {
    "qk norm": {"qk_norm": True, "norm": "layer"},
    "qk norm, rotary": {"qk_norm": True, "num_kv_heads": 2, **ROTARY},
    "qk norm after": {"qk_norm": True, "qk_norm_after": True, **ROTARY, "rotary_share": 0.4},
    "qk norm without weight": {"qk_norm": True, "norm_weight": False, "attention_scale": 0.7, **ROTARY},
    "relu2": {"activation": "relu2"},
    "logit softcap": {"logit_softcap": 0.5, "tied_head": False},
    "attention softcap": {"attention_softcap": 0.05, "num_kv_heads": 2},
    "attention softcap, alibi": {"attention_softcap": 0.05, "positions": "alibi"},
    "value embeddings": {"value_embeddings": True},
    "value embeddings of odd depth": {"value_embeddings": True, "num_layers": 3, "num_kv_heads": 2, **ROTARY},
    "value embeddings, post": {"value_embeddings": True, "norm_position": "post", "embedding_norm": True},
    "residual scalars": {"residual_scalars": True, "embedding_norm": True},
    "norms without weight": {"norm_weight": False, "embedding_norm": True},
    "rms without weight": {"norm_weight": False, "norm": "rms"},
    "parallel block": {"parallel_block": True, "attention_out_bias": False},
    "norms on both sides": {"norm_position": "both", "norm_bias": False},
    "no first norm": {"skip_first_norm": True, "embedding_norm": True},
    "no first norm, both": {"skip_first_norm": True, "norm_position": "both"},
    "local layers": {"attention_pattern": "GLL", "window": 2},
    "all layers local": {"attention_pattern": "L", "window": 3, "positions": "alibi"},
    "rotary base of local layers": {"attention_pattern": "LG", "window": 3, "rotary_local_base": 30.0, **ROTARY},
    "rotary share": {"rotary_share": 0.25, "head_size": 16, **ROTARY},
    "factorised embeddings": NARROW,
    "distinct layers": {"distinct_layers": 2, "attention_pattern": "GL", "window": 1},
    "experts": {"experts": EXPERTS},
    "two stacks, local": {**PAIR, "attention_pattern": "LG", "window": 2, "source_window": 3, **ROTARY},
    "two stacks, softcap": {**PAIR, "attention_softcap": 0.05, "qk_norm": True, "num_kv_heads": 2},
    "two stacks, values": {**PAIR, "value_embeddings": True, "residual_scalars": True, "num_layers": 3},
    "two stacks, both": {**PAIR, "norm_position": "both", "norm": "rms", "skip_first_norm": True, **NARROW},
    "all together": {**MANY, **NARROW, "experts": EXPERTS},
    "all but experts, in parallel": {**MANY, "norm_position": "pre", "parallel_block": True, "norm_weight": False},
    "all together, two stacks": {**MANY, **PAIR, "num_layers": 3, "share_stacks": True, "activation": "geglu"},
}
MORE: dict[str, dict[str, Any]] = {  # equations: test_latent.py, test_relative.py, the families' parity
    "latent": LATENT,
    "latent, local, softcap": {**LATENT, "attention_softcap": 0.5, "attention_pattern": "GL", "window": 2},
    "t5, softcap": {"positions": "t5", "attention_softcap": 0.5, "relative_buckets": 8, "relative_max_distance": 6},
    "deberta, softcap": {"positions": "deberta", "attention_softcap": 0.5, "relative_buckets": 6, "num_kv_heads": 2},
    "xlnet, local": {"positions": "xlnet", "attention_pattern": "LG", "window": 2},
    "two stacks of t5, both": {**PAIR, "positions": "t5", "norm_position": "both", "norm": "rms"},
    "second positions": {"positions2": 4, "position_offset": 2},
}
LENGTHS, SOURCES, PREFIX = (7, 4, 9), (5, 8, 3), 3
switches = pytest.mark.parametrize("switch", SWITCHES)
layouts = pytest.mark.parametrize("switch", [*SWITCHES, *MORE])


def made(switch: str, dtype: torch.dtype = torch.float64) -> Transformer:
    """40 channels, so that the first 32 are not all."""
    settings = {"hidden_size": 40, "num_layers": 4, "visibility": "prefix", **{**SWITCHES, **MORE}[switch]}
    if settings.get("share_stacks"):
        settings["num_source_layers"] = settings["num_layers"]
    return model_of(dtype, **settings)


def texts(model: Transformer, pattern: Any = "prefix") -> tuple[list[Stream], list[Stream] | None]:
    own = [one_text(t[:n], pattern, PREFIX) for t, n in zip(tokens_of(3, 9), LENGTHS, strict=True)]
    sides = [one_text(t[:n], "full") for t, n in zip(tokens_of(3, 9, 1), SOURCES, strict=True)]
    return own, None if model.source is None else sides


# ---------------------------------------------------------------- equations


@switches
def test_a_switch_is_its_equation(switch: str) -> None:
    """States, logits and the gradient of every tensor; packed, on both kernels."""
    model = made(switch)
    reference, (own, sides) = Explicit(model), texts(model)
    want = []
    for m, text in enumerate(own):
        source = None if sides is None else Text.of(sides[m].tokens, full)
        want.append(reference(Text.of(text.tokens, after_prefix(PREFIX)), source))
    weights = dict(model.named_parameters())
    expected = grads(torch.cat([reference.logits(s) for s in want]), weights)
    for kernel in (False, True):
        got = by_text(model, own, [[1, 2], [0]], sides, explicit=kernel)
        for a, b in zip(got, want, strict=True):
            same(a, b)
        logits = torch.cat([logits_of(model, s) for s in got])
        same(logits, torch.cat([reference.logits(s) for s in want]))
        for name, ours in grads(logits, weights).items():
            assert expected[name].abs().max() > 0, f"{name} does nothing"
            same(ours, expected[name], 1e-9)


def grads(logits: Tensor, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    loss = (logits * torch.randn(logits.shape, generator=generator, dtype=logits.dtype)).sum()
    found = torch.autograd.grad(loss, list(weights.values()), retain_graph=True)
    return dict(zip(weights, found, strict=True))


@pytest.mark.parametrize("switch", [s for s in SWITCHES if s.startswith("value")])
def test_every_second_layer_lends_values(switch: str) -> None:
    layers = made(switch).stack.layers
    held = [layer.attention.values is not None for layer in layers]
    assert held == [bool(i % 2) for i in range(len(layers))] and any(held)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({**ROTARY, "rotary_share": 0.05}, "even number of dimensions a head, not 0"),
        ({**ROTARY, "rotary_share": 0.3}, "even number of dimensions a head, not 3"),
        ({"value_embeddings": True, "distinct_layers": 1}, "tables of a layer's own"),
        ({"value_embeddings": True, **LATENT}, "tables of a layer's own"),
        ({"skip_first_norm": True, "norm_position": "post"}, "norm_position=pre"),
        ({"positions": "xlnet", "attention_softcap": 5.0}, "bend the terms"),
        ({"positions": "deberta", "mask_decoder": True, "residual_scalars": True}, "its own way"),
    ],
)
def test_switches_that_would_do_nothing_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        model_of(hidden_size=40, **settings)


# ---------------------------------------------------------------- layout


@layouts
def test_a_switch_is_the_same_in_every_layout(switch: str) -> None:
    """Each text alone, in a batch padded right or left, packed, with the contiguous hint and without, both kernels."""
    model = made(switch)
    own, sides = texts(model)
    each = [[0], [1], [2]]
    with torch.no_grad():
        alone = [by_text(model, [t], [[0]], sides and [sides[m]])[0] for m, t in enumerate(own)]
        ways = [
            {"rows": each},
            {"rows": each, "left": True},
            {"rows": [[2, 0], [1]]},
            {"rows": [[1, 0, 2]], "left": True, "contiguous": False},
            {"rows": [[2, 1], [0]], "explicit": True},
            {"rows": each, "explicit": False, "contiguous": False},
        ]
        for way in ways:
            for a, b in zip(by_text(model, own, sources=sides, **way), alone, strict=True):
                same(a, b, 1e-11)


@pytest.mark.parametrize("pattern", ["causal", "prefix"])
@layouts
def test_a_cached_switch_equals_the_full_pass(switch: str, pattern: Any) -> None:
    """The prefix at once, then one token, then all others (right-padded)."""
    model = made(switch)
    own, sides = texts(model, pattern)
    stream = laid(own, [[0], [1], [2]], 9)
    source = None if sides is None else laid(sides, [[0], [1], [2]], 8)
    with torch.no_grad():
        memory = None if source is None else model.encode(source)
        want, cache, steps = model.decode(stream, memory, source), Cache(), []
        for begin, end in ((0, PREFIX), (PREFIX, PREFIX + 1), (PREFIX + 1, 9)):
            piece = replace(stream.map(lambda a, b=begin, e=end: a[:, b:e]), isolated=False)
            steps.append(model.decode(piece, memory, source, cache))
    real = stream.block != 0
    same(torch.cat(steps, 1)[real], want[real], 1e-11)


@layouts
def test_a_switch_in_16_bits_is_near(switch: str) -> None:
    """Under autocast, packed; the states' error is that of one rounding a layer, not of a lost mask or norm."""
    model = made(switch, torch.float32)
    own, sides = texts(model)
    with torch.no_grad():
        want = torch.cat(by_text(model, own, [[0], [1], [2]], sides))
        for kernel in (None, False):
            with torch.autocast("cpu", torch.bfloat16):
                got = torch.cat(by_text(model, own, [[2, 0], [1]], sides, explicit=kernel))
            assert close(got.float(), want, 0.05)


# ---------------------------------------------------------------- queries that see nothing

BLIND: dict[str, dict[str, Any]] = {
    "t5": {"positions": "t5"},
    "alibi": {"positions": "alibi"},
    "deberta": {"positions": "deberta", "relative_buckets": 8, "relative_max_distance": 12},
    "xlnet": {"positions": "xlnet"},
    "rotary": {**ROTARY, "num_kv_heads": 2, "qk_norm": True},
    "softcap": {"attention_softcap": 0.5},
    "softcap, t5": {"attention_softcap": 0.5, "positions": "t5"},
    "local": {"attention_pattern": "L", "window": 2},
    "local, rotary": {"attention_pattern": "L", "window": 2, **ROTARY},
    "local, t5": {"attention_pattern": "L", "window": 2, "positions": "t5"},
    "latent": LATENT,
    "latent, local": {**LATENT, "attention_pattern": "L", "window": 2},
}


def queries(local: bool) -> tuple[Stream, list[int]]:
    """XLNet's record: six tokens, then a query for each, which sees lower ranks alone; padding. And who is blind."""
    rank = [0, 3, 2, 5, 1, 4]
    place, n = list(range(6)), 6
    numbers = {
        "tokens": [11, 12, 13, 14, 15, 16, *[-1] * n, 0],
        "positions": [*place, *place, 0],
        "block": [*[1] * 2 * n, 0],
        "reveal": [*rank, *[INFINITY] * n, 0],
        "horizon": [*rank, *[r - 1 for r in rank], -1],  # the padding sees nothing either
    }
    stream = Stream(**{k: torch.tensor([v], dtype=torch.int32) for k, v in numbers.items()}, pattern="order")
    seen = [[rank[j] < rank[i] and (not local or abs(i - j) <= 2) for j in place] for i in place]
    return stream, [n + i for i in place if not any(seen[i])] + [2 * n]


@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize("form", ["float32", "bfloat16", "autocast"])
@pytest.mark.parametrize("path", BLIND)
def test_a_query_that_sees_nothing_is_zero_on_every_path(path: str, form: str, kernel: bool) -> None:
    """Attention's output before its last projection, in each layer; and all gradients are numbers."""
    dtype = torch.bfloat16 if form == "bfloat16" else torch.float32
    model = model_of(dtype, query_vector=True, visibility="bidirectional", **BLIND[path])
    stream, blind = queries("local" in path)
    assert len(blind) == (3 if "local" in path else 2)
    got: list[Tensor] = []
    for layer in model.stack.layers:
        layer.attention.out.register_forward_pre_hook(lambda _, given: got.append(given[0]))
    with torch.autocast("cpu", torch.bfloat16, enabled=form == "autocast"):
        out = model(Batch(stream, {}, {}), explicit=kernel)["stream"]
        logits = logits_of(model, out)
    (logits.float() ** 2).sum().backward()
    assert len(got) == 2 and bool(out.isfinite().all())
    for heads in got:
        empty = (heads[0] == 0).all(-1)
        assert empty.nonzero().flatten().tolist() == blind
    for name, p in model.named_parameters():
        assert p.grad is None or bool(p.grad.isfinite().all()), name
