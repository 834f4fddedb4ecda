"""Where sentences start, by rules for English and Chinese or Japanese punctuation.

English: a sentence ends at . ! ? or … with the quotes and brackets that close behind it, if white space and
something else than punctuation follow; before a lower-case letter only a lone mark does, and a full stop only
after a whole lower-case word. A full stop after an initial, an abbreviation or a list number
ends one only before a word such as "The" that hardly is a name (Kiss & Strunk 2006 call this the orthographic
heuristic; the lists here are fixed). Chinese and Japanese: 。！？ and …… end a sentence wherever they stand, with
what closes behind them. Two line ends or more always do; one is white space.

Against the gold sentences of UD English-EWT (weblogs, mail, reviews, answers; 316 held-out documents, paragraphs
parted by blank lines) see `tests/data/test_sentences.py`.
"""

from __future__ import annotations

import re

import numpy as np

_CLOSE = "\"'”’»›)\\]}）】》〉」』〕］｝＂＇"
_OPEN = "\"'“‘«‹(\\[{（【《〈「『〔［｛¿¡*•"
_EAST = "\u2e80-\u2fff\u3005-\u3007\u3041-\u30ff\u3105-\u312f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff10-\uff9f"
_EAST += "\U00020000-\U0003ffff"

_CANDIDATE = re.compile(
    rf"[.!?…。！？｡．\n](?:"  # first of all one of few characters: that is searched for fast
    rf"(?P<east>(?:(?<=[。！？｡])|(?<=…)…)[。！？｡…!?]*[{_CLOSE}]*)\s*"
    rf"|(?P<mixed>(?<=[{_EAST}][.!?．])[.!?．]*[{_CLOSE}]*)(?=[{_EAST}{_OPEN}])"
    rf"|(?P<west>(?<=[.!?…])(?<![.!?…].)[.!?…]*+[{_CLOSE}]*+)\s+"
    rf"|(?P<glued>(?<=[a-z0-9)][a-z)][.!?])(?<!www.)[.!?]*)(?=[A-Z][a-z' ])(?![\w.-]*[@/=])"
    r"|(?P<blank>(?<=\n)[^\S\n]*\n)\s*)"
)
"""What may end a sentence, and the white space behind it."""
_BEFORE = re.compile(rf"[^\s{_OPEN}—–-]*$")
"""The word that a full stop closes, from the end of what is before it."""
_AFTER = re.compile(rf"[{_OPEN}]*(\w*)")


def _words(words: str) -> frozenset[str]:
    return frozenset(words.split())


_TITLES = _words(
    "mr mrs ms mx dr prof gen col sgt capt lt cmdr maj adm brig rep sen gov rev fr hon pres supt messrs mme mlle "
    "st mt ft sra vs v cf viz e.g i.e eg ie c ca approx esp resp incl excl misc spp subsp var lit ed"
)
"""Never the end of a sentence."""
_NUMBERED = _words("no nos fig figs eq p pp vol vols art sec ch chap par op cit nr tab")
"""The end of a sentence unless a number follows."""
_SHORT = _words(
    "inc corp ltd co bros llc jr sr esq etc al dept univ assn est min max jan feb mar apr jun jul aug sep sept oct nov "
    "dec mon tue tues wed thu thur thurs fri sat sun ave blvd rd hwy pl sq apt ste u.s u.k u.n a.m p.m am pm ph.d "
    "m.d b.a m.a b.sc m.sc d.c a.d b.c ext tel eds trans"
)
"""The end of a sentence if a word follows that begins sentences."""
_ABBREVIATIONS = _TITLES | _NUMBERED | _SHORT
_STARTERS = _words(
    "A About According After All Also Although Among An And Another Any Are As At Because Before Both But By Can Could "
    "Despite Did Do Does During Each Either Even Every Few Finally First For From Furthermore Had Has Have He Her Here "
    "His How However I If In Instead Is It Its Just Later Like Many Maybe Meanwhile More Moreover Most My Neither "
    "Nevertheless No None Nor Not Now Of On Once One Only Or Other Our Over Perhaps Please Several She Should Since So "
    "Some Such Thanks That The Their Them Then There These They This Those Though Through Thus To Today Two Under "
    "Unfortunately Unlike Until Upon Was We Well Were What When Where Whether Which While Who Whose Why Will With "
    "Within Without Would Yes Yet You Your"
)
"""Words with a capital that hardly are names: the closed classes and a few more."""


def sentence_starts(text: str) -> np.ndarray:
    """(S,) int64 characters where sentences start, the first visible one among them; none in white space alone.

    >>> sentence_starts('Dr. J. Smith paid $3.50. "Why?" he asked. He left...').tolist()
    [0, 25, 42]
    >>> sentence_starts("他问：“好吗？”我说好。走吧！").tolist()
    [0, 8, 12]
    """
    first = len(text) - len(text.lstrip())
    if first == len(text):
        return np.zeros(0, np.int64)
    starts = [first]
    for match in _CANDIDATE.finditer(text, first):
        end = match.end()
        if end < len(text) and _ends(text, match, starts[-1]):
            starts.append(end)
    return np.array(starts, np.int64)


def _ends(text: str, match: re.Match[str], start: int) -> bool:
    """Whether the sentence that begins at `start` ends at a candidate."""
    kind, end = match.lastgroup or "", match.end()
    if kind in ("blank", "mixed", "glued") or text.count("\n", match.end(kind), end) > 1:
        return True
    if kind == "east":
        return not _quote_goes_on(text, match)
    if text[end] in ",;:.!?…，；：、":
        return False
    mark, following = text[match.start() : match.end(kind)], _AFTER.match(text, end)
    word = following[1] if following else ""
    if word[:1].islower() and mark not in (".", "?", "!", "!!", "??"):
        return False
    if not mark.startswith(".") or mark.startswith(".."):
        return True
    found = _BEFORE.search(text[max(start, match.start() - 24) : match.start()])
    before = found[0] if found else ""
    return _stop_ends(before, word, opens=match.start() - len(before) == start)


def _stop_ends(before: str, word: str, opens: bool) -> bool:
    """Whether a full stop between these words ends a sentence; `opens`: the first is all there is of it so far."""
    lower = before.lower()
    if opens and (before.isdigit() or len(before) == 1):  # 1. a. of a list
        return False
    if word[:1].islower():
        return len(before) > 1 and before.isalpha() and before.islower() and before not in _ABBREVIATIONS
    if lower in _TITLES:
        return False
    if lower in _NUMBERED:
        return not word[:1].isdigit()
    if lower in _SHORT or (len(before) == 1 and before.isupper()) or re.fullmatch(r"(?:[^\W\d_]\.)+[^\W\d_]", before):
        return word in _STARTERS
    return True


def _quote_goes_on(text: str, match: re.Match[str]) -> bool:
    """A closed quote that the sentence around it goes on after: “好。”，…  「はい。」と言った。"""
    last, after = text[match.end("east") - 1], text[match.end()]
    return after in "，、,；;：:。" or (last in "」』" and "\u3041" <= after <= "\u309f")
