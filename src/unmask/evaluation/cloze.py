"""Cloze tests: what does the model put into a gap? (Petroni et al. 2019, "Language models as knowledge bases?")

Two protocols, whose numbers are never mixed:

    candidates   each candidate is put into the gap and scored: its own tokens, from left to right, given everything
                 else where the model sees both sides, the whole text where it reads left to right
    vocabulary   the answer's one token is ranked among all ordinary tokens, in one forward pass: at the gap where the
                 model sees both sides, as the next token after the text before the gap where it reads left to right
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from unmask.batch import Rows
from unmask.evaluation.base import Model, device_of, objective_of, shape_of, tokenizer_of
from unmask.evaluation.gaps import Gap, Gaps
from unmask.evaluation.intervals import macro
from unmask.evaluation.items import PART, TIE, Events, Options, Standing, outcomes, sample, scored, standing, unknown
from unmask.evaluation.plans import FORWARD, Query, in_source, opening, plan_of, plans_of, room, source_room
from unmask.evaluation.score import BATCH_TOKENS, answers
from unmask.objectives.base import Plan
from unmask.tokens.aligned import Aligned

SPANS: dict[Plan, Plan] = {"pseudo": "pseudo_words", "infill": "decoder"}
"""By which plan candidates are scored instead, if none is asked for: from left to right, so that one of several tokens
is not overrated, as it is where each of its tokens is given the others."""
UNASKED = ("no_tokens", "no_start", "too_long")
"""Why a gap's candidates are not scored: one of them has no token of its own; or comes first, and the model has no
start token; or is longer than the model's room."""
UNSCORABLE = ("several_tokens", "unknown_words", "no_start")
"""Why an answer is not ranked: it has several tokens, or is [UNK]; or it comes first and there is no start token."""


@dataclass(frozen=True)
class Part:
    """One protocol's outcome: where the best answer of each gap stands, None where it could not be scored.

    chance   (n,) the share of fillings that are right
    guessed  (n,) what always naming its relation's most frequent answer would be right
    """

    protocol: str
    named: dict[str, Any]
    gaps: Sequence[Gap]
    standing: Sequence[Standing | None]
    chance: np.ndarray
    guessed: np.ndarray
    counts: dict[str, int]


def cloze(model: Model, data: Gaps, options: Options) -> dict[str, Any]:
    """P@1, P@10 and mean reciprocal rank, each a mean over relations, beside the most frequent answer.

    `options.limit`: at most so many gaps a relation.
    """
    relations: dict[str, list[Gap]] = {}
    for gap in data.gaps:
        relations.setdefault(gap.relation, []).append(gap)
    gaps = [own[i] for name, own in relations.items() for i in sample(len(own), options.limit, options.seed, name)]
    closed, open_ = [g for g in gaps if g.candidates], [g for g in gaps if not g.candidates]
    parts = [_candidates(model, closed, options)] if closed else []
    parts += [_vocabulary(model, open_, options)] if open_ else []
    found = [_summary(part, options.seed, options.items) for part in parts]
    lead = found[0] if len(found) == 1 else {"protocol": "two protocols: see parts", "value": None, "interval": None}
    return {
        "suite": "cloze",
        "label": "P@1, per cent, mean over relations",
        **{k: v for k, v in lead.items() if k not in ("relations", "items")},
        "passed_over": data.passed_over,
        "limit": options.limit,
        "seed": options.seed,
        **({k: lead[k] for k in ("relations", "items") if k in lead} if len(found) == 1 else {"parts": found}),
    }


# ---------------------------------------------------------------- candidates


