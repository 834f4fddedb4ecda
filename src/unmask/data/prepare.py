"""Documents to shards, once, and found again as long as text, settings and tokenizer are the same.

    cache/tokenizer-<print>.json  a trained tokenizer, by training text and settings
    cache/<print>/                shards, by text and tokenizer (the format: `data.shards`)
    cache/stream-<print>.json     which of them are a stream's first chapter, by its files and settings

The text is read twice (three times where a tokenizer is trained): a survey finds bad input, sizes and what is held
out, then documents are encoded while the next ones are read. What is found again is found by the contents of the
files, never by their dates: a file may change and keep its size and date, and hashing costs about a second per GB.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from unmask.config import CorpusConfig, TokenizerConfig
from unmask.data.ahead import ahead
from unmask.data.shards import FORMAT, Encoded, Prepared, Shards, Writer, dtype_of
from unmask.data.spool import Listing, listing, spooled
from unmask.data.text import Item, Survey, Text
from unmask.data.whole import owned, whole
from unmask.data.workers import Workers, encode_documents
from unmask.errors import UserError
from unmask.text.document import Document, utf8_length
from unmask.text.holdout import share
from unmask.text.position import Span
from unmask.text.progress import Say, progress
from unmask.tokens.tokenizer import Tokenizer, cut

TRAINING_BYTES = 100_000_000
"""Text a tokenizer is trained on; of a larger corpus, pieces drawn by the hash of their text."""
BATCH_CHARACTERS = 1 << 20
"""Text encoded at once; a longer document is alone."""
IN_WORK = 4 * BATCH_CHARACTERS
"""Text that is being encoded, or waits for it."""
PROCESSES = 2
"""What one reader feeds within half a gigabyte of memory; more cores are used by parts (`data.parts`)."""
SMALL = 4_000_000
"""Bytes of text that are encoded before other processes have started."""


def prepare(
    corpus: CorpusConfig,
    valid: CorpusConfig | None,
    tokenizer: Tokenizer | TokenizerConfig,
    cache_dir: Path,
    say: Say,
    training_bytes: int = TRAINING_BYTES,
    listed: Listing | None = None,
) -> Prepared:
    """Train the tokenizer on the training part if it has to be, encode both parts, or find them done.

    Of a stream (corpus.stream) that is its first chapter; listed: its files when the run was started, if one was.
    """
    if isinstance(tokenizer, TokenizerConfig) and tokenizer.file is not None:
        tokenizer = Tokenizer.load(tokenizer.file)
    if corpus.stream:
        return _first_chapter(corpus, valid, tokenizer, Path(cache_dir), say, training_bytes, listed)
    return prepare_text(Text(corpus, valid), tokenizer, cache_dir, say, training_bytes)


def prepare_text(
    text: Text,
    tokenizer: Tokenizer | TokenizerConfig,
    cache_dir: Path,
    say: Say,
    training_bytes: int = TRAINING_BYTES,
) -> Prepared:
    """`prepare`, of a text that lies in files."""
    trained: Path | None = None
    if isinstance(tokenizer, TokenizerConfig):
        trained = Path(cache_dir) / f"tokenizer-{text.trained_with(tokenizer, training_bytes)}.json"
        tokenizer = Tokenizer.load(trained) if trained.exists() else tokenizer
    if isinstance(tokenizer, Tokenizer) and (done := find(text, tokenizer, cache_dir, say)):
        return done
    survey = text.survey(say)
    if isinstance(tokenizer, TokenizerConfig):
        tokenizer = _train_tokenizer(tokenizer, text, survey, training_bytes, say)
        if trained is not None:
            tokenizer.save(trained)
    place = place_of(text, tokenizer, cache_dir)
    with whole(place) as directory:
        require_space(directory, tokenizer, survey)
        encode(text, tokenizer, directory, survey)
        seal(directory, tokenizer, place.name, survey, say, required=not text.later)
    return Prepared.load(place)


def _first_chapter(
    corpus: CorpusConfig,
    valid: CorpusConfig | None,
    tokenizer: Tokenizer | TokenizerConfig,
    cache_dir: Path,
    say: Say,
    training_bytes: int,
    listed: Listing | None,
) -> Prepared:
    """The first chapter of a stream; found again as long as its files, their versions, the lexicon and the settings are
    the same."""
    listed = listing(corpus) if listed is None else listed
    made_with = tokenizer.fingerprint if isinstance(tokenizer, Tokenizer) else tokenizer.model_dump()
    held_out = None if valid is None else Text(valid, None).fingerprint("")
    settings = corpus.model_dump(mode="json", exclude={"path", "lexicon"})
    every = [FORMAT, listed, settings, held_out, made_with, training_bytes]
    name = hashlib.blake2b(json.dumps(every).encode(), digest_size=8).hexdigest()
    note = cache_dir / f"stream-{name}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, UserError):  # else it is made anew
        known = json.loads(note.read_text(encoding="utf-8"))
        prepared, span = Prepared.load(cache_dir / known["prepared"]), Span.of(known["span"])
        say(f"re-using the stream's first chapter in {prepared.directory}")
        return replace(prepared, span=span)
    say(f"reading the first chapter of the stream, {corpus.chapter:,} bytes of text; later ones are read in training")
    with spooled(corpus, valid, cache_dir, listed=listed) as chapter:
        for sentence in filter(None, [*chapter.notes, chapter.warning]):
            say(sentence)
        prepared = prepare_text(chapter.text, tokenizer, cache_dir, say, training_bytes)
    writing = owned(cache_dir, note.name)
    writing.write_text(json.dumps({"prepared": prepared.directory.name, "span": chapter.span.dump()}), encoding="utf-8")
    os.replace(writing, note)
    return replace(prepared, span=chapter.span)


def place_of(text: Text, tokenizer: Tokenizer, cache_dir: Path) -> Path:
    """Where the shards of this text under this tokenizer lie."""
    return Path(cache_dir) / text.fingerprint(tokenizer.fingerprint)


def find(text: Text, tokenizer: Tokenizer, cache_dir: Path, say: Say) -> Prepared | None:
    """The shards if they are there."""
    place = place_of(text, tokenizer, cache_dir)
    if not (place / "meta.json").exists():
        return None
    prepared = Prepared.load(place)
    for sentence in prepared.notes:
        say(f"{sentence} (when the text was prepared)")
    say(f"re-using the shards in {place}")
    return prepared


def _train_tokenizer(config: TokenizerConfig, text: Text, survey: Survey, most: int, say: Say) -> Tokenizer:
    """On the training part alone; above `most` bytes, on pieces drawn by the hash of their text."""
    drawn = min(1.0, most / (survey.train + survey.targets))
    if drawn < 1:
        survey.notes.append(
            f"the tokenizer is trained on {drawn:.1%} of the training text (about {most:,} bytes), drawn by hash"
        )
        say(survey.notes[-1])

    def pieces() -> Iterator[str]:
        with progress("tokenizer: reading", survey.bytes) as advance:
            for held_out, _, document in text.items():
                for one in () if held_out else filter(None, (document.text, document.target)):
                    yield from (p for p in cut(one) if drawn == 1 or share(p, b"tokenizer") < drawn)
                advance(utf8_length(document.text))

    tokenizer = Tokenizer.train(config, pieces(), say)
    survey.notes.append(f"trained a {tokenizer.type} tokenizer of {tokenizer.vocabulary.size:,} entries")
    say(survey.notes[-1])
    return tokenizer


# ---------------------------------------------------------------- encoding


@dataclass
class Batch:
    """Documents of one source on one side."""

    held_out: bool
    source: int
    documents: list[Document] = field(default_factory=list)
    characters: int = 0


def encode(text: Text, tokenizer: Tokenizer, directory: Path, survey: Survey, part: tuple[int, int] = (1, 1)) -> None:
    """Write both sides' files of part i of n: the documents that begin in the i-th of n equal stretches of bytes."""
    writers = [
        Writer(directory / side, tokenizer.vocabulary.size, names, text.kept)
        for side, names in zip(("train", "valid"), text.sources, strict=True)
    ]
    batches = _batches(_within(text.items(inside=True), part, survey.bytes))
    size = survey.bytes // part[1]
    try:
        with (
            progress("encoding", size) as advance,
            contextlib.closing(_encoded(batches, tokenizer, text.kept, size)) as done,
        ):
            for batch, encoded in done:
                writers[batch.held_out].write(batch.source, encoded)
                advance(int(encoded.bytes.sum()))
        for writer in writers:
            writer.finish()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise disk_full(directory, tokenizer, survey, part[1]) from error
    finally:
        for writer in writers:
            writer.close()


