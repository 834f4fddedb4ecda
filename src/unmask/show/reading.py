"""A text as an objective reads it, with stubs for what only a corpus has.

tokens       the tokenizer's; without one, words and punctuation marks, numbered as they come (`Words`)
sentences    by the rules of `text.sentences`
partner      the same text turned round: its second half, then its first; so is a target that is not given
spans        the second and third word of every five (of fewer than two words: the first)
generator    says each of the text's own tokens as often as it occurs (`generator`)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from unmask import keyed
from unmask.batch import Rows, starts
from unmask.errors import UserError
from unmask.objectives.base import Objective
from unmask.show.generator import NOTE, has_generator
from unmask.text.sentences import sentence_starts
from unmask.tokens.asked import spelt_controls
from unmask.tokens.special import ROLES, Vocabulary, sentinel
from unmask.tokens.start import started
from unmask.tokens.tokenizer import Tokenizer

SENTINELS = 100
"""As many as T5 has; a longer text gets more, so that they never run out here."""
COPIES = 16
"""Of the text's beginning, by which it is seen whether an objective changes along the run."""
POINTS = (0.0, 0.25, 0.5, 0.75, 1.0)
_HAN = "\u2e80-\u2fff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_SIGNS = "\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u0963\u0966-\u0dff\u0e31\u0e34-\u0e4e"
_PIECE = re.compile(rf"[{_HAN}]|(?:(?![{_HAN}])[\w{_SIGNS}])+|[^\w\s]")
"""A word, with the signs on its letters; a punctuation mark; of Chinese and Japanese each character."""


@dataclass(frozen=True)
class Reading:
    """R copies of a text under R keys, and the spelling of every id."""

    rows: Rows
    vocabulary: Vocabulary
    spell: Callable[[int], str]
    notes: tuple[str, ...]
    """Which stubs stand for what, one sentence each."""
    second: str = "partner"
    """What the second text is to the objective, if there is one: partner or target."""


@dataclass(frozen=True, eq=False)
class Words:
    """The stub vocabulary: control tokens, then the words and punctuation marks of a text as they come, sentinels.

    >>> Words.of("the cat, the hat").ids("the hat").tolist() == [7, 10]
    True
    """

    table: dict[str, int]

    controls: tuple[str, ...] = ()

    @staticmethod
    def of(text: str, controls: Iterable[str] = ()) -> Words:
        """controls: spellings of control tokens beside those with a role, such as UL2's modes."""
        pieces = dict.fromkeys(m[0] for m in _PIECE.finditer(text))
        names = [*ROLES.values(), *(p for p in pieces if p not in ROLES.values())]
        names += [sentinel(k) for k in range(max(SENTINELS, len(text.split())))]
        return Words({name: i for i, name in enumerate([*names, *controls])}, tuple(controls))

    def ids(self, text: str) -> np.ndarray:
        return np.array([self.table[m[0]] for m in _PIECE.finditer(text)], np.int32)

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary.of(self.table, [self.table[name] for name in self.controls])


@dataclass(frozen=True)
class Inside:
    """Texts as ids, laid end to end, and where texts, words and sentences start in them."""

    ids: np.ndarray  # (N,) int32
    start: np.ndarray  # (R + 1,)
    word: np.ndarray  # (N,) bool
    sentence: np.ndarray  # (N,) bool

    def part(self, number: int) -> Inside:
        """One of the texts."""
        return self._within(int(self.start[number]), int(self.start[number + 1]))

    def beginning(self, most: int = 64) -> Inside:
        """Of one text: its first tokens."""
        return self._within(0, most)

    def _within(self, begin: int, end: int) -> Inside:
        ids = self.ids[begin:end]
        return Inside(ids, starts([len(ids)]), self.word[begin:end], self.sentence[begin:end])

    def turned(self) -> Inside:
        """Of one text: its second half, then its first."""
        half = len(self.ids) // 2
        ids, word, sentence = (np.roll(a, -half) for a in (self.ids, self.word, self.sentence))
        word[0] = sentence[0] = True
        return Inside(ids, self.start, word, sentence)


@dataclass(frozen=True)
class Splitter:
    """Texts to ids, by a tokenizer or by the stub."""

    vocabulary: Vocabulary
    spell: Callable[[int], str]
    tokenizer: Tokenizer | None = None
    stub: Words | None = None

    @staticmethod
    def of(tokenizer: Tokenizer | None, text: str, objectives: Iterable[Objective]) -> Splitter:
        """`text`: all that will be split, from which the stub takes its words; it has what `objectives` ask for."""
        if tokenizer is not None:
            return Splitter(tokenizer.vocabulary, tokenizer.token, tokenizer)
        stub = Words.of(text, sorted({name for o in objectives for name in spelt_controls(o)}))
        names = {i: name for name, i in stub.table.items()}
        return Splitter(stub.vocabulary, names.__getitem__, stub=stub)

    def __call__(self, texts: Sequence[str]) -> Inside:
        if self.tokenizer is not None:
            found = self.tokenizer.encode_aligned(texts)
            ids, at = [f.ids for f in found], [f.begin for f in found]
        else:
            assert self.stub is not None
            ids = [self.stub.ids(t) for t in texts]
            at = [np.array([m.start() for m in _PIECE.finditer(t)], np.int64) for t in texts]
        start = starts([len(i) for i in ids])
        tokens = np.concatenate([np.zeros(0, np.int32), *ids])
        word, sentence = np.ones(len(tokens), bool), np.zeros(len(tokens), bool)
        if self.tokenizer is not None and len(tokens):
            word = self.tokenizer.words(tokens, start).astype(bool)
        for first, text, where in zip(start[:-1], texts, at, strict=True):
            begin = np.searchsorted(where, sentence_starts(text))
            sentence[first + begin[begin < len(where)]] = True
        for flags in (word, sentence):
            flags[start[:-1][np.diff(start) > 0]] = True
        return Inside(tokens, start, word, sentence)


