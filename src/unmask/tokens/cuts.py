"""Where a text may be cut without changing an id, read off the structure of a tokenizer.json.

Whether a cut between two characters is harmless is told by their classes, in a table that depends on the family of the
tokenizer (`Cuts.of` answers None for files of no family, whose texts stay whole):

    drops    the pre-tokenizer drops white space first (BERT, words): no token reaches over it
    apart    it keeps every white-space character apart
    pattern  GPT-2's pattern or its kin: no match goes from another character into white space, nor from letters into
             digits or signs. Inside white space \\s+(?!\\S) looks ahead, so there is no cut behind white space
    marks    ▁ parts words (Metaspace): a cut before a blank, but for runs of blanks
    runs     nothing parts words, but no piece holds a ▁ behind another character, so none reaches over a blank (Llama)

A normaliser that knows other white space, or looks at grapheme clusters, may make a blank of what stands before a
blank, or join with it: then only a letter, digit, mark or ordinary sign may stand before a cut.

For texts without any such place, `soft_places` finds places in runs of letters, to be confirmed by `runs`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from unmask.tokens.pieces import GPT2_PATTERN, METASPACE_PATTERN, WORD_PATTERN
from unmask.tokens.structure import (
    COLLAPSE,
    DOUBLE,
    MARK,
    STRIPS,
    Spec,
    drops_white_space,
    marks_blanks,
    normalizers_of,
    pre_tokenizers_of,
    tokens_of,
    unknown_of,
    vocabulary_of,
)

Family = Literal["drops", "apart", "pattern", "marks", "runs"]
PIECE = 65_536
"""Characters handed to the library at once: its time and memory grow faster than the text beyond that."""
_HARMLESS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer", "Precompiled", "Nmt"}
_SPREADING = {"NFKC", "NFKD", "Precompiled", "Nmt"}
"""Normalisers that make blanks of other characters."""
_CL100K = {  # as in Llama 3; and Qwen 2
    rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for digits in ("{1,3}", "")
}
_PATTERNS = {GPT2_PATTERN, *_CL100K}
_AFTER_DROPPING = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Digits", "Punctuation", "ByteLevel", "Split"}
"""Steps that look at one word at a time."""

# ---------------------------------------------------------------- classes of characters

ODD, OTHER, LETTER, HAN, DIGIT, SIGN, QUOTE, BLANK, LINE, WHITE, MARKED = range(11)
"""Invisible or joining; visible, but of no class below; the rest only as far as every version of Unicode and every
normaliser agree on it: letters, Han letters, ASCII digits, signs, the apostrophe; U+0020, tabs and line ends, what
perhaps is white space too, ▁."""
_LETTERS = "A-Za-z\u0410-\u044f\u3041-\u3096\u30a1-\u30fa\uac00-\ud7a3"
_HAN = "\u4e00-\u9fa5"
_SIGNS = "!-&(-/:-@[-^`{-~\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f"
_IN_LETTERS = re.compile(f"(?<=[{_LETTERS}{_HAN}]{{3}})(?=[{_LETTERS}{_HAN}])")  # behind any contraction such as 'll
_PREPENDED = frozenset(  # letters that form one grapheme cluster with what follows (UAX 29, Prepend; the rest is Cf)
    map(chr, (0xD4E, 0x111C2, 0x111C3, 0x113D1, 0x1193F, 0x11941, *range(0x11A84, 0x11A8A), 0x11A3A, 0x11D46, 0x11F02))
)
_LAST = 0x40000
"""Beyond it there are no letters or signs."""


@lru_cache(maxsize=1)
def classes() -> np.ndarray:
    """(0x110000,) uint8 class of each code point."""
    table = np.full(0x110000, ODD, np.uint8)
    table[:_LAST] = [OTHER if unicodedata.category(chr(c))[0] in "LMNPS" else ODD for c in range(_LAST)]
    text = "".join(map(chr, range(0xD800)))
    for pattern, kind in ((f"[{_LETTERS}]", LETTER), ("[0-9]", DIGIT), (f"[{_SIGNS}]", SIGN), (f"[{_HAN}]", HAN)):
        table[[m.start() for m in re.finditer(pattern, text)]] = kind
    table[[c for c in range(0x3100) if chr(c).isspace()]] = WHITE
    for some, kind in (("'", QUOTE), (" ", BLANK), ("\t\n\r", LINE), (MARK, MARKED), ("\ufffd", ODD)):
        table[list(map(ord, some))] = kind  # sentencepiece's tables make a blank of U+FFFD
    for low, high in ((0xFF01, 0xFF1F), (0xAC00, 0xD7A3)):
        for c in range(low, high + 1):
            if re.match(f"[{_LETTERS}{_SIGNS}]", chr(c)):
                table[c] = LETTER if low == 0xAC00 else SIGN
    table[list(map(ord, _PREPENDED))] = ODD
    return table


def points_of(text: str) -> np.ndarray:
    """(n,) uint32 code points."""
    return np.frombuffer(text.encode("utf-32-le"), "<u4")


# ---------------------------------------------------------------- cuts


@dataclass(frozen=True, eq=False)
class Cuts:
    """How texts of one tokenizer may be cut."""

    family: Family
    between: np.ndarray
    """(121,) bool: may be cut between classes a and b, at 11a + b."""
    ahead: bool
    """A blank behind white space may be cut off before something visible."""
    inner: Spec
    """Encodes what begins with a blank inside a text."""
    bare: Spec
    """Encodes what begins otherwise inside a text: nothing is put in front."""
    soft: Literal["bpe", "unigram"] | None
    """How a cut between letters can be confirmed."""

    @staticmethod
    def of(spec: Spec) -> Cuts | None:
        """None: no cut is known to be harmless."""
        family = _family(spec)
        if family is None or any(not (t["special"] or _plain(t)) for t in spec["added_tokens"]):
            return None
        before, norms, model = pre_tokenizers_of(spec), normalizers_of(spec), spec["model"]
        bare = spec if family == "drops" or _bare(spec) == spec else _bare(spec)
        patterns = {p for part in before if (p := _pattern(part)) is not None}
        others = [p for p in before if p["type"] not in ("Metaspace", "ByteLevel", "Digits") and _pattern(p) is None]
        whole_words = model.get("end_of_word_suffix") or model.get("continuing_subword_prefix")
        soft: Literal["bpe", "unigram"] | None = None
        if family != "drops" and not others and not whole_words and patterns <= {*_PATTERNS, METASPACE_PATTERN, r"\s"}:
            soft = "bpe" if model["type"] == "BPE" else "unigram" if model["type"] == "Unigram" else None
        return Cuts(
            family=family,
            between=_between(family, spec, patterns).reshape(-1),
            ahead=family == "pattern" and len(before) == 1 and not norms and not patterns & _CL100K,
            inner=spec if _strips_left(norms) else bare,
            bare=bare,
            soft=soft,
        )

    def mask(self, points: np.ndarray) -> np.ndarray:
        """(n,) bool for code points (n,): a piece may begin here."""
        kind = classes()[points]
        may = np.ones(len(points), bool)
        may[1:] = self.between[kind[:-1] * np.uint8(11) + kind[1:]]
        if self.ahead and len(points) > 2:
            white = (kind >= BLANK) & (kind <= WHITE)
            may[1:-1] |= white[:-2] & (kind[1:-1] == BLANK) & ~white[2:]
        return may

    def ends(self, text: str, limit: int) -> Iterator[int]:
        """Ends of pieces of a text of at most `limit` characters, longer ones where there is no place to cut."""
        begin = 0
        while len(text) - begin > limit:
            end = self._last(text, begin + limit // 2, begin + limit) or self._first(text, begin + limit, limit)
            if end is None:
                break
            yield end
            begin = end
        yield len(text)

    def _last(self, text: str, low: int, high: int) -> int | None:
        """The last place in [low, high); looked for near the end first."""
        for start in (max(low, high - 1024), low):
            found = np.flatnonzero(self.mask(points_of(text[start - 1 : high + 1]))[1:-1])
            if found.size:
                return start + int(found[-1])
        return None

    def _first(self, text: str, low: int, step: int) -> int | None:
        for start in range(low, len(text) - 1, step):
            found = np.flatnonzero(self.mask(points_of(text[start - 1 : start + step + 1]))[1:-1])
            if found.size:
                return start + int(found[0])
        return None


def soft_places(text: str, end: int, reach: int = 512) -> list[int]:
    """Places between letters before `end`, the last first."""
    return [m.end() for m in _IN_LETTERS.finditer(text, max(end - reach, 0), end)][::-1]


def cut(text: str, limit: int = PIECE) -> Iterator[str]:
    """Pieces of at most `limit` characters, cut before white space (anywhere, where there is none)."""
    start = 0
    while len(text) - start > limit:
        end = max(text.rfind(" ", start + 1, start + limit), text.rfind("\n", start + 1, start + limit))
        while end > start and text[end - 1].isspace():
            end -= 1
        end = end if end > start else start + limit
        yield text[start:end]
        start = end
    yield text[start:]


# ---------------------------------------------------------------- reading the file


def _between(family: Family, spec: Spec, patterns: set[str]) -> np.ndarray:
    """(11, 11) bool: may be cut between classes [before, behind]."""
    may = np.zeros((11, 11), bool)
    signs, letters = [SIGN, QUOTE], [LETTER, HAN]
    spreading = bool({n["type"] for n in normalizers_of(spec)} & _SPREADING)
    may[:, BLANK] = True
    if family == "pattern":
        may[[BLANK, LINE, WHITE], BLANK] = False
    elif family in ("marks", "runs"):
        may[[BLANK, MARKED], BLANK] = False
    if family in ("drops", "apart") and not spreading:
        may[:, LINE] = may[LINE] = True
    if spreading:
        may[[ODD, BLANK, LINE, WHITE, MARKED]] = False
    if not all(t["special"] for t in spec["added_tokens"]):
        return may  # a cut elsewhere might go through one
    first: Spec = pre_tokenizers_of(spec)[0] if family == "drops" else {"type": ""}
    bert, words = first["type"] == "BertPreTokenizer", WORD_PATTERN in first.get("pattern", {}).values()
    if bert or words or family == "pattern" or METASPACE_PATTERN in patterns:
        may[np.ix_([*letters, DIGIT], signs)] = True
        if not patterns & _CL100K:  # there a sign may belong to the letters behind it
            may[np.ix_([SIGN], [*letters, DIGIT])] = True
    if bert or words:  # signs one by one
        may[np.ix_(signs, signs)] = True
    elif family == "pattern" or METASPACE_PATTERN in patterns:
        may[np.ix_(letters, [DIGIT])] = may[np.ix_([DIGIT], letters)] = True
        may[[*letters, DIGIT], LINE] = True
    if bert and any(n.get("handle_chinese_chars") for n in normalizers_of(spec)):
        may[HAN, [LETTER, DIGIT, SIGN, QUOTE, HAN]] = may[[LETTER, DIGIT, SIGN, QUOTE], HAN] = True
    return may


def _family(spec: Spec) -> Family | None:
    before, norms = pre_tokenizers_of(spec), normalizers_of(spec)
    if not all(n["type"] in _HARMLESS or _of_blanks(n) for n in norms):
        return None
    plain = not any(map(_of_blanks, norms))
    if before and drops_white_space(before[0]):
        rest = (p for p in before if p["type"] not in _AFTER_DROPPING)
        fits = all(p["type"] == "Metaspace" and p["prepend_scheme"] == "always" for p in rest)
        return "drops" if fits and plain else None
    if any(n["type"] == "BertNormalizer" for n in norms):
        return None  # it puts blanks around Han characters
    if before and plain and (found := _by_pattern(before)) is not None:
        return found
    if not marks_blanks(spec) or (_strips_left(norms) and not _puts_in_front(spec)):
        return None
    if before and before[0]["type"] == "Metaspace" and before[0]["split"]:
        return "marks" if all(p["type"] in ("Digits", "Punctuation") or _isolates(p) for p in before[1:]) else None
    if all(p["type"] == "Metaspace" or _isolates(p) for p in before) and len(before) <= 2:
        return "runs" if _no_piece_over_a_blank(spec) else None
    return None


def _by_pattern(before: list[Spec]) -> Literal["apart", "pattern", "marks"] | None:
    """The families whose first step, digits aside, is an expression that is known."""
    steps = [p for p in before if p["type"] != "Digits"]
    if not steps:
        return None
    first, rest = _pattern(steps[0]), steps[1:]
    if first == METASPACE_PATTERN:
        marks = len(rest) == 1 and rest[0]["type"] == "Metaspace" and rest[0]["prepend_scheme"] == "never"
        return "marks" if marks and rest[0]["split"] else None
    by_bytes = len(rest) == 1 and rest[0]["type"] == "ByteLevel"
    if (first == r"\s" or first in _PATTERNS) and (not rest or by_bytes):
        if rest and (rest[0]["use_regex"] or rest[0]["add_prefix_space"]):
            return None
        return "apart" if first == r"\s" else "pattern"
    # No blank may be put in front of every part that digits leave.
    alone = steps[0]["type"] == "ByteLevel" and not rest and not (steps[0]["add_prefix_space"] and len(before) > 1)
    return "pattern" if alone and steps[0]["use_regex"] else None


def _pattern(part: Spec) -> str | None:
    """The expression of a Split that keeps everything."""
    isolated = part["type"] == "Split" and part["behavior"] == "Isolated" and not part["invert"]
    return next(iter(part["pattern"].values())) if isolated else None


def _isolates(part: Spec) -> bool:
    """A Split whose pattern has nothing to do with blanks."""
    pattern = _pattern(part)
    return pattern is not None and not re.search(r"[\s▁.^$(\[\\]", re.sub(r"\\[^A-Za-z]", "", pattern))


def _of_blanks(norm: Spec) -> bool:
    """A normaliser that writes, strips or joins blanks, as SentencePiece's do."""
    if norm["type"] == "Replace":
        return (next(iter(norm["pattern"].values())), norm["content"]) in (
            (" ", MARK),
            *((strip, "") for strip in STRIPS),
            (COLLAPSE, " "),
            (COLLAPSE, MARK),
            (DOUBLE, MARK * 2),
        )
    return norm["type"] == "Strip" or (norm["type"] == "Prepend" and norm["prepend"] == MARK)


