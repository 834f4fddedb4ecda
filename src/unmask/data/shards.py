"""Documents to memory-mapped ids, once, and re-used as long as text, settings and tokenizer are the same.

    cache/tokenizer-<print>.json  a trained tokenizer, by training text and settings
    cache/<print>/                one preparation, by text and tokenizer, renamed into place when whole
        meta.json                 format version, fingerprints, counts, notes
        tokenizer.json
        train/ and valid/
            tokens.bin            ids of all documents end to end, uint16 (uint32 above 65,536 entries)
            documents.npy         (D + 1,) int64, where each document starts
            bytes.npy             (D,) int64, UTF-8 bytes of each document
            counts.npy            (V,) int64, how often each id occurs

Nothing is added to a document's ids: start and end tokens are an objective's business.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from unmask.config import CorpusConfig, TokenizerConfig
from unmask.data import corpus as corpora
from unmask.data.corpus import Counts, Document, share, utf8_length
from unmask.data.tokenizer import Tokenizer, cut
from unmask.data.whole import whole
from unmask.errors import UserError

FORMAT = 1
"""Raised whenever reading, splitting or encoding would give other ids or files."""
TRAINING_BYTES = 100_000_000
"""Text a tokenizer is trained on; of a larger corpus, pieces drawn by the hash of their text."""
BATCH_CHARACTERS = 1 << 20
"""Text encoded at once."""

Say = Callable[[str], None]


# ---------------------------------------------------------------- reading shards


@dataclass(frozen=True)
class Shards:
    """One side of a prepared corpus: D documents, N ids. Arrays are memory-mapped."""

    tokens: np.ndarray  # (N,) uint16 or uint32
    documents: np.ndarray  # (D + 1,) int64
    bytes: np.ndarray  # (D,) int64
    counts: np.ndarray  # (V,) int64

    def __len__(self) -> int:
        return len(self.documents) - 1

    def document(self, i: int) -> np.ndarray:
        """(n,) int32 ids of document i."""
        return np.asarray(self.tokens[self.documents[i] : self.documents[i + 1]], np.int32)

    @staticmethod
    def load(directory: str | Path) -> Shards:
        directory = Path(directory)
        try:
            documents, sizes, counts = (
                np.load(directory / name, mmap_mode="r", allow_pickle=False)
                for name in ("documents.npy", "bytes.npy", "counts.npy")
            )
            tokens = np.memmap(directory / "tokens.bin", _dtype(len(counts)), mode="r")
        except (OSError, ValueError) as error:
            raise UserError(f"{directory} holds no whole shards ({error}); delete it to have it made anew") from error
        if len(tokens) != documents[-1] or len(sizes) != len(documents) - 1:
            raise UserError(
                f"{directory} is damaged: {len(tokens):,} tokens where {documents[-1]:,} were written; "
                "delete it to have it made anew"
            )
        return Shards(tokens, documents, sizes, counts)


@dataclass(frozen=True)
class Prepared:
    """What `prepare` gives: both sides, the tokenizer, what reading met and the sentences it said."""

    train: Shards
    valid: Shards
    tokenizer: Tokenizer
    counts: Counts
    valid_counts: Counts | None
    """Of the corpus given as `valid`; None where the held-out part was split off."""
    notes: tuple[str, ...]
    directory: Path

    @staticmethod
    def load(directory: Path) -> Prepared:
        meta = json.loads((directory / "meta.json").read_text(encoding="utf-8"))
        return Prepared(
            train=Shards.load(directory / "train"),
            valid=Shards.load(directory / "valid"),
            tokenizer=Tokenizer.load(directory / "tokenizer.json"),
            counts=Counts(**meta["counts"]),
            valid_counts=None if meta["valid_counts"] is None else Counts(**meta["valid_counts"]),
            notes=tuple(meta["notes"]),
            directory=directory,
        )


# ---------------------------------------------------------------- making shards


def prepare(
    corpus: CorpusConfig,
    valid: CorpusConfig | None,
    tokenizer: Tokenizer | TokenizerConfig,
    cache_dir: Path,
    say: Say,
    training_bytes: int = TRAINING_BYTES,
) -> Prepared:
    """Train the tokenizer on the training part if it has to be, encode both parts, or find them done."""
    text = _Text(corpus, valid)
    trained: Path | None = None
    if isinstance(tokenizer, TokenizerConfig) and tokenizer.file is not None:
        tokenizer = Tokenizer.load(tokenizer.file)
    elif isinstance(tokenizer, TokenizerConfig):
        key = text.fingerprint(json.dumps([tokenizer.model_dump(), training_bytes]))
        trained = Path(cache_dir) / f"tokenizer-{key}.json"
        tokenizer = Tokenizer.load(trained) if trained.exists() else tokenizer
    if isinstance(tokenizer, Tokenizer):
        place = Path(cache_dir) / text.fingerprint(tokenizer.fingerprint)
        if (place / "meta.json").exists():
            return _found(place, say)
    notes: list[str] = []

    def note(sentence: str) -> None:
        notes.append(sentence)
        say(sentence)

    size = text.survey(note)
    if isinstance(tokenizer, TokenizerConfig):
        tokenizer = _train_tokenizer(tokenizer, text, size, training_bytes, note)
        if trained is not None:
            tokenizer.save(trained)
    place = Path(cache_dir) / text.fingerprint(tokenizer.fingerprint)
    with whole(place) as directory:
        _check_disk(directory, tokenizer, size)
        _encode(text, tokenizer, directory, size, note)
        _write_meta(text, tokenizer, directory, notes)
    return Prepared.load(place)


def _found(place: Path, say: Say) -> Prepared:
    prepared = Prepared.load(place)
    for sentence in prepared.notes:
        say(f"{sentence} (when the text was prepared)")
    say(f"re-using the shards in {place}")
    return prepared


def _write_meta(text: _Text, tokenizer: Tokenizer, directory: Path, notes: list[str]) -> None:
    tokenizer.save(directory / "tokenizer.json")
    meta = {
        "format": FORMAT,
        "fingerprint": text.fingerprint(tokenizer.fingerprint),
        "tokenizer": tokenizer.fingerprint,
        "counts": asdict(text.counts),
        "valid_counts": None if text.valid_counts is None else asdict(text.valid_counts),
        "notes": notes,
    }
    (directory / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")


@dataclass(frozen=True)
class _Size:
    """UTF-8 bytes of the two sides."""

    train: int
    valid: int


class _Text:
    """The documents of both sides, read afresh by every pass: nothing of them is kept."""

    def __init__(self, corpus: CorpusConfig, valid: CorpusConfig | None) -> None:
        self.corpus, self.valid = corpus, valid
        self.counts = Counts()
        self.valid_counts: Counts | None = None

    @cached_property
    def _content(self) -> list[Any]:
        """What the documents depend on: settings, and contents of files, not their paths or dates."""
        parts: list[Any] = [FORMAT]
        for config in (self.corpus, self.valid):
            parts.append(None if config is None else config.model_dump(exclude={"path"}))
            for path in [] if config is None else corpora.files(config):
                parts.append([corpora.ending(path), path.suffix.lower() == ".gz", _content_hash(path)])
        return parts

    def fingerprint(self, made_with: str) -> str:
        """16 hex digits of the text and what is made of it."""
        return hashlib.blake2b(json.dumps([self._content, made_with]).encode(), digest_size=8).hexdigest()

    def sides(self, say: Say | None = None) -> Iterator[tuple[bool, Document]]:
        """(held out?, document)."""
        self.counts, self.valid_counts = Counts(), None
        documents = corpora.read(self.corpus, self.counts)
        if self.valid is None:
            yield from corpora.split(documents, self.corpus.valid_fraction, say)
            return
        yield from ((False, document) for document in documents)
        self.valid_counts = Counts()
        yield from ((True, document) for document in corpora.read(self.valid, self.valid_counts))

    def survey(self, say: Say) -> _Size:
        """Read everything once, so that bad input shows before hours are spent."""
        sizes = [0, 0]
        for held_out, document in self.sides(say):
            sizes[held_out] += utf8_length(document.text)
        for counts, config in ((self.counts, self.corpus), (self.valid_counts, self.valid)):
            if counts is not None and config is not None and counts.invalid:
                say(f"{counts.invalid:,} invalid bytes of {config.path} became U+FFFD (corpus.strict refuses them)")
        if not sizes[1]:
            raise UserError(
                f"the held-out part of {self.corpus.path} is empty ({self.counts.documents} documents, "
                f"{self.counts.bytes:,} bytes, valid_fraction={self.corpus.valid_fraction}); "
                "give a held-out text with valid=, a larger valid_fraction, or more text"
            )
        if not sizes[0]:
            raise UserError(
                f"the training part of {self.corpus.path} is empty ({self.counts.documents} documents, "
                f"{self.counts.bytes:,} bytes); equal documents stay on one side; give more text, or valid="
            )
        return _Size(*sizes)


def _content_hash(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def _train_tokenizer(config: TokenizerConfig, text: _Text, size: _Size, most: int, say: Say) -> Tokenizer:
    """On the training part alone; above `most` bytes, on pieces drawn by the hash of their text."""
    drawn = min(1.0, most / size.train)
    if drawn < 1:
        say(f"the tokenizer is trained on {drawn:.1%} of the training text (about {most:,} bytes), drawn by hash")

    def pieces() -> Iterator[str]:
        with progress("tokenizer: reading", size.train + size.valid) as advance:
            for held_out, document in text.sides():
                if not held_out:
                    yield from (p for p in cut(document.text) if drawn == 1 or share(p, b"tokenizer") < drawn)
                advance(utf8_length(document.text))

    tokenizer = Tokenizer.train(config, pieces())
    say(f"trained a {tokenizer.type} tokenizer of {tokenizer.vocabulary.size:,} entries")
    return tokenizer


def _encode(text: _Text, tokenizer: Tokenizer, directory: Path, size: _Size, say: Say) -> None:
    writers = [_Writer(directory / side, tokenizer) for side in ("train", "valid")]
    try:
        with progress("encoding", size.train + size.valid) as advance:
            for batch in _batches(text.sides()):
                for held_out, writer in enumerate(writers):
                    texts = [d.text for out, d in batch if out == bool(held_out)]
                    writer.write(texts)
                    advance(sum(map(utf8_length, texts)))
        for writer in writers:
            writer.finish()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise _disk_full(directory, tokenizer, size) from error
    finally:
        for writer in writers:
            writer.close()
    train, valid = writers
    for name, writer in (("training", train), ("held-out", valid)):
        if not writer.total:
            raise UserError(f"the {name} part has no token: every document of it encodes to nothing")
    unk = tokenizer.vocabulary.unk
    if unk is not None and (unknown := int(train.counts[unk] + valid.counts[unk])):
        total = train.total + valid.total
        say(f"{unknown:,} of {total:,} tokens ({unknown / total:.2%}) are unknown")


class _Writer:
    """Appends documents to one side's files."""

    def __init__(self, directory: Path, tokenizer: Tokenizer) -> None:
        directory.mkdir()
        self.directory, self.tokenizer = directory, tokenizer
        self.dtype = _dtype(tokenizer.vocabulary.size)
        self.file = (directory / "tokens.bin").open("wb")
        self.ends = array("q", [0])
        self.bytes = array("q")
        self.counts = np.zeros(tokenizer.vocabulary.size, np.int64)

    @property
    def total(self) -> int:
        return self.ends[-1]

    def write(self, texts: list[str]) -> None:
        for text, ids in zip(texts, self.tokenizer.encode_batch(texts), strict=True):
            if len(ids):
                self.ends.append(self.total + len(ids))
                self.bytes.append(utf8_length(text))
                self.file.write(ids.astype(self.dtype).tobytes())
                self.counts += np.bincount(ids, minlength=len(self.counts))

    def finish(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())
        np.save(self.directory / "documents.npy", np.frombuffer(self.ends, np.int64))
        np.save(self.directory / "bytes.npy", np.frombuffer(self.bytes, np.int64))
        np.save(self.directory / "counts.npy", self.counts)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.file.close()


