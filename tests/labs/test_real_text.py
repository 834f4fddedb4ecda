"""Laboratory `real-text`: a tiny study end to end, its gaps, its claims by another way, and the committed results."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import unmask.cli.lab  # noqa: F401  (joins the verb to the app)
from unmask.cli.output import app
from unmask.compare.results import Entry, Level, Measure, Point, Results, Run
from unmask.compare.statistics import critical
from unmask.errors import UserError
from unmask.labs.base import Asked, perform
from unmask.labs.orders import Group, residual
from unmask.labs.real_text.lab import LAB, READS
from unmask.labs.real_text.statements import FREQUENT, STATEMENTS, judged
from unmask.labs.real_text.study import ENTRIES, SETTINGS, study
from unmask.labs.real_text.words import FEWEST, LEAST, OTHERS, SHORTEST, gaps_of, ranking, write_lines

from .committed import FOLDER, committed
from .wiki import FEW, TINY, write_data

RESULTS = FOLDER / "real-text.json"
FIRST_GAP = "letter", ["asked", "collection", "competition", "letter"]
KEPT = 300_000
"""Bytes of the committed results."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, data: Path) -> tuple[Asked, Results]:
    asked = Asked(tmp_path_factory.mktemp("real-text"), (0,), "auto", lambda _: None, data)
    return asked, study(asked, TINY, FEW, ("causal", "masked"))


# ---------------------------------------------------------------- a tiny study


def test_a_tiny_study_fills_the_record(tiny: tuple[Asked, Results]) -> None:
    asked, found = tiny
    assert [e.name for e in found.entries] == ["causal", "masked"] and found.title == LAB.title
    assert [c.statement for c in found.claims] == [s.text for s in STATEMENTS]
    for entry in found.entries:
        (run,) = entry.runs
        assert len(run.points) == 2 and {"minimal_pairs", "cloze_candidates"} <= run.points[-1].values.keys()
    told = {c.statement: c for c in found.claims}
    order = told["At a third of the budget the causal LM is ahead of BERT: denser targets learn faster"]
    assert order.holds is None and order.evidence == "one seed alone tells no noise"
    assert any(c.holds is None and c.evidence == "t5 was not run" for c in found.claims)
    text = json.dumps(found.model_dump(mode="json"))
    assert str(asked.out) not in text and str(asked.data) not in text and '"outcomes"' not in text
    assert found.entries[0].settings["corpus"]["path"] == f"$UNMASK_DATA/{READS[0]}"


def test_what_is_finished_is_not_run_again(tiny: tuple[Asked, Results]) -> None:
    asked, found = tiny
    logs = {f: f.stat().st_mtime_ns for f in (asked.out / "study" / "jobs").glob("*.log")}
    again = study(asked, TINY, FEW, ("causal", "masked"))
    assert again == found and logs == {f: f.stat().st_mtime_ns for f in logs} and len(logs) == 2


def test_the_common_measures_are_asked_alike(tiny: tuple[Asked, Results]) -> None:
    _, found = tiny
    causal, masked = found.entries
    assert "bits_per_byte" in masked.cannot and masked.target_density < 0.2 < causal.target_density == 1.0
    gaps = [e.runs[0].points[-1].details["cloze_candidates"]["counts"]["gaps"] for e in found.entries]
    assert gaps[0] == gaps[1] == FEW["cloze"]


# ---------------------------------------------------------------- gaps


