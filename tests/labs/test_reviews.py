"""The bench of the laboratories about reviews: its windows, its questions, its probes, and runs that are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.labs.bench_models import untrained

from unmask.batch import Rows
from unmask.data.worlds import Review, World
from unmask.data.worlds.grammar import TOKEN
from unmask.labs.architectures.subjects import SUBJECTS
from unmask.labs.reviews import gaps, probes
from unmask.labs.reviews.asked import (
    FOOD,
    LENGTH,
    RATING,
    RATINGS,
    chosen,
    encode,
    in_windows,
    likeliest,
    rating,
    slots,
)
from unmask.labs.reviews.bench import Found, Moment, Work
from unmask.labs.reviews.setting import WINDOW, Subject, recipe, settings, windows
from unmask.lm import LM

WORLD = World()
REVIEWS = WORLD.reviews("valid")[:12]
BY_NAME = {subject.name: subject for subject in SUBJECTS}
ALIGNED = ("causal", "prefix", "masked", "t5")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LM]:
    folder = tmp_path_factory.mktemp("reviews")
    return {name: untrained(BY_NAME[name], folder, WORLD) for name in ALIGNED}


# ---------------------------------------------------------------- windows


def test_aligned_windows_begin_at_each_review() -> None:
    found = windows(WORLD, "train", "aligned")
    lines = WORLD.text(["reviews"], "train").splitlines()
    assert len(found) == len(lines) == 1897
    for k, window in enumerate(found):
        tokens = window.split(" ")
        assert len(tokens) == WINDOW
        assert tokens[: LENGTH + 1] == [*TOKEN.findall(lines[k]), "\n"]
        assert tokens[LENGTH + 1 :] == TOKEN.findall(lines[(k + 1) % len(lines)])[: WINDOW - LENGTH - 1]


def test_windows_anywhere_hold_every_token_as_often() -> None:
    found = [window.split(" ") for window in windows(WORLD, "valid", "anywhere")]
    assert len(found) == len(WORLD.reviews("valid")) * (LENGTH + 1)
    assert {len(window) for window in found} == {WINDOW}
    assert (
        Counter(w[0] for w in found)["review"] == Counter(w[-1] for w in found)["review"] == len(WORLD.reviews("valid"))
    )
    assert set(windows(WORLD, "valid", "aligned")) <= {" ".join(window) for window in found}


def test_a_recipe_reads_the_windows_and_its_record_names_no_file(tmp_path: Path) -> None:
    for subject in SUBJECTS:
        made = recipe(WORLD, subject, 3, tmp_path)
        held = settings(made)
        assert held["corpus"] == {"world": "reviews", "windows": subject.windows}
        assert str(tmp_path) not in repr(held) and made.seed == 3
        assert made.train.learning_rate == 1e-3 and made.train.batch_size == 32 and made.context == 32


# ---------------------------------------------------------------- slots


@pytest.mark.parametrize("name", ALIGNED)
@pytest.mark.parametrize("at", [RATING, FOOD])
def test_what_stands_at_the_slot_is_not_read(models: dict[str, LM], name: str, at: int) -> None:
    lm = models[name]
    ids = [encode(lm, text) for text in in_windows(REVIEWS)]
    other = [np.where(np.arange(WINDOW) == at, ids[0][0], text) for text in ids]
    logits = slots(lm, ids, [at] * len(ids))
    assert logits.shape == (len(ids), 362) and bool(logits.isfinite().all())
    assert torch.equal(logits, slots(lm, other, [at] * len(ids)))


@pytest.mark.parametrize("name", ALIGNED)
def test_what_follows_is_read_by_those_who_see_it(models: dict[str, LM], name: str) -> None:
    lm = models[name]
    ids = [encode(lm, text) for text in in_windows(REVIEWS)]
    later = [np.where(np.arange(WINDOW) == RATING, ids[0][0], text) for text in ids]
    earlier = [np.where(np.arange(WINDOW) == 3, ids[0][0], text) for text in ids]
    logits = slots(lm, ids, [FOOD] * len(ids))
    same = torch.equal(logits, slots(lm, later, [FOOD] * len(ids)))
    assert same == (name in ("causal", "prefix"))
    assert not torch.allclose(logits, slots(lm, earlier, [FOOD] * len(ids)))


def test_the_answer_is_the_likeliest_candidate(models: dict[str, LM]) -> None:
    lm = models["masked"]
    logits = torch.zeros(3, 362)
    ids = [int(encode(lm, word)[0]) for word in RATINGS]
    logits[:, int(encode(lm, "the")[0])] = 9  # no candidate
    logits[0, ids[2]], logits[1, ids[0]], logits[2, ids[1]] = 1, 1, 1
    assert likeliest(lm, logits, RATINGS) == ["bad", "good", "ok"]
    given = chosen(lm, in_windows(REVIEWS), RATING, RATINGS)
    assert rating(lm, REVIEWS) == np.mean([a == r.rating for a, r in zip(given, REVIEWS, strict=True)])


# ---------------------------------------------------------------- gaps


def test_other_gaps_say_nothing_about_the_rating() -> None:
    drawn = gaps.elsewhere(500, 3)
    assert drawn.shape == (500, WINDOW) and (drawn.sum(1) == 3).all()
    assert not drawn[:, gaps.TOLD].any() and drawn[:, [0, 16, 29]].any(0).all()
    words = REVIEWS[0].text.replace(":", " :").replace(".", " .").split()
    told = {words[k] for k in (5, 6, 10, 14)}
    assert told == {getattr(REVIEWS[0], k) for k in ("food_adjective", "link", "person_adjective", "rating")}


@pytest.mark.parametrize("name", ["masked", "t5"])
def test_no_other_gap_is_the_protocol(models: dict[str, LM], name: str) -> None:
    lm = models[name]
    ids = [encode(lm, text) for text in in_windows(REVIEWS)]
    plain = slots(lm, ids, [RATING] * len(ids))
    assert torch.allclose(gaps.beside_others(lm, ids, 0), plain, atol=1e-5)
    assert not torch.allclose(gaps.beside_others(lm, ids, 3), plain, atol=1e-3)


def test_a_source_with_several_gaps_is_one_of_training(models: dict[str, LM]) -> None:
    """Put back what the target says, and the window is whole; neighbours make one gap."""
    lm = models["t5"]
    marks = lm.vocabulary.sentinels.tolist()
    for k, text in enumerate(in_windows(REVIEWS)):
        ids = encode(lm, text)
        open_ = gaps.elsewhere(len(REVIEWS), 3)[k].copy()
        open_[RATING] = True
        start = gaps._start(lm, ids, open_)
        runs = int((open_ & ~np.insert(open_[:-1], 0, False)).sum())
        assert [i for i in start.source.tolist() if i in marks] == marks[:runs]
        assert len(start.source) == WINDOW - 4 + runs + 1 and start.source[-1] == lm.vocabulary.eos
        before = int(np.flatnonzero(start.source == start.target[-1])[0])
        whole: list[int] = []
        spans = _spans(start.target.tolist(), marks)
        for token in start.source[:before].tolist():
            whole += spans[token] if token in marks else [token]
        assert whole == ids[:RATING].tolist()


def _spans(target: list[int], marks: list[int]) -> dict[int, list[int]]:
    spans: dict[int, list[int]] = {}
    for token in target:
        if token in marks:
            spans[token] = last = []
        else:
            last.append(token)
    return spans


def test_gaps_of_training_are_counted(models: dict[str, LM]) -> None:
    lm = models["t5"]
    zero, one = lm.vocabulary.sentinels[:2].tolist()
    rows = Rows.of([[zero, 40, one], [40, 41], [zero], [41]])
    assert gaps.trained_on(lm, rows.tokens, rows.row) == {"0": 0.5, "1": 0.25, "2": 0.25}


def test_a_written_span_ends_at_the_next_sentinel(models: dict[str, LM]) -> None:
    lm = models["t5"]
    spans = gaps.written(lm, [encode(lm, text) for text in in_windows(REVIEWS[:3])])
    assert len(spans) == 3 and all("<" not in s and len(s.split()) <= gaps.LONGEST for s in spans)


# ---------------------------------------------------------------- probes


def test_a_fitted_probe_is_the_optimum() -> None:
    rows = np.random.default_rng(0).normal(size=(20, 40))
    labels = (rows[:, 0] > 0).astype(float)
    weights, bias = probes.fitted(rows, labels)
    error = 1 / (1 + np.exp(-(rows @ weights + bias))) - labels
    assert np.abs(rows.T @ error + probes.PENALTY * weights).max() < 1e-6 and abs(error.sum()) < 1e-5


def test_a_probe_finds_what_is_there_and_nothing_else() -> None:
    draw = np.random.default_rng(1)
    rows, tested = draw.normal(size=(128, 16)), draw.normal(size=(400, 16))
    side, wanted = rows @ np.arange(16) > 0, tested @ np.arange(16) > 0
    assert probes.accuracy(rows, side, tested, wanted) > 0.9
    assert abs(probes.accuracy(rows, draw.random(128) > 0.5, tested, wanted) - 0.5) < 0.12
    assert probes.accuracy(rows, side, tested, ~wanted) < 0.1
    constant = np.hstack([rows, np.ones((128, 1))]), np.hstack([tested, np.full((400, 1), 5.0)])
    assert probes.accuracy(constant[0], side, constant[1], wanted) == probes.accuracy(rows, side, tested, wanted)


def test_labelled_reviews_hold_no_tested_adjective() -> None:
    of = probes.Labelled.of(WORLD)
    labelled = {r.food_adjective for draw in of.draws for r in draw}
    assert not labelled & {r.food_adjective for r in of.tested} and len(of.draws) == probes.DRAWS
    assert 0.4 < of.good(of.tested).mean() < 0.6
    assert len({r.text for r in of.draws[0]} & {r.text for r in of.draws[1]}) < len(of.draws[0])


def test_a_bag_of_words_cannot_know(models: dict[str, LM]) -> None:
    of = probes.Labelled.of(WORLD)
    bag = probes.bag(models["causal"], probes.every(of))
    assert bag.sum(1).tolist() == [RATING] * len(bag)
    assert all(abs(probes.probed(bag, of, k) - 0.5) < 0.1 for k in probes.LABELS)


def _flipped(review: Review) -> Review:
    return replace(review, rating="bad" if review.rating != "bad" else "good")


@pytest.mark.parametrize("name", ALIGNED)
def test_features_never_see_the_rating(models: dict[str, LM], name: str) -> None:
    lm, ways = models[name], ["mean", "last", "place"] + (["behind"] if name == "t5" else [])
    for how in ways:
        made = probes.features(lm, REVIEWS, how)  # type: ignore[arg-type]
        assert made.shape == (len(REVIEWS), 64)
        assert (made == probes.features(lm, list(map(_flipped, REVIEWS)), how)).all()  # type: ignore[arg-type]
    turned = [replace(r, food_adjective=WORLD.food_adjectives[0], person="host") for r in REVIEWS]
    assert not np.allclose(probes.features(lm, turned, "place"), probes.features(lm, REVIEWS, "place"))


def test_features_are_the_models_hidden_states(models: dict[str, LM]) -> None:
    for name, lm in models.items():
        states = lm.hidden(REVIEWS[0].unrated).double().numpy()
        text = states if name == "t5" else states[1:]
        text = text[:RATING]
        found = {how: probes.features(lm, REVIEWS, how)[0] for how in ("mean", "last", "place")}  # type: ignore[arg-type]
        wanted = {"mean": text.mean(0), "last": text[-1], "place": text[FOOD]}
        assert all(np.allclose(found[how], wanted[how], atol=1e-5) for how in wanted), name
        opinion = lm.hidden(REVIEWS[0].opinion).double().numpy()
        last = opinion[11 if name == "t5" else 12]
        assert np.allclose(probes.features(lm, REVIEWS, "last", "opinion")[0], last, atol=1e-5)


def test_the_clause_shows_the_adjective_and_nothing_behind_it(models: dict[str, LM]) -> None:
    lm, r = models["causal"], REVIEWS[0]
    states = lm.hidden(f"review: the {r.food} was {r.food_adjective}")[1:].double().numpy()
    assert np.allclose(probes.features(lm, [r], "mean", "clause")[0], states.mean(0), atol=1e-5)
    assert np.allclose(probes.features(lm, [r], "last", "clause")[0], states[FOOD], atol=1e-5)


def test_hidden_leaves_what_link_and_person_tell(models: dict[str, LM], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the states hold the word, nothing is left; where they join link and person's adjective, all."""

    def word(lm: LM, reviews: Sequence[Review], how: str) -> np.ndarray:
        return np.array([[WORLD.positive(r.food_adjective)] for r in reviews], float)

    def joined(lm: LM, reviews: Sequence[Review], how: str) -> np.ndarray:
        return np.array([[WORLD.positive(r.person_adjective) == (r.link == "and")] for r in reviews], float)

    of = probes.Labelled.of(WORLD, 2)
    share = of.good(of.tested).mean()  # one answer for all
    monkeypatch.setattr(probes, "features", word)
    assert min(share, 1 - share) - 1e-9 <= probes.hidden(models["causal"], of)["128"] <= max(share, 1 - share) + 1e-9
    monkeypatch.setattr(probes, "features", joined)
    assert probes.hidden(models["causal"], of) == {"32": 1.0, "128": 1.0}


