"""Laboratory architectures: gaps, lines and levels are what they say, claims and tables are the record's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.labs.bench_models import untrained
from tests.labs.committed import FOLDER, assert_like, committed

from unmask.compare.report import page
from unmask.compare.results import Results
from unmask.data.worlds import World
from unmask.labs.architectures import measured, writing
from unmask.labs.architectures.lab import LAB
from unmask.labs.architectures.measured import everything, levels, measures, own
from unmask.labs.architectures.picture import picture
from unmask.labs.architectures.statements import statements
from unmask.labs.architectures.study import small, study
from unmask.labs.architectures.subjects import ALIGNED, LABELS, PARAMETERS, SUBJECTS, T5, T5_ANYWHERE
from unmask.labs.architectures.tables import GAPS, tables
from unmask.labs.base import Asked, claims
from unmask.labs.reviews.asked import encode, slots
from unmask.labs.reviews.bench import Measured, Moment, Work, by_seed
from unmask.labs.reviews.probes import Labelled, readings
from unmask.labs.reviews.setting import WINDOW
from unmask.lm import LM

WORLD = World()
BY_NAME = {subject.name: subject for subject in SUBJECTS}
REVIEWS = WORLD.reviews("valid")[:20]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LM]:
    folder = tmp_path_factory.mktemp("architectures")
    return {name: untrained(BY_NAME[name], folder, WORLD) for name in ALIGNED}


def test_sizes_are_the_lectures(models: dict[str, LM]) -> None:
    assert {n: sum(p.numel() for p in lm.network.parameters()) for n, lm in models.items()} == PARAMETERS


# ---------------------------------------------------------------- lines


def test_lines_are_judged_by_the_world() -> None:
    true, other = WORLD.reviews("train")[0], WORLD.reviews("valid")[0]
    false = replace(true, rating="bad" if true.rating != "bad" else "good").text
    found = writing.judged(WORLD, [true.text, f" {true.text}", other.text, false, "the the ."])
    assert found == {"valid": 0.8, "true": 0.6, "different": 1.0, "seen": 0.4}


@pytest.mark.parametrize("name", ALIGNED)
def test_lines_are_drawn_by_seed(models: dict[str, LM], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "LINES", 6)
    made = writing.lines(models[name], 1, name == "masked")
    assert set(made) == (set(writing.MASKS) if name == "masked" else {writing.FORWARD})
    assert made == writing.lines(models[name], 1, name == "masked")
    assert made != writing.lines(models[name], 2, name == "masked")
    for lines in made.values():
        assert len(lines) == 6 and all("\n" not in line and "[" not in line for line in lines)
    if name == "masked":
        assert all(len(line.split()) <= 16 for line in made["most confident first, a line of 16"])


def test_appending_asks_for_one_mask_at_the_end(models: dict[str, LM], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "LINES", 2)
    seen = []

    def spied(lm: LM, ids: list[np.ndarray], at: list[int]) -> torch.Tensor:
        seen.append(([len(text) for text in ids], at))
        return slots(lm, ids, at)

    monkeypatch.setattr(writing, "slots", spied)
    writing.appending(models["masked"], 0)
    assert seen == [([k + 1] * 2, [k] * 2) for k in range(WINDOW)]


# ---------------------------------------------------------------- what is asked


def test_levels_are_what_one_word_tells() -> None:
    reviews = measured.asked(WORLD)
    found = levels(WORLD)
    ok = sum(r.rating == "ok" for r in reviews) / len(reviews)
    bad = sum(r.link == "but" or r.rating == "bad" for r in reviews) / len(reviews)
    good = sum(r.link == "but" or r.rating == "good" for r in reviews) / len(reviews)
    assert (
        len(reviews) == 200
        and found["always ok"] == ok
        and found["but → ok"] == max(good, bad) > ok > found["guessing"]
    )
    assert [level.label for level in measures(WORLD)[0].levels] == list(found)


@pytest.mark.parametrize("name", ALIGNED)
def test_everything_is_asked(models: dict[str, LM], name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(writing, "LINES", 4)
    monkeypatch.setattr(measured, "ASKED", 12)
    monkeypatch.setattr(measured, "SCORED", 2)
    monkeypatch.setattr(Labelled, "of", staticmethod(partial(Labelled.of, draws=1)))
    moment = Moment(BY_NAME[name], 0, WORLD, tmp_path, 5, last=True)
    found = everything(models[name], moment)
    known = {m.name for m in measures(WORLD)}
    assert set(found.values) <= known and (measured.EXACT in found.values) == (name == T5)
    assert all(v is not None and 0 <= v <= 1 for v in found.values.values())
    assert json.loads(json.dumps(found.details)) == json.loads(json.dumps(dict(found.details)))
    assert ("behind" in found.details["probes"]) == (name == T5)
    again = everything(models[name], moment)
    assert (again.values, again.details, again.samples) == (found.values, found.details, found.samples)
    early = everything(models[name], replace(moment, last=False))
    assert measured.LINE not in early.values and early.values[measured.RATED] == found.values[measured.RATED]


def _by(rule: str) -> object:
    """Slots of a model that goes by some of the words."""

    def answer(lm: LM, ids: list[np.ndarray], at: list[int]) -> torch.Tensor:
        assert lm.tokenizer is not None
        out = torch.zeros(len(ids), 362)
        for row, text in enumerate(ids):
            food, link, person = (lm.tokenizer.token(int(text[k])) for k in (5, 6, 10))
            if rule == "both":
                sides = WORLD.positive(food), WORLD.positive(person)
                said = "ok" if sides[0] != sides[1] else "good" if sides[0] else "bad"
            else:
                said = "ok" if link == "but" else "good" if WORLD.positive(person) else "bad"
            out[row, int(encode(lm, said)[0])] = 1
        return out

    return answer


def test_turning_a_word_shows_who_goes_by_it(models: dict[str, LM], monkeypatch: pytest.MonkeyPatch) -> None:
    reviews = measured.asked(WORLD)
    monkeypatch.setattr(measured, "slots", _by("both"))
    assert list(measured.turned(models["causal"], WORLD, reviews).values()) == [1, 0, 1]
    monkeypatch.setattr(measured, "slots", _by("link and person"))
    food, link, person = measured.turned(models["causal"], WORLD, reviews).values()
    assert (food, link) == (0, 1) and person == np.mean([r.link == "and" for r in reviews])


# ---------------------------------------------------------------- a short run


def test_a_short_run_is_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, two architectures and ten updates."""
    monkeypatch.setattr("unmask.labs.architectures.study.trained", _here)
    found = small(tmp_path, lambda _: None, steps=10)
    assert [e.name for e in found.entries] == [LABELS[name] for name in ALIGNED] and not found.claims
    assert [p.step for p in found.entries[0].runs[0].points] == [2, 4, 6, 8, 10]
    assert "/tmp" not in json.dumps(found.model_dump(mode="json")) and "<script src" not in page(found)
    drawn = ET.fromstring(picture(found))
    assert "What can it do" not in "".join(drawn.itertext())


