"""Text-to-text objectives: prefix LM and span corruption (Raffel et al. 2020, sections 3.1.4, 3.2 and 3.3)."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from unmask import keyed
from unmask.batch import Examples, Rows, starts
from unmask.config import Visibility
from unmask.errors import UserError
from unmask.objectives.base import Objective, Outline, Plan, Shape, Sizes, Vocabulary, frame, outline
from unmask.objectives.layout import Layout, Pairs, Ragged
from unmask.objectives.spans import place_spans


class TextToText(Objective):
    """A pair from each text, and the layout that shows it to a model."""

    layout: Layout = Layout()
    """encdec, prefix or causal."""

    @field_validator("layout", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @property
    def visibility(self) -> Visibility:
        return "prefix" if self.layout.kind == "prefix" else "causal"

    @abstractmethod
    def pair_sizes(self, of: Outline) -> tuple[np.ndarray, np.ndarray]:
        """(R,) lengths of source and target, end tokens included."""

    @abstractmethod
    def pairs(self, rows: Rows, vocabulary: Vocabulary) -> Pairs: ...

    @abstractmethod
    def longest(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(R,) the most that source and target can measure for texts of these lengths."""

    def sizes(self, of: Outline) -> Sizes:
        return self.layout.sizes(*self.pair_sizes(of))

    def shape(self, context: int, target_context: int | None = None) -> Shape:
        if self.layout.kind != "encdec":
            return Shape(context)
        n = np.arange(1, 8 * context)
        source, target = self.longest(n)
        fits = np.flatnonzero(source <= context)
        return Shape(target_context or min(int(target[fits].max(initial=1)), context), context)

    def room(self, shape: Shape) -> int:
        n = np.arange(1, 8 * max(shape.stream, shape.source))
        ok = self.layout.fits(self.layout.sizes(*self.longest(n)), shape)
        return int(n[ok].max(initial=0)) if ok.any() else 0

    def __call__(self, rows: Rows, vocabulary: Vocabulary) -> Examples:
        return self.layout(self.pairs(rows, vocabulary), vocabulary)


