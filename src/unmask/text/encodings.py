"""Which encoding bytes look like: a guess to suggest, or to read by where the user asks for it."""

from __future__ import annotations

import re
import unicodedata

import numpy as np

COMMON = [
    *("cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "koi8_r", "koi8_u"),
    *("iso8859_2", "iso8859_5", "iso8859_7", "iso8859_15", "gb18030", "big5", "cp932", "euc_jp", "cp949", "cp874"),
    *("mac_roman", "cp437", "cp850", "cp866"),
]
"""Encodings that text files are met in, the likelier first: where two fit equally, the earlier is guessed."""
SAMPLE = 8192
"""Bytes of lines with non-ASCII bytes that a guess is made from."""


def guess(raw: bytes) -> str:
    """The 8-bit or multi-byte encoding that bytes look like, by the charset_normalizer library; "" = cannot tell."""
    try:
        from charset_normalizer import from_bytes
    except ImportError:  # the guess is a courtesy
        return ""
    sample = b""
    for match in re.finditer(rb"[^\n]*[\x80-\xff][^\n]*\n?", raw):
        sample += match[0][:SAMPLE]
        if len(sample) >= SAMPLE:
            break
    found = [m for m in from_bytes(sample, cp_isolation=COMMON) if m.encoding in COMMON]
    if not found:
        return ""
    best = min(found, key=lambda m: (m.chaos, -m.coherence, COMMON.index(m.encoding)))
    return next(name for name in COMMON if name == best.encoding or _decodes(sample, name) == str(best))


def _decodes(raw: bytes, encoding: str) -> str | None:
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError:
        return None


def without_mark(raw: bytes) -> str:
    """utf-16-le, utf-16-be, utf-32-le or utf-32-be where the zero bytes of a text without a mark show it, else "".

    >>> without_mark("a line\\n".encode("utf-16-be")), without_mark(b"a line\\n")
    ('utf-16-be', '')
    """
    raw = raw[: len(raw[:65536]) // 4 * 4] if len(raw) >= 4 else raw[: len(raw) // 2 * 2]
    if b"\0" not in raw:
        return ""
    of_four = np.frombuffer(raw[: len(raw) // 4 * 4], np.uint8).reshape(-1, 4).max(0, initial=0)
    if len(raw) >= 4 and not of_four[3] and of_four[2] <= 0x10:
        return "utf-32-le"
    if len(raw) >= 4 and not of_four[0] and of_four[1] <= 0x10:
        return "utf-32-be"
    order = {name: _familiar(raw[:8192], name) for name in ("utf-16-le", "utf-16-be")}
    best = max(order, key=lambda name: order[name])
    return best if order[best] else ""


def _familiar(raw: bytes, encoding: str) -> int:
    """How many characters are Latin-1 or Chinese commas and stops, which the wrong byte order hardly gives; 0 where
    it decodes to what is no text."""
    text = raw.decode(encoding, "replace")
    strange = sum((unicodedata.category(c)[0] == "C" and c not in "\t\n\f\r") or c == "\ufffd" for c in text)
    if "\0" in text or strange > 1 + len(text) // 100:
        return 0
    return sum(c < "\u0100" or c in "，、。\u3000" for c in text)