def test_the_other_words_are_as_frequent_and_never_the_answer() -> None:
    train = ["a " + " ".join(f"word{chr(97 + k // 26)}{chr(97 + k % 26)}".replace("word", "wo") for k in range(300))]
    texts = train * LEAST
    ranked = ranking(texts)
    assert len(ranked) == 300 and all(len(w) >= SHORTEST for w in ranked)
    valid = [f"Here {ranked[k]} and Mask it {ranked[k + 1]} with no more of it all." for k in range(0, 298, 3)]
    gaps = gaps_of(texts, valid)
    assert len(gaps) == len(valid)
    for gap in gaps:
        candidates: Any = gap["candidates"]
        text, answer = str(gap["text"]), str(gap["answer"])
        assert text.count("[MASK]") == 1 and text.replace("[MASK]", answer) in valid
        assert len(set(candidates)) == OTHERS + 1 and answer in candidates
        assert max(abs(ranked.index(answer) - ranked.index(c)) for c in candidates) <= max(FEWEST, ranked.index(answer))
    assert gaps == gaps_of(texts, valid) and gaps_of(texts, valid, 7) == gaps[:7]
    places = Counter(sorted(g["candidates"]).index(g["answer"]) for g in gaps)  # type: ignore[call-overload]
    assert max(places.values()) < 0.5 * len(gaps)  # the order of candidates tells nothing


def test_a_test_that_was_not_finished_is_made_again(tmp_path: Path) -> None:
    def broken() -> Iterator[dict[str, object]]:
        yield {"text": "one"}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_lines(tmp_path / "gaps.jsonl", broken())
    assert not (tmp_path / "gaps.jsonl").exists()
    write_lines(tmp_path / "gaps.jsonl", [{"text": "é"}])
    assert (tmp_path / "gaps.jsonl").read_text(encoding="utf-8") == '{"text": "é"}\n'


def test_names_and_parts_of_words_are_no_gaps() -> None:
    assert ranking(["Paris paris-bound don't x-paris Paris' other"] * LEAST) == ["other"]


# ---------------------------------------------------------------- orders


MEASURE = Measure(name="m", label="M", protocol="", better="higher")


def record(values: dict[str, list[float]], better: str = "higher", seeds: int = 3) -> Group:
    """Entries with one measure, seed by seed."""
    measure = Measure(name="m", label="M", protocol="", better=better)  # type: ignore[arg-type]
    at = {"step": 1, "tokens": 1, "target_tokens": 1, "flops": 1, "seconds": 1}
    entries = [
        Entry(
            name=name,
            settings={},
            parameters=1,
            flops_per_token=1,
            target_density=1,
            runs=[Run(seed=k, points=[Point(**at, values={"m": v})]) for k, v in enumerate(own)],
        )
        for name, own in values.items()
    ]
    return Group.of(
        Results(title="", command="", seeds=list(range(seeds)), measures=[measure], entries=entries), values
    )


NOISY = {"a": [60.0, 61.0, 60.5], "b": [59.5, 61.2, 60.6], "c": [50.0, 51.0, 50.2], "d": [55.0, 55.5, 55.9]}


def test_an_order_is_decided_beyond_the_noise_alone() -> None:
    group = record(NOISY)
    assert group.better("a", "c")[0] is True and group.better("c", "a")[0] is False
    assert group.better("a", "b")[0] is None and "(±" in group.better("a", "b")[1]
    assert group.unseen("a", "b")[0] is True and group.unseen("a", "b", "d")[0] is False
    assert record(NOISY, "lower").better("a", "c")[0] is False


def test_noise_makes_nothing_alike() -> None:
    """Where a difference of `NEAR` could hide, neither "cannot be told apart" nor "no better" holds."""
    loud = record({"a": [60.0, 50.0, 58.0], "b": [51.0, 60.0, 57.0], "c": [50.0, 51.0, 66.0], "d": [40.0, 61.0, 55.0]})
    assert loud.better("a", "b")[0] is None is loud.unseen("a", "b")[0] and loud.no_better("a", "b")[0] is None
    group = record(NOISY)
    assert [group.no_better(*pair)[0] for pair in ("ca", "ac", "ab", "ba")] == [True, False, True, True]
    said = group.unseen("a", "b")[1]
    half = critical(6) * residual(np.array(list(NOISY.values())))[0] * math.sqrt(2 / 3)
    means = [float(np.mean(NOISY[name])) for name in "ab"]
    assert said.endswith(f"at most {(abs(means[0] - means[1]) + half) / min(means):.1%} apart in M")


