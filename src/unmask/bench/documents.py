"""The row of real documents of mixed length: packed by us, padded to the longest of a batch by the peer.

A document is a paragraph of English Wikipedia, at most 510 tokens of it, in batches of 32; both sides mask the same
15 % of their tokens. What counts is real tokens a second: neither side is paid for padding.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unmask.batch import Batch, Examples, Targets, full, starts
from unmask.bench.base import OURS, Row, Worker
from unmask.bench.kinds import bert
from unmask.bench.steps import (
    BATCH,
    COMPILED,
    RATE,
    ROWS,
    WEIGHTS,
    peer_sides,
    read,
    save,
    sum_of,
    their_loss,
    trained,
    write_weights,
)
from unmask.config import TokenizerConfig
from unmask.data.collate import collate, pack
from unmask.errors import UserError
from unmask.loss import forward_heads
from unmask.model.interop import load_hf
from unmask.networks import batch_flops
from unmask.objectives.base import Shape, Sizes
from unmask.tokens.tokenizer import Tokenizer
from unmask.train.devices import to_device

CONTEXT, LONGEST = 512, 510
BATCHES = 4
"""Different ones, in turn: a turn is timed over whole rounds of them."""
TEXT = "enwiki2015/dev.jsonl.gz"
FEWEST = 8
"""Tokens of a paragraph."""
WORDS = 8192


def real_text(row: str) -> Path:
    """The text of rows that read a real one."""
    root = os.environ.get("UNMASK_DATA")
    if not root or not (Path(root) / TEXT).exists():
        raise UserError(f"bench row {row} reads {TEXT}: set UNMASK_DATA to the folder that holds it")
    return Path(root) / TEXT


def _paragraphs() -> Iterator[str]:
    with gzip.open(real_text("documents"), "rt", encoding="utf-8") as file:
        for line in file:
            yield from filter(None, (p.strip() for p in json.loads(line)["text"].split("\n")))


def _prepare(folder: Path) -> None:
    """Weights, and the documents end to end: tokens, where each begins, and which tokens are asked for."""
    write_weights(bert(), folder)
    texts = list(_paragraphs())
    tokenizer = Tokenizer.train(TokenizerConfig(type="bbpe", vocab_size=WORDS), texts[:20000])
    noise = np.random.default_rng(0)
    found: list[list[int]] = []
    for k in noise.permutation(len(texts)).tolist():
        ids = list(tokenizer.encode(texts[k]))[:LONGEST]
        found += [ids] if len(ids) >= FEWEST else []
        if len(found) == ROWS * BATCHES:
            break
    start = starts([len(ids) for ids in found])
    tokens = np.concatenate([np.asarray(ids, np.int32) for ids in found])
    order = noise.permutation(tokens.size)
    save(folder / BATCH, {"tokens": tokens, "start": start, "asked": order < round(RATE * tokens.size)})


def _documents(held: Mapping[str, np.ndarray], batch: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Tokens and what is asked of the documents of a batch."""
    start = held["start"]
    places = [slice(start[k], start[k + 1]) for k in range(batch * ROWS, (batch + 1) * ROWS)]
    return [(held["tokens"][p], held["asked"][p]) for p in places]


def _packed(held: Mapping[str, np.ndarray], batch: int, head: Any) -> Batch:
    """The documents of a batch in rows of `CONTEXT` tokens, as the loader packs them."""
    found = _documents(held, batch)
    tokens, asked = (np.concatenate(parts) for parts in zip(*found, strict=True))
    at = np.flatnonzero(asked)
    start = starts([len(ids) for ids, _ in found])
    examples = Examples(full(tokens, start), {head.name: Targets.at(at, tokens[at].astype(np.int64))})
    shape = Shape(CONTEXT)
    return collate({"text": examples}, {"text": [head]}, pack(Sizes(np.diff(start)), shape), shape=shape)


def _padded(held: Mapping[str, np.ndarray], batch: int) -> dict[str, Tensor]:
    """The same documents, one a row, padded to the longest."""
    found = _documents(held, batch)
    longest = max(len(ids) for ids, _ in found)
    out = {"input_ids": 0, "attention_mask": 0, "labels": -100}
    arrays = {name: np.full((ROWS, longest), fill, np.int64) for name, fill in out.items()}
    for row, (ids, asked) in enumerate(found):
        arrays["input_ids"][row, : len(ids)] = ids
        arrays["attention_mask"][row, : len(ids)] = 1
        arrays["labels"][row, : len(ids)] = np.where(asked, ids, -100)
    return {name: torch.from_numpy(a) for name, a in arrays.items()}


def _tokens(folder: Path) -> int:
    """Of a step, on average over the batches."""
    return round(len(read(folder)["tokens"]) / BATCHES)


def _networks(folder: Path) -> tuple[nn.ModuleDict, list[Batch]]:
    model, report = load_hf(folder / WEIGHTS)
    (head,) = report.heads
    held = read(folder)
    return nn.ModuleDict({"model": model}), [_packed(held, k, head) for k in range(BATCHES)]


def _ours(folder: Path) -> Worker:
    networks, batches = _networks(folder)
    config: Any = networks["model"].config
    return trained(networks, batches, _tokens(folder), forward_heads, lambda b: batch_flops(config, b))


def _check(folder: Path) -> tuple[float, float]:
    networks, batches = _networks(folder)
    named: Any = networks
    ours = sum_of(forward_heads(named, to_device(batches[0], torch.device("cpu"))))
    return ours, their_loss(folder, _padded(read(folder), 0))


def _theirs(folder: Path) -> list[dict[str, Tensor]]:
    held = read(folder)
    return [_padded(held, k) for k in range(BATCHES)]


DOCUMENTS = Row(
    "documents",
    "masked LM step on Wikipedia's paragraphs, context 512: packed, and padded to the longest",
    "BertForMaskedLM",
    8.0,
    {OURS: _ours, **peer_sides(_theirs, _tokens)},
    _prepare,
    _check,
    apart=(COMPILED,),
    round=BATCHES,
)
