"""Objectives over sentences and pairs for the suite, and texts that have sentences and partners."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from unmask import keyed
from unmask.batch import Examples, Rows, places, starts
from unmask.objectives import Contrastive, FullSentences, Masked, NextSentence, SentenceOrder
from unmask.objectives.base import Objective

OBJECTIVES: dict[str, Objective] = {
    "next": NextSentence(),
    "next-token": NextSentence(boundary="token"),
    "next-bert": NextSentence.bert_nsp(),
    "next-sentences": NextSentence.sentence_pair(),
    "next-0.4": NextSentence(masking=Masked(mask_rate=0.4)),
    "order": SentenceOrder(),
    "order-token": SentenceOrder(boundary="token"),
    "full-joined": FullSentences(),
    "full-apart": FullSentences(documents="apart"),
}
PAIRS: dict[str, Objective] = {
    "cloze": Contrastive(),
    "cloze-paper": Contrastive.inverse_cloze(),
    "cloze-half": Contrastive(removed=0.5),
    "neighbours": Contrastive.neighbours(),
}


def dressed(rows: Rows, rate: float = 0.2, most: int = 60) -> Rows:
    """The texts with sentences and with partners of 1 to `most` tokens, both functions of each text's key alone."""
    key = keyed.absorb(rows.key, keyed.purpose("dressing"))
    length = 1 + keyed.below(keyed.bits(key, 0 * rows.index), most)
    start = starts(length)
    tokens = 5 + keyed.below(keyed.bits(np.repeat(key, length), places(start)), 85)
    partner = Rows(
        tokens=tokens.astype(np.int32),
        start=start,
        key=key,
        index=rows.index,
        fixed=np.zeros(len(tokens), bool),
        ends=rows.ends,
    )
    return replace(_marked(rows, rate), partner=_marked(partner, rate))


def _marked(rows: Rows, rate: float) -> Rows:
    key = keyed.absorb(rows.key, keyed.purpose("sentences"))
    sentence = (keyed.uniform(key[rows.row], rows.place) < rate) | (rows.place == 0)
    word = (keyed.uniform(key[rows.row], rows.place + 1_000_000) < 0.6) | sentence
    return replace(rows, sentence=sentence, word=word)


@dataclass(frozen=True)
class One:
    """One text's example as plain lists; target indices count from its own start."""

    stream: dict[str, list[int]]
    targets: dict[str, tuple[list[Any], list[int]]]


def each(e: Examples) -> list[One]:
    """The examples of every text, all heads."""
    start = e.stream.start
    assert start is not None
    names = ("tokens", "positions", "block", "reveal", "horizon", "token_type")
    out = []
    for r in range(len(start) - 1):
        part = slice(int(start[r]), int(start[r + 1]))
        stream = {k: getattr(e.stream, k)[part].tolist() for k in names if getattr(e.stream, k) is not None}
        targets = {}
        for name, t in e.targets.items():
            mine = (t.index >= part.start) & (t.index < part.stop)
            targets[name] = ((t.index[mine] - part.start).tolist(), t.value[mine].tolist())
        out.append(One(stream, targets))
    return out


def restored(objective: Objective, e: Any, ends: bool) -> tuple[list[int], list[bool]] | None:
    """The text of a whole-sentences example; pairs hold parts of two texts, which `test_sentence` puts together."""
    if not isinstance(objective, FullSentences):
        return None
    tokens = e.stream["tokens"].copy()
    for i, v in zip(e.index, e.value, strict=True):
        tokens[i] = v
    return tokens[1:-1], [i in set(e.index) for i in range(1, len(tokens) - 1)]
