"""Segmentations of a text drawn by chance: subword regularisation (Kudo 2018), as a pure function of a key."""

from __future__ import annotations

import numpy as np

from unmask import keyed
from unmask.errors import UserError
from unmask.tokens.encode import Encoder
from unmask.tokens.structure import SEALED, Spec
from unmask.tokens.unigram import Unigram

_UNKNOWN = 10.0
"""How much less likely than the rarest piece the library takes an unknown character to be."""


class Segmenter:
    """Draws segmentations under the scores of a unigram tokenizer; text is normalised and cut as `encode` does."""

    def __init__(self, spec: Spec, encoder: Encoder) -> None:
        model = spec["model"]
        if model["type"] != "Unigram":
            raise UserError("only a unigram tokenizer can draw segmentations (tokenizer train --type unigram)")
        scores = [score for _, score in model["vocab"]]
        pieces = {i: p for i, (p, _) in enumerate(encoder.vocab) if not p.startswith(SEALED)}
        self.ids = {p: i for i, p in pieces.items()}
        self.unk = model["unk_id"]
        self.by_bytes = bool(model["byte_fallback"])
        self.model = Unigram([(p, scores[i]) for i, p in pieces.items()], unk=min(scores) - _UNKNOWN)
        self.library = encoder.outer

    def __call__(self, text: str, key: int | np.ndarray, alpha: float) -> np.ndarray:
        """(n,) int32."""
        normalizer, before = self.library.normalizer, self.library.pre_tokenizer
        text = text if normalizer is None else str(normalizer.normalize_str(text))
        words = [text] if before is None else [word for word, _ in before.pre_tokenize_str(text)]
        uniform = keyed.uniform(np.asarray(key, np.uint64), np.arange(sum(map(len, words))))
        out: list[int] = []
        at = 0
        for word in words:
            drawn = [self._id(p) for p in self.model.sample(word, uniform[at : at + len(word)], alpha)]
            out += [i for k, ids in enumerate(drawn) for i in ids if k == 0 or ids != [self.unk] or drawn[k - 1] != ids]
            at += len(word)
        return np.array(out, np.int32)

    def _id(self, piece: str) -> list[int]:
        """A piece's id; an unknown character's bytes where all are known (neighbouring unknown ones become one)."""
        if piece in self.ids:
            return [self.ids[piece]]
        fallback = [self.ids.get(f"<0x{b:02X}>") for b in piece.encode()] if self.by_bytes else [None]
        known = [i for i in fallback if i is not None]
        return known if len(known) == len(fallback) else [self.unk]
