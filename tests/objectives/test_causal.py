"""Infilling by a causal model: what is moved, where it goes, how often, and that nothing is lost."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from unmask.batch import Rows
from unmask.config import ModelConfig
from unmask.data.collate import collate, pack
from unmask.errors import UserError
from unmask.loss import forward_heads
from unmask.model.transformer import Transformer
from unmask.objectives import Causal, CausallyMasked, FillInTheMiddle
from unmask.objectives.base import Outline, Shape, outline
from unmask.objectives.show import Toy, toy

from .cases import BOS, EOS, VOCABULARY, Example, examples, take, texts, within
from .cases_causal import SENTINELS, in_order, put_back, said

PRE, SUF, MID, END = SENTINELS[:4]
LENGTHS = [7, 1, 33, 0, 2, 64, 3, 12, 5, 40, 1, 90]
DOCUMENT = Rows.of([[11, 12, 13, 14, 15]])


def drawn(objective: FillInTheMiddle | CausallyMasked, rows: Rows) -> list[Example]:
    return examples(objective(rows, VOCABULARY))


def under_keys(tokens: list[int], count: int, ends: bool = True) -> Rows:
    return Rows.of([tokens] * count, range(count), ends=np.full(count, ends))


# ---------------------------------------------------------------- fill in the middle


def test_fim_forms_are_the_paper_s_to_the_token() -> None:
    """Every way to cut three tokens, in each of the three forms."""
    text = [11, 12, 13]
    for form, spm in ({"spm_rate": 0}, None), ({"spm_rate": 1}, "v2"), ({"spm_rate": 1, "spm": "v1"}, "v1"):
        want = set()
        for a in range(4):
            for b in range(a, 4):
                p, m, s = text[:a], text[a:b], text[b:]
                if spm is None:
                    want.add((PRE, *p, SUF, *s, MID, *m, EOS))
                elif spm == "v2":
                    want.add((PRE, SUF, *s, MID, *p, *m, EOS))
                else:
                    want.add((SUF, *s, PRE, *p, MID, *m, EOS))
        got = {tuple(said(e)) for e in drawn(FillInTheMiddle(rate=1, **form), under_keys(text, 400))}
        assert got == want


def test_fim_both_cuts_are_uniform_over_every_place() -> None:
    # Two independent cuts of 4 tokens: of 25 pairs one each has both at the same place, two each have an order.
    objective, n, count = FillInTheMiddle(rate=1, spm_rate=0), 4, 4000
    seen = np.zeros((n + 1, n + 1), int)
    for e in drawn(objective, under_keys(list(range(5, 5 + n)), count)):
        w = said(e)
        a = w.index(SUF) - 1
        seen[a, a + len(w) - 2 - w.index(MID)] += 1
    for a in range(n + 1):
        for b in range(a, n + 1):
            assert within(int(seen[a, b]), count, (1 + (a != b)) / (n + 1) ** 2)
    assert seen.sum() == np.triu(seen).sum() == count


def test_fim_middle_rate_by_position_decile() -> None:
    # P(token i of n in the middle) = 2 (i + 1) (n - i) / (n + 1)²: the cuts lie on both sides of it.
    objective, n, count = FillInTheMiddle(rate=1, spm_rate=0), 40, 3000
    hit = np.zeros(n)
    for e in drawn(objective, under_keys(list(range(5, 5 + n)), count)):
        hit += in_order(objective, said(e), True)[1]
    i = np.arange(n)
    want = 2 * (i + 1) * (n - i) / (n + 1) ** 2
    for part, expected in zip(np.array_split(hit, 10), np.array_split(want, 10), strict=True):
        assert within(int(part.mean()), count, float(expected.mean()))


def test_fim_shares_of_cut_and_of_suffix_first() -> None:
    rows = under_keys([11, 12, 13, 14], 4000)
    written = [said(e) for e in drawn(FillInTheMiddle(rate=0.7, spm_rate=0.25, spm="v1"), rows)]
    cut = [w for w in written if w[0] in SENTINELS]
    assert within(len(cut), len(written), 0.7)
    assert within(sum(w[0] == SUF for w in cut), len(cut), 0.25)
    assert all(w == [11, 12, 13, 14, EOS] for w in written if w[0] not in SENTINELS)
    assert (FillInTheMiddle().rate, FillInTheMiddle().spm_rate) == (0.5, 0.5)


def test_fim_at_rate_0_is_causal_and_mixed_batches_are_their_rows() -> None:
    rows = texts(LENGTHS * 4)
    assert drawn(FillInTheMiddle(rate=0), rows) == examples(Causal()(rows, VOCABULARY))
    whole = drawn(FillInTheMiddle(), rows)
    assert {e.stream["tokens"][1:2] == [PRE] for e in whole} == {True, False}
    for i in range(len(rows.lengths)):
        assert drawn(FillInTheMiddle(), take(rows, np.array([i]))) == [whole[i]]
        text, _ = in_order(FillInTheMiddle(), said(whole[i]), bool(rows.ends[i]))
        assert text == rows.tokens[rows.start[i] : rows.start[i + 1]].tolist()
    sizes = FillInTheMiddle().sizes(outline(rows)).stream
    assert sizes.tolist() == [len(e.stream["tokens"]) for e in whole]


@pytest.mark.parametrize("ends", [True, False])
def test_fim_the_middle_is_closed_also_where_the_document_goes_on(ends: bool) -> None:
    # A model that never sees the middle's end does not stop there (OBJECTIVE-PITFALLS 5.15).
    rows = under_keys([11, 12, 13], 50, ends)
    for e in drawn(FillInTheMiddle(rate=1), rows):
        assert said(e)[-1] == EOS and said(e).count(EOS) == 1
    for e in drawn(FillInTheMiddle(rate=1, end="sentinel"), rows):
        assert said(e)[-1 - ends] == END and said(e).count(EOS) == ends
    for e in drawn(FillInTheMiddle(rate=0), rows):
        assert (said(e)[-1] == EOS) == ends


def test_fim_loss_on_the_middle_asks_for_it_and_its_end_alone() -> None:
    for spm, version in (0, "v2"), (1, "v2"), (1, "v1"):
        whole, part = (FillInTheMiddle(rate=0.6, spm_rate=spm, spm=version, loss=loss) for loss in ("all", "middle"))
        rows = under_keys([11, 12, 13, 14, 15, 16], 60, False)
        first, last = whole._cuts(rows)
        for i, (a, b) in enumerate(zip(drawn(whole, rows), drawn(part, rows), strict=True)):
            assert a.stream == b.stream and a.value == said(a)
            if a.value[0] in SENTINELS:
                assert b.value == [*range(11 + first[i], 11 + last[i]), EOS]
            else:
                assert b.value == a.value


def test_fim_cuts_at_word_starts() -> None:
    rows = under_keys([11, 12, 13, 14, 15, 16], 600, False)
    word = np.tile([True, False, False, True, False, True], 600)
    objective = FillInTheMiddle(rate=1, spm_rate=0, splits="words")
    assert objective.needs == {"word"} and FillInTheMiddle().needs == frozenset()
    a, b = objective._cuts(replace(rows, word=word))
    both = np.concatenate([a, b])
    assert set(both.tolist()) == {0, 3, 5, 6}
    assert all(within(int((both == k).sum()), 1200, 0.25) for k in (0, 3, 5, 6))
    assert (objective.sizes(outline(rows)).stream == 10).all()


def test_o11_fim_needs_its_sentinels_whatever_the_text() -> None:
    few = Toy(sentinels=np.arange(90, 93, dtype=np.int32))
    FillInTheMiddle(rate=1)(DOCUMENT, few)
    with pytest.raises(UserError, match="fill_in_the_middle needs 4 sentinels but the tokenizer has 3"):
        FillInTheMiddle(rate=0.01, end="sentinel")(DOCUMENT, few)


# ---------------------------------------------------------------- causally masked


def test_cm3_counts_are_a_clamped_poisson() -> None:
    count = 20_000
    of = Outline(np.full(count, 60), np.arange(count).astype(np.uint64), np.arange(count), np.ones(count, bool))
    m = CausallyMasked(max_spans=3).spans(of)
    one, two = 2 * np.exp(-1), np.exp(-1) / 2
    assert within(int((m == 1).sum()), count, one) and within(int((m == 2).sum()), count, two)
    assert within(int((m == 3).sum()), count, 1 - one - two) and m.max() == 3
    assert CausallyMasked().max_spans == 16 and CausallyMasked().spans(of).max() > 5
    assert (CausallyMasked().spans(replace(of, lengths=np.full(count, 3))) <= 2).all()


def test_cm3_one_span_is_any_span_alike() -> None:
    n, count = 5, 6000
    seen: dict[tuple[int, int], int] = {}
    for e in drawn(CausallyMasked(max_spans=1), under_keys(list(range(5, 5 + n)), count)):
        text, noise = put_back(CausallyMasked(max_spans=1), said(e), True)
        assert text == list(range(5, 5 + n))
        where = (noise.index(True), sum(noise))
        seen[where] = seen.get(where, 0) + 1
    assert len(seen) == n * (n + 1) // 2
    assert all(within(k, count, 1 / len(seen)) for k in seen.values())


def test_cm3_two_spans_never_touch_and_are_even() -> None:
    # 4 of 7 cuts of 6 tokens: 35 pairs of spans with a token between them, all alike.
    objective, n = CausallyMasked(max_spans=2), 6
    seen: dict[str, int] = {}
    for e in drawn(objective, under_keys(list(range(5, 5 + n)), 12_000)):
        noise = "".join("x" if x else "." for x in put_back(objective, said(e), True)[1])
        if said(e).count(SENTINELS[1]):
            seen[noise] = seen.get(noise, 0) + 1
    total = sum(seen.values())
    assert len(seen) == 35 and all(within(k, total, 1 / 35) for k in seen.values())


@pytest.mark.parametrize("objective", [CausallyMasked.cm3(), CausallyMasked.incoder()], ids=["cm3", "incoder"])
def test_presets_fill_their_rows_and_lose_nothing_of_the_paper(objective: CausallyMasked) -> None:
    """With room for 64 spans 35 % of InCoder's positions were padding at 512."""
    rows = texts([objective.room(Shape(512))] * 500)
    assert objective.sizes(outline(rows)).stream.mean() > 0.95 * 512
    clipped = 1 - sum(math.exp(-1) / math.factorial(k) for k in range(objective.max_spans + 1))
    assert 0 < clipped < 2e-6


