"""The table of a run's chapters of a stream (`out/stream.jsonl`, see `data.stream`): its lines, and what they say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unmask.data.loader import Stretch
from unmask.disk import write_text
from unmask.errors import UserError

FORMAT = 1
TABLE = "stream.jsonl"


@dataclass(frozen=True)
class Chapter:
    """A line of the table."""

    number: int
    """Of the chapter in its epoch, from 0."""
    epoch: int
    """How often the stream was read before."""
    begin: dict[str, Any]
    end: dict[str, Any] | None
    """None: the stream is over, and begins again."""
    prepared: str
    """The fingerprint of its text and tokenizer."""
    documents: int
    """That are trained on."""
    tokens: int
    bytes: int
    """UTF-8 bytes of their texts."""
    held_out: int
    """Documents that belong to the held-out side."""
    samples: int
    """Also those of a chapter that makes no update."""
    first: int
    """The number of its first update."""
    before: int
    """Samples of the updates before that."""
    per_step: int
    """0: no update can be made of it (`data.sampling.TooFew`)."""
    updates: int

    @property
    def stretch(self) -> Stretch:
        return Stretch(self.number, self.epoch, self.first, self.before)

    @property
    def left_over(self) -> int:
        return self.samples - self.updates * self.per_step


def coverage(table: Sequence[Chapter], steps: int) -> str:
    """What so many updates have read of a stream.

    >>> one = Chapter(0, 0, {}, {"file": 1}, "", 900, 7000, 9000, 50, 410, 0, 0, 40, 10)
    >>> two = Chapter(1, 0, {"file": 1}, None, "", 900, 7000, 9000, 50, 410, 10, 400, 40, 10)
    >>> coverage([one, two], 14)
    'the stream: chapter 1 read to its end, each text once (10 samples are left over, too few for one more update; 50 \
documents are held out); stopped inside chapter 2, after 4 of its 10 updates'
    >>> again = Chapter(0, 1, {}, {"file": 1}, "", 900, 7000, 9000, 50, 410, 20, 800, 40, 10)
    >>> coverage([one, two, again], 25)
    'the stream: read to its end, each text once (20 samples are left over, too few for one more update; 100 \
documents are held out); stopped inside chapter 1, after 5 of its 10 updates'
    """
    read = [line for line in table if line.first < steps]
    whole, last = [line for line in read if line.first + line.updates <= steps], read[-1]
    times = sum(line.end is None for line in whole)
    inside = whole[-1] is not last if whole else True
    done = ""
    if times:
        done = "read to its end, each text once" if times == 1 else f"read {times} times to its end, each text as often"
    since = [line for line in whole if line.epoch == last.epoch]
    if since and since[-1].end is not None:
        more, its = ("chapter 1", "its") if len(since) == 1 else (f"chapters 1 to {len(since)}", "their")
        done = f"{done}, then {more} once more" if done else f"{more} read to {its} end, each text once"
    left = sum(line.left_over for line in whole if line.per_step)
    single = [line.left_over for line in whole if line.samples and not line.per_step]
    held = sum({x.number: x.held_out for x in whole}.values())
    apart = [f"{left:,} samples are left over, too few for one more update"] * bool(left)
    apart += [f"{sum(single):,} samples are not read: a pair needs a second document in its chapter"] * bool(single)
    apart += [f"{held:,} documents are held out"] * bool(held)
    done += f" ({'; '.join(apart)})" if apart else ""
    if inside:
        stop = f"stopped inside chapter {last.number + 1}, after {steps - last.first:,} of its {last.updates:,} updates"
        done = f"{done}; {stop}" if done else stop
    return f"the stream: {done}"


def amounts(out: Path) -> dict[str, dict[str, int]]:
    """How much text of a stream a run has read, each chapter counted once."""
    lines = {line.number: line for line in read_table(out)[1]}
    name = "of a stream, chapter 1" if len(lines) == 1 else f"of a stream, chapters 1 to {len(lines)}"
    return {name: {k: sum(getattr(x, k) for x in lines.values()) for k in ("documents", "tokens", "bytes")}}


def write_table(out: Path, files: Sequence[tuple[str, int, str]], table: Sequence[Chapter]) -> None:
    """Write the table so that it is the old one or the new one."""
    head = {"format": FORMAT, "files": [list(file) for file in files]}
    write_text(out / TABLE, "".join(json.dumps(row) + "\n" for row in (head, *map(asdict, table))))


def read_table(out: Path) -> tuple[Sequence[tuple[str, int, str]], list[Chapter]]:
    """The files of a run's stream when it was started, and its chapters so far."""
    path = out / TABLE
    try:
        head, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        if head["format"] != FORMAT:
            raise UserError(f"{path} has another format than {FORMAT}: it was written by another version of unmask")
        return [(str(n), int(s), str(v)) for n, s, v in head["files"]], [Chapter(**line) for line in lines]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} does not say what was read of the stream ({error}): restore it") from error
