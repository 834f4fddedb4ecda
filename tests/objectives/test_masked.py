"""What is hidden, how often and how: every kind of masking beyond what the suite asks of all objectives."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from unmask import keyed
from unmask.batch import Rows, starts
from unmask.config import TokenizerConfig
from unmask.data.loader import Loader
from unmask.data.sampling import InTurn, Mixture, Order
from unmask.errors import UserError
from unmask.objectives import REGISTRY
from unmask.objectives.annotated import Ernie, SalientSpans
from unmask.objectives.base import Objective, Shape, outline
from unmask.objectives.masked import Masked, Masking, Rated
from unmask.objectives.shifted import ShiftedMasked
from unmask.objectives.show import toy
from unmask.objectives.units import words
from unmask.tokens.tokenizer import Tokenizer
from unmask.tokens.words import starts_from_characters

from .cases import MASK, Example, changed, examples, reachable, texts
from .cases_masked import ALL, OBJECTIVES, SPARSE, hidden, marked, restored, selected, uniform_words, within

LENGTHS = [7, 1, 33, 0, 2, 64, 3, 12, 5, 40, 1, 90]
EVERY = {**OBJECTIVES, **SPARSE}

every = pytest.mark.parametrize("name", EVERY)
sparse = pytest.mark.parametrize("name", SPARSE)


# ---------------------------------------------------------------- the suite's promises where it does not reach


def alone(rows: Rows, r: int) -> Rows:
    part = slice(rows.start[r], rows.start[r + 1])
    inside = (rows.spans[:, 0] >= part.start) & (rows.spans[:, 0] < part.stop)
    more = {"word": rows.word[part], "spans": rows.spans[inside] - part.start}
    return Rows.of([rows.tokens[part]], rows.key[[r]], index=rows.index[[r]], ends=rows.ends[[r]], **more)


@sparse
def test_each_text_has_its_example_whatever_stands_beside_it(name: str) -> None:
    rows, objective = marked(texts(LENGTHS)), SPARSE[name]
    whole = examples(objective(rows, toy()))
    assert whole == [examples(objective(alone(rows, r), toy()))[0] for r in range(len(LENGTHS))]
    assert [len(e.stream["tokens"]) for e in whole] == objective.sizes(outline(rows)).stream.tolist()
    for e, text, ends in zip(whole, np.split(rows.tokens, rows.start[1:-1]), rows.ends, strict=True):
        assert restored(objective, e, bool(ends))[0] == text.tolist()
        assert all(h <= r for h, r in zip(e.stream["horizon"], e.stream["reveal"], strict=True))


@every
def test_o27_o28_noise_differs_by_key_and_by_nothing_else(name: str) -> None:
    rows = marked(texts([60] * 8))
    a, b, c = (
        [(e.stream["tokens"], e.index) for e in examples(EVERY[name](replace(rows, key=key), toy()))]
        for key in (rows.key, rows.key.copy(), rows.key + np.uint64(1))
    )
    same = EVERY[name].is_causal(rows.index) if name.startswith("hybrid") else np.full(8, name == "salient-all")
    found = [x == y for x, y in zip(a, c, strict=True)]
    assert a == b and (found == same.tolist() or (name == "salient" and sum(found) < 5))  # few spans: chance repeats


@sparse
def test_no_leak(name: str) -> None:
    """As in the suite, but a token that is kept by design stands where it is read, perhaps one further on."""
    objective, seen = SPARSE[name], 0
    shift = int(isinstance(objective, ShiftedMasked))
    for seed, lengths in enumerate([[12, 9], [1, 2, 3], [20]]):
        rows = marked(texts(lengths, seed, ends=True))
        before = examples(objective(rows, toy()))
        for at in range(len(rows.tokens)):
            for a, b in zip(before, examples(objective(changed(rows, at), toy())), strict=True):
                assert a.index == b.index
                seen += _checked(a, b, shift)
    assert seen >= 3


def _checked(a: Example, b: Example, shift: int) -> int:
    """How many targets' values differ; what their queries see does not, but for the kept token itself."""
    view, count = reachable(a.stream), 0
    for k, q in enumerate(a.index):
        if a.value[k] != b.value[k]:
            count += 1
            told = [i for i in np.flatnonzero(view[q]) if a.stream["tokens"][i] != b.stream["tokens"][i]]
            assert not told or (told == [q + shift] and a.stream["tokens"][q + shift] == a.value[k])
    return count


