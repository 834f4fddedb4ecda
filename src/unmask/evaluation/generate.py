"""Writing text: sampling and beam search for models that predict the next token, unmasking for masked ones.

`Writer.write` chooses tokens by `Sampling`, `Writer.search` by `evaluation.beam`; both go through `evaluation.steps`.
A model that fills [MASK]s writes by `evaluation.unmasking`.

Legend: B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from unmask.errors import UserError
from unmask.evaluation.abilities import abilities, elsewhere
from unmask.evaluation.base import Model, device_of, evaluating, objective_of, tokenizer_of
from unmask.evaluation.beam import Beams, Found, Search, likeliest
from unmask.evaluation.prompts import continuation, ends_of
from unmask.evaluation.sampling import GREEDY, Generation, Sampling, Stopped, choose
from unmask.evaluation.steps import Start, Steps, Text
from unmask.evaluation.unmasking import Order, Unmasking, misfit, unmask, unmasks
from unmask.objectives.denoise import SpanCorruption
from unmask.objectives.supervised import Supervised
from unmask.objectives.ul2 import UL2
from unmask.objectives.unilm import UniLM

BATCH = 16
"""Rows decoded together: prompts, or their beams."""


def generate(
    model: Model,
    prompts: str | Sequence[str],
    max_tokens: int = 64,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    stop: str | Sequence[str] = (),
    seed: int = 0,
    batch_size: int = BATCH,
    *,
    min_tokens: int = 0,
    beams: int = 1,
    length_penalty: float = 1.0,
    early_stopping: bool | Literal["never"] = False,
    steps: int = 0,
    order: Order | None = None,
    block: int = 0,
    length: int | None = None,
) -> list[str]:
    """The texts that continue the prompts, without the prompts themselves.

    Sample i of a seed uses its own random numbers, so its text depends on no other prompt and no batch size. A
    model of span corruption writes what it would put for a sentinel after the prompt. With `beams` above 1 the text
    is the best one of a beam search, which draws nothing: see `n_best`. Before `min_tokens` no end token is written.

    Of a model that writes by filling [MASK]s (masked, diffusion, permutation, …), exactly `length` tokens are written
    (None = max_tokens) in so many `steps`, in some `order`, in blocks of `block` tokens: see `unmasking.Unmasking`. One
    that can also write from left to right (hybrids) unmasks where any of these four is given.
    """
    unmasking = None if (steps, order, block, length) == (0, None, 0, None) else (order or "confidence", steps, block)
    rule = rule_of(temperature, top_k, top_p, seed, beams, length_penalty, early_stopping, unmasking)
    most = max_tokens if length is None else length
    if length is not None and length < 1:
        raise UserError(f"length={length} must be at least 1")
    found = n_best(model, prompts, rule, 1, most, stop, batch_size, min_tokens)
    return [texts[0].text for texts in found]


def rule_of(
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    beams: int = 1,
    length_penalty: float = 1.0,
    early_stopping: bool | Literal["never"] = False,
    unmasking: tuple[Order, int, int] | None = None,
) -> Sampling | Beams | Unmasking:
    """Sampling, or with `beams` above 1 a beam search; settings of the one are refused for the other.

    unmasking: the order, steps and block of an `Unmasking` that draws so.
    """
    if unmasking is not None and beams > 1:
        raise UserError(f"beams={beams} searches from left to right: leave out steps, order, block and length")
    if beams == 1:
        if (length_penalty, early_stopping) != (1.0, False):
            raise UserError("length_penalty and early_stopping are of a beam search: give beams=2 or more")
        sampling = Sampling(temperature, top_k, top_p, seed)
        return sampling if unmasking is None else Unmasking(*unmasking, sampling)
    if (temperature, top_k, top_p, seed) != (0.0, 0, 1.0, 0):
        raise UserError(
            f"beams={beams} searches and draws nothing: leave out temperature, top_k, top_p and seed, or give beams=1"
        )
    return Beams(beams, length_penalty, early_stopping)


def generations(
    model: Model,
    prompts: str | Sequence[str],
    max_tokens: int = 64,
    sampling: Sampling | Unmasking = GREEDY,
    stop: str | Sequence[str] = (),
    batch_size: int = BATCH,
    min_tokens: int = 0,
) -> list[Generation]:
    """`generate` with ids, the reason each text stopped, and its log-probability."""
    return [texts[0] for texts in n_best(model, prompts, sampling, 1, max_tokens, stop, batch_size, min_tokens)]


def n_best(
    model: Model,
    prompts: str | Sequence[str],
    rule: Sampling | Beams | Unmasking,
    best: int = 1,
    max_tokens: int = 64,
    stop: str | Sequence[str] = (),
    batch_size: int = BATCH,
    min_tokens: int = 0,
) -> list[list[Generation]]:
    """The `best` texts of each prompt, all different, highest score first; under `Sampling` there is one.

    Of a beam search: a prompt's texts depend on no other prompt, as its search ends by itself. A text that holds a
    stop string is finished, as by an end token: its score counts the tokens up to there, and the text is cut before
    the string. Fewer than `best` come back only where fewer can be written.
    """
    beams = rule.count if isinstance(rule, Beams) else 1
    if not 1 <= best <= beams:
        raise UserError(f"best={best} must lie between 1 and beams={beams}")
    stops = tuple(s for s in ([stop] if isinstance(stop, str) else stop) if s)
    if unmasks(model, rule):
        return [[text] for text in _unmasked(model, prompts, rule, max_tokens, stops, batch_size, min_tokens)]
    if isinstance(rule, Unmasking):
        raise misfit(model)
    begin, shown, ends = _begin(model, prompts, max_tokens, min_tokens)
    writer = Writer(model, Sampling() if isinstance(rule, Beams) else rule, ends, stops, min_tokens)
    together = max(1, batch_size // beams)
    out: list[list[Generation]] = []
    for i in range(0, len(begin), together):
        part = begin[i : i + together], shown[i : i + together], max_tokens
        if isinstance(rule, Beams):
            out += [texts[:best] for texts in writer.search(*part, rule)]
        else:
            out += [[text] for text in writer.write(*part)]
    return out


def _unmasked(
    model: Model,
    prompts: str | Sequence[str],
    rule: Sampling | Beams | Unmasking,
    length: int,
    stops: tuple[str, ...],
    batch_size: int,
    min_tokens: int,
) -> list[Generation]:
    """The text that a model which fills [MASK]s writes after each prompt."""
    kind = objective_of(model).type
    if isinstance(rule, Beams):
        raise UserError(f"a model of {kind} fills [MASK]s in any order, and a beam search goes from left to right")
    if min_tokens:
        raise UserError(f"a model of {kind} writes texts of a given length and no end token: drop min_tokens")
    prompts = [prompts] if isinstance(prompts, str) else list(prompts)
    unmasking = rule if isinstance(rule, Unmasking) else Unmasking(sampling=rule)
    return unmask(model, prompts, unmasking, length, stops, batch_size)


def _begin(
    model: Model, prompts: str | Sequence[str], max_tokens: int, min_tokens: int
) -> tuple[list[Start], list[np.ndarray], frozenset[int]]:
    """How each prompt starts, the ids that its text is read after, and the tokens that end a text."""
    objective, tokenizer, vocabulary = objective_of(model), tokenizer_of(model), model.vocabulary
    if why := abilities(objective).generate:
        raise UserError(f"a model of {objective.type} {why}{elsewhere(model.objective, lambda a: not a.generate)}")
    if max_tokens < 1:
        raise UserError(f"max_tokens={max_tokens} must be at least 1")
    if not 0 <= min_tokens <= max_tokens:
        raise UserError(f"min_tokens={min_tokens} must lie between 0 and max_tokens={max_tokens}")
    prompts = [prompts] if isinstance(prompts, str) else list(prompts)
    encoded = tokenizer.encode_batch(prompts)
    begin = [continuation(objective, ids, i, vocabulary) for i, ids in enumerate(encoded)]
    inside = isinstance(objective, SpanCorruption | UL2 | Supervised)  # what is written is no part of the prompt's text
    none = np.zeros(0, np.int32)
    return begin, [none] * len(prompts) if inside else list(encoded), ends_of(objective, vocabulary)


def continues(model: Model, rule: Sampling | Beams | Unmasking = GREEDY) -> bool:
    """Whether what is written goes on where the prompt ends, as one text; else it answers, or stands behind a token."""
    answers = isinstance(objective_of(model), SpanCorruption | UL2 | Supervised | UniLM)
    return not answers or unmasks(model, rule)


class Writer:
    """Decodes rows of one model; `ends` are the ids that end a text, none of which is written before `min_tokens`."""

    def __init__(
        self,
        model: Model,
        sampling: Sampling,
        ends: frozenset[int],
        stops: tuple[str, ...] = (),
        min_tokens: int = 0,
    ) -> None:
        self.model, self.sampling, self.ends, self.stops = model, sampling, ends, stops
        self.min_tokens = min_tokens
        self.device = device_of(model.network)
        # Padded rows of the table and control tokens are never written, ends apart.
        self.unending = torch.ones(model.config.vocab_size, dtype=torch.bool, device=self.device)
        self.unending[torch.from_numpy(model.vocabulary.ordinary).long()] = False
        self.forbidden = self.unending.clone()
        self.forbidden[list(ends)] = False
        self.unending[list(ends)] = True

    def write(self, begin: Sequence[Start], shown: Sequence[np.ndarray], max_tokens: int) -> list[Generation]:
        """Continue each start; `shown` (B lists of ids) is the text that a continuation is read after."""
        rows = [_Row(s, self._text(ids), self.ends) for s, ids in zip(begin, shown, strict=True)]
        with evaluating(self.model.network):
            steps = Steps(self.model, begin, max_tokens)
            active = rows
            for step in range(max_tokens):
                self._choose(active, steps.logits(), step, steps.room(), step + 1 == max_tokens)
                going = [i for i, row in enumerate(active) if row.stopped is None]
                if not going:
                    break
                if len(going) < len(active):
                    steps.keep(going)
                    active = [active[i] for i in going]
                steps.add([row.ids[-1] for row in active])
        return [row.generation() for row in rows]

    def search(
        self, begin: Sequence[Start], shown: Sequence[np.ndarray], max_tokens: int, beams: Beams
    ) -> list[list[Generation]]:
        """The texts that a beam search finds after each start, best first; see `write`."""
        texts = [self._text(ids) for ids in shown]
        most = beams.candidates(len(self.ends))
        with evaluating(self.model.network):
            steps = Steps(self.model, begin)
            room = steps.room()
            found = [
                Search(beams, min(max_tokens, n), self.ends, text.holds_stop if self.stops else None)
                for n, text in zip(room, texts, strict=True)
            ]
            active, step = found, 0
            while active:
                log_p, tokens = likeliest(self._allowed(steps.logits().log_softmax(-1), step), most)
                width = len(log_p) // len(active)  # rows of each search
                for i, search in enumerate(active):
                    search.take(log_p[i * width : (i + 1) * width], tokens[i * width : (i + 1) * width])
                going = [(i, search) for i, search in enumerate(active) if not search.done]
                active, step = [search for _, search in going], step + 1
                if active:
                    steps.keep([i * width + parent for i, search in going for parent in search.parents])
                    steps.add([token for search in active for token in search.tokens])
        return [
            [self._found(f, text, n) for f in search.found] for search, text, n in zip(found, texts, room, strict=True)
        ]

    def _text(self, shown: np.ndarray) -> Text:
        return Text(tokenizer_of(self.model), shown, self.stops)

    def _found(self, found: Found, text: Text, room: int) -> Generation:
        """A finished text of a search, where the stream had room for so many tokens."""
        ended = found.ids[-1] in self.ends
        ids = found.ids[:-1] if ended else found.ids
        cut = None if ended else text.before_stop(ids)
        stopped: Stopped = "end" if ended else "stop" if cut is not None else "tokens"
        if stopped == "tokens" and len(ids) == room:
            stopped = "positions"
        return Generation(ids, text.read(ids) if cut is None else cut, stopped, found.logprob, found.score)

    def _allowed(self, logits: Tensor, step: int) -> Tensor:
        """(B, V) with −inf for what may not be written as token number `step`."""
        return logits.masked_fill(self.unending if step < self.min_tokens else self.forbidden, -torch.inf)

    def _choose(self, active: Sequence[_Row], logits: Tensor, step: int, room: list[int], last: bool) -> None:
        """Give every row its next token."""
        log_p = logits.log_softmax(-1)
        samples = np.array([row.start.sample for row in active])
        tokens = choose(self._allowed(logits, step), self.sampling, samples, step)
        chosen = log_p.gather(1, tokens[:, None])[:, 0].tolist()
        for row, token, p, n in zip(active, tokens.tolist(), chosen, room, strict=True):
            row.add(int(token), p, n == 1, last)


class _Row:
    """One sample being written."""

    def __init__(self, start: Start, text: Text, ends: frozenset[int]) -> None:
        self.start, self.reads, self.ends = start, text, ends
        self.ids: list[int] = []
        self.logprob = 0.0
        self.stopped: Stopped | None = None
        self.text: str | None = None

    def add(self, token: int, log_p: float, full: bool, last: bool) -> None:
        self.logprob += log_p
        if token in self.ends:
            self.stopped = "end"
            return
        self.ids.append(token)
        self.text = self.reads.before_stop(self.ids)
        if self.text is not None:
            self.stopped = "stop"
        else:
            self.stopped = "positions" if full else "tokens" if last else None

    def generation(self) -> Generation:
        assert self.stopped is not None
        text = self.reads.read(self.ids) if self.text is None else self.text
        return Generation(tuple(self.ids), text, self.stopped, self.logprob)
