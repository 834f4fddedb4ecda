"""Second texts, and pieces of whole sentences: by arithmetic, the same whatever the batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from unmask import keyed
from unmask.batch import Examples, Rows, full, starts
from unmask.data.loader import Loader
from unmask.data.marks import Bits
from unmask.data.sampling import Partners, Pieces, places_of, read_rows, separators
from unmask.errors import UserError
from unmask.objectives import Contrastive, FullSentences, NextSentence, SentenceOrder
from unmask.objectives.base import Objective, Shape, Vocabulary, outline
from unmask.objectives.show import Toy

VOCABULARY = Toy(size=20_000)
SEP = 3


@dataclass(frozen=True)
class Side:
    """Documents whose every token is its own number (from 100 on), and their sentences."""

    documents: np.ndarray
    sentence: Bits
    word: Bits | None = None
    spans: np.ndarray | None = None

    @property
    def tokens(self) -> np.ndarray:
        return np.arange(100, 100 + self.documents[-1]).astype(np.uint16)

    @staticmethod
    def of(lengths: list[int], rate: float = 0.2, seed: int = 0) -> Side:
        documents = starts(lengths)
        flags = np.random.default_rng(seed).random(documents[-1]) < rate
        flags[documents[:-1][np.diff(documents) > 0]] = True
        bits = Bits(np.packbits(flags, bitorder="little"), len(flags))
        return Side(documents, bits, word=bits)

    def document(self, token: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.documents, np.asarray(token) - 100, "right") - 1

    def loader(self, objective: Objective, context: int = 32, **more: Any) -> Loader:
        return Loader(
            self, objective, VOCABULARY, Shape(context), **{"rows": 4, "seed": 0, "kept": self, **more}
        )  # fmt: skip


class Seen(NextSentence):
    """Keeps the rows that it was given, one example a text that nothing changes."""

    def __call__(self, rows: Rows, vocabulary: Vocabulary) -> Examples:
        SEEN.append(rows)
        return super().__call__(rows, vocabulary)


SEEN: list[Rows] = []


def seen(loader: Loader, steps: int = 4, once: bool = False) -> dict[int, tuple[list[int], list[int], list[bool]]]:
    """Sample number → tokens, the partner's tokens and its sentence flags, of so many updates."""
    SEEN.clear()
    for _ in loader.once() if once else [b for s in range(steps) for b in loader(s)]:
        pass
    found = {}
    for rows in SEEN:
        other = rows.partner
        assert other is not None and other.sentence is not None and other.word is not None
        for i, index in enumerate(rows.index.tolist()):
            mine, theirs = slice(*rows.start[i : i + 2]), slice(*other.start[i : i + 2])
            found[index] = (rows.tokens[mine].tolist(), other.tokens[theirs].tolist(), other.sentence[theirs].tolist())
    return found


WORDS = Seen(masking={"unit": "word"})  # type: ignore[arg-type]
LENGTHS = [5, 80, 29, 29, 3, 0, 200, 40, 12, 30, 18, 60]


# ---------------------------------------------------------------- partners


@pytest.mark.parametrize("once", [False, True])
def test_every_row_has_a_piece_of_another_document_with_its_marks(once: bool) -> None:
    side = Side.of(LENGTHS)
    loader = side.loader(WORDS, shuffle=not once)
    found = seen(loader, 30, once)
    assert len(found) >= len(loader.pieces)
    flags = np.unpackbits(side.sentence.packed, bitorder="little")
    for mine, theirs, sentence in found.values():
        assert len(set(side.document(mine))) == 1 == len(set(side.document(theirs)))
        assert side.document(mine)[0] != side.document(theirs)[0]
        assert theirs == list(range(theirs[0], theirs[0] + len(theirs)))
        assert sentence[0] and sentence[1:] == flags[np.array(theirs, int) - 100].astype(bool).tolist()[1:]


def test_a_partner_is_a_function_of_seed_and_sample() -> None:
    side = Side.of(LENGTHS)
    whole = seen(side.loader(WORDS, rows=4), 30)
    for more in ({"rows": 1}, {"rows": 9}, {"rows": 4, "micro": 3}):
        other = seen(side.loader(WORDS, **more), 30)
        common = whole.keys() & other.keys()
        assert len(common) > 20 and all(whole[i] == other[i] for i in common)
    other = seen(side.loader(WORDS, seed=1), 30)
    assert sum(whole[i][1] != other[i][1] for i in whole.keys() & other.keys()) > 20
    loader = side.loader(WORDS)
    size = len(loader.pieces)
    first, second = loader._outline(np.arange(size)), loader._outline(np.arange(size, 2 * size))
    assert first.partner is not None and second.partner is not None
    assert not np.array_equal(first.partner.key, second.partner.key)


