"""How a text is scored: an objective without noise. A plan expands queries into Examples, numpy only.

    left_to_right  each token from those before it, in one pass; with two stacks or a visible prefix the context is
                   the source, and the text the target
    pseudo         each token from all others: one copy of the text a token, that token [MASK]
                   (pseudo-log-likelihood, Salazar et al. 2020, "Masked Language Model Scoring", section 2)
    pseudo_words   the same, but the tokens of the same word to its right are [MASK] too, which keeps words of several
                   tokens from being overrated (PLL-word-l2r, Kauf & Ivanova 2023, "A Better Way to Do Masked Language
                   Model Scoring", section 3)
    bound          several copies of the text, each with some tokens [MASK] at random; their weighted mean bounds the
                   log-probability from below (masked diffusion, `evaluation.bound`)
    infill         each token from all others, for models of span corruption: one copy a token, with sentinel 0
                   in its place; the target is `<0> token <1>` and only the token's own probability counts
    decoder        the text as the one span that such a model left out: source `context <0> what follows`, target
                   `<0> text`; each token from those before it, in one pass

Which plans an objective has, `abilities` says; each shows the text under the frame and order of its training (`shown`):
a query behind the text for permutations, the place before for shifted masks, GLM's blanks, [MASK] in BART's source.

Legend: R pieces of text, N their tokens end to end; an answer slot is a token's place in 0 … N − 1, or N + r
for the end token of piece r.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from unmask.batch import Examples, Rows, Targets, causal, ranges, starts
from unmask.evaluation.bound import DRAWS, Draws
from unmask.evaluation.fit import (
    FORWARD,
    LIKELIHOOD,
    MASKED,
    closes,
    in_source,
    layout_of,
    opening,
    plan_of,
    plans_of,
    room,
    source_most,
    source_room,
    starts_with_bos,
    token_head,
)
from unmask.evaluation.shown import alone, cloze, in_mode, in_order, one_missing, one_way_cloze
from unmask.objectives.base import LM, Objective, Plan, Sizes, frame
from unmask.objectives.denoise import SpanCorruption
from unmask.objectives.glm import GLM
from unmask.objectives.layout import Pairs, Ragged
from unmask.objectives.mass import Mass
from unmask.objectives.permutation import Permutation
from unmask.objectives.supervised import Supervised
from unmask.objectives.ul2 import UL2
from unmask.objectives.unilm import UniLM
from unmask.tokens.special import Vocabulary

__all__ = [
    "FORWARD",
    "LIKELIHOOD",
    "MASKED",
    "Expansion",
    "Query",
    "closes",
    "expand",
    "in_source",
    "laid",
    "layout_of",
    "opening",
    "plan_of",
    "plans_of",
    "room",
    "source_most",
    "source_room",
    "starts_with_bos",
    "take",
    "token_head",
]


@dataclass(frozen=True)
class Query:
    """R pieces of text, each at most `room` long, and what is asked of them.

    rows.ends  the end token is scored too (plans by the chain rule)
    rows.word  where words start (pseudo_words): from a token to its word's end all is hidden; None = the tokenizer's
    given      (R,) leading tokens of each piece that are context
    asked      (N,) bool, the tokens to score; none that is given
    after      (R,) trailing tokens that are context too (decoder: the source shows them behind <0>); None = none
    draws      of masks (bound), keyed by rows.key
    """

    rows: Rows
    given: np.ndarray
    asked: np.ndarray
    after: np.ndarray | None = None
    draws: Draws = DRAWS

    @staticmethod
    def of(rows: Rows, given: np.ndarray | None = None) -> Query:
        """Every token after the context is asked for."""
        given = np.zeros(len(rows.lengths), np.int64) if given is None else np.asarray(given, np.int64)
        return Query(rows, given, rows.place >= np.repeat(given, rows.lengths))

    @property
    def slots(self) -> int:
        return len(self.rows.tokens) + len(self.rows.lengths)


@dataclass(frozen=True)
class Expansion:
    """Examples, and the answer slot (n,) of each target; of a bound, also its weight and which draw it is of."""

    examples: Examples
    slot: np.ndarray
    weight: np.ndarray | None = None
    draw: np.ndarray | None = None

    @property
    def sizes(self) -> Sizes:
        e = self.examples
        assert e.stream.start is not None
        if e.source is None:
            return Sizes(np.diff(e.stream.start))
        assert e.source.start is not None
        return Sizes(np.diff(e.stream.start), np.diff(e.source.start))


# ---------------------------------------------------------------- queries → Examples


def expand(
    objective: Objective, query: Query, vocabulary: Vocabulary, tokens: int, plan: Plan | None = None
) -> Iterator[Expansion]:
    """The query's examples, a part of about `tokens` tokens at a time, long ones first.

    A part that is a quarter full ends where examples get shorter, so many parts are of one length.
    """
    plan = plan_of(objective, plan)
    lengths = query.rows.lengths
    if plan in FORWARD and (plan == "decoder" or closes(objective, plan) or isinstance(objective, Permutation)):
        unit = owner = np.flatnonzero(_any(query))  # a piece
    elif plan == "bound":
        some, k = np.flatnonzero(np.bincount(query.rows.row[query.asked], minlength=len(lengths))), query.draws.number
        unit, owner = (some[:, None] * k + np.arange(k)).reshape(-1), np.repeat(some, k)  # a draw of a piece
    else:
        unit = np.flatnonzero(query.asked)  # a token
        owner = query.rows.row[unit]
    order = np.argsort(-lengths[owner], kind="stable")
    size = lengths[owner][order]
    cost = np.cumsum(size + 3)
    shorter = np.concatenate([[0], np.flatnonzero(np.diff(size)) + 1, [len(size)]])
    build = _builder(objective, plan, query, vocabulary)
    begin = 0
    while begin < len(order):
        spent = cost[begin - 1] if begin else 0
        least, end = np.maximum(np.searchsorted(cost, spent + np.array([tokens // 4, tokens]), "right"), begin + 1)
        change = shorter[np.searchsorted(shorter, end, "right") - 1]
        end = change if change >= least else end
        yield build(unit[order[begin:end]])
        begin = end


def _builder(
    objective: Objective, plan: Plan, query: Query, vocabulary: Vocabulary
) -> Callable[[np.ndarray], Expansion]:
    """The function that makes the Examples of some units (pieces, or tokens) of the query."""
    if plan == "left_to_right":
        if isinstance(objective, UniLM) and not objective.next_token:
            return lambda unit: _one_way(objective, query, unit, vocabulary)
        if isinstance(objective, Permutation | UniLM):
            return lambda unit: _in_order(objective, query, unit, vocabulary)
        if opening(objective, vocabulary, plan):
            return lambda unit: _without_start(objective, query, unit, vocabulary)
        return lambda unit: _left_to_right(objective, query, unit, vocabulary)
    if plan == "decoder":
        return lambda unit: _decoder(objective, query, unit, vocabulary)
    if plan == "infill":
        return lambda unit: _infill(objective, query, unit, vocabulary)
    if plan == "bound":
        return lambda unit: _bound(objective, query, unit, vocabulary)
    hidden = _to_word_end(query.rows) if plan == "pseudo_words" else np.ones(len(query.rows.tokens), np.int64)
    return lambda unit: _pseudo(objective, query, unit, hidden, vocabulary)


def _any(query: Query) -> np.ndarray:
    """(R,) bool: something of the piece is asked."""
    asked = np.bincount(query.rows.row[query.asked], minlength=len(query.rows.lengths)) > 0
    return asked | query.rows.ends


def _left_to_right(objective: Objective, query: Query, pieces: np.ndarray, vocabulary: Vocabulary) -> Expansion:
    """Context as source, the rest as target, under the objective's own layout.

    [BOS] source target   one stack: a prefix visible both ways, or causal throughout
    source · [BOS] target two stacks
    source [EOS]          of supervised tasks
    """
    rows, slot = take(query.rows, pieces)
    given = query.given[pieces]
    source = rows.place < np.repeat(given, rows.lengths)
    target = _part(rows, ~source)
    eos = vocabulary.need("eos") if rows.ends.any() else None
    framed = frame(target, at_end=eos)
    shown = _ragged(_part(rows, source))
    if isinstance(objective, Supervised):
        shown = _closed(shown, vocabulary.need("eos"))
    examples = laid(objective, Pairs(shown, _ragged(framed)), "left_to_right", vocabulary)
    return _answer(query, pieces, slot[~source], framed, examples)


def _one_way(objective: UniLM, query: Query, at: np.ndarray, vocabulary: Vocabulary) -> Expansion:
    """One copy for each token `at`, that token [MASK] and nothing behind it seen."""
    rows, _ = take(query.rows, query.rows.row[at])
    return Expansion(one_way_cloze(objective, rows, query.rows.place[at], vocabulary), at)


def _in_order(objective: Permutation | UniLM, query: Query, pieces: np.ndarray, vocabulary: Vocabulary) -> Expansion:
    """Each asked token from those before it in its piece."""
    rows, slot = take(query.rows, pieces)
    ends = np.full(len(pieces), -1)
    ends[rows.ends] = len(query.rows.tokens) + pieces[rows.ends]
    order = np.insert(slot, rows.start[1:], ends)  # of tokens and ends in the order of the stream
    asked = np.insert(query.asked[slot], rows.start[1:], rows.ends)
    return Expansion(in_order(objective, rows, query.asked[slot], vocabulary), order[asked])


def _decoder(objective: Objective, query: Query, pieces: np.ndarray, vocabulary: Vocabulary) -> Expansion:
    """source `context <0> after [EOS]`, target `<0> text` and, where asked, what closes it: <1> or [EOS].

    GLM: source `context [MASK] after`, target `text`.
    """
    rows, slot = take(query.rows, pieces)
    blank = isinstance(objective, GLM)
    zero, given = vocabulary.need("mask") if blank else int(vocabulary.sentinels[0]), query.given[pieces]
    stop = rows.lengths - (0 if query.after is None else query.after[pieces])
    source = (rows.place < np.repeat(given, rows.lengths)) | (rows.place >= np.repeat(stop, rows.lengths))
    framed = frame(_part(rows, ~source), None if blank else zero, at_end=closing(objective, vocabulary))
    shown = _part(rows, source)
    left = np.insert(shown.tokens, shown.start[:-1] + given, zero)
    marked = Ragged(left, shown.start + np.arange(len(shown.start)))
    if not blank:
        marked = _closed(marked, vocabulary.need("eos"))
    examples = laid(objective, Pairs(marked, _ragged(framed)), "decoder", vocabulary)
    return _answer(query, pieces, slot[~source], framed, examples)


def laid(objective: Objective, pairs: Pairs, plan: Plan, vocabulary: Vocabulary) -> Examples:
    """Pairs as the objective lays them out, behind what the model is told in front of a text."""
    return in_mode(layout_of(objective)(pairs, vocabulary), objective, plan, vocabulary)


def _closed(texts: Ragged, last: int) -> Ragged:
    """Each text with one more token at its end."""
    return Ragged(np.insert(texts.tokens, texts.start[1:], last), texts.start + np.arange(len(texts.start)))


def closing(objective: Objective, vocabulary: Vocabulary) -> int:
    """What follows the one span of a target: <1> where a final sentinel closes it, [EOS] elsewhere."""
    final = isinstance(objective, SpanCorruption | UL2) and objective.final_sentinel
    return int(vocabulary.sentinels[1]) if final else vocabulary.need("eos")


def _answer(query: Query, pieces: np.ndarray, slot: np.ndarray, framed: Rows, examples: Examples) -> Expansion:
    """Keep the asked targets; `framed` is the target side, and `slot` (n,) says where its text's tokens stand."""
    slots = np.repeat(len(query.rows.tokens) + pieces, framed.lengths)  # end tokens keep this
    slots[~framed.fixed] = slot
    keep = np.zeros(len(slots), bool)
    keep[~framed.fixed] = query.asked[slot]
    keep[(framed.start[1:] - 1)[framed.ends]] = True
    return _keep(examples, slots, keep)


