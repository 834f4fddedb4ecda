"""Documents to ids, here or by two processes of our own, which the caller feeds and empties.

A process is `python -c "… serve()"` with two pipes: it imports neither torch nor the caller's program, forks nothing,
ignores Ctrl-C and ends with its input. A message is one line of JSON that names arrays, their types and shapes, and
then their bytes:

    →  [["text", "|u1", [41]], ["bytes", "<i8", [2]]]            41 + 16 bytes
    ←  [["length", "<i8", [2]], ["ids", "<i4", [11]], …]
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

import numpy as np

from unmask.batch import starts
from unmask.data.marks import tokens_of
from unmask.data.shards import Encoded, dtype_of
from unmask.errors import UserError
from unmask.text.document import Document, utf8_length
from unmask.text.sentences import sentence_starts
from unmask.tokens.tokenizer import Tokenizer
from unmask.tokens.words import starts_from_characters

Message = Mapping[str, np.ndarray]
_CHUNK = 1 << 20


def encode_documents(documents: Sequence[Document], tokenizer: Tokenizer, kept: frozenset[str]) -> Encoded:
    """Ids, and of the inside what is `kept` (`marks.NEEDS`)."""
    texts, dtype = [document.text for document in documents], dtype_of(tokenizer.vocabulary.size)
    sizes = np.array([utf8_length(text) for text in texts], np.int64)
    target = _targets(documents, tokenizer, dtype) if "target" in kept else {}
    if not kept - {"target"}:
        ids = tokenizer.encode_batch(texts)
        return Encoded(np.array([len(i) for i in ids], np.int64), sizes, _joined(ids, dtype), **target)
    aligned = tokenizer.encode_aligned(texts)
    length = np.array([len(a.ids) for a in aligned], np.int64)
    start, ids_ = starts(length), _joined([a.ids for a in aligned], dtype)
    word = tokenizer.words(ids_, start) if "word" in kept else None
    sentence = np.zeros(start[-1], bool) if "sentence" in kept else None
    spans = []
    for k, (document, a) in enumerate(zip(documents, aligned, strict=True)):
        here = slice(start[k], start[k + 1])
        if word is not None and document.words is not None:
            word[here] = starts_from_characters(a.begin, a.end, document.words)
        if sentence is not None:
            sentence[here] = starts_from_characters(a.begin, a.end, sentence_starts(document.text))
        if "spans" in kept and document.spans is not None:
            spans.append(tokens_of(document.spans, a.begin, a.end) + start[k])
    inside = _joined([np.zeros((0, 2), np.int64), *spans], np.int64) if "spans" in kept else None
    return Encoded(length, sizes, ids_, word, sentence, inside, **target)


def _targets(documents: Sequence[Document], tokenizer: Tokenizer, dtype: Any) -> dict[str, np.ndarray]:
    """The fields of `Encoded` that hold the documents' targets."""
    length = np.zeros(len(documents), np.int64)
    some = [k for k, document in enumerate(documents) if document.target is not None]
    ids = tokenizer.encode_batch([documents[k].target or "" for k in some]) if some else []
    length[some] = [len(i) for i in ids]
    return {"target_length": length, "targets": _joined(ids, dtype)}


def _joined(arrays: Sequence[np.ndarray], dtype: Any) -> np.ndarray:
    return np.concatenate([array.astype(dtype, copy=False) for array in arrays] or [np.zeros(0, dtype)])


# ---------------------------------------------------------------- the caller's side


class Workers:
    """`workers(documents)` encodes in a free process; as many threads may call it as there are processes.

    The list is emptied: the process has the documents now, and nobody holds a long one twice.
    """

    def __init__(self, tokenizer: Tokenizer, kept: frozenset[str], number: int) -> None:
        # The same modules are found from anywhere, and none in the directory that the user happens to be in.
        path = os.pathsep.join(p for p in sys.path if p)
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
        command = [sys.executable, "-c", "from unmask.data.workers import serve; serve()"]
        self.free: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self.processes = [
            subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(number)
        ]
        greeting = {"tokenizer": _bytes(json.dumps(tokenizer.spec)), "kept": _bytes(json.dumps(sorted(kept)))}
        for process in self.processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # `__call__` says it
                write_message(process.stdin, greeting)
            self.free.put(process)

    def __call__(self, documents: list[Document]) -> Encoded:
        process = self.free.get()
        assert process.stdin is not None and process.stdout is not None
        try:
            write_message(process.stdin, _request(documents))
            documents.clear()
            answer = read_message(process.stdout)
        except OSError:  # a broken pipe
            answer = None
        finally:
            self.free.put(process)  # a dead one too: who takes it next must not wait
        if answer is None:
            raise UserError(
                f"a process that encodes text was ended by something else (exit code {process.wait()}), perhaps for "
                "want of memory: free some, or prepare the text in parts (part=i/n)"
            )
        if "error" in answer:
            raise UserError(answer["error"].tobytes().decode())
        return Encoded(**answer)

    def close(self) -> None:
        for process in self.processes:
            assert process.stdin is not None and process.stdout is not None
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()
            process.kill()
            process.wait()


