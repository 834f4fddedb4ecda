"""BERT's masks: which tokens, how many, and what stands in their place (Devlin et al. 2019, appendix A.1)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from unmask.batch import Rows, places
from unmask.objectives import Masked
from unmask.objectives.base import Objective
from unmask.objectives.show import toy

from .cases import BOS, EOS, MASK, OBJECTIVES, VOCABULARY, texts, within

masked_only = pytest.mark.parametrize("name", [n for n, o in OBJECTIVES.items() if isinstance(o, Masked)])


@masked_only
def test_d16_specials_and_padding_are_never_targets(name: str) -> None:
    rows = texts([4, 9, 30] * 300)
    fixed = np.random.default_rng(0).random(len(rows.tokens)) < 0.2
    e = OBJECTIVES[name](replace(rows, fixed=fixed), VOCABULARY)
    place, last = places(e.stream.start), np.zeros(len(e.stream.tokens), bool)
    last[e.stream.start[1:] - 1] = True
    at = e.targets["lm"].index
    assert (place[at] > 0).all() and not last[at].any()
    inner = np.flatnonzero((place > 0) & ~last)
    assert not np.isin(at, inner[fixed]).any()
    assert (e.stream.tokens[inner[fixed]] == rows.tokens[fixed]).all()
    if name == "masked-all":
        assert len(at) == (~fixed).sum()


def test_d16_the_share_is_of_eligible_tokens() -> None:
    rows = texts([4, 9, 30] * 10_000)
    hits = len(OBJECTIVES["masked-independent"](rows, VOCABULARY).targets["lm"].index)
    assert within(hits, len(rows.tokens), 0.15)
    counts = np.diff(np.searchsorted(*_by_text(Masked(), rows)))
    assert set(counts.tolist()) == {1, 4} and counts[:3].tolist() == [1, 1, 4]  # round(0.6), round(1.35), round(4.5)


def _by_text(objective: Objective, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    e = objective(rows, VOCABULARY)
    return e.targets["lm"].index, e.stream.start


def test_o01_eighty_ten_ten_of_a_million_tokens() -> None:
    rows = texts([500] * 2000)
    e = Masked()(rows, toy())
    t, seen = e.targets["lm"], e.stream.tokens
    at_target = np.zeros(len(seen), bool)
    at_target[t.index] = True
    truth = _framed(rows)
    assert len(t.index) / rows.tokens.size == pytest.approx(0.15, abs=0.001)
    assert (seen[~at_target] == truth[~at_target]).all() and (t.value == truth[t.index]).all()
    got, n = seen[t.index], len(t.index)
    masked, kept = got == MASK, got == t.value
    # [MASK] itself may stand in these texts, and a random token may be the original (1 in 85).
    text_is_mask = t.value == MASK
    n, masked, kept = n - text_is_mask.sum(), masked[~text_is_mask], kept[~text_is_mask]
    assert within(int(masked.sum()), n, 0.8)
    ordinary = t.value[~text_is_mask] >= 5
    assert within(int(kept[ordinary].sum()), int(ordinary.sum()), 0.1 + 0.1 / 85)
    assert within(int((~masked & ~kept)[ordinary].sum()), int(ordinary.sum()), 0.1 * 84 / 85)


def _framed(rows: Rows) -> np.ndarray:
    return np.concatenate([[BOS, *x, EOS] for x in np.split(rows.tokens, rows.start[1:-1])])


@pytest.mark.parametrize(("mask_share", "random_share"), [(0.0, 1.0), (0.8, 0.1)])
def test_o02_random_tokens_are_never_special_and_even(mask_share: float, random_share: float) -> None:
    rows = texts([500] * 400)
    words = replace(rows, tokens=np.full_like(rows.tokens, 7))
    objective = Masked(mask_rate=1.0, mask_share=mask_share, random_share=random_share)
    e = objective(words, toy())
    drawn = np.bincount(e.stream.tokens[e.targets["lm"].index], minlength=100)
    if mask_share:
        drawn[[MASK, 7]] = 0
    assert drawn[:5].sum() == 0 == drawn[90:].sum()
    even = drawn[5:90][drawn[5:90] > 0]  # where nothing is kept, 7 is among them: the original may be drawn
    assert len(even) == 85 - (mask_share > 0)
    assert all(within(int(k), int(even.sum()), 1 / len(even)) for k in even)


def test_o03_each_token_has_its_own_fate() -> None:
    # Choices are made by token: the fates of neighbours are independent (word-level rules are other objectives).
    words = replace(texts([400] * 100), tokens=np.full(40_000, 7, np.int32))
    e = Masked(mask_rate=1.0, mask_share=0.5, random_share=0.0)(words, toy())
    hidden = (e.stream.tokens == MASK).reshape(100, 402)[:, 1:-1]
    assert within(int((hidden[:, 1:] & hidden[:, :-1]).sum()), 100 * 399, 0.25)


def test_shares_beyond_one_are_refused() -> None:
    with pytest.raises(ValueError, match=r"mask_share 0\.8 \+ random_share 0\.3 exceed 1"):
        Masked(random_share=0.3)
