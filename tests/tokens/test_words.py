"""Where words start: a plain implementation of the definition, and the same words under every tokenizer."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from unmask.config import TokenizerConfig
from unmask.text.characters import codes, word_starts
from unmask.tokens.formats import from_llama2c
from unmask.tokens.tokenizer import Tokenizer
from unmask.tokens.words import Part, WordStarts, decode, starts_from_characters, starts_with_blanks

SAMPLES = {
    "English": "The cat's  hat, and 3.14 of a naïve café — don't! snake_case\n\n  Indented.\t\"Quoted\" U.S.A.",
    "Chinese": "我们去北京，然后用 Python 3 写程序。《红楼梦》第1回",
    "Japanese": "日本語のテキスト、カタカナとひらがな。 東京 2020年ー",
    "Russian": "Привет, мир! Это тест_а №5. Ёлка 3,14",
    "Arabic": "مرحبا بالعالم، كيف الحال؟ ٣٫١٤ كِتَاب",
    "Hindi and Thai": "नमस्ते दुनिया สวัสดีชาวโลก",
    "emoji": "I ❤️ 😀👍🏽 👨\u200d👩\u200d👧 ok\n\n",
    "code": "def f(x):\n    return x**2  # comment\n\n\tif a_b != 'c  d':\r\n        pass\n",
    "blanks": " a  b   c\u00a0d \u3000e\t f \n g  ",
    "control strings": "[MASK] </s> <extra_id_0> [UNK] ▁a ▁ b",
}
CORPUS = [*SAMPLES.values(), "the cats ran after the rats and the hats, unbelievably"] * 20
SPACELESS = ("CJK", "HIRAGANA", "KATAKANA", "THAI")
"""First words of the names of characters of scripts without blanks, as far as the samples have them."""


def words_of(text: str) -> list[tuple[int, int]]:
    """The definition in plain Python: [begin, end) of every word, its blank included."""

    def inside(c: str) -> bool:  # of a run of letters, marks, digits and underscores
        spaceless = unicodedata.name(c, "").startswith(SPACELESS) and unicodedata.category(c)[0] in "LM"
        return (unicodedata.category(c)[0] in "LMN" or c == "_") and not (spaceless or c == "ー")

    found = []
    at = 0
    while at < len(text):
        begin = at
        while at < len(text) and text[at].isspace():
            at += 1
        if at > begin and text[at - 1] == " " and at < len(text):  # the last blank belongs to the word behind it
            if at - 1 > begin:
                found.append((begin, at - 1))
            begin = at - 1
        elif at > begin:
            found.append((begin, at))
            continue
        run = inside(text[at])
        at += 1
        while run and at < len(text) and inside(text[at]):
            at += 1
        found.append((begin, at))
    return found


def starts_of(tokenizer: Tokenizer, ids: np.ndarray) -> np.ndarray:
    return tokenizer.words(ids, np.array([0, len(ids)]))


@pytest.fixture(scope="module")
def kinds() -> dict[str, Tokenizer]:
    found = {}
    for kind, more in (
        ("bbpe", {}),
        ("bbpe", {"digits": "split"}),
        ("bbpe", {"split": "whitespace"}),
        ("bpe", {}),
        ("bpe", {"split": "gpt2"}),
        ("bpe", {"end_of_word": "</w>", "split": "bert"}),
        ("unigram", {}),
        ("unigram", {"split": "whitespace"}),
        ("wordpiece", {}),
        ("word", {}),
        ("char", {}),
        ("byte", {}),
    ):
        config = TokenizerConfig(type=kind, vocab_size=700, sentinels=2, **more)
        found[" ".join([kind, *more])] = Tokenizer.train(config, CORPUS)
    spec = json.loads(json.dumps(found["bbpe"].spec))
    spec["pre_tokenizer"]["add_prefix_space"] = True
    found["bbpe with a blank in front"] = Tokenizer(json.dumps(spec))
    return found


KEEPS = ("bbpe", "bbpe digits", "bbpe split", "bpe", "bpe split", "unigram", "unigram split", "char", "byte")
"""Kinds that keep white space."""


# ---------------------------------------------------------------- the definition


def test_the_rule_on_characters_is_the_definition() -> None:
    for name, text in SAMPLES.items():
        found = np.flatnonzero(starts_with_blanks(codes(text))).tolist()
        assert found == [begin for begin, _ in words_of(text)], name


def test_worked_example() -> None:
    text = "The cat's  hat, 北京"
    assert [text[a:b] for a, b in words_of(text)] == ["The", " cat", "'", "s", " ", " hat", ",", " 北", "京"]
    text = "a \n b "
    assert [text[a:b] for a, b in words_of(text)] == ["a", " \n", " b", " "]


def test_tokens_start_words_where_the_definition_says(kinds: dict[str, Tokenizer]) -> None:
    """Against a slow reference: words of the text, mapped to tokens by the characters that these cover."""
    for kind in KEEPS:
        tokenizer = kinds[kind]
        unk = -1 if tokenizer.vocabulary.unk is None else tokenizer.vocabulary.unk
        for name, text in SAMPLES.items():
            aligned = tokenizer.encode_aligned([text])[0]
            if unk in aligned.ids or "▁" in text:  # what is unknown or written like a blank is no longer the text
                continue
            begins = np.array([begin for begin, _ in words_of(text)])
            expected = starts_from_characters(aligned.begin, aligned.end, begins)
            assert starts_of(tokenizer, aligned.ids).tolist() == expected.tolist(), (kind, name)
    ids = kinds["bpe"].encode("a▁b ▁ c")  # it reads "a b   c"
    assert [kinds["bpe"].token(i) for i in ids] == ["a", " ", "b", " ", " ", " c"]
    assert starts_of(kinds["bpe"], ids).astype(int).tolist() == [1, 1, 0, 1, 0, 1]


def test_the_same_words_under_all_tokenizers(kinds: dict[str, Tokenizer]) -> None:
    """Words of letters and single punctuation: every kind gives the same stretches of the text."""
    text = "The cats, ran after — (unbelievably) naïve rats! ok"
    expected = [(a + (text[a] == " "), b) for a, b in words_of(text)]
    for kind, tokenizer in kinds.items():
        aligned = tokenizer.encode_aligned([text])[0]
        if tokenizer.vocabulary.unk is not None:
            assert tokenizer.vocabulary.unk not in aligned.ids, kind
        first = np.flatnonzero(starts_of(tokenizer, aligned.ids))
        end = aligned.end[np.append(first[1:], len(aligned.ids)) - 1].tolist()
        begin = [a + (text[a] == " ") for a in aligned.begin[first].tolist()]
        assert list(zip(begin, end, strict=True)) == expected, kind


def test_d13_a_word_of_several_pieces_is_one_word(kinds: dict[str, Tokenizer]) -> None:
    for kind in ("bbpe", "bpe", "unigram", "wordpiece", "char", "byte", "bpe end_of_word split"):
        tokenizer = kinds[kind]
        ids = tokenizer.encode("the hatunrats ran")
        starts = starts_of(tokenizer, ids)
        word = np.cumsum(starts)
        assert starts.sum() == 3 and (word == 2).sum() >= 3, kind
        assert "".join(tokenizer.token(i) for i in ids[word == 2]).strip().replace("##", "").startswith("hatunrats")


# ---------------------------------------------------------------- every kind of token


def test_control_tokens_are_words_and_unknown_ones_follow_the_tokenizer(kinds: dict[str, Tokenizer]) -> None:
    for kind, tokenizer in kinds.items():
        marked = tokenizer.encode_with_specials("a[MASK]b<extra_id_0><extra_id_1> c")
        starts, special = starts_of(tokenizer, marked), tokenizer.vocabulary.is_special[marked]
        unk = tokenizer.vocabulary.unk
        assert starts[special & (marked != unk)].all(), kind
        behind = np.flatnonzero(special)[:-1] + 1
        assert starts[behind].all(), kind
    for kind, expected in (("wordpiece", [1, 1, 1]), ("word", [1, 1, 1])):
        ids = kinds[kind].encode("a☃b ☃ cats")
        assert ids[1] == kinds[kind].vocabulary.unk or kind == "wordpiece"
        assert starts_of(kinds[kind], ids)[-3:].astype(int).tolist() == expected
    for kind in ("char", "bpe", "unigram"):
        tokenizer = kinds[kind]
        ids = tokenizer.encode("a☃a ☃ a")
        assert tokenizer.vocabulary.unk in ids
        assert starts_of(tokenizer, ids).sum() == 3, kind


def test_bert_parts_words_by_its_own_rule(kinds: dict[str, Tokenizer]) -> None:
    """What a token without ## says is that it was parted: no id tells whether by a blank."""
    tokenizer = kinds["wordpiece"]
    for text in ("snake_case", "snake _ case"):
        ids = tokenizer.encode(text)
        starts = starts_of(tokenizer, ids)
        assert starts.sum() == 3
        assert starts.tolist() == [not tokenizer.token(i).startswith("##") for i in ids]


