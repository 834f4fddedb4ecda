"""Log-probabilities of texts. Every score names the event whose log-probability was summed.

A query is expanded by a plan (`plans`) into Examples, which take the training path: collate, network, loss at
targets. The result depends neither on the batch nor on padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from unmask.batch import starts
from unmask.data.collate import Placement, collate, one_per_row, pack
from unmask.errors import UserError
from unmask.evaluation.base import (
    Model,
    device_of,
    evaluating,
    objective_of,
    release,
    shape_of,
    states_of,
    token_logits,
    tokenizer_of,
)
from unmask.evaluation.bound import DRAWS, Bounds, Draws, error, gathered
from unmask.evaluation.events import context_note, cut_note, event, span_note, start_of
from unmask.evaluation.plans import Query, closes, expand, in_source, opening, plan_of, room, source_most, source_room
from unmask.evaluation.seams import Encoded, apart, encode
from unmask.evaluation.windows import Windows, read, side_by_side
from unmask.objectives.base import LM, Plan, Shape, Sizes
from unmask.objectives.supervised import Supervised
from unmask.text.characters import word_spans
from unmask.text.corpus import utf8_length, well_formed
from unmask.train.devices import to_device

BATCH_TOKENS = 4096
"""Tokens of one forward pass, about."""
PART = 1 << 18
"""Characters of the texts that are encoded and scored together; memory grows with the scores alone beyond that."""


@dataclass(frozen=True)
class Score:
    """The log-probability (nats) of one text.

    each    the addends, one a scored token (the end token last, where it is asked for)
    tokens  how many they are; bytes and words: of the scored text in UTF-8 and by `tokens.words`, without what the
            first token stands for where no start token precedes it, so that it is not scored
    start   the start token in front of it; None where the plan or the tokenizer has none
    greedy  every scored token was the likeliest
    merged  a token spans the seam of context and text, or an edge of `only`, and the event says so
    error   of a bound: the standard error of its draws; None elsewhere
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
    error: float | None = None

    @property
    def perplexity(self) -> float | None:
        """exp(−log p / tokens); None where nothing was scored."""
        return _perplexity(self.logprob, self.tokens)

    @property
    def word_perplexity(self) -> float | None:
        """exp(−log p / words): it does not depend on how words are cut into tokens. None where nothing was scored."""
        return _perplexity(self.logprob, self.words if self.tokens else 0)


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
    draws: Draws = DRAWS,
    batch_tokens: int = BATCH_TOKENS,
) -> list[Score]:
    """Score each text, after its context where one is given.

    context  one for all texts, or one each. Context and text are encoded together, so no stray piece appears
             at the seam; where a token spans it, the scored text begins with that token (the event says so). To a model
             of pairs it is the source, without which a text has no probability, and encoded by itself as in training
    plan     one of the objective's (`plans.plans_of`); None = its own
    end      also score the end of the document (decoder: what closes the span); plans by the chain rule only
    only     characters [begin, end) of each text: only tokens that overlap them are scored, given everything before
             (left_to_right), everything else (pseudo, infill), or everything else but what is asked further to the
             right (pseudo_words; decoder, whose source shows what surrounds the span); a bound masks no others
    draws    of a bound, the same for every text: a score depends on no other

    What is too long for the model is cut, and the event says how: the text into pieces, the context at its beginning.
    """
    plan = plan_of(objective_of(model), plan, model.objective)
    if end and not closes(objective_of(model), plan):
        raise UserError(f"the plan {plan} gives no probability to the end of a text: drop end")
    texts = [texts] if isinstance(texts, str) else list(texts)
    contexts = [context or ""] * len(texts) if context is None or isinstance(context, str) else list(context)
    if len(contexts) != len(texts):
        raise UserError(f"{len(contexts)} contexts for {len(texts)} texts: give one for all, or one each")
    pairs = isinstance(objective_of(model), Supervised)
    if pairs:
        _require_sources(contexts, only)
    spans = None if only is None else _checked(only, texts)
    tokenizer, bos = tokenizer_of(model), start_of(model, plan)
    start = None if bos is None else tokenizer.token(bos)
    first = opening(objective_of(model), model.vocabulary, plan) > 0
    found: list[Score] = []
    for number, part in enumerate(_parts(texts, contexts)):
        if number:
            release()
        here = None if spans is None else spans[part]
        if pairs:
            encoded = apart(tokenizer, contexts[part], texts[part], source_most(objective_of(model), shape_of(model)))
        else:
            encoded = encode(tokenizer, contexts[part], texts[part], here, first)
        found += _scores(model, plan, encoded, end, start, batch_tokens, draws)
    return found


