"""Learning a vocabulary from text, and the library tokenizer that encodes with it.

What is learnt is ours (`counting`, `bpe`, `unigram`), so that the same text gives the same bytes of
tokenizer.json in every process: the library's WordPiece and unigram trainers number things in the order of a
randomly seeded hash map. How text is normalised, cut and put together again is the library's (`_pipeline`).

Alphabets: bbpe and byte know every byte. char knows the most frequent characters that fit. wordpiece, bpe and
unigram know the most frequent characters that make up `COVERAGE` of the text, and every ASCII one that occurs; a
rarer one is [UNK] (for wordpiece the whole word is).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from unmask.config import TokenizerConfig
from unmask.errors import UserError
from unmask.text.progress import Say
from unmask.tokens import unigram_training
from unmask.tokens.bpe import Pair, joined, learn_merges
from unmask.tokens.counting import characters_of, count_characters, count_words, peak_note
from unmask.tokens.special import ROLES, sentinel

CHAR_PATTERN = r"[\s\S]"
"""One code point."""
WORD_PATTERN = r"\w+|[^\w\s]"
"""A run of letters, marks, digits and underscores, or one punctuation mark."""
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""Radford et al. 2019 (their code): contractions, letters, numbers, other signs; a blank stays before its word."""
METASPACE_PATTERN = r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+| |[^\S ]+"
"""Letters, numbers, other signs, each with the blank before it; blanks; other white space. So no piece joins a word
to its punctuation (sentencepiece cuts there too: split_by_unicode_script, split_by_number)."""
METASPACE = "▁"
CONTINUING = "##"
LONGEST_WORD = 100
"""Characters; the WordPiece model calls a longer word unknown."""
COVERAGE = 0.9995
"""Share of all characters that an alphabet covers (sentencepiece's default)."""

SPLITS: dict[str, tuple[str, ...]] = {
    "bbpe": ("gpt2", "whitespace"),
    "bpe": ("metaspace", "gpt2", "whitespace"),
    "bpe with end_of_word": ("whitespace", "bert", "words"),
    "unigram": ("metaspace", "gpt2", "whitespace"),
    "wordpiece": ("bert", "words", "whitespace"),
    "word": ("words", "bert", "whitespace"),
    "char": (),
    "byte": (),
}
"""Which cuts suit a type, its own first. Where nothing in a piece marks where words start, blanks must be kept."""


def fixed_size(config: TokenizerConfig) -> int | None:
    """Entries of a vocabulary that no text changes: one of bytes. None = the text decides, up to `vocab_size`."""
    return len(_controls(config)) + len(BYTES) + len(_marks(config)) if config.type == "byte" else None


def _controls(config: TokenizerConfig) -> list[str]:
    """The control tokens that stand first; where every byte has an entry nothing is unknown."""
    return [name for role, name in ROLES.items() if role != "unk" or config.type not in ("byte", "bbpe")]


def _marks(config: TokenizerConfig) -> list[str]:
    """The control tokens that stand last: sentinels, and what the user adds."""
    marks = [*(sentinel(k) for k in range(config.sentinels)), *config.extra]
    for token in config.extra:
        if not token.strip() or [*marks, *ROLES.values()].count(token) > 1:
            raise UserError(f"tokenizer.extra holds {token!r}, which is empty, twice there or a control token already")
    return marks


def learn(config: TokenizerConfig, texts: Iterable[str], say: Say | None = None) -> tokenizers.Tokenizer:
    """A library tokenizer: control tokens, then pieces, then sentinels.

    `say` hears what was counted and what was left out; that words had to be sampled goes to stderr without it.
    """
    split = _check(config)
    names, marks = _controls(config), _marks(config)
    task = _Task(config, split, config.vocab_size - len(names) - len(marks), (*names, *marks), say)
    learnt = _LEARNERS[config.type](task, texts)
    if not learnt.pieces:
        raise UserError("the text to train the tokenizer on is empty: check the corpus path")
    built = tokenizers.Tokenizer(_model(task, names, learnt, marks))
    # A blank before a mask belongs to the piece it hides (" the" is one piece), as in RoBERTa.
    strip = {"[MASK]", *marks} - set(config.extra) if split in ("gpt2", "metaspace") else set()
    built.add_special_tokens(
        [AddedToken(t, special=True, normalized=False, lstrip=t in strip) for t in [*names, *marks]]
    )
    if task.normalizer is not None:
        built.normalizer = task.normalizer
    built.pre_tokenizer = task.pre_tokenizer
    built.decoder = _decoder(config, split)
    if say is not None:
        say(f"learnt {len(learnt.pieces):,} pieces{peak_note()}")
    return built


