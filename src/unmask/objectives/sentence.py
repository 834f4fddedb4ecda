"""Objectives over sentences: next sentence (Devlin et al. 2019), their order (Lan et al. 2020), RoBERTa's four inputs.

RoBERTa's study (Liu et al. 2019, section 4.2) compares four inputs. Which of them is what here:

    SEGMENT-PAIR + NSP    NextSentence()                   the objective's matter, as in BERT
    SENTENCE-PAIR + NSP   NextSentence.sentence_pair()     the objective's, on pieces of two sentences
    FULL-SENTENCES        FullSentences()                  the data's: pieces of whole sentences, across documents
    DOC-SENTENCES         FullSentences(documents="apart") the data's: the same, inside documents

`Masked` on its own is none of these: its pieces are contiguous tokens of one document (fairseq's `none`).

Legend: N tokens of R texts end to end, M tokens of their R partners.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from unmask import keyed
from unmask.batch import Examples, Head, Rows, Targets, full, places, ranges, starts
from unmask.config import Visibility
from unmask.errors import UserError
from unmask.objectives.base import Cut, Objective, Outline, Plan, Shape, Sizes, Vocabulary, outline
from unmask.objectives.masked import Masked

NEXT = ("is_next", "not_next")
ORDER = ("in_order", "swapped")


class Segments(NamedTuple):
    """Two stretches of each text, [begin, begin + length) into the N tokens of the texts and then the M of partners."""

    begin: np.ndarray  # (R, 2)
    length: np.ndarray  # (R, 2)
    label: np.ndarray  # (R,) 0 or 1
    paired: np.ndarray  # (R,) bool: there are two segments, so there is a question


class SentencePair(Objective):
    """[CLS] A [SEP] B [SEP], token types 0 and 1, BERT's masks in both, and a question about the two."""

    masking: Masked = Masked()
    """The masks of both segments; a text's rate is of both together."""
    boundary: Literal["sentence", "token"] = "sentence"
    """Where a text is cut: at a sentence start drawn among its own (BERT), or at any token: needs no sentences."""

    plan: ClassVar[Plan] = "pseudo"
    copies: ClassVar[bool] = True
    question: ClassVar[Head]

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return self.masking.needs | ({"sentence"} if self.boundary == "sentence" else set())

    @property
    def visibility(self) -> Visibility:
        return "bidirectional"

    def heads(self) -> tuple[Head, ...]:
        return (*self.masking.heads(), self.question)

    def room(self, shape: Shape) -> int:
        return max(shape.stream - 3, 0)

    def sizes(self, of: Outline) -> Sizes:
        return Sizes(self.segments(of).length.sum(1) + 3)

    @abstractmethod
    def segments(self, of: Outline) -> Segments: ...

    def __call__(self, rows: Rows, vocabulary: Vocabulary) -> Examples:
        if "partner" in self.needs and rows.partner is None:
            raise UserError(f"{self.type} needs a second text beside each: fill Rows.partner, as the loader does")
        found = self.segments(outline(rows))
        framed, second = _framed(rows, found, vocabulary)
        hidden = self.masking.select(framed)
        tokens = framed.tokens.copy()
        tokens[hidden.at] = self.masking.replacement(framed, hidden, vocabulary)
        ask = np.flatnonzero(found.paired)
        question = Targets.at(framed.start[ask], found.label[ask])
        targets = {**self.masking.targets(framed, hidden), self.question.name: question}
        return Examples(full(tokens, framed.start, token_type=second), targets)


