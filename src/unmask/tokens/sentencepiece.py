"""SentencePiece models and llama2.c's copies of them, as tokenizers of the library.

A `.model` file is one protobuf message. We read the few fields that encoding depends on straight from the wire format
(https://protobuf.dev/programming-guides/encoding) by the numbers in sentencepiece_model.proto:

    ModelProto      1 pieces · 2 trainer_spec · 3 normalizer_spec
    SentencePiece   1 piece · 2 score (float) · 3 type
    TrainerSpec     3 model_type · 24 treat_whitespace_as_suffix · 35 byte_fallback · 40–43 ids of unk, bos, eos, pad
    NormalizerSpec  2 precompiled_charsmap · 3 add_dummy_prefix · 4 remove_extra_whitespaces · 5 escape_whitespaces

The result encodes as SentencePiece does, but for one case: the library's normaliser drops a combining mark after a
character that the charsmap rewrites ("①" before U+0301).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from unmask.errors import UserError
from unmask.tokens.special import SPELLINGS, sentinel
from unmask.tokens.structure import COLLAPSE, DOUBLE, MARK, STRIP

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""SentencePiece.Type."""
UNIGRAM, BPE = 1, 2
"""TrainerSpec.ModelType; 3 and 4 are words and characters."""
EXTRA_IDS = 100
"""Sentinels that T5 adds to its model (`transformers.T5Tokenizer(extra_ids=100)`)."""


@dataclass(frozen=True)
class Piece:
    text: str
    score: float
    type: int = NORMAL


@dataclass(frozen=True)
class Model:
    """What encoding depends on; ids are places in `pieces`."""

    pieces: Sequence[Piece]
    model_type: int = UNIGRAM
    byte_fallback: bool = False
    bos: int = 1
    eos: int = 2
    pad: int = -1
    charsmap: bytes = b""
    dummy_prefix: bool = True
    remove_extra: bool = True


# ---------------------------------------------------------------- the wire format


def read_model(data: bytes) -> Model:
    """A `.model` file; UserError says what is wrong with it."""
    pieces: list[Piece] = []
    trainer: dict[int, Any] = {}
    norm: dict[int, Any] = {}
    try:
        for number, value in _fields(data):
            if number == 1:
                piece = dict(_fields(value))
                score = struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0
                pieces.append(Piece(piece[1].decode(), score, piece.get(3, NORMAL)))
            elif number in (2, 3):
                (trainer if number == 2 else norm).update(_fields(value))
    except (IndexError, KeyError, ValueError, TypeError, AttributeError, struct.error) as error:
        raise UserError("this is no SentencePiece model (its bytes are no such protobuf message)") from error
    if not pieces:
        raise UserError("this is no SentencePiece model: it holds no pieces")
    if trainer.get(3, UNIGRAM) not in (UNIGRAM, BPE):
        raise UserError("this SentencePiece model is of words or characters; unigram and bpe models can be loaded")
    if trainer.get(24) or not norm.get(5, 1):
        raise UserError("this SentencePiece model marks blanks behind words, or not at all, which is not supported")
    return Model(
        pieces,
        trainer.get(3, UNIGRAM),
        byte_fallback=bool(trainer.get(35, 0)),
        bos=_signed(trainer.get(41, 1)),
        eos=_signed(trainer.get(42, 2)),
        pad=_signed(trainer.get(43, -1)),
        charsmap=norm.get(2, b""),
        dummy_prefix=bool(norm.get(3, 1)),
        remove_extra=bool(norm.get(4, 1)),
    )


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of a message: integers of varints, bytes of all else.

    >>> list(_fields(bytes([0x08, 0x96, 0x01, 0x12, 0x02, 0x68, 0x69])))
    [(1, 150), (2, b'hi')]
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        size, at = _varint(data, at) if wire == 2 else ({1: 8, 5: 4}[wire], at)
        if at + size > len(data):
            raise ValueError("cut short")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, seven bits a byte, the lowest first; and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _signed(value: int) -> int:
    """int32 fields are written in two's complement of 64 bits; -1 says "none"."""
    return value - (1 << 64) if value >= 1 << 63 else value


# ---------------------------------------------------------------- as a tokenizer of the library