def _here(asked: Asked, subjects: list, measure: object, world: World) -> dict[str, list[Measured]]:  # type: ignore[type-arg]
    works = {s.name: [Work(asked.out, s, seed, measure, world, "never") for seed in asked.seeds] for s in subjects}  # type: ignore[arg-type]
    return {name: [work() for work in each] for name, each in works.items()}


def test_milestones_are_five() -> None:
    assert [s.scaled(700).every for s in SUBJECTS] == [140] * 6
    assert [s.scaled(2500) for s in SUBJECTS] == list(SUBJECTS)


# ---------------------------------------------------------------- the results that were committed


def held() -> tuple[Results, list[dict[str, Measured]]]:
    """The committed record, and what each of its seeds found."""
    results = committed("architectures")
    made = {}
    for subject, entry in zip(SUBJECTS, results.entries, strict=True):
        made[subject.name] = [
            Measured(subject="", settings={}, parameters=entry.parameters, can={}, run=run) for run in entry.runs
        ]
    return results, by_seed(made)


def test_the_committed_claims_are_the_records() -> None:
    results, found = held()
    assert results.title == LAB.title and results.seeds == [0, 1, 2, 3, 4]
    assert results.claims == claims(statements(levels(WORLD)["always ok"]), found)
    assert (FOLDER / "architectures.json").stat().st_size < 300_000


def test_the_committed_tables_are_the_records() -> None:
    results, found = held()
    for fresh, old in zip(tables(found, levels(WORLD)), results.tables, strict=True):
        assert_like(fresh, old)
    assert results.measures == measures(WORLD)


def test_the_picture_is_drawn_from_the_record() -> None:
    results, _ = held()
    drawn = ET.fromstring(picture(results))
    said = "".join(drawn.itertext())
    assert all(name in said for name in LABELS.values()) and "What can it do" in said
    assert "median and each of 5 seeds" in said and "but → ok" in said
    for path in drawn.iter("{http://www.w3.org/2000/svg}path"):
        numbers = map(float, re.findall(r"-?[0-9.]+", path.get("d", "")))
        assert all(0 <= n <= 900 for n in numbers)


def test_what_needs_no_training_is_as_committed(models: dict[str, LM], tmp_path: Path) -> None:
    """The gaps that the noise draws, and the untrained networks' probes."""
    results, found = held()
    for name in (T5, T5_ANYWHERE):
        kept = found[0][name].run.points[-1].details["own"]["gaps"]
        moment = Moment(BY_NAME[name], 0, WORLD, tmp_path, 0, last=True)
        assert own(models["t5"], WORLD, moment)["gaps"] == pytest.approx(kept, abs=1e-5)
    of = Labelled.of(WORLD)
    for name in ("causal", "masked"):
        kept = found[0][name].run.points[-1].details["probes"]["mean, untrained"]
        assert readings(models[name], of, ("mean",))["mean"] == pytest.approx(kept, abs=0.02)
    assert next(t for t in results.tables if t.title == GAPS).rows[0][0] == LABELS[T5]


def test_the_laboratory_is_listed_without_torch() -> None:
    code = "import sys, unmask.labs.architectures.lab; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_the_whole_laboratory(tmp_path: Path) -> None:
    """One seed, trained again: its curves are among those of the committed seeds. Another rounding changes its own."""
    fresh, (results, _) = study(Asked(tmp_path)), held()
    for entry, old in zip(fresh.entries, results.entries, strict=True):
        assert entry.runs[0].seed == old.runs[0].seed == 0
        (ours,), theirs = ([[p.values[measured.RATED] for p in run.points] for run in e.runs] for e in (entry, old))
        for value, of_seeds in zip(ours, zip(*theirs, strict=True), strict=True):
            assert min(of_seeds) - 0.02 <= value <= max(of_seeds) + 0.02, entry.name
