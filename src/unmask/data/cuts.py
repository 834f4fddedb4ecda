"""Where a text may be cut without changing an id, read off the structure of a tokenizer.json.

At a blank. A chunk is a blank and what follows up to the next one. Its ids are its own, whatever stands beside it, in
these families (`Cuts.of` answers None for all other files, whose texts stay whole):

    drops    the pre-tokenizer drops white space first (BERT, words): no token reaches over it
    apart    it keeps every white-space character apart
    pattern  GPT-2's pattern or its kin: no match goes from another character into white space. Inside a run of
             white space \\s+(?!\\S) looks ahead, so a blank after white space begins no chunk
    marks    ▁ parts words (Metaspace)
    runs     nothing parts words, but no piece holds a ▁ behind another character, so none reaches over a blank
             (Llama). Runs of ▁ are pieces, so a blank after a blank begins no chunk

A normaliser that knows other white space, or looks at grapheme clusters, may make a blank of what stands before a
blank, or join with it: then only a letter, digit, mark or ordinary sign may stand before a chunk.

Inside a run without blanks. For texts without any, `hard` finds places where the pre-tokenizer cuts in any case, and
`soft` places in runs of letters, to be confirmed by the encoder.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from unmask.data.pieces import GPT2_PATTERN, METASPACE_PATTERN
from unmask.data.structure import (
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
_PATTERNS = {
    GPT2_PATTERN,
    *(  # cl100k, as in Llama 3; Qwen 2
        rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        for digits in ("{1,3}", "")
    ),
}
_LETTERS_STAY = {*_PATTERNS, METASPACE_PATTERN, r"\s"}
"""Expressions that never cut between letters, three letters behind any sign."""
_AFTER_DROPPING = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Digits", "Punctuation", "ByteLevel", "Split"}
"""Steps that look at one word at a time."""
_PREPENDED = frozenset(  # letters that form one grapheme cluster with what follows (UAX 29, Prepend; the rest is Cf)
    map(chr, (0xD4E, 0x111C2, 0x111C3, 0x113D1, 0x1193F, 0x11941, *range(0x11A84, 0x11A8A), 0x11A3A, 0x11D46, 0x11F02))
)
_BLANKLIKE = frozenset("▁\ufffd")
"""Signs that sentencepiece's tables make blanks of."""

_LETTERS = "A-Za-z\u0410-\u044f\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3"
"""Letters in every version of Unicode, which no normaliser joins with a neighbour of the same kind."""
_SIGNS = "!-/:-?\\[-`{-~\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f\n"
_BEFORE_SIGN = re.compile(f"[{_LETTERS}](?=[{_SIGNS}])")
_BEFORE_LINE = re.compile(r"[!-~\u3001\u3002\uff0c\u4e00-\u9fa5](?=\n)")
_BEFORE_HAN = re.compile("[\u4e00-\u9fa5](?=[\u4e00-\u9fa5])|" + _BEFORE_LINE.pattern)
_IN_LETTERS = re.compile(f"(?<=[{_LETTERS}]{{3}})(?=[{_LETTERS}])")  # behind any contraction such as 'll


@dataclass(frozen=True)
class Cuts:
    """How texts of one tokenizer may be cut."""

    family: Family
    spreading: bool
    """Its normaliser makes blanks of other characters, or looks at clusters of them."""
    ahead: bool
    """pattern: a blank after white space begins a chunk after all if something visible follows it."""
    inner: Spec
    """Encodes a chunk that begins with a blank inside a text."""
    bare: Spec
    """Encodes what begins inside a run without blanks: nothing is put in front."""
    hard: re.Pattern[str] | None
    """Matches the character before a place where the pre-tokenizer cuts in any case."""
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
        letters_stay = family != "drops" and not others and not whole_words and patterns <= _LETTERS_STAY
        soft: Literal["bpe", "unigram"] | None = None
        if letters_stay:
            soft = "bpe" if model["type"] == "BPE" else "unigram" if model["type"] == "Unigram" else None
        return Cuts(
            family=family,
            spreading=bool({n["type"] for n in norms} & _SPREADING),
            ahead=family == "pattern" and len(before) == 1 and not norms,
            inner=spec if _strips_left(norms) else bare,
            bare=bare,
            hard=_hard(family, spec, patterns),
            soft=soft,
        )

    def glues(self, pieces: Sequence[str]) -> list[bool]:
        """Of each piece (the text since the blank before, without it): begins the blank behind it no chunk?"""
        if self.family == "pattern" and not self.spreading:
            return [not piece or piece[-1].isspace() for piece in pieces]
        apart = self.family in ("drops", "apart")
        if not self.spreading:
            return [not apart and (not piece or piece[-1] == MARK) for piece in pieces]
        return [not ordinary(piece[-1]) if piece else not apart for piece in pieces]

    def windows(self, text: str, limit: int) -> Iterator[tuple[int, int]]:
        """[begin, end) of pieces of about `limit` characters, cut at blanks; longer where there are none."""
        begin = 0
        while len(text) - begin > limit:
            end = _blank(text, begin + limit // 2, begin + limit) or _blank_after(text, begin + limit)
            if end is None:
                break
            yield begin, end
            begin = end
        yield begin, len(text)


def ordinary(character: str) -> bool:
    """Does this character stay apart from a blank behind it, whatever the normaliser?"""
    if " " < character < "\x7f":
        return True
    return unicodedata.category(character)[0] in "LMNPS" and character not in _BLANKLIKE and character not in _PREPENDED


def last_match(pattern: re.Pattern[str], text: str, begin: int, end: int) -> int | None:
    """Behind the last match in [begin, end)."""
    found = None
    for match in pattern.finditer(text, begin, end):
        found = match.end()
    return found


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


def _blank(text: str, begin: int, end: int) -> int | None:
    """The last blank in [begin, end) that an ordinary character stands before."""
    at = text.rfind(" ", begin, end)
    while at > 0 and not ordinary(text[at - 1]):
        at = text.rfind(" ", begin, at)
    return at if at > 0 else None


def _blank_after(text: str, begin: int) -> int | None:
    at = text.find(" ", begin)
    while at > 0 and not ordinary(text[at - 1]):
        at = text.find(" ", at + 1)
    return at if at > 0 else None


# ---------------------------------------------------------------- reading the file


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
    by_bytes = bool(rest) and rest[-1]["type"] == "ByteLevel" and len(rest) == 1
    if (first == r"\s" or first in _PATTERNS) and (not rest or by_bytes):
        if rest and (rest[0]["use_regex"] or rest[0]["add_prefix_space"]):
            return None
        return "apart" if first == r"\s" else "pattern"
    # In front of every part that digits leave, not of the text alone, no blank may be put.
    alone = steps[0]["type"] == "ByteLevel" and not rest and not (steps[0]["add_prefix_space"] and len(before) > 1)
    return "pattern" if alone and steps[0]["use_regex"] else None


def _hard(family: Family, spec: Spec, patterns: set[str]) -> re.Pattern[str] | None:
    """What may stand before a place where the pre-tokenizer cuts in any case."""
    if family == "drops":
        han = pre_tokenizers_of(spec)[0]["type"] == "BertPreTokenizer"
        han = han and any(n.get("handle_chinese_chars") for n in normalizers_of(spec))
        return _BEFORE_HAN if han else _BEFORE_LINE
    if family == "pattern" or METASPACE_PATTERN in patterns:
        return _BEFORE_SIGN
    return _BEFORE_LINE if family == "apart" else None


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
