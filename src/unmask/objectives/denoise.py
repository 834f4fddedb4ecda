"""Text-to-text objectives: prefix LM and span corruption (Raffel et al. 2020, sections 3.1.4, 3.2 and 3.3)."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from unmask import keyed
from unmask.batch import Examples, Rows, ranges, starts
from unmask.config import Visibility
from unmask.errors import UserError
from unmask.objectives.base import Objective, Outline, Plan, Shape, Sizes, Vocabulary, frame, outline
from unmask.objectives.layout import Layout, Pairs, Ragged
from unmask.objectives.spans import choose, place_spans


class TextToText(Objective):
    """A pair from each text, and the layout that shows it to a model."""

    layout: Layout = Layout()
    """encdec (the default of most), prefix or causal; or the record of `Layout`."""

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

    def extremes(self, lengths: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Pairs of (R,) lengths: where all of these fit, every example does. Several where source and target are never
        at their longest together (mixtures of noises)."""
        return [self.longest(lengths)]

    def sizes(self, of: Outline) -> Sizes:
        return self.layout.sizes(*self.pair_sizes(of))

    def shape(self, context: int, target_context: int | None = None) -> Shape:
        if self.layout.kind != "encdec":
            return Shape(context)
        extremes = self.extremes(np.arange(1, 8 * context))
        source, target = (np.max([e[k] for e in extremes], axis=0) for k in (0, 1))
        fits = np.flatnonzero(source <= context)
        return Shape(target_context or min(int(target[fits].max(initial=1)), context), context)

    def room(self, shape: Shape) -> int:
        n = np.arange(1, 8 * max(shape.stream, shape.source))
        ok = np.all([self.layout.fits(self.layout.sizes(*e), shape) for e in self.extremes(n)], axis=0)
        return int(n[ok].max(initial=0))

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


