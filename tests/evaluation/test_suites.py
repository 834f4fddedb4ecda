from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from unmask import load
from unmask.cli import app
from unmask.cli.models import PIECES
from unmask.errors import UserError
from unmask.evaluation import items
from unmask.evaluation.items import Options
from unmask.evaluation.plans import plans_of
from unmask.evaluation.score import BATCH_TOKENS
from unmask.evaluation.suites import SUITES, encode, evaluate
from unmask.evaluation.watch import shown
from unmask.run import evaluate as run_evaluate

from .helpers import OBJECTIVES, model_of
from .test_lm import written_run
from .test_pairs import sentences

PAIR = {"sentence_good": "the cat sat", "sentence_bad": "the cat cat"}
GAP = {"text": "the [MASK] sat", "answer": "cat", "candidates": ["cat", "log"], "relation": "nouns"}
QUESTION = {"context": "a dog", "choices": [" sat", " mat"], "label": 0}
FILES = {"minimal-pairs": PAIR, "cloze": GAP, "choice": QUESTION}


def write(place: Path, *lines: dict[str, Any]) -> Path:
    place.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return place


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written_run(model_of("masked"), tmp_path_factory.mktemp("suites") / "run")


def test_bad_input_is_said() -> None:
    lm = model_of("causal")
    with pytest.raises(UserError, match=r"no suite 'bbp' .*; did you mean 'bpb'"):
        evaluate(lm, "bbp", encode(lm, ["a"]))
    with pytest.raises(UserError, match="limit=0 must be at least 1"):
        evaluate(lm, "bpb", encode(lm, ["a"]), Options(limit=0))
    for suite in ("minimal-pairs", "choice"):
        with pytest.raises(UserError, match="give a file of JSON lines"):
            run_evaluate(lm, suite)
    with pytest.raises(UserError, match="give a file"):
        run_evaluate(lm, "bpb")


def test_what_does_not_fit_is_said_before_anything_is_read() -> None:
    lm = model_of("causal")
    for suite in SUITES:
        with pytest.raises(UserError, match="plan pseudo does not fit"):
            run_evaluate(lm, suite, "absent.jsonl", plan="pseudo")
        with pytest.raises(UserError, match="limit=0 must be at least 1"):
            run_evaluate(lm, suite, "absent.jsonl", limit=0)
    for suite in FILES:
        with pytest.raises(UserError, match=f"{suite} reads no rolling windows: drop stride=4, which is for bpb"):
            run_evaluate(lm, suite, "absent.jsonl", stride=4)


def test_a_run_whose_text_is_gone_is_measured_on_another_text_without_a_floor(tmp_path: Path) -> None:
    run = written_run(model_of("masked"), tmp_path / "run")
    (run / "text.json").write_text(json.dumps({"prepared": str(tmp_path / "gone")}))
    file = tmp_path / "text.txt"
    file.write_text("the cat sat on the mat")
    found = run_evaluate(run, "bpb", file, cache=tmp_path / "cache")
    assert isinstance(found["value"], float) and found["unigram_floor"] is None
    assert len(found["warnings"]) == 1 and "no unigram floor" in found["warnings"][0]
    with pytest.raises(UserError):
        run_evaluate(run, "bpb", cache=tmp_path / "cache")