def _candidates(model: Model, gaps: Sequence[Gap], options: Options) -> Part:
    plan = plan_of(objective_of(model), options.plan, model.objective)
    if options.plan is None and SPANS.get(plan) in plans_of(objective_of(model)):
        plan = SPANS[plan]
    inside = plan != "left_to_right"
    narrow = [narrowed(model, g, plan) for g in gaps]
    asked = [g for g in narrow if isinstance(g, Gap)]
    texts = [g.filled(c) for g in asked for c in g.candidates]
    only = [(len(g.before), len(g.before) + len(c)) for g in asked for c in g.candidates] if inside else None
    events, closes = Events(), plan == "decoder"  # what closes the span says that the candidate is all of it
    scores = list(events.see(scored(model, texts, None, only, plan, options.watch, "candidates", end=closes)))
    places: list[Standing | None] = []
    begin = 0
    for g in narrow:
        if isinstance(g, Gap):
            own = scores[begin : begin + len(g.candidates)]
            begin += len(own)
            values, right = np.array([s.logprob for s in own]), np.array([c in g.answers for c in g.candidates])
            places.append(standing(values, right, TIE * max(s.tokens for s in own)))
        else:
            places.append(None)
    chance = np.array([np.mean([c in g.answers for c in g.candidates]) for g in gaps])
    lost = Counter(g for g in narrow if isinstance(g, str))
    where = "in the gap, given everything else" if inside else "of the whole text with the candidate in the gap"
    return Part(
        f"candidates: per cent of gaps whose right candidate has the largest log-probability {where}; mean over "
        "relations",
        {**events.named(), "plan": plan},
        gaps,
        places,
        chance,
        _majority(gaps, chance),
        {
            "scored_tokens": sum(s.tokens for s in scores),
            "candidates": len(texts),
            **{why: lost[why] for why in UNASKED},
            "cut_texts": sum(isinstance(n, Gap) and n != g for n, g in zip(narrow, gaps, strict=True)),
            "texts_with_unknown_tokens": unknown(model, texts),
        },
    )


