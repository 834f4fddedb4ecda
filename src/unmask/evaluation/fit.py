"""Which plans fit an objective, how it lays a pair out, and how much text one example holds."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np

from unmask import keyed
from unmask.batch import Head
from unmask.errors import UserError, nearest
from unmask.evaluation.abilities import abilities, elsewhere, spoken, token_head_of
from unmask.evaluation.shown import Blanks, Halves
from unmask.objectives.bart import Bart
from unmask.objectives.base import Objective, Outline, Plan, Shape
from unmask.objectives.denoise import TextToText
from unmask.objectives.dials import Dials
from unmask.objectives.glm import GLM
from unmask.objectives.layout import Layout
from unmask.objectives.mass import Mass
from unmask.objectives.permutation import Permutation
from unmask.objectives.study import DroppedTokens, Restoration
from unmask.objectives.supervised import Supervised
from unmask.objectives.unilm import UniLM
from unmask.tokens.special import Vocabulary

FORWARD: tuple[Plan, ...] = ("left_to_right", "decoder")
"""Plans by the chain rule: their sum is the log-probability of the text."""
MASKED: tuple[Plan, ...] = ("pseudo", "pseudo_words", "bound")
"""Plans that put [MASK] in a token's place. They and infill see both sides: every plan not in FORWARD does."""
LIKELIHOOD: tuple[Plan, ...] = (*FORWARD, "bound")
"""Plans whose sum is the log-probability of the text, or bounds it."""


def plans_of(objective: Objective) -> tuple[Plan, ...]:
    """The plans that a model of this objective can be scored by, its default first; none = it cannot be scored."""
    return abilities(objective).plans


def plan_of(objective: Objective, plan: Plan | None, whole: Objective | None = None) -> Plan:
    """The plan asked for, or the objective's own; `whole`: the mixture that the objective is a part of, if any."""
    fit = plans_of(objective)
    if plan is not None and plan not in (known := get_args(Plan)):
        own = f"; of a model of {objective.type}: {', '.join(fit)}" if fit else ""
        raise UserError(f"there is no plan '{plan}' (known: {', '.join(known)}{own}){nearest(plan, known)}")
    if not fit:
        others = elsewhere(whole, lambda a: plan in a.plans if plan else bool(a.plans))
        raise UserError(f"a model of {objective.type} {abilities(objective).score}{others}")
    if plan is None:
        return fit[0]
    if plan not in fit:
        own = f"its plan is {fit[0]}" if len(fit) == 1 else f"its plans are {', '.join(fit)}"
        others = elsewhere(whole, lambda a: plan in a.plans)
        raise UserError(f"plan {plan} does not fit a model of {objective.type}: {own}{others or nearest(plan, fit)}")
    return plan


def layout_of(objective: Objective) -> Layout | Blanks | Halves:
    """How a (source, target) pair is shown to a model trained under `objective`."""
    if isinstance(objective, TextToText):
        return objective.layout.model_copy(update={"loss": "target"})  # what is scored is the target
    if isinstance(objective, GLM):
        return Blanks()
    if isinstance(objective, UniLM):
        return Halves()
    prefix = isinstance(objective, Dials) and objective.prefix == "uniform"
    return Layout(kind="prefix" if prefix else "causal")


def in_source(objective: Objective, plan: Plan) -> bool:
    """A context is shown as a source (or a visible prefix), so every window of a text may get all of it."""
    return plan == "decoder" or (plan == "left_to_right" and layout_of(objective).kind in ("encdec", "prefix"))


def opening(objective: Objective, vocabulary: Vocabulary, plan: Plan) -> int:
    """1 where nothing stands before a text's first token, which is then not scored: there is no start token.

    Only decoders of other people come so: our objectives do not train without one.
    """
    return int(plan == "left_to_right" and starts_with_bos(objective, plan) and _causal(objective, vocabulary))


def _causal(objective: Objective, vocabulary: Vocabulary) -> bool:
    return layout_of(objective).kind == "causal" and vocabulary.bos is None


def starts_with_bos(objective: Objective, plan: Plan) -> bool:
    """Whether [BOS] stands before what is scored, not [CLS]."""
    return plan not in MASKED and not isinstance(objective, Permutation | UniLM)


def closes(objective: Objective, plan: Plan) -> bool:
    """Whether the plan gives a probability to a text's end."""
    cloze_only = isinstance(objective, UniLM) and not objective.next_token
    return plan in FORWARD and not cloze_only and not isinstance(objective, Permutation)


def token_head(objective: Objective) -> Head:
    """The head that answers with tokens."""
    head = token_head_of(objective)
    if head is None:
        raise UserError(f"objective {objective.type} predicts no tokens: it can be neither scored nor sampled")
    return head


