"""Log-probabilities of texts. Every score names the event whose log-probability was summed.

A query is expanded by a plan (`plans`) into Examples, which take the training path: collate, network, loss at
targets. The result depends neither on the batch nor on padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from unmask.batch import starts
from unmask.data.collate import Placement, collate, one_per_row, pack
from unmask.data.corpus import utf8_length, well_formed
from unmask.data.tokenizer import Tokenizer
from unmask.errors import UserError
from unmask.evaluate.base import (
    Model,
    device_of,
    evaluating,
    objective_of,
    release,
    shape_of,
    states_of,
    token_losses,
    tokenizer_of,
)
from unmask.evaluate.events import EDGE, ONLY, SEAM, context_note, cut_note, event, start_of
from unmask.evaluate.plans import FORWARD, Query, expand, in_source, opening, plan_of, room, source_room
from unmask.evaluate.windows import read, side_by_side
from unmask.objectives.base import LM, Plan, Shape, Sizes
from unmask.train.devices import to_device

BATCH_TOKENS = 4096
"""Tokens of one forward pass, about."""
PART = 1 << 18
"""Characters of the texts that are encoded and scored together; memory grows with the scores alone beyond that."""


@dataclass(frozen=True)
class Score:
    """The log-probability (nats) of one text.

    each    the addends, one a scored token (the end token last, where it is asked for)
    tokens  how many they are; bytes and words: UTF-8 bytes, and words between white space, of the scored text
    start   the start token in front of it; None where the plan or the tokenizer has none
    greedy  every scored token was the likeliest
    merged  a token spans the seam of context and text, or an edge of `only`: it is scored, and the event says so
    """

    logprob: float
    tokens: int
    bytes: int
    words: int
    event: str
    plan: Plan
    start: str | None
    greedy: bool
    merged: bool
    each: tuple[float, ...]

    @property
    def perplexity(self) -> float | None:
        """exp(−log p / tokens); None where nothing was scored."""
        return _perplexity(self.logprob, self.tokens)

    @property
    def word_perplexity(self) -> float | None:
        """exp(−log p / words): it does not depend on how words are cut into tokens."""
        return _perplexity(self.logprob, self.words)


def _perplexity(logprob: float, number: int) -> float | None:
    with np.errstate(over="ignore"):
        return float(np.exp(-logprob / number)) if number else None


def score(
    model: Model,
    texts: str | Sequence[str],
    context: str | Sequence[str] | None = None,
    plan: Plan | None = None,
    *,
    end: bool = False,
    only: Sequence[tuple[int, int]] | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> list[Score]:
    """Score each text, after its context where one is given.

    context  one for all texts, or one each. Context and text are encoded together, so no stray piece appears
             at the seam; where a token spans it, the scored text begins with that token (the event says so).
    plan     one of the objective's (`plans.plans_of`); None = its own
    end      also score the end of the document (decoder: what closes the span); plans by the chain rule only
    only     characters [begin, end) of each text: only tokens that overlap them are scored, given everything before
             (plans by the chain rule) or everything else
    """
    plan = plan_of(objective_of(model), plan)
    if end and plan not in FORWARD:
        raise UserError(f"the plan {plan} gives no probability to the end of a text: drop end")
    texts = [texts] if isinstance(texts, str) else list(texts)
    contexts = [context or ""] * len(texts) if context is None or isinstance(context, str) else list(context)
    if len(contexts) != len(texts):
        raise UserError(f"{len(contexts)} contexts for {len(texts)} texts: give one for all, or one each")
    spans = None if only is None else _checked(only, texts)
    tokenizer, bos = tokenizer_of(model), start_of(model, plan)
    start = None if bos is None else tokenizer.token(bos)
    found: list[Score] = []
    for number, part in enumerate(_parts(texts, contexts)):
        if number:
            release()
        encoded = _encode(tokenizer, contexts[part], texts[part], None if spans is None else spans[part])
        found += _scores(model, plan, encoded, end, start, batch_tokens)
    return found


def log_losses(
    model: Model, query: Query, batch_tokens: int = BATCH_TOKENS, side: Any = "right", plan: Plan | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(N + R,) −log p in nats at every answer slot of the query (see `plans`), NaN where nothing was asked, and
    whether the token was the likeliest.

    side: where padding stands; no result depends on it.
    """
    objective = objective_of(model)
    plan = plan_of(objective, plan)
    if plan == "pseudo_words":
        word = tokenizer_of(model).words(query.rows.tokens, query.rows.start)
        query = replace(query, rows=replace(query.rows, word=word))
    nll, likeliest = np.full(query.slots, np.nan), np.zeros(query.slots, bool)
    device = device_of(model.network)
    key = (objective.type, LM.name)
    with evaluating(model.network):
        for part in expand(objective, query, model.vocabulary, batch_tokens, plan):
            sizes = part.sizes
            shape = Shape(int(sizes.stream.max()), 0 if sizes.source is None else int(sizes.source.max()))
            heads = {objective.type: (LM,)}
            batch = collate({objective.type: part.examples}, heads, _place(sizes, shape), shape=shape, side=side)
            batch = to_device(batch, device)
            states = states_of({"model": model.network}, batch)["model"]["stream"]
            losses, hits = token_losses(LM, model.network.heads[LM.uses], states, batch.stream, batch.targets[key])
            n = len(part.slot)
            nll[part.slot] = losses[:n].double().cpu().numpy()
            likeliest[part.slot] = hits[:n].cpu().numpy()
    return nll, likeliest


