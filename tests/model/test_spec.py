"""Parameters by formula and by module, FLOPs against a counted forward and backward pass, memory against hooks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from unmask.batch import Batch, Head, Pattern, visible
from unmask.config import ModelConfig
from unmask.model.cost import (
    Attended,
    activation_numbers,
    cache_numbers,
    flops,
    forward_flops,
    head_flops,
    memory,
    packed_keys,
    visible_keys,
)
from unmask.model.presets import preset_config, preset_heads
from unmask.model.spec import active_parameters, parameters, parts
from unmask.model.transformer import Transformer

from .helpers import laid, one_text, stream_of, tokens_of

PLAIN: dict[str, Any] = {"hidden_size": 64, "num_layers": 2}
KNOWN = [
    ({"vocab_size": 44, "max_position": 96, **PLAIN}, 109_056),
    ({"vocab_size": 362, "max_position": 32, **PLAIN}, 125_312),
    ({"vocab_size": 362, "max_position": 32, "num_source_layers": 2, **PLAIN}, 260_992),
    ({"vocab_size": 362, "max_position": 32, "hidden_size": 32, "num_layers": 1}, 25_376),
    ({"vocab_size": 50257, "max_position": 1024, "hidden_size": 768, "num_layers": 12, "num_heads": 12}, 124_439_808),
]
NARROW: dict[str, Any] = {"attention_bias": False, "mlp_bias": False}
POST: dict[str, Any] = {"norm_position": "post", "embedding_norm": True, "final_norm": False}
HEAD: dict[str, Any] = {"head_transform": True, "head_bias": True}
ROTARY: dict[str, Any] = {"positions": "rotary", "norm": "rms", "activation": "swiglu", "tied_head": False, **NARROW}
LATENT: dict[str, Any] = {"key_rank": 12, "rotary_size": 4, "value_size": 6}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"activation": "gelu_tanh"},
    "gpt1": {"norm_position": "post", "final_norm": False},
    "gpt3": {"attention_pattern": "GL", "window": 3},
    "bert": {**POST, **HEAD, "token_types": 2, "pooler": True},
    "roberta": {**POST, **HEAD, "token_types": 1, "position_offset": 3},
    "albert": {**POST, **HEAD, "embedding_size": 16, "distinct_layers": 1, "token_types": 2},
    "albert of two": {**POST, **HEAD, "embedding_size": 16, "distinct_layers": 2, "num_layers": 4},
    "electra": {**POST, "embedding_size": 16, "tied_head": False, "detector_transform": True},
    "deberta": {**POST, **HEAD, "positions": "deberta", "relative_buckets": 8, "relative_norm": True},
    "deberta v2": {"positions": "deberta", "relative_buckets": 0, "relative_max_distance": 6, "convolution": 3, **POST},
    "deberta v1": {"positions": "deberta", "relative_shared": False, "num_kv_heads": 2, "mask_decoder": True, **POST},
    "xlnet": {**POST, "positions": "xlnet", "query_vector": True, "attention_bias": False, "head_bias": True},
    "llama": {**ROTARY, "num_kv_heads": 2},
    "qwen3": {**ROTARY, "qk_norm": True, "head_size": 24, "num_kv_heads": 1},
    "mistral": {**ROTARY, "attention_pattern": "L", "window": 4},
    "neox": {"positions": "rotary", "rotary_share": 0.5, "parallel_block": True, "tied_head": False},
    "bloom": {"positions": "alibi", "embedding_norm": True},
    "modernbert": {**ROTARY, **HEAD, "norm": "layer", "norm_bias": False, "embedding_norm": True, "tied_head": True}
    | {"skip_first_norm": True, "attention_pattern": "GLL", "window": 2, "num_layers": 3, "head_transform_bias": False},
    "gemma": {**ROTARY, "norm_position": "both", "attention_softcap": 5.0, "logit_softcap": 9.0},
    "mixtral": {**ROTARY, "experts": {"count": 4, "per_token": 2}},
    "switch": {"activation": "relu", "experts": {"count": 4, "per_token": 1, "pattern": "DE", "router_bias": True}},
    "deepseek": {**ROTARY, "latent": {"query_rank": 10, **LATENT}}
    | {"experts": {"count": 8, "per_token": 3, "shared": 2, "intermediate_size": 20, "first_dense": 1}},
    "deepseek v2": {**ROTARY, "latent": {"query_rank": None, **LATENT}, "attention_bias": True}
    | {"experts": {"count": 4, "groups": 2, "groups_kept": 1, "router": "sigmoid", "balance_bias": True}},
    "nanochat": {**ROTARY, "activation": "relu2", "norm_weight": False, "qk_norm": True, "qk_norm_after": True}
    | {"value_embeddings": True, "residual_scalars": True, "embedding_norm": True, "num_layers": 3},
    "glm": {"positions2": 9, "visibility": "prefix"},
    "t5": {"positions": "t5", "num_source_layers": 3, "norm": "rms", "activation": "geglu_tanh", **NARROW},
    "t5 shared": {"positions": "t5", "num_source_layers": 2, "norm": "rms", "share_stacks": True, "num_layers": 2},
    "bart": {**POST, "num_source_layers": 1, "position_offset": 2},
    "mbart": {"embedding_norm": True, "num_source_layers": 2, "embedding_scale": 5.0},
    "2017": {"norm_position": "post", "final_norm": False, "positions": "sinusoidal", "num_source_layers": 1},
    "t5gemma": {**ROTARY, "norm_position": "both", "num_source_layers": 2, "num_kv_heads": 2, "attention_softcap": 9.0}
    | {"source_table": True, "attention_pattern": "LG", "window": 3, "source_window": 4},
    "encdec of experts": {"num_source_layers": 2, "experts": {"count": 4}, "qk_norm": True},
    "encdec of everything": {"num_source_layers": 2, "value_embeddings": True, "residual_scalars": True}
    | {"share_stacks": True, "embedding_size": 20, "tied_head": False},
}
# counted, but with products that the families above have already
ODD: list[dict[str, Any]] = [
    {"qk_norm": True, "head_size": 24, "query_vector": True, "norm_bias": False, "mlp_bias": False},
    {"final_norm": False, "num_source_layers": 1, "token_types": 3},
    {"pooler": True, "intermediate_size": 100, "positions": "sinusoidal", "num_source_layers": 1},
    {"attention_bias": False, "attention_out_bias": True},
    {"attention_out_bias": False, "num_source_layers": 1},
    {"norm_weight": False, "convolution": 5, **HEAD},
    {"positions": "none", "skip_first_norm": True, "norm_position": "both"},
    {"mask_decoder": True, "positions": "deberta", "relative_norm": True, "num_source_layers": 1},
    {"positions": "deberta", "relative_norm": True, "norm_bias": False},
    {"positions": "deberta", "relative_norm": True, "norm_weight": False},
]
HEADS = (
    Head("lm"),
    Head("pair", over="classes", size=2),
    Head("rtd", over="binary"),
    Head("span", over="positions"),
    Head("choice", over="group"),
    Head("boundary", arity=2, extra=7),
    Head("again", module="lm"),
)


def tiny(**settings: Any) -> ModelConfig:
    return ModelConfig(**{"vocab_size": 50, "hidden_size": 32, "num_layers": 2, "max_position": 20, **settings})


def mask_of(config: ModelConfig) -> Pattern:
    """A mask the model takes: its own, but full where a convolution reads what follows."""
    return "full" if config.convolution else "causal" if config.visibility == "causal" else "prefix"


def counted(config: ModelConfig, heads: tuple[Head, ...]) -> int:
    with torch.device("meta"):
        model = Transformer(config, heads)
    return sum(p.numel() for p in model.parameters())


# ---------------------------------------------------------------- parameters


@pytest.mark.parametrize(("settings", "count"), KNOWN)
def test_known_counts(settings: dict[str, Any], count: int) -> None:
    config = ModelConfig(**settings)
    assert parameters(config) == count
    assert counted(config, (Head("lm"),)) == count


@pytest.mark.parametrize("settings", [*FAMILIES.values(), *ODD], ids=[*FAMILIES, *map(str, range(len(ODD)))])
def test_the_formula_counts_what_the_module_holds(settings: dict[str, Any]) -> None:
    config = tiny(**settings)
    # the boundary head ends at hidden_size, which is no tied table's width where embeddings are narrower
    heads = HEADS if config.table_size == 32 else HEADS[:5]
    assert parameters(config, heads) == counted(config, heads)
    assert parameters(config, ()) == counted(config, ())
    listed = parts(config, heads)
    assert sum(part.total for part in listed) == parameters(config, heads)
    assert sum(part.active for part in listed) == active_parameters(config, heads)
    assert (active_parameters(config, heads) < parameters(config, heads)) == (config.experts is not None)


# (preset, exact count, published figure and its place)
PUBLISHED = [
    ("bert-base", 110_106_428, 110e6),  # Devlin et al. 2019, section 3: 110M
    ("bert-large", 336_226_108, 340e6),  # there: 340M
    ("gpt1", 116_534_784, 117e6),  # Radford et al. 2019, table 2: "117M, the original GPT"
    ("gpt2", 124_439_808, 124e6),  # their repository's name of it, 124M
    ("gpt3", 174_604_259_328, 175e9),  # Brown et al. 2020, table 2.1: 175.0B
    ("albert-base", 11_813_810, 12e6),  # Lan et al. 2020, table 1: 12M
    ("electra-small-discriminator", 13_549_057, 14e6),  # Clark et al. 2020, table 1: 14M
    ("roberta-base", 124_697_433, 125e6),  # Liu et al. 2019: 125M
    ("deberta-v3-base", 184_551_780, 184e6),  # He et al. 2023, section 5.1: 86M and 98M in the table
    ("deberta-v2-xlarge", 887_085_156, 900e6),  # their repository: 900M
    ("modernbert-base", 149_655_232, 149e6),  # Warner et al. 2024, section 2: 149M
    ("distilbert-base", 66_985_530, 66e6),  # Sanh et al. 2019, table 3: 66M
    ("llama-7b", 6_738_415_616, 6.7e9),  # Touvron et al. 2023, table 2: 6.7B
    ("pythia-160m", 162_322_944, 162e6),  # 85,056,000 without tables (Biderman et al. 2023, table 1)
    ("bloom-560m", 559_214_592, 559e6),  # Scao et al. 2022, table 3: 559M
    ("mixtral-8x7b", 46_702_792_704, 47e9),  # Jiang et al. 2024, section 1: 47B
    ("deepseek-v3", 671_026_419_200, 671e9),  # DeepSeek-AI 2024: 671B
    ("t5-small", 60_506_624, 60e6),  # Raffel et al. 2020, section 3.7: 60M
    ("t5-base", 222_903_552, 220e6),  # there: 220M
    ("mt5-small", 300_176_768, 300e6),  # Xue et al. 2021, table 1: 300M
    ("bert2bert-base", 223_331_898, 221e6),  # Rothe et al. 2020, table 1: 221M
    ("transformer-2017-base", 63_082_496, 65e6),  # Vaswani et al. 2017, table 3: 65M
    ("ul2", 19_591_209_984, 20e9),  # Tay et al. 2022: 20B
]


@pytest.mark.parametrize(("name", "exact", "published"), PUBLISHED, ids=[p[0] for p in PUBLISHED])
def test_published_counts(name: str, exact: int, published: float) -> None:
    count = parameters(preset_config(name), preset_heads(name))
    assert count == exact
    assert count == pytest.approx(published, rel=0.035)


def test_active_counts_of_published_experts() -> None:
    # Jiang et al. 2024: 13B active; DeepSeek-AI 2024: 37B activated for each token
    assert active_parameters(preset_config("mixtral-8x7b")) == 12_879_925_248
    assert active_parameters(preset_config("deepseek-v3")) == pytest.approx(37e9, rel=0.02)
    # Fedus et al. 2021: the same FLOPs per token as T5, but for the router
    switch, t5 = preset_config("switch-base-8"), preset_config("t5-base")
    assert active_parameters(switch) - active_parameters(t5) == 12 * 768 * 8


def test_gpt3_is_twelve_layers_d_squared() -> None:
    config = preset_config("gpt3")
    body = 12 * config.num_layers * config.hidden_size**2
    assert parameters(config) == pytest.approx(body + (50257 + 2048) * 12288, rel=1e-3)


def test_pythia_without_tables() -> None:
    tables = 2 * 50304 * 768
    assert parameters(preset_config("pythia-160m")) - tables == 85_056_000


# ---------------------------------------------------------------- FLOPs


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("explicit", [True, None])
def test_flops_match_a_counted_forward_and_backward_pass(name: str, explicit: bool | None) -> None:
    config, rows, length, sources, asked = tiny(**FAMILIES[name]), 2, 10, 6, 7
    two = config.num_source_layers > 0
    model = Transformer(config, [Head("lm")], seed=1)
    stream = stream_of(rows=rows, length=length, pattern=mask_of(config))
    source = stream_of(rows=rows, length=sources, pattern="full") if two else None
    with FlopCounterMode(display=False) as forward, sdpa_kernel(SDPBackend.MATH):
        states = model(Batch(stream, {}, {}, source), explicit=explicit)["stream"].flatten(0, 1)[:asked, None]
        head = model.heads["lm"]
        out = head.project(head.features(states)).square().sum()
    with FlopCounterMode(display=False) as backward, sdpa_kernel(SDPBackend.MATH):
        out.backward()
    args = (rows * length, rows * sources * two, asked, length, sources)
    assert forward_flops(config, *args) == pytest.approx(forward.get_total_flops(), rel=0.01)
    both = forward.get_total_flops() + backward.get_total_flops()
    assert flops(config, *args) == pytest.approx(both, rel=0.01)


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize(("buckets", "most"), [(32, 64), (0, 12), (32, 20)])
@pytest.mark.parametrize("length", [6, 20])
def test_flops_of_relative_tables_do_not_depend_on_how_positions_are_said(
    buckets: int, most: int, length: int, contiguous: bool
) -> None:
    """A short row reads a part of the table (but for 32 buckets of 20, which rise too fast), in `lm.logits` too."""
    config = tiny(positions="deberta", relative_buckets=buckets, relative_max_distance=most, visibility="bidirectional")
    model = Transformer(config, [Head("lm")], seed=1)
    stream = replace(stream_of(rows=2, length=length, pattern="full"), contiguous=contiguous)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(Batch(stream, {}, {}))
    assert forward_flops(config, 2 * length, context=length) == counter.get_total_flops()


def test_heads_cost_only_at_their_targets() -> None:
    config = tiny(**FAMILIES["bert"])
    assert head_flops(config, Head("lm")) == 2 * (32 * 32 + 50 * 32)
    assert head_flops(config, Head("pair", over="classes", size=2)) == 2 * (32 * 32 + 2 * 32)
    asked = [(Head("lm"), 5), (Head("pair", over="classes", size=2), 2)]
    assert flops(config, 0, 0, asked) == 3 * (5 * 2 * 2624 + 2 * 2 * 1088)


@pytest.mark.parametrize("window", [None, 0, 2, 50])
@pytest.mark.parametrize("pattern", ["causal", "full", "prefix"])
def test_visible_keys_are_those_of_the_mask(pattern: Any, window: int | None) -> None:
    text = one_text(tokens_of(1, 11)[0], pattern, prefix=4)
    sees = visible(text.block, text.horizon, text.block, text.reveal)
    if window is not None:
        sees = sees & (abs(text.positions[:, None] - text.positions[None]) <= window)
    visibility: Any = "bidirectional" if pattern == "full" else pattern
    assert visible_keys(11, visibility, window, 4) == pytest.approx(sees.sum(1).mean())


@pytest.mark.parametrize("prefix", [None, 0, 1, 2.5, 6.75, 7, 11])
@pytest.mark.parametrize("window", [None, 0, 1, 3, 20])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_visible_keys_in_closed_form(length: int, window: int | None, prefix: float | None) -> None:
    reach = length if window is None else window
    given = length // 2 if prefix is None else min(prefix, length)
    place = np.arange(length)
    for visibility, ahead in [
        ("causal", 0 * place),
        ("bidirectional", length - 1 - place),
        ("prefix", np.maximum(given - 1 - place, 0)),
    ]:
        want = 1 + (np.minimum(place, reach) + np.minimum(ahead, reach)).mean()
        assert visible_keys(length, visibility, window, prefix) == pytest.approx(want)


def test_visible_keys_of_packed_documents_are_those_of_the_mask() -> None:
    texts = [one_text(t[:n], "causal") for t, n in zip(tokens_of(3, 9), (9, 2, 5), strict=True)]
    row = laid(texts, [[0, 1, 2]], 16)
    sees = visible(row.block[0], row.horizon[0], row.block[0], row.reveal[0]).float()
    assert packed_keys([9, 2, 5]) == pytest.approx(float(sees.sum(1).mean()))


def test_visible_products_cost_less_than_dense_ones_by_the_keys_hidden() -> None:
    config = tiny(attention_pattern="GL", window=3)
    dense, seen = (forward_flops(config, 16, context=16, attended=a) for a in _ATTENDED)
    hidden = 2 * 16 - visible_keys(16) - visible_keys(16, window=3)
    assert dense - seen == pytest.approx(16 * 4 * 32 * hidden)
    two = tiny(num_source_layers=1)
    dense, seen = (forward_flops(two, 16, 8, 0, 16, 8, a) for a in _ATTENDED)
    assert dense - seen == pytest.approx(2 * 16 * 4 * 32 * (16 - visible_keys(16)))  # the source is seen as a whole


_ATTENDED: tuple[Attended, Attended] = ("dense", "visible")


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("explicit", [True, None])
def test_activations_are_what_the_backward_pass_keeps(name: str, explicit: bool | None) -> None:
    settings = {**FAMILIES[name], "hidden_size": 128, "head_size": 32, "num_layers": 4, "max_position": 64}
    two = "num_source_layers" in settings
    config = tiny(**{**settings, "num_source_layers": 4 * two})
    model = Transformer(config, [Head("lm")])
    kept: dict[int, int] = {}
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    batch = Batch(stream_of(3, 48, mask_of(config)), {}, {}, stream_of(3, 48, "full") if two else None)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        states = model(batch, explicit=explicit)["stream"]
    assert states.requires_grad
    formula = 3 * 4 * activation_numbers(config, 48, 48 * two, explicit=bool(explicit))
    assert 1 / 1.3 < sum(kept.values()) / formula < 1.3


def test_memory_of_the_optimizers() -> None:
    from unmask.config import TrainConfig
    from unmask.train.optim import Optimizer

    for name in ("gpt2", "mixtral", "t5", "deberta v1", "xlnet", "deepseek", "nanochat"):
        config = tiny(**FAMILIES[name])
        model = Transformer(config, [Head("lm")])
        for kind in ("adamw", "muon"):
            held = Optimizer(model, TrainConfig(optimizer=kind)).state_bytes()
            held -= 4 * len(list(model.parameters()))  # each parameter's step number
            assert memory(config, optimizer=kind).optimizer == held, (name, kind)
    assert memory(config).weights == 4 * parameters(config) == memory(config).gradients


def test_the_cache_holds_what_the_formula_says() -> None:
    from unmask.model.attention import Cache

    for name in ("gpt2", "qwen3", "mistral", "deepseek", "t5", "gpt3"):
        config = tiny(**FAMILIES[name])
        model, cache = Transformer(config, [Head("lm")]), Cache()
        source = stream_of(2, 6, "full") if config.num_source_layers else None
        with torch.no_grad():
            memory_of = None if source is None else model.encode(source)
            model.decode(stream_of(2, 10, "causal"), memory_of, source, cache)
        own = sum(x.numel() for pair in cache.layers.values() for x in pair) // (2 * cache.capacity)
        crossed = sum(x.numel() for pair in cache.memory.values() for x in pair) // (2 * 6)
        size = cache_numbers(config)
        assert (size.token + size.local, size.source) == (own, crossed), name
    assert cache_numbers(tiny(**FAMILIES["gpt3"])).local == cache_numbers(tiny(**FAMILIES["gpt3"])).token
    # DeepSeek-V2, section 2.1.4: 9/2 head sizes a layer with key_rank = 4 and rotary_size = 1/2 of them
    v3 = preset_config("deepseek-v3")
    assert cache_numbers(v3).latent == v3.num_layers * 9 * 128 // 2
