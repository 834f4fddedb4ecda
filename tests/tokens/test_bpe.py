"""Merges against a plain implementation, the library, and the literature's examples."""

from __future__ import annotations

import gzip
import itertools
import json
import pydoc_data.topics
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from unmask.config import TokenizerConfig
from unmask.tokens import bpe
from unmask.tokens.bpe import Pair, encode, joined, learn_merges, marked
from unmask.tokens.pieces import BYTES, learn

TOPICS = list(pydoc_data.topics.topics.values())
BYTE_OF = {c: b for b, c in enumerate(BYTES)}


def counted_anew(words: Mapping[str, int], most: int, ties: str, least: int, continuing: str, end: str) -> list[Pair]:
    """Sennrich et al. 2016, algorithm 1, word by word: all pairs are counted again before every merge."""
    text = [(marked(word, continuing, end), n) for word, n in words.items()]
    number = {name: i for i, name in enumerate(sorted({s for symbols, _ in text for s in symbols}))}
    merges: list[Pair] = []
    while len(merges) < most:
        counts: dict[Pair, int] = {}  # in order of first appearance
        for symbols, n in text:
            for pair in itertools.pairwise(symbols):
                counts[pair] = counts.get(pair, 0) + n
        counts = {pair: n for pair, n in counts.items() if joined(*pair, continuing) not in number}
        if not counts or max(counts.values()) < least:
            break
        best = [pair for pair in counts if counts[pair] == max(counts.values())]
        chosen = {
            "first": best[0],
            "greatest": max(best, key=lambda p: (p[0].encode(), p[1].encode())),
            "library": min(best, key=lambda p: (number[p[0]], number[p[1]])),
        }[ties]
        merges.append(chosen)
        number[joined(*chosen, continuing)] = len(number)
        for symbols, _ in text:
            i = 0
            while i + 1 < len(symbols):
                if (symbols[i], symbols[i + 1]) == chosen:
                    symbols[i : i + 2] = [joined(*chosen, continuing)]
                i += 1
    return merges


MARKS = [("", ""), ("##", ""), ("", "</w>")]
WORDS = st.dictionaries(st.text("ab", min_size=1, max_size=14) | st.text("abcé ", max_size=9), st.integers(1, 6))


