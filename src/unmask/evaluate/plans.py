"""How a text is scored: an objective without noise. A plan expands queries into Examples, numpy only.

    left_to_right  each token from those before it, in one pass; with two stacks or a visible prefix the context is
                   the source, and the text the target
    pseudo         each token from all others: one copy of the text a token, that token [MASK]
                   (pseudo-log-likelihood, Salazar et al. 2020, "Masked Language Model Scoring", section 2)
    pseudo_words   the same, but the tokens of the same word to its right are [MASK] too, which keeps words of several
                   tokens from being overrated (PLL-word-l2r, Kauf & Ivanova 2023, "A Better Way to Do Masked Language
                   Model Scoring", section 3)
    infill         each token from all others, for models of span corruption: one copy a token, with sentinel 0
                   in its place; the target is `<0> token <1>` and only the token's own probability counts
    decoder        the text as the one span that such a model left out: source `context <0> what follows`, target
                   `<0> text`; each token from those before it, in one pass

Legend: R pieces of text, N their tokens end to end; an answer slot is a token's place in 0 … N − 1, or N + r
for the end token of piece r.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from unmask.batch import Examples, Head, Rows, Targets, causal, full, starts
from unmask.errors import UserError, nearest
from unmask.objectives.base import LM, Objective, Plan, Shape, Sizes, frame
from unmask.objectives.denoise import SpanCorruption, TextToText, corrupt
from unmask.objectives.layout import Layout, Pairs, Ragged
from unmask.objectives.ul2 import UL2
from unmask.tokens.special import Vocabulary

FORWARD: tuple[Plan, ...] = ("left_to_right", "decoder")
"""Plans by the chain rule: their sum is the log-probability of the text."""
MASKED: tuple[Plan, ...] = ("pseudo", "pseudo_words")
"""Plans that put [MASK] in a token's place. They and infill see both sides: every plan not in FORWARD does."""


@dataclass(frozen=True)
class Query:
    """R pieces of text, each at most `room` long, and what is asked of them.

    rows.ends  the end token is scored too (plans by the chain rule)
    rows.word  where words start (pseudo_words): from a token to its word's end all is hidden; None = the tokenizer's
    given      (R,) leading tokens of each piece that are context
    asked      (N,) bool, the tokens to score; none that is given
    after      (R,) trailing tokens that are context too (decoder: the source shows them behind <0>); None = none
    """

    rows: Rows
    given: np.ndarray
    asked: np.ndarray
    after: np.ndarray | None = None

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
    """Examples, and the answer slot (n,) of each target."""

    examples: Examples
    slot: np.ndarray

    @property
    def sizes(self) -> Sizes:
        e = self.examples
        assert e.stream.start is not None
        if e.source is None:
            return Sizes(np.diff(e.stream.start))
        assert e.source.start is not None
        return Sizes(np.diff(e.stream.start), np.diff(e.source.start))


# ---------------------------------------------------------------- which plan, and how much text it holds


def plans_of(objective: Objective) -> tuple[Plan, ...]:
    """The plans that a model of this objective can be scored by, its default first."""
    more: dict[Plan, Plan] = {"pseudo": "pseudo_words", "infill": "decoder"}
    return (objective.plan, more[objective.plan]) if objective.plan in more else (objective.plan,)


def plan_of(objective: Objective, plan: Plan | None) -> Plan:
    """The plan asked for, or the objective's own."""
    fit = plans_of(objective)
    if plan is None:
        return fit[0]
    if plan not in fit:
        own = f"its plan is {fit[0]}" if len(fit) == 1 else f"its plans are {', '.join(fit)}"
        raise UserError(f"plan {plan} does not fit a model of {objective.type}: {own}{nearest(plan, fit)}")
    return plan


def layout_of(objective: Objective) -> Layout:
    """How a (source, target) pair is shown to a model trained under `objective`."""
    if not isinstance(objective, TextToText):
        return Layout(kind="causal")
    return objective.layout.model_copy(update={"loss": "target"})  # what is scored is the target


def in_source(objective: Objective, plan: Plan) -> bool:
    """A context is shown as a source (or a visible prefix), so every window of a text may get all of it."""
    return plan == "decoder" or (plan == "left_to_right" and layout_of(objective).kind != "causal")


def opening(objective: Objective, vocabulary: Vocabulary, plan: Plan) -> int:
    """1 where nothing stands before a text's first token, which is then not scored: there is no start token.

    Only decoders of other people come so: our objectives do not train without one.
    """
    return int(plan == "left_to_right" and layout_of(objective).kind == "causal" and vocabulary.bos is None)


def token_head(objective: Objective) -> Head:
    """The head that answers with tokens."""
    for head in objective.heads():
        if head.over == "vocabulary":
            return head
    raise UserError(f"objective {objective.type} predicts no tokens: it can be neither scored nor sampled")


def room(objective: Objective, shape: Shape, plan: Plan | None = None) -> int:
    """Tokens of text that one example can hold: with its context in one stack, without it where that is the source."""
    plan, two = plan or objective.plan, shape.source > 0
    longest = shape.stream
    if plan in MASKED:
        extra = 2  # [CLS] and [SEP]
    elif plan == "infill":
        # source: the text and [EOS]; in one stack the target <0> x <1> [EOS] follows it
        longest, extra = (shape.source, 1) if two else (shape.stream, 5)
    elif plan == "decoder":
        extra = 2 if two else 4  # target: <0> and the end token; in one stack the source's <0> and [EOS] too
    else:
        extra = 1  # [BOS], or the end token
    if longest <= extra:
        raise UserError(f"a model trained on {longest} tokens has no room for text under {objective.type}")
    return longest - extra


