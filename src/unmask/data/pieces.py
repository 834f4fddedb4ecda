"""Learning a vocabulary from text: one function per tokenizer type, all deterministic.

The library's WordPiece trainer is not: it numbers the "##x" characters in the order of a randomly seeded
hash map, and ties between merges break on those numbers. So we count words ourselves, hand it the
characters in sorted order first, and nothing depends on the hash any more. Byte-level BPE sorts its
alphabet and needs no help.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from unmask.config import TokenizerConfig
from unmask.data.special import ROLES, sentinel
from unmask.errors import UserError

CHAR_PATTERN = r"[\s\S]"
"""One code point."""
WORD_PATTERN = r"\w+|[^\w\s]"
"""A run of letters, marks, digits and underscores, or one punctuation mark."""
CONTINUING = "##"
LONGEST_WORD = 100
"""Characters; the WordPiece model calls a longer word unknown."""
COVERAGE = 0.9995
"""Share of all characters that WordPiece's alphabet covers (sentencepiece's default); the rest are unknown."""


def learn(config: TokenizerConfig, texts: Iterable[str]) -> tokenizers.Tokenizer:
    """A library tokenizer: control tokens, then pieces, then sentinels."""
    names = [name for role, name in ROLES.items() if role != "unk" or config.type not in ("byte", "bbpe")]
    room = config.vocab_size - len(names) - config.sentinels
    normalizer, pre, decoder = _pipeline(config)
    merges: list[tuple[str, str]] = []
    if config.type == "byte":
        pieces = list(BYTES)
        _check_room(config, room, 256, "bytes")
    elif config.type == "bbpe":
        _check_room(config, room, 256, "bytes")
        pieces, merges = _learn_bbpe(texts, room, pre)
    elif config.type == "wordpiece":
        pieces = _learn_wordpiece(config, _count_words(texts, normalizer, pre), room)
    else:
        counts = _count_characters(texts) if config.type == "char" else _count_words(texts, normalizer, pre)
        _check_room(config, room, 1, config.type)
        pieces = _most_frequent(counts, room)
        pieces = sorted(pieces) if config.type == "char" else pieces
    if not pieces:
        raise UserError("the text to train the tokenizer on is empty: check the corpus path")
    marks = [sentinel(k) for k in range(config.sentinels)]
    vocab = {piece: i for i, piece in enumerate([*names, *pieces, *marks])}
    built = tokenizers.Tokenizer(_model(config, vocab, merges))
    # A blank before a mask belongs to the piece it hides (" the" is one piece), as in RoBERTa.
    strip = {"[MASK]", *marks} if config.type == "bbpe" else set()
    built.add_special_tokens(
        [AddedToken(t, special=True, normalized=False, lstrip=t in strip) for t in [*names, *marks]]
    )
    if normalizer is not None:
        built.normalizer = normalizer
    built.pre_tokenizer = pre
    built.decoder = decoder
    return built


def byte_characters() -> str:
    """256 characters, one for each byte: the printable ones stand for themselves (GPT-2's table)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return "".join(chr(b) if b in printable else chr(next(others)) for b in range(256))


BYTES = byte_characters()


def _pipeline(config: TokenizerConfig) -> tuple[Any, Any, Any]:
    """The library's normalizer, pre-tokenizer and decoder of each type."""
    if config.lowercase and config.type not in ("wordpiece", "word"):
        raise UserError(f"tokenizer.lowercase fits wordpiece and word only; drop it for type={config.type}")
    if config.type in ("byte", "bbpe"):
        split: Any = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=config.type == "bbpe")
        return None, split, decoders.ByteLevel()
    if config.type == "char":
        return None, pre_tokenizers.Split(Regex(CHAR_PATTERN), "isolated"), decoders.Fuse()
    joined = decoders.WordPiece(prefix=CONTINUING)
    if config.type == "word":
        split = pre_tokenizers.Split(Regex(WORD_PATTERN), "removed", invert=True)
        return normalizers.Lowercase() if config.lowercase else None, split, joined
    return normalizers.BertNormalizer(lowercase=config.lowercase), pre_tokenizers.BertPreTokenizer(), joined


def _model(config: TokenizerConfig, vocab: dict[str, int], merges: list[tuple[str, str]]) -> Any:
    unk = ROLES["unk"]
    if config.type in ("byte", "bbpe"):
        return models.BPE(vocab, merges)
    if config.type == "wordpiece":
        return models.WordPiece(
            vocab, unk_token=unk, continuing_subword_prefix=CONTINUING, max_input_chars_per_word=LONGEST_WORD
        )
    return models.WordLevel(vocab, unk_token=unk)


