"""A laboratory: claims over seeds, what a run writes, what it refuses, and the pages that its results draw."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

import unmask.cli.lab  # noqa: F401  (joins the verb to the app)
from unmask.cli.output import app
from unmask.compare.results import Results
from unmask.errors import UserError
from unmask.labs import base
from unmask.labs.base import MODULES, Asked, Lab, Statement, Verdict, claims, laboratories, laboratory, perform
from unmask.labs.processes import side_by_side

ROOT = Path(__file__).resolve().parents[2]


def judged(n: int) -> Verdict:
    return (None if n < 0 else n % 2 == 0), f"n = {n}"


EVEN = Statement[int]("n is even", "nowhere", judged)


@pytest.mark.parametrize(
    ("found", "holds", "evidence"),
    [
        ([2], True, "n = 2"),
        ([2, 2], True, "n = 2"),
        ([2, 4], True, "n = 2 (the 1st of 2 seeds)"),
        ([4, 3, 5], False, "Under the 2nd seed: n = 3; under the 3rd: n = 5; under the 1st, where it holds: n = 4"),
        ([3, 4], False, "Under the 1st seed: n = 3; under the 2nd, where it holds: n = 4"),
        ([2, -1], None, "Under the 2nd seed: n = -1; under the 1st, where it holds: n = 2"),
        ([-1, 3], False, "Under the 1st seed: n = -1; under the 2nd: n = 3"),
    ],
)
def test_a_claim_holds_where_it_holds_under_every_seed(found: list[int], holds: bool | None, evidence: str) -> None:
    (claim,) = claims([EVEN], found)
    assert (claim.holds, claim.evidence, claim.source) == (holds, evidence, "nowhere")


STATEMENTS = {
    "tokens": "lab",
    "objectives": "lab",
    "inside": "statements",
    "architectures": "statements",
    "electra": "statements",
    "beyond": "statements",
    "real_text": "statements",
    "ladders": "statements",
}
LEANS = re.compile(r"(It|Its|They|Their|Nor|And|So) ")
"""How a statement begins that says nothing without the one before it."""


@pytest.mark.parametrize(("name", "module"), STATEMENTS.items())
def test_a_statement_stands_by_itself(name: str, module: str) -> None:
    held = importlib.import_module(f"unmask.labs.{name}.{module}")
    each = held.statements(0.5) if name == "architectures" else held.STATEMENTS
    assert len(each) > 10 and len({s.text for s in each}) == len(each)
    for statement in each:
        assert not LEANS.match(statement.text), statement.text
        assert "issue" not in f"{statement.text} {statement.source}", statement.text


def test_works_run_side_by_side_and_are_told_as_they_end() -> None:
    said: list[str] = []
    works = [partial(divmod, 7, 2), partial(divmod, 9, 5)]
    assert side_by_side(works, said.append, lambda k, found: f"the {k}th is {found}") == [(3, 1), (1, 4)]
    assert said[0].startswith("2 models, ") and [line[:8] for line in said[1:]] == ["1 of 2: ", "2 of 2: "]
    assert {line[8:] for line in said[1:]} == {"the 0th is (3, 1)", "the 1th is (1, 4)"}


def _stub(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """A laboratory that measures nothing, in the place of `tokens`."""
    asked: list[Asked] = []

    def run(one: Asked) -> Results:
        asked.append(one)
        return Results(title="Stub", command="", claims=claims([EVEN], one.seeds), environment={"own": 1})

    lab = Lab("tokens", "Stub", "nothing.", run, lambda results: f"<svg>{results.title}</svg>")
    monkeypatch.setattr(base, "laboratory", lambda name: lab)
    return asked


def test_a_run_writes_the_record_the_page_and_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, out = _stub(monkeypatch), tmp_path / "deep" / "out"
    found = perform("tokens", out, seeds=2)
    assert asked == [Asked(out, (0, 1), "never", asked[0].say)]
    assert Results.read(out / "results.json") == found
    assert found.seeds == [0, 1] and found.command == f"unmask lab tokens out={out} seeds=2"
    assert found.environment["own"] == 1 and "packages" in found.environment
    assert found.claims[0].statement in (out / "report.html").read_text(encoding="utf-8")
    assert (out / "picture.svg").read_text(encoding="utf-8") == "<svg>Stub</svg>"


def test_a_folder_with_files_is_taken_only_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _stub(monkeypatch)
    (tmp_path / "mine.txt").write_text("precious", encoding="utf-8")
    with pytest.raises(UserError, match="not empty: give another out="):
        perform("tokens", tmp_path)
    with pytest.raises(UserError, match="is a file: give a folder"):
        perform("tokens", tmp_path / "mine.txt")
    assert not asked and [f.name for f in tmp_path.iterdir()] == ["mine.txt"]
    perform("tokens", tmp_path, resume="auto")
    assert asked[0].resume == "auto" and (tmp_path / "mine.txt").read_text(encoding="utf-8") == "precious"


@pytest.mark.parametrize("seeds", [0, -1, 1001])
def test_so_many_seeds_are_refused(tmp_path: Path, seeds: int) -> None:
    with pytest.raises(UserError, match=f"seeds={seeds} is how many"):
        perform("tokens", tmp_path, seeds)


def test_every_laboratory_is_known_by_its_name() -> None:
    assert [lab.name for lab in laboratories()] == list(MODULES)
    with pytest.raises(UserError, match=r"no laboratory 'token': choose tokens, .*did you mean 'tokens'"):
        laboratory("token")


# ---------------------------------------------------------------- the verb


def test_the_verb_lists_laboratories() -> None:
    rows = json.loads(CliRunner().invoke(app, ["lab", "--list", "--json"]).stdout)
    assert [row["name"] for row in rows] == list(MODULES) and all(row["title"] and row["about"] for row in rows)
    lines = CliRunner().invoke(app, ["lab", "--list"]).stdout.splitlines()
    assert [line.split()[0] for line in lines[::2]] == list(MODULES)
    assert [line.strip() for line in lines[1::2]] == [row["about"] for row in rows]


def test_the_verb_runs_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _stub(monkeypatch)
    done = CliRunner().invoke(app, ["lab", "tokens", f"out={tmp_path / 'a'}", "seeds=2"])
    assert done.exit_code == 0 and "1 of 2 seeds  n is even (nowhere)" in done.stdout
    done = CliRunner().invoke(app, ["lab", "tokens", f"out={tmp_path / 'b'}", "--json"])
    assert json.loads(done.stdout)["claims"][0]["holds"] is True


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a laboratory: unmask lab --list"),
        (["tokens"], "no out: say where to write, as in unmask lab tokens out=DIR"),
        (["tokens", "out=x", "seeds=two"], "seeds=two is no whole number"),
        (["tokens", "out=x", "resume=yes"], "resume=yes is none of never, auto"),
        (["tokens", "out=x", "seed=2"], "'seed=2' is no setting of a laboratory: .*did you mean 'seeds'"),
        (["tokens", "x"], "'x' is no setting"),
        (["tokens", "out=x", "out=y"], "out is given twice, out=x and out=y"),
        (["token", "out=x"], "no laboratory 'token'"),
        (["token"], "no laboratory 'token': .*did you mean 'tokens'"),
        (["tokens", "--list"], "--list names every laboratory"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["lab", *arguments])
    assert isinstance(done.exception, UserError)
    with pytest.raises(UserError, match=said):
        raise done.exception


# ---------------------------------------------------------------- pages


def test_the_pages_say_what_the_results_say() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "docs" / "draw_labs.py"), "--check"])
    assert done.returncode == 0, "run python docs/draw_labs.py"


def test_laboratories_without_models_load_no_torch() -> None:
    code = """
import sys
from unmask.labs.base import laboratory
laboratory("tokens"), laboratory("objectives")
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
