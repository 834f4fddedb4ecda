"""Rows of generation: greedy continuations of 8 prompts of 512 tokens by 64 tokens each, with a cache on both sides.

Both sides load the same weights. Ours is the public way from texts to texts (`evaluation.generate.generations`) of a
model loaded with precision=auto; the peer's is `generate` of `transformers`, given ids. That takes no mask that opens
the prompt, so the peer's prefix model is a loop of its own forward passes, the first under a 4-D mask, which is the
least it can cost. No text ends early: the rows of control tokens in the peer's head are 0, so neither side has to
forbid what it never likes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unmask.bench.base import OURS, Row, Tick, Worker
from unmask.bench.kinds import llama, t5
from unmask.bench.steps import BATCH, VOCABULARY, WEIGHTS, peer, read, save, write_weights
from unmask.config import TokenizerConfig
from unmask.errors import UserError
from unmask.evaluation.base import evaluating
from unmask.evaluation.generate import generations
from unmask.evaluation.prompts import continuation
from unmask.evaluation.sampling import Generation
from unmask.evaluation.steps import Steps
from unmask.lm import LM
from unmask.model.cost import cache_numbers
from unmask.model.interop import load_hf
from unmask.objectives import Causal, PrefixLM
from unmask.objectives.base import Objective
from unmask.tokens.special import ROLES
from unmask.tokens.tokenizer import Tokenizer
from unmask.train.devices import Precision, hold

TOKENIZER = "tokenizer.json"
CONTROLS = len(ROLES)
BOS = list(ROLES).index("bos")
"""Our vocabularies begin with the control tokens, in this order."""
REPEATS = 3
"""Prefills that are timed; the median counts."""


@dataclass(frozen=True)
class Size:
    """Prompts, tokens of each as the model reads it, and tokens that are written after it."""

    prompts: int = 8
    source: int = 512
    tokens: int = 64


class Written(NamedTuple):
    """What a peer wrote: tokens (B, n), the (B, V) logits of each of the n steps, and its cache."""

    tokens: Tensor
    logits: list[Tensor]
    cache: Any


@dataclass(frozen=True)
class Kind:
    """A way of writing as both sides have it."""

    peer: Callable[[], Any]
    """The model of `transformers`, at random weights."""
    objective: Objective
    greedy: Callable[[Any, Tensor, int], Written]
    """The peer writes so many tokens after (B, T) ids."""

    @property
    def two(self) -> bool:
        """Whether there are two stacks."""
        return isinstance(self.objective, PrefixLM) and self.objective.layout.kind == "encdec"

    def words(self, size: Size) -> int:
        """Of a prompt: in one stack [BOS] is one of the source's tokens."""
        return size.source - (not self.two)


# ---------------------------------------------------------------- what both sides read


@torch.no_grad()
def prepare(kind: Kind, size: Size, folder: Path) -> None:
    """Weights, the vocabulary of all words, and prompts."""
    model = kind.peer()
    write_weights(model, folder)
    model.get_output_embeddings().weight[:CONTROLS] = 0.0
    model.save_pretrained(folder / WEIGHTS)
    words = " ".join(f"w{k}" for k in range(VOCABULARY - CONTROLS))
    settings = TokenizerConfig(type="word", vocab_size=VOCABULARY, sentinels=0, min_frequency=1)
    Tokenizer.train(settings, [words]).save(folder / TOKENIZER)
    noise = np.random.default_rng(0)
    save(folder / BATCH, {"prompts": noise.integers(CONTROLS, VOCABULARY, (size.prompts, kind.words(size)))})


# ---------------------------------------------------------------- ours


def ours(kind: Kind, size: Size, folder: Path, precision: Precision = "fp32") -> tuple[LM, list[str]]:
    """Our model, and the prompts as texts."""
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    network, _ = load_hf(folder / WEIGHTS)
    hold(network, precision, torch.device("cpu"))
    room = size.tokens + 1
    lm = LM(network.eval(), size.source + room, tokenizer, kind.objective, target_context=room if kind.two else None)
    return lm, [tokenizer.decode(ids) for ids in read(folder)["prompts"].tolist()]


def write(lm: LM, prompts: list[str], tokens: int) -> list[Generation]:
    """What `lm.generate(prompts, tokens)` says, with ids; no text ends before."""
    return generations(lm, prompts, tokens, min_tokens=tokens)


def cache_bytes(lm: LM, prompts: list[str], tokens: int) -> tuple[int, int]:
    """Of the cache that writes so many tokens: its tensors', and as counted from the settings."""
    assert lm.tokenizer is not None and lm.objective is not None
    ids = lm.tokenizer.encode_batch(prompts)
    begin = [continuation(lm.objective, each, k, lm.vocabulary) for k, each in enumerate(ids)]
    with evaluating(lm.network):
        steps = Steps(lm, begin, tokens)
    each = cache_numbers(lm.config)
    source = 0 if steps.source is None else steps.source.tokens.shape[1]
    numbers = steps.cache.capacity * (each.token + each.local) + source * each.source
    keys = 4 * 4 * steps.cache.capacity  # `Keys`: four vectors
    return steps.cache.nbytes, len(begin) * (next(lm.network.parameters()).itemsize * numbers + keys)


