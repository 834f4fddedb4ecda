"""Everything that one seed's model is asked, as plain numbers.

Legend: T tokens, d hidden size, H heads, L layers.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from unmask.data.worlds import KINDS, World
from unmask.labs.inside import ablation
from unmask.labs.inside.forward import Trace, Weights, entropy, forward
from unmask.labs.inside.model import Piece, Reading, decode, encode, pieces
from unmask.lm import LM
from unmask.model.transformer import Transformer

QUESTION, FACT, NAME = "q: where does base live? a:", "base lives in ", "base"
"""The notes' prompts. The answer to a question is a blank, then the city: heads are shown at both places."""
PLACES = ((1, 8), (9, 16), (17, 48), (49, 96))
BY_HAND = 50
"""Held-out pieces whose logits are compared with the model's."""


class Gone(NamedTuple):
    """The model without a part."""

    part: str
    bits: float
    """A character of held-out text."""
    facts: float
    """Share completed right."""
    questions: float
    """The same of questions about people whom no training question names."""


class Portrait(NamedTuple):
    """Where a head looks from the last position of a prompt."""

    layer: int
    head: int
    entropy: float
    """Nats."""
    top: str
    """The character with most weight, and where it stands (0 = the line end in front)."""
    top_at: int
    top_weight: float
    name: float
    """Weight on the name's characters,"""
    itself: float
    start: float
    """and on the line end in front."""


class StepShape(NamedTuple):
    step: str
    letters: str
    shape: tuple[int, ...]
    what: str


@dataclass(frozen=True)
class Opened:
    """What one seed's model says."""

    reading: Reading
    seed: int
    parameters: int
    by_hand: float
    """Largest difference of logits from the forward pass by hand, in single precision as the model runs,"""
    by_hand_prompt: float
    """at the notes' prompt alone,"""
    by_hand_double: float
    """and of all in double precision."""
    largest_logit: float
    shapes: list[StepShape]
    future: float
    """All heads' weight on positions to the right, summed over the held-out text."""
    disturbed: float
    """Largest change of the model's own logits at positions before a character that was changed."""
    entropies: list[list[float]]
    """(L, H) nats, the mean over all positions of the held-out text,"""
    uniform: float
    """and of an attention that spreads evenly over what it may see."""
    portraits: dict[str, list[Portrait]]
    strokes: dict[str, tuple[float, float]]
    """Length of what each part writes: at the last position of `FACT`, and the mean over the held-out text."""
    gone: list[Gone]
    kinds: dict[str, float]
    """Bits a character of the held-out lines of each kind."""
    places: dict[str, float]
    """The same of characters by their place in the window."""
    samples: list[tuple[str, str]]

    def without(self, part: str) -> Gone:
        return next(g for g in self.gone if g.part == part)


PROMPTS = (
    FACT,
    f"{QUESTION} ",
    "11+21=",
    "review: the soup was tasty and the host was kind. rating: ",
    "review: the soup was bland but the host was kind. rating: ",
)


