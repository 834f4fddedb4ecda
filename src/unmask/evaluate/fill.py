"""Filling [MASK]s: each by its own distribution (masked models), or written out in order (span corruption)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from unmask.batch import Examples, Rows, full
from unmask.data.collate import collate
from unmask.errors import UserError
from unmask.evaluate.base import Model, device_of, evaluating, objective_of, shape_of, tokenizer_of
from unmask.evaluate.gaps import MASK
from unmask.evaluate.generate import Sampling, Writer
from unmask.evaluate.steps import Start
from unmask.model.heads import read
from unmask.objectives.base import LM, frame
from unmask.tokens.tokenizer import Tokenizer
from unmask.train.devices import to_device

LONGEST_SPAN = 16
"""Tokens that a model of span corruption may put for one [MASK], where its target has room."""


@dataclass(frozen=True)
class Candidate:
    """One answer for a [MASK]: its text, and its probability given everything but the other masks' answers."""

    token: str
    probability: float


@dataclass(frozen=True)
class Filled:
    """The text with the likeliest answers put in, and the candidates of each [MASK], likeliest first."""

    text: str
    masks: list[list[Candidate]]


def fill(model: Model, text: str, top_k: int = 5) -> Filled:
    """Fill the [MASK]s of a text.

    A masked model gives `top_k` tokens for each mask, by that mask's own distribution. A model of span
    corruption writes one span for each mask, in order, greedily: its probability is given the spans before it.
    """
    objective = objective_of(model)
    if objective.plan not in ("pseudo", "infill"):
        raise UserError(
            f"a model of {objective.type} fills no gaps: it can continue a text (generate) or score one (score)"
        )
    if not isinstance(text, str):
        raise UserError("fill takes one text at a time, not a list")
    if top_k < 1:
        raise UserError(f"top_k={top_k} must be at least 1")
    own = _spelling(model)
    if own not in (marked := text.replace(MASK, own)):
        raise UserError(f"the text holds no {MASK}: write it where a word is to be found")
    return _masked(model, marked, top_k) if objective.plan == "pseudo" else _spans(model, marked)


def _spelling(model: Model) -> str:
    """How this tokenizer spells a mask; for models of sentinels, [MASK] itself is what we look for."""
    mask = model.vocabulary.mask
    return MASK if mask is None else tokenizer_of(model).token(mask)


def _masked(model: Model, text: str, top_k: int) -> Filled:
    tokenizer, vocabulary = tokenizer_of(model), model.vocabulary
    ids = tokenizer.encode_with_specials(text)
    at = np.flatnonzero(ids == vocabulary.need("mask"))
    framed = frame(Rows.of([ids]), before=vocabulary.need("cls"), after=vocabulary.need("sep"))
    _fits(len(framed.tokens), shape_of(model).stream)
    examples = Examples(full(framed.tokens, framed.start), {})
    batch = to_device(collate({"fill": examples}, {"fill": ()}), device_of(model.network))
    with evaluating(model.network):
        states = model.network(batch, None)["stream"]
        head = model.network.heads[LM.uses]
        index = torch.from_numpy(at + 1).to(batch.stream.tokens.device)
        p = head.project(head.features(read(states, batch.stream, LM, index))).float().softmax(-1).cpu()
    ordinary = torch.from_numpy(vocabulary.ordinary).long()
    best = p[:, ordinary].topk(min(top_k, len(ordinary)), -1)
    choices = ordinary[best.indices]
    ids[at] = choices[:, 0].numpy()
    masks = [
        [Candidate(_text(tokenizer, i), q) for i, q in zip(token, probability, strict=True)]
        for token, probability in zip(choices.tolist(), best.values.tolist(), strict=True)
    ]
    return Filled(tokenizer.decode(ids), masks)


def _text(tokenizer: Tokenizer, token: int) -> str:
    """A token as text; escaped where it is part of a character only, so that no two look alike."""
    text = tokenizer.decode([token])
    return tokenizer.token(token) if "\ufffd" in text else text


def _spans(model: Model, text: str) -> Filled:
    """Sentinel k stands for mask k. Its span ends at the next sentinel, whichever the model writes."""
    tokenizer, vocabulary = tokenizer_of(model), model.vocabulary
    parts = text.split(_spelling(model))
    gaps = len(parts) - 1
    if gaps >= len(vocabulary.sentinels):
        raise UserError(f"{gaps} masks are too many for a tokenizer of {len(vocabulary.sentinels)} sentinels")
    marks = [tokenizer.token(int(s)) for s in vocabulary.sentinels[:gaps]]
    ids = tokenizer.encode_with_specials("".join(p + m for p, m in zip(parts, [*marks, ""], strict=True)))
    source = np.append(ids, vocabulary.need("eos"))
    longest = _span_room(model, len(source), gaps)
    ends = frozenset([vocabulary.need("eos"), *vocabulary.sentinels.tolist()])
    writer = Writer(model, Sampling(), ends)
    target = np.zeros(0, np.int32)
    spans: list[tuple[int, ...]] = []
    masks = []
    for k in range(gaps):
        target = np.append(target, vocabulary.sentinels[k])
        written = writer.write([Start(source, target, k)], [np.zeros(0, np.int32)], longest)[0]
        spans.append(written.ids)
        masks.append([Candidate(written.text, float(np.exp(written.logprob)))])
        target = np.append(target, written.ids)
    number = {int(s): k for k, s in enumerate(vocabulary.sentinels[:gaps])}
    filled = [i for id_ in ids.tolist() for i in (spans[number[id_]] if id_ in number else (id_,))]
    return Filled(tokenizer.decode(filled), masks)


def _span_room(model: Model, source: int, gaps: int) -> int:
    """How many tokens each of `gaps` spans may have: the target is [BOS], a sentinel for each gap, and the spans.

    The last token of all is written and not read, so it takes the place of [BOS].
    """
    shape = shape_of(model)
    _fits(source, shape.source or shape.stream)
    left = shape.stream - gaps - (0 if shape.source else source)
    if left < gaps:
        raise UserError(
            f"{gaps} masks are too many: beside them, the model's trained length of {shape.stream} tokens has room "
            f"for {max(left, 0)} tokens of answers; use fewer masks" + ("" if shape.source else " or a shorter text")
        )
    return min(LONGEST_SPAN, left // gaps)


def _fits(length: int, most: int) -> None:
    if length > most:
        raise UserError(
            f"the text has {length} tokens (control tokens included) and the model was trained on {most}: shorten it"
        )
