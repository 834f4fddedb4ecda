"""Bidirectionality dials: the corners are the objectives they are named for, and what lies between."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from unmask.batch import Examples, Rows
from unmask.objectives import Causal, Masked, PrefixLM
from unmask.objectives.base import Objective, outline
from unmask.objectives.dials import Dials
from unmask.objectives.layout import Layout
from unmask.objectives.show import toy

from .cases import EOS, LENGTHS, MASK, VOCABULARY, examples, reachable, texts, within

MASKS = {"mask_share": 1.0, "random_share": 0.0}


def same(a: Examples, b: Examples) -> None:
    """Every field of two records, hints too."""
    for x, y in ((a.stream, b.stream), (a.targets["lm"], b.targets["lm"])):
        for f in fields(x):
            p, q = getattr(x, f.name), getattr(y, f.name)
            assert (p is None) == (q is None), f.name
            if isinstance(p, np.ndarray):
                assert p.tolist() == q.tolist() and p.dtype == q.dtype, f.name
            else:
                assert p == q, f.name
    assert a.targets.keys() == b.targets.keys() and a.source is b.source is None


@pytest.mark.parametrize(
    ("dials", "named"),
    [
        (Dials.nxt_uni(), Causal()),
        (Dials.nxt_pre(), PrefixLM(layout=Layout(kind="prefix"))),
        (Dials.msk_bi(), Masked(selection="independent", **MASKS)),
        (Dials(mask_rate=0.3, selection="exact", prefix="all", predict="masked"), Masked(mask_rate=0.3, **MASKS)),
    ],
    ids=["causal", "prefix_lm", "masked", "masked-exact"],
)
def test_a_corner_is_the_objective_it_is_named_for(dials: Dials, named: Objective) -> None:
    for seed in range(5):
        rows = texts(LENGTHS * 3, seed)
        same(dials(rows, VOCABULARY), named(rows, VOCABULARY))
        assert dials.sizes(outline(rows)).stream.tolist() == named.sizes(outline(rows)).stream.tolist()
    assert dials.visibility == named.visibility and dials.plan == named.plan


def words(lengths: list[int], ends: bool = True) -> Rows:
    """Texts without [MASK] of their own."""
    rows = texts(lengths, ends=ends)
    return Rows.of(np.split(5 + rows.tokens % 85, rows.start[1:-1]), rows.key, ends=rows.ends)


def test_without_a_prefix_masks_stand_behind_the_text_they_are_hidden_in() -> None:
    rows = words([30] * 200)
    for e, text in zip(examples(Dials.hyb_uni()(rows, VOCABULARY)), rows.tokens.reshape(200, 30), strict=True):
        tokens, reveal = np.array(e.stream["tokens"]), np.array(e.stream["reveal"])
        hidden = tokens == MASK
        moved = np.concatenate([np.flatnonzero(~hidden), np.flatnonzero(hidden)])
        assert reveal[moved].tolist() == list(range(31)) and e.stream["horizon"] == e.stream["reveal"]
        following = [*text.tolist(), EOS]
        whole = [2, *text.tolist()]
        assert e.index == list(range(31))  # n_predict = n
        assert e.value == [whole[i] if hidden[i] else following[i] for i in range(31)]


@pytest.mark.parametrize("ends", [True, False])
def test_the_text_comes_back_where_both_kinds_are_asked(ends: bool) -> None:
    rows = words([1, 2, 5, 40, 17, 3] * 30, ends)
    for dials in (Dials.hyb_uni(), Dials.hyb_pre(), Dials(mask_rate=0.5, selection="exact")):
        for e, text in zip(examples(dials(rows, VOCABULARY)), np.split(rows.tokens, rows.start[1:-1]), strict=True):
            tokens, answer = e.stream["tokens"], dict(zip(e.index, e.value, strict=True))
            assert [answer[i] if t == MASK else t for i, t in enumerate(tokens)] == [2, *text.tolist()]
            asked = [i for i in e.index if tokens[i] != MASK]
            assert all(answer[i] == [*text.tolist(), EOS][i] for i in asked)
            last = len(tokens) - 1 in asked
            assert not last or (ends and tokens[-1] != MASK)
            if dials.prefix == "none":  # a prefix may reach beyond it
                assert last == (ends and tokens[-1] != MASK)


def test_with_a_prefix_the_first_of_the_moved_order_see_each_other() -> None:
    n, seen = 20, []
    for e in examples(Dials.hyb_pre()(words([n] * 4000), VOCABULARY)):
        tokens, reveal = np.array(e.stream["tokens"]), np.array(e.stream["reveal"])
        hidden = tokens == MASK
        order = np.concatenate([np.flatnonzero(~hidden), np.flatnonzero(hidden)])
        prefix = int((reveal == 0).sum())
        assert reveal[order].tolist() == [max(r - prefix + 1, 0) for r in range(n + 1)]
        assert e.index == sorted({*order[prefix - 1 :].tolist(), *np.flatnonzero(hidden).tolist()})
        seen.append(prefix)
    assert all(within(seen.count(k), 4000, 1 / n) for k in range(1, n + 1))  # U(1, n), [BOS] with it


def test_masks_are_binomial_and_everywhere() -> None:
    n, count = 100, 1000
    for dials in (Dials.msk_uni(), Dials.hyb_uni(), Dials.hyb_pre(), Dials.msk_bi()):
        tokens = dials(words([n] * count), VOCABULARY).stream.tokens.reshape(count, -1)[:, 1 : n + 1]
        hidden = tokens == MASK
        assert all(within(int(p.sum()), p.size, 0.15) for p in np.array_split(hidden, 10, axis=1))
        assert hidden.sum(1).var() == pytest.approx(n * 0.15 * 0.85, rel=0.2)


def test_nobody_who_predicts_sees_the_answer() -> None:
    """Written out: no target's token is shown, under any dial, at any place that its query reaches."""
    for dials in (Dials.hyb_uni(0.4), Dials.hyb_pre(0.4), Dials.msk_uni(0.4), Dials.nxt_pre()):
        text = list(range(11, 31))  # every token once
        for key in range(60):
            (e,) = examples(dials(Rows.of([text], [key]), toy()))
            view = reachable(e.stream)
            for i, v in zip(e.index, e.value, strict=True):
                assert v not in [e.stream["tokens"][j] for j in np.flatnonzero(view[i])]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prefix": "uniform"}, "predict=all with prefix=uniform"),
        ({"prefix": "all", "mask_rate": 0.1, "predict": "rest"}, "prefix=all leaves nothing but masked tokens"),
        ({"predict": "masked"}, "asks for nothing while mask_rate is 0"),
    ],
)
def test_dials_that_ask_for_what_they_show_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Dials(**settings)
