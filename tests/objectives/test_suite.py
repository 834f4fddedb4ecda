"""What every objective owes, whatever its layout and settings (docs/architecture.md lists the promises)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from unmask import keyed
from unmask.batch import Rows, places
from unmask.data.collate import collate
from unmask.objectives import REGISTRY, Causal, FullSentences, Mixture, NextSentence, SentenceOrder, UniLM
from unmask.objectives.base import Objective, Outline, Shape, outline
from unmask.objectives.denoise import TextToText
from unmask.objectives.masked import Masking

from .cases import EOS, FIELDS, LENGTHS, VOCABULARY, Example, changed, examples, reachable, take, within
from .suite import (
    BOUNDED,
    COPIED,
    CUT,
    OBJECTIVES,
    STILL,
    UNTOLD,
    WEIGHTED,
    noiseless,
    placed,
    repeated,
    restored,
    texts,
)

every = pytest.mark.parametrize("name", OBJECTIVES)
told = pytest.mark.parametrize("name", [n for n in OBJECTIVES if n not in UNTOLD])
hiding = pytest.mark.parametrize("name", [n for n in OBJECTIVES if n not in COPIED])


# ---------------------------------------------------------------- one text, one example, one noise


@every
def test_a_ragged_batch_is_its_rows_alone_in_any_order_and_split(name: str) -> None:
    objective = OBJECTIVES[name]
    rows = texts(objective, LENGTHS)
    whole = examples(objective(rows, VOCABULARY))
    assert whole == examples(objective(rows, VOCABULARY))
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(LENGTHS))
        for part in np.array_split(order, [1, 4, 12][seed]):
            assert examples(objective(take(rows, part), VOCABULARY)) == [whole[i] for i in part]
    for i in range(len(LENGTHS)):
        assert examples(objective(take(rows, np.array([i])), VOCABULARY)) == [whole[i]]


@every
def test_o27_o28_noise_is_a_function_of_the_key(name: str) -> None:
    objective = OBJECTIVES[name]
    rows, fixed = texts(objective, [40] * 8), noiseless(objective)
    a, b = (examples(objective(replace(rows, key=k), VOCABULARY)) for k in (rows.key, rows.key + np.uint64(1)))
    same = [x == y for x, y in zip(a, b, strict=True)]
    assert all(same) if fixed else not all(same) if name in STILL else not any(same)
    distinct = len({repr(e) for e in examples(objective(repeated(rows, 8), VOCABULARY))})
    assert distinct == 1 if fixed else distinct >= (2 if name in STILL else 6)


@every
def test_sizes_are_the_lengths_that_come_out(name: str) -> None:
    objective = OBJECTIVES[name]
    rows = texts(objective, LENGTHS * 3)
    e, sizes = objective(rows, VOCABULARY), objective.sizes(outline(rows))
    assert np.diff(e.stream.start).tolist() == sizes.stream.tolist()
    assert (e.source is None) == (sizes.source is None)
    if e.source is not None:
        assert np.diff(e.source.start).tolist() == sizes.source.tolist()


@every
def test_fields_have_the_record_s_types_and_order(name: str) -> None:
    objective = OBJECTIVES[name]
    e = objective(texts(objective, LENGTHS), VOCABULARY)
    for s in (e.stream, e.source):
        if s is None:
            continue
        assert {getattr(s, k).dtype for k in FIELDS} == {np.dtype("i4")}
        assert all(x is None or x.dtype == np.int32 for x in (s.token_type, s.positions2))
        assert (s.horizon <= s.reveal).all() and (s.block == 1).all()
        assert placed(objective) or (s.positions == places(s.start)).all()
    assert set(e.targets) == {head.name for head in objective.heads()}
    for t in e.targets.values():
        assert t.weight.dtype == np.float32 and len(t.index) == len(t.value) == len(t.weight)
        if name in WEIGHTED:
            assert (t.weight > 0).all() and len(t.norm) == len(LENGTHS)
        else:
            assert (t.weight == 1).all()
            assert t.norm is None or t.norm.sum() == len(t.value)  # one of a mixture: each text's own count
        assert (t.index >= 0).all() and (t.index < len(e.stream.tokens)).all()
    index = e.targets["lm"].index.tolist()
    assert len(set(index)) == len(index)


@every
def test_empty_texts_and_no_texts_are_no_crash(name: str) -> None:
    objective = OBJECTIVES[name]
    for lengths, ends in (([], None), ([0], None), ([0, 0, 0], False), ([1], None), ([1, 0, 1], True)):
        rows = texts(objective, lengths, ends=ends)
        e, sizes = objective(rows, VOCABULARY), objective.sizes(outline(rows))
        assert np.diff(e.stream.start).tolist() == sizes.stream.tolist()


# ---------------------------------------------------------------- room


def outlines(lengths: np.ndarray, keys: int) -> Outline:
    """Texts of these lengths, each under many keys, with and without the end of a document."""
    n = np.repeat(lengths, 2 * keys)
    return Outline(n, keyed.row_keys(1, 0, np.arange(len(n))), np.arange(len(n)), np.arange(len(n)) % 2 == 0)


def fits(objective: Objective, lengths: np.ndarray, shape: Shape, keys: int = 60) -> np.ndarray:
    """(L,) bool: every text of that length fits."""
    sizes = objective.sizes(outlines(lengths, keys))
    ok = sizes.stream <= shape.stream
    if sizes.source is not None:
        ok &= sizes.source <= shape.source
    return ok.reshape(len(lengths), -1).all(1)


@every
@pytest.mark.parametrize("context", [2, 3, 4, 5, 6, 8, 13, 32, 100, 128])
def test_room_is_the_most_that_fits(name: str, context: int) -> None:
    objective = OBJECTIVES[name]
    two = isinstance(objective, TextToText) and objective.layout.kind == "encdec"
    shapes = [objective.shape(context), *([Shape(context, 2 * context), Shape(2 * context, context)] if two else [])]
    for shape in shapes:
        room = objective.room(shape)
        assert fits(objective, np.arange(1, max(room, 1) + 1), shape).all() or room == 0
        if name not in BOUNDED:
            assert not fits(objective, np.arange(max(room, 0) + 1, room + 4), shape, keys=2000).any()


# ---------------------------------------------------------------- nothing is lost, nothing leaks


@told
def test_o11_o13_the_text_comes_back_from_input_and_targets(name: str) -> None:
    objective = OBJECTIVES[name]
    rows = texts(objective, LENGTHS * 4)
    whole = examples(objective(rows, VOCABULARY))
    for e, text, ends in zip(whole, np.split(rows.tokens, rows.start[1:-1]), rows.ends, strict=True):
        back, _ = restored(objective, e, bool(ends))
        assert back == text.tolist()[: max(len(back), 1) if name in CUT else None]


@hiding
def test_no_leak(name: str) -> None:
    """Where a target's value changes, all that its query can see stays, but for tokens that are kept by design."""
    objective, seen = OBJECTIVES[name], 0
    for seed, lengths in enumerate([[12, 9], [1, 2, 3], [20]]):
        rows = texts(objective, lengths, seed, ends=True)
        before = examples(objective(rows, VOCABULARY))
        views = [reachable(e.stream) for e in before]
        for at in range(len(rows.tokens)):
            after = examples(objective(changed(rows, at), VOCABULARY))
            for a, b, view in zip(before, after, views, strict=True):
                assert a.index == b.index and {k: a.stream[k] for k in FIELDS[1:]} == {
                    k: b.stream[k] for k in FIELDS[1:]
                }
                seen += unseen(objective, a, b, view)
    assert seen >= 3


