"""More tokens for a tokenizer, and the rows of one vocabulary in another."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from unmask.config import TokenizerConfig
from unmask.errors import UserError
from unmask.tokens.grow import missing, rows_of, with_tokens
from unmask.tokens.structure import tokens_of
from unmask.tokens.tokenizer import Tokenizer

TEXTS = ["the cat sat on the mat, and the other cats sat there too", "no other mat was there for the cat"] * 40
KINDS = ["bbpe", "bpe", "wordpiece", "unigram", "char", "byte", "word"]


def trained(kind: str, size: int = 300) -> Tokenizer:
    return Tokenizer.train(TokenizerConfig(type=kind, vocab_size=size, sentinels=0), TEXTS)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_added_tokens_stand_behind_the_others_and_change_no_text(kind: str, tmp_path: Path) -> None:
    old = trained(kind)
    new = with_tokens(old, ["<new>", "zyzzyva"])
    size = old.vocabulary.size
    assert new.vocabulary.size == size + 2
    assert tokens_of(new.spec).items() - tokens_of(old.spec).items() == {("<new>", size), ("zyzzyva", size + 1)}
    assert all(np.array_equal(a, b) for a, b in zip(old.encode_batch(TEXTS), new.encode_batch(TEXTS), strict=True))
    assert size not in new.encode("a <new> b")  # a control token is none of a text's
    assert size in new.encode_with_specials("a <new> b")
    new.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert again.vocabulary.size == size + 2 and again.fingerprint == new.fingerprint
    if kind not in ("char", "byte"):  # these read a text letter by letter
        assert size + 1 in again.encode("the zyzzyva sat")


def test_roles_of_added_tokens_are_known() -> None:
    text = json.dumps(trained("bbpe").spec).replace("[MASK]", "[NONE]")
    old = Tokenizer(text)
    assert old.vocabulary.mask is None and missing(old, "mask") == "[MASK]"
    assert with_tokens(old, ["[MASK]"]).vocabulary.mask == old.vocabulary.size
    assert missing(Tokenizer(text.replace("[PAD]", "<pad>")), "mask") == "<mask>"


@pytest.mark.parametrize(
    ("tokens", "says"),
    [(["[MASK]"], "already holds it as id 3"), (["<a>", "<a>"], "given twice"), ([" "], "is empty")],
)
def test_tokens_that_cannot_be_added(tokens: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        with_tokens(trained("bbpe"), tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_is_itself(kind: str) -> None:
    tokenizer = trained(kind)
    rows = rows_of(tokenizer, tokenizer)
    assert rows == [[i] for i in range(tokenizer.vocabulary.size)]


def test_rows_are_equals_pieces_or_nothing() -> None:
    old, new = trained("bbpe", 280), trained("wordpiece", 120)
    rows = rows_of(old, new)
    ids = tokens_of(new.spec)
    for token in ("[CLS]", "[MASK]"):
        assert rows[ids[token]] == [tokens_of(old.spec)[token]]
    by_text = {old.part(i).content: i for i in range(old.vocabulary.size) if not old.vocabulary.is_special[i]}
    whole = [t for t in ids if b" " + t.encode() in by_text and not new.vocabulary.is_special[ids[t]]]
    assert len(whole) > 3
    assert all(rows[ids[t]] == [by_text[b" " + t.encode()]] for t in whole)
    cut = [i for i in ids.values() if len(rows[i]) > 1]
    assert cut and all(old.decode(rows[i]).encode() == new.part(i).content for i in cut)


def test_a_role_is_found_under_another_spelling_and_the_unknown_has_no_row() -> None:
    old = trained("bbpe")
    text = json.dumps(old.spec).replace("[MASK]", "<mask>").replace("[EOS]", "<odd>")
    new = Tokenizer(text)
    rows, ids = rows_of(old, new), tokens_of(new.spec)
    assert rows[ids["<mask>"]] == [old.vocabulary.mask] and rows[ids["<odd>"]] == []
    char = trained("char")
    foreign = with_tokens(char, ["Ж"])
    assert rows_of(char, foreign)[char.vocabulary.size] == []
