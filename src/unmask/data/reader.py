"""A process that reads and prepares chapters of a stream, one by one, while the caller trains.

It is `python -c "… serve()"`: it imports neither torch nor the caller's program, ignores signals, and ends at once when
its input does, so none is left behind by a caller that was killed. A question and its answer are a line of JSON each.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.config import CorpusConfig
from unmask.data.prepare import prepare_text
from unmask.data.spool import spooled
from unmask.errors import Stopped, UserError, one_line
from unmask.text.position import Position, Span
from unmask.tokens.tokenizer import Tokenizer

POLL = 0.1
"""Seconds between two looks at whether a wait is to end."""


@dataclass(frozen=True)
class Read:
    """A chapter, and the fingerprint of what it was prepared as."""

    span: Span
    prepared: str
    warning: str = ""
    """Of files that may have changed."""


class Ended(UserError):
    """The process that reads was ended by something else."""


class Reader:
    """Reads chapters into `folder`: `ask` for one, `result` waits for it."""

    def __init__(
        self, corpus: CorpusConfig, tokenizer: Tokenizer, folder: Path, files: Sequence[tuple[str, int, str]]
    ) -> None:
        self.path = corpus.path
        self.asked: int | None = None
        """The chapter that is being read."""
        self.about = {
            "corpus": corpus.model_dump(mode="json"),
            "tokenizer": tokenizer.spec,
            "folder": str(folder.absolute()),
            "files": [list(file) for file in files],
        }
        path = os.pathsep.join(p for p in sys.path if p)
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from unmask.data.reader import serve; serve()"],
            env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # what libraries print; an error comes as the answer
        )
        self.answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        """Pass answers on, and nothing (b"") as the last one."""
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.answers.put(line)
        self.answers.put(b"")

    def ask(self, chapter: int, begin: Position) -> None:
        """Have a chapter read, which begins there."""
        assert self.process.stdin is not None and self.asked is None
        self.asked = chapter
        question = {**self.about, "chapter": chapter, "begin": begin.dump()}
        with contextlib.suppress(OSError):  # a broken pipe: `result` says it
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
            self.process.stdin.flush()

    def result(self, stopped: Callable[[], bool] = lambda: False) -> Read:
        """What was read of the chapter asked for. An error of the stream is raised here; `Stopped` once it says so."""
        assert self.asked is not None
        answer, chapter = self._answer(stopped), self.asked
        self.asked = None
        if not answer.endswith(b"\n"):
            raise Ended(
                f"the process that reads chapter {chapter + 1} of {self.path} was ended by something else (exit code "
                f"{self.process.wait()}), perhaps for want of memory: free some, then resume the run"
            )
        found = json.loads(answer)
        if "error" in found:
            raise UserError(found["error"])
        return Read(Span.of(found["span"]), found["prepared"], found["warning"])

    def _answer(self, stopped: Callable[[], bool]) -> bytes:
        while True:
            try:
                return self.answers.get(timeout=POLL)
            except queue.Empty:
                if stopped():
                    raise Stopped from None

    def close(self) -> None:
        """End it, whatever it is at."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.kill()
        self.process.wait()


def serve() -> None:
    """Answer questions until the input ends."""
    for request in (signal.SIGINT, signal.SIGTERM):  # schedulers send them to all processes of a job
        signal.signal(request, signal.SIG_IGN)
    if hasattr(os, "nice"):  # not on Windows
        os.nice(5)  # training comes first, and has the machine to itself as soon as the chapter is there
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    questions: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(questions,), daemon=True).start()
    while True:
        question = questions.get()
        try:
            answer = _answer(question)
        except UserError as error:
            answer = {"error": str(error)}
        except Exception as error:
            what = f"{type(error).__name__}: {one_line(error)}"
            answer = {"error": f"reading chapter {question['chapter'] + 1} failed: {what}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _listen(questions: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Pass questions on; end the process when there can be no more, whatever it is at."""
    for line in sys.stdin.buffer:
        questions.put(json.loads(line))
    os._exit(0)


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    corpus, folder = CorpusConfig.model_validate(question["corpus"]), Path(question["folder"])
    tokenizer, files = Tokenizer(json.dumps(question["tokenizer"])), [tuple(file) for file in question["files"]]
    begin = Position.of(question["begin"])
    with spooled(corpus, None, folder, begin, question["chapter"], files) as chapter:
        prepared = prepare_text(chapter.text, tokenizer, folder, lambda _: None)
    return {"span": chapter.span.dump(), "prepared": prepared.directory.name, "warning": chapter.warning}
