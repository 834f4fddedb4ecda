"""Counting words in bounded memory, and vocabularies of every type: settings, determinism, what they can read."""

from __future__ import annotations

import itertools
import json
import os
import pydoc_data.topics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from unmask.config import TokenizerConfig
from unmask.errors import UserError
from unmask.tokens import counting
from unmask.tokens.counting import EACH, LONGEST, blocks, count_words
from unmask.tokens.pieces import BYTES, learn
from unmask.tokens.special import ROLES, sentinel

TYPES = ("bbpe", "bpe", "wordpiece", "unigram", "char", "byte", "word")
TOPICS = list(pydoc_data.topics.topics.values())[:25]
CONTROLS = set(ROLES.values())


def made(type_: str, texts: Iterable[str], **more: Any) -> tokenizers.Tokenizer:
    return learn(TokenizerConfig(**{"type": type_, "vocab_size": 1000, "sentinels": 0, **more}), texts)


def words_of(tokenizer: tokenizers.Tokenizer, text: str) -> list[str]:
    """As the library cuts it."""
    clean = text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text)
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(clean)]


def vocabulary(tokenizer: tokenizers.Tokenizer) -> set[str]:
    return set(tokenizer.get_vocab()) - CONTROLS


# ---------------------------------------------------------------- counting

CUTS = [
    *({"type": "bbpe", "split": split} for split in ("gpt2", "whitespace")),
    *({"type": "bpe", "split": split} for split in ("metaspace", "gpt2", "whitespace")),
    *({"type": "bpe", "end_of_word": "</w>", "split": split} for split in ("whitespace", "bert", "words")),
    *({"type": "wordpiece", "split": split} for split in ("bert", "words", "whitespace")),
    *({"type": "word", "split": split} for split in ("words", "bert", "whitespace")),
]
WAYS = [
    tokenizer
    for cut in CUTS
    for more in ({}, {"digits": "split", "normalization": "nfc"}, {"normalization": "nfkc"})
    for tokenizer in [learn(TokenizerConfig(**cut, **more, vocab_size=400, sentinels=0), ["a b a b"])]  # type: ignore[arg-type]
] + [made("wordpiece", ["a b a b"], lowercase=True), made("unigram", ["a b a b"], lowercase=True, digits="split")]
PARTS = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\x85", "\f", "\x1c", "\x1f", "\x00", "\u200b"]
PARTS += [
    "'s",
    "'",
    "12",
    "½",
    "٣",
    "é",
    "e\u0301",
    "\u0301",
    "´",
    "¨",
    "ﷺ",
    "ﬁ",
    "İ",
    "你好",
    "▁",
    "_",
    "x.",
    "[MASK]",
]
TEXT = st.lists(st.sampled_from(PARTS) | st.text("ab1. \n", max_size=4), max_size=14).map("".join)


@given(texts=st.lists(TEXT, min_size=1, max_size=3))
@example(texts=["a  \n ´b", " \n"])
@example(texts=["  ", " b", "c"])
@example(texts=["a\x85b \x85\n c\f d\f\n\n"])
@settings(max_examples=200, deadline=None)
def test_counting_by_chunks_changes_no_word(texts: list[str]) -> None:
    """What the library would see of the whole text, in the order in which it would see it."""
    for tokenizer in WAYS:
        expected = [word for text in texts for word in words_of(tokenizer, text)]
        found = count_words(texts, lambda chunk, t=tokenizer: words_of(t, chunk))  # type: ignore[misc]
        assert found == Counter(expected)
        assert list(found) == list(dict.fromkeys(expected))


