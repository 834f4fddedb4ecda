"""How writing begins: the prompt of a continuation, and that of each gap of a text.

span_corruption, ul2   source: text <0> [EOS]      target: <0> …
glm                    source: text [MASK]         target: …
bart                   source: text [MASK] [EOS]   target: text …
pairs                  source: text [EOS]          target: …
others                 what the text begins with

Mode tokens come in front of the source when it is laid out (`plans.laid`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unmask.evaluation.abilities import spoken
from unmask.evaluation.steps import Start
from unmask.objectives.bart import Bart
from unmask.objectives.base import Objective
from unmask.objectives.denoise import SpanCorruption
from unmask.objectives.glm import GLM
from unmask.objectives.infilling import CausallyMasked, FillInTheMiddle, sentinels
from unmask.objectives.supervised import Supervised
from unmask.objectives.ul2 import UL2
from unmask.objectives.unilm import UniLM
from unmask.tokens.special import Vocabulary

Ids = Sequence[int] | np.ndarray


def continuation(objective: Objective, prompt: np.ndarray, sample: int, vocabulary: Vocabulary) -> Start:
    """How a text begins that continues the prompt."""
    none = np.zeros(0, np.int32)
    if isinstance(objective, SpanCorruption | UL2):
        zero = vocabulary.sentinels[:1]
        return Start(_ids(prompt, zero, [vocabulary.need("eos")]), zero, sample)
    if isinstance(objective, GLM):
        return Start(_ids(prompt, [vocabulary.need("mask")]), none, sample)
    if isinstance(objective, Bart):
        return Start(_ids(prompt, [vocabulary.need("mask"), vocabulary.need("eos")]), prompt, sample)
    if isinstance(objective, Supervised):
        return Start(_ids(prompt, [vocabulary.need("eos")]), none, sample)
    return Start(prompt, none, sample)


def ends_of(objective: Objective, vocabulary: Vocabulary) -> frozenset[int]:
    """The tokens that end a continuation. UniLM's cloze never asks for an end, so it has none."""
    if isinstance(objective, UniLM):
        return frozenset([vocabulary.need("sep")] if objective.next_token else ())
    ends = {vocabulary.eos} if vocabulary.eos is not None else set()
    if isinstance(objective, SpanCorruption | UL2):
        ends |= {int(s) for s in vocabulary.sentinels[1:2]}
    return frozenset(ends)


# ---------------------------------------------------------------- gaps


def gap(objective: Objective, text: np.ndarray, spans: Sequence[Ids], vocabulary: Vocabulary) -> Start:
    """How the answer to the next gap begins, after the `spans` of those before it; in the text sentinel k is gap k.

    span_corruption, ul2   source: text [EOS]    target: <0> span <1> …
    glm                    source: text, its gaps [MASK] (each answer behind a [BOS] of its own)
    fill_in_the_middle     <0> what stands before <1> what stands behind <2> …
    causally_masked        text <0> span <1> …
    """
    k, marks = len(spans), vocabulary.sentinels
    if isinstance(objective, FillInTheMiddle):
        opening = sentinels(vocabulary, 3, objective.type)
        at = int(np.flatnonzero(text == marks[0])[0])
        cut = _ids(opening[:1], text[:at], opening[1:2], text[at + 1 :], opening[2:])
        return Start(cut, np.zeros(0, np.int32), k, "infill")
    if isinstance(objective, GLM):
        between = [[*span, vocabulary.need("bos")] for span in spans]
        shown = np.where(np.isin(text, marks), np.int32(vocabulary.need("mask")), text)
        return Start(_ids(shown), _ids(*between), k, "infill")
    closed = [int(marks[-1])] if isinstance(objective, CausallyMasked) and objective.end_of_span else []
    before = [_ids([marks[j]], span, closed) for j, span in enumerate(spans)]
    written = _ids(*before, [marks[k]])
    if isinstance(objective, CausallyMasked):
        return Start(_ids(text, written), np.zeros(0, np.int32), k, "infill")
    return Start(_ids(text, [vocabulary.need("eos")]), written, k, "infill")


def gap_ends(objective: Objective, vocabulary: Vocabulary) -> frozenset[int]:
    """The tokens that end the answer to a gap."""
    eos = vocabulary.need("eos")
    if isinstance(objective, FillInTheMiddle):
        return frozenset([int(sentinels(vocabulary, 4, objective.type)[3])] if objective.end == "sentinel" else [eos])
    if isinstance(objective, GLM):
        return frozenset([eos])
    return frozenset([eos, *vocabulary.sentinels.tolist()])


def most_gaps(objective: Objective, vocabulary: Vocabulary) -> int:
    """How many gaps one text can have: a sentinel each, and one more that closes the last."""
    if isinstance(objective, FillInTheMiddle):
        return 1
    most = max(len(vocabulary.sentinels) - 1, 0)
    return min(most, objective.max_spans) if isinstance(objective, CausallyMasked) else most


def beside(objective: Objective, start: Start, gaps: int, two: bool) -> int:
    """Tokens of the stream beside the spans of `gaps` gaps, `start` being that of the first. The last token of all is
    written and not read, so it takes the place of [BOS]."""
    source = size(objective, start)
    if isinstance(objective, GLM):
        return source + 2 + gaps - 1  # [CLS], [SEP], and a [BOS] each
    if isinstance(objective, FillInTheMiddle):
        return source
    if isinstance(objective, CausallyMasked):
        return source + (gaps - 1) * (1 + objective.end_of_span)
    return gaps + (0 if two else source)


def size(objective: Objective, start: Start) -> int:
    """Tokens of the source with the mode tokens in front."""
    return len(start.source) + len(spoken(objective, start.plan))


def _ids(*parts: Ids) -> np.ndarray:
    return np.concatenate([np.asarray(p, np.int32) for p in parts]) if parts else np.zeros(0, np.int32)
