"""Typed settings. Every field is documented where it stands; contradictions name their field.

This module is a leaf: it knows nothing of data, models or training. An objective's settings live with
the objective (`unmask.objectives`), and a whole recipe in `unmask.recipe`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Strict(BaseModel):
    """Frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


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
    """A .txt, .jsonl or .parquet file (the first two also .gz), a directory of them, or a glob; or hf:NAME or
    hf:NAME:CONFIG, which the `datasets` library loads (NAME may be a local directory)."""
    document: Literal["auto", "file", "blank_line", "line", "regex"] = "auto"
    """What one document is. auto: the file for .txt (beyond 64 MB, stretches of about 16 MB of it), one line for
    .jsonl, one row for .parquet and hf:."""
    separator: str | None = None
    """With document=regex: the pattern that parts two documents."""
    field: str = "text"
    """The key of a JSON line, or the column of a table, that holds the text."""
    encoding: str = "utf-8"
    """Of files without a byte-order mark: a codec's name such as cp1252, or detect."""
    strict: bool = False
    """Refuse bytes that are no text (file, line and offset named) instead of replacing and counting them."""
    split: str = "train"
    """Of hf: names, which split."""
    stream: bool = False
    """Of hf: names, read over the network instead of downloading first."""
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
        return self


class CorpusConfig(SourceConfig):
    """Where text comes from: one source (`path` and the settings of `SourceConfig`), or a mixture (`sources`)."""

    sources: dict[str, SourceConfig] = {}
    """A mixture's sources by name; a path alone stands for a source. Settings beside it are the sources' defaults."""
    mix: Literal["proportional", "weight", "temperature"] = "proportional"
    """How a mixture's sources share the samples. proportional: by their number of samples n, as if concatenated.
    weight: by `weight`. temperature: by n ** (1 / temperature) (Xue et al. 2021, section 3.1)."""
    temperature: float = Field(3.333, ge=1)
    """mT5's alpha = 0.3 is 1 / 3.333; 1 = proportional."""
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
        if empty := [name for name, source in self.sources.items() if not source.path]:
            raise ValueError(f"the source '{empty[0]}' has no path")
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
    """bpe only: the mark that closes a word, such as </w> (Sennrich et al. 2016; GPT-1); cuts at blanks."""
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
    file: str | None = None
    """Load this file or directory instead of training: tokenizer.json, vocab.txt (BERT), vocab.json beside merges.txt
    (GPT-2), or a SentencePiece .model."""


Activation = Literal["gelu", "gelu_tanh", "relu", "relu2", "silu", "geglu", "geglu_tanh", "swiglu"]
Visibility = Literal["bidirectional", "causal", "prefix"]


