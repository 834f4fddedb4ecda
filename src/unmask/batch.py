"""The one record between text and model, and the one rule of who sees whom.

Anything that can fill this record is an objective; anything that can read it is a model.

Legend: N tokens of R texts laid end to end; T positions of a row; B rows; n targets; a = 1 or 2
positions a head reads. Arrays are numpy; `Batch.map` turns them into torch tensors.

The rule. Query q sees key k iff ``block[q] == block[k] and reveal[k] <= horizon[q]``. A block is what may
attend to itself (a document, a sentence pair, a run of sentences); padding is block 0. Because
``horizon <= reveal`` everywhere, visibility is transitive and nothing leaks through depth.

    pattern                          reveal                horizon
    bidirectional                    0                     0
    causal                           i                     i
    right-to-left                    T - i                 T - i
    prefix LM, prefix of p           max(i - p + 1, 0)     the same
    GLM                              0, then 1, 2, …       the same
    XLNet content · query, rank r    r · INFINITY          r · r - 1
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np

Array = Any
"""A numpy array, or the torch tensor that `Batch.map` made of it."""

INFINITY = 2**31 - 1
"""A reveal that no horizon reaches."""
QUERY = -1
"""The token of an appended query (XLNet): the model starts it from a learned vector of its own."""

Pattern = Literal["full", "causal", "prefix", "order"]


def visible(q_block: Array, horizon: Array, k_block: Array, reveal: Array) -> Array:
    """The rule as a boolean array (…, queries, keys); numpy and torch alike.

    >>> import numpy as np
    >>> block, i = np.array([1, 1, 2, 2, 0]), np.array([0, 1, 0, 1, 0])
    >>> visible(block, i, block, i).astype(int)
    array([[1, 0, 0, 0, 0],
           [1, 1, 0, 0, 0],
           [0, 0, 1, 0, 0],
           [0, 0, 1, 1, 0],
           [0, 0, 0, 0, 1]])
    """
    same = q_block[..., :, None] == k_block[..., None, :]
    return same & (reveal[..., None, :] <= horizon[..., :, None])


def same_block(q_block: Array, k_block: Array) -> Array:
    """Cross-attention's rule: block equality alone, whatever order either side has."""
    return q_block[..., :, None] == k_block[..., None, :]


# ---------------------------------------------------------------- what an objective reads


@dataclass(frozen=True)
class Rows:
    """R texts end to end. One example is R = 1: there is one implementation and no row loop.

    `key` seeds a text's noise, `index` is its global sample number (for draws stratified over samples),
    `fixed` marks tokens that noise must leave alone (specials), `ends` says that the document ends here.
    """

    tokens: np.ndarray  # (N,) int32
    start: np.ndarray  # (R + 1,) int64
    key: np.ndarray  # (R,) uint64
    index: np.ndarray  # (R,) int64
    fixed: np.ndarray  # (N,) bool
    ends: np.ndarray  # (R,) bool
    word: np.ndarray | None = None  # (N,) bool, a word starts here
    sentence: np.ndarray | None = None  # (N,) bool, a sentence starts here
    spans: np.ndarray | None = None  # (S, 2) annotated spans [begin, end) into tokens
    partner: Rows | None = None  # the second text of each pair
    label: np.ndarray | None = None  # (R,) class of each text, where the data has one
    progress: float = 0.0  # of the run, in [0, 1]

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.start)

    @property
    def row(self) -> np.ndarray:
        """(N,) which text each token belongs to."""
        return np.repeat(np.arange(len(self.start) - 1), self.lengths)

    @property
    def place(self) -> np.ndarray:
        """(N,) the place of each token in its text."""
        return places(self.start)

    @staticmethod
    def of(texts: Iterable[Iterable[int]], key: Iterable[int] | None = None, **more: Any) -> Rows:
        """Rows from lists of ids, for tests, `show` and scoring: nothing fixed, every text ends."""
        lists = [np.asarray(list(t), np.int32) for t in texts]
        start = starts([len(t) for t in lists])
        r = len(lists)
        tokens = np.concatenate(lists) if lists else np.zeros(0, np.int32)
        values: dict[str, Any] = {
            "tokens": tokens,
            "start": start,
            "key": np.arange(r).astype(np.uint64) if key is None else np.asarray(list(key), np.uint64),
            "index": np.arange(r),
            "fixed": np.zeros(tokens.size, bool),
            "ends": np.ones(r, bool),
        }
        return Rows(**{**values, **more})


def starts(lengths: Any) -> np.ndarray:
    """(R + 1,) where texts of these lengths begin when laid end to end."""
    out = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(np.asarray(lengths, np.int64), out=out[1:])
    return out


