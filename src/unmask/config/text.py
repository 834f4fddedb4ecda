"""Where text comes from, and which tokenizer cuts it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from unmask.config.base import Strict


class FilterConfig(Strict):
    """Which documents are passed over; each reason is counted."""

    min_characters: int = Field(0, ge=0)
    """Drop shorter documents."""
    max_characters: int | None = Field(None, ge=1)
    """Drop longer documents."""
    max_repetition: float = Field(1.0, gt=0, le=1)
    """Drop documents with a larger share of characters in repeated lines (Rae et al. 2021, table A1, has 0.2)."""
    duplicates: Literal["keep", "documents", "lines"] = "keep"
    """documents: a text equal to an earlier one is dropped. lines: so is every line seen before, in any document."""
    scripts: tuple[str, ...] = ()
    """Keep documents whose letters belong mostly to these scripts, such as latin or han; empty = all."""
    min_script_share: float = Field(0.5, gt=0, le=1)
    """What "mostly" is: the share of letters in `scripts`."""


class SourceConfig(Strict):
    """One source of text, what one document of it is, and what is known of its inside."""

    path: str = ""
    """A .txt, .jsonl or .parquet file (the first two also .gz), a directory of them, or a glob; a URL of these that
    fsspec opens (s3://, gs://, https://, …); or hf:NAME or hf:NAME:CONFIG, which the `datasets` library loads (NAME may
    be a local directory)."""
    document: Literal["auto", "file", "blank_line", "line", "regex"] = "auto"
    """What one document is. auto: the file for .txt (beyond 64 MB, stretches of about 16 MB of it), one line for
    .jsonl, one row for .parquet and hf:."""
    separator: str | None = None
    """With document=regex: the pattern that parts two documents."""
    field: str = "text"
    """The key of a JSON line, or the column of a table, that holds the text."""
    target: str | None = None
    """The key or column that holds what is to be written when the text is read: its answer, its translation. Only
    objective pairs reads it; to all others it is no text."""
    encoding: str = "utf-8"
    """Of files without a byte-order mark: a codec's name such as cp1252, or detect."""
    strict: bool = False
    """Refuse bytes that are no text (file, line and offset named) instead of replacing and counting them."""
    split: str = "train"
    """Of hf: names, which split."""
    stream: bool = False
    """Of a corpus, read it chapter by chapter while the run trains (`CorpusConfig.chapter`). Of hf: names, also in
    all other places: read over the network instead of downloading first."""
    filter: FilterConfig = FilterConfig()
    sentences: bool = False
    """Keep sentence starts with the shards (rules for English and Chinese punctuation)."""
    words: Literal["rule", "blanks", "jieba"] = "rule"
    """Where words start. rule: read off the text (`tokens.words`). blanks: the text is segmented by blanks, which are
    taken out between Chinese or Japanese characters. jieba: that library segments. The last two are kept with
    the shards."""
    spans: str | None = None
    """The key or column that lists annotated spans as [begin, end) characters of the text."""
    lexicon: str | None = None
    """A file of phrases, one a line; each of their longest matches at word boundaries is a span."""
    weight: float = Field(1.0, gt=0)
    """Of a mixture's source, with mix=weight: its share of the samples, relative to the others'."""

    @model_validator(mode="after")
    def _regex_needs_a_pattern(self) -> SourceConfig:
        if (self.document == "regex") != (self.separator is not None):
            raise ValueError("document=regex and separator=PATTERN belong together: give both or neither")
        if self.spans is not None and self.lexicon is not None:
            raise ValueError("spans and lexicon both say where spans are: give one")
        if self.target is not None and self.document in ("blank_line", "regex"):
            raise ValueError(
                f"document={self.document} parts a text, but target={self.target} belongs to the whole of it: take "
                "document=auto"
            )
        return self


