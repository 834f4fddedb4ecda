"""Fitting a (source, target) pair to an architecture: noise is one step, layout another (UL2's claim as code)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from unmask.batch import Examples, Stream, Targets, causal, full, places, prefix, starts
from unmask.config import Strict
from unmask.objectives.base import Shape, Sizes, Vocabulary


@dataclass(frozen=True)
class Ragged:
    """R texts of ids end to end."""

    tokens: np.ndarray  # (N,) int32
    start: np.ndarray  # (R + 1,)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.start)


@dataclass(frozen=True)
class Pairs:
    """What a text-to-text objective yields: a source to read and a target to write, end tokens included."""

    source: Ragged
    target: Ragged


class Layout(Strict):
    """How a pair is shown to a model.

    encdec   the source to one stack, [BOS] + target to the other (Raffel et al. 2020)
    prefix   one stack; the source is visible in both directions, the target is causal
    causal   one stack, everything causal; the loss stays on the target

    In one stack the pair is [BOS] source target, as in seqio: [BOS] is part of the visible prefix, and
    the last source token predicts the first target token.

        source 7 8 5, target 3 9      tokens   [BOS]  7  8  5  3
                                      reveal      0   0  0  0  1
                                      target               3  9
    """

    kind: Literal["encdec", "prefix", "causal"] = "encdec"

    def sizes(self, source: np.ndarray, target: np.ndarray) -> Sizes:
        """Lengths of the streams for pairs of these lengths (R,)."""
        if self.kind == "encdec":
            return Sizes(np.asarray(target), np.asarray(source))
        return Sizes(source + target)

    def fits(self, sizes: Sizes, shape: Shape) -> np.ndarray:
        ok = sizes.stream <= shape.stream
        return ok if sizes.source is None else ok & (sizes.source <= shape.source)

    def __call__(self, pairs: Pairs, vocabulary: Vocabulary) -> Examples:
        bos = vocabulary.need("bos")
        if self.kind == "encdec":
            stream = causal(shifted(pairs.target, bos), pairs.target.start)
            return Examples(
                stream,
                {"lm": Targets.at(np.arange(len(pairs.target.tokens)), pairs.target.tokens)},
                source=full(pairs.source.tokens, pairs.source.start),
            )
        return self._one_stack(pairs, bos)

    def _one_stack(self, pairs: Pairs, bos: int) -> Examples:
        s, t = pairs.source.lengths, pairs.target.lengths
        start = starts(s + t)
        whole = np.empty(start[-1], np.int32)
        in_source = places(start) < np.repeat(s, s + t)
        whole[in_source], whole[~in_source] = pairs.source.tokens, pairs.target.tokens
        tokens = shifted(Ragged(whole, start), bos)
        stream: Stream = causal(tokens, start) if self.kind == "causal" else prefix(tokens, start, s + 1)
        return Examples(stream, {"lm": Targets.at(np.flatnonzero(~in_source), pairs.target.tokens)})


def shifted(text: Ragged, first: int) -> np.ndarray:
    """Each text moved one to the right behind `first`, without its last token."""
    tokens = np.empty_like(text.tokens)
    tokens[1:] = text.tokens[:-1]
    tokens[text.start[:-1][text.lengths > 0]] = first
    return tokens
