"""What a tokenizer does to a text, in numbers that can be compared: one denominator for all tokenizers.

Bytes, characters and words are counted on the text itself, and control tokens are never counted, so the numbers
stay the same whether or not a tokenizer's file adds start and end tokens. Everything is measured on the beginning of
the text (`Report.text` says how much), and `Report.definitions` says in words what each number is.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import numpy as np

from unmask.chart import Chart, Series, svg
from unmask.config import Kind, SourceConfig, TokenizerConfig
from unmask.errors import UserError, nearest
from unmask.text.characters import BLANK, codes, kinds, word_spans
from unmask.text.corpus import read
from unmask.text.document import Counts, utf8_length
from unmask.tokens.formats import NAMES
from unmask.tokens.probes import Misspellings, Numbers, misspellings, numbers, tokens_by_merges
from unmask.tokens.tokenizer import Aligned, Tokenizer

LIMIT = 4_000_000
"""Bytes of text that a report reads, unless told otherwise."""
MERGE_SAMPLE = 250_000
"""Bytes of text that are cut again for each number of merges."""
GROUP = 1 << 20
"""Characters encoded at once: what bounds the memory."""
GENERIC = frozenset({*NAMES, "spiece.model", "tokenizer.model"})
"""File names that say nothing: the directory's name is shown instead."""

DEFINITIONS: Mapping[str, str] = {
    "tokens": "of the text; control tokens are not counted",
    "words": "runs of letters, marks, digits and underscores; any other visible character, and every character of a "
    "script without blanks, is one; counted on the text",
    "fertility": "tokens / words",
    "whole_words": "share of words that no token starts inside of and no part of which is unknown",
    "unknown_tokens": "share of tokens that are the unknown token",
    "lost_characters": "share of visible characters that only an unknown token, or no token, holds",
    "vocabulary_used": "share of the entries, control tokens apart, that occur in the text",
    "embedding_parameters": "V * d: vocabulary size times hidden size",
    "embedding_share": "V * d / (V * d + 12 * L * d^2): a tied table, L layers of attention (4 d^2) and feed-forward "
    "(8 d^2); positions, norms and biases are left out",
    "length_ratio": "tokens / tokens of the first tokenizer",
    "attention_ratio": "length_ratio^2: cost of attention over the whole text, against the first tokenizer",
    "documents_fit": "share of documents of at most `context` tokens",
    "documents_per_context": "context / mean tokens of a document",
    "aligned": "share of the numbers 10-999 that are cut at the commonest place of their length",
    "shared": "share of the right spelling's tokens that are left when two inner letters are swapped",
    "exact_documents": "share of documents for which decode(encode(text)) == text",
    "megabytes_per_second": "encoding this text, measured once in this run on this machine",
    "tokens_by_merges": "[k, tokens of the first merge_sample bytes with the first k merges]; null without merges",
}


@dataclass(frozen=True)
class Text:
    """What was measured on."""

    path: str
    documents: int
    bytes: int
    characters: int
    words: int
    whole: bool
    """The text ended before the limit did."""
    merge_sample: int
    """Bytes that `tokens_by_merges` was counted on."""


@dataclass(frozen=True)
class Row:
    """One tokenizer's numbers; `DEFINITIONS` says what they are."""

    name: str
    type: str
    vocab_size: int
    tokens: int
    bytes_per_token: float
    characters_per_token: float
    fertility: float
    whole_words: float
    unknown_tokens: float
    lost_characters: float
    vocabulary_used: float
    embedding_parameters: int
    embedding_share: float
    length_ratio: float
    attention_ratio: float
    documents_fit: float
    documents_per_context: float
    numbers: Numbers
    misspellings: Misspellings | None
    losses: list[str]
    """What the tokenizer's own settings give up; empty = every text comes back."""
    exact_documents: float
    difference: tuple[str, str] | None
    """Of the first document that does not come back: an excerpt, and what became of it."""
    tokens_by_merges: list[tuple[int, int]] | None
    megabytes_per_second: float


@dataclass(frozen=True)
class Report:
    """Everything, ready for JSON."""

    text: Text
    context: int
    hidden_size: int
    num_layers: int
    tokenizers: list[Row]
    definitions: Mapping[str, str] = field(default_factory=lambda: DEFINITIONS)


