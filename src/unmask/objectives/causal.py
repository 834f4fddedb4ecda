"""Next-token prediction (Radford et al. 2018)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from unmask.batch import Examples, Rows, Targets, causal
from unmask.objectives.base import Objective, Outline, Shape, Sizes, Vocabulary, frame
from unmask.objectives.layout import Ragged, shifted


class Causal(Objective):
    """Each token from those before it: −Σ log p(x_i | x_<i) over the text and its end token.

    [BOS] opens every text; [EOS] is predicted only where the document ends, so that a model never
    learns to stop at the edge of its context.

    How far back a token sees is no part of the objective: the record says who may see whom, and
    `model.attention_pattern` with `model.window` which layers look at near tokens only (GL: every second one, GPT-3; L:
    all, Mistral). Targets stay the same; with L local layers a prediction reaches back L times the window.

        tokens     [BOS]   the   cat   sat
        target       the   cat   sat  [EOS]
        reveal         0     1     2     3

    >>> from unmask.objectives.show import toy
    >>> e = Causal()(Rows.of([[11, 12, 13]]), toy())
    >>> e.stream.tokens.tolist(), e.targets["lm"].value.tolist()
    ([2, 11, 12, 13], [11, 12, 13, 3])
    """

    type: Literal["causal"] = "causal"

    def room(self, shape: Shape) -> int:
        return shape.stream - 1

    def sizes(self, of: Outline) -> Sizes:
        return Sizes(of.lengths + of.ends)

    def __call__(self, rows: Rows, vocabulary: Vocabulary) -> Examples:
        text = frame(rows, at_end=vocabulary.need("eos"))
        stream = causal(shifted(Ragged(text.tokens, text.start), vocabulary.need("bos")), text.start)
        return Examples(stream, {"lm": Targets.at(np.arange(len(text.tokens)), text.tokens)})
