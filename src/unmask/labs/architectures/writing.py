"""Lines from nothing, sampled as the model's distribution has it (temperature 1), in the way that each model has.

A line ends at its line end, or with [EOS], or after the 30 tokens that a row has room for; what stands before is
checked. A line is well formed or not, and true or not (`World.check`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch

from unmask.data.worlds import World
from unmask.evaluation.sampling import Sampling, choose
from unmask.labs.reviews.asked import LENGTH, slots
from unmask.labs.reviews.setting import WINDOW
from unmask.lm import LM

LINES = 200
STOP = "\n"


def left_to_right(lm: LM, seed: int) -> list[str]:
    """Each token after those before it. T5: the span for <0>, which is all of its source."""
    return lm.generate([""] * LINES, WINDOW, temperature=1.0, stop=STOP, seed=seed)


def appending(lm: LM, seed: int) -> list[str]:
    """[CLS] what stands there [MASK] [SEP]: the mask is filled, another one put behind it, and so on."""
    ids = np.zeros((LINES, 0), np.int32)
    forbidden = torch.ones(lm.vocabulary.size, dtype=torch.bool)
    forbidden[torch.from_numpy(lm.vocabulary.ordinary).long()] = False
    mask = np.full((LINES, 1), lm.vocabulary.need("mask"), np.int32)
    for place in range(WINDOW):
        logits = slots(lm, list(np.hstack([ids, mask])), [place] * LINES).masked_fill(forbidden, -torch.inf)
        drawn = choose(logits, Sampling(1.0, seed=seed), np.arange(LINES), place)
        ids = np.hstack([ids, drawn.numpy()[:, None].astype(np.int32)])
    assert lm.tokenizer is not None
    return [lm.tokenizer.decode(row).split(STOP)[0] for row in ids]


def confident_first(lm: LM, seed: int, length: int) -> list[str]:
    """[CLS] `length` masks [SEP]: all are drawn, the most probable one stays, the others are drawn again, and so on."""
    return lm.generate(
        [""] * LINES, temperature=1.0, stop=STOP, seed=seed, length=length, steps=length, order="confidence"
    )


FORWARD = "left to right"
MASKS: Mapping[str, Callable[[LM, int], list[str]]] = {
    "appending [MASK]": appending,
    "most confident first, a window of 30": partial(confident_first, length=WINDOW),
    "most confident first, a line of 16": partial(confident_first, length=LENGTH),
}


def lines(lm: LM, seed: int, masked: bool) -> dict[str, list[str]]:
    """Way → lines."""
    return {way: write(lm, seed) for way, write in MASKS.items()} if masked else {FORWARD: left_to_right(lm, seed)}


def judged(world: World, written: list[str]) -> dict[str, float]:
    """Shares of the lines that are well formed, true, different from all before them, and true lines of training."""
    found = [world.check(line.strip()) for line in written]
    known = set(world.lines("reviews", "train"))
    return {
        "valid": float(np.mean([c.well_formed for c in found])),
        "true": float(np.mean([c.true is True for c in found])),
        "different": len(set(written)) / len(written),
        "seen": float(np.mean([line.strip() in known for line in written])),
    }
