"""What a corpus holds, measured in one pass and bounded memory, before anything is trained on it.

Exact (but that a text beyond a megabyte is read in stretches, each of which may part a sentence, a line or a word):
counts of documents, sentences (by the rules of `sentences`), lines, words, characters, bytes and tokens,
strings, scripts. A document of megabytes is measured in pieces that end at line ends. Quantiles of lengths are exact
below 128 characters and else at most 1/64 too low. Duplicate shares are exact up to `tally.LIMIT` distinct documents
or lines and beyond that estimated from an even sample, which is said. What looks like a mail address or a phone
number is a pattern's opinion.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.config import SourceConfig
from unmask.data.overlap import Found, Overlap
from unmask.data.tally import Tally
from unmask.text.characters import BLANK, SCRIPTS, codes, kinds, scripts_of, word_starts
from unmask.text.corpus import files, read
from unmask.text.document import Counts
from unmask.text.files import size_of
from unmask.text.progress import progress
from unmask.text.sentences import sentence_starts

if TYPE_CHECKING:
    from unmask.tokens.tokenizer import Tokenizer

BATCH_CHARACTERS = 1 << 19
"""Text measured at once."""
QUANTILES = (5, 25, 50, 75, 95, 99)
ONE_SENTENCE = 1.05
"""Up to so many sentences a document on average, documents are single sentences."""
MANY_REPEATED = 0.1
"""Share of repeated lines or documents that is worth a warning."""

_MAIL = re.compile(r"@(?<=[\w.%+-]@)[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){0,8}\.[A-Za-z]{2,24}\b")
_PHONE = re.compile(
    r"[+(\d](?<![\w.,:/+-].)(?:"
    r"(?<=\+)\d{1,3}(?:[ .-]?\(?\d{1,4}\)?){2,5}"  # +49 (30) 123 456
    r"|(?<=\()\d{2,5}\)[ -]?\d{3,4}[ .-]?\d{3,5}"  # (713) 853-1234
    r"|\d{2}[-. ]\d{3}[-. ]\d{4}"  # 713-853-1234
    r"|(?<=1)(?:[-. ]\d{3}){2}[-. ]\d{4}"  # 1-800-991-9019
    r"|(?<=0)\d{2,4}[ /-]\d{3,4}[ -]?\d{3,4}"  # 030 1234 5678
    r"|(?<=1)\d{10}"  # 13912345678
    r")(?![\w-])(?!\.\d)"
)
_CONTROL = re.compile(
    r"\[(?:MASK|CLS|SEP|PAD|UNK|BOS|EOS)\]|</?s>|<(?:pad|unk|mask|bos|eos|cls|sep|extra_id_\d{1,3})>"
    r"|<\|[A-Za-z_]{1,24}\|>"
)
_LANGUAGES = {
    "hiragana": "Japanese",
    "katakana": "Japanese",
    "han": "Chinese",
    "hangul": "Korean",
    "thai": "Thai",
    "hebrew": "Hebrew",
    "greek": "Greek",
    "devanagari": "Hindi or another language in Devanagari",
    "arabic": "Arabic, Persian or another in Arabic script",
    "cyrillic": "Russian or another in Cyrillic script",
    "latin": "English or another in Latin script",
    "other": "a language in another script",
}
KANA = 0.1
"""Share of kana among Han characters and kana from which on a text is Japanese."""


@dataclass
class Repeats:
    """Texts equal to an earlier one."""

    share: float
    total: int
    estimated: bool
    """From a sample: the distinct ones were too many to keep."""
    top: list[dict[str, Any]] = field(default_factory=list)
    """The most repeated: {count, text}."""


@dataclass
class Stats:
    """What `stats` measures; ready for JSON."""

    files: int
    encodings: dict[str, int]
    documents: int
    sentences: int
    sentences_per_document: float
    lines: int
    """That are not blank."""
    words: int
    """Runs of letters, marks, digits and underscores, or single characters of scripts without blanks."""
    characters: int
    bytes: int
    tokens: int | None
    targets: int | None
    """Documents with a target, where a source names a column of them. All else is measured of the texts alone."""
    empty: int
    invalid: int
    first_invalid: str
    looks_like: str
    filtered: dict[str, int]
    length: dict[str, int]
    """Characters of a document: quantiles (to seven binary digits), mean and largest."""
    histogram: list[dict[str, int]]
    """Documents of `low` to `high` characters, by powers of two."""
    duplicate_documents: Repeats
    duplicate_lines: Repeats
    scripts: dict[str, float]
    """Share of letters."""
    languages: dict[str, float]
    """Share of documents, by the script that most of their letters are in: a rough guess."""
    mails: int
    phones: int
    controls: dict[str, int]
    """Strings of the text that are spelled like control tokens; they are encoded as plain text."""
    overlap: Found | None
    warnings: list[str]


def stats(
    sources: SourceConfig | Sequence[SourceConfig],
    tokenizer: Tokenizer | None = None,
    against: SourceConfig | None = None,
) -> Stats:
    """Measure the documents of one or more sources; `against`: an evaluation text to look for in them."""
    sources = [sources] if isinstance(sources, SourceConfig) else list(sources)
    meter = _Meter(tokenizer, None if against is None else Overlap(_evaluation_texts(against)))
    counts = Counts()
    size = sum(size_of(path) for source in sources for path in files(source))
    with progress("measuring", size) as advance:
        behind = 0
        for batch in _batches(sources, counts):
            meter.add(batch)
            advance(counts.consumed - behind)
            behind = counts.consumed
    report = meter.result(counts)
    return replace(report, targets=counts.targets) if any(s.target is not None for s in sources) else report


def _batches(sources: Sequence[SourceConfig], counts: Counts) -> Iterator[list[str]]:
    batch, characters = [], 0
    for source in sources:
        for document in read(source, counts):
            batch.append(document.text)
            characters += len(document.text)
            if characters >= BATCH_CHARACTERS:
                yield batch
                batch, characters = [], 0
    if batch:
        yield batch


def _evaluation_texts(source: SourceConfig) -> list[str]:
    """An evaluation text's documents; where there is one alone, its paragraphs, and where they are one, its lines."""
    texts = [d.text for d in read(source)]
    if len(texts) == 1:
        texts = re.split(r"\n\s*\n", texts[0].strip())
    return texts if len(texts) > 1 else texts[0].split("\n")


