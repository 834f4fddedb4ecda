"""The table of memory in docs/training-at-scale.md: python benchmarks/memory.py. By formula, nothing is measured."""

from __future__ import annotations

from unmask.config import ModelConfig
from unmask.model.cost import activation_numbers, memory
from unmask.model.spec import parameters

CONTEXT = 1024
GPT2 = {"vocab_size": 50257, "max_position": 1024, "norm": "layer", "tied_head": True}
LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "num_layers": 32,
    "num_heads": 32,
    "intermediate_size": 11008,
    "max_position": 4096,
    "positions": "rotary",
    "norm": "rms",
    "activation": "swiglu",
    "attention_bias": False,
    "mlp_bias": False,
    "tied_head": False,
}
MODELS = {
    "GPT-2 (d 768, 12 layers)": ModelConfig(hidden_size=768, num_layers=12, num_heads=12, **GPT2),
    "d 1,024, 24 layers": ModelConfig(hidden_size=1024, num_layers=24, num_heads=16, **GPT2),
    "d 2,048, 24 layers": ModelConfig(hidden_size=2048, num_layers=24, num_heads=16, **GPT2),
    "Llama (d 4,096, 32 layers)": ModelConfig(**LLAMA),
}


def row(config: ModelConfig) -> list[float]:
    """GB: DDP with AdamW and with Muon, FSDP on 8 and on 64 ranks, more with accumulation, activations of a row, and
    with activation checkpointing.
    """
    size = parameters(config)
    one = parameters(config) - parameters(config.model_copy(update={"num_layers": config.num_layers - 1}))
    outside = size - config.num_layers * one  # tables, heads, the last norm
    muon = memory(config, optimizer="muon").optimizer
    in_use = 8 * (2 * one + outside)
    found = [
        18 * size,
        4 * size + 4 * size + muon + 2 * size,
        *((16 / ranks + 2) * size + in_use for ranks in (8, 64)),
        4 * size,
        2 * activation_numbers(config, CONTEXT),
        2 * activation_numbers(config, CONTEXT, recompute=True),
    ]
    return [size / 1e6, *(v / 1e9 for v in found)]


if __name__ == "__main__":
    for name, config in MODELS.items():
        print(f"{name:28}", *(f"{v:8.2f}" for v in row(config)))