def room(objective: Objective, shape: Shape, plan: Plan | None = None) -> int:
    """Tokens of text that one example can hold: with its context in one stack, without it where that is the source.

    No more than texts had in training, and so few that each is asked where training asked for tokens, too: a stream may
    have room behind that, but there training had ends, or nothing.
    """
    plan = plan or plan_of(objective, None)
    longest, extra, times = _taken(objective, shape, plan)
    most = min((longest - extra) // times, _trained(objective, shape, plan))
    if most < 1:
        raise UserError(f"a model trained on {longest} tokens has no room for text under {objective.type}")
    return most


def _trained(objective: Objective, shape: Shape, plan: Plan) -> int:
    """Tokens of the longest text of training, less where noise left answers further ahead than a plan asks for them.

    span_corruption, ul2, dropped_tokens   the answer follows the whole source: not behind theirs
    bart, restoration   the answers are a copy behind the source, which in training lacks what was infilled
    glm                 answers have the place of their [MASK] in part A, which in training lacks all but the [MASK]s
    """
    if isinstance(objective, Supervised):
        return max(shape.stream, shape.source)  # source and target are two texts
    told = int(objective.control is not None)
    two = shape.source > 0
    shape = replace(shape, source=shape.source - told) if two else replace(shape, stream=shape.stream - told)
    most = objective.room(shape) if min(shape.stream, shape.source if two else 1) > 0 else 0
    if plan != "infill" or two or not most:
        return most
    if isinstance(objective, Bart | Restoration):
        return min(most, (_reach(objective, most) - 2) // 2)  # [EOS] after source and target
    if isinstance(objective, GLM):
        noise, spans = (int(a[0]) for a in objective.counts(np.array([most])))
        noise = (most + 1) // 2 if objective.spans == "document" else noise  # the least that may be left out
        return max(most - noise + spans - 1, 1)
    return most


def _reach(objective: TextToText, length: int, texts: int = 63) -> int:
    """Tokens of source and target together for texts of a length: as many, or more, with half of the noise."""
    number = np.arange(texts)
    of = Outline(np.full(texts, length), keyed.row_keys(0, 0, number), number, np.ones(texts, bool))
    return int(np.median(objective.sizes(of).stream))


def _taken(objective: Objective, shape: Shape, plan: Plan) -> tuple[int, int, int]:
    """The length that limits a text, the tokens beside it there, and how many times the text stands there."""
    longest, beside, times = _framed(objective, shape, plan)
    mode = len(spoken(objective, plan))
    if shape.source and plan in (
        "left_to_right",
        "decoder",
    ):  # the target is what limits a text, the mode in the source
        mode = 0
    return longest, beside + mode, times


def _framed(objective: Objective, shape: Shape, plan: Plan) -> tuple[int, int, int]:
    """`_taken` without mode tokens."""
    two = shape.source > 0
    if isinstance(objective, Permutation):
        return (shape.stream, 3, 1) if plan in MASKED else (shape.stream, 2, 2)  # queries
    if plan in MASKED:
        return shape.stream, 1 if isinstance(objective, Dials) and objective.prefix != "all" else 2, 1
    if isinstance(objective, GLM):
        return shape.stream, 3 if plan == "infill" else 4, 1  # [CLS] and [SEP], [BOS]; the text's [MASK]
    if plan == "decoder":
        return shape.stream, 2 if two else 4, 1  # target: <0> and the end token; else the source's two, too
    if plan == "left_to_right":
        return shape.stream, 1 if two or not isinstance(objective, Supervised) else 2, 1  # [BOS], or the end token
    if isinstance(objective, DroppedTokens | Mass):
        return (shape.source, 0, 1) if two else (shape.stream, 1, 1)
    if isinstance(objective, Bart | Restoration):
        return (min(shape.source, shape.stream), 1, 1) if two else (shape.stream, 1, 2)
    # source: the text and [EOS]; in one stack the target <0> x <1> [EOS] follows it
    return (shape.source, 1, 1) if two else (shape.stream, 5, 1)


def source_room(shape: Shape, plan: Plan, objective: Objective | None = None) -> int | None:
    """Tokens of context that the source can hold; None = context and text share one stack."""
    if not shape.source:
        return None
    mode = 0 if objective is None else len(spoken(objective, plan))
    extra = 2 if plan == "decoder" else int(isinstance(objective, Supervised))  # <0> and [EOS]
    return max(shape.source - extra - mode, 0)


def source_most(objective: Objective, shape: Shape) -> int:
    """Tokens of a source that a model of pairs reads in training: of a longer one these are its first."""
    held = source_room(shape, plan_of(objective, None), objective)
    return objective.room(shape) - len(spoken(objective, "left_to_right")) if held is None else held
