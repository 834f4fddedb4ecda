"""Filling [MASK]s: each by its own distribution (masked models), or written out in order (text-to-text, infilling)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unmask.batch import Examples, Rows
from unmask.data.collate import collate
from unmask.errors import UserError
from unmask.evaluation.abilities import abilities, elsewhere
from unmask.evaluation.base import Model, device_of, evaluating, objective_of, shape_of, tokenizer_of
from unmask.evaluation.gaps import MASK
from unmask.evaluation.generate import Writer
from unmask.evaluation.prompts import beside, gap, gap_ends, most_gaps, size
from unmask.evaluation.sampling import Sampling
from unmask.evaluation.shown import alone, cloze
from unmask.evaluation.steps import Start, Steps
from unmask.model.heads import read
from unmask.objectives.bart import Bart
from unmask.objectives.base import LM
from unmask.objectives.denoise import SpanCorruption
from unmask.objectives.glm import GLM
from unmask.objectives.infilling import CausallyMasked, FillInTheMiddle
from unmask.objectives.mass import Mass
from unmask.objectives.study import Restoration
from unmask.objectives.ul2 import UL2
from unmask.tokens.tokenizer import Tokenizer
from unmask.train.devices import to_device

SPANS = SpanCorruption | UL2 | GLM | FillInTheMiddle | CausallyMasked
"""Objectives whose models write a span of any length for a gap."""
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

    A masked model gives `top_k` tokens for each mask, by that mask's own distribution (MASS: one copy of the text a
    mask). A model that writes spans (span corruption, UL2, GLM, fill in the middle, CM3) writes one for each mask, in
    order, greedily: its probability is given the spans before it. One that restores the whole text (BART) gives
    `top_k` tokens for each mask, in order: the text up to there, with the likeliest answers, is what it has written.
    """
    objective = objective_of(model)
    if why := abilities(objective).fill:
        raise UserError(f"a model of {objective.type} {why}{elsewhere(model.objective, lambda a: not a.fill)}")
    if not isinstance(text, str):
        raise UserError("fill takes one text at a time, not a list")
    if top_k < 1:
        raise UserError(f"top_k={top_k} must be at least 1")
    own = _spelling(model)
    if own not in (marked := text.replace(MASK, own)):
        raise UserError(f"the text holds no {MASK}: write it where a word is to be found")
    if isinstance(objective, SPANS):
        return _spans(model, marked)
    if isinstance(objective, Bart | Restoration):
        return _restored(model, marked, top_k)
    return _masked(model, marked, top_k)


def _spelling(model: Model) -> str:
    """How this tokenizer spells a mask; for models of sentinels, [MASK] itself is what we look for."""
    mask = model.vocabulary.mask
    return MASK if mask is None else tokenizer_of(model).token(mask)


def _masked(model: Model, text: str, top_k: int) -> Filled:
    objective, vocabulary = objective_of(model), model.vocabulary
    ids = tokenizer_of(model).encode_with_specials(text)
    at = np.flatnonzero(ids == vocabulary.need("mask"))
    if isinstance(objective, Mass):
        examples = alone(objective, Rows.of([ids] * len(at)), at, vocabulary)
    else:
        examples = cloze(objective, Rows.of([ids]), ids == vocabulary.need("mask"), at, vocabulary)
    return _chosen(model, ids, at, _distributions(model, examples), top_k)


def _distributions(model: Model, examples: Examples) -> Tensor:
    """(n, V) probabilities at the targets of the examples."""
    shape = shape_of(model)
    for stream, most in ((examples.stream, shape.stream), (examples.source, shape.source)):
        if stream is not None and stream.start is not None:
            _fits(int(np.diff(stream.start).max()), most)
    n = len(examples.targets[LM.name].value)
    batch = to_device(collate({"fill": examples}, {"fill": (LM,)}), device_of(model.network))
    with evaluating(model.network):
        states = model.network(batch, None)["stream"]
        head = model.network.heads[LM.uses]
        index = batch.targets["fill", LM.name].map(lambda a: a[:n]).index
        p: Tensor = head.project(head.features(read(states, batch.stream, LM, index))).float().softmax(-1).cpu()
    return p


