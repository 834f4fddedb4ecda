"""Tokenizers of the small world, by its closed vocabulary: nothing is learnt, so a world's ids are known beforehand.

Both are ordinary tokenizer.json files (`Tokenizer.save`, then `tokenizer.file=`). What the text of a world does not
hold is [UNK] as a word, and left out as a character.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from unmask.tokens.pieces import CHAR_PATTERN
from unmask.tokens.special import ROLES, sentinel
from unmask.tokens.tokenizer import Tokenizer

CONTROLS = ("pad", "unk", "mask", "bos", "eos")
"""[BOS] and [EOS] also play [CLS] and [SEP] (`special.FALLBACK`), which leaves room for sentinels."""
SENTINELS = 7
"""With the controls 12. Span corruption of 15 % of 32 tokens needs 6: at most 5 spans, and one that closes. (UL2's
half of 32 tokens needs 8, and its modes are `extra`.)"""
LINE_END = "<|endoftext|>"
"""The control token that is a line end: it opens and closes a text."""


def word_tokenizer(words: Sequence[str], sentinels: int = SENTINELS, extra: Sequence[str] = ()) -> Tokenizer:
    """Control tokens, words and marks, the line end, sentinels, and what is given in `extra`, in this order.

    Words, numbers, marks and line ends are tokens; blanks are not, and decoding puts them where the world has them.
    """
    names = [ROLES[role] for role in CONTROLS]
    marks = [*(sentinel(k) for k in range(sentinels)), *extra]
    library = Library(models.WordLevel({w: i for i, w in enumerate([*names, *words, "\n", *marks])}, ROLES["unk"]))
    library.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in [*names, *marks]])
    library.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+|[^\w\s]|\n"), "removed", invert=True)
    # Blanks between all tokens, one string, then no blank before a mark or around a line end or inside a sum.
    no_blank = Regex(r" (?=[.,:?+=\n])|(?<=[+=\n]) ")
    library.decoder = decoders.Sequence(
        [decoders.WordPiece(prefix="##", cleanup=False), decoders.Fuse(), decoders.Replace(no_blank, "")]
    )
    return Tokenizer(library.to_str())


def character_tokenizer(symbols: Sequence[str]) -> Tokenizer:
    """The line end as control token, then the other symbols; for corpora whose documents are lines.

    No entry is spent on an unknown symbol, a mask or padding: a model that writes one character after another needs
    none (109,056 parameters with 44 entries).
    """
    library = Library(models.BPE({s: i for i, s in enumerate([LINE_END, *(s for s in symbols if s != "\n")])}, []))
    library.add_special_tokens([AddedToken(LINE_END, special=True, normalized=False)])
    library.pre_tokenizer = pre_tokenizers.Split(Regex(CHAR_PATTERN), "isolated")
    library.decoder = decoders.Fuse()
    return Tokenizer(library.to_str())
