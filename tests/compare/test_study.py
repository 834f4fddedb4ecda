"""A real study, from words to the record: equal budgets, equal milestones, one protocol each; killed and resumed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import unmask.cli.compare  # noqa: F401  (joins the verb to the app)
from unmask.cli.output import app
from unmask.compare import collecting, measures
from unmask.compare.disk import read
from unmask.compare.job import Spec
from unmask.compare.jobs import Job, run
from unmask.compare.results import Entry, Measure, Point, Results, Run
from unmask.compare.settings import written_out
from unmask.compare.study import compare, compare_words
from unmask.data.worlds import World
from unmask.directory import prepared
from unmask.errors import UserError
from unmask.loading import load
from unmask.recipe import load_recipe

FLOPS = 3e8


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the text of the small world, and gaps with two candidates."""
    folder = tmp_path_factory.mktemp("compare")
    world = World()
    for split in ("train", "valid"):
        (folder / f"{split}.txt").write_text(world.text(("facts", "reviews"), split), encoding="utf-8")
    gaps = [
        {"text": f"{p} [MASK] in {c}.", "answer": "lives", "candidates": ["lives", "found"], "relation": "verb"}
        for p, c in zip(world.people[:6], world.cities[:6], strict=True)
    ]
    (folder / "gaps.jsonl").write_text("".join(json.dumps(g) + "\n" for g in gaps))
    return folder


def words(place: Path, out: str, *more: str) -> list[str]:
    return [
        "masked=encoder-small:objective.mask_rate=0.2",
        "causal=decoder-small",
        f"corpus={place / 'train.txt'}",
        f"valid={place / 'valid.txt'}",
        "corpus.document=line",
        "valid.document=line",
        "tokenizer.type=char",
        "model.hidden_size=16",
        "model.num_heads=2",
        "model.num_layers=1",
        "context=32",
        "train.batch_size=4",
        "train.warmup_steps=4",
        f"budget.flops={FLOPS:g}",
        "seeds=2",
        "milestones=3",
        "limit=8",
        f"suites=bpb,cloze:{place / 'gaps.jsonl'}",
        f"out={place / out}",
        f"cache={place / 'cache'}",
        *more,
    ]


@pytest.fixture(scope="module")
def found(place: Path) -> Results:
    return compare_words(words(place, "whole", "processes=2"), say=lambda _: None)[1]


def test_the_record_and_its_page_lie_in_the_study(place: Path, found: Results) -> None:
    out = place / "whole"
    assert Results.read(out / "results.json") == found
    assert "masked" in (out / "report.html").read_text()
    assert found.command.startswith("unmask compare masked=") and "processes" not in found.command
    assert [e.name for e in found.entries] == ["masked", "causal"] and found.seeds == [0, 1]
    assert found.environment["threads"] == 1
    assert "held-out text: " in found.contamination and "cloze" in found.contamination


def test_budgets_are_equal_within_one_update_and_milestones_are_the_same_parts(found: Results) -> None:
    for entry in found.entries:
        for one in entry.runs:
            end = one.points[-1]
            assert abs(end.flops - FLOPS) <= end.flops / end.step
            assert [p.step for p in one.points] == sorted({p.step for p in one.points}) and len(one.points) == 3
            for k, point in enumerate(one.points, 1):
                assert abs(point.step - end.step * k / 3) <= 1.5
        assert entry.flops_per_token == pytest.approx(end.flops / end.tokens, rel=0.02)
    masked, causal = found.entries
    assert causal.target_density == 1.0 and masked.target_density == pytest.approx(0.2, abs=0.02)
    assert masked.parameters != causal.parameters


def test_what_has_another_event_has_another_measure(found: Results) -> None:
    names = {m.name for m in found.measures}
    pseudo = "pseudo_bits_per_byte_each_token_masked"
    assert names == {"bits_per_byte", pseudo, "cloze_candidates", "loss_masked", "loss_causal"}
    masked, causal = found.entries
    have = [{k for r in e.runs for p in r.points for k in p.values} for e in (masked, causal)]
    assert have == [{pseudo, "cloze_candidates", "loss_masked"}, {"bits_per_byte", "cloze_candidates", "loss_causal"}]
    assert set(masked.cannot) == {"bits_per_byte", "loss_causal"}
    assert "Bits per byte" in causal.cannot[pseudo] and "another event" in causal.cannot[pseudo]
    assert {c.measure for c in found.comparisons} == {"cloze_candidates"}


