"""A tokenizer that was made for another text is told of before training."""

from __future__ import annotations

from pathlib import Path

import pytest

from unmask.config import CorpusConfig, TokenizerConfig
from unmask.data.misfit import misfits
from unmask.data.prepare import prepare
from unmask.tokens.tokenizer import Tokenizer

ENGLISH = [f"the {a} {b} of a small house by the sea" for a in ("old", "new", "red", "green") for b in ("door", "wall")]
GREEK = "το παλιό σπίτι δίπλα στη θάλασσα έχει μια κόκκινη πόρτα και έναν πράσινο τοίχο "


def told(tokenizer: Tokenizer | TokenizerConfig, text: str, place: Path) -> list[str]:
    (place / "text.txt").write_text("\n".join([text] * 120))
    corpus = CorpusConfig(path=str(place / "text.txt"))  # one document: held out is its end
    return misfits(prepare(corpus, None, tokenizer, place / "cache", lambda _: None))


def trained(kind: str, size: int) -> Tokenizer:
    words = [f"{line} {n * n} {chr(97 + n % 26)}{chr(97 + n % 7)}{n}" for n in range(400) for line in ENGLISH]
    return Tokenizer.train(TokenizerConfig(type=kind, vocab_size=size), words, lambda _: None)


def test_unknown_tokens(tmp_path: Path) -> None:
    (said,) = told(trained("wordpiece", 1500), GREEK * 4, tmp_path)
    assert said.startswith("WARNING: ")
    assert "% of the training tokens are unknown to the tokenizer (wordpiece, 1,5" in said


def test_a_vocabulary_that_does_no_better_than_bytes(tmp_path: Path) -> None:
    (said,) = told(trained("bbpe", 1500), GREEK * 4, tmp_path)
    assert "a token holds 1.0" in said and "the vocabulary (bbpe) has 1,500 entries" in said


@pytest.mark.parametrize("kind", ["byte", "char", "bbpe", "wordpiece"])
def test_what_fits_is_not_told_of(kind: str, tmp_path: Path) -> None:
    tokenizer = trained(kind, 1500) if kind in ("bbpe", "wordpiece") else TokenizerConfig(type=kind)
    assert told(tokenizer, " ".join(ENGLISH), tmp_path) == []


def test_little_text_says_little(tmp_path: Path) -> None:
    assert told(trained("wordpiece", 1500), "το σπίτι", tmp_path) == []
