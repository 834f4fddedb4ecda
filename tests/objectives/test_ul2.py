"""UL2's mixture: which denoiser, how much noise, and the mode tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from unmask.batch import Rows
from unmask.config import TokenizerConfig
from unmask.errors import UserError
from unmask.objectives import UL2, SpanCorruption
from unmask.objectives.base import Outline, Shape, outline
from unmask.objectives.show import Toy, toy
from unmask.objectives.ul2 import NAMES, SEVEN, Denoiser
from unmask.tokens.special import Vocabulary
from unmask.tokens.tokenizer import Tokenizer

from .cases import EOS, VOCABULARY, examples, joined, pair, texts
from .learn import learnt, sentences

MODES = [VOCABULARY.need(NAMES[m]) for m in "RSX"]


def many(n: int, count: int = 10_000) -> Rows:
    return texts([n] * count, ends=True)


# ---------------------------------------------------------------- the seven denoisers


def test_the_seven_denoisers_of_table_1() -> None:
    assert [(d.mode, d.mean_span, d.noise_density) for d in SEVEN if d.mode != "S"] == [
        ("R", 3, 0.15),
        ("R", 8, 0.15),
        ("X", 3, 0.5),
        ("X", 8, 0.5),
        ("X", 64, 0.15),
        ("X", 64, 0.5),
    ]
    assert UL2.ul2() == UL2() and UL2().denoisers == SEVEN and len(SEVEN) == 7 and SEVEN[2] == Denoiser(mode="S")


def test_o23_table_of_share_density_and_mean_span_against_the_settings() -> None:
    table = UL2().realised(outline(many(512)))
    assert [row.denoiser for row in table] == list(SEVEN)
    for row, d in zip(table, SEVEN, strict=True):
        assert row.share == pytest.approx(1 / 7, abs=0.001)
        if d.mode == "S":
            assert row.noise_density == pytest.approx(0.25, abs=0.01)
            assert row.mean_span == pytest.approx(0.25 * 512, rel=0.04)
        else:
            assert row.noise_density == pytest.approx(d.noise_density, abs=0.002)
            # 77 tokens in round(77 / 64) spans, 256 in round(256 / 8): whole spans of a whole number of tokens.
            spans = round(512 * d.noise_density / d.mean_span)
            assert row.mean_span == pytest.approx(round(512 * d.noise_density) / max(spans, 1))


def test_o23_what_comes_out_is_what_the_table_says() -> None:
    rows = many(200, 2100)
    objective = UL2()
    draw = objective.draw(outline(rows))
    for k, e in enumerate(examples(objective(rows, VOCABULARY))):
        source, target = pair(e)
        d = SEVEN[draw.denoiser[k]]
        assert source[0] == VOCABULARY.need(NAMES[d.mode])
        text, hidden = joined(source[1:], target, True)
        assert text == rows.tokens[200 * k : 200 * k + 200].tolist() and sum(hidden) == draw.noise[k]
        starts = np.diff(np.pad(np.array(hidden, int), 1))
        assert (starts == 1).sum() == draw.spans[k]
        if d.mode == "S":
            assert not any(hidden[: 200 - draw.noise[k]]) and all(hidden[200 - draw.noise[k] :])


@pytest.mark.parametrize(("which", "n"), [(0, 200), (1, 200), (3, 200), (4, 200), (5, 2000), (6, 2000)])
def test_rate_by_position_decile_of_each_span_denoiser(which: int, n: int) -> None:
    objective = UL2(denoisers=(SEVEN[which],))
    rows = many(n, 200_000 // n)
    draw = objective.draw(outline(rows))
    hidden = np.array([joined(pair(e)[0][1:], pair(e)[1], True)[1] for e in examples(objective(rows, VOCABULARY))])
    mean = draw.noise[0] / draw.spans[0]
    for part in np.array_split(hidden, 10, axis=1):
        # Tokens of one span hang together: at most as many independent draws as spans, or as texts.
        draws = part.size / min(mean, part.shape[1])
        rate = draw.noise[0] / n
        assert abs(part.mean() - rate) <= 3.9 * np.sqrt(rate * (1 - rate) / draws)


# ---------------------------------------------------------------- which one, by sample number


def test_shares_hold_in_any_run_of_samples_and_follow_the_weights() -> None:
    weights = (1, 2, 4)
    objective = UL2(denoisers=tuple(replace_weight(SEVEN[k], w) for k, w in zip((0, 2, 3), weights, strict=True)))
    for first, count in ((0, 70), (12_345, 70), (10**12, 700)):
        index = np.arange(first, first + count)
        of = Outline(np.full(count, 50), np.zeros(count, np.uint64), index, np.ones(count, bool))
        got = np.bincount(objective.draw(of).denoiser, minlength=3)
        assert np.abs(got - count * np.array(weights) / 7).max() <= 4  # independent draws: 4 to 13 at one deviation


def replace_weight(d: Denoiser, weight: float) -> Denoiser:
    return d.model_copy(update={"weight": weight})


def test_which_denoiser_is_a_function_of_the_sample_and_noise_of_the_key() -> None:
    rows = many(60, 50)
    other = replace(rows, key=rows.key + np.uint64(1))
    assert (UL2().draw(outline(rows)).denoiser == UL2().draw(outline(other)).denoiser).all()
    a, b = (examples(UL2()(r, VOCABULARY)) for r in (rows, other))
    assert sum(x != y for x, y in zip(a, b, strict=True)) > 45


# ---------------------------------------------------------------- S


@pytest.mark.parametrize(
    ("sequential", "low", "high", "mean"),
    [("half", 1, 100, 0.25), ("any", 1, 199, 0.5), ("three_quarters", 150, 150, 0.75)],
)
def test_the_published_variants_of_s(sequential: str, low: int, high: int, mean: float) -> None:
    objective = UL2(denoisers=(Denoiser(mode="S"),), sequential=sequential)  # type: ignore[arg-type]
    rows = many(200)
    noise = objective.draw(outline(rows)).noise
    assert (noise.min(), noise.max()) == (low, high) and noise.mean() / 200 == pytest.approx(mean, abs=0.01)
    if low < high:
        counts = np.histogram(noise, 10, (low - 0.5, high + 0.5))[0] / len(noise)
        assert np.abs(counts - 0.1).max() < 0.02


@pytest.mark.parametrize("sequential", ["half", "any", "three_quarters"])
def test_o23_s_shows_nothing_of_its_target_and_always_something_of_the_text(sequential: str) -> None:
    objective = UL2(denoisers=(Denoiser(mode="S"),), sequential=sequential, layout="prefix")  # type: ignore[arg-type]
    zero = int(VOCABULARY.sentinels[0])
    rows = texts(list(range(2, 40)))
    for e, text in zip(examples(objective(rows, VOCABULARY)), np.split(rows.tokens, rows.start[1:-1]), strict=True):
        source, target = pair(e)
        assert source[0] == MODES[1] and source[-2:] == [zero, EOS] and len(source) > 3
        assert target[0] == zero and source[1:-2] + target[1:-2] == text.tolist()
        assert all(r == 0 for r in e.stream["reveal"][: len(source) + 1])


# ---------------------------------------------------------------- mode tokens


def test_modes_released_paper_or_none() -> None:
    rows = Rows.of([range(11, 31)], index=np.array([3]))  # of the first denoiser
    assert [UL2().token(m) for m in "RSX"] == ["[NLU]", "[S2S]", "[NLG]"]
    assert [UL2(modes="paper").token(m) for m in "RSX"] == ["[R]", "[S]", "[X]"]
    told, untold = UL2()(rows, toy()).source.tokens, UL2.without_modes()(rows, toy()).source.tokens
    assert told[0] == toy().need("[NLU]") and told[1:].tolist() == untold.tolist()


def test_one_denoiser_without_modes_is_span_corruption() -> None:
    rows = texts([3, 50, 1, 20])
    ours = UL2.without_modes(denoisers=(SEVEN[0],))
    assert examples(ours(rows, VOCABULARY)) == examples(SpanCorruption()(rows, VOCABULARY))


def trained(extra: Sequence[str], kind: str = "bbpe") -> Tokenizer:
    config = TokenizerConfig(type=kind, vocab_size=400, sentinels=20, extra=tuple(extra))  # type: ignore[arg-type]
    return Tokenizer.train(config, ["the cat sat on the mat and the dog sat on the log [ NLU ]"] * 20)


@pytest.mark.parametrize("kind", ["bbpe", "wordpiece", "unigram", "byte", "word"])
def test_o23_mode_tokens_exist_in_the_tokenizer_and_are_unique(kind: str) -> None:
    tokenizer = trained(NAMES.values(), kind)
    vocabulary = tokenizer.vocabulary
    ids = [vocabulary.need(name) for name in NAMES.values()]
    assert len(set(ids)) == 3 and [tokenizer.token(i) for i in ids] == list(NAMES.values())
    assert not np.isin(ids, vocabulary.ordinary).any() and not np.isin(ids, vocabulary.sentinels).any()
    assert len(vocabulary.sentinels) == 20 and vocabulary.size == len(set(range(vocabulary.size)))
    rows = Rows.of([np.resize(vocabulary.ordinary, 30)] * 20)
    first = UL2()(rows, vocabulary).source
    assert set(first.tokens[first.start[:-1]].tolist()) == set(ids)


def test_o23_a_tokenizer_without_them_says_how_to_get_them() -> None:
    rows = Rows.of([np.resize(trained(()).vocabulary.ordinary, 40)] * 7)
    with pytest.raises(UserError, match=r"no control token \[NLU\].*tokenizer\.extra.*--add-token"):
        UL2()(rows, trained(()).vocabulary)


@pytest.mark.parametrize("extra", [("[NLU]", "[NLU]"), ("[MASK]",), ("<extra_id_3>",), (" ",)])
def test_extra_tokens_that_are_there_already_are_refused(extra: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match=r"tokenizer\.extra holds"):
        trained(extra)


def test_extra_holds_control_tokens_without_a_role_only() -> None:
    vocabulary = Vocabulary.of({"[PAD]": 0, "<extra_id_0>": 1, "[NLU]": 2, "a": 3}, controls=[0, 1, 2])
    assert dict(vocabulary.extra) == {"[NLU]": 2} and vocabulary.find("[S2S]") is None


# ---------------------------------------------------------------- settings, sentinels, room


@pytest.mark.parametrize("settings", [{"mode": "S", "mean_span": 3}, {"mode": "R"}, {"mode": "X", "mean_span": 3}])
def test_denoisers_have_what_their_mode_needs_and_no_more(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="R and X need noise_density and mean_span"):
        Denoiser(**settings)  # type: ignore[arg-type]


def test_o12_dense_denoisers_on_long_texts_run_out_of_a_hundred_sentinels() -> None:
    hundred = Toy(size=190, sentinels=np.arange(90, 190, dtype=np.int32))
    UL2()(many(512, 7), hundred)
    with pytest.raises(UserError, match="a text needs 172 sentinels but the tokenizer has 100"):
        UL2()(many(1024, 7), hundred)


@pytest.mark.parametrize("layout", ["encdec", "prefix", "causal"])
@pytest.mark.parametrize("context", [8, 40, 128])
def test_room_is_the_most_that_fits_every_denoiser(layout: str, context: int) -> None:
    objective = UL2(layout=layout)  # type: ignore[arg-type]
    shape = objective.shape(context)
    room = objective.room(shape)

    def fits(n: int) -> bool:
        sizes = objective.sizes(outline(many(n, 3000)))
        return bool(objective.layout.fits(sizes, shape).all())

    assert room >= 1 and fits(room) and not fits(room + 1)
    assert isinstance(shape, Shape) and all(fits(n) for n in range(1, room + 1, 7))


@pytest.mark.parametrize("layout", ["encdec", "prefix"])
def test_overfits_64_sentences_to_half_its_floor(layout: str) -> None:
    last, half = learnt(UL2(layout=layout), sentences())  # type: ignore[arg-type]
    assert last < half
