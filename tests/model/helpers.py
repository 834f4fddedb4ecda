"""Small records and models for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask import batch as record
from unmask.batch import Head, Pattern, Stream
from unmask.config import ModelConfig
from unmask.model.transformer import Transformer

VOCABULARY = 50


def model_of(dtype: torch.dtype = torch.float64, heads: Sequence[Head] = (Head("lm"),), **settings: Any) -> Transformer:
    """A tiny model whose every parameter is random: norms and biases too."""
    values = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position": 40}
    model = Transformer(ModelConfig(**{**values, **settings}), heads).to(dtype)
    return perturb(model)


def perturb(model: Any, seed: int = 7) -> Any:
    """Add N(0, 0.1) to every parameter, in place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return model


def tokens_of(rows: int, length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(5, VOCABULARY, (rows, length)).astype(np.int32)


def stream_of(
    rows: int = 2, length: int = 10, pattern: Pattern = "full", prefix: int = 3, seed: int = 0, **more: Any
) -> Stream:
    """Equal rows without padding, as torch tensors."""
    tokens = tokens_of(rows, length, seed)
    return laid([one_text(row, pattern, prefix) for row in tokens], [[i] for i in range(rows)], length, **more)


def one_text(tokens: np.ndarray, pattern: Pattern, prefix: int = 3) -> Stream:
    """One ragged text under a pattern."""
    start = np.array([0, len(tokens)])
    if pattern == "prefix":
        return record.prefix(tokens, start, np.array([min(prefix, len(tokens))]))
    return {"full": record.full, "causal": record.causal, "order": record.right_to_left}[pattern](tokens, start)


def laid(texts: Sequence[Stream], rows: Sequence[Sequence[int]], width: int, left: bool = False, **more: Any) -> Stream:
    """Texts laid into rows of `width`: `rows` lists which texts share a row. Padding is block 0.

    `contiguous` and `isolated` are set as collation would, unless given.
    """
    names = ("tokens", "positions", "block", "reveal", "horizon")
    out = {name: np.zeros((len(rows), width), np.int32) for name in names}
    for r, members in enumerate(rows):
        at = width - sum(len(texts[m].tokens) for m in members) if left else 0
        for number, m in enumerate(members):
            end = at + len(texts[m].tokens)
            for name in names:
                out[name][r, at:end] = number + 1 if name == "block" else getattr(texts[m], name)
            at = end
    isolated = all(len(m) == 1 and len(texts[m[0]].tokens) == width for m in rows)
    flags = {"pattern": texts[0].pattern, "isolated": isolated, "contiguous": True, **more}
    return Stream(**{k: torch.from_numpy(v) for k, v in out.items()}, **flags)


def logits_of(model: Transformer, states: Tensor) -> Tensor:
    """(…, V) of states (…, d) through the head `lm`."""
    head = model.heads["lm"]
    return head.project(head.features(states.reshape(-1, 1, states.shape[-1]))).view(*states.shape[:-1], -1)


def close(a: Tensor, b: Tensor, relative: float = 1e-5, absolute: float = 0.0) -> bool:
    """‖a − b‖ ≤ relative · ‖b‖ + absolute."""
    a, b = a.detach(), b.detach()
    return float((a - b).norm()) <= relative * float(b.norm()) + absolute