@pytest.mark.parametrize(
    "objective", [NextSentence(), NextSentence.sentence_pair(), SentenceOrder(), Contrastive(), FullSentences()]
)
def test_what_is_packed_is_what_comes_out(objective: Objective) -> None:
    # `collate` would refuse a row that is longer than promised, and `pack` an example that is.
    loader = Side.of(LENGTHS * 3).loader(objective)
    for index in (np.arange(40), np.arange(300, 340)):
        piece, key = loader.order.find(index)
        rows = loader._read(piece, key, index, 0.0)
        if loader.partners is not None:
            rows = replace(rows, partner=loader._read(*loader.partners(piece, key), index, 0.0))
        promised = objective.sizes(loader._outline(index)).stream
        assert promised.tolist() == np.diff(objective(rows, VOCABULARY).stream.start).tolist()
        assert promised.tolist() == objective.sizes(outline(rows)).stream.tolist()
    assert sum(len(loader(s)) for s in range(5)) == 5


def test_one_document_is_refused() -> None:
    with pytest.raises(UserError, match=r"a second document, but the corpus holds one"):
        Side.of([0, 200, 0]).loader(NextSentence())
    Side.of([200]).loader(SentenceOrder())  # needs no partner


def test_partners_are_even_among_the_pieces_of_other_documents() -> None:
    pieces = Pieces.cut(starts([10, 10, 25, 6, 8, 10, 3, 9, 1, 2, 4, 5]), 10)
    n = 30_000
    draw = Partners(pieces)
    for which in range(len(pieces)):
        others = np.flatnonzero(pieces.document != pieces.document[which])
        got, keys = draw(np.full(n, which), keyed.row_keys(0, 0, np.arange(n)))
        assert len(np.unique(keys)) == n
        found, counts = np.unique(got, return_counts=True)
        assert found.tolist() == others.tolist()
        assert np.abs(counts / n - 1 / len(others)).max() < 5 * np.sqrt(1 / len(others) / n)


