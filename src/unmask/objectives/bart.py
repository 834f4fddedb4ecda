"""BART's five noises, alone and combined (Lewis et al. 2020, section 2.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from unmask import keyed
from unmask.batch import Rows, places, ranges, starts
from unmask.errors import UserError
from unmask.objectives.base import Outline, Vocabulary, frame, outline
from unmask.objectives.denoise import TextToText
from unmask.objectives.layout import Pairs, Ragged
from unmask.objectives.shuffle import shuffled
from unmask.objectives.spans import choose, compose
from unmask.objectives.study import masks


class Bart(TextToText):
    """The whole text from a spoilt copy; the noises apply in this order, and each that is 0 or false is off.

        text                A B C . D E .
        permute_sentences   D E . A B C .          sentences in random order (whole batches need sentence starts)
        infill_rate         D [MASK] A B C .       spans of Poisson(`mean_span`) tokens give way to one [MASK] each
        delete_rate         D [MASK] B C .         tokens vanish
        mask_rate           D [MASK] B [MASK] .    tokens become [MASK]
        rotate              B [MASK] . D [MASK]    the text begins at a random token
        target              A B C . D E . [EOS]

    Rates are what happens, not what was tried: of n tokens exactly round(rate · n), at least 1, are infilled (deleted,
    masked), and no token is hit twice. Spans are drawn until their lengths reach the share, the last one cut; they lie
    on the ring of the text, so that its ends are noise as often as its middle, one kept token apart where that is
    possible, and one that passes the end is two. A span of 0 tokens hides nothing and adds one [MASK] anywhere; there
    are never more masks from spans than infilled tokens, so the source is never longer than the text.

    fairseq's code removes 26 % where 30 % is asked for, since its spans overlap; it draws mean 3 unless told 3.5.

    >>> from unmask.objectives.show import toy
    >>> e = Bart(infill_rate=0.4, permute_sentences=False)(Rows.of([range(11, 21)]), toy())
    >>> e.source.tokens.tolist(), e.targets["lm"].value.tolist()
    ([11, 12, 4, 15, 4, 18, 19, 20, 3], [11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 3])
    """

    type: Literal["bart"] = "bart"
    infill_rate: float = Field(0.3, ge=0, le=1)
    """Share of the tokens that text infilling takes away."""
    mean_span: float = Field(3.5, ge=1)
    """Mean tokens of an infilled span (the Poisson distribution's lambda)."""
    delete_rate: float = Field(0.0, ge=0, le=1)
    """Share of the tokens that are deleted."""
    mask_rate: float = Field(0.0, ge=0, le=1)
    """Share of the tokens that become [MASK], one by one."""
    random_share: float = Field(0.0, ge=0, le=1)
    """Share of all these masks that are a random token instead (0.1 in the released recipe; not in the paper)."""
    permute_sentences: bool = True
    """Put the sentences in random order."""
    rotate: bool = False
    """Let the text begin at a random token of the corrupted text, and continue behind its end with its beginning."""

    copies: ClassVar[bool] = True

    @model_validator(mode="after")
    def _something_and_not_too_much(self) -> Bart:
        if (total := self.infill_rate + self.delete_rate + self.mask_rate) > 1 + 1e-9:
            raise ValueError(f"infill_rate + delete_rate + mask_rate are {total:g}: together at most 1")
        if not (total or self.permute_sentences or self.rotate):
            raise ValueError("no noise is on: give a rate, permute_sentences or rotate")
        return self

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"sentence"}) if self.permute_sentences else frozenset()

    @classmethod
    def bart(cls, **settings: Any) -> Bart:
        """30 % infilled with Poisson(3.5), all sentences permuted (section 5.1: the large models)."""
        return cls(**settings)

    @classmethod
    def bart_code(cls, **settings: Any) -> Bart:
        """The released recipe: of the masks, 10 % are random tokens (fairseq issue 1899)."""
        return cls(**{"random_share": 0.1, **settings})

    @classmethod
    def token_masking(cls, **settings: Any) -> Bart:
        """Token masking alone, at BERT's 15 %."""
        return cls(**{**_OFF, "mask_rate": 0.15, **settings})

    @classmethod
    def token_deletion(cls, **settings: Any) -> Bart:
        """Token deletion alone (the paper gives no rate: 15 %)."""
        return cls(**{**_OFF, "delete_rate": 0.15, **settings})

    @classmethod
    def text_infilling(cls, **settings: Any) -> Bart:
        """Text infilling alone: 30 %, mean 3.5."""
        return cls(**{**_OFF, "infill_rate": 0.3, **settings})

    @classmethod
    def sentence_permutation(cls, **settings: Any) -> Bart:
        """Sentence permutation alone."""
        return cls(**{**_OFF, "permute_sentences": True, **settings})

    @classmethod
    def document_rotation(cls, **settings: Any) -> Bart:
        """Document rotation alone."""
        return cls(**{**_OFF, "rotate": True, **settings})

    # ------------------------------------------------------------ sizes

    def counts(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(R,) tokens that are infilled, deleted and masked, of texts of these lengths."""
        left = np.asarray(lengths)
        out = []
        for rate in (self.infill_rate, self.delete_rate, self.mask_rate):
            asked = np.rint(rate * lengths).astype(np.int64)
            out.append(np.minimum(np.maximum(asked, 1) if rate else asked, left))
            left = left - out[-1]
        return out[0], out[1], out[2]

    def pair_sizes(self, of: Outline) -> tuple[np.ndarray, np.ndarray]:
        infilled, deleted, _ = self.counts(of.lengths)
        n = of.lengths
        spans = np.bincount(self.infill(of).row, minlength=len(n)) if self.infill_rate else np.zeros_like(n)
        return n - infilled - deleted + spans + 1, n + 1

    def longest(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return lengths - self.counts(lengths)[1] + 1, lengths + 1

    def infill(self, of: Outline) -> Infill:
        return draw_infill(of.lengths, self.counts(of.lengths)[0], self.mean_span, of.key)

    # ------------------------------------------------------------ the pair

    def pairs(self, rows: Rows, vocabulary: Vocabulary) -> Pairs:
        target = frame(rows, after=vocabulary.need("eos"))
        given = target
        if self.permute_sentences:
            given = frame(replace(rows, tokens=rows.tokens[sentences(rows)]), after=vocabulary.need("eos"))
        source = Ragged(given.tokens, given.start)
        if self.infill_rate or self.delete_rate or self.mask_rate:
            source = self._holes(given, outline(rows), vocabulary)
        if self.rotate:
            source = Ragged(source.tokens[rotated(source.start, rows.key)], source.start)
        return Pairs(source, Ragged(target.tokens, target.start))

    def _holes(self, text: Rows, of: Outline, vocabulary: Vocabulary) -> Ragged:
        """Each text, which ends with [EOS], with spans infilled, tokens deleted and tokens masked."""
        _, deleted, masked = self.counts(of.lengths)
        keep = np.ones(len(text.tokens), bool)
        size = np.zeros(len(text.tokens), np.int64)  # tokens of the source that stand for each place
        if self.infill_rate:
            spans = self.infill(of)
            first = text.start[spans.row] + spans.begin
            keep[ranges(first, spans.length)] = False
            size += np.bincount(first, minlength=len(size))
        free = keep & ~text.fixed
        if self.delete_rate:
            gone = choose(text.start, keyed.absorb(of.key, keyed.purpose("delete")), deleted, free)
            keep, free = keep & ~gone, free & ~gone
        size += keep
        if self.mask_rate:
            keep &= ~choose(text.start, keyed.absorb(of.key, keyed.purpose("mask")), masked, free)
        stop = np.cumsum(size)
        start = starts(np.diff(np.append(0, stop[text.start[1:] - 1])))
        hidden = np.ones(start[-1], bool)
        hidden[stop[keep] - 1] = False
        tokens = np.empty(start[-1], np.int32)
        tokens[~hidden] = text.tokens[keep]
        tokens[hidden] = masks(start, of.key, np.flatnonzero(hidden), self.random_share, vocabulary)
        return Ragged(tokens, start)


_OFF: dict[str, Any] = {"infill_rate": 0.0, "permute_sentences": False}


# ---------------------------------------------------------------- infilled spans


@dataclass(frozen=True)
class Infill:
    """S spans: the text of each, the place of its first token there (n = behind the last), and its tokens, maybe 0."""

    row: np.ndarray
    begin: np.ndarray
    length: np.ndarray


def draw_infill(lengths: np.ndarray, count: np.ndarray, mean: float, key: np.ndarray) -> Infill:
    """Spans of Poisson(mean) tokens, which may be 0, that take exactly `count` (R,) of `lengths` (R,) tokens."""
    drawn, used = _until(count, mean, keyed.absorb(key, keyed.purpose("span lengths")))
    some = used & (drawn > 0)
    length, number = drawn[some], some.sum(1)
    row = np.repeat(np.arange(len(lengths)), number)
    begin = _on_a_ring(lengths - count, length, number, key)
    # What passes the end of the text continues at its beginning.
    over = np.maximum(begin + length - lengths[row], 0)
    cut = over > 0
    row, begin = np.append(row, row[cut]), np.append(begin, np.zeros(cut.sum(), np.int64))
    length = np.append(length - over, over[cut])
    most = np.maximum(count - np.bincount(row, minlength=len(lengths)), 0)
    none = np.minimum((used & (drawn == 0)).sum(1), most)
    empty = np.repeat(np.arange(len(lengths)), none)
    place = keyed.bits(keyed.absorb(key, keyed.purpose("insertions"))[empty], places(starts(none)))
    return Infill(
        np.append(row, empty),
        np.append(begin, keyed.below(place, lengths[empty] + 1)),
        np.append(length, np.zeros(len(empty), np.int64)),
    )


def _until(count: np.ndarray, mean: float, key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(R, W) draws of Poisson(mean), and which are used: those before `count` (R,) is reached, the last cut to fit."""
    width = int(count.max(initial=0) / mean * 1.25) + 8
    while True:
        u = keyed.uniform(key[:, None], np.arange(width))
        drawn = np.searchsorted(_poisson(mean), u, side="right")
        before = np.cumsum(drawn, axis=1) - drawn
        if (before[:, -1] >= count).all():
            return np.minimum(drawn, np.maximum(count[:, None] - before, 0)), before < count[:, None]
        width *= 2


def _poisson(mean: float) -> np.ndarray:
    """(K,) probabilities of at most 0, 1, 2, …; what is left beyond is below 1e-12."""
    k = np.arange(1, int(mean + 12 * mean**0.5) + 20)
    return np.cumsum(exp(-mean) * np.cumprod(np.append(1.0, mean / k)))


def _on_a_ring(kept: np.ndarray, length: np.ndarray, number: np.ndarray, key: np.ndarray) -> np.ndarray:
    """(S,) where the spans begin: random gaps of at least one kept token (none, where there are too few) between
    `number` (R,) spans of these lengths, on a ring that is turned at random."""
    apart = kept >= number
    row = np.repeat(np.arange(len(number)), number)
    total = np.where(number > 0, kept + np.where(apart, 0, number), 0)
    gap = compose(total, number, keyed.absorb(key, keyed.purpose("gaps"))) - ~apart[row]
    step = length + gap
    at = np.cumsum(step) - step
    at -= np.repeat(at[(np.cumsum(number) - number)[number > 0]], number[number > 0])
    n = kept + np.bincount(row, length, len(number)).astype(np.int64)
    turn = keyed.bits(keyed.absorb(key, keyed.purpose("turn")), np.zeros(len(key), np.int64))
    return (at + keyed.below(turn, np.maximum(n, 1))[row]) % np.maximum(n, 1)[row]


# ---------------------------------------------------------------- orders


def sentences(rows: Rows) -> np.ndarray:
    """(N,) where the token now at each place came from, each text's sentences in random order."""
    if rows.sentence is None:
        raise UserError(
            "permute_sentences needs sentence starts: set corpus.sentences=true, or objective.permute_sentences=false"
        )
    first = rows.sentence.copy()
    first[rows.start[:-1][rows.lengths > 0]] = True
    begin = np.flatnonzero(first)
    length = np.diff(np.append(begin, len(rows.tokens)))
    number = np.bincount(rows.row[begin], minlength=len(rows.lengths))
    order = shuffled(starts(number), keyed.absorb(rows.key, keyed.purpose("sentences")))
    return ranges(begin[order], length[order])


def rotated(start: np.ndarray, key: np.ndarray) -> np.ndarray:
    """(N,) where the token now at each place came from: all but the last of each text turned by a random number."""
    n = np.diff(start) - 1
    draw = keyed.bits(keyed.absorb(key, keyed.purpose("rotate")), np.zeros(len(key), np.int64))
    turn = keyed.below(draw, np.maximum(n, 1))
    row, place = np.repeat(np.arange(len(n)), n + 1), places(start)
    moved = (place + turn[row]) % np.maximum(n, 1)[row]
    return start[:-1][row] + np.where(place == n[row], place, moved)
