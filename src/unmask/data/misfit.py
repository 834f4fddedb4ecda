"""Whether a tokenizer and a text go together, from what is known once the text is encoded."""

from __future__ import annotations

from unmask.data.shards import Prepared, Shards

UNKNOWN = 0.05
"""Share of unknown tokens from which on a model learns holes."""
BYTES = 1.5
"""Bytes that a token of a learnt vocabulary should hold at least; a byte-level tokenizer holds 1 by definition."""
LEARNT = 1024
"""Entries from which on a vocabulary has room for more than bytes and their commonest pairs."""
WHOLE = 4096
"""Training tokens below which shares say little."""


def misfits(text: Prepared) -> list[str]:
    """A sentence for every sign that this tokenizer was made for another text."""
    size = int(text.train.counts.sum())
    return [s for s in (_unknown(text, size), _short(text, size)) if s] if size >= WHOLE else []


def _unknown(text: Prepared, size: int) -> str:
    unk = text.tokenizer.vocabulary.unk
    share = 0.0 if unk is None else int(text.train.counts[unk]) / size
    if share < UNKNOWN:
        return ""
    return (
        f"WARNING: {share:.0%} of the training tokens are unknown to the tokenizer ({text.tokenizer.type}, "
        f"{text.tokenizer.vocabulary.size:,} entries): it does not fit this text; train one on it (tokenizer.type=bbpe "
        "has no unknown tokens)"
    )


def _short(text: Prepared, size: int) -> str:
    kind, entries = text.tokenizer.type, text.tokenizer.vocabulary.size
    held = _bytes(text.train) / size
    if kind in ("byte", "char") or entries < LEARNT or held >= BYTES:
        return ""
    return (
        f"WARNING: a token holds {held:.2f} bytes of the training text, hardly more than the 1 of a byte-level "
        f"tokenizer, although the vocabulary ({kind}) has {entries:,} entries: it was made for another text; train one "
        "on this text"
    )


def _bytes(side: Shards) -> int:
    return int(side.bytes.sum())