def test_warnings_are_printed_once_and_a_missing_value_is_shown(run: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "q.jsonl", {"context": "the cat", "choices": ["sat", "is"], "label": 0})
    words = ["evaluate", str(run), str(data), "--suite", "choice"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.stderr.count("without a blank") == 1 and "without a blank" not in done.stdout
    data = write(tmp_path / "gaps.jsonl", {"text": "the [MASK]", "answer": "several tokens"})
    done = CliRunner().invoke(app, ["evaluate", str(run), str(data), "--suite", "cloze"], catch_exceptions=False)
    assert any(line.split() == ["value", "–"] for line in done.stdout.splitlines())


@pytest.mark.parametrize("suite", SUITES)
def test_every_suite_names_protocol_plan_and_event_and_gives_a_value(suite: str, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("the cat sat on the mat")
    data = write(tmp_path / "items.jsonl", FILES[suite]) if suite in FILES else file
    for name, objective in OBJECTIVES.items():
        r = run_evaluate(model_of(name), suite, data)
        assert r["suite"] == suite and r["plan"] in plans_of(objective) and "log p" in r["event"]
        assert isinstance(r["value"], float) and r["label"] and r["counts"]
        assert suite == "bpb" or r["protocol"]
        assert json.loads(json.dumps(r, allow_nan=False)) == r


@pytest.mark.parametrize("suite", [*FILES, "bpb"])
def test_the_command_prints_tables_or_one_json_value(suite: str, run: Path, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("the cat sat on the mat")
    data = write(tmp_path / "items.jsonl", FILES[suite], FILES[suite]) if suite in FILES else file
    words = ["evaluate", str(run), str(data), "--suite", suite, "--plan", "pseudo_words", "--seed", "3"]
    done = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    (line,) = done.stdout.splitlines()
    found, limit = json.loads(line), PIECES if suite == "bpb" else None
    assert found == run_evaluate(run, suite, data, plan="pseudo_words", seed=3, limit=limit) | {"value": found["value"]}
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    shown_lines = done.stdout.splitlines()
    assert any(line.split()[:1] == ["value"] for line in shown_lines)
    table = {"minimal-pairs": "set", "cloze": "relation", "choice": "reading"}.get(suite)
    assert table is None or any(line.startswith(f"  {table} ") for line in shown_lines)


def test_two_protocols_are_printed_one_after_the_other(run: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "items.jsonl", GAP, {"text": "the ca[MASK]", "answer": "t", "relation": "letters"})
    done = CliRunner().invoke(app, ["evaluate", str(run), str(data), "--suite", "cloze"], catch_exceptions=False)
    assert "two protocols" in done.stdout
    tables = [line for line in done.stdout.splitlines() if line.startswith("  relation ")]
    assert len(tables) == 2 and "p_at_10" not in tables[0] and "p_at_10" in tables[1]


def test_the_command_runs_the_shipped_battery(run: Path) -> None:
    words = ["evaluate", str(run), "--suite", "cloze", "--limit", "1", "--json"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert json.loads(done.stdout)["counts"]["gaps"] == 7


def test_scores_name_their_plan_and_end_on_the_command_line(run: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["score", str(run), "the cat", "--plan", "pseudo_words", "--json"], catch_exceptions=False
    )
    assert json.loads(done.stdout)["plan"] == "pseudo_words"
    with pytest.raises(UserError, match="drop end"):
        CliRunner().invoke(app, ["score", str(run), "the cat", "--end"], catch_exceptions=False)
    causal = written_run(model_of("causal"), tmp_path / "causal")
    done = CliRunner().invoke(app, ["score", str(causal), "a", "--end", "--json"], catch_exceptions=False)
    assert json.loads(done.stdout)["tokens"] == 2 and "[EOS]" in json.loads(done.stdout)["event"]


def test_generate_says_when_the_trained_context_is_full(tmp_path: Path) -> None:
    run = written_run(model_of("causal", context=12), tmp_path / "run")
    done = CliRunner().invoke(app, ["generate", str(run), "the cat", "--max-tokens", "40"], catch_exceptions=False)
    assert done.stderr == "the text stopped at the trained context of 12 tokens, before max_tokens=40\n"
    words = ["generate", str(run), "the cat", "a", "--max-tokens", "3", "--json"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert [json.loads(line)["stopped"] for line in done.stdout.splitlines()] == ["tokens"] * 2 and done.stderr == ""


def test_imports_print_json(tmp_path: Path) -> None:
    from .test_lm import GPT2

    model_of("causal", **GPT2).export(tmp_path / "hf")  # type: ignore[arg-type]
    words = ["import", str(tmp_path / "hf"), str(tmp_path / "run"), "--json"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert json.loads(done.stdout) == {
        "run": str(tmp_path / "run"), "source": str(tmp_path / "hf"), "format": "hf"
    }  # fmt: skip


@pytest.mark.parametrize("name", ["causal", "masked", "spans"])
def test_f23_a_thousand_texts_stream_through_a_run_of_our_own(name: str, tmp_path: Path) -> None:
    """No forward pass holds more than about BATCH_TOKENS, however many texts there are."""
    lm = load(written_run(model_of(name), tmp_path / "run"), device="cpu")
    texts = sentences(1000, words=3)
    seen: list[int] = []
    lm.network.register_forward_pre_hook(lambda _, given: seen.append(given[0].stream.tokens.numel()))
    found = list(items.scored(lm, texts))
    assert len(found) == 1000 and len(seen) > 1 and max(seen) <= 1.2 * BATCH_TOKENS
    alone = lm.score(texts[::250])
    for s, one in zip(found[::250], alone, strict=True):
        assert s.logprob == pytest.approx(one.logprob, rel=1e-5) and s.event == one.event


def test_progress_has_rate_and_time_left(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.evaluation.watch.INTERVAL", 0.0)
    with shown("sentences", 30) as advance:
        for _ in range(3):
            advance(10)
    out = capsys.readouterr()
    assert out.out == ""
    assert [line.split(" · ")[0] for line in out.err.splitlines()] == [f"sentences {n}/30" for n in (10, 20, 30)]
    assert all("/s" in line and line.endswith(" left") for line in out.err.splitlines())
