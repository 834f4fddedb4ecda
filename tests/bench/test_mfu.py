"""The script for GPUs, on a CPU: what it trains on, and that an update is timed and costed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

PLACE = Path(__file__).resolve().parents[2] / "benchmarks" / "mfu.py"
SPEC = importlib.util.spec_from_file_location("mfu", PLACE)
assert SPEC is not None and SPEC.loader is not None
mfu = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(mfu)


@pytest.mark.parametrize("packed", [False, True])
def test_rows_are_full_and_texts_ask_for_all_but_their_first_token(packed: bool) -> None:
    config, length = mfu.MODELS["tiny"]
    made = mfu.batch(config, length, 3, packed)
    assert made.stream.tokens.shape == (3, length) and (made.stream.block > 0).all()
    texts = sum(len(set(row)) for row in made.stream.block.tolist())
    assert texts == (3 * mfu.PACKED if packed else 3) or (packed and texts >= 3 * (mfu.PACKED - 1))
    assert made.counts() == {"tokens": 3 * length, "target_tokens": 3 * length - texts}
    assert made.stream.isolated is not packed


def test_an_update_is_timed() -> None:
    config, length = mfu.MODELS["tiny"]
    one = mfu.batch(config, length, 2, False)
    assert 0 < mfu.measure(config, one, 2, torch.device("cpu"), "dense", False) < 60