@pytest.mark.parametrize("seed", range(20))
def test_partners_of_any_documents_are_of_others(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pieces = Pieces.cut(starts([*rng.integers(0, rng.integers(2, 60), rng.integers(2, 30)).tolist(), 4, 4]), 7)
    which = np.repeat(np.arange(len(pieces)), 50)
    got, _ = Partners(pieces)(which, keyed.row_keys(seed, 0, np.arange(len(which))))
    assert (pieces.document[got] != pieces.document[which]).all()


# ---------------------------------------------------------------- pieces of whole sentences


def slow(sentences: list[tuple[int, int, bool]], room: int, most: int, join: int) -> list[tuple[int, int]]:
    """Runs as (first token, tokens and joints): `sentences` are (begin, length, opens a document).

    Without joints, parts of a sentence longer than `room` (or its half, if `most` is 2) are runs by themselves.
    """
    runs: list[list[int]] = []
    taken, alone = 0, False
    for begin, length, opens in sentences:
        limit = room // max(most, 1)
        opens, alone = opens or alone, not join and length > limit
        while length:
            part = min(length, limit)
            gap = join if opens and runs else 0
            fits = runs and (not opens or join) and runs[-1][1] + gap + part <= room and not (most and taken == most)
            if fits and not alone and (part == length or length > room):
                runs[-1][1] += gap + part
                taken += 1
            else:
                runs.append([begin, part])
                taken = 1
            begin, length, opens = begin + part, length - part, False
    return [tuple(r) for r in runs]  # type: ignore[misc]


def sentences_of(side: Side) -> list[tuple[int, int, bool]]:
    flags = np.flatnonzero(np.unpackbits(side.sentence.packed, bitorder="little")[: side.sentence.size])
    opens = set(side.documents.tolist())
    edges = [*flags.tolist(), int(side.documents[-1])]
    return [(a, b - a, a in opens) for a, b in pairwise(edges)]


@pytest.mark.parametrize("most", [0, 1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_pieces_of_whole_sentences_are_those_of_a_slow_loop(seed: int, most: int) -> None:
    rng = np.random.default_rng(seed)
    side = Side.of([*rng.integers(0, 40, 30).tolist(), 300], 0.15, seed)
    pieces = Pieces.whole(side.documents, 17, side.sentence.places(), most)
    assert list(zip(pieces.begin.tolist(), pieces.length.tolist(), strict=True)) == slow(
        sentences_of(side), 17, most, join=0
    )
    assert pieces.length.sum() == side.documents[-1] and pieces.length.max() <= 17
    assert (pieces.document == side.document(pieces.begin + 100)).all()
    assert (pieces.ends == np.isin(pieces.begin + pieces.length, side.documents)).all()


@pytest.mark.parametrize("seed", range(4))
def test_pieces_across_documents_are_those_of_a_slow_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    side = Side.of([0, *rng.integers(0, 40, 30).tolist(), 300, 0, 5], 0.15, seed)
    pieces = Pieces.across(side.documents, 17, side.sentence.places())
    which = np.arange(len(pieces))
    rows = read_rows(side.tokens, pieces, which, which.astype(np.uint64), which, 0.0, SEP)
    assert rows.tokens[~rows.fixed].tolist() == side.tokens.tolist()  # every token once, in order
    assert (rows.tokens[rows.fixed] == SEP).all() and rows.fixed.sum() > 5
    assert (separators(pieces, which) == rows.fixed).all()
    runs = [(int(t[0]) - 100, len(t)) for t in np.split(rows.tokens, rows.start[1:-1])]
    assert runs == slow(sentences_of(side), 17, 0, join=1)
    at = np.flatnonzero(rows.fixed)
    assert (side.document(rows.tokens[at + 1]) != side.document(rows.tokens[at - 1])).all()
    inside = ~(rows.fixed[1:] | rows.fixed[:-1]) & (np.diff(rows.row) == 0)
    assert (np.diff(side.document(rows.tokens))[inside] == 0).all()
    assert (side.document(rows.tokens[rows.start[:-1]]) == pieces.document).all()
    assert (places_of(pieces, which)[~rows.fixed] == rows.tokens[~rows.fixed] - 100).all()


def test_sources_are_not_joined() -> None:
    side = Side.of([6, 7, 3, 0, 4, 20], 0.3)
    pieces = Pieces.across(side.documents, 50, side.sentence.places(), (0, 3))
    assert pieces.begin.tolist()[0] == 0 and pieces.document.tolist() == [0, 4]
    assert pieces.length.tolist() == [6 + 7 + 3 + 2, 4 + 20 + 1] and pieces.of_sources((0, 3)).tolist() == [1, 1]


def test_rows_of_full_sentences_hold_documents_joined_by_sep_and_whole_sentences() -> None:
    side = Side.of([7, 9, 4, 30, 6, 5] * 10, 0.25)
    batches = [b for s in range(20) for b in side.loader(FullSentences(masking={"mask_rate": 0.01}))(s)]  # type: ignore[arg-type]
    joints = 0
    for batch in batches:
        block, tokens = batch.stream.block, batch.stream.tokens
        for r, c in zip(*np.nonzero(tokens == SEP), strict=True):
            joints += int(c + 1 < block.shape[1] and block[r, c + 1] == block[r, c] != 0)
    assert joints > 20


def test_whole_sentences_without_their_starts_are_one_sentence_of_refusal() -> None:
    side = Side.of([9, 9])
    with pytest.raises(UserError, match=r"sentence starts are needed.*set corpus\.sentences=true"):
        side.loader(FullSentences(), kept=None)


def test_places_of_bits_are_read_in_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    from unmask.data import marks

    flags = np.random.default_rng(0).random(1003) < 0.3
    bits = Bits(np.packbits(flags, bitorder="little"), 1003)
    monkeypatch.setattr(marks, "_STRETCH", 10)
    assert bits.places().tolist() == np.flatnonzero(flags).tolist()
    assert Bits(np.zeros(0, np.uint8), 0).places().tolist() == []


def test_other_objectives_draw_no_partner() -> None:
    loader = Side.of(LENGTHS).loader(SentenceOrder())
    assert loader.partners is None and loader._outline(np.arange(5)).partner is None
    assert full(np.arange(3), np.array([0, 3])).token_type is None
