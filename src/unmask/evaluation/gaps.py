"""Gaps to fill: sentences with one [MASK], its answers, and where they are read from.

    {"text": "Paris is the capital of [MASK].", "answer": "France", "candidates": [...], "relation": "..."}

`candidates` and `relation` may be left out, and `answer` may be a list. The probes of LAMA (Petroni et al. 2019)
are read as they are: T-REx's template with [X] and [Y], and Google-RE's sentences with [MASK].
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import UserError
from unmask.evaluation.items import item_files, read_items, text_of, texts_of

MASK = "[MASK]"


@dataclass(frozen=True)
class Gap:
    """A text with one gap; `candidates` may be empty, which asks for a word of the whole vocabulary."""

    before: str
    after: str
    answers: tuple[str, ...]
    candidates: tuple[str, ...]
    relation: str

    def filled(self, word: str) -> str:
        return self.before + word + self.after


@dataclass(frozen=True)
class Gaps:
    """Gaps, and how many probes of a foreign file hold no sentence with exactly one."""

    gaps: tuple[Gap, ...]
    passed_over: int = 0


def read_gaps(path: str | Path | None = None) -> Gaps:
    """The gaps of a file or a directory; without a path, the battery that is shipped."""
    if path is None:
        shipped = importlib.resources.files("unmask.evaluation") / "battery" / "cloze.jsonl"
        with importlib.resources.as_file(shipped) as file:
            return read_gaps(file)
    gaps, passed_over = [], 0
    for file in item_files(path):
        for where, item in read_items(file):
            text = _text(item, where)
            if text is None:
                passed_over += 1
            else:
                gaps.append(_gap(item, text, where))
    if not gaps:
        raise UserError(f"{path} holds no gaps: give JSON lines with text (one {MASK} in it) and answer")
    return Gaps(tuple(gaps), passed_over)


def _text(item: Mapping[str, Any], where: str) -> str | None:
    """The text with its gap; None where a probe of LAMA has none with exactly one."""
    if "template" in item:
        template, subject = text_of(item, "template", where), text_of(item, "sub", where)
        return template.replace("[X]", subject).replace("[Y]", MASK) if template.count("[Y]") == 1 else None
    if "sentences" in item or "masked_sentences" in item:
        key = "masked_sentences" if "masked_sentences" in item else "sentences"
        return next((s for s in texts_of(item, key, where) if s.count(MASK) == 1), None)
    text = text_of(item, "text", where)
    if (count := text.count(MASK)) != 1:
        raise UserError(f"{where}: the text holds {count} {MASK}: write exactly one, which stands for the whole answer")
    return text


def _gap(item: Mapping[str, Any], text: str, where: str) -> Gap:
    key = "answer" if "answer" in item or "obj" not in item else "obj"
    given = texts_of(item, key, where) if isinstance(item.get(key), list) else (text_of(item, key, where),)
    answers = tuple(dict.fromkeys(given))
    candidates: tuple[str, ...] = ()
    if item.get("candidates") is not None:
        candidates = tuple(dict.fromkeys(texts_of(item, "candidates", where, least=2)))
        if not set(answers) & set(candidates):
            raise UserError(f"{where}: '{answers[0]}' is not among the candidates {list(candidates)}: add it to them")
        if set(candidates) <= set(answers):
            raise UserError(f"{where}: every candidate is an answer: add wrong ones, or leave candidates out")
    before, after = text.split(MASK)
    return Gap(before, after, answers, candidates, str(item.get("relation") or ""))