def _without_start(objective: Objective, query: Query, pieces: np.ndarray, vocabulary: Vocabulary) -> Expansion:
    """Causal, with nothing before the first token, which therefore is no target."""
    rows, slot = take(query.rows, pieces)
    framed = frame(rows, at_end=vocabulary.need("eos") if rows.ends.any() else None)
    reads = framed.place < np.repeat(framed.lengths - 1, framed.lengths)
    stream = causal(framed.tokens[reads], starts(np.maximum(framed.lengths - 1, 0)))
    later = framed.place > 0
    targets = {LM.name: Targets.at(np.arange(int(later.sum())), framed.tokens[later])}
    slots = np.repeat(len(query.rows.tokens) + pieces, framed.lengths)
    slots[~framed.fixed] = slot
    asked = framed.fixed.copy()  # the end tokens
    asked[~framed.fixed] = query.asked[slot]
    examples = in_mode(Examples(stream, targets), objective, "left_to_right", vocabulary)
    return _keep(examples, slots[later], asked[later])


def _pseudo(
    objective: Objective, query: Query, at: np.ndarray, hidden: np.ndarray, vocabulary: Vocabulary
) -> Expansion:
    """One copy of the text for each token `at`; from there `hidden` (N,) tokens are not seen."""
    rows, _ = take(query.rows, query.rows.row[at])
    index = rows.start[:-1] + query.rows.place[at]
    gone = np.zeros(len(rows.tokens), bool)
    gone[ranges(index, hidden[at])] = True
    return Expansion(cloze(objective, rows, gone, index, vocabulary), at)