class NextSentence(SentencePair):
    """Does B follow A? (Devlin et al. 2019, section 3.1, task 2 and appendix A.2)

    A text is cut into A and B. In one of every two samples (numbers 2i and 2i + 1) B is what follows; in the
    other it gives way to a stretch of another document, the text's partner, from a sentence start on.

        text      the cat sat . | it slept .           partner   rain fell . we left .
        is_next   [CLS] the cat sat . [SEP] it slept . [SEP]
        not_next  [CLS] the cat sat . [SEP] we left .  [SEP]

    Truncation: B is as long as both what follows A and the rest of the partner, whatever the label, so that
    no length tells it. It is cut at its end, A never; both have a token or more. All fits because a text does: it
    holds at most `context` − 3 tokens, long documents being cut before. A text of one token has no question.
    A stretch that is cut so may end inside a sentence.

    Published biases are options. BERT's code pairs a text of one sentence always with another document, so that
    more than half of its pairs are random: one_sentence="random". And 10 % of its sequences are short, of random
    length: short_share.

    >>> from unmask.objectives.show import toy
    >>> rows = Rows.of([[11, 12, 13, 14], [21, 22, 23, 24]], sentence=np.array([1, 0, 1, 0, 1, 0, 1, 0], bool))
    >>> others = Rows.of([[31, 32, 33, 34], [41, 42, 43, 44]], sentence=rows.sentence)
    >>> e = NextSentence()(replace(rows, partner=others), toy())
    >>> e.targets["nsp"].value.tolist(), e.targets["nsp"].index.tolist(), e.stream.token_type.tolist()
    ([1, 0], [0, 7], [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1])
    >>> e.stream.tokens.tolist(), e.targets["lm"].index.tolist(), e.targets["lm"].value.tolist()
    ([2, 11, 12, 3, 4, 34, 3, 2, 21, 22, 3, 4, 24, 3], [4, 11], [33, 23])
    """

    type: Literal["next_sentence"] = "next_sentence"
    input_format: Literal["segment_pair", "sentence_pair"] = "segment_pair"
    """segment_pair: A and B may hold several sentences; sentence_pair: one each (RoBERTa's study)."""
    one_sentence: Literal["token", "random"] = "token"
    """A text of one sentence is cut at a token. token: half of these keep what follows; random: none (BERT's code)."""
    short_share: float = Field(0.0, ge=0, le=1)
    """Share of the texts of which only a beginning is used, its length even over 2 … n tokens (BERT's code: .1)."""

    question: ClassVar[Head] = Head("nsp", over="classes", size=2, names=NEXT)

    @classmethod
    def bert_nsp(cls) -> NextSentence:
        """As Google's code makes it, biases included (Devlin et al. 2019; google-research/bert)."""
        return cls(masking=Masked.bert(), one_sentence="random", short_share=0.1)

    @classmethod
    def segment_pair(cls) -> NextSentence:
        """SEGMENT-PAIR + NSP (Liu et al. 2019, section 4.2)."""
        return cls()

    @classmethod
    def sentence_pair(cls) -> NextSentence:
        """SENTENCE-PAIR + NSP (Liu et al. 2019, section 4.2); packing fills the rows that they leave short."""
        return cls(input_format="sentence_pair")

    @model_validator(mode="after")
    def _whole(self) -> NextSentence:
        if self.input_format == "sentence_pair" and (self.boundary != "sentence" or self.short_share):
            raise ValueError("input_format=sentence_pair is about whole sentences: leave boundary and short_share out")
        return self

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return super().needs | {"partner"}

    @property
    def cut(self) -> Cut:  # type: ignore[override]
        return "pairs" if self.input_format == "sentence_pair" else "tokens"

    def segments(self, of: Outline) -> Segments:
        n = of.lengths
        if self.short_share:
            short = keyed.bits(keyed.absorb(of.key, keyed.purpose("short")), np.zeros(len(n), np.int64))
            drawn = (short & np.uint64(0xFFFFFFFF)).astype(np.float64) * 2.0**-32 < self.short_share
            n = np.where(drawn & (n > 1), 2 + keyed.below(short, np.maximum(n - 1, 1)), n)
        other = of.partner
        m = of.lengths if other is None else other.lengths
        paired = (n > 1) & (m > 0)
        a, lone = _cut(of, n, self.boundary)
        a = np.where(paired, a, n)
        follows = balanced(of.index)
        if self.one_sentence == "random":
            follows = follows & ~lone
        entry, rest = _entry(other, m, n - a, self.input_format == "sentence_pair", of.key)
        if self.input_format == "sentence_pair":
            b = np.where(follows, n - a, np.minimum(rest, np.maximum(n, m) - a))
        else:
            b = np.minimum(n - a, rest)
        b = np.where(paired, b, 0)
        own, theirs = starts(of.lengths), starts(m)[:-1]
        begin = np.stack([own[:-1], np.where(follows, own[:-1] + a, own[-1] + theirs + entry)], 1)
        return Segments(begin, np.stack([a, b], 1), 1 - follows.astype(np.int64), paired)


