"""Looked up or not, cut or whole: the ids are those of the library for the whole text."""

from __future__ import annotations

import gzip
import json
import random
import re
import string
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers

from unmask.config import TokenizerConfig
from unmask.tokens import encode, memo
from unmask.tokens.cuts import BLANK, LINE, MARKED, ODD, WHITE, Cuts, classes, points_of
from unmask.tokens.runs import bpe_pieces, placed_by_library, spanned
from unmask.tokens.tokenizer import Tokenizer

CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NASTY = [
    *" " * 12,
    *" \t\n\r\x0b\x0c\x1c\x85\u00a0\u1680\u2003\u2028\u3000\u200b\ufeff\u200d\u00ad\x00\x7f",
    *"\u0600\u06dd\u0301\u0308´¨ﷺﱞ½①ﬁ▁_\ufffdéÅß文中。，あ한글가ᄀЖпр😀👩❤\ufe0f\u0e31ก",
    *'1234567890.,!?-()/#"abcABCthexyz',
    *("the", "cat", "'s", "'re", "'ll", "'d", "  ", "   ", " \n", "▁▁", "can't", "1999"),
]
SOUP = ["  ", "   ", " \n", "\n\n", "\n    ", "\t", "the ", "a", "b ", " 12", "12 ", ", ", "  x", "é", "。", "É "]


def soup(pieces: int, seed: int) -> str:
    draw = random.Random(seed)
    return "".join(draw.choice(SOUP) for _ in range(pieces))


CORPUS = [soup(300, k) for k in range(60)] + ["The cat's hat can't: the end 1999, naïve café."] * 30


