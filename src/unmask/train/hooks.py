"""What happens around updates: metrics on disk, progress on stderr, evaluation, and stopping in good order."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, Self, TextIO

import torch
from torch import Tensor, nn

from unmask.batch import TermKey
from unmask.disk import cannot_write
from unmask.train.devices import doubled
from unmask.train.live import Display, Mark, number, rows
from unmask.train.loggers import Loggers
from unmask.train.peak import Peak
from unmask.train.spread import Term


class Metrics:
    """`metrics.jsonl`: one line for every update, one more after an evaluation; each is flushed at once.

        {"step": 7, "tokens": …, "target_tokens": …, "seconds": …, "flops": …, "lr": …, "loss": …,
         "terms": {"objective/head": …}, "grad_norm": …, "gradients": … where they are looked at (`Gradients`)}
        {"step": 7, "evaluation": {"loss": …, …}}

    Counters are cumulative; `seconds` are those of training alone; `loss` is of the whole update, in nats, null
    where an update had no target: what is trained, over all targets, where the evaluation's is over content targets
    (no sentinels, no ends), so of sparse objectives it is the smaller one.
    """

    def __init__(self, path: Path, keep_to: int, copies: Loggers | None = None) -> None:
        """Open for appending, after dropping lines of later steps than `keep_to` and torn ones.

        copies: who gets every line, too.
        """
        self.path, self.copies = path, copies
        with self._explained():
            seen = self._truncate(keep_to) if path.exists() else keep_to
            self.file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed by `close`)
        if copies is not None:
            copies.start(keep_to, seen)

    def _truncate(self, keep_to: int) -> int:
        """Cut what stands behind the last line that stays, and return the last step that had a line.

        Steps ascend, so the file is read from its end: a run of a million updates would wait seconds for the rest.
        """
        seen, stays = keep_to, 0
        with open(self.path, "r+b") as file:
            for end, line in _from_the_end(file):
                step = _step(line) if line.endswith(b"\n") else None
                seen = max(seen, step or 0)
                if step is not None and step <= keep_to:
                    stays = end
                    break
            file.truncate(stays)
            os.fsync(file.fileno())
        return seen

    def write(self, line: Mapping[str, Any]) -> None:
        with self._explained():
            self.file.write(json.dumps(line, allow_nan=False) + "\n")
            self.file.flush()
        if self.copies is not None:
            self.copies.write(line)

    def sync(self) -> None:
        """Flush to the disk: a checkpoint must never be newer than the lines that led to it."""
        with self._explained():
            os.fsync(self.file.fileno())
        if self.copies is not None:
            self.copies.flush()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise cannot_write(self.path, 4096, error) from error

    def close(self) -> None:
        self.file.close()
        if self.copies is not None:
            self.copies.close()


_BLOCK = 1 << 16
"""Bytes of metrics.jsonl that are read at once."""


def _from_the_end(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(where it ends, line) of every line, the last one first."""
    at, rest = file.seek(0, os.SEEK_END), b""
    while at:
        size = min(_BLOCK, at)
        at -= size
        file.seek(at)
        rest = file.read(size) + rest
        end, begin = at + len(rest), rest.rfind(b"\n", 0, len(rest) - 1) + 1
        while begin:
            yield end, rest[begin:]
            rest, end = rest[:begin], at + begin
            begin = rest.rfind(b"\n", 0, len(rest) - 1) + 1
    if rest:
        yield len(rest), rest


