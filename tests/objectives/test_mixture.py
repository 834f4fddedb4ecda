"""Mixtures: shares that are exact in blocks, parts that have the noise they would have alone, and mode tokens."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from pydantic import ValidationError

from unmask import keyed
from unmask.batch import Batch, Rows, starts
from unmask.config import ModelConfig
from unmask.data.loader import Loader
from unmask.data.marks import Bits
from unmask.objectives import (
    Causal,
    Masked,
    Mixture,
    NextSentence,
    ShiftedMasked,
    SpanCorruption,
)
from unmask.objectives.base import Objective, outline
from unmask.objectives.dealing import picked, taken, van_der_corput
from unmask.objectives.mixture import Part, parts_of
from unmask.objectives.show import Toy

VOCABULARY = Toy(size=600, sentinels=np.arange(90, 600, dtype=np.int32))
MODE = "[NLU]"
FIELDS = ("tokens", "positions", "block", "reveal", "horizon")


def mixture(**parts: Any) -> Mixture:
    return Mixture.model_validate({"parts": parts})


CLM_MLM = mixture(clm={"type": "causal"}, mlm={"type": "masked"})
GPT_BERT = mixture(clm={"type": "causal", "weight": 1}, mlm={"type": "shifted_masked", "weight": 15})
UL2_LIKE = mixture(
    r={"type": "span_corruption", "mode": "[R]", "weight": 3},
    s={"type": "prefix_lm", "layout": "encdec", "mode": "[S]", "weight": 2},
    x={"type": "span_corruption", "noise_density": 0.5, "mean_span": 8, "mode": "[X]", "weight": 2},
)


def texts(lengths: list[int], seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    keys = keyed.row_keys(seed, 0, np.arange(len(lengths)))
    rows = Rows.of([rng.integers(5, 90, n) for n in lengths], keys, ends=rng.random(len(lengths)) < 0.5)
    flags = rng.random(len(rows.tokens)) < 0.4
    flags[rows.start[:-1][rows.lengths > 0]] = True
    return replace(rows, word=flags, sentence=flags.copy())


def corpus(documents: int = 60, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    edges = starts(rng.integers(1, 50, documents))
    return SimpleNamespace(tokens=rng.integers(5, 90, edges[-1]).astype(np.uint16), documents=edges)


def loader(objective: Objective, context: int = 24, text: Any = None, **more: Any) -> Loader:
    given = {"rows": 8, "seed": 0, **more}
    return Loader(text or corpus(), objective, VOCABULARY, objective.shape(context), **given)


# ---------------------------------------------------------------- shares


@pytest.mark.parametrize("weights", [(1, 15), (1, 1), (3, 2, 2), (0.3, 0.7, 0.01), (1,) * 7])
def test_every_aligned_block_holds_each_part_in_its_share_to_the_next_whole_number(weights: tuple[float, ...]) -> None:
    m = mixture(**{f"p{i}": {"type": "causal", "weight": w} for i, w in enumerate(weights)})
    dealt = m.deal(np.arange(2**13))
    for size in (16, 32, 64, 512, 4096):
        for block in dealt.reshape(-1, size):
            counts = np.bincount(block, minlength=len(weights))
            exact = size * np.array(weights) / sum(weights)
            assert (counts >= np.floor(exact + 1e-9)).all() and (counts <= np.ceil(exact - 1e-9)).all()


def test_a_share_of_whole_sixteenths_is_exact_in_every_sixteen_and_chance_says_which() -> None:
    dealt = GPT_BERT.deal(np.arange(16 * 4000)).reshape(-1, 16)
    assert ((dealt == 0).sum(1) == 1).all()
    where = np.bincount((dealt == 0).argmax(1), minlength=16)
    assert abs(where - 250).max() < 4.5 * 250**0.5


def test_the_part_of_a_sample_is_a_function_of_its_number_and_the_progress() -> None:
    index = np.random.default_rng(0).permutation(5000)
    assert np.array_equal(UL2_LIKE.deal(np.arange(5000))[index], UL2_LIKE.deal(index))
    assert np.array_equal(UL2_LIKE.deal(index[:7]), UL2_LIKE.deal(index)[:7])


def test_weights_move_in_a_straight_line_and_parts_begin_and_end() -> None:
    m = mixture(
        clm={"type": "causal", "weight": 1, "final_weight": 3},
        mlm={"type": "masked", "weight": 3, "final_weight": 1},
        late={"type": "prefix_lm", "from": 0.75},
    )
    for progress, shares in [(0, [1, 3, 0]), (0.5, [2, 2, 0]), (0.75, [2.5, 1.5, 1]), (1, [3, 1, 1])]:
        assert np.allclose(m.shares(progress), np.array(shares) / sum(shares))
        counts = np.bincount(m.deal(np.arange(1024), progress), minlength=3)
        assert np.abs(counts - 1024 * m.shares(progress)).max() <= 1
    ant = Mixture.antlm()
    assert [ant.deal(np.arange(3), p).tolist() for p in (0, 0.16, 0.17, 0.83, 0.84, 0.999)] == [
        [0] * 3, [0] * 3, [1] * 3, [1] * 3, [2] * 3, [2] * 3,
    ]  # fmt: skip
    assert np.allclose(ant.shares(None), [1 / 6, 2 / 3, 1 / 6], atol=1e-3) and ant.moves and not CLM_MLM.moves


def test_a_share_is_never_negative_at_the_edge_that_rounding_draws() -> None:
    """5/6 is later than the 20/24 of a loader by a bit: what begins there at nothing has nothing yet, not less."""
    part = Part(objective=Causal(), weight=0.0, final_weight=3.0, begin=5 / 6 + 1e-12)  # type: ignore[call-arg]
    assert part.share(5 / 6) == 0.0 and part.share(1.0) == 3.0


def test_no_text_at_all_has_the_stacks_of_the_others() -> None:
    for m in (CLM_MLM, UL2_LIKE):
        e, sizes = m(texts([]), VOCABULARY), m.sizes(outline(texts([])))
        assert (e.source is None) == (sizes.source is None) and sizes.stream.shape == (0,)


def test_bits_mirrored_at_the_point_fill_the_line_at_every_scale() -> None:
    for k in range(8):
        for b in range(4):
            run = van_der_corput(np.arange(b * 2**k, (b + 1) * 2**k))
            assert sorted((run * 2**k).astype(int)) == list(range(2**k))


# ---------------------------------------------------------------- examples


@pytest.mark.parametrize(
    "m",
    [
        CLM_MLM,
        UL2_LIKE,
        mixture(a={"type": "masked", "mode": MODE}, b={"type": "causal", "mode": "[S2S]"}, c={"type": "next_sentence"}),
    ],
)
def test_a_texts_example_is_that_of_its_part_alone(m: Mixture) -> None:
    rows = texts([7, 1, 33, 0, 2, 64, 3, 12, 5, 40, 1, 20, 9, 9, 30, 4])
    rows = replace(rows, partner=replace(texts([8] * 16, 3)) if "partner" in m.needs else None)
    whole, sizes = m(rows, VOCABULARY), m.sizes(outline(rows))
    dealt, parts = m.deal(rows.index), list(m.parts.values())
    assert len(set(dealt)) == len(parts)
    for r in range(16):
        alone = parts[dealt[r]](picked(rows, np.array([r])), VOCABULARY)
        for mine, theirs, size in [
            (whole.stream, alone.stream, sizes.stream), (whole.source, alone.source, sizes.source),
        ]:  # fmt: skip
            if mine is None:
                assert theirs is None
                continue
            here = slice(*mine.start[r : r + 2])
            assert here.stop - here.start == size[r] == len(theirs.tokens)
            assert all(np.array_equal(getattr(mine, k)[here], getattr(theirs, k)) for k in FIELDS)
        for name, t in alone.targets.items():
            mine = whole.targets[name]
            begin, end = whole.stream.start[r : r + 2]
            inside = (mine.index >= begin) & (mine.index < end)
            assert np.array_equal(mine.index[inside] - begin, t.index)
            assert np.array_equal(mine.value[inside], t.value)


def test_some_texts_keep_their_spans_and_partners() -> None:
    rows = replace(texts([5, 3, 6]), spans=np.array([[0, 2], [3, 5], [6, 8], [9, 10]]), partner=texts([2, 2, 4], 1))
    some = picked(rows, np.array([2, 0]))
    assert some.spans is not None and some.spans.tolist() == [[1, 2], [6, 8], [9, 11]]
    assert some.tokens[:6].tolist() == rows.tokens[8:14].tolist()
    assert some.partner is not None and some.partner.lengths.tolist() == [4, 2]
    of = taken(outline(rows), np.array([2, 0]))
    assert of.partner is not None and of.lengths.tolist() == [6, 5] and of.partner.lengths.tolist() == [4, 2]
    assert of.sentence is not None and np.array_equal(of.sentence, outline(some).sentence)


# ---------------------------------------------------------------- batches


def fields_of(batch: Batch) -> dict[str, Any]:
    stacks = {name: s for name in ("stream", "source") if (s := getattr(batch, name)) is not None}
    found = {f"{name}.{k}": getattr(s, k) for name, s in stacks.items() for k in FIELDS}
    for (_, head), t in batch.targets.items():
        found |= {f"{head}.{k}": getattr(t, k) for k in ("index", "value", "weight", "norm")}
    return {**found, "samples": batch.samples.index, "pattern": batch.stream.pattern}


@pytest.mark.parametrize("objective", [Causal(), Masked(duplicates=2), SpanCorruption()])
def test_a_mixture_of_one_part_has_the_batches_of_its_objective(objective: Objective) -> None:
    alone, mixed = loader(objective), loader(Mixture(parts={"only": Part(objective=objective, weight=7)}))
    for step in range(40):
        for a, b in zip(alone(step, step / 40), mixed(step, step / 40), strict=True):
            x, y = fields_of(a), fields_of(b)
            assert x.keys() == y.keys() and all(np.array_equal(x[k], y[k]) for k in x)


def by_sample(batches: list[Batch]) -> dict[int, Any]:
    """Sample → its part, its tokens and its targets."""
    found = {}
    for batch in batches:
        names = list(dict.fromkeys(k[0] for k in batch.heads))
        columns = [getattr(batch.samples, k).tolist() for k in ("row", "block", "index", "objective")]
        for row, block, index, part in zip(*columns, strict=True):
            inside = batch.stream.block[row] == block
            first = row * inside.size + inside.argmax()
            t = batch.targets[names[part], "lm"]
            mine = (t.weight > 0) & (t.index >= first) & (t.index < first + inside.sum())
            answers = list(zip((t.index[mine] - first).tolist(), t.value[mine].tolist(), strict=True))
            found[index] = (names[part], batch.stream.tokens[row][inside].tolist(), answers)
    return found


def test_a_samples_example_does_not_depend_on_the_batch() -> None:
    load = loader(CLM_MLM)
    whole = by_sample([b for s in range(40) for b in load(s)])
    dealt = CLM_MLM.deal(np.array(sorted(whole)))
    assert [whole[i][0] for i in sorted(whole)] == [("clm", "mlm")[k] for k in dealt]
    for more in ({"rows": 3}, {"rows": 30}, {"rows": 8, "micro": 3}):
        load = loader(CLM_MLM, **more)
        other = by_sample([b for s in range(20) for b in load(s)])
        common = whole.keys() & other.keys()
        assert len(common) > 40 and all(whole[i] == other[i] for i in common)


def test_rows_hold_examples_of_several_parts_each_with_its_own_norm() -> None:
    (batch,) = loader(CLM_MLM, 64, rows=16)(0)
    mixed = [len(set(batch.samples.objective[batch.samples.row == r])) > 1 for r in range(len(batch.stream.tokens))]
    assert any(mixed)
    assert set(batch.targets) == {("clm", "lm"), ("mlm", "lm")}
    for (part, _), t in batch.targets.items():
        assert t.norm == t.weight.sum() > 0, part


def test_a_part_without_a_text_in_a_batch_keeps_its_head_and_the_others_pattern() -> None:
    m = Mixture.antlm()
    for progress, pattern in [(0.0, "causal"), (0.5, "full"), (0.9, "causal")]:
        (batch,) = loader(m)(7, progress)
        assert set(batch.heads) == {("clm", "lm"), ("mlm", "lm"), ("clm_again", "lm")}
        assert batch.stream.pattern == pattern and sum(t.norm > 0 for t in batch.targets.values()) == 1


def test_shares_that_move_do_so_from_update_to_update() -> None:
    m = Mixture.antlm()
    load = loader(m)
    seen = []
    for step in range(24):
        (batch,) = load(step, step / 24)
        seen.append({key[0] for key, t in batch.targets.items() if t.norm})
    assert seen == [{"clm"}] * 4 + [{"mlm"}] * 16 + [{"clm_again"}] * 4


def test_realised_shares_of_rows_that_texts_fill_are_exact_in_every_update() -> None:
    long = SimpleNamespace(tokens=np.full(22 * 400, 7, np.uint16), documents=np.array([0, 22 * 400]))
    m = mixture(clm={"type": "causal", "weight": 1}, mlm={"type": "shifted_masked", "weight": 15})
    load = loader(m, text=long, rows=32)
    for step in range(4):
        (batch,) = load(step)
        assert np.bincount(batch.samples.objective).tolist() == [2, 30]


def test_static_masks_recur_for_their_part_alone() -> None:
    m = mixture(a={"type": "masked", "duplicates": 1}, b={"type": "masked", "mask_rate": 0.3})
    load = loader(m)
    assert m.parts["a"].objective.recurs == 1 and m.parts["b"].objective.recurs == 0
    first, second = (np.arange(k * len(load.pieces), (k + 1) * len(load.pieces)) for k in (0, 1))
    for lane, same in zip(load.lanes, (True, False), strict=True):
        keys = [lane.order.find(i)[1][np.argsort(lane.order.piece(i))].tolist() for i in (first, second)]
        assert (keys[0] == keys[1]) is same


def test_each_part_reads_what_it_needs_of_texts_that_are_cut_as_one_of_them_wants() -> None:
    """Sentence pairs beside word masks and causal texts: partners and marks reach the part that asked for them."""
    rng, text = np.random.default_rng(1), corpus(40)
    flags = rng.random(len(text.tokens)) < 0.2
    flags[text.documents[:-1]] = True
    bits = Bits(np.packbits(flags, bitorder="little"), len(flags))
    kept = SimpleNamespace(
        tokens=text.tokens, documents=text.documents, word=bits, sentence=bits, spans=None, target=None
    )
    m = mixture(pairs={"type": "next_sentence"}, words={"type": "masked", "unit": "word"}, clm={"type": "causal"})
    assert m.needs == frozenset({"partner", "sentence", "word"}) == m.needs | m.parts["words"].objective.needs
    load = loader(m, 40, kept, kept=kept)
    alone = loader(NextSentence(), 40, kept, kept=kept)
    assert np.array_equal(load.pieces.begin, alone.pieces.begin)  # cut as the pairs want it
    (batch,) = load(0)
    assert {k for k, t in batch.targets.items() if t.norm} == set(batch.heads)
    index = batch.samples.index[batch.samples.objective == 0]
    expected = NextSentence()(_rows(alone, index), VOCABULARY)
    assert np.array_equal(
        load._examples(*load.lanes[0].order.find(index), index, 0.0, load.lanes[0]).stream.tokens,
        expected.stream.tokens,
    )
    assert [lane.partners is None for lane in load.lanes] == [False, True, True]


def _rows(load: Loader, index: np.ndarray) -> Rows:
    piece, key = load.order.find(index)
    assert load.partners is not None
    rows = load._read(piece, key, index, 0.0)
    return replace(rows, partner=load._read(*load.partners(piece, key), index, 0.0))


def test_held_out_text_is_dealt_at_the_mean_shares_of_the_run() -> None:
    load = loader(Mixture.antlm(), shuffle=False)
    found = np.concatenate([b.samples.objective for b in load.once()])
    counts, exact = np.bincount(found, minlength=3), len(load.pieces) * np.array([1, 4, 1]) / 6
    assert np.abs(counts - exact).max() <= 2 and len(found) == len(load.pieces)


# ---------------------------------------------------------------- settings


def test_a_mixture_is_written_as_it_is_read() -> None:
    m = mixture(
        clm={"preset": "mntp", "mask_rate": 0.25, "weight": 2, "final_weight": 0.5, "from": 0.0, "until": 0.5},
        mlm={"type": "masked", "mode": MODE, "factor": 2.0},
    )
    assert isinstance(m.parts["clm"].objective, ShiftedMasked) and m.parts["clm"].objective.mask_rate == 0.25
    written = yaml.safe_dump(m.model_dump(mode="json"))
    assert Mixture.model_validate(yaml.safe_load(written)) == m
    assert yaml.safe_load(written)["parts"]["clm"]["from"] == 0.0


def test_heads_of_one_name_are_one_head_and_factors_are_the_parts_own() -> None:
    m = mixture(a={"type": "causal", "factor": 2.0}, b={"type": "next_sentence"})
    assert [h.name for h in m.heads()] == ["lm", *(h.name for h in NextSentence().heads() if h.name != "lm")]
    assert m.parts["a"].heads()[0].coefficient == 2.0 and m.parts["b"].heads()[0].coefficient == 1.0
    assert parts_of(Causal()).keys() == {"causal"}


def test_the_network_has_what_every_part_asks_of_it() -> None:
    config = ModelConfig(hidden_size=16, num_layers=1, num_heads=2, vocab_size=100)
    m = mixture(a={"type": "causal"}, b={"preset": "deepseek_v3"})
    assert m.networks(config) == m.parts["b"].objective.networks(config) and m.visibility == "causal"
    assert m.model_copy(update={"sees": "prefix"}).visibility == "prefix"


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (
            {"a": {"type": "masked"}, "b": {"type": "span_corruption"}},
            "b needs two stacks and a one: a mixture has one model",
        ),
        (
            {"a": {"type": "replaced"}, "b": {"type": "masked"}},
            r"part a \(replaced\) has a step of its own.*share one pass of one model",
        ),
        ({"a": {"type": "contrastive", "mode": MODE}}, r"part a \(contrastive\) makes two texts of each"),
        ({"a": {"type": "masked", "mask_rat": 0.3}}, "objective masked has no setting 'mask_rat'.*mask_rate"),
        ({"a": {"weight": 1}}, "each part of a mixture needs the type or the preset"),
        ({"a": {"type": "maskd"}}, "'maskd' is no objective"),
        ({"a/b": {"type": "causal"}}, "'a/b' cannot name a part"),
        ({"a": {"type": "causal", "until": 0.4}, "b": {"type": "masked", "from": 0.5}}, "no part has a weight at 0.4"),
        ({"a": {"type": "causal", "from": 0.5, "until": 0.5}}, "from=0.5 is not before until=0.5"),
        ({"a": {"type": "mixture"}}, "part a is itself a mixture"),
        ({"a": {"preset": "mntp", "type": "causal"}}, "preset mntp is of type shifted_masked, not causal"),
        ({"a": {"preset": "sentence_pair"}, "b": {"type": "full_sentences"}}, "read differently cut texts"),
        ({"a": {"type": "masked", "weight": 0}}, "no part has a weight at 0"),
    ],
)
def test_what_does_not_go_together_is_one_sentence(parts: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        mixture(**parts)
