"""Measurements by name. Each gives one dictionary, ready for JSON, that says what its number is.

bpb   bits per byte of text; for models that give texts no probability, pseudo bits per byte, labelled so
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from unmask import keyed
from unmask.batch import starts
from unmask.data.corpus import utf8_length, well_formed
from unmask.data.sampling import Pieces, read_rows
from unmask.errors import UserError, nearest
from unmask.evaluate.base import Model, objective_of, shape_of, tokenizer_of
from unmask.evaluate.heldout import content_tokens, unigram_losses
from unmask.evaluate.intervals import ratio
from unmask.evaluate.plans import Query, room
from unmask.evaluate.score import cut_note, event, log_losses

FEW = 20
"""Documents below which intervals come from pieces of documents instead."""
SAMPLE = 1024
"""Tokens that a pseudo-log-likelihood is estimated from, if no limit is given."""


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


def encode(model: Model, documents: Iterable[str]) -> Encoded:
    """Documents as ids; those without a token are left out."""
    texts = [well_formed(d) for d in documents]
    ids = tokenizer_of(model).encode_batch(texts)
    pairs = [(i, utf8_length(t)) for i, t in zip(ids, texts, strict=True) if len(i)]
    if not pairs:
        raise UserError("the text to evaluate on is empty: give at least one token of text")
    return Encoded(
        np.concatenate([i for i, _ in pairs]), starts([len(i) for i, _ in pairs]), np.array([b for _, b in pairs])
    )


def bits_per_byte(
    model: Model, text: Text, counts: np.ndarray | None = None, limit: int | None = None, seed: int = 0
) -> dict[str, Any]:
    """Σ −log2 p / bytes over the documents' tokens and, where the objective has one, their end tokens.

    A model that gives texts no probability is measured by −log2 p(token | all others), averaged over a keyed
    sample of tokens and scaled by tokens / bytes: pseudo bits per byte, which no other kind may be compared with.

    counts  (V,) of the training text, for the unigram floor
    limit   how many examples may run, drawn by key: pieces of text (None = all); for pseudo bits per byte copies
            of pieces, one a sampled token (None = 1,024)
    loss, unigram_floor  nats per scored content token, control and end tokens left out, as in `heldout`
    """
    objective, tokenizer = objective_of(model), tokenizer_of(model)
    pseudo = objective.plan != "left_to_right"
    longest = room(objective, shape_of(model))
    pieces, size = Pieces.cut(np.asarray(text.documents), longest), np.asarray(text.bytes, np.int64)
    number = np.arange(len(pieces))
    query = Query.of(read_rows(text.tokens, pieces, number, np.zeros(len(pieces), np.uint64), number, 0.0))
    sampled = pseudo or (limit is not None and limit < len(pieces))
    if pseudo:
        query = Query(query.rows, query.given, _sample(len(query.rows.tokens), limit or SAMPLE, seed))
    elif sampled and limit is not None:
        query = _some_pieces(query, limit, seed)
    nll = log_losses(model, query)
    result = _measure(query, pieces.document, nll, size, 0 if pseudo else 1, sampled, seed)
    cuts = bool((np.bincount(pieces.document) > 1).any())
    said = event(objective, model.vocabulary, tokenizer.token, end=not pseudo)
    if pseudo:
        said = said.replace("sum over tokens", "mean over a sample of tokens", 1)
    return {
        "suite": "bpb",
        "label": "pseudo bits per byte" if pseudo else "bits per byte",
        "event": said + (cut_note(longest) if cuts else ""),
        **result,
        **_content(model, query, nll, counts),
        "lossy": tokenizer.losses,
        "seed": seed,
    }


SUITES = {"bpb": bits_per_byte}


def evaluate(
    model: Model, suite: str, text: Text, counts: np.ndarray | None = None, limit: int | None = None, seed: int = 0
) -> Mapping[str, Any]:
    """Run a suite by name."""
    if suite not in SUITES:
        raise UserError(f"no suite '{suite}' (known: {', '.join(SUITES)}){nearest(suite, SUITES)}")
    if limit is not None and limit < 1:
        raise UserError(f"limit={limit} must be at least 1")
    return SUITES[suite](model, text, counts, limit, seed)


# ---------------------------------------------------------------- what is scored


def _some_pieces(query: Query, limit: int, seed: int) -> Query:
    """Ask for `limit` of the pieces only, without replacement."""
    n = len(query.rows.lengths)
    kept = _sample(n, limit, seed)
    rows = replace(query.rows, ends=query.rows.ends & kept)
    return Query(rows, query.given, query.asked & np.repeat(kept, rows.lengths))


def _sample(n: int, limit: int, seed: int) -> np.ndarray:
    """(n,) bool: `limit` of n tokens, without replacement."""
    asked = np.zeros(n, bool)
    asked[keyed.permuted(np.arange(min(limit, n)), n, keyed.row_keys(seed, 0, 0, "sample"))] = True
    return asked


# ---------------------------------------------------------------- the numbers


def _measure(
    query: Query, document: np.ndarray, nll: np.ndarray, size: np.ndarray, ends: int, sampled: bool, seed: int
) -> dict[str, Any]:
    """Value, interval and counts. What varies: documents; pieces where those are few or only a sample was scored.

    `size` (D,) are bytes, and `ends` how many end tokens a document has in the event.
    """
    rows = query.rows
    scored = ~np.isnan(nll)
    piece = np.concatenate([rows.row, np.arange(len(rows.lengths))])[scored]
    bits = nll[scored] / np.log(2)
    by_documents = not sampled and len(size) >= FEW
    if by_documents:
        measured = ratio(np.bincount(document[piece], bits, len(size)), size, seed)
        scale = 1.0
    else:  # bits a token, times tokens a byte
        number = np.bincount(piece, minlength=len(rows.lengths))
        here = number > 0
        measured = ratio(np.bincount(piece, bits, len(rows.lengths))[here], number[here], seed)
        scale = (len(rows.tokens) + ends * len(size)) / int(size.sum())
    return {
        "value": measured.value * scale,
        "interval": None if measured.interval is None else [bound * scale for bound in measured.interval],
        "standard_error": None if measured.error is None else measured.error * scale,
        "interval_over": "documents" if by_documents else "pieces",
        "counts": {
            "documents": len(size),
            "tokens": len(rows.tokens),
            "bytes": int(size.sum()),
            "scored": int(scored.sum()),
        },
    }


def _content(model: Model, query: Query, nll: np.ndarray, counts: np.ndarray | None) -> dict[str, float | None]:
    """Loss and unigram floor over the scored content tokens, in nats a token."""
    tokens = query.rows.tokens
    here = ~np.isnan(nll[: len(tokens)]) & content_tokens(model.vocabulary)[tokens]
    if not here.any():
        return {"loss": None, "unigram_floor": None}
    floor = None if counts is None else float(unigram_losses(counts, model.vocabulary)[tokens[here]].mean())
    return {"loss": float(nll[: len(tokens)][here].mean()), "unigram_floor": floor}
