"""The documents of a corpus and its held-out side: what they depend on, and how they are read, pass by pass."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from unmask.config import CorpusConfig, SourceConfig, TokenizerConfig
from unmask.data.shards import FORMAT
from unmask.errors import UserError
from unmask.text import corpus as corpora
from unmask.text.document import Counts, Document, utf8_length
from unmask.text.files import HUB, is_url, size_of
from unmask.text.holdout import by_hash, split
from unmask.text.progress import Say, progress
from unmask.text.tables import HubName

_INSIDE = {"sentences", "spans"}
"""Settings that change no text."""
_NOT_TEXT = {"path", "lexicon", "weight"}
"""Settings that change no document: where files lie (what they hold is asked of them), and how a source is sampled."""


class Item(NamedTuple):
    """A document, its side, and the number of its source there."""

    held_out: bool
    source: int
    document: Document


@dataclass
class Survey:
    """What reading everything once tells."""

    train: int = 0
    """UTF-8 bytes."""
    valid: int = 0
    targets: int = 0
    """UTF-8 bytes of the targets of both sides."""
    documents: int = 0
    counts: dict[str, Counts] = field(default_factory=dict)
    valid_counts: dict[str, Counts] | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Of the texts of both sides, without targets."""
        return self.train + self.valid

    @property
    def every(self) -> list[Counts]:
        return [*self.counts.values(), *(self.valid_counts or {}).values()]

    @staticmethod
    def of(values: Mapping[str, Any]) -> Survey:
        """From plain values (`dataclasses.asdict`)."""
        given = values["valid_counts"]
        counts = {name: Counts(**c) for name, c in values["counts"].items()}
        valid_counts = None if given is None else {name: Counts(**c) for name, c in given.items()}
        return Survey(**{**values, "counts": counts, "valid_counts": valid_counts})


