"""Infilling by a causal model: part of a text is moved behind the rest, where both of its sides are already read.

Fill-in-the-middle (Bavarian et al. 2022, "Efficient training of language models to fill in the middle") moves one part
behind sentinels, causal masking (Aghajanyan et al. 2022, "CM3") a few. Both act on each text of a row by itself, after
documents were cut to the context ("context level", Bavarian et al. 2022, section 3.2): the part that is moved, its
prefix and its suffix always lie in the same row, and no cut ever takes the middle off.

Legend: R texts of n tokens each, N all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from unmask import keyed
from unmask.batch import Examples, Rows, Targets, causal, places, ranges, starts
from unmask.errors import UserError
from unmask.objectives.base import Objective, Outline, Shape, Sizes, Vocabulary, outline
from unmask.objectives.layout import Ragged, shifted
from unmask.objectives.spans import choose


class FillInTheMiddle(Objective):
    """A share of the texts is cut into prefix, middle and suffix, and the middle is written last.

    Two cuts, each uniform over the n + 1 places of a text; any part may be empty. `spm_rate` of the cut texts show
    the suffix first. The loss is on every token, those of prefix and suffix and the sentinels too, as in the paper.
    [BOS] opens every text.

        text       the   cat   sat    on   it
        psm        <0>   the   <1>    on   it   <2>   cat   sat  [EOS]     prefix, suffix, middle
        spm        <0>   <1>    on    it  <2>   the   cat   sat  [EOS]     suffix, prefix, middle

    Suffix-first is the paper's SPMv2 (appendix D; StarCoder's, too): the text of a prefix-first one whose prefix is
    empty, so that the two help each other and prefix and middle are one stretch of text. spm="v1" gives each part its
    own sentinel, as the paper's other variant: <1> on it <0> the <2> cat sat [EOS].

    Sentinels of the tokenizer: 0 opens the prefix, 1 the suffix, 2 the middle. [EOS] closes the middle of every cut
    text, whether or not its document ends there: it says that the middle has reached the suffix (the paper's <EOT>;
    without it a model never learns to stop). end="sentinel" takes sentinel 3 for that, and [EOS] follows
    where the document ends.

    The paper cuts between characters and encodes the parts one by one. Here texts are ids already, so cuts
    fall between tokens (with a byte or character tokenizer these are the paper's), or, with splits="words", in front of
    words, where a writer's cursor and a tokenizer agree best. A cut inside a token is not to be had from ids: its
    halves would have to be encoded with the words that they stand in ("unhapp" is seldom un + happ), as prompts are
    that a writer breaks off there; and how long that makes a text is known only after reading it.

    >>> from unmask.objectives.show import toy
    >>> fim = FillInTheMiddle(rate=1, spm_rate=0)
    >>> e = fim(Rows.of([[11, 12, 13, 14, 15]], key=[48]), toy())
    >>> e.stream.tokens.tolist()
    [2, 90, 11, 91, 14, 15, 92, 12, 13]
    >>> e.targets["lm"].value.tolist()
    [90, 11, 91, 14, 15, 92, 12, 13, 3]
    """

    type: Literal["fill_in_the_middle"] = "fill_in_the_middle"
    rate: float = Field(0.5, ge=0, le=1)
    """Share of the texts that are cut; the others stay as they are."""
    spm_rate: float = Field(0.5, ge=0, le=1)
    """Share of the cut ones with the suffix first (the paper's joint training: a half)."""
    spm: Literal["v2", "v1"] = "v2"
    splits: Literal["tokens", "words"] = "tokens"
    end: Literal["eos", "sentinel"] = "eos"
    """What closes the middle."""
    loss: Literal["all", "middle"] = "all"
    """Of a cut text: every token, or the middle and what closes it."""

    @classmethod
    def fim(cls) -> FillInTheMiddle:
        """Half of the texts cut, half of these suffix first (Bavarian et al. 2022)."""
        return cls()

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"word"} if self.splits == "words" else ())

    def room(self, shape: Shape) -> int:
        most = 1 if self.rate == 0 else 4 if self.end == "eos" else 5
        return max(shape.stream - most, 0)

    def sizes(self, of: Outline) -> Sizes:
        cut = self.chosen(of)
        extra = np.where(cut, 4, of.ends) if self.end == "eos" else 4 * cut + of.ends
        return Sizes(of.lengths + extra)

    def chosen(self, of: Outline) -> np.ndarray:
        """(R,) bool: the texts that are cut; an empty one never is."""
        return (_draw(of.key, "fim", 0) < self.rate) & (of.lengths > 0)

    def __call__(self, rows: Rows, vocabulary: Vocabulary) -> Examples:
        of = outline(rows)
        cut, n = self.chosen(of), rows.lengths
        start = starts(self.sizes(of).stream)
        first, last = self._cuts(rows)
        plan = _Parts(np.where(cut, first, n), np.where(cut, last, n), n)
        late = cut & (_draw(rows.key, "spm", 0) < self.spm_rate)
        into, marks = plan.places(cut, late, self.spm == "v1")
        out = np.empty(start[-1], np.int32)
        out[ranges((start[:-1, None] + into).reshape(-1), plan.lengths.reshape(-1))] = rows.tokens
        opening = sentinels(vocabulary, 3 + (self.end == "sentinel"), self.type)
        for k in range(3):
            out[(start[:-1] + marks[:, k])[cut]] = opening[k]
        if self.end == "sentinel":
            out[(start[:-1] + n + 3)[cut]] = opening[3]
        closed = rows.ends | cut if self.end == "eos" else rows.ends
        out[start[1:][closed] - 1] = vocabulary.need("eos")
        asked = self._asked(cut, start, marks[:, 2] + 1 + np.where(late & (self.spm == "v2"), plan.first, 0))
        stream = causal(shifted(Ragged(out, start), vocabulary.need("bos")), start)
        return Examples(stream, {"lm": Targets.at(asked, out[asked])})

    def _cuts(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """(R,) each: where the middle begins and ends in its text."""
        n = rows.lengths
        drawn = [keyed.bits(keyed.absorb(rows.key, keyed.purpose("cuts")), np.full(len(n), k)) for k in (0, 1)]
        if self.splits == "tokens":
            a, b = (keyed.below(d, n + 1) for d in drawn)
        else:
            assert rows.word is not None
            border = starts(n + 1)  # the places of a text, its end among them
            allowed = np.zeros(border[-1], bool)
            allowed[np.arange(len(n)).repeat(n) + np.arange(len(rows.tokens))] = rows.word
            allowed[border[:-1]] = allowed[border[1:] - 1] = True
            at = np.flatnonzero(allowed)
            begin = np.searchsorted(at, border[:-1])
            count = np.append(begin[1:], len(at)) - begin
            a, b = (at[begin + keyed.below(d, count)] - border[:-1] for d in drawn)
        return np.minimum(a, b), np.maximum(a, b)

    def _asked(self, cut: np.ndarray, start: np.ndarray, middle: np.ndarray) -> np.ndarray:
        """(n,) the targets' indices; `middle` (R,) is where the middle begins in each stream."""
        if self.loss == "all":
            return np.arange(start[-1])
        return np.flatnonzero(places(start) >= np.repeat(np.where(cut, middle, 0), np.diff(start)))


@dataclass(frozen=True)
class _Parts:
    """Prefix [0, first), middle [first, last) and suffix [last, n) of R texts."""

    first: np.ndarray
    last: np.ndarray
    n: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """(R, 3) in the order of the text."""
        return np.stack([self.first, self.last - self.first, self.n - self.last], 1)

    def places(self, cut: np.ndarray, late: np.ndarray, own: bool) -> tuple[np.ndarray, np.ndarray]:
        """(R, 3) where prefix, middle and suffix go, and where the sentinels 0, 1 and 2 stand.

        late: the suffix comes first; own: and the prefix then has its sentinel in front of itself (v1).
        """
        a, s, zero = self.first, self.n - self.last, np.zeros_like(self.n)
        before = np.stack([zero + 1, 3 + a + s, 2 + a], 1), np.stack([zero, 1 + a, 2 + a + s], 1)
        if own:
            behind = np.stack([2 + s, 3 + s + a, zero + 1], 1), np.stack([1 + s, zero, 2 + s + a], 1)
        else:
            behind = np.stack([3 + s, 3 + s + a, zero + 2], 1), np.stack([zero, zero + 1, 2 + s], 1)
        plain = np.stack([zero, a, self.last], 1)
        into, marks = (np.where(late[:, None], x, y) for x, y in zip(behind, before, strict=True))
        return np.where(cut[:, None], into, plain), marks


class CausallyMasked(Objective):
    """A few spans leave a sentinel in their place and follow at the end, each behind the same sentinel.

    min(max(Poisson(1), 1), `max_spans`) spans of each text, by two cuts each that are uniform over the text, such that
    no two meet (Aghajanyan et al. 2022). Without drawing again: 2 m different cuts are drawn at once and taken in
    pairs, which is the one way to pair them in which no two spans meet. The loss is on every token. [EOS] is predicted
    only where the document ends.

        text       the   cat   sat    on   it
        tokens     the   <0>    on    it  <0>   cat   sat  [EOS]

    >>> from unmask.objectives.show import toy
    >>> e = CausallyMasked(max_spans=2)(Rows.of([[11, 12, 13, 14, 15]], key=[15]), toy())
    >>> e.stream.tokens.tolist()
    [2, 11, 90, 14, 15, 90, 12, 13]
    >>> e.targets["lm"].value.tolist()
    [11, 90, 14, 15, 90, 12, 13, 3]
    """

    type: Literal["causally_masked"] = "causally_masked"
    max_spans: int = Field(16, ge=1)
    """The most that a text can have, and the sentinels that the tokenizer must have for it (the paper clips at 16).
    Rows keep room for as many: more than 8 happen to one text in 900,000, more than 6 to one in 12,000."""
    end_of_span: bool = False
    """The tokenizer's last sentinel closes each span at the end (InCoder's <EOM>), so that a span can be asked for
    alone."""
    predict_sentinels: bool = True
    """Sentinels that open spans are targets; False keeps a model from writing them by itself (InCoder)."""

    @classmethod
    def cm3(cls) -> CausallyMasked:
        """Aghajanyan et al. 2022. They clip the count at 16; here at 8, which one text in 900,000 exceeds."""
        return cls(max_spans=8)

    @classmethod
    def incoder(cls) -> CausallyMasked:
        """Fried et al. 2023. They clip the count at 256; here at 8, which one text in 900,000 exceeds."""
        return cls(max_spans=8, end_of_span=True, predict_sentinels=False)

    def room(self, shape: Shape) -> int:
        n = np.arange(1, shape.stream + 1)
        return int(n[n + self._marks * self._most(n) + 1 <= shape.stream].max(initial=0))

    def sizes(self, of: Outline) -> Sizes:
        return Sizes(of.lengths + self._marks * self.spans(of) + of.ends)

    @property
    def _marks(self) -> int:
        """Sentinels that a span costs."""
        return 2 + self.end_of_span

    def _most(self, lengths: np.ndarray) -> np.ndarray:
        return np.minimum((lengths + 1) // 2, self.max_spans)

    def spans(self, of: Outline) -> np.ndarray:
        """(R,) how many spans each text has."""
        chance = np.cumsum([math.exp(-1) / math.factorial(k) for k in range(18)])
        poisson = np.searchsorted(chance, _draw(of.key, "span count", 0), "right")
        return np.minimum(np.maximum(poisson, 1), self._most(of.lengths))

    def __call__(self, rows: Rows, vocabulary: Vocabulary) -> Examples:
        of = outline(rows)
        n, m = rows.lengths, self.spans(of)
        start = starts(self.sizes(of).stream)
        row = np.repeat(np.arange(len(n)), m)  # (S,) of each span
        begin, end = self._cuts(rows, m)
        length = end - begin
        nth = places(starts(m))
        before = np.cumsum(length) - length  # tokens of this text's spans before this one
        before -= before[np.repeat(np.cumsum(m) - m, m)]
        hole = start[row] + begin - rows.start[row] - before + nth
        moved = np.bincount(row, length, len(n)).astype(np.int64)
        tail = (start[:-1] + n - moved + m)[row] + before + nth * (self._marks - 1)
        out = np.empty(start[-1], np.int32)
        out[ranges(tail + 1, length)] = rows.tokens[ranges(begin, length)]
        self._keep(out, rows, start, (begin, end, row, hole))
        mark = sentinels(vocabulary, self.max_spans + self.end_of_span, self.type)
        out[hole] = out[tail] = mark[nth]
        if self.end_of_span:
            out[tail + 1 + length] = vocabulary.sentinels[-1]
        out[start[1:][rows.ends] - 1] = vocabulary.need("eos")
        asked = np.ones(len(out), bool)
        asked[hole] = asked[tail] = self.predict_sentinels
        at = np.flatnonzero(asked)
        stream = causal(shifted(Ragged(out, start), vocabulary.need("bos")), start)
        return Examples(stream, {"lm": Targets.at(at, out[at])})

    def _cuts(self, rows: Rows, m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(S,) each: where spans begin and end among all tokens; no span is empty and no two touch."""
        border = starts(rows.lengths + 1)
        at = np.flatnonzero(choose(border, keyed.absorb(rows.key, keyed.purpose("cuts")), 2 * m))
        at -= np.repeat(np.arange(len(m)), 2 * m)  # a text has one place more than tokens
        return at[0::2], at[1::2]

    def _keep(self, out: np.ndarray, rows: Rows, start: np.ndarray, spans: tuple[np.ndarray, ...]) -> None:
        """What stays is laid down: the beginning of each text, and what follows each of its spans."""
        begin, end, row, hole = spans
        final = np.append(row[1:] != row[:-1], True)[: len(row)]
        until = np.where(final, rows.start[row + 1], np.append(begin[1:], 0)[: len(row)])
        opening = rows.start[1:].copy()
        opening[row[::-1]] = begin[::-1]  # of equal indices the last is kept: each text's first span
        source, into = np.concatenate([rows.start[:-1], end]), np.concatenate([start[:-1], hole + 1])
        length = np.concatenate([opening - rows.start[:-1], until - end])
        out[ranges(into, length)] = rows.tokens[ranges(source, length)]


def sentinels(vocabulary: Vocabulary, count: int, name: str) -> np.ndarray:
    """The first `count` sentinels of the tokenizer; too few are refused whatever the text, not at a late step."""
    if len(vocabulary.sentinels) < count:
        raise UserError(
            f"objective {name} needs {count} sentinels but the tokenizer has {len(vocabulary.sentinels)}: "
            "train the tokenizer with more (tokenizer.sentinels)"
        )
    return vocabulary.sentinels[:count]


def _draw(key: np.ndarray, name: str, position: int) -> np.ndarray:
    """(R,) uniforms of a purpose."""
    return keyed.uniform(keyed.absorb(key, keyed.purpose(name)), np.full(len(key), position))
