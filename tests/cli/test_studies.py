"""A study's folder, a wrong number or a benchmark's name in a wrong place: one sentence says what to give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import unmask.cli  # noqa: F401  (joins the verbs to the app)
from unmask.cli.output import app
from unmask.errors import UserError
from unmask.loading import load
from unmask.run import resume_run


def refused(*words: str) -> str:
    ended = CliRunner().invoke(app, list(words))
    assert isinstance(ended.exception, UserError), (ended.output, ended.exception)
    return str(ended.exception)


def run(place: Path) -> Path:
    place.mkdir(parents=True)
    (place / "recipe.yaml").write_text("model: {}\n")
    return place


def compared(out: Path) -> str:
    out.mkdir()
    (out / "study.yaml").write_text("command: unmask compare a b corpus=my.txt out=s\n")
    return "a study of unmask compare"


def ladder(out: Path) -> str:
    (out / "jobs").mkdir(parents=True)
    (out / "jobs" / "1M-1e12.job").write_text("{}")
    return "a ladder of unmask scale"


def laboratory(out: Path) -> str:
    out.mkdir()
    (out / "results.json").write_text(json.dumps({"command": "unmask lab beyond out=b seeds=5"}))
    return "what unmask lab beyond wrote"


STUDIES = {"compare": compared, "ladder": ladder, "laboratory": laboratory}
OTHERS = {
    "evaluate": (),
    "generate": ("once",),
    "fill": ("a [MASK]",),
    "score": ("a text",),
    "export": ("there",),
    "gather": ("there",),
    "inspect": (),
}


@pytest.mark.parametrize("kind", STUDIES)
def test_a_study_in_place_of_a_run(kind: str, tmp_path: Path) -> None:
    out = tmp_path / "s"
    what = STUDIES[kind](out)
    assert f"{out} is {what}, not a run: give a run (beneath it lies none yet)" == refused("evaluate", str(out))
    inside = run(out / "runs" / "a" / "0")
    run(out / "tuning" / "a" / "0")
    said = f"{out} is {what}, not a run: give one of its runs, such as {inside}"
    assert {verb: refused(verb, str(out), *more) for verb, more in OTHERS.items()} == dict.fromkeys(OTHERS, said)
    assert refused("generate", str(out), "once", "--network", "generator") == said
    with pytest.raises(UserError, match="not a run: give one of its runs"):
        load(out)
    resumed = refused("resume", str(out))
    assert resumed.endswith(f"resume=auto), or give one of its runs, such as {inside}")
    again = {
        "compare": "unmask compare a b corpus=my.txt out=s",
        "ladder": "unmask scale run …",
        "laboratory": "unmask lab beyond out=b seeds=5",
    }
    assert f"continue it by its own command ({again[kind]} resume=auto)" in resumed
    with pytest.raises(UserError, match="continue it by its own command"):
        resume_run(out)


def test_a_folder_of_runs_and_one_of_nothing(tmp_path: Path) -> None:
    inside = run(tmp_path / "runs" / "a")
    assert refused("resume", str(tmp_path / "runs")).endswith(
        f"a folder of runs, not a run: give one of its runs, such as {inside}"
    )
    (tmp_path / "empty").mkdir()
    assert "it has no recipe.yaml" in refused("resume", str(tmp_path / "empty"))
    assert "is no model" in refused("evaluate", str(tmp_path / "empty"))


def test_the_demo_wants_a_number_of_tokens(tmp_path: Path) -> None:
    ending = " above 0, as in --tokens 600000"
    for given, says in (
        ("twenty", "is no number: give one"),
        ("nan", "trains nothing: give a number"),
        ("inf", "trains nothing: give a number"),
    ):
        said = refused("demo", "--tokens", given, "--out", str(tmp_path / "d"))
        assert said == f"--tokens {given} {says}{ending}"
    assert not (tmp_path / "d").exists()


def test_blimp_is_a_suite_of_minimal_pairs() -> None:
    said = refused("evaluate", "nowhere", "../blimp", "--suite", "blimp")
    assert said.startswith("no suite 'blimp' (known: bpb, minimal-pairs") and "write --suite minimal-pairs" in said
    assert "did you mean 'bpb'" in refused("evaluate", "nowhere", "--suite", "bbp")