def _batches(sides: Iterable[tuple[bool, Document]]) -> Iterator[list[tuple[bool, Document]]]:
    batch, characters = [], 0
    for pair in sides:
        batch.append(pair)
        characters += len(pair[1].text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _dtype(size: int) -> np.dtype[Any]:
    return np.dtype(np.uint16 if size <= 1 << 16 else np.uint32)


# ---------------------------------------------------------------- disk and terminal


def _needed(tokenizer: Tokenizer, size: _Size) -> int:
    """Bytes of disk, on the safe side: one token a byte where that can be, else one for two bytes."""
    tokens = (size.train + size.valid) // (1 if tokenizer.type in ("byte", "char") else 2)
    return tokens * _dtype(tokenizer.vocabulary.size).itemsize + (1 << 20)


def _check_disk(directory: Path, tokenizer: Tokenizer, size: _Size) -> None:
    if shutil.disk_usage(directory).free < _needed(tokenizer, size):
        raise _disk_full(directory, tokenizer, size)


def _disk_full(directory: Path, tokenizer: Tokenizer, size: _Size) -> UserError:
    free = shutil.disk_usage(directory).free
    return UserError(
        f"the disk of {directory.parent} is too full for the shards: about {_needed(tokenizer, size):,} bytes are "
        f"needed, {free:,} are free; make room or choose another cache directory"
    )


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar with rate and time left on stderr, where that is a terminal. Yields `advance(bytes)`."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda n: bar.advance(task, n)
