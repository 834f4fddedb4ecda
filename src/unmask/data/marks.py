"""What is known of a text beside its ids: where words and sentences start, annotated spans, and its target.

Starts are kept as one bit a token, spans as two offsets each, both over all tokens of a side laid end to end. Targets
(what is to be written when the text is read) are texts of their own, one for each document.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import IO, Protocol

import numpy as np

from unmask.batch import Rows, starts
from unmask.data.sampling import Pieces, places_of
from unmask.errors import UserError

NEEDS = frozenset({"word", "sentence", "spans", "partner", "target"})
"""What an objective may ask for beside the tokens: fields of `Rows`, of which `partner` holds the target, too."""
Rule = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(tokens (N,), start (R + 1,)) → (N,) bool; `tokens.words.WordStarts` is one."""


_STRETCH = 1 << 22
"""Packed bytes that are unpacked at once."""


@dataclass(frozen=True)
class Bits:
    """`size` booleans, eight a byte, the first in the lowest bit.

    >>> Bits(np.packbits([1, 0, 0, 1, 1], bitorder="little"), 5)[np.array([0, 1, 4])].tolist()
    [True, False, True]
    """

    packed: np.ndarray  # (⌈size / 8⌉,) uint8
    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, at: np.ndarray) -> np.ndarray:
        """(n,) bool at places (n,)."""
        return (self.packed[at >> 3] >> (at & 7).astype(np.uint8) & 1).astype(bool)

    def places(self) -> np.ndarray:
        """(n,) where they are true, read in stretches."""
        found = [
            np.flatnonzero(np.unpackbits(self.packed[at : at + _STRETCH], bitorder="little")) + 8 * at
            for at in range(0, len(self.packed), _STRETCH)
        ]
        every = np.concatenate([np.zeros(0, np.int64), *found])
        return np.asarray(every[every < self.size])


