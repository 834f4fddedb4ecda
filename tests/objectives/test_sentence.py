"""Sentence pairs: exactly half real, whole or cut as said, their lengths known beforehand, nothing told by accident."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from unmask import keyed
from unmask.batch import Head, Rows
from unmask.config import ModelConfig
from unmask.data.collate import collate, pack
from unmask.errors import UserError
from unmask.loss import forward_heads
from unmask.model.bundle import export_own
from unmask.model.interop import export_hf
from unmask.model.transformer import Transformer
from unmask.objectives import FullSentences, Masked, NextSentence, SentenceOrder
from unmask.objectives.base import Shape, outline
from unmask.objectives.sentence import SentencePair, balanced, drawn

from .cases import VOCABULARY, changed, take, texts
from .cases_sentence import OBJECTIVES, One, dressed, each

CLS, SEP = 2, 3
BERT = {
    "norm": "layer",
    "norm_position": "post",
    "norm_bias": True,
    "embedding_norm": True,
    "final_norm": False,
    "positions": "learned",
    "activation": "gelu",
    "attention_bias": True,
    "mlp_bias": True,
    "head_transform": True,
    "head_bias": True,
}
LENGTHS = [7, 1, 33, 0, 2, 64, 3, 12, 5, 40, 1, 90]
every = pytest.mark.parametrize("name", OBJECTIVES)
pairs = pytest.mark.parametrize("name", [n for n, o in OBJECTIVES.items() if isinstance(o, SentencePair)])


def parts(one: One) -> tuple[list[int], list[int]]:
    """A and B as they stood before the masks."""
    tokens = one.stream["tokens"].copy()
    for i, v in zip(*one.targets["lm"], strict=True):
        tokens[i] = v
    types = one.stream["token_type"]
    cut = len(types) - sum(types)
    assert types == [0] * cut + [1] * (len(types) - cut)
    assert tokens[0] == CLS and tokens[cut - 1] == SEP == tokens[-1]
    assert not {0, cut - 1, len(tokens) - 1} & set(one.targets["lm"][0])
    return tokens[1 : cut - 1], tokens[cut:-1]


def label(one: One) -> int | None:
    (name,) = set(one.targets) - {"lm"}
    index, value = one.targets[name]
    assert index in ([], [0])
    return value[0] if value else None


def split(rows: Rows) -> list[list[int]]:
    return [x.tolist() for x in np.split(rows.tokens, rows.start[1:-1])]


def begins(rows: Rows) -> list[set[int]]:
    """Where sentences start in each text."""
    assert rows.sentence is not None
    return [set(np.flatnonzero(x).tolist()) for x in np.split(rows.sentence, rows.start[1:-1])]


# ---------------------------------------------------------------- what the suite asks, with sentences and partners


@every
def test_a_ragged_batch_is_its_rows_alone(name: str) -> None:
    objective, rows = OBJECTIVES[name], texts(LENGTHS)
    whole = each(objective(dressed(rows), VOCABULARY))
    for part in np.array_split(np.random.default_rng(0).permutation(len(LENGTHS)), 5):
        assert each(objective(dressed(take(rows, part)), VOCABULARY)) == [whole[i] for i in part]


@every
def test_sizes_are_known_without_the_text(name: str) -> None:
    rows = dressed(texts(LENGTHS * 20))
    e, sizes = OBJECTIVES[name](rows, VOCABULARY), OBJECTIVES[name].sizes(outline(rows))
    assert np.diff(e.stream.start).tolist() == sizes.stream.tolist()
    assert (e.stream.horizon == 0).all() and (e.stream.reveal == 0).all() and (e.stream.block == 1).all()
    bare = texts(LENGTHS)  # neither sentences nor a partner: still what the loader may ask for
    assert (OBJECTIVES[name].sizes(outline(bare)).stream >= 2).all()


@every
def test_no_texts_are_no_crash(name: str) -> None:
    for lengths in ([], [0], [0, 0, 0], [1], [1, 0, 1]):
        e = OBJECTIVES[name](dressed(texts(lengths)), VOCABULARY)
        assert len(e.stream.start) == len(lengths) + 1


@pairs
def test_o08_every_pair_fits_whatever_its_partner(name: str) -> None:
    objective = OBJECTIVES[name]
    for context in (5, 8, 13, 64):
        room = objective.room(Shape(context))
        lengths = np.arange(2, room + 1).tolist() * 40
        rows = dressed(texts(lengths), most=room)
        assert (objective.sizes(outline(rows)).stream <= context).all()
    assert objective.room(Shape(128)) == 125


def test_o08_two_texts_of_600_tokens_in_a_context_of_128() -> None:
    # The loader cuts a text at the room; both segments keep a token or more.
    rows = dressed(texts([125] * 200), most=125)
    for one in each(NextSentence()(rows, VOCABULARY)):
        a, b = parts(one)
        assert a and b and len(a) + len(b) + 3 <= 128


# ---------------------------------------------------------------- what a pair is


@pairs
def test_both_segments_come_from_where_they_should(name: str) -> None:
    objective, rows = OBJECTIVES[name], dressed(texts(LENGTHS * 30))
    own, other = split(rows), split(rows.partner)
    starts_own, starts_other = begins(rows), begins(rows.partner)
    met = set()
    for i, one in enumerate(each(objective(rows, VOCABULARY))):
        text, (a, b), said = own[i], parts(one), label(one)
        if len(text) < 2:
            assert said is None and a == text and not b
            continue
        assert a and b and said is not None
        if isinstance(objective, SentenceOrder):
            assert (a + b, b + a)[said] == text
            cut = len((a, b)[said])
        else:
            cut = len(a)
            assert a == text[:cut]
            met.add((said, b == text[cut : cut + len(b)]))
            if said:
                found = [k for k in range(len(other[i])) if other[i][k : k + len(b)] == b]
                assert found and (objective.boundary == "token" or set(found) & starts_other[i])
            else:
                assert b == text[cut : cut + len(b)]
        if objective.boundary == "sentence" and len(starts_own[i]) > 1 and name != "next-bert":
            assert cut in starts_own[i]
    if isinstance(objective, NextSentence):
        assert {(0, True), (1, False)} <= met


def test_a_sentence_pair_is_two_whole_sentences() -> None:
    rows = dressed(texts([20] * 400), rate=0.0)
    two = replace(rows, sentence=(rows.place == 0) | (rows.place == 8))
    assert rows.partner is not None
    lengths = rows.partner.lengths
    middle = np.repeat(lengths // 2, lengths)
    place = rows.partner.place
    two = replace(two, partner=replace(rows.partner, sentence=(place == 0) | (place == middle)))
    for one, n, theirs in zip(
        each(NextSentence.sentence_pair()(two, VOCABULARY)), lengths.tolist(), split(rows.partner), strict=True
    ):
        a, b = parts(one)
        assert len(a) == 8
        if label(one) == 0:
            assert len(b) == 12
        else:
            sentences = [s for s in (theirs[: n // 2], theirs[n // 2 :]) if s]
            assert b in sentences or any(s[: len(b)] == b and len(b) == max(20, n) - 8 for s in sentences)


@pytest.mark.parametrize("objective", [NextSentence(), SentenceOrder(), NextSentence(boundary="token")])
def test_exactly_half_are_real_in_any_aligned_stretch(objective: SentencePair) -> None:
    rows = dressed(texts([12] * 2000))
    said = np.array([label(one) for one in each(objective(rows, VOCABULARY))])
    assert said.reshape(-1, 2).sum(1).tolist() == [1] * 1000
    assert abs(said[::2].mean() - 0.5) < 0.05  # which of two is drawn
    assert not np.array_equal(balanced(np.arange(100)), balanced(np.arange(100) + 2))


def test_bert_s_bias_is_an_option() -> None:
    rows = dressed(texts([12] * 2000))
    one = replace(rows, sentence=rows.place == 0)
    plain = NextSentence(one_sentence="token").segments(outline(one))
    biased = NextSentence(one_sentence="random").segments(outline(one))
    assert plain.label.mean() == 0.5 and biased.label.mean() == 1.0
    mixed = NextSentence(one_sentence="random").segments(outline(rows))
    assert 0.5 < mixed.label.mean() < 0.65
    assert mixed.paired.all() and (mixed.length > 0).all()


def test_a_tenth_is_short_on_request() -> None:
    rows = dressed(texts([50] * 4000), most=1000)
    short = NextSentence(short_share=0.1).segments(outline(rows)).length.sum(1)
    whole = NextSentence().segments(outline(rows)).length.sum(1)
    drawn_short = short < whole
    assert abs(drawn_short.mean() - 0.1 * 48 / 49) < 0.02 and short.min() >= 2
    assert np.abs(np.histogram(short[drawn_short], bins=4, range=(2, 50))[0] / drawn_short.sum() - 0.25).max() < 0.08


@pytest.mark.parametrize("name", ["next", "next-token"])
def test_lengths_do_not_tell_the_label(name: str) -> None:
    # The same text with the same key, at an index that says real and at one that says random.
    rows = dressed(texts([30] * 300), most=60)
    flipped = replace(rows, index=rows.index ^ 1)
    a, b = (OBJECTIVES[name].segments(outline(r)) for r in (rows, flipped))  # type: ignore[attr-defined]
    assert (a.label == 1 - b.label).all() and (a.length == b.length).all()


def test_a_drawn_start_is_even() -> None:
    n = 6000
    eligible = np.tile([False, True, False, True, True, False], n)
    at, some = drawn(eligible, np.arange(n + 1) * 6, keyed.row_keys(0, 0, np.arange(n)))
    assert some.all() and set(at.tolist()) == {1, 3, 4}
    assert all(abs((at == k).mean() - 1 / 3) < 0.03 for k in (1, 3, 4))


# ---------------------------------------------------------------- masks, leaks, names


@pairs
def test_masks_have_the_rate_in_both_segments_and_spare_specials(name: str) -> None:
    rows = dressed(texts([60] * 1500, ends=True), most=120)
    objective = OBJECTIVES[name]
    hits, room = np.zeros(2), np.zeros(2)
    for one in each(objective(rows, VOCABULARY)):
        a, b = parts(one)
        types = np.array(one.stream["token_type"])
        at = np.array(one.targets["lm"][0], int)
        hits += [(types[at] == 0).sum(), (types[at] == 1).sum()]
        room += [len(a), len(b)]
    rate = 0.4 if "0.4" in name else 0.15
    assert np.abs(hits / room - rate).max() < 0.012


@pairs
def test_no_leak_from_the_text_or_the_partner(name: str) -> None:
    """Another word at a target changes nothing but that target, or a token that is kept by design."""
    objective, rows = OBJECTIVES[name], dressed(texts([14, 9, 2, 1], ends=True))
    before, seen = each(objective(rows, VOCABULARY)), 0
    assert rows.partner is not None
    for at in range(len(rows.tokens) + len(rows.partner.tokens)):
        n = len(rows.tokens)
        other = changed(rows, at) if at < n else replace(rows, partner=changed(rows.partner, at - n))
        for a, b in zip(before, each(objective(other, VOCABULARY)), strict=True):
            assert {k: v for k, v in a.stream.items() if k != "tokens"} == {
                k: v for k, v in b.stream.items() if k != "tokens"
            }
            assert a.targets.keys() == b.targets.keys() and label(a) == label(b)
            (index, old), (also, new) = a.targets["lm"], b.targets["lm"]
            assert index == also
            differ = [i for i, (x, y) in enumerate(zip(a.stream["tokens"], b.stream["tokens"], strict=True)) if x != y]
            for k, q in enumerate(index):
                if old[k] != new[k]:
                    seen += 1
                    assert differ in ([], [q])
    assert seen > 3


def test_o07_classes_have_names_and_zero_is_the_real_one() -> None:
    assert NextSentence().heads()[-1] == Head("nsp", over="classes", size=2, names=("is_next", "not_next"))
    assert SentenceOrder().heads()[-1].names == ("in_order", "swapped")
    rows = dressed(texts([12] * 20))
    for one, text in zip(each(NextSentence()(rows, VOCABULARY)), split(rows), strict=True):
        a, b = parts(one)
        assert (a + b == text[: len(a + b)]) == (NextSentence.question.names[label(one) or 0] == "is_next")


@pytest.mark.parametrize("documents", ["joined", "apart"])
def test_full_sentences_mask_all_but_the_joints(documents: str) -> None:
    rows = texts([40] * 100)
    fixed = np.random.default_rng(0).random(len(rows.tokens)) < 0.1
    e = FullSentences(documents=documents, masking=Masked(mask_rate=1.0))(replace(rows, fixed=fixed), VOCABULARY)
    assert len(e.targets["lm"].index) == (~fixed).sum()


def test_settings_that_contradict_are_refused() -> None:
    with pytest.raises(ValueError, match="sentence_pair is about whole sentences"):
        NextSentence(input_format="sentence_pair", short_share=0.1)


def test_a_missing_partner_is_one_clear_sentence() -> None:
    with pytest.raises(UserError, match=r"next_sentence needs a second text beside each: fill Rows\.partner"):
        NextSentence()(texts([9]), VOCABULARY)


def test_needs_follow_the_settings() -> None:
    assert NextSentence().needs == {"sentence", "partner"} and NextSentence(boundary="token").needs == {"partner"}
    assert SentenceOrder().needs == {"sentence"} and SentenceOrder(boundary="token").needs == frozenset()
    assert NextSentence(masking=Masked.whole_word()).needs == {"sentence", "partner", "word"}
    assert NextSentence().cut == "tokens" and NextSentence.sentence_pair().cut == "pairs"
    assert FullSentences().cut == "joined" and FullSentences.doc_sentences().cut == "sentences"


def test_whole_words_are_masked_whole_in_both_segments() -> None:
    rows = dressed(texts([40] * 100), most=80)
    objective = NextSentence(masking=Masked(unit="word", mask_share=1.0, random_share=0.0, mask_rate=0.3))
    words = [  # the word of each token of each text, from marks alone
        np.cumsum(x) for r in (rows, rows.partner) for x in np.split(r.word, r.start[1:-1])
    ]
    second = 0
    for i, one in enumerate(each(objective(rows, VOCABULARY))):
        a, _ = parts(one)
        hidden = np.isin(np.arange(len(one.stream["tokens"])), one.targets["lm"][0])
        first_word = words[i][: len(a)]
        for w in np.unique(first_word):
            assert len(set(hidden[1 : 1 + len(a)][first_word == w].tolist())) == 1
        second += int(hidden[2 + len(a) :].sum())
    assert second > 100


# ---------------------------------------------------------------- learning


@pytest.mark.parametrize("name", ["next", "order"])
def test_overfits_64_pairs_to_half_of_ln_2(name: str) -> None:
    rng = np.random.default_rng(0)
    objective = OBJECTIVES[name]
    rows = dressed(Rows.of([rng.integers(5, 45, n) for n in rng.integers(6, 13, 64)]), most=12)
    shape = Shape(32)
    place = pack(objective.sizes(outline(rows)), shape)
    heads = objective.heads()
    batch = collate({"x": objective(rows, VOCABULARY)}, {"x": heads}, place, shape=shape)
    question = batch.targets["x", heads[-1].name]
    assert question.value[question.weight > 0].mean() == 0.5
    config = ModelConfig(
        vocab_size=110,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        max_position=64,
        visibility="bidirectional",
        token_types=2,
        pooler=True,
    )
    model = Transformer(config, heads, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    moved, loss = batch.map(torch.from_numpy), np.inf
    for _ in range(300):
        terms = forward_heads({"model": model}, moved)
        asked = terms["x", heads[-1].name]
        loss = float(asked.sum.detach()) / asked.norm
        if loss < np.log(2) / 2:
            break
        optimizer.zero_grad()
        sum((t.sum / t.norm for t in terms.values()), torch.zeros(())).backward()
        optimizer.step()
    assert loss < np.log(2) / 2


@pytest.mark.parametrize("family", ["bert", "unmask"])
def test_o07_an_export_names_its_classes(family: str, tmp_path: Path) -> None:
    model = Transformer(
        ModelConfig(
            family=family,
            vocab_size=60,
            hidden_size=16,
            num_layers=1,
            num_heads=2,
            max_position=32,
            visibility="bidirectional",
            token_types=2,
            pooler=True,
            **BERT,
        ),
        NextSentence().heads(),
        seed=0,
    )
    (export_hf if family == "bert" else export_own)(model, tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["id2label"] == {"0": "is_next", "1": "not_next"} and stored["label2id"]["not_next"] == 1
