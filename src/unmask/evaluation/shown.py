"""How texts without noise are shown, for objectives that have a frame or an order of attention of their own.

    cloze     texts with hidden tokens, each asked for: the plans that see both sides, and `fill`
    in_order  every token from those before it, where that is no plain causal stream
    Blanks    GLM's two parts, as the layout of a (source, target) pair
    Halves    UniLM's two halves, as the layout of a (source, target) pair

Everything here stands behind the control tokens that its objective was told in training (`in_mode`).

Legend: R texts, N their tokens end to end, n tokens asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from unmask.batch import Examples, Rows, Stream, Targets, causal, full, places, ranges, starts
from unmask.evaluation.abilities import spoken
from unmask.objectives.base import LM, Objective, Plan, frame
from unmask.objectives.denoise import SpanCorruption, corrupt, interleave
from unmask.objectives.dials import Dials
from unmask.objectives.glm import GLM
from unmask.objectives.layout import Pairs, Ragged, shifted
from unmask.objectives.mass import Mass
from unmask.objectives.mode import told
from unmask.objectives.permutation import Permutation, ordered
from unmask.objectives.shifted import ShiftedMasked
from unmask.objectives.study import DroppedTokens
from unmask.objectives.ul2 import UL2
from unmask.objectives.unilm import UniLM
from unmask.tokens.special import Vocabulary


def in_mode(examples: Examples, objective: Objective, plan: Plan, vocabulary: Vocabulary) -> Examples:
    """The examples behind the control tokens that the model is told (`abilities.spoken`), where training put them."""
    openings = [role for role in (vocabulary.bos, vocabulary.cls) if role is not None]
    for token in reversed(spoken(objective, plan)):
        examples = told(examples, (LM,), vocabulary.need(token), openings)
    return examples


# ---------------------------------------------------------------- both sides


def cloze(objective: Objective, rows: Rows, hidden: np.ndarray, asked: np.ndarray, vocabulary: Vocabulary) -> Examples:
    """The tokens `asked` (n,) ascending indices, of texts in which the tokens `hidden` (N,) bool are not seen.

    [CLS] text [SEP], all seen from everywhere, and [MASK] for what is hidden, but

    permutation     a query for each asked token, which sees what is not hidden; nothing is replaced
    shifted_masked  the answer stands one place further left
    dials           [BOS] text, hidden tokens moved to the end of the order (unless all is prefix)
    """
    rows = replace(rows, ends=np.zeros_like(rows.ends))
    if isinstance(objective, Permutation):
        examples = _queries(objective, rows, hidden, asked, vocabulary)
    elif isinstance(objective, Dials) and objective.prefix != "all":
        examples = _moved(objective, rows, hidden, asked, vocabulary)
    else:
        examples = _masked(objective, rows, hidden, asked, vocabulary)
    return in_mode(examples, objective, "pseudo", vocabulary)


def _masked(
    objective: Objective, rows: Rows, hidden: np.ndarray, asked: np.ndarray, vocabulary: Vocabulary
) -> Examples:
    framed = frame(rows, vocabulary.need("cls"), vocabulary.need("sep"))
    into = asked + 2 * rows.row[asked] + 1  # each text before it has two control tokens, its own has one
    tokens = framed.tokens.copy()
    tokens[np.flatnonzero(hidden) + 2 * rows.row[hidden] + 1] = vocabulary.need("mask")
    reads = into - 1 if isinstance(objective, ShiftedMasked) else into
    return Examples(full(tokens, framed.start), {LM.name: Targets.at(reads, rows.tokens[asked])})


def _queries(
    objective: Permutation, rows: Rows, hidden: np.ndarray, asked: np.ndarray, vocabulary: Vocabulary
) -> Examples:
    """What is not hidden is seen by all, or with ordered contexts read from left to right; a query sees all of it.

    Asked tokens come next in the order, all at one place, and what is hidden without being asked after them.
    """
    framed, lead = _framed(objective, rows, vocabulary)
    seen = ~hidden
    base = np.zeros(len(rows.tokens), np.int64)
    rank = np.zeros(len(rows.tokens), np.int64)
    if objective.context == "ordered":
        number = np.cumsum(seen)
        rank = number - (number - seen)[rows.start[:-1].clip(max=max(len(seen) - 1, 0))][rows.row]
        base = np.bincount(rows.row, seen, len(rows.lengths)).astype(np.int64)[rows.row]
    rank = np.where(hidden, base + 2, rank)
    rank[asked] = base[asked] + 1
    into = framed.start[:-1][rows.row] + lead + rows.place
    whole, want = np.zeros(len(framed.tokens), np.int32), np.zeros(len(framed.tokens), bool)
    whole[into], want[into[asked]] = rank, True
    return ordered(framed, whole, want)


def _framed(objective: Permutation, rows: Rows, vocabulary: Vocabulary) -> tuple[Rows, int]:
    """The text in its frame, and how many tokens stand before it."""
    cls, sep = vocabulary.need("cls"), vocabulary.need("sep")
    if objective.cls == "last":
        return frame(frame(rows, after=sep), after=cls), 0
    return frame(rows, cls, sep), 1


def _moved(objective: Dials, rows: Rows, hidden: np.ndarray, asked: np.ndarray, vocabulary: Vocabulary) -> Examples:
    """Hidden tokens stand behind the others in the order, which are the prefix where there is one."""
    framed = frame(rows, before=vocabulary.need("bos"))
    gone = np.zeros(len(framed.tokens), bool)
    gone[np.flatnonzero(hidden) + rows.row[hidden] + 1] = True
    kept = framed.lengths - np.bincount(framed.row, gone, len(framed.lengths)).astype(np.int64)
    passed = np.cumsum(gone) - gone
    passed -= passed[framed.start[:-1]][framed.row]  # hidden tokens before each, in its text
    moved = np.where(gone, kept[framed.row] + passed, framed.place - passed)
    if objective.prefix == "uniform":
        moved = np.maximum(moved - kept[framed.row] + 1, 0)
    order = moved.astype(np.int32)
    tokens = np.where(gone, vocabulary.need("mask"), framed.tokens).astype(np.int32)
    stream = replace(full(tokens, framed.start), reveal=order, horizon=order, pattern="order")
    return Examples(stream, {LM.name: Targets.at(asked + rows.row[asked] + 1, rows.tokens[asked])})


# ---------------------------------------------------------------- from left to right


def in_order(objective: Permutation | UniLM, rows: Rows, asked: np.ndarray, vocabulary: Vocabulary) -> Examples:
    """The tokens `asked` (N,) bool, each from those before it and from the frame; `rows.ends` asks UniLM for [SEP].

    permutation   ranks 1, 2, 3, …, and a query for each asked token: [SEP] is seen, so the length is known
    unilm         next_token: the record of left-to-right texts
    """
    if isinstance(objective, Permutation):
        framed, lead = _framed(objective, replace(rows, ends=np.zeros_like(rows.ends)), vocabulary)
        rank, want = np.zeros(len(framed.tokens), np.int32), np.zeros(len(framed.tokens), bool)
        into = framed.start[:-1][rows.row] + lead + rows.place
        rank[into], want[into] = rows.place + 1, asked
        return in_mode(ordered(framed, rank, want), objective, "left_to_right", vocabulary)
    text = frame(rows, at_end=vocabulary.need("sep") if rows.ends.any() else None)
    keep = text.fixed.copy()
    keep[~text.fixed] = asked
    read = shifted(Ragged(text.tokens, text.start), vocabulary.need("cls"))
    at = np.flatnonzero(keep)
    stream = causal(read, text.start, token_type=np.full(len(read), 2, np.int32))
    examples = Examples(stream, {LM.name: Targets.at(at, text.tokens[at])})
    return in_mode(examples, objective, "left_to_right", vocabulary)


def one_way_cloze(objective: UniLM, rows: Rows, place: np.ndarray, vocabulary: Vocabulary) -> Examples:
    """UniLM's left-to-right cloze, the token at `place` (R,) of each text: [CLS], what stands before it, and [MASK].

    What stands behind is not seen, so it is left out.
    """
    start = starts(place + 2)
    tokens = np.empty(start[-1], np.int32)
    tokens[start[:-1]] = vocabulary.need("cls")
    tokens[ranges(start[:-1] + 1, place)] = rows.tokens[ranges(rows.start[:-1], place)]
    tokens[start[1:] - 1] = vocabulary.need("mask")
    stream = causal(tokens, start, token_type=np.full(len(tokens), 2, np.int32))
    examples = Examples(stream, {LM.name: Targets.at(start[1:] - 1, rows.tokens[rows.start[:-1] + place])})
    return in_mode(examples, objective, "left_to_right", vocabulary)


# ---------------------------------------------------------------- pairs


def one_missing(
    objective: Objective, rows: Rows, place: np.ndarray, vocabulary: Vocabulary
) -> tuple[Pairs, np.ndarray]:
    """Pairs whose source lacks the token at `place` (R,) of each text, and where (R,) it is in their targets.

    span_corruption, ul2   source: a sentinel for it · target: <0> token <1>
    glm                    source: [MASK] for it     · target: token
    dropped_tokens         source: nothing for it    · target: token
    bart, restoration      source: [MASK] for it     · target: the text up to it
    """
    at, r, eos = rows.start[:-1] + place, len(place), vocabulary.need("eos")
    noise, zero = np.zeros(len(rows.tokens), bool), np.zeros(r, np.int64)
    noise[at] = True
    if isinstance(objective, SpanCorruption | UL2):
        return corrupt(rows, noise, objective.final_sentinel, vocabulary), zero + 1
    target = Ragged(rows.tokens[at], np.arange(r + 1))
    if isinstance(objective, DroppedTokens):
        return Pairs(interleave(rows.tokens, ~noise, rows.row, r, [np.full(r, eos)]), target), zero
    marked = np.where(noise, np.int32(vocabulary.need("mask")), rows.tokens)
    if isinstance(objective, GLM):
        return Pairs(Ragged(marked, rows.start), target), zero
    source = interleave(marked, np.ones(len(marked), bool), rows.row, r, [np.full(r, eos)])
    return Pairs(source, Ragged(rows.tokens[ranges(rows.start[:-1], place + 1)], starts(place + 1))), place


def alone(objective: Mass, rows: Rows, place: np.ndarray, vocabulary: Vocabulary) -> Examples:
    """MASS with the one token at `place` (R,) of each text as its fragment; [MASK] for it in the source."""
    at, one = rows.start[:-1] + place, np.arange(len(place) + 1)
    source = rows.tokens.copy()
    source[at] = vocabulary.need("mask")
    read = np.full(len(at), vocabulary.need("mask"), np.int32)
    if objective.opening == "token":
        read = np.where(place > 0, source[at - 1], np.int32(vocabulary.need("bos")))
    positions, value = place.astype(np.int32), rows.tokens[at]
    if objective.layout.kind == "encdec":
        stream = causal(read, one, positions=positions)
        examples = Examples(stream, {LM.name: Targets.at(one[:-1], value)}, source=full(source, rows.start))
    else:
        stream, into = objective._one_stack(Ragged(source, rows.start), Ragged(read, one), positions)
        examples = Examples(stream, {LM.name: Targets.at(into, value)})
    return in_mode(examples, objective, "infill", vocabulary)


@dataclass(frozen=True)
class Blanks:
    """GLM: [CLS] source [SEP], and the target behind it, from the source's first [MASK] on.

        source 7 [MASK] 8, target 3 9 5    tokens      [CLS] 7 [MASK] 8 [SEP] [BOS] 3 9
                                           positions     0   1   2    3   4     2   2 2
                                           positions2    0   0   0    0   0     1   2 3
                                           target                               3   9 5

    A [BOS] inside a target begins the answer to the next [MASK].
    """

    kind: Literal["blanks"] = "blanks"

    def __call__(self, pairs: Pairs, vocabulary: Vocabulary) -> Examples:
        stream, asked = two_parts(pairs, vocabulary.need("bos"), vocabulary)
        assert stream.start is not None
        tokens, row = stream.tokens, np.repeat(np.arange(len(stream.start) - 1), np.diff(stream.start))
        opens = np.zeros(len(tokens), bool)
        opens[asked] = tokens[asked] == vocabulary.need("bos")
        here = np.flatnonzero(opens)
        answer = np.cumsum(opens)[asked] - 1  # of all texts, end to end
        first = np.searchsorted(row[here], np.arange(len(stream.start)))
        mask = tokens == vocabulary.need("mask")
        mask[asked] = False
        gap = np.flatnonzero(mask)
        gaps = np.searchsorted(row[gap], np.arange(len(stream.start)))
        at = gap[gaps[row[asked]] + answer - first[row[asked]]]
        positions, second = places(stream.start).astype(np.int32), np.zeros(len(tokens), np.int32)
        positions[asked] = positions[at]
        second[asked] = asked - here[answer] + 1
        return Examples(
            replace(stream, positions=positions, positions2=second),
            {LM.name: Targets.at(asked, pairs.target.tokens)},
        )


@dataclass(frozen=True)
class Halves:
    """UniLM: [CLS] source [SEP] that sees itself, and the target, each of its tokens at its predecessor.

    Token types 4 and 5. A model of cloze texts reads the target as such and is asked by a [MASK] behind it (`steps`).
    """

    kind: Literal["halves"] = "halves"

    def __call__(self, pairs: Pairs, vocabulary: Vocabulary) -> Examples:
        stream, asked = two_parts(pairs, None, vocabulary)
        types = np.full(len(stream.tokens), 4, np.int32)
        types[stream.reveal > 0] = 5
        return Examples(replace(stream, token_type=types), {LM.name: Targets.at(asked, pairs.target.tokens)})


def two_parts(pairs: Pairs, opening: int | None, vocabulary: Vocabulary) -> tuple[Stream, np.ndarray]:
    """[CLS] source [SEP], all seen from everywhere, then the target without its last token, each after the other; and
    where the target's tokens are predicted: behind `opening`, or without one from [SEP] on."""
    s, t = pairs.source.lengths + 2, pairs.target.lengths
    begins = s - (opening is None)
    start = starts(begins + t)
    tokens = np.empty(start[-1], np.int32)
    asked = ranges(start[:-1] + begins, t)
    tokens[asked] = shifted(pairs.target, vocabulary.need("sep") if opening is None else opening)
    tokens[start[:-1]] = vocabulary.need("cls")
    tokens[start[:-1] + s - 1] = vocabulary.need("sep")
    tokens[ranges(start[:-1] + 1, s - 2)] = pairs.source.tokens
    order = np.maximum(places(start) - np.repeat(s - 1, np.diff(start)), 0).astype(np.int32)
    return replace(full(tokens, start), reveal=order, horizon=order, pattern="order"), asked
