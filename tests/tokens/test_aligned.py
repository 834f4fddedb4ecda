"""Which characters each token covers: for every type, against the library's offsets and against the text itself."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import tokenizers

from unmask.config import TokenizerConfig
from unmask.tokens import encode
from unmask.tokens.aligned import Aligned
from unmask.tokens.tokenizer import Tokenizer

TEXTS = [
    "The cat's  hat, naïve café — 12 3.14!\n\n\tIndented ",
    "北京 去 😀👍🏽 e\u0301 Привет שלום \u00a0x",
    " a [MASK] b </s> ▁c",
    "",
    " ",
]
KINDS = (
    ("bbpe", {}),
    ("bbpe", {"digits": "split"}),
    ("bbpe", {"normalization": "nfkc"}),
    ("bpe", {}),
    ("bpe", {"end_of_word": "</w>"}),
    ("unigram", {}),
    ("unigram", {"normalization": "nfkc", "lowercase": True}),
    ("wordpiece", {}),
    ("wordpiece", {"lowercase": True}),
    ("word", {}),
    ("char", {}),
    ("char", {"normalization": "nfc"}),
    ("byte", {}),
)


def made(kind: str, more: dict[str, object]) -> Tokenizer:
    return Tokenizer.train(TokenizerConfig(type=kind, vocab_size=500, sentinels=2, **more), TEXTS * 20)


@pytest.fixture(scope="module")
def kinds() -> dict[str, Tokenizer]:
    return {f"{kind} {more}": made(kind, more) for kind, more in KINDS}


def spans(aligned: Aligned) -> list[tuple[int, int]]:
    return list(zip(aligned.begin.tolist(), aligned.end.tolist(), strict=True))


def test_ids_and_offsets_are_the_library_s(kinds: dict[str, Tokenizer]) -> None:
    for name, tokenizer in kinds.items():
        library = tokenizers.Tokenizer.from_str(json.dumps(tokenizer.spec))
        library.encode_special_tokens = True
        for text, ids, aligned in zip(
            TEXTS, tokenizer.encode_batch(TEXTS), tokenizer.encode_aligned(TEXTS), strict=True
        ):
            theirs = library.encode(text, add_special_tokens=False)
            assert aligned.ids.tolist() == ids.tolist() == theirs.ids, name
            assert (aligned.ids.dtype, aligned.begin.dtype, aligned.end.dtype) == (np.int32, np.int64, np.int64)
            assert spans(aligned) == theirs.offsets, (name, text)


def test_every_visible_character_is_covered_by_its_token(kinds: dict[str, Tokenizer]) -> None:
    """Tokens in order; a known token covers the characters it is written with."""
    for name, tokenizer in kinds.items():
        for text, aligned in zip(TEXTS, tokenizer.encode_aligned(TEXTS), strict=True):
            assert (np.diff(aligned.begin) >= 0).all() and (aligned.end >= aligned.begin).all()
            covered = np.zeros(len(text) + 1, bool)
            for a, b in spans(aligned):
                covered[a:b] = True
            # Normalised, a mark may have become part of the character before it, or was dropped.
            joined = {"\u0301"} if "norm" in name or "lower" in name else set()
            assert all(covered[k] for k, c in enumerate(text) if not c.isspace() and c not in joined), name


def test_parts_of_a_character_cover_it() -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(type="byte", sentinels=0), [])
    assert spans(tokenizer.encode_aligned(["aé😀"])[0]) == [(0, 1), (1, 2), (1, 2), (2, 3), (2, 3), (2, 3), (2, 3)]


def test_positions_are_those_of_the_text_as_it_was_given() -> None:
    """Surrogate pairs are joined for encoding, alone they are replaced: positions count what was given."""
    tokenizer = Tokenizer.train(TokenizerConfig(type="char", sentinels=0), ["a😀b\ufffd"])
    text = "a\ud83d\ude00b\ud800b\ude00"
    aligned = tokenizer.encode_aligned([text])[0]
    assert [tokenizer.token(i) for i in aligned.ids] == ["a", "😀", "b", "\ufffd", "b", "\ufffd"]
    assert spans(aligned) == [(0, 1), (1, 3), (3, 4), (4, 5), (5, 6), (6, 7)]


def test_a_blank_put_in_front_covers_nothing() -> None:
    spec = json.loads(json.dumps(made("bpe", {}).spec))
    spec["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    tokenizer = Tokenizer(json.dumps(spec))
    aligned = tokenizer.encode_aligned(["北京 去"])[0]
    assert tokenizer.token(aligned.ids[0]) == " " and spans(aligned)[0] == (0, 0)
    assert spans(aligned)[1][0] == 0 and aligned.end[-1] == 4


def test_long_texts_are_aligned_as_short_ones(kinds: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut into pieces of some 50 characters, everything stays where it was."""
    from unmask.tokens import cuts

    draw = random.Random(0)
    words = ["The", "cat's", "hat,", "naïve", "北京", "😀", "e\u0301x", "12", "3.14", "\u00a0", "(a)", ""]
    text = " ".join(draw.choice(words) for _ in range(300))
    strips = json.loads(json.dumps(kinds["unigram {}"].spec))
    strips["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Replace", "pattern": {"Regex": r"\A +|[ ▁]+\z"}, "content": ""},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        ],
    }
    strips["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    several = {**kinds, "strips": Tokenizer(json.dumps(strips))}
    whole = {name: tokenizer.encode_aligned([text])[0] for name, tokenizer in several.items()}
    monkeypatch.setattr(cuts, "PIECE", 50)
    monkeypatch.setattr(encode, "PIECE", 50)
    for name, tokenizer in several.items():
        cut = tokenizer.encode_aligned([text])[0]
        assert cut.ids.tolist() == whole[name].ids.tolist() and spans(cut) == spans(whole[name]), name
        parts = list(tokenizer._encoder.parts(text))
        assert len(parts) > 10 or tokenizer._encoder.cuts is None
