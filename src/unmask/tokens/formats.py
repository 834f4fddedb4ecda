"""Tokenizer files of other people, as the content of a tokenizer.json.

    tokenizer.json                     the library's own
    vocab.txt                          BERT: one piece a line, the line number is the id
    vocab.json | encoder.json          GPT-2 (byte-level) and GPT-1 (pieces that end a word carry </w>), with their
      + merges.txt | vocab.bpe         merges beside them
    *.model                            SentencePiece, unigram or bpe
    a directory                        the first of these that it holds, in this order

What a vocabulary alone does not say is taken from a tokenizer_config.json beside it (`do_lower_case`, `strip_accents`,
`tokenize_chinese_chars`, `add_prefix_space`), else from its content: a vocab.txt is cased if an entry other than
[...] and <...> has an upper-case letter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from unmask.errors import UserError, near_file
from unmask.tokens.pieces import BYTES, CONTINUING
from unmask.tokens.sentencepiece import build, read_llama2c, read_model
from unmask.tokens.special import ROLES, SPELLINGS, roles_of

if TYPE_CHECKING:
    from unmask.tokens.tokenizer import Tokenizer

NAMES = ("tokenizer.json", "vocab.txt", "vocab.json", "encoder.json")
"""What a directory is searched for, before any .model file."""
MERGES = {"vocab.json": ("merges.txt", "vocab.bpe"), "encoder.json": ("vocab.bpe", "merges.txt")}
END_OF_WORD = "</w>"


def read_tokenizer(path: str | Path) -> str:
    """The content of a tokenizer.json for any file or directory listed above."""
    path = Path(path)
    file = _in_directory(path) if path.is_dir() else path
    read: Callable[[Path], str] = _of_json
    if file.suffix == ".model":
        read = _of_sentencepiece
    elif file.suffix == ".txt" and file.name != "merges.txt":
        read = _of_bert
    elif file.name in ("merges.txt", "vocab.bpe"):
        raise UserError(f"{file} holds merges alone: give its directory, or the vocab.json beside it")
    try:
        return read(file)
    except OSError as error:
        raise UserError(f"cannot read the tokenizer {file}: {error.strerror or error}{near_file(file)}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read the tokenizer {file}: it is no UTF-8 text (byte {error.start:,})") from error
    except UserError as error:
        raise UserError(f"{file}: {error}") from error


def _of_sentencepiece(file: Path) -> str:
    model = read_model(file.read_bytes())
    try:
        return build(model).to_str()
    except UserError:
        raise
    except Exception as error:  # the library raises bare Exceptions with what it missed
        raise UserError(f"the tokenizers library cannot build this SentencePiece model ({error})") from error


def from_llama2c(path: str | Path) -> Tokenizer:
    """The tokenizer of llama2.c (tokenizer.bin, tok512.bin, …)."""
    from unmask.tokens.tokenizer import Tokenizer

    try:
        return Tokenizer(build(read_llama2c(Path(path).read_bytes())).to_str())
    except OSError as error:
        raise UserError(f"cannot read the tokenizer {path}: {error.strerror or error}") from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _in_directory(path: Path) -> Path:
    found = [path / name for name in NAMES if (path / name).is_file()]
    if found:
        return found[0]
    pieces = sorted(path.glob("*.model"))
    if len(pieces) == 1:
        return pieces[0]
    if pieces:
        raise UserError(f"{path} holds {len(pieces)} .model files: name one, such as {pieces[0]}")
    raise UserError(
        f"cannot read the tokenizer in {path}: it holds no {', '.join(NAMES)} and no .model file (SentencePiece)"
    )


# ---------------------------------------------------------------- JSON


def _of_json(file: Path) -> str:
    text = file.read_text(encoding="utf-8")
    try:
        content = json.loads(text)
    except ValueError as error:
        raise UserError(f"this is no JSON ({error}), so no tokenizer.json") from error
    if isinstance(content, dict) and isinstance(content.get("model"), dict):  # GPT-2 has a token "model"
        return text
    if isinstance(content, dict) and content and all(type(v) is int for v in content.values()):
        return _of_merges(content, file)
    raise UserError("this is no tokenizer.json (it has no key 'model'), and no vocab.json (token → id)")


def _of_merges(vocab: dict[str, int], file: Path) -> str:
    beside = [file.with_name(n) for n in MERGES.get(file.name, MERGES["vocab.json"]) if file.with_name(n).is_file()]
    if not beside:
        raise UserError("this is no tokenizer.json; as a vocab.json it needs its merges.txt or vocab.bpe beside it")
    lines = beside[0].read_text(encoding="utf-8").split("\n")
    lines = [line for line in lines if line and not line.startswith("#version")]
    if wrong := [line for line in lines if line.count(" ") != 1]:
        raise UserError(f"{beside[0].name} holds '{wrong[0]}', which is no pair of pieces")
    pairs = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
    given = _settings(file)
    by_words = any(piece.endswith(END_OF_WORD) for piece in vocab)
    every_byte = set(BYTES) <= set(vocab)
    if by_words == every_byte:
        raise UserError(
            "this vocabulary is neither GPT-2's kind (it lacks some of the 256 bytes) nor GPT-1's "
            f"({END_OF_WORD} at the end of words alone); save it as tokenizer.json with the library it belongs to"
        )
    options = {"end_of_word_suffix": END_OF_WORD} if by_words else {}
    if by_words and (unk := next((t for t in SPELLINGS["unk"] if t in vocab), None)) is not None:
        options["unk_token"] = unk
    try:
        model = models.BPE(vocab, pairs, **options)
    except Exception as error:  # the library raises bare Exceptions with what it missed
        raise UserError(f"{beside[0].name} and {file.name} do not belong together: {error}") from error
    built = tokenizers.Tokenizer(model)
    if by_words:
        built.normalizer = normalizers.BertNormalizer(lowercase=given.get("do_lower_case", True))
        built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        built.decoder = decoders.BPEDecoder(END_OF_WORD)
    else:
        prefix = bool(given.get("add_prefix_space", False))
        built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
        built.decoder = decoders.ByteLevel()
    return _with_controls(built, vocab)


def gpt1_files(spec: Mapping[str, Any]) -> dict[str, str]:
    """vocab.json and merges.txt of a tokenizer of GPT-1's kind, file name → content; of another kind, nothing.

    The kind is what the common library's OpenAIGPTTokenizer does with such files: BPE with </w>, lower case without
    accents, cuts at blanks and punctuation (BERT's).
    """
    model, normal, cuts = spec["model"], spec["normalizer"], spec["pre_tokenizer"]
    lower = {"type": "BertNormalizer", "lowercase": True, "handle_chinese_chars": True, "clean_text": True}
    same = model["type"] == "BPE" and model.get("end_of_word_suffix") == END_OF_WORD and model.get("unk_token")
    same = same and {**(normal or {}), "strip_accents": None} == {**lower, "strip_accents": None}
    if not same or normal["strip_accents"] not in (None, True) or cuts != {"type": "BertPreTokenizer"}:
        return {}
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    vocab = json.dumps(model["vocab"], ensure_ascii=False)
    return {"vocab.json": vocab, "merges.txt": "\n".join(["#version: 0.2", *merges]) + "\n"}


# ---------------------------------------------------------------- BERT


def _of_bert(file: Path) -> str:
    lines = file.read_text(encoding="utf-8").replace("\r\n", "\n").removesuffix("\n").split("\n")
    vocab = {piece: i for i, piece in enumerate(lines)}
    unk = ROLES["unk"]
    if unk not in vocab:
        raise UserError(f"this is no vocab.txt of BERT's kind: it has no line {unk}")
    given = _settings(file)
    built = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=unk, continuing_subword_prefix=CONTINUING))
    built.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(given.get("tokenize_chinese_chars", True)),
        strip_accents=given.get("strip_accents"),  # None: as lower case
        lowercase=bool(given.get("do_lower_case", not _cased(vocab))),
    )
    built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    built.decoder = decoders.WordPiece(prefix=CONTINUING)
    return _with_controls(built, vocab)


def _cased(vocab: Mapping[str, int]) -> bool:
    """Has an entry other than [...] and <...> an upper-case letter?

    >>> _cased({"[MASK]": 0, "<S>": 1, "the": 2}), _cased({"the": 0, "The": 1})
    (False, True)
    """
    return any(piece != piece.lower() and not piece.startswith(("[", "<")) for piece in vocab)


def _settings(file: Path) -> dict[str, Any]:
    """What a tokenizer_config.json beside the file says."""
    beside = file.with_name("tokenizer_config.json")
    if not beside.is_file():
        return {}
    try:
        given = json.loads(beside.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{beside.name} beside it is no JSON: {error}") from error
    return given if isinstance(given, dict) else {}


def _with_controls(built: tokenizers.Tokenizer, vocab: Mapping[str, int]) -> str:
    """Entries that play a role, by their spelling, are control tokens."""
    names = sorted((i, t) for t, i in vocab.items() if i in roles_of(vocab).values())
    built.add_special_tokens([AddedToken(t, special=True, normalized=False) for _, t in names])
    return str(built.to_str())
