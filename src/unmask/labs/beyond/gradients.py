"""How the gradients of objectives stand to each other in one network, and how much of that is noise.

The mean gradient of an objective over texts is compared in direction alone: a cosine of 1 says that a step for one is a
step for the other, 0 that it is none, below 0 that it undoes some. A mean over finitely many texts and masks has noise,
which pulls every cosine to 0; two halves of the texts under one objective tell how much. Windows of training overlap
their neighbours, so a half is the first or the last of them: alternate ones would share text, and its noise with it.

    cosine a b   on the same texts, all of them
    across a b   of a on one half with b on the other, the mean of both ways
    halves a     of a on one half with a on the other: what `across` would be if b asked for the same

across / √(halves a · halves b) is the cosine that infinitely many texts would have (Spearman's correction for
attenuation). Cosines are over the parameters that both use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor, nn

from unmask import keyed
from unmask.batch import Rows
from unmask.data.collate import collate, one_per_row
from unmask.loss import forward_heads
from unmask.objectives.base import Objective, outline
from unmask.objectives.causal import Causal
from unmask.objectives.denoise import PrefixLM
from unmask.objectives.diffuse import Diffusion
from unmask.objectives.masked import Masked
from unmask.objectives.permutation import Permutation
from unmask.tokens.special import Vocabulary
from unmask.train.devices import to_device

OBJECTIVES: Mapping[str, Objective] = {
    "causal": Causal(),
    "prefix": PrefixLM(),
    "masked": Masked(),
    "permutation": Permutation(),
    "diffusion": Diffusion(),
}
"""All of one stack, whose one head says tokens."""
PAIRS = tuple(f"{a} {b}" for a, b in combinations(OBJECTIVES, 2))
PART = 256
"""Texts of a forward pass."""


@dataclass(frozen=True)
class Gradient:
    """Of a loss `of` / `norm`: the gradient of the sum by parameter, None where it is not used."""

    of: tuple[Tensor | None, ...]
    norm: float

    def __add__(self, other: Gradient) -> Gradient:
        return Gradient(tuple(_sum(a, b) for a, b in zip(self.of, other.of, strict=True)), self.norm + other.norm)


def cosine(a: Gradient, b: Gradient) -> float:
    """Over the parameters that both have; 0 where one of them is nought there.

    >>> three_four, four_three = (Gradient((torch.tensor(v), None), 1.0) for v in ([3.0, 4.0], [4.0, 3.0]))
    >>> round(cosine(three_four, four_three), 2)
    0.96
    """
    both = [(x, y) for x, y in zip(a.of, b.of, strict=True) if x is not None and y is not None]
    length = (_dot([(x, x) for x, _ in both]) * _dot([(y, y) for _, y in both])) ** 0.5
    return _dot(both) / length if length else 0.0


def gradient(network: nn.Module, objective: Objective, rows: Rows, vocabulary: Vocabulary) -> Gradient:
    """Of an objective's loss over texts, as in training; `network` must have no dropout."""
    examples = objective(rows, vocabulary)
    place = one_per_row(objective.sizes(outline(rows)))
    batch = to_device(
        collate({objective.type: examples}, {objective.type: objective.heads()}, place), torch.device("cpu")
    )
    (term,) = forward_heads({"model": network}, batch).values()
    return Gradient(torch.autograd.grad(term.sum, list(network.parameters()), allow_unused=True), term.norm)


def over(
    network: nn.Module, objective: Objective, texts: Sequence[np.ndarray], number: np.ndarray, vocabulary: Vocabulary
) -> Gradient:
    """Of an objective over the texts `number`, each a document of word tokens; its number keys a text's noise."""
    total: Gradient | None = None
    for begin in range(0, len(number), PART):
        here = number[begin : begin + PART]
        part = [texts[k] for k in here]
        word = np.ones(sum(map(len, part)), bool)  # every token is a word
        rows = Rows.of(part, keyed.row_keys(0, 0, here, "gradients"), index=here, word=word)
        found = gradient(network, objective, rows, vocabulary)
        total = found if total is None else total + found
    assert total is not None
    return total


def compared(
    network: nn.Module,
    texts: Sequence[np.ndarray],
    vocabulary: Vocabulary,
    objectives: Mapping[str, Objective] = OBJECTIVES,
) -> dict[str, dict[str, float]]:
    """Halves, cosine and across (see above), by the names of objectives and of their pairs, to three digits."""
    number, pairs = np.arange(len(texts)), list(combinations(objectives, 2))
    half = {
        name: [over(network, objective, texts, part, vocabulary) for part in np.array_split(number, 2)]
        for name, objective in objectives.items()
    }
    whole = {name: a + b for name, (a, b) in half.items()}
    found = {
        "halves": {name: cosine(a, b) for name, (a, b) in half.items()},
        "cosine": {f"{a} {b}": cosine(whole[a], whole[b]) for a, b in pairs},
        "across": {f"{a} {b}": (cosine(half[a][0], half[b][1]) + cosine(half[a][1], half[b][0])) / 2 for a, b in pairs},
    }
    return {what: {name: round(v, 3) for name, v in each.items()} for what, each in found.items()}


def unattenuated(found: Mapping[str, Mapping[str, float]], pair: str) -> float:
    """The cosine without noise, from what `compared` found; NaN where a half tells nothing of the other.

    >>> unattenuated({"halves": {"a": 0.5, "b": 0.5}, "across": {"a b": 0.25}}, "a b")
    0.5
    """
    a, b = (found["halves"][name] for name in pair.split())
    return found["across"][pair] / (a * b) ** 0.5 if a > 0 and b > 0 else math.nan


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


def _dot(pairs: Sequence[tuple[Tensor, Tensor]]) -> float:
    return float(torch.stack([(x.double() * y.double()).sum() for x, y in pairs]).sum()) if pairs else 0.0
