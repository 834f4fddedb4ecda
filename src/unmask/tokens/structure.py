"""What a tokenizer.json says of itself: its tokens, its type, and what decoding does not give back.

Everything is read off the structure of the file, so files of other people are understood like our own.
"""

from __future__ import annotations

import re
from typing import Any

from unmask.tokens.pieces import BYTES, CHAR_PATTERN, WORD_PATTERN
from unmask.tokens.special import Vocabulary

Spec = dict[str, Any]
"""The content of a tokenizer.json."""
MARK = "▁"
"""How SentencePiece writes a blank."""
STRIP = r"\A +|[ ▁]+\z"
COLLAPSE = " {2,}"
DOUBLE = r"\A▁"
"""Patterns of the normaliser that `sentencepiece` builds: blanks at the ends, runs of blanks, a blank in front."""
STRIPS = (STRIP, r"\A +| +\z")
"""Ours, and how transformers writes it."""
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
"""A byte of a character that the vocabulary lacks."""
BYTE_VALUE = {c: b for b, c in enumerate(BYTES)}
SEALED = "\ufdd0control\ufdd1"
"""Put in front of a control token's spelling inside the encoder: noncharacters, which no text interchanges."""


def normalizers_of(spec: Spec) -> list[Spec]:
    """The normalizers in order, sequences unrolled; so the next two."""
    return _flat(spec["normalizer"], "normalizers")


def pre_tokenizers_of(spec: Spec) -> list[Spec]:
    return _flat(spec["pre_tokenizer"], "pretokenizers")


def decoders_of(spec: Spec) -> list[Spec]:
    return _flat(spec["decoder"], "decoders")


def _flat(part: Spec | None, key: str) -> list[Spec]:
    if part is None:
        return []
    return [leaf for p in part[key] for leaf in _flat(p, key)] if part["type"] == "Sequence" else [part]


# ---------------------------------------------------------------- tokens


def tokens_of(spec: Spec) -> dict[str, int]:
    """Token → id, added tokens included."""
    vocab = spec["model"]["vocab"]
    tokens = dict(vocab) if isinstance(vocab, dict) else {piece: i for i, (piece, _) in enumerate(vocab)}
    return tokens | {t["content"]: t["id"] for t in spec["added_tokens"]}


def unknown_of(spec: Spec) -> str | None:
    """The model's own unknown token."""
    model = spec["model"]
    if model["type"] == "Unigram":
        return None if model["unk_id"] is None else str(model["vocab"][model["unk_id"]][0])
    return model.get("unk_token")


def vocabulary_of(spec: Spec) -> Vocabulary:
    controls = [t["id"] for t in spec["added_tokens"] if t["special"]]
    return Vocabulary.of(tokens_of(spec), controls, unknown_of(spec))


def with_controls_marked(spec: Spec) -> Spec:
    """Added tokens that play a role are special, whatever their file says: else text could yield them."""
    special = set(vocabulary_of(spec).specials.tolist())
    added = [{**t, "special": t["special"] or t["id"] in special} for t in spec["added_tokens"]]
    return {**spec, "added_tokens": added}


def sealed(spec: Spec) -> Spec:
    """The file an encoder of text is built from: no text spells a control token, and nothing is drawn by chance.

    A SentencePiece model holds </s> as a piece like any other, though SentencePiece itself never finds it in text.
    Ids stay what they are; only spellings change. What the file does after encoding is left out: it moves offsets.
    """
    vocabulary = vocabulary_of(spec)
    controls = {t for t, i in tokens_of(spec).items() if vocabulary.is_special[i]}
    new = {t: SEALED + t for t in controls}
    model = {**spec["model"], "dropout": None}
    if isinstance(model["vocab"], dict):
        model["vocab"] = {new.get(t, t): i for t, i in model["vocab"].items()}
    else:
        model["vocab"] = [[new.get(t, t), score] for t, score in model["vocab"]]
    if model.get("unk_token") is not None:
        model["unk_token"] = new.get(model["unk_token"], model["unk_token"])
    if model.get("merges"):
        pairs = [m.split(" ", 1) if isinstance(m, str) else m for m in model["merges"]]
        model["merges"] = [[a, b] for a, b in pairs if not controls & {a, b, a + b}]
    added = [{**t, "content": new.get(t["content"], t["content"])} for t in spec["added_tokens"]]
    return {**spec, "model": model, "added_tokens": added, "post_processor": None, "truncation": None, "padding": None}