def source_room(shape: Shape, plan: Plan) -> int | None:
    """Tokens of context that the source can hold; None = context and text share one stack."""
    if not shape.source:
        return None
    return max(shape.source - (2 if plan == "decoder" else 0), 0)  # <0> and [EOS]


# ---------------------------------------------------------------- queries → Examples


def expand(
    objective: Objective, query: Query, vocabulary: Vocabulary, tokens: int, plan: Plan | None = None
) -> Iterator[Expansion]:
    """The query's examples, a part of about `tokens` tokens at a time, long ones first.

    A part that is a quarter full ends where examples get shorter, so many parts are of one length.
    """
    plan = plan_of(objective, plan)
    lengths = query.rows.lengths
    if plan in FORWARD:
        unit = owner = np.flatnonzero(_any(query))  # a piece
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
        if opening(objective, vocabulary, plan):
            return lambda unit: _without_start(query, unit, vocabulary)
        return lambda unit: _left_to_right(objective, query, unit, vocabulary)
    if plan == "decoder":
        return lambda unit: _decoder(objective, query, unit, vocabulary)
    if plan == "infill":
        return lambda unit: _infill(objective, query, unit, vocabulary)
    hidden = _to_word_end(query.rows) if plan == "pseudo_words" else np.ones(len(query.rows.tokens), np.int64)
    return lambda unit: _pseudo(query, unit, hidden, vocabulary)


def _any(query: Query) -> np.ndarray:
    """(R,) bool: something of the piece is asked."""
    asked = np.bincount(query.rows.row[query.asked], minlength=len(query.rows.lengths)) > 0
    return asked | query.rows.ends


def _left_to_right(objective: Objective, query: Query, pieces: np.ndarray, vocabulary: Vocabulary) -> Expansion:
    """Context as source, the rest as target, under the objective's own layout.

    [BOS] source target   one stack: a prefix visible both ways, or causal throughout
    source · [BOS] target two stacks
    """
    rows, slot = take(query.rows, pieces)
    given = query.given[pieces]
    source = rows.place < np.repeat(given, rows.lengths)
    target = _part(rows, ~source)
    eos = vocabulary.need("eos") if rows.ends.any() else None
    framed = frame(target, at_end=eos)
    pairs = Pairs(_ragged(_part(rows, source)), _ragged(framed))
    return _answer(query, pieces, slot[~source], framed, layout_of(objective)(pairs, vocabulary))


def _decoder(objective: Objective, query: Query, pieces: np.ndarray, vocabulary: Vocabulary) -> Expansion:
    """source `context <0> after [EOS]`, target `<0> text` and, where asked, what closes it: <1> or [EOS]."""
    rows, slot = take(query.rows, pieces)
    zero, given = int(vocabulary.sentinels[0]), query.given[pieces]
    stop = rows.lengths - (0 if query.after is None else query.after[pieces])
    source = (rows.place < np.repeat(given, rows.lengths)) | (rows.place >= np.repeat(stop, rows.lengths))
    framed = frame(_part(rows, ~source), before=zero, at_end=closing(objective, vocabulary))
    shown = _part(rows, source)
    left = np.insert(shown.tokens, shown.start[:-1] + given, zero)
    marked = Ragged(left, shown.start + np.arange(len(shown.start)))
    pairs = Pairs(_closed(marked, vocabulary.need("eos")), _ragged(framed))
    return _answer(query, pieces, slot[~source], framed, layout_of(objective)(pairs, vocabulary))


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


def _without_start(query: Query, pieces: np.ndarray, vocabulary: Vocabulary) -> Expansion:
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
    return _keep(Examples(stream, targets), slots[later], asked[later])


def _pseudo(query: Query, at: np.ndarray, hidden: np.ndarray, vocabulary: Vocabulary) -> Expansion:
    """[CLS] text [SEP], one copy for each token `at`; from there `hidden` (N,) tokens are [MASK]."""
    rows, _ = take(query.rows, query.rows.row[at])
    framed = frame(replace(rows, ends=np.zeros_like(rows.ends)), vocabulary.need("cls"), vocabulary.need("sep"))
    index = framed.start[:-1] + 1 + query.rows.place[at]
    tokens = framed.tokens.copy()
    first = starts(hidden[at])
    tokens[np.repeat(index - first[:-1], hidden[at]) + np.arange(first[-1])] = vocabulary.need("mask")
    return Expansion(Examples(full(tokens, framed.start), {LM.name: Targets.at(index, query.rows.tokens[at])}), at)


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
    """The pair of span corruption, one for each token `at`: that token is the only noise."""
    rows, _ = take(query.rows, query.rows.row[at])
    noise = np.zeros(len(rows.tokens), bool)
    noise[rows.start[:-1] + query.rows.place[at]] = True
    final = isinstance(objective, SpanCorruption | UL2) and objective.final_sentinel
    pairs = corrupt(rows, noise, final, vocabulary)
    second = np.zeros(len(pairs.target.tokens), bool)
    second[pairs.target.start[:-1] + 1] = True
    slot = np.zeros(len(second), np.int64)
    slot[second] = at
    return _keep(layout_of(objective)(pairs, vocabulary), slot, second)


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