def test_training_shows_in_the_values(found: Results) -> None:
    for entry, name in zip(found.entries, ("loss_masked", "loss_causal"), strict=True):
        for one in entry.runs:
            losses = [p.values[name] for p in one.points]
            assert losses == sorted(losses, reverse=True)
    two = [r.points[-1].values["loss_causal"] for r in found.entries[1].runs]
    assert two[0] != two[1]  # seeds differ


def test_samples_are_the_same_prompts(found: Results) -> None:
    masked, causal = found.entries
    assert masked.can == {"score": True, "fill": True, "generate": True, "embed": True} and not causal.can["fill"]
    asked = [[s.asked for s in e.runs[0].samples] for e in (masked, causal)]
    assert len(asked[0]) == 2 and "[MASK]" in asked[0][0] and asked[1] == asked[0][1:]
    assert not masked.runs[1].samples


def test_a_finished_study_is_resumed_without_a_run_and_says_the_same(place: Path, found: Results) -> None:
    before = (place / "whole" / "results.json").read_bytes()
    (place / "whole" / "results.json").unlink()
    began = time.monotonic()
    ended = CliRunner().invoke(app, ["compare", *words(place, "whole", "resume=must")])
    assert ended.exit_code == 0 and "Cloze, of candidates" in ended.stdout and "report.html" in ended.stdout
    assert "too few seeds to tell" in ended.stdout and "fewer than 3 seeds: this study has 2" in ended.stdout
    assert (place / "whole" / "results.json").read_bytes() == before and time.monotonic() - began < 10
    ended = CliRunner().invoke(app, ["compare", *words(place, "whole", "resume=must"), "--json"])
    assert Results.model_validate_json(ended.stdout) == found
    with pytest.raises(UserError, match="was started with milestones=3, not 4"):
        compare_words([*words(place, "whole", "resume=auto"), "milestones=4"], say=lambda _: None)


def test_seeds_are_added_to_a_finished_study_and_what_is_there_stays(place: Path, found: Results) -> None:
    out = place / "grown"
    shutil.copytree(place / "whole", out)
    kept = [out / "plan.json", *sorted((out / "jobs").glob("*.json"))]
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in kept}
    said: list[str] = []
    more = compare_words([*words(place, "grown"), "seeds=3", "resume=auto"], say=said.append)[1]
    assert before == {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in kept} and len(kept) == 5
    assert "4 of 6 jobs are done already" in said
    assert more.seeds == [0, 1, 2] and "seeds=3" in more.command and more == Results.read(out / "results.json")
    assert read(out / "study.yaml").seeds == [0, 1, 2] and read(out / "study.yaml").command == more.command
    for now, then in zip(more.entries, found.entries, strict=True):
        assert now.runs[:2] == then.runs and now.runs[2].seed == 2 and not now.runs[2].samples
        assert now.runs[2].points[-1].values != now.runs[0].points[-1].values
    text = (out / "report.html").read_text()
    told = "Seeds were added after results of 2 were seen: verdicts on all 3"
    assert "3 seeds" in text and told in text and more.notes[0].startswith(told) and more.notes[0] in said
    with pytest.raises(UserError, match=r"was started with seeds=0,1,2, not 0,1: seeds may be added behind these"):
        compare_words([*words(place, "grown"), "resume=auto"], say=lambda _: None)
    assert compare_words([*words(place, "grown"), "seeds=3", "resume=must"], say=lambda _: None)[1] == more


def test_a_job_that_fails_names_its_log(place: Path) -> None:
    study = place / "failing"
    (study / "runs").mkdir(parents=True)
    recipe = load_recipe("decoder-small", {"corpus": str(place / "missing.txt"), "budget.steps": 3})
    job = Job("gpt, seed 0", study / "jobs" / "gpt-0", Spec("run", written_out(recipe), "runs/gpt/0"))
    with pytest.raises(UserError, match=r"the job gpt, seed 0 ended with code 2 \(.*gpt-0.log\): .*missing.txt"):
        run([job], 1, lambda _: None)
    assert not job.found.exists()


