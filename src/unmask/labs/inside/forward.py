"""A forward pass by hand: matrices and arithmetic, no module is called.

What comes out must be what the model says; that nothing else is in the model is thereby shown.

Legend: T tokens, d hidden size, H heads, D head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import erf

Weights = Mapping[str, np.ndarray]
"""Tensors of `model.Transformer` by their names."""


class Step(NamedTuple):
    """name, the shape in letters, what it is, and what came out."""

    name: str
    letters: str
    what: str
    value: np.ndarray


@dataclass(frozen=True)
class LayerTrace:
    """What a layer computed, in order."""

    attention_input: np.ndarray  # (T, d) normalised
    q: np.ndarray  # (H, T, D)
    k: np.ndarray
    v: np.ndarray
    scores: np.ndarray  # (H, T, T), −∞ in the future
    weights: np.ndarray  # (H, T, T), rows sum to 1
    mixed: np.ndarray  # (T, d) the heads' values side by side
    attention: np.ndarray  # (T, d) what attention adds to the stream
    mlp_input: np.ndarray  # (T, d) normalised
    hidden: np.ndarray  # (T, 4d)
    activated: np.ndarray  # (T, 4d)
    mlp: np.ndarray  # (T, d) what the feed-forward layer adds


@dataclass(frozen=True)
class Trace:
    embedded: np.ndarray  # (T, d)
    layers: tuple[LayerTrace, ...]
    final: np.ndarray  # (T, d) normalised
    logits: np.ndarray  # (T, V)

    def strokes(self) -> dict[str, np.ndarray]:
        """Each thing that is added to the residual stream, (T, d)."""
        out = {"embedding": self.embedded}
        for i, layer in enumerate(self.layers):
            out |= {f"attention {i}": layer.attention, f"feed-forward {i}": layer.mlp}
        return out

    def steps(self) -> Iterator[Step]:
        """Every step in order; layers are alike, so the first stands for all."""
        layer = self.layers[0]
        yield Step("embedding + position", "(T, d)", "the residual stream begins", self.embedded)
        yield Step("norm", "(T, d)", "what attention reads", layer.attention_input)
        yield Step("queries", "(H, T, D)", "", layer.q)
        yield Step("keys", "(H, T, D)", "", layer.k)
        yield Step("values", "(H, T, D)", "", layer.v)
        yield Step("scores", "(H, T, T)", "q kᵀ / √D, −∞ in the future", layer.scores)
        yield Step("weights", "(H, T, T)", "softmax of each row", layer.weights)
        yield Step("mixed values", "(T, d)", "heads side by side", layer.mixed)
        yield Step("attention", "(T, d)", "added to the stream", layer.attention)
        yield Step("norm", "(T, d)", "what the feed-forward layer reads", layer.mlp_input)
        yield Step("up", "(T, 4d)", "", layer.hidden)
        yield Step("GELU", "(T, 4d)", "", layer.activated)
        yield Step("feed-forward", "(T, d)", "added to the stream", layer.mlp)
        yield Step("final norm", "(T, d)", "after the last layer", self.final)
        yield Step("logits", "(T, V)", "times the embedding table, transposed", self.logits)


def forward(weights: Weights, tokens: np.ndarray, heads: int, eps: float = 1e-5) -> Trace:
    """One text, tokens (T,), through a pre-norm causal model with learned positions, GELU and a tied table.

    It computes in the precision of the weights.
    """
    table = weights["embedding.weight"]
    x = embedded = table[tokens] + weights["stack.positions.weight"][: len(tokens)]
    layers: list[LayerTrace] = []
    while f"stack.layers.{len(layers)}.attention.qkv.weight" in weights:
        layer = _layer(weights, f"stack.layers.{len(layers)}.", x, heads, eps)
        x = x + layer.attention + layer.mlp
        layers.append(layer)
    final = _norm(x, weights, "stack.final_norm", eps)
    return Trace(embedded, tuple(layers), final, final @ table.T)


def _layer(weights: Weights, name: str, x: np.ndarray, heads: int, eps: float) -> LayerTrace:
    length, d = x.shape
    read = _norm(x, weights, f"{name}attention_norm", eps)
    joint = _linear(read, weights, f"{name}attention.qkv").reshape(length, 3, heads, d // heads)
    q, k, v = joint.transpose(1, 2, 0, 3)
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(d // heads).astype(x.dtype)
    future = np.triu(np.ones((length, length), bool), 1)
    scores = np.where(future, -np.inf, scores).astype(x.dtype)
    attended = softmax(scores)
    mixed = (attended @ v).transpose(1, 0, 2).reshape(length, d)
    attention = _linear(mixed, weights, f"{name}attention.out")
    between = _norm(x + attention, weights, f"{name}mlp_norm", eps)
    hidden = _linear(between, weights, f"{name}mlp.up")
    activated = gelu(hidden)
    mlp = _linear(activated, weights, f"{name}mlp.down")
    return LayerTrace(read, q, k, v, scores, attended, mixed, attention, between, hidden, activated, mlp)


def softmax(scores: np.ndarray) -> np.ndarray:
    """Over the last axis.

    >>> softmax(np.array([0.0, 0.0, -np.inf])).tolist()
    [0.5, 0.5, 0.0]
    """
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(raised / raised.sum(-1, keepdims=True))


def gelu(x: np.ndarray) -> np.ndarray:
    """x Φ(x), the exact one (Hendrycks and Gimpel 2016)."""
    return np.asarray(x * 0.5 * (1 + erf(x / np.sqrt(2).astype(x.dtype))))


def entropy(weights: np.ndarray) -> np.ndarray:
    """Nats of each distribution over the last axis.

    >>> entropy(np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])).round(3).tolist()
    [0.693, 0.0]
    """
    logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    return np.asarray(-(weights * logs).sum(-1) + 0.0)


def _norm(x: np.ndarray, weights: Weights, name: str, eps: float) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    spread = np.sqrt((centred**2).mean(-1, keepdims=True) + np.asarray(eps, x.dtype))
    return np.asarray(centred / spread * weights[f"{name}.weight"] + weights[f"{name}.bias"])


def _linear(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    return np.asarray(x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"])