class PrefixLM(TextToText):
    """The end of a text from its beginning; the split is uniform over the text.

    The prefix holds 0 … n − 1 of n tokens: it may be empty, so that the probability of a whole text is an event
    that the model was trained on. The target ends with [EOS] only where the document ends.

    >>> from unmask.objectives.show import toy
    >>> e = PrefixLM(layout="prefix")(Rows.of([[11, 12, 13, 14]]), toy())
    >>> e.stream.tokens.tolist(), e.stream.reveal.tolist()
    ([2, 11, 12, 13, 14], [0, 0, 0, 0, 1])
    >>> e.targets["lm"].index.tolist(), e.targets["lm"].value.tolist()
    ([3, 4], [14, 3])
    """

    type: Literal["prefix_lm"] = "prefix_lm"
    layout: Layout = Layout(kind="prefix")

    def pair_sizes(self, of: Outline) -> tuple[np.ndarray, np.ndarray]:
        key = keyed.absorb(of.key, keyed.purpose("split"))
        split = keyed.below(keyed.bits(key, np.zeros(len(key), np.int64)), np.maximum(of.lengths, 1))
        return split, of.lengths - split + of.ends

    def longest(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.layout.kind == "encdec":
            return np.maximum(lengths - 1, 0), lengths + 1
        return lengths, np.ones_like(lengths)

    def pairs(self, rows: Rows, vocabulary: Vocabulary) -> Pairs:
        source, target = self.pair_sizes(outline(rows))
        framed = frame(rows, at_end=vocabulary.need("eos"))
        in_source = framed.place < np.repeat(source, framed.lengths)
        return Pairs(
            Ragged(framed.tokens[in_source], starts(source)), Ragged(framed.tokens[~in_source], starts(target))
        )


class SpanCorruption(TextToText):
    """T5's denoising: spans of the text are replaced by sentinels, and the target spells them out.

    `noise_density` of n tokens, round(density · n) but at least 1 and, for n > 1, at most n − 1, in
    round(noise / mean_span) spans. Source and target end with [EOS].

        text     thank you for inviting me to your party last week
        source   thank you <0> me to your party <1> week [EOS]
        target   <0> for inviting <1> last <2> [EOS]

    Two conventions exist for the target's end. The paper closes it with one more sentinel (section 3.1.4);
    the released code does not: `final_sentinel=False`. The released code also starts each text with a kept
    token and ends it with a span, so that the last token is always noise: `edges="official"`.

    >>> from unmask.objectives.show import toy
    >>> e = SpanCorruption(noise_density=0.4, mean_span=2)(Rows.of([[11, 12, 13, 14, 15]]), toy())
    >>> e.source.tokens.tolist(), e.targets["lm"].value.tolist()
    ([11, 12, 90, 15, 3], [90, 13, 14, 91, 3])
    """

    type: Literal["span_corruption"] = "span_corruption"
    noise_density: float = Field(0.15, gt=0, lt=1)
    mean_span: float = Field(3.0, ge=1)
    """Mean tokens of a span."""
    final_sentinel: bool = True
    edges: Literal["free", "official"] = "free"

    plan: ClassVar[Plan] = "infill"

    def counts(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(R,) noise tokens and spans of texts of these lengths."""
        n = np.asarray(lengths)
        noise = np.clip(np.rint(n * self.noise_density).astype(np.int64), 1, np.maximum(n - 1, 1))
        noise = np.where(n < (2 if self.edges == "official" else 1), 0, noise)
        most = n - noise + (0 if self.edges == "official" else 1)
        spans = np.clip(np.rint(noise / self.mean_span).astype(np.int64), 1, np.maximum(np.minimum(most, noise), 1))
        return noise, np.where(noise == 0, 0, spans)

    def pair_sizes(self, of: Outline) -> tuple[np.ndarray, np.ndarray]:
        return self.longest(of.lengths)

    def longest(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        noise, spans = self.counts(lengths)
        return lengths - noise + spans + 1, noise + spans + int(self.final_sentinel) + 1

    def pairs(self, rows: Rows, vocabulary: Vocabulary) -> Pairs:
        noise, spans = self.counts(rows.lengths)
        key = keyed.absorb(rows.key, keyed.purpose("spans"))
        return corrupt(rows, place_spans(rows.lengths, noise, spans, key, self.edges), self.final_sentinel, vocabulary)


def corrupt(rows: Rows, noise: np.ndarray, final_sentinel: bool, vocabulary: Vocabulary) -> Pairs:
    """The pair for a given noise mask (N,): each run of noise is a sentinel in the source, spelt out in the target.

    Sentinels count 0, 1, 2, … in each text; running out of them is an error, never an ordinary id.
    """
    before = np.concatenate([[False], noise[:-1]]) & (rows.place > 0)
    first = noise & ~before
    r, eos = len(rows.lengths), vocabulary.need("eos")
    spans = np.bincount(rows.row[first], minlength=r)
    needed = int(spans.max(initial=0)) + int(final_sentinel)
    if needed > len(vocabulary.sentinels):
        raise UserError(
            f"a text needs {needed} sentinels but the tokenizer has {len(vocabulary.sentinels)}: "
            "use fewer or longer spans, a shorter context, or train the tokenizer with more (tokenizer.sentinels)"
        )
    number = np.cumsum(first) - 1 - np.repeat(np.cumsum(spans) - spans, rows.lengths)
    sentinel = vocabulary.sentinels[np.maximum(number, 0)] if needed else rows.tokens
    source = _interleave(np.where(first, sentinel, rows.tokens), ~noise | first, rows.row, r, [np.full(r, eos)])
    twice = np.stack([sentinel, rows.tokens], 1).reshape(-1)
    keep = np.stack([first, noise], 1).reshape(-1)
    ending = [vocabulary.sentinels[spans]] if final_sentinel else []
    target = _interleave(twice, keep, np.repeat(rows.row, 2), r, [*ending, np.full(r, eos)])
    return Pairs(source, target)


def _interleave(tokens: np.ndarray, keep: np.ndarray, row: np.ndarray, r: int, ending: list[np.ndarray]) -> Ragged:
    """The kept tokens of each text, followed by one token of each `ending` (R,)."""
    lengths = np.bincount(row[keep], minlength=r)
    start = starts(lengths + len(ending))
    out = np.empty(start[-1], np.int32)
    out[np.repeat(start[:-1] - (np.cumsum(lengths) - lengths), lengths) + np.arange(int(lengths.sum()))] = tokens[keep]
    for k, token in enumerate(ending):
        out[start[1:] - len(ending) + k] = token
    return Ragged(out, start)