def narrowed(model: Model, gap: Gap, plan: Plan) -> Gap | str:
    """The gap with as much of its text around it as the model has room for beside every candidate; or why it cannot
    be asked (`UNASKED`).

    All candidates keep the same surroundings. What lies farthest from the gap is cut off; a side that is short leaves
    its room to the other.
    """
    objective, shape = objective_of(model), shape_of(model)
    longest, source = room(objective, shape, plan), source_room(shape, plan, objective) if plan == "decoder" else None
    first_is_lost = bool(opening(objective, model.vocabulary, plan))
    while True:
        aligned = tokenizer_of(model).encode_aligned([gap.filled(c) for c in gap.candidates])
        ends = [len(gap.before) + len(c) for c in gap.candidates]
        spans = [_tokens_of(a, len(gap.before), end) for a, end in zip(aligned, ends, strict=True)]
        if not all(len(s) for s in spans):
            return "no_tokens"
        if first_is_lost and any(s[0] == 0 for s in spans):
            return "no_start"
        before, number = np.array([s[0] for s in spans]), max(len(s) for s in spans)
        after = np.array([len(a) - 1 - s[-1] for a, s in zip(aligned, spans, strict=True)])
        left, right = int(before.max()), int(after.max())
        most = longest - number if source is None else source
        if number > longest or most < 0:
            return "too_long"
        if left + right <= most:
            return gap
        keep_left = min(left, max(most // 2, most - right))
        keep_right = min(right, most - keep_left)
        a, b = int(before.argmax()), int(after.argmax())
        smaller = replace(
            gap,
            before=_kept_end(gap.before, aligned[a].begin[:left], keep_left),
            after=_kept_end(gap.after[::-1], (ends[b] + len(gap.after) - aligned[b].end[::-1])[:right], keep_right)[
                ::-1
            ],
        )
        if smaller == gap:  # marks that the tokenizer puts in leave no room
            return "too_long"
        gap = smaller


def _tokens_of(aligned: Aligned, begin: int, end: int) -> np.ndarray:
    """The tokens that cover a character of [begin, end), or stand for nothing and lie in it."""
    marks = (aligned.begin == aligned.end) & (aligned.begin >= begin)
    return np.flatnonzero((aligned.begin < end) & ((aligned.end > begin) | marks))


def _kept_end(text: str, begin: np.ndarray, keep: int) -> str:
    """The end of a text whose tokens begin at the given characters, the last `keep` of them.

    >>> _kept_end("the cat sat", np.array([0, 3, 7]), 2), _kept_end("the cat sat", np.array([0, 3, 7]), 0)
    (' cat sat', '')
    """
    if keep >= len(begin):
        return text
    return text[max(int(begin[len(begin) - keep]), 1) :] if keep else ""


# ---------------------------------------------------------------- the whole vocabulary


def _vocabulary(model: Model, gaps: Sequence[Gap], options: Options) -> Part:
    """Each answer of one token is a query of its own; a gap takes its best answer's standing."""
    plan = plan_of(objective_of(model), options.plan, model.objective)
    queries = [_placed(model, gap, word, plan) for gap in gaps for word in gap.answers]
    owner = np.repeat(np.arange(len(gaps)), [len(g.answers) for g in gaps])
    asked = [(i, q) for i, q in enumerate(queries) if isinstance(q, Placed)]
    found = np.full((len(queries), 2), -1)
    with options.watch("gaps", len(asked)) as advance:
        for begin in range(0, len(asked), PART):
            part = asked[begin : begin + PART]
            found[[i for i, _ in part]] = standings(model, [q for _, q in part], plan)
            advance(len(part))
    token = np.array([int(q.ids[q.at]) if isinstance(q, Placed) else -1 for q in queries])
    right = [_distinct(found[owner == k], token[owner == k]) for k in range(len(gaps))]
    places = [_best(r) for r in right]
    lost = Counter(_reason(queries[int(np.argmax(owner == k))]) for k, place in enumerate(places) if place is None)
    number = len(model.vocabulary.ordinary)
    chance = np.array([max(len(r), 1) / number for r in right])
    where, given = _said(plan)
    return Part(
        f"vocabulary: per cent of gaps whose answer, one token, is the likeliest of all {number} ordinary tokens "
        f"{where}; mean over relations",
        {"plan": plan, "event": f"log p(token | {given}), by its rank among {number} ordinary tokens"},
        gaps,
        places,
        chance,
        _majority(gaps, chance),
        {**{why: lost[why] for why in UNSCORABLE}, "cut_texts": sum(q.cut for _, q in asked)},
    )


def _said(plan: Plan) -> tuple[str, str]:
    """Where a token is asked for, and what is given."""
    if plan in FORWARD:
        return "after the text before the gap (what follows the gap is not read)", "the text before the gap"
    return "in the gap", "all other tokens"


@dataclass(frozen=True)
class Placed:
    """A text's ids with the answer's token at place `at`; cut = the model has no room for the whole text."""

    ids: np.ndarray
    at: int
    cut: bool


def _placed(model: Model, gap: Gap, word: str, plan: Plan) -> Placed | str:
    """The text with the answer in its gap; or why it cannot be asked: the answer has several tokens, or is unknown.

    The answer's token may hold the blank before it, and nothing else beside the answer. Where the text is longer
    than the model's room, what lies farthest from the gap is cut off.
    """
    forward = plan in FORWARD
    text = gap.before + word if forward else gap.filled(word)
    begin, end = len(gap.before), len(gap.before) + len(word)
    aligned = tokenizer_of(model).encode_aligned([text])[0]
    mine = np.flatnonzero((aligned.end > begin) & (aligned.begin < end))
    if len(mine) != 1 or aligned.end[mine[0]] > end or text[aligned.begin[mine[0]] : begin].strip():
        return "several_tokens"
    at, number = int(mine[0]), len(aligned.ids)
    if model.vocabulary.is_special[aligned.ids[at]]:
        return "unknown_words"
    objective, shape = objective_of(model), shape_of(model)
    longest = room(objective, shape, plan)
    if forward:
        source = source_room(shape, plan, objective) if in_source(objective, plan) else None
        first = max(0, at - (longest - 1 if source is None else source))
        ids = aligned.ids[first : at + 1]
    else:
        first = int(np.clip(at - longest // 2, 0, max(number - longest, 0)))
        ids = aligned.ids[first : first + longest]
    return Placed(ids, at - first, first > 0 or (not forward and len(ids) < number))


def standings(model: Model, placed: Sequence[Placed], plan: Plan, batch_tokens: int = BATCH_TOKENS) -> np.ndarray:
    """(n, 2) how many ordinary tokens are likelier than the one at each place, and how many others as likely.

    −1 where that is a text's first token and the model has no start token to predict it from.
    """
    objective = objective_of(model)
    rows = Rows.of([q.ids for q in placed], ends=np.zeros(len(placed), bool))
    at = rows.start[:-1] + np.array([q.at for q in placed])
    given = np.array([q.at if in_source(objective, plan) else 0 for q in placed])
    asked = np.zeros(len(rows.tokens), bool)
    asked[at] = True
    # The token is a word of its own, so that a plan by words hides nothing of what follows it.
    word = asked | (rows.place == 0) | np.append(False, asked[:-1])
    query = Query(replace(rows, word=word), given, asked)
    out = np.full((query.slots, 2), -1)
    ordinary = torch.from_numpy(model.vocabulary.ordinary).long().to(device_of(model.network))
    for a in answers(model, query, batch_tokens, plan=plan):
        own, others = a.logits.gather(1, a.token.long()[:, None]), a.logits[:, ordinary]
        out[a.slot, 0] = (others > own).sum(1).cpu().numpy()
        out[a.slot, 1] = ((others == own).sum(1) - 1).cpu().numpy()
    return out[at]


def _reason(placed: Placed | str) -> str:
    return placed if isinstance(placed, str) else "no_start"


def _distinct(found: np.ndarray, token: np.ndarray) -> np.ndarray:
    """(k, 2) of a gap's answers that could be ranked; two that are one token count once."""
    first = np.unique(token, return_index=True)[1]
    return found[first][found[first, 0] >= 0]


def _best(found: np.ndarray) -> Standing | None:
    """Where the best of a gap's answers (k, 2) stands; others that are as good are right, too.

    >>> _best(np.array([[3, 0], [1, 2], [1, 2]]))
    Standing(above=1, tied=1, right=2)
    """
    if not len(found):
        return None
    above, tied = min((int(a), int(t)) for a, t in found)
    right = int((found == (above, tied)).all(1).sum())
    return Standing(above, max(tied - (right - 1), 0), right)


def _majority(gaps: Sequence[Gap], chance: np.ndarray) -> np.ndarray:
    """(n,) what naming the relation's most frequent answer gives; chance where it is not among the candidates."""
    answers: dict[str, Counter[str]] = {}
    for g in gaps:
        answers.setdefault(g.relation, Counter()).update(g.answers)
    most = {name: min(c.items(), key=lambda item: (-item[1], item[0]))[0] for name, c in answers.items()}
    return np.array(
        [
            float(most[g.relation] in g.answers) if not g.candidates or most[g.relation] in g.candidates else by_chance
            for g, by_chance in zip(gaps, chance, strict=True)
        ]
    )


# ---------------------------------------------------------------- the numbers


def _summary(part: Part, seed: int, items: bool) -> dict[str, Any]:
    """One protocol's dictionary. Gaps that could not be scored enter no mean; their number is shown."""
    known = np.array([s is not None for s in part.standing])
    places = [s or Standing(0, 0) for s in part.standing]  # of unknown ones nothing is used
    ten = {} if part.gaps[0].candidates else {"p_at_10": 100 * np.array([s.precision(10) for s in places])}
    figures = {
        "p_at_1": 100 * np.array([s.precision() for s in places]),
        **ten,
        "mrr": np.array([s.reciprocal_rank() for s in places]),
        "chance": 100 * part.chance,
        "majority": 100 * part.guessed,
    }
    names = [g.relation for g in part.gaps]
    rows: list[dict[str, Any]] = []
    groups: list[np.ndarray] = []
    for name in dict.fromkeys(names):
        here = np.array([n == name for n in names])
        scored_here = here & known
        means = {k: float(v[scored_here].mean()) if scored_here.any() else None for k, v in figures.items()}
        rows.append({"relation": name, **means, "gaps": int(here.sum()), "scored": int(scored_here.sum())})
        groups += [figures["p_at_1"][scored_here]] if scored_here.any() else []
    whole = macro(groups, seed)[0] if groups else None
    used = [row for row in rows if row["scored"]]
    over = {k: float(np.mean([row[k] for row in used])) if used else None for k in figures}
    return {
        "protocol": part.protocol,
        **part.named,
        "value": over["p_at_1"],
        **over,
        "interval": None if whole is None or whole.interval is None else list(whole.interval),
        "standard_error": None if whole is None else whole.error,
        "interval_over": "gaps within relations",
        "counts": {"relations": len(rows), "gaps": len(names), "scored": int(known.sum()), **part.counts},
        "relations": rows,
        **(_items(part) if items else {}),
    }


def _items(part: Part) -> dict[str, Any]:
    """Gaps stand relation by relation."""
    values = [None if s is None else s.precision() for s in part.standing]
    return outcomes("gaps", values, list(Counter(g.relation for g in part.gaps).values()))
