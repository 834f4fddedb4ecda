"""Multiple choice: which of several continuations of a context does the model give the largest log-probability?

Context and answer are encoded as one string, so that no stray piece appears between them. Three readings of the
same scores stand side by side, since none is right for every task:

    sum     log p(answer | context)
    mean    the same, divided by the answer's tokens
    bytes   the same, divided by the answer's UTF-8 bytes (as `acc_bytes` of lm-eval)
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from unmask.batch import starts
from unmask.errors import UserError
from unmask.evaluation.base import Model, tokenizer_of
from unmask.evaluation.intervals import macro
from unmask.evaluation.items import (
    TIE,
    Events,
    Options,
    in_percent,
    item_files,
    outcomes,
    read_items,
    sample,
    scored,
    shortened,
    standing,
    text_of,
    texts_of,
    unknown,
)
from unmask.evaluation.score import Score
from unmask.evaluation.seams import seams

Scored = tuple["Question", list[Score]]
READINGS = ("sum", "mean", "bytes")
PROTOCOL = (
    "per cent of questions whose right answer has the largest log-probability given the context: summed over its "
    "tokens, or divided by its tokens (mean) or its UTF-8 bytes (bytes); ties share the point; questions with an "
    "answer of which no token is scored are left out"
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
                    f"{where}: 'label' must be the number of the right choice, 0 to {len(choices) - 1}, "
                    f"not {json.dumps(label)}"
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
    split, whole = _seams(model, questions)
    contexts = [q.context[:s] for q, s in zip(questions, split, strict=True) for _ in q.choices]
    answers = [q.context[s:] + c for q, s in zip(questions, split, strict=True) for c in q.choices]
    events = Events()
    scores = list(events.see(scored(model, answers, contexts, plan=options.plan, watch=options.watch, what="answers")))
    which = _scored(questions, scores, whole)
    known = [one for one in which if one is not None]
    rights = _rights(known)
    measured = {n: macro([right], options.seed)[0] if len(right) else None for n, right in rights.items()}
    labels = Counter(q.label for q, _ in known)
    moved = int(sum(s < len(q.context) for q, s in zip(questions, split, strict=True)))
    gone = sum(not a.context and bool(b.context) for a, b in zip(questions, asked, strict=True))
    return {
        "suite": "choice",
        "label": "accuracy by summed log-probability, per cent",
        "protocol": PROTOCOL,
        **events.named(),
        **in_percent(measured["sum"]),
        "interval_over": "questions",
        "chance": 100 * float(np.mean([1 / len(q.choices) for q, _ in known])) if known else None,
        "majority_label": 100 * max(labels.values()) / len(known) if known else None,
        "counts": {
            "questions": len(questions),
            "unscorable": len(questions) - len(known),
            "choices": len(answers),
            "scored_tokens": sum(s.tokens for s in scores),
            "merged_seams": moved,
            "shortened_contexts": shorter,
            "texts_with_unknown_tokens": unknown(model, [q.context + c for q in questions for c in q.choices]),
        },
        "warnings": _warnings(questions, moved, events.merged, shorter, gone, len(questions) - len(known)),
        "limit": options.limit,
        "seed": options.seed,
        "readings": [{"reading": name, **in_percent(m)} for name, m in measured.items()],
        **(_items(which, rights["sum"]) if options.items else {}),
    }


def _items(which: Sequence[Scored | None], rights: np.ndarray) -> dict[str, Any]:
    """By summed log-probability."""
    own = iter(rights.tolist())
    return outcomes("questions", [None if one is None else next(own) for one in which])


def _rights(known: list[Scored]) -> dict[str, np.ndarray]:
    """(Q,) of each reading: whether the right choice stands first, a share where it ties."""
    rights: dict[str, list[float]] = {name: [] for name in READINGS}
    for q, own in known:
        for name, (values, tolerance) in _readings(q, own).items():
            rights[name].append(standing(values, np.arange(len(own)) == q.label, tolerance).precision())
    return {name: np.array(right) for name, right in rights.items()}


def _scored(questions: list[Question], scores: list[Score], whole: list[bool]) -> list[Scored | None]:
    """Each question with its answers' scores; None unless all have tokens of their own (`whole`) that were scored."""
    first = starts([len(q.choices) for q in questions])
    own = [scores[a:b] for a, b in itertools.pairwise(first)]
    each = zip(questions, own, whole, strict=True)
    return [(q, s) if ok and all(one.tokens for one in s) else None for q, s, ok in each]


def _seams(model: Model, questions: list[Question]) -> tuple[list[int], list[bool]]:
    """Where each question's context is cut: at its end, or where the first token begins that spans it in some answer;
    and whether every answer has a token of its own.

    A token that spans the seam of one answer would be scored there and be context elsewhere, so the answers of a
    question would be compared by different events. All of them are scored from the earliest such token on.
    """
    tokenizer = tokenizer_of(model)
    out, whole = [], []
    for q in questions:
        found, at = seams(tokenizer, [q.context] * len(q.choices), q.choices), len(q.context)
        whole.append(all(first < len(ids) for first, ids in zip(found.token, found.ids, strict=True)))
        while (earlier := int(found.begin.min())) < at:  # there, a token of another answer may span the seam
            at = earlier
            found = seams(tokenizer, [q.context[:at]] * len(q.choices), [q.context[at:] + c for c in q.choices])
        out.append(at)
    return out, whole


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


def _warnings(
    questions: list[Question], moved: int, merged: int, shorter: int, gone: int, unscorable: int
) -> list[str]:
    out = []
    if unscorable:
        out.append(
            f"{unscorable} of {len(questions)} questions are left out: no token of one of their answers could be scored"
        )
    if shorter:
        lost = f", {gone} of them all of it" if gone else ""
        out.append(
            f"{shorter} of {len(questions)} contexts are longer than the model's room and lost their beginning{lost}"
        )
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
