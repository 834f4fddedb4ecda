"""The unigram model against brute force over all segmentations, worked examples, and sentencepiece."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import math
import pydoc_data.topics
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models

from unmask.config import TokenizerConfig
from unmask.errors import UserError
from unmask.keyed import row_keys, uniform
from unmask.tokens.lattice import blocks_of, characters_of_nodes, expected_counts, paths, viterbi
from unmask.tokens.pieces import learn as learn_tokenizer
from unmask.tokens.unigram import Unigram
from unmask.tokens.unigram_training import Trainer, digamma, learn

Scores = Mapping[str, float]


def segmentations(word: str, scores: Scores, unk: float | None = None) -> dict[tuple[str, ...], float]:
    """All of them, by cutting at every subset of places."""
    out = {}
    for cuts in itertools.product([False, True], repeat=max(0, len(word) - 1)):
        places = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), len(word)]
        pieces = tuple(word[a:b] for a, b in itertools.pairwise(places)) if word else ()
        score = 0.0
        for piece in pieces:
            if piece in scores:
                score += scores[piece]
            elif len(piece) == 1 and unk is not None:
                score += unk
            else:
                score = -math.inf
        if score > -math.inf:
            out[pieces] = score
    return out


PROBABILITY = st.floats(1e-4, 1.0).map(math.log)
VOCABULARY = st.dictionaries(st.text("abc", min_size=1, max_size=4), PROBABILITY, max_size=12)
WORD = st.text("abc", max_size=7)

# ---------------------------------------------------------------- worked examples


def test_likelihood_of_the_notes() -> None:
    """CS324, lecture 3, section 1.3: "ababc" as ab | ab | c."""
    model = Unigram([("ab", math.log(2 / 3)), ("c", math.log(1 / 3))])
    assert model.viterbi("ababc")[0] == ("ab", "ab", "c")
    assert math.exp(model.logprob("ababc")) == pytest.approx(4 / 27)


def test_viterbi_of_the_notes() -> None:
    model = Unigram([(piece, math.log(p)) for piece, p in {"a": 1 / 8, "b": 1 / 8, "c": 1 / 4, "ab": 1 / 2}.items()])
    found = [(pieces, math.exp(score)) for pieces, score in model.nbest("ababc", 9)]
    assert found[0] == (("ab", "ab", "c"), pytest.approx(1 / 16))
    assert [p for _, p in found[1:3]] == pytest.approx([1 / 512, 1 / 512])
    assert len(found) == 4
    found = [(pieces, math.exp(score)) for pieces, score in model.nbest("abc", 2)]
    assert found == [(("ab", "c"), pytest.approx(1 / 8)), (("a", "b", "c"), pytest.approx(1 / 256))]


# ---------------------------------------------------------------- reading


@given(scores=VOCABULARY, word=WORD, unk=st.none() | st.just(-9.0))
@settings(max_examples=150, deadline=None)
def test_reading_equals_brute_force(scores: Scores, word: str, unk: float | None) -> None:
    model, all_ = Unigram(list(scores.items()), unk), segmentations(word, scores, unk)
    if not all_:
        assert model.logprob(word) == -math.inf and model.nbest(word, 3) == []
        with pytest.raises(UserError, match="no pieces of the vocabulary"):
            model.viterbi(word)
        with pytest.raises(UserError, match="no pieces of the vocabulary"):
            model.sample(word, np.zeros(len(word)))
        return
    assert model.logprob(word) == pytest.approx(math.log(sum(map(math.exp, all_.values()))))
    best, score = model.viterbi(word)
    assert score == pytest.approx(max(all_.values())) and all_[best] == pytest.approx(score)
    for n in (1, 3, 1000):
        found = model.nbest(word, n)
        assert [s for _, s in found] == pytest.approx(sorted(all_.values(), reverse=True)[:n])
        assert len({pieces for pieces, _ in found}) == len(found)
        assert all(all_[pieces] == pytest.approx(s) for pieces, s in found)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 2.0])
def test_samples_have_their_probabilities(alpha: float) -> None:
    scores = {"a": -2.0, "b": -2.5, "ab": -3.0, "ba": -3.5, "aba": -4.5, "bab": -6.0}
    word, draws = "ababa", 4000
    model, all_ = Unigram(list(scores.items())), segmentations("ababa", scores)
    shares = {pieces: math.exp(alpha * score) for pieces, score in all_.items()}
    counts = dict.fromkeys(all_, 0)
    for key in row_keys(3, 0, np.arange(draws)):
        counts[model.sample(word, uniform(key, np.arange(len(word))), alpha)] += 1
    expected = np.array([shares[p] for p in all_]) * draws / sum(shares.values())
    observed = np.array([counts[p] for p in all_])
    frequent = expected >= 5
    statistic = float(((observed - expected) ** 2 / expected)[frequent].sum())
    freedom = int(frequent.sum()) - 1
    assert freedom >= 4
    assert statistic < freedom + 4 * math.sqrt(2 * freedom)  # four standard deviations of chi-square


def test_sampling_is_a_function_of_its_numbers() -> None:
    model = Unigram([("a", -1.0), ("aa", -2.0), ("aaa", -3.0)])
    assert model.sample("aaa", np.zeros(3)) == ("aaa",)  # the longest last piece comes first
    assert model.sample("aaa", np.full(3, 1 - 2**-53)) == ("a", "a", "a")
    assert model.sample("", np.zeros(0)) == ()


# ---------------------------------------------------------------- many words at once


def tables_of(words: list[str], names: list[str]) -> tuple[list, list[np.ndarray]]:
    """Blocks, and a table (LONGEST, nodes) for each: piece i of `names` has number i + 1."""
    text = " " + " ".join(words) + " "
    starts = np.cumsum([1, *(len(w) + 1 for w in words)])[:-1]
    number = {name: i + 1 for i, name in enumerate(names)}
    blocks, tables = blocks_of(np.array([len(w) for w in words])), []
    for block in blocks:
        ends = characters_of_nodes(block, starts) + 1
        rows = [[number.get(text[max(0, e - n) : e], 0) if e >= n else 0 for e in ends] for n in range(1, 5)]
        tables.append(np.array(rows, np.int32))
    return blocks, tables


@given(
    scores=st.dictionaries(st.text("abc", min_size=2, max_size=4), PROBABILITY, max_size=8),
    words=st.lists(st.text("abc", min_size=1, max_size=7), min_size=1, max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_many_words_at_once_equal_one_by_one(scores: dict[str, float], words: list[str]) -> None:
    scores = {"a": -2.0, "b": -3.0, "c": -4.0} | scores
    names = list(scores)
    padded = np.array([-np.inf, *scores.values()])
    weight = np.arange(1.0, len(words) + 1)
    expected, likelihood = np.zeros(len(padded)), 0.0
    for word, n in zip(words, weight, strict=True):
        all_ = segmentations(word, scores)
        total = sum(map(math.exp, all_.values()))
        likelihood += n * math.log(total)
        for pieces, score in all_.items():
            for piece in pieces:
                expected[names.index(piece) + 1] += n * math.exp(score) / total
    counts, found = np.zeros(len(padded)), 0.0
    for block, table in zip(*tables_of(words, names), strict=True):
        found += expected_counts(block, table, padded, weight[block.words], counts)
        best = viterbi(block, table, padded)
        cut: dict[int, list[str]] = {}
        for alive, pieces in paths(block, best, table):
            for w, piece in zip(alive.tolist(), pieces.tolist(), strict=True):
                cut.setdefault(w, []).insert(0, names[piece - 1])
        for w, word in enumerate(block.words.tolist()):
            assert best.score[w] == pytest.approx(max(segmentations(words[word], scores).values()))
            assert segmentations(words[word], scores)[tuple(cut[w])] == pytest.approx(best.score[w])
    assert found == pytest.approx(likelihood)
    assert counts[1:] == pytest.approx(expected[1:])


def test_long_words_neither_under_nor_overflow() -> None:
    """256 characters of one in a million, and 2 ** 255 equally likely segmentations."""
    names = ["a", "aa"]
    blocks, tables = tables_of(["a" * 256], names)
    for scores in (np.array([-np.inf, -14.0, -28.0]), np.array([-np.inf, 0.0, 0.0]), np.array([-np.inf, -700, -1.0])):
        counts = np.zeros(3)
        got = expected_counts(blocks[0], tables[0], scores, np.ones(1), counts)
        assert got == pytest.approx(Unigram(list(zip(names, scores[1:].tolist(), strict=True))).logprob("a" * 256))
        assert counts[1] + 2 * counts[2] == pytest.approx(256)


def test_pieces_of_no_probability_leave_places_unreached() -> None:
    blocks, tables = tables_of(["aba", "ab"], ["a", "b", "ab", "ba"])
    counts = np.zeros(5)
    scores = np.array([-np.inf, -2.0, -np.inf, -1.0, -np.inf])
    assert expected_counts(blocks[0], tables[0], scores, np.array([1.0, 3.0]), counts) == pytest.approx(-3 - 3)
    assert counts[1:].tolist() == pytest.approx([1, 0, 4, 0])


# ---------------------------------------------------------------- learning

WORDS: dict[str, int] = {}
for _word in " ".join(t for t in pydoc_data.topics.topics.values() if t.isascii()).split():
    WORDS[_word] = WORDS.get(_word, 0) + 1
LETTERS = sorted({c for word in WORDS for c in word})


def test_digamma() -> None:
    """Recurrence, reflection and known values: psi(1) = - gamma, psi(1/2) = - gamma - 2 log 2."""
    x = np.array([0.01, 0.3, 1.0, 2.5, 7.0, 1e4])
    assert digamma(x + 1) - digamma(x) == pytest.approx(1 / x)
    assert digamma(1 - x[:2]) - digamma(x[:2]) == pytest.approx(math.pi / np.tan(math.pi * x[:2]))
    assert digamma(np.array([1.0, 0.5])) == pytest.approx([-0.5772156649015329, -1.9635100260214235], abs=1e-9)


def test_likelihood_never_falls_in_an_em_step() -> None:
    model = Trainer(WORDS, LETTERS, 2, 3000, ())
    steps = [model.fit_likelihood() for _ in range(8)]
    assert all(after >= before - 1e-9 * abs(before) for before, after in itertools.pairwise(steps))
    assert steps[-1] > 1.0001 * steps[0]  # of negative numbers: it rose
    assert np.exp(model.scores).sum() == pytest.approx(1)


def test_what_is_learnt() -> None:
    pieces = learn(WORDS, 900, alphabet=LETTERS)
    names, scores = [p for p, _ in pieces], np.array([s for _, s in pieces])
    assert len(set(names)) == len(names) <= 900 and set(LETTERS) <= set(names)
    assert list(scores) == sorted(scores, reverse=True)
    assert np.exp(scores).sum() == pytest.approx(1, abs=0.01)
    assert {"the", "ing", "tion"} <= set(names)
    tokens = {size: _tokens_per_word(dict(learn(WORDS, size, alphabet=LETTERS))) for size in (200, 900, 2000)}
    assert tokens[200] > tokens[900] > tokens[2000]


def _tokens_per_word(scores: Scores) -> float:
    model = Unigram(list(scores.items()))
    return sum(n * len(model.viterbi(word)[0]) for word, n in WORDS.items()) / sum(WORDS.values())


def test_forbidden_strings_and_unknown_characters() -> None:
    words = {"[MASK]": 50, "[MAS": 20, "x☃MASK": 5}
    names = {p for p, _ in learn(words, 40, alphabet=sorted("[MASK]x"), forbidden=["[MASK]", "[UNK]"])}
    assert "[MASK]" not in names and "☃" not in names and set("[MASK]x") <= names
    assert not any("☃" in name for name in names)
    assert [p for p, _ in learn({}, 10, alphabet=["a"])] == ["a"]
    assert dict(learn({"a": 1}, 10, alphabet=["a", "b"])).keys() == {"a", "b"}


def test_the_library_reads_the_same_segmentations() -> None:
    tokenizer = learn_tokenizer(TokenizerConfig(type="unigram", vocab_size=700, sentinels=0), WORDS)
    model = json.loads(tokenizer.to_str())["model"]
    ours = Unigram([(piece, score) for piece, score in model["vocab"][7:]])
    library = tokenizers.Tokenizer(models.Unigram([tuple(entry) for entry in model["vocab"]], 1))
    for word in list(WORDS)[:1500]:
        assert sum(ours.scores[t] for t in library.encode(word).tokens) == pytest.approx(ours.viterbi(word)[1])


@pytest.mark.shared
def test_as_short_as_sentencepiece(shared_data: Path) -> None:
    """Tokens per word of held-out text at the same vocabulary size: within 3 % of the reference trainer's."""
    sentencepiece = pytest.importorskip("sentencepiece")
    with gzip.open(shared_data / "enwiki2015" / "dev.jsonl.gz", "rt", encoding="utf-8") as file:
        lines = [part for line in file for part in json.loads(line)["text"].split("\n") if part.strip()]
    held, lines = lines[::5], [line for i, line in enumerate(lines) if i % 5]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=4000 + 3,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        num_threads=1,
        minloglevel=2,
    )
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ours = learn_tokenizer(TokenizerConfig(type="unigram", vocab_size=4000 + 7, sentinels=0), lines)
    words = sum(len(line.split()) for line in held)
    per_word = [
        sum(len(ours.encode(" " + line).ids) for line in held) / words,
        sum(len(theirs.encode(line)) for line in held) / words,
    ]
    print(f"tokens per word: ours {per_word[0]:.4f}, sentencepiece {per_word[1]:.4f}")
    assert per_word[0] < 1.03 * per_word[1]