def _place(sizes: Sizes, shape: Shape) -> Placement:
    """One example a row where they are about as long as each other: that needs no search, and often no mask."""
    used = sizes.stream.sum() + (0 if sizes.source is None else sizes.source.sum())
    if used * 8 >= len(sizes.stream) * (shape.stream + shape.source) * 7:
        return one_per_row(sizes)
    return pack(sizes, shape)


# ---------------------------------------------------------------- texts → query


@dataclass(frozen=True)
class _Encoded:
    """R texts as ids, each behind its context, and which tokens are asked."""

    tokens: np.ndarray  # (N,)
    start: np.ndarray  # (R + 1,)
    seam: np.ndarray  # (R,) tokens of the context
    asked: np.ndarray  # (N,) bool
    context: list[bool]
    scored: list[str]  # the text that is asked about
    notes: list[str]  # what the event adds
    merged: list[bool]


def _parts(texts: Sequence[str], contexts: Sequence[str]) -> Iterator[slice]:
    """Runs of texts of about PART characters."""
    begin = size = 0
    for i, (text, context) in enumerate(zip(texts, contexts, strict=True)):
        size += len(text) + len(context)
        if size >= PART:
            yield slice(begin, i + 1)
            begin, size = i + 1, 0
    if begin < len(texts):
        yield slice(begin, len(texts))


def _checked(only: Sequence[tuple[int, int]], texts: Sequence[str]) -> list[tuple[int, int]]:
    if len(only) != len(texts):
        raise UserError(f"{len(only)} spans in only for {len(texts)} texts: give one each")
    for (begin, end), text in zip(only, texts, strict=True):
        if not 0 <= begin <= end <= len(text):
            raise UserError(f"only={begin, end} lies outside its text of {len(text)} characters")
    return [(int(begin), int(end)) for begin, end in only]


