"""Measurements by name. Each gives one dictionary, ready for JSON, that says what its number is.

    bpb   bits per byte of text; for models that give texts no probability, pseudo bits per byte, labelled so
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from unmask import keyed
from unmask.batch import starts
from unmask.data.corpus import utf8_length, well_formed
from unmask.data.sampling import Pieces, read_rows
from unmask.errors import UserError, nearest
from unmask.evaluate.base import Model, objective_of, tokenizer_of
from unmask.evaluate.heldout import unigram_losses
from unmask.evaluate.intervals import ratio
from unmask.evaluate.plans import Query, room
from unmask.evaluate.score import cut_note, event, log_losses

FEW = 20
"""Documents below which intervals come from pieces of documents instead."""
SAMPLE = 1024
"""Targets that a pseudo-log-likelihood is estimated from, if no limit is given."""


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
    limit   tokens to score: of whole documents in a keyed order (None = all of them), or the sample (None = 1,024)
    loss, unigram_floor  nats per scored content token, control and end tokens left out, as in `heldout`
    """
    objective, tokenizer = objective_of(model), tokenizer_of(model)
    pseudo = objective.plan != "left_to_right"
    longest = room(objective, model.config.max_position)
    chosen = _whole(text) if pseudo else _some(text, limit, seed)
    pieces = _pieces(text, chosen, longest)
    rows = read_rows(
        text.tokens, pieces, np.arange(len(pieces)), np.zeros(len(pieces), np.uint64), np.arange(len(pieces)), 0.0
    )
    query = Query.of(rows)
    if pseudo:
        query = Query(rows, query.given, _sample(len(rows.tokens), limit or SAMPLE, seed))
    nll = log_losses(model, query)
    size = np.asarray(text.bytes, np.int64)[chosen]
    result = _measure(query, pieces.document, nll, size, pseudo, seed)
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
        raise UserError(f"no suite '{suite}'{nearest(suite, SUITES)}; known: {', '.join(SUITES)}")
    return SUITES[suite](model, text, counts, limit, seed)


# ---------------------------------------------------------------- what is scored


def _whole(text: Text) -> np.ndarray:
    return np.arange(len(text.documents) - 1)


def _some(text: Text, limit: int | None, seed: int) -> np.ndarray:
    """Whole documents in a keyed order until `limit` tokens are reached: at least one."""
    every = _whole(text)
    if limit is None:
        return every
    order = keyed.permuted(every, len(every), keyed.row_keys(seed, 0, 0, "documents"))
    tokens = np.cumsum(np.diff(text.documents)[order])
    return np.sort(order[: max(1, int(np.searchsorted(tokens, limit, "right")))])


def _pieces(text: Text, chosen: np.ndarray, longest: int) -> Pieces:
    """The pieces of the chosen documents; `document` counts within them."""
    cut = Pieces.cut(np.asarray(text.documents), longest)
    place = np.full(len(text.documents) - 1, -1)
    place[chosen] = np.arange(len(chosen))
    kept = np.flatnonzero(place[cut.document] >= 0)
    return Pieces(cut.begin[kept], cut.length[kept], place[cut.document[kept]], cut.ends[kept])


def _sample(n: int, limit: int, seed: int) -> np.ndarray:
    """(n,) bool: `limit` of n tokens, without replacement."""
    asked = np.zeros(n, bool)
    asked[keyed.permuted(np.arange(min(limit, n)), n, keyed.row_keys(seed, 0, 0, "tokens"))] = True
    return asked


# ---------------------------------------------------------------- the numbers


def _measure(
    query: Query, document: np.ndarray, nll: np.ndarray, size: np.ndarray, pseudo: bool, seed: int
) -> dict[str, Any]:
    """Value, interval and counts. What varies: documents; pieces where there are few or tokens were sampled."""
    rows = query.rows
    scored = ~np.isnan(nll)
    piece = np.concatenate([rows.row, np.arange(len(rows.lengths))])[scored]
    bits = nll[scored] / np.log(2)
    by_documents = not pseudo and len(size) >= FEW
    if by_documents:
        measured = ratio(np.bincount(document[piece], bits, len(size)), size, seed)
        scale = 1.0
    else:
        bits_of = np.bincount(piece, bits, len(rows.lengths))
        number = np.bincount(piece, minlength=len(rows.lengths))
        here = number > 0
        measured = ratio(bits_of[here], number[here], seed)
        scale = (len(rows.tokens) if pseudo else int(scored.sum())) / int(size.sum())
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
    here = ~np.isnan(nll[: len(tokens)]) & ~model.vocabulary.is_special[tokens]
    if not here.any():
        return {"loss": None, "unigram_floor": None}
    floor = None if counts is None else float(unigram_losses(counts, model.vocabulary)[tokens[here]].mean())
    return {"loss": float(nll[: len(tokens)][here].mean()), "unigram_floor": floor}
