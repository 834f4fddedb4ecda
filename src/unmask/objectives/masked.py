"""Masked language modelling: which tokens are hidden, at what rate, and what stands in their place.

Devlin et al. 2019 (section 3.1, appendix A.1); Liu et al. 2019 (dynamic masks); Cui et al. 2019 (whole words); Lan et
al. 2020 (n-grams); Joshi et al. 2020 (spans and their boundaries); Wettig et al. 2023 (rates).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from unmask import keyed
from unmask.batch import Examples, Head, Rows, Targets, full
from unmask.config import Visibility
from unmask.objectives import units
from unmask.objectives.base import LM, Objective, Outline, Plan, Shape, Sizes, Vocabulary, frame
from unmask.objectives.spans import choose
from unmask.objectives.units import Law, Selected, Units

BOUNDARY = "sbo"


class Masking(Objective):
    """What all masked objectives share: [CLS] text [SEP], some of it hidden, each hidden token a target.

    A subclass says what is selected. The noise depends on a text's key alone, so masks are dynamic (Liu et al. 2019,
    section 4.1: a new one each epoch) unless `duplicates` says that they recur.
    """

    mask_share: float = Field(0.8, ge=0, le=1)
    """Share of the selected that become [MASK]."""
    random_share: float = Field(0.1, ge=0, le=1)
    """Share of the selected that become a random token (never a special one; it may be the original); the rest stay
    as they are."""
    fate: Literal["token", "span"] = "token"
    """Whether each token becomes [MASK], random or nothing by its own draw, or the whole word or span by one (every
    random token is drawn by itself). BERT's and ALBERT's code draw by token, SpanBERT by span."""
    duplicates: int = Field(0, ge=0)
    """How many different masks a text has in all, one after the other over the epochs (BERT's `dupe_factor`); 0 = a
    new one each epoch."""

    plan: ClassVar[Plan] = "pseudo"
    copies: ClassVar[bool] = True

    @property
    def masks(self) -> bool:  # type: ignore[override]
        return self.mask_share > 0

    @property
    def recurs(self) -> int:
        return self.duplicates

    @property
    def visibility(self) -> Visibility:
        return "bidirectional"

    @model_validator(mode="after")
    def _shares(self) -> Masking:
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise ValueError(f"mask_share {self.mask_share} + random_share {self.random_share} exceed 1")
        return self

    @abstractmethod
    def select(self, rows: Rows) -> Selected:
        """The positions to predict, of framed texts; never fixed ones."""

    def room(self, shape: Shape) -> int:
        return shape.stream - 2

    def sizes(self, of: Outline) -> Sizes:
        return Sizes(of.lengths + 2)

    def framed(self, rows: Rows, vocabulary: Vocabulary) -> Rows:
        """[CLS] text [SEP], with the annotated spans where the text now stands."""
        out = frame(rows, before=vocabulary.need("cls"), after=vocabulary.need("sep"))
        if rows.spans is None or not len(rows.spans):
            return out
        row = np.searchsorted(rows.start, rows.spans[:, 0], "right") - 1
        return Rows(**{**vars(out), "spans": rows.spans + (2 * row + 1)[:, None]})

    def __call__(self, rows: Rows, vocabulary: Vocabulary) -> Examples:
        framed = self.framed(rows, vocabulary)
        selected = self.select(framed)
        tokens = framed.tokens.copy()
        tokens[selected.at] = self.replacement(framed, selected, vocabulary)
        return Examples(full(tokens, framed.start), self.targets(framed, selected))

    def targets(self, rows: Rows, selected: Selected) -> dict[str, Targets]:
        return {LM.name: Targets.at(selected.at, rows.tokens[selected.at])}

    def replacement(self, rows: Rows, selected: Selected, vocabulary: Vocabulary) -> np.ndarray:
        """(n,) what stands at the selected positions: [MASK], a random token, or the token itself."""
        at = selected.at
        count = np.diff(np.searchsorted(at, rows.start))
        place = at - np.repeat(rows.start[:-1], count)
        draw = keyed.bits(np.repeat(keyed.absorb(rows.key, keyed.purpose("replace")), count), place)
        fate = (draw & np.uint64(0xFFFFFFFF)).astype(np.float64) * 2.0**-32
        if self.fate == "span":
            fate = fate[np.flatnonzero(np.diff(selected.span, prepend=-1))][selected.span]
        random = vocabulary.ordinary[keyed.below(draw, len(vocabulary.ordinary))]
        out = np.where(fate < self.mask_share, vocabulary.need("mask"), rows.tokens[at])
        return np.where((fate >= self.mask_share) & (fate < self.mask_share + self.random_share), random, out)


class Rated(Masking):
    """A share of the text is selected, which may change over the run.

    The share is of tokens. Where words or spans are hidden whole, it is kept exactly in words, each as likely as any
    other whatever its length, so that the expected share of tokens is the same (a budget in tokens would either cut
    words or pass over long ones).
    """

    mask_rate: float = Field(0.15, gt=0, le=1)
    """Share of a text's tokens that are selected (at the start of the run, if it changes)."""
    final_rate: float | None = Field(None, gt=0, le=1)
    """The share at the end of the run; none: it stays as it is."""
    schedule: Literal["linear", "cosine"] = "linear"
    """How the share moves between the two: in proportion to the progress of the run, or by half a cosine."""

    def rate(self, progress: float) -> float:
        """The share at `progress` (0 to 1) of the run.

        >>> m = Masked(mask_rate=0.3, final_rate=0.15)
        >>> [round(m.rate(p), 4) for p in (0, 0.25, 0.5, 1)]
        [0.3, 0.2625, 0.225, 0.15]
        >>> [round(m.model_copy(update={"schedule": "cosine"}).rate(p), 4) for p in (0, 0.25, 0.5, 1)]
        [0.3, 0.278, 0.225, 0.15]
        """
        if self.final_rate is None:
            return self.mask_rate
        moved = progress if self.schedule == "linear" else (1 - np.cos(np.pi * progress)) / 2
        return float(self.mask_rate + (self.final_rate - self.mask_rate) * moved)

    def budget(self, count: np.ndarray, progress: float) -> np.ndarray:
        """(R,) how many of `count` (R,) units to select: round(rate · count), but at least one of any."""
        wanted: np.ndarray = np.rint(self.rate(progress) * count).astype(np.int64)
        return np.asarray(np.minimum(np.maximum(wanted, 1), count))


class Spanned(Rated):
    """Tokens or whole words, alone or in spans of several."""

    selection: Literal["exact", "independent"] = "exact"
    """exact: max(1, round(rate · n)) of the n tokens (or words) of each text, BERT's code; independent: each by its
    own draw."""
    unit: Literal["token", "word"] = "token"
    """What is hidden as a whole. The ids of what stays visible are the tokenizer's, whatever the unit."""
    span_lengths: Law = "one"
    """How many units a span has: one; or 1 to `max_span`, evenly (uniform), in proportion to 1/n (harmonic: ALBERT)
    or to (1 − p)ⁿ (geometric: SpanBERT)."""
    max_span: int = Field(10, ge=1)
    """The most units of a span."""
    span_p: float = Field(0.2, gt=0, lt=1)
    """p of geometric lengths: 0.2 and at most 10 make 3.8 on average."""

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"word"} if self.unit == "word" else ())

    @model_validator(mode="after")
    def _independent(self) -> Spanned:
        if self.selection == "independent" and self.span_lengths != "one":
            raise ValueError(
                f"selection=independent draws each {self.unit} by itself: it has no span_lengths={self.span_lengths}"
            )
        return self

    def select(self, rows: Rows) -> Selected:
        key = keyed.absorb(rows.key, keyed.purpose("mask"))
        if self.unit == "token" and self.span_lengths == "one":
            return Selected.alone(np.flatnonzero(self._tokens(rows, key)))
        found = units.words(rows) if self.unit == "word" else units.tokens(rows)
        if self.selection == "independent":
            return _independently(rows, found, key, self.rate(rows.progress))
        budget = self.budget(found.counts, rows.progress)
        if self.span_lengths == "one":
            return units.single(found, key, budget)
        return units.runs(found, key, budget, units.law(self.span_lengths, self.max_span, self.span_p))

    def _tokens(self, rows: Rows, key: np.ndarray) -> np.ndarray:
        """(N,) bool: single tokens, without a detour over units."""
        if self.selection == "independent":
            return np.asarray((keyed.uniform(key[rows.row], rows.place) < self.rate(rows.progress)) & ~rows.fixed)
        eligible = rows.lengths - np.diff(np.searchsorted(np.flatnonzero(rows.fixed), rows.start))
        return choose(rows.start, key, self.budget(eligible, rows.progress), ~rows.fixed)


