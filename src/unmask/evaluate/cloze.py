"""Cloze tests: what does the model put into a gap? (Petroni et al. 2019, "Language models as knowledge bases?")

Two protocols, whose numbers are never mixed:

    candidates   each candidate is put into the gap and scored: its own tokens given everything else where the model
                 sees both sides, the whole text where it reads left to right
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
from unmask.data.collate import collate, pack
from unmask.evaluate.base import Model, device_of, evaluating, objective_of, shape_of, states_of, tokenizer_of
from unmask.evaluate.gaps import Gap, Gaps
from unmask.evaluate.intervals import macro
from unmask.evaluate.items import PART, TIE, Events, Options, precision, sample, scored, standing
from unmask.evaluate.plans import FORWARD, Query, expand, in_source, plan_of, room, source_room
from unmask.evaluate.score import BATCH_TOKENS
from unmask.model.heads import read
from unmask.objectives.base import LM, Plan, Shape
from unmask.train.devices import to_device

NOTHING = (-1, -1)
"""Standing of a gap that could not be scored."""
UNSCORABLE = ("several_tokens", "unknown_words", "no_start")
"""Why: the answer has several tokens, or is [UNK]; or it comes first and the model has no start token."""
ROWS = 256
"""Rows of logits that exist at once."""


@dataclass(frozen=True)
class Part:
    """One protocol's outcome: for each gap how many wrong fillings stand above the best answer, and tie with it.

    chance   (n,) the share of fillings that are right
    guessed  (n,) what always naming its relation's most frequent answer would be right
    """

    protocol: str
    named: dict[str, Any]
    gaps: Sequence[Gap]
    standing: np.ndarray  # (n, 2); NOTHING where a gap could not be scored
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
    found = [_summary(part, options.seed) for part in parts]
    lead = found[0] if len(found) == 1 else {"protocol": "two protocols: see parts", "value": None, "interval": None}
    return {
        "suite": "cloze",
        "label": "P@1, per cent, mean over relations",
        **{k: v for k, v in lead.items() if k != "relations"},
        "passed_over": data.passed_over,
        "limit": options.limit,
        "seed": options.seed,
        **({"relations": lead["relations"]} if len(found) == 1 else {"parts": found}),
    }


# ---------------------------------------------------------------- candidates


def _candidates(model: Model, gaps: Sequence[Gap], options: Options) -> Part:
    plan = plan_of(objective_of(model), options.plan)
    if plan == "pseudo" and options.plan is None:
        plan = "pseudo_words"  # a candidate of several tokens is written left to right, not each token from the others
    inside = plan not in FORWARD
    texts = [g.filled(c) for g in gaps for c in g.candidates]
    only = [(len(g.before), len(g.before) + len(c)) for g in gaps for c in g.candidates] if inside else None
    events = Events()
    scores = list(events.see(scored(model, texts, only=only, plan=plan, watch=options.watch, what="candidates")))
    places, chance = [], []
    begin = 0
    for g in gaps:
        own = scores[begin : begin + len(g.candidates)]
        begin += len(own)
        values, right = np.array([s.logprob for s in own]), np.array([c in g.answers for c in g.candidates])
        places.append(standing(values, right, TIE * max(s.tokens for s in own)))
        chance.append(right.mean())
    where = "in the gap, given everything else" if inside else "of the whole text with the candidate in the gap"
    return Part(
        f"candidates: per cent of gaps whose right candidate has the largest log-probability {where}; mean over "
        "relations",
        events.named(),
        gaps,
        np.array(places),
        np.array(chance),
        _majority(gaps, np.array(chance)),
        {"scored_tokens": sum(s.tokens for s in scores), "candidates": len(texts)},
    )


# ---------------------------------------------------------------- the whole vocabulary


def _vocabulary(model: Model, gaps: Sequence[Gap], options: Options) -> Part:
    """Each answer of one token is a query of its own; a gap takes its best answer's standing."""
    plan = plan_of(objective_of(model), options.plan)
    queries = [_placed(model, gap, word, plan) for gap in gaps for word in gap.answers]
    owner = np.repeat(np.arange(len(gaps)), [len(g.answers) for g in gaps])
    asked = [(i, q) for i, q in enumerate(queries) if isinstance(q, Placed)]
    found = np.full((len(queries), 2), -1)
    with options.watch("gaps", len(asked)) as advance:
        for begin in range(0, len(asked), PART):
            part = asked[begin : begin + PART]
            found[[i for i, _ in part]] = standings(model, [q for _, q in part], plan)
            advance(len(part))
    places = np.array([_best(found[owner == k]) for k in range(len(gaps))]).reshape(-1, 2)
    lost = Counter(_reason(queries[i]) for i in (int(np.argmax(owner == k)) for k in np.flatnonzero(places[:, 0] < 0)))
    number = len(model.vocabulary.ordinary)
    chance = np.full(len(gaps), 1 / number)
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
        source = source_room(shape, plan) if in_source(objective, plan) else None
        first = max(0, at - (longest - 1 if source is None else source))
        ids = aligned.ids[first : at + 1]
    else:
        first = int(np.clip(at - longest // 2, 0, max(number - longest, 0)))
        ids = aligned.ids[first : first + longest]
    return Placed(ids, at - first, first > 0 or (not forward and len(ids) < number))


def standings(model: Model, placed: Sequence[Placed], plan: Plan, batch_tokens: int = BATCH_TOKENS) -> np.ndarray:
    """(n, 2) how many ordinary tokens are likelier than the one at each place, and how many others as likely.

    NOTHING where that is a text's first token and the model has no start token to predict it from.
    """
    objective, device = objective_of(model), device_of(model.network)
    rows = Rows.of([q.ids for q in placed], ends=np.zeros(len(placed), bool))
    at = rows.start[:-1] + np.array([q.at for q in placed])
    given = np.array([q.at if in_source(objective, plan) else 0 for q in placed])
    asked = np.zeros(len(rows.tokens), bool)
    asked[at] = True
    query = Query(rows if plan in FORWARD else replace(rows, word=asked | (rows.place == 0)), given, asked)
    out = np.full((len(rows.tokens), 2), -1)
    ordinary = torch.from_numpy(model.vocabulary.ordinary).long().to(device)
    head = model.network.heads[LM.uses]
    key = (objective.type, LM.name)
    with evaluating(model.network):
        for part in expand(objective, query, model.vocabulary, batch_tokens, plan):
            size = part.sizes
            shape = Shape(int(size.stream.max()), 0 if size.source is None else int(size.source.max()))
            batch = collate({objective.type: part.examples}, {objective.type: (LM,)}, pack(size, shape), shape=shape)
            batch = to_device(batch, device)
            states, targets = states_of({"model": model.network}, batch)["model"]["stream"], batch.targets[key]
            n = len(part.slot)  # what follows are targets of weight 0
            for begin in range(0, n, ROWS):
                here = slice(begin, min(begin + ROWS, n))
                index = None if targets.index is None else targets.index[here]
                logits = head.project(head.features(read(states, batch.stream, LM, index))).float()
                own = logits.gather(1, targets.value[here].long()[:, None])
                others = logits[:, ordinary]
                out[part.slot[here], 0] = (others > own).sum(1).cpu().numpy()
                out[part.slot[here], 1] = ((others == own).sum(1) - 1).cpu().numpy()
    return out[at]


def _reason(placed: Placed | str) -> str:
    return placed if isinstance(placed, str) else "no_start"


def _best(found: np.ndarray) -> tuple[int, int]:
    """The standing of the best of a gap's answers (a, 2)."""
    known = found[found[:, 0] >= 0]
    return NOTHING if not len(known) else min((int(above), int(tied)) for above, tied in known)


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


def _summary(part: Part, seed: int) -> dict[str, Any]:
    """One protocol's dictionary. Gaps that could not be scored enter no mean; their number is shown."""
    known = part.standing[:, 0] >= 0
    above, tied = np.maximum(part.standing, 0).T
    ten = {} if part.gaps[0].candidates else {"p_at_10": 100 * precision(above, tied, 10)}
    figures = {
        "p_at_1": 100 * precision(above, tied),
        **ten,
        "mrr": 1 / (1 + above + tied / 2),
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
    }