def test_counting_in_blocks_changes_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts longer than a block, and chunks that are handed over several times."""
    tokenizer = WAYS[0]
    whole = count_words(TOPICS, lambda chunk: words_of(tokenizer, chunk))
    monkeypatch.setattr(counting, "BLOCK", 1000)
    monkeypatch.setattr(counting, "WAITING", 3000)
    parts = count_words(["".join(TOPICS)], lambda chunk: words_of(tokenizer, chunk))
    assert list(parts) == list(count_words(["".join(TOPICS)], lambda chunk: words_of(tokenizer, chunk)))
    assert sum(parts.values()) == pytest.approx(sum(whole.values()), abs=len(TOPICS))  # texts now touch


@given(text=TEXT, limit=st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_blocks(text: str, limit: int) -> None:
    parts = list(blocks(text, limit))
    assert "".join(parts) == text and all(len(part) <= limit for part in parts)
    for before, after in itertools.pairwise(parts):
        good = counting._word_end.search(before[-1] + after[0]) is not None
        assert good or not counting._word_end.search(before)


def test_long_words_are_counted_in_parts() -> None:
    said: list[str] = []
    words = count_words(["ab" * 3000 + " c" + " " * 1000], str.split, said.append)
    assert sum(len(word) * n for word, n in words.items()) == 6001
    assert max(map(len, words)) <= LONGEST and min(len(w) for w in words if w != "c") > LONGEST // 2 - 2
    assert any(f"longer than {LONGEST} characters" in sentence for sentence in said)


def test_sampled_counts_are_bounded_said_and_unbiased() -> None:
    """6,000 words that occur one to three times, and five common ones, in a memory for about 500."""
    common = {f"common{i}": 400 * (i + 1) for i in range(5)}
    rare = [f"rare{i}" for i in range(6000) for _ in range(1 + i % 3)]
    line = rare + [word for word, n in common.items() for _ in range(n)]
    text = " ".join(line[i * 7919 % len(line)] for i in range(len(line)))
    said: list[str] = []
    most = 500 * (8 + EACH)
    words = count_words([text[i : i + 500] for i in range(0, len(text), 500)], str.split, said.append, most)
    assert sum(len(word) + EACH for word in words) <= most
    assert any("are a sample drawn by hash" in sentence and "peak memory" in sentence for sentence in said)
    assert words.keys() < {w for i in range(0, len(text), 500) for w in text[i : i + 500].split()}
    assert sum(words.values()) == pytest.approx(len(line), rel=0.1)
    for word, n in common.items():
        assert words[word] == pytest.approx(n, rel=0.25)
    assert words == count_words([text[i : i + 500] for i in range(0, len(text), 500)], str.split, said.append, most)


def test_sampling_without_a_listener_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    count_words([" ".join(map(str, range(5000)))], str.split, most=5000)
    assert "more distinct words than the memory" in capsys.readouterr().err
    count_words(["a b"], str.split)
    assert capsys.readouterr().err == ""


# ---------------------------------------------------------------- D10: bounded memory

BOUNDED = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
import numpy as np
from unmask.config import TokenizerConfig
from unmask.tokens import counting
from unmask.tokens.pieces import learn

spaced, megabytes, most = sys.argv[1] == "spaced", int(sys.argv[2]), int(sys.argv[3])
counting.count_words.__defaults__ = (None, most)

def texts():
    rng = np.random.default_rng(0)
    for _ in range(megabytes):
        letters = rng.integers(97, 123, 1_000_000, dtype=np.uint8)
        if spaced:
            letters[rng.random(len(letters)) < 1 / 7] = 32
        yield letters.tobytes().decode()

start = time.perf_counter()
tokenizer = learn(TokenizerConfig(type="bbpe", vocab_size=8192), texts(), print)
print(tokenizer.get_vocab_size(), "entries", round(time.perf_counter() - start, 1), "s", counting.peak_memory())
"""


def bounded(kind: str, megabytes: int, most: int) -> str:
    command = [sys.executable, "-c", BOUNDED, kind, str(megabytes), str(most)]
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("kind", ["spaced", "spaceless"])
def test_d10_training_is_bounded(kind: str) -> None:
    """A small memory for words, so that sampling starts within 6 MB."""
    out = bounded(kind, 6, 300_000)
    assert "are a sample drawn by hash" in out and "peak memory" in out
    assert "8192 entries" in out


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["spaced", "spaceless"])
def test_d10_8k_bpe_of_200_mb_in_2_gb(kind: str) -> None:
    out = bounded(kind, 200, counting.MOST)
    print(kind, out)
    assert "are a sample drawn by hash" in out and "peak memory" in out
    assert "8192 entries" in out


