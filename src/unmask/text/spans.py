"""Spans of a document: annotated ones, checked, and the matches of a lexicon's phrases.

Characters are Unicode code points of the text as the file holds it, [begin, end). What reading changes (line
ends, blanks taken out, parts) moves them along (`document.without`, `document.part`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.text.characters import BLANK, codes, kinds, word_starts
from unmask.text.document import Counts, Document
from unmask.text.textfile import lines


def checked(value: Any, key: str, text: str, where: str) -> np.ndarray:
    """(S, 2) int64 spans of a JSON or table value, ascending.

    A span is [begin, end], [begin, end, label, …] or an object with "begin" (or "start") and "end"; null is no
    span. Empty, overlapping or nested ones, and ends outside the text, are refused.

    >>> checked([[4, 7, "LOC"], {"begin": 0, "end": 3}], "entities", "the cat sat", "a.jsonl:1").tolist()
    [[0, 3], [4, 7]]
    """
    if value is None:
        return np.zeros((0, 2), np.int64)
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise UserError(f"{where}: the key '{key}' holds a {type(value).__name__}, not a list of [begin, end] spans")
    spans = sorted(_ends(span, key, where) for span in value)
    before = 0
    for begin, end in spans:
        if not 0 <= begin < end <= len(text):
            raise UserError(
                f"{where}: the span [{begin}, {end}] of '{key}' is not inside its text of {len(text)} characters"
            )
        if begin < before:
            raise UserError(
                f"{where}: the span [{begin}, {end}] of '{key}' overlaps the one before it; keep one of them"
            )
        before = end
    return np.array(spans, np.int64).reshape(-1, 2)


def _ends(span: Any, key: str, where: str) -> tuple[int, int]:
    if isinstance(span, dict):
        ends: list[Any] = [span.get("begin", span.get("start")), span.get("end")]
    else:
        ends = list(span[:2]) if isinstance(span, Sequence) and not isinstance(span, str) else []
    if len(ends) != 2 or not all(isinstance(e, int) and not isinstance(e, bool) for e in ends):
        raise UserError(
            f"{where}: '{key}' holds {str(span)[:60]!r}, which is no span: give [begin, end], [begin, end, label] or "
            '{"begin": …, "end": …} with whole numbers of characters'
        )
    begin, end = ends
    return int(begin), int(end)


class Lexicon:
    """Phrases, and where a text has them: the longest at each word, from left to right, never overlapping.

    A phrase matches word by word, with the same case; where it has white space the text may have any (a line
    end, say), and where it has none the text must have none. It begins and ends with words of the text: those of
    the document's own segmentation where it has one, else those of the rule.
    """

    def __init__(self, phrases: Sequence[str]) -> None:
        self.tree: dict[str, Any] = {}
        """Word → what may follow; a word after white space has a blank before it; "" = a phrase ends here."""
        for phrase in phrases:
            node = self.tree
            for word in _words(phrase.strip(), None)[0]:
                node = node.setdefault(word, {})
            if node is not self.tree:
                node[""] = {}

    @staticmethod
    def load(path: str | Path) -> Lexicon:
        """A UTF-8 text file of phrases, one a line; blank lines are passed over."""
        path = Path(path).expanduser()
        phrases = [line for _, line in lines(path, "utf-8", True, Counts()) if line.strip()]
        if not phrases:
            raise UserError(f"the lexicon {path} has no phrase: it is a text file with one a line")
        return Lexicon(phrases)

    def find(self, text: str, words: np.ndarray | None = None) -> np.ndarray:
        """(S, 2) int64 [begin, end) characters of the phrases in a text."""
        keys, begins, ends, whole = _words(text, words)
        found = []
        at, tree = 0, self.tree
        while at < len(keys):
            node = tree.get(keys[at].lstrip(" "))
            if node is None or not whole[at]:
                at += 1
                continue
            last, after = -1, at + 1
            while True:
                if "" in node and (after == len(keys) or whole[after] or keys[after][0] == " "):
                    last = after
                node = node.get(keys[after]) if after < len(keys) else None
                if node is None:
                    break
                after += 1
            if last < 0:
                at += 1
            else:
                found.append((begins[at], ends[last - 1]))
                at = last
        return np.array(found, np.int64).reshape(-1, 2)


def _words(text: str, words: np.ndarray | None) -> tuple[list[str], list[int], list[int], list[bool]]:
    """Of each word of the rule: itself, with a blank before it after white space; its ends; whether `words` (None =
    the rule's own) has a word that starts here."""
    points = codes(text)
    visible = kinds(points) != BLANK
    starts = word_starts(points)
    begins = np.flatnonzero(starts & visible)
    stops = np.flatnonzero(np.append(~visible | starts, True))  # a word ends at white space or the next word
    ends = stops[np.searchsorted(stops, begins, side="right")]
    after_blank = np.concatenate([[False], ~visible])[begins]
    whole = np.ones(len(begins), bool) if words is None else np.isin(begins, words)
    keys = [(" " if b else "") + text[i:j] for i, j, b in zip(begins, ends, after_blank, strict=True)]
    return keys, begins.tolist(), ends.tolist(), whole.tolist()


def with_matches(document: Document, lexicon: Lexicon) -> Document:
    """The document with the lexicon's matches as its spans."""
    return replace(document, spans=lexicon.find(document.text, document.words))