@every
def test_d16_fixed_tokens_are_never_targets_nor_changed(name: str) -> None:
    rows = marked(texts([4, 9, 30] * 60))
    rows = replace(rows, fixed=np.random.default_rng(0).random(len(rows.tokens)) < 0.2)
    objective = EVERY[name]
    framed = objective.framed(rows, toy())
    at = objective.select(framed).at
    assert len(at) and not framed.fixed[at].any() and (np.diff(at) > 0).all()
    seen = objective(rows, toy()).stream.tokens
    assert (seen[framed.fixed] == framed.tokens[framed.fixed]).all()


@pytest.mark.parametrize("name", [n for n, o in EVERY.items() if not n.startswith("salient")])
def test_rate_by_position_decile(name: str) -> None:
    n, drawn = 100, 500
    objective, rows = EVERY[name], marked(texts([n] * drawn))
    found = hidden(objective, rows).reshape(drawn, n)
    # Tokens of one span hang together: the interval counts spans.
    together = found.sum() / len(selected(objective, rows).first)
    rate = found.mean()
    assert rate == pytest.approx(objective.rate(0.0), rel=0.05)
    for part in [*np.array_split(found, 10, axis=1), found[:, :1], found[:, -1:]]:
        assert within(int(part.sum() / together), int(part.size / together), rate)


def test_o01_conformance_of_a_million_tokens() -> None:
    """12 % of all tokens are [MASK], 1.5 % random, 1.5 % kept: 3 of the 88 % that do not look masked are targets."""
    rows = texts([1000] * 1000)
    rows = replace(rows, tokens=np.where(rows.tokens < 5, 7, rows.tokens))
    e = Masked.bert()(rows, toy())
    t, seen, n = e.targets["lm"], e.stream.tokens, len(rows.tokens)
    got = seen[t.index]
    again = 1 / 85  # a random token may be the original
    assert (got == MASK).sum() / n == pytest.approx(0.12, abs=5e-4)
    assert ((got != MASK) & (got != t.value)).sum() / n == pytest.approx(0.015 * (1 - again), abs=5e-4)
    assert (got == t.value).sum() / n == pytest.approx(0.015 * (1 + again), abs=5e-4)
    untouched = n - (seen == MASK).sum()
    assert (got != MASK).sum() / untouched == pytest.approx(3 / 88, abs=5e-4) == pytest.approx(0.034, abs=5e-4)


# ---------------------------------------------------------------- rates


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_rates_move_with_the_run_and_sizes_do_not(schedule: str) -> None:
    objective = Masked(mask_rate=0.3, final_rate=0.15, schedule=schedule)
    rows, sizes = texts([100] * 50), []
    for progress in (0.0, 0.2, 0.5, 0.8, 1.0):
        now = replace(rows, progress=progress)
        moved = progress if schedule == "linear" else (1 - np.cos(np.pi * progress)) / 2
        want = round(100 * (0.3 - 0.15 * moved))
        assert (hidden(objective, now).reshape(50, 100).sum(1) == want).all()
        sizes.append(objective.sizes(outline(now)).stream.tolist())
    assert sizes == [[102] * 50] * 5


def test_a_rising_rate_only_adds_tokens() -> None:
    rows = texts([100] * 20)
    found = [hidden(Masked(mask_rate=rate), rows) for rate in (0.1, 0.15, 0.4, 1.0)]
    assert all((a <= b).all() for a, b in pairwise(found)) and found[-1].all()


# ---------------------------------------------------------------- static masks


@pytest.mark.parametrize("order", [Order(7, 3, recurs=4), Mixture((5, 3), (6, 4), 3, recurs=4), InTurn((5, 3), 3, 4)])
def test_static_masks_recur_after_as_many_epochs_as_there_are_duplicates(order: Order | Mixture | InTurn) -> None:
    index = np.arange(500)
    piece, key = order.find(index)
    assert all(len(set(key[piece == p].tolist())) == 4 for p in range(order.size if isinstance(order, Order) else 8))
    mine = key[piece == 2].tolist()
    assert mine[:12] == mine[:4] * 3 or isinstance(order, Mixture)  # whose blocks shuffle the epochs of a source
    always = replace(order, recurs=0)
    assert len(set(always.find(index)[1].tolist())) == 500 and (always.find(index)[1][:7] == key[:7]).all()


