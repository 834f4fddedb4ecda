"""Words, sentences and spans: from characters to tokens at preparation, from shards to rows in training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from unmask.batch import Examples, Rows
from unmask.config import CorpusConfig, SourceConfig, TokenizerConfig
from unmask.data.loader import Loader
from unmask.data.marks import Bits, Marks, spans_within, tokens_of
from unmask.data.prepare import prepare
from unmask.data.sampling import Pieces
from unmask.data.shards import Prepared, Shards
from unmask.errors import UserError
from unmask.objectives import Causal
from unmask.objectives.base import Vocabulary
from unmask.text.sentences import sentence_starts
from unmask.tokens.tokenizer import Tokenizer


def quiet(_: str) -> None:
    pass


# ---------------------------------------------------------------- spans


def test_spans_within_stretches_are_those_of_a_slow_loop() -> None:
    rng = np.random.default_rng(0)
    edges = np.sort(rng.choice(500, 120, replace=False)).reshape(-1, 2)
    for _ in range(50):
        begin = rng.integers(0, 450, 6)
        length = rng.integers(1, 60, 6)
        expected, before = [], 0
        for b, n in zip(begin.tolist(), length.tolist(), strict=True):
            expected += [[s - b + before, e - b + before] for s, e in edges.tolist() if s >= b and e <= b + n]
            before += n
        assert spans_within(edges, begin, length).tolist() == expected
    assert spans_within(np.zeros((0, 2), np.int64), np.array([3]), np.array([4])).shape == (0, 2)


def test_spans_of_characters_become_all_tokens_that_hold_some_of_them() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        edges = np.sort(rng.choice(31, 10, replace=False))
        bytes_ = rng.integers(1, 4, 9)  # tokens that are bytes of one character cover the same
        begin, end = np.repeat(edges[:-1], bytes_), np.repeat(edges[1:], bytes_)
        spans = np.sort(rng.choice(30, 6, replace=False)).reshape(-1, 2)
        expected, behind = [], 0
        for b, e in spans.tolist():
            held = [t for t in range(len(begin)) if begin[t] < e and end[t] > b]
            if held and held[0] >= behind:
                expected.append([held[0], held[-1] + 1])
                behind = held[-1] + 1
        assert tokens_of(spans, begin, end).tolist() == expected


# ---------------------------------------------------------------- preparing


TEXTS = [
    "Dr. Smith went home. He slept! New York is large.",
    "What? Yes, that. New York again.",
    "北京 是 首都 。 他 在 北京 。",
    "one",
]


@pytest.fixture
def path(tmp_path: Path) -> str:
    rows = []
    for k in range(30):
        for text in TEXTS:
            text = f"{text} {k}"
            found = [[m, m + 8] for m in range(len(text)) if text.startswith("New York", m)]
            rows.append({"text": text, "places": found})
    place = tmp_path / "corpus.jsonl"
    place.write_text("\n".join(map(json.dumps, rows)))
    return str(place)


@pytest.fixture(scope="module", params=["bbpe", "wordpiece", "char", "byte", "unigram"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    config = TokenizerConfig(type=request.param, vocab_size=400, sentinels=2)
    return Tokenizer.train(config, [f"{text} {k}" for text in TEXTS for k in range(30)])


def prepared(path: str, tokenizer: Tokenizer, tmp_path: Path, **more: object) -> Prepared:
    corpus = CorpusConfig.model_validate({"path": path, "valid_fraction": 0.1, **more})
    return prepare(corpus, None, tokenizer, tmp_path / "c", quiet)


def flagged(side: Shards, bits: Bits, i: int) -> np.ndarray:
    return np.flatnonzero(bits[np.arange(side.documents[i], side.documents[i + 1])])


def test_sentence_starts_are_those_of_the_text(path: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    made = prepared(path, tokenizer, tmp_path, sentences=True)
    for side in (made.train, made.valid):
        assert side.sentence is not None and side.word is None and side.spans is None
        for i in range(len(side)):
            ids = side.document(i)
            places = flagged(side, side.sentence, i)
            assert places[0] == 0
            parts = [made.tokenizer.decode(part).strip() for part in np.split(ids, places[1:])]
            if "New York" in made.tokenizer.decode(ids):
                text = made.tokenizer.decode(ids)
                begins = sentence_starts(text)
                expected = [text[a:b].strip() for a, b in zip(begins, [*begins[1:], None], strict=True)]
                assert parts == expected


def test_spans_are_the_tokens_of_their_characters(path: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    made = prepared(path, tokenizer, tmp_path, spans="places")
    for side in (made.train, made.valid):
        assert side.spans is not None and side.spans.dtype == np.int64
        said = [made.tokenizer.decode(side.tokens[a:b]).strip() for a, b in side.spans]
        assert set(said) <= {"New York", "new york"}
        whole = sum(made.tokenizer.decode(side.document(i)).count("New York") for i in range(len(side)))
        assert len(said) == whole > 0


def test_how_many_spans_were_found_is_said_once_and_again_where_the_text_is(path: str, tmp_path: Path) -> None:
    """A lexicon that matches nothing is seen before the run, which would train on no phrase."""
    phrases = tmp_path / "phrases.txt"
    for words, found in (("New York\n", True), ("Ouagadougou\n", False)):
        phrases.write_text(words)
        corpus = CorpusConfig.model_validate({"path": path, "valid_fraction": 0.1, "lexicon": str(phrases)})
        tokenizer = Tokenizer.train(TokenizerConfig(type="byte", sentinels=0), [])
        said: list[str] = []
        made = prepare(corpus, None, tokenizer, tmp_path / "c", said.append)
        sides = [side for side in (made.train, made.valid) if side.spans is not None]
        number = sum(len(side.spans) for side in sides if side.spans is not None)
        texts = [side.document(i) for side in sides for i in range(len(side))]
        having = sum("New York" in tokenizer.decode(ids) for ids in texts) if found else 0
        line = f"annotated spans: {number:,} in {having:,} of {len(texts):,} texts"
        assert said.count(line) == 1 and (number > 0) is found
        again: list[str] = []
        prepare(corpus, None, tokenizer, tmp_path / "c", again.append)
        assert [s for s in again if "annotated" in s] == [f"{line} (when the text was prepared)"]


def test_words_are_the_rules_or_the_blanks_of_the_text(path: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    rule = prepared(path, tokenizer, tmp_path)
    assert rule.train.word is None
    made = prepared(path, tokenizer, tmp_path, words="blanks")
    side = made.train
    assert side.word is not None
    seen = 0
    for i in range(len(side)):
        text = made.tokenizer.decode(side.document(i))
        if text.replace(" ", "").startswith("北京"):
            parts = np.split(side.document(i), flagged(side, side.word, i)[1:])
            words = [made.tokenizer.decode(part).replace(" ", "") for part in parts]
            assert [w for w in words if not w.isdigit()] == ["北京", "是", "首都", "。", "他", "在", "北京", "。"]
            seen += 1
    assert seen > 20


def test_words_of_sources_that_keep_none_follow_the_rule(path: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(vocab_size=400, sentinels=0), TEXTS * 5)
    corpus = CorpusConfig(sources={"rule": SourceConfig(path=path), "cut": SourceConfig(path=path, words="blanks")})
    side = prepare(corpus, None, tokenizer, tmp_path / "c", quiet).train
    assert side.word is not None
    last = int(side.documents[side.sources[1].first])
    expected = tokenizer.words(
        np.asarray(side.tokens[:last], np.int32), np.asarray(side.documents[: side.first[1] + 1])
    )
    assert side.word[np.arange(last)].tolist() == expected.tolist()


def test_a_lexicon_marks_spans_and_its_place_does_not_matter_but_its_phrases_do(path: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(type="byte", sentinels=0), [])
    phrases = tmp_path / "phrases.txt"
    phrases.write_text("New York\nSmith\n")
    made = prepared(path, tokenizer, tmp_path, lexicon=str(phrases))
    said = {tokenizer.decode(made.train.tokens[a:b]) for a, b in made.train.spans}  # type: ignore[union-attr]
    assert said == {"New York", "Smith"}
    phrases.rename(tmp_path / "moved.txt")
    assert prepared(path, tokenizer, tmp_path, lexicon=str(tmp_path / "moved.txt")).directory == made.directory
    phrases.write_text("New York\n")
    assert prepared(path, tokenizer, tmp_path, lexicon=str(phrases)).directory != made.directory


def test_marks_of_a_document_that_is_split_by_position_move_along(tmp_path: Path) -> None:
    text = "New York is here. " * 40
    row = {"text": text, "places": [[18 * k, 18 * k + 8] for k in range(40)]}
    place = tmp_path / "one.jsonl"
    place.write_text(json.dumps(row))
    tokenizer = Tokenizer.train(TokenizerConfig(type="byte", sentinels=0), [])
    made = prepared(str(place), tokenizer, tmp_path, spans="places", sentences=True, valid_fraction=0.3)
    for side in (made.train, made.valid):
        assert side.spans is not None and side.sentence is not None
        assert {tokenizer.decode(side.tokens[a:b]) for a, b in side.spans} == {"New York"}
        assert side.sentence[np.arange(len(side.tokens))].sum() == len(side.spans)
    assert len(made.train.spans) + len(made.valid.spans) in (39, 40)  # type: ignore[arg-type]


# ---------------------------------------------------------------- training


class Reader(Causal):
    """Keeps the rows it is shown."""

    needs: ClassVar[frozenset[str]] = frozenset({"word", "sentence", "spans"})
    seen: ClassVar[list[Rows]] = []

    def __call__(self, rows: Rows, vocabulary: Vocabulary) -> Examples:
        self.seen.append(rows)
        return super().__call__(rows, vocabulary)


def reader(made: Prepared, needs: set[str]) -> tuple[Loader, list[Rows]]:
    kind = type("Kind", (Reader,), {"needs": frozenset(needs), "seen": [], "__annotations__": {}})
    objective = kind()
    words = made.tokenizer.words if "word" in needs else None
    loader = Loader(
        made.train,
        objective,
        made.tokenizer.vocabulary,
        objective.shape(16),
        rows=4,
        seed=0,
        kept=made.train,
        words=words,
    )
    return loader, kind.seen


def test_rows_get_what_the_objective_needs(path: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    made = prepared(path, tokenizer, tmp_path, sentences=True, spans="places")
    loader, seen = reader(made, {"word", "sentence", "spans"})
    side = made.train
    assert side.sentence is not None and side.spans is not None
    for step in range(5):
        loader(step)
    assert seen
    for rows in seen:
        assert rows.word is not None and rows.sentence is not None and rows.spans is not None
        piece = loader.order.piece(rows.index)
        assert rows.word.tolist() == made.tokenizer.words(rows.tokens, rows.start).tolist()
        spans = []
        for r, p in enumerate(piece.tolist()):
            begin, n, first = int(loader.pieces.begin[p]), int(loader.pieces.length[p]), int(rows.start[r])
            kept = side.sentence[np.arange(begin, begin + n)]
            kept[0] = True
            assert rows.sentence[first : first + n].tolist() == kept.tolist()
            spans += [[a - begin + first, b - begin + first] for a, b in side.spans if a >= begin and b <= begin + n]
        assert rows.spans.tolist() == spans
        for a, b in spans:
            assert made.tokenizer.decode(rows.tokens[a:b]).strip().lower() == "new york"


def test_kept_words_override_the_rule(path: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(type="char", sentinels=0), TEXTS)
    made = prepared(path, tokenizer, tmp_path, words="blanks")
    loader, seen = reader(made, {"word"})
    for step in range(5):
        loader(step)
    differs = [not np.array_equal(rows.word, tokenizer.words(rows.tokens, rows.start)) for rows in seen]
    assert any(differs)  # 首都 is one word
    for rows in seen:
        assert rows.word is not None and rows.word[rows.start[:-1]].all() and rows.sentence is None


def test_nothing_is_filled_that_is_not_needed(path: str, tmp_path: Path) -> None:
    made = prepared(path, Tokenizer.train(TokenizerConfig(type="byte", sentinels=0), []), tmp_path, sentences=True)
    loader, seen = reader(made, set())
    loader(0)
    assert all(rows.word is rows.sentence is rows.spans is None for rows in seen)


def test_what_was_not_kept_is_one_clear_sentence(path: str, tmp_path: Path) -> None:
    made = prepared(path, Tokenizer.train(TokenizerConfig(type="byte", sentinels=0), []), tmp_path)
    with pytest.raises(UserError, match=r"sentence starts are needed, but were not kept .*: set corpus.sentences=true"):
        reader(made, {"sentence"})
    with pytest.raises(UserError, match=r"annotated spans are needed, .*corpus.spans, or .*corpus.lexicon"):
        reader(made, {"spans"})
    with pytest.raises(UserError, match="word starts are needed, but neither kept"):
        Marks(frozenset({"word"}), made.train)
    with pytest.raises(UserError, match="no text has wrods"):
        Marks(frozenset({"wrods"}))


def test_a_cut_makes_a_word_and_a_sentence_start() -> None:
    class Side:
        word = Bits(np.packbits(np.zeros(7, np.uint8), bitorder="little"), 7)
        sentence = Bits(np.packbits([1, 0, 0, 0, 0, 1, 0], bitorder="little"), 7)
        spans = None

    pieces = Pieces.cut(np.array([0, 7]), 3)
    rows = Rows.of([[9, 9, 9], [9], [9, 9, 9]])
    filled = Marks(frozenset({"word", "sentence"}), Side()).fill(rows, pieces, np.array([0, 2, 1]))
    assert filled.word is not None and filled.sentence is not None
    assert filled.word.astype(int).tolist() == [1, 0, 0, 1, 1, 0, 0]
    assert filled.sentence.astype(int).tolist() == [1, 0, 0, 1, 1, 0, 1]


def test_a_character_of_several_tokens_does_not_hide_a_span_behind_it() -> None:
    """Ends that do not ascend: the library gives each token of a ligature all of it, and a mark of its own none."""
    begin, end = np.array([0, 0, 0, 2]), np.array([2, 0, 0, 3])
    assert tokens_of(np.array([[1, 2]]), begin, end).tolist() == [[0, 3]]