def test_metaspace_and_end_of_word_of_foreign_files() -> None:
    vocab = ["<unk>", "▁the", "▁", "c", "at", "▁▁", ",", "北", "s", "▁5."]
    library = tokenizers.Tokenizer(models.Unigram([(p, -1.0) for p in vocab], 0))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer = Tokenizer(library.to_str())
    ids = [vocab.index(p) for p in ("▁the", "▁", "c", "at", ",", "▁▁", "c", "▁", "北", "北", "▁5.", "s")]
    assert starts_of(tokenizer, np.array(ids)).astype(int).tolist() == [1, 1, 0, 0, 1, 1, 0, 1, 0, 1, 1, 1]
    gpt = tokenizers.Tokenizer(models.BPE({"ca": 0, "t</w>": 1, ",</w>": 2, ",": 3}, [], end_of_word_suffix="</w>"))
    tokenizer = Tokenizer(gpt.to_str())
    assert starts_of(tokenizer, np.array([0, 1, 0, 1, 2, 0, 3, 0, 1])).astype(int).tolist() == [
        1,
        0,
        1,
        0,
        1,
        1,
        1,
        1,
        0,
    ]


# ---------------------------------------------------------------- rows, parts of characters, speed of thought


def slow(words: WordStarts, parts: list[Part], tokens: list[int]) -> list[bool]:
    """One text by the definition on its bytes; a byte of no character is a character by itself."""
    raw = b"".join(b"\x01" if parts[t].control else parts[t].content for t in tokens)
    points: list[str] = []
    at: list[int] = []
    i = 0
    while i < len(raw):
        size = next((k for k in (1, 2, 3, 4) if _whole(raw[i : i + k], k)), 0)
        points.append(raw[i : i + size].decode() if size else "\ufffd")
        at.append(i)
        i += size or 1
    ends = np.cumsum([len(b"\x01" if parts[t].control else parts[t].content) for t in tokens])
    found = {int(np.searchsorted(ends, at[begin], "right")) for begin, _ in words_of("".join(points))}
    return [k in found or k == 0 or parts[t].control for k, t in enumerate(tokens)]


