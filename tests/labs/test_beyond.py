"""Laboratory beyond: every subject's recipe, gradients by hand, a trial from end to end, and the record's claims."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.labs.committed import FOLDER, committed
from torch.nn import functional as F

from unmask.batch import Head, Rows
from unmask.compare.report import page
from unmask.compare.results import Results
from unmask.config import ModelConfig
from unmask.data.worlds import World
from unmask.evaluation.inputs import stream_of
from unmask.labs.beyond.gradients import OBJECTIVES, PAIRS, Gradient, compared, cosine, gradient, over, unattenuated
from unmask.labs.beyond.lab import LAB, PANELS, picture
from unmask.labs.beyond.measure import BESIDE, measure
from unmask.labs.beyond.statements import STATEMENTS, Read, judged
from unmask.labs.beyond.study import record
from unmask.labs.beyond.subjects import (
    BOTH,
    BUDGET,
    GAP,
    GPT_BERT,
    GRADIENTS,
    HALF,
    LONG,
    MASKED,
    ONE,
    REMEDIES,
    SUBJECTS,
    T5,
)
from unmask.labs.beyond.tables import tables
from unmask.labs.reviews.bench import Measured, Work
from unmask.labs.reviews.setting import STEPS, WINDOW, recipe
from unmask.model.heads import read
from unmask.model.transformer import Transformer
from unmask.objectives.base import Outline
from unmask.objectives.causal import Causal
from unmask.objectives.dials import Dials
from unmask.objectives.masked import Masked
from unmask.objectives.show import toy

SMALL = World(fact_repeats=1, question_repeats=1, sum_count=10, story_count=4, review_count=60)


# ---------------------------------------------------------------- who is compared


def test_every_subject_has_a_recipe_that_holds_a_whole_window(tmp_path: Path) -> None:
    assert len({s.name for s in SUBJECTS}) == len(SUBJECTS) == len({s.label for s in SUBJECTS})
    for subject in SUBJECTS:
        made = recipe(World(), subject, 0, tmp_path)
        shape = made.objective.shape(made.context, made.target_context)
        number = np.arange(256)
        sizes = made.objective.sizes(
            Outline(np.full(256, WINDOW), number.astype(np.uint64), number, np.ones(256, bool))
        )
        assert made.objective.room(shape) >= WINDOW, subject.label
        assert sizes.stream.max() <= shape.stream and (sizes.source is None or sizes.source.max() <= shape.source)
        assert made.train.batch_size == 32 and made.train.learning_rate == 1e-3
        assert made.budget.steps == (2 * STEPS if subject.label in (LONG, GAP, BOTH) else STEPS)


def test_names_that_others_use_are_subjects() -> None:
    labels = {s.label for s in SUBJECTS}
    assert {*REMEDIES, *GRADIENTS, T5} <= labels
    assert {name for panel in PANELS.values() for name in panel} <= labels


# ---------------------------------------------------------------- gradients


def network(seed: int = 0) -> Transformer:
    config = ModelConfig(vocab_size=100, hidden_size=8, num_layers=1, num_heads=2, max_position=9)
    return Transformer(config, [Head("lm")], seed).eval()


TEXTS = [np.array(t, np.int32) for t in ([11, 12, 13], [14, 11], [12, 12, 14, 13], [13, 11, 14])]


def test_a_cosine_by_hand() -> None:
    one, other = (
        Gradient((torch.tensor([3.0, 0.0]), torch.tensor([4.0])), 2.0),
        Gradient((torch.tensor([0.0, 5.0]), None), 1.0),
    )
    assert cosine(one, one) == pytest.approx(1) and cosine(one, other) == 0
    assert cosine(one, Gradient((torch.tensor([1.0, 1.0]), None), 7.0)) == pytest.approx(1 / math.sqrt(2))
    total = one + other
    assert total.norm == 3 and [g.tolist() for g in total.of if g is not None] == [[3, 5], [4]]
    assert cosine(one, Gradient((None, None), 1.0)) == 0


def test_a_gradient_is_that_of_the_loss_written_out() -> None:
    model, vocabulary = network(), toy()
    found = gradient(model, Causal(), Rows.of(TEXTS[:1]), vocabulary)
    ids = torch.tensor([[vocabulary.need("bos"), 11, 12, 13]])
    stream = stream_of(ids, "causal", device=torch.device("cpu"))
    head = model.heads["lm"]
    states = model.decode(stream)
    logits = head.project(head.features(read(states, stream, Head("lm"), torch.arange(4))))
    loss = F.cross_entropy(logits, torch.tensor([11, 12, 13, vocabulary.need("eos")]), reduction="sum")
    wanted = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    assert found.norm == 4
    for a, b in zip(found.of, wanted, strict=True):
        assert (a is None) == (b is None)
        assert a is None or b is None or torch.allclose(a, b, atol=1e-5)


def test_objectives_that_ask_for_the_same_have_one_gradient() -> None:
    model, vocabulary, number = network(), toy(), np.arange(4)
    a, b = (over(model, o, TEXTS, number, vocabulary) for o in (Causal(), Dials.nxt_uni()))
    assert cosine(a, b) == pytest.approx(1, abs=1e-6) and a.norm == b.norm
    assert abs(cosine(a, over(model, Masked(mask_rate=0.5), TEXTS, number, vocabulary))) < 0.99


def test_halves_add_up_to_the_whole_and_noise_is_of_a_texts_number() -> None:
    model, vocabulary = network(), toy()
    o = Masked(mask_rate=0.4)
    whole = over(model, o, TEXTS, np.arange(4), vocabulary)
    halves = over(model, o, TEXTS, np.array([0, 2]), vocabulary) + over(model, o, TEXTS, np.array([1, 3]), vocabulary)
    assert cosine(whole, halves) == pytest.approx(1, abs=1e-6) and whole.norm == halves.norm


def test_compared_tells_all_pairs_and_their_noise() -> None:
    twins = {"a": Causal(), "b": Causal(), "c": Masked(mask_rate=0.5)}
    found = compared(network(), TEXTS * 8, toy(), twins)
    assert found["cosine"]["a b"] == 1 and found["across"]["a b"] == found["halves"]["a"] == found["halves"]["b"]
    assert unattenuated(found, "a b") == pytest.approx(1, abs=1e-3)
    assert set(found["across"]) == {"a b", "a c", "b c"}
    first, last = (over(network(), twins["c"], TEXTS * 8, part, toy()) for part in (np.arange(16), np.arange(16, 32)))
    assert found["halves"]["c"] == round(cosine(first, last), 3)  # neighbours stand in one half
    nothing = {"halves": {"a": -0.1, "b": 0.5}, "across": {"a b": 0.1}}
    assert math.isnan(unattenuated(nothing, "a b"))


# ---------------------------------------------------------------- from end to end


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Measured]]:
    """A hybrid, whose gradients are compared, and T5's mixture, trained for a moment."""
    out = tmp_path_factory.mktemp("beyond")
    subjects = [s.scaled(5) for s in SUBJECTS if s.label in (GPT_BERT, HALF)]
    return {s.name: [Work(out, s, 0, measure, SMALL, "never")()] for s in subjects}