def _encode(
    tokenizer: Tokenizer, contexts: Sequence[str], texts: Sequence[str], only: Sequence[tuple[int, int]] | None
) -> _Encoded:
    """Each context and text as one string; the seam is where the context's own ids end, or a token changes."""
    joined = [c + t for c, t in zip(contexts, texts, strict=True)]
    aligned = None if only is None else tokenizer.encode_aligned(joined)
    ids = tokenizer.encode_batch(joined) if aligned is None else [a.ids for a in aligned]
    distinct = [c for c in dict.fromkeys(contexts) if c]
    alone = dict(zip(distinct, tokenizer.encode_batch(distinct), strict=True))
    seams = [_common(alone[c], i) if c else 0 for c, i in zip(contexts, ids, strict=True)]
    merged = [bool(c) and s < len(alone[c]) for c, s in zip(contexts, seams, strict=True)]
    notes = [SEAM if m else "" for m in merged]
    start, seam = starts([len(i) for i in ids]), np.array(seams, np.int64)
    tokens, row = np.concatenate(ids), np.repeat(np.arange(len(ids)), np.diff(start))
    given = [bool(c) for c in contexts]
    asked = np.arange(len(tokens)) >= (start[:-1] + seam)[row]
    if only is None or aligned is None:
        return _Encoded(tokens, start, seam, asked, given, list(texts), notes, merged)
    begin, end = (np.concatenate([getattr(a, side) for a in aligned]) for side in ("begin", "end"))
    low, high = (np.array([len(c) for c in contexts])[:, None] + np.array(only, np.int64).reshape(-1, 2))[row].T
    # A token without characters of its own (a mark that the tokenizer puts in) belongs to what follows it.
    asked &= (begin < high) & ((end > low) | ((begin == end) & (begin >= low)))
    over = np.bincount(row[asked & ((begin < low) | (end > high))], minlength=len(ids)) > 0
    notes = [n + ONLY + (EDGE if o else "") for n, o in zip(notes, over, strict=True)]
    merged = [m or bool(o) for m, o in zip(merged, over, strict=True)]
    inside = [t[b:e] for t, (b, e) in zip(texts, only, strict=True)]
    return _Encoded(tokens, start, seam, asked, given, inside, notes, merged)


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """How many leading tokens two texts share."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def _query(model: Model, plan: Plan, text: _Encoded, end: bool) -> tuple[Query, np.ndarray, np.ndarray]:
    """The query for encoded texts, the text (W,) of each of its windows, and whose context (R,) is cut short.

    Texts beyond the trained length are cut as in training: into full pieces and a rest. Where the context is a
    source or a visible prefix, every piece gets all of it. Elsewhere it is the text's own beginning: of a context
    that is too long the end is kept, as much as lets the text stay whole, or half of the room.
    """
    objective, shape = objective_of(model), shape_of(model)
    longest, source = room(objective, shape, plan), source_room(shape, plan)
    seam, first = text.seam, opening(objective, model.vocabulary, plan)
    begin, size = text.start[:-1], np.diff(text.start)
    if in_source(objective, plan):
        lead, dropped = seam, np.zeros_like(seam)
        most = longest - 1 if source is None else source
        if (s := int(seam.max())) > most:
            raise UserError(
                f"the context has {s} tokens and the model room for {most}: shorten it by at least {s - most}"
            )
    else:
        own = size - seam
        kept = np.where(own < longest, longest - own, longest // 2)
        lead, dropped = np.zeros_like(seam), np.maximum(seam - kept, 0)
    rest = starts(size - lead - dropped)
    windows = side_by_side(rest, longest - lead if source is None else longest, first)
    owner = windows.text
    windows = replace(windows, begin=windows.begin + (begin + lead + dropped - rest[:-1])[owner])
    query, at = read(text.tokens, windows, (begin[owner], lead[owner]) if lead.any() else None)
    rows = replace(query.rows, ends=windows.ends & end)
    return Query(rows, query.given, query.asked & text.asked[at]), owner, dropped > 0


# ---------------------------------------------------------------- answers → scores


def _scores(model: Model, plan: Plan, text: _Encoded, end: bool, start: str | None, batch_tokens: int) -> list[Score]:
    query, owner, dropped = _query(model, plan, text, end)
    nll, likeliest = log_losses(model, query, batch_tokens, plan=plan)
    texts = len(text.seam)
    slots = np.concatenate([owner[query.rows.row], owner])  # the text of every answer slot
    order = np.argsort(slots, kind="stable")  # reading order: of end tokens, only a text's last is asked
    order = order[~np.isnan(nll[order])]
    number = np.bincount(slots[order], minlength=texts)
    each = np.split(-nll[order], np.cumsum(number)[:-1])
    greedy = np.bincount(slots[order], ~likeliest[order], texts) == 0
    named = _named(model, plan, text, end, np.bincount(owner, minlength=texts) > 1, dropped)
    return [
        Score(
            logprob=float(e.sum()),
            tokens=len(e),
            bytes=utf8_length(well_formed(said)),
            words=len(said.split()),
            event=name,
            plan=plan,
            start=start,
            greedy=bool(hit),
            merged=merged,
            each=tuple(e.tolist()),
        )
        for e, said, name, hit, merged in zip(each, text.scored, named, greedy, text.merged, strict=True)
    ]


def _named(model: Model, plan: Plan, text: _Encoded, end: bool, cut: np.ndarray, dropped: np.ndarray) -> list[str]:
    """The event of every text; `cut` (R,) those in several windows, `dropped` those whose context is cut short."""
    objective = objective_of(model)
    longest = room(objective, shape_of(model), plan)
    pieces, shortened = cut_note(longest, opening(objective, model.vocabulary, plan)), context_note(longest)
    said = {given: event(model, plan, given, end) for given in set(text.context)}
    return [
        said[c] + (shortened if d else "") + (pieces if k else "") + more
        for c, d, k, more in zip(text.context, dropped, cut, text.notes, strict=True)
    ]
