"""Texts as ids behind their contexts: where the scored text starts, and which of its tokens are asked about.

A context and its text are encoded as one string, so that no stray piece appears between them. Where the text starts is
read off the characters that each token covers, never off equal ids: one id may cover more than it did (an unknown
token swallows what follows). A source and its target are two texts, and are encoded as two (`apart`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unmask.batch import starts
from unmask.evaluation.events import EDGE, ONLY, SEAM, SHORTENED, UNSCORED
from unmask.tokens.aligned import Aligned
from unmask.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Seams:
    """Where R texts start, each encoded as one string with the context before it.

    ids     of context and text together
    token   (R,) the first token that reaches beyond the context: what is scored starts there
    begin   (R,) the character of that string where this token begins; the context's length, or less where it is merged
    merged  (R,) bool: this token holds characters of the context too
    """

    ids: list[np.ndarray]
    token: np.ndarray
    begin: np.ndarray
    merged: np.ndarray


def seams(tokenizer: Tokenizer, contexts: Sequence[str], texts: Sequence[str]) -> Seams:
    """The seam of each context and text by the characters that tokens cover: equal ids may cover different ones.

    Only texts with a context need to be aligned.
    """
    joined = [c + t for c, t in zip(contexts, texts, strict=True)]
    after = [bool(c) for c in contexts]
    aligned = iter(tokenizer.encode_aligned([j for j, a in zip(joined, after, strict=True) if a]))
    plain = iter(tokenizer.encode_batch([j for j, a in zip(joined, after, strict=True) if not a]))
    return _seams([next(aligned) if a else next(plain) for a in after], [len(c) for c in contexts])


def _seams(encoded: Sequence[Aligned | np.ndarray], lengths: Sequence[int]) -> Seams:
    """The same for texts already encoded; those without characters start at their first token."""
    token, begin = np.zeros(len(encoded), np.int64), np.array(lengths, np.int64)
    for k, (text, seam) in enumerate(zip(encoded, lengths, strict=True)):
        if seam and not isinstance(text, np.ndarray):
            beyond = np.flatnonzero(text.end > seam)
            at = int(beyond[0]) if len(beyond) else len(text.ids)
            if len(beyond):
                begin[k] = min(seam, int(text.begin[at]))
                # A token without characters of its own (a mark that the tokenizer puts in) belongs to what follows it.
                while at and text.begin[at - 1] == text.end[at - 1] == text.begin[at]:
                    at -= 1
            token[k] = at
    ids = [text if isinstance(text, np.ndarray) else text.ids for text in encoded]
    return Seams(ids, token, begin, begin < np.array(lengths))


@dataclass(frozen=True)
class Encoded:
    """R texts as ids, each behind its context, and which tokens are asked."""

    tokens: np.ndarray  # (N,)
    start: np.ndarray  # (R + 1,)
    seam: np.ndarray  # (R,) tokens of the context
    asked: np.ndarray  # (N,) bool
    context: list[bool]
    scored: list[str]  # the text that is asked about
    notes: list[str]  # what the event adds
    merged: list[bool]
    span: np.ndarray | None  # (R, 2) the tokens [first, last + 1) of `only`


def encode(
    tokenizer: Tokenizer,
    contexts: Sequence[str],
    texts: Sequence[str],
    only: Sequence[tuple[int, int]] | None,
    opening: bool,
) -> Encoded:
    """Each context and text as one string; `opening`: its first token is not scored, as no start token precedes it."""
    joined, lengths = [c + t for c, t in zip(contexts, texts, strict=True)], [len(c) for c in contexts]
    aligned = tokenizer.encode_aligned(joined) if opening or only is not None else None
    seam = seams(tokenizer, contexts, texts) if aligned is None else _seams(aligned, lengths)
    unscored = [opening and at == 0 for at in seam.token.tolist()]
    notes = [(UNSCORED if u else SEAM) if m else "" for m, u in zip(seam.merged, unscored, strict=True)]
    start = starts([len(i) for i in seam.ids])
    tokens, row = np.concatenate(seam.ids), np.repeat(np.arange(len(joined)), np.diff(start))
    asked = np.arange(len(tokens)) >= (start[:-1] + seam.token)[row]
    merged = seam.merged.tolist()
    # What is asked about, as characters of context and text together.
    area = np.array(lengths)[:, None] + np.array([(0, len(t)) for t in texts] if only is None else only).reshape(-1, 2)
    span = None
    if only is not None and aligned is not None:
        begin, end = (np.concatenate([getattr(a, side) for a in aligned]) for side in ("begin", "end"))
        low, high = area[row].T
        # A token without characters of its own (a mark that the tokenizer puts in) belongs to what follows it.
        asked &= (begin < high) & ((end > low) | ((begin == end) & (begin >= low)))
        over = _over(joined, row, asked, begin, end, area)
        notes = [n + ONLY + (EDGE if o else "") for n, o in zip(notes, over, strict=True)]
        merged = [m or o for m, o in zip(merged, over, strict=True)]
        before = np.bincount(row[end <= low], minlength=len(joined))  # where nothing is asked, a place
        count = np.bincount(row[asked], minlength=len(joined))
        first = np.full(len(joined), len(tokens))
        np.minimum.at(first, row[asked], (np.arange(len(tokens)) - start[:-1][row])[asked])
        span = np.where(count > 0, first, before)[:, None] + np.stack([0 * count, count], 1)
    if aligned is not None:
        hidden = [int(a.end[0]) if u and len(a.ids) else 0 for a, u in zip(aligned, unscored, strict=True)]
        area[:, 0] = np.maximum(area[:, 0], hidden)
    scored = [whole[b:e] for whole, (b, e) in zip(joined, area.tolist(), strict=True)]
    return Encoded(tokens, start, seam.token, asked, [bool(c) for c in contexts], scored, notes, merged, span)


def apart(tokenizer: Tokenizer, contexts: Sequence[str], texts: Sequence[str], most: int) -> Encoded:
    """Sources and their targets, each side encoded by itself as in training; of a source the first `most` tokens."""
    first, second = tokenizer.encode_batch(list(contexts)), tokenizer.encode_batch(list(texts))
    notes = [SHORTENED.format(most=most) if len(ids) > most else "" for ids in first]
    first = [ids[:most] for ids in first]
    seam = np.array([len(ids) for ids in first], np.int64)
    start = starts(seam + np.array([len(ids) for ids in second], np.int64))
    tokens = np.concatenate([ids for both in zip(first, second, strict=True) for ids in both])
    asked = np.arange(len(tokens)) >= np.repeat(start[:-1] + seam, np.diff(start))
    n = len(first)
    return Encoded(tokens, start, seam, asked, [True] * n, list(texts), notes, [False] * n, None)


def _over(
    joined: Sequence[str], row: np.ndarray, asked: np.ndarray, begin: np.ndarray, end: np.ndarray, area: np.ndarray
) -> list[bool]:
    """Of each text, whether an asked token reaches over an edge of its area (R, 2) by more than white space."""
    out = [False] * len(joined)
    low, high = area[row].T
    for k in np.flatnonzero(asked & ((begin < low) | (end > high))).tolist():
        text = joined[row[k]]
        out[row[k]] |= bool(text[begin[k] : low[k]].strip() or text[high[k] : end[k]].strip())
    return out