@pytest.mark.parametrize("ties", ["library", "first", "greatest"])
@pytest.mark.parametrize(("continuing", "end"), MARKS)
@given(words=WORDS, least=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_merges_equal_counting_anew(ties: str, continuing: str, end: str, words: dict[str, int], least: int) -> None:
    words = {word: n for word, n in words.items() if word}
    ours = learn_merges(words, 25, ties=ties, min_frequency=least, continuing=continuing, end=end)  # type: ignore[arg-type]
    assert ours == counted_anew(words, 25, ties, least, continuing, end)


@pytest.mark.parametrize("ties", ["library", "first", "greatest"])
def test_merges_do_not_depend_on_how_often_pairs_are_counted_anew(ties: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The floor decides which pairs are remembered, never which are merged."""
    words: dict[str, int] = {}
    for word in " ".join(TOPICS[:4]).split():
        words[word] = words.get(word, 0) + 1
    runs = []
    for fall in (1, 3, 10**9):
        monkeypatch.setattr(bpe, "FALL", fall)
        runs.append(learn_merges(words, 300, ties=ties))  # type: ignore[arg-type]
    assert runs[0] == runs[1] == runs[2]
    assert runs[0][:30] == counted_anew(words, 30, ties, 2, "", "")


def test_the_car_the_cat_the_rat() -> None:
    """CS324, lecture 3, section 1.2; blanks are words of their own and take no part."""
    config = TokenizerConfig(type="bpe", split="whitespace", ties="first", vocab_size=7 + 7 + 3, sentinels=0)
    tokenizer = learn(config, ["the car the cat the rat"])
    model = json.loads(tokenizer.to_str())["model"]
    assert [tuple(pair) for pair in model["merges"]] == [("t", "h"), ("th", "e"), ("c", "a")]
    assert set(model["vocab"]) - {t["content"] for t in json.loads(tokenizer.to_str())["added_tokens"]} == {
        *(" ", "a", "c", "e", "h", "r", "t"),
        *("th", "the", "ca"),
    }
    assert tokenizer.encode("the rat the car").tokens == ["the", " ", "r", "a", "t", " ", "the", " ", "ca", "r"]
    tokenizer = learn(config, ["the car the cat the rat", "ox"])  # two characters more, two merges fewer
    assert tokenizer.encode("the ox").tokens[-3:] == [" ", "o", "x"]
    tokenizer = learn(config.model_copy(update={"vocab_size": 19}), ["the car the cat the rat", "ox"])
    assert tokenizer.encode("the ox").tokens == ["the", " ", "o", "x"]


def test_low_lower_newest() -> None:
    words = {"low": 3, "lower": 1, "newest": 2}
    merges = learn_merges(words, 3, ties="first")
    assert merges == [("l", "o"), ("lo", "w"), ("n", "e")]
    assert encode("lowest", merges) == ["low", "e", "s", "t"]


@pytest.mark.shared
def test_cs336_merges_in_order(shared_data: Path) -> None:
    """Stanford CS336, assignment 1: 256 bytes + <|endoftext|> + 243 merges; ties go to the greatest pair."""
    folder = shared_data / "cs336" / "fixtures"
    expected = [tuple(line.split(" ")) for line in (folder / "train-bpe-reference-merges.txt").read_text().splitlines()]
    config = TokenizerConfig(type="bbpe", ties="greatest", vocab_size=6 + 256 + 243, sentinels=0)
    tokenizer = learn(config, [(folder / "corpus.en").read_text(encoding="utf-8")])
    merges = [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    assert len(expected) == 243
    assert merges == expected


def library_merges(texts: list[str], size: int) -> list[Pair]:
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size, min_frequency=2, initial_alphabet=list(BYTES), show_progress=False, special_tokens=[]
    )
    library.train_from_iterator(texts, trainer)
    return [(a, b) for a, b in json.loads(library.to_str())["model"]["merges"]]


def our_merges(texts: list[str], size: int) -> list[Pair]:
    tokenizer = learn(TokenizerConfig(type="bbpe", vocab_size=size + 6, sentinels=0), texts)
    return [(a, b) for a, b in json.loads(tokenizer.to_str())["model"]["merges"]]


def test_the_library_learns_the_same() -> None:
    assert our_merges(TOPICS, 6000) == library_merges(TOPICS, 6000)


def test_the_library_learns_the_same_where_most_pairs_are_rare() -> None:
    """400 letters: tens of thousands of pairs, more than are remembered at once."""
    rng = random.Random(0)
    letters = [chr(0x4E00 + int(400 * rng.random() ** 2)) for _ in range(60_000)]
    text = "".join(c + " " * (rng.random() < 0.2) for c in letters)
    assert our_merges([text], 1500) == library_merges([text], 1500)


@pytest.mark.shared
def test_the_library_learns_the_same_from_wikipedia(shared_data: Path) -> None:
    for name, size in (("enwiki2015", 8192), ("zhwiki", 1024)):
        with gzip.open(shared_data / name / "dev.jsonl.gz", "rt", encoding="utf-8") as file:
            texts = [json.loads(line)["text"] for line in file]
        assert our_merges(texts, size) == library_merges(texts, size), name


@given(
    words=st.lists(st.text("abcd", min_size=1, max_size=12), min_size=1, max_size=8), probe=st.text("abcd", max_size=12)
)
@settings(max_examples=50, deadline=None)
@pytest.mark.parametrize("end", ["", "</w>"])
def test_encode_is_what_the_library_does(end: str, words: list[str], probe: str) -> None:
    merges = learn_merges(dict.fromkeys(words, 2), 20, end=end)
    names = [c + mark for c in "abcd" for mark in ("", end)] + [joined(*pair) for pair in merges]
    vocab = {name: i for i, name in enumerate(dict.fromkeys(names))}
    library = tokenizers.Tokenizer(models.BPE(vocab, merges, **({"end_of_word_suffix": end} if end else {})))
    assert library.encode(probe).tokens == encode(probe, merges, end=end)


def test_no_merge_makes_a_string_that_exists() -> None:
    """Text that spells a mark: "##" and "b" would make the symbol "##b", which is another thing."""
    words = {"##b##b": 9, "ab": 5, "a</w>": 7}
    for continuing, end in MARKS:
        merges = learn_merges(words, 50, continuing=continuing, end=end, min_frequency=1)
        start = sorted({s for word in words for s in marked(word, continuing, end)})
        made = [joined(*pair, continuing) for pair in merges]
        assert len({*start, *made}) == len(start) + len(made)
    assert "ab" not in [a + b for a, b in learn_merges({"ab": 9, "cd": 1}, 9, min_frequency=1, forbidden=["ab"])]
    assert learn_merges({"ab": 9, "cd": 1}, 9, min_frequency=1, forbidden=["ab"]) == [("c", "d")]


def test_characters_outside_the_alphabet_part_words() -> None:
    assert learn_merges({"axb": 5, "ab": 1}, 9, min_frequency=1, alphabet=["a", "b"]) == [("a", "b")]
    assert learn_merges({"axb": 5}, 9, min_frequency=1, alphabet=["a", "b"]) == []
    assert learn_merges({}, 9) == []