def byte_characters() -> str:
    """256 characters, one for each byte: the printable ones stand for themselves (GPT-2's table)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return "".join(chr(b) if b in printable else chr(next(others)) for b in range(256))


BYTES = byte_characters()
_BYTE_OF = {c: b for b, c in enumerate(BYTES)}


# ---------------------------------------------------------------- settings that fit together


def _check(config: TokenizerConfig) -> str:
    """The cut to make; contradictions name their field."""
    kind: str = config.type
    if config.lowercase and kind not in ("bpe", "wordpiece", "unigram", "word"):
        raise UserError(f"tokenizer.lowercase fits bpe, wordpiece, unigram and word; drop it for type={kind}")
    if config.ties != "library" and kind not in ("bbpe", "bpe", "wordpiece"):
        raise UserError(f"tokenizer.ties={config.ties} is about merges, and type={kind} makes none: drop it")
    if config.end_of_word is not None:
        if kind != "bpe":
            raise UserError(f"tokenizer.end_of_word fits bpe only; drop it for type={kind}")
        if not config.end_of_word or any(c.isspace() for c in config.end_of_word):
            raise UserError(
                f"tokenizer.end_of_word={config.end_of_word!r} must be visible characters, such as </w>: "
                "they mark where a blank was"
            )
        kind = "bpe with end_of_word"
    fitting = SPLITS[kind]
    if config.split is None:
        return fitting[0] if fitting else ""
    if config.split not in fitting:
        choice = f"choose {', '.join(fitting)}, or leave it out" if fitting else "it has no cuts, leave it out"
        raise UserError(f"tokenizer.split={config.split} does not suit type={kind}: {choice}")
    return config.split


def _check_room(task: _Task, least: int, what: str) -> None:
    if task.room < least:
        taken = task.config.vocab_size - task.room
        raise UserError(
            f"tokenizer.vocab_size={task.config.vocab_size} is too small for {least:,} {what} + "
            f"{taken} special tokens ({task.config.sentinels} of them sentinels); "
            f"give at least {taken + least:,}, or fewer sentinels"
        )


# ---------------------------------------------------------------- the library's parts


def _normalizer(config: TokenizerConfig, split: str) -> Any:
    steps: list[Any] = []
    if config.normalization != "none":
        steps.append({"nfc": normalizers.NFC, "nfkc": normalizers.NFKC}[config.normalization]())
    gpt1 = config.end_of_word is not None and split == "bert" and config.lowercase  # accents go, as with BERT
    if config.type == "wordpiece" or gpt1:
        # Chinese characters are words by themselves, unless the text is segmented.
        steps.append(normalizers.BertNormalizer(lowercase=config.lowercase, handle_chinese_chars=split != "whitespace"))
    elif config.lowercase:
        steps.append(normalizers.Lowercase())
    return normalizers.Sequence(steps) if len(steps) > 1 else steps[0] if steps else None


def _pre_tokenizer(config: TokenizerConfig, split: str) -> Any:
    if config.type == "char":
        return pre_tokenizers.Split(Regex(CHAR_PATTERN), "isolated")
    if config.type == "byte":
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if config.digits == "split" else []
    if config.type == "bbpe":
        own = [pre_tokenizers.Split(Regex(r"\s"), "isolated")] if split == "whitespace" else []
        by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split == "gpt2")
        steps = [*own, *digits, by_bytes]  # digits are found before they are bytes
    elif split == "metaspace":
        # No blank is put in front of the text: no decoder could tell it from the text's own.
        marks = pre_tokenizers.Metaspace(replacement=METASPACE, prepend_scheme="never")
        steps = [pre_tokenizers.Split(Regex(METASPACE_PATTERN), "isolated"), marks, *digits]
    elif split == "whitespace" and _keeps_blanks(config):
        steps = [pre_tokenizers.Split(Regex(r"\s"), "isolated"), *digits]
    else:
        cut = {
            "gpt2": pre_tokenizers.Split(Regex(GPT2_PATTERN), "isolated"),
            "bert": pre_tokenizers.BertPreTokenizer(),
            "words": pre_tokenizers.Split(Regex(WORD_PATTERN), "removed", invert=True),
            "whitespace": pre_tokenizers.WhitespaceSplit(),
        }
        steps = [cut[split], *digits]
    return pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]


def _keeps_blanks(config: TokenizerConfig) -> bool:
    """With split=whitespace: where no mark says that words were apart, a white-space character is a word of its own."""
    return config.type in ("bbpe", "unigram") or (config.type == "bpe" and config.end_of_word is None)


def _decoder(config: TokenizerConfig, split: str) -> Any:
    if config.type in ("byte", "bbpe"):
        return decoders.ByteLevel()
    if config.type in ("wordpiece", "word"):
        # Segmented text keeps a blank before its punctuation.
        return decoders.WordPiece(prefix=CONTINUING, cleanup=split != "whitespace")
    if config.end_of_word is not None:
        return decoders.BPEDecoder(suffix=config.end_of_word)
    if split == "metaspace":
        return decoders.Metaspace(replacement=METASPACE, prepend_scheme="never")
    return decoders.Fuse()


@dataclass(frozen=True)
class _Learnt:
    pieces: list[str]
    merges: tuple[Pair, ...] = ()
    scores: tuple[float, ...] = ()


def _model(task: _Task, names: list[str], learnt: _Learnt, marks: list[str]) -> Any:
    config, unk = task.config, ROLES["unk"]
    if config.type == "unigram":
        # Control strings need a number here, but no text should be cut into one: they score below any other cut.
        never = min(learnt.scores) * max(map(len, names)) - 1
        scored = [(name, never) for name in names] + list(zip(learnt.pieces, learnt.scores, strict=True))
        return models.Unigram(scored, names.index(unk))  # sentinels are added tokens only
    vocab = {piece: i for i, piece in enumerate([*names, *learnt.pieces, *marks])}
    if config.type in ("byte", "bbpe"):
        return models.BPE(vocab, list(learnt.merges))
    if config.type == "bpe":
        mark = {} if config.end_of_word is None else {"end_of_word_suffix": config.end_of_word}
        return models.BPE(vocab, list(learnt.merges), unk_token=unk, **mark)
    if config.type == "wordpiece":
        return models.WordPiece(
            vocab, unk_token=unk, continuing_subword_prefix=CONTINUING, max_input_chars_per_word=LONGEST_WORD
        )
    return models.WordLevel(vocab, unk_token=unk)


# ---------------------------------------------------------------- one learner for each type


class _Task:
    """What a learner needs to know: the settings, how many pieces there is room for, and which it may not make."""

    def __init__(
        self, config: TokenizerConfig, split: str, room: int, reserved: tuple[str, ...], say: Say | None
    ) -> None:
        self.config, self.room, self.reserved, self.say = config, room, frozenset(reserved), say
        self.normalizer = _normalizer(config, split)
        self.pre_tokenizer = _pre_tokenizer(config, split)

    def normalize(self, text: str) -> str:
        return text if self.normalizer is None else str(self.normalizer.normalize_str(text))

    def cut(self, chunk: str) -> list[str]:
        return [word for word, _ in self.pre_tokenizer.pre_tokenize_str(self.normalize(chunk))]

    def alphabet(self, words: Mapping[str, int]) -> list[str]:
        """The most frequent characters that make up `COVERAGE` of all, and ASCII, sorted; the others are said."""
        counts = characters_of(words)
        total = sum(counts.values())
        rest = total * (1 - COVERAGE)
        kept = set(counts)
        for character in reversed(_most_frequent(counts, len(counts))):
            rest -= counts[character]
            if rest < 0:
                break
            if not character.isascii():
                kept.discard(character)
        if self.say is not None and len(kept) < len(counts):
            lost = 1 - sum(counts[c] for c in kept) / total
            self.say(
                f"{len(counts) - len(kept):,} of {len(counts):,} different characters are so rare "
                f"(together {lost:.3%} of the text) that they are unknown"
            )
        return sorted(kept)


def _learn_byte(task: _Task, texts: Iterable[str]) -> _Learnt:
    _check_room(task, 256, "bytes")
    return _Learnt(list(BYTES))


def _learn_char(task: _Task, texts: Iterable[str]) -> _Learnt:
    counts = count_characters(texts, task.normalize)
    _check_room(task, 1, "char")
    return _Learnt(sorted(_most_frequent(counts, task.room)))


def _learn_word(task: _Task, texts: Iterable[str]) -> _Learnt:
    counts = count_words(texts, task.cut, task.say)
    _check_room(task, 1, "word")
    least = task.config.min_frequency
    words = {w: n for w, n in counts.items() if n >= least and w not in task.reserved}
    if counts and not words:
        if task.say is not None:
            task.say(f"no word occurs {least} times (tokenizer.min_frequency), so every word gets an entry")
        words = {w: n for w, n in counts.items() if w not in task.reserved}
    return _Learnt(_most_frequent(words, task.room))


def _learn_bbpe(task: _Task, texts: Iterable[str]) -> _Learnt:
    """Byte-level BPE (Radford et al. 2019, section 2.2): 256 bytes, then merges of the commonest pair."""
    _check_room(task, 256, "bytes")
    words = count_words(texts, task.cut, task.say)
    # Ties follow the library's numbers, by the code point of a byte's character; the vocabulary lists bytes by value.
    merges = _merge(task, words, task.room - 256, sorted(BYTES), spelling=lambda s: bytes(_BYTE_OF[c] for c in s))
    return _Learnt([*BYTES, *(joined(a, b) for a, b in merges)], merges)


def _learn_bpe(task: _Task, texts: Iterable[str]) -> _Learnt:
    """BPE over characters (Sennrich et al. 2016): alone, and with `end_of_word` as the last of a word too."""
    end = task.config.end_of_word or ""
    words = count_words(texts, task.cut, task.say)
    characters = task.alphabet(words)
    initial = characters + [c + end for c in characters if end]
    _check_room(task, len(initial), "characters (alone and at the end of words)" if end else "characters")
    merges = _merge(task, words, task.room - len(initial), initial, end=end)
    return _Learnt([*initial, *(joined(a, b) for a, b in merges)], merges)


def _learn_wordpiece(task: _Task, texts: Iterable[str]) -> _Learnt:
    """WordPiece's vocabulary by merges of the commonest pair (as the library learns it)."""
    words = count_words(texts, task.cut, task.say)
    initial = task.alphabet(words)
    known = set(initial)
    words = {w: n for w, n in words.items() if len(w) <= LONGEST_WORD and known.issuperset(w)}
    inside = sorted({CONTINUING + c for word in words for c in word[1:]})
    _check_room(task, len(initial) + len(inside), "characters (alone and inside words)")
    merges = _merge(task, words, task.room - len(initial) - len(inside), [*initial, *inside], continuing=CONTINUING)
    return _Learnt([*initial, *inside, *(joined(a, b, CONTINUING) for a, b in merges)])