def test_models_that_know_nothing_are_not_compared() -> None:
    group = record(NOISY)
    level = MEASURE.model_copy(update={"levels": [Level(label="chance", value=60.7)]})
    trivial = replace(group, results=group.results.model_copy(update={"measures": [level]}))
    assert group.unseen("a", "b")[0] is True and group.better("a", "c")[0] is True
    for holds, said in (trivial.unseen("a", "b"), trivial.better("a", "c"), trivial.no_better("c", "a")):
        assert holds is None and said.endswith("share no measure in which one of them is beyond its trivial levels")
    lower = level.model_copy(update={"better": "lower"})
    assert replace(group, results=group.results.model_copy(update={"measures": [lower]})).better("c", "a")[0] is True


def test_values_without_noise_decide_nothing() -> None:
    same = record({"a": [50.0, 50.0, 50.0], "b": [25.0, 25.0, 25.0], "c": [50.0, 50.0, 50.0]})
    assert same.better("a", "b")[0] is None is same.unseen("a", "c")[0] and same.no_better("a", "c")[0] is None


def test_one_of_several_questions_needs_a_larger_difference() -> None:
    half = [d.half for k in (1, 4) if (d := record(NOISY).difference("a", "d", MEASURE, 0.05 / k))]
    assert half[1] / half[0] == pytest.approx(critical(6, 0.05 / 4) / critical(6))
    values = {"a": [60.0, 61.0, 60.5], "b": [59.5, 61.2, 60.6], "c": [58.0, 60.1, 58.6]}
    near = record(values)
    assert near.better("a", "c")[0] is True and near.better("a", "c", of=20)[0] is None


def test_the_interval_is_that_of_a_two_way_layout() -> None:
    """Ordinary least squares with dummies for entries and seeds gives the same spread."""
    values = np.array(list(NOISY.values()))
    k, n = values.shape
    design = np.zeros((k * n, k + n))
    for i in range(k):
        for j in range(n):
            design[i * n + j, [i, k + j]] = 1
    left = values.ravel() - design @ np.linalg.lstsq(design, values.ravel(), rcond=None)[0]
    deviation, freedom = residual(values)
    assert freedom == 6 and deviation == pytest.approx(math.sqrt(left @ left / freedom))
    found = record(NOISY).difference("a", "c", record(NOISY).results.measures[0])
    assert found is not None
    assert found.half == pytest.approx(critical(6) * deviation * math.sqrt(2 / 3)) and found.decided == 1


def test_chance_is_told_from_a_difference_as_often_as_is_said() -> None:
    """Five entries that differ by nothing: one of twenty differences is called decided, no more."""
    drawn = np.random.default_rng(0).normal(size=(2000, 5, 2))
    half = [critical(4) * residual(v)[0] for v in drawn]
    wrong = np.mean([abs(v[0].mean() - v[1].mean()) > h for v, h in zip(drawn, half, strict=True)])
    assert 0.035 < wrong < 0.065


def test_one_seed_and_absent_entries_decide_nothing() -> None:
    one = record({"a": [1.0], "b": [2.0]}, seeds=1)
    assert one.better("a", "b") == (None, "one seed alone tells no noise") == one.unseen("a", "b")
    assert record(NOISY).better("a", "z") == (None, "z was not run")


# ---------------------------------------------------------------- where the text comes from


