"""A stub that stands for ELECTRA's generator, so that both networks' inputs can be seen without training one.

    text           [CLS]    the     chef    cooked    the     meal  [SEP]    sorted: chef cooked meal the the
    generator      [CLS]  [MASK]    chef   [MASK]     the     meal  [SEP]
    draw                   0.31              0.65
    sampled               cooked             the                             the one at floor(5 · draw)
    discriminator  [CLS]  cooked    chef     the      the     meal  [SEP]
    rtd                  replaced original replaced original original

That is a generator that says each of the text's own tokens as often as it occurs, sampled as in training: by its
inverse distribution at the target's uniform (`electra.sample`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from unmask.batch import Examples, Rows, Targets
from unmask.objectives.base import LM, Objective
from unmask.objectives.replaced import COPY, DETECTION, Replaced

NAMES: Mapping[str, tuple[str, str]] = {DETECTION: ("original", "replaced"), COPY: ("write", "copy")}
"""What 0 and 1 say: whether a token is the text's own, and whether copying the input would be right."""
NOTE = "generator: says each of the text's own tokens as often as it occurs (none is trained here)"


def has_generator(objective: Objective) -> bool:
    return isinstance(objective, Replaced)


def sampled(rows: Rows, examples: Examples) -> tuple[Examples, np.ndarray]:
    """The examples with the discriminator's answers, and (N,) what it reads: a sample at each of the generator's
    targets, the text elsewhere."""
    lm, start = examples.targets[LM.name], examples.stream.start
    assert lm.index is not None and lm.draw is not None and start is not None
    row = np.searchsorted(start, lm.index, "right") - 1
    own = rows.tokens[np.lexsort((rows.tokens, rows.row))]  # each text's tokens in ascending order
    drawn = own[rows.start[row] + (lm.draw * rows.lengths[row]).astype(np.int64)]
    corrupt = examples.stream.tokens.copy()
    corrupt[lm.index] = drawn
    differs = np.zeros(len(corrupt), bool)
    differs[lm.index] = drawn != lm.value

    def answered(name: str, t: Targets) -> Targets:
        if name not in NAMES:
            return t
        found = differs if name == DETECTION else ~differs
        return replace(t, value=found[t.index].astype(np.int32))

    return replace(examples, targets={k: answered(k, t) for k, t in examples.targets.items()}), corrupt
