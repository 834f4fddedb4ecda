"""A cloze test of four words from held-out text: which of them stood here?

Every model answers it in its own way (`evaluation.cloze`), and what words' frequencies tell is of little use: the three
others are about as frequent in the training text, and the answer may be any of the four by rank.

A gap is one word of a sentence, in small letters and of at least `SHORTEST` letters, that the training text has at
least `LEAST` times. The others are of a run of words by frequency, at most `NEAR` + 1 long, that holds the answer
anywhere. Which sentences, which word of each, which run and which of its words is decided by key, so the test is a
function of the texts.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np

from unmask import keyed
from unmask.config import SourceConfig
from unmask.text.corpus import Counts, read
from unmask.text.sentences import sentence_starts

GAPS, OTHERS = 1000, 3
SHORTEST, LEAST, NEAR = 4, 20, 100
FEWEST = 6
"""Other words of a run: among the most frequent, neighbours alone are about as frequent."""
WORDS = (8, 30)
"""Fewest and most words of a sentence."""
_WORD = re.compile(r"(?<![\w'-])[a-z]+(?![\w'-])")
"""In small letters alone: no name, no part of a word."""


def write_gaps(train: Path, valid: Path, file: Path, most: int = GAPS) -> Path:
    """The test as JSON lines, made once."""
    if not file.exists():
        write_lines(file, gaps_of(_texts(train), _texts(valid), most))
    return file


def write_lines(file: Path, values: Iterable[Mapping[str, object]]) -> None:
    """As JSON lines, whole or not at all."""
    unfinished = file.with_name(f"{file.name}.unfinished")
    lines = (json.dumps(value, ensure_ascii=False) + "\n" for value in values)
    unfinished.write_text("".join(lines), encoding="utf-8")
    os.replace(unfinished, file)


def _texts(path: Path) -> Iterable[str]:
    return (document.text for document in read(SourceConfig(path=str(path)), Counts()))


def gaps_of(train: Iterable[str], valid: Iterable[str], most: int = GAPS) -> list[dict[str, object]]:
    """At most so many gaps, at most one a sentence."""
    ranked = ranking(train)
    rank = {word: i for i, word in enumerate(ranked)}
    sentences = [s for text in valid for s in _sentences(text)]
    order = keyed.permuted(np.arange(len(sentences)), len(sentences), keyed.row_keys(0, 0, 0, "sentences"))
    found: list[dict[str, object]] = []
    for number in order.tolist():
        gap = _gap(sentences[number], keyed.row_keys(0, 0, number, "gap"), ranked, rank)
        if gap is not None:
            found.append(gap)
        if len(found) == most:
            break
    return found


def ranking(texts: Iterable[str]) -> list[str]:
    """The words that may stand in a gap, the most frequent first.

    >>> ranking(["when the wind blows, then then when Then"] * 20)
    ['then', 'when', 'blows', 'wind']
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(w for w in _WORD.findall(text) if len(w) >= SHORTEST)
    return sorted((w for w, n in counts.items() if n >= LEAST), key=lambda w: (-counts[w], w))


def _sentences(text: str) -> list[str]:
    """Those of a text that lie in one line and are neither short nor long."""
    starts = [*sentence_starts(text).tolist(), len(text)]
    each = (text[a:b].strip() for a, b in pairwise(starts))
    return [s for s in each if "\n" not in s and "[MASK]" not in s and WORDS[0] <= len(s.split()) <= WORDS[1]]


def _gap(sentence: str, key: np.ndarray, ranked: list[str], rank: dict[str, int]) -> dict[str, object] | None:
    words = [m for m in _WORD.finditer(sentence) if m[0] in rank]
    if not words or len(ranked) <= OTHERS:
        return None
    draw = keyed.bits(np.broadcast_to(key, NEAR + 2), np.arange(NEAR + 2))
    word = words[int(keyed.below(draw[0], len(words)))]
    place = rank[word[0]]
    others_of_run = min(NEAR, max(FEWEST, place), len(ranked) - 1)
    first = place - int(keyed.below(draw[1], others_of_run + 1))
    first = max(0, min(first, len(ranked) - others_of_run - 1))
    near = [w for w in ranked[first : first + others_of_run + 1] if w != word[0]]
    others = [near[i] for i in np.argsort(draw[2 : 2 + len(near)], kind="stable")[:OTHERS].tolist()]
    candidates = sorted([word[0], *others])
    text = f"{sentence[: word.start()]}[MASK]{sentence[word.end() :]}"
    return {"relation": "words", "text": text, "answer": word[0], "candidates": candidates}