def open_up(lm: LM, world: World, reading: Reading, seed: int) -> Opened:
    """Ask everything."""
    network = lm.network
    held = pieces(lm, world, reading)
    some = [piece.read for piece in held[:: max(1, len(held) // BY_HAND)]]
    weights = arrays(network)
    traces = [forward(weights, piece.read, lm.config.num_heads) for piece in held]
    single, double, largest = differences(network, some)
    entropies, uniform = spread_of(traces)
    fact = _read(lm, FACT)
    return Opened(
        reading=reading,
        seed=seed,
        parameters=sum(p.numel() for p in network.parameters()),
        by_hand=single,
        by_hand_prompt=differences(network, [fact])[0],
        by_hand_double=double,
        largest_logit=largest,
        shapes=shapes(forward(weights, fact, lm.config.num_heads)),
        future=sum(future(trace) for trace in traces),
        disturbed=disturbed(network, some),
        entropies=entropies,
        uniform=uniform,
        portraits={prompt: portraits(lm, weights, prompt) for prompt in (QUESTION, f"{QUESTION} ")},
        strokes=_strokes(forward(weights, fact, lm.config.num_heads), traces),
        gone=gone(lm, world, held),
        kinds=_kinds(network, held),
        places=_places(network, held),
        samples=list(zip(PROMPTS, ablation.completed(lm, network, PROMPTS), strict=True)),
    )


def arrays(network: Transformer) -> Weights:
    """The weights, out of torch."""
    return {name: value.detach().cpu().numpy() for name, value in network.state_dict().items()}


def differences(network: Transformer, rows: Sequence[np.ndarray]) -> tuple[float, float, float]:
    """Largest difference of logits by hand and by the model in single and in double precision; the largest logit."""
    exact = copy.deepcopy(network).double()
    heads, worst, largest = network.config.num_heads, [0.0, 0.0], 0.0
    for k, one in enumerate((network, exact)):
        weights = arrays(one)
        for row in rows:
            told = ablation.logits(one, [row])[0].numpy()
            mine = forward(weights, row, heads).logits
            worst[k] = max(worst[k], float(np.abs(told - mine).max()))
            largest = max(largest, float(np.abs(told).max()))
    return worst[0], worst[1], largest


def future(trace: Trace) -> float:
    """All weight above the diagonal."""
    return float(sum(np.triu(layer.weights, 1).sum() for layer in trace.layers))


def disturbed(network: Transformer, rows: Sequence[np.ndarray]) -> float:
    """Change each row's second half: how far do the model's logits in the first half move?"""
    worst = 0.0
    for row in rows:
        half = len(row) // 2
        other = row.copy()
        other[half:] = (other[half:] + 1) % network.config.vocab_size
        before, after = (ablation.logits(network, [read])[0, :half] for read in (row, other))
        worst = max(worst, float((before - after).abs().max())) if half else worst
    return worst


def spread_of(traces: Sequence[Trace]) -> tuple[list[list[float]], float]:
    """(L, H) mean entropy over all positions, and that of even attention."""
    each = [np.stack([entropy(layer.weights.astype(np.float64)) for layer in t.layers]) for t in traces]  # (L, H, T)
    even = np.concatenate([np.log(np.arange(1, e.shape[-1] + 1)) for e in each])
    return np.concatenate(each, -1).mean(-1).tolist(), float(even.mean())


def portraits(lm: LM, weights: Weights, prompt: str) -> list[Portrait]:
    """Every head at the last position of a prompt."""
    read = _read(lm, prompt)
    begin = prompt.index(NAME) + 1  # behind the line end
    out = []
    for i, layer in enumerate(forward(weights, read, lm.config.num_heads).layers):
        for h, row in enumerate(layer.weights[:, -1].astype(np.float64)):
            at = int(row.argmax())
            top = "line end" if at == 0 else decode(lm, [int(read[at])])
            name = float(row[begin : begin + len(NAME)].sum())
            out.append(
                Portrait(i, h, float(entropy(row)), top, at, float(row[at]), name, float(row[-1]), float(row[0]))
            )
    return out


def gone(lm: LM, world: World, held: Sequence[Piece]) -> list[Gone]:
    """The model without each part."""
    facts, questions = ablation.facts(world), ablation.questions(world)
    out = []
    for part in ablation.parts(lm.config):
        network, order = ablation.without(lm.network, part.zeroed), part.order
        out.append(
            Gone(
                part.name,
                float(ablation.bits(network, held, order).mean()),
                ablation.right(lm, network, facts, order),
                ablation.right(lm, network, questions, order),
            )
        )
    return out


def shapes(trace: Trace) -> list[StepShape]:
    return [StepShape(s.name, s.letters, s.value.shape, s.what) for s in trace.steps()]


def _strokes(one: Trace, traces: Sequence[Trace]) -> dict[str, tuple[float, float]]:
    everywhere = [trace.strokes() for trace in traces]
    mean = {
        name: float(np.concatenate([np.linalg.norm(s[name], axis=-1) for s in everywhere]).mean())
        for name in everywhere[0]
    }
    return {name: (float(np.linalg.norm(value[-1])), mean[name]) for name, value in one.strokes().items()}


def _kinds(network: Transformer, held: Sequence[Piece]) -> dict[str, float]:
    bits, kinds = ablation.bits(network, held), np.concatenate([piece.kind for piece in held])
    return {kind: float(bits[kinds == i].mean()) for i, kind in enumerate(KINDS)}


def _places(network: Transformer, held: Sequence[Piece]) -> dict[str, float]:
    bits, at = ablation.bits(network, held), np.concatenate([np.arange(1, len(piece.say) + 1) for piece in held])
    return {f"{a} to {b}": float(bits[(at >= a) & (at <= b)].mean()) for a, b in PLACES}


def _read(lm: LM, prompt: str) -> np.ndarray:
    return np.array([lm.vocabulary.need("bos"), *encode(lm, prompt)])