def read(
    text: str,
    objective: Objective,
    tokenizer: Tokenizer | None,
    seed: int,
    count: int,
    target: str | None = None,
    progress: float = 0.0,
) -> Reading:
    """`count` copies of a text, with the fields that the objective needs; target: what pairs writes for it."""
    split, needs = Splitter.of(tokenizer, f"{text}\n{target or ''}", [objective]), objective.needs
    if target is not None and "target" not in needs:
        raise UserError(f"{objective.type} makes its targets from the text itself: drop --target, which pairs reads")
    inside = split([text] if target is None else [text, target])
    for name, length in zip(("text", "target"), np.diff(inside.start), strict=False):
        if not length:
            raise UserError(f"the {name} holds no tokens: give some words with --{name}")
    notes = []
    if tokenizer is None:
        notes.append("vocabulary: the words and punctuation marks of this text (--tokenizer FILE takes yours)")
    for second in sorted(needs & {"partner", "target"}) if target is None else ():
        hint = " (--target TEXT takes yours)" if second == "target" else ""
        notes.append(f"{second}: the same text turned round, its second half before its first{hint}")
    if "spans" in needs:
        notes.append("annotated spans: the second and third word of every five")
    if has_generator(objective):
        notes.append(NOTE)
    first, *others = (inside.part(k) for k in range(len(inside.start) - 1))
    vocabulary = started(objective, split.vocabulary)
    rows = moved(copies(first, needs, seed, count, *others), progress)
    tried = copies(first.beginning(), needs, seed, COPIES, *(other.beginning() for other in others))
    if _changes(objective, tried, vocabulary):
        notes.append(f"at {progress:.3g} of the run, along which this objective changes (--progress 0 … 1)")
    second = "target" if "target" in needs else "partner"
    return Reading(rows, vocabulary, split.spell, tuple(notes), second)


def moved(rows: Rows, progress: float) -> Rows:
    """The rows at a point of the run: its end is the last point before 1."""
    progress = min(progress, 1 - 2**-30)
    partner = None if rows.partner is None else moved(rows.partner, progress)
    return replace(rows, progress=progress, partner=partner)


def _changes(objective: Objective, rows: Rows, vocabulary: Vocabulary) -> bool:
    """Whether the same noise makes other examples later in the run."""
    first, *later = (objective(moved(rows, p), vocabulary).stream.tokens for p in POINTS)
    return any(not np.array_equal(first, other) for other in later)


def copies(text: Inside, needs: frozenset[str], seed: int, count: int, other: Inside | None = None) -> Rows:
    """Rows of `count` copies of a text; `other`: its partner or target, by default itself turned round."""
    keys = keyed.row_keys(seed, 0, np.arange(count), "noise")
    rows = Rows.of(np.tile(text.ids, (count, 1)), keys)
    if "word" in needs:
        rows = replace(rows, word=np.tile(text.word, count))
    if "sentence" in needs:
        rows = replace(rows, sentence=np.tile(text.sentence, count))
    if "spans" in needs:
        rows = replace(rows, spans=spans_of(text.word, count))
    if seconds := needs & {"partner", "target"}:
        second = copies(text.turned() if other is None else other, needs - seconds, seed, count)
        rows = replace(rows, partner=replace(second, key=keyed.absorb(keys, keyed.purpose("partner"))))
    return rows


def spans_of(word: np.ndarray, count: int) -> np.ndarray:
    """(S, 2) the second and third word of every five, in each of `count` copies.

    >>> spans_of(np.array([1, 0, 1, 1, 1, 1, 1, 1], bool), 2).tolist()
    [[2, 4], [7, 8], [10, 12], [15, 16]]
    """
    begins = np.append(np.flatnonzero(word), len(word))
    first = np.arange(1, len(begins) - 1, 5)
    if not len(first):
        first = np.zeros(1, np.int64)
    one = np.stack([begins[first], begins[np.minimum(first + 2, len(begins) - 1)]], 1)
    moves = starts(np.full(count, len(word)))[:-1]
    return np.asarray((one[None] + moves[:, None, None]).reshape(-1, 2))
