"""A run's batches from a stream: chapter after chapter, each a small corpus, the next one read while one is trained on.

    out/stream.jsonl       the files as they were when the run was started, then a line a chapter, in the run's order:
                           where it begins and ends in the stream, what it was prepared as, which updates it gives
    out/chapters/<print>/  shards of the chapter that is trained on, the two before and the one after it

    chapter              0         1         2              0         1      …
    updates              0 … 39    40 … 79   80 … 91        92 … 131  …
    epoch of the stream  0         0         0 (its end)    1         1

So the chapter of an update is found by looking it up, and a run that goes on reads no other one again: it finds its
shards, or reads its text from where it begins. A chapter of N samples gives N // per_step updates; the few samples
left over are not read in this epoch. Nothing depends on when a chapter was read: a line is a function of the stream.

Rank 0 reads, in a process of its own (`data.reader`), and writes the table. The other ranks wait for both to lie there.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from unmask.batch import Batch
from unmask.config import CorpusConfig
from unmask.data.chapters import Chapter, coverage, read_table, write_table
from unmask.data.loader import Loader, Stretch
from unmask.data.reader import POLL, Ended, Read, Reader
from unmask.data.sampling import TooFew
from unmask.data.shards import Prepared
from unmask.data.spool import far
from unmask.errors import Stopped, Unread, UserError, one_line
from unmask.text.position import Position, Span
from unmask.text.progress import Say

FOLDER = "chapters"
LOADERS = 2
"""Chapters that are held open: batches are built ahead across the border of two."""
PATIENCE = 3600.0
"""Seconds that a rank waits for rank 0 to have read a chapter."""
PAUSES = (5.0, 30.0)
"""Seconds after which a stream behind a network is read once more, where reading it failed."""


class Chapters:
    """Batches of a stream; called as a `Loader` is.

    text: the run's own, which is the stream's first chapter.
    loader: a chapter's batches, given its text and its place in the run.
    writes: whether this process reads the stream; the others look at what it writes.
    """

    def __init__(
        self,
        out: Path,
        corpus: CorpusConfig,
        fraction: float,
        text: Prepared,
        loader: Callable[[Prepared, Stretch], Loader],
        writes: bool = True,
        say: Say = lambda _: None,
    ) -> None:
        self.out, self.corpus, self.fraction, self.text = out, corpus, fraction, text
        self.make, self.writes, self.say = loader, writes, say
        self.total: Callable[[], int | None] = lambda: None
        """The updates of the run, once they are known: what lies beyond is not read ahead."""
        self.stopped: Callable[[], bool] = lambda: False
        """Whether the run is to stop: a wait for text then ends in `Stopped`."""
        self.table: list[Chapter] = []
        self.files: Sequence[tuple[str, int, str]] = ()
        self.loaders: dict[int, Loader] = {}
        self.warned: set[str] = set()
        self.reader: Reader | None = None
        self.lock = threading.RLock()

    # ------------------------------------------------------------ batches

    def __call__(self, step: int, progress: float = 0.0, cut: range | None = None) -> list[Batch]:
        """The micro-batches of update `step`, see `Loader`."""
        return self._at(step)(step, progress, cut)

    def texts(self, step: int, progress: float = 0.0) -> list[tuple[int, np.ndarray]]:
        """The texts that an update reads, see `Loader`; numbers are of documents in the chapter."""
        return self._at(step).texts(step, progress)

    def chapter(self, step: int) -> int:
        """The number, from 1, of the chapter that an update reads."""
        self._at(step)
        number = self._number(step)
        assert number is not None
        return self.table[number].number + 1

    def _at(self, step: int) -> Loader:
        with self.lock:
            try:
                return self._found(step)
            except UserError as error:
                raise Unread(str(error)) from error
            except OSError as error:
                raise Unread(
                    f"the next text of {self.corpus.path} cannot be had in {self.out} ({one_line(error)}): mend this, "
                    "then resume the run"
                ) from error

    def _found(self, step: int) -> Loader:
        if not self.table:
            self._read_table()
        while (number := self._number(step)) is None:
            self._extend()
        loader = self._loader(number)
        if self.writes:
            self._read_ahead(number)
        return loader

    def _number(self, step: int) -> int | None:
        """The line of the chapter that an update belongs to."""
        for number in range(len(self.table) - 1, -1, -1):
            first = self.table[number].first
            if first <= step:
                return number if step < first + self.table[number].updates else None
        raise ValueError(f"update {step} is before the first chapter")

    def _loader(self, number: int) -> Loader:
        loader = self.loaders.get(number) or self.make(self._text(number), self.table[number].stretch)
        self._keep(number, loader)
        return loader

    def _keep(self, number: int, loader: Loader) -> None:
        """Hold a chapter open, and of the others those that were asked for last."""
        self.loaders.pop(number, None)
        self.loaders[number] = loader
        while len(self.loaders) > LOADERS:
            del self.loaders[next(iter(self.loaders))]

    # ------------------------------------------------------------ the table

    def begin(self) -> None:
        """Start a run: write down the stream's files, and its first chapter."""
        assert self.text.span is not None
        self.files = self.text.span.files
        span, prepared = self.text.span, self.text.directory.name
        line, loader = self._line(0, 0, self.text, Read(span, prepared))
        if not line.updates:
            raise UserError(
                f"a chapter of {self.corpus.path} holds {line.samples:,} samples and an update takes "
                f"{line.per_step or 'more'}: raise corpus.chapter ({self.corpus.chapter:,} bytes)"
            )
        self._add(line, loader)
        self._tell(line)

    def _add(self, line: Chapter, loader: Loader | None) -> None:
        write_table(self.out, self.files, [*self.table, line])
        self.table.append(line)
        if loader is not None and line.updates:
            self._keep(len(self.table) - 1, loader)

    def _read_table(self) -> None:
        self.files, self.table = read_table(self.out)

    def _extend(self) -> None:
        """One more line: the chapter after the last one."""
        if not self.writes:
            known = len(self.table)
            self._wait(lambda: self._written() > known, f"chapter {known + 1} of the stream")
            return self._read_table()
        last = self.table[-1]
        over = last.end is None
        number, epoch = (0, last.epoch + 1) if over else (last.number + 1, last.epoch)
        read = self._read(number, epoch, Position.of({} if last.end is None else last.end))
        line, loader = self._line(number, epoch, self._prepared(number, read.prepared), read)
        self._add(line, loader)
        self._tell(line)

    def _written(self) -> int:
        """The lines of the table, as another rank left it; 0 where a shared file system shows it at another time."""
        try:
            return len(read_table(self.out)[1])
        except UserError as error:
            if isinstance(error.__cause__, OSError):
                return 0
            raise

    def _line(self, number: int, epoch: int, text: Prepared, read: Read) -> tuple[Chapter, Loader | None]:
        last = self.table[-1] if self.table else None
        first, before = (0, 0) if last is None else (last.first + last.updates, last.before)
        before += 0 if last is None else last.updates * last.per_step
        loader, samples = self._samples(text, Stretch(number, epoch, first, before))
        return Chapter(
            number=number,
            epoch=epoch,
            begin=read.span.begin.dump(),
            end=None if read.span.end is None else read.span.end.dump(),
            prepared=read.prepared,
            documents=len(text.train),
            tokens=len(text.train.tokens),
            bytes=int(text.train.bytes.sum()),
            held_out=len(text.valid) if self.fraction else 0,
            samples=samples,
            first=first,
            before=before,
            per_step=0 if loader is None else loader.per_step,
            updates=0 if loader is None else loader.updates or 0,
        ), loader

    def _samples(self, text: Prepared, stretch: Stretch) -> tuple[Loader | None, int]:
        """A new chapter's batches, and how many samples it has; no batches where it has no piece, or no partners."""
        if not len(text.train) and self.table:
            return None, 0
        try:
            loader = self.make(text, stretch)
        except TooFew as error:
            if not self.table:
                raise
            return None, error.pieces
        return loader, len(loader.pieces)

    def _tell(self, line: Chapter) -> None:
        again = f" (time {line.epoch + 1} through the stream)" if line.epoch else ""
        what = f"updates {line.first + 1:,} to {line.first + line.updates:,}"
        if not line.updates:
            what = f"{line.samples:,} samples are too few for an update of {line.per_step:,}"
        if not line.per_step:
            one = "its one document has no partner, and pairs of texts need one"
            what = f"{line.samples:,} samples are not read: {one}" if line.samples else "there is nothing to train on"
        self.say(
            f"chapter {line.number + 1}{again}: {line.documents:,} documents, {line.held_out:,} more are held out; "
            + what
        )

    # ------------------------------------------------------------ chapters

    def _text(self, number: int) -> Prepared:
        """The prepared text of a chapter of the table: where it was kept, or read again from where it begins."""
        line = self.table[number]
        if line.number == 0:
            return self.text
        place = self.out / FOLDER / line.prepared / "meta.json"
        if not place.exists() and not self.writes:
            self._wait(place.exists, f"the shards of chapter {line.number + 1}")
        if not place.exists():
            self._same(line, self._read(line.number, line.epoch, Position.of(line.begin)).prepared)
        return self._prepared(line.number, line.prepared)

    def _prepared(self, number: int, name: str) -> Prepared:
        return self.text if number == 0 else Prepared.load(self.out / FOLDER / name)

    def _same(self, line: Chapter, prepared: str) -> None:
        if prepared != line.prepared:
            raise UserError(
                f"chapter {line.number + 1} of {self.corpus.path} holds another text than when this run read it: "
                "restore the stream, or start a new run"
            )

    def _read(self, number: int, epoch: int, begin: Position) -> Read:
        """Read a chapter, or wait until it is read."""
        before = next((line for line in self.table if line.number == number), None) if epoch else None
        if before is not None and (number == 0 or (self.out / FOLDER / before.prepared / "meta.json").exists()):
            end = None if before.end is None else Position.of(before.end)  # of an earlier epoch
            return Read(Span(Position.of(before.begin), end, before.documents, ()), before.prepared)
        read = self._waited(number, begin)
        if before is not None:
            self._same(before, read.prepared)
        return read

    def _waited(self, number: int, begin: Position) -> Read:
        pauses, fresh = list(PAUSES) if far(self.corpus) else [], True
        while True:
            try:
                read = self._ask(number, begin).result(self.stopped)
                if read.warning and read.warning not in self.warned:
                    self.say(read.warning)
                    self.warned.add(read.warning)
                return read
            except UserError as error:
                if isinstance(error, Ended):  # it answers no more
                    self.close()
                    if fresh:
                        fresh = False
                        self.say(f"{error}; first, another process reads it")
                        continue
                if not pauses:
                    raise
                pause = pauses.pop(0)
                self.say(f"chapter {number + 1}: {error}; it is read again in {pause:.0f} s")
                self._sleep(pause)

    def _ask(self, number: int, begin: Position) -> Reader:
        """What reads a chapter: it has begun already, or begins now."""
        if self.reader is not None and self.reader.asked not in (None, number):
            self.close()
        if self.reader is None:
            corpus = self.corpus.model_copy(update={"valid_fraction": self.fraction})
            self.reader = Reader(corpus, self.text.tokenizer, self.out / FOLDER, self.files)
        if self.reader.asked is None:
            self.reader.ask(number, begin)
        return self.reader

    def _read_ahead(self, number: int) -> None:
        """Begin with the chapter after line `number`, if it is still to be read, and drop what lies behind."""
        line, total = self.table[number], self.total()
        if line.end is None or (total or np.inf) <= line.first + line.updates:
            return
        if self.reader is not None and self.reader.asked == line.number + 1:
            return
        known = next((c for c in self.table if c.number == line.number + 1), None)
        if known is not None and (self.out / FOLDER / known.prepared / "meta.json").exists():
            return
        self._ask(line.number + 1, Position.of(line.end))
        self._drop(number)

    def _drop(self, number: int) -> None:
        """Remove shards of chapters that nobody holds open; whoever resumes there reads them again."""
        kept = {line.prepared for line in self.table[max(number - LOADERS, 0) :]}
        for place in (self.out / FOLDER).glob("[0-9a-f]*"):
            if place.name not in kept and any(line.prepared == place.name for line in self.table):
                shutil.rmtree(place, ignore_errors=True)

    def _wait(self, ready: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + PATIENCE
        while not ready():
            if time.monotonic() > until:
                raise UserError(
                    f"{what} was not there after {PATIENCE / 3600:g} h in {self.out}: rank 0 reads it, and all ranks "
                    "must see that directory; look at what rank 0 says, then resume the run"
                )
            self._sleep(POLL)

    def _sleep(self, seconds: float) -> None:
        """Unless the run is to stop meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self.stopped():
                raise Stopped
            time.sleep(min(left, POLL))

    def close(self) -> None:
        """Stop reading."""
        with self.lock:
            if self.reader is not None:
                self.reader.close()
                self.reader = None

    def clear(self) -> None:
        """Remove what the run no longer needs, since it is at its end."""
        if self.writes:
            self.loaders.clear()
            shutil.rmtree(self.out / FOLDER, ignore_errors=True)

    # ------------------------------------------------------------ in words

    def coverage(self, steps: int) -> str:
        """What so many updates have read of the stream."""
        return coverage(self.table or read_table(self.out)[1], steps)
