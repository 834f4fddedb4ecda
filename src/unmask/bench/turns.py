"""Processes that work in turn: while one is timed, no other works.

The sides of a row of steps live as long as the row and wait for a line on their standard input.

The parent writes "N\n": do N steps. The child answers with one line of JSON, {"seconds": …}; its first line says what
it is: {"tokens": …, "about": …}. Closing the input ends it. Each side has its own process, so that neither one's
allocator, threads nor compiled code serve the other. A figure's side is a new process for every reading: its one line
is the reading.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.bench.base import Figure, Numbers, Reading, Row, Timed
from unmask.errors import UserError

WARM = 3
"""Steps that no turn counts, first of all: memory is allocated, kernels are chosen, code is compiled."""
REST = 1
"""Steps that no turn counts at its start: a machine takes memory and caches from a process that waits, no run waits."""


class Side:
    """A child process that does a row's side."""

    def __init__(self, row: str, side: str, folder: Path) -> None:
        self.row, self.side = row, side
        command = [sys.executable, "-m", "unmask.bench.side", row, side, str(folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.made = self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            raise UserError(
                f"bench row {self.row}: its side '{self.side}' ended with code {code}; what it said is above"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def go(self, steps: int) -> float:
        """Seconds of so many steps."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return float(self._answer()["seconds"])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measured(row: Row, folder: Path, turns: int, steps: int, say: Callable[[str], None]) -> list[Timed]:
    """Every side of a row, `turns` times in turn, so many steps each time; tokens a second."""
    sides: dict[str, Side] = {}
    rates: dict[str, list[float]] = {name: [] for name in row.sides}
    try:
        for name in row.sides:
            sides[name] = Side(row.name, name, folder)
            sides[name].go(WARM)
        for turn in range(turns):
            for name in _order(list(sides), turn):
                sides[name].go(REST)
                seconds = sides[name].go(steps)
                rates[name].append(sides[name].made["tokens"] * steps / seconds)
            said = ", ".join(f"{name} {rates[name][-1]:,.0f}" for name in row.sides)
            say(f"{row.name}, turn {turn + 1} of {turns}: {said} tokens/s")
    finally:
        for side in sides.values():
            side.close()
    return [Timed(side=name, rates=rates[name], about=sides[name].made["about"]) for name in row.sides]


def readings(figure: Figure, folder: Path, turns: int, say: Callable[[str], None]) -> list[Numbers]:
    """Every side of a figure, `turns` times in turn, each time in a process of its own."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in figure.sides}
    for turn in range(turns):
        for name in _order(list(found), turn):
            side = Side(figure.name, name, folder)
            side.close()
            found[name].append(side.made)
        said = ", ".join(f"{name} {each[-1]['value']:,.3g}" for name, each in found.items())
        say(f"{figure.name}, turn {turn + 1} of {turns}: {said} {figure.unit}")
    return [_numbers(name, each) for name, each in found.items()]


def _numbers(side: str, each: Sequence[Mapping[str, Any]]) -> Numbers:
    beside = {key: [one["beside"][key] for one in each] for key in each[0]["beside"]}
    return Numbers(side=side, values=[one["value"] for one in each], beside=beside, about=each[0]["about"])


def _order(names: Sequence[str], turn: int) -> list[str]:
    """Who begins changes from turn to turn.

    >>> _order(["a", "b", "c"], 1)
    ['b', 'c', 'a']
    """
    k = turn % len(names)
    return [*names[k:], *names[:k]]


class Baton:
    """The child's end: `tick` after every step; it answers and waits where a turn ends."""

    def __init__(self, tokens: int, about: Mapping[str, Any]) -> None:
        _say({"tokens": tokens, "about": dict(about)})
        self._wait()

    def _wait(self) -> None:
        line = sys.stdin.readline()
        if not line:
            raise SystemExit(0)
        self.left = int(line)
        self.began = time.perf_counter()

    def tick(self) -> None:
        self.left -= 1
        if self.left <= 0:
            _say({"seconds": time.perf_counter() - self.began})
            self._wait()


def tell(reading: Reading) -> None:
    """The child's end of a figure."""
    _say({"value": reading.value, "beside": dict(reading.beside), "about": dict(reading.about)})


def _say(answer: Mapping[str, Any]) -> None:
    sys.__stdout__.write(json.dumps(answer) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]