class SpanNoise(TextToText):
    """Which tokens of a text are noise: exactly round(density · n) of n, but at least 1 and, for n > 1, at most n − 1.

    They form round(noise / mean_span) separate spans; without a mean span they are any tokens, every choice equally
    likely (T5's i.i.d. noise, with an exact count), and neighbours make one span.
    """

    noise_density: float = Field(0.15, gt=0, lt=1)
    """Share of a text's tokens that are noise."""
    mean_span: float | None = Field(3.0, ge=1)
    """Mean tokens of a span; null = tokens are chosen one by one (section 3.3.1)."""
    edges: Literal["free", "official"] = "free"
    """official: as the released code, every text starts with a kept token and ends with a span."""

    @model_validator(mode="after")
    def _edges_of_spans(self) -> SpanNoise:
        if self.mean_span is None and self.edges == "official":
            raise ValueError("edges=official is about spans: give a mean_span, or drop it")
        return self

    def counts(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(R,) noise tokens of texts of these lengths, and spans; without a mean span the most that there can be."""
        return span_counts(lengths, self.noise_density, self.mean_span or 1.0, self.edges)

    def noise(self, lengths: np.ndarray, key: np.ndarray) -> np.ndarray:
        """(N,) bool."""
        noise, spans = self.counts(lengths)
        if self.mean_span is None:
            return choose(starts(lengths), keyed.absorb(key, keyed.purpose("tokens")), noise)
        return place_spans(lengths, noise, spans, keyed.absorb(key, keyed.purpose("spans")), self.edges)

    def drawn(self, of: Outline) -> tuple[np.ndarray, np.ndarray]:
        """(R,) noise tokens and spans that these very texts get."""
        noise, spans = self.counts(of.lengths)
        if self.mean_span is None:
            start = starts(of.lengths)
            first = first_of_runs(self.noise(of.lengths, of.key), start)
            spans = np.bincount(np.repeat(np.arange(len(noise)), of.lengths)[first], minlength=len(noise))
        return noise, spans


def span_counts(
    lengths: np.ndarray, density: np.ndarray | float, mean_span: np.ndarray | float, edges: str = "free"
) -> tuple[np.ndarray, np.ndarray]:
    """(R,) noise tokens and spans of texts of these lengths; density and mean span may differ from text to text.

    >>> span_counts(np.array([100, 100, 1]), np.array([0.15, 0.5, 0.5]), np.array([3, 64, 3]))
    (array([15, 50,  1]), array([5, 1, 1]))
    """
    n = np.asarray(lengths)
    noise = np.clip(np.rint(n * density).astype(np.int64), 1, np.maximum(n - 1, 1))
    noise = np.where(n < (2 if edges == "official" else 1), 0, noise)
    most = n - noise + (0 if edges == "official" else 1)
    spans = np.clip(np.rint(noise / mean_span).astype(np.int64), 1, np.maximum(np.minimum(most, noise), 1))
    return noise, np.where(noise == 0, 0, spans)


class SpanCorruption(SpanNoise):
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
    final_sentinel: bool = True
    """The target closes with one more sentinel, before [EOS]."""

    plan: ClassVar[Plan] = "infill"

    @classmethod
    def t5(cls, **settings: Any) -> SpanCorruption:
        """15 % in spans of mean 3 (Raffel et al. 2020, section 3.3.4)."""
        return cls(**settings)

    @classmethod
    def t5_code(cls, **settings: Any) -> SpanCorruption:
        """The same by the released code: no final sentinel, first token kept, last one noise."""
        return cls(**{"final_sentinel": False, "edges": "official", **settings})

    @classmethod
    def iid(cls, **settings: Any) -> SpanCorruption:
        """15 % chosen token by token (table 3, "i.i.d. noise, replace spans"; the baseline of section 3.1.4)."""
        return cls(**{"mean_span": None, **settings})

    def pair_sizes(self, of: Outline) -> tuple[np.ndarray, np.ndarray]:
        return self._measured(of.lengths, *self.drawn(of))

    def longest(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._measured(lengths, *self.counts(lengths))

    def _measured(self, lengths: np.ndarray, noise: np.ndarray, spans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return lengths - noise + spans + 1, noise + spans + int(self.final_sentinel) + 1

    def pairs(self, rows: Rows, vocabulary: Vocabulary) -> Pairs:
        return corrupt(rows, self.noise(rows.lengths, rows.key), self.final_sentinel, vocabulary)


def first_of_runs(noise: np.ndarray, start: np.ndarray) -> np.ndarray:
    """(N,) bool: the first token of each run of noise inside a text."""
    first = noise.copy()
    first[1:] &= ~noise[:-1]
    opens = start[:-1][np.diff(start) > 0]
    first[opens] = noise[opens]
    return first


def corrupt(rows: Rows, noise: np.ndarray, final_sentinel: bool, vocabulary: Vocabulary) -> Pairs:
    """The pair for a given noise mask (N,): each run of noise is a sentinel in the source, spelt out in the target.

    Sentinels count 0, 1, 2, … in each text; running out of them is an error, never an ordinary id.
    """
    first = first_of_runs(noise, rows.start)
    at, hidden, eos = np.flatnonzero(first), np.flatnonzero(noise), vocabulary.need("eos")
    spans = np.diff(np.searchsorted(at, rows.start))
    needed = int(spans.max(initial=0)) + int(final_sentinel)
    if needed > len(vocabulary.sentinels):
        raise UserError(
            f"a text needs {needed} sentinels but the tokenizer has {len(vocabulary.sentinels)}: "
            "use fewer or longer spans, a shorter context, or train the tokenizer with more (tokenizer.sentinels)"
        )
    sentinel = vocabulary.sentinels[ranges(np.zeros_like(spans), spans)] if len(at) else rows.tokens[at]
    tokens = rows.tokens.copy()
    tokens[at] = sentinel
    counts = np.diff(np.searchsorted(hidden, rows.start))
    ends = [np.full(len(spans), eos)]
    source = closed(tokens[~noise | first], rows.lengths - counts + spans, ends)
    spelt = np.insert(rows.tokens[hidden], np.searchsorted(hidden, at), sentinel)
    target = closed(spelt, counts + spans, [vocabulary.sentinels[spans], *ends] if final_sentinel else ends)
    return Pairs(source, target)


def closed(tokens: np.ndarray, lengths: np.ndarray, ending: list[np.ndarray]) -> Ragged:
    """Texts of `lengths` (R,) tokens laid end to end, each followed by one token of each `ending` (R,)."""
    start = starts(lengths + len(ending))
    out = np.empty(start[-1], np.int32)
    out[ranges(start[:-1], lengths)] = tokens
    for k, token in enumerate(ending):
        out[start[1:] - len(ending) + k] = token
    return Ragged(out, start)


def interleave(tokens: np.ndarray, keep: np.ndarray, row: np.ndarray, r: int, ending: list[np.ndarray]) -> Ragged:
    """The kept tokens of each text, followed by one token of each `ending` (R,)."""
    return closed(tokens[keep], np.bincount(row[keep], minlength=r), ending)
