"""Rows that are being written: from prompts to one token after another, with a key–value cache.

A prompt is laid out as the objective lays out its sources: causal, as a prefix visible both ways, or to the
encoder. Everything after it is one rule: the next token's position, reveal and horizon are the last one's plus 1 (GLM:
the place inside the span, reveal and horizon). UniLM's cloze models answer at a [MASK] that stands where the next token
will, and is forgotten again.

Legend: B rows, T tokens of a prompt, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from unmask.batch import Stream, starts
from unmask.data.collate import collate
from unmask.errors import UserError
from unmask.evaluation.base import Model, device_of, objective_of, shape_of
from unmask.evaluation.plans import laid, token_head
from unmask.model.attention import Cache
from unmask.objectives.base import Objective, Plan
from unmask.objectives.layout import Pairs, Ragged
from unmask.objectives.unilm import UniLM
from unmask.tokens.tokenizer import Tokenizer
from unmask.train.devices import to_device


@dataclass(frozen=True)
class Start:
    """One row before its first step: a source, the beginning of the target, its number for sampling, and the plan under
    which mode tokens stand in front (`abilities.spoken`), one for all rows that are written together."""

    source: np.ndarray
    target: np.ndarray
    sample: int
    plan: Plan = "decoder"


class Steps:
    """Rows being written: the logits of their next tokens, and the cache of what they hold."""

    def __init__(self, model: Model, begin: Sequence[Start], tokens: int = 0) -> None:
        """`tokens` may be written at most: the cache has room for them from the start. 0 = that is not known."""
        self.model, self.network = model, model.network
        self.device, self.shape = device_of(self.network), shape_of(model)
        self.head = self.network.heads[token_head(objective_of(model)).uses]
        stream, self.source = self._prompt(begin)
        self.memory: Tensor | None = None if self.source is None else self.network.encode(self.source)
        self.cache = Cache(capacity=min(stream.tokens.shape[1] + tokens, self.shape.stream + 1))
        last = (stream.block != 0).sum(1) - 1  # prompts of unequal length are padded on the right
        b = torch.arange(len(begin), device=self.device)
        self.states: Tensor = self.network.decode(stream, self.memory, self.source, self.cache, at=last[:, None])[:, 0]
        self.typed, self.inside = stream.token_type is not None, stream.positions2 is not None
        none = torch.zeros_like(stream.positions)
        second, types = (none if x is None else x for x in (stream.positions2, stream.token_type))
        self.vectors = torch.stack([stream.positions, second, types, stream.reveal, stream.horizon])[:, b, last]
        self.moves = torch.tensor([0, 1, 0, 1, 1] if self.inside else [1, 0, 0, 1, 1], device=self.device)[:, None]
        if isinstance(objective := objective_of(model), UniLM):
            self.vectors[2] = 5  # the second half, where the prompt is all of the first
        self.length = last + 1
        self.mask = model.vocabulary.need("mask") if _by_masks(objective) else None

    def logits(self) -> Tensor:
        """(B, V) of the next token."""
        states = self.states if self.mask is None else self._at_mask(self.mask)
        logits: Tensor = self.head.project(self.head.features(states[:, None])).float()
        return logits

    def _at_mask(self, mask: int) -> Tensor:
        """(B, d) what a [MASK] in the next token's place says; the cache is as before."""
        vectors = self.vectors
        states = self._read(torch.full_like(vectors[0], mask))
        self.vectors, self.cache.length = vectors, self.cache.length - 1
        return states

    def room(self) -> list[int]:
        """(B,) how many tokens may still be written: the last one of all is not read, unless as a [MASK]."""
        return (self.shape.stream - self.length + (self.mask is None)).tolist()

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows in this order, repeats allowed; their next tokens must follow."""
        if list(rows) == list(range(self.vectors.shape[1])):
            return
        at = torch.tensor(rows, device=self.device)
        self.cache.select(at)
        self.vectors, self.length = self.vectors[:, at], self.length[at]
        self.memory = None if self.memory is None else self.memory[at]
        self.source = None if self.source is None else self.source.map(lambda a: a[at])

    def add(self, tokens: Sequence[int]) -> None:
        """Write down the (B,) tokens just chosen."""
        self.states = self._read(torch.tensor(tokens, dtype=torch.int32, device=self.device))
        self.length = self.length + 1

    def _read(self, tokens: Tensor) -> Tensor:
        """(B, d) the states of (B,) tokens at the next places."""
        self.vectors = self.vectors + self.moves
        positions, second, types, reveal, horizon = self.vectors.int()[..., None]
        new = tokens.int()[:, None]
        stream = Stream(
            new,
            positions,
            torch.ones_like(new),
            reveal,
            horizon,
            token_type=types if self.typed else None,
            positions2=second if self.inside else None,
            pattern="order",
        )
        states: Tensor = self.network.decode(stream, self.memory, self.source, self.cache)[:, -1]
        return states

    def _prompt(self, begin: Sequence[Start]) -> tuple[Stream, Stream | None]:
        """(B, T) streams of the starts, as tensors: the layout of pairs whose target ends where writing begins."""
        source = [s.source for s in begin]
        target = [np.append(s.target, 0) for s in begin]  # the layout drops the last token: nothing reads the 0
        pairs = Pairs(
            Ragged(np.concatenate(source).astype(np.int32), starts([len(s) for s in source])),
            Ragged(np.concatenate(target).astype(np.int32), starts([len(t) for t in target])),
        )
        examples = laid(objective_of(self.model), pairs, begin[0].plan, self.model.vocabulary)
        batch = collate({"prompt": examples}, {"prompt": ()})
        for s, most in ((batch.stream, self.shape.stream), (batch.source, self.shape.source)):
            if s is not None and s.tokens.shape[1] > most:
                raise UserError(
                    f"a prompt of {s.tokens.shape[1]} tokens (control tokens included) goes beyond the {most} "
                    "that the model was trained on: shorten it"
                )
        if not batch.stream.reveal.any():  # nothing is hidden: a prefix that ends with the prompt
            batch = replace(batch, stream=replace(batch.stream, pattern="full"))
        batch = to_device(batch, self.device)
        return batch.stream, batch.source


def _by_masks(objective: Objective) -> bool:
    return isinstance(objective, UniLM) and not objective.next_token


class Text:
    """How what is written after one prompt reads."""

    def __init__(self, tokenizer: Tokenizer, shown: np.ndarray, stops: tuple[str, ...] = ()) -> None:
        self.tokenizer, self.stops = tokenizer, stops
        self.shown = [int(i) for i in shown]
        self.before = self.tokenizer.decode(self.shown)

    def read(self, ids: Sequence[int]) -> str:
        """What the written ids add to the prompt's text: pieces carry the blank before them."""
        whole = self.tokenizer.decode([*self.shown, *ids])
        return whole[len(self.before) :] if whole.startswith(self.before) else self.tokenizer.decode(list(ids))

    def holds_stop(self, ids: Sequence[int]) -> bool:
        return self.before_stop(ids) is not None

    def before_stop(self, ids: Sequence[int]) -> str | None:
        """The text up to its first stop string; None = it holds none."""
        if not self.stops:
            return None
        text = self.read(ids)
        found = [at for s in self.stops if (at := text.find(s)) >= 0]
        return text[: min(found)] if found else None
