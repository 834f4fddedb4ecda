"""Bits per byte of text; for models that give texts no probability, pseudo bits per byte, labelled so.

The text is read a part at a time, so memory does not grow with it but by a few numbers a document and window.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from unmask import keyed
from unmask.batch import starts
from unmask.errors import UserError
from unmask.evaluation.base import Model, objective_of, release, shape_of, tokenizer_of
from unmask.evaluation.bound import Draws
from unmask.evaluation.events import cut_note, event, label, start_of, window_note
from unmask.evaluation.heldout import content_tokens, unigram_losses
from unmask.evaluation.intervals import ratio
from unmask.evaluation.items import outcomes
from unmask.evaluation.plans import LIKELIHOOD, Query, in_source, opening, plan_of, room, source_room
from unmask.evaluation.plans import closes as ends
from unmask.evaluation.score import log_losses
from unmask.evaluation.watch import Watch, silent
from unmask.evaluation.windows import Windows, behind, between, read, side_by_side
from unmask.objectives.base import Plan
from unmask.text.corpus import utf8_length, well_formed
from unmask.tokens.tokenizer import Tokenizer

FEW = 20
"""Documents with a scored token below which intervals come from pieces of text instead."""
SAMPLE = 1024
"""Tokens that a pseudo-log-likelihood is estimated from, if no limit is given."""
BOUND = Draws(16)
"""Of a bound, in each piece: the pieces vary more than the draws."""
PART = 1 << 16
"""Tokens of the windows that are read together, about."""


class Text(Protocol):
    """D documents as ids: `data.shards.Shards` is one."""

    @property
    def tokens(self) -> np.ndarray: ...  # (N,)

    @property
    def documents(self) -> np.ndarray: ...  # (D + 1,)

    @property
    def bytes(self) -> np.ndarray: ...  # (D,) of UTF-8


@dataclass(frozen=True)
class Encoded:
    """Documents that a user gives."""

    tokens: np.ndarray
    documents: np.ndarray
    bytes: np.ndarray
    notes: tuple[str, ...] = ()
    """What reading had to say."""


def encode(model: Model, documents: Iterable[str]) -> Encoded:
    """Documents as ids; those without a token are left out."""
    tokenizer = tokenizer_of(model)
    small = np.uint16 if tokenizer.vocabulary.size <= 1 << 16 else np.int32
    tokens, lengths, size = [np.zeros(0, small)], [0], [0]
    for texts in _groups(documents):
        ids = tokenizer.encode_batch(texts)
        tokens.append(np.concatenate(ids).astype(small))
        lengths += [len(i) for i in ids]
        size += [utf8_length(t) for t in texts]
    some = np.array(lengths) > 0
    if not some.any():
        raise UserError("the text to evaluate on is empty: give at least one token of text")
    return Encoded(np.concatenate(tokens), starts(np.array(lengths)[some]), np.array(size)[some])


def _groups(documents: Iterable[str]) -> Iterator[list[str]]:
    """Documents, well-formed, in lists of about a million characters."""
    group: list[str] = []
    size = 0
    for document in documents:
        group.append(well_formed(document))
        size += len(document)
        if size >= 1 << 20:
            yield group
            group, size = [], 0
    if group:
        yield group


def bits_per_byte(
    model: Model,
    text: Text,
    counts: np.ndarray | None = None,
    limit: int | None = None,
    seed: int = 0,
    *,
    plan: Plan | None = None,
    stride: int | None = None,
    watch: Watch = silent,
    items: bool = False,
) -> dict[str, Any]:
    """Σ −log2 p / bytes over the documents' tokens and, where the objective has one, their end tokens.

    A plan that gives texts no probability is measured by −log2 p(token | all others), over a keyed sample of tokens:
    pseudo bits per byte, which no other kind may be compared with. A sample's bits a token are scaled
    by tokens / bytes.

    Without a start token, a document's first token is not scored and its bytes are not counted.

    counts  (V,) of the training text, for the unigram floor
    limit   how many examples may run, drawn by key: pieces of text (None = all); for pseudo bits per byte copies
            of pieces, one a sampled token, for a bound `BOUND` copies of each sampled piece (None = 1,024)
    stride  documents beyond the model's room are read through rolling windows that score so many tokens each
            (`windows`); None = cut into pieces, each by itself
    loss, unigram_floor  nats per scored content token, control and end tokens left out, as in `heldout`
    """
    objective, tokenizer = objective_of(model), tokenizer_of(model)
    plan = plan_of(objective, plan)
    pseudo, start = plan not in LIKELIHOOD, start_of(model, plan)
    closes = plan == "left_to_right" and ends(objective, plan)
    bound = plan == "bound"
    limit = SAMPLE if (pseudo or bound) and limit is None else limit
    if bound and limit is not None:
        limit = max(1, limit // BOUND.number)
    windows, note = _cut(model, plan, np.asarray(text.documents, np.int64), stride)
    tokens = int(windows.scored.sum())
    windows, sample, more = _sampled(windows, limit, pseudo, seed)
    sampled, note = bool(more), note + more
    size = np.asarray(text.bytes, np.int64)
    if opening(objective, model.vocabulary, plan):
        size = size - _first_bytes(tokenizer, text, size)
    askable = tokens + (len(size) if closes else 0)
    sums = _sums(model, plan, text, windows, sample, closes, counts, watch)
    said = event(model, plan, end=closes, draws=BOUND, loss=True)
    return {
        "suite": "bpb",
        "label": label(model, plan),
        "plan": plan,
        "event": (said.replace("sum over", "mean over a sample of", 1) if pseudo and sampled else said) + note,
        "start": None if start is None else tokenizer.token(start),
        "stride": stride,
        "limit": limit,
        **_measure(text, size, windows, sums, askable, sampled, seed, items),
        "loss": sums.nats / sums.content if sums.content else None,
        "unigram_floor": None if counts is None or not sums.content else sums.floor / sums.content,
        "lossy": tokenizer.losses,
        "seed": seed,
    }


def _first_bytes(tokenizer: Tokenizer, text: Text, size: np.ndarray) -> np.ndarray:
    """(D,) bytes of each document's first token, as the tokenizer writes it by itself; none of an unknown token's."""
    start = np.asarray(text.documents, np.int64)
    some = np.flatnonzero(np.diff(start) > 0)
    ids, which = np.unique(np.asarray(text.tokens[start[some]]), return_inverse=True)
    content = np.diff(tokenizer.words.place)  # also of tokens that hold a part of a character
    spelt = [(i, tokenizer.decode([i])) for i in ids.tolist()]
    each = np.array([int(content[i]) if "\ufffd" in said else utf8_length(said) for i, said in spelt], np.int64)
    each[tokenizer.vocabulary.is_special[ids]] = 0
    out = np.zeros(len(size), np.int64)
    out[some] = each[which]
    return np.minimum(out, size)


# ---------------------------------------------------------------- what is scored


def _cut(model: Model, plan: Plan, documents: np.ndarray, stride: int | None) -> tuple[Windows, str]:
    """The windows of the documents (D + 1 offsets), and what the event adds where any has several."""
    objective, shape = objective_of(model), shape_of(model)
    longest, first = room(objective, shape, plan), opening(objective, model.vocabulary, plan)
    source = source_room(shape, plan, objective) if in_source(objective, plan) else None
    if stride is None:
        windows, note = side_by_side(documents, longest, first), cut_note(longest, first)
    elif not 1 <= stride <= longest - first:
        raise UserError(
            f"stride={stride} does not fit: a window of this model scores at most {longest - first} tokens of text, so "
            f"give 1 to {longest - first}"
        )
    elif plan in LIKELIHOOD:
        windows, note = behind(documents, longest, stride, source, first), window_note(longest, stride, plan, source)
    else:
        windows, note = between(documents, longest, stride), window_note(longest, stride, plan, None)
    return windows, note if len(windows) > len(documents) - 1 else ""


def _sampled(windows: Windows, limit: int | None, pseudo: bool, seed: int) -> tuple[Windows, np.ndarray | None, str]:
    """The windows that run, the tokens that alone are asked there (ascending; None = all), and what the event adds.

    Pieces are drawn, or tokens where each runs in a copy of its own; if the limit allows for all, nothing is.
    """
    whole, unit = (int(windows.scored.sum()), "tokens") if pseudo else (len(windows), "pieces")
    if limit is None or limit >= whole:
        return windows, None, ""
    drawn, sample = np.sort(_drawn(whole, limit, seed)), None
    if pseudo:
        sample = _positions(windows, drawn)
        drawn = np.unique(np.searchsorted(windows.begin + windows.skip, sample, "right") - 1)
    note = f"; a sample of {limit} of {whole} {unit}, its bits a token times tokens / bytes"
    return windows.take(drawn), sample, note


def _drawn(n: int, limit: int, seed: int) -> np.ndarray:
    """`limit` of n numbers, without replacement."""
    return keyed.permuted(np.arange(min(limit, n)), n, keyed.row_keys(seed, 0, 0, "sample"))


def _positions(windows: Windows, number: np.ndarray) -> np.ndarray:
    """Where the scored tokens of these numbers (ascending) stand in the token array."""
    first = np.cumsum(windows.scored)
    w = np.searchsorted(first, number, "right")
    return (windows.begin + windows.skip)[w] + number - (first - windows.scored)[w]


def _queries(text: Text, windows: Windows, sample: np.ndarray | None, closes: bool) -> Iterator[tuple[slice, Query]]:
    """The windows a part at a time; `sample`: the positions (ascending) that alone are asked; None = all."""
    part = np.cumsum(windows.length) // PART
    cuts = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), len(windows)]
    for begin, end in itertools.pairwise(cuts):
        here = slice(begin, end)
        query, at = read(text.tokens, windows.take(here))
        rows = replace(query.rows, ends=query.rows.ends & closes)
        asked = query.asked if sample is None else query.asked & _among(at, sample)
        rows = replace(rows, key=windows.begin[here].astype(np.uint64))  # of the draws of a bound
        yield here, Query(rows, query.given, asked, draws=BOUND)


def _among(at: np.ndarray, sample: np.ndarray) -> np.ndarray:
    """(n,) bool: is one of `sample`, which ascends."""
    return sample[np.minimum(np.searchsorted(sample, at), len(sample) - 1)] == at


# ---------------------------------------------------------------- the numbers


@dataclass
class _Sums:
    """Of each window bits, and how many tokens they belong to; of content tokens nats under model and floor."""

    bits: np.ndarray  # (W,)
    scored: np.ndarray  # (W,)
    nats: float = 0.0
    floor: float = 0.0
    content: int = 0


def _sums(
    model: Model,
    plan: Plan,
    text: Text,
    windows: Windows,
    sample: np.ndarray | None,
    closes: bool,
    counts: np.ndarray | None,
    watch: Watch,
) -> _Sums:
    sums = _Sums(np.zeros(len(windows)), np.zeros(len(windows), np.int64))
    stands_for_text = content_tokens(model.vocabulary)
    floor = np.zeros(model.vocabulary.size) if counts is None else unigram_losses(counts, model.vocabulary)
    with watch("windows of text", len(windows)) as advance:
        for here, query in _queries(text, windows, sample, closes):
            nll, _ = log_losses(model, query, plan=plan)
            rows, scored = query.rows, ~np.isnan(nll)
            window = np.concatenate([rows.row, np.arange(len(rows.lengths))])[scored]
            sums.bits[here] = np.bincount(window, nll[scored] / np.log(2), len(rows.lengths))
            sums.scored[here] = np.bincount(window, minlength=len(rows.lengths))
            content = scored[: len(rows.tokens)] & stands_for_text[rows.tokens]
            sums.nats += float(nll[: len(rows.tokens)][content].sum())
            sums.floor += float(floor[rows.tokens[content]].sum())
            sums.content += int(content.sum())
            advance(len(rows.lengths))
            if here.stop < len(windows):
                release()
    return sums


def _measure(
    text: Text, size: np.ndarray, windows: Windows, sums: _Sums, askable: int, sampled: bool, seed: int, items: bool
) -> dict[str, Any]:
    """Value, interval and counts. What varies: documents, or pieces of text where those with scored tokens are few.

    size     (D,) bytes of the documents that the event is about
    askable  how many tokens it has, end tokens included
    """
    owned = np.bincount(windows.text, sums.scored, len(size))
    by_documents = int((owned > 0).sum()) >= FEW
    bits, scored = (
        (np.bincount(windows.text, sums.bits, len(size)), owned) if by_documents else (sums.bits, sums.scored)
    )
    if by_documents and not sampled:
        weights, scale = size, 1.0
    else:  # bits a token, times tokens a byte
        some = scored > 0
        bits, weights, scale = bits[some], scored[some], askable / max(int(size.sum()), 1)
    measured = ratio(bits, weights, seed)
    over = "documents" if by_documents else "pieces"
    return {
        "value": measured.value * scale if sums.scored.any() else None,
        "interval": None if measured.interval is None else [bound * scale for bound in measured.interval],
        "standard_error": None if measured.error is None else measured.error * scale,
        "interval_over": over,
        "counts": {
            "documents": len(size),
            "tokens": int(text.documents[-1] - text.documents[0]),
            "bytes": int(size.sum()),
            "scored": int(sums.scored.sum()),
        },
        **(outcomes(over, bits.tolist(), (), weights.tolist(), scale) if items else {}),
    }