class SentenceOrder(SentencePair):
    """Are two consecutive stretches in order or swapped? (Lan et al. 2020, "ALBERT", section 3.1)

    A text is cut in two. In one of every two samples (numbers 2i and 2i + 1) the halves change places: only
    coherence tells, never the topic.

        text      the cat sat . | it slept .
        in_order  [CLS] the cat sat . [SEP] it slept .  [SEP]
        swapped   [CLS] it slept . [SEP] the cat sat . [SEP]

    A text of one sentence is cut at a token; one of a single token has no question. Nothing is truncated.

    >>> from unmask.objectives.show import toy
    >>> rows = Rows.of([[11, 12, 13, 14]] * 2, sentence=np.array([1, 0, 0, 1, 1, 0, 0, 1], bool))
    >>> e = SentenceOrder()(rows, toy())
    >>> e.targets["sop"].value.tolist(), e.stream.token_type.tolist()
    ([1, 0], [0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1])
    >>> e.stream.tokens.tolist(), e.targets["lm"].index.tolist(), e.targets["lm"].value.tolist()
    ([2, 14, 3, 11, 4, 13, 3, 2, 11, 12, 13, 3, 4, 3], [4, 12], [12, 14])
    """

    type: Literal["sentence_order"] = "sentence_order"

    question: ClassVar[Head] = Head("sop", over="classes", size=2, names=ORDER)

    @classmethod
    def albert_sop(cls) -> SentenceOrder:
        """With ALBERT's n-gram masks (Lan et al. 2020, section 3.1)."""
        return cls(masking=Masked.albert())

    def segments(self, of: Outline) -> Segments:
        n = of.lengths
        paired = n > 1
        a, _ = _cut(of, n, self.boundary)
        a = np.where(paired, a, n)
        label = np.where(paired & ~balanced(of.index), 1, 0)
        begin = np.stack([starts(n)[:-1], starts(n)[:-1] + a], 1)
        length = np.stack([a, n - a], 1)
        turn = np.stack([label, 1 - label], 1)
        return Segments(np.take_along_axis(begin, turn, 1), np.take_along_axis(length, turn, 1), label, paired)


class FullSentences(Objective):
    """BERT's masks on runs of whole sentences (Liu et al. 2019, section 4.2): no second segment, no question.

    joined (FULL-SENTENCES)   a run goes on into the next documents; a [SEP] stands where one begins
    apart (DOC-SENTENCES)     a run ends with its document; packing fills the rows

        documents   the cat sat . it slept .  |  rain fell .
        joined      [CLS] the cat sat . it slept . [SEP] rain fell . [SEP]
        apart       [CLS] the cat sat . it slept . [SEP]     [CLS] rain fell . [SEP]

    No sentence is split but one that is longer than a row. Runs leave rows under-full; packing puts short ones
    beside them, apart by their blocks. That runs are so is a matter of the data (`data.sampling.Pieces`): given
    a text, this is `Masked`.

    >>> from unmask.objectives.show import toy
    >>> joint = np.array([0, 0, 1, 0, 0], bool)
    >>> e = FullSentences()(Rows.of([[11, 12, 3, 14, 15]], fixed=joint), toy())
    >>> e.stream.tokens.tolist(), e.targets["lm"].index.tolist(), e.targets["lm"].value.tolist()
    ([2, 11, 12, 3, 4, 15, 3], [4], [14])
    """

    type: Literal["full_sentences"] = "full_sentences"
    documents: Literal["joined", "apart"] = "joined"
    """Whether a run crosses into the next document."""
    masking: Masked = Masked()

    plan: ClassVar[Plan] = "pseudo"
    copies: ClassVar[bool] = True

    @classmethod
    def doc_sentences(cls) -> FullSentences:
        """DOC-SENTENCES (Liu et al. 2019, section 4.2)."""
        return cls(documents="apart")

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return self.masking.needs | {"sentence"}

    @property
    def cut(self) -> Cut:  # type: ignore[override]
        return "joined" if self.documents == "joined" else "sentences"

    @property
    def visibility(self) -> Visibility:
        return "bidirectional"

    def heads(self) -> tuple[Head, ...]:
        return self.masking.heads()

    def room(self, shape: Shape) -> int:
        return self.masking.room(shape)

    def sizes(self, of: Outline) -> Sizes:
        return self.masking.sizes(of)

    def __call__(self, rows: Rows, vocabulary: Vocabulary) -> Examples:
        return self.masking(rows, vocabulary)


# ---------------------------------------------------------------- cutting and laying


def balanced(index: np.ndarray) -> np.ndarray:
    """(R,) bool: True for exactly one of the sample numbers 2i and 2i + 1, at random which.

    >>> balanced(np.arange(8)).astype(int).tolist()
    [0, 1, 1, 0, 1, 0, 0, 1]
    """
    half = np.asarray(index, np.int64) // 2
    flip = keyed.bits(np.asarray(keyed.absorb(0, keyed.purpose("balanced"))), half) & np.uint64(1)
    return (np.asarray(index) & 1) == flip.astype(np.int64)