def ranges(begin: np.ndarray, length: np.ndarray) -> np.ndarray:
    """begin, begin + 1, … of each range, end to end.

    >>> import numpy as np
    >>> ranges(np.array([7, 2]), np.array([3, 2])).tolist()
    [7, 8, 9, 2, 3]
    """
    start = starts(length)
    out = np.repeat(begin - start[:-1], length)
    out += np.arange(start[-1])
    return out


def places(start: np.ndarray) -> np.ndarray:
    """(N,) 0, 1, 2, … inside each text."""
    return np.arange(start[-1]) - np.repeat(start[:-1], np.diff(start))


# ---------------------------------------------------------------- what a model reads


@dataclass(frozen=True)
class Stream:
    """What one stack reads: ragged (N,) with `start`, or stacked (B, T) without.

    `pattern`, `isolated` and `contiguous` only help to choose a kernel. Constructors set the pattern;
    collation sets the other two: isolated = each row is one block without padding, contiguous = inside
    a block positions rise by one from one index to the next.
    """

    tokens: Array
    positions: Array
    block: Array
    reveal: Array
    horizon: Array
    token_type: Array | None = None
    positions2: Array | None = None
    start: np.ndarray | None = None
    pattern: Pattern = "full"
    isolated: bool = False
    contiguous: bool = False

    def map(self, f: Callable[[Array], Array]) -> Stream:
        """The stream with f applied to every array."""
        return replace(self, **{k: f(getattr(self, k)) for k in _ARRAYS if getattr(self, k) is not None})


_ARRAYS = ("tokens", "positions", "block", "reveal", "horizon", "token_type", "positions2")


def full(tokens: np.ndarray, start: np.ndarray, **more: Any) -> Stream:
    """Every token of a text sees every other (MLM, RTD, diffusion, any encoder)."""
    zero = np.zeros(len(tokens), np.int32)
    return _stream(tokens, start, zero, zero, "full", more)


def causal(tokens: np.ndarray, start: np.ndarray, **more: Any) -> Stream:
    """Each token sees itself and what stands before it in its text."""
    i = places(start).astype(np.int32)
    return _stream(tokens, start, i, i, "causal", more)


def right_to_left(tokens: np.ndarray, start: np.ndarray, **more: Any) -> Stream:
    """Each token sees itself and what stands after it in its text."""
    back = (np.repeat(np.diff(start), np.diff(start)) - places(start)).astype(np.int32)
    return _stream(tokens, start, back, back, "order", more)


def prefix(tokens: np.ndarray, start: np.ndarray, length: np.ndarray, **more: Any) -> Stream:
    """The first `length` (R,) tokens of a text see each other; the rest is causal.

    >>> prefix(np.array([7, 8, 9, 4]), np.array([0, 4]), np.array([2])).reveal
    array([0, 0, 1, 2], dtype=int32)
    """
    order = np.maximum(places(start) - np.repeat(length, np.diff(start)) + 1, 0).astype(np.int32)
    return _stream(tokens, start, order, order, "prefix", more)


def _stream(
    tokens: np.ndarray,
    start: np.ndarray,
    reveal: np.ndarray,
    horizon: np.ndarray,
    pattern: Pattern,
    more: dict[str, Any],
) -> Stream:
    values: dict[str, Any] = {
        "tokens": np.asarray(tokens, np.int32),
        "positions": places(start).astype(np.int32),
        "block": np.ones(len(tokens), np.int32),
        "reveal": reveal,
        "horizon": horizon,
        "start": start,
        "pattern": pattern,
    }
    return Stream(**{**values, **more})


OPTIONAL = ("token_type", "positions2")
"""Fields of a stream that only some objectives fill."""


def joined(streams: list[Stream]) -> Stream:
    """One ragged stream out of several; a field that only some have is 0 in the others."""
    if len(streams) == 1:
        return streams[0]
    merged: dict[str, Any] = {
        k: np.concatenate([getattr(s, k) for s in streams])
        for k in ("tokens", "positions", "block", "reveal", "horizon")
    }
    for k in OPTIONAL:
        if any(getattr(s, k) is not None for s in streams):
            merged[k] = np.concatenate(
                [np.zeros(len(s.tokens), np.int32) if getattr(s, k) is None else getattr(s, k) for s in streams]
            )
    lengths = np.concatenate([np.diff(start_of(s)) for s in streams])
    kinds = {s.pattern for s in streams}
    pattern: Pattern = streams[0].pattern if len(kinds) == 1 else "order"
    return Stream(**merged, start=starts(lengths), pattern=pattern)


def start_of(stream: Stream) -> np.ndarray:
    """(R + 1,) where each text of a ragged stream begins."""
    if stream.start is None:
        raise ValueError("collation lays out ragged streams: this one has no `start`")
    return stream.start