class CorpusConfig(SourceConfig):
    """Where text comes from: one source (`path` and the settings of `SourceConfig`), or a mixture (`sources`)."""

    sources: dict[str, SourceConfig] = Field({})
    """A mixture's sources by name; a path alone stands for a source. Settings beside it are the sources' defaults."""
    mix: Literal["proportional", "weight", "temperature"] = "proportional"
    """How a mixture's sources share the samples. proportional: by their number of samples n, as if concatenated.
    weight: by `weight`. temperature: by n ** (1 / temperature) (Xue et al. 2021, section 3.1)."""
    temperature: float = Field(3.333, ge=1)
    """mT5's alpha = 0.3 is 1 / 3.333; 1 = proportional."""
    chapter: int = Field(256_000_000, ge=1)
    """With stream: bytes of text that are read, tokenized and shuffled together. The run's tokenizer, token frequencies
    and held-out part are those of the first chapter."""
    valid_fraction: float = Field(0.05, ge=0, lt=1)
    """Share held out, of every source, when no `valid` is given."""

    @model_validator(mode="before")
    @classmethod
    def _settings_of_sources(cls, values: Any) -> Any:
        """A path alone stands for a source, and what is set beside `sources` holds for each that does not say it."""
        if not isinstance(values, Mapping) or not isinstance(values.get("sources"), Mapping):
            return values
        shared = {k: v for k, v in values.items() if k in SourceConfig.model_fields and k not in ("path", "weight")}
        sources = {k: {"path": v} if isinstance(v, str) else v for k, v in values["sources"].items()}
        return {**values, "sources": {k: {**shared, **v} if isinstance(v, Mapping) else v for k, v in sources.items()}}

    @model_validator(mode="after")
    def _one_or_many(self) -> CorpusConfig:
        if bool(self.path) == bool(self.sources):
            raise ValueError("give a path, or sources (a mixture): one of the two")
        if self.chapter != type(self).model_fields["chapter"].default and not self.stream:
            raise ValueError("chapter is of a stream: give stream=true with it, or leave it out")
        if empty := [name for name, source in self.sources.items() if not source.path]:
            raise ValueError(f"the source '{empty[0]}' has no path")
        if streaming := [name for name, source in self.sources.items() if source.stream]:
            raise ValueError(
                f"the source '{streaming[0]}' of a mixture has stream=true: a stream is read alone, since its sources "
                "would be at different places of it; leave stream out, or give the stream as the corpus"
            )
        return self

    @property
    def parts(self) -> dict[str, SourceConfig]:
        """Name → source; a single source has the name ''."""
        return dict(self.sources) or {"": self}


Kind = Literal["bbpe", "bpe", "wordpiece", "unigram", "char", "byte", "word"]
Split = Literal["gpt2", "metaspace", "bert", "words", "whitespace"]


class TokenizerConfig(Strict):
    """Which tokenizer to train on the corpus, or which file to load."""

    type: Kind = "bbpe"
    vocab_size: int = Field(8192, ge=2)
    """Entries including special tokens; a ceiling for byte, char and word."""
    split: Split | None = None
    """How text is cut before learning; tokens never cross a cut. None = the type's own: gpt2 for bbpe (a blank
    stays before its word), metaspace for unigram and bpe ("▁" marks the blank), bert for wordpiece (blanks and
    punctuation), words for word (runs of word characters). whitespace: at white space alone, for text that is
    segmented already."""
    digits: Literal["keep", "split"] = "keep"
    """split: every digit is a token of its own (Touvron et al. 2023, section 2.1)."""
    end_of_word: str | None = None
    """bpe only: the mark that closes a word, such as </w> (Sennrich et al. 2016); cuts at blanks. GPT-1's tokenizer is
    this with split=bert and lowercase, which takes accents off too."""
    lowercase: bool = False
    """Fold case before splitting (bpe, wordpiece, unigram and word)."""
    normalization: Literal["none", "nfc", "nfkc"] = "none"
    """Unicode normalisation before all else."""
    ties: Literal["library", "first", "greatest"] = "library"
    """Which of equally common pairs bbpe, bpe and wordpiece merge. library: the lower ids, as the tokenizers
    library. first: the one seen first in the text. greatest: the lexicographically greatest (CS336)."""
    min_frequency: int = Field(2, ge=1)
    """Pairs rarer than this are not merged; rarer words get no entry of their own."""
    sentinels: int = Field(100, ge=0)
    """How many `<extra_id_k>` tokens the vocabulary holds."""
    extra: tuple[str, ...] = ()
    """More control tokens, at the vocabulary's end: mode tokens such as [NLU], [S2S], [NLG] (UL2). Text never yields a
    part of one."""
    file: str | None = None
    """Load this file or directory instead of training: tokenizer.json, vocab.txt (BERT), vocab.json beside merges.txt
    (GPT-2), or a SentencePiece .model."""