class Text:
    """The documents of both sides, read afresh by every pass: nothing of them is kept.

    chapter: of a stream, which one this is (`data.spool`). Its held-out texts are those whose hash says so, and no
    other; those of later chapters are held out, too, and not read. A later chapter may have no text on a side.
    """

    def __init__(self, corpus: CorpusConfig, valid: CorpusConfig | None, chapter: int | None = None) -> None:
        self.corpus, self.valid, self.chapter = corpus, valid, chapter

    @property
    def later(self) -> bool:
        """Whether it is a chapter of a stream that is not the first."""
        return bool(self.chapter)

    @property
    def sources(self) -> tuple[list[str], list[str]]:
        """Names of the sources of the training side and of the held-out side."""
        return list(self.corpus.parts), list((self.valid or self.corpus).parts)

    @cached_property
    def kept(self) -> frozenset[str]:
        """What is kept of the inside of the documents: of all, as soon as one source asks for it."""
        every = [*self.corpus.parts.values(), *(self.valid.parts.values() if self.valid is not None else ())]
        asked = {
            "sentence": any(s.sentences for s in every),
            "word": any(s.words != "rule" for s in every),
            "spans": any(s.spans is not None or s.lexicon is not None for s in every),
            "target": any(s.target is not None for s in every),
        }
        return frozenset(need for need, wanted in asked.items() if wanted)

    @cached_property
    def _contents(self) -> list[dict[str, Any] | None]:
        """Name → what the files of a source hold, of both corpora."""
        return [
            None if config is None else {name: corpora.content(source) for name, source in config.parts.items()}
            for config in (self.corpus, self.valid)
        ]

    def fingerprint(self, made_with: str, ignore: Iterable[str] = ()) -> str:
        """16 hex digits of the text and what is made of it: settings and contents, not paths, dates or shares."""
        out = _NOT_TEXT | set(ignore)
        fields = {name for name in SourceConfig.model_fields if name not in out}
        settings = [
            None if config is None else {name: _settings(s, fields) for name, s in config.parts.items()}
            for config in (self.corpus, self.valid)
        ]
        fraction: Any = self.corpus.valid_fraction if self.valid is None else None
        if self.chapter is not None:
            fraction = [fraction, "by hash"]
        every = [FORMAT, settings, fraction, self._contents, made_with]
        return hashlib.blake2b(json.dumps(every).encode(), digest_size=8).hexdigest()

    def trained_with(self, config: TokenizerConfig, training_bytes: int) -> str:
        """16 hex digits of a tokenizer that is trained on this text."""
        return self.fingerprint(json.dumps([config.model_dump(), training_bytes]), _INSIDE)

    def items(self, survey: Survey | None = None, say: Say | None = None, *, inside: bool = False) -> Iterator[Item]:
        """Documents, source by source. `survey` gets what reading counts; inside=False spares what costs time and
        changes no text: segmenting it, and looking phrases up."""
        survey = Survey() if survey is None else survey
        for number, (name, source) in enumerate(self.corpus.parts.items()):
            survey.counts[name] = Counts()
            documents = corpora.read(source if inside else _plain(source), survey.counts[name], not self.later)
            if self.valid is None:
                speak = None if say is None else _by_name(say, name)
                fraction = self.corpus.valid_fraction
                sides = split(documents, fraction, speak) if self.chapter is None else by_hash(documents, fraction)
                yield from (Item(held_out, number, document) for held_out, document in sides)
            else:
                yield from (Item(False, number, document) for document in documents)
        if self.valid is not None:
            survey.valid_counts = {}
            for number, (name, source) in enumerate(self.valid.parts.items()):
                survey.valid_counts[name] = Counts()
                documents = corpora.read(source if inside else _plain(source), survey.valid_counts[name])
                yield from (Item(True, number, document) for document in documents)

    def survey(self, say: Say) -> Survey:
        """Read everything once, so that bad input shows before hours are spent; `notes` holds what was said."""
        survey = Survey()

        def note(sentence: str) -> None:
            survey.notes.append(sentence)
            say(sentence)

        sizes = {(False, number): 0 for number in range(len(self.corpus.parts))}
        with progress("reading", self._packed_bytes()) as advance:
            behind = 0
            for held_out, number, document in self.items(survey, note):
                sizes[held_out, number] = sizes.get((held_out, number), 0) + utf8_length(document.text)
                survey.documents += 1
                if survey.documents % 64 == 0:
                    consumed = sum(counts.consumed for counts in survey.every)
                    advance(consumed - behind)
                    behind = consumed
        survey.train = sum(size for (held_out, _), size in sizes.items() if not held_out)
        survey.valid = sum(size for (held_out, _), size in sizes.items() if held_out)
        survey.targets = sum(counts.target_bytes for counts in survey.every)
        for counts, config in ((survey.counts, self.corpus), (survey.valid_counts or {}, self.valid)):
            for name, met in counts.items():
                for sentence in met.notes():
                    _by_name(note, name or (config.path if config is not None else ""))(sentence)
        if self.valid is not None and self._shared():
            note("a file of the held-out text is a training file, too: its loss is no measure of unseen text")
        if not self.later:
            self._require_both_sides(survey, [sizes[False, k] for k in range(len(self.corpus.parts))])
        return survey

    def _shared(self) -> bool:
        """A file with the same content stands on both sides."""
        train, valid = (
            {json.dumps(file) for content in (side or {}).values() for file in content[0]} for side in self._contents
        )
        return not train.isdisjoint(valid)

    def _packed_bytes(self) -> int:
        """Bytes of the files on disk."""
        every = [*self.corpus.parts.values(), *(self.valid.parts.values() if self.valid is not None else ())]
        return sum(size_of(path) for source in every for path in corpora.files(source))

    def _require_both_sides(self, survey: Survey, training: Sequence[int]) -> None:
        if not survey.valid:
            documents = sum(c.documents for c in survey.counts.values())
            raise UserError(
                f"the held-out part of {title(self.corpus)} is empty ({documents} documents, "
                f"{survey.bytes:,} bytes, valid_fraction={self.corpus.valid_fraction}); "
                "give a held-out text with valid=, a larger valid_fraction, or more text"
            )
        for (name, source), size in zip(self.corpus.parts.items(), training, strict=True):
            if not size:
                met = survey.counts[name]
                raise UserError(
                    f"the training part of {source.path} is empty ({met.documents} documents, "
                    f"{met.bytes:,} bytes): a document, and what equals it, is on one side alone; give more documents "
                    "(corpus.document says what one is), or valid="
                )


def title(corpus: CorpusConfig) -> str:
    """What a corpus is called in a sentence."""
    return corpus.path or f"the mixture of {', '.join(corpus.sources)}"


def absolute(corpus: CorpusConfig) -> CorpusConfig:
    """The corpus by paths that it is found by from anywhere."""
    sources = {name: source.model_copy(update=_absolute_paths(source)) for name, source in corpus.sources.items()}
    return corpus.model_copy(update={"sources": sources, **_absolute_paths(corpus)})


def _absolute_paths(source: SourceConfig) -> dict[str, str]:
    return {key: _absolute_path(path) for key in ("path", "lexicon") if (path := getattr(source, key))}


def _absolute_path(path: str) -> str:
    if is_url(path):
        return path
    if not path.startswith(HUB):
        return os.path.abspath(os.path.expanduser(path))
    hub = HubName.of(path)
    local = os.path.abspath(hub.name) if os.path.isdir(hub.name) else hub.name
    return HUB + local + (f":{hub.config}" if hub.config else "")


def _settings(source: SourceConfig, fields: set[str]) -> dict[str, Any]:
    """What a document depends on; `target` only where there is one, so that text without keeps its name."""
    return source.model_dump(include=fields if source.target is not None else fields - {"target"})


def _plain(source: SourceConfig) -> SourceConfig:
    words = "rule" if source.words == "jieba" else source.words
    return source.model_copy(update={"words": words, "lexicon": None, "sentences": False})


def _by_name(say: Say, name: str) -> Say:
    return (lambda sentence: say(f"{name}: {sentence}")) if name else say