class _Meter:
    """Adds up one pass."""

    def __init__(self, tokenizer: Tokenizer | None, overlap: Overlap | None) -> None:
        self.tokenizer, self.overlap = tokenizer, overlap
        self.controls = _CONTROL if tokenizer is None else _with_specials(tokenizer)
        self.sum: Counter[str] = Counter()
        self.lengths: Counter[int] = Counter()
        self.longest = 0
        self.found: Counter[str] = Counter()
        self.languages: Counter[str] = Counter()
        self.scripts = np.zeros(len(SCRIPTS), np.int64)
        self.documents, self.lines = Tally(top=0), Tally()

    def add(self, texts: list[str]) -> None:
        """Measure a batch of documents."""
        self.lengths.update(map(_rounded, map(len, texts)))
        self.longest = max([self.longest, *map(len, texts)])
        self.documents.add(texts)
        if self.tokenizer is not None:
            self.sum["tokens"] += sum(map(len, self.tokenizer.encode_batch(texts)))
        letters = np.zeros((len(texts), len(SCRIPTS)), np.int64)
        for owners, pieces in _pieces(texts):
            self._add_strings(pieces)
            np.add.at(letters, owners, self._add_characters(pieces))
        self.scripts += letters.sum(0)
        self.languages.update(_languages(letters))

    def _add_strings(self, texts: list[str]) -> None:
        joined = "\n".join(texts)
        self.sum["characters"] += sum(map(len, texts))
        self.sum["sentences"] += sum(len(sentence_starts(text)) for text in texts)
        self.sum["mails"] += sum(1 for _ in _MAIL.finditer(joined))
        self.sum["phones"] += sum(7 <= sum(map(str.isdigit, m[0])) <= 15 for m in _PHONE.finditer(joined))
        self.found.update(m[0] for m in self.controls.finditer(joined))
        self.lines.add([line.strip() for line in joined.split("\n") if line and not line.isspace()])
        if self.overlap is not None:
            self.overlap.add(texts)

    def _add_characters(self, texts: list[str]) -> np.ndarray:
        """Count words. (T, S) letters of each text by script."""
        points = codes("\n".join(texts))
        kind = kinds(points)
        self.sum["words"] += int((word_starts(points) & (kind != BLANK)).sum())
        width = len(SCRIPTS) + 1
        row = np.repeat(np.arange(len(texts)), [len(text) + 1 for text in texts])[:-1]
        table = np.bincount(row * width + scripts_of(points), minlength=len(texts) * width)
        return table.reshape(-1, width)[:, :-1]

    def result(self, counts: Counts) -> Stats:
        documents, total = counts.documents, int(self.scripts.sum())
        mean = self.sum["sentences"] / documents
        report = Stats(
            files=counts.files,
            encodings=dict(sorted(counts.encodings.items())),
            documents=documents,
            sentences=self.sum["sentences"],
            sentences_per_document=mean,
            lines=self.lines.total,
            words=self.sum["words"],
            characters=self.sum["characters"],
            bytes=counts.bytes,
            tokens=None if self.tokenizer is None else self.sum["tokens"],
            targets=None,
            empty=counts.empty,
            invalid=counts.invalid,
            first_invalid=counts.first_invalid,
            looks_like=counts.looks_like,
            filtered=counts.filtered,
            length=_quantiles(self.lengths) | {"max": self.longest, "mean": round(self.sum["characters"] / documents)},
            histogram=_histogram(self.lengths),
            duplicate_documents=_repeats(self.documents),
            duplicate_lines=_repeats(self.lines),
            scripts={s: int(n) / total for s, n in zip(SCRIPTS, self.scripts, strict=True) if n},
            languages={k: n / documents for k, n in self.languages.most_common()},
            mails=self.sum["mails"],
            phones=self.sum["phones"],
            controls=dict(self.found.most_common()),
            overlap=None if self.overlap is None else self.overlap.result(),
            warnings=[],
        )
        report.warnings += _warnings(report, counts)
        return report