def _merge(task: _Task, words: dict[str, int], most: int, initial: list[str], **marks: Any) -> tuple[Pair, ...]:
    config = task.config
    merges = learn_merges(
        words,
        most,
        ties=config.ties,
        min_frequency=config.min_frequency,
        alphabet=initial,
        forbidden=task.reserved,
        **marks,
    )
    return tuple(merges)


def _learn_unigram(task: _Task, texts: Iterable[str]) -> _Learnt:
    words = count_words(texts, task.cut, task.say, unigram_training.MOST)
    characters = task.alphabet(words)
    if not characters:
        return _Learnt([])
    _check_room(task, len(characters), "characters")
    pieces = unigram_training.learn(
        words, task.room, alphabet=characters, min_frequency=task.config.min_frequency, forbidden=task.reserved
    )
    return _Learnt([piece for piece, _ in pieces], scores=tuple(score for _, score in pieces))


_LEARNERS = {
    "byte": _learn_byte,
    "char": _learn_char,
    "word": _learn_word,
    "bbpe": _learn_bbpe,
    "bpe": _learn_bpe,
    "wordpiece": _learn_wordpiece,
    "unigram": _learn_unigram,
}


def _most_frequent(counts: Mapping[str, int], room: int) -> list[str]:
    """At most `room` entries; ties break on spelling."""
    return sorted(counts, key=lambda piece: (-counts[piece], piece))[:room]
