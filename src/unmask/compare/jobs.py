"""Jobs of a study side by side: a process for each, one thread a process, at most so many at once.

    DIR/jobs/NAME.job    what it does (`job.Spec`)      NAME.json   what it found: there once it is done
    DIR/jobs/NAME.log    what it said

A job that fails ends the study with one sentence; the others write a checkpoint first, so nothing of them is lost.
"""

from __future__ import annotations

import heapq
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from unmask.compare.job import MEASURED, Spec
from unmask.errors import UserError

Say = Callable[[str], None]
POLL, SHOWN = 0.1, 30.0
"""Seconds between two looks at the jobs, and between two lines of progress."""
FEW = 5.0
"""Seconds left that are not counted."""


@dataclass(frozen=True)
class Job:
    """name: in messages; file: DIR/jobs/NAME without an ending; cost: FLOPs, about; updates: of its training."""

    name: str
    file: Path
    spec: Spec
    cost: float = 1.0
    updates: int = 0

    @property
    def found(self) -> Path:
        return self.file.with_name(self.file.name + ".json")

    @property
    def log(self) -> Path:
        return self.file.with_name(self.file.name + ".log")

    def result(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.found.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise UserError(
                f"{self.found} cannot be read ({error}): remove it, and resume=auto does the job again"
            ) from error

    @property
    def metrics(self) -> Path:
        return self.file.parent.parent / self.spec.place / "metrics.jsonl"

    @property
    def milestones(self) -> int:
        """How many it measures after its training."""
        return self.spec.milestones if self.spec.kind == "run" else 0

    def measured(self) -> int:
        """How many it has measured, in all its lives."""
        try:
            return self.log.read_bytes().count(MEASURED.encode())
        except OSError:
            return 0

    def share(self) -> float:
        """How much of its training is done, by its metrics."""
        try:
            with self.metrics.open("rb") as metrics:
                metrics.seek(-min(4096, self.metrics.stat().st_size), os.SEEK_END)
                steps = [line["step"] for line in map(_parsed, metrics.read().splitlines()) if "step" in line]
        except OSError:
            return 0.0
        return min(1.0, steps[-1] / self.updates) if steps and self.updates else 0.0


def _parsed(line: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:  # cut off at either end
        return {}
    return value if isinstance(value, dict) else {}


@dataclass
class _Running:
    job: Job
    process: subprocess.Popen[bytes]
    slot: int
    begun: float = field(default_factory=time.time)


def run(jobs: Sequence[Job], processes: int, say: Say, gpus: int = 0, hold: int | None = None) -> list[dict[str, Any]]:
    """Do what is not done yet, dearest first; the results in the order of the jobs.

    hold: a file descriptor that the processes keep open as long as they live (the study's lock).
    """
    todo = sorted((j for j in jobs if not j.found.exists()), key=lambda j: -j.cost)
    done = len(jobs) - len(todo)
    if done and todo:
        say(f"{done} of {len(jobs)} jobs are done already")
    progress = _Progress(todo, processes, say)
    free, running = list(range(processes)), list[_Running]()
    try:
        while todo or running:
            while todo and free:
                job, slot = todo.pop(0), free.pop(0)
                running.append(_Running(job, _start(job, slot, gpus, hold), slot))
            time.sleep(POLL)
            for one in [r for r in running if r.process.poll() is not None]:
                running.remove(one)
                free.append(one.slot)
                _require_done(one)
                done += 1
                progress.ended(one, done, len(jobs), running, todo)
            progress.show(running, todo)
    finally:  # an error or Ctrl-C: each writes a checkpoint and ends
        for one in running:
            one.process.terminate()
        for one in running:
            one.process.wait()
    return [job.result() for job in jobs]


def _start(job: Job, slot: int, gpus: int, hold: int | None) -> subprocess.Popen[bytes]:
    job.file.parent.mkdir(parents=True, exist_ok=True)
    order = job.file.with_name(job.file.name + ".job")
    order.write_text(json.dumps(asdict(job.spec), indent=1) + "\n", encoding="utf-8")
    with job.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "unmask.compare.job", str(order)],
            stdin=subprocess.PIPE,  # it closes with this process, however that ends
            start_new_session=True,  # Ctrl-C reaches this process alone, which then asks its jobs to end in good order
            stdout=log,
            stderr=log,
            env={**os.environ, **surroundings(slot, gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))},
            pass_fds=() if hold is None else (hold,),
        )


def surroundings(slot: int, gpus: int, visible: str | None = None) -> dict[str, str]:
    """One thread a process, and one GPU where there are some, of those that are `visible` to this process; modules are
    found where this process finds them.

    >>> found = surroundings(3, 2), surroundings(1, 2, "5,7"), surroundings(1, 0)
    >>> [one.get("CUDA_VISIBLE_DEVICES") for one in found], found[0]["OMP_NUM_THREADS"]
    (['1', '7', None], '1')
    """
    found = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if gpus:
        names = [name.strip() for name in visible.split(",")] if visible else [str(k) for k in range(gpus)]
        found["CUDA_VISIBLE_DEVICES"] = names[slot % gpus]
    return found


