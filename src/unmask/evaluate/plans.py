"""How a text is scored: an objective without noise. A plan expands queries into Examples, numpy only.

    left_to_right  each token from those before it; in one pass
    pseudo         each token from all others: one copy of the text a token, that token [MASK]
                   (pseudo-log-likelihood, Salazar et al. 2020, "Masked Language Model Scoring", section 2)
    infill         each token from all others, for models of span corruption: one copy a token, with sentinel 0
                   in its place; the target is `<0> token <1>` and only the token's own probability counts

Legend: R pieces of text, N their tokens end to end; an answer slot is a token's place in 0 … N − 1, or N + r
for the end token of piece r.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from unmask.batch import Examples, Head, Rows, Targets, full, starts
from unmask.errors import UserError
from unmask.objectives.base import LM, Objective, Plan, Shape, Sizes, Vocabulary, frame
from unmask.objectives.denoise import SpanCorruption, TextToText, corrupt
from unmask.objectives.layout import Layout, Pairs, Ragged


@dataclass(frozen=True)
class Query:
    """R pieces of text, each at most `room` long, and what is asked of them.

    rows.ends  the end token is scored too (left_to_right only)
    given      (R,) leading tokens of each piece that are context
    asked      (N,) bool, the tokens to score
    """

    rows: Rows
    given: np.ndarray
    asked: np.ndarray

    @staticmethod
    def of(rows: Rows, given: np.ndarray | None = None) -> Query:
        """Every token after the context is asked for."""
        given = np.zeros(len(rows.lengths), np.int64) if given is None else np.asarray(given, np.int64)
        return Query(rows, given, rows.place >= np.repeat(given, rows.lengths))

    @property
    def slots(self) -> int:
        return len(self.rows.tokens) + len(self.rows.lengths)


@dataclass(frozen=True)
class Expansion:
    """Examples, and the answer slot (n,) of each target."""

    examples: Examples
    slot: np.ndarray

    @property
    def sizes(self) -> Sizes:
        e = self.examples
        assert e.stream.start is not None
        if e.source is None:
            return Sizes(np.diff(e.stream.start))
        assert e.source.start is not None
        return Sizes(np.diff(e.stream.start), np.diff(e.source.start))


def layout_of(objective: Objective) -> Layout:
    """How a (source, target) pair is shown to a model trained under `objective`."""
    return objective.layout if isinstance(objective, TextToText) else Layout(kind="causal")


def token_head(objective: Objective) -> Head:
    """The head that answers with tokens."""
    for head in objective.heads():
        if head.over == "vocabulary":
            return head
    raise UserError(f"objective {objective.type} predicts no tokens: it can be neither scored nor sampled")


def room(objective: Objective, shape: Shape) -> int:
    """Tokens of text that one example can hold: with its context in one stack, without it where that is the source."""
    longest = shape.stream
    if objective.plan == "pseudo":
        extra = 2  # [CLS] and [SEP]
    elif objective.plan == "infill":
        # source: the text and [EOS]; in one stack the target <0> x <1> [EOS] follows it
        two = shape.source > 0
        longest, extra = (shape.source, 1) if two else (shape.stream, 5)
    else:
        extra = 1  # [BOS], or the end token
    if longest <= extra:
        raise UserError(f"a model trained on {longest} tokens has no room for text under {objective.type}")
    return longest - extra


def expand(objective: Objective, query: Query, vocabulary: Vocabulary, tokens: int) -> Iterator[Expansion]:
    """The query's examples, a part of about `tokens` tokens at a time, long ones first."""
    plan: Plan = objective.plan
    lengths = query.rows.lengths
    if plan == "left_to_right":
        unit = owner = np.flatnonzero(_any(query))  # a piece
    else:
        unit = np.flatnonzero(query.asked)  # a token
        owner = query.rows.row[unit]
    order = np.argsort(-lengths[owner], kind="stable")
    cost = np.cumsum(lengths[owner][order] + 3)
    begin = 0
    while begin < len(order):
        spent = cost[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(cost, spent + tokens, "right")))
        part = order[begin:end]
        if plan == "left_to_right":
            yield _left_to_right(objective, query, unit[part], vocabulary)
        elif plan == "pseudo":
            yield _pseudo(query, unit[part], vocabulary)
        else:
            yield _infill(objective, query, unit[part], vocabulary)
        begin = end


