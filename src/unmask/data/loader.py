"""From shards to batches: (seed, step) → samples → noise → packed rows → Batch. Stateless.

A window of `per_window` samples is packed at once and its rows are dealt to `steps` updates, so an update
is found by arithmetic, and short texts find room beside long ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from unmask.batch import Batch
from unmask.data.collate import Placement, at_least, collate, pack
from unmask.data.sampling import Order, Pieces, read_rows
from unmask.errors import UserError
from unmask.objectives.base import Objective, Outline, Shape, Vocabulary

_WINDOW = 256


class Text(Protocol):
    """Token ids end to end and the (D + 1,) offsets of documents; `shards.Shards` is one."""

    @property
    def tokens(self) -> np.ndarray: ...

    @property
    def documents(self) -> np.ndarray: ...


@dataclass(frozen=True)
class Window:
    """Samples that are packed together, and where they went."""

    index: np.ndarray
    place: Placement


class Loader:
    """Batches of one text under one objective. `loader(step, progress)` is a pure function.

    rows: rows of `shape` an update should have on average; an update has a few more or fewer, since
    windows hold a fixed number of samples.
    """

    def __init__(
        self,
        text: Text,
        objective: Objective,
        vocabulary: Vocabulary,
        shape: Shape,
        *,
        rows: int,
        seed: int,
        micro: int = 1,
        shuffle: bool = True,
    ) -> None:
        self.text, self.objective, self.vocabulary, self.shape = text, objective, vocabulary, shape
        room = objective.room(shape)
        if room < 1:
            raise UserError(
                f"context={shape.source or shape.stream} leaves no room for text under {objective.type}: raise it"
            )
        self.pieces = Pieces.cut(np.asarray(text.documents), room)
        if not len(self.pieces):
            raise UserError("the text holds no tokens: give a corpus with at least one non-empty document")
        self.order = Order(len(self.pieces), seed, shuffle)
        self.micro = micro
        self.per_step = max(1, round(rows / self._rows_a_sample()))
        self.steps = max(1, _WINDOW // self.per_step)
        self.window = lru_cache(maxsize=4)(self._window)

    def _outline(self, index: np.ndarray, progress: float = 0.0) -> Outline:
        piece = self.order.piece(index)
        return Outline(self.pieces.length[piece], self.order.keys(index), index, self.pieces.ends[piece], progress)

    def _rows_a_sample(self) -> float:
        """Rows that a sample fills on average: measured by packing four windows, over as many epochs."""
        windows = np.arange(4 * _WINDOW).reshape(4, _WINDOW)
        packed = [pack(self.objective.sizes(self._outline(index)), self.shape).rows for index in windows]
        return sum(packed) / windows.size

    def _window(self, number: int, progress: float) -> Window:
        size = self.per_step * self.steps
        index = np.arange(number * size, (number + 1) * size)
        place = pack(self.objective.sizes(self._outline(index, progress)), self.shape)
        return Window(index, at_least(place, self.steps))

    def __call__(self, step: int, progress: float = 0.0) -> list[Batch]:
        """The micro-batches of update `step`."""
        number, turn = divmod(step, self.steps)
        # Sizes may depend on progress (rate schedules): a window has that of its first step, to the last bit.
        progress = round(progress * (step - turn) / max(step, 1), 9)
        window = self.window(number, progress)
        rows = np.arange(turn, window.place.rows, self.steps)
        return [self._batch(window, part, progress) for m in range(self.micro) if len(part := rows[m :: self.micro])]

    def _batch(self, window: Window, rows: np.ndarray, progress: float) -> Batch:
        which = np.flatnonzero(np.isin(window.place.row, rows))
        index = window.index[which]
        text = read_rows(
            self.text.tokens, self.pieces, self.order.piece(index), self.order.keys(index), index, progress
        )
        examples = self.objective(text, self.vocabulary)
        return collate(
            {self.objective.type: examples},
            {self.objective.type: self.objective.heads()},
            window.place.take(which, rows),
            shape=self.shape,
            index=index,
        )

    def once(self, limit: int | None = None) -> Iterator[Batch]:
        """Every piece once, in order, in batches of about `rows` rows; stops after `limit` pieces."""
        total = len(self.pieces) if limit is None else min(limit, len(self.pieces))
        for begin in range(0, total, self.per_step):
            index = np.arange(begin, min(begin + self.per_step, total))
            window = Window(index, pack(self.objective.sizes(self._outline(index)), self.shape))
            yield self._batch(window, np.arange(window.place.rows), 0.0)
