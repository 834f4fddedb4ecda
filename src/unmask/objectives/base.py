"""What every objective is: settings, and pure functions from Rows to Examples.

An objective is a frozen record of its settings. It holds no state and draws no numbers of its own: noise
is a function of each text's key (`unmask.keyed`), so a text gets the same noise alone, in any batch, on any
worker and after a resume.

    heads()            what must be answered, declared once
    shape(context)     lengths of the stream and the source that a batch has
    room(shape)        how many raw tokens of text fit in one example
    sizes(outline)     lengths after noise and layout, without touching text: packing happens after noise
    __call__(rows, v)  the Examples
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Protocol, Self

import numpy as np
from pydantic import PrivateAttr

from unmask.batch import Examples, Head, Rows, ranges, starts
from unmask.config import ModelConfig, Strict, Visibility

Plan = Literal["left_to_right", "pseudo", "pseudo_words", "bound", "infill", "decoder"]
"""How a text is scored without noise; see `unmask.evaluation.plans`."""

LM = Head("lm")
"""The one head over the vocabulary that causal, masked and text-to-text objectives share."""


Cut = Literal["tokens", "sentences", "pairs", "joined"]
"""How documents become pieces (`unmask.data.sampling.Pieces`): full of tokens; of whole sentences; of two sentences
each; of whole sentences across documents, a [SEP] between them."""


class Vocabulary(Protocol):
    """The ids an objective needs; `unmask.tokens.special.Vocabulary` is one."""

    @property
    def size(self) -> int: ...

    @property
    def sentinels(self) -> np.ndarray: ...

    def need(self, role: str) -> int: ...

    @property
    def ordinary(self) -> np.ndarray: ...


@dataclass(frozen=True)
class Shape:
    """Capacity of one row of a batch: tokens of the stream, and of the source (0 = one stack)."""

    stream: int
    source: int = 0


@dataclass(frozen=True)
class Outline:
    """What is known of R texts without reading them: enough to say how long their examples will be."""

    lengths: np.ndarray  # (R,) raw tokens
    key: np.ndarray  # (R,) uint64
    index: np.ndarray  # (R,)
    ends: np.ndarray  # (R,) bool
    progress: float = 0.0
    sentence: np.ndarray | None = None  # (N,) bool, where an objective needs sentences
    partner: Outline | None = None  # of the second texts, where it needs them


@dataclass(frozen=True)
class Sizes:
    """Lengths of R examples: (R,) of the stream, and of the source where there is one."""

    stream: np.ndarray
    source: np.ndarray | None = None


def outline(rows: Rows) -> Outline:
    partner = None if rows.partner is None else outline(rows.partner)
    return Outline(rows.lengths, rows.key, rows.index, rows.ends, rows.progress, rows.sentence, partner)


class Objective(Strict):
    """Base of all objectives; `type` names it in recipes."""

    type: str

    plan: ClassVar[Plan] = "left_to_right"
    """How texts are scored under it, unless another plan is asked for (`unmask.evaluation.plans.plans_of`)."""
    copies: ClassVar[bool] = False
    """The input contains (some of) what must be predicted, by design: BERT's kept tokens, BART's text."""
    masks: ClassVar[bool] = False
    """[MASK] stands at (some of) what must be predicted: without it the plans pseudo and bound, which ask so, are
    questions that training never put, and a model of such a plan is asked none."""
    moves: ClassVar[bool] = False
    """`sizes` depends on the progress of the run: each update is then packed by itself, not 256 texts at a time. Noise
    may depend on it freely."""
    needs: ClassVar[frozenset[str]] = frozenset()
    """What it reads of `Rows` beside the tokens: word, sentence, spans, partner (a piece of another document) or
    target (the text's own, from the column `corpus.target`), which fills `Rows.partner`, too."""
    cut: ClassVar[Cut] = "tokens"
    """How documents are cut into the texts that it reads."""
    program: ClassVar[str] = "heads"
    """How a step turns a batch into terms (`unmask.programs`)."""
    kept: ClassVar[str] = "model"
    """Which of its networks is evaluated, loaded and exported."""
    _control: str | None = PrivateAttr(None)

    @property
    def control(self) -> str | None:
        """The control token that a mixture puts in front of its texts (`Part.mode`): questions put it there, too."""
        return self._control

    def after(self, control: str | None) -> Self:
        """The objective as a part of a mixture that is told this control token."""
        told = self.model_copy()
        told._control = control
        return told

    @property
    def recurs(self) -> int:
        """Epochs after which a text has the same noise again; 0 = never."""
        return 0

    @property
    def visibility(self) -> Visibility:
        """The pattern of the stream, for models that must fill it by themselves."""
        return "causal"

    def heads(self) -> tuple[Head, ...]:
        return (LM,)

    def networks(self, model: ModelConfig) -> dict[str, ModelConfig]:
        """The networks that are trained together, by name; `model` is the recipe's."""
        return {"model": model}

    def shape(self, context: int, target_context: int | None = None) -> Shape:
        return Shape(context)

    @abstractmethod
    def room(self, shape: Shape) -> int: ...

    @abstractmethod
    def sizes(self, of: Outline) -> Sizes: ...

    @abstractmethod
    def __call__(self, rows: Rows, vocabulary: Vocabulary) -> Examples: ...


def frame(rows: Rows, before: int | None = None, after: int | None = None, at_end: int | None = None) -> Rows:
    """Rows with a special token before and after each text, and one after texts that end their document.

    >>> r = frame(Rows.of([[7, 8], [9]]), before=2, after=3)
    >>> r.tokens.tolist(), r.fixed.astype(int).tolist(), r.start.tolist()
    ([2, 7, 8, 3, 2, 9, 3], [1, 0, 0, 1, 1, 0, 1], [0, 4, 7])
    """
    lead = int(before is not None)
    tail = np.full(len(rows.lengths), int(after is not None)) + (rows.ends if at_end is not None else 0)
    start = starts(rows.lengths + lead + tail)
    into = ranges(start[:-1] + lead, rows.lengths)
    tokens = np.empty(start[-1], np.int32)
    fixed = np.ones(start[-1], bool)
    tokens[into], fixed[into] = rows.tokens, rows.fixed
    if before is not None:
        tokens[start[:-1]] = before
    stop = start[:-1] + lead + rows.lengths
    if after is not None:
        tokens[stop] = after
    if at_end is not None:
        tokens[(stop + int(after is not None))[rows.ends]] = at_end
    return replace(
        rows,
        tokens=tokens,
        start=start,
        fixed=fixed,
        word=_moved(rows.word, into, start),
        sentence=_moved(rows.sentence, into, start),
    )


def _moved(flags: np.ndarray | None, into: np.ndarray, start: np.ndarray) -> np.ndarray | None:
    if flags is None:
        return None
    out = np.zeros(start[-1], bool)
    out[into] = flags
    return out