def _any(query: Query) -> np.ndarray:
    """(R,) bool: something of the piece is asked."""
    asked = np.bincount(query.rows.row[query.asked], minlength=len(query.rows.lengths)) > 0
    return asked | query.rows.ends


def _left_to_right(objective: Objective, query: Query, pieces: np.ndarray, vocabulary: Vocabulary) -> Expansion:
    """Context as source, the rest as target, under the objective's own layout.

    [BOS] source target   one stack: a prefix visible both ways, or causal throughout
    source · [BOS] target two stacks
    """
    rows, slot = take(query.rows, pieces)
    given = query.given[pieces]
    eos = vocabulary.need("eos") if rows.ends.any() else None
    framed = frame(rows, at_end=eos)
    framed_slot = np.repeat(len(query.rows.tokens) + pieces, framed.lengths)  # the end tokens keep this
    framed_slot[~framed.fixed] = slot
    in_source = framed.place < np.repeat(given, framed.lengths)
    pairs = Pairs(
        Ragged(framed.tokens[in_source], starts(given)),
        Ragged(framed.tokens[~in_source], starts(framed.lengths - given)),
    )
    examples = layout_of(objective)(pairs, vocabulary)
    return _keep(examples, framed_slot[~in_source], np.ones(int((~in_source).sum()), bool))


def _pseudo(query: Query, at: np.ndarray, vocabulary: Vocabulary) -> Expansion:
    """[CLS] text [SEP], one copy for each token `at`, which is [MASK] there."""
    rows, _ = take(query.rows, query.rows.row[at])
    framed = frame(replace(rows, ends=np.zeros_like(rows.ends)), vocabulary.need("cls"), vocabulary.need("sep"))
    index = framed.start[:-1] + 1 + query.rows.place[at]
    tokens = framed.tokens.copy()
    tokens[index] = vocabulary.need("mask")
    return Expansion(Examples(full(tokens, framed.start), {LM.name: Targets.at(index, query.rows.tokens[at])}), at)


def _infill(objective: Objective, query: Query, at: np.ndarray, vocabulary: Vocabulary) -> Expansion:
    """The pair of span corruption, one for each token `at`: that token is the only noise."""
    rows, _ = take(query.rows, query.rows.row[at])
    noise = np.zeros(len(rows.tokens), bool)
    noise[rows.start[:-1] + query.rows.place[at]] = True
    final = isinstance(objective, SpanCorruption) and objective.final_sentinel
    pairs = corrupt(rows, noise, final, vocabulary)
    second = np.zeros(len(pairs.target.tokens), bool)
    second[pairs.target.start[:-1] + 1] = True
    slot = np.zeros(len(second), np.int64)
    slot[second] = at
    return _keep(layout_of(objective)(pairs, vocabulary), slot, second)


def _keep(examples: Examples, slot: np.ndarray, keep: np.ndarray) -> Expansion:
    """Only the targets `keep` (n,) of the one head over the vocabulary."""
    targets = examples.targets[LM.name]
    assert targets.index is not None
    kept = Targets.at(targets.index[keep], targets.value[keep])
    return Expansion(replace(examples, targets={LM.name: kept}), slot[keep])


def take(rows: Rows, which: np.ndarray) -> tuple[Rows, np.ndarray]:
    """The texts `which` (S,), repeats allowed, and where (n,) each of their tokens stood in `rows`."""
    length = rows.lengths[which]
    start = starts(length)
    at = np.repeat(rows.start[which] - start[:-1], length) + np.arange(start[-1])
    taken = Rows(rows.tokens[at], start, rows.key[which], rows.index[which], np.zeros(len(at), bool), rows.ends[which])
    return taken, at