@pytest.mark.parametrize("duplicates", [0, 2])
def test_the_loader_repeats_static_masks_and_only_those(duplicates: int) -> None:
    class Text:
        tokens = np.random.default_rng(0).integers(5, 90, 640).astype(np.int32)
        documents = np.arange(0, 641, 40)

    # 256 samples of 16 pieces are 16 epochs.
    loader = Loader(Text(), Masked(duplicates=duplicates), toy(), Shape(42), rows=256, seed=0)
    batch = loader(0)[0]
    seen = {(row.tobytes(), text) for row, text in zip(batch.stream.tokens, _truth(batch), strict=True)}
    assert len({text for _, text in seen}) == 16
    assert len(seen) == (32 if duplicates else 256)


@pytest.mark.parametrize("micro", [1, 2])
def test_schedules_move_from_update_to_update(micro: int) -> None:
    """Not from window to window of 256 samples, of which a short run has only one or two."""

    class Text:
        tokens = np.random.default_rng(0).integers(5, 90, 20_000).astype(np.int32)
        documents = np.arange(0, 20_001, 50)

    objective, steps = Masked(mask_rate=0.8, final_rate=0.1), 40
    loader = Loader(Text(), objective, toy(), Shape(64), rows=8, seed=0, micro=micro)
    assert loader.steps == 32
    asked = [sum(b.counts()["target_tokens"] for b in loader(step, step / steps)) / 8 for step in range(steps)]
    assert asked == [round(objective.rate(step / steps) * 50) for step in range(steps)] and asked[-1] < 8


def _truth(batch) -> list[bytes]:
    t, tokens = batch.targets["masked", "lm"], batch.stream.tokens.copy().reshape(-1)
    real = t.weight > 0
    tokens[t.index[real]] = t.value[real]
    return [row.tobytes() for row in tokens.reshape(batch.stream.tokens.shape)]


# ---------------------------------------------------------------- whole words


@pytest.mark.parametrize("name", [n for n, o in EVERY.items() if getattr(o, "unit", "") == "word"])
def test_words_are_hidden_whole(name: str) -> None:
    rows = marked(texts([80] * 50))
    number = np.cumsum(rows.word) - 1
    found = hidden(EVERY[name], rows)
    share = np.bincount(number, found) / np.bincount(number)
    assert set(share) == {0.0, 1.0}


def test_long_words_are_hidden_as_often_as_short_ones() -> None:
    """Words of 1, 2 and 7 tokens, in texts so short that a budget in tokens would pass over the long ones."""
    count = 4000
    rows = texts([10 * 3] * count)
    rows = replace(rows, word=np.isin(rows.place % 10, [0, 1, 3]))
    found = hidden(Masked(unit="word"), rows).reshape(-1, 10)
    for at in (0, 1, 3):  # 9 words, of which round(1.35) = 1 is hidden
        assert within(int(found[:, at].sum()), 3 * count, 1 / 9)


def test_o03_one_fate_a_word_or_one_a_token_as_asked() -> None:
    rows = uniform_words(100, 100, 3)
    for fate, both in (("token", 0.64), ("span", 0.8)):
        e = Masked(unit="word", mask_rate=1.0, fate=fate)(rows, toy())
        seen = e.stream.tokens.reshape(100, -1)[:, 1:-1].reshape(-1, 3)
        masked = seen == MASK
        assert within(int((masked[:, 0] & masked[:, 1]).sum()), 10_000, both)
        assert within(int(masked[:, 2].sum()), 10_000, 0.8)
        kept = seen == 7
        if fate == "span":  # three fates in all; random pieces are drawn one by one
            assert set(masked.sum(1)) == {0, 3}
            assert within(int(kept.all(1).sum()), 10_000, 0.1 + 0.1 / 85**3)
            random = seen[~masked.any(1) & ~kept.all(1)]
            assert within(int((random[:, 0] == random[:, 1]).sum()), len(random), 1 / 85)


KINDS = ("bbpe", "bpe", "unigram", "wordpiece", "word", "char", "byte")
SENTENCES = [
    "The unbelievably small cats sat on the mats, didn't they? 3.14 naïve cafés.",
    "我们去北京，然后用 Python 写程序。",
    "Привет, мир! नमस्ते दुनिया 😀👍🏽 snake_case",
]