def _chosen(model: Model, ids: np.ndarray, at: np.ndarray, p: Tensor, top_k: int) -> Filled:
    """The candidates for the masks at places `at` (n,) of their probabilities (n, V), the likeliest put in."""
    tokenizer = tokenizer_of(model)
    ordinary = torch.from_numpy(model.vocabulary.ordinary).long()
    best = p[:, ordinary].topk(min(top_k, len(ordinary)), -1)
    choices = ordinary[best.indices]
    filled = ids.copy()
    filled[at] = choices[:, 0].numpy()
    masks = [
        [Candidate(_text(tokenizer, i), q) for i, q in zip(token, probability, strict=True)]
        for token, probability in zip(choices.tolist(), best.values.tolist(), strict=True)
    ]
    return Filled(tokenizer.decode(filled), masks)


def _restored(model: Model, text: str, top_k: int) -> Filled:
    """One token for each mask: what the model writes next after the text before it."""
    vocabulary = model.vocabulary
    ids = tokenizer_of(model).encode_with_specials(text)
    at = np.flatnonzero(ids == vocabulary.need("mask"))
    source, written = np.append(ids, vocabulary.need("eos")), ids.copy()
    ordinary = torch.from_numpy(vocabulary.ordinary).long()
    p = []
    with evaluating(model.network):
        for k, place in enumerate(at):
            p.append(Steps(model, [Start(source, written[:place], k, "infill")]).logits().softmax(-1).cpu())
            written[place] = int(ordinary[p[-1][0, ordinary].argmax()])
    return _chosen(model, ids, at, torch.cat(p), top_k)


def _text(tokenizer: Tokenizer, token: int) -> str:
    """A token as text; escaped where it is part of a character only, so that no two look alike."""
    text = tokenizer.decode([token])
    return tokenizer.token(token) if "\ufffd" in text else text


def _spans(model: Model, text: str) -> Filled:
    """Sentinel k stands for mask k. Its span ends at what closes one, or at the next sentinel, whichever is written."""
    tokenizer, vocabulary, objective = tokenizer_of(model), model.vocabulary, objective_of(model)
    parts = text.split(_spelling(model))
    gaps = len(parts) - 1
    if gaps > (most := most_gaps(objective, vocabulary)):
        why = "this model fills one at a time" if most == 1 else f"{len(vocabulary.sentinels)} sentinels give {most}"
        raise UserError(f"{gaps} masks are too many: {why}")
    marks = [tokenizer.token(int(s)) for s in vocabulary.sentinels[:gaps]]
    ids = tokenizer.encode_with_specials("".join(p + m for p, m in zip(parts, [*marks, ""], strict=True)))
    longest = _span_room(model, ids, gaps)
    writer = Writer(model, Sampling(), gap_ends(objective, vocabulary), min_tokens=int(isinstance(objective, GLM)))
    spans: list[tuple[int, ...]] = []
    masks = []
    for _ in range(gaps):
        start = gap(objective, ids, spans, vocabulary)
        written = writer.write([start], [np.zeros(0, np.int32)], longest)[0]
        spans.append(written.ids)
        masks.append([Candidate(written.text, float(np.exp(written.logprob)))])
    number = {int(s): k for k, s in enumerate(vocabulary.sentinels[:gaps])}
    filled = [i for id_ in ids.tolist() for i in (spans[number[id_]] if id_ in number else (id_,))]
    return Filled(tokenizer.decode(filled), masks)


def _span_room(model: Model, ids: np.ndarray, gaps: int) -> int:
    """How many tokens each of `gaps` spans may have."""
    shape, objective = shape_of(model), objective_of(model)
    first = gap(objective, ids, (), model.vocabulary)
    _fits(size(objective, first), shape.source or shape.stream)
    left = shape.stream - beside(objective, first, gaps, shape.source > 0)
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
