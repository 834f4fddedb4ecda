"""Masked objectives for the suite, what the texts need for them, and how a text comes back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from unmask import keyed
from unmask.batch import Rows
from unmask.objectives.annotated import Ernie, SalientSpans
from unmask.objectives.base import Objective
from unmask.objectives.masked import Masked, Masking
from unmask.objectives.shifted import ShiftedMasked
from unmask.objectives.show import toy
from unmask.objectives.units import Selected

if TYPE_CHECKING:
    from .cases import Example

BOS, EOS = 2, 3
ALL: dict[str, float] = {"mask_share": 1.0, "random_share": 0.0}

OBJECTIVES: dict[str, Objective] = {
    "masked-bert": Masked.bert(),
    "masked-rates": Masked(mask_rate=0.3, final_rate=0.15, schedule="cosine"),
    "masked-words": Masked.whole_word(),
    "masked-words-independent": Masked(unit="word", selection="independent", fate="span"),
    "masked-words-one-fate": Masked(unit="word", fate="span", mask_rate=0.3),
    "masked-ngrams": Masked.albert(),
    "masked-token-spans": Masked(span_lengths="uniform", max_span=3, fate="span", mask_rate=0.3),
    "masked-spanbert": Masked.spanbert(),
    "masked-spans-dense": Masked(unit="word", span_lengths="geometric", mask_rate=0.9, boundary_offsets=3),
    "ernie": Ernie.ernie1(),
    "ernie-phrases": Ernie(phrases_from=0.0),
    "ernie-entities": Ernie(phrases_from=0.0, entities_from=0.0),
    "shifted": ShiftedMasked(**ALL),
    "shifted-words": ShiftedMasked(unit="word", mask_rate=0.3, **ALL),
}
"""Those that keep each promise of the suite as it stands. `SPARSE` holds the others."""

SPARSE: dict[str, Objective] = {
    "salient": SalientSpans(),  # a text without annotated spans has no target, and a text of few has little noise
    "salient-all": SalientSpans(max_spans=100),
    "shifted-kept": ShiftedMasked(),  # a kept token stands one to the right of the position that predicts it
    "hybrid": ShiftedMasked.gpt_bert(),  # causal texts have no noise
    "hybrid-half": ShiftedMasked(causal_share=0.5, unit="word"),
}


def marked(rows: Rows) -> Rows:
    """The rows with words of about two tokens and spans of up to three: functions of each text's key and places."""
    row, place = rows.row, rows.place
    word = (keyed.uniform(rows.key[row], place + 1000) < 0.5) | (place == 0)
    length = 1 + keyed.below(keyed.bits(rows.key[row], place + 2000), 3)
    left = np.repeat(rows.lengths, rows.lengths) - place
    begin = np.flatnonzero((place % 5 == 1) & (keyed.uniform(rows.key[row], place + 3000) < 0.6))
    spans = np.stack([begin, begin + np.minimum(length, left)[begin]], 1)
    return replace(rows, word=word, spans=spans)


def restored(objective: Objective, e: Example, ends: bool) -> tuple[list[int], list[bool]] | None:
    """The text of an example, from what the model sees and must say, and which of its tokens were noise."""
    if not isinstance(objective, Masking):
        return None
    tokens = e.stream["tokens"].copy()
    shift = int(isinstance(objective, ShiftedMasked))
    assert (tokens[0], tokens[-1]) == (BOS, EOS)
    at = {i + shift for i in e.index}
    for i, v in zip(e.index, e.value, strict=True):
        tokens[i + shift] = v
    assert tokens[-1] == EOS
    return tokens[1:-1], [i in at for i in range(1, len(tokens) - 1)]


def within(hits: int, draws: int, rate: float) -> bool:
    """A count of hits that lies inside the binomial interval of 1 in 10,000."""
    return abs(hits - draws * rate) <= 3.9 * np.sqrt(draws * rate * (1 - rate)) + 1e-9


def selected(objective: Masking, rows: Rows) -> Selected:
    return objective.select(objective.framed(rows, toy()))


def hidden(objective: Masking, rows: Rows) -> np.ndarray:
    """(N,) bool: the tokens of the texts, without their specials, that are to be predicted."""
    framed = objective.framed(rows, toy())
    out = np.zeros(len(framed.tokens), bool)
    out[objective.select(framed).at] = True
    return out[(framed.place > 0) & (framed.place <= np.repeat(rows.lengths, framed.lengths))]


def uniform_words(texts_drawn: int, n: int, length: int = 1) -> Rows:
    """Texts of n words of `length` tokens, all the same token."""
    rows = Rows.of([[7] * (n * length)] * texts_drawn, keyed.row_keys(0, 0, np.arange(texts_drawn)))
    return replace(rows, word=rows.place % length == 0)