def _bytes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


def _request(documents: Sequence[Document]) -> Message:
    raw = [document.text.encode() for document in documents]
    message: dict[str, np.ndarray] = {
        "bytes": np.array([len(r) for r in raw], np.int64),
        "text": np.frombuffer(b"".join(raw), np.uint8),
    }
    inside: dict[str, list[np.ndarray | None]] = {
        "words": [d.words for d in documents],
        "spans": [d.spans for d in documents],
        "target": [None if d.target is None else _bytes(d.target) for d in documents],
    }
    for name, each in inside.items():
        if known := [one for one in each if one is not None]:
            message[name] = np.concatenate(known)
            message[f"{name}_of"] = np.array([-1 if one is None else len(one) for one in each], np.int64)
    return message


# ---------------------------------------------------------------- the process's side


def serve() -> None:
    """Answer messages until the input ends. What libraries print goes to stderr."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    asked = sys.stdin.buffer
    greeting = read_message(asked)
    if greeting is None:
        return
    tokenizer = Tokenizer(greeting["tokenizer"].tobytes().decode())
    kept = frozenset(json.loads(greeting["kept"].tobytes()))
    while (message := read_message(asked)) is not None:
        try:
            documents = _documents(message)
            del message
            done = vars(encode_documents(documents, tokenizer, kept))
            del documents
            answer = {name: array for name, array in done.items() if array is not None}
        except UserError as error:
            answer = {"error": _bytes(str(error))}
        write_message(answers, answer)


def _documents(message: Message) -> list[Document]:
    ends = np.cumsum(message["bytes"]).tolist()
    text = message["text"].data
    texts = [str(text[a:b], "utf-8") for a, b in zip([0, *ends], ends, strict=False)]
    words, spans, raw = (_inside(message, name, len(texts)) for name in ("words", "spans", "target"))
    targets = [None if one is None else str(one.data, "utf-8") for one in raw]
    return [Document(t, "", w, s, y) for t, w, s, y in zip(texts, words, spans, targets, strict=True)]


def _inside(message: Message, name: str, documents: int) -> Sequence[np.ndarray | None]:
    if name not in message:
        return [None] * documents
    counts = message[f"{name}_of"]
    parts = np.split(message[name], np.cumsum(np.maximum(counts, 0))[:-1])
    return [part if count >= 0 else None for part, count in zip(parts, counts, strict=True)]


# ---------------------------------------------------------------- messages


def write_message(pipe: IO[bytes], message: Message) -> None:
    """Arrays by name."""
    header = [[name, array.dtype.str, array.shape] for name, array in message.items()]
    pipe.write(json.dumps(header).encode() + b"\n")
    for array in message.values():
        pipe.write(np.ascontiguousarray(array).data)
    pipe.flush()


def read_message(pipe: IO[bytes]) -> dict[str, np.ndarray] | None:
    """The next message; None where there is none, or no whole one."""
    line = pipe.readline()
    if not line.endswith(b"\n"):
        return None
    message = {}
    for name, kind, shape in json.loads(line):
        message[name] = np.empty(shape, kind)
        raw = message[name].reshape(-1).view(np.uint8)
        for a in range(0, len(raw), _CHUNK):  # in pieces: a line of 100 MB is held once
            part = np.frombuffer(pipe.read(min(_CHUNK, len(raw) - a)), np.uint8)
            if len(part) < min(_CHUNK, len(raw) - a):
                return None
            raw[a : a + _CHUNK] = part
    return message