def build(model: Model) -> tokenizers.Tokenizer:
    """The library's tokenizer that encodes like the model."""
    pieces = model.pieces
    unk = next((i for i, p in enumerate(pieces) if p.type == UNKNOWN), None)
    if unk is None:
        raise UserError("this SentencePiece model has no unknown piece")
    if len({p.text for p in pieces}) < len(pieces):
        raise UserError("this SentencePiece model holds a piece twice")
    if model.model_type == UNIGRAM:
        core: Any = models.Unigram([(p.text, p.score) for p in pieces], unk, model.byte_fallback)
    else:
        core = models.BPE(
            {p.text: i for i, p in enumerate(pieces)},
            _merges(pieces),
            unk_token=pieces[unk].text,
            fuse_unk=True,
            byte_fallback=model.byte_fallback,
            ignore_merges=any(p.type == USER_DEFINED for p in pieces),
        )
    built = tokenizers.Tokenizer(core)
    built.normalizer = _normalizer(model)
    built.pre_tokenizer = _pre_tokenizer(model)
    steps: list[Any] = [decoders.Replace(MARK, " ")]
    steps += [decoders.ByteFallback()] if model.byte_fallback else []
    steps += [decoders.Fuse()]
    steps += [decoders.Strip(content=" ", left=1)] if model.dummy_prefix else []
    built.decoder = decoders.Sequence(steps)
    hidden = [p.text for p in pieces if p.type in (UNKNOWN, CONTROL, UNUSED)]
    sentinels = [sentinel(k) for k in reversed(range(EXTRA_IDS))] if like_t5(model) else []
    built.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in [*hidden, *sentinels]])
    return built


def like_t5(model: Model) -> bool:
    """A unigram model with T5's ids (padding 0, end 1, no start) and no sentinels of its own.

    T5 trains its models so and adds 100 sentinels behind the pieces, `<extra_id_0>` last (Raffel et al. 2020;
    `transformers` does the same whatever the ids). mT5's model holds its sentinels already.
    """
    own = any("<extra_id_" in piece.text for piece in model.pieces)
    return model.model_type == UNIGRAM and (model.pad, model.eos, model.bos) == (0, 1, -1) and not own


def _merges(pieces: Sequence[Piece]) -> list[tuple[str, str]]:
    """Merges whose order gives SentencePiece's choice: it joins the two neighbours whose whole has the best score."""
    normal = {p.text: (-p.score, i) for i, p in enumerate(pieces) if p.type == NORMAL}
    ranked = [
        (*rank, text[:cut], text[cut:])
        for text, rank in normal.items()
        for cut in range(1, len(text))
        if text[:cut] in normal and text[cut:] in normal
    ]
    return [(left, right) for _, _, left, right in sorted(ranked)]


def _normalizer(model: Model) -> Any:
    steps: list[Any] = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    if model.remove_extra:  # blanks alone: other white space stays, unless the charsmap makes it blanks
        steps += [normalizers.Replace(Regex(STRIP), ""), normalizers.Replace(Regex(COLLAPSE), " ")]
    steps.append(normalizers.Replace(" ", MARK))
    if model.dummy_prefix:  # Metaspace puts no ▁ before a text that begins with one; SentencePiece does
        steps.append(normalizers.Replace(Regex(DOUBLE), MARK * 2))
    return normalizers.Sequence(steps)


def _pre_tokenizer(model: Model) -> Any:
    """▁ in front and, where no piece reaches over a blank, a cut before every ▁; pieces given by users stand alone."""
    words = all(MARK not in p.text[1:] for p in model.pieces if p.type in (NORMAL, USER_DEFINED))
    scheme = "always" if model.dummy_prefix else "never"
    steps: list[Any] = [pre_tokenizers.Metaspace(MARK, prepend_scheme=scheme, split=words)]
    given = sorted((p.text for p in model.pieces if p.type == USER_DEFINED), key=len, reverse=True)
    if given:
        steps.append(pre_tokenizers.Split(Regex("|".join(map(re.escape, given))), "isolated"))
    return steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)


# ---------------------------------------------------------------- llama2.c


def read_llama2c(data: bytes) -> Model:
    """llama2.c's tokenizer file: int32 longest piece, then (float32 score, int32 size, bytes) of every piece.

    It is a SentencePiece model of BPE with byte fallback, written with blanks for ▁. As run.c encodes: a blank goes in
    front of a text that is not empty, and nothing is normalised. Old exports put line ends around <s> and </s>.
    """
    at = 4
    pieces: list[Piece] = []
    try:
        while at < len(data):
            score, size = struct.unpack_from("<fi", data, at)
            raw = data[at + 8 : at + 8 + size]
            if len(raw) != size or size < 0:
                raise ValueError("cut short")
            text, at = raw.decode(), at + 8 + size
            pieces.append(Piece(text.replace(" ", MARK), score))
    except (ValueError, struct.error) as error:
        raise UserError("this is no tokenizer file of llama2.c") from error
    if len(pieces) < 259 or any(pieces[3 + b].text != f"<0x{b:02X}>" for b in range(256)):
        raise UserError("this is no tokenizer file of llama2.c (entries 3 to 258 are the bytes there)")
    ends = [Piece(name, 0.0, CONTROL) for name in (SPELLINGS["bos"][1], SPELLINGS["eos"][1])]
    first = [Piece(SPELLINGS["unk"][1], 0.0, UNKNOWN), *ends]
    fallback = [Piece(p.text, p.score, BYTE) for p in pieces[3:259]]
    return Model([*first, *fallback, *pieces[259:]], BPE, byte_fallback=True, remove_extra=False)