def test_an_untrained_network_is_where_the_run_began(models: dict[str, LM]) -> None:
    lm = models["masked"]
    again = probes.untrained(lm, 0)
    mine, other = lm.network.state_dict(), probes.untrained(lm, 1).network.state_dict()
    assert all(torch.equal(v, mine[k]) for k, v in again.network.state_dict().items())
    assert not torch.equal(other["embedding.weight"], mine["embedding.weight"])


# ---------------------------------------------------------------- runs


def counting(lm: LM, moment: Moment) -> Found:
    """A measure that leaves a trace of each call."""
    with (moment.run / "asked.txt").open("a") as file:
        file.write(f"{moment.step} {moment.last}\n")
    return Found({"rating": rating(lm, REVIEWS)}, {"step": moment.step}, (("asked", "answer"),))


def test_runs_are_measured_once(tmp_path: Path) -> None:
    small = World(review_count=60)
    subject = Subject("tiny", "Tiny", {"objective.type": "masked", "train.warmup_steps": 1}, steps=4, every=2)
    work = Work(tmp_path, subject, 0, counting, small, "auto")
    first = work()
    assert [p.step for p in first.run.points] == [2, 4] and first.parameters == 125_312
    trace = tmp_path / "runs/tiny-0/asked.txt"
    assert trace.read_text() == "2 False\n4 True\n"
    assert work() == first and trace.read_text().count("\n") == 2
    assert first.run.directory == "runs/tiny-0" and str(tmp_path) not in first.model_dump_json()
    assert first.can == {"score": True, "fill": True, "generate": True, "embed": True}
    other = replace(work, subject=replace(subject, label="Another"))  # not what was kept
    assert other().subject != first.subject and trace.read_text().count("\n") == 4
