"""Beam search over the texts that may follow one prompt: which beams live on, which end, when to stop.

It knows tokens and their log-probabilities; the model that gives them is `evaluation.generate`'s affair. Step for step
it is `_beam_search` of transformers 5.24 (`generate(num_beams=k, do_sample=False)`), one prompt at a time, so that
neither the batch nor the other prompts matter. Two things differ, where fewer continuations exist than beams: no
text is found twice, and none that the model may not write.

Legend: k beams, W ≤ k rows that are written for a prompt now, c candidates a row, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from unmask.errors import UserError


@dataclass(frozen=True)
class Beams:
    """How wide is searched, how found texts are compared, and when the search ends.

    count           beams k
    length_penalty  a text's score is Σ log p / length ** length_penalty: above 0 favours long texts, 0 is the plain
                    sum. The length counts every written token, the one that ended the text included, and no prompt
    early_stopping  when k texts are found. False: stop if the best beam, scored at its present length, is no better
                    than the worst text found; never: the same, but with a length_penalty above 0 the beam is scored
                    at the greatest length that it may reach; True: stop at once
    """

    count: int = 4
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UserError(f"beams={self.count} must be at least 1")
        if not abs(self.length_penalty) <= 10:
            raise UserError(f"length_penalty={self.length_penalty} must lie between -10 and 10")
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise UserError(f"early_stopping={self.early_stopping!r} must be True, False or 'never'")

    def score(self, logprob: float, length: int) -> float:
        """Σ log p / length ** length_penalty."""
        return float(logprob / length**self.length_penalty)

    def candidates(self, ends: int) -> int:
        """How many continuations are looked at: enough for k to live on if every beam ends in each of `ends` ways."""
        return max(2, 1 + ends) * self.count


@dataclass(frozen=True)
class Found:
    """A finished text: its tokens with the one that ended it, Σ log p, and the score it was ranked by."""

    ids: tuple[int, ...]
    logprob: float
    score: float


class Search:
    """The search after one prompt.

    parents  (W,) which of the previous rows each row continues; tokens (W,) what it continues it with
    found    the best k finished texts so far, best first
    """

    def __init__(
        self, beams: Beams, limit: int, ends: frozenset[int], stops: Callable[[tuple[int, ...]], bool] | None = None
    ) -> None:
        """`limit` tokens are written at most; a text ends with a token of `ends`, or where `stops` says so."""
        self.beams, self.limit, self.ends, self.stops = beams, limit, ends, stops
        self.ids: list[tuple[int, ...]] = [()]
        self.scores = np.zeros(1)
        self.parents: list[int] = []
        self.tokens: list[int] = []
        self.found: list[Found] = []
        self.done = False

    def take(self, log_p: np.ndarray, tokens: np.ndarray) -> None:
        """One step: (W, c) log-probabilities of each row's likeliest tokens in descending order, and those tokens.

        Equal sums keep the order of rows, then of candidates. Only the first k continuations may become finished
        texts; those behind them are there to live on.
        """
        k = self.beams.count
        total = (self.scores[:, None] + log_p).ravel()
        order = np.argsort(-total, kind="stable")[: self.beams.candidates(len(self.ends))]
        live: list[tuple[int, int, float]] = []
        found: list[Found] = []
        for rank, at in enumerate(order.tolist()):
            if total[at] == -np.inf:
                break
            parent, token, logprob = at // log_p.shape[1], int(tokens.flat[at]), float(total[at])
            ids = (*self.ids[parent], token)
            if not self._finished(ids):
                live.append((parent, token, logprob))
            elif rank < k:
                found.append(Found(ids, logprob, self.beams.score(logprob, len(ids))))
        self.found = sorted([*self.found, *found], key=lambda f: -f.score)[:k]  # stable: the earlier found first
        self._follow(live[:k], width=min(k, total.size))

    def _finished(self, ids: tuple[int, ...]) -> bool:
        if ids[-1] in self.ends or len(ids) == self.limit:
            return True
        return self.stops is not None and self.stops(ids)

    def _follow(self, live: list[tuple[int, int, float]], width: int) -> None:
        """Continue these; where fewer live than `width`, copies of the first without probability fill the rows."""
        if not live:
            self.done = True
            return
        live = live + [(*live[0][:2], -math.inf)] * (width - len(live))
        self.ids = [(*self.ids[parent], token) for parent, token, _ in live]
        self.parents, self.tokens = [x[0] for x in live], [x[1] for x in live]
        self.scores = np.array([x[2] for x in live])
        if len(self.found) == self.beams.count:
            self.done = self.beams.early_stopping is True or not self._hope() > self.found[-1].score

    def _hope(self) -> float:
        """The score that the best beam is credited with."""
        reach = self.beams.early_stopping == "never" and self.beams.length_penalty > 0
        return self.beams.score(float(self.scores[0]), self.limit if reach else len(self.ids[0]))


def likeliest(log_p: Tensor, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(B, c) the largest of each row (B, V) in descending order and where they stand, c = min(count, V).

    Equal ones stand in the order of ids, on every device: `topk` alone leaves that open.
    """
    count = min(count, log_p.shape[1])
    values, at = log_p.topk(count)
    if bool(((log_p >= values[:, -1:]).sum(1) > count).any()):  # equals of the last one were left out
        at = log_p.sort(dim=1, descending=True, stable=True).indices[:, :count]
    else:
        at = at.sort(dim=1).values
        at = at.gather(1, log_p.gather(1, at).sort(dim=1, descending=True, stable=True).indices)
    return log_p.gather(1, at).double().cpu().numpy(), at.cpu().numpy()
