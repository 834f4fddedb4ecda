"""Blank infilling: the two parts, two axes of positions, and blanks that find their answers."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from model.explicit import Explicit, Text
from model.helpers import model_of
from unmask.batch import Batch, Rows
from unmask.config import ModelConfig
from unmask.data.collate import collate, pack
from unmask.errors import UserError
from unmask.objectives.base import Outline, Shape, outline
from unmask.objectives.glm import GLM, blanks
from unmask.objectives.show import toy

from .cases import MASK, VOCABULARY, examples, starts_of, texts, within
from .cases_order import restored


def noise_of(objective: GLM, n: int, count: int, **more: Any) -> np.ndarray:
    """(count, n) bool: what was left out of many texts of n tokens."""
    return objective.noise(replace(texts([n] * count), **more)).reshape(count, n)


# ---------------------------------------------------------------- the figure


def test_two_blanks_are_the_papers_figure() -> None:
    """Du et al. 2022, figure 2: x1 … x6 without x3 and without x5 x6; the second span is written first."""
    noise = np.array([0, 0, 1, 0, 1, 1], bool)
    rows = Rows.of([[11, 12, 13, 14, 15, 16]])
    key = next(k for k in range(20) if blanks(rows, noise, np.array([k], np.uint64), toy()).stream.tokens[8] == 15)
    e = blanks(rows, noise, np.array([key], np.uint64), toy())
    assert e.stream.tokens.tolist() == [2, 11, 12, MASK, 14, MASK, 3, 2, 15, 16, 2, 13]
    assert e.stream.positions.tolist() == [0, 1, 2, 3, 4, 5, 6, 5, 5, 5, 3, 3]
    assert e.stream.positions2 is not None and e.stream.positions2.tolist() == [0] * 7 + [1, 2, 3, 1, 2]
    assert e.stream.reveal.tolist() == e.stream.horizon.tolist() == [0] * 7 + [1, 2, 3, 4, 5]
    assert (e.targets["lm"].index.tolist(), e.targets["lm"].value.tolist()) == ([7, 8, 9, 10, 11], [15, 16, 3, 13, 3])
    model = model_of(positions2=8, visibility="prefix", vocab_size=100)
    s = e.stream
    text = Text.of(
        s.tokens, lambda i, j: j < 7 or (i >= 7 and j <= i),
        positions=s.positions.tolist(), positions2=s.positions2.tolist(),
    )  # fmt: skip
    got = model(Batch(replace(s.map(lambda a: torch.from_numpy(a)[None]), start=None), {}, {}))["stream"][0]
    torch.testing.assert_close(got, Explicit(model)(text), rtol=1e-10, atol=1e-10)


def test_without_shuffling_answers_come_as_in_the_text() -> None:
    for e in examples(GLM(shuffle=False)(texts([60] * 20), VOCABULARY)):
        answers = [e.stream["positions"][i] for i in e.index]
        assert answers == sorted(answers) and len(set(answers)) > 1


def test_every_order_of_the_answers_is_as_likely() -> None:
    noise = np.tile(np.array([1, 0, 1, 1, 0, 1], bool), 6000)
    rows = texts([6] * 6000)
    s = blanks(rows, noise, rows.key, VOCABULARY).stream
    positions = s.positions.reshape(6000, -1)[:, 7:]
    orders = Counter(tuple(dict.fromkeys(p)) for p in positions.tolist())
    assert len(orders) == 6 and all(within(c, 6000, 1 / 6) for c in orders.values())


# ---------------------------------------------------------------- noise


@pytest.mark.parametrize(("density", "n"), [(0.15, 200), (0.15, 64), (0.5, 60), (0.9, 40), (0.15, 11), (0.3, 7)])
def test_the_share_is_exact_and_the_same_at_every_place(density: float, n: int) -> None:
    objective = GLM(noise_density=density)
    noise = noise_of(objective, n, 2000)
    count = min(max(round(density * n), 1), n - 1)
    assert (noise.sum(1) == count).all()
    spans = starts_of(noise).sum(1)
    assert spans.max() <= int(objective.counts(np.array([n]))[1][0])
    mean = count / spans.mean()
    for part in np.array_split(noise, min(10, n), axis=1):
        assert within(int(part.sum() / mean), int(part.size / mean), count / n)
    assert within(int(noise[:, 0].sum()), 2000, count / n) and within(int(noise[:, -1].sum()), 2000, count / n)


def test_lengths_are_poisson_given_that_there_is_one() -> None:
    noise = noise_of(GLM(), 3000, 60)
    inner = noise[:, 1:-1]
    edges = np.flatnonzero(np.diff(np.pad(inner, ((0, 0), (1, 1))).astype(int).ravel()))
    lengths = np.bincount(edges[1::2] - edges[::2], minlength=12)[1:12]
    wanted = np.array([math.exp(-3) * 3**k / math.factorial(k) for k in range(1, 12)]) / (1 - math.exp(-3))
    assert all(within(int(c), int(lengths.sum()), w) for c, w in zip(lengths, wanted, strict=True)), lengths


def test_short_texts() -> None:
    for n in range(4):
        for spans, left in (("short", [0, 1, 1, 1]), ("sentence", [0, 1, 2, 3])):  # without starts, one sentence
            e = GLM(spans=spans)(texts([n]), VOCABULARY)
            assert len(e.targets["lm"].index) == left[n] + (n > 0)
        assert GLM.glm_document().noise(texts([n] * 50)).sum() >= 50 * ((n + 1) // 2)


@pytest.mark.parametrize("n", [20, 21])
def test_document_one_span_of_half_to_all(n: int) -> None:
    for place in ("anywhere", "end"):
        noise = noise_of(GLM(spans="document", place=place), n, 5000)
        assert (starts_of(noise).sum(1) == 1).all()
        least, length = (n + 1) // 2, noise.sum(1)
        assert all(within(int((length == k).sum()), 5000, 1 / (n - least + 1)) for k in range(least, n + 1))
        assert place != "end" or noise[:, -1].all()
        if place == "anywhere":
            begin = noise.argmax(1)[length == least]
            assert all(within(int((begin == k).sum()), len(begin), 1 / (n - least + 1)) for k in range(n - least + 1))


def test_whole_sentences_until_the_share_is_covered() -> None:
    rng = np.random.default_rng(0)
    n, count = 300, 300
    sentence = rng.random(n * count) < 1 / 15
    sentence[::n] = True
    noise = noise_of(GLM.glm_sentence(), n, count, sentence=sentence)
    opens = sentence.reshape(count, n)
    edge = np.diff(noise, axis=1)
    assert opens[:, 1:][edge].all() and edge.any()  # a span begins and ends where sentences do
    size = np.diff(np.append(np.flatnonzero(sentence), n * count))
    longest = np.array(
        [
            size[a:b].max()
            for a, b in zip(*(lambda c: (c[:-1], c[1:]))(np.append(0, np.cumsum(opens.sum(1)))), strict=True)
        ]
    )
    hidden, wanted = noise.sum(1), round(0.15 * n)
    assert (hidden < wanted + longest).all()
    chosen = (opens & noise).sum(1)
    most = int(GLM.glm_sentence().counts(np.array([n]))[1][0])
    assert (chosen <= most).all() and ((hidden >= wanted) | (chosen == most)).all()
    assert (hidden >= wanted).mean() > 0.9
    rows = replace(texts([n] * count), sentence=sentence)
    e, sizes = GLM.glm_sentence()(rows, VOCABULARY), GLM.glm_sentence().sizes(outline(rows))
    assert np.diff(e.stream.start).tolist() == sizes.stream.tolist()
    for x, text in zip(examples(e), rows.tokens.reshape(count, n), strict=True):
        back = restored(GLM.glm_sentence(), x, True)
        assert back is not None and back[0] == text.tolist()
    room = GLM.glm_sentence().room(Shape(330))
    worst = Outline(np.array([room]), rows.key[:1], rows.index[:1], rows.ends[:1], sentence=np.ones(room, bool))
    assert GLM.glm_sentence().sizes(worst).stream[0] <= 330
    assert room + 2 + 2 * GLM.glm_sentence().counts(np.array([room]))[1][0] > 330 - 4


def test_sentences_are_needed_in_their_regime_alone() -> None:
    assert GLM().needs == frozenset() and GLM.glm_document().needs == frozenset()
    assert GLM.glm_sentence().needs == {"sentence"}


# ---------------------------------------------------------------- O22


@pytest.mark.parametrize("packed", [False, True])
def test_o22_the_given_part_knows_nothing_of_the_answers(packed: bool) -> None:
    """THUDM/GLM#28, #9: another token in part B leaves every state of part A as it is, bit for bit."""
    model = model_of(torch.float32, positions2=40, visibility="prefix", vocab_size=100, max_position=100)
    objective, rows = GLM(noise_density=0.3), texts([17, 24], ends=True)
    e = objective(rows, toy())
    place = pack(objective.sizes(outline(rows)), Shape(90)) if packed else None
    batch = collate({"x": e}, {"x": objective.heads()}, place).map(torch.from_numpy)
    given = (batch.stream.reveal == 0) & (batch.stream.block != 0)
    with torch.no_grad():
        before = model(batch)["stream"]
        for b, i in torch.nonzero(batch.stream.reveal > 0).tolist():
            tokens = batch.stream.tokens.clone()
            tokens[b, i] = 5 + (tokens[b, i] + 1) % 80
            after = model(replace(batch, stream=replace(batch.stream, tokens=tokens)))["stream"]
            assert torch.equal(before[given], after[given]) and not torch.equal(before[b, i], after[b, i])
            earlier = (batch.stream.block[b] == batch.stream.block[b, i]) & (
                batch.stream.reveal[b] < batch.stream.reveal[b, i]
            )
            assert torch.equal(before[b][earlier], after[b][earlier])


