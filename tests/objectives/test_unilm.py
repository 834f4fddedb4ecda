"""UniLM: four masks in their shares, one cloze, and one set of weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from model.explicit import Explicit, Text, after_prefix, backward, causal, full
from model.helpers import model_of
from unmask import keyed
from unmask.batch import Batch, Rows
from unmask.data.collate import collate, pack
from unmask.errors import UserError
from unmask.objectives.base import Shape, outline
from unmask.objectives.show import toy
from unmask.objectives.unilm import KINDS, UniLM

from .cases import EOS, MASK, VOCABULARY, examples, starts_of, texts, within
from .cases_order import kind_of, restored


def of_kind(kind: int, **settings: object) -> UniLM:
    shares = [0.0] * 4
    shares[kind] = 1.0
    return UniLM(shares=tuple(shares), **settings)


PAPER = np.array([2, 1, 1, 2]) / 6
"""Section 2.3: a third of the time both ways, a third sequence to sequence, a sixth each one way."""


def test_shares_hold_in_every_run_of_samples() -> None:
    for size in (4, 16, 128):
        for first in (0, 1024, 10**9 // 128 * 128):
            for begin in range(first, first + 1280, size):
                got = np.bincount(UniLM().kinds(np.arange(begin, begin + size)), minlength=4)
                assert np.abs(got - size * PAPER).max() < 2, got


@pytest.mark.parametrize("first", [0, 7, 10**9])
def test_shares_hold_over_every_nth_sample(first: int) -> None:
    """Ranks and micro-batches take every n-th: multiples of the golden ratio gave 90 of them one kind (n = 233)."""
    for stride in range(1, 257):
        kinds = UniLM().kinds(first + stride * np.arange(300))
        got, sigma = np.bincount(kinds, minlength=4), np.sqrt(300 * PAPER * (1 - PAPER))
        assert (np.abs(got - 300 * PAPER) < 4.5 * sigma).all(), (stride, got)
        runs = np.bincount(kinds[:-1] * 4 + kinds[1:], minlength=16).reshape(4, 4)[np.arange(4), np.arange(4)]
        alike = 299 * PAPER**2
        assert (runs < alike + 5 * np.sqrt(alike)).all(), (stride, runs)  # nor are next ones mostly of one kind


def test_kinds_are_what_their_masks_say() -> None:
    rows = texts([9] * 600)
    for e, kind in zip(examples(UniLM()(rows, VOCABULARY)), UniLM().kinds(rows.index), strict=True):
        assert kind_of(e.stream["reveal"]) == kind and len(e.stream["tokens"]) == 11 + (kind == 3)
    assert len(KINDS) == 4


def test_the_split_is_even_and_types_say_the_kind() -> None:
    for kind, wanted in enumerate(({0}, {2}, {3}, {4, 5})):
        s = of_kind(kind)(texts([10] * 4000), toy()).stream
        assert s.token_type is not None and set(s.token_type.tolist()) == wanted and s.token_type.dtype == np.int32
    second = (s.token_type.reshape(4000, -1) == 5).sum(1)  # with its [SEP]
    assert all(within(int((second == k).sum()), 4000, 0.1) for k in range(2, 12))


@pytest.mark.parametrize("kind", range(4))
def test_masked_as_bert_whatever_the_kind_and_place(kind: int) -> None:
    objective, n = of_kind(kind), 100
    rows = texts([n] * 1000, ends=True)
    e = objective(rows, VOCABULARY)
    noise = np.array([restored(objective, x, True)[1] for x in examples(e)])  # type: ignore[index]
    assert (noise.sum(1) == 15).all()
    for part in np.array_split(noise, 10, axis=1):
        assert within(int(part.sum() / 1.3), int(part.size / 1.3), 0.15)
    t = e.targets["lm"]
    words = (t.value >= 5) & (t.value < 90)
    seen = e.stream.tokens[t.index][words]
    assert within(int((seen == MASK).sum()), len(seen), 0.8)
    assert within(int((seen == t.value[words]).sum()), len(seen), 0.1 + 0.1 / len(VOCABULARY.ordinary))


def test_singles_bigrams_and_trigrams() -> None:
    noise = noise_of_unilm(UniLM(mask_rate=0.05), 400, 500)
    ends = np.flatnonzero(np.diff(np.pad(noise, ((0, 0), (1, 1))).astype(int).ravel()))
    lengths = np.bincount(ends[1::2] - ends[::2])[1:4]
    assert np.abs(lengths / lengths.sum() - (0.8, 0.1, 0.1)).max() < 0.02, lengths
    assert starts_of(noise).sum() == lengths.sum()


def noise_of_unilm(objective: UniLM, n: int, count: int) -> np.ndarray:
    rows = texts([n] * count, ends=True)
    return np.array([restored(objective, e, True)[1] for e in examples(objective(rows, VOCABULARY))])  # type: ignore[index]


def test_next_token_asks_for_all_of_one_way_texts() -> None:
    rows = Rows.of([[11, 12, 13]] * 2, ends=np.array([True, False]))
    for kind, index, values in (
        (1, [0, 1, 2, 3, 0, 1, 2], [11, 12, 13, EOS, 11, 12, 13]),
        (2, [2, 3, 4, 2, 3, 4], [11, 12, 13] * 2),
    ):
        e = of_kind(kind, next_token=True)(rows, toy())
        place = e.targets["lm"].index % 5
        assert (place.tolist(), e.targets["lm"].value.tolist()) == (index, values)
        assert e.stream.tokens.tolist() == [2, 11, 12, 13, 3] * 2
    pair = of_kind(3, next_token=True)
    for x in examples(pair(texts([8] * 50, ends=True), VOCABULARY)):
        second = x.stream["reveal"].index(1)
        assert x.index == list(range(second - 1, 10)) and x.value == x.stream["tokens"][second:]
    assert of_kind(0, next_token=True)(rows, toy()).targets["lm"].value.size == 2


def test_next_token_leaks_nothing() -> None:
    """Rows of one kind: what stands at a target changes nothing at the place that must say it."""
    model = model_of(token_types=6, vocab_size=600)
    for kind in (1, 2, 3):
        e = of_kind(kind, next_token=True)(texts([9], kind, ends=True), VOCABULARY)
        stream = replace(e.stream.map(lambda a: torch.from_numpy(a)[None]), start=None)
        step = {1: 1, 2: -1, 3: 1}[kind]
        with torch.no_grad():
            before = model(Batch(stream, {}, {}))["stream"][0]
            for i in e.targets["lm"].index.tolist():
                tokens = stream.tokens.clone()
                tokens[0, i + step] = 5 + (tokens[0, i + step] + 1) % 80
                after = model(Batch(replace(stream, tokens=tokens), {}, {}))["stream"][0]
                assert torch.equal(before[i], after[i]) and not torch.equal(before[i + step], after[i + step])


@pytest.mark.parametrize("packed", [False, True])
def test_one_batch_of_all_kinds_is_the_papers_four_masks(packed: bool) -> None:
    model = model_of(token_types=6, norm_position="post", final_norm=False, embedding_norm=True, vocab_size=100)
    objective, rows = UniLM(), texts([7, 9, 5, 8, 6, 7, 9, 3], 1)
    e = objective(rows, toy())
    shape = Shape(30)
    batch = collate(
        {"x": e}, {"x": [*objective.heads()]}, pack(objective.sizes(outline(rows)), shape) if packed else None
    )
    assert batch.stream.pattern == "order" and batch.stream.contiguous and not batch.stream.isolated
    with torch.no_grad():
        states = model(batch.map(torch.from_numpy))["stream"]
    reference, kinds, s = Explicit(model), objective.kinds(rows.index), e.stream
    assert set(kinds) == {0, 1, 2, 3} and batch.samples is not None
    for r, kind in enumerate(kinds):
        part = slice(s.start[r], s.start[r + 1])
        types = s.token_type[part].tolist()
        rule = [full, causal, backward, after_prefix(types.count(4))][kind]
        want = reference(Text.of(s.tokens[part], rule, types=types))
        row, block = batch.samples.row[r], batch.samples.block[r]
        got = states[row][torch.from_numpy(batch.stream.block[row] == block)]
        torch.testing.assert_close(got, want.detach(), rtol=1e-10, atol=1e-10)


def test_settings_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shares .* must be shares that add up to 1"):
        UniLM(shares=(0.5, 0.5, 0.5, 0.0))
    with pytest.raises(ValueError, match=r"mask_share 0\.9 \+ random_share 0\.2 exceed 1"):
        UniLM(mask_share=0.9, random_share=0.2)


def test_a_model_with_too_few_token_types_says_so() -> None:
    e = of_kind(3)(texts([5], ends=True), toy())
    stream = replace(e.stream.map(lambda a: torch.from_numpy(a)[None]), start=None)
    with pytest.raises(UserError, match="token type 5 lies outside the table of 2"):
        model_of(token_types=2, vocab_size=100)(Batch(stream, {}, {}))
    model_of(vocab_size=100)(Batch(stream, {}, {}))  # one without types leaves them out


def test_kinds_depend_on_the_number_and_noise_on_the_key() -> None:
    a = UniLM().kinds(np.arange(50))
    rows = replace(texts([20] * 50), key=keyed.row_keys(9, 1, np.arange(50)))
    assert [kind_of(e.stream["reveal"]) for e in examples(UniLM()(rows, VOCABULARY))] == a.tolist()
