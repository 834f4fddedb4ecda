"""Text to ids and back: one class around the `tokenizers` library.

The file is an ordinary `tokenizer.json`; type, special tokens and what is lost are read off its structure,
so files of other people load the same way. Control strings in user text stay text: "[MASK]" or
"<extra_id_0>" in a corpus never becomes a control id (`encode`); a prompt may use them
(`encode_with_specials`).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
import tokenizers
from pydantic import ValidationError

from unmask.config import CorpusConfig, Kind, TokenizerConfig
from unmask.data.corpus import read, well_formed
from unmask.data.pieces import BYTES, CHAR_PATTERN, learn
from unmask.data.special import Vocabulary, roles_of
from unmask.errors import UserError

Around = tuple[str | None, str | None]
"""Roles of the control tokens before and after a text."""
PIECE = 65_536
"""Characters handed to the library at once: its time and memory grow faster than the text beyond that."""


class Tokenizer:
    """A trained tokenizer. Build one with `Tokenizer.train` or `Tokenizer.load`."""

    def __init__(self, text: str) -> None:
        """`text` is the content of a tokenizer.json."""
        self._spec = _with_controls_marked(json.loads(tokenizers.Tokenizer.from_str(text).to_str()))
        self._plain = tokenizers.Tokenizer.from_str(json.dumps(self._spec, ensure_ascii=False))
        self._plain.encode_special_tokens = True  # a control string in the text is split like any other
        self._plain.no_padding()
        self._plain.no_truncation()
        self.vocabulary = _vocabulary(self._spec)
        self.type = _type(self._spec)
        self._check_unknown()

    @staticmethod
    def train(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
        """Learn a vocabulary from texts; the same texts give the same file, whatever the process."""
        if config.file is not None:
            return Tokenizer.load(config.file)
        return Tokenizer(learn(config, map(well_formed, texts)).to_str())

    @staticmethod
    def load(path: str | Path) -> Tokenizer:
        """Read a tokenizer.json (ours or another's), or the one in a directory."""
        path = Path(path)
        path = path / "tokenizer.json" if path.is_dir() else path
        try:
            return Tokenizer(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"cannot read the tokenizer {path}: {error.strerror or error}") from error
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
        except Exception as error:  # the library raises bare Exceptions with what it missed
            raise UserError(f"{path} is no tokenizer.json that the tokenizers library reads: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write tokenizer.json, whole or not at all; loading needs this file alone."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        _write_json(unfinished, self._spec)
        os.replace(unfinished, path)

    def save_hf(self, directory: str | Path, around: Around = (None, None), max_length: int | None = None) -> None:
        """Write what `AutoTokenizer.from_pretrained` reads.

        `around`: the roles that tokenizer puts before and after a text, as the model read it in training:
        ("cls", "sep") for BERT-like ones, ("bos", None) for decoders, (None, "eos") for T5's source.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        spec = {**self._spec, "post_processor": self._template(around)} if any(around) else self._spec
        roles = roles_of(_tokens(self._spec), _unknown(self._spec))
        names = {f"{role}_token": self._plain.id_to_token(id_) for role, id_ in roles.items()}
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

    # ------------------------------------------------------------ text → ids

    def encode(self, text: str) -> np.ndarray:
        """(n,) int32 ids of user text: nothing added, and no control id but unk among them."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode` of each text, many times faster than one by one."""
        if self._byte_ids is not None:
            return [self._byte_ids[np.frombuffer(well_formed(t).encode(), np.uint8)] for t in texts]
        if self._character_ids is not None:
            return [self._character_ids[np.frombuffer(well_formed(t).encode("utf-32-le"), "<u4")] for t in texts]
        ids = self._encode_by_library(texts)
        return [self._without_controls(t, i) for t, i in zip(texts, ids, strict=True)]

    def encode_with_specials(self, text: str) -> np.ndarray:
        """(n,) int32 ids of a prompt in which control strings mean the control tokens: "a [MASK] b"."""
        return np.array(self._marked.encode(well_formed(text), add_special_tokens=False).ids, np.int32)

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of ids; bytes that are no UTF-8 become U+FFFD."""
        return str(self._plain.decode([int(i) for i in ids], skip_special_tokens=skip_special))

    def token(self, id_: int) -> str:
        """A printable piece: control characters and broken UTF-8 are escaped, blanks stay blanks."""
        piece = self._plain.id_to_token(int(id_))
        if piece is None:
            return f"(no token {int(id_)})"
        if self._byte_level and not self.vocabulary.is_special[int(id_)]:
            piece = bytes(_BYTE_VALUE[c] for c in piece if c in _BYTE_VALUE).decode("utf-8", "backslashreplace")
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in piece)

    # ------------------------------------------------------------ what it is

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that change whenever an id could."""
        canonical = json.dumps(self._spec, sort_keys=True, ensure_ascii=False)
        return hashlib.blake2b(canonical.encode(), digest_size=8).hexdigest()

    @cached_property
    def losses(self) -> list[str]:
        """What decode(encode(text)) does not give back, one phrase each."""
        return _losses(self._spec)

    @property
    def lossless(self) -> bool:
        """decode(encode(text)) == text for every text."""
        return not self.losses

    @property
    def normalisation(self) -> str:
        return "; ".join(self.losses) or "none"

    # ------------------------------------------------------------ inside

    @cached_property
    def _marked(self) -> tokenizers.Tokenizer:
        """The same tokenizer, but it recognises control strings."""
        return tokenizers.Tokenizer.from_str(json.dumps(self._spec, ensure_ascii=False))

    @cached_property
    def _byte_level(self) -> bool:
        return any(p["type"] == "ByteLevel" for p in _flat(self._spec["pre_tokenizer"], "pretokenizers"))

    @cached_property
    def _byte_ids(self) -> np.ndarray | None:
        """(256,) id of each byte, where a token is a byte: a table is much faster than the library."""
        vocab = _tokens(self._spec)
        return np.array([vocab[c] for c in BYTES], np.int32) if self.type == "byte" else None

    @cached_property
    def _character_ids(self) -> np.ndarray | None:
        """(0x110000,) id of each code point, where a token is a character."""
        if self.type != "char":
            return None
        table = np.full(0x110000, self.vocabulary.need("unk"), np.int32)
        for piece, id_ in _tokens(self._spec).items():
            if len(piece) == 1:
                table[ord(piece)] = id_
        return table

    def _encode_by_library(self, texts: Sequence[str]) -> list[np.ndarray]:
        pieces: list[str] = []
        first = [0]
        for text in texts:
            text = well_formed(text)
            pieces.extend(cut(text) if self._may_cut else [text])
            first.append(len(pieces))
        try:
            ids = [
                np.array(encoding.ids, np.int32)
                for group in _groups(pieces)
                for encoding in self._plain.encode_batch_fast(group, add_special_tokens=False)
            ]
        except Exception as error:
            raise UserError(f"the tokenizer cannot encode this text: {error}") from error
        return [ids[a] if b == a + 1 else np.concatenate(ids[a:b]) for a, b in itertools.pairwise(first)]

    @cached_property
    def _may_cut(self) -> bool:
        """Words never span a blank here, so a long text may be cut in front of one without changing an id."""
        before = _flat(self._spec["pre_tokenizer"], "pretokenizers")
        norms = {n["type"] for n in _flat(self._spec["normalizer"], "normalizers")}
        first = before[0] if before else {"type": "none"}
        by_word = (
            first["type"] in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")
            or (first["type"] == "ByteLevel" and first["use_regex"] and not first["add_prefix_space"])
            or (first["type"] == "Split" and first["behavior"] == "Removed")
        )
        return by_word and norms <= {"BertNormalizer", "Lowercase", "NFC", "NFD", "StripAccents"}

    def _without_controls(self, text: str, ids: np.ndarray) -> np.ndarray:
        """Some foreign models hold control strings as ordinary pieces; cut those apart and encode again."""
        control = self._control_ids
        if not control[ids].any():
            return ids
        cuts = [0, *(m.start() + 1 for m in self._control_strings.finditer(text)), len(text)]
        parts = self._encode_by_library([text[a:b] for a, b in itertools.pairwise(cuts)])
        ids = np.concatenate(parts)
        stubborn = control[ids]
        if self.vocabulary.unk is None:
            return ids[~stubborn]
        return np.where(stubborn, np.int32(self.vocabulary.unk), ids).astype(np.int32)

    @cached_property
    def _control_ids(self) -> np.ndarray:
        """(size,) bool, control ids that text must never yield: all but unk."""
        flags = self.vocabulary.is_special.copy()
        if self.vocabulary.unk is not None:
            flags[self.vocabulary.unk] = False
        return flags

    @cached_property
    def _control_strings(self) -> re.Pattern[str]:
        names = (self._plain.id_to_token(int(i)) for i in np.flatnonzero(self._control_ids))
        return re.compile("|".join(re.escape(n) for n in sorted(filter(None, names), key=len, reverse=True)))

    def _check_unknown(self) -> None:
        model = self._spec["model"]
        if model["type"] in ("WordLevel", "WordPiece") and self.vocabulary.unk is None:
            raise UserError(
                f"this {model['type']} vocabulary lacks its unknown token {model['unk_token']!r}, so words it "
                "does not hold would have no id; add that token, or set model.unk_token to one it holds"
            )

    def _template(self, around: Around) -> dict[str, Any]:
        ids = {role: self.vocabulary.need(role) for role in around if role is not None}
        before, after = ("" if role is None else str(self._plain.id_to_token(ids[role])) for role in around)
        template = tokenizers.processors.TemplateProcessing(
            single=f"{before} $A {after}".strip(),
            pair=f"{before} $A {after} $B:1 {after and after + ':1'}".strip().replace("  ", " "),
            special_tokens=[(str(self._plain.id_to_token(i)), i) for i in ids.values()],
        )
        shell = tokenizers.Tokenizer(tokenizers.models.BPE())
        shell.post_processor = template
        processor: dict[str, Any] = json.loads(shell.to_str())["post_processor"]
        return processor


# ---------------------------------------------------------------- reading a tokenizer.json

_BYTE_VALUE = {c: b for b, c in enumerate(BYTES)}


def _flat(part: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """A normalizer or pre-tokenizer as a list, sequences unrolled."""
    if part is None:
        return []
    return [leaf for p in part[key] for leaf in _flat(p, key)] if part["type"] == "Sequence" else [part]


def _tokens(spec: dict[str, Any]) -> dict[str, int]:
    """Token → id, added tokens included."""
    vocab = spec["model"]["vocab"]
    tokens = dict(vocab) if isinstance(vocab, dict) else {piece: i for i, (piece, _) in enumerate(vocab)}
    return tokens | {t["content"]: t["id"] for t in spec["added_tokens"]}


def _unknown(spec: dict[str, Any]) -> str | None:
    model = spec["model"]
    if model["type"] == "Unigram":
        return None if model["unk_id"] is None else str(model["vocab"][model["unk_id"]][0])
    return model.get("unk_token")


def _vocabulary(spec: dict[str, Any]) -> Vocabulary:
    controls = [t["id"] for t in spec["added_tokens"] if t["special"]]
    return Vocabulary.of(_tokens(spec), controls, _unknown(spec))


def _with_controls_marked(spec: dict[str, Any]) -> dict[str, Any]:
    """Added tokens that play a role are special, whatever their file says: else text could yield them."""
    special = set(_vocabulary(spec).specials.tolist())
    added = [{**t, "special": t["special"] or t["id"] in special} for t in spec["added_tokens"]]
    return {**spec, "added_tokens": added}


def _type(spec: dict[str, Any]) -> str:
    """bbpe, wordpiece, char, byte, word; or the model's own name (unigram, bpe) for foreign files."""
    model = spec["model"]
    before = _flat(spec["pre_tokenizer"], "pretokenizers")
    if model["type"] == "BPE" and any(p["type"] == "ByteLevel" for p in before):
        whole = not before[0].get("use_regex", True) and not before[0].get("add_prefix_space", True)
        return "byte" if whole and not model["merges"] and spec["normalizer"] is None else "bbpe"
    if model["type"] == "WordLevel":
        return "char" if [p.get("pattern") for p in before] == [{"Regex": CHAR_PATTERN}] else "word"
    return str(model["type"]).lower()


_NORMALIZER_LOSSES = {
    "Lowercase": "case is folded",
    "StripAccents": "accents are stripped",
    "NFC": "Unicode is normalised to NFC",
    "NFD": "Unicode is normalised to NFD",
    "NFKC": "Unicode is normalised to NFKC",
    "NFKD": "Unicode is normalised to NFKD",
    "Precompiled": "Unicode is normalised by sentencepiece's table",
    "Strip": "white space at the ends is dropped",
    "Nmt": "control characters are dropped",
}


def _losses(spec: dict[str, Any]) -> list[str]:
    model, lost = spec["model"], []
    for norm in _flat(spec["normalizer"], "normalizers"):
        if norm["type"] == "BertNormalizer":
            strips = norm["lowercase"] if norm["strip_accents"] is None else norm["strip_accents"]
            lost += ["control characters are dropped"] if norm["clean_text"] else []
            lost += ["case is folded"] if norm["lowercase"] else []
            lost += ["accents are stripped"] if strips else []
        elif norm["type"] in _NORMALIZER_LOSSES:
            lost.append(_NORMALIZER_LOSSES[norm["type"]])
        elif norm["type"] == "Replace" and norm["pattern"] != {"String": " "}:
            lost.append(f"{next(iter(norm['pattern'].values()))!r} is replaced by {norm['content']!r}")
    before = _flat(spec["pre_tokenizer"], "pretokenizers")
    if any(p["type"] in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit") for p in before) or any(
        p["type"] == "Split" and p["behavior"] == "Removed" for p in before
    ):
        lost.append("white space is not kept, only that words were apart")
    if any(p.get("add_prefix_space") or p.get("prepend_scheme", "never") != "never" for p in before):
        lost.append("a blank is put in front")
    every_byte = any(p["type"] == "ByteLevel" for p in before) and set(BYTES) <= set(_tokens(spec))
    if not every_byte and not model.get("byte_fallback"):
        unknown = _unknown(spec)
        lost.append(f"what the vocabulary lacks {f'becomes {unknown}' if unknown else 'is dropped'}")
    return lost


def train_tokenizer(paths: Iterable[str], settings: dict[str, Any], field: str = "text") -> Tokenizer:
    """Train on files, directories or globs; `settings` are those of `TokenizerConfig`."""
    try:
        config = TokenizerConfig.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        known = f" Known types: {', '.join(get_args(Kind))}" if first["loc"] == ("type",) else ""
        raise UserError(f"tokenizer {first['loc'][0]}={first['input']!r}: {first['msg']}.{known}") from error
    return Tokenizer.train(config, (d.text for p in paths for d in read(CorpusConfig(path=p, field=field))))


def _space(character: str) -> bool:
    """White space to the library's regular expressions (Python also counts four separators)."""
    return character.isspace() and not "\x1c" <= character <= "\x1f"


def cut(text: str, limit: int = PIECE) -> Iterator[str]:
    """Pieces of at most `limit` characters, cut before white space (anywhere, where there is none)."""
    start = 0
    while len(text) - start > limit:
        end = max(text.rfind(" ", start + 1, start + limit), text.rfind("\n", start + 1, start + limit))
        while end > start and _space(text[end - 1]):
            end -= 1
        end = end if end > start else start + limit
        yield text[start:end]
        start = end
    yield text[start:]


def _groups(pieces: list[str]) -> Iterator[list[str]]:
    """Runs of pieces of about a million characters: the library needs some 100 bytes for each token of a call."""
    group: list[str] = []
    characters = 0
    for piece in pieces:
        group.append(piece)
        characters += len(piece)
        if characters >= 16 * PIECE:
            yield group
            group, characters = [], 0
    if group:
        yield group


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