def test_cm3_room_holds_every_text_and_its_sentinels_are_asked_for_at_once() -> None:
    for objective in (CausallyMasked(), CausallyMasked.incoder()):
        for context in (8, 64, 512):
            n = objective.room(Shape(context))
            marks = 2 + objective.end_of_span
            assert n + marks * min((n + 1) // 2, objective.max_spans) + 1 <= context
            assert n + 1 + marks * min((n + 2) // 2, objective.max_spans) + 1 > context
    with pytest.raises(UserError, match="causally_masked needs 16 sentinels but the tokenizer has 10"):
        CausallyMasked()(DOCUMENT, toy())


def test_incoder_never_asks_for_the_sentinels_that_open_spans() -> None:
    objective = CausallyMasked(max_spans=3, end_of_span=True, predict_sentinels=False)
    for e in drawn(objective, texts([40] * 50)):
        asked, written = set(e.index), said(e)
        assert [i for i in range(len(written)) if i not in asked] == [
            i for i, x in enumerate(written) if x in SENTINELS[:3]
        ]
        assert e.value.count(SENTINELS[-1]) == sum(x in SENTINELS[:3] for x in written) // 2


# ---------------------------------------------------------------- packed, learnt, seen through a window


@pytest.mark.parametrize("objective", [FillInTheMiddle(), CausallyMasked(max_spans=3)])
def test_o24_packed_texts_do_not_see_each_other(objective: FillInTheMiddle | CausallyMasked) -> None:
    rows, shape = Rows.of([list(range(10, 20)), list(range(30, 38))], ends=np.array([False, True])), Shape(64)
    model = _model()
    packed = collate(
        {"x": objective(rows, VOCABULARY)}, {"x": objective.heads()}, pack(objective.sizes(outline(rows)), shape)
    )
    assert len(packed.stream.tokens) == 1
    alone = [
        forward_heads({"model": model}, _batch(objective, take(rows, np.array([i]))))["x", "lm"].sum for i in (0, 1)
    ]
    both = forward_heads({"model": model}, packed.map(torch.from_numpy))["x", "lm"].sum
    assert torch.allclose(both, alone[0] + alone[1], rtol=1e-12)


def test_a_window_is_the_model_s_and_reaches_back_once_a_layer() -> None:
    rows = Rows.of([list(range(10, 40))])
    other = Rows.of([[77, *range(11, 40)]])
    model = _model(attention_pattern="L", window=3, num_layers=2)
    a, b = (model(_batch(Causal(), r))["stream"][0] for r in (rows, other))
    moved = (a != b).any(-1).nonzero().flatten().tolist()
    assert moved == list(range(1, 1 + 2 * 3 + 1))  # its own place and 3 more a layer


def _batch(objective: Causal | FillInTheMiddle | CausallyMasked, rows: Rows) -> object:
    return collate({"x": objective(rows, VOCABULARY)}, {"x": objective.heads()}).map(torch.from_numpy)


def _model(**more: object) -> Transformer:
    values = {"vocab_size": 600, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "positions": "rotary", **more}
    return Transformer(ModelConfig.model_validate(values), Causal().heads()).double()


def test_every_stream_opens_with_bos() -> None:
    for objective in (FillInTheMiddle(), CausallyMasked(max_spans=3)):
        assert all(e.stream["tokens"][0] == BOS for e in drawn(objective, texts([3, 9, 30])))