def report(
    text: str | SourceConfig,
    tokenizers: Sequence[str] | Mapping[str, Tokenizer],
    *,
    context: int = 512,
    hidden_size: int = 768,
    num_layers: int = 12,
    limit: int = LIMIT,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Compare tokenizers on a text.

    text: a corpus path, or a source's settings. tokenizers: files, directories or types to train on the spot on the
    same text ("bbpe:4096"), or name → tokenizer. limit: bytes of text that are read. say: told what is done now.
    """
    if not tokenizers:
        raise UserError("name at least one tokenizer: a file, a directory, or a type to train such as bbpe:4096")
    source = SourceConfig(path=text) if isinstance(text, str) else text
    documents, whole = _beginning(source, limit, say)
    named = tokenizers if isinstance(tokenizers, Mapping) else _load(tokenizers, documents, say)
    words = [word_spans(d) for d in documents]
    sample = _sample(documents)
    about = Text(
        path=source.path,
        documents=len(documents),
        bytes=sum(map(utf8_length, documents)),
        characters=sum(map(len, documents)),
        words=sum(map(len, words)),
        whole=whole,
        merge_sample=sum(map(utf8_length, sample)),
    )
    counts = _word_counts(documents, words)
    rows: list[Row] = []
    for name, tokenizer in named.items():
        say(f"measuring {name}")
        sums = _measure(tokenizer, documents, words)
        size = tokenizer.vocabulary.size
        length_ratio = _share(sums.tokens, rows[0].tokens if rows else sums.tokens)
        rows.append(
            Row(
                name=name,
                type=tokenizer.type,
                vocab_size=size,
                tokens=sums.tokens,
                bytes_per_token=_share(about.bytes, sums.tokens),
                characters_per_token=_share(about.characters, sums.tokens),
                fertility=_share(sums.tokens, about.words),
                whole_words=_share(sums.whole, about.words),
                unknown_tokens=_share(sums.unknown, sums.tokens),
                lost_characters=_share(sums.lost, sums.visible),
                vocabulary_used=_share(sums.used, len(tokenizer.vocabulary.ordinary)),
                embedding_parameters=size * hidden_size,
                embedding_share=embedding_share(size, hidden_size, num_layers),
                length_ratio=length_ratio,
                attention_ratio=length_ratio**2,
                documents_fit=float(np.mean(np.array(sums.lengths) <= context)),
                documents_per_context=_share(context, float(np.mean(sums.lengths))),
                numbers=numbers(tokenizer),
                misspellings=misspellings(tokenizer, counts),
                losses=list(tokenizer.losses),
                exact_documents=_share(sums.exact, len(documents)),
                difference=sums.difference,
                tokens_by_merges=tokens_by_merges(tokenizer, sample),
                megabytes_per_second=_share(about.bytes / 1e6, sums.seconds),
            )
        )
    return Report(about, context, hidden_size, num_layers, rows)


def embedding_share(vocab_size: int, hidden_size: int, num_layers: int) -> float:
    """The table's share of a model's parameters: V d / (V d + 12 L d²).

    GPT-3's, with 50,257 entries, 12,288 dimensions and 96 layers:

    >>> round(embedding_share(50_257, 12_288, 96), 4)
    0.0035
    """
    table = vocab_size * hidden_size
    return table / (table + 12 * num_layers * hidden_size**2)


def picture(result: Report) -> str:
    """The report as SVG: bytes per token, fertility, and length against merges where tokenizers have merges."""
    names = [row.name for row in result.tokenizers]
    charts = [
        Chart(title, (Series(label, names, values),), "tokenizer", label, kind="bar")
        for title, label, values in (
            ("Bytes per token (more is shorter)", "bytes", [r.bytes_per_token for r in result.tokenizers]),
            ("Fertility (1 = a token for each word)", "tokens / words", [r.fertility for r in result.tokenizers]),
        )
    ]
    lines = tuple(
        Series(row.name, *zip(*row.tokens_by_merges, strict=True))
        for row in result.tokenizers
        if row.tokens_by_merges is not None
    )
    if lines:
        only = f", {lines[0].name}" if len(lines) == 1 else ""
        title = f"Length of {result.text.merge_sample:,} bytes against number of merges{only}"
        charts.append(Chart(title, lines, "first merges that are made", "tokens", log_x=True))
    return svg(*charts)


# ---------------------------------------------------------------- text


def _beginning(source: SourceConfig, limit: int, say: Callable[[str], None]) -> tuple[list[str], bool]:
    """The first documents of at most `limit` bytes, and whether they are all. A first one beyond it is cut."""
    if limit < 1:
        raise UserError(f"limit={limit} leaves no text to measure: give bytes, such as {LIMIT}")
    found: list[str] = []
    counts = Counts()
    whole = True
    for document in read(source, counts):
        if counts.bytes > limit:
            found, whole = found or [_shortened(document.text, limit)], False
            break
        found.append(document.text)
    for note in counts.notes():
        say(note)
    return found, whole


def _shortened(text: str, limit: int) -> str:
    """At most `limit` bytes, cut at white space where there is some."""
    fits = text[:limit].encode()[:limit].decode(errors="ignore")
    at = max(fits.rfind(" "), fits.rfind("\n"))
    return fits[:at] if at > 0 else fits


def _sample(documents: Sequence[str]) -> list[str]:
    """The first documents of at most `MERGE_SAMPLE` bytes; the last may be cut."""
    out: list[str] = []
    left = MERGE_SAMPLE
    for text in documents:
        text = text if utf8_length(text) <= left else _shortened(text, left)
        out.append(text)
        left -= utf8_length(text)
        if left < MERGE_SAMPLE // 100:
            break
    return out


def _word_counts(documents: Sequence[str], words: Sequence[np.ndarray]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text, spans in zip(documents, words, strict=True):
        counts.update(text[a:b] for a, b in spans.tolist())
    return counts


# ---------------------------------------------------------------- tokenizers


def _load(names: Sequence[str], documents: Sequence[str], say: Callable[[str], None]) -> dict[str, Tokenizer]:
    """Files, directories, and types to train on the documents."""
    found: dict[str, Tokenizer] = {}
    for given in names:
        path = Path(given)
        kind, _, size = given.partition(":")
        if path.exists():
            name, tokenizer = _name(path), Tokenizer.load(path)
        elif kind in get_args(Kind) and (size.isdecimal() or not size):
            say(f"training {given}")
            if size and int(size) < 2:
                raise UserError(f"{given}: a vocabulary has at least 2 entries, such as {kind}:4096")
            settings = {"type": kind, "vocab_size": int(size)} if size else {"type": kind}
            name, tokenizer = given, Tokenizer.train(TokenizerConfig.model_validate(settings), documents, say)
        else:
            raise UserError(
                f"no such tokenizer: {given} is neither a file or directory, nor a type to train on the text such as "
                f"bbpe:4096{nearest(kind, get_args(Kind))}"
            )
        found[given if name in found else name] = tokenizer
    return found


def _name(path: Path) -> str:
    """What a tokenizer is called in the report.

    >>> _name(Path("gpt2/vocab.json")), _name(Path("gpt2")), _name(Path("my.json"))
    ('gpt2', 'gpt2', 'my')
    """
    path = path.resolve()
    return path.parent.name if path.name in GENERIC else path.name if path.is_dir() else path.stem


@dataclass
class _Totals:
    """Sums over the documents."""

    tokens: int = 0
    lengths: list[int] = field(default_factory=list)
    whole: int = 0
    unknown: int = 0
    visible: int = 0
    lost: int = 0
    used: int = 0
    exact: int = 0
    difference: tuple[str, str] | None = None
    seconds: float = 0.0


def _measure(tokenizer: Tokenizer, documents: Sequence[str], words: Sequence[np.ndarray]) -> _Totals:
    """Encode, align and decode every document, some at a time."""
    sums = _Totals()
    seen = np.zeros(tokenizer.vocabulary.size, bool)
    tokenizer.encode_batch(["warm up"])
    unk = -1 if tokenizer.vocabulary.unk is None else tokenizer.vocabulary.unk
    for first, last in _groups(documents):
        texts = documents[first:last]
        begun = time.perf_counter()
        ids = tokenizer.encode_batch(texts)
        sums.seconds += time.perf_counter() - begun
        for text, row in zip(texts, ids, strict=True):
            seen[row] = True
            sums.tokens += len(row)
            sums.lengths.append(len(row))
            sums.unknown += int((row == unk).sum())
            back = tokenizer.decode(row, skip_special=False)  # [UNK] shows where something was lost
            sums.exact += back == text
            if back != text and sums.difference is None:
                sums.difference = _difference(text, back)
        for text, spans, aligned in zip(texts, words[first:last], tokenizer.encode_aligned(texts), strict=True):
            whole, visible, lost = _coverage(text, spans, aligned, unk)
            sums.whole, sums.visible, sums.lost = sums.whole + whole, sums.visible + visible, sums.lost + lost
    sums.used = int(seen[tokenizer.vocabulary.ordinary].sum())
    return sums


def _coverage(text: str, words: np.ndarray, aligned: Aligned, unk: int) -> tuple[int, int, int]:
    """(words kept whole, visible characters, those of them that are lost); the text is not blank."""
    held = aligned.end > aligned.begin
    begin, end = aligned.begin[held], aligned.end[held]
    known = aligned.ids[held] != unk
    edges = np.bincount(begin[known], minlength=len(text) + 1) - np.bincount(end[known], minlength=len(text) + 1)
    visible = kinds(codes(text)) != BLANK
    lost = visible & (np.cumsum(edges)[:-1] == 0)
    lost_before = np.concatenate([[0], np.cumsum(lost)])
    broken = lost_before[words[:, 1]] > lost_before[words[:, 0]]
    # A token breaks the word it starts inside of, or whose character it shares with the token before it.
    of = np.searchsorted(words[:, 0], begin, "right") - 1
    shares = np.concatenate([[False], begin[1:] < end[:-1]])
    inside = (of >= 0) & (begin < words[of, 1]) & ((begin > words[of, 0]) | shares)
    broken[of[inside]] = True
    return int((~broken).sum()), int(visible.sum()), int(lost.sum())


def _difference(text: str, back: str, around: int = 20) -> tuple[str, str]:
    """Excerpts about the first place where the two differ."""
    at = next((i for i, (a, b) in enumerate(zip(text, back, strict=False)) if a != b), min(len(text), len(back)))
    start = max(0, at - around)
    return text[start : at + around], back[start : at + around]


def _groups(documents: Sequence[str]) -> Iterator[tuple[int, int]]:
    """[first, last) of runs of documents of about `GROUP` characters."""
    first = size = 0
    for last, text in enumerate(documents, 1):
        size += len(text)
        if size >= GROUP or last == len(documents):
            yield first, last
            first, size = last, 0


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0