# ---------------------------------------------------------------- determinism

FILES = """
import hashlib, pydoc_data.topics as p
from unmask.config import TokenizerConfig
from unmask.tokens.pieces import learn
texts = list(p.topics.values())[:25]
for type_ in %r:
    for more in ({}, {"digits": "split", "normalization": "nfkc"}):
        text = learn(TokenizerConfig(type=type_, vocab_size=900, **more), texts).to_str()
        print(type_, hashlib.sha256(text.encode()).hexdigest())
"""


def test_every_type_is_bit_identical_in_every_process() -> None:
    runs = []
    for seed, threads in (("0", "1"), ("4711", "2")):
        env = {**os.environ, "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "true"}
        command = [sys.executable, "-c", FILES % (TYPES,)]
        runs.append(subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout)
    assert runs[0] == runs[1]
    assert len(runs[0].splitlines()) == 2 * len(TYPES)


def test_texts_may_come_in_other_pieces() -> None:
    """Cut before blanks, the same text gives the same vocabulary."""
    text = "".join(TOPICS)
    at = [i for i in range(1, len(text)) if text[i] == " " and text[i - 1] > " "][::50]
    parts = [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]
    for type_ in TYPES:
        assert made(type_, [text]).to_str() == made(type_, iter(parts)).to_str(), type_


# ---------------------------------------------------------------- what every type can read


@pytest.mark.parametrize("type_", TYPES)
def test_ids_are_controls_then_pieces_then_sentinels(type_: str) -> None:
    tokenizer = made(type_, TOPICS, sentinels=3)
    names = [name for role, name in ROLES.items() if role != "unk" or type_ not in ("byte", "bbpe")]
    size = tokenizer.get_vocab_size()
    assert [tokenizer.id_to_token(i) for i in range(len(names))] == names
    assert [tokenizer.id_to_token(size - 3 + k) for k in range(3)] == [sentinel(k) for k in range(3)]
    assert sorted(tokenizer.get_vocab().values()) == list(range(size))
    assert size <= 1000 and (size == 1000 or type_ in ("byte", "char"))
    again = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    assert again.get_vocab() == tokenizer.get_vocab()


LOSSLESS = [
    *({"type": "bbpe", "split": split} for split in ("gpt2", "whitespace")),
    *({"type": type_, "split": split} for type_ in ("bpe", "unigram") for split in ("metaspace", "gpt2", "whitespace")),
    {"type": "char"},
    {"type": "byte"},
]


@pytest.mark.parametrize("digits", ["keep", "split"])
@pytest.mark.parametrize("config", LOSSLESS, ids=lambda c: "-".join(c.values()))
def test_the_decoder_rebuilds_the_text(config: dict[str, str], digits: str) -> None:
    tokenizer = learn(TokenizerConfig(**config, digits=digits, vocab_size=1000, sentinels=0), [*TOPICS, "\t\t"])  # type: ignore[arg-type]
    for text in [*TOPICS[:3], "  two  blanks\n\n and 1234.5 \t", " ", "", "x"]:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    pieces = vocabulary(tokenizer)
    assert digits == "keep" or not any(len(p) > 1 and any(c.isdigit() for c in p) for p in pieces)


def test_segmented_text_comes_back_with_its_blanks() -> None:
    for type_, more in (
        ("word", {"split": "whitespace"}),
        ("wordpiece", {"split": "whitespace"}),
        ("bpe", {"end_of_word": "</w>"}),
        ("bpe", {"end_of_word": "@end@"}),
    ):
        tokenizer = made(type_, ["the cat sat . it 's 12 years old !"] * 3, **more)
        text = "the cat 's 12 !"
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


SPELLINGS = ("taaaaasty", "laern", "Transformerify")


def test_cs224n_subwords_know_words_never_seen() -> None:
    """CS224n, lecture 6: a fixed vocabulary of words maps variations, misspellings and new words to UNK."""
    assert not any(word in text for word in SPELLINGS for text in TOPICS)
    words = made("word", TOPICS, vocab_size=100_000)
    for word in SPELLINGS:
        assert words.encode(word).tokens == ["[UNK]"]
    for type_, more in (
        *((t, {}) for t in ("bbpe", "bpe", "wordpiece", "unigram", "char", "byte")),
        ("bpe", {"end_of_word": "</w>"}),
        ("wordpiece", {"split": "words"}),
    ):
        tokenizer = made(type_, TOPICS, vocab_size=2000, **more)
        for word in SPELLINGS:
            ids = tokenizer.encode(word).ids
            assert len(ids) > 1 and "[UNK]" not in tokenizer.encode(word).tokens
            assert tokenizer.decode(ids) == word


def test_d06_word_level_knows_an_unknown() -> None:
    said: list[str] = []
    tokenizer = learn(TokenizerConfig(type="word", sentinels=0), ["a b"], said.append)
    assert tokenizer.encode("c").tokens == ["[UNK]"] and vocabulary(tokenizer) == {"a", "b"}
    assert any("no word occurs 2 times" in sentence for sentence in said)
    assert vocabulary(made("word", ["a b b"])) == {"b"}
    assert vocabulary(made("word", ["a b b"], min_frequency=1)) == {"a", "b"}


def test_d15_segmented_chinese_keeps_its_words() -> None:
    text = "我 喜欢 自然 语言 处理 ， 自然 语言 处理 很 有趣 。 我 喜欢 自然"
    tokenizer = made("word", [text], split="whitespace", min_frequency=1)
    assert vocabulary(tokenizer) == set(text.split())
    assert tokenizer.encode("自然 语言 很 有趣").tokens == ["自然", "语言", "很", "有趣"]
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    subwords = made("wordpiece", [text] * 20, split="whitespace")
    assert {"自然", "语言"} <= vocabulary(subwords) and subwords.encode("自然 语言").tokens == ["自然", "语言"]
    assert "自然" not in vocabulary(made("wordpiece", [text] * 20))  # BERT's own cuts part Chinese characters


def test_gpt1_marks_the_end_of_words() -> None:
    tokenizer = made("bpe", ["low lower lowest newest widest"] * 9, end_of_word="</w>", ties="first")
    assert tokenizer.encode("low newest").tokens == ["low</w>", "newest</w>"]
    assert {"l", "l</w>", "lo", "low</w>"} <= vocabulary(tokenizer)
    few = made("bpe", ["low lower lowest"], end_of_word="</w>", vocab_size=7 + 2 * 7 + 2, ties="first")
    assert json.loads(few.to_str())["model"]["end_of_word_suffix"] == "</w>"
    assert few.encode("lot").tokens == ["lo", "t</w>"]


def test_pieces_do_not_join_words_to_their_punctuation() -> None:
    for type_ in ("bpe", "unigram"):
        pieces = vocabulary(made(type_, ["the end. the end.\n\nthe end2 (the end)."] * 30))
        assert "▁end" in pieces and "\n\n" in pieces
        assert not any(any(c.isalpha() for c in p) and any(c in ".()2\n" for c in p) for p in pieces)


def test_control_strings_are_no_pieces() -> None:
    """Cut at white space alone, text could spell them."""
    text = "[MASK] [MASK] <extra_id_0> <extra_id_0> [UNK] [UNK] a a " * 20
    for type_, more in (("word", {}), ("wordpiece", {}), ("bpe", {}), ("bpe", {"end_of_word": "]"}), ("unigram", {})):
        tokenizer = made(type_, [text], split="whitespace", sentinels=2, **more)
        names = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
        assert len(set(names)) == len(names) and names[:7] == list(ROLES.values())
        assert names[-2:] == ["<extra_id_0>", "<extra_id_1>"]
        assert set(tokenizer.get_vocab().values()) == set(range(len(names)))
    scores = dict(json.loads(made("unigram", [text], split="whitespace").to_str())["model"]["vocab"])
    assert scores["[MASK]"] < 6 * min(score for name, score in scores.items() if name not in CONTROLS)


def test_normalisation_and_case() -> None:
    text = ["Ｃafé cafe\u0301 CAFÉ café ﬁn"] * 3
    for type_ in ("bbpe", "bpe", "unigram", "word", "wordpiece", "char", "byte"):
        tokens = {
            form: [
                tuple(made(type_, text, normalization=form).encode(word).tokens) for word in ("caf\u00e9", "cafe\u0301")
            ]
            for form in ("none", "nfc", "nfkc")
        }
        assert tokens["none"][0] != tokens["none"][1] and tokens["nfc"][0] == tokens["nfc"][1]
        assert tokens["nfkc"][0] == tokens["nfkc"][1]
    assert {"Ｃafé", "ﬁn"} <= vocabulary(made("word", text, normalization="nfc"))
    assert vocabulary(made("word", text, normalization="nfkc", lowercase=True)) == {"café", "fin"}


def test_rare_characters_are_unknown_and_said() -> None:
    said: list[str] = []
    config = TokenizerConfig(type="bpe", sentinels=0)
    tokenizer = learn(config, ["the cat sat on the mat " * 400 + "☃ ~"], said.append)
    assert tokenizer.encode("the ☃~").tokens == ["the", "▁", "[UNK]", "~"]  # ASCII always has a number
    assert any("1 of 12 different characters are so rare" in sentence for sentence in said)


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"type": "bbpe", "end_of_word": "</w>"}, r"tokenizer.end_of_word fits bpe only; drop it for type=bbpe"),
        ({"type": "bpe", "end_of_word": ""}, r"tokenizer.end_of_word='' must be visible"),
        ({"type": "bpe", "end_of_word": "</w>", "split": "gpt2"}, r"split=gpt2 does not suit.*choose whitespace"),
        ({"type": "bpe", "split": "bert"}, r"tokenizer.split=bert does not suit type=bpe: choose metaspace"),
        ({"type": "bbpe", "split": "metaspace"}, r"tokenizer.split=metaspace does not suit type=bbpe"),
        ({"type": "wordpiece", "split": "gpt2"}, r"tokenizer.split=gpt2 does not suit type=wordpiece"),
        ({"type": "char", "split": "words"}, r"tokenizer.split=words does not suit type=char: it has no cuts"),
        ({"type": "unigram", "ties": "first"}, r"tokenizer.ties=first is about merges"),
        ({"type": "bbpe", "lowercase": True}, r"tokenizer.lowercase fits bpe, wordpiece, unigram and word"),
        ({"type": "bpe", "vocab_size": 12}, r"tokenizer.vocab_size=12 is too small for \d+ characters"),
        ({"type": "unigram", "vocab_size": 12}, r"tokenizer.vocab_size=12 is too small for \d+ characters"),
    ],
)
def test_contradictions_name_their_field(setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        made(setting.pop("type"), TOPICS, **setting)


@pytest.mark.parametrize("type_", [t for t in TYPES if t not in ("byte", "bbpe")])
def test_no_text_is_refused(type_: str) -> None:
    for texts in ([], ["", ""]):
        with pytest.raises(UserError, match="empty"):
            made(type_, texts)


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ValidationError):
        TokenizerConfig(ties="last")  # type: ignore[arg-type]


@pytest.mark.parametrize("ties", ["library", "first", "greatest"])
@pytest.mark.parametrize("type_", ["bbpe", "bpe", "wordpiece"])
def test_ties_and_frequency_reach_the_learner(type_: str, ties: str) -> None:
    """Two pairs, equally common: "bc" stands first, "xa" is greater, "ad" has the lower numbers."""
    text = ["bc ad xa"] * 3
    extra = {"bbpe": 256 + 6, "bpe": 7 + 6, "wordpiece": 7 + 8}[type_]
    tokenizer = made(type_, text, ties=ties, vocab_size=extra + 1)
    longer = {p.strip("Ġ▁") for p in vocabulary(tokenizer) if len(p.strip("Ġ▁")) > 1 and "##" not in p}
    assert longer <= {{"library": "ad", "first": "bc", "greatest": "xa"}[ties]}
    assert not {p for p in vocabulary(made(type_, text, min_frequency=4)) - set(BYTES) if len(p.strip("#")) > 1}
