"""What tests of scores share: every plan of every model, words by hand, and a unigram tokenizer."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache

import tokenizers as library

from unmask.evaluation.plans import plans_of
from unmask.lm import LM
from unmask.tokens.tokenizer import Tokenizer

from .helpers import OBJECTIVES, model_of, tokenizer

CASES = [(name, plan) for name, objective in OBJECTIVES.items() for plan in plans_of(objective) if plan != "bound"]
"""A bound is estimated from draws: test_bound.py is about it."""


def word_starts(text: str) -> list[bool]:
    """Of each byte of an ASCII text, whether a word starts there: a regular expression says it once more."""
    found = {m.start() for m in re.finditer(r" ?(?:\w+|[^\w\s])|\s+", text)}
    return [i in found for i in range(len(text))]


def words_in(text: str) -> int:
    """Words of an ASCII text, white space left out."""
    return len(re.findall(r"\w+|[^\w\s]", text))


def without_start(lm: LM) -> LM:
    """The same model, whose tokenizer has no start token."""
    return replace(lm, words=replace(lm.vocabulary, bos=None))


@cache
def _accentless() -> Tokenizer:
    spec = tokenizer("wordpiece").spec
    return Tokenizer(json.dumps({**spec, "normalizer": {"type": "StripAccents"}}))


def accentless(lm: LM) -> LM:
    """A model of words whose tokenizer drops accents, as BERT's does: a lone one (U+0301) has no token."""
    return replace(lm, tokenizer=_accentless())


@cache
def unigram() -> Tokenizer:
    """A metaspace unigram model with our control tokens."""
    pieces = ["[PAD]", "[UNK]", "[BOS]", "[EOS]", "▁the", "▁cat", "▁sat", "▁on", "▁mat", "▁a", "▁dog", "▁", "▁ca", "ts"]
    scores = [0.0, -9, 0, 0, -2, -2.5, -3, -3, -3.5, -3, -3, -4, -5, -5] + [-6.0] * 26
    vocab = list(zip([*pieces, *"abcdefghijklmnopqrstuvwxyz"], scores, strict=True))
    made = library.Tokenizer(library.models.Unigram(vocab, unk_id=1))
    made.pre_tokenizer = library.pre_tokenizers.Metaspace(prepend_scheme="first")
    made.decoder = library.decoders.Metaspace(prepend_scheme="first")
    made.add_special_tokens(pieces[:4])
    return Tokenizer(made.to_str())


def tokenized(kind: str) -> LM:
    """A causal model over a tokenizer of some kind."""
    if kind != "unigram":
        return model_of("causal", kind)
    words = unigram()
    return replace(model_of("causal", vocab_size=words.vocabulary.size), tokenizer=words)
