"""What is hidden, how often and how: every kind of masking beyond what the suite asks of all objectives."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from unmask import keyed
from unmask.batch import Rows, starts, visible
from unmask.config import ModelConfig, TokenizerConfig
from unmask.data.collate import collate
from unmask.data.loader import Loader
from unmask.data.sampling import InTurn, Mixture, Order
from unmask.errors import UserError
from unmask.loss import forward_heads
from unmask.model.transformer import Transformer
from unmask.objectives import REGISTRY, Causal
from unmask.objectives.annotated import Ernie, SalientSpans
from unmask.objectives.base import Objective, Shape, outline
from unmask.objectives.masked import Masked, Masking, Rated
from unmask.objectives.shifted import ShiftedMasked
from unmask.objectives.show import toy
from unmask.objectives.units import Selected, annotated, law, phrases, words
from unmask.tokens.tokenizer import Tokenizer
from unmask.tokens.words import starts_from_characters

from .cases import MASK, Example, changed, examples, reachable, texts
from .cases_masked import ALL, OBJECTIVES, SPARSE, marked, restored

LENGTHS = [7, 1, 33, 0, 2, 64, 3, 12, 5, 40, 1, 90]
EVERY = {**OBJECTIVES, **SPARSE}

every = pytest.mark.parametrize("name", EVERY)
sparse = pytest.mark.parametrize("name", SPARSE)


def within(hits: int, draws: int, rate: float) -> bool:
    """A count of hits that lies inside the binomial interval of 1 in 10,000."""
    return abs(hits - draws * rate) <= 3.9 * np.sqrt(draws * rate * (1 - rate)) + 1e-9


def selected(objective: Masking, rows: Rows) -> Selected:
    return objective.select(objective.framed(rows, toy()))


def hidden(objective: Masking, rows: Rows) -> np.ndarray:
    """(N,) bool: the tokens of the texts, without their specials, that are to be predicted."""
    framed = objective.framed(rows, toy())
    out = np.zeros(len(framed.tokens), bool)
    out[objective.select(framed).at] = True
    return out[(framed.place > 0) & (framed.place <= np.repeat(rows.lengths, framed.lengths))]


def uniform_words(texts_drawn: int, n: int, length: int = 1) -> Rows:
    """Texts of n words of `length` tokens, all the same token."""
    rows = texts([n * length] * texts_drawn)
    return replace(rows, tokens=np.full_like(rows.tokens, 7), word=rows.place % length == 0)


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
    piece, key = order.piece(index), order.keys(index)
    assert all(len(set(key[piece == p].tolist())) == 4 for p in range(order.size if isinstance(order, Order) else 8))
    mine = key[piece == 2].tolist()
    assert mine[:12] == mine[:4] * 3 or isinstance(order, Mixture)  # whose blocks shuffle the epochs of a source
    always = replace(order, recurs=0)
    assert len(set(always.keys(index).tolist())) == 500 and (always.keys(index)[:7] == key[:7]).all()


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


# ---------------------------------------------------------------- spans


def spans_of(objective: Masked, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """(G,) where spans begin and how many tokens they have."""
    found = selected(objective, rows)
    return found.first, np.bincount(found.span)


@pytest.mark.parametrize(
    ("objective", "mean"), [(Masked.albert(), 18 / 11), (Masked.spanbert(), 3.797), (REGISTRY.preset("gpt_bert"), 2.0)]
)
def test_span_lengths_follow_their_law(objective: Masked, mean: float) -> None:
    _, length = spans_of(objective, uniform_words(20, 5000))
    share = law(objective.span_lengths, objective.max_span, objective.span_p)
    assert length.max() == objective.max_span and length.mean() == pytest.approx(mean, rel=0.03)
    drawn = np.bincount(length, minlength=objective.max_span + 1)[1:] / len(length)
    assert drawn == pytest.approx(share, abs=0.015)
    # Of 1/n a third of a third: n-grams of 1, 2 and 3 words stand as 6 : 3 : 2.
    if objective.span_lengths == "harmonic":
        assert share * 11 == pytest.approx([6, 3, 2])


@pytest.mark.parametrize("rate", [0.15, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("lengths", ["uniform", "harmonic", "geometric"])
def test_the_budget_is_exact_in_words_and_no_spans_touch_while_there_is_room(rate: float, lengths: str) -> None:
    objective = Masked(unit="word", span_lengths=lengths, mask_rate=rate)
    for n in (1, 2, 3, 7, 20, 100):
        rows = uniform_words(200, n, 2)
        found = hidden(objective, rows).reshape(200, n, 2)
        assert (found[..., 0] == found[..., 1]).all()
        assert (found[..., 0].sum(1) == min(max(round(rate * n), 1), n)).all()
        first, length = spans_of(objective, rows)
        assert length.max() <= 2 * objective.max_span
        touching = first[1:] == (first + length)[:-1]
        if round(rate * n) <= n - round(rate * n):
            assert not touching.any()
        if rate == 1.0 and n == 100:
            assert touching.any() and len(first) > 200  # they stay apart in name


def test_spans_have_one_fate_and_touching_ones_their_own() -> None:
    rows = uniform_words(200, 100)
    objective = Masked(unit="word", span_lengths="uniform", max_span=3, fate="span", mask_rate=1.0, random_share=0.0)
    found = selected(objective, rows)
    masked = objective(rows, toy()).stream.tokens[found.at] == MASK
    share = np.bincount(found.span, masked) / np.bincount(found.span)
    assert set(share) == {0.0, 1.0} and within(int(share.sum()), len(share), 0.8)
    same = found.first[1:] == found.first[:-1] + np.bincount(found.span)[:-1]
    joint = (share[1:] == 1) & (share[:-1] == 1)
    assert within(int(joint[same].sum()), int(same.sum()), 0.64)


def test_a_span_that_is_cut_by_a_special_token_is_two() -> None:
    rows = uniform_words(50, 60)
    rows = replace(rows, fixed=rows.place % 4 == 3)
    found = selected(Masked.spanbert(), rows)
    assert (np.diff(found.at)[np.diff(found.span) == 0] == 1).all() and np.bincount(found.span).max() == 3


# ---------------------------------------------------------------- the boundary objective


def test_boundary_targets_read_the_two_tokens_just_outside() -> None:
    rows, objective = marked(texts([120] * 40)), Masked.spanbert()
    e, found = objective(rows, toy()), selected(objective, rows)
    t = e.targets["sbo"]
    assert objective.heads()[1].arity == 2 and objective.heads()[1].extra == 20 and t.index.shape == (len(t.value), 2)
    size = np.bincount(found.span)[found.span]
    offset = found.at - found.first[found.span]
    told = offset < 20
    want = np.stack([found.first[found.span] - 1, found.first[found.span] + size], 1)
    assert (t.index == want[told]).all() and (t.extra == offset[told]).all()
    assert (t.value == e.targets["lm"].value[told]).all()
    assert not np.isin(t.index, found.at).any()  # observed tokens, of the same text
    owner = np.searchsorted(e.stream.start, t.index, "right")
    assert (owner[:, 0] == owner[:, 1]).all()


def test_boundary_offsets_beyond_the_table_have_no_target() -> None:
    e = Masked(unit="word", span_lengths="geometric", boundary_offsets=3)(uniform_words(20, 200), toy())
    assert set(e.targets["sbo"].extra.tolist()) == {0, 1, 2}
    assert len(e.targets["sbo"].value) < len(e.targets["lm"].value) == 20 * 30


def test_both_heads_of_spanbert_learn_together() -> None:
    rng = np.random.default_rng(0)
    lists = [rng.integers(5, 45, n) for n in rng.integers(8, 13, 64)]
    rows, objective = Rows.of(lists), Masked.spanbert().model_copy(update={"mask_rate": 0.3})
    rows = replace(rows, word=np.ones(len(rows.tokens), bool))
    batch = collate({"x": objective(rows, toy())}, {"x": objective.heads()}, shape=Shape(16)).map(torch.from_numpy)
    config = ModelConfig(vocab_size=100, hidden_size=64, num_layers=2, num_heads=4, max_position=16)
    model = Transformer(config, objective.heads(), seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98))
    losses = []
    for _ in range(150):
        terms = forward_heads({"model": model}, batch)
        values = [terms["x", name].sum / terms["x", name].norm for name in ("lm", "sbo")]
        losses.append([v.item() for v in values])
        if max(losses[-1]) < 1.8:
            break
        optimizer.zero_grad()
        sum(values).backward()
        optimizer.step()
    assert min(losses[0]) > 3.5 and max(losses[-1]) < 1.8, losses[::15]


# ---------------------------------------------------------------- annotated spans


def test_ernie_goes_from_tokens_over_words_to_entities() -> None:
    rows = marked(texts([100] * 100))
    objective = Ernie()
    number = np.cumsum(rows.word) - 1
    inside = np.zeros(len(rows.tokens), int)
    for k, (a, b) in enumerate(rows.spans):
        inside[a:b] = k + 1
    whole = {}
    for progress, stage in (
        (0.0, "basic"),
        (0.33, "basic"),
        (0.34, "phrase"),
        (0.66, "phrase"),
        (0.67, "entity"),
        (1, "entity"),
    ):
        found = hidden(objective, replace(rows, progress=progress))
        assert objective.stage(progress) == stage and found.mean() == pytest.approx(0.15, abs=0.01)
        words_whole = set(np.bincount(number, found) / np.bincount(number)) == {0.0, 1.0}
        share = (np.bincount(inside, found) / np.maximum(np.bincount(inside), 1))[1:]
        whole[stage] = (words_whole, set(share) == {0.0, 1.0})
        if stage == "entity":  # entities as often as words
            assert within(int(share.sum()), len(share), 0.15)
    assert whole == {"basic": (False, False), "phrase": (True, False), "entity": (False, True)}


def test_units_of_the_entity_stage_are_spans_and_the_words_between() -> None:
    word, spans = np.array([1, 0, 1, 0, 0, 1, 1], bool), np.array([[1, 3], [5, 6]])
    found = phrases(Rows.of([[7] * 7], word=word, spans=spans))
    assert found.begin.tolist() == [0, 1, 3, 5, 6] and found.length.tolist() == [1, 2, 2, 1, 1]
    fixed = np.array([0, 0, 1, 0, 0, 0, 0], bool)
    assert annotated(Rows.of([[7] * 7], spans=spans, fixed=fixed)).begin.tolist() == [5]


def test_only_annotated_spans_are_salient_and_each_as_often() -> None:
    spans = np.array([[2, 4], [7, 8], [10, 15]])
    count = 3000
    rows = texts([20] * count + [5] * 10)
    where = (np.arange(count)[:, None, None] * 20 + spans).reshape(-1, 2)
    rows = replace(rows, spans=where)
    found = selected(SalientSpans.realm(), rows)
    begin = found.first - 2 * np.searchsorted(rows.start, found.first - 1 - 2 * (found.first // 22), "right") + 1
    assert len(found.first) == count and begin.max() < 20 * count
    drawn = np.bincount(begin % 20, minlength=20)
    assert all(within(int(drawn[a]), count, 1 / 3) for a, _ in spans) and drawn.sum() == drawn[[2, 7, 10]].sum()
    e = SalientSpans(max_spans=2)(rows, toy())
    assert (e.stream.tokens[e.targets["lm"].index] == MASK).all()
    assert (np.bincount(selected(SalientSpans(max_spans=2), rows).first // 22, minlength=count)[:count] == 2).all()
    assert len(selected(SalientSpans(max_spans=9), rows).at) == count * 8


# ---------------------------------------------------------------- shifted, and its hybrid


def test_shifted_targets_are_the_masked_ones_one_to_the_left() -> None:
    rows = marked(texts(LENGTHS))
    for more in ({}, {"unit": "word"}, {"span_lengths": "uniform", "mask_rate": 0.3, "fate": "span"}):
        a, b = Masked(**more)(rows, toy()), ShiftedMasked(**more)(rows, toy())
        assert (a.stream.tokens == b.stream.tokens).all()
        s, t = a.targets["lm"], b.targets["lm"]
        assert (s.index == t.index + 1).all() and (s.value == t.value).all()
    assert ShiftedMasked().heads() == Causal().heads()


@pytest.mark.parametrize("share", [0.0, 1 / 16, 0.25, 0.5, 0.7, 1.0])
def test_samples_in_a_row_hold_their_share_of_causal_ones(share: float) -> None:
    causal = ShiftedMasked(causal_share=share).is_causal(np.arange(3200))
    assert abs(causal.reshape(-1, 16).sum(1) - 16 * share).max() < 1
    assert abs(np.cumsum(causal)[15::16] - 16 * share * np.arange(1, 201)).max() < 1
    for step in (2, 3, 16, 21):  # every n-th sample is as fair
        part = causal[::step]
        assert within(int(part.sum()), len(part), share)
    if share == 0.5:
        assert len({tuple(row) for row in causal.reshape(-1, 16).tolist()}) > 150


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_causal_texts_of_the_hybrid_are_the_causal_objective_s(share: float) -> None:
    rows, objective = marked(texts(LENGTHS * 3)), ShiftedMasked(causal_share=share, unit="word")
    causal = objective.is_causal(rows.index)
    e = objective(rows, toy())
    assert e.stream.pattern == ("causal" if share == 1 else "order") and 0 < causal.sum() <= len(causal)
    masked = examples(ShiftedMasked(unit="word")(rows, toy()))
    for a, b, m, is_causal in zip(examples(e), examples(Causal()(rows, toy())), masked, causal, strict=True):
        if not is_causal:
            assert a == m
            continue
        n = len(b.value)
        assert (a.index, a.value) == (b.index, b.value)
        assert a.stream["tokens"][:n] == b.stream["tokens"]
        s = {k: np.array(v) for k, v in a.stream.items()}
        seen = visible(s["block"], s["horizon"], s["block"], s["reveal"])
        assert (seen == np.tril(np.ones_like(seen))).all()


def test_the_hybrid_keeps_its_ratio_inside_a_batch_under_one_head() -> None:
    class Text:
        tokens = np.random.default_rng(0).integers(5, 90, 4000).astype(np.int32)
        documents = np.arange(0, 4001, 40)

    objective = ShiftedMasked(causal_share=0.25)
    loader = Loader(Text(), objective, toy(), Shape(42), rows=16, seed=0)
    counts = []
    for step in range(32):
        (batch,) = loader(step)
        assert set(batch.heads) == {("shifted_masked", "lm")} and len(batch.stream.tokens) == 16
        counts.append(int((batch.stream.reveal.max(1) > 0).sum()))
    assert sum(counts) == 32 * 4 and max(counts) <= 10


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
