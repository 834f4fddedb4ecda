"""BART's five noises: what each takes, how often, and in which order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from unmask.batch import Rows
from unmask.data.collate import collate, pack
from unmask.errors import UserError
from unmask.objectives import Bart
from unmask.objectives.bart import draw_infill, rotated, sentences
from unmask.objectives.base import Objective, outline
from unmask.objectives.show import toy

from .cases import EOS, MASK, VOCABULARY, examples, pair, take, texts
from .learn import learnt
from .learn import sentences as sentences_to_learn


def within(hits: float, draws: float, rate: float) -> bool:
    """A count of hits that lies inside the binomial interval of 1 in 10,000."""
    return abs(hits - draws * rate) <= 3.9 * np.sqrt(draws * rate * (1 - rate)) + 1e-9


def numbered(lengths: list[int], seed: int = 0, every: int | None = None) -> Rows:
    """Texts whose tokens say where they stood: 1000, 1001, …; a sentence starts at every so-manieth."""
    rows = texts(lengths, seed, ends=True)
    starts_ = rows.place % every == 0 if every else None
    return replace(rows, tokens=(1000 + rows.place).astype(np.int32), sentence=starts_)


def sources(objective: Bart, rows: Rows) -> list[list[int]]:
    """The sources, without [EOS]; every target is the text and [EOS]."""
    out = []
    for e, text in zip(examples(objective(rows, VOCABULARY)), np.split(rows.tokens, rows.start[1:-1]), strict=True):
        source, target = pair(e)
        assert target == [*text.tolist(), EOS] and source.pop() == EOS
        out.append(source)
    return out


def missing(rows: Rows, found: list[list[int]]) -> np.ndarray:
    """(N,) bool: which tokens of numbered texts the sources lack."""
    lengths = rows.lengths.tolist()
    return np.concatenate([~np.isin(1000 + np.arange(n), s) for n, s in zip(lengths, found, strict=True)])


# ---------------------------------------------------------------- settings


def test_named_constructors() -> None:
    assert Bart.bart() == Bart(infill_rate=0.3, mean_span=3.5, permute_sentences=True) and Bart.bart().copies
    assert Bart.bart_code().random_share == 0.1
    alone = {
        "mask_rate": Bart.token_masking(),
        "delete_rate": Bart.token_deletion(),
        "infill_rate": Bart.text_infilling(),
        "permute_sentences": Bart.sentence_permutation(),
        "rotate": Bart.document_rotation(),
    }
    for name, objective in alone.items():
        assert [k for k in alone if getattr(objective, k)] == [name]
        assert objective.needs == ({"sentence"} if name == "permute_sentences" else frozenset())


def test_contradictions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"infill_rate \+ delete_rate \+ mask_rate are 1\.2"):
        Bart(infill_rate=0.5, delete_rate=0.5, mask_rate=0.2)
    with pytest.raises(ValueError, match="no noise is on"):
        Bart(infill_rate=0, permute_sentences=False)
    with pytest.raises(UserError, match=r"corpus\.sentences=true"):
        Bart.bart()(texts([5]), VOCABULARY)


# ---------------------------------------------------------------- infilling


def test_o14_the_share_removed_is_the_share_asked_for() -> None:
    rows = numbered([512] * 1000)
    gone = missing(rows, sources(Bart.text_infilling(), rows)).reshape(1000, 512)
    assert (gone.sum(1) == round(0.3 * 512)).all()
    assert (gone & np.roll(gone, 1, 1)).mean() > 0.15  # in spans, not one by one (0.09)


def test_o14_a_span_of_no_tokens_inserts_one_mask_and_every_other_gives_way_to_one() -> None:
    rows = numbered([512] * 400)
    spans = Bart.text_infilling().infill(outline(rows))
    per_text = np.bincount(spans.row, minlength=400)
    found = sources(Bart.text_infilling(), rows)
    assert [s.count(MASK) for s in found] == per_text.tolist()
    assert [len(s) for s in found] == (512 - 154 + per_text).tolist()
    # One span in e^3.5 = 33 is empty; its mask stands between two neighbours of the text, where no token is missing.
    empty = spans.length == 0
    assert within(int(empty.sum()), len(empty), np.exp(-3.5))
    for row in np.unique(spans.row[empty])[:50]:
        for at in spans.begin[empty & (spans.row == row)]:
            text = found[row]
            left, right = 1000 + at - 1, 1000 + at
            if left in text and right in text:
                between = text[text.index(left) + 1 : text.index(right)]
                here = int((empty & (spans.row == row) & (spans.begin == at)).sum())
                assert between == [MASK] * here


def test_span_lengths_are_poisson_but_for_the_last_and_those_at_the_ends() -> None:
    lengths, mean = np.full(2000, 400), 3.5
    spans = draw_infill(lengths, np.full(2000, 120), mean, texts([400] * 2000).key)
    inner = spans.length[(spans.begin > 0) & (spans.begin + spans.length < 400)]
    assert inner.mean() == pytest.approx(mean, rel=0.04)
    counts = np.bincount(inner, minlength=12)[:12] / len(inner)
    fact = np.cumprod([1, *range(1, 12)])
    assert np.abs(counts - np.exp(-mean) * mean ** np.arange(12) / fact).max() < 0.012


def test_spans_never_overlap_and_stand_apart_where_they_can() -> None:
    for count, apart in ((90, True), (290, False)):
        spans = draw_infill(np.full(300, 300), np.full(300, count), 2.0, texts([300] * 300).key)
        some = spans.length > 0
        order = np.lexsort((spans.begin[some], spans.row[some]))
        row, begin, length = (a[some][order] for a in (spans.row, spans.begin, spans.length))
        gap = (begin[1:] - begin[:-1] - length[:-1])[row[1:] == row[:-1]]
        assert gap.min() == int(apart) and (begin + length <= 300).all()
        assert (np.bincount(row, length) == count).all()


def test_infilled_tokens_by_position_decile_and_at_both_ends() -> None:
    n, count = 200, 2000
    rows = numbered([n] * count)
    gone = missing(rows, sources(Bart.text_infilling(), rows)).reshape(count, n)
    spans = 0.3 / 4.1  # of a token: tokens of one span hang together, and long ones hold most
    for part in (*np.array_split(gone, 10, axis=1), gone[:, :1], gone[:, -1:]):
        size = part.size if part.shape[1] == 1 else part.size * spans / 0.3
        assert within(part.mean() * size, size, 0.3)


def test_the_source_is_never_longer_than_the_text() -> None:
    for rate, mean in ((0.3, 3.5), (0.9, 1.0), (1.0, 5.0), (0.02, 1.0)):
        objective = Bart.text_infilling(infill_rate=rate, mean_span=mean)
        rows = numbered(list(range(0, 40)) * 5)
        for source, n in zip(sources(objective, rows), rows.lengths, strict=True):
            assert len(source) <= n
            assert (MASK in source) == (n > 0)


# ---------------------------------------------------------------- one by one


def test_masking_and_deletion_take_exactly_their_share_by_decile() -> None:
    rows = numbered([200] * 500)
    masked, deleted = (sources(o, rows) for o in (Bart.token_masking(), Bart.token_deletion()))
    assert all(len(s) == 200 and s.count(MASK) == 30 for s in masked)
    assert all(len(s) == 170 and MASK not in s and s == sorted(s) for s in deleted)
    for found in (masked, deleted):
        for part in np.array_split(missing(rows, found).reshape(500, 200), 10, axis=1):
            assert within(int(part.sum()), part.size, 0.15)


def test_random_tokens_in_place_of_masks() -> None:
    rows = replace(numbered([400] * 100), tokens=np.full(40_000, 7, np.int32))
    source = Bart.text_infilling(random_share=0.1)(rows, toy()).source
    spans = Bart.text_infilling().infill(outline(rows))
    assert within(int((source.tokens == MASK).sum()), len(spans.row), 0.9)
    others = source.tokens[(source.tokens != MASK) & (source.tokens != EOS) & (source.tokens != 7)]
    assert len(others) and (others >= 5).all() and (others < 90).all()


def test_no_token_is_hit_twice() -> None:
    objective = Bart(infill_rate=0.3, delete_rate=0.2, mask_rate=0.2, permute_sentences=False)
    rows = numbered([100] * 200)
    masks = np.bincount(objective.infill(outline(rows)).row, minlength=200)
    for source, spans in zip(sources(objective, rows), masks, strict=True):
        assert len([t for t in source if t != MASK]) == 30 and source.count(MASK) == 20 + spans


# ---------------------------------------------------------------- orders


def test_sentences_stay_whole_and_every_order_is_alike() -> None:
    count = 6000
    rows = numbered([9] * count, every=3)
    found = np.array(sources(Bart.sentence_permutation(), rows)).reshape(count, 3, 3)
    assert (np.diff(found, axis=2) == 1).all() and (np.sort(found[:, :, 0], 1) == [1000, 1003, 1006]).all()
    _, orders = np.unique(found[:, :, 0], axis=0, return_counts=True)
    assert len(orders) == 6 and all(within(int(k), count, 1 / 6) for k in orders)


def test_sentences_of_ragged_texts_stay_in_their_text() -> None:
    rows = replace(texts([5, 0, 1, 8]), sentence=np.zeros(14, bool))
    rows.sentence[[3, 9]] = True  # the first token of a text opens a sentence, said or not
    moved = sentences(rows)
    assert (rows.row[moved] == rows.row).all() and sorted(moved) == list(range(14))
    assert moved[:5].tolist() in ([0, 1, 2, 3, 4], [3, 4, 0, 1, 2]) and moved[5] == 5


def test_a_document_begins_at_any_of_its_tokens() -> None:
    count, n = 5000, 8
    found = np.array(sources(Bart.document_rotation(), numbered([n] * count)))
    assert ((found - found[:, :1]) % n == np.arange(n)).all()
    first = np.bincount(found[:, 0] - 1000, minlength=n)
    assert all(within(int(k), count, 1 / n) for k in first)
    assert rotated(np.array([0, 1, 3]), np.zeros(2, np.uint64)).tolist() == [0, 1, 2]


def test_all_five_at_once() -> None:
    objective = Bart(infill_rate=0.2, delete_rate=0.1, mask_rate=0.1, permute_sentences=True, rotate=True)
    rows = numbered([120] * 50, every=10)
    spans = np.bincount(objective.infill(outline(rows)).row, minlength=50)
    found = sources(objective, rows)
    for source, k in zip(found, spans, strict=True):
        words = [t for t in source if t != MASK]
        assert len(words) == len(set(words)) == 72 and len(source) - len(words) == 12 + k
    assert len({tuple(s) for s in found}) == 50
    order = np.random.default_rng(0).permutation(50)
    part = replace(take(rows, order), sentence=rows.sentence)
    assert sources(objective, part) == [found[i] for i in order]


# ---------------------------------------------------------------- sizes, room, packing


@pytest.mark.parametrize("layout", ["encdec", "prefix", "causal"])
def test_sizes_are_exact_without_text_and_room_holds_every_draw(layout: str) -> None:
    objective = Bart(delete_rate=0.1, rotate=True, layout=layout)  # type: ignore[arg-type]
    shape = objective.shape(60)
    room = objective.room(shape)
    assert room >= (59 if layout == "encdec" else 29)
    rows = numbered([room] * 40 + list(range(room)), every=4)
    e, sizes = objective(rows, VOCABULARY), objective.sizes(outline(rows))
    assert np.diff(e.stream.start).tolist() == sizes.stream.tolist()
    assert e.source is None or np.diff(e.source.start).tolist() == sizes.source.tolist()
    batch = collate({"x": e}, {"x": objective.heads()}, pack(sizes, shape), shape=shape)
    assert batch.counts()["target_tokens"] == len(rows.tokens) + len(rows.lengths)


@pytest.mark.parametrize(
    "objective",
    [Bart.bart(), Bart.token_deletion(layout="prefix"), Bart.document_rotation()],
    ids=["bart", "deletion", "rotation"],
)
def test_overfits_64_sentences_to_half_its_floor(objective: Objective) -> None:
    rows = sentences_to_learn()
    last, half = learnt(objective, replace(rows, sentence=rows.place % 3 == 0))
    assert last < half
