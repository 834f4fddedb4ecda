"""Who sees whom, by the one rule (`batch.visible`): the grids of the notes' section 4.1, the pairs of exercise 4."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from unmask.batch import Stream, causal, full, prefix, same_block, visible
from unmask.objectives.layout import Layout, Pairs, Ragged
from unmask.tokens.special import ROLES, Vocabulary

SUM = ("37", "+", "45", "=", "82", ".")
PREFIX = 4
"""Tokens of the sum that are given: 37 + 45 =."""
SOURCE, TARGET = 5, 3
"""Exercise 4."""


@dataclass(frozen=True)
class Grid:
    """seen (queries, keys) bool."""

    name: str
    seen: np.ndarray

    @property
    def pairs(self) -> int:
        return int(self.seen.sum())


def seen(stream: Stream) -> np.ndarray:
    """(T, T) bool, of one text."""
    return np.asarray(visible(stream.block, stream.horizon, stream.block, stream.reveal))


def one_stack(length: int, name: str, make: Callable[..., Stream], *more: np.ndarray) -> Grid:
    return Grid(name, seen(make(np.arange(length), np.array([0, length]), *more)))


def encoder(length: int = len(SUM)) -> Grid:
    """
    >>> encoder(3).pairs, decoder(3).pairs, prefixed(2, 3).pairs
    (9, 6, 7)
    """
    return one_stack(length, "encoder (BERT)", full)


def decoder(length: int = len(SUM)) -> Grid:
    return one_stack(length, "decoder (GPT)", causal)


def prefixed(given: int = PREFIX, length: int = len(SUM)) -> Grid:
    return one_stack(length, f"prefix LM, {given} given", prefix, np.array([given]))


@dataclass(frozen=True)
class Exchange:
    """A source and a target, in two stacks and in one."""

    source: Grid
    target: Grid
    across: Grid
    one: dict[str, Grid]
    """Layout and place of [BOS] → the grid of the one stack."""


def exchange(source: int = SOURCE, target: int = TARGET) -> Exchange:
    """By the layouts that text-to-text objectives train with.

    >>> e = exchange(5, 3)
    >>> e.source.pairs, e.target.pairs, e.across.pairs, [g.pairs for g in e.one.values()]
    (25, 6, 15, [51, 51, 36, 36])
    """
    vocabulary = Vocabulary.of({name: k for k, name in enumerate(ROLES.values())})
    lengths = [np.arange(n, dtype=np.int32) for n in (source, target)]
    pairs = Pairs(*(Ragged(tokens, np.array([0, len(tokens)])) for tokens in lengths))
    two = Layout(kind="encdec")(pairs, vocabulary)
    assert two.source is not None
    one = {
        f"{kind}, [BOS] {place}": Layout.model_validate({"kind": kind, "bos": bos})
        for kind in ("prefix", "causal")
        for bos, place in (("front", "in front"), ("boundary", "between"))
    }
    return Exchange(
        Grid("encoder", seen(two.source)),
        Grid("decoder", seen(two.stream)),
        Grid("across", np.asarray(same_block(two.stream.block, two.source.block))),
        {name: Grid(name, seen(layout(pairs, vocabulary).stream)) for name, layout in one.items()},
    )
