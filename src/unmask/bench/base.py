"""A row of the table: one piece of work, done by us and by a peer, each side in a process of its own.

A side is a function that builds what it needs and returns a `Worker`; `unmask.bench.turns` runs the sides in turn. A
row counts only if `check` finds that both compute the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from unmask.config import Strict

OURS = "unmask"
TOLERANCE = 1e-4
"""How far the losses of both sides may lie apart at step 0, in fp32, relative to the peer's."""


Tick = Callable[[], None]


@dataclass(frozen=True)
class Worker:
    """One side, ready to be timed. `run` does the work without end and calls its argument after each step.

    tokens   of a step, which both sides count alike
    about    what was decided on the way (precision, parameters), for the record
    """

    tokens: int
    run: Callable[[Tick], None]
    about: Mapping[str, Any] = field(default_factory=dict)


MakeSide = Callable[[Path], Worker]
"""A function of a module, given the row's folder of files that both sides read."""
Losses = Callable[[Path], tuple[float, float]]
"""(ours, the peer's) at step 0, in fp32."""


@dataclass(frozen=True)
class Row:
    """Work, its sides by name (ours is `OURS`), and the ratio to the best of the peer's that is aimed at."""

    name: str
    work: str
    peer: str
    target: float
    sides: Mapping[str, MakeSide]
    prepare: Callable[[Path], None]
    """Writes what both sides read: weights, tokens, targets."""
    check: Losses
    apart: tuple[str, ...] = ()
    """Sides of the peer that are shown and not counted as its best: torch.compile's, a second column."""
    round: int = 1
    """Steps after which the work repeats: a turn is a whole number of rounds."""


class Timed(Strict):
    """What one side did: tokens a second in every turn."""

    side: str
    rates: list[float]
    about: dict[str, Any]

    @property
    def rate(self) -> float:
        """The median over turns."""
        return median(self.rates)

    @property
    def spread(self) -> float:
        """(largest − least) / median.

        >>> Timed(side=OURS, rates=[90.0, 100.0, 110.0], about={}).spread
        0.2
        """
        return (max(self.rates) - min(self.rates)) / self.rate


class Measured(Strict):
    """A row as it was measured."""

    name: str
    work: str
    peer: str
    target: float
    losses: tuple[float, float] | None = None
    """At step 0, ours and the peer's."""
    sides: list[Timed]
    apart: tuple[str, ...] = ()

    @property
    def ours(self) -> Timed:
        return next(s for s in self.sides if s.side == OURS)

    @property
    def best(self) -> Timed:
        """The fastest of the peer's sides that count."""
        return max((s for s in self.sides if s.side != OURS and s.side not in self.apart), key=lambda s: s.rate)

    @property
    def ratio(self) -> float:
        """Ours to the peer's best, of medians.

        >>> rates = {OURS: 300.0, "fp32": 80.0, "bf16": 100.0}
        >>> sides = [Timed(side=name, rates=[rate], about={}) for name, rate in rates.items()]
        >>> Measured(name="a", work="", peer="", target=2, sides=sides).ratio
        3.0
        """
        return self.ours.rate / self.best.rate

    @property
    def counts(self) -> bool:
        """Whether both sides compute the same: without equal losses a ratio means nothing."""
        if self.losses is None:
            return True
        ours, theirs = self.losses
        return abs(ours - theirs) <= TOLERANCE * abs(theirs)


class Record(Strict):
    """All rows of a run, and what they were measured on."""

    format: int = 1
    command: str
    turns: int
    steps: int
    environment: dict[str, Any]
    rows: list[Measured]