def test_a_trial_is_measured_at_all_milestones(made: dict[str, list[Measured]]) -> None:
    hybrid, t5 = (made[name][0].run for name in ("gpt-bert", "t5-half-prefix-lm"))
    assert [p.step for p in hybrid.points] == [1, 2, 3, 4, 5] and set(hybrid.points[0].values) == {"rating", "fill"}
    assert {"scored", "probe_32", "probe_128", "valid", "true"} <= set(hybrid.points[-1].values)
    assert all(set(hybrid.points[-1].details[what]) == {"32", "128"} for what in ("hidden", "clause"))
    assert BESIDE in t5.points[0].values and BESIDE not in hybrid.points[0].values
    assert set(hybrid.points[0].details["gradients"]) == {"start", "first"}
    assert set(hybrid.points[-1].details["gradients"]) == {"end"}
    start = hybrid.points[0].details["gradients"]["start"]
    assert len(start["halves"]) == len(OBJECTIVES) and len(start["across"]) == len(PAIRS)
    assert dict(zip(PAIRS, start["cosine"], strict=True))["causal prefix"] > 0.5
    assert start != hybrid.points[-1].details["gradients"]["end"]
    assert all(set(run.points[-1].details["ways"]) == {"gap", "forward"} for run in (hybrid, t5))
    assert hybrid.points[-1].values["rating"] == hybrid.points[-1].details["ways"]["forward"]["rating"]
    assert t5.points[-1].values["rating"] == t5.points[-1].details["ways"]["gap"]["rating"]