def library(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """The library itself, on whole texts."""
    whole = tokenizers.Tokenizer.from_str(json.dumps(tokenizer.spec))
    whole.encode_special_tokens = True
    return whole


def changed(tokenizer: Tokenizer, change: Callable[[dict[str, Any]], None]) -> Tokenizer:
    spec = json.loads(json.dumps(tokenizer.spec))
    change(spec)
    return Tokenizer(json.dumps(spec))


def sentencepiece_like(scheme: str, split: bool, steps: list[Any]) -> Tokenizer:
    """BPE over ▁, whose runs are pieces where nothing parts words."""
    learner = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    marks = pre_tokenizers.Metaspace(prepend_scheme="never", split=split)
    runs = pre_tokenizers.Split(Regex("▁+[^▁]*"), "isolated")
    learner.pre_tokenizer = marks if split else pre_tokenizers.Sequence([marks, runs])
    learner.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"]))
    learnt = json.loads(learner.to_str())
    whole = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    whole.normalizer = normalizers.Sequence(steps)
    whole.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
    spec = json.loads(whole.to_str())
    spec["model"] |= {key: learnt["model"][key] for key in ("vocab", "merges")}
    spec["added_tokens"] = learnt["added_tokens"]
    return Tokenizer(json.dumps(spec))


def variants() -> Iterator[tuple[str, Tokenizer]]:
    """Every family of `cuts`, own and foreign."""
    for kind, more in (
        ("bbpe", {}),
        ("bbpe", {"digits": "split"}),
        ("bbpe", {"split": "whitespace", "normalization": "nfkc"}),
        ("bpe", {}),
        ("bpe", {"split": "gpt2", "normalization": "nfkc"}),
        ("bpe", {"end_of_word": "</w>", "digits": "split"}),
        ("unigram", {"normalization": "nfkc"}),
        ("unigram", {"split": "gpt2"}),
        ("wordpiece", {"lowercase": True, "normalization": "nfkc"}),
        ("word", {}),
        ("word", {"split": "whitespace"}),
    ):
        yield f"{kind} {more}", Tokenizer.train(TokenizerConfig(type=kind, vocab_size=700, sentinels=2, **more), CORPUS)
    own = Tokenizer.train(TokenizerConfig(vocab_size=700, sentinels=2), CORPUS)
    yield "prefix", changed(own, lambda s: s["pre_tokenizer"].update(add_prefix_space=True))
    split = {"type": "Split", "pattern": {"Regex": CL100K}, "behavior": "Isolated", "invert": False}
    by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    yield "cl100k", changed(own, lambda s: s.update(pre_tokenizer=sequence(split, by_bytes)))
    mark, double = normalizers.Replace(" ", "▁"), normalizers.Replace(Regex(r"\A▁"), "▁▁")
    strips = [normalizers.Replace(Regex(r"\A +|[ ▁]+\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    for parts in (True, False):
        yield f"first {parts}", sentencepiece_like("first", parts, [])
        yield f"never {parts}", sentencepiece_like("never", parts, [mark])
        yield f"double {parts}", sentencepiece_like("always", parts, [mark, double])
        yield f"strips {parts}", sentencepiece_like("always", parts, [*strips, mark, double])
        yield f"strips nfkc {parts}", sentencepiece_like("always", parts, [normalizers.NFKC(), *strips, mark, double])
        yield f"prepend {parts}", sentencepiece_like("never", parts, [normalizers.Prepend("▁"), mark])


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


@pytest.fixture(scope="module")
def all_kinds() -> dict[str, Tokenizer]:
    return dict(variants())


def nasty(draw: random.Random) -> str:
    joint = draw.choice(["", "", " "])
    parts = ("".join(draw.choice(NASTY) for _ in range(draw.randrange(4))) for _ in range(draw.randrange(1, 25)))
    return joint.join(parts)


# ---------------------------------------------------------------- chunks


def test_looked_up_equals_the_library_on_whole_texts(
    all_kinds: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nasty white space, blanks of all sorts, mixed scripts; many texts at once and long ones in small windows."""
    draw = random.Random(0)
    batches = [[nasty(draw) for _ in range(5)] for _ in range(50)] + [["".join(nasty(draw) for _ in range(5))] * 2] * 2
    for window in (1 << 20, 40):
        monkeypatch.setattr(encode, "WINDOW", window)
        for name, tokenizer in all_kinds.items():
            whole = library(tokenizer)
            assert tokenizer._encoder.cuts is not None, name
            for texts in batches:
                for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
                    assert ids.dtype == np.int32
                    assert ids.tolist() == whole.encode(text, add_special_tokens=False).ids, (name, text)


def test_the_test_above_would_see_a_wrong_cut(all_kinds: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    """With every blank as a cut, the families that look at neighbours fail."""

    def every_blank(self: Cuts, points: np.ndarray) -> np.ndarray:
        return (points == ord(" ")) | (np.arange(len(points)) == 0)

    monkeypatch.setattr(Cuts, "mask", every_blank)
    draw = random.Random(0)
    texts = [nasty(draw) for _ in range(300)]
    failed = set()
    for name, tokenizer in all_kinds.items():
        blind, whole = Tokenizer(json.dumps(tokenizer.spec)), library(tokenizer)
        if any(a.tolist() != whole.encode(t).ids for a, t in zip(blind.encode_batch(texts), texts, strict=True)):
            failed.add(name)
    assert failed >= {"bbpe {}", "prefix", "cl100k", "never False", "first False", "strips nfkc False"}


def test_what_the_memo_holds_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A memo that overflows all the time, and chunks that are too long for it."""
    monkeypatch.setattr(memo, "ENTRIES", 50)
    monkeypatch.setattr(memo, "LONGEST", 6)
    monkeypatch.setattr(encode, "WINDOW", 300)
    draw = random.Random(1)
    words = ["".join(draw.choice(string.ascii_lowercase) for _ in range(draw.randrange(1, 10))) for _ in range(400)]
    for kind in ("bbpe", "unigram"):
        tokenizer = Tokenizer.train(TokenizerConfig(type=kind, vocab_size=600, sentinels=0), [" ".join(words)] * 3)
        whole = library(tokenizer)
        for _ in range(30):
            text = " ".join(draw.choices(words[: draw.randrange(20, 400)], k=200))
            assert tokenizer.encode(text).tolist() == whole.encode(text).ids
        held = tokenizer._encoder.memo
        assert held.length[: held.count].max() == 6 and 0 < held.count <= 50 + 300


def test_chunks_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash is a hint: where all chunks have the same one, or few differ, ids stay what they are."""
    plain = memo.Memo._hash
    for bits in (0, 1, 7):
        monkeypatch.setattr(memo.Memo, "_hash", lambda *a, bits=bits: plain(*a) & np.uint64(bits))
        tokenizer = Tokenizer.train(TokenizerConfig(vocab_size=600, sentinels=0), CORPUS)
        for seed in range(5):
            text = soup(300, seed)
            assert tokenizer.encode(text).tolist() == library(tokenizer).encode(text).ids


def test_a_thread_that_finds_the_memo_busy_goes_without(all_kinds: dict[str, Tokenizer]) -> None:
    for tokenizer in all_kinds.values():
        text = soup(200, 9)
        expected = tokenizer.encode(text).tolist()
        with tokenizer._encoder.lock:
            assert tokenizer.encode(text).tolist() == expected


def test_an_interrupted_window_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(vocab_size=600, sentinels=0), CORPUS)
    text = soup(500, 4)
    expected = tokenizer.encode(text).tolist()
    broken = Tokenizer(json.dumps(tokenizer.spec))

    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(broken._encoder.memo, "encode", stop)
        broken.encode(text)
    assert broken.encode(text).tolist() == expected


def test_no_ordinary_character_becomes_a_blank() -> None:
    """What may stand before a chunk ends in no white space under any normaliser that knows more of it."""
    unusual = np.flatnonzero(~np.isin(classes(), [ODD, BLANK, LINE, WHITE, MARKED])).tolist()
    for norm in (normalizers.NFKC(), normalizers.NFKD(), normalizers.Nmt()):
        for code in unusual:
            if not 0x3400 <= code < 0xD7A4 and code < 0x20000:  # not the many Han and Hangul ones
                assert not norm.normalize_str(chr(code))[-1:].isspace(), (hex(code), norm)


def test_files_without_known_cuts_are_encoded_whole() -> None:
    """Pieces that reach over a blank, and added tokens with blanks in them."""
    model = models.BPE({"<unk>": 0, "▁": 1, "a": 2, "b": 3, "a▁": 4, "a▁b": 5}, [("a", "▁"), ("a▁", "b")])
    over = tokenizers.Tokenizer(model)
    over.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    tokenizer = Tokenizer(over.to_str())
    assert tokenizer._encoder.cuts is None and tokenizer.encode("a b a b").tolist() == [5, 1, 5]
    own = Tokenizer.train(TokenizerConfig(vocab_size=600, sentinels=0), CORPUS)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    spaced = changed(own, lambda s: s["added_tokens"].append({"id": 600, "content": "    ", **flags}))
    assert spaced._encoder.cuts is None
    assert spaced.encode("a    b     c").tolist() == library(spaced).encode("a    b     c").ids
    plain = changed(own, lambda s: s["added_tokens"].append({"id": 600, "content": "<go>", **flags}))
    cuts = plain._encoder.cuts
    assert cuts is not None and np.flatnonzero(cuts.mask(points_of("a b<go>c <go>"))).tolist() == [0, 1, 8]
    assert plain.encode("a b<go>c <go> d").tolist() == library(plain).encode("a b<go>c <go> d").ids


# ---------------------------------------------------------------- runs without blanks


def runs_of(n: int) -> dict[str, str]:
    draw = random.Random(0)
    han = [chr(c) for c in range(0x4E00, 0x9FA5, 7)]
    return {
        "one letter": "x" * n,
        "letters": "".join(draw.choices(string.ascii_lowercase, k=n)),
        "DNA": "".join(draw.choices("ACGT", k=n)),
        "Han": "".join(draw.choices(han, k=n)),
        "syllables": "".join(draw.choices(["the", "cat", "real", "ing", "ly", "s"], k=n // 3)),
        "base64": "".join(draw.choices(string.ascii_letters + string.digits + "+/", k=n)),
        "digits": "".join(draw.choices(string.digits, k=n)),
        "mixed": "".join(draw.choices(["the", "北京", "。", ",", "'s", "'ll", "Привет", "\n", "1999", "()"], k=n // 3)),
    }


def test_long_runs_are_cut_without_changing_an_id(
    all_kinds: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "PIECE", 400)
    learnt = [text for run, text in runs_of(3000).items() if run != "one letter"]
    by_letters = Tokenizer.train(TokenizerConfig(vocab_size=900, sentinels=0), learnt)
    pieces = Tokenizer.train(TokenizerConfig(type="unigram", vocab_size=2500, sentinels=0), learnt)
    kinds = {**all_kinds, "letters": by_letters, "unigram letters": pieces}
    cut: set[tuple[str, str]] = set()
    for name, tokenizer in kinds.items():
        whole = library(tokenizer)
        for run, text in runs_of(6000).items():
            text = f"a {text} b"
            assert tokenizer.encode(text).tolist() == whole.encode(text).ids, (name, run)
            parts = [(a, b) for a, b, _ in tokenizer._encoder.parts(text)]
            assert [a for a, _ in parts] == [0, *(b for _, b in parts[:-1])] and parts[-1][1] == len(text)
            if len(parts) > 4:
                cut.add((name, run))
    for run in ("one letter", "letters", "DNA", "Han", "syllables", "mixed"):
        assert ("letters", run) in cut, run
    assert {("never False", "one letter"), ("unigram letters", "mixed"), ("bpe {}", "mixed")} <= cut


def test_a_wrong_cut_between_letters_is_seen() -> None:
    """abab|ab… may be cut between its pairs, and where a merge would join the sides it may not."""
    model = models.BPE({"a": 0, "b": 1, "ab": 2, "abab": 3}, [("a", "b"), ("ab", "ab")])
    library_ = tokenizers.Tokenizer(model)
    text = "ab" * 1001
    pieces = bpe_pieces(text, lambda t: placed_by_library(t, library_), lambda t: placed_by_library(t, library_), 100)
    assert len(pieces) > 10 and all(end % 4 == 0 for end, _ in pieces[:-1])
    assert np.concatenate([ids for _, ids in pieces]).tolist() == library_.encode(text).ids
    known = {"a", "b", "ab", "abab"}
    unigram = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), *((p, -1.0) for p in sorted(known))], 0))
    assert spanned("abba", 1, known, 4, unigram) and not spanned("abba", 2, known, 4, unigram)
    assert spanned("a☃☃a", 2, known, 4, unigram)  # two unknown characters become one token


def resident() -> float:
    """MB of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def test_d11_strings_without_spaces() -> None:
    """Memory stays flat over distinct strings without a space, and time grows about like their length."""
    tokenizer = Tokenizer.train(TokenizerConfig(vocab_size=1000, sentinels=0), [*runs_of(3000).values()])

    def distinct(n: int, seed: int) -> str:
        return np.random.default_rng(seed).integers(97, 123, n, np.uint8).tobytes().decode()

    def seconds(n: int) -> float:
        begun = time.process_time()
        for k in range(300_000 // n):
            tokenizer.encode(distinct(n, k))
        return time.process_time() - begun

    seconds(100_000)
    warm = resident()
    short, long = seconds(10_000), seconds(300_000)
    for k in range(20):
        tokenizer.encode(distinct(100_000, 100 + k))
    assert resident() - warm < 50
    assert long < 4 * short + 0.1  # both encode 300,000 characters


# ---------------------------------------------------------------- real text


@pytest.mark.shared
def test_real_text_is_encoded_as_by_the_library(shared_data: Path) -> None:
    texts = []
    for name in ("enwiki2015/dev.jsonl.gz", "zhwiki/dev.jsonl.gz"):
        with gzip.open(shared_data / name, "rt", encoding="utf-8") as file:
            texts += [json.loads(line)["text"] for _, line in zip(range(6), file, strict=False)]
    texts.append("\n".join(texts))
    texts.append(re.sub(r"\s", "", texts[-1])[:140_000])
    for folder in ("bert-base-uncased", "bert-base-chinese", "gpt2", "t5"):
        tokenizer = Tokenizer.load(shared_data / "tokenizers" / folder)
        whole = tokenizer._encoder.outer
        for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
            assert ids.tolist() == whole.encode(text, add_special_tokens=False).ids
