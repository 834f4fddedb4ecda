"""One part of the model switched off at a time.

A part is switched off in the weights: what it would write into the residual stream is set to 0 in a copy of the state,
and the copy is a model like any other. The mask is no weight: it is opened in the record (`order`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor

from unmask.config import ModelConfig
from unmask.data.worlds import World
from unmask.evaluation.base import evaluating
from unmask.evaluation.inputs import stream_of
from unmask.labs.inside.model import Piece, decode, encode
from unmask.lm import LM
from unmask.model.heads import HeadModule
from unmask.model.transformer import Transformer

Order = Literal["causal", "bidirectional"]
ROWS = 128
LONGEST = 12
"""Characters that an answer may have: cities have at most seven."""


@dataclass(frozen=True)
class Part:
    """A part by name, and how it is switched off."""

    name: str
    zeroed: tuple[str, ...] = ()
    order: Order = "causal"


WHOLE, OPEN = "nothing", "causal mask"


def parts(config: ModelConfig) -> list[Part]:
    """Nothing, then everything that can be switched off, in the order in which a token meets it."""
    out = [Part(WHOLE), Part("positions", ("stack.positions.weight",))]
    for i in range(config.num_layers):
        for name, module in (("attention", "attention.out"), ("feed-forward", "mlp.down")):
            stem = f"stack.layers.{i}.{module}"
            out.append(Part(f"{name} {i}", (f"{stem}.weight", f"{stem}.bias")))
    return [*out, Part(OPEN, order="bidirectional")]


def without(network: Transformer, zeroed: Sequence[str]) -> Transformer:
    """A copy whose named tensors are 0."""
    state = {name: value.clone() for name, value in network.state_dict().items()}
    for name in zeroed:
        state[name] = torch.zeros_like(state[name])
    copy = Transformer(network.config, network.declared.values())
    copy.load_state_dict(state)
    return copy.eval()


def bits(network: Transformer, pieces: Sequence[Piece], order: Order = "causal") -> np.ndarray:
    """(N,) −log2 p of every character of the pieces, line ends among them."""
    out = []
    for begin in range(0, len(pieces), ROWS):
        some = pieces[begin : begin + ROWS]
        said, real = (torch.as_tensor(x) for x in _padded([p.say for p in some]))
        told = logits(network, [p.read for p in some], order).double().log_softmax(-1)
        out.append(-told.gather(-1, said[..., None])[..., 0][real != 0].numpy() / np.log(2))
    return np.concatenate(out)


def completed(lm: LM, network: Transformer, prompts: Sequence[str], order: Order = "causal") -> list[str]:
    """What the network writes after each prompt, always its likeliest character, up to a full stop or line end.

    Everything is read anew for every character: with the mask open, what was read before sees what came after.
    """
    bos, eos = lm.vocabulary.need("bos"), lm.vocabulary.need("eos")
    rows = [np.array([bos, *encode(lm, prompt)]) for prompt in prompts]
    begun = [len(row) for row in rows]
    alive = list(range(len(rows)))
    for _ in range(LONGEST):
        told = logits(network, [rows[i] for i in alive], order)
        last = torch.tensor([len(rows[i]) - 1 for i in alive])
        said = told[torch.arange(len(alive)), last].argmax(-1).tolist()
        for i, token in zip(alive, said, strict=True):
            rows[i] = np.append(rows[i], token)
        alive = [i for i, t in zip(alive, said, strict=True) if t != eos and decode(lm, [t]) != "."]
        alive = [i for i in alive if len(rows[i]) < network.config.max_position]
        if not alive:
            break
    return [decode(lm, [t for t in row[n:].tolist() if t != eos]) for row, n in zip(rows, begun, strict=True)]


def facts(world: World) -> dict[str, str]:
    """Prompt → answer for everything that the world states."""
    return {f"{name} lives in ": f"{city}." for name, city in world.facts.items()}


def questions(world: World) -> dict[str, str]:
    """The same for the people that no training question is about."""
    split = (line.rsplit(" ", 1) for line in world.lines("questions", "valid"))
    return {f"{asked} ": answer for asked, answer in split}


def right(lm: LM, network: Transformer, asked: dict[str, str], order: Order = "causal") -> float:
    """Share of prompts that are completed to the letter."""
    said = completed(lm, network, list(asked), order)
    return float(np.mean([a == b for a, b in zip(said, asked.values(), strict=True)]))


def logits(network: Transformer, rows: Sequence[np.ndarray], order: Order = "causal") -> Tensor:
    """(B, T, V) of rows (T,), the shorter ones padded on the right."""
    ids, real = _padded(rows)
    with evaluating(network):
        states = network.decode(stream_of(ids, order, real))
        return cast(HeadModule, network.heads["lm"]).project(states.flatten(0, 1)).view(*states.shape[:2], -1)


def _padded(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(B, T) ids, padded on the right, and 1 where they are real."""
    ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
    real = np.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)], real[i, : len(row)] = row, 1
    return ids, real