def _bound(objective: Objective, query: Query, unit: np.ndarray, vocabulary: Vocabulary) -> Expansion:
    """One copy of the text for each draw of a piece: `unit` is piece · K + draw. What is not asked stays."""
    pieces, draw = np.divmod(unit, query.draws.number)
    rows, slot = take(query.rows, pieces)
    masks = query.draws(rows.start, query.asked[slot], rows.key, draw)
    at = np.flatnonzero(masks.hidden)
    row = rows.row[at]
    examples = cloze(objective, rows, masks.hidden, at, vocabulary)
    return Expansion(examples, slot[at], masks.weight[row], draw[row])


def _to_word_end(rows: Rows) -> np.ndarray:
    """(N,) how many tokens of its word each token has from itself on.

    >>> word = np.array([True, False, False, True, False, False])
    >>> _to_word_end(Rows.of([[7, 8, 9, 7], [8, 9]], word=word)).tolist()
    [3, 2, 1, 1, 2, 1]
    """
    assert rows.word is not None
    first = np.append(np.flatnonzero(rows.word | (rows.place == 0)), len(rows.tokens))
    each = np.arange(len(rows.tokens))
    return first[np.searchsorted(first, each, "right")] - each


def _infill(objective: Objective, query: Query, at: np.ndarray, vocabulary: Vocabulary) -> Expansion:
    """The pair of a text-to-text objective, one for each token `at`: that token is what the source lacks."""
    rows, _ = take(query.rows, query.rows.row[at])
    place = query.rows.place[at]
    if isinstance(objective, Mass):
        return Expansion(alone(objective, rows, place, vocabulary), at)
    pairs, where = one_missing(objective, rows, place, vocabulary)
    index = pairs.target.start[:-1] + where
    asked, slot = np.zeros(len(pairs.target.tokens), bool), np.zeros(len(pairs.target.tokens), np.int64)
    asked[index], slot[index] = True, at
    return _keep(laid(objective, pairs, "infill", vocabulary), slot, asked)