def _require_done(one: _Running) -> None:
    job, code = one.job, one.process.returncode
    if code == 0 and job.found.exists():
        return
    said = [s for s in job.log.read_text(encoding="utf-8", errors="replace").splitlines() if s.strip()]
    told = said[-1].removeprefix("error: ") if said else "it said nothing"
    raise UserError(f"the job {job.name} ended with code {code} ({job.log}): {told}")


class _Progress:
    """A line when a job ends, and one now and then with the time that is left, for training and for measuring."""

    def __init__(self, todo: Sequence[Job], processes: int, say: Say) -> None:
        self.say, self.processes, self.shown = say, processes, time.time()
        self.before = {j.name: (j.share(), j.measured()) for j in todo}
        self.pace, self.each = _Mean(), _Mean()
        """FLOPs a second of training, and seconds that a milestone takes to be measured."""

    def ended(self, one: _Running, done: int, number: int, running: Sequence[_Running], todo: Sequence[Job]) -> None:
        now = time.time()
        trained = self._trained(one, now, 1.0)
        self.pace = self.pace.and_more((1 - self.before[one.job.name][0]) * one.job.cost, trained)
        if one.job.milestones:
            self.each = self.each.and_more(now - one.begun - trained, one.job.milestones)
        took = now - one.begun
        self.say(f"{done} of {number}: {one.job.name}, {took:.0f} s{self._left(running, todo, now)}")

    def show(self, running: Sequence[_Running], todo: Sequence[Job]) -> None:
        now = time.time()
        if now - self.shown < SHOWN or not running:
            return
        self.shown = now
        shares = [(r.job.name, r.job.share()) for r in running]
        each = ", ".join(f"{name} {f'{share:.0%}' if share < 1 else 'measuring'}" for name, share in shares)
        self.say(f"{each}{self._left(running, todo, now)}")

    @staticmethod
    def _trained(one: _Running, now: float, share: float) -> float:
        """Seconds that it has trained in this session: its metrics are written to the last update."""
        try:
            end = one.job.metrics.stat().st_mtime if share >= 1 else now
        except OSError:
            end = now
        return min(max(end - one.begun, 0.0), now - one.begun)

    def _left(self, running: Sequence[_Running], todo: Sequence[Job], now: float) -> str:
        """By FLOPs and milestones: how fast those of this session went."""
        if not running and not todo:
            return ""
        pace, each = self.pace, self.each
        at: list[tuple[Job, float, int]] = []  # how much of it is trained, how many milestones are measured
        for one in running:
            share = one.job.share()
            before, counted = self.before[one.job.name]
            trained, measured = self._trained(one, now, share), one.job.measured() - counted
            pace = pace.and_more((share - before) * one.job.cost, trained)
            if measured > 0:
                each = each.and_more(now - one.begun - trained, measured)
            at.append((one.job, share, measured))
        if pace.sum <= 0 or pace.number <= 0:
            return ""
        known = each.sum / each.number if each.number else 0.0

        def rest(job: Job, share: float, measured: int) -> float:
            return (1 - share) * job.cost * pace.number / pace.sum + max(job.milestones - measured, 0) * known

        seconds = time_left(
            [rest(*one) for one in at], [rest(j, self.before[j.name][0], 0) for j in todo], self.processes
        )
        unknown = any(job.milestones for job in (*(job for job, *_ in at), *todo)) and not each.number
        told = f"about {duration(seconds)}" if seconds >= FEW else "a few seconds"  # starting and ending take some, too
        return f"; {told} left{' and the measuring' if unknown else ''}"


@dataclass(frozen=True)
class _Mean:
    """Sum and number of what was seen."""

    sum: float = 0.0
    number: float = 0.0

    def and_more(self, sum_: float, number: float) -> _Mean:
        return _Mean(self.sum + sum_, self.number + number)


def time_left(running: Sequence[float], waiting: Sequence[float], processes: int) -> float:
    """Seconds until all is done, from those that each job still takes: the next one begins where one ends first.

    >>> time_left([10, 4], [8, 3], 2), time_left([], [5, 5, 5], 2)
    (13, 10.0)
    """
    ends = sorted(running)[-processes:]
    ends = [0.0] * (processes - len(ends)) + ends
    for seconds in waiting:
        heapq.heapreplace(ends, ends[0] + seconds)
    return max(ends)


def duration(seconds: float) -> str:
    """
    >>> duration(41), duration(600), duration(9000)
    ('41 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
