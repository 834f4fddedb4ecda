"""Minimal pairs: does the model prefer the good sentence of two? (BLiMP: Warstadt et al. 2020)

A sentence's score is its summed log-probability under the model's plan, so encoders, decoders, prefix models
and encoder-decoders answer one question in the way each can: by log p(text), or by a pseudo-log-likelihood.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.evaluation.base import Model
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
    text_of,
    unknown,
)

KEYS = (("sentence_good", "sentence_bad"), ("good", "bad"))
"""Names of the two sentences in a line: BLiMP's, or short."""
PROTOCOL = (
    "per cent of pairs whose good sentence has the larger summed log-probability; a difference below 1e-6 nats times "
    "the longer one's tokens is a tie and counts half, as an identical pair does; pairs with a sentence of which no "
    "token is scored are left out; mean over sets"
)


@dataclass(frozen=True)
class PairSet:
    """One paradigm: pairs (good, bad), and the phenomenon it belongs to, where the file says so."""

    name: str
    pairs: tuple[tuple[str, str], ...]
    term: str | None = None


@dataclass(frozen=True)
class PairSets:
    """Sets of pairs, and the files of the directory that hold none."""

    sets: tuple[PairSet, ...]
    passed_over: tuple[str, ...] = ()


def read_pairs(path: str | Path) -> PairSets:
    """A file of pairs, or a directory of them: each file is a set; files that begin with no pair are passed over."""
    files = item_files(path)
    sets, passed_over = [], []
    for file in files:
        pairs: list[tuple[str, str]] = []
        terms: set[Any] = set()
        names: tuple[str, str] | None = None
        for where, item in read_items(file):
            names = names or next((k for k in KEYS if k[0] in item and k[1] in item), None)
            if names is None and len(files) > 1:
                break
            names = names or KEYS[0]
            pairs.append((text_of(item, names[0], where), text_of(item, names[1], where)))
            terms.add(item.get("linguistics_term"))
        if not pairs:
            passed_over.append(file.name)
            continue
        term = terms.pop() if len(terms) == 1 else None
        sets.append(PairSet(file.name.split(".json")[0], tuple(pairs), term if isinstance(term, str) else None))
    if not sets:
        raise UserError(f"{path} holds no pairs: give JSON lines with sentence_good and sentence_bad")
    return PairSets(tuple(sets), tuple(passed_over))


def minimal_pairs(model: Model, data: PairSets, options: Options) -> dict[str, Any]:
    """Accuracy of each set and their mean, in per cent, beside preferring the sentence of fewer tokens.

    `options.limit`: at most so many pairs a set. The interval resamples pairs within each set.
    """
    chosen = [
        replace(s, pairs=tuple(s.pairs[i] for i in sample(len(s.pairs), options.limit, options.seed, s.name)))
        for s in data.sets
    ]
    texts = [text for s in chosen for pair in s.pairs if pair[0] != pair[1] for text in pair]
    events = Events()
    scores = events.see(scored(model, texts, plan=options.plan, watch=options.watch, what="sentences"))
    sums = np.array([(s.logprob, s.tokens) for s in scores]).reshape(-1, 2, 2)  # pair, (good, bad), (log p, tokens)
    won, shorter, rows = _by_set(chosen, sums)
    scorable = [s[~np.isnan(s)] for s in won]
    some = [len(w) > 0 for w in scorable]
    whole, each = macro([w for w in scorable if len(w)], options.seed) if any(some) else (None, ())
    known = iter(each)
    for row, short in zip(rows, shorter, strict=True):
        own = next(known) if len(short) else None
        row |= {**in_percent(own), "length_baseline": 100 * float(short.mean()) if len(short) else None}
    return {
        "suite": "minimal-pairs",
        "label": "accuracy, per cent",
        "protocol": PROTOCOL,
        **events.named(),
        **in_percent(whole),
        "interval_over": "pairs within sets",
        "chance": 50.0,
        "length_baseline": 100 * float(np.mean([s.mean() for s in shorter if len(s)])) if any(some) else None,
        "counts": {
            "sets": len(rows),
            **{key: sum(row[key] for row in rows) for key in COUNTED},
            "scored_tokens": int(sums[..., 1].sum()),
            "texts_with_unknown_tokens": unknown(model, texts),
        },
        "passed_over": list(data.passed_over),
        "limit": options.limit,
        "seed": options.seed,
        **_by_term(chosen, scorable),
        "sets": [{k: row[k] for k in COLUMNS} for row in rows],
        **(_items(won) if options.items else {}),
    }


def _items(won: Sequence[np.ndarray]) -> dict[str, Any]:
    values = [None if np.isnan(v) else float(v) for w in won for v in w]
    return outcomes("pairs", values, [len(w) for w in won])


COUNTED = ("pairs", "ties", "identical", "unscorable")
COLUMNS = ("set", "value", "interval", "length_baseline", *COUNTED)


def _by_set(
    sets: Sequence[PairSet], sums: np.ndarray
) -> tuple[list[np.ndarray], list[np.ndarray], list[dict[str, Any]]]:
    """Of each set (n,) whether the good sentence won and whether it is the shorter (halves for ties), and its counts.

    `sums` holds the pairs that differ, in order. A pair with a sentence of which nothing is scored is won by nan, and
    left out of the second.
    """
    won, shorter, rows = [], [], []
    begin = 0
    for s in sets:
        same = np.array([good == bad for good, bad in s.pairs])
        here = sums[begin : begin + int((~same).sum())]
        begin += len(here)
        own, short = np.full(len(same), 0.5), np.full(len(same), 0.5)
        own[~same], short[~same] = preferred(here[:, :, 0], here[:, :, 1]), preferred(-here[:, :, 1])
        lost = np.zeros(len(same), bool)
        lost[~same] = (here[:, :, 1] == 0).any(1)
        ties = int((own[~same & ~lost] == 0.5).sum())
        won.append(np.where(lost, np.nan, own))
        shorter.append(short[~lost])
        counted = (len(same), ties, int(same.sum()), int(lost.sum()))
        rows.append({"set": s.name, **dict(zip(COUNTED, counted, strict=True))})
    return won, shorter, rows


def preferred(sums: np.ndarray, lengths: np.ndarray | None = None) -> np.ndarray:
    """(n,) 1 where the first of each pair (n, 2) is larger, 0 where the second is, 0.5 for ties.

    Sums of log-probabilities tie within 1e-6 nats times the longer one's tokens (`lengths`); whole numbers exactly.

    >>> preferred(np.array([[-5.0, -7.0], [-7.0, -5.0], [-5.0, -5.0 - 2e-6]]), np.array([[3, 3], [3, 3], [3, 2]]))
    array([1. , 0. , 0.5])
    """
    difference = sums[:, 0] - sums[:, 1]
    if lengths is not None:
        difference = np.where(np.abs(difference) < TIE * lengths.max(1), 0.0, difference)
    return (np.sign(difference) + 1) / 2


def _by_term(sets: Sequence[PairSet], outcomes: Sequence[np.ndarray]) -> dict[str, Any]:
    """The mean over the sets of each phenomenon, where every set names its own."""
    terms = [s.term for s in sets]
    if None in terms or len(set(terms)) == 1:
        return {}
    found: dict[str, list[float]] = {}
    for term, won in zip(terms, outcomes, strict=True):
        if len(won):
            found.setdefault(str(term), []).append(float(won.mean()))
    return {"terms": [{"term": t, "value": 100 * float(np.mean(v)), "sets": len(v)} for t, v in sorted(found.items())]}
