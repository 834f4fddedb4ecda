"""Jobs of a study side by side: a process for each, one thread a process, at most so many at once.

    DIR/jobs/NAME.job    what it does (`job.Spec`)      NAME.json   what it found: there once it is done
    DIR/jobs/NAME.log    what it said

A job that fails ends the study with one sentence; the others write a checkpoint first, so nothing of them is lost.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from unmask.compare.job import Spec
from unmask.errors import UserError

Say = Callable[[str], None]
POLL, SHOWN = 0.1, 30.0
"""Seconds between two looks at the jobs, and between two lines of progress."""


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

    def share(self) -> float:
        """How much of its training is done, by its metrics."""
        file = self.file.parent.parent / self.spec.place / "metrics.jsonl"
        try:
            with file.open("rb") as metrics:
                metrics.seek(-min(4096, file.stat().st_size), os.SEEK_END)
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
    begun: float = field(default_factory=time.monotonic)


def run(jobs: Sequence[Job], processes: int, say: Say, gpus: int = 0, hold: int | None = None) -> list[dict[str, Any]]:
    """Do what is not done yet, dearest first; the results in the order of the jobs.

    hold: a file descriptor that the processes keep open as long as they live (the study's lock).
    """
    todo = sorted((j for j in jobs if not j.found.exists()), key=lambda j: -j.cost)
    done = len(jobs) - len(todo)
    if done and todo:
        say(f"{done} of {len(jobs)} jobs are done already")
    progress = _Progress(todo, say)
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
                progress.ended(one, done, len(jobs))
            progress.show([r.job for r in running])
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
            stdout=log,
            stderr=log,
            env={**os.environ, **surroundings(slot, gpus)},
            pass_fds=() if hold is None else (hold,),
        )


def surroundings(slot: int, gpus: int) -> dict[str, str]:
    """One thread a process, and one GPU where there are some.

    >>> surroundings(3, 2)
    {'OMP_NUM_THREADS': '1', 'MKL_NUM_THREADS': '1', 'CUDA_VISIBLE_DEVICES': '1'}
    """
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return {**threads, "CUDA_VISIBLE_DEVICES": str(slot % gpus)} if gpus else threads


def _require_done(one: _Running) -> None:
    job, code = one.job, one.process.returncode
    if code == 0 and job.found.exists():
        return
    said = [s for s in job.log.read_text(encoding="utf-8", errors="replace").splitlines() if s.strip()]
    told = said[-1].removeprefix("error: ") if said else "it said nothing"
    raise UserError(f"the job {job.name} ended with code {code} ({job.log}): {told}")


class _Progress:
    """A line when a job ends, and one now and then with the time that is left."""

    def __init__(self, todo: Sequence[Job], say: Say) -> None:
        self.say, self.begun, self.shown = say, time.monotonic(), time.monotonic()
        self.total = sum(j.cost for j in todo)
        self.ahead = {j.name: j.share() for j in todo}  # from before
        self.spent = sum(self.ahead[j.name] * j.cost for j in todo)
        self.before = self.spent
        self.finished = 0.0

    def ended(self, one: _Running, done: int, number: int) -> None:
        self.finished += one.job.cost
        took = time.monotonic() - one.begun
        self.say(f"{done} of {number}: {one.job.name}, {took:.0f} s{self._left(self.finished)}")

    def show(self, running: Sequence[Job]) -> None:
        if time.monotonic() - self.shown < SHOWN or not running:
            return
        self.shown = time.monotonic()
        shares = [(j, j.share()) for j in running]
        spent = self.finished + sum(share * j.cost for j, share in shares)
        each = ", ".join(f"{j.name} {f'{share:.0%}' if share < 1 else 'measuring'}" for j, share in shares)
        self.say(f"{each}{self._left(spent)}")

    def _left(self, spent: float) -> str:
        """By FLOPs: how fast those of this session went."""
        made, took = spent - self.before, time.monotonic() - self.begun
        if made <= 0 or spent >= self.total:
            return ""
        return f"; about {duration((self.total - spent) / made * took)} left"


def duration(seconds: float) -> str:
    """
    >>> duration(41), duration(600), duration(9000)
    ('41 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
