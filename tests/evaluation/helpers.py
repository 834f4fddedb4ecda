"""Tiny models over a byte tokenizer, and a stub whose logits are the same everywhere."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unmask.batch import Batch
from unmask.config import ModelConfig, TokenizerConfig
from unmask.lm import LM
from unmask.model.transformer import Transformer
from unmask.objectives import Causal, Masked, PrefixLM, SpanCorruption
from unmask.objectives.base import Objective
from unmask.tokens.tokenizer import Tokenizer

OBJECTIVES: dict[str, Objective] = {
    "causal": Causal(),
    "masked": Masked(),
    "prefix": PrefixLM(layout="prefix"),
    "prefix-encdec": PrefixLM(layout="encdec"),
    "spans": SpanCorruption(layout="encdec"),
    "spans-prefix": SpanCorruption(layout="prefix"),
}


@cache
def tokenizer(kind: str = "byte") -> Tokenizer:
    text = ["the cat sat on the mat, and the dog sat on the log. " * 4, "a cat and a dog and a cat"]
    size = {"byte": 256 + 6 + 8, "bbpe": 256 + 6 + 8 + 40, "wordpiece": 120}[kind]
    return Tokenizer.train(TokenizerConfig(type=kind, vocab_size=size, sentinels=8), text)  # type: ignore[arg-type]


def model_of(name: str, kind: str = "byte", context: int = 0, **settings: Any) -> LM:
    """A tiny model with every parameter random, large enough for its answers to differ; context 0 = max_position."""
    objective, words = OBJECTIVES[name], tokenizer(kind)
    values = {
        "vocab_size": words.vocabulary.size,
        "hidden_size": 32,
        "num_layers": 2,
        "num_source_layers": 2 if name in ("spans", "prefix-encdec") else 0,
        "num_heads": 4,
        "max_position": 48,
        "visibility": objective.visibility,
    }
    network = Transformer(ModelConfig(**{**values, **settings}), objective.heads())
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in network.parameters():
            p += 0.15 * torch.randn(p.shape, generator=generator)
    return LM(network.eval(), context or network.config.max_position, words, objective)


class Stub(nn.Module):
    """Answers every position with the same logits (V,), whatever it reads."""

    def __init__(self, logits: Tensor, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.heads = {"lm": StubHead(logits)}

    def forward(self, batch: Batch, generator: Any = None, at: Any = None) -> dict[str, Tensor]:
        streams = {"stream": batch.stream, "source": batch.source}
        return {k: torch.zeros(*s.tokens.shape, 1) for k, s in streams.items() if s is not None}


class StubHead:
    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def features(self, x: Tensor, extra: Tensor | None = None) -> Tensor:
        return x[:, 0]

    def project(self, features: Tensor) -> Tensor:
        return self.logits.expand(len(features), -1)


def stub_of(name: str, kind: str = "byte", max_position: int = 32) -> tuple[LM, np.ndarray]:
    """A model of fixed unigram logits, and (V,) their log-probabilities in nats."""
    words = tokenizer(kind)
    size = words.vocabulary.size + 5  # a padded table
    logits = torch.randn(size, generator=torch.Generator().manual_seed(1))
    config = ModelConfig(vocab_size=size, max_position=max_position, visibility=OBJECTIVES[name].visibility)
    network: Any = Stub(logits, config)
    return LM(network, max_position, words, OBJECTIVES[name]), logits.double().log_softmax(-1).numpy()