def test_refusals_that_need_a_place(place: Path) -> None:
    with pytest.raises(UserError, match="no place for the study: give out=DIR"):
        compare_words(["encoder-small", "budget.steps=9", f"corpus={place / 'train.txt'}"])
    with pytest.raises(UserError, match=r"the study has no corpus: give corpus=PATH"):
        compare_words(["encoder-small", "decoder-small"])
    with pytest.raises(UserError, match=r"the study has no corpus: give corpus=PATH"):
        compare("encoder-small", "decoder-small", out=place / "x", budget__steps=9)
    with pytest.raises(UserError, match="processes=0 runs nothing"):
        compare(*words(place, "x")[:2], out=place / "x", corpus=str(place / "train.txt"), budget__steps=9, processes=0)
    with pytest.raises(UserError, match=r"nothing to compare: .* such as unmask compare encoder-small .* out=DIR"):
        CliRunner().invoke(app, ["compare"], catch_exceptions=False, standalone_mode=False)
    for option in (["--seed", "5"], ["--seed=5"]):
        with pytest.raises(UserError, match=r"'--seed.*' is no option of compare: .* did you mean 'seeds?'"):
            CliRunner().invoke(app, ["compare", "encoder-small", *option], catch_exceptions=False)
    with pytest.raises(UserError, match="processes=two is no whole number"):
        compare_words(words(place, "x", "processes=two"))


def without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_seconds(v) for k, v in value.items() if k not in ("seconds", "command")}
    return [without_seconds(v) for v in value] if isinstance(value, list) else value


def test_items_are_kept_of_the_last_milestone_and_the_page_says_what_they_tell(place: Path, found: Results) -> None:
    for entry in found.entries:
        for one in entry.runs:
            held = [point.details["cloze_candidates"].get("items") for point in one.points]
            assert held[:-1] == [None, None] and held[-1]["of"] == "gaps" and len(held[-1]["outcomes"]) == 6
    (compared,) = found.comparisons
    assert compared.over_items is not None and compared.over_items.seeds == 2 and compared.over_items.p is None
    page = (place / "whole" / "report.html").read_text()
    assert "Over items and seeds" in page and any("Over items and seeds" in note for note in found.notes)


MINE = """
from unmask.compare.results import Measure
from unmask.errors import UserError

def count(lm, limit):
    if lm.can("fill"):
        raise UserError("it fills gaps, which are not counted")
    return [(Measure(name="mine", label="Mine", protocol="p", better="higher"), 2.0, {"items": [1.0, 3.0], "n": limit})]

def twice(lm, limit):
    return [*count(lm, limit), *count(lm, limit)]
"""


