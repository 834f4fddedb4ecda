"""Rows of generation: both sides write the same tokens, and caches are as large as is counted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from unmask.bench.base import OURS, TOLERANCE, Row
from unmask.bench.generation import KINDS, Size, cache_bytes, ours, rows, their_cache_bytes, theirs

SIZE = Size(prompts=3, source=11, tokens=4)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Row, Path]]:
    folders = {row.name: (row, tmp_path_factory.mktemp(row.name)) for row in rows(SIZE)}
    for row, folder in folders.values():
        row.prepare(folder)
    return folders


@pytest.mark.parametrize("name", KINDS)
def test_both_sides_write_the_same_tokens(name: str, prepared: dict[str, tuple[Row, Path]]) -> None:
    """`check` refuses other tokens."""
    row, folder = prepared[name]
    mine, others = row.check(folder)
    assert abs(mine - others) <= TOLERANCE * others and others > 1


@pytest.mark.parametrize("name", KINDS)
def test_a_cache_is_as_large_as_counted(name: str, prepared: dict[str, tuple[Row, Path]]) -> None:
    kind, (_, folder) = KINDS[name][2], prepared[name]
    lm, prompts = ours(kind, SIZE, folder)
    held, counted = cache_bytes(lm, prompts, SIZE.tokens)
    assert held == counted
    model, ids = theirs(kind, folder)
    with torch.no_grad():
        peers = their_cache_bytes(kind.greedy(model, ids, SIZE.tokens).cache)
    # Ours has room for the last token, which nobody reads, and four vectors of who sees whom.
    token = lm.config.num_layers * 2 * lm.config.hidden_size
    length = SIZE.tokens + (1 if kind.two else SIZE.source)
    assert held - peers == 4 * SIZE.prompts * (token + 4 * length)


def test_a_side_counts_what_is_written_and_says_what_it_took(prepared: dict[str, tuple[Row, Path]]) -> None:
    row, folder = prepared["generate-causal"]
    worker = row.sides[OURS](folder)
    assert worker.tokens == SIZE.prompts * SIZE.tokens
    assert set(worker.about) == {"precision", "cache bytes", "prefill s", "tokens/s of one prompt"}
