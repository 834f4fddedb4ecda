"""Writing text: sampling from models that predict the next token, with a key–value cache.

A prompt is laid out as the objective lays out its sources: causal, as a prefix visible both ways, or to the
encoder. Everything after it is one rule: the next token's position, reveal and horizon are the last one's plus 1.

Legend: B rows, T tokens of a prompt, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from unmask import keyed
from unmask.batch import Stream, starts
from unmask.data.collate import collate
from unmask.errors import UserError
from unmask.evaluate.base import Model, device_of, evaluating, objective_of, shape_of, tokenizer_of
from unmask.evaluate.plans import layout_of, token_head
from unmask.model.attention import Cache
from unmask.objectives.layout import Pairs, Ragged
from unmask.train.devices import to_device

BATCH = 16
"""Prompts decoded together."""


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
        if not self.temperature >= 0:
            raise UserError(f"temperature={self.temperature} must be 0 (greedy) or more")
        if self.top_k < 0:
            raise UserError(f"top_k={self.top_k} must be 0 (all tokens) or more")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p={self.top_p} must lie above 0 and at most at 1 (all tokens)")


@dataclass(frozen=True)
class Generation:
    """What was written after one prompt.

    stopped  end: an end token · stop: a stop string · tokens: max_tokens are written · positions: the stream
             holds as many tokens as in training
    logprob  Σ log p of the written tokens, the one that ended it included, under the unfiltered model
    """

    ids: tuple[int, ...]
    text: str
    stopped: Literal["end", "stop", "tokens", "positions"]
    logprob: float


@dataclass(frozen=True)
class Start:
    """One row before its first step: a source, the beginning of the target, and its number for sampling."""

    source: np.ndarray
    target: np.ndarray
    sample: int


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
) -> list[str]:
    """The texts that continue the prompts, without the prompts themselves.

    Sample i of a seed uses its own random numbers, so its text depends on no other prompt and no batch size. A
    model of span corruption writes what it would put for a sentinel after the prompt.
    """
    sampling = Sampling(temperature, top_k, top_p, seed)
    return [g.text for g in generations(model, prompts, max_tokens, sampling, stop, batch_size)]


def generations(
    model: Model,
    prompts: str | Sequence[str],
    max_tokens: int = 64,
    sampling: Sampling = Sampling(),
    stop: str | Sequence[str] = (),
    batch_size: int = BATCH,
) -> list[Generation]:
    """`generate` with ids, the reason each text stopped, and its log-probability."""
    objective, tokenizer, vocabulary = objective_of(model), tokenizer_of(model), model.vocabulary
    if objective.plan == "pseudo":
        raise UserError(
            f"a model of {objective.type} sees both sides of a gap and writes no continuation: "
            "use fill with a text that holds [MASK]"
        )
    if max_tokens < 1:
        raise UserError(f"max_tokens={max_tokens} must be at least 1")
    prompts = [prompts] if isinstance(prompts, str) else list(prompts)
    encoded = tokenizer.encode_batch(prompts)
    ends = {vocabulary.eos} if vocabulary.eos is not None else set()
    none = np.zeros(0, np.int32)
    if objective.plan == "infill":
        sentinels, eos = vocabulary.sentinels, vocabulary.need("eos")
        begin = [Start(np.append(e, [sentinels[0], eos]), sentinels[:1], i) for i, e in enumerate(encoded)]
        ends |= {int(s) for s in sentinels[1:2]}
        shown = [none] * len(prompts)
    else:
        begin = [Start(e, none, i) for i, e in enumerate(encoded)]
        shown = encoded
    stops = [stop] if isinstance(stop, str) else list(stop)
    writer = Writer(model, sampling, frozenset(int(e) for e in ends if e is not None), tuple(s for s in stops if s))
    out: list[Generation] = []
    for i in range(0, len(begin), batch_size):
        out += writer.write(begin[i : i + batch_size], shown[i : i + batch_size], max_tokens)
    return out


class Writer:
    """Decodes rows of one model under one rule of sampling; `ends` are the ids that end a text."""

    def __init__(self, model: Model, sampling: Sampling, ends: frozenset[int], stops: tuple[str, ...] = ()) -> None:
        self.model, self.sampling, self.ends, self.stops = model, sampling, ends, stops
        self.device = device_of(model.network)
        self.layout, self.shape = layout_of(objective_of(model)), shape_of(model)
        self.head = model.network.heads[token_head(objective_of(model)).uses]
        # Padded rows of the table and control tokens are never written, ends apart.
        self.forbidden = torch.ones(model.config.vocab_size, dtype=torch.bool, device=self.device)
        self.forbidden[torch.from_numpy(model.vocabulary.ordinary).long()] = False
        self.forbidden[list(ends)] = False

    def write(self, begin: Sequence[Start], shown: Sequence[np.ndarray], max_tokens: int) -> list[Generation]:
        """Continue each start; `shown` (B lists of ids) is the text that a continuation is read after."""
        stream, source = self._prompt(begin)
        rows = [_Row(s, ids, self) for s, ids in zip(begin, shown, strict=True)]
        network, cache = self.model.network, Cache()
        with evaluating(network):
            memory = None if source is None else network.encode(source)
            states = network.decode(stream, memory, source, cache)
            last = (stream.block != 0).sum(1) - 1  # prompts of unequal length are padded on the right
            b = torch.arange(len(rows), device=self.device)
            states = states[b, last]
            vectors = torch.stack([stream.positions, stream.reveal, stream.horizon])[:, b, last]
            active = rows
            for step in range(max_tokens):
                logits = self.head.project(self.head.features(states[:, None])).float()
                full = vectors[0] + 1 >= self.shape.stream
                self._choose(active, logits, step, full.tolist(), step + 1 == max_tokens)
                going = [i for i, row in enumerate(active) if row.stopped is None]
                if not going:
                    break
                if len(going) < len(active):
                    keep = torch.tensor(going, device=self.device)
                    cache.select(keep)
                    memory = None if memory is None else memory[keep]
                    source = None if source is None else source.map(lambda a, k=keep: a[k])  # type: ignore[misc]
                    vectors, active = vectors[:, keep], [active[i] for i in going]
                vectors = vectors + 1
                states = network.decode(self._next(active, vectors), memory, source, cache)[:, -1]
        return [row.generation() for row in rows]

    def _prompt(self, begin: Sequence[Start]) -> tuple[Stream, Stream | None]:
        """(B, T) streams of the starts, as tensors: the layout of pairs whose target ends where writing begins."""
        source = [s.source for s in begin]
        target = [np.append(s.target, 0) for s in begin]  # the layout drops the last token: nothing reads the 0
        pairs = Pairs(
            Ragged(np.concatenate(source).astype(np.int32), starts([len(s) for s in source])),
            Ragged(np.concatenate(target).astype(np.int32), starts([len(t) for t in target])),
        )
        examples = self.layout(pairs, self.model.vocabulary)
        batch = collate({"prompt": examples}, {"prompt": ()})
        for s, most in ((batch.stream, self.shape.stream), (batch.source, self.shape.source)):
            if s is not None and s.tokens.shape[1] > most:
                raise UserError(
                    f"a prompt of {s.tokens.shape[1]} tokens (control tokens included) goes beyond the {most} "
                    "that the model was trained on: shorten it"
                )
        batch = to_device(batch, self.device)
        return batch.stream, batch.source

    def _next(self, active: Sequence[_Row], vectors: Tensor) -> Stream:
        """(B, 1) stream of the tokens just chosen."""
        tokens = torch.tensor([[row.ids[-1]] for row in active], dtype=torch.int32, device=self.device)
        positions, reveal, horizon = vectors[..., None]
        return Stream(tokens, positions, torch.ones_like(tokens), reveal, horizon, pattern="order")

    def _choose(self, active: Sequence[_Row], logits: Tensor, step: int, full: list[bool], last: bool) -> None:
        """Give every row its next token."""
        log_p = logits.log_softmax(-1)
        samples = np.array([row.start.sample for row in active])
        tokens = choose(logits.masked_fill(self.forbidden, -torch.inf), self.sampling, samples, step)
        chosen = log_p.gather(1, tokens[:, None])[:, 0].tolist()
        for row, token, p, at_end in zip(active, tokens.tolist(), chosen, full, strict=True):
            row.add(int(token), p, at_end, last)


class _Row:
    """The text being written after one prompt."""

    def __init__(self, start: Start, shown: np.ndarray, writer: Writer) -> None:
        self.start, self.writer = start, writer
        self.shown = [int(i) for i in shown]
        self.before = tokenizer_of(writer.model).decode(self.shown)
        self.ids: list[int] = []
        self.logprob = 0.0
        self.stopped: Literal["end", "stop", "tokens", "positions"] | None = None
        self.text: str | None = None

    def add(self, token: int, log_p: float, full: bool, last: bool) -> None:
        self.logprob += log_p
        if token in self.writer.ends:
            self.stopped = "end"
            return
        self.ids.append(token)
        if self.writer.stops:
            text = self.read()
            found = [at for s in self.writer.stops if (at := text.find(s)) >= 0]
            if found:
                self.stopped, self.text = "stop", text[: min(found)]
                return
        self.stopped = "positions" if full else "tokens" if last else None

    def read(self) -> str:
        """What the written ids add to the prompt's text: pieces carry the blank before them."""
        tokenizer = tokenizer_of(self.writer.model)
        whole = tokenizer.decode([*self.shown, *self.ids])
        return whole[len(self.before) :] if whole.startswith(self.before) else tokenizer.decode(self.ids)

    def generation(self) -> Generation:
        assert self.stopped is not None
        return Generation(tuple(self.ids), self.read() if self.text is None else self.text, self.stopped, self.logprob)


def choose(logits: Tensor, sampling: Sampling, samples: np.ndarray, step: int) -> Tensor:
    """(B,) the next token of each row of logits (B, V); forbidden ones are −inf.

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
