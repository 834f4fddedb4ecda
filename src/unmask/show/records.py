"""Examples as plain values, one dictionary each: what `unmask show --json` prints.

stream     tokens, positions, block, reveal, horizon and what else the stream has; with two networks `corrupt`, the
           tokens that the second reads, and `corrupt_pieces`, their spelling
source     the same of the source, with `pieces`, its spelling; or null
targets    by head: index (an integer, or two where a head reads two positions; null = every position), value,
           weight, and what else the targets have; indices count from the example's own start
pieces     the spelling of the stream's tokens
"""

from __future__ import annotations

from typing import Any

import numpy as np

from unmask.batch import QUERY, Examples, Head, Stream, Targets
from unmask.objectives.base import Objective
from unmask.objectives.sound import require_sound
from unmask.show.generator import NAMES, has_generator, sampled
from unmask.show.reading import Reading

_CHANNELS = ("tokens", "positions", "block", "reveal", "horizon", "token_type", "positions2")
_MORE = ("group", "extra", "draw")


def records(objective: Objective, reading: Reading) -> list[dict[str, Any]]:
    """One record for each copy of the text."""
    examples, corrupt = require_sound(objective, reading.rows, reading.vocabulary), None
    if has_generator(objective):
        examples, corrupt = sampled(reading.rows, examples)
    return [record(objective, reading, examples, r, corrupt) for r in range(len(reading.rows.lengths))]


def record(
    objective: Objective, reading: Reading, examples: Examples, r: int, corrupt: np.ndarray | None = None
) -> dict[str, Any]:
    """Example r; corrupt: (N,) the tokens that the second network reads, where there is one."""
    stream, source = channels(examples.stream, r), None
    pieces = spelt(reading, stream["tokens"])
    if examples.source is not None:
        source = channels(examples.source, r)
        source["pieces"] = spelt(reading, source["tokens"])
    if corrupt is not None:
        stream["corrupt"] = corrupt[_part(examples.stream, r)].tolist()
        stream["corrupt_pieces"] = spelt(reading, stream["corrupt"])
    targets = {h.name: targets_of(examples, h, r) for h in objective.heads() if h.name in examples.targets}
    return {"stream": stream, "source": source, "targets": targets, "pieces": pieces}


def channels(stream: Stream, r: int) -> dict[str, list[Any]]:
    """The arrays of example r as lists."""
    part = _part(stream, r)
    return {k: getattr(stream, k)[part].tolist() for k in _CHANNELS if getattr(stream, k) is not None}


def _part(stream: Stream, r: int) -> slice:
    assert stream.start is not None
    return slice(int(stream.start[r]), int(stream.start[r + 1]))


def targets_of(examples: Examples, head: Head, r: int) -> dict[str, Any]:
    """The targets of one head in example r."""
    t: Targets = examples.targets[head.name]
    stream = examples.stream if head.stack == "stream" else examples.source
    assert stream is not None and stream.start is not None
    begin, end = int(stream.start[r]), int(stream.start[r + 1])
    if t.index is None:
        mine = np.arange(begin, end)
    else:
        first = t.index if t.index.ndim == 1 else t.index[:, 0]
        mine = np.flatnonzero((first >= begin) & (first < end))
    value = np.asarray(t.value)[mine]
    out: dict[str, Any] = {
        "index": None if t.index is None else (t.index[mine] - begin).tolist(),
        "value": (value - begin if head.over == "positions" else value).tolist(),
        "weight": t.weight[mine].tolist(),
    }
    if names := head.names or (NAMES.get(head.name, ()) if head.over == "binary" else ()):
        out["names"] = list(names)
    if t.norm is not None:
        out["norm"] = np.asarray(t.norm)[r].item()
    return out | {k: getattr(t, k)[mine].tolist() for k in _MORE if getattr(t, k) is not None}


def spelt(reading: Reading, tokens: list[int]) -> list[str]:
    """The spelling of ids; an appended query has none."""
    return ["(query)" if i == QUERY else reading.spell(i) for i in tokens]