def _strips_left(norms: list[Spec]) -> bool:
    return any(
        (n["type"] == "Strip" and n["strip_left"]) or (n["type"] == "Replace" and n["pattern"].get("Regex") in STRIPS)
        for n in norms
    )


def _puts_in_front(spec: Spec) -> bool:
    return any(p["type"] == "Metaspace" and p["prepend_scheme"] == "always" for p in pre_tokenizers_of(spec))


def _bare(spec: Spec) -> Spec:
    """The same file, but it puts no blank in front of a text."""

    def without(part: Spec | None) -> Spec | None:
        if part is None:
            return None
        if part["type"] == "Sequence":
            key = "normalizers" if "normalizers" in part else "pretokenizers"
            return {**part, key: [kept for p in part[key] if (kept := without(p)) is not None]}
        if part["type"] == "Prepend" or (part["type"] == "Replace" and part["pattern"] == {"Regex": DOUBLE}):
            return None
        if part["type"] == "Metaspace":
            return {**part, "prepend_scheme": "never"}
        return {**part, "add_prefix_space": False} if part["type"] == "ByteLevel" else part

    return {**spec, "normalizer": without(spec["normalizer"]), "pre_tokenizer": without(spec["pre_tokenizer"])}


def _plain(added: Spec) -> bool:
    """An added token that no blank is part of or next to."""
    return not (added["lstrip"] or added["rstrip"] or added["single_word"] or re.search(r"\s|▁", added["content"]))


def _no_piece_over_a_blank(spec: Spec) -> bool:
    """No piece of text holds a ▁ behind another character, and ▁ is known (unknown neighbours are joined)."""
    tokens, special = tokens_of(spec), vocabulary_of(spec).is_special
    over = (t for t, i in tokens.items() if MARK in t.lstrip(MARK) and not special[i] and t != unknown_of(spec))
    return MARK in tokens and next(over, None) is None