def _encoded(
    batches: Iterable[Batch], tokenizer: Tokenizer, kept: frozenset[str], size: int
) -> Generator[tuple[Batch, Encoded]]:
    """Each batch and what it became: by processes, where there are cores and `size` bytes of text are worth it."""
    if size < SMALL or (os.cpu_count() or 1) < 2:
        for batch in batches:
            yield batch, encode_documents(batch.documents, tokenizer, kept)
        return
    workers = Workers(tokenizer, kept, PROCESSES)

    def work(batch: Batch) -> tuple[Batch, Encoded]:
        return batch, workers(batch.documents)

    try:
        yield from ahead(work, batches, lambda batch: batch.characters, IN_WORK, PROCESSES)
    finally:
        workers.close()


def _within(items: Iterable[Item], part: tuple[int, int], total: int) -> Iterator[Item]:
    i, n = part
    offset = 0
    for item in items:
        place = offset * n // total + 1
        if place > i:
            return
        if place == i:
            yield item
        offset += utf8_length(item.document.text)


def _batches(items: Iterable[Item]) -> Iterator[Batch]:
    """About `BATCH_CHARACTERS` at a time, of each side by itself; sources in their order."""
    filling: dict[bool, Batch] = {}
    for held_out, source, document in items:
        batch = filling.get(held_out)
        length = len(document.text) + len(document.target or "")
        if batch is None or batch.source != source or batch.characters + length > BATCH_CHARACTERS:
            if batch is not None:
                yield batch
            batch = filling[held_out] = Batch(held_out, source)
        batch.documents.append(document)
        batch.characters += length
    yield from filling.values()