def _check_room(config: TokenizerConfig, room: int, least: int, what: str) -> None:
    if room < least:
        needed = config.vocab_size - room + least
        raise UserError(
            f"tokenizer.vocab_size={config.vocab_size} is too small for {least:,} {what} + "
            f"{config.vocab_size - room} special tokens ({config.sentinels} of them sentinels); "
            f"give at least {needed:,}, or fewer sentinels"
        )


def _learn_bbpe(texts: Iterable[str], room: int, pre: Any) -> tuple[list[str], list[tuple[str, str]]]:
    """Byte-level BPE (Radford et al. 2019, section 2.2): 256 bytes, then merges of the commonest pair."""
    blank = tokenizers.Tokenizer(models.BPE())
    blank.pre_tokenizer = pre
    trainer = trainers.BpeTrainer(
        vocab_size=room, min_frequency=2, initial_alphabet=list(BYTES), show_progress=False, special_tokens=[]
    )
    blank.train_from_iterator(texts, trainer)
    vocab, merges = _learnt(blank)
    # The library sorts the bytes by the code point of their character; we list them by value.
    return [*BYTES, *(piece for piece in vocab if piece not in set(BYTES))], merges


def _learn_wordpiece(config: TokenizerConfig, words: Counter[str], room: int) -> list[str]:
    """WordPiece's vocabulary by merges of the commonest pair (as the library learns it)."""
    alphabet = _covering_alphabet(words)
    words = Counter({w: n for w, n in words.items() if alphabet.issuperset(w) and len(w) <= LONGEST_WORD})
    inside = sorted({CONTINUING + c for word in words for c in word[1:]})
    initial = sorted(alphabet)
    _check_room(config, room, len(initial) + len(inside), "characters (alone and inside words)")
    blank = tokenizers.Tokenizer(models.WordPiece(unk_token=ROLES["unk"]))
    blank.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=room,
        min_frequency=2,
        show_progress=False,
        special_tokens=inside,  # listed first, so their numbers do not depend on the hash map's order
        continuing_subword_prefix=CONTINUING,
        initial_alphabet=initial,
        limit_alphabet=len(initial),
    )
    blank.train_from_iterator(_repeat(words), trainer)
    learnt = [piece for piece in _learnt(blank)[0] if piece not in {*initial, *inside}]
    return [*initial, *inside, *learnt]


def _learnt(trained: tokenizers.Tokenizer) -> tuple[list[str], list[tuple[str, str]]]:
    """Pieces in the order of their ids, and merges (none for WordPiece)."""
    model = json.loads(trained.to_str())["model"]
    vocab = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return vocab, [(a, b) for a, b in model.get("merges", [])]


def _repeat(words: Counter[str]) -> Iterator[str]:
    """Each word as often as it was counted, in chunks of about 64 kB: the trainer takes text, not counts."""
    for word in sorted(words):
        at_once = max(1, 65_536 // (len(word) + 1))
        for done in range(0, words[word], at_once):
            yield (word + " ") * min(at_once, words[word] - done)


def _count_words(texts: Iterable[str], normalizer: Any, pre: Any) -> Counter[str]:
    """Words as the tokenizer will see them. The library splits each distinct chunk between blanks once."""
    chunks: Counter[str] = Counter()
    for text in texts:
        chunks.update(text.split())
    words: Counter[str] = Counter()
    for chunk, n in chunks.items():
        clean = chunk if normalizer is None else normalizer.normalize_str(chunk)
        for word, _ in pre.pre_tokenize_str(clean):
            words[word] += n
    return words


def _count_characters(texts: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    return counts


def _most_frequent(counts: Counter[str], room: int) -> list[str]:
    """At most `room` entries; ties break on spelling."""
    return sorted(counts, key=lambda piece: (-counts[piece], piece))[:room]


def _covering_alphabet(words: Counter[str]) -> set[str]:
    """The most frequent characters that make up `COVERAGE` of all of them."""
    counts: Counter[str] = Counter()
    for word, n in words.items():
        for character in word:
            counts[character] += n
    rest = counts.total() * (1 - COVERAGE)
    kept = set(counts)
    for character in reversed(_most_frequent(counts, len(counts))):
        rest -= counts[character]
        if rest < 0:
            break
        kept.discard(character)
    return kept
