from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest

from unmask.cli.output import emit


@dataclass(frozen=True)
class Row:
    value: float
    more: tuple[float, ...]


def test_what_is_no_finite_number_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    emit({"a": float("inf"), "b": np.float32("nan"), "c": [np.float64("-inf"), 1.5], "d": Row(float("nan"), (2.0,))})

    def refused(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    found = json.loads(capsys.readouterr().out, parse_constant=refused)
    assert found == {"a": None, "b": None, "c": [None, 1.5], "d": {"value": None, "more": [2.0]}}


def test_a_value_is_one_line_of_readable_json(capsys: pytest.CaptureFixture[str]) -> None:
    emit({"text": "北京\n", 1: np.array([1, 2]), "flag": np.bool_(True), "none": None})
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and "北京" in out
    assert json.loads(out) == {"text": "北京\n", "1": [1, 2], "flag": True, "none": None}