@pytest.mark.parametrize("objective", [GLM(), GLM(noise_density=0.5), GLM.glm_document()], ids=str)
def test_o22_answers_go_back_into_their_blanks(objective: GLM) -> None:
    """ChatGLM2-6B#188: by the first axis alone, whatever the order in which they were written."""
    rows, orders = texts([40] * 100, ends=True), set()
    for e, text in zip(examples(objective(rows, VOCABULARY)), rows.tokens.reshape(100, 40), strict=True):
        back = restored(objective, e, True)
        assert back is not None and back[0] == text.tolist()
        answers = list(dict.fromkeys(e.stream["positions"][i] for i in e.index))
        assert all(e.stream["tokens"][p] == MASK for p in answers)
        orders.add(answers == sorted(answers))
    assert (False in orders) == (objective.spans == "short")  # one blank has one order


def test_places_inside_a_span_count_from_one() -> None:
    s = GLM(noise_density=0.5)(texts([50] * 20), VOCABULARY).stream
    assert s.positions2 is not None
    b = s.reveal > 0
    assert (s.positions2[~b] == 0).all() and (s.tokens[s.positions2 == 1] == 2).all()
    step = np.diff(s.positions2)[b[1:] & b[:-1] & (np.diff(s.positions) == 0)]
    assert (step == 1).all()


def test_a_model_without_a_second_axis_is_refused() -> None:
    with pytest.raises(UserError, match=r"set model\.positions2"):
        GLM().networks(ModelConfig())
    assert GLM().networks(ModelConfig(positions2=64))["model"].positions2 == 64
    e = GLM.glm_document()(texts([30], ends=True), toy())
    stream = replace(e.stream.map(lambda a: torch.from_numpy(a)[None]), start=None)
    with pytest.raises(UserError, match=r"second position .* lies beyond the table of 4"):
        model_of(positions2=4, vocab_size=100, max_position=60)(Batch(stream, {}, {}))
