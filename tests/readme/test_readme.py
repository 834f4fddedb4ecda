"""Every command of the README runs, on small text with tiny budgets."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from unmask.compare.results import Results
from unmask.directory import prepared
from unmask.train.floor import ABOVE

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def commands() -> list[str]:
    return [line for block in blocks("bash") for line in block.splitlines() if line.startswith("unmask ")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from pydoc_data.topics import topics

    folder = tmp_path_factory.mktemp("readme")
    text = "\n\n".join(t for _, t in sorted(topics.items()))[:60_000]
    (folder / "my.txt").write_text(text, encoding="utf-8")
    return folder


def tiny(command: str) -> list[str]:
    """The command with a budget of two steps and a small vocabulary in place of minutes."""
    words = shlex.split(command.replace("budget.minutes=5", "budget.steps=2 evaluation.pieces=4"))
    if words[1] == "compare":
        given = {"budget.flops": "budget.steps=4", "seeds": "seeds=1", "tune": "milestones=2"}
        words = [given.get(w.partition("=")[0], w) for w in words]
        words += ["tokenizer.vocab_size=600", "limit=4", "model.num_layers=2"]
    if words[1] == "pretrain" and not any(w.startswith(("tokenizer.type", "init=")) for w in words):
        words.append("tokenizer.vocab_size=600")
    return words[1:]


def run(words: list[str], place: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "UNMASK_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "unmask", *words]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=300)


def test_the_readme_names_what_users_need() -> None:
    assert len(commands()) >= 10
    for verb in (
        "pretrain",
        "evaluate",
        "fill",
        "generate",
        "score",
        "export",
        "import",
        "convert",
        "inspect",
        "resume",
        "diff",
        "tokenizer",
        "data",
    ):
        assert any(f"unmask {verb} " in c for c in commands()), verb


def test_commands_run_in_order(place: Path) -> None:
    for command in commands():
        words = tiny(command)
        if words[0] == "evaluate":
            words += ["--limit", "16", "--json"]
        done = run(words, place)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert done.stdout.strip(), command
        if words[0] == "evaluate":
            result = json.loads(done.stdout)
            label = "P@1, per cent, mean over relations" if "cloze" in words else "pseudo bits per byte"
            assert result["label"] == label and (result["value"] is None or result["value"] >= 0)


def test_python_example_runs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("UNMASK_CACHE", str(place / "cache"))
    code = blocks("python")[0].replace("budget__steps=20", "budget__steps=2, tokenizer__vocab_size=600")
    exec(compile(code, "README.md", "exec"), {})
    assert (place / "runs" / "python-hf" / "config.json").exists()


def test_six_files_of_the_reading_order_exist() -> None:
    names = re.findall(r"^\d\. `(src/unmask/[\w/]+\.py)`", README, re.M)
    assert len(names) == 6 and all((ROOT / n).exists() for n in names)


def test_demo_opens_with_the_small_world_and_checks_every_export(place: Path) -> None:
    done = run(["demo", "my.txt", "--out", "demo", "--tokens", "3000"], place)
    assert done.returncode == 0, done.stderr
    rows = [
        line.split()
        for line in done.stdout.splitlines()
        if line.startswith(("encoder-", "decoder-", "prefix-", "encdec-"))
    ]
    table = {row[0]: row for row in rows if not row[0].endswith(":")}
    assert all((place / "demo" / "world" / name).exists() for name in ("results.json", "report.html", "picture.svg"))
    assert done.stdout.index("small world") < done.stdout.index("Four architectures on my.txt")
    assert len(table) == 4
    low = [line for line in (done.stdout + done.stderr).splitlines() if ABOVE in line.lower() and "-0: " not in line]
    assert low == [f"{ABOVE.capitalize()}: encoder-small, decoder-small, prefix-small, encdec-small."]
    page = (place / "demo" / "report.html").read_text(encoding="utf-8")
    found = Results.read(place / "demo" / "results.json")
    assert [e.name for e in found.entries] == list(table) and all(name in page for name in table)
    shared = {c.measure: {c.a, c.b} for c in found.comparisons}
    assert shared == {"bits_per_byte": {"decoder-small", "prefix-small"}}
    for entry in found.entries:
        values = entry.runs[0].points[0].values
        assert len(values) == 2 and values[f"loss_{entry.name}"] == pytest.approx(float(table[entry.name][6]), abs=1e-3)
        assert set(values) | set(entry.cannot) == {m.name for m in found.measures}
    text = prepared(place / "demo" / "decoder-small", place / "cache")
    trained = [text.tokenizer.decode(text.train.document(k)) for k in range(len(text.train.documents) - 1)]
    given = found.entries[1].runs[0].samples[0].asked.removesuffix(" …")
    assert len(given.split()) == 8 and not any(given in " ".join(document.split()) for document in trained)
    assert all(float(row[-1]) < 1e-4 for row in table.values())
    assert all((place / "demo" / f"{name}-hf" / "config.json").exists() for name in table)
