"""Permutation language modelling (Yang et al. 2019, "XLNet", sections 2.2, 2.3 and 2.4)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from unmask import keyed
from unmask.batch import INFINITY, QUERY, Examples, Rows, Stream, Targets, starts
from unmask.config import ModelConfig, Visibility
from unmask.errors import UserError
from unmask.objectives.base import Objective, Outline, Plan, Shape, Sizes, Vocabulary, frame
from unmask.objectives.chunks import before, choose_groups, shuffled
from unmask.objectives.spans import choose

HAVE_QUERIES = ("unmask", "xlnet")
"""Model families that hold the learned vector a query starts from."""


class Permutation(Objective):
    """Each target from the context and from the targets before it in a random order, which is new for every text.

    One token in `one_in` is a target and stands last in the order (section 2.3, partial prediction). Two streams
    are one longer sequence: behind the text stand queries, one a target, at the target's position; a query starts
    from a learned vector instead of a token and sees what comes before its target in the order. The text keeps all
    its tokens: a later target sees the content of earlier ones.

        index          0    1    2    3      4    5    6
        tokens     [CLS]  the  cat  sat  [SEP]   -1   -1
        positions      0    1    2    3      4    2    3
        order                    2    1
        reveal         0    0    2    1      0    ∞    ∞
        horizon        0    0    2    1      0    1    0
        target                                  cat  sat

    Targets are runs of `max_span` words or fewer. round(n / one_in) of n tokens are chosen exactly, and each equally
    often, so one run may lack its beginning and one its end (their code cuts runs to fit and fills up with single
    tokens, which favours short words); runs may touch. [CLS] and [SEP] are
    context that all see, never targets: their code gives them places in the order. Nothing is said of the previous
    segment: a text is one segment (Transformer-XL's memory is for loaded models).

    >>> from unmask.objectives.show import toy
    >>> e = Permutation(one_in=2, max_span=1)(Rows.of([[11, 12, 13]]), toy())
    >>> e.stream.tokens.tolist(), e.stream.positions.tolist()
    ([2, 11, 12, 13, 3, -1, -1], [0, 1, 2, 3, 4, 2, 3])
    >>> e.stream.reveal.tolist(), e.stream.horizon.tolist()
    ([0, 0, 2, 1, 0, 2147483647, 2147483647], [0, 0, 2, 1, 0, 1, 0])
    >>> e.targets["lm"].index.tolist(), e.targets["lm"].value.tolist()
    ([5, 6], [12, 13])
    """

    type: Literal["permutation"] = "permutation"
    one_in: float = Field(6.0, ge=1)
    """K: one token in so many is a target; 1 = all."""
    max_span: int = Field(5, ge=1)
    """Most words of a run of targets; 1 = single tokens, whatever the words."""
    span_shares: Literal["uniform", "inverse"] = "uniform"
    """How often a run has L words: alike for L = 1 … max_span (the paper), or ∝ 1 / L (its code)."""
    context: Literal["visible", "ordered"] = "visible"
    """visible: tokens that are no targets see each other (released code); ordered: they have places in the order too
    and see only what comes before them (equations 2 and 3 read literally)."""
    cls: Literal["first", "last"] = "first"
    """[CLS] text [SEP] as everywhere here, or text [SEP] [CLS] as in XLNet."""

    plan: ClassVar[Plan] = "pseudo"
    needs: ClassVar[frozenset[str]] = frozenset({"word"})

    @classmethod
    def xlnet(cls) -> Permutation:
        """The released model: K = 6, runs of 1 to 5 words ∝ 1 / L, [SEP] [CLS] at the end."""
        return cls(span_shares="inverse", cls="last")

    @property
    def visibility(self) -> Visibility:
        return "bidirectional"

    def networks(self, model: ModelConfig) -> dict[str, ModelConfig]:
        if not model.query_vector:
            own = "" if model.family in HAVE_QUERIES else f" and model.family=unmask ({model.family} has none)"
            raise UserError(
                f"permutation appends queries that start from a learned vector: set model.query_vector=true{own}"
            )
        return {"model": model}

    def count(self, lengths: np.ndarray) -> np.ndarray:
        """(R,) targets of texts of these lengths."""
        return np.minimum(np.maximum(np.rint(lengths / self.one_in).astype(np.int64), 1), lengths)

    def room(self, shape: Shape) -> int:
        n = np.arange(1, max(shape.stream, 1))
        return int(n[n + 2 + self.count(n) <= shape.stream].max(initial=0))

    def sizes(self, of: Outline) -> Sizes:
        return Sizes(of.lengths + 2 + self.count(of.lengths))

    def __call__(self, rows: Rows, vocabulary: Vocabulary) -> Examples:
        first, last = vocabulary.need("cls"), vocabulary.need("sep")
        framed = frame(frame(rows, after=last), after=first) if self.cls == "last" else frame(rows, first, last)
        asked = self.asked(rows)
        into = np.zeros(len(framed.tokens), bool)
        into[np.repeat(framed.start[:-1] + int(self.cls == "first"), rows.lengths) + rows.place] = asked
        return ordered(framed, self.order(framed, into), into)

    def asked(self, rows: Rows) -> np.ndarray:
        """(N,) bool: the tokens that get a query."""
        key, count = keyed.absorb(rows.key, keyed.purpose("targets")), self.count(rows.lengths)
        if self.max_span == 1:
            return choose(rows.start, key, count, ~rows.fixed) | self._spare(rows, key, count)
        shares = np.ones(self.max_span) if self.span_shares == "uniform" else 1 / np.arange(1, self.max_span + 1)
        eligible = ~rows.fixed if rows.fixed.any() else None
        found = choose_groups(rows.start, key, count, shares / shares.sum(), rows.word, eligible)
        return found | self._spare(rows, key, count)

    def _spare(self, rows: Rows, key: np.ndarray, count: np.ndarray) -> np.ndarray:
        """Where too few tokens may be targets, fixed ones get queries nobody answers: lengths follow from n alone."""
        if not rows.fixed.any():
            return np.zeros(len(rows.tokens), bool)
        free = np.bincount(rows.row, ~rows.fixed, len(count)).astype(np.int64)
        return choose(rows.start, key, np.maximum(count - free, 0), rows.fixed)

    def order(self, framed: Rows, asked: np.ndarray) -> np.ndarray:
        """(N,) int32 rank of each token: targets last, in random order; 0 = seen by all."""
        key, row = keyed.absorb(framed.key, keyed.purpose("order")), framed.row
        rank = np.zeros(len(row), np.int32)
        begin = np.zeros(len(key), np.int64)
        for part in [~asked] * (self.context == "ordered") + [asked]:
            at = np.flatnonzero(part & ~framed.fixed)
            of, key = row[at], keyed.absorb(key, 0)
            rank[at[shuffled(of, key)]] = before(np.ones_like(of), of, len(key)) + 1 + begin[of]
            begin = begin + np.bincount(of, minlength=len(key))
        return rank


def ordered(framed: Rows, rank: np.ndarray, asked: np.ndarray) -> Examples:
    """Texts read in the order of `rank` (N,), 0 = seen by all, with a query behind them for each token `asked` (N,).

    Fixed tokens get queries but are no targets. Left to right is rank 1, 2, 3, …, every token asked.
    """
    row, n = framed.row, len(framed.tokens)
    at = np.flatnonzero(asked)
    of, place = row[at], framed.place
    start = starts(framed.lengths + np.bincount(of, minlength=len(framed.key)))
    text = np.arange(n) + (start - framed.start)[row]
    query = framed.start[1:][of] + np.arange(len(at))
    tokens, positions, reveal, horizon = (np.empty(int(start[-1]), np.int32) for _ in range(4))
    tokens[text], tokens[query] = framed.tokens, QUERY
    positions[text], positions[query] = place, place[at]
    reveal[text], reveal[query] = rank, INFINITY
    horizon[text], horizon[query] = rank, np.maximum(rank[at] - 1, 0)
    stream = Stream(tokens, positions, np.ones_like(tokens), reveal, horizon, start=start, pattern="order")
    answered = ~framed.fixed[at]
    return Examples(stream, {"lm": Targets.at(query[answered], framed.tokens[at[answered]])})