def test_a_function_of_ones_own_measures_and_ctrl_c_leaves_what_can_be_continued(
    place: Path, found: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one entry and seed of the study above, so that its numbers must come out again."""
    (place / "mine_of_compare.py").write_text(MINE)
    monkeypatch.chdir(place)
    own = [w for w in words(place, "own", "processes=1") if not w.startswith(("masked=", "seeds=", "suites="))]
    own += [f"suites=bpb,cloze:{place / 'gaps.jsonl'},mine_of_compare:count@7", "seeds=1"]
    command = [sys.executable, "-m", "unmask", "compare", *own]
    heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background job would not hear it
    quiet = subprocess.DEVNULL
    one = subprocess.Popen(command, stdout=quiet, stderr=subprocess.PIPE, text=True, preexec_fn=heard)
    while not list((place / "own").glob("runs/causal/0/metrics.jsonl")) and one.poll() is None:
        time.sleep(0.02)
    one.send_signal(signal.SIGINT)
    said = one.communicate(timeout=60)[1]
    assert one.returncode not in (0, None) and "resume=auto continues the study" in said and "Traceback" not in said
    assert list((place / "own").glob("runs/causal/0/checkpoints/step-*")) and not holders(place / "own" / ".lock")
    assert not (place / "own" / "results.json").exists()
    again = compare_words([*own, "resume=auto"], say=lambda _: None)[1]
    (causal,) = again.entries
    for now, before in zip(causal.runs[0].points, found.entries[1].runs[0].points, strict=True):
        assert now.values == {**before.values, "mine": 2.0} and now.step == before.step
    details = [p.details["mine"] for p in causal.runs[0].points]
    assert details == [{"n": 7}, {"n": 7}, {"items": [1.0, 3.0], "n": 7}]


def test_a_function_may_refuse_a_model_but_not_take_a_name(
    place: Path, found: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "mine_too.py").write_text(MINE)
    monkeypatch.chdir(place)
    masked, causal = (load(place / "whole" / "runs" / name / "0") for name in ("masked", "causal"))
    text = prepared(place / "whole" / "runs" / "causal" / "0", place / "cache")
    refused = measures.ask(masked, {"mine_too:count": (None, 3)}, text)[1]
    assert refused == {"mine_too:count": "it fills gaps, which are not counted"}
    answers, refused = measures.ask(causal, {"mine_too:twice": (None, 3)}, text)
    assert not refused
    with pytest.raises(UserError, match=r"two measures are called mine \(mine_too:twice\)"):
        measures.require_names(answers)


def test_what_most_entries_are_asked_stands_first_and_titles_are_read_aloud(found: Results) -> None:
    asked = [sum(m.name in e.runs[0].points[-1].values for e in found.entries) for m in found.measures]
    own = [m.name.startswith("loss") for m in found.measures]
    assert own == sorted(own) and asked[: own.index(True)] == sorted(asked[: own.index(True)], reverse=True)
    assert found.title == "masked and causal at 3e8 FLOPs each"
    assert found.contamination.startswith("Found in the training text: held-out text: ")


def test_two_protocols_in_one_column_are_an_error() -> None:
    """A function of one's own may give one name to two events."""

    def job(name: str, protocol: str) -> collecting.Found:
        measure = Measure(name="answers", label="Answers", protocol=protocol, better="higher", unit="per cent")
        found = {"measures": {"answers": {"suite": "my:own", "measure": measure.model_dump(), "why": ""}}}
        return name, Spec("run", {}, name), found

    same = {"a": [job("a, seed 0", "free generation")], "b": [job("b, seed 0", "free generation")]}
    assert [m.name for m in collecting._measures(same)[0]] == ["answers"]
    mixed = {**same, "b": [job("b, seed 0", "free generation"), job("b, seed 1", "3 candidates")]}
    with pytest.raises(UserError, match=r"answers has two kinds of protocol: 'free generation' in a, seed 0, '3 cand"):
        collecting._measures(mixed)


def test_samples_of_other_texts_are_told() -> None:
    """Bits per byte of 64 pieces: of as many pieces the same are drawn, of another number others."""

    def entry(name: str, pieces: int, sampled: bool = True) -> Entry:
        event = f"log p(text); a sample of 64 of {pieces} pieces, its bits" if sampled else "log p(text)"
        details = {"bits_per_byte": {"event": event, "counts": {"tokens": 5000}}}
        point = Point(
            step=1, tokens=1, target_tokens=1, flops=1, seconds=1, values={"bits_per_byte": 2}, details=details
        )
        runs = [Run(seed=0, points=[point])]
        return Entry(
            name=name, settings={}, parameters=1, flops_per_token=1, target_density=1, can={"score": True}, runs=runs
        )

    bits = Measure(name="bits_per_byte", label="Bits per byte", protocol="p", better="lower")
    same = collecting._notes([bits], [entry("a", 663), entry("b", 663)])
    assert not any("different samples" in note for note in same)
    (told,) = [n for n in collecting._notes([bits], [entry("a", 663), entry("b", 330)]) if "different samples" in n]
    assert "a: sample of 64 of 663 pieces" in told and "b: sample of 64 of 330 pieces" in told
    assert any("b: all of it" in n for n in collecting._notes([bits], [entry("a", 663), entry("b", 60, sampled=False)]))


@pytest.mark.slow
def test_killed_studies_continue_and_say_the_same_bit_for_bit(place: Path) -> None:
    more = ("tune=lr:3:0.5", "processes=2")

    def start(out: str, resume: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "unmask", "compare", *words(place, out, *more), f"resume={resume}"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    assert start("uncut", "never").wait() == 0
    out = place / "cut"
    for mark in ("tuning/masked/*/metrics.jsonl", "runs/*/*/checkpoints/step-*"):  # amid tuning, then amid the runs
        one = start("cut", "auto")
        while not list(out.glob(mark)) and one.poll() is None:
            time.sleep(0.02)
        assert one.poll() is None, "the study ended before it was killed"
        one.send_signal(signal.SIGKILL)
        one.wait()
        began = time.monotonic()
        while holders(out / ".lock") and time.monotonic() - began < 10:
            time.sleep(0.05)
        assert not holders(out / ".lock"), "its jobs outlive a study that is killed"
        assert not (out / "results.json").exists()
    assert start("cut", "must").wait() == 0
    uncut, cut = (json.loads((place / name / "results.json").read_text()) for name in ("uncut", "cut"))
    assert without_seconds(cut) == without_seconds(uncut)
    tuned = uncut["entries"][0]["tuning"]
    assert tuned["seed"] == 1000 and len(tuned["losses"]) == 3 and tuned["flops"] == pytest.approx(1.5 * FLOPS, rel=0.1)
    rates = uncut["entries"][0]["settings"]["train"]
    assert rates["learning_rate"] == tuned["chosen"]
    assert rates["muon_learning_rate"] / 0.02 == pytest.approx(rates["learning_rate"] / 0.003)


def holders(file: Path) -> list[str]:
    """Processes that hold a file open (Linux)."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link) == str(file):
                found.append(link.parts[2])
        except OSError:
            continue
    return found