@pytest.mark.parametrize("name", ["real-text", "ladders"])
def test_without_the_data_folder_it_is_one_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Path
) -> None:
    monkeypatch.delenv("UNMASK_DATA", raising=False)
    done = CliRunner().invoke(app, ["lab", name, f"out={tmp_path / 'a'}"])
    assert isinstance(done.exception, UserError) and not (tmp_path / "a").exists()
    assert str(done.exception).startswith(f"laboratory {name} reads real text: give data=DIR, or set UNMASK_DATA")
    with pytest.raises(UserError, match=r"lacks enwiki2015/train-00.jsonl.gz, which"):
        perform(name, tmp_path / "a", data=tmp_path)
    with pytest.raises(UserError, match="laboratory tokens reads no real text"):
        perform("tokens", tmp_path / "a", data=data)


def test_the_shell_sees_exit_code_2(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "unmask", "lab", "real-text", f"out={tmp_path}", f"data={tmp_path}"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["real_text", "ladders"])
def test_it_is_listed_without_torch(name: str) -> None:
    code = f"import sys, unmask.labs.{name}.lab; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---------------------------------------------------------------- the results that were committed


def test_the_committed_claims_follow_from_the_committed_numbers() -> None:
    held = committed("real-text")
    assert [e.name for e in held.entries] == list(ENTRIES) and len(held.seeds) >= 3
    again = judged(held)
    assert again.claims == held.claims and again.tables == held.tables
    assert {len(r.points) for e in held.entries for r in e.runs} == {SETTINGS["milestones"]}
    assert all(e.tuning is not None and len(e.tuning.values) == 3 for e in held.entries)
    (amount,) = held.budget.values()
    for entry in held.entries:
        for run in entry.runs:
            assert run.points[-1].flops == pytest.approx(amount, rel=0.01)
    text = RESULTS.read_text(encoding="utf-8")
    assert len(text) < KEPT and not re.search(r"[\"= ]/\w", text)


Change = Callable[[Results], Results]


def _worse(name: str, measure: str) -> Change:
    """The record with an entry's ends taken to 0."""

    def change(found: Results) -> Results:
        entries = []
        for entry in found.entries:
            runs = entry.runs
            if entry.name == name:
                runs = [
                    r.model_copy(
                        update={
                            "points": [
                                p.model_copy(update={"values": {**p.values, measure: 0.0, "cloze_candidates": 0.0}})
                                for p in r.points
                            ]
                        }
                    )
                    for r in runs
                ]
            entries.append(entry.model_copy(update={"runs": runs}))
        return found.model_copy(update={"entries": entries})

    return change


@pytest.mark.parametrize(
    ("begins", "loser"),
    [
        ("At a third of the budget the causal", "causal"),
        ("At a third of the budget the prefix", "prefix"),
        ("At the end BERT", "masked"),
        ("T5 is behind each", "ul2"),
        ("Without fine-tuning", "causal"),
        ("Causal and prefix", "prefix"),
        ("By scoring candidates", "causal"),
        ("UL2's mixture", "ul2"),
    ],
)
def test_a_claim_fails_where_it_is_false(begins: str, loser: str) -> None:
    changed = judged(_worse(loser, "minimal_pairs")(committed("real-text")))
    (claim,) = (c for c in changed.claims if c.statement.startswith(begins))
    assert claim.holds is False


@pytest.mark.shared
def test_the_gaps_of_wikipedia_are_those_of_the_study(shared_data: Path, tmp_path: Path) -> None:
    """The test is a function of the texts: its first gap, and how many there are."""
    from unmask.labs.real_text.words import _texts, write_gaps

    file = write_gaps(shared_data / READS[0], shared_data / READS[1], tmp_path / "gaps.jsonl")
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 1000
    ranked = ranking(_texts(shared_data / READS[0]))
    order = [sorted(gap["candidates"], key=ranked.index).index(gap["answer"]) for gap in lines]
    shares = [100 * n / len(lines) for _, n in sorted(Counter(order).items())]
    assert shares[0] == pytest.approx(FREQUENT)  # what frequencies alone tell
    assert all(20 < share < 30 for share in shares)
    assert lines[0]["answer"] == FIRST_GAP[0] and lines[0]["candidates"] == FIRST_GAP[1]
