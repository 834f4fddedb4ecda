"""Text to ids by the library, each distinct chunk once.

Where `cuts` says that chunks of a text do not depend on each other, their ids are looked up in a memo (`memo`), and the
library sees only what was never met. Ids do not depend on what the memo holds. A long text is handed over in pieces
that are shown to change nothing, also where it has no blank (`runs`).

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

from unmask.errors import UserError
from unmask.tokens.cuts import PIECE, Cuts, soft_places
from unmask.tokens.memo import WINDOW, Group, Memo
from unmask.tokens.pieces import BYTES
from unmask.tokens.runs import Place, Placed, bpe_pieces, placed_by_bytes, placed_by_library, spanned
from unmask.tokens.structure import SEALED, Spec, is_byte_level, normalizers_of, pre_tokenizers_of, sealed, tokens_of

GROUP = 2 * PIECE
"""Characters of one call: the library needs some 100 bytes for each token of it."""
Ids = np.ndarray
"""(n,) int32."""


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
            self.memo = Memo(self._encode_chunks, self.cuts.mask, apart=self.bare is not self.outer)
        self.lock = threading.Lock()

    def __call__(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of texts without surrogates."""
        if self.cuts is None:
            return each(self.outer, texts)
        if not self.lock.acquire(blocking=False):  # another thread is at it, or was when this process was forked
            return [self._whole(text) for text in texts]
        try:
            return self._looked_up(self.cuts, texts)
        finally:
            self.lock.release()

    def parts(self, text: str) -> Iterator[tuple[int, int, tokenizers.Tokenizer]]:
        """[begin, end) of consecutive pieces of a text and what encodes each; few are longer than `PIECE`."""
        ends = [len(text)] if self.cuts is None else self.cuts.ends(text, PIECE)
        for begin, end in itertools.pairwise([0, *ends]):
            by = self._by(text[begin : begin + 1], begin == 0)
            for a, b in itertools.pairwise([0, *self._inside(text[begin:end], by)]):
                yield begin + a, begin + b, self.bare if a else by

    def _by(self, character: str, first: bool) -> tokenizers.Tokenizer:
        """What encodes a piece that begins with this character."""
        return self.outer if first else self.inner if character == " " else self.bare

    def _whole(self, text: str) -> Ids:
        """A text by the library alone."""
        return joined([each(by, [text[a:b]])[0] for a, b, by in self.parts(text)])

    # ------------------------------------------------------------ chunks

    def _looked_up(self, cuts: Cuts, texts: Sequence[str]) -> list[Ids]:
        """Texts by way of the memo, about `WINDOW` characters at once."""
        found: list[list[Ids]] = [[] for _ in texts]
        for window in _windows(cuts, texts):
            if len(window[0][1]) > 2 * WINDOW:  # nothing parts it
                owner, text, first = window[0]
                ids = [self._long(self._by(text[0], first), text)]
            else:
                ids = self.memo([(text, first) for _, text, first in window])
            for (owner, _, _), own in zip(window, ids, strict=True):
                found[owner].append(own)
        empty = each(self.outer, [""])[0] if "" in texts else _NONE
        return [joined(ids) if text else empty for text, ids in zip(texts, found, strict=True)]

    def _encode_chunks(self, chunks: Sequence[str], first: np.ndarray) -> Iterator[Group]:
        """Ids of the memo's chunks."""
        together: list[int] = []
        parted: list[int] = []
        alone: dict[int, tuple[tokenizers.Tokenizer, list[int]]] = {}
        for k, (chunk, opens) in enumerate(zip(chunks, first.tolist(), strict=True)):
            if self.sizes is not None and chunk[0] == " " and _clean(chunk[1:]):
                together.append(k)
            elif self.sizes is not None and self.cuts is not None and self.cuts.ahead and _clean(chunk):
                parted.append(k)
            else:
                by = self._by(chunk[0], opens)
                alone.setdefault(id(by), (by, []))[1].append(k)
        for by, which in alone.values():
            yield self._one_by_one(np.array(which), by, [chunks[k] for k in which])
        for which, between in ((together, ""), (parted, "\n")):
            at = 0
            for group in groups([chunks[k] for k in which], PIECE):
                yield self._together(np.array(which[at : at + len(group)]), group, between)
                at += len(group)

    def _one_by_one(self, which: np.ndarray, by: tokenizers.Tokenizer, chunks: Sequence[str]) -> Group:
        """Chunks one by one; those that are too long in pieces."""
        short = iter(each(by, [c for c in chunks if len(c) <= 2 * PIECE]))
        ids = [next(short) if len(c) <= 2 * PIECE else self._long(by, c) for c in chunks]
        return which, joined(ids), np.array([len(i) for i in ids], np.int64)

    def _together(self, which: np.ndarray, chunks: list[str], between: str) -> Group:
        """Chunks in one call, which is twice as fast: the bytes of the tokens say where each ends.

        Behind a chunk the next one's blank begins a match of the pattern, and so does a line end, which is one token.
        """
        assert self.sizes is not None
        ids = each(self.inner, [between.join(chunks)])[0]
        ends = np.cumsum(self.sizes[ids])
        wanted = np.cumsum([len(c.encode()) + len(between) for c in chunks]) - len(between)
        at = np.searchsorted(ends, wanted)
        if ends[-1] != wanted[-1] or (ends[at] != wanted).any():
            return self._one_by_one(which, self.inner, chunks)
        sizes = np.diff(at, prepend=-1)
        if between:
            ids = np.delete(ids, at[:-1] + 1)
            sizes[1:] -= 1
        return which, ids, sizes

    # ------------------------------------------------------------ runs without a known cut

    def _long(self, by: tokenizers.Tokenizer, text: str) -> Ids:
        """Ids of a text that no class of characters parts."""
        if self._joins_pairs(text):
            return joined([ids for _, ids in self._bpe_pieces(text, by)])
        ends = [0, *self._inside(text, by)]
        return joined([each(self.bare if a else by, [text[a:b]])[0] for a, b in itertools.pairwise(ends)])

    def _inside(self, text: str, by: tokenizers.Tokenizer) -> Iterator[int]:
        """Ends of pieces of such a text; one piece where no cut is known."""
        if self._joins_pairs(text):
            yield from (end for end, _ in self._bpe_pieces(text, by))
            return
        begin = 0
        while self.cuts is not None and self.cuts.soft == "unigram" and len(text) - begin > 2 * PIECE:
            places = soft_places(text, begin + PIECE)
            end = next((p for p in places if not spanned(text, p, self.known, self.longest, self.bare)), None)
            if end is None:
                break
            yield end
            begin = end
        yield len(text)

    def _joins_pairs(self, text: str) -> bool:
        return self.cuts is not None and self.cuts.soft == "bpe" and len(text) > 2 * PIECE

    def _bpe_pieces(self, text: str, by: tokenizers.Tokenizer) -> list[tuple[int, Ids]]:
        return bpe_pieces(text, self._placed(by), self._placed(self.bare), PIECE)

    def _placed(self, by: tokenizers.Tokenizer) -> Place:
        def by_bytes(text: str) -> Placed:
            ids = each(by, [text])[0]
            assert self.sizes is not None
            return placed_by_bytes(text, ids, self.sizes[ids])

        return by_bytes if self.sizes is not None else lambda text: placed_by_library(text, by)


_NONE = np.zeros(0, np.int32)


def _windows(cuts: Cuts, texts: Sequence[str]) -> Iterator[list[tuple[int, str, bool]]]:
    """(which text, piece of it, is it the first?) in runs of about `WINDOW` characters; a longer piece stands alone."""
    window: list[tuple[int, str, bool]] = []
    size = 0
    for k, text in enumerate(texts):
        for begin, end in itertools.pairwise([0, *cuts.ends(text, WINDOW)]):
            if window and size + end - begin > 2 * WINDOW:
                yield window
                window, size = [], 0
            window.append((k, text[begin:end], begin == 0))
            size += end - begin
            if size >= WINDOW:
                yield window
                window, size = [], 0
    if window:
        yield window


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


def _clean(chunk: str) -> bool:
    """Begins and ends it with something visible?"""
    return bool(chunk) and not chunk[0].isspace() and not chunk[-1].isspace() and len(chunk) < PIECE
