"""How pairs are shown: where [BOS] stands, who sees whom, and what is asked."""

from __future__ import annotations

import numpy as np
import pytest

from unmask.batch import same_block, visible
from unmask.data.collate import collate, pack
from unmask.objectives import PrefixLM, SpanCorruption
from unmask.objectives.base import LM, Shape
from unmask.objectives.layout import Layout, Pairs, Ragged
from unmask.objectives.show import toy

from .cases import BOS, VOCABULARY, examples, texts
from .cases_text import BOUNDARY, sides


def pairs(*of: tuple[list[int], list[int]]) -> Pairs:
    source, target = ([p[k] for p in of] for k in (0, 1))
    ragged = lambda lists: Ragged(
        np.array([t for x in lists for t in x], np.int32), np.cumsum([0, *map(len, lists)]).astype(np.int64)
    )
    return Pairs(ragged(source), ragged(target))


FIVE_AND_THREE = pairs(([11, 12, 13, 14, 15], [21, 22, 3]))


def seen(layout: Layout) -> int:
    s = layout(FIVE_AND_THREE, toy()).stream
    return int(visible(s.block, s.horizon, s.block, s.reveal).sum())


def test_a_source_of_five_and_a_target_of_three_see_25_6_and_15_pairs() -> None:
    e = Layout(kind="encdec")(FIVE_AND_THREE, toy())
    assert e.source is not None
    assert visible(e.source.block, e.source.horizon, e.source.block, e.source.reveal).sum() == 25
    assert seen(Layout(kind="encdec")) == 6
    assert same_block(e.stream.block, e.source.block).sum() == 15


@pytest.mark.parametrize("bos", ["front", "boundary"])
def test_one_stack_sees_51_pairs_under_prefix_and_36_under_causal(bos: str) -> None:
    assert seen(Layout(kind="prefix", bos=bos)) == 51  # type: ignore[arg-type]
    assert seen(Layout(kind="causal", bos=bos)) == 36  # type: ignore[arg-type]


def test_the_default_is_bos_first_and_the_lecture_notes_separator_is_the_option() -> None:
    assert Layout().bos == "front"
    front, boundary = (Layout(kind="prefix", bos=b)(FIVE_AND_THREE, toy()) for b in ("front", "boundary"))  # type: ignore[arg-type]
    assert front.stream.tokens.tolist() == [BOS, 11, 12, 13, 14, 15, 21, 22]
    assert boundary.stream.tokens.tolist() == [11, 12, 13, 14, 15, BOS, 21, 22]
    for e in (front, boundary):
        assert e.stream.reveal.tolist() == [0, 0, 0, 0, 0, 0, 1, 2]
        assert e.targets["lm"].index.tolist() == [5, 6, 7] and e.targets["lm"].value.tolist() == [21, 22, 3]


def test_both_are_one_where_there_is_no_source() -> None:
    empty = pairs(([], [21, 3]))
    a, b = (Layout(kind="causal", bos=bos)(empty, toy()) for bos in ("front", "boundary"))  # type: ignore[arg-type]
    assert a.stream.tokens.tolist() == b.stream.tokens.tolist() == [BOS, 21]


@pytest.mark.parametrize("kind", ["prefix", "causal"])
@pytest.mark.parametrize("objective", [SpanCorruption(), PrefixLM()])
def test_the_boundary_layout_holds_the_same_pair(objective: SpanCorruption | PrefixLM, kind: str) -> None:
    rows = texts([7, 1, 33, 0, 2, 64])
    front = objective.model_copy(update={"layout": Layout(kind=kind)})  # type: ignore[arg-type]
    boundary = objective.model_copy(update={"layout": BOUNDARY[kind]})
    want, got = examples(front(rows, VOCABULARY)), examples(boundary(rows, VOCABULARY))
    assert [sides(boundary, e) for e in got] == [sides(front, e) for e in want]


def test_packed_pairs_do_not_see_each_other() -> None:
    layout = Layout(kind="prefix", bos="boundary")
    two = pairs(([11, 12], [21]), ([13], [22, 23]))
    sizes = layout.sizes(two.source.lengths, two.target.lengths)
    batch = collate({"x": layout(two, toy())}, {"x": [LM]}, pack(sizes, Shape(6)), shape=Shape(6))
    (row,) = batch.stream.tokens.tolist()
    s = batch.stream
    assert sorted(row) == sorted([11, 12, BOS, 13, BOS, 22])
    assert visible(s.block, s.horizon, s.block, s.reveal)[0].sum() == 9 + (4 + 3)


def test_all_tokens_are_asked_of_a_causal_stack() -> None:
    e = Layout(kind="causal", loss="all")(FIVE_AND_THREE, toy())
    assert e.targets["lm"].value.tolist() == [11, 12, 13, 14, 15, 21, 22, 3]
    assert e.targets["lm"].index.tolist() == list(range(8)) and e.stream.tokens[0] == BOS


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "prefix", "loss": "all"}, "a token would be asked of what shows it"),
        ({"kind": "causal", "loss": "all", "bos": "boundary"}, "needs bos=front"),
        ({"kind": "encdec", "bos": "boundary"}, "is about one stack"),
    ],
)
def test_contradictions_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Layout(**settings)  # type: ignore[arg-type]
