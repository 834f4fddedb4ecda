"""Laboratory electra: kinds by worked examples, areas and floors case by case, a short run, the record."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tests.labs.committed import FOLDER, committed

from unmask.batch import Head, Rows
from unmask.compare.report import page
from unmask.compare.results import Results
from unmask.config import ModelConfig
from unmask.data.worlds import World
from unmask.data.worlds.grammar import Review, rating_of
from unmask.labs.base import Statement
from unmask.labs.electra import corrupted, floor, study
from unmask.labs.electra.designed import STOPPED, Apart, Opposed
from unmask.labs.electra.kinds import auc, kind
from unmask.labs.electra.lab import LAB
from unmask.labs.electra.measured import PERSON, measure
from unmask.labs.electra.names import DETECTED, PLACES, PROBES
from unmask.labs.electra.picture import FINDERS, READ, picture
from unmask.labs.electra.statements import STATEMENTS, shares
from unmask.labs.electra.subjects import BERT, ELECTRA, MAIN, RICH, remedies, richer
from unmask.labs.reviews import probes
from unmask.labs.reviews.asked import FOOD, LENGTH
from unmask.labs.reviews.bench import Measured, Work
from unmask.labs.reviews.setting import Subject, recipe
from unmask.loading import load
from unmask.model.spec import parameters
from unmask.networks import networks_of
from unmask.objectives.show import toy
from unmask.run import pretrain

WORLD = World()
TOKENIZER = WORLD.tokenizer("word")
SMALL = World(review_count=100, adjective_count=2, probe_count=1)


# ---------------------------------------------------------------- kinds and areas

REVIEW = "review: the soup was tasty but the waiter was rude. rating: ok."
GOOD = "review: the soup was tasty and the waiter was kind. rating: good."


@pytest.mark.parametrize(
    ("review", "place", "word", "expected"),
    [
        (GOOD, 8, "waiter", "unchanged"),
        (GOOD, 8, "cook", "alike"),
        (GOOD, 3, "pie", "alike"),
        (GOOD, 5, "sweet", "alike"),
        (REVIEW, 10, "lazy", "alike"),
        (GOOD, 5, "bland", "meaning"),
        (GOOD, 6, "but", "meaning"),
        (GOOD, 14, "ok", "meaning"),
        (REVIEW, 14, "bad", "meaning"),
        (GOOD, 5, "kind", "obvious"),
        (GOOD, 10, "tasty", "obvious"),
        (GOOD, 3, "waiter", "obvious"),
        (GOOD, 1, ".", "obvious"),
        (GOOD, 15, "good", "obvious"),
        (GOOD, 5, "12", "obvious"),
    ],
)
def test_kinds_of_replacement(review: str, place: int, word: str, expected: str) -> None:
    ids = TOKENIZER.encode(review)
    assert len(ids) == LENGTH and WORLD.check(review).true
    assert kind(WORLD, TOKENIZER, ids.tolist(), place, int(TOKENIZER.encode(word)[0])) == expected


def test_a_control_token_is_obvious() -> None:
    ids = TOKENIZER.encode(GOOD).tolist()
    assert kind(WORLD, TOKENIZER, ids, 5, TOKENIZER.vocabulary.need("mask")) == "obvious"
    assert kind(WORLD, TOKENIZER, ids, 15, TOKENIZER.vocabulary.need("eos")) == "obvious"


def test_the_area_is_the_share_of_pairs() -> None:
    rng = np.random.default_rng(0)
    for n, levels in ((12, 3), (40, 5), (60, 1000)):
        scores, positive = rng.integers(0, levels, n) / levels, rng.random(n) < 0.4
        pairs = [(a > b) + (a == b) / 2 for a in scores[positive] for b in scores[~positive]]
        assert auc(scores, positive) == pytest.approx(np.mean(pairs), abs=1e-12)
    assert auc(np.array([1.0, 2.0]), np.array([True, True])) is None


# ---------------------------------------------------------------- floors


def brute(texts: np.ndarray, prior: np.ndarray, given: np.ndarray, generator: np.ndarray) -> np.ndarray:
    """Bayes' rule over every text, every selected pair and every draw that leads to `given`.

    generator[S, the rest's two ids, a, b]: the chance of a and b at the pair S where the rest is read.
    """
    length = len(given)
    total, marked = 0.0, np.zeros(length)
    for x, p in zip(texts, prior, strict=True):
        for s, (i, j) in enumerate(floor.pairs(length)):
            rest = [k for k in range(length) if k not in (i, j)]
            q = generator[s, x[rest[0]], x[rest[1]]]
            for a, b in product(range(q.shape[0]), repeat=2):
                seen = x.copy()
                seen[i], seen[j] = a, b
                if (seen == given).all():
                    weight = p * q[a, b] / len(floor.pairs(length))
                    total += weight
                    marked += weight * (seen != x)
    return marked / total


def test_the_floor_is_bayes_rule_gone_through_case_by_case() -> None:
    rng = np.random.default_rng(1)
    words, length = 3, 4
    texts = np.array([t for t in product(range(words), repeat=length) if sum(t) % 3 != 1])
    prior = rng.random(len(texts))
    prior /= prior.sum()
    generator = rng.random((6, words, words, words, words))
    generator /= generator.sum((-2, -1), keepdims=True)
    given = np.array([t for t in product(range(words), repeat=length)])
    drawn = np.zeros((len(given), 6))
    for row, text in enumerate(given):
        for s, (i, j) in enumerate(floor.pairs(length)):
            rest = [k for k in range(length) if k not in (i, j)]
            drawn[row, s] = generator[s, text[rest[0]], text[rest[1]], text[i], text[j]]
    found = floor.posterior(texts, prior, given, drawn)
    for row in range(0, len(given), 7):
        assert found[row] == pytest.approx(brute(texts, prior, given[row], generator), abs=1e-12)
    assert found.min() >= 0 and found.max() <= 1 + 1e-12


def test_the_floor_of_opposites_is_bayes_rule_gone_through_case_by_case() -> None:
    every = floor.texts_of(SMALL)
    assert every is not None
    reviews, prior = every
    n, rate = SMALL.adjective_count, 0.3
    food, person = ([set(w[:n]), set(w[n:])] for w in (SMALL.food_adjectives, SMALL.person_adjectives))

    def chance(was: str, now: str, sides: list[set[str]]) -> float:
        mine = next(k for k, side in enumerate(sides) if was in side)
        return (1 - rate) * (was == now) + rate / n * (now in sides[1 - mine])

    for words in (("tasty", "rude", "but", "ok"), ("tasty", "kind", "but", "ok"), ("bland", "kind", "and", "good")):
        given = Review("soup", words[0], words[2], "host", words[1], words[3])  # type: ignore[arg-type]
        total, marked = 0.0, np.zeros(2)
        for x, p in zip(reviews, prior, strict=True):
            if (x.food, x.person, x.link, x.rating) != (given.food, given.person, given.link, given.rating):
                continue
            weight = p * chance(x.food_adjective, words[0], food) * chance(x.person_adjective, words[1], person)
            total += weight
            marked += weight * np.array([x.food_adjective != words[0], x.person_adjective != words[1]])
        found = floor.opposed(SMALL, [given], rate, (FOOD, PERSON), LENGTH)[0]
        assert found[[FOOD, PERSON]] == pytest.approx(marked / total, abs=1e-12)
        assert not np.delete(found, [FOOD, PERSON]).any()


def test_every_review_is_a_text_of_the_world() -> None:
    for world in (SMALL, World(review_count=50, adjective_count=2, probe_count=1, but_share=0.25)):
        every = floor.texts_of(world)
        assert every is not None
        reviews, prior = every
        assert {r.text for r in reviews} == {r.text for r in world._reviews} | {r.text for r in reviews}
        assert len({r.text for r in reviews}) == len(reviews) == 8 * 6 * 2 * 2 * 2 * 2
        assert {r.text for r in world.reviews("train")} <= {r.text for r in reviews}
        assert all(
            r.rating == rating_of(world.positive(r.food_adjective), world.positive(r.person_adjective)) for r in reviews
        )
        but = np.array([r.link == "but" for r in reviews])
        assert prior.sum() == pytest.approx(1) and prior[but].sum() == pytest.approx(world.but_share)
    assert floor.texts_of(World(distance=1)) is None and floor.texts_of(World(rating_noise=0.1)) is None


# ---------------------------------------------------------------- objectives of its own


def test_opposites_replace_listed_words_alone_by_the_other_side() -> None:
    sides = (((11, 12, 13), (21, 22)), ((31,), (41, 42)))
    objective = Opposed(sides=sides, rate=0.25)
    rng = np.random.default_rng(0)
    rows = Rows.of(rng.choice([11, 12, 13, 21, 22, 31, 41, 42, 50, 51], (4000, 10)), key=range(4000))
    made = objective(rows, toy())
    assert made.stream.start is not None
    inside = made.stream.tokens.reshape(4000, 12)[:, 1:-1].ravel()
    changed = inside != rows.tokens
    assert np.array_equal(made.targets["rtd"].value, changed)
    listed = np.isin(rows.tokens, [11, 12, 13, 21, 22, 31, 41, 42])
    assert not changed[~listed].any() and abs(changed[listed].mean() - 0.25) < 0.01
    for mine, other in ((sides[0][0], sides[0][1]), (sides[0][1], sides[0][0]), (sides[1][0], sides[1][1])):
        now = inside[changed & np.isin(rows.tokens, mine)]
        counts = np.array([(now == word).sum() for word in other])
        assert counts.sum() == len(now) and abs(counts / len(now) - 1 / len(other)).max() < 0.05
    alone = objective(Rows.of([rows.tokens[:10]], key=[0]), toy())
    assert (alone.stream.tokens[1:-1] == inside[:10]).all()


def test_a_stopped_generator_is_not_moved_and_still_replaces() -> None:
    rows = Rows.of(np.arange(5, 35).reshape(2, 15) % 60 + 5)
    objective = Apart(learns=0.2, mask_share=1.0)
    before = objective(rows, toy())
    after = objective(Rows(**{**vars(rows), "progress": 0.2}), toy())
    lm = after.targets["lm"]
    assert before.targets["lm"].norm is None and before.targets["lm"].weight.min() == 1
    assert lm.weight.min() > 0 and float(lm.weight.max()) == pytest.approx(STOPPED)
    assert lm.norm.tolist() == [2, 2] and np.array_equal(np.asarray(lm.draw), np.asarray(before.targets["lm"].draw))
    assert (after.stream.tokens == before.stream.tokens).all()
    assert after.targets["rtd"].weight.min() == 1


def test_the_generator_of_the_notes() -> None:
    config = ModelConfig(vocab_size=362, hidden_size=64, num_layers=2, num_heads=4, max_position=32)
    sizes = {}
    for width, depth in ((0.25, 0.5), (0.5, 0.5), (1.0, 1.0)):
        objective = Apart(generator_width=width, generator_depth=depth)
        own = objective.generator(config)
        networks = networks_of(objective, config)
        shared = {id(p) for p in networks["model"].parameters()} & {id(p) for p in networks["generator"].parameters()}
        assert not shared
        sizes[width] = parameters(own, [Head("lm")])
    assert sizes == {0.25: 9_616, 0.5: 25_376, 1.0: 125_312}


# ---------------------------------------------------------------- a short run


def _short(subject: Subject) -> Subject:
    return Subject(subject.name, subject.label, subject.settings, steps=12, every=12, asks=subject.asks)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Measured]]:
    """Three subjects, a few updates each."""
    out = tmp_path_factory.mktemp("electra")
    chosen = [_short(s) for s in (BERT, ELECTRA, remedies(SMALL)[1])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNMASK_CACHE", str(out / "cache"))
        return out, {s.name: Work(out, s, 0, measure, SMALL, "never")() for s in chosen}


def test_a_short_run_measures_what_the_record_needs(short: tuple[Path, dict[str, Measured]]) -> None:
    out, made = short
    bert, electra, opposed = made["bert"], made["electra"], made["opposed-50"]
    assert set(bert.run.points[-1].values) == {*PROBES.values(), *PLACES.values()}
    last = electra.run.points[-1]
    assert last.step == 12 and last.details["generator"] == electra_generator(out)
    kinds, positions = last.details["kinds"], last.details["positions"]
    assert positions == 11 * LENGTH and last.details["selected"] == 2 * 11
    assert last.values["replaced"] == pytest.approx(sum(kinds.values()) / 22)
    assert last.values["labels"] == pytest.approx(kinds["meaning"] / positions)
    assert last.values["best_auc"] > last.values["auc"] - 0.02  # type: ignore[operator]
    assert last.details["best"]["originals"] == positions - sum(kinds.values())
    assert opposed.run.points[-1].details["kinds"]["alike"] + opposed.run.points[-1].details["kinds"]["obvious"] == 0
    assert shares(made, "opposed-50")["meaning"] == 1
    assert {"untrained", "untrained, at the adjective", "words"} == set(bert.run.points[-1].details["controls"])


def test_a_stopped_generator_stands_still_in_a_run(
    short: tuple[Path, dict[str, Measured]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It learns in the first two of 60 updates; what momentum leaves after 30 is nothing."""
    monkeypatch.setenv("UNMASK_CACHE", str(short[0] / "cache"))
    for name, learns, moved in (("stopped", 0.03, False), ("learning", 1.0, True)):
        settings = {**ELECTRA.settings, "objective.learns": learns, "train.batch_size": 8}
        subject = Subject(name, name, settings, steps=60, every=30, asks=ELECTRA.asks)
        run = pretrain(recipe(SMALL, subject, 0, short[0] / "text"), out=tmp_path / name, say=lambda _: None)
        before, after = (
            load(run.out, k, network="generator", device="cpu").network.state_dict()["embedding.weight"]
            for k in (30, 60)
        )
        assert (float((before - after).abs().max()) > 1e-3) is moved


def electra_generator(out: Path) -> int:
    lm = load(out / "runs" / "electra-0", network="generator")
    return sum(p.numel() for p in lm.network.parameters())


def test_draws_are_the_generators_own(short: tuple[Path, dict[str, Measured]]) -> None:
    """Two places of each review, the rest untouched; drawn words occur as often as the generator says."""
    place = short[0] / "runs" / "electra-0"
    generator = load(place, network="generator", device="cpu")
    text = corrupted.windows(generator, SMALL.reviews("valid"))[:1]
    many = np.repeat(text, 3000, 0)
    drawn = corrupted.by_generator(generator, many, 5)
    assert (drawn.selected.sum(1) == 2).all() and (drawn.given[:, LENGTH:] == many[:, LENGTH:]).all()
    assert not drawn.replaced[~drawn.selected].any()
    assert abs(drawn.selected.mean(0) - 2 / 16).max() < 0.03
    read = text.copy()
    read[0, [3, 5]] = generator.vocabulary.need("mask")
    wanted = corrupted.said(generator, read, np.array([[3, 5]]))[0].double().softmax(-1)[0].numpy()
    mine = drawn.selected[:, 3] & drawn.selected[:, 5]
    counts = np.bincount(drawn.given[mine, 3], minlength=len(wanted)) / mine.sum()
    assert mine.sum() > 10 and abs(counts - wanted).max() < 4 * (0.25 / mine.sum()) ** 0.5


def test_likelihoods_are_of_the_words_that_are_seen(short: tuple[Path, dict[str, Measured]]) -> None:
    place = short[0] / "runs" / "electra-0"
    generator = load(place, network="generator", device="cpu")
    texts = corrupted.windows(generator, SMALL.reviews("valid"))[:3]
    found = corrupted.likelihoods(generator, texts)
    for k in (0, 17, 119):
        i, j = floor.pairs(LENGTH)[k]
        read = texts.copy()
        read[:, [i, j]] = generator.vocabulary.need("mask")
        chance = corrupted.said(generator, read, np.tile([i, j], (3, 1))).double().softmax(-1)
        wanted = [float(chance[r, 0, texts[r, i]] * chance[r, 1, texts[r, j]]) for r in range(3)]
        assert found[:, k] == pytest.approx(wanted, rel=1e-4)


def test_the_record_of_all_subjects(short: tuple[Path, dict[str, Measured]], tmp_path: Path) -> None:
    """Each subject stood for by one of the three that were run: claims, tables, picture and page are filled."""
    _, made = short
    subjects = [*MAIN, *remedies(SMALL), *RICH]
    stand_in = {"none": "bert", "generator": "electra", "opposites": "opposed-50"}
    every = {s.name: [_five(made[stand_in[s.asks["noise"]]])] for s in subjects}
    found = study.record(subjects, every, 12)
    assert [c.statement for c in found.claims] == [s.text for s in STATEMENTS]
    assert len(found.entries) == len(subjects) and all(t.rows for t in found.tables)
    drawn = picture(found)
    assert all(name in drawn for name in (*READ, *FINDERS))
    assert Results.read(found.write(tmp_path)) == found and "<svg" in drawn and "ELECTRA" in page(found)
    assert next(c for c in found.claims if c.statement.startswith("BERT has")).holds is False  # a smaller vocabulary


def test_a_detector_of_selected_words_is_not_judged_on_all(short: tuple[Path, dict[str, Measured]]) -> None:
    """Its kept file holds figures of a question that it was never asked; the record and its table have none."""
    _, made = short
    subjects = [*MAIN, *remedies(SMALL), *RICH]
    stand_in = {"none": "bert", "generator": "electra", "opposites": "opposed-50"}
    every = {s.name: [_five(made[stand_in[s.asks["noise"]]])] for s in subjects}
    found = study.record(subjects, every, 12)
    points = {e.name: e.runs[0].points for e in found.entries}
    assert set(DETECTED) <= set(every["electra-15"][0].run.points[-1].values)
    for name, answered in (("ELECTRA", True), ("ELECTRA 15 %", False), ("Replace MLM", False)):
        assert all((measure in p.values) is answered for p in points[name] for measure in DETECTED), name
        assert all((part in points[name][-1].details) is answered for part in ("detector", "best")), name
        assert all(p.values["replaced"] is not None for p in points[name])
    entry = next(e for e in found.entries if e.name == "ELECTRA 15 %")
    assert set(entry.cannot) == set(DETECTED) and "selected words alone" in entry.cannot["auc"]
    table = next(t for t in found.tables if t.title.startswith("Detected"))
    rows = {row[0]: row[1:] for row in table.rows}
    assert set(rows["ELECTRA 15 %"]) == {None} and rows["ELECTRA"][0] is not None and "Replace MLM" not in rows
    closest = next(c for c in found.claims if c.statement.startswith("No detector"))
    assert "ELECTRA 15 %" not in closest.evidence


def test_no_obvious_replacement_leaves_a_statement_undecided(short: tuple[Path, dict[str, Measured]]) -> None:
    _, made = short
    one = _five(made["electra"])
    last = one.run.points[-1]
    none = {**last.details, "kinds": {"alike": 3, "meaning": 4, "obvious": 0}}
    points = [*one.run.points[:-1], last.model_copy(update={"details": none})]
    found = {"electra": one.model_copy(update={"run": one.run.model_copy(update={"points": points})})}
    statement = next(
        s for s in STATEMENTS if s.text == "ELECTRA's detector finds about .79 of the obvious replacements"
    )
    assert isinstance(statement, Statement)
    assert statement.judge(found) == (None, "no obvious replacement is left")
    assert shares(found, "electra") == {"alike": 3 / 7, "meaning": 4 / 7, "obvious": 0}


def _five(one: Measured) -> Measured:
    points = [one.run.points[-1].model_copy(update={"step": k}) for k in range(1, 6)]
    return one.model_copy(update={"run": one.run.model_copy(update={"points": points})})


def test_richer_reviews_are_read_alike(tmp_path: Path) -> None:
    world = richer(WORLD)
    assert world.adjective_count == 16 and floor.texts_of(world) is not None
    made = recipe(world, RICH[1], 0, tmp_path)
    assert made.objective.type == "apart" and len(encode_of(world)) == LENGTH
    assert len(probes.Labelled.of(world, 1).tested) == probes.TESTED


def encode_of(world: World) -> np.ndarray:
    return world.tokenizer("word").encode(world.reviews("valid")[0].text)


# ---------------------------------------------------------------- names


def test_the_laboratory_is_listed_without_torch() -> None:
    code = "import sys, unmask.labs.electra.lab; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_names_are_the_probes() -> None:
    assert tuple(PROBES) == tuple(PLACES) == probes.LABELS


# ---------------------------------------------------------------- what is committed


def test_the_committed_results_are_of_these_statements() -> None:
    found = committed("electra")
    assert found.title == LAB.title and (FOLDER / "electra.json").stat().st_size < 350_000
    assert [(c.statement, c.source) for c in found.claims] == [(s.text, s.source) for s in STATEMENTS]
    assert (FOLDER.parent / "electra.svg").read_text(encoding="utf-8") == picture(found)
