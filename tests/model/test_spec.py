"""Parameter counts by formula and by module, and FLOPs against a counted forward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from unmask.batch import Batch, Head
from unmask.config import ModelConfig
from unmask.model.spec import flops, parameters
from unmask.model.transformer import Transformer

from .helpers import stream_of

PLAIN: dict[str, Any] = {"hidden_size": 64, "num_layers": 2}
KNOWN = [
    ({"vocab_size": 44, "max_position": 96, **PLAIN}, 109_056),
    ({"vocab_size": 362, "max_position": 32, **PLAIN}, 125_312),
    ({"vocab_size": 362, "max_position": 32, "num_source_layers": 2, **PLAIN}, 260_992),
    ({"vocab_size": 362, "max_position": 32, "hidden_size": 32, "num_layers": 1}, 25_376),
    ({"vocab_size": 50257, "max_position": 1024, "hidden_size": 768, "num_layers": 12, "num_heads": 12}, 124_439_808),
]
VARIED: list[dict[str, Any]] = [
    {"positions": "rotary", "norm": "rms", "activation": "swiglu", "num_kv_heads": 2, "attention_bias": False},
    {"positions": "t5", "num_source_layers": 3, "norm": "rms", "activation": "geglu_tanh", "tied_head": False},
    {"norm_position": "post", "embedding_norm": True, "token_types": 2, "head_transform": True, "head_bias": True},
    {"qk_norm": True, "head_size": 24, "query_vector": True, "norm_bias": False, "mlp_bias": False},
    {"final_norm": False, "num_source_layers": 1, "token_types": 3},
    {"pooler": True, "intermediate_size": 100, "positions": "sinusoidal", "num_source_layers": 1},
]
HEADS = (
    Head("lm"),
    Head("pair", over="classes", size=2),
    Head("replaced", over="binary"),
    Head("span", over="positions"),
    Head("choice", over="group"),
    Head("boundary", arity=2, extra=7),
    Head("again", module="lm"),
)


def counted(config: ModelConfig, heads: tuple[Head, ...]) -> int:
    with torch.device("meta"):
        model = Transformer(config, heads)
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("settings", "count"), KNOWN)
def test_known_counts(settings: dict[str, Any], count: int) -> None:
    config = ModelConfig(**settings)
    assert parameters(config) == count
    assert counted(config, (Head("lm"),)) == count


@pytest.mark.parametrize("settings", VARIED)
def test_the_formula_counts_what_the_module_holds(settings: dict[str, Any]) -> None:
    config = ModelConfig(vocab_size=50, hidden_size=32, num_layers=2, max_position=20, **settings)
    assert parameters(config, HEADS) == counted(config, HEADS)
    assert parameters(config, ()) == counted(config, ())


@pytest.mark.parametrize("settings", [{}, *VARIED])
def test_flops_match_a_counted_forward_pass(settings: dict[str, Any]) -> None:
    config = ModelConfig(vocab_size=50, hidden_size=32, num_layers=2, max_position=20, **settings)
    model = Transformer(config, [Head("lm")])
    stream, rows, length, targets = stream_of(rows=2, length=10, pattern="causal"), 2, 10, 7
    source = stream_of(rows=2, length=6, pattern="full") if config.num_source_layers else None
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        states = model(Batch(stream, {}, {}, source), explicit=True)["stream"].flatten(0, 1)[:targets, None]
        head = model.heads["lm"]
        head.project(head.features(states))
    sources = rows * 6 if source is not None else 0
    assert flops(config, rows * length, sources, targets, length, 6) == 3 * counter.get_total_flops()