def _whole(raw: bytes, size: int) -> bool:
    try:
        return len(raw) == size and len(raw.decode()) == 1
    except UnicodeDecodeError:
        return False


def test_random_ids_with_parts_of_characters_in_rows_of_any_length() -> None:
    """Rows of random tokens, most of them broken pieces of UTF-8, against the slow reference row by row."""
    pieces = [b" ", b"  ", b"a", b" a", b"b_1", b",", b" ,", b"\n", b" \n", b"\t ", b"a b", "é".encode(), "北".encode()]
    pieces += [
        b"\xe5",
        b"\x8c\x97",
        b"\xe5\x8c",
        b"\x97",
        b"\x97a",
        b" \xe5",
        b"\n\xe5",
        b"\xf0\x9f",
        b"\x98\x80",
        b"\xff",
    ]
    pieces += [b"\x8c", b"\xc3", b"\xa9", b"\xa9 \xc3", b"\xe3\x81", b"\x80", b"\xed\xa0\x80", b"\xc0\x80"]
    parts = [Part(p) for p in pieces] + [Part(b"", control=True)]
    words = WordStarts.of(parts)
    draw = random.Random(0)
    for _ in range(400):
        weights = draw.choice([None, [9] * 13 + [1] * (len(parts) - 13)])
        rows = [draw.choices(range(len(parts)), weights, k=draw.randrange(0, 12)) for _ in range(draw.randrange(1, 6))]
        start = np.concatenate([[0], np.cumsum([len(r) for r in rows])])
        found = words(np.array([t for row in rows for t in row], np.int32), start).tolist()
        expected = [flag for row in rows for flag in slow(words, parts, row)]
        assert found == expected, rows