# ---------------------------------------------------------------- what a head must say


@dataclass(frozen=True)
class Targets:
    """What one head must say, at positions whose output must predict it: the model never shifts.

    index   (n,) or (n, 2) into the flat stream (or source) that the head reads; None = every position
    value   (n,) class or token, (n,) score, or (n, K) distribution; for a head over positions (n,) the index of
            the right token, which collation turns into its place in the row
    weight  (n,) of each target in the sum; 0 = padding
    norm    what the sum is divided by: (R,) per text in Examples (None = Σ weight), one float in a Batch
    group   (n,) ids of the choices that one softmax runs over (multiple choice, in-batch contrast)
    extra   (n,) offset inside a span (SpanBERT's boundary objective)
    draw    (n,) uniforms for samples that a program draws at these targets (ELECTRA)
    """

    index: Array | None
    value: Array
    weight: Array
    norm: Any = None
    group: Array | None = None
    extra: Array | None = None
    draw: Array | None = None

    @staticmethod
    def at(index: np.ndarray | None, value: np.ndarray, **more: Any) -> Targets:
        """Targets of weight 1."""
        value = np.asarray(value)
        return Targets(index, value, np.ones(len(value), np.float32), **more)

    def map(self, f: Callable[[Array], Array]) -> Targets:
        """The targets with f applied to every array; the norm stays a number on the host."""
        names = [x.name for x in fields(self) if x.name != "norm" and getattr(self, x.name) is not None]
        return replace(self, **{k: f(getattr(self, k)) for k in names})


@dataclass(frozen=True)
class Head:
    """A declared output: which network and stack it reads, how, and over what it answers.

    over         vocabulary: tokens · classes: `size` of them · binary: one logit · score: one number,
                 squared error · positions: the keys of the block (span questions) · group: one score a
                 target, softmax inside `group`
    coefficient  of this head's term in the loss; never hidden inside weights, where it would cancel
    module       whose parameters it uses; None = its own name. Several heads may share one module.
    ahead        which of the network's modules that look ahead it reads instead of its stack's final states; 0 = none
    """

    name: str
    over: Literal["vocabulary", "classes", "binary", "score", "positions", "group"] = "vocabulary"
    size: int = 0
    network: str = "model"
    stack: Literal["stream", "source"] = "stream"
    pool: Literal["at", "mean", "max"] = "at"
    arity: int = 1
    extra: int = 0  # rows of the table of `Targets.extra` offsets; 0 = none
    coefficient: float = 1.0
    module: str | None = None
    ahead: int = 0
    names: tuple[str, ...] = ()  # of its classes, in order; exports carry them (id2label)

    @property
    def uses(self) -> str:
        return self.module or self.name

    @property
    def states(self) -> str:
        """The name of the states that it reads, at indices into its stack."""
        return f"ahead{self.ahead}" if self.ahead else self.stack


@dataclass(frozen=True)
class Examples:
    """What an objective yields for R texts: ragged streams, and targets that index them."""

    stream: Stream
    targets: Mapping[str, Targets]
    source: Stream | None = None


TermKey = tuple[str, str]
"""(objective, head): each has its own norm, so sparse and dense objectives balance in a mixture."""


@dataclass(frozen=True)
class Samples:
    """Where each of the S texts of a batch went: its row, block, global index and objective's number."""

    row: np.ndarray  # (S,)
    block: np.ndarray  # (S,) its first block in that row
    index: np.ndarray  # (S,)
    objective: np.ndarray  # (S,)


@dataclass(frozen=True)
class Batch:
    """Examples laid into rows: (B, T) streams, flat target indices padded with weight 0."""

    stream: Stream
    targets: Mapping[TermKey, Targets]
    heads: Mapping[TermKey, Head]
    source: Stream | None = None
    samples: Samples | None = field(default=None, compare=False)

    def map(self, f: Callable[[Array], Array]) -> Batch:
        """The batch with f applied to every array a model reads (numpy → torch, host → device)."""
        return replace(
            self,
            stream=self.stream.map(f),
            source=None if self.source is None else self.source.map(f),
            targets={k: t.map(f) for k, t in self.targets.items()},
        )

    def norms(self) -> dict[TermKey, float]:
        """The divisor of every term, known before any forward pass."""
        return {k: float(t.norm) for k, t in self.targets.items()}

    def counts(self) -> dict[str, int]:
        """Real tokens of both streams, and targets with weight."""
        streams = [self.stream] if self.source is None else [self.stream, self.source]
        return {
            "tokens": int(sum((s.block != 0).sum() for s in streams)),
            "target_tokens": int(sum((t.weight != 0).sum() for t in self.targets.values())),
        }
