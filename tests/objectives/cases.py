"""The plainest objectives, texts for all, and readers of what an objective yields; `suite` holds every objective."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from unmask import keyed
from unmask.batch import Examples, Rows, Stream, Targets, visible
from unmask.objectives import Causal, Masked, PrefixLM, SpanCorruption
from unmask.objectives.base import Objective
from unmask.objectives.layout import Layout
from unmask.objectives.show import Toy

VOCABULARY = Toy(size=600, sentinels=np.arange(90, 600, dtype=np.int32))
"""The toy vocabulary (ids 0–4 special, 5–89 words) with 510 sentinels."""
BOS, EOS, MASK = 2, 3, 4

LENGTHS = [7, 1, 33, 0, 2, 64, 3, 12, 5, 40, 1, 90]

KINDS = ("encdec", "prefix", "causal")
FIELDS = ("tokens", "positions", "block", "reveal", "horizon")
"""What every stream has."""

OBJECTIVES: dict[str, Objective] = {
    "causal": Causal(),
    "masked": Masked(),
    "masked-independent": Masked(selection="independent"),
    "masked-0.4": Masked(mask_rate=0.4),
    "masked-all": Masked(mask_rate=1.0, mask_share=1.0, random_share=0.0),
    "masked-random": Masked(mask_rate=0.3, mask_share=0.0, random_share=1.0),
    **{f"prefix_lm-{kind}": PrefixLM(layout=Layout(kind=kind)) for kind in KINDS},
    **{
        f"spans-{kind}-{edges}{'-final' if final else ''}": SpanCorruption(
            layout=Layout(kind=kind), edges=edges, final_sentinel=final
        )
        for kind in KINDS
        for edges in ("free", "official")
        for final in (True, False)
    },
    "spans-mean1": SpanCorruption(mean_span=1),
    "spans-half": SpanCorruption(noise_density=0.5, mean_span=3, layout=Layout(kind="prefix")),
    "spans-long": SpanCorruption(noise_density=0.3, mean_span=10),
    "spans-dense": SpanCorruption(noise_density=0.9, mean_span=1),
}


def texts(lengths: list[int], seed: int = 0, ends: bool | None = None) -> Rows:
    """Random texts over every id below the sentinels, the special ones too: 0 and [UNK] are ordinary input."""
    rng = np.random.default_rng(seed)
    flags = rng.random(len(lengths)) < 0.5 if ends is None else np.full(len(lengths), ends)
    keys = keyed.row_keys(seed, 0, np.arange(len(lengths)))
    return Rows.of([rng.integers(0, 90, n) for n in lengths], keys, ends=flags)


def take(rows: Rows, which: np.ndarray) -> Rows:
    """Some of the texts, in the given order, with their marks and partners."""
    token = np.concatenate([np.arange(rows.start[i], rows.start[i + 1]) for i in which] or [np.zeros(0, np.int64)])
    flags = {k: getattr(rows, k) for k in ("fixed", "word", "sentence")}
    out = Rows.of(
        [rows.tokens[rows.start[i] : rows.start[i + 1]] for i in which],
        rows.key[which],
        **{k: getattr(rows, k)[which] for k in ("index", "ends")},
        **{k: v[token] for k, v in flags.items() if v is not None},
        progress=rows.progress,
        partner=None if rows.partner is None else take(rows.partner, which),
    )
    return out if rows.spans is None else replace(out, spans=_spans_of(rows, rows.spans, which, out.start))


def _spans_of(rows: Rows, spans: np.ndarray, which: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The annotated spans of some of the texts, where these now stand."""
    owner = np.searchsorted(rows.start, spans[:, 0], "right") - 1
    moved = [spans[owner == i] - rows.start[i] + start[new] for new, i in enumerate(which)]
    return np.concatenate([*moved, np.zeros((0, 2), np.int64)])


@dataclass(frozen=True)
class Example:
    """One text's example as plain lists; target indices count from its own start."""

    stream: dict[str, list[int]]
    source: dict[str, list[int]] | None
    index: list[int]
    value: list[int]
    weight: list[float]
    others: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    """What every head answers beside that: (index, value, weight, offset inside a span, draw), and its norm."""


def examples(e: Examples) -> list[Example]:
    """The examples of every text, one by one."""
    t, start = e.targets["lm"], e.stream.start
    owner = np.searchsorted(start, t.index, side="right") - 1
    out = []
    for r in range(len(start) - 1):
        mine = owner == r
        out.append(
            Example(
                _cut(e.stream, r),
                None if e.source is None else _cut(e.source, r),
                (t.index[mine] - start[r]).tolist(),
                t.value[mine].tolist(),
                t.weight[mine].tolist(),
                {k: _answers(other, start, r) for k, other in e.targets.items() if k != "lm" or _more(other)},
            )
        )
    return out