def log_losses(
    model: Model, query: Query, batch_tokens: int = BATCH_TOKENS, side: Any = "right", plan: Plan | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(N + R,) −log p in nats at every answer slot of the query (see `plans`), NaN where nothing was asked (an answer
    is never NaN: `answers` refuses it), and whether the token was the likeliest.

    side: where padding stands; no result depends on it. A bound's is the mean of its draws (`bound.Bounds`).
    """
    if plan_of(objective_of(model), plan) == "bound":
        found = bounds(model, query, batch_tokens, side)
        return found.losses, found.likeliest
    nll, likeliest = np.full(query.slots, np.nan), np.zeros(query.slots, bool)
    for a in answers(model, query, batch_tokens, side, plan):
        nll[a.slot] = a.loss.double().cpu().numpy()
        likeliest[a.slot] = (a.logits.argmax(-1) == a.token).cpu().numpy()
    return nll, likeliest


def bounds(model: Model, query: Query, batch_tokens: int = BATCH_TOKENS, side: Any = "right") -> Bounds:
    """What the draws of the plan `bound` say of a query."""
    return gathered(query, answers(model, query, batch_tokens, side, "bound"))


@dataclass(frozen=True)
class Answers:
    """Some of a query's answers: slots (k,), the logits (k, V) there, the tokens (k,) asked about, and −log p (k,); of
    a bound, also weights and draws (k,)."""

    slot: np.ndarray
    logits: Tensor
    token: Tensor
    loss: Tensor
    weight: np.ndarray | None = None
    draw: np.ndarray | None = None


def answers(
    model: Model, query: Query, batch_tokens: int = BATCH_TOKENS, side: Any = "right", plan: Plan | None = None
) -> Iterator[Answers]:
    """The answers of a query, each slot once (of a bound, once a draw that masks it), a chunk at a time; their logits
    live no longer than that.

    Where a plan goes by words and the query does not say where they start, the tokenizer's own words count. A model
    that gives some token no finite log-probability is refused: nothing could be said about it, and it must not pass
    for a token that was not asked about.
    """
    objective = objective_of(model)
    plan = plan_of(objective, plan)
    if plan == "pseudo_words" and query.rows.word is None:
        word = tokenizer_of(model).words(query.rows.tokens, query.rows.start)
        query = replace(query, rows=replace(query.rows, word=word))
    device, key = device_of(model.network), (objective.type, LM.name)
    with evaluating(model.network):
        for part in expand(objective, query, model.vocabulary, batch_tokens, plan):
            sizes = part.sizes
            shape = Shape(int(sizes.stream.max()), 0 if sizes.source is None else int(sizes.source.max()))
            heads = {objective.type: (LM,)}
            batch = collate({objective.type: part.examples}, heads, _place(sizes, shape), shape=shape, side=side)
            batch = to_device(batch, device)
            states = states_of({"model": model.network}, batch)["model"]["stream"]
            n = len(part.slot)  # what follows are targets of weight 0
            asked = batch.targets[key].map(lambda a, n=n: a[:n])  # type: ignore[misc]
            for here, logits, token in token_logits(LM, model.network.heads[LM.uses], states, batch.stream, asked):
                more = [None if a is None else a[here] for a in (part.weight, part.draw)]
                loss = _finite(F.cross_entropy(logits, token, reduction="none"))
                yield Answers(part.slot[here], logits, token, loss, *more)


def _finite(losses: Tensor) -> Tensor:
    if bool(losses.isfinite().all()):
        return losses
    raise UserError(
        "the model's log-probabilities are not finite numbers, so nothing can be measured: it has probably diverged "
        "in training; take an earlier checkpoint, or train with a smaller lr"
    )


def _place(sizes: Sizes, shape: Shape) -> Placement:
    """One example a row where they are about as long as each other: that needs no search, and often no mask."""
    used = sizes.stream.sum() + (0 if sizes.source is None else sizes.source.sum())
    if used * 8 >= len(sizes.stream) * (shape.stream + shape.source) * 7:
        return one_per_row(sizes)
    return pack(sizes, shape)


# ---------------------------------------------------------------- texts → query


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


def _require_sources(contexts: Sequence[str], only: object) -> None:
    if not all(contexts):
        raise UserError(
            "a model of pairs writes a target for a source, so a text by itself has no probability under it: give its "
            "source (lm.score(text, context=SOURCE), on the command line --context SOURCE)"
        )
    if only is not None:
        raise UserError("of a model of pairs whole targets are scored, not parts of a text: drop only")


def _checked(only: Sequence[tuple[int, int]], texts: Sequence[str]) -> list[tuple[int, int]]:
    if len(only) != len(texts):
        raise UserError(f"{len(only)} spans in only for {len(texts)} texts: give one each")
    for (begin, end), text in zip(only, texts, strict=True):
        if not 0 <= begin <= end <= len(text):
            raise UserError(f"only={begin, end} lies outside its text of {len(text)} characters")
    return [(int(begin), int(end)) for begin, end in only]


@dataclass(frozen=True)
class _Asked:
    """The query of R encoded texts, and how they were cut to the model's room."""

    query: Query
    owner: np.ndarray  # (W,) the text of each window
    dropped: np.ndarray  # (R,) bool: a part of the context was left out
    lead: np.ndarray  # (R,) tokens of context in front of every window of the text


def _query(model: Model, plan: Plan, text: Encoded, end: bool) -> _Asked:
    """The query for encoded texts.

    Texts beyond the trained length are cut as in training: into full pieces and a rest. Where the context is a
    source or a visible prefix, every piece gets all of it. Elsewhere it is the text's own beginning. Of a context
    that is too long the end is kept: what a source of its own holds, or else as much as lets the text stay whole, or
    half of the room.
    """
    objective, shape = objective_of(model), shape_of(model)
    longest, source = room(objective, shape, plan), source_room(shape, plan, objective)
    if text.span is not None and plan == "decoder":
        return _around(text, text.span, longest, source, end)
    seam, first = text.seam, opening(objective, model.vocabulary, plan)
    begin, size = text.start[:-1], np.diff(text.start)
    if in_source(objective, plan) and source is not None:
        kept = np.full(len(seam), source)
    else:
        own = size - seam
        kept = np.where(own < longest, longest - own, longest // 2)
    dropped = np.maximum(seam - kept, 0)
    lead = seam - dropped if in_source(objective, plan) else np.zeros_like(seam)
    rest = starts(size - lead - dropped)
    windows = side_by_side(rest, longest - lead if source is None else longest, first)
    owner = windows.text
    windows = replace(windows, begin=windows.begin + (begin + lead + dropped - rest[:-1])[owner])
    query, at = read(text.tokens, windows, ((begin + dropped)[owner], lead[owner]) if lead.any() else None)
    asked = query.asked & text.asked[at]
    nth = np.arange(len(owner)) - np.searchsorted(owner, owner)  # the number of each window in its text
    rows = replace(query.rows, ends=windows.ends & end, key=nth.astype(np.uint64))
    if text.span is not None and plan == "pseudo_words":  # the span is one word: its rest is hidden too
        inside = asked & np.roll(asked, 1)
        rows = replace(rows, word=~inside | (rows.place == 0))
    return _Asked(Query(rows, query.given, asked), owner, dropped > 0, lead)


def _around(text: Encoded, span: np.ndarray, longest: int, source: int | None, end: bool) -> _Asked:
    """Each text in one window around its span (R, 2); what surrounds it is context, the nearest where it is long."""
    own, left, right = span[:, 1] - span[:, 0], span[:, 0], np.diff(text.start) - span[:, 1]
    if (own > longest).any():
        k = int(np.argmax(own))
        raise UserError(
            f"only asks for {text.scored[k][:40]!r} …, {own[k]} tokens, and the model has room for {longest} in one "
            "span: shorten it"
        )
    most = longest - own if source is None else np.full(len(own), source)
    before = np.minimum(left, np.maximum(most - right, most // 2))
    after = np.minimum(right, most - before)
    owner = np.arange(len(own))
    ends = np.full(len(own), end)
    begin = text.start[:-1] + left - before
    query, at = read(text.tokens, Windows(owner, begin, before + own + after, before, own, ends))
    asked = query.asked & text.asked[at]
    return _Asked(Query(query.rows, query.given, asked, after), owner, before + after < left + right, before)


# ---------------------------------------------------------------- answers → scores


def _scores(
    model: Model, plan: Plan, text: Encoded, end: bool, start: str | None, batch_tokens: int, draws: Draws
) -> list[Score]:
    asked = _query(model, plan, text, end)
    query, owner, texts = replace(asked.query, draws=draws), asked.owner, len(text.seam)
    nll, likeliest, errors = _losses(model, query, batch_tokens, plan, owner, texts)
    slots = np.concatenate([owner[query.rows.row], owner])  # the text of every answer slot
    order = np.argsort(slots, kind="stable")  # reading order: of end tokens, only a text's last is asked
    order = order[~np.isnan(nll[order])]
    number = np.bincount(slots[order], minlength=texts)
    each = np.split(-nll[order], np.cumsum(number)[:-1])
    greedy = np.bincount(slots[order], ~likeliest[order], texts) == 0
    named = _named(model, plan, text, end, asked, draws)
    return [
        Score(
            logprob=float(e.sum()),
            tokens=len(e),
            bytes=utf8_length(well_formed(said)),
            words=len(word_spans(said)),
            event=name,
            plan=plan,
            start=start,
            greedy=bool(hit),
            merged=merged,
            each=tuple(e.tolist()),
            error=off,
        )
        for e, said, name, hit, merged, off in zip(each, text.scored, named, greedy, text.merged, errors, strict=True)
    ]


def _losses(
    model: Model, query: Query, batch_tokens: int, plan: Plan, owner: np.ndarray, texts: int
) -> tuple[np.ndarray, np.ndarray, Sequence[float | None]]:
    """`log_losses`, and the standard error of each text, the owner (W,) of its windows."""
    if plan != "bound":
        return *log_losses(model, query, batch_tokens, plan=plan), [None] * texts
    found = bounds(model, query, batch_tokens)
    off = error(found.totals)
    errors = [None] * texts if off is None else np.sqrt(np.bincount(owner, off**2, texts)).tolist()
    return found.losses, found.likeliest, errors


def _named(model: Model, plan: Plan, text: Encoded, end: bool, asked: _Asked, draws: Draws) -> list[str]:
    """The event of every text."""
    objective, shape = objective_of(model), shape_of(model)
    longest, source = room(objective, shape, plan), source_room(shape, plan, objective)
    behind = in_source(objective, plan)
    first, span = opening(objective, model.vocabulary, plan), text.span is not None
    said = {given: event(model, plan, given, end, span, draws) for given in set(text.context)}
    note = span_note if span and plan == "decoder" else context_note
    shortened = note(longest if source is None or not behind else source)
    pieces = np.bincount(asked.owner, minlength=len(text.seam)) > 1
    out = []
    for k, (given, more) in enumerate(zip(text.context, text.notes, strict=True)):
        cut = ""
        if pieces[k]:
            most = longest - int(asked.lead[k]) if source is None else longest
            cut = cut_note(most, first, ("each" if behind else "first") if given else None)
        out.append(said[given] + (shortened if asked.dropped[k] else "") + cut + more)
    return out
