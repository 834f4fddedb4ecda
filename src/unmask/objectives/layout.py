"""Fitting a (source, target) pair to an architecture: noise is one step, layout another (UL2's claim as code)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import model_validator

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

    In one stack [BOS] stands in front of the pair, as in seqio (`bos="front"`, the default), or between source and
    target, where the decoder's start token was (`bos="boundary"`). Either way it belongs to the visible prefix, and
    the last of the prefix predicts the first target token: only what stands where differs.

        source 7 8 5, target 3 9       front           [BOS]   7     8     5    3
                                       boundary          7     8     5   [BOS]  3
                                       reveal            0     0     0     0    1
                                       target                              3    9

    A source of 5 and a target of 3 see 25 (encoder) + 6 (decoder) + 15 (across) pairs in two stacks, 51 under prefix
    and 36 under causal, wherever [BOS] is.
    """

    kind: Literal["encdec", "prefix", "causal"] = "encdec"
    bos: Literal["front", "boundary"] = "front"
    """Where [BOS] stands in one stack; two stacks have it before the target."""
    loss: Literal["target", "all"] = "target"
    """all, for causal only: the source is predicted too (seqio's loss_on_targets_only = false)."""

    @model_validator(mode="after")
    def _fits_together(self) -> Layout:
        if self.loss == "all" and self.kind != "causal":
            raise ValueError(
                f"layout.loss=all fits kind=causal only: under {self.kind} the source is seen from both sides, and a "
                "token would be asked of what shows it"
            )
        if self.loss == "all" and self.bos == "boundary":
            raise ValueError("layout.loss=all needs bos=front: the first source token is predicted from [BOS]")
        if self.bos == "boundary" and self.kind == "encdec":
            raise ValueError("layout.bos=boundary is about one stack; encdec has [BOS] before the target: drop it")
        return self

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
        in_source = places(start) < np.repeat(s, s + t)
        whole = np.empty(start[-1], np.int32)
        whole[in_source], whole[~in_source] = pairs.source.tokens, pairs.target.tokens
        if self.bos == "front":
            tokens = shifted(Ragged(whole, start), bos)
        else:
            tokens = whole.copy()
            tokens[~in_source] = shifted(pairs.target, bos)
        stream: Stream = causal(tokens, start) if self.kind == "causal" else prefix(tokens, start, s + 1)
        asked = ~in_source if self.loss == "target" else np.ones_like(in_source)
        return Examples(stream, {"lm": Targets.at(np.flatnonzero(asked), whole[asked])})


def shifted(text: Ragged, first: int) -> np.ndarray:
    """Each text moved one to the right behind `first`, without its last token."""
    tokens = np.empty_like(text.tokens)
    tokens[1:] = text.tokens[:-1]
    tokens[text.start[:-1][text.lengths > 0]] = first
    return tokens