def _cut(stream: Stream, r: int) -> dict[str, list[int]]:
    part = slice(stream.start[r], stream.start[r + 1])
    more = [k for k in ("token_type", "positions2") if getattr(stream, k) is not None]
    return {k: getattr(stream, k)[part].tolist() for k in (*FIELDS, *more)}


def _more(t: Targets) -> bool:
    return any(x is not None for x in (t.norm, t.extra, t.draw))


def _answers(t: Targets, start: np.ndarray, r: int) -> list[tuple[Any, ...]]:
    first = t.index if t.index.ndim == 1 else t.index[:, 0]
    mine = (first >= start[r]) & (first < start[r + 1])
    given = (t.index - start[r], t.value, t.weight, t.extra, t.draw)
    told = zip(*(x[mine].tolist() for x in given if x is not None), strict=True)
    return [*told, *([] if t.norm is None else [("norm", int(t.norm[r]))])]


def pair(e: Example) -> tuple[list[int], list[int]]:
    """Source and target of a text-to-text example, whatever its layout."""
    if e.source is not None:
        assert e.stream["tokens"] == [BOS, *e.value][: len(e.value)] and e.index == list(range(len(e.value)))
        return e.source["tokens"], e.value
    whole = e.stream["tokens"]
    if not whole:
        return [], []
    assert whole[0] == BOS and e.index == list(range(e.index[0], len(whole)))
    assert whole[e.index[0] + 1 :] == e.value[:-1]
    return whole[1 : e.index[0] + 1], e.value


def restored(objective: Objective, e: Example, ends: bool) -> tuple[list[int], list[bool]]:
    """The text of an example, from what the model sees and must say, and which of its tokens were noise."""
    if isinstance(objective, Masked):
        tokens = e.stream["tokens"].copy()
        for i, v in zip(e.index, e.value, strict=True):
            tokens[i] = v
        assert (tokens[0], tokens[-1]) == (BOS, EOS)
        return tokens[1:-1], [i in set(e.index) for i in range(1, len(tokens) - 1)]
    if isinstance(objective, SpanCorruption):
        return joined(*pair(e), objective.final_sentinel)
    source, target = ([], e.value.copy()) if isinstance(objective, Causal) else pair(e)
    assert not ends or target.pop() == EOS
    return source + target, [False] * len(source) + [True] * len(target)


def joined(source: list[int], target: list[int], final: bool) -> tuple[list[int], list[bool]]:
    """A corrupted text put together again: each sentinel of the source gives way to what the target says."""
    assert source[-1] == target[-1] == EOS
    source, target = source[:-1], target[:-1]
    sentinels = VOCABULARY.sentinels.tolist()
    marks = [i for i, x in enumerate(target) if x >= sentinels[0]]
    assert [target[i] for i in marks] == sentinels[: len(marks)]
    assert [x for x in source if x >= sentinels[0]] == sentinels[: len(marks) - final]
    assert not marks or marks[0] == 0
    assert not final or marks[-1] == len(target) - 1
    spans = {target[a]: target[a + 1 : b] for a, b in zip(marks, [*marks[1:], len(target)], strict=False)}
    text: list[int] = []
    noise: list[bool] = []
    for x in source:
        part = spans.get(x, [x])
        text += part
        noise += [x in spans] * len(part)
    return text, noise


def reachable(s: dict[str, list[int]]) -> np.ndarray:
    """(T, T) bool: what each position can see, directly or through what others see."""
    arrays = {k: np.array(v) for k, v in s.items()}
    seen = visible(arrays["block"], arrays["horizon"], arrays["block"], arrays["reveal"])
    while True:
        further = seen | ((seen.astype(int) @ seen.astype(int)) > 0)
        if (further == seen).all():
            return seen
        seen = further


def changed(rows: Rows, at: int) -> Rows:
    """The rows with another word at one place."""
    tokens = rows.tokens.copy()
    tokens[at] = 5 + (tokens[at] - 4) % 85
    return replace(rows, tokens=tokens)


def within(hits: int, draws: int, rate: float) -> bool:
    """A count of hits that lies inside the binomial interval of 1 in 10,000."""
    return abs(hits - draws * rate) <= 3.9 * np.sqrt(draws * rate * (1 - rate)) + 1e-9


def starts_of(noise: np.ndarray) -> np.ndarray:
    """(R, n) bool: where a span of noise begins."""
    return noise & ~np.pad(noise, ((0, 0), (1, 0)))[:, :-1]
