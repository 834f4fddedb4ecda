from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from unmask.model import gather


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package of modules given as texts, gathered from `toys.top`."""

    def write(**texts: str) -> str:
        (tmp_path / "toys").mkdir(exist_ok=True)
        for name, text in {"__init__": "", **texts}.items():
            (tmp_path / "toys" / f"{name}.py").write_text(text)
        return gather.gathered("toys.top", '"""toys"""\n')

    monkeypatch.setattr(gather, "PACKAGE", "toys")
    monkeypatch.syspath_prepend(tmp_path)
    yield write
    for name in [n for n in sys.modules if n.split(".")[0] == "toys"]:
        del sys.modules[name]


def test_what_nothing_reaches_is_left_out_and_imports_inside_functions_are_followed(toy: Any) -> None:
    text = toy(
        top="import math\nfrom toys.low import used\n\ndef top():\n    from toys.late import late\n"
        "    return used() + late() + math.pi\n",
        low="import json\n\nLIMIT = 3\n'''Said here.'''\n\ndef unused():\n    return json\n\n"
        "# why\ndef used():\n    return LIMIT\n",
        late="from toys.low import LIMIT\n\ndef late():\n    return LIMIT\n",
    )
    space: dict[str, Any] = {}
    exec(text, space)
    assert space["top"]() == pytest.approx(6 + 3.14159265)
    assert "unused" not in space and "json" not in text and "Said here." in text and "# why" in text
    assert text.index("def used") < text.index("def late") < text.index("def top")


@pytest.mark.parametrize(
    "top, low, fault",
    [
        ("from toys.low import a\n\ndef f():\n    return a()\n\ndef b():\n    return 1\n",
         "def a():\n    return b()\n\ndef b():\n    return 2\n", "b is defined by toys.low and by toys.top"),
        ("from toys import low\n\ndef f():\n    return low.a()\n", "def a():\n    return 1\n", "import names of"),
        ("from toys.low import a as c\n\ndef f():\n    return c()\n", "def a():\n    return 1\n", "import names of"),
    ],
)  # fmt: skip
def test_names_that_cannot_stand_in_one_file_are_refused(toy: Any, top: str, low: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        toy(top=top, low=low)