def kind_of(spec: Spec) -> str:
    """The type in our terms (`config.Kind`); a foreign model's own name where it has none."""
    model, before = spec["model"], pre_tokenizers_of(spec)
    if model["type"] == "BPE" and is_byte_level(spec):
        whole = not before[0].get("use_regex", True) and not before[0].get("add_prefix_space", True)
        return "byte" if whole and not model["merges"] else "bbpe"
    if model["type"] == "WordLevel":
        return "char" if [p.get("pattern") for p in before] == [{"Regex": CHAR_PATTERN}] else "word"
    return str(model["type"]).lower()


def is_byte_level(spec: Spec) -> bool:
    """Are the characters of its pieces bytes (GPT-2's table)?"""
    return any(p["type"] == "ByteLevel" for p in pre_tokenizers_of(spec))


def marks_blanks(spec: Spec) -> bool:
    """Is a blank written ▁ in its pieces?"""
    written = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
    marked = (p["type"] == "Metaspace" and p["replacement"] == MARK for p in pre_tokenizers_of(spec))
    return written in normalizers_of(spec) or any(marked)


def drops_white_space(part: Spec) -> bool:
    """Does this pre-tokenizer part at white space and drop it?"""
    if part["type"] == "Split" and part["behavior"] == "Removed":
        pattern = next(iter(part["pattern"].values()))
        return pattern == WORD_PATTERN if part["invert"] else pattern in (r"\s+", r"\s")
    return part["type"] in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")


# ---------------------------------------------------------------- what is lost

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
_PATTERN_LOSSES = {**dict.fromkeys(STRIPS, "blanks at the ends are dropped"), COLLAPSE: "runs of blanks become one"}


def losses_of(spec: Spec) -> list[str]:
    """What decode(encode(text)) does not give back, one phrase each."""
    before = pre_tokenizers_of(spec)
    lost = [loss for norm in normalizers_of(spec) for loss in _normalizer_losses(norm)]
    if any(map(drops_white_space, before)) or any(p["type"] == "Split" and p["behavior"] == "Removed" for p in before):
        lost.append("white space is not kept, only that words were apart")
    elif not decoders_of(spec):
        lost.append("the file names no decoder, so blanks come between pieces")
    elif marks_blanks(spec):
        lost += [f"{MARK} becomes a blank", *_blank_in_front(spec)]
    if any(p.get("add_prefix_space") for p in before if p["type"] == "ByteLevel"):
        lost.append("a blank is put in front")
    return lost + _unknown_losses(spec)


def _normalizer_losses(norm: Spec) -> list[str]:
    if norm["type"] == "BertNormalizer":
        strips = norm["lowercase"] if norm["strip_accents"] is None else norm["strip_accents"]
        lost = ["control characters are dropped"] if norm["clean_text"] else []
        lost += ["case is folded"] if norm["lowercase"] else []
        return lost + (["accents are stripped"] if strips else [])
    if norm["type"] == "Replace":
        pattern = next(iter(norm["pattern"].values()))
        undone = pattern == DOUBLE or (pattern == " " and norm["content"] == MARK)
        said = _PATTERN_LOSSES.get(pattern, f"{pattern!r} is replaced by {norm['content']!r}")
        return [] if undone else [said]
    return [_NORMALIZER_LOSSES[norm["type"]]] if norm["type"] in _NORMALIZER_LOSSES else []


def _blank_in_front(spec: Spec) -> list[str]:
    """A ▁ put in front only where the text has none hides whether it had: decoding drops one."""
    doubled = any(n["type"] == "Replace" and n["pattern"] == {"Regex": DOUBLE} for n in normalizers_of(spec))
    put = any(p.get("prepend_scheme", "never") != "never" for p in pre_tokenizers_of(spec))
    return ["one blank at the start is dropped"] if put and not doubled else []


def _unknown_losses(spec: Spec) -> list[str]:
    tokens, model = tokens_of(spec), spec["model"]
    every_byte = is_byte_level(spec) and set(BYTES) <= set(tokens)
    falls_back = model.get("byte_fallback") and all(f"<0x{b:02X}>" in tokens for b in range(256))
    if every_byte or falls_back:
        return []
    unknown = unknown_of(spec)
    return [f"what the vocabulary lacks {f'becomes {unknown}' if unknown else 'is dropped'}"]
