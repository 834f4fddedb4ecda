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
from unmask.objectives.pairs import Cuts, Sentences, alike, balanced, cut_places, mirrored

NEXT = ("is_next", "not_next")
ORDER = ("in_order", "swapped")


class Segments(NamedTuple):
    """Two stretches of each text, [begin, begin + length) into the N tokens of the texts and then the M of partners."""

    begin: np.ndarray  # (R, 2)
    length: np.ndarray  # (R, 2)
    label: np.ndarray  # (R,) 0 or 1
    paired: np.ndarray  # (R,) bool: there are two segments, so there is a question

    @staticmethod
    def whole(n: np.ndarray) -> Segments:
        """Texts of n tokens that are all A."""
        zero = 0 * n
        return Segments(np.stack([starts(n)[:-1]] * 2, 1), np.stack([n, zero], 1), zero, zero > 0)


class SentencePair(Objective):
    """[CLS] A [SEP] B [SEP], token types 0 and 1, BERT's masks in both, and a question about the two."""

    masking: Masked = Masked()
    """The masks of both segments; a text's rate is of both together."""
    boundary: Literal["sentence", "token"] = "sentence"
    """Where texts begin and end and are cut in two: between sentences (BERT), or at any token: needs none."""

    plan: ClassVar[Plan] = "pseudo"
    copies: ClassVar[bool] = True
    question: ClassVar[Head]

    @property
    def masks(self) -> bool:  # type: ignore[override]
        return self.masking.masks

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return self.masking.needs | ({"sentence"} if self.boundary == "sentence" else set())

    @property
    def cut(self) -> Cut:  # type: ignore[override]
        return "sentences" if self.boundary == "sentence" else "tokens"

    @property
    def recurs(self) -> int:
        return self.masking.recurs

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

    A text is cut into A and B. In one of every two samples (numbers 2i and 2i + 1; in a mixture, which deals them to
    its parts, half of them only on average) B is what follows; in the other it gives way to the end of another
    document's text, the partner, from a sentence start on.

        text      the cat sat . | it slept .           partner   rain fell . | we left .
        is_next   [CLS] the cat sat . [SEP] it slept . [SEP]
        not_next  [CLS] the cat sat . [SEP] we left .  [SEP]

    Both texts are whole sentences, and B runs to the end of its own under either label: it begins and ends as
    sentences do, and no length tells the label (`pairs.alike`: the rule is the same if the two texts change places,
    and any piece of another document is as likely a partner as any other). Where no cuts match, the last sentences of
    both texts are left out. A text of one sentence, a part of one that is too long for the context, and
    a text that has no cut to match its partner's, have their masks but no question: few where a context holds ten
    sentences, most where it holds two or three (a run says the share).

    boundary="token" takes as many tokens from the end of either text, whatever stands there.

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
    """segment_pair: A and B may hold several sentences; sentence_pair: one each (RoBERTa's study), drawn from texts
    of two, none longer than half of the context, so that any two fit."""
    one_sentence: Literal["none", "random"] = "none"
    """What a text of one sentence is asked. none: nothing; random: it is A, with another document's B (BERT's code)."""
    short_share: float = Field(0.0, ge=0, le=1)
    """Share of the samples of whose two texts only a beginning is used: two sentences, or as many as fit in a length
    even over 2 … that of the longer (BERT's code: .1)."""

    question: ClassVar[Head] = Head("nsp", over="classes", size=2, names=NEXT)

    @classmethod
    def bert_nsp(cls) -> NextSentence:
        """Devlin et al. 2019, with two biases of their code (google-research/bert, `create_pretraining_data.py`).

        As there: ten masks of a text, which recur; A is the beginning of a run of sentences and ends between two; a run
        of one sentence is always paired with another document; a tenth of the samples is short.
        Otherwise than there: the code draws runs, cuts and labels ten times, too, where here runs stay and labels go
        by sample number; it draws a document, then a sentence to begin B with; B is filled up with sentences, and the
        longer of A and B is cut token by token at either end until both fit, so that B may begin or end inside a
        sentence and tell the label by it; the sentences that a random B displaces are read in the next run, where here
        another epoch reads them.
        """
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
        if self.one_sentence == "random" and (self.boundary != "sentence" or self.input_format == "sentence_pair"):
            raise ValueError(
                "one_sentence=random is about texts cut between sentences: leave boundary and input_format out"
            )
        return self

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return super().needs | {"partner"}

    @property
    def cut(self) -> Cut:  # type: ignore[override]
        return "pairs" if self.input_format == "sentence_pair" else super().cut

    def segments(self, of: Outline) -> Segments:
        other, follows = of.partner, balanced(of.index)
        if other is None:
            return Segments.whole(of.lengths)
        cuts = self._cuts(of, other)
        found, at, end = cuts.found, cuts.at, cuts.end
        random = ~follows & found
        if self.one_sentence == "random":
            # A is the one sentence, and B the longest end of the partner that fits behind it.
            row, theirs = np.arange(len(at)), Sentences(other)
            lone = ~found & (Sentences(of).next(row, 0 * row + 1) == 0) & (of.lengths > 0)
            behind = theirs.next(row, of.lengths)
            lone &= behind > 0
            found, random = found | lone, random | lone
            at = np.where(lone, of.lengths, at)
            cuts = cuts._replace(
                other=np.where(lone, behind, cuts.other), other_end=np.where(lone, other.lengths, cuts.other_end)
            )
        own, theirs_at = starts(of.lengths), starts(other.lengths)[:-1] + of.lengths.sum()
        a = np.where(found, at, of.lengths)
        b = np.where(found, np.where(random, cuts.other_end - cuts.other, end - at), 0)
        begin = np.stack([own[:-1], np.where(random, theirs_at + cuts.other, own[:-1] + a)], 1)
        return Segments(begin, np.stack([a, b], 1), random.astype(np.int64), found)

    def _cuts(self, of: Outline, other: Outline) -> Cuts:
        """Both texts cut in two."""
        n, m = of.lengths, other.lengths
        if self.input_format == "sentence_pair":
            (at, lone), (theirs, also) = cut_places(of, n, True), cut_places(other, m, True)
            return Cuts(~lone & ~also, at, n, theirs, m)
        whole = self.boundary == "sentence"
        mine, his = Sentences(of), Sentences(other)
        if self.short_share:
            short = keyed.bits(keyed.absorb(of.key, keyed.purpose("short")), 0 * n)
            chosen = (short & np.uint64(0xFFFFFFFF)).astype(np.float64) * 2.0**-32 < self.short_share
            longer = np.maximum(n, m)
            most = np.where(chosen, 2 + keyed.below(short, np.maximum(longer - 1, 1)), longer)
            n, m = (
                (mine.shortened(n, most), his.shortened(m, most))
                if whole
                else (np.minimum(n, most), np.minimum(m, most))
            )
        return alike(mine, his, n, m, of.key) if whole else Cuts.at_tokens(n, m, of.key)