class BitWriter:
    """Appends booleans to a file of packed bits, whatever the lengths they come in."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.rest = np.zeros(0, bool)

    def write(self, flags: np.ndarray) -> None:
        flags = np.concatenate([self.rest, flags])
        whole = len(flags) // 8 * 8
        self.file.write(np.packbits(flags[:whole], bitorder="little").tobytes())
        self.rest = flags[whole:]

    def finish(self) -> None:
        self.file.write(np.packbits(self.rest, bitorder="little").tobytes())
        self.rest = self.rest[:0]


@dataclass(frozen=True)
class TargetText:
    """The targets of D documents end to end; one without has none of the ids."""

    tokens: np.ndarray  # (M,) ids
    documents: np.ndarray  # (D + 1,) int64, where each document's target starts
    counts: np.ndarray  # (V,) int64, how often each id occurs


class Kept(Protocol):
    """What a text was prepared with; `shards.Shards` is one."""

    @property
    def word(self) -> Bits | None: ...

    @property
    def sentence(self) -> Bits | None: ...

    @property
    def spans(self) -> np.ndarray | None: ...

    @property
    def target(self) -> TargetText | None: ...


@dataclass(frozen=True)
class Marks:
    """Fills the fields of `Rows` that an objective needs. `words` reads off the ids what was not `kept`."""

    needs: frozenset[str] = frozenset()
    kept: Kept | None = None
    words: Rule | None = None

    def __post_init__(self) -> None:
        if unknown := self.needs - NEEDS:
            raise UserError(
                f"no text has {', '.join(sorted(unknown))}: an objective may need {', '.join(sorted(NEEDS))}"
            )
        kept = self.kept
        if "word" in self.needs and self.words is None and (kept is None or kept.word is None):
            raise UserError("word starts are needed, but neither kept with the text nor told by a tokenizer")
        if "sentence" in self.needs and (kept is None or kept.sentence is None):
            raise UserError("sentence starts are needed, but were not kept with the text: set corpus.sentences=true")
        if "spans" in self.needs and (kept is None or kept.spans is None):
            raise UserError(
                "annotated spans are needed, but the text has none: name their key with corpus.spans, "
                "or a file of phrases with corpus.lexicon"
            )
        if "target" in self.needs and (kept is None or kept.target is None):
            raise UserError(
                "target texts are needed, but the text has none: name the key or column that holds them with "
                "corpus.target"
            )

    def fill(self, rows: Rows, pieces: Pieces, which: np.ndarray) -> Rows:
        """The rows, which hold the texts of the pieces `which` (S,), with the fields that are needed.

        The first token of a text starts a word and a sentence, also where a long document was cut; a span that the
        cut goes through is dropped.
        """
        if not self.needs:
            return rows
        word = spans = None
        at = places_of(pieces, which)
        if "word" in self.needs and self.kept is not None and self.kept.word is not None:
            word = self.kept.word[at]
        elif "word" in self.needs and self.words is not None:
            word = self.words(rows.tokens, rows.start)
        if word is not None:
            word[rows.start[:-1]] = True
        sentence = self.sentences(pieces, which)
        if "spans" in self.needs and self.kept is not None and self.kept.spans is not None:
            spans = spans_within(self.kept.spans, pieces.begin[which], pieces.length[which])
        return replace(rows, word=word, sentence=sentence, spans=spans)

    def sentences(self, pieces: Pieces, which: np.ndarray) -> np.ndarray | None:
        """(N,) bool where sentences start in the pieces `which` (S,), if that is needed; the first token starts one."""
        if "sentence" not in self.needs or self.kept is None or self.kept.sentence is None:
            return None
        flags = self.kept.sentence[places_of(pieces, which)]
        flags[starts(pieces.length[which])[:-1]] = True
        return flags

    @property
    def target(self) -> TargetText | None:
        """Of every document, where that is needed."""
        return self.kept.target if self.kept is not None and "target" in self.needs else None

    def sentence_places(self) -> np.ndarray:
        """(n,) the tokens of the whole text at which a sentence starts, by which pieces are cut."""
        if self.kept is None or self.kept.sentence is None:
            raise UserError("sentence starts are needed, but were not kept with the text: set corpus.sentences=true")
        return self.kept.sentence.places()


def spans_within(spans: np.ndarray, begin: np.ndarray, length: np.ndarray) -> np.ndarray:
    """(S, 2) the spans that lie inside the stretches [begin, begin + length), as offsets into these laid end to end.

    `spans` ascend and do not overlap.

    >>> spans_within(np.array([[1, 3], [4, 6], [8, 9]]), np.array([7, 0]), np.array([3, 5])).tolist()
    [[1, 2], [4, 6]]
    """
    first = np.searchsorted(spans[:, 0], begin, "left")
    last = np.maximum(np.searchsorted(spans[:, 1], begin + length, "right"), first)
    count = last - first
    row = np.repeat(np.arange(len(begin)), count)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    move = np.cumsum(length) - length - begin
    return np.asarray(spans[first[row] + nth] + move[row][:, None], np.int64)


def tokens_of(spans: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """(S, 2) spans of characters as spans of tokens: all tokens that hold some of their characters.

    begin, end: (n,) characters that each token covers. A span without a token, or that shares one with the span
    before it, is dropped.

    >>> begin, end = np.array([0, 3, 7, 7]), np.array([3, 7, 8, 8])
    >>> tokens_of(np.array([[1, 2], [2, 5], [4, 8], [9, 9]]), begin, end).tolist()
    [[0, 1], [1, 4]]
    """
    # A character that became several tokens is covered by each, so ends alone need not ascend.
    first = np.searchsorted(np.maximum.accumulate(end), spans[:, 0], "right")
    last = np.searchsorted(begin, spans[:, 1], "left")
    out: list[tuple[int, int]] = []
    for a, b in zip(first.tolist(), last.tolist(), strict=True):
        if a < b and (not out or a >= out[-1][1]):
            out.append((a, b))
    return np.array(out, np.int64).reshape(-1, 2)
