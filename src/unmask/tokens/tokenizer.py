"""Text to ids and back: one class around the `tokenizers` library.

The file is an ordinary `tokenizer.json`; type, special tokens and what is lost are read off its structure
(`structure`), so files of other people load the same way (`formats` reads older ones). Control strings in user text
stay text: "[MASK]" or "<extra_id_0>" in a corpus never becomes a control id (`encode`); a prompt may use them
(`encode_with_specials`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from unmask.config import TokenizerConfig
from unmask.errors import UserError
from unmask.text.corpus import well_formed
from unmask.text.progress import Say
from unmask.tokens.aligned import Aligned, by_bytes, by_characters, by_library, in_original
from unmask.tokens.cuts import PIECE, cut
from unmask.tokens.encode import Encoder
from unmask.tokens.formats import gpt1_files, read_tokenizer
from unmask.tokens.pieces import BYTES, learn
from unmask.tokens.special import Vocabulary, roles_of
from unmask.tokens.structure import (
    BYTE_TOKEN,
    BYTE_VALUE,
    MARK,
    Spec,
    is_byte_level,
    kind_of,
    losses_of,
    marks_blanks,
    tokens_of,
    unknown_of,
    vocabulary_of,
    with_controls_marked,
)
from unmask.tokens.subword import Segmenter
from unmask.tokens.words import Part, WordStarts

__all__ = ["PIECE", "Aligned", "Around", "Tokenizer", "cut"]

Around = tuple[str | None, str | tuple[str, ...] | None]
"""Roles of the control tokens before and after a text."""


class Tokenizer:
    """A trained tokenizer. Build one with `Tokenizer.train` or `Tokenizer.load`."""

    def __init__(self, text: str) -> None:
        """`text` is the content of a tokenizer.json."""
        self.spec: Spec = with_controls_marked(json.loads(tokenizers.Tokenizer.from_str(text).to_str()))
        self.vocabulary: Vocabulary = vocabulary_of(self.spec)
        self.type = kind_of(self.spec)
        self._check_unknown()

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[str]]:
        """A copy in another process starts with an empty memo."""
        return Tokenizer, (json.dumps(self.spec, ensure_ascii=False),)

    @staticmethod
    def train(config: TokenizerConfig, texts: Iterable[str], say: Say | None = None) -> Tokenizer:
        """Learn a vocabulary from texts; the same texts give the same file, whatever the process.

        `say` hears what was counted and what was left out.
        """
        if config.file is not None:
            return Tokenizer.load(config.file)
        return Tokenizer(learn(config, map(well_formed, texts), say).to_str())

    @staticmethod
    def load(path: str | Path) -> Tokenizer:
        """Read a tokenizer.json, another format that `formats` lists, or a directory that holds one."""
        text = read_tokenizer(path)
        try:
            return Tokenizer(text)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
        except Exception as error:  # the library raises bare Exceptions with what it missed
            raise UserError(f"{path} is no tokenizer.json that the tokenizers library reads: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write tokenizer.json, whole or not at all; loading needs this file alone."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        _write_json(unfinished, self.spec)
        os.replace(unfinished, path)

    def save_hf(self, directory: str | Path, around: Around = (None, None), max_length: int | None = None) -> None:
        """Write what `AutoTokenizer.from_pretrained` reads; of GPT-1's kind, vocab.json and merges.txt beside it.

        `around`: the roles that tokenizer puts before and after a text, as the model read it in training:
        ("cls", "sep") for BERT-like ones, ("bos", None) for decoders, (None, "eos") for T5's source, (None,
        ("sep", "cls")) for XLNet.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        spec = {**self.spec, "post_processor": self._template(around)} if any(around) else self.spec
        roles = roles_of(tokens_of(self.spec), unknown_of(self.spec))
        names = {f"{role}_token": self._names[id_] for role, id_ in roles.items()}
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **names,
        }
        if max_length is not None:
            config["model_max_length"] = max_length
        _write_json(directory / "tokenizer.json", spec)
        _write_json(directory / "tokenizer_config.json", config)
        _write_json(directory / "special_tokens_map.json", names)
        for name, content in gpt1_files(self.spec).items():
            (directory / name).write_text(content, encoding="utf-8")

    # ------------------------------------------------------------ text → ids

    def encode(self, text: str) -> np.ndarray:
        """(n,) int32 ids of user text: nothing added, and no control id but unk among them."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode` of each text, many times faster than one by one; on one thread."""
        return self._ids([well_formed(text) for text in texts])

    def encode_aligned(self, texts: Sequence[str]) -> list[Aligned]:
        """`encode` of each text, with the characters that each token covers."""
        whole = [well_formed(text) for text in texts]
        found = self._aligned(whole)
        return [f if w is t else in_original(f, t) for f, w, t in zip(found, whole, texts, strict=True)]

    def encode_with_specials(self, text: str) -> np.ndarray:
        """(n,) int32 ids of a prompt in which control strings mean the control tokens: "a [MASK] b"."""
        return np.array(self._marked.encode(well_formed(text), add_special_tokens=False).ids, np.int32)

    def sample(self, text: str, key: int | np.ndarray, alpha: float = 0.1) -> np.ndarray:
        """(n,) int32 ids of a segmentation drawn by chance: a pure function of text, key (uint64) and alpha.

        It has a probability proportional to its own to the power alpha (Kudo 2018, section 3.3): the smaller alpha,
        the more varied; with a large one it is `encode`'s. Unigram tokenizers only.
        """
        return self._segmenter(well_formed(text), key, alpha)

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of ids; bytes that are no UTF-8 become U+FFFD."""
        return str(self._marked.decode([int(i) for i in ids], skip_special_tokens=skip_special))

    def token(self, id_: int) -> str:
        """A printable piece: control characters and broken UTF-8 are escaped, blanks stay blanks."""
        id_ = int(id_)
        if id_ not in self._names:
            return f"(no token {id_})"
        piece = self._names[id_]
        if not self.vocabulary.is_special[id_]:
            piece = self._content(piece).decode("utf-8", "backslashreplace")
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in piece)

    # ------------------------------------------------------------ what it is

    @cached_property
    def words(self) -> WordStarts:
        """Where words start, from ids alone."""
        return WordStarts.of([self.part(i) for i in range(self.vocabulary.size)])

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that change whenever an id could."""
        canonical = json.dumps(self.spec, sort_keys=True, ensure_ascii=False)
        return hashlib.blake2b(canonical.encode(), digest_size=8).hexdigest()

    @cached_property
    def losses(self) -> list[str]:
        """What decode(encode(text)) does not give back, one phrase each."""
        return losses_of(self.spec)

    @property
    def lossless(self) -> bool:
        """decode(encode(text)) == text for every text."""
        return not self.losses

    @property
    def normalisation(self) -> str:
        return "; ".join(self.losses) or "none"

    # ------------------------------------------------------------ inside

    @cached_property
    def _encoder(self) -> Encoder:
        return Encoder(self.spec)

    @cached_property
    def _segmenter(self) -> Segmenter:
        return Segmenter(self.spec, self._encoder)

    @cached_property
    def _marked(self) -> tokenizers.Tokenizer:
        """The library's tokenizer as the file has it, but nothing is drawn by chance: it recognises control strings."""
        model = {k: v for k, v in self.spec["model"].items() if k != "dropout"}
        marked = tokenizers.Tokenizer.from_str(json.dumps({**self.spec, "model": model}, ensure_ascii=False))
        marked.no_padding()
        marked.no_truncation()
        return marked

    @cached_property
    def _names(self) -> dict[int, str]:
        return {id_: name for name, id_ in tokens_of(self.spec).items()}

    def _ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        if self._table is None:
            return self._encoder(texts)
        if self.spec["normalizer"] is not None:
            texts = [str(self._marked.normalizer.normalize_str(t)) for t in texts]
        if self.type == "byte":
            return [self._table[np.frombuffer(t.encode(), np.uint8)] for t in texts]
        return [self._table[np.frombuffer(t.encode("utf-32-le"), "<u4")] for t in texts]

    def _aligned(self, texts: Sequence[str]) -> list[Aligned]:
        if self.spec["normalizer"] is None:
            if self.type == "char":
                return [by_characters(ids) for ids in self._ids(texts)]
            if (sizes := self._encoder.sizes) is not None:
                return [by_bytes(ids, sizes[ids], text) for ids, text in zip(self._ids(texts), texts, strict=True)]
        return [by_library(self._encoder, text, self._blank) for text in texts]

    @cached_property
    def _blank(self) -> np.ndarray:
        """(size,) bool, tokens that stand for a blank and nothing else."""
        blank = np.zeros(self.vocabulary.size, bool)
        blank[[i for i, name in self._names.items() if name == MARK and self._marks_blanks]] = True
        return blank

    @cached_property
    def _table(self) -> np.ndarray | None:
        """Where a token is a byte (256,) or a character (0x110000,): its id. A table is faster than the library."""
        tokens = tokens_of(self.spec)
        if self.type == "byte":
            return np.array([tokens[c] for c in BYTES], np.int32)
        if self.type != "char":
            return None
        table = np.full(0x110000, self.vocabulary.need("unk"), np.int32)
        for piece, id_ in tokens.items():
            if len(piece) == 1:
                table[ord(piece)] = id_
        return table

    def _content(self, piece: str) -> bytes:
        """What a piece stands for, as it is written in a text."""
        if self._byte_level and piece not in self._added:
            return bytes(BYTE_VALUE[c] for c in piece if c in BYTE_VALUE)
        if self.spec["model"].get("byte_fallback") and (byte := BYTE_TOKEN.fullmatch(piece)):
            return bytes([int(byte[1], 16)])
        return (piece.replace(MARK, " ") if self._marks_blanks else piece).encode()

    @cached_property
    def _byte_level(self) -> bool:
        return is_byte_level(self.spec)

    @cached_property
    def _marks_blanks(self) -> bool:
        return marks_blanks(self.spec)

    @cached_property
    def _added(self) -> frozenset[str]:
        return frozenset(t["content"] for t in self.spec["added_tokens"])

    def part(self, id_: int) -> Part:
        """What a token tells about words."""
        model, vocabulary = self.spec["model"], self.vocabulary
        by_word = model["type"] == "WordPiece" or self.type == "word"  # white space, and an unknown word as a whole
        if id_ == vocabulary.unk and not by_word:
            return Part(b"a")
        if vocabulary.is_special[id_]:
            return Part(b"", control=True)
        piece = self._names[id_]
        inside, suffix = model.get("continuing_subword_prefix"), model.get("end_of_word_suffix")
        if inside and piece.startswith(inside) and piece != inside:
            return Part(piece.removeprefix(inside).encode())
        if inside or by_word:
            return Part(b" " + piece.encode())
        last = bool(suffix) and piece.endswith(suffix)
        return Part(self._content(piece.removesuffix(suffix) if last else piece), last=last)

    def _check_unknown(self) -> None:
        model = self.spec["model"]
        if model["type"] in ("WordLevel", "WordPiece") and self.vocabulary.unk is None:
            raise UserError(
                f"this {model['type']} vocabulary lacks its unknown token {model['unk_token']!r}, so words it "
                "does not hold would have no id; add that token, or set model.unk_token to one it holds"
            )

    def _template(self, around: Around) -> dict[str, Any]:
        opening, closing = around
        roles = () if closing is None else (closing,) if isinstance(closing, str) else closing
        ids = {role: self.vocabulary.need(role) for role in (opening, *roles) if role is not None}
        before = [] if opening is None else [self._names[ids[opening]]]
        after = [self._names[ids[role]] for role in roles]
        second = [f"{name}:1" for name in after]  # of a pair each text has its end, and XLNet's [CLS] stands there once
        template = tokenizers.processors.TemplateProcessing(
            single=" ".join([*before, "$A", *after]),
            pair=" ".join([*before, "$A", *after[:1], "$B:1", *second]),
            special_tokens=[(self._names[i], i) for i in ids.values()],
        )
        shell = tokenizers.Tokenizer(tokenizers.models.BPE())
        shell.post_processor = template
        processor: dict[str, Any] = json.loads(shell.to_str())["post_processor"]
        return processor


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
