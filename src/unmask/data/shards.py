"""Tokenized documents on disk, memory-mapped: the format, reading and writing it.

    cache/<print>/                one preparation, by text and tokenizer, renamed into place when whole
        meta.json                 format version, fingerprints, what reading met, notes
        tokenizer.json
        train/ and valid/
            tokens.bin            ids of all documents end to end, uint16 (uint32 above 65,536 entries)
            documents.bin         (D + 1,) int64, where each document starts
            bytes.bin             (D,) int64, UTF-8 bytes of each document
            counts.npy            (V,) int64, how often each id occurs
            sources.json          [name, documents] of each source, in their order
            words.bin             ⌈N / 8⌉ bytes, one bit a token: a word starts here     | only where
            sentences.bin         the same of sentences                                  | the corpus
            spans.bin             (S, 2) int64, annotated spans as [begin, end) tokens   | asks for it
            targets.bin           ids of all targets end to end                          |
            target_documents.bin  (D + 1,) int64, where each document's target starts    |
            target_counts.npy     (V,) int64, how often each id occurs in targets        |

Nothing is added to a document's ids: start and end tokens are an objective's business.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from unmask.data.marks import Bits, BitWriter, TargetText
from unmask.errors import UserError
from unmask.text.document import Counts
from unmask.text.position import Span
from unmask.tokens.tokenizer import Tokenizer

FORMAT = 2
"""Raised whenever reading, splitting or encoding would give other ids or files."""
_CHUNK = 1 << 22
"""Tokens copied at once."""
_FILES = {"word": "words", "sentence": "sentences", "spans": "spans"}
"""Where what is kept of the inside lies, as .bin."""
_TARGET_FILES = ("targets", "target_documents")


@dataclass(frozen=True)
class Source:
    """Documents of one source stand together, from number `first` on. A corpus of one source has the name ''."""

    name: str
    first: int
    documents: int


@dataclass(frozen=True)
class Shards:
    """One side of a prepared corpus: D documents, N ids. Arrays are memory-mapped."""

    tokens: np.ndarray  # (N,) uint16 or uint32
    documents: np.ndarray  # (D + 1,) int64
    bytes: np.ndarray  # (D,) int64
    counts: np.ndarray  # (V,) int64
    sources: tuple[Source, ...]
    word: Bits | None = None
    sentence: Bits | None = None
    spans: np.ndarray | None = None  # (S, 2) int64 into tokens, ascending
    target: TargetText | None = None

    def __len__(self) -> int:
        return len(self.documents) - 1

    def document(self, i: int) -> np.ndarray:
        """(n,) int32 ids of document i."""
        return np.asarray(self.tokens[self.documents[i] : self.documents[i + 1]], np.int32)

    @property
    def first(self) -> tuple[int, ...]:
        """The first document of each source."""
        return tuple(source.first for source in self.sources)

    def summary(self) -> dict[str, dict[str, float]]:
        """Source → documents, tokens, bytes and bytes per token."""
        out = {}
        for source in self.sources:
            last = source.first + source.documents
            tokens = int(self.documents[last] - self.documents[source.first])
            size = int(self.bytes[source.first : last].sum())
            per_token = size / tokens if tokens else 0.0
            out[source.name] = {
                "documents": source.documents,
                "tokens": tokens,
                "bytes": size,
                "bytes_per_token": per_token,
            }
            if self.target is not None:
                ends = self.target.documents
                out[source.name]["target_tokens"] = int(ends[last] - ends[source.first])
        return out

    @staticmethod
    def load(directory: str | Path) -> Shards:
        directory = Path(directory)
        try:
            counts = np.load(directory / "counts.npy", mmap_mode="r", allow_pickle=False)
            tokens = _mapped(directory / "tokens.bin", dtype_of(len(counts)))
            documents = _mapped(directory / "documents.bin", np.dtype(np.int64))
            sizes = _mapped(directory / "bytes.bin", np.dtype(np.int64))
            sources = _sources(json.loads((directory / "sources.json").read_text(encoding="utf-8")))
            word, sentence = (_bits(directory / f"{name}.bin", len(tokens)) for name in ("words", "sentences"))
            spans = directory / "spans.bin"
            shards = Shards(
                tokens,
                documents,
                sizes,
                counts,
                sources,
                word,
                sentence,
                _mapped(spans, np.dtype(np.int64)).reshape(-1, 2) if spans.exists() else None,
                _target(directory, dtype_of(len(counts))),
            )
        except (OSError, ValueError) as error:
            raise UserError(f"{directory} holds no whole shards ({error}); delete it to have it made anew") from error
        shards._check(directory)
        return shards

    def _check(self, directory: Path) -> None:
        written = int(self.documents[-1]) if len(self.documents) else 0
        documents = sum(source.documents for source in self.sources)
        if len(self.tokens) != written or len(self.bytes) != len(self) or documents != len(self):
            raise UserError(
                f"{directory} is damaged: {len(self.tokens):,} tokens where {written:,} were written, in "
                f"{len(self):,} of {documents:,} documents; delete it to have it made anew"
            )
        target = self.target
        if target is not None and (
            len(target.documents) != len(self.documents) or len(target.tokens) != int(target.documents[-1])
        ):
            raise UserError(f"the targets in {directory} are damaged; delete it to have it made anew")
        for bits, name in ((self.word, "words"), (self.sentence, "sentences")):
            if bits is not None and len(bits.packed) != -(-written // 8):
                raise UserError(f"{directory / name}.bin is damaged; delete {directory} to have it made anew")


@dataclass(frozen=True)
class Prepared:
    """A prepared corpus: both sides, the tokenizer, what reading met and the sentences it said."""

    train: Shards
    valid: Shards
    tokenizer: Tokenizer
    counts: dict[str, Counts]
    """By source."""
    valid_counts: dict[str, Counts] | None
    """Of the corpus given as `valid`; None where the held-out part was split off."""
    notes: tuple[str, ...]
    directory: Path
    span: Span | None = None
    """Of a stream's chapter that was prepared just now: where it lies in the stream."""

    @staticmethod
    def load(directory: Path) -> Prepared:
        try:
            meta = json.loads((directory / "meta.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{directory} holds no prepared text ({error}); have it made anew") from error
        if meta.get("format") != FORMAT:
            raise UserError(f"{directory} was prepared by another version of unmask: delete it to have it made anew")
        given = meta["valid_counts"]
        return Prepared(
            train=Shards.load(directory / "train"),
            valid=Shards.load(directory / "valid"),
            tokenizer=Tokenizer.load(directory / "tokenizer.json"),
            counts={name: Counts(**c) for name, c in meta["counts"].items()},
            valid_counts=None if given is None else {name: Counts(**c) for name, c in given.items()},
            notes=tuple(meta["notes"]),
            directory=directory,
        )

    def summary(self) -> dict[str, Any]:
        """Side → source → documents, tokens, bytes and bytes per token."""
        return {"train": self.train.summary(), "valid": self.valid.summary()}


def dtype_of(size: int) -> np.dtype[Any]:
    """Of ids below `size`."""
    return np.dtype(np.uint16 if size <= 1 << 16 else np.uint32)


def _mapped(path: Path, dtype: np.dtype[Any]) -> np.ndarray:
    return np.memmap(path, dtype, mode="r") if path.stat().st_size else np.zeros(0, dtype)


def _bits(path: Path, size: int) -> Bits | None:
    return Bits(_mapped(path, np.dtype(np.uint8)), size) if path.exists() else None


def _target(directory: Path, dtype: np.dtype[Any]) -> TargetText | None:
    if not (directory / "targets.bin").exists():
        return None
    tokens = _mapped(directory / "targets.bin", dtype)
    documents = _mapped(directory / "target_documents.bin", np.dtype(np.int64))
    counts = np.load(directory / "target_counts.npy", mmap_mode="r", allow_pickle=False)
    return TargetText(tokens, documents, counts)


def _sources(rows: list[list[Any]]) -> tuple[Source, ...]:
    first = 0
    out = []
    for name, documents in rows:
        out.append(Source(str(name), first, int(documents)))
        first += int(documents)
    return tuple(out)


# ---------------------------------------------------------------- writing


@dataclass(frozen=True)
class Encoded:
    """D documents of one source, end to end, and of their inside what is kept."""

    length: np.ndarray  # (D,) int64 tokens of each
    bytes: np.ndarray  # (D,) int64 UTF-8 bytes of each
    ids: np.ndarray  # (N,) of any integer type
    word: np.ndarray | None = None  # (N,) bool
    sentence: np.ndarray | None = None  # (N,) bool
    spans: np.ndarray | None = None  # (S, 2) int64 into ids
    target_length: np.ndarray | None = None  # (D,) int64 tokens of each one's target, 0 where it has none
    targets: np.ndarray | None = None  # (M,) their ids, of any integer type


class Writer:
    """Appends documents to one side's files; nothing of them stays in memory. Documents without a token vanish, and
    so do their targets."""

    def __init__(self, directory: Path, size: int, sources: Sequence[str], kept: frozenset[str]) -> None:
        """size: of the vocabulary. kept: which of `marks.NEEDS` the documents come with."""
        directory.mkdir()
        self.directory = directory
        self.dtype = dtype_of(size)
        self.total = self.target_total = 0
        self.counts = np.zeros(size, np.int64)
        self.target_counts = np.zeros(size if "target" in kept else 0, np.int64)
        self.held = dict.fromkeys(sources, 0)  # documents of each source
        self.names = list(sources)
        self.files: dict[str, IO[bytes]] = {}
        for name in ("tokens", "documents", "bytes"):
            self.files[name] = (directory / f"{name}.bin").open("wb")
        more = [name for need, name in _FILES.items() if need in kept]
        for name in (*more, *(_TARGET_FILES if "target" in kept else ())):
            self.files[name] = (directory / f"{name}.bin").open("wb")
        self.bits = {name: BitWriter(self.files[name]) for name in ("words", "sentences") if name in self.files}
        self._append("documents", np.zeros(1, np.int64))
        if "target" in kept:
            self._append("target_documents", np.zeros(1, np.int64))

    def write(self, source: int, documents: Encoded) -> None:
        """Documents of one source; sources come in their order."""
        if documents.spans is not None:
            self._append("spans", documents.spans + self.total)
        for name, bits in self.bits.items():
            flags = documents.word if name == "words" else documents.sentence
            assert flags is not None
            bits.write(flags)
        holds = documents.length > 0
        self._append("documents", self.total + np.cumsum(documents.length[holds]))
        self._append("bytes", documents.bytes[holds])
        self.held[self.names[source]] += int(holds.sum())
        self._ids(documents.ids)
        if documents.target_length is not None:
            assert documents.targets is not None
            length = documents.target_length
            self._targets(documents.targets[np.repeat(holds, length)], np.cumsum(length[holds]))

    def extend(self, other: Shards) -> None:
        """All documents of other shards, which hold the same sources."""
        begin = self.total
        if other.spans is not None:
            for a, b in _chunks(len(other.spans)):
                self._append("spans", other.spans[a:b] + begin)
        for name, bits in self.bits.items():
            kept = other.word if name == "words" else other.sentence
            assert kept is not None
            for a, b in _chunks(len(kept)):
                bits.write(kept[np.arange(a, b)])
        for a, b in _chunks(len(other)):
            self._append("documents", other.documents[a + 1 : b + 1] + begin)
            self._append("bytes", other.bytes[a:b])
        self._ids(other.tokens)
        if other.target is not None:
            self._targets(other.target.tokens, other.target.documents[1:])
        for source in other.sources:
            self.held[source.name] += source.documents

    def finish(self) -> None:
        for bits in self.bits.values():
            bits.finish()
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
        np.save(self.directory / "counts.npy", self.counts)
        if "targets" in self.files:
            np.save(self.directory / "target_counts.npy", self.target_counts)
        (self.directory / "sources.json").write_text(json.dumps(list(self.held.items())), encoding="utf-8")

    def close(self) -> None:
        for file in self.files.values():
            with contextlib.suppress(OSError):
                file.close()

    def _ids(self, ids: np.ndarray) -> None:
        for a, b in _chunks(len(ids)):
            self._append("tokens", ids[a:b].astype(self.dtype, copy=False))
            self.counts += np.bincount(ids[a:b], minlength=len(self.counts))
        self.total += len(ids)

    def _targets(self, ids: np.ndarray, ends: np.ndarray) -> None:
        """Targets end to end, and where each document's ends."""
        for a, b in _chunks(len(ends)):
            self._append("target_documents", ends[a:b] + self.target_total)
        for a, b in _chunks(len(ids)):
            self._append("targets", ids[a:b].astype(self.dtype, copy=False))
            self.target_counts += np.bincount(ids[a:b], minlength=len(self.target_counts))
        self.target_total += len(ids)

    def _append(self, name: str, array: np.ndarray) -> None:
        self.files[name].write(np.ascontiguousarray(array).data)


def _chunks(size: int) -> Iterator[tuple[int, int]]:
    return ((a, min(a + _CHUNK, size)) for a in range(0, size, _CHUNK))