def _step(line: bytes) -> int | None:
    """None where the line is no line of metrics."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


@dataclass(frozen=True)
class Evaluation:
    """A function of the networks, called after every `every` updates and after the last.

    It returns numbers, among them "loss", by which the best checkpoint is chosen. It runs without gradients, in
    evaluation mode, and must be a pure function of the weights: a resumed run may call it again.
    """

    every: int
    function: Callable[[nn.ModuleDict], Mapping[str, float]]

    def due(self, step: int, total: int | None) -> bool:
        return step > 0 and (step == total or (self.every > 0 and step % self.every == 0))


@dataclass(frozen=True)
class Gradients:
    """After every `every` updates, how the gradients of the parts of a mixture stand to each other.

        {"cosine": {"clm mlm": 0.31}, "norm": {"clm": 1.2, "mlm": 0.7}}

    The cosine of two parts is over the parameters that both of them use, without dropout, at the weights after the
    update, on its micro-batch with the most parts; null where a gradient is 0. Gradients are returned, not added to
    the parameters', and no random state is read: the run is the same bit for bit with it and without.
    """

    every: int

    def due(self, step: int) -> bool:
        return self.every > 0 and step % self.every == 0

    def __call__(self, networks: nn.ModuleDict, terms: Mapping[TermKey, Term]) -> dict[str, Any]:
        """`terms` of one micro-batch, with their graph."""
        losses: dict[str, Tensor] = {}
        for (part, _), term in terms.items():
            if term.norm and term.sum.requires_grad:
                loss = term.sum * (term.coefficient / term.norm)
                losses[part] = losses[part] + loss if part in losses else loss
        parameters = [p for p in networks.parameters() if p.requires_grad]
        found = {
            part: torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
            for part, loss in losses.items()
        }
        return {
            "cosine": {f"{a} {b}": _cosine(found[a], found[b]) for a, b in combinations(found, 2)},
            "norm": {part: _dot(own, own) ** 0.5 for part, own in found.items()},
        }


def _cosine(a: Sequence[Tensor | None], b: Sequence[Tensor | None]) -> float | None:
    """Over the parameters that both have a gradient of; None where one is 0."""
    both = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    x, y = [x for x, _ in both], [y for _, y in both]
    length = (_dot(x, x) * _dot(y, y)) ** 0.5
    return _dot(x, y) / length if length > 0 else None


def _dot(a: Sequence[Tensor | None], b: Sequence[Tensor | None]) -> float:
    sums = [(doubled(x) * doubled(y)).sum() for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    return float(torch.stack(sums).sum()) if sums else 0.0


class Stop:
    """Ctrl-C and SIGTERM as a request: the update in progress ends, a checkpoint is written, then the run stops.

    Inside `interruptible` (evaluation) the request is answered at once. A second signal does not wait.
    Outside the main thread Python cannot catch signals, and nothing is caught.
    """

    def __init__(self) -> None:
        self.requested: str | None = None
        self._at_once = False
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._old = {s: signal.signal(s, self._handle) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for which, handler in self._old.items():
            signal.signal(which, handler)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Work that is cut short by a request, made before or during it, with KeyboardInterrupt."""
        self._at_once = True
        try:
            if self.requested is not None:
                raise KeyboardInterrupt(self.requested)
            yield
        finally:
            self._at_once = False

    def _handle(self, number: int, _: FrameType | None) -> None:
        again = self.requested is not None
        self.requested = signal.Signals(number).name
        if again or self._at_once:
            raise KeyboardInterrupt(self.requested)


class Progress:
    """How a run goes, on stderr: a small table in place on a terminal (`live`), else a line about every ten seconds."""

    waited: float | None = None
    """Seconds that updates of this process have waited for their batches so far, where the trainer says so."""

    def __init__(self, stream: TextIO | None = None, interval: float = 10.0, peak: Peak | None = None) -> None:
        self.stream = stream or sys.stderr
        self.terminal = self.stream.isatty()
        self.interval = 0.2 if self.terminal else interval
        self.peak = peak
        self.shown = time.monotonic()
        self.mark: Mark | None = None  # where the counters stood at the last status
        self.display: Display | None = None

    def show(self, line: Mapping[str, Any], total: int | None) -> None:
        """Called after every update with its metrics line; prints when the interval has passed or at the end."""
        now = time.monotonic()
        if self.mark is not None and now - self.shown < self.interval and line["step"] != total:
            return
        here, since = Mark.of(line, self.waited), self._since(line)
        if self.terminal:
            if self.display is None:
                self.display = Display(self.stream)
            self.display.show(self._title(line, total, since), rows(line, since, here, self.peak))
        else:
            print(self.text(line, total), file=self.stream, flush=True)
        self.shown, self.mark = now, here

    def text(self, line: Mapping[str, Any], total: int | None) -> str:
        """One line of text from a line of metrics. Its loss is what is trained: of all targets, sentinels and ends too,
        which the held-out loss leaves out.

        >>> Progress().text({"step": 8, "seconds": 4.0, "tokens": 800, "loss": 2.5, "terms": {"a/b": 2.5}}, 16)
        'step 8/16 · loss 2.500 of all targets · 200 tokens/s · 0:04 left'
        """
        since = self._since(line)
        spent, terms = max(line["seconds"] - since.seconds, 1e-9), line["terms"]
        loss = "loss no targets" if line["loss"] is None else f"loss {line['loss']:.3f} of all targets"
        if len(terms) > 1:
            loss += " (" + ", ".join(f"{name} {number(value)}" for name, value in terms.items()) + ")"
        step, left = self._title(line, total, since).split(" · ")
        return " · ".join([step, loss, f"{(line['tokens'] - since.tokens) / spent:,.0f} tokens/s", left])

    def _since(self, line: Mapping[str, Any]) -> Mark:
        """What rates are counted from; from the start, where there was no update between."""
        return Mark() if self.mark is None or self.mark.step >= line["step"] else self.mark

    def _title(self, line: Mapping[str, Any], total: int | None, since: Mark) -> str:
        """The step, and how long the rest takes at the pace since the last status."""
        step = f"step {line['step']}/{total or '?'}"
        if total is None:
            return f"{step} · timing the first steps"
        spent = max(line["seconds"] - since.seconds, 1e-9)
        left = round((total - line["step"]) * spent / (line["step"] - since.step))
        hours, rest = divmod(left, 3600)
        minutes = f"{rest // 60:02d}" if hours else f"{rest // 60}"
        return f"{step} · " + (f"{hours}:" if hours else "") + f"{minutes}:{rest % 60:02d} left"

    def say(self, text: str) -> None:
        """A message that stays."""
        if self.display is not None:
            self.display.say(text)
        else:
            print(text, file=self.stream, flush=True)

    def close(self) -> None:
        if self.display is not None:
            self.display.close()
            self.display = None
