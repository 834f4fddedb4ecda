"""How a token is drawn from its distribution, and what a written text is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from unmask import keyed
from unmask.errors import UserError

Stopped = Literal["end", "stop", "tokens", "positions"]


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen from its distribution.

    temperature  0 = the likeliest; else logits are divided by it
    top_k        keep the k likeliest; 0 = all
    top_p        keep the likeliest until their probabilities reach p (Holtzman et al. 2020); 1 = all
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise UserError(f"temperature={self.temperature} must be 0 (greedy) or more, and finite")
        if self.top_k < 0:
            raise UserError(f"top_k={self.top_k} must be 0 (all tokens) or more")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p={self.top_p} must lie above 0 and at most at 1 (all tokens)")
        if self.seed < 0:
            raise UserError(f"seed={self.seed} must be 0 or more")


GREEDY = Sampling()


@dataclass(frozen=True)
class Generation:
    """What was written after one prompt.

    stopped  end: an end token · stop: a stop string · tokens: max_tokens are written · positions: the stream
             holds as many tokens as in training
    logprob  Σ log p of the written tokens, the one that ended it included, under the unfiltered model; of unmasking,
             each given what stood there when it was last predicted: no log-probability of the text
    score    of a beam search: logprob / length ** length_penalty, length counting the same tokens; None elsewhere
    """

    ids: tuple[int, ...]
    text: str
    stopped: Stopped
    logprob: float
    score: float | None = None


def choose(logits: Tensor, sampling: Sampling, samples: np.ndarray, step: int | np.ndarray) -> Tensor:
    """(B,) the token of each row of logits (B, V); forbidden ones are −inf. `step`: of all, or (B,).

    Sampling inverts the cumulative distribution at one uniform, a function of (seed, sample, step): fp64, in the
    order of ids, so that the last bits of a logit hardly ever matter.
    """
    if sampling.temperature == 0:
        return logits.argmax(-1)
    p = (logits.double() / sampling.temperature).softmax(-1)
    v = p.shape[1]
    if 0 < sampling.top_k < v:
        dropped = p.sort(dim=-1, descending=True, stable=True).indices[:, sampling.top_k :]
        p = p.scatter(1, dropped, 0.0)
        p = p / p.sum(-1, keepdim=True)
    if sampling.top_p < 1:
        ranked, order = p.sort(dim=-1, descending=True, stable=True)
        before = ranked.cumsum(-1) - ranked  # mass of likelier tokens: the first always stays
        p = p.scatter(1, order, ranked.masked_fill(before >= sampling.top_p, 0.0))
    mass = p.cumsum(-1)
    key = keyed.row_keys(sampling.seed, 0, samples, "generate")
    u = torch.from_numpy(keyed.uniform(key, np.full(len(samples), step))).to(mass)
    found = torch.searchsorted(mass, (u * mass[:, -1])[:, None], right=True)[:, 0]
    return found.clamp(max=v - 1)