class SentenceOrder(SentencePair):
    """Are two consecutive stretches in order or swapped? (Lan et al. 2020, "ALBERT", section 3.1)

    A text is cut in two. In one of every two samples (numbers 2i and 2i + 1) the halves change places: only
    coherence tells, never the topic.

        text      the cat sat . | it slept .
        in_order  [CLS] the cat sat . [SEP] it slept .  [SEP]
        swapped   [CLS] it slept . [SEP] the cat sat . [SEP]

    Texts are whole sentences and nothing is truncated, so either half begins and ends as sentences do, and where it
    is cut no length tells which was first (`pairs.mirrored`). A text of one sentence, a part of one that is too long
    for the context, or one whose halves differ too much has no question: cut inside, they would tell their order by
    themselves, as they do under boundary="token" wherever a text begins or ends with its document. A run says the
    share that has one. Half are swapped of every two samples;
    in a mixture, which deals them to its parts, on average.

    >>> from unmask.objectives.show import toy
    >>> rows = Rows.of([[11, 12, 13, 14]] * 2, sentence=np.array([1, 0, 1, 0] * 2, bool))
    >>> e = SentenceOrder()(rows, toy())
    >>> e.targets["sop"].value.tolist(), e.stream.token_type.tolist()
    ([1, 0], [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1])
    >>> e.stream.tokens.tolist(), e.targets["lm"].index.tolist(), e.targets["lm"].value.tolist()
    ([2, 13, 14, 3, 4, 12, 3, 2, 11, 12, 3, 4, 14, 3], [4, 11], [11, 13])
    """

    type: Literal["sentence_order"] = "sentence_order"

    question: ClassVar[Head] = Head("sop", over="classes", size=2, names=ORDER)

    @classmethod
    def albert_sop(cls) -> SentenceOrder:
        """With ALBERT's n-gram masks (Lan et al. 2020, section 4.1)."""
        return cls(masking=Masked.albert())

    def segments(self, of: Outline) -> Segments:
        n = of.lengths
        if self.boundary == "sentence":
            a, paired = mirrored(Sentences(of), n, of.key)
        else:
            a, paired = cut_places(of, n, False)[0], n > 1
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

    @property
    def masks(self) -> bool:  # type: ignore[override]
        return self.masking.masks

    @classmethod
    def doc_sentences(cls) -> FullSentences:
        """DOC-SENTENCES (Liu et al. 2019, section 4.2)."""
        return cls(documents="apart")

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return self.masking.needs | {"sentence"}

    @property
    def recurs(self) -> int:
        return self.masking.recurs

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
