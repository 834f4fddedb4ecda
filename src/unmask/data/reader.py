"""A process that reads and prepares a chapter of a stream, while the caller trains.

It is `python -c "… serve()"`: it imports neither torch nor the caller's program, ignores Ctrl-C, and ends with its
input, so none is left behind by a caller that was killed. A question and its answer are a line of JSON each.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.config import CorpusConfig
from unmask.data.prepare import prepare_text
from unmask.data.spool import spooled
from unmask.errors import UserError, one_line
from unmask.text.position import Position, Span
from unmask.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Read:
    """A chapter, and the fingerprint of what it was prepared as."""

    span: Span
    prepared: str


class Reader:
    """Reads chapter `number`, which begins at `begin`, into `folder`; `result` waits for it."""

    def __init__(
        self,
        corpus: CorpusConfig,
        tokenizer: Tokenizer,
        folder: Path,
        number: int,
        begin: Position,
        files: Sequence[tuple[str, int, str]],
    ) -> None:
        self.what = f"chapter {number + 1} of {corpus.path}"
        question = {
            "corpus": corpus.model_dump(mode="json"),
            "tokenizer": tokenizer.spec,
            "folder": str(folder.absolute()),
            "number": number,
            "begin": begin.dump(),
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
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `result` says it
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
            self.process.stdin.flush()

    def result(self) -> Read:
        """What was read. An error of the stream is raised here."""
        assert self.process.stdout is not None
        try:
            answer = self.process.stdout.readline()
        finally:
            self.close()
        if not answer.endswith(b"\n"):
            raise UserError(
                f"the process that reads {self.what} was ended by something else (exit code {self.process.wait()}), "
                "perhaps for want of memory: free some, then resume the run"
            )
        found = json.loads(answer)
        if "error" in found:
            raise UserError(found["error"])
        return Read(Span.of(found["span"]), found["prepared"])

    def close(self) -> None:
        """End it, whatever it is at."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        self.process.kill()
        self.process.wait()


def serve() -> None:
    """Answer one question; end at once when the input does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    question = json.loads(sys.stdin.buffer.readline() or "null")
    if question is None:
        return
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        answer = _answer(question)
    except UserError as error:
        answer = {"error": str(error)}
    except Exception as error:
        answer = {
            "error": f"reading chapter {question['number'] + 1} failed: {type(error).__name__}: {one_line(error)}"
        }
    answers.write(json.dumps(answer) + "\n")
    answers.flush()
    os._exit(0)  # the thread waits for the input


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    corpus, folder = CorpusConfig.model_validate(question["corpus"]), Path(question["folder"])
    tokenizer, files = Tokenizer(json.dumps(question["tokenizer"])), [tuple(file) for file in question["files"]]
    begin, number = Position.of(question["begin"]), question["number"]
    with spooled(corpus, None, folder, begin, number, files) as chapter:
        prepared = prepare_text(chapter.text, tokenizer, folder, lambda _: None)
    return {"span": chapter.span.dump(), "prepared": prepared.directory.name}
