"""Multiple choice: which of several continuations of a context does the model give the largest log-probability?

Context and answer are encoded as one string, so that no stray piece appears between them. Three readings of the
same scores stand side by side, since none is right for every task:

    sum     log p(answer | context)
    mean    the same, divided by the answer's tokens
    bytes   the same, divided by the answer's UTF-8 bytes (as `acc_bytes` of lm-eval)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.evaluate.base import Model, tokenizer_of
from unmask.evaluate.intervals import macro
from unmask.evaluate.items import (
    TIE,
    Events,
    Options,
    in_percent,
    item_files,
    precision,
    read_items,
    sample,
    scored,
    shortened,
    standing,
    text_of,
    texts_of,
)
from unmask.evaluate.score import Score

READINGS = ("sum", "mean", "bytes")
PROTOCOL = (
    "per cent of questions whose right answer has the largest log-probability given the context: summed over its "
    "tokens, or divided by its tokens (mean) or its UTF-8 bytes (bytes); ties share the point"
)


@dataclass(frozen=True)
class Question:
    """A context, its possible continuations, and which of them is right."""

    context: str
    choices: tuple[str, ...]
    label: int


def read_choice(path: str | Path) -> tuple[Question, ...]:
    """Questions of a file of JSON lines, or of every file of a directory."""
    found = []
    for file in item_files(path):
        for where, item in read_items(file):
            choices, label = texts_of(item, "choices", where, least=2), item.get("label")
            if type(label) is not int or not 0 <= label < len(choices):
                raise UserError(
                    f"{where}: 'label' must be the number of the right choice, 0 to {len(choices) - 1}, not {label}"
                )
            context = text_of(item, "context", where) if item.get("context") != "" else ""
            found.append(Question(context, choices, label))
    if not found:
        raise UserError(f"{path} holds no questions: give JSON lines with context, choices and label")
    return tuple(found)


def multiple_choice(model: Model, data: tuple[Question, ...], options: Options) -> dict[str, Any]:
    """Accuracy by sum, mean and bytes in per cent, beside chance and always naming the most frequent label."""
    asked = [data[i] for i in sample(len(data), options.limit, options.seed, "choice")]
    questions = [replace(q, context=shortened(model, options.plan, q.context, q.choices)) for q in asked]
    shorter = sum(len(a.context) < len(b.context) for a, b in zip(questions, asked, strict=True))
    split = _seams(model, questions)
    contexts = [q.context[:s] for q, s in zip(questions, split, strict=True) for _ in q.choices]
    answers = [q.context[s:] + c for q, s in zip(questions, split, strict=True) for c in q.choices]
    events = Events()
    scores = list(events.see(scored(model, answers, contexts, plan=options.plan, watch=options.watch, what="answers")))
    measured = {name: macro([right], options.seed)[0] for name, right in _rights(questions, scores).items()}
    labels = Counter(q.label for q in questions)
    moved = int(sum(s < len(q.context) for q, s in zip(questions, split, strict=True)))
    return {
        "suite": "choice",
        "label": "accuracy by summed log-probability, per cent",
        "protocol": PROTOCOL,
        **events.named(),
        **in_percent(measured["sum"]),
        "interval_over": "questions",
        "chance": 100 * float(np.mean([1 / len(q.choices) for q in questions])),
        "majority_label": 100 * max(labels.values()) / len(questions),
        "counts": {
            "questions": len(questions),
            "choices": len(answers),
            "scored_tokens": sum(s.tokens for s in scores),
            "merged_seams": moved,
            "shortened_contexts": shorter,
        },
        "warnings": _warnings(questions, moved, events.merged, shorter),
        "limit": options.limit,
        "seed": options.seed,
        "readings": [{"reading": name, **in_percent(m)} for name, m in measured.items()],
    }


def _rights(questions: list[Question], scores: list[Score]) -> dict[str, np.ndarray]:
    """(Q,) of each reading: whether the right choice stands first, a share where it ties."""
    rights: dict[str, list[float]] = {name: [] for name in READINGS}
    begin = 0
    for q in questions:
        own = scores[begin : begin + len(q.choices)]
        begin += len(own)
        for name, (values, tolerance) in _readings(q, own).items():
            above, tied = standing(values, np.arange(len(own)) == q.label, tolerance)
            rights[name].append(float(precision(above, tied)))
    return {name: np.array(right) for name, right in rights.items()}


def _seams(model: Model, questions: list[Question]) -> list[int]:
    """Where each question's context is cut: at its end, or before the first token that some answer changes.

    A token that spans the seam of one answer would be scored there and be context elsewhere, so the answers of a
    question would be compared by different events. All of them are scored from the earliest such token on.
    """
    tokenizer = tokenizer_of(model)
    out = []
    for q in questions:
        whole = tokenizer.encode_batch([q.context + c for c in q.choices])
        before = tokenizer.encode_aligned([q.context])[0]
        shared = min(_common(before.ids, w) for w in whole)
        out.append(len(q.context) if shared == len(before.ids) else int(before.begin[shared]))
    return out


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """How many leading tokens two texts share."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def _readings(q: Question, scores: list[Score]) -> dict[str, tuple[np.ndarray, float]]:
    """(C,) each choice's value under each reading, and how near two are to be equal."""
    total, tokens = np.array([s.logprob for s in scores]), np.array([max(s.tokens, 1) for s in scores])
    size = np.array([len(c.encode("utf-8", "replace")) for c in q.choices])
    longest = float(tokens.max())
    return {
        "sum": (total, TIE * longest),
        "mean": (total / tokens, TIE),
        "bytes": (total / size, TIE * longest / float(size.max())),
    }


def _warnings(questions: list[Question], moved: int, merged: int, shorter: int) -> list[str]:
    out = []
    if shorter:
        out.append(f"{shorter} of {len(questions)} contexts are longer than the model's room and lost their beginning")
    if moved:
        out.append(
            f"in {moved} of {len(questions)} questions a token spans the seam of context and answer: all answers of "
            "such a question are scored from the start of that token (let answers begin with the blank, not contexts "
            "end with it)"
        )
    glued = sum(_in_word(q.context[-1:]) and any(_in_word(c[:1]) for c in q.choices) for q in questions)
    if glued:
        out.append(
            f"in {glued} of {len(questions)} questions context and answer meet without a blank between two words: "
            "begin the answers with one, as they are joined as they stand"
        )
    if merged:
        out.append(f"{merged} answers still begin inside a token that spans the seam")
    return out


def _in_word(character: str) -> bool:
    """A letter or digit of a script that parts words by blanks."""
    return character.isalnum() and ord(character) < 0x2E80