def _ours(kind: Kind, size: Size) -> Callable[[Path], Worker]:
    def make(folder: Path) -> Worker:
        lm, prompts = ours(kind, size, folder, "auto")
        held = str(next(lm.network.parameters()).dtype)
        about = {"precision": held, "cache bytes": cache_bytes(lm, prompts, size.tokens)[0]}
        return _worker(size, lambda rows, tokens: write(lm, prompts[:rows], tokens), about)

    return make


# ---------------------------------------------------------------- the peer


def _generated(model: Any, ids: Tensor, tokens: int) -> Written:
    """By `generate`, which keeps a cache by default; there is no end token."""
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        decoder_start_token_id=BOS if model.config.is_encoder_decoder else None,
        return_dict_in_generate=True,
        output_logits=True,
    )
    return Written(out.sequences[:, -tokens:], list(out.logits), out.past_key_values)


def _opened(model: Any, ids: Tensor, tokens: int) -> Written:
    """A greedy loop whose first pass sees the whole prompt."""
    opening = torch.zeros(1, 1, ids.shape[1], ids.shape[1], dtype=model.dtype)  # is added to the scores
    out = model(ids, attention_mask=opening, use_cache=True, logits_to_keep=1)
    logits = [out.logits[:, -1]]
    for _ in range(tokens - 1):
        out = model(logits[-1].argmax(-1)[:, None], past_key_values=out.past_key_values, use_cache=True)
        logits.append(out.logits[:, -1])
    return Written(torch.stack([one.argmax(-1) for one in logits], 1), logits, out.past_key_values)


def theirs(kind: Kind, folder: Path, dtype: torch.dtype = torch.float32) -> tuple[Any, Tensor]:
    """The peer's model and the ids that it reads."""
    ids = torch.from_numpy(read(folder)["prompts"])
    opened = ids if kind.two else torch.cat([torch.full((len(ids), 1), BOS), ids], 1)
    return peer(folder).to(dtype).eval(), opened


def their_cache_bytes(cache: Any) -> int:
    """Of the keys and values of all layers, of the source's as well where there are two stacks."""
    if hasattr(cache, "self_attention_cache"):
        return their_cache_bytes(cache.self_attention_cache) + their_cache_bytes(cache.cross_attention_cache)
    return sum(int(layer.keys.nbytes + layer.values.nbytes) for layer in cache.layers)


def _theirs(kind: Kind, size: Size, dtype: torch.dtype) -> Callable[[Path], Worker]:
    def make(folder: Path) -> Worker:
        model, ids = theirs(kind, folder, dtype)

        @torch.no_grad()
        def greedy(rows: int, tokens: int) -> Written:
            return kind.greedy(model, ids[:rows], tokens)

        return _worker(size, greedy, {"cache bytes": their_cache_bytes(greedy(size.prompts, size.tokens).cache)})

    return make


def _worker(size: Size, greedy: Callable[[int, int], Any], about: Mapping[str, Any]) -> Worker:
    """Writes the whole batch, prefill included, at every step; `greedy` takes prompts and tokens."""
    greedy(size.prompts, 2)
    one = size.tokens / _seconds(lambda: greedy(1, size.tokens))
    prefill = median(_seconds(lambda: greedy(size.prompts, 1)) for _ in range(REPEATS))

    def run(tick: Tick) -> None:
        while True:
            greedy(size.prompts, size.tokens)
            tick()

    return Worker(size.prompts * size.tokens, run, {**about, "prefill s": prefill, "tokens/s of one prompt": one})


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


# ---------------------------------------------------------------- the same tokens


@torch.no_grad()
def check(kind: Kind, size: Size, folder: Path) -> tuple[float, float]:
    """Minus the mean log-probability of the continuations, which must be the same tokens."""
    found = write(*ours(kind, size, folder), size.tokens)
    out = kind.greedy(*theirs(kind, folder), size.tokens)
    if [list(g.ids) for g in found] != out.tokens.tolist():
        raise UserError("the sides write different tokens: this is no comparison")
    log_p = torch.stack(out.logits, 1).float().log_softmax(-1).gather(2, out.tokens[..., None])
    return -sum(g.logprob for g in found) / out.tokens.numel(), -float(log_p.mean())


def row(name: str, work: str, named: str, kind: Kind, size: Size) -> Row:
    sides = {
        OURS: _ours(kind, size),
        "fp32": _theirs(kind, size, torch.float32),
        "bf16": _theirs(kind, size, torch.bfloat16),
    }
    return Row(name, work, named, 1.5, sides, lambda f: prepare(kind, size, f), lambda f: check(kind, size, f))


KINDS = {
    "generate-causal": ("Llama's shape", "LlamaForCausalLM.generate", Kind(llama, Causal(), _generated)),
    "generate-prefix": (
        "Llama's shape as a prefix model",
        "LlamaForCausalLM, a loop whose first mask is open",
        Kind(llama, PrefixLM(layout="prefix"), _opened),
    ),
    "generate-encdec": (
        "T5's shape",
        "T5ForConditionalGeneration.generate",
        Kind(t5, PrefixLM(layout="encdec"), _generated),
    ),
}


def rows(size: Size = Size()) -> tuple[Row, ...]:
    """The three rows at one size."""
    counts = f"{size.prompts} prompts of {size.source} tokens, {size.tokens} written greedily"
    return tuple(row(name, f"{work}: {counts}", named, kind, size) for name, (work, named, kind) in KINDS.items())


GENERATION = rows()