def seal(
    directory: Path, tokenizer: Tokenizer, fingerprint: str, survey: Survey, say: Say, required: bool = True
) -> None:
    """Check that both sides hold tokens, if that is required, and write what belongs to both."""
    train, valid = (Shards.load(directory / side) for side in ("train", "valid"))
    parts = [(f"the training part of {s.name}" if s.name else "the training part", s.documents) for s in train.sources]
    for part, documents in (*parts, ("the held-out part", len(valid))):
        if required and not documents:
            raise UserError(f"{part} has no token: every document of it encodes to nothing")
    notes = list(survey.notes)
    if train.spans is not None:
        notes.append(f"annotated spans: {_spans((train, valid))}")
        say(notes[-1])
    unk = tokenizer.vocabulary.unk
    every = [part.counts for side in (train, valid) for part in (side, side.target) if part is not None]
    if unk is not None and (unknown := sum(int(counts[unk]) for counts in every)):
        total = sum(int(counts.sum()) for counts in every)
        notes.append(f"{unknown:,} of {total:,} tokens ({unknown / total:.2%}) are unknown")
        say(notes[-1])
    tokenizer.save(directory / "tokenizer.json")
    meta = {
        "format": FORMAT,
        "fingerprint": fingerprint,
        "tokenizer": tokenizer.fingerprint,
        "counts": asdict(survey)["counts"],
        "valid_counts": asdict(survey)["valid_counts"],
        "notes": notes,
    }
    (directory / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")


def _spans(sides: Sequence[Shards]) -> str:
    """How many spans there are, and in how many texts: 0 shows a lexicon or a key that fits nothing."""
    number, texts = 0, 0
    for side in sides:
        if side.spans is not None:
            begins = np.searchsorted(side.spans[:, 0], side.documents)
            number, texts = number + len(side.spans), texts + int((np.diff(begins) > 0).sum())
    return f"{number:,} in {texts:,} of {sum(map(len, sides)):,} texts"


# ---------------------------------------------------------------- disk


def needed(tokenizer: Tokenizer, survey: Survey) -> int:
    """Bytes of disk, about: one token a byte for bytes and characters, else one for two bytes, which is ample for
    English; what is known of the inside comes on top."""
    tokens = (survey.bytes + survey.targets) // (1 if tokenizer.type in ("byte", "char") else 2)
    return tokens * dtype_of(tokenizer.vocabulary.size).itemsize + 16 * survey.documents + (1 << 20)


def require_space(directory: Path, tokenizer: Tokenizer, survey: Survey, parts: int = 1) -> None:
    """For one of so many parts."""
    if shutil.disk_usage(directory).free < needed(tokenizer, survey) // parts:
        raise disk_full(directory, tokenizer, survey, parts)


def disk_full(directory: Path, tokenizer: Tokenizer, survey: Survey, parts: int = 1) -> UserError:
    free = shutil.disk_usage(directory).free
    return UserError(
        f"the disk of {directory.parent} is too full for the shards: about {needed(tokenizer, survey) // parts:,} "
        f"bytes are needed, {free:,} are free; make room or choose another cache directory"
    )
