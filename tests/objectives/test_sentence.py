"""Sentence pairs: exactly half real, whole or cut as said, their lengths known beforehand, nothing told by accident."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from unmask import keyed
from unmask.batch import Head, Rows, starts
from unmask.config import ModelConfig
from unmask.data.collate import collate, pack
from unmask.data.loader import Loader
from unmask.data.marks import Bits
from unmask.errors import UserError
from unmask.loss import forward_heads
from unmask.model.bundle import export_own
from unmask.model.interop import export_hf
from unmask.model.transformer import Transformer
from unmask.objectives import FullSentences, Masked, NextSentence, SentenceOrder
from unmask.objectives.base import Shape, outline
from unmask.objectives.pairs import balanced
from unmask.objectives.sentence import SentencePair

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


def ruled(rows: Rows, every: int = 3) -> Rows:
    """The texts in sentences of so many tokens, and partners alike, of the lengths of the texts before them."""
    key = keyed.absorb(rows.key, keyed.purpose("ruled"))
    other = take(texts(rows.lengths.tolist(), seed=7), np.roll(np.arange(len(rows.lengths)), 1))
    other = replace(other, sentence=other.place % every == 0, key=key, index=rows.index)
    return replace(rows, sentence=rows.place % every == 0, partner=other)


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
        if objective.cut == "pairs":  # two sentences each, none longer than half of the room
            rows = ruled(texts(lengths), every=room // 2) if room % 2 == 0 else ruled(texts(lengths[:1]), every=1)
        assert (objective.sizes(outline(rows)).stream <= context).all()
    assert objective.room(Shape(128)) == 125


def test_o08_two_texts_of_600_tokens_in_a_context_of_128() -> None:
    # The loader cuts a text at the room; both segments keep a token or more.
    rows = ruled(texts([125] * 200), every=9)
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
        met.add(said)
        if said is None:
            assert a == text and not b
            continue
        assert a and b
        if isinstance(objective, SentenceOrder):
            assert (a + b, b + a)[said] == text
            cut = len((a, b)[said])
            assert objective.boundary == "token" or cut in starts_own[i]
            continue
        edges, theirs = ({*s, len(t)} for s, t in ((starts_own[i], text), (starts_other[i], other[i])))
        if objective.boundary == "token":
            edges, theirs = set(range(len(text) + 1)), set(range(len(other[i]) + 1))
        cut = len(a)
        assert a == text[:cut] and cut in edges
        if cut == len(text):
            assert name == "next-bert" and said == 1 and len(edges) == 2
        if said:
            found = [k for k in range(1, len(other[i])) if other[i][k : k + len(b)] == b]
            assert any(k in theirs and k + len(b) in theirs for k in found)
        else:
            assert b == text[cut : cut + len(b)] and cut + len(b) in edges
    assert met == {None, 0, 1}


@dataclass(frozen=True)
class Side:
    """Tokens, documents and where sentences start, as shards hold them."""

    tokens: np.ndarray
    documents: np.ndarray
    sentence: Bits
    word: None = None
    spans: None = None
    target: None = None

    def loader(self, objective: SentencePair, context: int) -> Loader:
        return Loader(self, objective, VOCABULARY, Shape(context), rows=4, seed=0, kept=self)


def corpus(documents: int, ends: bool = True) -> Side:
    """Documents of 1 to 40 sentences of 3 to 40 tokens, which open and stop with tokens of their own.

    ends: documents open and stop otherwise than sentences inside do.
    """
    rng = np.random.default_rng(0)
    count = rng.integers(1, 41, documents)
    size = 2 + np.minimum(rng.geometric(0.12, count.sum()), 38)
    begin, head = starts(size), starts(count)
    tokens = rng.integers(120, 299, begin[-1])
    tokens[begin[:-1]], tokens[begin[1:] - 1] = rng.integers(100, 105, len(size)), rng.integers(110, 113, len(size))
    if ends:
        tokens[begin[head[:-1]]], tokens[begin[head[1:]] - 1] = 300, 310
    flags = np.isin(np.arange(begin[-1]), begin)
    return Side(tokens.astype(np.uint16), begin[head], Bits(np.packbits(flags, bitorder="little"), len(flags)))


def asked(objective: SentencePair, side: Side, context: int) -> tuple[dict[str, np.ndarray], float]:
    """What is simple to see of the pairs of an epoch (one number a pair), their labels as `label`; share of asked."""
    loader = side.loader(objective, context)
    index = np.arange(len(loader.pieces))
    piece, key = loader.order.find(index)
    rows = loader._read(piece, key, index, 0.0)
    every, found = rows.tokens, objective.segments(outline(rows))
    if loader.partners is not None:
        rows = replace(rows, partner=loader._read(*loader.partners(piece, key), index, 0.0))
        assert rows.partner is not None
        every, found = np.concatenate([every, rows.partner.tokens]), objective.segments(outline(rows))
    assert (found.length.sum(1) + 3 <= context).all()
    begin, length = found.begin[found.paired], found.length[found.paired]
    first, last = every[begin], every[begin + length - 1]
    a, b = length.T
    seen = {
        "last": np.where(last == 310, 2, np.where(last < 120, 1, 0)) @ [3, 1],
        "first": np.where(first == 300, 2, np.where(first < 110, 1, 0)) @ [3, 1],
        "last of both": last @ [1000, 1],
        "first of both": first @ [1000, 1],
        "a": a,
        "b": b,
        "sum": a + b,
        "difference": a - b,
        "which is longer": np.sign(a - b),
        "both": a // 8 * 100 + b // 8,
        "label": found.label[found.paired],
    }
    return seen, float(found.paired.mean())


TELL = [
    ("next", NextSentence(), (0.84, 0.9)),
    ("next-token", NextSentence(boundary="token"), (0.98, 0.98)),
    ("next-sentences", NextSentence.sentence_pair(), (0.65, 0.88)),
    ("next-short", NextSentence(short_share=0.3), (0.74, 0.85)),
    ("order", SentenceOrder(), (0.75, 0.88)),
]
"""With the least share of texts that are asked in contexts of 64 and of 160, some 6 and 15 sentences of 10."""


@pytest.mark.parametrize("context", [64, 160])
@pytest.mark.parametrize(("name", "objective", "least"), TELL, ids=[name for name, *_ in TELL])
def test_nothing_simple_tells_the_label(
    name: str, objective: SentencePair, least: tuple[float, float], context: int
) -> None:
    """A table fitted on half of the pairs does not beat chance on the other half, by lengths, first or last tokens.

    Of sentence order, a document's own first and last words do tell, so there are none here. Six sentences do not
    always have cuts of equal lengths: there both together tell a little.
    """
    seen, share = asked(objective, corpus(5000, ends=name != "order"), context)
    assert share > least[context == 160]
    y = seen.pop("label")
    half = np.random.default_rng(1).random(len(y)) < 0.5
    for what, x in seen.items():
        value, nth = np.unique(x, return_inverse=True)
        balance = np.bincount(nth[half], 2.0 * y[half] - 1, len(value))
        right = ((balance[nth] > 0) == y)[~half].mean()
        few = 0.02 if context == 64 and what in ("sum", "difference", "both") and objective.cut == "sentences" else 0.0
        assert abs(right - 0.5) < few + 3 * np.sqrt(0.25 / (~half).sum()), (what, right)


@pytest.mark.parametrize("objective", [NextSentence(), NextSentence.sentence_pair(), NextSentence.bert_nsp()])
def test_both_segments_are_whole_sentences_under_either_label(objective: NextSentence) -> None:
    seen, _ = asked(objective, corpus(300), 64)
    # Bit 1 of `last` and `first` together: a stop, an opening, of a sentence (1) or of a document (2).
    for what in ("last", "first"):
        kinds = {k for v in np.unique(seen[what]).tolist() for k in divmod(v, 3)}
        assert kinds <= {1, 2}, what


def test_a_sentence_pair_is_two_whole_sentences() -> None:
    side = corpus(300)
    loader = side.loader(NextSentence.sentence_pair(), 64)
    index = np.arange(3000)
    piece, key = loader.order.find(index)
    rows = loader._read(piece, key, index, 0.0)
    rows = replace(rows, partner=loader._read(*loader.partners(piece, key), index, 0.0))  # type: ignore[misc]
    assert rows.partner is not None
    own, other = split(rows), split(rows.partner)
    mine, theirs = begins(rows), begins(rows.partner)
    questions = 0
    for i, one in enumerate(each(NextSentence.sentence_pair()(rows, VOCABULARY))):
        a, b = parts(one)
        if label(one) is None:
            assert a == own[i] and 1 in (len(mine[i]), len(theirs[i]))
            continue
        assert mine[i] == {0, len(a)} and a == own[i][: len(a)]
        assert b == (own[i][len(a) :] if label(one) == 0 else other[i][max(theirs[i]) :])
        questions += 1
    assert questions > 2000


@pytest.mark.parametrize("objective", [NextSentence(), SentenceOrder(), NextSentence(boundary="token")])
def test_exactly_half_are_real_in_any_aligned_stretch(objective: SentencePair) -> None:
    rows = ruled(texts([12] * 2000))
    said = np.array([label(one) for one in each(objective(rows, VOCABULARY))])
    assert said.reshape(-1, 2).sum(1).tolist() == [1] * 1000
    assert abs(said[::2].mean() - 0.5) < 0.05  # which of two is drawn
    assert not np.array_equal(balanced(np.arange(100)), balanced(np.arange(100) + 2))


def test_bert_s_bias_is_an_option() -> None:
    rows = ruled(texts([12, 15, 20] * 1000))
    one = replace(rows, sentence=rows.place == 0)
    plain = NextSentence().segments(outline(one))
    biased = NextSentence(one_sentence="random").segments(outline(one))
    assert not plain.paired.any() and (plain.length[:, 1] == 0).all()
    # A is the sentence and B an end of the partner that fits behind it, if one does.
    assert biased.paired.any() and (biased.label == 1)[biased.paired].all()
    total, room = biased.length.sum(1), np.maximum(rows.lengths, np.roll(rows.lengths, 1))
    assert (biased.length[:, 0] == rows.lengths).all() and (total <= room).all()
    assert (biased.paired == (room - rows.lengths >= 3)).all()
    mixed = replace(rows, sentence=rows.sentence & (np.repeat(rows.index % 3 > 0, rows.lengths) | (rows.place == 0)))
    found = NextSentence(one_sentence="random").segments(outline(mixed))
    assert 0.5 < found.label[found.paired].mean() < 0.7
    with pytest.raises(ValueError, match="one_sentence=random is about texts cut between sentences"):
        NextSentence(one_sentence="random", boundary="token")


def test_a_tenth_is_short_on_request() -> None:
    rows = ruled(texts([50] * 4000), every=5)
    for boundary, at, least in (("token", 1, 2), ("sentence", 5, 10)):
        objective = NextSentence(short_share=0.1, boundary=boundary)  # type: ignore[arg-type]
        found = objective.segments(outline(rows))
        short = found.length.sum(1)
        drawn_short = short < 50
        assert found.paired.all() and (short % at == 0).all() and short.min() == least
        # Of the lengths 2 … 50 those below 50, each as likely; of whole sentences those that fit, or two.
        assert abs(drawn_short.mean() - 0.1 * 48 / 49) < 0.015
        expected = np.maximum(np.arange(2, 50) // at * at, least)
        told = np.array([(expected < k).mean() for k in (20, 30, 40)])
        assert np.abs(told - [(short[drawn_short] < k).mean() for k in (20, 30, 40)]).max() < 0.08


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
    rows = ruled(texts([12] * 20))
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
    assert NextSentence().cut == SentenceOrder().cut == "sentences" and NextSentence.sentence_pair().cut == "pairs"
    assert NextSentence(boundary="token").cut == SentenceOrder(boundary="token").cut == "tokens"
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


@pytest.mark.parametrize("name", OBJECTIVES)
def test_masks_that_recur_do_so_inside_too(name: str) -> None:
    objective = type(OBJECTIVES[name]).model_validate({"masking": {"duplicates": 3}})
    assert objective.recurs == 3 and OBJECTIVES[name].recurs == OBJECTIVES[name].masking.recurs  # type: ignore[attr-defined]
    side = corpus(20)
    loader = Loader(side, objective, VOCABULARY, Shape(64), rows=4, seed=0, kept=side)
    pieces = len(loader.pieces)
    found = [loader.order.find(np.arange(k * pieces, (k + 1) * pieces)) for k in (0, 1, 3)]
    first, second, fourth = (key[np.argsort(piece)].tolist() for piece, key in found)
    assert first == fourth != second


# ---------------------------------------------------------------- learning


@pytest.mark.parametrize("name", ["next", "order"])
def test_overfits_64_pairs_to_half_of_ln_2(name: str) -> None:
    rng = np.random.default_rng(0)
    objective = OBJECTIVES[name]
    rows = ruled(Rows.of([rng.integers(5, 45, n) for n in rng.integers(6, 13, 64)]), every=2)
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


def test_a_run_says_how_many_texts_have_a_question() -> None:
    """In contexts of two or three sentences most pairs of texts have no cuts that match: it is no silent loss."""
    side = corpus(300)
    (said,) = side.loader(NextSentence(), 24).notes
    asked, texts = map(int, re.findall(r"^(\d+) of the (\d+) texts .* head nsp: ", said)[0])
    assert asked < 0.9 * texts and side.loader(NextSentence(), 160).notes == []