def drawn(eligible: np.ndarray, start: np.ndarray, key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(R,) the place of one eligible token of each text, all equally likely, and whether there is one (else 0).

    >>> start, key = np.array([0, 3, 5]), np.zeros(2, np.uint64)
    >>> [x.tolist() for x in drawn(np.array([0, 0, 1, 0, 0], bool), start, key)]
    [[2, 0], [True, False]]
    """
    at = np.flatnonzero(eligible)
    first = np.searchsorted(at, start)
    count = np.diff(first)
    nth = first[:-1] + keyed.below(keyed.bits(key, np.zeros(len(key), np.int64)), np.maximum(count, 1))
    found = np.append(at, 0)[np.minimum(nth, len(at))] - start[:-1]
    return np.where(count > 0, found, 0), count > 0


def cut_places(of: Outline, n: np.ndarray, sentences: bool) -> tuple[np.ndarray, np.ndarray]:
    """(R,) tokens before a cut inside the first `n` (R,) tokens of each text, and whether no sentence starts there.

    At a sentence start where there is one, else at any token; 1 … n − 1.
    """
    key = keyed.absorb(of.key, keyed.purpose("cut"))
    token = 1 + keyed.below(keyed.bits(key, np.ones(len(n), np.int64)), np.maximum(n - 1, 1))
    if not sentences or of.sentence is None:
        return token, np.full(len(n), sentences)
    start = starts(of.lengths)
    place = places(start)
    at, some = drawn(of.sentence & (place > 0) & (place < np.repeat(n, of.lengths)), start, key)
    return np.where(some, at, token), ~some


def _cut(of: Outline, n: np.ndarray, boundary: str) -> tuple[np.ndarray, np.ndarray]:
    return cut_places(of, n, boundary == "sentence")


def _entry(
    other: Outline | None, m: np.ndarray, wanted: np.ndarray, one: bool, key: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(R,) where B begins in the partners of m tokens, and how many tokens it has there.

    At a sentence start that leaves `wanted` tokens, by preference not the partner's first, which may lie inside a
    sentence; one=True: any sentence start, for that one sentence.
    """
    if other is None or other.sentence is None:
        return np.zeros_like(m), m
    start = starts(m)
    place, last = places(start), np.repeat(m - (0 if one else wanted), m)
    key = keyed.absorb(key, keyed.purpose("entry"))
    entry, _ = drawn(other.sentence & ((place <= last) if one else (place > 0) & (place <= last)), start, key)
    if not one:
        return entry, m - entry
    begins = np.append(np.flatnonzero(other.sentence | (place == 0)), start[-1])
    here = start[:-1] + entry
    following = begins[np.minimum(np.searchsorted(begins, here, "right"), len(begins) - 1)]
    return entry, np.minimum(following, start[1:]) - here


def _framed(rows: Rows, found: Segments, vocabulary: Vocabulary) -> tuple[Rows, np.ndarray]:
    """[CLS] A [SEP] B [SEP] of each text as Rows, and (N',) int32 token types."""
    a, b = found.length.T
    start = starts(a + b + 3)
    second = (places(start) > np.repeat(a + 1, a + b + 3)).astype(np.int32)
    take = ranges(found.begin.reshape(-1), found.length.reshape(-1))
    into = ranges(np.stack([start[:-1] + 1, start[:-1] + a + 2], 1).reshape(-1), found.length.reshape(-1))
    other = rows.partner

    def laid(mine: np.ndarray | None, theirs: np.ndarray | None, fill: int) -> np.ndarray | None:
        if mine is None:
            return None
        out = np.full(start[-1], fill, mine.dtype)
        out[into] = (mine if other is None or theirs is None else np.concatenate([mine, theirs]))[take]
        return out

    tokens = laid(rows.tokens, None if other is None else other.tokens, vocabulary.need("sep"))
    fixed = laid(rows.fixed, None if other is None else other.fixed, 1)
    assert tokens is not None and fixed is not None
    tokens[start[:-1]] = vocabulary.need("cls")
    word = laid(rows.word, None if other is None else other.word, 0)
    sentence = laid(rows.sentence, None if other is None else other.sentence, 0)
    for flags in (word, sentence):
        if flags is not None:  # each segment opens one, wherever its text was cut
            flags[(start[:-1] + 1)[a > 0]] = flags[(start[:-1] + a + 2)[b > 0]] = True
    return replace(
        rows, tokens=tokens, start=start, fixed=fixed, word=word, sentence=sentence, spans=None, partner=None
    ), second
