"""Rules of the repository, held as tests: imports go one way, nothing heavy loads early, no pickle."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "unmask"

RUN = {
    "lm",
    "loading",
    "directory",
    "initial",
    "conversion",
    "building",
    "run",
    "description",
    "show",
    "difference",
    "planning",
}
# Each may import its own level's package and everything on the levels before it.
LEVELS = [
    {"errors", "process", "studies"},
    {"batch", "chart", "config", "disk", "keyed", "tensors", "vocabulary"},
    {"objectives", "text"},
    {"tokens"},
    {"data", "model"},
    {"loss"},
    {"networks", "electra"},
    {"programs"},
    {"train"},
    {"evaluation"},
    {"recipe"},
    RUN,
    {"compare"},
    {"scale"},
    {"labs", "bench"},
    {"demo"},
    {"cli"},
    {"__main__"},
]
RANK = {name: k for k, names in enumerate(LEVELS) for name in names}


def modules() -> list[Path]:
    return sorted(p for p in SOURCE.rglob("*.py") if p != SOURCE / "__init__.py")


def part(path: Path) -> str:
    """The level a file belongs to: its package, or its own name at the top."""
    inside = path.relative_to(SOURCE)
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "unmask":
            names |= {node.module.split(".")[1]} if "." in node.module else {a.name for a in node.names}
        elif isinstance(node, ast.Import):
            names |= {a.name.split(".")[1] for a in node.names if a.name.startswith("unmask.")}
    return names


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    mine = part(path)
    assert mine in RANK, f"{mine} has no level: add it to LEVELS"
    for name in imported(path) - {mine}:
        assert RANK[name] < RANK[mine] or (RANK[name] == RANK[mine] and mine in RUN), (
            f"{path.name} ({mine}) imports {name}, which is not below it"
        )


def test_the_trainer_knows_no_model_and_no_objective() -> None:
    for path in (SOURCE / "train").glob("*.py"):
        assert not imported(path) & {"model", "objectives", "data", "tokens", "text", "evaluation", "loss"}, path
    for path in (SOURCE / "model").glob("*.py"):
        assert not imported(path) & {"objectives", "data", "tokens", "text"}, path


@pytest.mark.parametrize(
    "module",
    [
        "text.corpus",
        "data.loader",
        "data.parts",
        "data.prepare",
        "tokens.report",
        "data.shards",
        "data.stats",
        "tokens.tokenizer",
        "data.workers",
        "data.worlds",
        "compare.report",
        "scale.study",
        "labs.base",
        "objectives",
        "cli",
        "recipe",
    ],
)
def test_reading_text_imports_no_torch(module: str) -> None:
    code = f"import sys, unmask.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_no_pickle_and_no_global_random_numbers() -> None:
    for path in modules():
        text = path.read_text()
        tree = ast.parse(text)
        names = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)} | imported(path)
        for word in ("pickle", "manual_seed_all", "set_rng_state"):
            assert word not in names, f"{path}: {word}"
        assert "torch.load(" not in text and "np.random.seed" not in text and "torch.manual_seed" not in text, path


def test_public_names_stay_what_they_are_whatever_is_imported() -> None:
    """A module of a public function's name would take its place in the package once something imports it."""
    code = """
import importlib, pkgutil, unmask
before = {name: getattr(unmask, name) for name in unmask.__all__}
for found in pkgutil.walk_packages(unmask.__path__, "unmask."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
for name, value in before.items():
    assert getattr(unmask, name) is value and callable(value), name
"""
    subprocess.run([sys.executable, "-c", code], check=True)
