"""Where words start in a document whose source says so: text that is segmented by blanks, or jieba's words."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from unmask.errors import UserError
from unmask.text.characters import between_east_asian, codes, run_starts, word_starts
from unmask.text.document import Document, without

_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WITH_HAN = re.compile(f"[A-Za-z0-9]*[{_HAN}][{_HAN}A-Za-z0-9]*")
"""What jieba is asked about: T恤 and AA制 are in its dictionary."""


def by_blanks(document: Document) -> Document:
    """The document without the blanks that part Chinese or Japanese characters, and with the words they part.

    Its target loses such blanks too.

    >>> d = by_blanks(Document("我们 喜欢 NLP 。", ""))
    >>> d.text, d.words.tolist()
    ('我们喜欢 NLP 。', [0, 2, 5, 9])
    """
    points = codes(document.text)
    words = np.flatnonzero(run_starts(points)).astype(np.int64)
    target = document.target
    if target is not None:
        target = without(Document(target, ""), between_east_asian(codes(target))).text
    return without(replace(document, words=words, target=target), between_east_asian(points))


def by_jieba(document: Document) -> Document:
    """The document with the words that jieba finds in its Han characters, and those of the rule elsewhere."""
    starts = word_starts(codes(document.text))
    for block in _WITH_HAN.finditer(document.text):
        at = block.start()
        starts[at + 1 : block.end()] = False
        for word in _jieba().cut(block[0]):
            starts[at] |= at > block.start()
            at += len(word)
    return replace(document, words=np.flatnonzero(starts).astype(np.int64))


def check(words: Literal["rule", "blanks", "jieba"]) -> None:
    """Fail before text is read where the library is missing."""
    if words == "jieba":
        _jieba()


@lru_cache(maxsize=1)
def _jieba() -> Any:
    """The library's tokenizer with its own dictionary. Its `initialize` is not called: that logs, and it reads and
    writes a cache file in the folder for temporary files."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import jieba
    except ImportError as error:
        raise UserError("words=jieba needs the package jieba: pip install 'unmask[zh]'") from error
    tokenizer = jieba.Tokenizer()
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    return tokenizer
