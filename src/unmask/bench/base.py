"""A row of the table: one piece of work, done by us and by a peer, each side in a process of its own.

A side is a function that builds what it needs and returns a `Worker`; `unmask.bench.turns` runs the sides in turn. A
row counts only if `check` finds that both compute the same.

A row is timed (`Row`: steps, tokens a second, the more the better) or read (`Figure`: one number of a fresh process, in
a unit of its own, the less the better).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import Field

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


@dataclass(frozen=True)
class Reading:
    """What a side of a figure found in its process.

    beside   other numbers by what they count ("s", "tokens/s of data"), shown beside the value
    about    what was decided on the way, for the record
    """

    value: float
    beside: Mapping[str, float] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)


ReadSide = Callable[[Path], Reading]
"""A function of a module, given the row's folder of files that all sides read."""


@dataclass(frozen=True)
class Figure:
    """A number that should be small, read anew in a fresh process by every side in every turn.

    sides     ours, and the peer's, which `peers` names; ours is the largest of ours, the peer's the least of the peer's
    target    at most so much of `unit`, or with `of_peer` at most this share of the peer's
    check     None where there is nothing to compare
    """

    name: str
    work: str
    peer: str
    unit: str
    target: float
    sides: Mapping[str, ReadSide]
    prepare: Callable[[Path], None]
    check: Losses | None = None
    peers: tuple[str, ...] = ()
    of_peer: bool = False


def spread(values: Sequence[float]) -> float:
    """(largest − least) / median.

    >>> spread([90.0, 100.0, 110.0])
    0.2
    """
    return (max(values) - min(values)) / (median(values) or 1.0)


def alike(losses: tuple[float, float] | None) -> bool:
    """Whether both sides compute the same: without equal losses a comparison means nothing."""
    return losses is None or abs(losses[0] - losses[1]) <= TOLERANCE * abs(losses[1])


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
        return spread(self.rates)


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
    def met(self) -> bool:
        return self.ratio >= self.target


class Numbers(Strict):
    """What one side of a figure read in every turn."""

    side: str
    values: list[float]
    beside: dict[str, list[float]] = Field({})
    about: dict[str, Any] = Field({})

    @property
    def value(self) -> float:
        """The median over turns."""
        return median(self.values)

    @property
    def spread(self) -> float:
        return spread(self.values)


class MeasuredFigure(Strict):
    """A figure as it was read."""

    name: str
    work: str
    peer: str
    unit: str
    target: float
    of_peer: bool = False
    losses: tuple[float, float] | None = None
    """Of what is computed on the way, ours and the peer's."""
    sides: list[Numbers]
    peers: tuple[str, ...] = ()

    @property
    def mine(self) -> list[Numbers]:
        return [s for s in self.sides if s.side not in self.peers]

    @property
    def theirs(self) -> list[Numbers]:
        return [s for s in self.sides if s.side in self.peers]

    @property
    def ours(self) -> float:
        """The worst of ours."""
        return max(s.value for s in self.mine)

    @property
    def best(self) -> float | None:
        """The least of the peer's."""
        return min((s.value for s in self.theirs), default=None)

    @property
    def share(self) -> float | None:
        """Ours as a share of the peer's best.

        >>> sides = [Numbers(side=name, values=[v]) for name, v in {"a": 10.0, "b": 20.0, "x": 90.0, "y": 80.0}.items()]
        >>> Figure = lambda **more: MeasuredFigure(name="", work="", peer="", unit="MB", sides=sides, **more)
        >>> Figure(target=0.25, of_peer=True, peers=("x", "y")).share
        0.25
        """
        return None if self.best is None else self.ours / self.best

    @property
    def met(self) -> bool:
        found = self.share if self.of_peer else self.ours
        return found is not None and found <= self.target


class Record(Strict):
    """All rows of a run, and what they were measured on."""

    format: int = 1
    command: str
    turns: int
    steps: int
    environment: dict[str, Any]
    rows: list[Measured]
    figures: list[MeasuredFigure] = Field([])