@pytest.mark.parametrize("kind", KINDS)
def test_whole_words_of_every_tokenizer_leave_visible_ids_as_they_are(kind: str) -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(type=kind, vocab_size=400), SENTENCES * 20)
    lists = [tokenizer.encode(text) for text in SENTENCES]
    rows = Rows.of(lists * 200, keyed.row_keys(0, 0, np.arange(600)))
    rows = replace(rows, word=tokenizer.words(rows.tokens, rows.start))
    objective = Masked.whole_word()
    e, framed = objective(rows, tokenizer.vocabulary), objective.framed(rows, tokenizer.vocabulary)
    hit = np.zeros(len(framed.tokens), bool)
    hit[e.targets["lm"].index] = True
    assert (e.stream.tokens[~hit] == framed.tokens[~hit]).all() and (e.targets["lm"].value == framed.tokens[hit]).all()
    number = np.cumsum(framed.word | framed.fixed) - 1
    assert set(np.bincount(number, hit) / np.bincount(number)) == {0.0, 1.0}
    assert hit.sum() / rows.tokens.size == pytest.approx(0.15, abs=0.02)
    assert rows.word.sum() > 12 * 200 and (np.bincount(framed.row, hit) >= 1).all()  # never one text, one word


def test_segmented_chinese_is_hidden_by_the_segmentation() -> None:
    text, parts = (
        "使用语言模型来预测下一个词的概率",
        ["使用", "语言", "模型", "来", "预测", "下", "一个", "词", "的", "概率"],
    )
    ids = np.arange(5, 5 + len(text))  # a token a character, as BERT has it
    at = np.arange(len(text))
    begins = starts([len(p) for p in parts])[:-1]
    word = starts_from_characters(at, at + 1, begins)
    rows = Rows.of([ids] * 300, keyed.row_keys(0, 0, np.arange(300)), word=np.tile(word, 300))
    seen = Masked(unit="word", mask_rate=0.2, **ALL)(rows, toy()).stream.tokens.reshape(300, -1)[:, 1:-1]
    hits = seen == MASK
    assert (seen[~hits] == np.tile(ids, (300, 1))[~hits]).all()
    number = np.cumsum(word) - 1
    by_word = np.stack([np.bincount(number, row) / np.bincount(number) for row in hits])
    assert set(by_word.reshape(-1)) == {0.0, 1.0} and (by_word.sum(1) == 2).all()
    assert all(within(int(k), 300, 0.2) for k in by_word.sum(0))


def test_words_that_nobody_marked_are_one_clear_sentence() -> None:
    with pytest.raises(UserError, match=r"nothing says where words start"):
        Masked.whole_word()(texts([5]), toy())
    with pytest.raises(UserError, match=r"annotated spans are to be hidden, but the text has none"):
        SalientSpans()(texts([5]), toy())


def test_a_fixed_token_parts_its_word() -> None:
    word, fixed = np.array([1, 0, 0, 0, 1, 0], bool), np.array([0, 0, 1, 0, 0, 0], bool)
    found = words(Rows.of([[7] * 6], word=word, fixed=fixed))
    assert found.begin.tolist() == [0, 3, 4] and found.length.tolist() == [2, 1, 2]


# ---------------------------------------------------------------- settings


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="selection=independent draws each token by itself"):
        Masked(selection="independent", span_lengths="geometric")
    with pytest.raises(ValueError, match=r"phrases_from 0\.9 comes after entities_from"):
        Ernie(phrases_from=0.9)
    for kind in (Masked, ShiftedMasked, Ernie, SalientSpans):
        with pytest.raises(ValueError, match=r"exceed 1"):
            kind(mask_share=0.8, random_share=0.3)


def test_needs_say_what_is_read() -> None:
    assert Masked().needs == frozenset() and ShiftedMasked.gpt_bert().needs == frozenset()
    assert {o.needs for o in (Masked.whole_word(), Masked.albert(), Masked.spanbert())} == {frozenset({"word"})}
    assert Ernie().needs == {"word", "spans"} and SalientSpans().needs == {"spans"}


PUBLISHED = (
    "bert",
    "roberta",
    "whole_word",
    "albert",
    "spanbert",
    "wettig",
    "modernbert",
    "gpt_bert",
    "mntp",
    "ernie1",
    "realm",
)


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_are_what_was_published(name: str) -> None:
    objective: Objective = REGISTRY.preset(name)
    assert isinstance(objective, Masking)
    rate = {"wettig": 0.4, "modernbert": 0.3, "gpt_bert": 0.3, "mntp": 0.2}.get(name, 0.15)
    assert not isinstance(objective, Rated) or objective.mask_rate == rate
    always = name in ("wettig", "realm")
    assert (objective.mask_share, objective.random_share) == ((1.0, 0.0) if always else (0.8, 0.1))
    assert objective.recurs == (10 if name == "bert" else 0)