def test_decode_agrees_with_python_on_well_formed_text() -> None:
    text = "".join(SAMPLES.values())
    points, at = decode(np.frombuffer(text.encode(), np.uint8))
    assert "".join(map(chr, points)) == text
    assert at.tolist() == [len(text[:k].encode()) for k in range(len(text))]


def test_rows_do_not_see_each_other_and_copies_agree(kinds: dict[str, Tokenizer]) -> None:
    for kind, tokenizer in kinds.items():
        rows = tokenizer.encode_batch([*SAMPLES.values(), "", "a", " ", "  "])
        start = np.concatenate([[0], np.cumsum([len(r) for r in rows])])
        together = pickle.loads(pickle.dumps(tokenizer.words))(np.concatenate(rows), start)
        alone = [starts_of(tokenizer, r) for r in rows]
        assert together.tolist() == np.concatenate(alone).tolist(), kind
    assert starts_of(kinds["bbpe"], np.zeros(0, np.int32)).tolist() == []


def test_a_segmentation_given_with_the_corpus_wins() -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(type="byte", sentinels=0), [])
    text = "我们去北京"
    aligned = tokenizer.encode_aligned([text])[0]
    starts = starts_from_characters(aligned.begin, aligned.end, np.array([0, 2, 3]))
    assert np.flatnonzero(starts).tolist() == [0, 6, 9]
    assert starts_from_characters(np.zeros(0, np.int64), np.zeros(0, np.int64), np.array([0])).tolist() == []


# ---------------------------------------------------------------- real vocabularies


@pytest.mark.shared
def test_real_vocabularies_on_real_text(shared_data: Path) -> None:
    texts = []
    for name in ("enwiki2015/dev.jsonl.gz", "zhwiki/dev.jsonl.gz"):
        with gzip.open(shared_data / name, "rt", encoding="utf-8") as file:
            texts += [json.loads(line)["text"][:2000] for _, line in zip(range(4), file, strict=False)]
    gpt2 = Tokenizer.load(shared_data / "tokenizers/gpt2")
    llama = from_llama2c(shared_data / "stories260k/tok512.bin")
    for text in texts:
        for tokenizer in (gpt2, llama):
            aligned = tokenizer.encode_aligned([text])[0]
            begins = np.flatnonzero(starts_with_blanks(codes(text)))
            expected = starts_from_characters(aligned.begin, aligned.end, begins)
            if tokenizer is llama and text[0] != " ":  # its first token is the blank put in front
                expected[1] = len(aligned.ids) > 1 and aligned.end[0] == 0 and not word_starts(codes(text))[0]
            assert starts_of(tokenizer, aligned.ids).tolist() == expected.tolist()
    for folder in ("bert-base-cased", "bert-base-chinese"):
        bert = Tokenizer.load(shared_data / "tokenizers" / folder)
        for ids in bert.encode_batch(texts):
            piece = np.array([not bert.token(i).startswith("##") for i in ids])
            assert (starts_of(bert, ids) >= piece).all()
