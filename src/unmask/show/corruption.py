"""Effective corruption, one thing for all objectives.

Of an example's text, which is every token that it shows or asks for, the share that not every one of its predictions
sees.

    masked 15 %      0.15, less the tokens that stay as they are          causal      1: the first sees nothing
    span corruption  the noise density, in every layout                   prefix LM   the target's share
    GLM              the blanks' share                                    XLNet       one token in K

So it is the r of UL2, in which causal and prefix LM are span corruption with one long span (Tay et al. 2022, section
3.1), and the nominal rate of each noise where all happens that is asked for.
"""

from __future__ import annotations

import numpy as np

from unmask.batch import Batch
from unmask.data.loader import Loader


def corruption(loader: Loader) -> float:
    """Of the text of all examples, the share that not every prediction of its example sees.

    The loader reads places in the corpus instead of tokens, as ids beyond its vocabulary, so that streams and targets
    tell which of them they hold.
    """
    missed = total = 0
    for batch in loader.once():
        hidden, held = unseen(batch, loader.vocabulary.size)
        missed, total = missed + hidden, total + held
    return missed / max(total, 1)


def unseen(batch: Batch, first: int) -> tuple[int, int]:
    """How many ids from `first` on the texts of a batch show or ask for, each once a text, and how many of them are
    not seen by every prediction of their text.

    A prediction sees a token of its own block that is revealed by its horizon (`batch.visible`), and from the stream
    all of the source. So one view of each block is enough, that of the prediction with the least horizon.
    """
    assert batch.samples is not None
    stacks = {"stream": batch.stream} | ({} if batch.source is None else {"source": batch.source})
    width = 1 + max(int(s.block.max(initial=0)) for s in stacks.values())
    row = np.arange(len(batch.stream.block))[:, None]
    blocks = {name: (row * width + s.block).reshape(-1) for name, s in stacks.items()}  # numbered over all rows
    opening = np.sort(batch.samples.row * width + batch.samples.block)  # of each text
    held, seen, views = [], [], []
    for name, stack in stacks.items():
        tokens, block = stack.tokens.reshape(-1), blocks[name]
        least, asked = _views(batch, name, block, len(row) * width)
        held += [_pairs(block, tokens, first), _pairs(*asked, first)]
        shown = [_pairs(block, np.where(stack.reveal.reshape(-1) <= least[block], tokens, 0), first)]
        if name == "stream" and batch.source is not None:
            there = blocks["source"]
            shown.append(_pairs(there, np.where(least[there] >= 0, batch.source.tokens.reshape(-1), 0), first))
        seen.append(np.unique(np.concatenate(shown), axis=0))
        views.append(np.flatnonzero(least >= 0))
    whole = 1 + max(int(pairs[:, 1].max(initial=0)) for pairs in held)
    text = np.searchsorted(opening, np.concatenate(views), "right") - 1
    every = np.bincount(text, minlength=len(opening))  # views of each text
    each, times = np.unique(_numbered(seen, opening, whole), return_counts=True)
    texts = np.unique(_numbered(held, opening, whole))
    unasked = int((every[texts // whole] == 0).sum())  # texts without a prediction miss nothing
    return len(texts) - unasked - int((times == every[each // whole]).sum()), len(texts)


def _views(batch: Batch, name: str, block: np.ndarray, count: int) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """(count,) the least horizon of the predictions in each block, −1 where there is none; and what the stack's
    targets ask for: blocks and values."""
    stack = batch.stream if name == "stream" else batch.source
    assert stack is not None
    never, horizon = np.iinfo(np.int64).max, stack.horizon.reshape(-1)
    least, asked = np.full(count, never), [np.zeros((2, 0), np.int64)]
    for key, t in batch.targets.items():
        if batch.heads[key].stack != name:
            continue
        index = np.arange(len(block)) if t.index is None else t.index
        index = index.reshape(len(index), -1)[t.weight != 0]
        np.minimum.at(least, block[index[:, 0]], horizon[index].max(1))  # of two positions it sees what either sees
        if batch.heads[key].over == "vocabulary":
            asked.append(np.stack([block[index[:, 0]], t.value[t.weight != 0]]))
    where, value = np.concatenate(asked, axis=1)
    return np.where(least == never, -1, least), (where, value)


def _pairs(block: np.ndarray, tokens: np.ndarray, first: int) -> np.ndarray:
    """(n, 2) block and id of the tokens from `first` on."""
    own = tokens >= first
    return np.stack([block[own], tokens[own] - first], 1)


def _numbered(pairs: list[np.ndarray], opening: np.ndarray, whole: int) -> np.ndarray:
    """(n,) one number for each text and id, of blocks and ids."""
    block, token = np.concatenate(pairs).T
    return (np.searchsorted(opening, block, "right") - 1) * whole + token