class ModelConfig(Strict):
    """One Transformer: a stack over the stream, and with `num_source_layers` one over the source.

    A model family is a set of these values plus a table of tensor names, never a class.
    """

    family: Literal["unmask", "bert", "gpt2", "llama", "t5"] = "unmask"
    """Whose tensor names and file format `export` uses; unmask = any settings, without an export."""
    visibility: Visibility = "causal"
    """How `lm.logits` and `lm.generate` fill reveal and horizon; training takes them from the record."""
    vocab_size: int = Field(0, ge=0)
    """Rows of the embedding table; 0 takes the tokenizer's size."""
    hidden_size: int = Field(128, ge=1)
    num_layers: int = Field(4, ge=1)
    """Layers of the stack that reads the stream (the decoder where there are two)."""
    num_source_layers: int = Field(0, ge=0)
    """Layers of the stack that reads the source; 0 = a single stack."""
    num_heads: int = Field(4, ge=1)
    num_kv_heads: int | None = Field(None, ge=1)
    """Grouped-query attention (Ainslie et al. 2023): key and value heads; None = num_heads."""
    head_size: int | None = Field(None, ge=1)
    """None = hidden_size / num_heads."""
    intermediate_size: int | None = Field(None, ge=1)
    """Width of the feed-forward layer; None = 4 × hidden_size (8/3, rounded up to 8, for gated ones)."""
    activation: Activation = "gelu"
    max_position: int = Field(512, ge=1)
    """Longest sequence of either stack."""
    positions: Literal["learned", "sinusoidal", "rotary", "t5", "none"] = "learned"
    rotary_base: float = 10000.0
    relative_buckets: int = Field(32, ge=4)
    relative_max_distance: int = Field(128, ge=2)
    token_types: int = Field(0, ge=0)
    """Rows of the token-type table (BERT's segments); 0 = none."""
    norm: Literal["layer", "rms"] = "layer"
    norm_position: Literal["pre", "post"] = "pre"
    norm_eps: float = 1e-5
    norm_bias: bool = True
    """LayerNorm's shift (RMSNorm never has one)."""
    embedding_norm: bool = False
    """Normalise the sum of the embeddings (BERT)."""
    embedding_scale: float = 1.0
    """Factor on token embeddings before positions are added (Vaswani et al. 2017: hidden_size ** 0.5)."""
    query_vector: bool = False
    """A learned start vector for appended queries, whose token is -1 (XLNet)."""
    final_norm: bool = True
    """Normalise the last layer's output (pre-norm families)."""
    attention_bias: bool = True
    """Biases of the query, key, value and output projections."""
    mlp_bias: bool = True
    qk_norm: bool = False
    """RMS-normalise queries and keys of each head before positions (Henry et al. 2020; Dehghani et al. 2023)."""
    attention_scale: float | None = None
    """Factor on query·key; None = head_size ** -0.5 (T5 uses 1)."""
    tied_head: bool = True
    """The vocabulary head uses the embedding table."""
    head_bias: bool = False
    head_transform: bool = False
    """BERT's head: dense, activation, norm before the table."""
    pooler: bool = False
    """BERT's pooler: dense and tanh in front of heads over classes, score and group."""
    head_scale: float = 1.0
    """Factor on the hidden state before the table (T5 1.0: hidden_size ** -0.5)."""
    logit_softcap: float | None = None
    """cap · tanh(logits / cap) (Gemma 2)."""
    dropout: float = Field(0.0, ge=0, lt=1)
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    init_std: float = 0.02
    zero_init_projections: bool = False
    """Start the output projections of attention and feed-forward at zero."""

    @model_validator(mode="after")
    def _shapes_fit(self) -> ModelConfig:
        if self.head_size is None and self.hidden_size % self.num_heads:
            raise ValueError(
                f"num_heads={self.num_heads} does not divide hidden_size={self.hidden_size}: "
                "choose a divisor, or set head_size"
            )
        if self.num_heads % self.kv_heads:
            raise ValueError(f"num_kv_heads={self.kv_heads} does not divide num_heads={self.num_heads}")
        if self.positions == "rotary" and self.size_per_head % 2:
            raise ValueError(f"rotary positions need an even head size, not {self.size_per_head}")
        return self

    @property
    def kv_heads(self) -> int:
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def size_per_head(self) -> int:
        return self.head_size or self.hidden_size // self.num_heads

    @property
    def gated(self) -> bool:
        return self.activation in ("geglu", "geglu_tanh", "swiglu")

    @property
    def mlp_size(self) -> int:
        if self.intermediate_size is not None:
            return self.intermediate_size
        return -(-self.hidden_size * 8 // 3 // 8) * 8 if self.gated else 4 * self.hidden_size


class TrainConfig(Strict):
    """How parameters move."""

    batch_size: int = Field(32, ge=1)
    """Rows of `context` tokens in an update, over all micro-batches (packed: about this many)."""
    grad_accumulation: int = Field(1, ge=1)
    """Micro-batches an update is built from."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """muon: Muon on hidden matrices; tables, tied, 1-D and head parameters stay with AdamW."""
    learning_rate: float = Field(1e-3, gt=0)
    """Peak rate of AdamW's parameters."""
    muon_learning_rate: float = Field(0.02, gt=0)
    """Peak rate of Muon's matrices."""
    muon_momentum: float = Field(0.95, ge=0, lt=1)
    weight_decay: float = Field(0.01, ge=0)
    """Decoupled; matrices and tables only."""
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.98, ge=0, lt=1)
    adam_eps: float = 1e-8
    clip_norm: float = Field(1.0, ge=0)
    """Largest global gradient norm; 0 = no clipping."""
    schedule: Literal["constant", "linear", "cosine", "wsd"] = "linear"
    """linear and cosine fall from the peak to `final_lr`; wsd holds, then falls linearly over `decay_fraction`."""
    warmup_steps: int = Field(100, ge=0)
    decay_fraction: float = Field(0.4, ge=0, le=1)
    """Share of the run that wsd spends falling."""
    final_lr: float = Field(0.0, ge=0, le=1)
    """Last rate as a share of the peak."""


class BudgetConfig(Strict):
    """How long to train; exactly one is given."""

    steps: int | None = Field(None, ge=1)
    tokens: float | None = Field(None, gt=0)
    """Processed tokens, source and stream, without padding."""
    target_tokens: float | None = Field(None, gt=0)
    flops: float | None = Field(None, gt=0)
    """Training FLOPs by formula."""
    minutes: float | None = Field(None, gt=0)
    """Minutes of training steps; the step count is fixed after a calibration and written down."""

    @model_validator(mode="after")
    def _one(self) -> BudgetConfig:
        given = [k for k, v in self.model_dump().items() if v is not None]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of budget.steps, tokens, target_tokens, flops, minutes (given: {given or 'none'})"
            )
        return self


class CheckpointConfig(Strict):
    """When the run is written down."""

    every: int = Field(0, ge=0)
    """Steps between checkpoints; 0 = powers of two, then every 1,000."""
    keep: int = Field(2, ge=1)
    """How many of the newest stay besides the powers of two and the best."""