def _pieces(texts: Sequence[str]) -> Iterator[tuple[list[int], list[str]]]:
    """(which text, piece of it), about `BATCH_CHARACTERS` at once; long texts are cut, best behind line ends."""
    owners: list[int] = []
    pieces: list[str] = []
    size = 0
    for owner, text in enumerate(texts):
        start = 0
        while start < len(text):
            end = start + BATCH_CHARACTERS
            if end < len(text):
                line_end = text.rfind("\n", start, end)
                end = end if line_end < 0 else line_end + 1
            owners.append(owner)
            pieces.append(text[start:end])
            size += len(pieces[-1])
            start = end
            if size >= BATCH_CHARACTERS // 2:
                yield owners, pieces
                owners, pieces, size = [], [], 0
    if pieces:
        yield owners, pieces


def _with_specials(tokenizer: Tokenizer) -> re.Pattern[str]:
    """The usual control strings, and the tokenizer's own."""
    vocabulary = tokenizer.vocabulary
    own = [tokenizer.token(int(i)) for i in np.flatnonzero(vocabulary.is_special)]
    return re.compile("|".join([_CONTROL.pattern, *map(re.escape, sorted(own, key=len, reverse=True))]))


def _languages(letters: np.ndarray) -> list[str]:
    """Of each row of letters by script, the language or script that most of them suggest."""
    names = np.array([_LANGUAGES[script] for script in SCRIPTS])
    han, kana = SCRIPTS.index("han"), [SCRIPTS.index("hiragana"), SCRIPTS.index("katakana")]
    letters = letters.copy()
    east = letters[:, [han, *kana]].sum(1)
    japanese = letters[:, kana].sum(1) > KANA * east
    letters[:, [han, *kana]] = 0
    letters[np.arange(len(letters)), np.where(japanese, kana[0], han)] = east
    found = names[letters.argmax(1)]
    return np.where(letters.any(1), found, "no letters").tolist()


# ---------------------------------------------------------------- lengths


def _rounded(length: int) -> int:
    """The length, from 128 on with its seven highest bits alone.

    >>> _rounded(127), _rounded(128), _rounded(1001)
    (127, 128, 1000)
    """
    drop = max(0, length.bit_length() - 7)
    return length >> drop << drop


def _quantiles(lengths: Counter[int]) -> dict[str, int]:
    values = np.array(sorted(lengths))
    upto = np.cumsum([lengths[int(v)] for v in values])
    ranks = [-(-q * int(upto[-1]) // 100) for q in QUANTILES]
    at = np.searchsorted(upto, np.maximum(ranks, 1))
    return {f"p{q}": int(values[k]) for q, k in zip(QUANTILES, at, strict=True)}


def _histogram(lengths: Counter[int]) -> list[dict[str, int]]:
    bins: Counter[int] = Counter()
    for length, n in lengths.items():
        bins[length.bit_length()] += n
    return [{"low": 1 << (k - 1), "high": (1 << k) - 1, "documents": bins[k]} for k in sorted(bins)]


# ---------------------------------------------------------------- what to say


def _repeats(tally: Tally) -> Repeats:
    top = [{"count": count, "text": text} for count, text in tally.most_repeated()]
    return Repeats(tally.share, tally.total, tally.estimated, top)


def _warnings(report: Stats, counts: Counts) -> list[str]:
    """What should be seen before a run is started."""
    warnings = counts.notes()
    if report.documents > 1 and report.sentences_per_document <= ONE_SENTENCE:
        warnings.append(
            f"mean sentences per document = {report.sentences_per_document:.2f}: most documents are one sentence, "
            "so objectives over pairs of sentences find no positive pair; if blank lines or line ends part sentences "
            "here, say what parts documents (document=file or regex)"
        )
    elif report.documents == 1:
        warnings.append(
            "the corpus is one document: held-out text will be its end; document=blank_line or line parts it"
        )
    for what, repeats in (("documents", report.duplicate_documents), ("lines", report.duplicate_lines)):
        if repeats.share > MANY_REPEATED:
            warnings.append(
                f"{repeats.share:.1%} of the {what} repeat an earlier one: filter.duplicates={what} drops them"
            )
    if report.controls:
        shown = ", ".join(f"{text} ({n:,})" for text, n in list(report.controls.items())[:5])
        warnings.append(f"the text holds strings that are spelled like control tokens, and they stay text: {shown}")
    if report.overlap is not None and report.overlap.documents_found:
        found = report.overlap
        warnings.append(
            f"{found.documents_found:,} of {found.documents:,} evaluation documents share {found.n} words in a row "
            "with the corpus"
        )
    return warnings
