"""A control token in front of a text that tells the model which objective it is under (Tay et al. 2022, section 3.1).

It is put into finished examples: noise never touches it, and nothing asks for it.

    full      [CLS]  mode   11  [MASK]  13  [SEP]        two stacks    source   mode   11   12  [EOS]
    causal    [BOS]  mode   11    12    13                             stream   as it was
    target            11    12    13  [EOS]
    reveal       0     1     2     3     4

Questions are asked with it in the same place (`evaluation.shown`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unmask.batch import Examples, Head, Stream, Targets, places, starts


def told(examples: Examples, heads: Sequence[Head], mode: int, openings: Collection[int]) -> Examples:
    """The examples with the token `mode` in each text's source, or in its stream where that is all there is.

    It stands first, but behind one of the `openings` ([BOS], [CLS]) where a text begins with that; empty ones stay
    empty. A token that was predicted from the opening is then predicted from the mode, which sees no more of the text.
    """
    stack = examples.stream if examples.source is None else examples.source
    name = "stream" if examples.source is None else "source"
    start = _start(stack)
    some = np.diff(start) > 0
    behind = np.zeros(len(some), np.int64)
    behind[some] = np.isin(stack.tokens[start[:-1][some]], list(openings))
    where = np.arange(len(stack.tokens)) + np.repeat(np.cumsum(some) - some, np.diff(start))
    place = np.arange(len(stack.tokens)) - np.repeat(start[:-1], np.diff(start))
    later = place >= np.repeat(behind, np.diff(start))
    where += later
    at = starts(np.diff(start) + some)[:-1][some] + behind[some]  # of the modes
    made = _with(stack, where, at, mode, behind[some], some)
    moved: dict[str, Targets] = {}
    for head in heads:
        if head.name in examples.targets:
            found = examples.targets[head.name]
            moved[head.name] = _moved(found, head, where, place, later) if head.stack == name else found
    if examples.source is None:
        return Examples(made, moved)
    return Examples(examples.stream, moved, made)


def notice(objective: Mapping[str, Any]) -> str:
    """What the user of an exported mixture must know: its parts, and that nothing there writes their mode tokens.

    >>> notice({"type": "mixture", "parts": {"clm": {"type": "causal", "mode": None}}})
    ' Its parts: `clm` (causal). unmask asks it as the first of them, or by `mode=NAME`.'
    >>> notice({"type": "causal"})
    ''
    """
    parts = objective.get("parts")
    if not isinstance(parts, Mapping):
        return ""
    each = [f"`{k}` ({p['type']}{f', mode token `{m}`' if (m := p.get('mode')) else ''})" for k, p in parts.items()]
    said = f" Its parts: {', '.join(each)}. unmask asks it as the first of them, or by `mode=NAME`."
    if not any(p.get("mode") for p in parts.values()):
        return said
    return said + (
        " Texts of a part with a mode token began with it, behind the opening control token if there is one. Neither "
        "the tokenizer here nor `generate` adds it: write it in front of the text, without a blank between."
    )


def _with(stream: Stream, where: np.ndarray, at: np.ndarray, mode: int, behind: np.ndarray, some: np.ndarray) -> Stream:
    """The stream with a token more at `at`, behind so many of its text; who sees it follows from the pattern."""
    start = _start(stream)
    first, length = start[:-1][some], np.diff(start)[some]
    later = where - np.arange(len(where)) - np.repeat(np.cumsum(some) - some, np.diff(start))
    size = len(where) + len(at)

    def spread(values: np.ndarray, own: np.ndarray | int) -> np.ndarray:
        out = np.empty(size, np.int32)
        out[where], out[at] = values, own
        return out

    # Everything sees the mode: nothing's horizon is lower than what it is revealed at. A causal text stays causal,
    # whatever stands beside it.
    causal = _causal(stream)[some]
    own = np.where(causal, behind, np.minimum.reduceat(stream.horizon, first) if len(first) else first)
    moved = later & np.repeat(causal, length)
    reveal = spread(stream.reveal + moved, own)
    same = stream.horizon is stream.reveal
    follows = first + np.minimum(behind, length - 1)
    more: dict[str, Any] = {
        k: spread(getattr(stream, k), getattr(stream, k)[first])
        for k in ("token_type", "positions2")
        if getattr(stream, k) is not None
    }
    return replace(
        stream,
        tokens=spread(stream.tokens, mode),
        positions=spread(stream.positions + later, stream.positions[follows] + (behind == length)),
        block=spread(stream.block, stream.block[first]),
        reveal=reveal,
        horizon=reveal if same else spread(stream.horizon + moved, own),
        start=starts(np.diff(start) + some),
        **more,
    )


def _causal(stream: Stream) -> np.ndarray:
    """(R,) bool, the texts of which each token sees itself and what stands before it."""
    start = _start(stream)
    if stream.pattern != "order":
        return np.full(len(start) - 1, stream.pattern == "causal")
    place = places(start)
    other = np.flatnonzero((stream.reveal != place) | (stream.horizon != place))
    return np.diff(np.searchsorted(other, start)) == 0


def _moved(t: Targets, head: Head, where: np.ndarray, place: np.ndarray, later: np.ndarray) -> Targets:
    index = np.arange(len(where)) if t.index is None else t.index
    moved = where[index]
    if head.over == "vocabulary" and index.ndim == 1:  # from the opening: read at the mode, which stands next to it
        moved = moved + ((place[index] == 0) & ~later[index])
    value = where[t.value] if head.over == "positions" else t.value
    return replace(t, index=moved, value=value)


def _start(stream: Stream) -> np.ndarray:
    assert stream.start is not None
    return stream.start