def _independently(rows: Rows, found: Units, key: np.ndarray, rate: float) -> Selected:
    picked = np.flatnonzero(keyed.uniform(key[rows.row[found.begin]], rows.place[found.begin]) < rate)
    return units.gathered(found, picked, picked)


class Masked(Spanned):
    """Some tokens are hidden; each is predicted from both sides.

    `mask_rate` of each text's tokens are selected, at least one, never a special token. Of the selected,
    80 % become [MASK], 10 % a random token (never a special one; it may be the original), 10 % stay.
    Noise is dynamic (Liu et al. 2019): it depends on the epoch.

        text       [CLS]   the   cat   sat  [SEP]
        tokens     [CLS]   the [MASK]  sat  [SEP]
        target                   cat

    >>> from unmask.objectives.show import toy
    >>> e = Masked(mask_rate=0.4)(Rows.of([[11, 12, 13, 14, 15]]), toy())
    >>> e.stream.tokens.tolist(), e.targets["lm"].index.tolist(), e.targets["lm"].value.tolist()
    ([2, 11, 12, 80, 4, 15, 3], [3, 4], [13, 14])

    `unit="word"` hides words whole; 13 14 15 below are one word.

        text       [CLS]    11     12     13     14     15   [SEP]
        word                 1      1      1      0      0
        tokens     [CLS]    11     12  [MASK] [MASK] [MASK]  [SEP]
        target                             13     14     15

    >>> word = np.array([1, 1, 1, 0, 0], bool)
    >>> rows = Rows.of([[11, 12, 13, 14, 15]], [2], word=word)
    >>> e = Masked(unit="word", mask_share=1.0, random_share=0.0)(rows, toy())
    >>> e.stream.tokens.tolist(), e.targets["lm"].index.tolist(), e.targets["lm"].value.tolist()
    ([2, 11, 12, 4, 4, 4, 3], [3, 4, 5], [13, 14, 15])

    `boundary_offsets` adds SpanBERT's boundary objective: each token of a span x_s … x_e also from the two tokens
    just outside, x_(s−1) and x_(e+1), and its offset in the span ([CLS] and [SEP] stand outside where a span touches
    an end). Spans are kept apart as long as there are tokens enough, so what stands outside is not hidden
    (at rates of up to .6; at .8, over a third of these places are).

        place         0      1      2      3      4      5      6
        tokens     [CLS]    11  [MASK] [MASK] [MASK]    15   [SEP]
        sbo reads                 1, 5   1, 5   1, 5
        offset                    0      1      2

    >>> m = Masked.spanbert().model_copy(update={"mask_rate": 0.6})
    >>> e = m(Rows.of([[11, 12, 13, 14, 15]], [3], word=np.ones(5, bool)), toy())
    >>> e.stream.tokens.tolist(), e.targets["sbo"].index.tolist()
    ([2, 11, 4, 4, 4, 15, 3], [[1, 5], [1, 5], [1, 5]])
    >>> e.targets["sbo"].value.tolist(), e.targets["sbo"].extra.tolist()
    ([12, 13, 14], [0, 1, 2])
    """

    type: Literal["masked"] = "masked"
    boundary_offsets: int = Field(0, ge=0)
    """Places in a span that the boundary objective tells apart (tokens further on have no such target); 0 = without
    it."""

    def heads(self) -> tuple[Head, ...]:
        return (LM, Head(BOUNDARY, arity=2, extra=self.boundary_offsets)) if self.boundary_offsets else (LM,)

    def targets(self, rows: Rows, selected: Selected) -> dict[str, Targets]:
        found = super().targets(rows, selected)
        return found | {BOUNDARY: self._boundary(rows, selected)} if self.boundary_offsets else found

    def _boundary(self, rows: Rows, selected: Selected) -> Targets:
        """Each token from the two just outside its span, which a framed text always has."""
        before = selected.first - 1
        behind = selected.first + np.bincount(selected.span, minlength=len(selected.first))
        offset = selected.at - selected.first[selected.span]
        told = offset < self.boundary_offsets
        index = np.stack([before, behind], 1)[selected.span[told]]
        return Targets.at(index, rows.tokens[selected.at[told]], extra=offset[told])

    # ---------------------------------------------------------------- as published

    @classmethod
    def bert(cls) -> Masked:
        """Devlin et al. 2019: 15 %, 80 / 10 / 10; ten masks a text, made before training (their code's default)."""
        return cls(duplicates=10)

    @classmethod
    def roberta(cls) -> Masked:
        """Liu et al. 2019, section 4.1: the same with a new mask each time a text is seen."""
        return cls()

    @classmethod
    def whole_word(cls) -> Masked:
        """BERT's whole-word models, and Cui et al. 2019 for segmented Chinese: all of a word, fates by token."""
        return cls(unit="word")

    @classmethod
    def albert(cls) -> Masked:
        """Lan et al. 2020, section 4.1: n-grams of up to 3 whole words, p(n) in proportion to 1/n; fates by token."""
        return cls(unit="word", span_lengths="harmonic", max_span=3)

    @classmethod
    def spanbert(cls) -> Masked:
        """Joshi et al. 2020, sections 3.1 and 3.2: spans of 1 to 10 whole words, geometric with p = 0.2, one fate a
        span, and the boundary objective (20 places in a span, as in their code)."""
        return cls(unit="word", span_lengths="geometric", fate="span", boundary_offsets=20)

    @classmethod
    def wettig(cls) -> Masked:
        """Wettig et al. 2023, "Should you mask 15 %": 40 %, always [MASK]."""
        return cls(mask_rate=0.4, mask_share=1.0, random_share=0.0)

    @classmethod
    def modernbert(cls) -> Masked:
        """Warner et al. 2024, section 2.2: 30 %."""
        return cls(mask_rate=0.3)