def _keep(examples: Examples, slot: np.ndarray, keep: np.ndarray) -> Expansion:
    """Only the targets `keep` (n,) of the one head over the vocabulary."""
    targets = examples.targets[LM.name]
    assert targets.index is not None
    kept = Targets.at(targets.index[keep], targets.value[keep])
    return Expansion(replace(examples, targets={LM.name: kept}), slot[keep])


def _part(rows: Rows, keep: np.ndarray) -> Rows:
    """The tokens `keep` (N,) of each text."""
    start = starts(np.bincount(rows.row[keep], minlength=len(rows.lengths)))
    return replace(rows, tokens=rows.tokens[keep], start=start, fixed=rows.fixed[keep], word=None)


def _ragged(rows: Rows) -> Ragged:
    return Ragged(rows.tokens, rows.start)


def take(rows: Rows, which: np.ndarray) -> tuple[Rows, np.ndarray]:
    """The texts `which` (S,), repeats allowed, and where (n,) each of their tokens stood in `rows`."""
    length = rows.lengths[which]
    start = starts(length)
    at = np.repeat(rows.start[which] - start[:-1], length) + np.arange(start[-1])
    taken = Rows(rows.tokens[at], start, rows.key[which], rows.index[which], np.zeros(len(at), bool), rows.ends[which])
    return taken, at