def test_a_record_of_them_is_judged_and_drawn(made: dict[str, list[Measured]]) -> None:
    """One model stands for all: what learnt nothing holds no claim of learning."""
    subjects = [s.scaled(5) for s in SUBJECTS]
    stand_in = {s.name: made.get(s.name, made["gpt-bert"]) for s in subjects}
    found = record((0,), subjects, stand_in, SMALL)
    assert len(found.claims) == len(STATEMENTS) and len(found.tables) == 7
    holds = {c.statement: c.holds for c in found.claims}
    assert holds["T5 stays at “always ok” (below .6)"] is True
    assert holds["Masked and next tokens behind a prefix teach the rating by both ways"] is False
    assert holds["UL2's mixture learns the rating better than T5's spans"] is None
    assert "masked 40 %" in picture(found) and "T5, one stack" in page(found)
    learning = found.tables[0]
    assert [row[0] for row in learning.rows] == [s.label for s in SUBJECTS] and learning.rows[0][-1] == "never"


def test_learning_is_read_off_the_points(made: dict[str, list[Measured]]) -> None:
    subjects = [s.scaled(5) for s in SUBJECTS]
    found = record((0,), subjects, {s.name: made["gpt-bert"] for s in subjects}, SMALL)
    sooner, later = ([0.5, 0.99, 0.97, 1.0, 1.0], [0.5, 0.5, 0.99, 1.0, 1.0])
    read = Read(replaced(found, {MASKED[40]: [sooner] * 5, MASKED[15]: [later] * 5, ONE: [sooner] * 4 + [[0.5] * 5]}))
    assert read.first(MASKED[40]) == [2] * 5 and read.first(MASKED[15]) == [3] * 5
    assert read.learnt(MASKED[40], by=2) and not read.learnt(MASKED[15], by=2)
    assert read.learnt(ONE) and read.first(ONE)[-1] == math.inf
    claims = {c.statement: c for c in judged(read.results)}
    assert claims["With masks of 40 % the rating is learnt sooner than with 15 %"].holds is True
    assert claims[f"Some remedy of the first six teaches T5 the rating within {BUDGET:g} times its FLOPs"].holds is True
    assert tables(read.results)[0].rows[2][-2:] == ["5 of 5", "3"]


def replaced(results: Results, ratings: dict[str, list[list[float]]]) -> Results:
    """The record with other ratings, a list for each seed."""
    entries = []
    for entry in results.entries:
        run = entry.runs[0]
        each = ratings.get(entry.name, [[p.values["rating"] or 0.0 for p in run.points]] * 5)
        runs = []
        for seed, values in enumerate(each):
            points = [
                p.model_copy(update={"values": {**p.values, "rating": v}})
                for p, v in zip(run.points, values, strict=True)
            ]
            runs.append(run.model_copy(update={"seed": seed, "points": points}))
        entries.append(entry.model_copy(update={"runs": runs}))
    return results.model_copy(update={"entries": entries})


# ---------------------------------------------------------------- the committed record


def test_the_committed_claims_are_what_its_figures_say() -> None:
    held = committed("beyond")
    assert held.title == LAB.title and held.seeds == [0, 1, 2, 3, 4]
    assert judged(held) == held.claims
    assert tables(held) == held.tables
    assert (FOLDER / "beyond.json").stat().st_size < 400_000


def test_a_remedy_reaches_the_rating_within_its_budget() -> None:
    read = Read(committed("beyond"))
    able = [n for n in REMEDIES if read.learnt(n) and read.flops(n) <= BUDGET * read.flops(T5) * (1 + 1e-9)]
    assert able
