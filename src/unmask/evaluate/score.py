"""Log-probabilities of texts. Every score names the event whose log-probability was summed.

A query is expanded by its objective's plan (`plans`) into Examples, which take the training path: collate,
network, loss at targets. The result depends neither on the batch nor on padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unmask.batch import Rows
from unmask.data.collate import collate, pack
from unmask.data.corpus import utf8_length, well_formed
from unmask.data.sampling import Pieces
from unmask.data.special import Vocabulary
from unmask.errors import UserError
from unmask.evaluate.base import (
    Model,
    device_of,
    evaluating,
    objective_of,
    shape_of,
    states_of,
    token_losses,
    tokenizer_of,
)
from unmask.evaluate.plans import Query, expand, layout_of, room
from unmask.objectives.base import LM, Objective, Plan, Shape
from unmask.train.devices import to_device

BATCH_TOKENS = 8192
"""Tokens of one forward pass, about."""


@dataclass(frozen=True)
class Score:
    """The log-probability (nats) of one text.

    each    the addends, one a scored token (the end token last, where it is asked for)
    tokens  how many they are
    bytes   UTF-8 bytes of the scored text
    """

    logprob: float
    tokens: int
    bytes: int
    event: str
    plan: Plan
    each: tuple[float, ...]


def score(
    model: Model,
    texts: str | Sequence[str],
    context: str | Sequence[str] | None = None,
    plan: Plan | None = None,
    *,
    end: bool = False,
    batch_tokens: int = BATCH_TOKENS,
) -> list[Score]:
    """Score each text, after its context where one is given.

    context  one for all texts, or one each. Context and text are encoded together, so no stray piece appears
             at the seam; where a token spans it, the scored text begins with that token (the event says so).
    plan     must be the objective's own; None takes it
    end      also score the end of the document (left_to_right only)
    """
    objective, tokenizer = objective_of(model), tokenizer_of(model)
    if plan is not None and plan != objective.plan:
        raise UserError(f"plan {plan} does not fit a model of {objective.type}: its plan is {objective.plan}")
    if end and objective.plan != "left_to_right":
        raise UserError(f"a model of {objective.type} gives no probability to the end of a text: drop end")
    texts = [texts] if isinstance(texts, str) else list(texts)
    if not texts:
        return []
    contexts = [context or ""] * len(texts) if context is None or isinstance(context, str) else list(context)
    if len(contexts) != len(texts):
        raise UserError(f"{len(contexts)} contexts for {len(texts)} texts: give one for all, or one each")
    whole = tokenizer.encode_batch([c + t for c, t in zip(contexts, texts, strict=True)])
    before = tokenizer.encode_batch(contexts)
    seam = np.array([_common(a, b) for a, b in zip(before, whole, strict=True)], np.int64)
    merged = [s < len(b) for s, b in zip(seam, before, strict=True)]
    query, owner = _query(objective, model, whole, seam, end)
    nll = log_losses(model, query, batch_tokens)
    slots = np.concatenate([owner[query.rows.row], owner])  # the text of every answer slot
    order = np.lexsort((_reading_order(query), slots))
    order = order[~np.isnan(nll[order])]
    each = np.split(-nll[order], np.cumsum(np.bincount(slots[order], minlength=len(texts)))[:-1])
    pieces = np.bincount(owner, minlength=len(texts))
    longest = room(objective, shape_of(model))

    def named(i: int) -> str:
        said = event(objective, model.vocabulary, tokenizer.token, bool(contexts[i]), end)
        said += cut_note(longest) if pieces[i] > 1 else ""
        return said + ("; a token spans the seam of context and text, scored from it on" if merged[i] else "")

    return [
        Score(float(e.sum()), len(e), utf8_length(well_formed(texts[i])), named(i), objective.plan, tuple(e.tolist()))
        for i, e in enumerate(each)
    ]


def log_losses(model: Model, query: Query, batch_tokens: int = BATCH_TOKENS, side: Any = "right") -> np.ndarray:
    """(N + R,) −log p in nats at every answer slot of the query (see `plans`); NaN where nothing was asked.

    side: where padding stands; no result depends on it.
    """
    objective = objective_of(model)
    out = np.full(query.slots, np.nan)
    device = device_of(model.network)
    key = (objective.type, LM.name)
    with evaluating(model.network):
        for part in expand(objective, query, model.vocabulary, batch_tokens):
            sizes = part.sizes
            shape = Shape(int(sizes.stream.max()), 0 if sizes.source is None else int(sizes.source.max()))
            heads = {objective.type: (LM,)}
            batch = collate({objective.type: part.examples}, heads, pack(sizes, shape), shape=shape, side=side)
            batch = to_device(batch, device)
            states = states_of({"model": model.network}, batch)["model"]["stream"]
            losses, _ = token_losses(LM, model.network.heads[LM.uses], states, batch.stream, batch.targets[key])
            out[part.slot] = losses[: len(part.slot)].double().cpu().numpy()
    return out


def _query(
    objective: Objective, model: Model, whole: list[np.ndarray], seam: np.ndarray, end: bool
) -> tuple[Query, np.ndarray]:
    """The query for encoded texts (context first, `seam` tokens of it), and the text (R,) of each piece.

    Texts beyond the trained length are cut as in training: into full pieces and a rest. Where the context is a
    text's own beginning (causal, masked), context and text are cut as one; where it is a source or a visible
    prefix, every piece gets the whole context.
    """
    shape = shape_of(model)
    longest = room(objective, shape)
    repeat = objective.plan == "left_to_right" and layout_of(objective).kind != "causal"
    most = shape.source or longest - 1  # of a context that every piece gets
    parts: list[np.ndarray] = []
    given, owner, ends = [], [], []
    for i, (ids, s) in enumerate(zip(whole, seam.tolist(), strict=True)):
        lead = s if repeat else 0
        if lead > most:
            raise UserError(
                f"the context has {s} tokens and the model room for {most}: shorten it by at least {s - most}"
            )
        cut = Pieces.cut(np.array([lead, max(len(ids), lead)]), longest if shape.source else longest - lead)
        spans = list(zip(cut.begin.tolist(), (cut.begin + cut.length).tolist(), strict=True)) or [(lead, lead)]
        for k, (a, b) in enumerate(spans):
            parts.append(np.concatenate([ids[:lead], ids[a:b]]))
            given.append(lead if repeat else min(max(s - a, 0), b - a))
            owner.append(i)
            ends.append(end and k == len(spans) - 1)
    rows = Rows.of(parts, ends=np.array(ends, bool))
    return Query.of(rows, np.array(given, np.int64)), np.array(owner, np.int64)


def _reading_order(query: Query) -> np.ndarray:
    """(N + R,) sorts answer slots by reading order: an end token follows the last token of its piece."""
    return np.concatenate([np.arange(len(query.rows.tokens)), query.rows.start[1:] - 0.5])


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """How many leading tokens two texts share."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def event(
    objective: Objective, vocabulary: Vocabulary, spell: Callable[[int], str], context: bool = False, end: bool = False
) -> str:
    """Which log-probability is summed for one text, as a phrase; `spell` turns an id into its spelling."""
    if objective.plan == "pseudo":
        frame = f"between {spell(vocabulary.need('cls'))} and {spell(vocabulary.need('sep'))}"
        after = ", after the context" if context else ""
        return f"sum over tokens of log p(token | all other tokens, {frame}{after}): a pseudo-log-likelihood"
    if objective.plan == "infill":
        after = " and the context" if context else ""
        zero = spell(int(vocabulary.sentinels[0]))
        given = f"all other tokens{after}, {zero} in its place"
        return f"sum over tokens of log p(token | {given}): a pseudo-log-likelihood"
    start, kind = spell(vocabulary.need("bos")), layout_of(objective).kind
    given = f"{start} context" if context else start
    if kind == "prefix":
        given = f"visible prefix {given}"
    elif kind == "encdec":
        given = f"source {'context' if context else 'empty'}, {start}"
    return f"log p(text{' ' + spell(vocabulary.need('eos')) if end else ''} | {given})"


def cut_note(longest: int) -> str:
    """What an event adds where texts are too long for the model."""
    return f"; cut into pieces of at most {longest} tokens, each scored by itself"