def unseen(objective: Objective, a: Example, b: Example, view: np.ndarray) -> int:
    """How many targets differ between two examples; what their queries see does not, but for a kept token itself."""
    differ = [k for k in range(len(a.index)) if a.value[k] != b.value[k]]
    for k in differ:
        q, tokens = a.index[k], a.stream["tokens"]
        assert a.source == b.source
        seen = [i for i in np.flatnonzero(view[q]).tolist() if tokens[i] != b.stream["tokens"][i]]
        kept = objective.copies and seen == [q] and tokens[q] == a.value[k]
        assert not seen or kept, (q, seen)
    return len(differ)


@hiding
def test_only_masks_keep_what_they_ask_for(name: str) -> None:
    """`copies` exempts from a part of `test_no_leak`: nothing else may claim it."""
    objective = OBJECTIVES[name]
    parts = [p.objective for p in objective.parts.values()] if isinstance(objective, Mixture) else [objective]
    masks = Masking | FullSentences | NextSentence | SentenceOrder | UniLM
    assert objective.copies == any(isinstance(part, masks) for part in parts)


# ---------------------------------------------------------------- rates


@pytest.mark.parametrize(
    ("name", "n"),
    [
        ("masked", 100),
        ("masked-independent", 100),
        ("masked-0.4", 50),
        ("masked-random", 30),
        ("masked-rates", 100),
        ("full-apart", 100),
        ("shifted", 100),
        ("permutation-single", 99),
    ],
)
def test_token_rate_by_position_decile(name: str, n: int) -> None:
    """Objectives that draw single tokens; those of words and spans have tests of their own."""
    rows = texts(OBJECTIVES[name], [n] * 1000, ends=True)
    whole = examples(OBJECTIVES[name](rows, VOCABULARY))
    noise = np.array([restored(OBJECTIVES[name], e, True)[1] for e in whole])
    rate = SHARES.get(name) or OBJECTIVES[name].mask_rate
    for part in (*np.array_split(noise, 10, axis=1), noise[:, :1], noise[:, -1:]):
        assert within(int(part.sum()), part.size, rate)
    if "independent" not in name:
        assert set(noise.sum(1)) == {round(n * rate)}


SHARES = {"full-apart": 0.15, "permutation-single": 1 / 3}


# ---------------------------------------------------------------- rows


def test_d19_with_pad_equal_to_eos_each_text_has_one_live_end() -> None:
    """Padding is block 0 and has no target; the end token that a text really has is one."""
    rows = Rows.of([[5, 6, 7], [8, 9]])
    batch = collate({"causal": Causal()(rows, VOCABULARY)}, {"causal": Causal().heads()}, shape=Shape(8), pad=EOS)
    (targets,) = batch.targets.values()
    live = targets.weight > 0
    assert (targets.value[live] == EOS).sum() == 2 and live.sum() == (3 + 1) + (2 + 1)
    assert targets.index is not None and (batch.stream.block.reshape(-1)[targets.index[live]] != 0).all()


# ---------------------------------------------------------------- objectives that hold another


def test_what_the_masks_inside_another_objective_need_and_repeat_is_its_own() -> None:
    held = set()
    for own in REGISTRY.own_types.values():
        for field in own.model_fields:
            inner = getattr(own(), field)
            if not isinstance(inner, Objective):
                continue
            told = inner.model_copy(update={"duplicates": 7, "unit": "word"})
            objective = own().model_copy(update={field: told})
            assert objective.recurs == told.recurs == 7 and objective.needs >= told.needs == {"word"}
            held.add(own.__name__)
    assert held == {"NextSentence", "SentenceOrder", "FullSentences"}
