"""Text to ids by the library, each distinct chunk once.

Text repeats its words: where `cuts` says that chunks do not depend on their neighbours, a chunk's ids are looked up in
a memo (`memo`), and the library sees only what was never met. Ids do not depend on what the memo holds. A long text is
handed over in pieces that are shown to change nothing, also where it has no blank (`runs`).

Everything runs on one thread, so a process may fork whenever it likes; two cores are used by two processes.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import tokenizers

from unmask.data.cuts import PIECE, Cuts, last_match, soft_places
from unmask.data.memo import FIRST, WINDOW, Memo
from unmask.data.pieces import BYTES
from unmask.data.runs import bpe_cuts, spanned
from unmask.data.structure import SEALED, Spec, is_byte_level, normalizers_of, pre_tokenizers_of, sealed, tokens_of
from unmask.errors import UserError

GROUP = 16 * PIECE
"""Characters of one call: the library needs some 100 bytes for each token of it."""
Ids = np.ndarray
"""(n,) int32."""
Group = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Which texts of a list, their ids end to end, how many each has."""


class Encoder:
    """Ids of texts by the file `spec`; control strings in a text are text."""

    def __init__(self, spec: Spec) -> None:
        # The library would start threads, which a fork leaves dead; told before its first call, it never warns of it.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        own = sealed(spec)
        self.cuts = Cuts.of(own)
        self.outer = self.inner = self.bare = library(own)
        if self.cuts is not None and self.cuts.bare is not own:
            self.bare = library(self.cuts.bare)
            self.inner = self.outer if self.cuts.inner is own else self.bare
        self.sizes = byte_sizes(own)
        self.vocab = own["model"]["vocab"]
        unigram = own["model"]["type"] == "Unigram"
        self.known = frozenset(p for p, _ in self.vocab if not p.startswith(SEALED)) if unigram else frozenset()
        self.longest = max(map(len, self.known), default=0)
        if self.cuts is not None:
            self.memo = Memo(self.cuts.glues, self.cuts.ahead, self._encode_chunks)
        self.lock = threading.Lock()

    def __call__(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of texts without surrogates."""
        if self.cuts is None:
            return each(self.outer, texts)
        if not self.lock.acquire(blocking=False):  # another thread is at it, or was when this process was forked
            return [self._whole(text) for text in texts]
        try:
            return self._looked_up(texts)
        finally:
            self.lock.release()

    def parts(self, text: str) -> Iterator[tuple[int, int, tokenizers.Tokenizer]]:
        """[begin, end) of consecutive pieces of a text and what encodes each; few are longer than `PIECE`."""
        if self.cuts is None:
            yield 0, len(text), self.outer
            return
        for begin, end in self.cuts.windows(text, PIECE):
            by = self.inner if begin else self.outer
            for a, b in itertools.pairwise([0, *self._inside(text[begin:end], by)]):
                yield begin + a, begin + b, self.bare if a else by

    def _whole(self, text: str) -> Ids:
        """A text by the library alone."""
        return joined([each(by, [text[a:b]])[0] for a, b, by in self.parts(text)])

    # ------------------------------------------------------------ chunks

    def _looked_up(self, texts: Sequence[str]) -> list[Ids]:
        """Texts by way of the memo, about `WINDOW` characters at once."""
        assert self.cuts is not None
        found: list[list[Ids]] = [[] for _ in texts]
        owners: list[int] = []
        window: list[tuple[str, bool]] = []
        size = 0
        for k, text in enumerate(texts):
            if FIRST in text:
                found[k].append(self._whole(text))
                continue
            for begin, end in self.cuts.windows(text, WINDOW):
                owners.append(k)
                window.append((text[begin:end], begin == 0))
                size += end - begin
                if size >= WINDOW:
                    for owner, ids in zip(owners, self.memo(window), strict=True):
                        found[owner].append(ids)
                    owners, window, size = [], [], 0
        if window:
            for owner, ids in zip(owners, self.memo(window), strict=True):
                found[owner].append(ids)
        return [joined(ids) for ids in found]

    def _encode_chunks(self, keys: Sequence[str]) -> Iterator[Group]:
        """Ids of the memo's keys."""
        together, inner, outer = [], [], []
        for k, key in enumerate(keys):
            if key[:1] == FIRST:
                outer.append(k)
            elif self.sizes is None or not key or key[0].isspace() or key[-1].isspace() or len(key) >= PIECE:
                inner.append(k)
            else:
                together.append(k)
        yield self._one_by_one(np.array(outer, np.int64), self.outer, [keys[k][1:] for k in outer])
        yield self._one_by_one(np.array(inner, np.int64), self.inner, [" " + keys[k] for k in inner])
        at = 0
        for group in groups([" " + keys[k] for k in together], PIECE):
            yield self._together(np.array(together[at : at + len(group)]), group)
            at += len(group)

    def _one_by_one(self, which: np.ndarray, by: tokenizers.Tokenizer, chunks: Sequence[str]) -> Group:
        """Chunks one by one; those that are too long in pieces."""
        short = iter(each(by, [c for c in chunks if len(c) <= 2 * PIECE]))
        ids = [next(short) if len(c) <= 2 * PIECE else self._long(by, c) for c in chunks]
        return which, joined(ids), np.array([len(i) for i in ids], np.int64)

    def _long(self, by: tokenizers.Tokenizer, chunk: str) -> Ids:
        ends = [0, *self._inside(chunk, by)]
        return joined([each(self.bare if a else by, [chunk[a:b]])[0] for a, b in itertools.pairwise(ends)])

    def _together(self, which: np.ndarray, chunks: list[str]) -> Group:
        """Chunks end to end in one call, which is twice as fast: the bytes of the tokens say where each ends."""
        assert self.sizes is not None
        ids = each(self.inner, ["".join(chunks)])[0]
        ends = np.cumsum(self.sizes[ids])
        wanted = np.cumsum([len(c) if c.isascii() else len(c.encode()) for c in chunks])
        at = np.searchsorted(ends, wanted)
        if ends[-1] != wanted[-1] or (ends[at] != wanted).any():
            return self._one_by_one(which, self.inner, chunks)
        return which, ids, np.diff(at, prepend=-1)

    # ------------------------------------------------------------ runs without blanks

    def _inside(self, text: str, by: tokenizers.Tokenizer) -> Iterator[int]:
        """Ends of pieces of a text in which no blank parts anything; one piece where no other cut is known."""
        begin, cuts = 0, self.cuts
        while cuts is not None and len(text) - begin > 2 * PIECE:
            end = None if cuts.hard is None else last_match(cuts.hard, text, begin + PIECE // 2, begin + PIECE)
            if end is None and cuts.soft == "unigram":
                places = soft_places(text, begin + PIECE)
                end = next((p for p in places if not spanned(text, p, self.known, self.longest, self.bare)), None)
            if end is None and cuts.soft == "bpe":
                after = None if cuts.hard is None else cuts.hard.search(text, begin + PIECE)
                stretch = text[begin : len(text) if after is None else after.end()]
                *ends, end = (begin + e for e in bpe_cuts(stretch, by, self.bare, PIECE))
                yield from ends
            if end is None:
                break
            yield end
            begin, by = end, self.bare
        if begin < len(text) or not text:
            yield len(text)


_NONE = np.zeros(0, np.int32)


def library(spec: Spec) -> tokenizers.Tokenizer:
    """A tokenizer of the library to which control strings are text."""
    built = tokenizers.Tokenizer.from_str(json.dumps(spec, ensure_ascii=False))
    built.encode_special_tokens = True
    return built


def each(by: tokenizers.Tokenizer, texts: Sequence[str]) -> list[Ids]:
    """Ids of each text, as the library gives them."""
    try:
        return [
            np.array(encoding.ids, np.int32)
            for group in groups(texts, GROUP)
            for encoding in by.encode_batch_fast(group, add_special_tokens=False)
        ]
    except Exception as error:
        raise UserError(f"the tokenizer cannot encode this text: {error}") from error


def groups(texts: Sequence[str], size: int) -> Iterator[list[str]]:
    """Runs of texts of about `size` characters."""
    group: list[str] = []
    characters = 0
    for text in texts:
        group.append(text)
        characters += len(text)
        if characters >= size:
            yield group
            group, characters = [], 0
    if group:
        yield group


def joined(ids: Sequence[Ids]) -> Ids:
    return ids[0] if len(ids) == 1 else np.concatenate([_NONE, *ids])


def byte_sizes(spec: Spec) -> np.ndarray | None:
    """(size,) int64 how many bytes of the text each token stands for; None where that is not known of every text."""
    tokens = tokens_of(spec)
    changes = normalizers_of(spec) or any(p.get("add_prefix_space") for p in pre_tokenizers_of(spec))
    added = any(not t["special"] for t in spec["added_tokens"])
    if not is_byte_level(spec) or changes or added or not set(BYTES) <= set(tokens):
        return None
    sizes = np.zeros(max(tokens.values()) + 1, np.int64)
    for piece, id_ in tokens.items():
        sizes[id_] = len(piece)
    return sizes
