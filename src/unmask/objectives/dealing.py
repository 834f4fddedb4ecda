"""Texts dealt to several objectives: some of them with all that is known of them, and their examples as one again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from unmask.batch import Examples, Head, Rows, Stream, Targets, joined, ranges, start_of, starts
from unmask.objectives.base import Outline, Sizes


class Sized(Protocol):
    def sizes(self, of: Outline) -> Sizes: ...


def picked(rows: Rows, which: np.ndarray) -> Rows:
    """The texts `which` (S,) of rows, in that order, with their marks, spans and partners.

    >>> picked(Rows.of([[7, 8], [9], [5, 6]]), np.array([2, 0])).tokens.tolist()
    [5, 6, 7, 8]
    """
    token = ranges(rows.start[:-1][which], rows.lengths[which])
    start = starts(rows.lengths[which])
    spans = rows.spans
    if spans is not None:
        owner = np.searchsorted(rows.start, spans[:, 0], "right") - 1
        count = np.bincount(owner, minlength=len(rows.lengths))
        mine = ranges((np.cumsum(count) - count)[which], count[which])
        move = np.repeat(start[:-1] - rows.start[:-1][which], count[which])
        spans = np.asarray(spans[mine] + move[:, None])
    return replace(
        rows,
        tokens=rows.tokens[token],
        start=start,
        fixed=rows.fixed[token],
        word=None if rows.word is None else rows.word[token],
        sentence=None if rows.sentence is None else rows.sentence[token],
        spans=spans,
        partner=None if rows.partner is None else picked(rows.partner, which),
        label=None if rows.label is None else rows.label[which],
        **{k: getattr(rows, k)[which] for k in ("key", "index", "ends")},
    )


def taken(of: Outline, which: np.ndarray) -> Outline:
    """The outline of the texts `which` (S,)."""
    sentence = of.sentence
    if sentence is not None:
        start = starts(of.lengths)
        sentence = sentence[ranges(start[:-1][which], of.lengths[which])]
    partner = None if of.partner is None else taken(of.partner, which)
    own = {k: getattr(of, k)[which] for k in ("lengths", "key", "index", "ends")}
    return replace(of, sentence=sentence, partner=partner, **own)


def sizes_of(parts: Sequence[Sized], dealt: np.ndarray, outline: Callable[[int, np.ndarray], Outline]) -> Sizes:
    """(R,) sizes of texts dealt to parts; outline(k, mine) is that of the texts `mine` under part k."""
    stream = np.zeros(len(dealt), np.int64)
    source: np.ndarray | None = None
    for number, part in enumerate(parts):
        mine = np.flatnonzero(dealt == number)
        if not len(mine) and (number or len(dealt)):  # of no text at all, the first part says how many stacks there are
            continue
        found = part.sizes(outline(number, mine))
        stream[mine] = found.stream
        if found.source is not None:
            source = np.zeros(len(dealt), np.int64) if source is None else source
            source[mine] = found.source
    return Sizes(stream, source)


def regrouped(examples: Sequence[Examples], heads: Sequence[Sequence[Head]], which: Sequence[np.ndarray]) -> Examples:
    """Examples of several objectives as one, each text at its own number: `which` says the numbers of each.

    Targets of heads of one name join, so that norms do: to look at and to count, not to train on.
    """
    number = np.concatenate([np.zeros(0, np.int64), *which])
    order = np.argsort(number, kind="stable")
    stream, into = _in_order([e.stream for e in examples], order)
    sources = [e.source for e in examples if e.source is not None]
    source, into_source = _in_order(sources, order) if sources else (None, None)
    found: dict[str, list[Targets]] = {}
    normed: set[str] = set()
    begin = {"stream": 0, "source": 0}
    groups = 0
    for e, declared, mine in zip(examples, heads, which, strict=True):
        for head in declared:
            if head.name not in e.targets:
                continue
            if e.targets[head.name].norm is not None:
                normed.add(head.name)
            to = into if head.stack == "stream" else into_source
            assert to is not None
            t = _placed(e.targets[head.name], head, to[begin[head.stack] :], e, mine, len(number))
            if (group := t.group) is not None:
                t, groups = replace(t, group=group + groups), groups + int(group.max(initial=-1)) + 1
            found.setdefault(head.name, []).append(t)
        begin["stream"] += len(e.stream.tokens)
        begin["source"] += 0 if e.source is None else len(e.source.tokens)
    return Examples(stream, {name: _one(each, name in normed) for name, each in found.items()}, source)


def _in_order(streams: Sequence[Stream], order: np.ndarray) -> tuple[Stream, np.ndarray]:
    """One stream of the texts in another order, and where each token went."""
    whole = joined(list(streams))
    start = start_of(whole)
    length = np.diff(start)
    take = ranges(start[:-1][order], length[order])
    into = np.empty(len(take), np.int64)
    into[take] = np.arange(len(take))
    return replace(whole.map(lambda a: a[take]), start=starts(length[order])), into


def _placed(t: Targets, head: Head, into: np.ndarray, e: Examples, mine: np.ndarray, texts: int) -> Targets:
    """Targets that point into the joined stream, with a norm of every one of its texts."""
    stack = e.stream if head.stack == "stream" else e.source
    assert stack is not None
    start = start_of(stack)
    index = np.arange(len(stack.tokens)) if t.index is None else t.index
    norm = np.zeros(texts, np.float64)
    if t.norm is None:
        first = index if index.ndim == 1 else index[:, 0]
        np.add.at(norm, mine[np.searchsorted(start, first, "right") - 1], t.weight)
    else:
        norm[mine] = t.norm
    value = into[t.value] if head.over == "positions" else t.value
    return replace(t, index=into[index], value=value, norm=norm)


def _one(each: Sequence[Targets], normed: bool) -> Targets:
    """All targets of a head, in the order of what they read."""
    first = np.concatenate([t.index if t.index.ndim == 1 else t.index[:, 0] for t in each if t.index is not None])
    order = np.argsort(first, kind="stable")

    def together(name: str) -> Any:
        values = [getattr(t, name) for t in each]
        return None if any(v is None for v in values) else np.concatenate(values)[order]

    names = ("index", "value", "weight", "group", "extra", "draw")
    return Targets(**{k: together(k) for k in names}, norm=np.sum([t.norm for t in each], axis=0) if normed else None)


def van_der_corput(number: np.ndarray) -> np.ndarray:
    """(R,) the bits of numbers mirrored at the point: of any 2^k in a row, one lies in each 2^-k of [0, 1).

    >>> van_der_corput(np.arange(5)).tolist()
    [0.0, 0.5, 0.25, 0.75, 0.125]
    """
    rest, out, bit = np.array(number, np.int64), np.zeros(np.shape(number)), 0.5
    while rest.any():
        out += bit * (rest & 1)
        rest >>= 1
        bit /= 2
    return out
